//! The engine's threads beside the writer: one sweeps and compacts, and with `EverySecond` one syncs. They
//! end when told to, or when the engine is dropped.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Fatal, Space, Store, describe};
use crate::engine::disk::handle::Handle;
use crate::engine::disk::op::{Answer, Op, Report, Swept, Upkeep};
use crate::engine::disk::poison::Poison;
use crate::error::{Error, Result};

/// How long after a step of the sweep that found nothing to do.
const STEP_PAUSE: Duration = Duration::from_millis(100);
/// How long after one that did: there is more, and others must get their turn.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// How many times as long as the last compaction took those rest that have live entries to rewrite: they take a
/// twentieth of the time at most, however wrong the guess of what they give back.
const COMPACTION_REST: u32 = 19;

/// A thread that ends when asked.
#[derive(Debug)]
pub struct Task {
    /// Dropped to ask.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Task {
    fn spawn(name: &str, body: impl FnOnce(Receiver<()>) + Send + 'static) -> std::io::Result<Task> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || body(stopped))?;
        Ok(Task { stop: Some(stop), thread: Some(thread) })
    }

    /// Asks it to end, and waits for that.
    pub fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Its panic, if any, was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.end();
    }
}

/// Syncs each second.
pub fn syncer(store: Store, poison: Arc<Poison>) -> std::io::Result<Task> {
    Task::spawn("disk-sync", move |stopped| {
        while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            if let Err(e) = store.sync() {
                poison.throw(format!("a sync failed: {}", describe(&e)));
                return;
            }
        }
    })
}

/// Sweeps in steps through the writer, with a rest of `every` between sweeps, and does to the files what the
/// sweep asks for.
pub fn sweeper(store: Store, handle: Handle, every: Duration) -> std::io::Result<Task> {
    let waiting = tokio::runtime::Builder::new_current_thread().build()?;
    Task::spawn("disk-sweep", move |stopped| {
        let (mut pause, mut compacted, mut next) = (STEP_PAUSE, Vec::new(), Instant::now());
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let report = Report { compacted: compacted.clone(), too_soon: Instant::now() < next };
            pause = match waiting.block_on(step(&handle, report)) {
                Ok(swept) => {
                    let began = Instant::now();
                    compacted = match work(&store, &swept.upkeep) {
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
                    match swept {
                        Swept { done: true, .. } => every,
                        Swept { removed: 0, .. } => STEP_PAUSE,
                        _ => BUSY_PAUSE,
                    }
                }
                // So busy that upkeep can wait.
                Err(Error::Overloaded) => STEP_PAUSE,
                Err(_) => return,
            };
        }
    })
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

/// One step of the sweep.
pub async fn step(handle: &Handle, report: Report) -> Result<Swept> {
    match handle.ask(Op::Sweep(report)).await? {
        Answer::Swept(swept) => Ok(swept),
        other => Err(Handle::unexpected(&other)),
    }
}
