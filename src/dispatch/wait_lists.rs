//! Wait lists: waiters by queue, and the choice of the list to notify. Plain data under the dispatcher's
//! lock; starts no tasks and makes no calls.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ahash::{HashMap, HashSet};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::by_arrival::ByArrival;
use super::request::{ConsumeResult, Wanted};
use crate::engine::MAX_CONSUME;
use crate::error::Unreachable;
use crate::name::Queue;

/// Maximum number of waiters served by one fetch.
const MAX_WAITERS: usize = 64;
/// A fetch in flight for longer than this is *held up*: other lists no longer wait for it.
pub const HELD_UP: Duration = Duration::from_millis(50);
/// Maximum number of lists to examine when looking for a substitute for a fetch that is held up.
const MAX_LOOKED_AT: usize = 64;
/// A notification makes one wait list fetch. After each full fetch, `WIDEN` times as many lists fetch, up to `WIDEN` to
/// the power of `WIDEST`.
const WIDEN: usize = 4;
const WIDEST: u8 = 3;
/// The table of queues is shrunk when its capacity exceeds `SPARSE` times its length and `LEAST_TABLE` entries.
const SPARSE: usize = 8;
const LEAST_TABLE: usize = 1 << 14;

/// All wait lists of one dispatcher.
#[derive(Debug, Default)]
pub struct WaitLists {
    by_list: HashMap<Wanted, WaitList>,
    /// Queues with waiters. The only place that records them.
    by_queue: HashMap<Queue, Registered>,
    /// Queues to be notified again after a failed fetch.
    pub retrying: HashSet<Queue>,
    /// Number of the last arrival. Arrivals order the waiters of a list and the lists of a queue.
    pub arrivals: u64,
    /// Counter that orders notifications and starts of fetches.
    moments: u64,
    /// Fetches in flight, by the moment at which they began.
    pub in_flight: BTreeMap<u64, Wanted>,
    /// The server is shutting down: a poll is answered after one fetch.
    pub closed: bool,
}

/// The wait lists that are registered for one queue.
#[derive(Debug, Default)]
struct Registered {
    /// Registered lists by the arrival of their next waiter. The one with the longest waiter fetches first.
    lists: ByArrival,
    /// Lists with a fetch in flight, by the arrival of the first waiter it serves.
    serving: ByArrival,
    /// Number of lists to wake after a full fetch, as a power of [`WIDEN`].
    wider: u8,
    /// Moment of the last notification that no later fetch has settled.
    notified_at: Option<u64>,
    /// Set if the last fetch found no jobs and could not read part of this queue.
    unseen: Option<Unreachable>,
}

/// The waiters for the same queues with the same weights.
#[derive(Debug, Default)]
pub struct WaitList {
    /// By arrival.
    waiters: BTreeMap<u64, Waiter>,
    /// Waiters with a timeout of zero: answered as soon as a fetch finds nothing.
    impatient: BTreeSet<u64>,
    /// Arrival under which the list is registered for notifications. Set before the fetch after which waiters are
    /// parked, until the list is removed.
    registered: Option<u64>,
    /// There may be jobs that no fetch has seen.
    pub stale: bool,
    /// A task is fetching for this list or is about to.
    pub fetching: bool,
    /// The last waiter served by the fetch in flight, and when the fetch began. Changes which waiter is next: see
    /// [`reorder`](WaitLists::reorder).
    pub serving: Option<(u64, Instant)>,
    /// The fetch in flight substitutes for another list's that is held up. It is passed on only once, so that a slow
    /// queue does not spread from list to list.
    pub took_over: bool,
    /// The last fetch stopped among deleted jobs, so the next one may also find no live job.
    pub skipping: bool,
}

#[derive(Debug)]
struct Waiter {
    count: u16,
    ttr: Duration,
    /// Whether it is a client's long poll rather than a consumer within this server.
    polls: bool,
    outcome: oneshot::Sender<ConsumeResult>,
}

/// One fetch: the waiters it serves and the jobs it asks for.
#[derive(Debug)]
pub struct Fetch {
    /// Arrival of each waiter and the number of jobs it wants.
    pub waiters: Vec<(u64, usize)>,
    /// One `ttr` per job.
    pub ttrs: Vec<Duration>,
    /// Waiters up to this arrival came before the fetch.
    pub before: u64,
    /// Start of the fetch, as a moment.
    pub began: u64,
}

impl WaitList {
    /// Appends a waiter.
    pub fn push(
        &mut self,
        arrival: u64,
        (count, ttr): (u16, Duration),
        (patient, polls): (bool, bool),
        outcome: oneshot::Sender<ConsumeResult>,
    ) {
        self.waiters.insert(arrival, Waiter { count, ttr, polls, outcome });
        if !patient {
            self.impatient.insert(arrival);
        }
    }

