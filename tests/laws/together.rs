//! Runs many laws at the same time in one test, and reports the broken ones. `LAW=publish` runs the laws whose names
//! contain this text.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Name and function of a law.
pub type Law = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// Number of laws that run at the same time: a law mostly waits.
const AT_A_TIME: usize = 12;
/// Maximum duration of one law.
const END: Duration = Duration::from_secs(180);

/// Stages that keep only part of the laws of a single Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// In a cluster, every queue in its home partition.
    Cluster,
    /// In a cluster, every queue in all partitions.
    Spread,
}

/// Returns the laws excluded from these stages. Each line of order.txt has the stage, a law, and the reason.
fn left_out(laws: &[Law], on: On) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/laws/order.txt");
    let order = std::fs::read_to_string(path).expect("a file of this repository");
    let mut left_out = Vec::new();
    for line in order.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (place, rest) = line.split_once(' ').expect("a line is a place, a law and why");
        let (law, why) = rest.split_once(": ").expect("a line says why");
        assert!(["cluster", "spread"].contains(&place) && !why.is_empty(), "{line}");
        assert!(laws.iter().any(|(name, _)| *name == law), "{law} is no law");
        if place == "cluster" || on == On::Spread {
            left_out.push(law.to_owned());
        }
    }
    left_out
}

/// Runs the laws that apply to these stages.
pub async fn play_on(on: On, laws: Vec<Law>) {
    let left_out = left_out(&laws, on);
    play(laws.into_iter().filter(|(name, _)| !left_out.iter().any(|law| law == name)).collect()).await;
}

/// Runs all laws.
pub async fn play(laws: Vec<Law>) {
    let wanted = std::env::var("LAW").unwrap_or_default();
    let room = Arc::new(Semaphore::new(AT_A_TIME));
    let mut playing = Vec::new();
    for (name, law) in laws.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let room = room.clone();
        let play = async move {
            let _place = room.acquire_owned().await.expect("it is never closed");
            // On its own thread, since not every law is `Send`.
            let runtime = Handle::current();
            let played = spawn_blocking(move || runtime.block_on(async { timeout(END, law()).await })).await;
            played.expect("it was kept").expect("a law ends within three minutes");
        };
        playing.push((name, tokio::spawn(play)));
    }
    assert!(!playing.is_empty(), "no law has {wanted:?} in its name");
    let (count, mut broken) = (playing.len(), Vec::new());
    for (name, play) in playing {
        if play.await.is_err() {
            broken.push(name);
        }
    }
    assert!(broken.is_empty(), "{} of {count} laws are broken: {broken:?}", broken.len());
}
