//! Detects a thread that hangs in a disk operation. Measures time by counting its own wake-ups instead of using a
//! clock, so that a stopped process or a sleeping machine is not mistaken for a hanging disk. Makes no disk calls, so
//! it cannot hang itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::poison::Poison;
use super::threads::Stop;

/// Progress of one thread.
#[derive(Debug, Default)]
pub struct Heartbeat {
    /// Odd while the thread works; incremented at each start and end.
    count: AtomicU64,
}

/// The thread is working until this is dropped.
#[derive(Debug)]
pub struct Working<'a>(&'a Heartbeat);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Heartbeat {
    /// Marks the start of a unit of work.
    pub fn work(&self) -> Working<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Working(self)
    }
}

/// Poisons the store once a unit of work has taken `limit`. Each heartbeat has the name of its work. Calls `failed`
/// when the store is poisoned for any reason.
pub fn watch(
    heartbeats: &[(&str, Arc<Heartbeat>)],
    limit: Duration,
    stop: &Stop,
    poison: &Poison,
    failed: impl FnOnce(),
) {
    let mut failed = Some(failed);
    let every = (limit / 10).clamp(Duration::from_millis(1), Duration::from_secs(1));
    let mut watch = Watch {
        seen: vec![(0, 0); heartbeats.len()],
        most: limit.as_millis().div_ceil(every.as_millis()).max(1),
    };
    while !stop.stopped_within(every) {
        for name in watch.look(heartbeats) {
            poison.set(format!("{name} has taken longer than {limit:?}: the disk hangs"));
        }
        if poison.error().is_some()
            && let Some(failed) = failed.take()
        {
            failed();
        }
    }
}

/// Observed progress of several heartbeats.
struct Watch {
    /// Of each: its count, and how many looks ago the unit of work with this count was first seen.
    seen: Vec<(u64, u128)>,
    /// Number of looks that a unit of work may take.
    most: u128,
}

impl Watch {
    /// Returns the names of work that has taken too long.
    fn look<'a>(&mut self, heartbeats: &[(&'a str, Arc<Heartbeat>)]) -> Vec<&'a str> {
        let mut hang = Vec::new();
        for ((name, heartbeat), (last, times)) in heartbeats.iter().zip(&mut self.seen) {
            let now = heartbeat.count.load(Ordering::Relaxed);
            let same = now % 2 == 1 && now == *last;
            (*last, *times) = (now, if same { *times + 1 } else { 0 });
            if *times >= self.most {
                hang.push(*name);
            }
        }
        hang
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::disk::writer::threads;

    #[test]
    fn work_that_takes_too_long_is_named_and_other_work_is_not() {
        const MOST: u128 = 10;
        let (hangs, works) = (Arc::<Heartbeat>::default(), Arc::<Heartbeat>::default());
        let heartbeats = [("a sync", works.clone()), ("a group of calls", hangs.clone())];
        let mut watch = Watch { seen: vec![(0, 0); heartbeats.len()], most: MOST };
        let mut looks = |count| (0..count).flat_map(|_| watch.look(&heartbeats)).collect::<Vec<_>>();
        for _ in 0..5 {
            // The first look sees the start. Each is short enough; all together exceed the limit.
            let _work = (works.work(), hangs.work());
            assert_eq!(looks(MOST), [""; 0], "no unit of work exceeded the limit");
        }
        assert_eq!(looks(2 * MOST), [""; 0], "nothing works");
        let _work = hangs.work();
        assert_eq!(looks(MOST + 1), ["a group of calls"], "at the end of the limit");
    }

    #[test]
    fn work_that_takes_too_long_poisons() {
        let (stop, poison) = (Arc::<Stop>::default(), Arc::<Poison>::default());
        let hangs = Arc::<Heartbeat>::default();
        let heartbeats = [("a group of calls", hangs.clone())];
        let (told, end) = (stop.clone(), poison.clone());
        let (tell, told_of) = std::sync::mpsc::channel();
        let body = move || {
            watch(&heartbeats, Duration::from_millis(50), &told, &end, || {
                let _ = tell.send(());
            })
        };
        let thread = threads::spawn("disk-watch", &stop, &poison, body).unwrap(); // there is room for a thread
        let _work = hangs.work();
        assert!(told_of.recv_timeout(Duration::from_secs(10)).is_ok(), "`failed` was not called");
        let reason = poison.error().map(|e| e.to_string()).unwrap_or_default();
        assert!(reason.contains("a group of calls has taken longer than 50ms"), "it says: {reason:?}");
        stop.signal();
        assert!(thread.join().is_ok(), "the watch thread stops without a panic");
    }
}
