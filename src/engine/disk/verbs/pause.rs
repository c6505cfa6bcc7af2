//! Pause and resume. A pause is stored with the queue's name; consumes treat a paused queue as empty.

use std::collections::BTreeMap;

use crate::clock::{Micros, micros};
use crate::engine::disk::codec;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::Space;
use crate::engine::{MAX_PAUSED, Pause, Pausing};
use crate::error::Error;
use crate::name::{Namespace, Queue};

/// Pauses a queue, or ends its pause.
pub struct SetPause {
    pub queue: Queue,
    pub pausing: Pausing,
}

/// Returns the paused queues.
pub struct Paused;

impl Step for SetPause {
    type Reply = Option<Pause>;
    const MUST_LAST: bool = true;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Option<Pause>> {
        let SetPause { queue, pausing } = self;
        let is_paused = state.queues.get(&queue).is_some_and(|queue| queue.paused.is_some());
        let until = match pausing {
            Pausing::Resumed => {
                if is_paused {
                    state.set_pause(&queue, None, now);
                }
                state.notify(&queue);
                return Ok(None);
            }
            // One microsecond before forever.
            Pausing::For(time) => now.saturating_add(micros(time)).min(Micros::MAX - 1),
            Pausing::UntilResumed => Micros::MAX,
        };
        if !is_paused && state.paused.get(&queue.namespace).is_some_and(|paused| *paused >= MAX_PAUSED) {
            return Err(Error::TooManyPaused(MAX_PAUSED).into());
        }
        state.set_pause(&queue, Some(until), now);
        state.pauses.insert((until, queue));
        state.next_due.stored(until);
        Ok(Some(state.pause_until(until)))
    }
}

impl Step for Paused {
    type Reply = BTreeMap<Queue, Pause>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<BTreeMap<Queue, Pause>> {
        let goes_on = state.pauses.iter().filter(|(until, _)| *until > now);
        Ok(goes_on.map(|(until, queue)| (queue.clone(), state.pause_until(*until))).collect())
    }
}

impl WriterState {
    /// Converts the end of a pause to a [`Pause`].
    pub fn pause_until(&self, until: Micros) -> Pause {
        Pause { until: (until < Micros::MAX).then(|| self.clock.to_day(until)) }
    }

    /// Ends expired pauses, and notifies their queues.
    pub fn end_pauses(&mut self, now: Micros) {
        while self.pauses.first().is_some_and(|(until, _)| *until <= now) {
            let Some((_, queue)) = self.pauses.pop_first() else { return };
            self.set_pause(&queue, None, now);
            self.notify(&queue);
        }
    }

    fn set_pause(&mut self, queue: &Queue, until: Option<Micros>, now: Micros) {
        let state = self.queue(queue);
        let before = std::mem::replace(&mut state.paused, until);
        let key = state.key.clone();
        if let Some(before) = before {
            self.pauses.remove(&(before, queue.clone()));
        }
        self.count_paused(&queue.namespace, isize::from(until.is_some()) - isize::from(before.is_some()));
        self.txn.put(Space::Queues, key, codec::queue_value(until));
        self.queues.note_idle(queue, now);
    }

    /// Adds to the number of a namespace's paused queues.
    pub fn count_paused(&mut self, namespace: &Namespace, more: isize) {
        let paused = self.paused.entry(namespace.clone()).or_default();
        *paused = paused.saturating_add_signed(more);
        if *paused == 0 {
            self.paused.remove(namespace);
        }
    }
}
