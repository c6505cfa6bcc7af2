//! Response bodies with delivered jobs. Each owns its delivery until hyper takes the bytes; from then on the consumer
//! has the jobs. If the connection ends earlier, the delivery is dropped and returns its jobs to their queue.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::reply::{self, JobReply};
use super::room::Room;
use crate::dispatch::Delivery;
use crate::job::Job;

/// Wraps a body so that reading it takes the delivery.
pub fn until_sent(body: Body, delivery: Delivery) -> Body {
    Body::new(Delivered { body, delivery: Some(delivery) })
}

/// Format of jobs in a reply.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// An array instead of a single object.
    pub array: bool,
    /// Include receipts.
    pub receipts: bool,
}

/// Encodes the jobs while they are sent. `room` is kept until then.
pub fn piece_by_piece(delivery: Delivery, form: Form, room: Option<Room>) -> Body {
    let jobs = delivery.jobs();
    // The brackets of the array and the commas between jobs.
    let around = if form.array { jobs.len() + 1 } else { 0 };
    let length = jobs.iter().map(|job| length(job, form)).sum::<u64>() + around as u64;
    let (mut delivery, mut jobs, mut begun) = (Some(delivery), Vec::new().into_iter(), false);
    let texts = std::iter::from_fn(move || {
        if let Some(delivery) = delivery.take() {
            jobs = delivery.take().into_iter();
        }
        let job = jobs.next()?;
        let mut text = Vec::with_capacity(self::length(&job, form) as usize + 2);
        if form.array {
            text.push(if begun { b',' } else { b'[' });
        }
        begun = true;
        JobReply::consumed(&job, form.receipts).write(&mut text);
        if form.array && jobs.len() == 0 {
            text.push(b']');
        }
        Some(text)
    });
    reply::pieces(texts, Some(length), room)
}

/// Returns the length of a job's JSON.
fn length(job: &Job, form: Form) -> u64 {
    let mut shell = Vec::new();
    JobReply::consumed(job, form.receipts).without_data().write(&mut shell);
    (shell.len() + job.body.len().div_ceil(3) * 4) as u64
}

struct Delivered {
    body: Body,
    delivery: Option<Delivery>,
}

impl HttpBody for Delivered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(delivery) = self.delivery.take() {
            delivery.take();
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
