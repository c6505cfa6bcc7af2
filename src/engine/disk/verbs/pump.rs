//! The pump: moves due jobs. Delayed ones become ready, running ones ready or dead.

use std::time::Duration;

use crate::clock::{Micros, micros};
use crate::engine::Pumped;
use crate::engine::disk::codec::{self, Entry, Location, Record, TimerKey};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::timers::Due;
use crate::engine::disk::step::{STEP_BYTES, STEP_ENTRIES, Step, StepResult};
use crate::engine::disk::store::{Fatal, Space};
use crate::job::JobRef;
use crate::name::Queue;

/// Wait time of a pump if nothing is due at all.
const LONG: Duration = Duration::from_secs(3600);

/// Moves due jobs, at most this number and fewer if many large ones die:
/// [`DiskOptions::pump`](crate::engine::disk::DiskOptions::pump).
pub struct Pump(pub usize);

impl Step for Pump {
    type Reply = Pumped;
    const MUST_LAST: bool = false;

    fn items(&self) -> usize {
        self.0.min(STEP_ENTRIES)
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Pumped> {
        let mut moved = 0;
        let mut rewritten = 0;
        while moved < self.items() && rewritten < STEP_BYTES {
            state.refill_delayed()?;
            if state.timers.next().is_none_or(|(due, _)| due > now) {
                break;
            }
            match state.timers.pop() {
                Some(Due::Delayed(timer, queue, entry)) => state.end_delay(timer, &queue, entry),
                Some(Due::Running(timer, queue, entry)) => {
                    rewritten += state.end_ttr(timer, &queue, entry, now)?;
                }
                None => break,
            }
            moved += 1;
        }
        if moved > 0 {
            // New delayed jobs are due later than all that were pumped, also after a restart: `undelay` depends on
            // it.
            state.mark_clock(now, 1);
        }
        state.end_dead(now)?;
        state.refill_delayed()?;
        let dead_end = state.dead_ends.first().map(|(at, _)| *at);
        let next = match state.timers.next().map(|(due, _)| due).into_iter().chain(dead_end).min() {
            Some(due) => Duration::from_micros(due.saturating_sub(now)).min(LONG),
            None => LONG,
        };
        state.next_due.pump_begins();
        state.next_due.pump_said(now.saturating_add(micros(next)));
        Ok(Pumped { moved, next })
    }
}

impl WriterState {
    fn end_delay(&mut self, timer: TimerKey, queue: &Queue, entry: Entry) {
        self.txn.delete(Space::Delayed, codec::timer_key(timer));
        self.timer_passed(queue);
        let seq = self.next_seq();
        self.push_ready(queue, seq, entry, Some(timer.0));
    }

    /// Returns the number of bytes rewritten.
    fn end_ttr(&mut self, timer: TimerKey, queue: &Queue, entry: Entry, now: Micros) -> Result<usize, Fatal> {
        self.txn.delete(Space::Running, codec::timer_key(timer));
        self.run_passed(queue);
        if entry.tries > 0 {
            let seq = self.next_seq();
            self.push_ready(queue, seq, entry, Some(timer.0));
            self.observer.redelivered(queue, 1);
            return Ok(0);
        }
        match self.read_entry(queue, &entry)? {
            Some(Ok(record)) if record.expired(now) => {
                self.observer.expired(1);
                self.ack(&JobRef { queue: queue.clone(), id: entry.id }, now)?;
            }
            Some(Ok(record)) => {
                self.observer.died(queue, 1);
                return self.move_to_dead_letter(queue, entry, record, now);
            }
            Some(Err(reason)) => self.quarantine(queue, &entry, &reason),
            None => {}
        }
        self.queues.note_idle(queue, now);
        Ok(0)
    }

    /// Moves a job that is in no list to the dead letter. Returns the number of bytes rewritten.
    pub fn move_to_dead_letter(
        &mut self,
        queue: &Queue,
        entry: Entry,
        mut record: Record,
        now: Micros,
    ) -> Result<usize, Fatal> {
        self.free_key(queue, entry.id, &record)?;
        record.key = None;
        let entry = Entry { keyed: false, ..entry };
        let seq = self.next_seq();
        record.location = Location::Dead(seq);
        record.expires = None;
        let bytes = record.body.len();
        let key = self.job_key(queue, entry.id);
        self.txn.put_job(key, &record);
        let state = self.queue(queue);
        state.dead += 1;
        let key = codec::list_key(&state.key, seq);
        self.txn.put(Space::Dead, key, codec::list_value(&entry, Some(now)));
        self.watch_dead(queue, now);
        Ok(bytes)
    }
}
