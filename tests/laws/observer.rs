//! The law of observers. Its stages are a store and the observer that it was opened with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dormouse::engine::observer::Observer;
use dormouse::name::Queue;
use parking_lot::Mutex;

use crate::stage::*;

/// Events reported to an observer.
#[derive(Debug, Default)]
pub struct Told(Mutex<BTreeMap<(&'static str, String), u64>>);

impl Told {
    fn add(&self, what: &'static str, of: &str, jobs: u64) {
        if jobs > 0 {
            *self.0.lock().entry((what, of.into())).or_default() += jobs;
        }
    }

    fn of(&self, what: &'static str, of: &str) -> u64 {
        self.0.lock().get(&(what, of.to_owned())).copied().unwrap_or(0)
    }
}

impl Observer for Told {
    fn published_together(&self, jobs: usize) {
        self.add("published", "", jobs as u64);
    }

    fn acked_together(&self, jobs: usize) {
        self.add("acked", "", jobs as u64);
    }

    fn synced(&self, _: Duration, calls: usize) {
        self.add("synced", "", calls as u64);
    }

    fn waited(&self, took: Duration) {
        self.add("waited", "", took.as_millis() as u64);
    }

    fn died(&self, queue: &Queue, jobs: u64) {
        self.add("died", queue.name.as_str(), jobs);
    }

    fn redelivered(&self, queue: &Queue, jobs: u64) {
        self.add("redelivered", queue.name.as_str(), jobs);
    }

    fn expired(&self, jobs: u64) {
        self.add("expired", "", jobs);
    }
}

/// Guards against death counters that depend on which server notices, and that count a due delay as a delivery.
pub async fn what_no_answer_says_is_told_to_the_observer((s, told): &(impl Stage, Arc<Told>)) {
    let (s, twice, once): (&dyn Stage, Queue, Queue) = (s, queue("twice"), queue("once"));
    s.put_all((0..3).map(|n| job(&twice, n.to_string()).tries(2).delay(SHORT))).await;
    s.put(job(&once, "dies")).await;
    s.put(job(&once, "is acked")).await;
    s.pass(SHORT).await;
    assert_eq!((told.of("redelivered", "twice"), told.of("died", "once")), (0, 0), "only delays have ended");
    s.take(&twice, 2, SHORT).await;
    let taken = s.take(&once, 2, SHORT).await;
    s.ack(&taken[1]).await;
    s.pass(SHORT).await;
    assert_eq!((told.of("redelivered", "twice"), told.of("died", "twice")), (2, 0), "two came back of three");
    assert_eq!(
        (told.of("redelivered", "once"), told.of("died", "once")),
        (0, 1),
        "one try, and one was acked"
    );
    s.take(&twice, 9, SHORT).await;
    s.pass(SHORT).await;
    assert_eq!(
        (told.of("redelivered", "twice"), told.of("died", "twice")),
        (3, 2),
        "and then they were dead"
    );
}
