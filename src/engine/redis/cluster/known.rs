//! Facts about the masters for operators, beyond the partition map: whether each is up and since when, how far their
//! clocks differ, and how many calls they refused. Sends nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::view::{Master, NodeId};
use crate::clock::Micros;
use crate::engine::redis::connection::fault::NotBegun;
use crate::engine::redis::connection::open::HostPort;

/// Clock difference in microseconds that triggers a warning, and the one below which the warning is cleared.
const FAR: u64 = 100_000;
const NEAR: u64 = 50_000;
/// Reasons why calls were refused before they started, as labels of the metric.
const KINDS: [&str; 3] = ["moved", "moving", "not_served"];

/// A master and its state.
#[derive(Clone, Debug)]
pub struct KnownMaster {
    pub id: NodeId,
    pub address: HostPort,
    pub up: bool,
    /// When `up` last changed.
    pub since: Instant,
}

/// The facts about all masters.
#[derive(Debug)]
pub struct Known {
    base: Instant,
    masters: Mutex<Vec<KnownMaster>>,
    /// Offset of each clock: its time minus the time since `base`, in microseconds.
    clocks: Mutex<BTreeMap<NodeId, i64>>,
    /// Masters with an active clock warning.
    warned: Mutex<BTreeSet<NodeId>>,
    redirections: [AtomicU64; KINDS.len()],
}

impl Known {
    pub fn new() -> Known {
        Known {
            base: Instant::now(),
            masters: Mutex::default(),
            clocks: Mutex::default(),
            warned: Mutex::default(),
            redirections: Default::default(),
        }
    }

    /// Replaces the list of masters, given each master and whether it is up. Leaves out failed masters without slots.
    pub fn tell<'a>(&self, now: impl IntoIterator<Item = (&'a Master, bool)>) {
        let mut masters = self.masters.lock();
        let mut all = Vec::new();
        for (master, up) in now.into_iter().filter(|(master, _)| !master.failed || master.has_slots()) {
            let known = masters.iter().find(|known| known.id == master.id && known.up == up);
            let since = known.map_or_else(Instant::now, |known| known.since);
            all.push(KnownMaster { id: master.id.clone(), address: master.address.clone(), up, since });
        }
        all.sort_by_key(|a| a.address.to_string());
        self.clocks.lock().retain(|id, _| all.iter().any(|master| master.id == *id));
        *masters = all;
    }

    pub fn masters(&self) -> Vec<KnownMaster> {
        self.masters.lock().clone()
    }

    /// Records that a master's clock said `at` between `sent` and now. Returns the difference from the other clocks
    /// once, when it becomes too large.
    pub fn clock(&self, id: &NodeId, sent: Instant, at: Micros) -> Option<Duration> {
        let micros = |at: Instant| at.duration_since(self.base).as_micros() as i64;
        let (least, most) = (at as i64 - micros(Instant::now()), at as i64 - micros(sent));
        let mut clocks = self.clocks.lock();
        let clock = clocks.entry(id.clone()).or_insert((least + most) / 2);
        // Moved only as far as this reply requires, so slow replies do not reduce the precision.
        *clock = (*clock).clamp(least, most.max(least));
        drop(clocks);
        let off = self.differences().get(id).map_or(0, |off| off.unsigned_abs());
        let mut warned = self.warned.lock();
        if off < NEAR {
            warned.remove(id);
        }
        (off >= FAR && warned.insert(id.clone())).then(|| Duration::from_micros(off))
    }

    /// Returns how far each clock is ahead of the median, in microseconds.
    pub fn differences(&self) -> BTreeMap<NodeId, i64> {
        let clocks = self.clocks.lock();
        let mut sorted: Vec<i64> = clocks.values().copied().collect();
        sorted.sort_unstable();
        let middle = |n: usize| sorted.get(n).copied().unwrap_or(0);
        let median = (middle(sorted.len().saturating_sub(1) / 2) + middle(sorted.len() / 2)) / 2;
        clocks.iter().map(|(id, clock)| (id.clone(), clock - median)).collect()
    }

    /// Counts a call that was refused before it started.
    pub fn refused(&self, why: &NotBegun) {
        let kind = match why {
            NotBegun::Moved(_) => 0,
            NotBegun::Moving => 1,
            NotBegun::NotServed => 2,
            NotBegun::NotSent | NotBegun::TooLate => return,
        };
        self.redirections[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of refused calls by reason.
    pub fn redirections(&self) -> Vec<(&'static str, u64)> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        KINDS.into_iter().zip(self.redirections.iter().map(count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_off_is_told_once_until_it_is_right_again() {
        let known = Known::new();
        let now = Instant::now();
        let ids: [NodeId; 3] = ["a".into(), "b".into(), "c".into()];
        let said: Vec<_> = ids.iter().zip([5_000_000, 5_001_000, 5_300_000]).collect();
        let warnings: Vec<_> = said.iter().map(|(id, at)| known.clock(id, now, *at)).collect();
        assert_eq!(warnings, [None, None, Some(Duration::from_micros(299_000))]);
        let off: Vec<i64> = known.differences().into_values().collect();
        assert_eq!(off, [-1_000, 0, 299_000], "against the one in the middle");
        assert_eq!(known.clock(&ids[2], now, 5_300_000), None, "it was told");
        assert_eq!(known.clock(&ids[2], now, 5_002_000), None, "it is right again");
        assert_eq!(known.clock(&ids[2], now, 5_300_000), Some(Duration::from_micros(299_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_clocks_each_is_off_by_half() {
        let (known, now) = (Known::new(), Instant::now());
        known.clock(&"a".into(), now, 1_000_000_000);
        known.clock(&"b".into(), now, 1_000_400_000);
        let off: Vec<i64> = known.differences().into_values().collect();
        assert_eq!(off, [-200_000, 200_000]);
    }
}
