//! Lists of jobs. Ready and dead jobs are in lists of their queue. Delayed and running jobs are among all timers of the
//! partition, so that a range of timers may contain few jobs of the queue, or none. Changes nothing.
//!
//! A cursor remains valid while other calls change the list:
//!
//! - among timers it is a position in the order of scores and members, and needs no member at that position;
//! - in a list it contains the number of elements passed, the last passed element, and the next few. Removals shift the
//!   others, so the page starts behind the last passed element or at one of the next, at whichever is found first. If
//!   none is found, consumes (or a respawn of the oldest) have passed the cursor, and the page starts at the head. A
//!   job that was delivered and is ready again has fewer tries, so it is another element; a dead job that is further
//!   from the head than before has died again.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use redis::Value;

use crate::clock::{Micros, Millis};
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::{key_of, read, reason_of};
use crate::engine::{Cursor, JobList, JobPage};
use crate::error::Result;
use crate::job::{Attributes, JobId, JobState, JobView};
use crate::name::Queue;

/// Entries read by one command or script.
const PIECE: usize = 500;
/// Maximum ranges of timers read per call: each takes Redis about 0.1 ms.
const TIMER_PIECES: usize = 4;
/// Maximum ranges of a list read per call.
const MAX_PIECES: usize = 10;
/// Maximum jobs of the queue read per call, including deleted ones: each takes Redis about 2.5 µs.
const MOST_DESCRIBED: u64 = 1000;
/// Number of elements after its position that a cursor contains.
const NEXT: usize = 8;
/// Distance from the cursor's position within which an element is searched for, in each direction.
const AROUND: u64 = 1000;

/// An element of a list, or a timer, that may be shown.
struct ListElement {
    id: JobId,
    tries_left: u16,
    due_at: Option<Millis>,
}

/// The reply of lua/scan_timers.lua.
type TimerPiece = (String, String, Vec<u8>, Vec<Value>);

