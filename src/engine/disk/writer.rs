//! The writer thread: takes calls in groups, does them in order, commits once, syncs once if anything in the
//! group must survive a power cut, and only then answers and rings. The one place where the store is written.

use std::sync::Arc;

use super::op::{Answer, Op};
use super::poison::Poison;
use super::state::{Core, META_CLOSED};
use super::store::{Fatal, Space};
use crate::engine::batch::{BatchReceiver, Call, Reply};
use crate::engine::notifier::Bells;
use crate::error::{Error, Result};
use crate::job::JobRef;

/// What the thread works with.
#[derive(Debug)]
pub struct Writer {
    pub core: Core,
    pub calls: BatchReceiver<Op, Answer>,
    pub poison: Arc<Poison>,
    pub bells: Arc<Bells>,
    /// Whether what must last is synced before it is answered.
    pub sync: bool,
}

/// Poisons the store if the thread dies of a panic: nobody would answer any more.
struct Alive<'a>(&'a Poison);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.throw("the writer thread has died");
        }
    }
}

impl Writer {
    /// Serves until it is closed or every caller is gone. Answers the number that the last commit left in
    /// `meta`, if the store is in order.
    pub fn run(mut self) -> Option<u64> {
        let poison = self.poison.clone();
        let _alive = Alive(&poison);
        while let Some(group) = self.calls.blocking_next() {
            self.serve(group);
        }
        poison.check().ok()?;
        match self.last() {
            Ok(number) => Some(number),
            Err(Fatal(reason)) => {
                poison.throw(reason);
                None
            }
        }
    }

    /// The last commit, synced in either mode.
    fn last(&mut self) -> Result<u64, Fatal> {
        if self.core.untidy() {
            // The next start need not replay it.
            self.core.txn.settle(true)?;
            self.core.txn.store().write_out()?;
        }
        let number = self.core.next_seq();
        self.core.txn.put(Space::Meta, META_CLOSED, number.to_be_bytes());
        self.core.txn.settle(true)?;
        Ok(number)
    }

    fn serve(&mut self, group: Vec<Call<Op, Answer>>) {
        let mut waiting = Vec::with_capacity(group.len());
        let (mut closing, mut must_last) = (false, false);
        for call in group {
            let (op, reply) = call.split();
            closing |= matches!(op, Op::Close);
            must_last |= op.must_last();
            let answer = match self.poison.error() {
                Some(poisoned) => Err(poisoned),
                None => self.core.apply(op).unwrap_or_else(|fatal| Err(self.fail(fatal))),
            };
            waiting.push((reply, answer));
        }
        self.settle(must_last);
        let unwanted = self.answer(waiting);
        if !unwanted.is_empty() && self.poison.check().is_ok() {
            // Handed out to callers that have left: back to the heads of their queues.
            if let Err(fatal) = self.core.apply(Op::GiveBack(unwanted)) {
                self.fail(fatal);
            }
            self.settle(false);
        }
        self.announce();
        if closing {
            self.calls.close();
        }
    }

    /// Makes what was done durable: for the process always, for the machine where that was asked for.
    fn settle(&mut self, must_last: bool) {
        if self.poison.check().is_ok() {
            let sync = std::mem::take(&mut self.core.must_sync) || (self.sync && must_last);
            if let Err(fatal) = self.core.txn.settle(sync) {
                self.fail(fatal);
            }
        }
    }

    fn fail(&self, Fatal(reason): Fatal) -> Error {
        self.poison.throw(reason);
        self.poison.error().unwrap_or(Error::Closed)
    }

    /// Answers all. Gives back the jobs that nobody waited for any more.
    fn answer(&self, waiting: Vec<(Reply<Answer>, Result<Answer>)>) -> Vec<(JobRef, u64)> {
        let mut unwanted = Vec::new();
        for (reply, answer) in waiting {
            let answer = self.poison.error().map_or(answer, Err);
            if let Err(Ok(Answer::Jobs(lists))) = reply.send(answer) {
                let jobs = lists.into_iter().flatten();
                unwanted.extend(jobs.map(|job| (JobRef { queue: job.queue, id: job.id }, job.receipt)));
            }
        }
        unwanted
    }

    /// Tells who waits for ready jobs.
    fn announce(&mut self) {
        for queue in self.core.ring.drain() {
            self.bells.ring(&queue);
        }
    }
}
