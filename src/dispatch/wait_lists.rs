//! The wait lists: who waits for which queues, and which wait list a notification concerns. Plain data under the
//! dispatcher's lock. Knows no engine and starts no task.

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

/// The most waiters that one fetch serves.
const MAX_WAITERS: usize = 64;
/// Who waits longest is not waited for longer than this while a fetch is under way for it.
pub const HELD_UP: Duration = Duration::from_millis(50);
/// Of so many lists one is looked for that can do what another one is held up with.
const MAX_LOOKED_AT: usize = 64;
/// A notification makes one wait list fetch. If that one finds all that it asked for, `WIDEN` times as many do,
/// and so on up to `WIDEN` to the power of `WIDEST`.
const WIDEN: usize = 4;
const WIDEST: u8 = 3;
/// The table of queues is made smaller when it has places for so many times as many as it has, and for more than the least.
const SPARSE: usize = 8;
const LEAST_TABLE: usize = 1 << 14;

/// All wait lists of one dispatcher.
#[derive(Debug, Default)]
pub struct WaitLists {
    by_list: HashMap<Wanted, WaitList>,
    /// The one place that knows which queues are waited for.
    by_queue: HashMap<Queue, Registered>,
    /// Queues that are notified again in a while, since a fetch failed.
    pub retrying: HashSet<Queue>,
    /// The number of the last arrival. Arrivals order the waiters of a list, and the lists of a queue.
    pub arrivals: u64,
    /// Orders what queues were said to have and when fetches began.
    moments: u64,
    /// The server stops. A poll is answered after one fetch.
    pub closed: bool,
}

/// The wait lists that are registered for one queue.
#[derive(Debug, Default)]
struct Registered {
    /// By the arrival of their next waiter. The list whose next waiter waits longest fetches first.
    lists: ByArrival,
    /// Those that fetch, by the arrival of the first waiter that the fetch is for.
    serving: ByArrival,
    /// How many lists fetch after one that found all it asked for, as a power of [`WIDEN`].
    wider: u8,
    /// When it was last said that there may be jobs, if no fetch that began later has seen that there are none.
    said: Option<u64>,
    /// The last fetch found nothing, and could not look everywhere for jobs of this queue.
    unseen: Option<Unreachable>,
}

/// The waiters that asked for the same queues with the same weights.
#[derive(Debug, Default)]
pub struct WaitList {
    /// By arrival.
    waiters: BTreeMap<u64, Waiter>,
    /// Those of them that do not wait: they are answered as soon as a fetch finds nothing.
    impatient: BTreeSet<u64>,
    /// The list is registered for its queues under this arrival, and hears of their jobs. It is set before the
    /// fetch after which waiters are parked, and stays set until the list is removed.
    registered: Option<u64>,
    /// There may be jobs that no fetch has seen.
    pub stale: bool,
    /// A task fetches for this list, or is about to.
    pub fetching: bool,
    /// The last waiter that the fetch under way is for, and since when it is. It changes which waiter is the next one:
    /// see [`reorder`](WaitLists::reorder).
    pub serving: Option<(u64, Instant)>,
    /// The fetch under way was another list's to do, which is held up. It is passed on once, so that whatever holds up
    /// one list after the other does not spread.
    pub took_over: bool,
    /// The last fetch ended among jobs that are gone, so the next one may still be far from a live job.
    pub skipping: bool,
}

#[derive(Debug)]
struct Waiter {
    count: u16,
    ttr: Duration,
    /// It is a client's long poll, and no part of this server.
    polls: bool,
    outcome: oneshot::Sender<ConsumeResult>,
}

/// Whom one fetch is for, and what it asks for.
#[derive(Debug)]
pub struct Fetch {
    /// Each waiter's arrival, and how many jobs it wants.
    pub waiters: Vec<(u64, usize)>,
    /// One ttr for each job.
    pub ttrs: Vec<Duration>,
    /// Every waiter up to this arrival came before the fetch.
    pub before: u64,
    /// When it began.
    pub began: u64,
}

impl WaitList {
    /// Adds a waiter at the end.
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

    /// Takes a waiter out. `None` when it has left already.
    pub fn remove(&mut self, arrival: u64) -> Option<oneshot::Sender<ConsumeResult>> {
        self.impatient.remove(&arrival);
        self.waiters.remove(&arrival).map(|waiter| waiter.outcome)
    }

