//! Lists of jobs and of queues. What may be long is read beside the writer, from a snapshot; the writer is asked only
//! where to begin, and for figures. So a walk through a million jobs holds up nobody.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::inspect::view;
use crate::clock::{Micros, Millis};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Outcome, STEP_BYTES, STEP_ENTRIES, Step};
use crate::engine::disk::store::codec::{self, Entry, TimerKey};
use crate::engine::disk::store::{Fatal, Found, Space, Store};
use crate::engine::disk::upkeep::sweep::Lend;
use crate::engine::disk::writer::handle::Handle;
use crate::engine::{Cursor, JobList, JobPage, Pause, QueuePage, QueueView};
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::name::{MAX_NAME, Namespace, Queue};

/// How many lists are read at a time. Others wait.
const READERS: usize = 2;
/// How many timers one page looks at: those of all queues stand in one list.
const MOST_TIMERS: u64 = 10_000;

/// Reads lists. While one reads it holds a permit, so that a close can wait for it.
#[derive(Debug)]
pub struct Lists {
    readers: Arc<Semaphore>,
}

impl Default for Lists {
    fn default() -> Lists {
        Lists { readers: Arc::new(Semaphore::new(READERS)) }
    }
}

impl Lists {
    /// A page of jobs. `None` when the cursor is none.
    pub async fn jobs(&self, handle: &Handle, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        let after = match &list.cursor {
            None => None,
            Some(cursor) => match Place::read(cursor, list.state) {
                None => return Ok(None),
                after => after,
            },
        };
        let permit = self.permit().await?;
        let Some(start) = handle.ask(FindStart { queue: queue.clone(), state: list.state }).await? else {
            return Ok(Some(JobPage::default()));
        };
        let now = handle.clock.now_micros();
        read(handle, permit, move || start.page(&list, after, now)).await.map(Some)
    }

    /// A page of queues. `None` when the cursor is none.
    pub async fn queues(
        &self,
        handle: &Handle,
        namespace: &Namespace,
        limit: usize,
        cursor: Option<Cursor>,
    ) -> Result<Option<QueuePage>> {
        let after = match cursor.map(|cursor| read_queue_cursor(namespace, &cursor)) {
            None => None,
            Some(None) => return Ok(None),
            Some(after) => after,
        };
        let permit = self.permit().await?;
        let store = handle.ask(Lend).await?;
        let namespace = namespace.clone();
        let (names, more) =
            read(handle, permit, move || queue_names(&store, &namespace, limit, after)).await?;
        let cursor = names.last().filter(|_| more).map(|last| Cursor(last.name.as_str().to_owned()));
        let queues = handle.ask(Figures(names)).await?;
        Ok(Some(QueuePage { queues, cursor }))
    }

    /// Reads what is no list, beside the writer too.
    pub async fn beside<T: Send + 'static>(
        &self,
        handle: &Handle,
        work: impl FnOnce() -> Result<T, Fatal> + Send + 'static,
    ) -> Result<T> {
        let permit = self.permit().await?;
        read(handle, permit, work).await
    }

    /// Waits until nobody reads.
    pub async fn ended(&self) {
        // Nobody closes the semaphore.
        let _ = self.readers.acquire_many(READERS as u32).await;
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        self.readers.clone().acquire_owned().await.map_err(|_| Error::Closed)
    }
}

/// Reads on a thread that may block. What does not read is the store's fault, and changes nothing in it.
async fn read<T: Send + 'static>(
    handle: &Handle,
    permit: OwnedSemaphorePermit,
    work: impl FnOnce() -> Result<T, Fatal> + Send + 'static,
) -> Result<T> {
    let work = move || {
        let done = work();
        drop(permit);
        done
    };
    tokio::select! {
        biased;
        done = tokio::task::spawn_blocking(work) => match done {
            Ok(done) => done.map_err(|Fatal(reason)| Error::corrupt(reason)),
            Err(e) => Err(Error::corrupt(e)),
        },
        // It hangs in the disk, and nobody waits for it.
        reason = handle.poison.poisoned() => Err(Error::away(Error::Poisoned(reason))),
    }
}

/// A place in a list: behind the entry of this timer, or of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Timer(TimerKey),
    Number(u64),
}

/// The first character of a cursor.
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

    /// Its key in the list.
    fn key(self, queue: &[u8]) -> Vec<u8> {
        match self {
            Place::Timer(timer) => codec::timer_key(timer).into(),
            Place::Number(seq) => codec::list_key(queue, seq),
        }
    }
}

/// Where a list begins: so that nobody reads through what was deleted before it.
struct FindStart {
    queue: Queue,
    state: JobState,
}

/// A list as it is found on disk.
struct Start {
    store: Store,
    /// The queue's.
    prefix: Bytes,
    state: JobState,
    /// No entry stands before it.
    first: Place,
}

