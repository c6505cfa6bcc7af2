//! lmstfy's recorded conversations, on every kind of pool.

mod support;

use support::house::House;
use support::recorded::play_all;

#[tokio::test]
async fn on_disk() {
    play_all(House::disk().await).await;
}
