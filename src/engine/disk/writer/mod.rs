//! The writer thread: takes calls in groups, runs their steps in order, commits once, syncs once if anything in
//! the group must survive a power cut, and only then answers and notifies. The one place where the store is
//! written.

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
use crate::engine::notifier::Notifiers;

/// How long a close waits for memory to be written out. The next start replays what is not.
const LAST_WRITE_OUT: Duration = Duration::from_secs(1);

/// What the thread works with.
pub struct Writer {
    pub state: WriterState,
    pub calls: mailbox::Receiver<Op>,
    /// The calls that are served together. It belongs to the writer, so that the callers of a group whose step
    /// panics are told of it after the store was poisoned.
    pub group: Vec<Op>,
    pub stop: Arc<Stop>,
    pub poison: Arc<Poison>,
    pub notifiers: Arc<Notifiers>,
    /// Says that a group is served.
    pub heartbeat: Arc<Heartbeat>,
    /// Whether what must last is synced before it is answered.
    pub sync: bool,
}

impl Writer {
    /// Serves until it is told to end, and then what waits already. Answers the last group, if the store is in order.
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
        // It hears of the end.
        self.state.txn.store().call_tender();
        last
    }

    fn close(&mut self) -> Option<u64> {
        self.poison.check().ok()?;
        self.last().map_err(|fatal| self.poison.set(fatal.0)).ok()
    }

    /// The last commit, synced in either mode.
    fn last(&mut self) -> Result<u64, Fatal> {
        if self.state.garbage.should_write_out(&self.state.txn) {
            // The next start need not replay it.
            self.state.txn.settle(true)?;
            self.state.txn.store().write_out(LAST_WRITE_OUT)?;
        }
        // All of the summary is one group.
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
            self.notifiers.notify(&queue);
        }
    }

    /// Makes what was done durable: for the process always, for the machine where that was asked for.
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
            self.state.observers.tell(|observer| observer.synced(took, calls));
        }
        Ok(())
    }
}
