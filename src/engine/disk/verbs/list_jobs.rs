//! Lists of jobs: long reads, for which the writer only supplies the start position.

use std::ops::Bound;
use std::time::Duration;

use super::inspect::view;
use crate::clock::{Micros, Millis, micros};
use crate::engine::disk::codec::{self, Entry, TimerKey};
use crate::engine::disk::readers::{self, LongRead, Readers};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::clock::PoolClock;
use crate::engine::disk::step::{STEP_BYTES, STEP_ENTRIES, Step, StepResult};
use crate::engine::disk::store::{Fatal, Found, Space, Store};
use crate::engine::disk::writer::handle::Handle;
use crate::engine::{Cursor, JobList, JobPage};
use crate::error::Result;
use crate::job::JobState;
use crate::name::Queue;
use bytes::Bytes;

/// Maximum timers scanned per page: one list has the timers of all queues.
const MOST_TIMERS: u64 = 10_000;

/// Returns a page of jobs. `None` for an invalid cursor.
pub async fn list_jobs(
    readers: &Readers,
    handle: &Handle,
    queue: &Queue,
    list: JobList,
) -> Result<Option<JobPage>> {
    let after = match &list.cursor {
        None => None,
        Some(cursor) => match Place::read(cursor, list.state) {
            None => return Ok(None),
            after => after,
        },
    };
    let slot = readers.slot(LongRead::List).await?;
    let Some(start) = handle.ask(FindStart { queue: queue.clone(), state: list.state }).await? else {
        return Ok(Some(JobPage::default()));
    };
    let clock = handle.clock.clone();
    readers::read(handle, slot, move || start.page(&list, after, &clock)).await.map(Some)
}

/// A position in a list: after the entry of this timer, or of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Timer(TimerKey),
    Number(u64),
}

/// Returns the first character of a cursor.
fn letter(state: JobState) -> char {
    match state {
        JobState::Delayed => 'd',
        JobState::Ready => 'r',
        JobState::Running => 'u',
        JobState::Dead => 'x',
    }
}

impl Place {
    fn read(cursor: &Cursor, state: JobState) -> Option<Place> {
        let text = cursor.0.strip_prefix(letter(state))?;
        if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        match (state, text.len()) {
            (JobState::Delayed | JobState::Running, 32) => {
                let (due, seq) = text.split_at(16);
                Some(Place::Timer((number(due)?, number(seq)?)))
            }
            (JobState::Ready | JobState::Dead, 16) => number(text).map(Place::Number),
            _ => None,
        }
    }

    fn cursor(self, state: JobState) -> Cursor {
        let letter = letter(state);
        Cursor(match self {
            Place::Timer((due, seq)) => format!("{letter}{due:016x}{seq:016x}"),
            Place::Number(seq) => format!("{letter}{seq:016x}"),
        })
    }

    /// Returns its key in the list.
    fn key(self, queue: &[u8]) -> Vec<u8> {
        match self {
            Place::Timer(timer) => codec::timer_key(timer).into(),
            Place::Number(seq) => codec::list_key(queue, seq),
        }
    }
}

/// Finds the start of a list, so that readers skip the deleted entries before it.
struct FindStart {
    queue: Queue,
    state: JobState,
}

/// A list on disk.
struct Start {
    store: Store,
    /// Prefix of the queue's keys.
    prefix: Bytes,
    state: JobState,
    /// No entry precedes it.
    first: Place,
    /// How long dead jobs are kept; zero: forever.
    dead_ttl: Duration,
}

impl Step for FindStart {
    /// `None` if there is nothing to show.
    type Reply = Option<Start>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Option<Start>> {
        let Some(queue) = state.queues.get(&self.queue) else { return Ok(None) };
        let first = match self.state {
            // Avoids scanning the timers of other queues.
            JobState::Delayed if queue.timers <= queue.running => None,
            JobState::Running if queue.running == 0 => None,
            JobState::Delayed => state.timers.delayed_from().map(Place::Timer),
            JobState::Running => state.timers.running_from().map(Place::Timer),
            JobState::Ready => Some(Place::Number(queue.ready_from())),
            JobState::Dead => Some(Place::Number(queue.dead_from)),
        };
        let (store, prefix) = (state.txn.store().clone(), queue.key.clone());
        let dead_ttl = state.windows.dead;
        Ok(first.map(|first| Start { store, prefix, state: self.state, first, dead_ttl }))
    }
}