impl PartitionCore {
    /// Returns one page of a queue's jobs in one state. `None` if the cursor is invalid for this state.
    pub async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        let from = match &list.cursor {
            None => None,
            Some(cursor) => match ListPlace::read(&cursor.0, list.state) {
                Some(place) => Some(place),
                None => return Ok(None),
            },
        };
        let page = match (list.state, from) {
            (JobState::Ready | JobState::Dead, from) => {
                let place = if let Some(ListPlace::InList(place)) = from { place } else { InList::default() };
                list_elements(&Elements { core: self, queue, list: &list }, &list, place).await?
            }
            (_, Some(ListPlace::InTimers(place))) => self.list_timers(queue, &list, place).await?,
            (..) => self.list_timers(queue, &list, InTimers::default()).await?,
        };
        Ok(Some(page))
    }

    /// Returns a page of delayed or running jobs.
    async fn list_timers(&self, queue: &Queue, list: &JobList, mut place: InTimers) -> Result<JobPage> {
        let mut page = JobPage::default();
        let prefix = keys::member_prefix(queue);
        // After a full page the scan continues until it finds another job of the queue or the end, so that cursors do
        // not reveal how many timers other queues have.
        let mut full = false;
        for _ in 0..TIMER_PIECES {
            let (score, side, end, cells) = self.scan_timers(&prefix, &place).await?;
            let mut entries = Vec::new();
            for cell in cells.chunks_exact(2) {
                let (score, end): (String, Vec<u8>) = (read(&cell[0])?, read(&cell[1])?);
                let (Some(id), Some(tries_left)) = (keys::id_of_element(&end), keys::tries_of_element(&end))
                else {
                    continue;
                };
                let (due, runs) = keys::due_of_score(score.parse().unwrap_or_default(), &id);
                if runs == (list.state == JobState::Running) {
                    let entry = ListElement { id, tries_left, due_at: Some(due / 1000) };
                    entries.push((entry, InTimers { score, side: "m".into(), end }));
                }
            }
            let mut rest = entries.as_slice();
            while !rest.is_empty() {
                if full {
                    page.cursor = Some(place.write(list.state));
                    return Ok(page);
                }
                let (some, _) = rest.split_at(rest.len().min(list.limit - page.jobs.len()));
                let described = self.describe(queue, list, some.iter().map(|(entry, _)| entry)).await?;
                page.scanned += described.len() as u64;
                page.jobs.extend(described.iter().flatten().cloned());
                // The page reached its limit of jobs, of bytes, or of jobs read.
                full = described.len() < some.len()
                    || page.jobs.len() == list.limit
                    || page.scanned >= MOST_DESCRIBED;
                place = some[described.len().saturating_sub(1)].1.clone();
                rest = &rest[described.len()..];
            }
            if score.is_empty() {
                return Ok(page);
            }
            place = InTimers { score, side, end };
        }
        page.cursor = Some(place.write(list.state));
        Ok(page)
    }

    /// Reads one range of the timer set.
    async fn scan_timers(&self, prefix: &[u8], place: &InTimers) -> Outcome<TimerPiece> {
        let mut cmd = self.call(&self.scripts.scan_timers);
        cmd.key(&self.keys.timer_set).arg(prefix).arg(PIECE);
        cmd.arg(&place.score).arg(&place.side).arg(&place.end);
        self.run(Lane::Other, &cmd).await
    }

    /// Whether this partition has a delayed or running job of a queue. Reads ranges of timers until it finds one.
    pub async fn has_timers(&self, queue: &Queue) -> Result<bool> {
        let (prefix, mut place) = (keys::member_prefix(queue), InTimers::default());
        loop {
            let (score, side, end, cells) = self.scan_timers(&prefix, &place).await?;
            if !cells.is_empty() || score.is_empty() {
                return Ok(!cells.is_empty());
            }
            place = InTimers { score, side, end };
        }
    }

    /// Returns the elements from number `from` up to but not including `to`. Number 0 is the head, which is delivered
    /// next.
    pub async fn elements(&self, key: &str, from: u64, to: u64) -> Result<Vec<Vec<u8>>> {
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(key).arg(-(to.min(i64::MAX as u64) as i64)).arg(-(from as i64) - 1);
        let mut elements: Vec<Vec<u8>> = self.query(&cmd).await?;
        elements.reverse();
        Ok(elements)
    }

    /// Returns the listed fields of these jobs, in order; `None` for a deleted job. Returns fewer jobs than requested,
    /// but at least one, if their values are large.
    async fn describe<'a>(
        &self,
        queue: &Queue,
        list: &JobList,
        entries: impl ExactSizeIterator<Item = &'a ListElement> + Clone,
    ) -> Result<Vec<Option<JobView>>> {
        let mut cmd = self.call(&self.scripts.describe);
        for entry in entries.clone() {
            cmd.key(self.keys.job(queue, &entry.id)).key(self.keys.details(queue, &entry.id));
        }
        for entry in entries.clone() {
            // The size of a versioned job's body is only in its value.
            cmd.arg(u8::from(list.bodies || entry.id.is_versioned()));
        }
        let reply: Vec<Value> = self.run(Lane::Other, &cmd).await?;
        let (now, cells) = reply.split_first().ok_or_else(cut_short)?;
        let now: u64 = read(now)?;
        if cells.is_empty() {
            return Err(cut_short().into());
        }
        let mut views = Vec::with_capacity(entries.len());
        for (entry, [ttl, size, key, reason, value]) in entries.zip(cells.as_chunks().0) {
            let ttl: i64 = read(ttl)?;
            if ttl == -2 {
                views.push(None);
                continue;
            }
            let said = [size, key, reason, value];
            views.push(shown(&self.common.pool, (queue, list), entry, (now, ttl), said)?);
        }
        Ok(views)
    }
}

