//! Pausing and resuming queues: no fetch reads a paused queue, so its consumers wait as if it were empty.
//! [`pauses`](crate::pauses) decides which queues are paused.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::fetches::Dispatcher;
use super::paused::{Open, Pause};
use super::request::Wanted;
use crate::name::{Namespace, Queue, QueueName};

/// Longest wait of [`Dispatcher::fetches_ended`], for a store that hangs.
const LONGEST_FETCH: Duration = Duration::from_secs(5);

impl Dispatcher {
    /// Pauses a queue, replacing an earlier pause. Fetches in flight may still deliver its jobs: see
    /// [`fetches_ended`](Dispatcher::fetches_ended).
    pub fn pause(&self, queue: &Queue, pause: Pause) {
        self.paused.set(queue, Some(pause));
    }

    /// Waits until no fetch that began before this call can deliver jobs of this queue, at most [`LONGEST_FETCH`].
    pub async fn fetches_ended(&self, queue: &Queue) {
        let upto = self.lists.lock().moment();
        let ended = async {
            loop {
                let mut one_ended = pin!(self.fetch_ended.notified());
                one_ended.as_mut().enable();
                if !self.lists.lock().is_read(queue, upto) {
                    return;
                }
                one_ended.await;
            }
        };
        let _ = timeout(LONGEST_FETCH, ended).await;
    }

    /// Ends the pause of a queue, if there is one. Its waiters get jobs at once.
    pub fn resume(&self, queue: &Queue) {
        if self.paused.set(queue, None).is_some() {
            self.start_fetches(self.lists.lock().wake(queue));
        }
    }

    /// Resumes the queues whose pause has ended. Returns the time until the next one ends.
    pub fn end_pauses(&self) -> Option<Duration> {
        if self.paused.is_empty() {
            return None;
        }
        let now = self.engine.now();
        let (ended, next) = self.paused.end(now);
        ended.iter().for_each(|queue| self.start_fetches(self.lists.lock().wake(queue)));
        next.map(|until| Duration::from_millis(until - now))
    }

    /// Returns the paused queues, with the ends of their pauses in the time of day.
    pub fn pauses(&self) -> BTreeMap<Queue, Pause> {
        let now = self.engine.now();
        let by_queue = self.paused.by_queue.read();
        by_queue
            .iter()
            .filter(|(_, pause)| pause.lasts(now))
            .map(|(queue, pause)| (queue.clone(), self.in_day(*pause)))
            .collect()
    }

    /// Returns the paused queues of a namespace.
    pub fn paused_queues(&self, namespace: &Namespace) -> Vec<Queue> {
        let now = self.engine.now();
        let first = Queue { namespace: namespace.clone(), name: QueueName::first() };
        let by_queue = self.paused.by_queue.read();
        let of_namespace = by_queue.range(first..).take_while(|(queue, _)| queue.namespace == *namespace);
        of_namespace.filter(|(_, pause)| pause.lasts(now)).map(|(queue, _)| queue.clone()).collect()
    }

    /// Returns the pause of a queue. Its end is in the time of day.
    pub fn pause_of(&self, queue: &Queue) -> Option<Pause> {
        if self.paused.is_empty() {
            return None;
        }
        self.paused.get(queue, self.engine.now()).map(|pause| self.in_day(pause))
    }

    /// Converts the end of a pause from the pool's clock, which never goes back, to the time of day.
    pub fn in_day(&self, pause: Pause) -> Pause {
        let (now, day) = (self.engine.now(), self.engine.time_of_day());
        Pause { until: pause.until.map(|until| (until + day).saturating_sub(now)) }
    }

    /// Returns which part of a list is not paused.
    pub(super) fn open(&self, wanted: &Wanted) -> Open {
        if self.paused.is_empty() {
            return Open::All;
        }
        match self.paused.without(wanted, self.engine.now()) {
            Some(open) if open == *wanted => Open::All,
            Some(open) => Open::Some(open),
            None => Open::None,
        }
    }
}
