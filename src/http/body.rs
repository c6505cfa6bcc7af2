//! Reading a request's body, bounded in size and in time. Knows nothing of what is in it.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::error::ApiError;

/// How long a sender may pause within a body.
const BODY_PAUSE: Duration = Duration::from_secs(30);
/// How long a whole body may take. A bulk that comes byte by byte would keep others' room for ever.
const BODY_TIME: Duration = Duration::from_secs(300);
const BODY_STALLED: ApiError = ApiError::Refused(StatusCode::REQUEST_TIMEOUT, "the body stopped coming");

/// Reads a whole body of at most `most` bytes. 413 if it is larger (the middleware reads the rest away), 408 if it
/// stops coming or takes longer than [`BODY_TIME`], 400 if it breaks off.
pub async fn read_body(mut body: Body, most: usize, too_large: &'static str) -> Result<Bytes, ApiError> {
    let declared = hyper::body::Body::size_hint(&body).exact();
    if declared.is_some_and(|size| size > most as u64) {
        return Err(ApiError::too_large(too_large));
    }
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    let end = Instant::now() + BODY_TIME;
    loop {
        let deadline = end.min(Instant::now() + BODY_PAUSE);
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| BODY_STALLED)?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::bad("failed to read body"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + whole.len() + data.len() > most {
            return Err(ApiError::too_large(too_large));
        }
        // Most bodies come in one piece, and are not copied.
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole.reserve(declared.map_or(0, |size| size as usize).max(first.len() + data.len()));
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use axum::body::HttpBody;
    use hyper::body::Frame;
    use tokio::time::{Sleep, sleep};

    use super::*;

    /// Sends a byte after each pause, for ever.
    struct Trickle(Duration, Pin<Box<Sleep>>);

    impl Trickle {
        fn body(pause: Duration) -> Body {
            Body::new(Trickle(pause, Box::pin(sleep(pause))))
        }
    }

    impl HttpBody for Trickle {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            ready!(self.1.as_mut().poll(cx));
            self.1 = Box::pin(sleep(self.0));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_too_slowly_is_given_up() {
        for (pause, longest) in [(BODY_PAUSE / 2, BODY_TIME), (BODY_PAUSE * 2, BODY_PAUSE)] {
            let began = Instant::now();
            let read = read_body(Trickle::body(pause), 1 << 20, "too large").await;
            assert!(
                matches!(read, Err(ApiError::Refused(StatusCode::REQUEST_TIMEOUT, _))),
                "a byte every {pause:?}: {read:?}"
            );
            assert!(began.elapsed() <= longest + Duration::from_secs(1), "after {:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_over_its_bound_is_refused_where_it_grows_over_it() {
        let read = read_body(Trickle::body(Duration::from_secs(1)), 5, "too large").await;
        assert!(
            matches!(read, Err(ApiError::Refused(StatusCode::PAYLOAD_TOO_LARGE, "too large"))),
            "six bytes, five may come: {read:?}"
        );
    }
}
