//! Bounds how many requests one server begins per period, and what its queues share. Knows no job.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A resource that all queues share: connections, memory. One half is divided evenly among the queues. A
/// quarter is reserved for queues that hold nothing, one share of each at a time. The rest is first come,
/// first served. So one queue alone may have three quarters, and slow endpoints leave every other queue its
/// part. A job that is larger than a part may borrow from the parts of others, one job per queue at a time.
///
/// Shares of requests in flight cannot be revoked. When a queue is added, older queues may hold more than
/// their new part. Until they have returned the excess, the parts of older queues are filled first, and the
/// new queue starts with the reserve for queues that hold nothing.
#[derive(Debug)]
pub struct PushShares {
    even: Arc<Semaphore>,
    all_even: usize,
    for_idle: Arc<Semaphore>,
    first_come: Arc<Semaphore>,
    /// Size of each queue's even part.
    part: AtomicUsize,
    /// The queues, oldest first.
    queues: Mutex<Vec<Weak<HeldShare>>>,
}

impl PushShares {
    pub fn new(all: usize) -> Arc<PushShares> {
        let (all_even, for_idle) = (all / 2, all / 4);
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Arc::new(PushShares {
            even: semaphore(all_even),
            all_even,
            for_idle: semaphore(for_idle),
            first_come: semaphore(all - all_even - for_idle),
            part: AtomicUsize::new(all_even.max(1)),
            queues: Mutex::default(),
        })
    }

    /// Adds a queue, which holds nothing yet. It gets an even part with the next
    /// [`divide`](PushShares::divide).
    pub fn join(&self) -> Part {
        let part = Part::default();
        self.queues.lock().push(Arc::downgrade(&part.0));
        part
    }

    /// Divides the even half among `queues` queues. Must be called repeatedly: queues return their excess
    /// only over time.
    pub fn divide(&self, queues: usize) {
        let part = (self.all_even / queues.max(1)).max(1);
        self.part.store(part, Ordering::Relaxed);
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        let queues: Vec<_> = queues.iter().filter_map(Weak::upgrade).collect();
        let held: Vec<_> = queues.iter().map(|queue| queue.even.load(Ordering::Relaxed)).collect();
        let mut left = self.all_even.saturating_sub(held.iter().sum());
        for (queue, held) in queues.iter().zip(held) {
            let more = part.saturating_sub(held).min(left);
            left -= more;
            queue.most_even.store(held.min(part) + more, Ordering::Relaxed);
        }
    }

    /// Returns how many more shares a queue may take.
    pub fn room(&self, of: &Part) -> usize {
        let even = self.left(of).min(self.even.available_permits());
        let room = even + self.first_come.available_permits();
        if of.is_idle() { room.max(self.for_idle.available_permits().min(1)) } else { room }
    }

    /// Returns how many shares of its even part a queue does not hold.
    fn left(&self, of: &Part) -> usize {
        of.0.most_even.load(Ordering::Relaxed).saturating_sub(of.0.even.load(Ordering::Relaxed))
    }

    /// Takes `many` shares; `None` if too few are free. A queue that holds nothing of its even part may
    /// exceed it if the part is smaller than `many`.
    pub fn take(&self, of: &Part, many: usize) -> Option<TakenShare> {
        let count = u32::try_from(many).ok()?;
        let is_large = many > self.part.load(Ordering::Relaxed) && of.0.even.load(Ordering::Relaxed) == 0;
        let take = |from: &Arc<Semaphore>| from.clone().try_acquire_many_owned(count).ok();
        if (many <= self.left(of) || is_large)
            && let Some(permit) = take(&self.even)
        {
            return Some(TakenShare::new(permit, of, many));
        }
        let permit = take(&self.first_come).or_else(|| take(&self.for_idle).filter(|_| of.is_idle()))?;
        Some(TakenShare::new(permit, of, 0))
    }
}

/// The shares held by one queue.
#[derive(Clone, Debug, Default)]
pub struct Part(Arc<HeldShare>);

#[derive(Debug, Default)]
struct HeldShare {
    /// Shares of the evenly divided half.
    even: AtomicUsize,
    /// Maximum of `even`.
    most_even: AtomicUsize,
    /// Number of takes that are not returned yet, from whichever part.
    shares: AtomicUsize,
}

impl Part {
    fn is_idle(&self) -> bool {
        self.0.shares.load(Ordering::Relaxed) == 0
    }
}

/// Shares taken from [`PushShares`], until dropped.
#[derive(Debug)]
pub struct TakenShare {
    _permit: OwnedSemaphorePermit,
    of: Part,
    even: usize,
}

impl TakenShare {
    fn new(permit: OwnedSemaphorePermit, of: &Part, even: usize) -> TakenShare {
        of.0.even.fetch_add(even, Ordering::Relaxed);
        of.0.shares.fetch_add(1, Ordering::Relaxed);
        TakenShare { _permit: permit, of: of.clone(), even }
    }
}