/// Returns the listed fields of a job. The last argument has the cells of its size, key, reason and value; the size is
/// used if the value was not requested. `None` for an unreadable job.
fn shown(
    pool: &str,
    (queue, list): (&Queue, &JobList),
    &ListElement { id, tries_left, due_at }: &ListElement,
    (now, ttl): (Micros, i64),
    [size, key, reason, stored]: [&Value; 4],
) -> Result<Option<JobView>> {
    let job =
        read::<Option<Bytes>>(stored)?.map(|stored| value::job(queue, id, stored, ttl, now)).transpose();
    let (size, body, attributes) = match job {
        Ok(Some(job)) if list.bodies => (job.body.len() as u64, Some(job.body), job.attributes),
        Ok(Some(job)) => (job.body.len() as u64, None, Attributes::new()),
        Ok(None) => (read(size)?, None, Attributes::new()),
        Err(e) => {
            tracing::warn!(pool, %queue, "a list omits an unreadable job: {e}");
            return Ok(None);
        }
    };
    Ok(Some(JobView {
        id,
        state: Some(list.state),
        due_at,
        tries_left: Some(tries_left),
        receipt: None,
        ttl: value::ttl(ttl),
        elapsed: value::elapsed(now, id.published_at()),
        published_at: id.published_at(),
        key: key_of(key)?,
        reason: reason_of(reason)?,
        size,
        body,
        attributes,
    }))
}

/// The list of a queue's ready or dead jobs.
struct Elements<'a> {
    core: &'a PartitionCore,
    queue: &'a Queue,
    list: &'a JobList,
}

impl Elements<'_> {
    /// Returns the elements from number `from` up to but not including `to`, counted from the head.
    async fn elements(&self, from: u64, to: u64) -> Result<Vec<Vec<u8>>> {
        let Elements { core, queue, list } = self;
        let key = if list.state == JobState::Dead { core.keys.dead(queue) } else { core.keys.ready(queue) };
        core.elements(&key, from, to).await
    }

    /// Parses an element.
    fn read(&self, element: &[u8]) -> Option<Element> {
        Some(Element { id: keys::id_of_element(element)?, tries: keys::tries_of_element(element)? })
    }

    /// Whether a list shows this element: a ready element without tries left is not delivered.
    fn shows(&self, element: &Element) -> bool {
        self.list.state == JobState::Dead || element.tries > 0
    }

    /// Returns the listed fields of these elements' jobs, in order; `None` for a deleted job. Returns fewer jobs than
    /// requested, but at least one, if their values are large.
    async fn describe(&self, elements: &[&[u8]]) -> Result<Vec<Option<JobView>>> {
        let Elements { core, queue, list } = self;
        let entries =
            elements.iter().filter_map(|element| self.read(element)).map(|Element { id, tries }| {
                let tries_left = if list.state == JobState::Dead { 0 } else { tries };
                ListElement { id, tries_left, due_at: None }
            });
        let entries: Vec<ListElement> = entries.collect();
        core.describe(queue, list, entries.iter()).await
    }
}

/// Returns a page of ready or dead jobs.
async fn list_elements(of: &Elements<'_>, list: &JobList, mut place: InList) -> Result<JobPage> {
    let mut page = JobPage::default();
    for _ in 0..MAX_PIECES {
        // If nothing has moved, the range begins with the last element passed.
        let mut from = place.passed.saturating_sub(1);
        let mut to = from + (PIECE + NEXT) as u64;
        let mut elements = of.elements(from, to).await?;
        if place.passed > 0 && elements.first().and_then(|e| of.read(e)) != place.last {
            from = place.passed.saturating_sub(AROUND);
            to = place.passed + AROUND;
            elements = of.elements(from, to).await?;
        }
        // The page uses the elements of this read: by the next read the position may have moved again.
        let ended = (elements.len() as u64) < to - from;
        match place.find(&elements.iter().map(|e| of.read(e)).collect::<Vec<_>>(), from, list.state) {
            Some(at) => {
                elements.drain(..at);
                from += at as u64;
            }
            None if from > 0 => {
                place.passed = from;
                continue;
            }
            None => {}
        }
        // A cursor needs the next elements, unless the list ends here.
        let whole = if ended { elements.len() } else { elements.len().saturating_sub(NEXT) };
        let piece = &elements[..whole.min(PIECE)];
        if piece.is_empty() && !ended {
            place.passed = from;
            continue;
        }
        let more = piece.len() < elements.len() || !ended;
        let entries: Vec<(&[u8], usize)> = piece
            .iter()
            .enumerate()
            .filter(|(_, e)| of.read(e).is_some_and(|e| of.shows(&e)))
            .map(|(at, e)| (&e[..], at))
            .collect();
        let place_behind = |count: usize| InList {
            passed: from + count as u64,
            last: elements[..count].iter().rev().find_map(|e| of.read(e)),
            next: elements[count..].iter().take(NEXT).filter_map(|e| of.read(e)).collect(),
        };
        let mut rest = entries.as_slice();
        while !rest.is_empty() && page.jobs.len() < list.limit {
            let (some, _) = rest.split_at(rest.len().min(list.limit - page.jobs.len()));
            let described =
                of.describe(&some.iter().map(|(element, _)| *element).collect::<Vec<_>>()).await?;
            page.scanned += described.len() as u64;
            let full = described.len() < some.len() || page.scanned >= MOST_DESCRIBED;
            page.jobs.extend(described.iter().flatten().cloned());
            let at = some[described.len().saturating_sub(1)].1;
            rest = &rest[described.len()..];
            if full || page.jobs.len() == list.limit {
                let end = ended && at + 1 == elements.len();
                page.cursor = (!end).then(|| place_behind(at + 1).write(list.state));
                return Ok(page);
            }
        }
        if !more {
            return Ok(page);
        }
        place = place_behind(piece.len());
    }
    page.cursor = Some(place.write(list.state));
    Ok(page)
}