    /// Removes a waiter. Returns `None` if it has already left.
    pub fn remove(&mut self, arrival: u64) -> Option<oneshot::Sender<ConsumeResult>> {
        self.impatient.remove(&arrival);
        self.waiters.remove(&arrival).map(|waiter| waiter.outcome)
    }

    /// Removes the waiters with a timeout of zero that arrived no later than `before`.
    pub fn remove_impatient(&mut self, before: u64) -> Vec<oneshot::Sender<ConsumeResult>> {
        let arrivals: Vec<u64> = self.impatient.range(..=before).copied().collect();
        arrivals.into_iter().filter_map(|arrival| self.remove(arrival)).collect()
    }

    /// Removes all waiters not served by the fetch in flight. The others will not wait for a second fetch.
    pub fn close(&mut self) -> Vec<oneshot::Sender<ConsumeResult>> {
        let after = self.serving.map_or(0, |(last, _)| last + 1);
        let rest = self.waiters.split_off(&after);
        self.impatient = self.waiters.keys().copied().collect();
        rest.into_values().map(|waiter| waiter.outcome).collect()
    }

    /// Returns the first waiter not served by the fetch in flight.
    fn unasked(&self) -> Option<u64> {
        let after = self.serving.map_or(0, |(last, _)| last + 1);
        self.waiters.range(after..).next().map(|(arrival, _)| *arrival)
    }

    /// Like [`unasked`](WaitList::unasked), or the first waiter of all if the fetch in flight serves all of them.
    fn next(&self) -> Option<u64> {
        self.unasked().or_else(|| self.waiters.keys().next().copied())
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns whether another queue may be delaying the fetch: by deleted jobs that it skips, or by a node that does
    /// not respond.
    fn is_held_up(&self) -> bool {
        self.skipping || self.serving.is_some_and(|(_, since)| since.elapsed() > HELD_UP)
    }

    /// Returns whether a waiter has a timeout of zero.
    pub fn has_impatient(&self) -> bool {
        !self.impatient.is_empty()
    }

    /// Returns whether the list receives notifications.
    pub fn is_registered(&self) -> bool {
        self.registered.is_some()
    }

    /// Creates a fetch for the first waiters that arrived before `next`.
    fn fetch(&mut self, before: u64, next: u64, began: u64) -> Fetch {
        let mut fetch = Fetch { waiters: Vec::new(), ttrs: Vec::new(), before, began };
        for (arrival, waiter) in self.waiters.range(..next).take(MAX_WAITERS) {
            let count = usize::from(waiter.count);
            if fetch.ttrs.len() + count > MAX_CONSUME {
                break;
            }
            fetch.waiters.push((*arrival, count));
            fetch.ttrs.resize(fetch.ttrs.len() + count, waiter.ttr);
        }
        self.serving = fetch.waiters.last().map(|(arrival, _)| (*arrival, Instant::now()));
        fetch
    }
}

impl WaitLists {
    /// Returns the wait list of these queues.
    pub fn get(&mut self, queues: &Wanted) -> Option<&mut WaitList> {
        self.by_list.get_mut(queues)
    }

    /// Like [`get`](WaitLists::get), but creates a missing list. Also returns the list's own key, so that waiters share
    /// its names.
    pub fn get_or_insert(&mut self, queues: Wanted) -> (Wanted, &mut WaitList) {
        match self.by_list.entry(queues) {
            Entry::Occupied(list) => (list.key().clone(), list.into_mut()),
            Entry::Vacant(place) => (place.key().clone(), place.insert(WaitList::default())),
        }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Wanted, &mut WaitList)> {
        self.by_list.iter_mut()
    }

    /// Registers a list, which must have waiters, for notifications. Returns the queues that had no waiters before.
    pub fn register(&mut self, queues: &Wanted) -> Vec<Queue> {
        let Some(list) = self.by_list.get_mut(queues) else { return Vec::new() };
        let Some(next) = list.next() else { return Vec::new() };
        list.registered = Some(next);
        let mut new = Vec::new();
        for queue in queues.queues() {
            let registered = self.by_queue.entry(queue.clone()).or_insert_with(|| {
                new.push(queue);
                Registered::default()
            });
            registered.lists.insert(next, queues.clone());
        }
        new
    }

