//! What the engine's threads beside the writer do: one sweeps and compacts, and with
//! [`EverySecond`](super::Sync) one syncs. They end when they are told to, or when the store is poisoned.

use std::time::{Duration, Instant};

use super::handle::Handle;
use super::poison::Poison;
use super::state::garbage::Upkeep;
use super::store::{Fatal, Space, Store, describe};
use super::sweep::{Position, Report, Sweep};
use super::threads::Stop;
use crate::error::Error;

/// How long after a step of the sweep that found nothing to do.
const STEP_PAUSE: Duration = Duration::from_millis(100);
/// How long after one that did: there is more, and others must get their turn.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// A compaction that has live entries to rewrite waits after the last one for so many times as long as that
/// took: compactions take a twentieth of the time at most, however wrong the guess of what they give back.
const COMPACTION_REST: u32 = 19;

/// Syncs each second.
pub fn sync(store: &Store, stop: &Stop, poison: &Poison) {
    while !stop.told_within(Duration::from_secs(1)) {
        if let Err(e) = store.sync() {
            poison.set(format!("a sync failed: {}", describe(&e)));
            return;
        }
    }
}

/// Sweeps in steps through the writer, with a rest of `every` between sweeps, and does to the files what the
/// sweep asks for.
pub fn sweep(store: &Store, handle: &Handle, stop: &Stop, every: Duration) {
    let (mut pause, mut compacted, mut next) = (STEP_PAUSE, Vec::new(), Instant::now());
    let mut from = Position::default();
    while !stop.told_within(pause) {
        let report = Report { compacted: compacted.clone(), too_soon: Instant::now() < next };
        let swept = match handle.ask_blocking(Sweep { from: from.clone(), report }) {
            Ok(swept) => swept,
            // So busy that upkeep can wait.
            Err(Error::Overloaded) => {
                pause = STEP_PAUSE;
                continue;
            }
            // The store is closed or poisoned.
            Err(_) => return,
        };
        let began = Instant::now();
        let keep = || if swept.done { store.keep_journals() } else { Ok(()) };
        compacted = match work(store, &swept.upkeep).and_then(|compacted| keep().map(|()| compacted)) {
            Ok(compacted) => compacted,
            Err(Fatal(e)) => {
                handle.poison.set(format!("upkeep of the files failed: {e}"));
                return;
            }
        };
        // Also when writing out was too slow: the next try must not be what keeps the disk busy.
        if !swept.upkeep.compact.is_empty() {
            next = Instant::now() + COMPACTION_REST * began.elapsed();
        }
        pause = match (swept.done, swept.removed) {
            (true, _) => every,
            (false, 0) => STEP_PAUSE,
            (false, _) => BUSY_PAUSE,
        };
        from = swept.next;
    }
}

/// Does what a step of the sweep asks for. Answers what was compacted.
fn work(store: &Store, upkeep: &Upkeep) -> Result<Vec<Space>, Fatal> {
    // What is not in tables is not compacted: if the disk is slow, another time.
    let can_compact = !upkeep.write_out || store.write_out()?;
    let compact = if can_compact { upkeep.compact.clone() } else { Vec::new() };
    compact.iter().try_for_each(|space| store.compact(*space))?;
    if upkeep.rests || !compact.is_empty() {
        store.delete_replaced()?;
    }
    Ok(compact)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::batch::{self, BatchLimit};
    use crate::engine::disk::op::Op;
    use crate::engine::disk::state::clock::PoolClock;
    use crate::engine::disk::store::open;
    use crate::engine::disk::threads;

    #[test]
    fn a_sweep_that_ends_while_the_store_is_open_poisons_it() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), 64).unwrap(); // new directory
        let (ops, calls) = batch::channel::<Op>(1, BatchLimit { items: 1, bytes: 1 });
        let clock = PoolClock::new(Arc::new(ManualClock::new(0)), 0);
        let handle = Handle { ops, poison: Arc::default(), clock };
        let (stop, poison) = (Arc::<Stop>::default(), handle.poison.clone());
        let told = stop.clone();
        // Nobody serves its calls.
        drop(calls);
        let body = move || sweep(&store, &handle, &told, Duration::ZERO);
        let thread = threads::spawn("disk-sweep", &stop, &poison, body).unwrap(); // there is room for a thread
        assert!(thread.join().is_ok(), "it should end, not panic");
        let reason = poison.check().map_err(|e| e.to_string());
        let expected = "the store has failed and takes no more requests: the thread disk-sweep ended before it was told to";
        assert_eq!(reason, Err(expected.to_owned()));
    }
}
