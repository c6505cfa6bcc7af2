//! Moving due jobs: delayed ones become ready, running ones ready or dead.

use std::time::Duration;

use super::op::{Answer, STEP, STEP_BYTES};
use super::state::timers::Due;
use super::state::{Core, Step};
use super::store::codec::{self, Entry, Place, Record, TimerKey};
use super::store::{Fatal, Space};
use crate::clock::{Micros, micros};
use crate::engine::Pumped;
use crate::job::JobRef;
use crate::name::Queue;

/// How long a pump says to wait when nothing is due at all.
const LONG: Duration = Duration::from_secs(3600);

/// How many delayed jobs are read from the disk at a time, however many memory takes: a millisecond or two, in
/// which nobody else is served.
const READ_ON: usize = 2048;

impl Core {
    /// Moves up to `limit` due jobs, fewer when many large ones die.
    pub(super) fn pump(&mut self, limit: usize, now: Micros) -> Step {
        let mut moved = 0;
        let mut rewritten = 0;
        while moved < limit.min(STEP) && rewritten < STEP_BYTES {
            self.refill_delayed()?;
            if self.timers.next().is_none_or(|(due, _)| due > now) {
                break;
            }
            match self.timers.pop() {
                Some(Due::Delayed(timer, queue, entry)) => self.wake(timer, &queue, entry),
                Some(Due::Running(timer, queue, entry)) => {
                    rewritten += self.time_out(timer, &queue, entry, now)?;
                }
                None => break,
            }
            moved += 1;
        }
        if moved > 0 {
            // What is delayed from now on is due later than all that was pumped, also after a restart: `undelay`
            // tells by that what sleeps still.
            self.mark_clock(now, 1);
        }
        self.refill_delayed()?;
        let next = match self.timers.next() {
            Some((due, _)) => Duration::from_micros(due.saturating_sub(now)).min(LONG),
            None => LONG,
        };
        self.next_due.pump_begins();
        self.next_due.pump_said(now.saturating_add(micros(next)));
        Ok(Ok(Answer::Pumped(Pumped { moved, next })))
    }

    fn wake(&mut self, timer: TimerKey, queue: &Queue, entry: Entry) {
        self.txn.delete(Space::Delayed, codec::timer_key(timer));
        self.timer_passed(queue);
        let seq = self.next_seq();
        self.push_ready(queue, seq, entry);
    }

    /// Answers how many bytes it rewrote.
    fn time_out(
        &mut self,
        timer: TimerKey,
        queue: &Queue,
        entry: Entry,
        now: Micros,
    ) -> Result<usize, Fatal> {
        self.txn.delete(Space::Running, codec::timer_key(timer));
        self.timer_passed(queue);
        if entry.tries > 0 {
            let seq = self.next_seq();
            self.push_ready(queue, seq, entry);
            return Ok(0);
        }
        match self.read_entry(queue, &entry)? {
            Some(Ok(record)) if record.expired(now) => {
                self.ack(&JobRef { queue: queue.clone(), id: entry.id }, now)?;
            }
            Some(Ok(record)) => return Ok(self.bury(queue, entry, record)),
            Some(Err(reason)) => Core::log_corrupt(queue, entry.id, &reason),
            None => {}
        }
        self.queues.note_idle(queue, now);
        Ok(0)
    }

    fn bury(&mut self, queue: &Queue, entry: Entry, mut record: Record) -> usize {
        let seq = self.next_seq();
        record.place = Place::Dead(seq);
        record.expires = None;
        let bytes = record.body.len();
        let key = self.job_key(queue, entry.id);
        self.txn.put_job(key, &record);
        let state = self.queue(queue);
        state.dead += 1;
        let key = codec::list_key(&state.key, seq);
        self.txn.put(Space::Dead, key, codec::list_value(seq, &entry));
        bytes
    }

    /// The timer is over, and the queue is not idle for it: the job goes on to a list.
    fn timer_passed(&mut self, queue: &Queue) {
        if let Some(state) = self.queues.get_mut(queue) {
            state.timers = state.timers.saturating_sub(1);
        }
    }

    /// Reads the earliest delayed jobs from the disk, if memory has run out of them and there are more.
    pub(super) fn refill_delayed(&mut self) -> Result<(), Fatal> {
        let Some(from) = self.timers.wants() else { return Ok(()) };
        self.txn.flush()?;
        let limit = self.windows.delayed.min(READ_ON);
        let mut read = Vec::new();
        let mut horizon = None;
        for item in self.txn.store().range(Space::Delayed, codec::timer_key(from)..) {
            let (key, value) = item?;
            let key = codec::read_timer_key(&key)?;
            if read.len() == limit {
                horizon = Some(key);
                break;
            }
            let (queue, entry) = codec::split_timer_value(&value)?;
            read.push((key, self.queues.shared(codec::read_queue_key(queue)?), entry));
        }
        self.timers.refill(read, horizon);
        Ok(())
    }
}