    /// Returns the arrival of the earliest next waiter, in another list with one of these queues, that came after this
    /// list's first waiter. The list must have no fetch in flight.
    fn next_of_others(&self, queues: &Wanted) -> u64 {
        let first = self.by_list.get(queues).and_then(|list| list.waiters.first_key_value());
        let Some((first, _)) = first else { return u64::MAX };
        // If registered, the list is registered under its first waiter, since it has no fetch in flight.
        let next = |queue| Some(self.by_queue.get(&queue)?.lists.range(first + 1..).next()?.0);
        queues.queues().filter_map(next).min().unwrap_or(u64::MAX)
    }

    /// Updates the arrival under which the list is registered, after its next waiter may have changed.
    pub fn reorder(&mut self, queues: &Wanted) {
        let Some(list) = self.by_list.get_mut(queues) else { return };
        let (Some(old), Some(next)) = (list.registered, list.next()) else { return };
        if old == next {
            return;
        }
        list.registered = Some(next);
        for queue in queues.queues() {
            if let Some(registered) = self.by_queue.get_mut(&queue) {
                registered.lists.remove(old);
                registered.lists.insert(next, queues.clone());
            }
        }
    }

    /// Creates a fetch for the list that serves no waiter behind the next waiter of another list.
    pub fn fetch(&mut self, queues: &Wanted) -> Option<Fetch> {
        let next = self.next_of_others(queues);
        let list = self.by_list.get_mut(queues)?;
        self.moments += 1;
        self.in_flight.insert(self.moments, queues.clone());
        Some(list.fetch(self.arrivals, next, self.moments))
    }

    /// Returns the current moment.
    pub fn moment(&self) -> u64 {
        self.moments
    }

    /// Returns whether a fetch that began no later than `upto` and has not ended may read this queue.
    pub fn is_read(&self, queue: &Queue, upto: u64) -> bool {
        let may_read = |wanted: &Wanted| {
            wanted.queues.namespace() == &queue.namespace && wanted.queues.names().contains(&queue.name)
        };
        self.in_flight.range(..=upto).any(|(_, wanted)| may_read(wanted))
    }

    /// Passes notifications of a held-up list's queues on to lists that share only the notified queue. Returns the
    /// lists to start tasks for.
    pub fn pass_on(&mut self, queues: &Wanted, began: u64) -> Vec<Wanted> {
        let mut start = Vec::new();
        if self.by_list.get(queues).is_none_or(|list| list.took_over) {
            return start;
        }
        let names: HashSet<_> = queues.queues.names().iter().collect();
        for (n, queue) in queues.queues().enumerate() {
            let Some(registered) = self.by_queue.get(&queue) else { continue };
            // Without weights the first queue is read first: either the fetch has seen what it had at the start, or
            // that queue is the one holding it up.
            let is_seen = |moment| n == 0 && queues.weights.is_none() && moment <= began;
            if registered.notified_at.is_none_or(is_seen) {
                continue;
            }
            for (_, other) in registered.lists.range(..).take(MAX_LOOKED_AT) {
                let shared = other.queues.names().iter().filter(|name| names.contains(name)).count();
                let Some(list) = self.by_list.get_mut(other).filter(|_| shared == 1) else { continue };
                list.stale = true;
                if !std::mem::replace(&mut list.fetching, true) {
                    list.took_over = true;
                    start.push(other.clone());
                }
                if !list.is_held_up() {
                    break;
                }
            }
        }
        start
    }

    /// Records that a fetch begins, or has ended, whose first waiter has arrival `first`.
    pub fn serves(&mut self, queues: &Wanted, first: u64, begins: bool) {
        // A list that is not registered has taken no notification.
        if !self.by_list.get(queues).is_some_and(WaitList::is_registered) {
            return;
        }
        for queue in queues.queues() {
            let Some(registered) = self.by_queue.get_mut(&queue) else { continue };
            if begins {
                registered.serving.insert(first, queues.clone());
            } else {
                registered.serving.remove(first);
            }
        }
    }

    pub fn remove(&mut self, queues: &Wanted) {
        let Some(arrival) = self.by_list.remove(queues).and_then(|list| list.registered) else { return };
        for queue in queues.queues() {
            if let Some(registered) = self.by_queue.get_mut(&queue) {
                registered.lists.remove(arrival);
                if registered.lists.is_empty() {
                    self.by_queue.remove(&queue);
                }
            }
        }
        // A hash table keeps its capacity after polls of many queues have left.
        if self.by_queue.len() < self.by_queue.capacity() / SPARSE && self.by_queue.capacity() > LEAST_TABLE {
            self.by_queue.shrink_to(LEAST_TABLE.max(2 * self.by_queue.len()));
        }
    }

    /// Returns whether a list is registered for this queue.
    pub fn waits_for(&self, queue: &Queue) -> bool {
        self.by_queue.contains_key(queue)
    }

