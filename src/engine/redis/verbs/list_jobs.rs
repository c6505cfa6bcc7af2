//! Lists of jobs. Ready and dead jobs are in lists of their queue; list_timers.rs reads delayed and running ones. Changes
//! nothing.

use bytes::Bytes;
use redis::Value;

use crate::clock::{Micros, Millis};
use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::{key_of, read, reason_of};
use crate::engine::redis::verbs::list_places::{Element, InList, InTimers, ListPlace, NEXT};
use crate::engine::{JobList, JobPage};
use crate::error::Result;
use crate::job::{Attributes, JobId, JobState, JobView};
use crate::name::Queue;

/// Entries read by one command or script.
pub const PIECE: usize = 500;
/// Maximum ranges of a list read per call.
const MAX_PIECES: usize = 10;
/// Maximum jobs of the queue read per call, including deleted ones: each takes Redis about 2.5 µs.
pub const MOST_DESCRIBED: u64 = 1000;
/// Distance from the cursor's position within which an element is searched for, in each direction.
const AROUND: u64 = 1000;

/// An element of a list, or a timer, that may be shown.
pub struct ListElement {
    pub id: JobId,
    pub tries_left: u16,
    pub due_at: Option<Millis>,
}

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
    pub async fn describe<'a>(
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
pub fn shown(
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