/// Returns the error for a truncated reply.
fn cut_short() -> Fault {
    Fault::unreadable("describe")
}

/// The position of a cursor.
#[derive(Debug, PartialEq, Eq)]
enum ListPlace {
    InTimers(InTimers),
    InList(InList),
}

/// A position among all timers, in the form of lua/scan_timers.lua.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InTimers {
    score: String,
    side: String,
    end: Vec<u8>,
}

/// A position in a list of elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InList {
    /// Number of elements before the position.
    passed: u64,
    /// The last element before the position.
    last: Option<Element>,
    /// The next elements.
    next: Vec<Element>,
}

/// The content of an element: a job's id, and the tries with which it became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Element {
    id: JobId,
    tries: u16,
}

/// First byte of a cursor; the second is the state.
const MARK: u8 = b'r';

/// Returns the first bytes of a cursor for a state.
fn tag_of(state: JobState) -> [u8; 2] {
    [MARK, JobState::ALL.iter().position(|other| *other == state).unwrap_or_default() as u8]
}

/// Encodes a cursor.
fn cursor_of(bytes: &[u8]) -> Cursor {
    Cursor(URL_SAFE_NO_PAD.encode(bytes))
}

/// Returns the bytes after the tag of a cursor, if it is for this state.
fn bytes_of(cursor: &str, state: JobState) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    bytes.strip_prefix(&tag_of(state)).map(<[u8]>::to_vec)
}

impl InTimers {
    fn write(&self, state: JobState) -> Cursor {
        let mut bytes = tag_of(state).to_vec();
        bytes.push(self.score.len() as u8);
        bytes.extend(self.score.as_bytes());
        bytes.extend(self.side.as_bytes());
        bytes.extend(&self.end);
        cursor_of(&bytes)
    }
}

/// Size of an element in a cursor: its kind (none, or the format of the id), the id's 16 bytes, and the tries.
const ELEMENT_BYTES: usize = 19;

fn write_element(bytes: &mut Vec<u8>, element: Option<&Element>) {
    bytes.push(element.map_or(0, |element| 1 + u8::from(element.id.is_versioned())));
    bytes.extend(element.map_or([0; 16], |element| element.id.to_bytes()));
    bytes.extend(element.map_or(0, |element| element.tries).to_be_bytes());
}

fn read_element(bytes: &[u8]) -> Option<Option<Element>> {
    let (kind, rest) = bytes.split_first()?;
    let (id, tries) = rest.split_first_chunk()?;
    let tries = u16::from_be_bytes(tries.try_into().ok()?);
    match kind {
        0 => Some(None),
        1 | 2 => Some(Some(Element { id: JobId::from_bytes(*id, *kind == 2), tries })),
        _ => None,
    }
}

impl InList {
    fn write(&self, state: JobState) -> Cursor {
        let mut bytes = tag_of(state).to_vec();
        bytes.extend(self.passed.to_be_bytes());
        write_element(&mut bytes, self.last.as_ref());
        self.next.iter().for_each(|element| write_element(&mut bytes, Some(element)));
        cursor_of(&bytes)
    }