impl Start {
    fn page(&self, list: &JobList, after: Option<Place>, clock: &PoolClock) -> Result<JobPage, Fatal> {
        let (snapshot, now) = (self.store.snapshot(), clock.now_micros());
        let (space, end) = match self.state {
            JobState::Delayed => (Space::Delayed, vec![u8::MAX; 17]),
            JobState::Running => (Space::Running, vec![u8::MAX; 17]),
            JobState::Ready => (Space::Ready, Place::Number(u64::MAX).key(&self.prefix)),
            JobState::Dead => (Space::Dead, Place::Number(u64::MAX).key(&self.prefix)),
        };
        let first = self.first.key(&self.prefix);
        let from = match after.map(|after| after.key(&self.prefix)).filter(|after| *after >= first) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(first),
        };
        let mut page = JobPage::default();
        let (mut looks, mut reads, mut bytes, mut last) = (0, 0, 0, None);
        for item in snapshot.range(space, (from, Bound::Included(end))) {
            let (key, value) = item?;
            let (place, found) = self.read(&key, &value)?;
            // After a full page, the scan continues until it finds another job of the queue: the number of other
            // queues' timers must not show.
            let full = page.jobs.len() == list.limit || bytes >= STEP_BYTES || reads == STEP_ENTRIES;
            if looks == MOST_TIMERS || full && found.is_some() {
                page.cursor = last.map(|place: Place| place.cursor(self.state));
                break;
            }
            looks += 1;
            last = Some(place);
            let Some((entry, due_at)) = found else { continue };
            reads += 1;
            page.scanned += 1;
            let job = codec::job_key(&self.prefix, entry.id);
            let Found::Record(mut record) = snapshot.job(&job)? else { continue };
            if self.state == JobState::Dead && !self.dead_ttl.is_zero() {
                record.expires = Some(due_at.saturating_mul(1000).saturating_add(micros(self.dead_ttl)));
            }
            bytes += record.body.len();
            if record.generation == entry.generation && !record.expired(now) {
                let tries = if self.state == JobState::Dead { 0 } else { entry.tries };
                let place = (Some(self.state), Some(due_at), Some(tries));
                page.jobs.push(view(entry.id, record, place, list.bodies, (now, clock)));
            }
        }
        Ok(page)
    }

    /// Reads an entry: its position, and its contents if it belongs to this queue.
    fn read(&self, key: &[u8], value: &[u8]) -> Result<(Place, Option<(Entry, Millis)>), Fatal> {
        Ok(match self.state {
            JobState::Delayed | JobState::Running => {
                let timer = codec::read_timer_key(key)?;
                let (queue, entry) = codec::split_timer_value(value)?;
                (Place::Timer(timer), (queue == self.prefix).then_some((entry, timer.0 / 1000)))
            }
            JobState::Ready | JobState::Dead => {
                let seq = codec::split_list_key(key)?.1;
                (Place::Number(seq), Some(codec::read_list_value(seq, value)?))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cursor_survives_its_text_and_fits_its_state_only(due: u64, seq: u64, at in 0usize..4) {
            let state = JobState::ALL[at];
            let timer = matches!(state, JobState::Delayed | JobState::Running);
            let place = if timer { Place::Timer((due, seq)) } else { Place::Number(seq) };
            for other in JobState::ALL {
                let expected = (other == state).then_some(place);
                prop_assert_eq!(Place::read(&place.cursor(state), other), expected);
            }
        }

        #[test]
        fn any_text_is_a_cursor_or_none(text in "[drux]?[0-9a-f+é]{0,40}", at in 0usize..4) {
            let cursor = Cursor(text);
            if let Some(place) = Place::read(&cursor, JobState::ALL[at]) {
                prop_assert_eq!(place.cursor(JobState::ALL[at]), cursor);
            }
        }
    }
}
