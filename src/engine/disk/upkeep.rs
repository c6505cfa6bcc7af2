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
            poison.throw(format!("a sync failed: {}", describe(&e)));
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
        compacted = match work(store, &swept.upkeep) {
            Ok(compacted) => compacted,
            Err(Fatal(e)) => {
                handle.poison.throw(format!("a compaction failed: {e}"));
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
        store.let_go()?;
    }
    Ok(compact)
}
