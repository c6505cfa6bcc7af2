//! The engine's threads beside the writer: one sweeps and compacts, and with `EverySecond` one syncs. They
//! end when told to, or when the engine is dropped.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::handle::Handle;
use super::op::{Answer, Op, Swept, Upkeep};
use super::poison::Poison;
use super::store::{Fatal, Store, describe};
use crate::error::{Error, Result};

/// How long after a step of the sweep that found nothing to do.
const STEP_PAUSE: Duration = Duration::from_millis(100);
/// How long after one that did: there is more, and others must get their turn.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

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

/// Sweeps in steps through the writer, with a rest of `every` between sweeps, and compacts what the sweep says
/// needs it.
pub fn sweeper(store: Store, handle: Handle, every: Duration) -> std::io::Result<Task> {
    let waiting = tokio::runtime::Builder::new_current_thread().build()?;
    Task::spawn("disk-sweep", move |stopped| {
        let mut pause = STEP_PAUSE;
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = match waiting.block_on(step(&handle)) {
                Ok(swept) => {
                    if let Err(Fatal(e)) = work(&store, &swept.upkeep) {
                        handle.poison.throw(format!("a compaction failed: {e}"));
                        return;
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

/// Does what a step of the sweep asks for.
fn work(store: &Store, upkeep: &Upkeep) -> Result<(), Fatal> {
    if upkeep.write_out {
        store.write_out()?;
    }
    upkeep.compact.iter().try_for_each(|space| store.compact(*space))
}

/// One step of the sweep.
pub async fn step(handle: &Handle) -> Result<Swept> {
    match handle.ask(Op::Sweep).await? {
        Answer::Swept(swept) => Ok(swept),
        other => Err(Handle::unexpected(&other)),
    }
}