impl Step for FindStart {
    /// `None` when there is nothing to show.
    type Reply = Option<Start>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> Outcome<Option<Start>> {
        let Some(queue) = state.queues.get(&self.queue) else { return Ok(None) };
        let first = match self.state {
            // Nobody need look through the timers of others for it.
            JobState::Delayed if queue.timers <= queue.running => None,
            JobState::Running if queue.running == 0 => None,
            JobState::Delayed => state.timers.delayed_from().map(Place::Timer),
            JobState::Running => state.timers.running_from().map(Place::Timer),
            JobState::Ready => Some(Place::Number(queue.ready_from())),
            JobState::Dead => Some(Place::Number(queue.dead_from)),
        };
        let (store, prefix) = (state.txn.store().clone(), queue.key.clone());
        Ok(first.map(|first| Start { store, prefix, state: self.state, first }))
    }
}

impl Start {
    fn page(&self, list: &JobList, after: Option<Place>, now: Micros) -> Result<JobPage, Fatal> {
        let snapshot = self.store.snapshot();
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
            // Behind a full page the list goes on until it is known whether another job of the queue comes: how many
            // timers others have must not show.
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
            let Found::Record(record) = snapshot.job(&job)? else { continue };
            bytes += record.body.len();
            if record.generation == entry.generation && !record.expired(now) {
                let tries = if self.state == JobState::Dead { 0 } else { entry.tries };
                let place = (self.state, Some(due_at), Some(tries));
                page.jobs.push(view(entry.id, record, place, list.bodies, now));
            }
        }
        Ok(page)
    }

    /// Reads an entry: its place, and what it says if it is of this queue.
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

fn read_queue_cursor(namespace: &Namespace, cursor: &Cursor) -> Option<Queue> {
    let name = crate::name::QueueName::parse_for_consume(&cursor.0).ok()?;
    Some(Queue { namespace: namespace.clone(), name })
}

/// The names of up to `limit` queues behind `after`, sorted, and whether there are more. A key has a name's length before
/// the name, so the names of each length stand together: each such range is read as far as it may matter.
fn queue_names(
    store: &Store,
    namespace: &Namespace,
    limit: usize,
    after: Option<Queue>,
) -> Result<(Vec<Queue>, bool), Fatal> {
    let snapshot = store.snapshot();
    let prefix = codec::namespace_key(namespace);
    let after = after.as_ref().map(|queue| queue.name.as_str().as_bytes());
    let mut names = BTreeSet::new();
    for length in 1..=MAX_NAME {
        // A name has 255 bytes at most.
        let range = [&prefix[..], &[length as u8]].concat();
        let from = match after {
            None => Bound::Included(range.clone()),
            Some(after) if after.len() < length => Bound::Included([&range[..], after].concat()),
            Some(after) => Bound::Excluded([&range[..], &after[..length]].concat()),
        };
        for item in snapshot.range(Space::Queues, (from, Bound::Unbounded)) {
            let (key, _) = item?;
            if !key.starts_with(&range) {
                break;
            }
            let queue = codec::read_queue_key(&key)?;
            if names.len() > limit && names.last().is_some_and(|last| *last < queue) {
                break;
            }
            names.insert(queue);
            if names.len() > limit + 1 {
                names.pop_last();
            }
        }
    }
    let more = names.len() > limit;
    Ok((names.into_iter().take(limit).collect(), more))
}

/// The figures of these queues; those that were forgotten meanwhile are left out.
struct Figures(Vec<Queue>);

impl Step for Figures {
    type Reply = Vec<QueueView>;
    const MUST_LAST: bool = false;

    fn items(&self) -> usize {
        self.0.len()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<Vec<QueueView>> {
        let mut views = Vec::with_capacity(self.0.len());
        let (mut steps, mut bytes) = (0, 0);
        for queue in self.0 {
            let age = state.oldest_ready_age(&queue, now, &mut steps, &mut bytes)?;
            let Some(of) = state.queues.get(&queue) else { continue };
            let paused = of.paused.filter(|until| *until > now);
            views.push(QueueView {
                ready: Some(of.ready),
                delayed: Some(of.timers.saturating_sub(of.running)),
                running: Some(of.running),
                dead: Some(of.dead),
                oldest_ready_age: age,
                paused: paused.map(|until| Pause { until: (until < Micros::MAX).then_some(until / 1000) }),
                queue,
            });
        }
        Ok(views)
    }
}

impl WriterState {
    /// For how long the head of a queue has been ready. Passes over what consume would pass over, within the bounds
    /// of a step.
    fn oldest_ready_age(
        &mut self,
        queue: &Queue,
        now: Micros,
        steps: &mut usize,
        bytes: &mut usize,
    ) -> Result<Option<Duration>, Fatal> {
        while *steps < STEP_ENTRIES && *bytes < STEP_BYTES {
            *steps += 1;
            let Some((seq, entry)) = self.head(queue)? else { return Ok(None) };
            match self.read_entry(queue, &entry)? {
                Some(Ok(record)) if !record.expired(now) => {
                    *bytes += record.body.len();
                    self.txn.flush()?;
                    let since = self.list_row(Space::Ready, queue, seq)?.map(|(_, since)| since);
                    return Ok(since.map(|at| Duration::from_millis((now / 1000).saturating_sub(at))));
                }
                unfit => self.pass_over(queue, unfit, now)?,
            }
        }
        Ok(None)
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
