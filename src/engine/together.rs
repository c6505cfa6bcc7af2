//! Waits for several futures concurrently: calls of several partitions, or of an engine.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Returns the results in order. The futures are polled together, so their requests are in flight at the same time.
pub async fn all<T>(asks: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut asks: Vec<_> = asks.into_iter().map(|ask| (Box::pin(ask), None)).collect();
    poll_fn(|context| {
        let mut waits = false;
        for (ask, answer) in asks.iter_mut().filter(|(_, answer)| answer.is_none()) {
            match Pin::as_mut(ask).poll(context) {
                Poll::Ready(told) => *answer = Some(told),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    asks.into_iter().filter_map(|(_, answer)| answer).collect()
}

/// Like [`all`], up to the first error.
pub async fn try_all<T, E>(
    asks: impl IntoIterator<Item = impl Future<Output = Result<T, E>>>,
) -> Result<Vec<T>, E> {
    all(asks).await.into_iter().collect()
}