    /// Returns the number of queues with waiters.
    pub fn queue_count(&self) -> usize {
        self.by_queue.len()
    }

    /// Returns the lists with long polls, and their number in each.
    pub fn polls(&self) -> Vec<(Wanted, u64)> {
        let count = |list: &WaitList| list.waiters.values().filter(|waiter| waiter.polls).count() as u64;
        let polls = self.by_list.iter().map(|(queues, list)| (queues.clone(), count(list)));
        polls.filter(|(_, waiting)| *waiting > 0).collect()
    }

    pub fn waited_for(&self) -> Vec<Queue> {
        self.by_queue.keys().cloned().collect()
    }

    /// Handles a notification: the list with the longest waiter is to fetch. Returns the lists to start tasks for.
    pub fn wake(&mut self, queue: &Queue) -> Vec<Wanted> {
        self.record_notification(queue);
        if self.is_served_first(queue) { Vec::new() } else { self.wake_some(queue, 1) }
    }

    /// Returns whether a fetch is in flight for a waiter older than the next waiter of every list. Its list then
    /// fetches again: the fetch may have read the queue before the job came, and a later waiter must not get the job.
    fn is_served_first(&mut self, queue: &Queue) -> bool {
        let Some(registered) = self.by_queue.get(queue) else { return false };
        let Some((next, _)) = registered.lists.range(..).next() else { return false };
        for (_, queues) in registered.serving.range(..next) {
            if let Some(list) = self.by_list.get_mut(queues).filter(|list| !list.is_held_up()) {
                list.stale = true;
                return true;
            }
        }
        false
    }

    /// The list may have left jobs in its queues: wakes further lists, more each time. Returns the lists to start tasks
    /// for.
    pub fn wake_others(&mut self, queues: &Wanted) -> Vec<Wanted> {
        let mut start = Vec::new();
        for queue in queues.queues() {
            let Some(registered) = self.by_queue.get_mut(&queue) else { continue };
            let lists = WIDEN.pow(registered.wider.into());
            registered.wider = (registered.wider + 1).min(WIDEST);
            self.record_notification(&queue);
            start.extend(self.wake_some(&queue, lists));
        }
        start
    }

    /// A fetch that began at `began` saw the list's queues empty: a notification wakes one list again.
    pub fn narrow(&mut self, queues: &Wanted, began: u64) {
        for queue in queues.queues() {
            if let Some(registered) = self.by_queue.get_mut(&queue) {
                registered.wider = 0;
                registered.unseen = None;
                registered.notified_at = registered.notified_at.filter(|moment| *moment > began);
            }
        }
    }

    /// Records that a fetch found nothing and could not read all of `unseen`. The list's other queues are empty.
    pub fn mark_unseen(&mut self, queues: &Wanted, unseen: &[Queue], why: Unreachable) {
        for queue in queues.queues() {
            if let Some(registered) = self.by_queue.get_mut(&queue) {
                registered.unseen = unseen.contains(&queue).then_some(why);
            }
        }
    }

    /// Returns an error if these queues are not known to be empty.
    pub fn unseen(&self, queues: &Wanted) -> Option<Unreachable> {
        queues.queues().find_map(|queue| self.by_queue.get(&queue)?.unseen)
    }

    /// Records a notification.
    fn record_notification(&mut self, queue: &Queue) {
        self.moments += 1;
        if let Some(registered) = self.by_queue.get_mut(queue) {
            registered.notified_at = Some(self.moments);
        }
    }

    /// Marks the `most` lists with the longest waiters to fetch.
    fn wake_some(&mut self, queue: &Queue, mut most: usize) -> Vec<Wanted> {
        let mut start = Vec::new();
        let Some(registered) = self.by_queue.get(queue) else { return start };
        for (_, queues) in registered.lists.range(..) {
            if most == 0 {
                break;
            }
            let Some(list) = self.by_list.get_mut(queues) else { continue };
            list.stale = true;
            if !std::mem::replace(&mut list.fetching, true) {
                start.push(queues.clone());
            } else if list.serving.is_some() && list.unasked().is_some() && !list.is_held_up() {
                // Its next waiter is older than those of the following lists. Its fetch wakes them when it ends.
                break;
            }
            // A list that is held up must not keep this queue's jobs from the others.
            most -= usize::from(!list.is_held_up());
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against memory per queue name: a parked poll may name a hundred that no other poll waits for.
    #[test]
    fn a_queue_that_is_waited_for_keeps_little() {
        let size = size_of::<(Queue, Registered)>();
        assert!(size <= 104, "a queue that is waited for takes {size} bytes");
    }
}