impl Drop for TakenShare {
    fn drop(&mut self) {
        self.of.0.even.fetch_sub(self.even, Ordering::Relaxed);
        self.of.0.shares.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Start times of recent requests.
#[derive(Debug, Default)]
pub struct Window(VecDeque<Instant>);

impl Window {
    pub fn begun(&mut self, now: Instant) {
        self.0.push_back(now);
    }

    /// Returns how many requests began within the last `per`.
    pub fn count(&mut self, now: Instant, per: Duration) -> u32 {
        while self.0.front().is_some_and(|begun| *begun + per <= now) {
            self.0.pop_front();
        }
        self.0.len() as u32 // no rate is larger
    }

    /// Returns how many requests may begin now at `rate` per `per`. If none may, returns when one may.
    pub fn room(&mut self, now: Instant, rate: u32, per: Duration) -> Result<usize, Option<Instant>> {
        let begun = self.count(now, per) as usize;
        let rate = rate as usize;
        match rate.checked_sub(begun) {
            None | Some(0) if rate == 0 => Err(None),
            // When this request leaves the window one more may begin, also if the window has more than the rate
            // allows.
            None | Some(0) => Err(self.0.get(self.0.len() - rate).map(|begun| *begun + per)),
            Some(room) => Ok(room),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Takes all free shares, one by one.
    fn take_all(shares: &PushShares, part: &Part) -> Vec<TakenShare> {
        std::iter::from_fn(|| shares.take(part, 1)).collect()
    }

    #[test]
    fn one_queue_may_have_most_and_many_leave_each_its_part() {
        let shares = PushShares::new(42);
        let alone = shares.join();
        shares.divide(1);
        let all = take_all(&shares, &alone);
        assert_eq!(
            (all.len(), shares.room(&alone)),
            (32, 0),
            "all but the part reserved for queues that hold nothing"
        );
        drop((all, alone));
        let parts: Vec<Part> = (0..7).map(|_| shares.join()).collect();
        shares.divide(7);
        let slow: Vec<_> = parts[..6].iter().map(|part| take_all(&shares, part)).collect();
        let sizes: Vec<usize> = slow.iter().map(Vec::len).collect();
        assert_eq!(sizes, [14, 3, 3, 3, 3, 3], "three each, and 11 for the first");
        assert_eq!(take_all(&shares, &parts[6]).len(), 3, "the seventh has its part");
    }

    /// Guards against added queues that fill the part of an older one.
    #[test]
    fn queues_that_are_added_while_others_hold_much_take_no_part_of_an_older_one() {
        let shares = PushShares::new(42);
        let old = shares.join();
        let mut slow: Vec<(Part, Vec<TakenShare>)> = Vec::new();
        for queues in 2..9 {
            let part = shares.join();
            shares.divide(queues);
            let taken = take_all(&shares, &part);
            assert!(!taken.is_empty(), "queue {queues} begins at once");
            assert!(shares.room(&old) >= 21 / queues, "beside {queues} queues: {}", shares.room(&old));
            slow.push((part, taken));
        }
        assert_eq!(take_all(&shares, &old).len(), 2, "its part: of 21 among eight");
        // The first slow queue returns its shares, and gets its part like all others.
        slow[0].1.clear();
        shares.divide(8);
        for (n, (part, taken)) in slow.iter_mut().enumerate() {
            taken.extend(take_all(&shares, part));
            assert!(taken.len() >= 2, "queue {n} has {}", taken.len());
        }
    }

    #[test]
    fn what_is_larger_than_a_part_is_taken_once() {
        let shares = PushShares::new(42);
        let alone = shares.join();
        shares.divide(100);
        let large = shares.take(&alone, 21).expect("more than its part, which is one");
        assert_eq!(shares.room(&alone), 11, "no more of the even half");
        drop(large);
        shares.divide(2);
        let _most = shares.take(&alone, 9).expect("a part is ten");
        let other = shares.join();
        shares.divide(2);
        let _its =
            [10, 11].map(|many| shares.take(&other, many).expect("its part, and the part for any queue"));
        assert!(shares.take(&alone, 2).is_none(), "one is left of its part");
        let _last = shares.take(&alone, 1).expect("the last of its part");
        let new = shares.join();
        assert_eq!(shares.room(&new), 1, "it holds nothing");
        let _first = shares.take(&new, 5).expect("the part reserved for such a queue");
        assert_eq!((shares.room(&new), shares.take(&new, 1).is_none()), (0, true), "once");
        let shares = PushShares::new(42);
        assert!(shares.take(&shares.join(), 22).is_none(), "more than any part of it");
    }

    #[test]
    fn no_stretch_of_time_has_more_than_its_rate() {
        let (mut window, mut now, mut begun) = (Window::default(), Instant::now(), Vec::new());
        for step in 0..1000u64 {
            now += Duration::from_millis(step * 37 % 90);
            if let Ok(room) = window.room(now, 7, SECOND) {
                for _ in 0..room.min(3) {
                    window.begun(now);
                    begun.push(now);
                }
            }
        }
        assert!(begun.len() > 200, "only {} began", begun.len());
        for eight in begun.windows(8) {
            let stretch = eight[7].duration_since(eight[0]);
            assert!(stretch >= SECOND, "8 began within {stretch:?}, 7 may within a second");
        }
    }

    #[test]
    fn it_says_from_when_there_is_room_also_after_the_rate_shrank() {
        let (mut window, now) = (Window::default(), Instant::now());
        assert_eq!(window.room(now, 0, SECOND), Err(None), "nothing may ever begin");
        (0..4).for_each(|n| window.begun(now + n * SECOND / 10));
        let now = now + SECOND / 2;
        assert_eq!(window.room(now, 5, SECOND), Ok(1));
        assert_eq!(
            window.room(now, 4, SECOND),
            Err(Some(now + SECOND / 2)),
            "the first is a second ago then"
        );
        assert_eq!(window.room(now, 2, SECOND), Err(Some(now + SECOND * 7 / 10)), "the third is");
    }
}
