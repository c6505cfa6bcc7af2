//! Reads a request's body, limited in size and time. Independent of its content.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::http::answer::error::ApiError;
use crate::http::answer::room::{RequestRoom, SMALL};

/// Maximum pause within a body.
const BODY_PAUSE: Duration = Duration::from_secs(30);
/// Maximum time for a whole body.
const BODY_TIME: Duration = Duration::from_secs(300);
/// Bytes of a body that uses body memory that must arrive in each [`ROOM_WINDOW`], unless it ends. A trickling body
/// would use others' memory for long.
const ROOM_LEAST: usize = 64 * 1024;
const ROOM_WINDOW: Duration = Duration::from_secs(10);
const BODY_STALLED: ApiError =
    ApiError::Refused(StatusCode::REQUEST_TIMEOUT, "timeout while reading the body");

/// Reads a whole body of at most `most` bytes, reserving body memory in `room` as bytes arrive. Fails with 413 if it
/// is larger (the middleware discards the rest), 408 if it stalls, trickles, or takes longer than [`BODY_TIME`], 400
/// if it is aborted, and 503 without body memory.
pub async fn read_body(
    mut body: Body,
    most: usize,
    too_large: &'static str,
    mut room: Option<&mut RequestRoom<'_>>,
) -> Result<Bytes, ApiError> {
    let declared = body.size_hint().exact();
    if declared.is_some_and(|size| size > most as u64) {
        return Err(ApiError::too_large(too_large));
    }
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    // Set at the first wait. Most bodies arrive with their head, without a wait.
    let mut end = None;
    // While the body uses body memory: a deadline, and the number of bytes that must have arrived by then.
    let mut due: Option<(Instant, usize)> = None;
    loop {
        let frame = match poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let now = Instant::now();
                let mut deadline = (now + BODY_PAUSE).min(*end.get_or_insert(now + BODY_TIME));
                if let Some((by, _)) = due {
                    deadline = deadline.min(by);
                }
                timeout_at(deadline, body.frame()).await.map_err(|_| BODY_STALLED)?
            }
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::bad("failed to read body"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + whole.len() + data.len() > most {
            return Err(ApiError::too_large(too_large));
        }
        let came = first.len() + whole.len() + data.len();
        if came > SMALL
            && let Some(room) = &mut room
        {
            room.grow_to(came).await?;
            if due.is_none_or(|(_, least)| came >= least) {
                due = Some((Instant::now() + ROOM_WINDOW, came + ROOM_LEAST));
            }
        }
        // Most bodies arrive in one piece and are not copied.
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            // Memory that is not written to is not resident.
            whole.reserve(declared.map_or(0, |size| size as usize).max(came));
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

#[cfg(test)]
mod tests {
    use std::task::{Context, ready};

    use hyper::body::Frame;
    use tokio::time::{Sleep, sleep};

    use super::*;
    use crate::http::answer::room::BodyRoom;
    use crate::name::Namespace;

    /// Sends a byte after each pause, forever.
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

    /// One body followed by another.
    struct Then(Body, Body);

    impl HttpBody for Then {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            match ready!(Pin::new(&mut self.0).poll_frame(cx)) {
                Some(frame) => Poll::Ready(Some(frame)),
                None => Pin::new(&mut self.1).poll_frame(cx),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_too_slowly_is_given_up() {
        let (room, ns) = (BodyRoom::new(1 << 20, 1 << 20), Namespace::parse("ns").expect("a literal"));
        for (pause, longest) in [(BODY_PAUSE / 2, BODY_TIME), (BODY_PAUSE * 2, BODY_PAUSE)] {
            let began = Instant::now();
            let read =
                read_body(Trickle::body(pause), 1 << 20, "too large", Some(&mut room.for_request(&ns))).await;
            assert!(
                matches!(read, Err(ApiError::Refused(StatusCode::REQUEST_TIMEOUT, _))),
                "a byte every {pause:?}: {read:?}"
            );
            assert!(began.elapsed() <= longest + Duration::from_secs(1), "after {:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_that_slows_down_is_given_up_and_its_room_is_free() {
        let (room, ns) = (BodyRoom::new(1 << 20, 1 << 20), Namespace::parse("ns").expect("a literal"));
        let began = Instant::now();
        // First more than a small body, then a byte at a time.
        let large = Body::from(vec![0; SMALL + 1]);
        let body = Body::new(Then(large, Trickle::body(BODY_PAUSE / 20)));
        let read = read_body(body, 1 << 20, "too large", Some(&mut room.for_request(&ns))).await;
        assert!(
            matches!(read, Err(ApiError::Refused(StatusCode::REQUEST_TIMEOUT, _))),
            "a byte every {:?}: {read:?}",
            BODY_PAUSE / 20
        );
        assert_eq!(began.elapsed(), ROOM_WINDOW, "it was given up at the end of its first window");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_over_its_bound_is_refused_where_it_grows_over_it() {
        let (room, ns) = (BodyRoom::new(1 << 20, 1 << 20), Namespace::parse("ns").expect("a literal"));
        let body = Trickle::body(Duration::from_secs(1));
        let read = read_body(body, 5, "too large", Some(&mut room.for_request(&ns))).await;
        assert!(
            matches!(read, Err(ApiError::Refused(StatusCode::PAYLOAD_TOO_LARGE, "too large"))),
            "six bytes, five may come: {read:?}"
        );
    }
}
