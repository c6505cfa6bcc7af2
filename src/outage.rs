//! Outages of a store: one log line when an outage begins and one when it ends, however many requests and tasks
//! notice. All callers of a store report the outcomes of their calls to the same [`Outage`]. Periods without free
//! memory are handled alike: then the store accepts nothing new, and is drained. Knows no store.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};

/// An outage has ended when the store works and no failure was reported for this long. Failures of requests in flight
/// arrive after others have succeeded, and retries fail once a second: without this wait each would be a separate
/// outage in the log.
pub const SETTLED: Duration = Duration::from_secs(3);

/// Pause before a failed store is called again, whether or not a request needs it.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Outages of one store.
#[derive(Debug)]
pub struct Outage {
    store: String,
    away: Episodes,
    /// Periods without free memory.
    full: Episodes,
    /// Number of outages so far.
    count: AtomicU64,
    /// Notified when an outage begins.
    began: Notify,
    /// Sent to when a connection is made.
    connections: watch::Sender<()>,
}

/// Consecutive periods of failures.
#[derive(Debug, Default)]
struct Episodes {
    /// Whether `state` is set, so that successes take no lock.
    on: AtomicBool,
    state: Mutex<Option<Failing>>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    failures: u64,
    /// The first failed request of the period.
    first_request: Option<String>,
}

impl Episodes {
    /// Records a failure. Returns whether it begins a period.
    fn failed(&self, request_id: Option<&str>) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        if let Some(failing) = &mut *state {
            failing.last = now;
            failing.failures += 1;
            if failing.first_request.is_none() {
                failing.first_request = request_id.map(str::to_owned);
            }
            return false;
        }
        let first_request = request_id.map(str::to_owned);
        *state = Some(Failing { since: now, last: now, failures: 1, first_request });
        self.on.store(true, Ordering::Relaxed);
        true
    }

    /// Records a success. Returns the period that it ends: the last failure is [`SETTLED`] ago.
    fn works(&self) -> Option<Failing> {
        if !self.is_on() {
            return None;
        }
        let mut state = self.state.lock();
        if state.as_ref().is_none_or(|failing| failing.last.elapsed() < SETTLED) {
            return None;
        }
        self.on.store(false, Ordering::Relaxed);
        state.take()
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }
}

impl Failing {
    fn seconds(&self) -> u64 {
        self.last.duration_since(self.since).as_secs()
    }
}

impl Outage {
    /// Starts without an outage. `store` is the store's name in the log.
    pub fn new(store: impl Into<String>) -> Arc<Outage> {
        let (away, full) = (Episodes::default(), Episodes::default());
        let (count, began, connections) = (AtomicU64::default(), Notify::new(), watch::Sender::default());
        Arc::new(Outage { store: store.into(), away, full, count, began, connections })
    }

    /// Returns the number of outages since the start, including a current one.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Reports a new connection to the store. It may be another server than before, without its last writes.
    pub fn connected(&self) {
        self.connections.send_replace(());
    }

    /// Returns a receiver that is told of each new connection.
    pub fn connections(&self) -> watch::Receiver<()> {
        self.connections.subscribe()
    }

    /// Reports a failed call.
    pub fn failed(&self, error: &dyn Display) {
        self.failed_for(error, None);
    }

    /// Reports a failed call of a request.
    pub fn failed_request(&self, error: &Error, request_id: &str) {
        if error.is_out_of_memory() {
            self.full_for(error, Some(request_id));
        } else {
            self.failed_for(error, Some(request_id));
        }
    }

    fn failed_for(&self, error: &dyn Display, request_id: Option<&str>) {
        if self.away.failed(request_id) {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.began.notify_one();
            tracing::error!(store = self.store, request_id, %error, "the store cannot be used");
        }
    }

    /// Reports a successful call.
    pub fn works(&self) {
        if let Some(failing) = self.away.works() {
            let (failures, seconds) = (failing.failures, failing.seconds());
            let request_id = failing.first_request.as_deref();
            tracing::info!(store = self.store, failures, seconds, request_id, "the store can be used again");
        }
    }

    /// Reports that the store has no memory for new data. That is no outage, since everything else works.
    pub fn full(&self, error: &dyn Display) {
        self.full_for(error, None);
    }

