//! Job keys and idempotency keys: cancelling a job by key, and recalling repeated requests.

use crate::clock::{Micros, micros};
use crate::engine::disk::codec::{self, Remembered};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Space};
use crate::engine::{Once, Placed, Published};
use crate::job::JobRef;
use crate::name::{JobKey, Queue};

/// Returns the result of a repeated request, if it is known.
pub struct Recall {
    pub queue: Queue,
    pub once: Once,
}

impl Step for Recall {
    type Reply = Option<Published>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Option<Published>> {
        Ok(state.remembered(&self.queue, &self.once, now)?)
    }
}

/// Deletes the job with a key.
pub struct CancelKey {
    pub queue: Queue,
    pub key: JobKey,
}

impl Step for CancelKey {
    /// Whether there was one.
    type Reply = bool;
    const MUST_LAST: bool = true;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<bool> {
        match state.key_holder(&self.queue, &self.key)? {
            Some((id, record)) if !record.expired(now) => {
                state.ack(&JobRef { queue: self.queue, id }, now)?
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl WriterState {
    /// Returns the first result of a repeated request, if it is known.
    pub fn remembered(&self, queue: &Queue, once: &Once, now: Micros) -> Result<Option<Published>, Fatal> {
        let row = self.txn.row(Space::Once, codec::once_key(&self.prefix(queue), &once.key))?;
        let Some(row) = row else { return Ok(None) };
        let done = codec::read_remembered(&row)?;
        Ok(if done.until <= now {
            None
        } else if done.fingerprint == once.fingerprint {
            Some(Published::Replay(done.placed))
        } else {
            Some(Published::Mismatch)
        })
    }

    /// Stores the result of a request. An expired one with the same key may still exist: its expiry will find that
    /// the row has been replaced.
    pub fn remember(&mut self, queue: &Queue, once: Once, placed: Vec<Placed>, now: Micros) {
        let until = now.saturating_add(micros(once.kind.remembered()));
        let key = codec::once_key(&self.prefix(queue), &once.key);
        self.once += 1;
        self.once_from = self.once_from.min(until);
        self.txn.put(Space::Once, codec::once_end(until, &key), []);
        let done = Remembered { until, fingerprint: once.fingerprint, placed };
        self.txn.put_row(Space::Once, key, codec::remembered(&done));
    }

    /// Returns the earliest expiry that may not have been processed, if expired requests may exist.
    pub fn requests_ended(&self, now: Micros) -> Option<Micros> {
        (self.once > 0 && self.once_from < now).then_some(self.once_from)
    }

    /// Deletes expired requests, given with their expiry. The remaining ones expire at `from` or later.
    pub fn forget_requests(&mut self, ended: Vec<(Micros, Vec<u8>)>, from: Micros) -> Result<(), Fatal> {
        for (until, key) in ended {
            self.txn.delete(Space::Once, codec::once_end(until, &key));
            self.once = self.once.saturating_sub(1);
            // A later request may have the same key.
            if let Some(row) = self.txn.row(Space::Once, key.clone())?
                && codec::read_remembered(&row)?.until == until
            {
                self.txn.delete_row(Space::Once, key);
            }
        }
        self.once_from = from;
        Ok(())
    }
}
