//! The bodies of responses that hand out jobs. Each owns its delivery until hyper asks for the bytes: from then on
//! the jobs are the consumer's. If the connection ends before, the delivery is dropped and gives its jobs back to
//! their queue. A large answer is made job by job while it is sent, so that memory holds the jobs and one of them as
//! JSON, not all of them twice more.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::reply::JobReply;
use crate::dispatch::Delivery;
use crate::job::Job;

/// The same body; asking for its bytes takes the delivery.
pub fn until_sent(body: Body, delivery: Delivery) -> Body {
    Body::new(Delivered { body, delivery: Some(delivery) })
}

/// How an answer shows its jobs.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// As an array, not as the only job's object.
    pub array: bool,
    /// With their receipts.
    pub receipts: bool,
}

/// The JSON of the jobs, made while it is sent. `room` is kept until then.
pub fn piece_by_piece(delivery: Delivery, form: Form, room: OwnedSemaphorePermit) -> Body {
    let jobs = delivery.jobs();
    // The brackets of the array, and the commas between its jobs.
    let around = if form.array { jobs.len() + 1 } else { 0 };
    let left = jobs.iter().map(|job| length(job, form)).sum::<u64>() + around as u64;
    Body::new(Pieces {
        delivery: Some(delivery),
        jobs: Vec::new().into_iter(),
        form,
        begun: false,
        left,
        _room: room,
    })
}

/// How long a job's JSON is.
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

struct Pieces {
    /// `Some` until the first bytes were asked for.
    delivery: Option<Delivery>,
    jobs: std::vec::IntoIter<Job>,
    form: Form,
    /// The first job was sent.
    begun: bool,
    /// How many bytes are still to come.
    left: u64,
    _room: OwnedSemaphorePermit,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(delivery) = self.delivery.take() {
            self.jobs = delivery.take().into_iter();
        }
        let Some(job) = self.jobs.next() else { return Poll::Ready(None) };
        let mut piece = Vec::with_capacity(length(&job, self.form) as usize + 2);
        if self.form.array {
            piece.push(if self.begun { b',' } else { b'[' });
        }
        self.begun = true;
        JobReply::consumed(&job, self.form.receipts).write(&mut piece);
        if self.form.array && self.jobs.len() == 0 {
            piece.push(b']');
        }
        self.left = self.left.saturating_sub(piece.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