    /// Takes those out that do not wait and came no later than `before`.
    pub fn remove_impatient(&mut self, before: u64) -> Vec<oneshot::Sender<ConsumeResult>> {
        let arrivals: Vec<u64> = self.impatient.range(..=before).copied().collect();
        arrivals.into_iter().filter_map(|arrival| self.remove(arrival)).collect()
    }

    /// Takes those out that no fetch is under way for. The others do not wait for another one.
    pub fn close(&mut self) -> Vec<oneshot::Sender<ConsumeResult>> {
        let after = self.serving.map_or(0, |(last, _)| last + 1);
        let rest = self.waiters.split_off(&after);
        self.impatient = self.waiters.keys().copied().collect();
        rest.into_values().map(|waiter| waiter.outcome).collect()
    }

    /// The first waiter that no fetch is under way for.
    fn unasked(&self) -> Option<u64> {
        let after = self.serving.map_or(0, |(last, _)| last + 1);
        self.waiters.range(after..).next().map(|(arrival, _)| *arrival)
    }

    /// The same, or else the first of those that one is under way for.
    fn next(&self) -> Option<u64> {
        self.unasked().or_else(|| self.waiters.keys().next().copied())
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether another queue may keep its fetch: by its jobs, while the list skips them, or by a node that does not
    /// answer.
    fn is_held_up(&self) -> bool {
        self.skipping || self.serving.is_some_and(|(_, since)| since.elapsed() > HELD_UP)
    }

    /// Whether somebody waits for an answer and not for a job.
    pub fn anybody_impatient(&self) -> bool {
        !self.impatient.is_empty()
    }

    /// Whether it hears of its queues' jobs.
    pub fn is_registered(&self) -> bool {
        self.registered.is_some()
    }

    /// A fetch for the first waiters, of those that came before `next`.
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
    /// The wait list of these queues.
    pub fn get(&mut self, queues: &Wanted) -> Option<&mut WaitList> {
        self.by_list.get_mut(queues)
    }

    /// The same, made if it is not there. Beside it what it was made for: waiters that keep this share its names.
    pub fn get_or_insert(&mut self, queues: Wanted) -> (Wanted, &mut WaitList) {
        match self.by_list.entry(queues) {
            Entry::Occupied(list) => (list.key().clone(), list.into_mut()),
            Entry::Vacant(place) => (place.key().clone(), place.insert(WaitList::default())),
        }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Wanted, &mut WaitList)> {
        self.by_list.iter_mut()
    }

    /// From now on the list hears of its queues' jobs. It has waiters. Answers the queues that nobody waited for
    /// before.
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

    /// When the next waiter of another list came that waits for one of these queues, and came after the first one of
    /// this list, which fetches for nobody now.
    fn next_of_others(&self, queues: &Wanted) -> u64 {
        let first = self.by_list.get(queues).and_then(|list| list.waiters.first_key_value());
        let Some((first, _)) = first else { return u64::MAX };
        // If this list is registered, then under its first waiter, since it fetches for nobody.
        let next = |queue| Some(self.by_queue.get(&queue)?.lists.range(first + 1..).next()?.0);
        queues.queues().filter_map(next).min().unwrap_or(u64::MAX)
    }

    /// The list's next waiter may be another one now: registers it under that one's arrival.
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

    /// A fetch for the list, for nobody whose turn is after the next waiter of another list.
    pub fn fetch(&mut self, queues: &Wanted) -> Option<Fetch> {
        let next = self.next_of_others(queues);
        let list = self.by_list.get_mut(queues)?;
        self.moments += 1;
        Some(list.fetch(self.arrivals, next, self.moments))
    }

    /// The list's fetch is held up, maybe by one of its queues. What was said of another is passed on to a list that does
    /// not wait for that one too. Answers whom to start a task for.
    pub fn pass_on(&mut self, queues: &Wanted, began: u64) -> Vec<Wanted> {
        let mut start = Vec::new();
        if self.by_list.get(queues).is_none_or(|list| list.took_over) {
            return start;
        }
        let names: HashSet<_> = queues.queues.names().iter().collect();
        for (n, queue) in queues.queues().enumerate() {
            let Some(registered) = self.by_queue.get(&queue) else { continue };
            // Without weights the first is asked first: what it had when the fetch began has been seen, or it holds up
            // the others.
            let is_seen = |said| n == 0 && queues.weights.is_none() && said <= began;
            if registered.said.is_none_or(is_seen) {
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

    /// A fetch for the list begins, and its first waiter is this one; or it has ended.
    pub fn serves(&mut self, queues: &Wanted, first: u64, begins: bool) {
        // A list that is not registered owes nobody anything.
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
        // Polls of many queues have left. A table keeps what it once took.
        if self.by_queue.len() < self.by_queue.capacity() / SPARSE && self.by_queue.capacity() > LEAST_TABLE {
            self.by_queue.shrink_to(LEAST_TABLE.max(2 * self.by_queue.len()));
        }
    }

    /// Whether a list is registered for this queue.
    pub fn waits_for(&self, queue: &Queue) -> bool {
        self.by_queue.contains_key(queue)
    }

    /// How many queues are waited for.
    pub fn queue_count(&self) -> usize {
        self.by_queue.len()
    }

    /// The lists that long polls wait in, and how many.
    pub fn polls(&self) -> Vec<(Wanted, u64)> {
        let count = |list: &WaitList| list.waiters.values().filter(|waiter| waiter.polls).count() as u64;
        let polls = self.by_list.iter().map(|(queues, list)| (queues.clone(), count(list)));
        polls.filter(|(_, waiting)| *waiting > 0).collect()
    }

    pub fn waited_for(&self) -> Vec<Queue> {
        self.by_queue.keys().cloned().collect()
    }

    /// This queue may have jobs: the list that waits longest is to fetch. Answers whom to start a task for.
    pub fn wake(&mut self, queue: &Queue) -> Vec<Wanted> {
        self.say(queue);
        if self.is_served_first(queue) { Vec::new() } else { self.wake_some(queue, 1) }
    }

    /// Whether a fetch is under way for somebody who waits longer than the next waiter of every list. Then its list
    /// fetches again: the one under way may have looked before the job came, and who came later must not get it.
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

    /// The list may have left jobs of its queues behind: others are to fetch, more of them each time. Answers
    /// whom to start a task for.
    pub fn wake_others(&mut self, queues: &Wanted) -> Vec<Wanted> {
        let mut start = Vec::new();
        for queue in queues.queues() {
            let Some(registered) = self.by_queue.get_mut(&queue) else { continue };
            let lists = WIDEN.pow(registered.wider.into());
            registered.wider = (registered.wider + 1).min(WIDEST);
            self.say(&queue);
            start.extend(self.wake_some(&queue, lists));
        }
        start
    }

    /// The list's queues were seen empty after a fetch `began`: a notification concerns one list again.
    pub fn narrow(&mut self, queues: &Wanted, began: u64) {
        for queue in queues.queues() {
            if let Some(registered) = self.by_queue.get_mut(&queue) {
                registered.wider = 0;
                registered.unseen = None;
                registered.said = registered.said.filter(|said| *said > began);
            }
        }
    }

    /// Nothing was found, and not everywhere could be looked for jobs of these. The others of the list are empty.
    pub fn could_not_look(&mut self, queues: &Wanted, unseen: &[Queue], why: Unreachable) {
        for queue in queues.queues() {
            if let Some(registered) = self.by_queue.get_mut(&queue) {
                registered.unseen = unseen.contains(&queue).then_some(why);
            }
        }
    }

    /// Why nobody can say that these queues are empty, if nobody can.
    pub fn unseen(&self, queues: &Wanted) -> Option<Unreachable> {
        queues.queues().find_map(|queue| self.by_queue.get(&queue)?.unseen)
    }

    /// There may be jobs.
    fn say(&mut self, queue: &Queue) {
        self.moments += 1;
        if let Some(registered) = self.by_queue.get_mut(queue) {
            registered.said = Some(self.moments);
        }
    }

    /// The lists that wait longest are to fetch, so many of them.
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
                // Its next waiter came before those of the lists that follow. Its fetch wakes them when it ends.
                break;
            }
            // One that is held up must not keep this queue's jobs from the others.
            most -= usize::from(!list.is_held_up());
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against bytes for each name that a parked poll waits on: it may name a hundred that nobody else waits for.
    #[test]
    fn a_queue_that_is_waited_for_keeps_little() {
        let size = size_of::<(Queue, Registered)>();
        assert!(size <= 104, "a queue that is waited for takes {size} bytes");
    }
}