    /// Returns the index of the element where the list continues. `from` is the number of the first element.
    fn find(&self, elements: &[Option<Element>], from: u64, state: JobState) -> Option<usize> {
        if self.passed == 0 {
            return Some(0);
        }
        let find = |wanted: &Element, stood: u64| {
            let at = elements.iter().position(|other| other.as_ref() == Some(wanted))?;
            (state == JobState::Ready || from + at as u64 <= stood).then_some(at)
        };
        let behind_last = self.last.iter().filter_map(|last| find(last, self.passed - 1)).map(|at| at + 1);
        let next = (self.passed..).zip(&self.next).filter_map(|(stood, next)| find(next, stood));
        behind_last.chain(next).min()
    }
}

impl ListPlace {
    /// Parses a position that was written for this state.
    fn read(cursor: &str, state: JobState) -> Option<ListPlace> {
        let bytes = &bytes_of(cursor, state)?[..];
        if matches!(state, JobState::Delayed | JobState::Running) {
            let (length, bytes) = bytes.split_first()?;
            let (score, bytes) = bytes.split_at_checked(usize::from(*length))?;
            let (side, end) = bytes.split_first()?;
            let score =
                std::str::from_utf8(score).ok().filter(|score| score.parse().is_ok_and(f64::is_finite))?;
            let side = matches!(side, b'a' | b'b' | b'm').then(|| char::from(*side).to_string())?;
            return Some(ListPlace::InTimers(InTimers { score: score.to_owned(), side, end: end.to_vec() }));
        }
        let (passed, elements) = bytes.split_first_chunk()?;
        let passed = u64::from_be_bytes(*passed);
        let most = ELEMENT_BYTES * (1 + NEXT);
        if elements.len() % ELEMENT_BYTES != 0 || elements.len() > most || passed > i64::MAX as u64 / 2 {
            return None;
        }
        let mut elements = elements.chunks(ELEMENT_BYTES).map(read_element);
        let last = elements.next()??;
        let next = elements.map(Option::flatten).collect::<Option<Vec<_>>>()?;
        Some(ListPlace::InList(InList { passed, last, next }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn element() -> impl Strategy<Value = Element> {
        let id = |(bytes, versioned)| JobId::from_bytes(bytes, versioned);
        (any::<([u8; 16], bool)>().prop_map(id), any::<u16>()).prop_map(|(id, tries)| Element { id, tries })
    }

    proptest! {
        #[test]
        fn a_place_survives_its_cursor(
            passed in 0..u64::MAX / 4, last in prop::option::of(element()), next in prop::collection::vec(element(), 0..=NEXT),
            score in 0f64..1e10, end: [u8; 31],
        ) {
            let place = InList { passed, last, next };
            for state in [JobState::Ready, JobState::Dead] {
                let cursor = place.write(state);
                prop_assert!(cursor.0.len() <= 600, "{} characters", cursor.0.len());
                prop_assert_eq!(ListPlace::read(&cursor.0, state), Some(ListPlace::InList(place.clone())));
                prop_assert_eq!(ListPlace::read(&cursor.0, JobState::Running), None);
            }
            let place = InTimers { score: score.to_string(), side: "m".into(), end: end.to_vec() };
            let cursor = place.write(JobState::Delayed);
            prop_assert_eq!(ListPlace::read(&cursor.0, JobState::Delayed), Some(ListPlace::InTimers(place)));
            prop_assert_eq!(ListPlace::read(&cursor.0, JobState::Running), None, "of another state");
        }

        #[test]
        fn other_text_is_no_place(bytes: Vec<u8>, cut in 0usize..60) {
            let place = InList { passed: 7, last: None, next: Vec::new() }.write(JobState::Dead).0;
            let short = &place[..cut.min(place.len() - 1)];
            prop_assert_eq!(ListPlace::read(short, JobState::Dead), None);
            // Nothing panics.
            let mut all = tag_of(JobState::Delayed).to_vec();
            all.extend(bytes);
            ListPlace::read(&cursor_of(&all).0, JobState::Delayed);
        }
    }
}
