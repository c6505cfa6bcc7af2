//! Statistics of due times: delayed jobs counted by minute, hour or day. Plain values; each store reads them in its
//! own way.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Millis;
use crate::name::{Namespace, Queue};

/// Which delayed jobs to count, and in which steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayCount {
    pub of: DelayedOf,
    /// Length of a step in milliseconds; not 0. Steps begin at whole multiples of it.
    pub step: Millis,
    /// Maximum number of non-empty steps; not 0.
    pub most: usize,
}

/// Selects jobs by owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DelayedOf {
    All,
    Namespace(Namespace),
    Queue(Queue),
}

/// Numbers of delayed jobs by due time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// The store's time when the count began.
    pub now: Millis,
    /// Jobs that are due and not moved yet.
    pub overdue: u64,
    /// By the beginning of each step: the first non-empty ones.
    pub steps: BTreeMap<Millis, u64>,
    /// Jobs in all further steps.
    pub later: u64,
    /// Beginning of the first of those.
    later_from: Option<Millis>,
}

/// Rests of a store during a count: a third of the working time. Short rests are combined, since timers count in
/// milliseconds.
#[derive(Debug, Default)]
pub struct Rests(Duration);

impl Rests {
    /// Shortest rest.
    const SHORTEST: Duration = Duration::from_millis(4);

    /// Returns how long to rest after a part of the work that took `took`.
    pub fn after(&mut self, took: Duration) -> Duration {
        self.0 += took / 3;
        if self.0 < Rests::SHORTEST { Duration::ZERO } else { std::mem::take(&mut self.0) }
    }
}

impl Delays {
    pub fn new(now: Millis) -> Delays {
        Delays { now, ..Delays::default() }
    }

    /// Returns the total.
    pub fn delayed(&self) -> u64 {
        self.overdue + self.steps.values().sum::<u64>() + self.later
    }

    /// Adds a job due at `due`.
    pub fn add(&mut self, due: Millis, count: &DelayCount) {
        if due <= self.now {
            self.overdue += 1;
        } else {
            self.add_step(due / count.step * count.step, 1, count.most);
        }
    }

    /// Adds `jobs` jobs in the step that begins at `begins`.
    pub fn add_step(&mut self, begins: Millis, jobs: u64, most: usize) {
        if self.later_from.is_some_and(|from| begins >= from) {
            self.later += jobs;
            return;
        }
        *self.steps.entry(begins).or_default() += jobs;
        if self.steps.len() > most
            && let Some((last, jobs)) = self.steps.pop_last()
        {
            self.later += jobs;
            self.later_from = Some(last);
        }
    }

    /// Adds the counts of another store.
    pub fn merge(&mut self, other: Delays, most: usize) {
        self.now = self.now.max(other.now);
        self.overdue += other.overdue;
        self.later += other.later;
        let from = [self.later_from, other.later_from].into_iter().flatten().min();
        self.later_from = from;
        if let Some(from) = from {
            self.later += self.steps.split_off(&from).into_values().sum::<u64>();
        }
        for (begins, jobs) in other.steps {
            self.add_step(begins, jobs, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(most: usize) -> DelayCount {
        DelayCount { of: DelayedOf::All, step: 60_000, most }
    }

    fn counted(now: Millis, dues: &[Millis], most: usize) -> Delays {
        let mut delays = Delays::new(now);
        dues.iter().for_each(|due| delays.add(*due, &count(most)));
        delays
    }

    proptest! {
        /// In any order, and from one store or from two.
        #[test]
        fn the_parts_add_up_and_the_first_steps_are_told(
            dues in prop::collection::vec(0u64..6_000_000, 0..200), split in 0usize..200, most in 1usize..20,
        ) {
            let (now, split) = (600_000, split.min(dues.len()));
            let mut both = counted(now, &dues[..split], most);
            both.merge(counted(now, &dues[split..], most), most);
            let one = counted(now, &dues, most);
            prop_assert_eq!(one.delayed(), dues.len() as u64, "all are counted");
            let mut steps = BTreeMap::new();
            for due in dues.iter().filter(|due| **due > now) {
                *steps.entry(due / 60_000 * 60_000).or_insert(0) += 1;
            }
            let first: BTreeMap<_, _> = steps.into_iter().take(most).collect();
            prop_assert_eq!(&one.steps, &first, "the first steps");
            prop_assert_eq!((&both.steps, both.later, both.overdue), (&first, one.later, one.overdue), "of two stores");
        }
    }
}
