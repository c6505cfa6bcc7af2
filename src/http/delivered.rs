//! A response body that owns a delivery until hyper asks for the bytes: from then on the jobs are the consumer's.
//! If the connection ends before, the delivery is dropped and gives its jobs back to their queue.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::dispatch::Delivery;

/// The same body; asking for its bytes takes the delivery.
pub fn until_sent(body: Body, delivery: Delivery) -> Body {
    Body::new(Delivered { body, delivery: Some(delivery) })
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
