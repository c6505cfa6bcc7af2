//! Waiting in tests when there are no events.

use std::time::{Duration, Instant};

/// Timeout for anything that a healthy server does at once. Only a broken server exceeds it.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Polls until `done`, for states that clients cannot be notified of.
pub async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !done().await {
        assert!(began.elapsed() < TIMEOUT, "this should have happened within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
