//! Waits for several futures concurrently: calls of several partitions, or of an engine.

use futures_util::future::join_all;

/// Returns the results in order. The futures run concurrently, so their requests are in flight at the same time.
pub async fn all<T>(asks: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    join_all(asks).await
}

/// Like [`all`], up to the first error.
pub async fn try_all<T, E>(
    asks: impl IntoIterator<Item = impl Future<Output = Result<T, E>>>,
) -> Result<Vec<T>, E> {
    all(asks).await.into_iter().collect()
}
