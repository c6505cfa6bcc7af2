//! The writer thread: takes calls in groups, runs their steps in order, commits once, syncs once if any step must
//! survive a power cut, and only then replies and notifies. The only place that writes to the store.

pub mod handle;
pub mod heartbeat;
pub mod mailbox;
pub mod op;
pub mod poison;
pub mod threads;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::heartbeat::Heartbeat;
use self::op::Op;
use self::poison::Poison;
use self::threads::Stop;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::store::Fatal;

/// Maximum time for flushing memory on close. The next start replays the rest.
const LAST_WRITE_OUT: Duration = Duration::from_secs(1);

/// State of the thread.
pub struct Writer {
    pub state: WriterState,
    pub calls: mailbox::Receiver<Op>,
    /// The calls of the current group. Kept here so that if a step panics, its callers get their error only after the
    /// store was poisoned.
    pub group: Vec<Op>,
    pub stop: Arc<Stop>,
    pub poison: Arc<Poison>,
    /// Marks the processing of a group as work.
    pub heartbeat: Arc<Heartbeat>,
    /// Whether to sync before replying to steps that must last.
    pub sync: bool,
}

impl Writer {
    /// Serves until stopped, then the queued calls. Returns the last group if the store has not failed.
    pub fn run(&mut self) -> Option<u64> {
        while self.calls.next(&mut self.group) {
            let work = self.heartbeat.clone();
            let work = work.work();
            self.serve();
            drop(work);
            if self.stop.is_stopped() {
                self.calls.close();
            }
        }
        let last = self.close();
        // Wakes it so that it notices the stop.
        self.state.txn.store().call_tender();
        last
    }

    fn close(&mut self) -> Option<u64> {
        self.poison.check().ok()?;
        self.last().map_err(|fatal| self.poison.set(fatal.0)).ok()
    }

    /// Writes the last commit, synced in either mode.
    fn last(&mut self) -> Result<u64, Fatal> {
        if self.state.garbage.should_write_out(&self.state.txn) {
            // So that the next start need not replay it.
            self.state.txn.settle(true)?;
            self.state.txn.store().write_out(LAST_WRITE_OUT)?;
        }
        // The whole summary must be one group.
        self.state.txn.flush()?;
        let number = self.state.txn.store().last_group() + 1;
        self.state.write_summary(number);
        self.state.txn.settle(true)?;
        Ok(number)
    }

    fn serve(&mut self) {
        let mut must_last = false;
        for op in &mut self.group {
            if self.poison.check().is_ok() {
                must_last |= op.must_last();
                if let Err(Fatal(reason)) = op.run(&mut self.state) {
                    self.poison.set(reason);
                }
            }
        }
        self.settle(must_last);
        for mut op in self.group.drain(..) {
            op.answer(&self.poison);
        }
        for queue in self.state.to_notify.drain() {
            self.state.notifiers.notify(&queue);
        }
    }

    /// Makes the group durable: always against a crash of the process, and against a power cut if required.
    fn settle(&mut self, must_last: bool) {
        if self.poison.check().is_ok() {
            let sync = std::mem::take(&mut self.state.must_sync) || (self.sync && must_last);
            if let Err(Fatal(reason)) = self.commit(sync) {
                self.poison.set(reason);
            }
        }
    }
    fn commit(&mut self, sync: bool) -> Result<(), Fatal> {
        self.state.txn.flush()?;
        let began = Instant::now();
        if self.state.txn.settle(sync)? {
            let (took, calls) = (began.elapsed(), self.group.len());
            self.state.observer.synced(took, calls);
        }
        Ok(())
    }
}
