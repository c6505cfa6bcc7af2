//! How many requests one server may begin in any stretch of time, and what all of its queues share. Knows no job.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What all queues share: connections, memory. One half is divided evenly among the queues, the other half is for
/// whoever comes first. So one queue alone may have everything, and slow endpoints leave each other queue its part. A
/// job that is larger than a part may take from the parts of others, one of each queue at a time.
#[derive(Debug)]
pub struct PushShares {
    even: Arc<Semaphore>,
    all_even: usize,
    first_come: Arc<Semaphore>,
    queues: AtomicUsize,
}

impl PushShares {
    pub fn new(all: usize) -> Arc<PushShares> {
        let all_even = all / 2;
        let (even, first_come) = (Semaphore::new(all_even), Semaphore::new(all - all_even));
        let queues = AtomicUsize::new(1);
        Arc::new(PushShares { even: Arc::new(even), all_even, first_come: Arc::new(first_come), queues })
    }

    /// So many queues share it from now on.
    pub fn divide(&self, queues: usize) {
        self.queues.store(queues.max(1), Ordering::Relaxed);
    }

    /// How many more a queue may take.
    pub fn room(&self, of: &Part) -> usize {
        let even = self.left(of).min(self.even.available_permits());
        even + self.first_come.available_permits()
    }

    /// How many of its even part a queue does not hold.
    fn left(&self, of: &Part) -> usize {
        let part = (self.all_even / self.queues.load(Ordering::Relaxed)).max(1);
        part.saturating_sub(of.0.load(Ordering::Relaxed))
    }

    /// Takes so many; nothing where there are not enough. A queue that holds nothing of its even part may take more than
    /// that: a part may be smaller than a job.
    pub fn take(&self, of: &Part, many: usize) -> Option<TakenShare> {
        let count = u32::try_from(many).ok()?;
        if (many <= self.left(of) || of.0.load(Ordering::Relaxed) == 0)
            && let Ok(permit) = self.even.clone().try_acquire_many_owned(count)
        {
            of.0.fetch_add(many, Ordering::Relaxed);
            return Some(TakenShare { _permit: permit, even: Some((of.clone(), many)) });
        }
        let permit = self.first_come.clone().try_acquire_many_owned(count).ok()?;
        Some(TakenShare { _permit: permit, even: None })
    }
}

/// What one queue holds of what is divided evenly.
#[derive(Clone, Debug, Default)]
pub struct Part(Arc<AtomicUsize>);

/// What was taken of [`PushShares`], until it is dropped.
#[derive(Debug)]
pub struct TakenShare {
    _permit: OwnedSemaphorePermit,
    even: Option<(Part, usize)>,
}

impl Drop for TakenShare {
    fn drop(&mut self) {
        if let Some((of, many)) = &self.even {
            of.0.fetch_sub(*many, Ordering::Relaxed);
        }
    }
}

/// When requests were begun lately.
#[derive(Debug, Default)]
pub struct Window(VecDeque<Instant>);

impl Window {
    pub fn begun(&mut self, now: Instant) {
        self.0.push_back(now);
    }

    /// How many were begun within the last `per`.
    pub fn count(&mut self, now: Instant, per: Duration) -> u32 {
        while self.0.front().is_some_and(|begun| *begun + per <= now) {
            self.0.pop_front();
        }
        self.0.len() as u32 // no rate is larger
    }

    /// How many may begin now if at most `rate` may in any `per`; when it is none, from when one may.
    pub fn room(&mut self, now: Instant, rate: u32, per: Duration) -> Result<usize, Option<Instant>> {
        let begun = self.count(now, per) as usize;
        let rate = rate as usize;
        match rate.checked_sub(begun) {
            None | Some(0) if rate == 0 => Err(None),
            // The one after which a place is free, when more are counted than may be, too.
            None | Some(0) => Err(self.0.get(self.0.len() - rate).map(|begun| *begun + per)),
            Some(room) => Ok(room),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_queue_may_have_all_and_many_leave_each_its_part() {
        let (shares, alone) = (PushShares::new(42), Part::default());
        let all: Vec<_> = std::iter::from_fn(|| shares.take(&alone, 1)).collect();
        assert_eq!((all.len(), shares.room(&alone)), (42, 0));
        drop(all);
        shares.divide(7);
        let parts: Vec<Part> = (0..7).map(|_| Part::default()).collect();
        let take = |part: &Part| std::iter::from_fn(|| shares.take(part, 1)).collect::<Vec<_>>();
        let slow: Vec<_> = parts[..6].iter().map(take).collect();
        let sizes: Vec<usize> = slow.iter().map(Vec::len).collect();
        assert_eq!(sizes, [24, 3, 3, 3, 3, 3], "three each, and 21 for the first");
        assert_eq!(take(&parts[6]).len(), 3, "the seventh has its part");
        let shares = PushShares::new(42);
        shares.divide(100);
        let large = shares.take(&alone, 21).expect("more than its part, which is one");
        assert_eq!(shares.room(&alone), 21, "no more of it");
        drop(large);
        shares.divide(2);
        let _most = shares.take(&alone, 9).expect("a part is ten");
        let other = Part::default();
        let _its =
            [10, 21].map(|many| shares.take(&other, many).expect("its part, and the half for whoever comes"));
        assert!(shares.take(&alone, 2).is_none(), "one is left of its part");
        shares.take(&alone, 1).expect("the last one");
        let shares = PushShares::new(42);
        assert!(shares.take(&alone, 22).is_none(), "more than either half");
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