    fn full_for(&self, error: &dyn Display, request_id: Option<&str>) {
        if self.full.failed(request_id) {
            tracing::error!(
                store = self.store,
                request_id,
                %error,
                "the store is full: publishes are refused, and stored jobs are still delivered"
            );
        }
    }

    /// Reports that the store accepted new data.
    pub fn has_room(&self) {
        if let Some(failing) = self.full.works() {
            let (refused, seconds) = (failing.failures, failing.seconds());
            tracing::info!(store = self.store, refused, seconds, "the store has room again");
        }
    }

    /// Reports the outcome of a call. An overloaded or stopping server says nothing about its store; a full disk, and
    /// an unavailable partition, are reported by the store itself.
    pub fn report<T>(&self, result: &Result<T>) {
        match result {
            Ok(_) | Err(Error::TooManyPaused(_)) => self.works(),
            Err(
                Error::Overloaded
                | Error::Closed
                | Error::Full { .. }
                | Error::Locked
                | Error::OverQuota(_)
                | Error::SeveralPartitions
                | Error::Unreachable(_)
                | Error::Unseen(..),
            ) => {}
            Err(Error::Partly { why, .. }) => self.report::<()>(&Err((**why).clone())),
            Err(error) if error.is_out_of_memory() => self.full(error),
            Err(error) => self.failed(error),
        }
    }

    /// Calls the store repeatedly during an outage, so that its end is noticed without a request. Never returns; one
    /// task per store is enough.
    pub async fn ask_until_it_works<A: Future<Output = Result<()>>>(&self, ask: impl Fn() -> A) {
        loop {
            self.began.notified().await;
            while self.is_on() {
                sleep(ASK_AGAIN).await;
                self.report(&ask().await);
            }
        }
    }

    /// Whether there is an outage now.
    pub fn is_on(&self) -> bool {
        self.away.is_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_the_first_success_after_a_while_without_a_failure() {
        let outage = Outage::new("pool default");
        outage.works();
        assert!(!outage.is_on(), "nothing has failed yet");
        for _ in 0..5 {
            outage.report::<()>(&Err(Error::away("refused")));
            outage.works();
            assert!(outage.is_on(), "a success beside a failure does not end it");
            sleep(SETTLED / 2).await;
            outage.works();
            assert!(outage.is_on(), "the last failure is too young");
        }
        sleep(SETTLED / 2).await;
        assert!(outage.is_on(), "no call has succeeded yet");
        outage.report(&Ok(()));
        assert!(!outage.is_on(), "it works, and nothing has failed for {SETTLED:?}");
    }

    #[test]
    fn a_server_that_is_too_busy_is_no_outage() {
        let outage = Outage::new("pool default");
        outage.report::<()>(&Err(Error::Overloaded));
        outage.report::<()>(&Err(Error::Closed));
        outage.report::<()>(&Err(Error::Full { free: 0, least: 1 }));
        assert!(!outage.is_on(), "none of them says anything about the store");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_without_memory_is_full_and_not_away() {
        let outage = Outage::new("pool default");
        let error = Error::out_of_memory("OOM command not allowed when used memory > 'maxmemory'.");
        assert_eq!(
            error.to_string(),
            "the store refused: OOM command not allowed when used memory > 'maxmemory'."
        );
        outage.report::<()>(&Err(error.clone()));
        outage.failed_request(&error, "r1");
        assert!(!outage.is_on() && outage.full.is_on(), "stored jobs are delivered");
        outage.has_room();
        assert!(outage.full.is_on(), "an ack frees memory only briefly");
        sleep(SETTLED).await;
        outage.report(&Ok(()));
        assert!(outage.full.is_on(), "a consume needs no room");
        outage.has_room();
        assert!(!outage.full.is_on(), "it took something new, and nothing was refused for {SETTLED:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn its_end_is_noticed_without_a_request_each_time() {
        let outage = Outage::new("tokens and limits");
        let watched = outage.clone();
        let watch = tokio::spawn(async move { watched.ask_until_it_works(async || Ok(())).await });
        for nth in ["first", "second"] {
            outage.report::<()>(&Err(Error::away("refused")));
            sleep(SETTLED - Duration::from_millis(1)).await;
            assert!(outage.is_on(), "the {nth} outage ended too early");
            sleep(2 * ASK_AGAIN).await;
            assert!(!outage.is_on(), "the end of outage {nth} was not noticed");
        }
        watch.abort();
    }
}
