//! How long tests wait, and how, where nothing tells them.

use std::time::{Duration, Instant};

/// How long a test waits for what a healthy server does at once. Only a broken one lets it pass.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks again and again until `done`. Nothing tells a client when a server has got there.
pub async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !done().await {
        assert!(began.elapsed() < TIMEOUT, "this should have happened within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
