//! Lists of a queue's delayed and running jobs. They are among all timers of the partition, so that a range of
//! timers may contain few jobs of the queue, or none. Packed jobs are listed between them, where they will be once they
//! are unpacked. Changes nothing.

use std::iter::Peekable;
use std::vec::IntoIter;

use redis::Value;

use super::list_jobs::{ListElement, MOST_DESCRIBED, PIECE, shown};
use super::list_places::InTimers;
use super::packed::BucketPlace;
use crate::clock::Micros;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::packed::{self, PackedJob};
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::read;
use crate::engine::{JobList, JobPage};
use crate::error::Result;
use crate::job::{JobState, JobView};
use crate::name::Queue;

/// Maximum ranges of timers read per call: each takes Redis about 0.1 ms.
const TIMER_PIECES: usize = 4;
/// Buckets read by one command. Their windows overlap, so a page usually needs several.
const BUCKETS: usize = 8;
/// Maximum buckets read per call, beside those whose windows contain the cursor; and ranges of their names.
const MAX_BUCKETS: usize = 64;
const NAME_PIECES: usize = 20;

/// The reply of lua/scan_timers.lua.
type TimerPiece = (String, String, Vec<u8>, Vec<Value>);

/// A job to be listed, and its position.
struct Entry {
    place: InTimers,
    element: ListElement,
    packed: Option<PackedJob>,
}

impl Entry {
    fn of_packed(job: PackedJob) -> Entry {
        let place = InTimers::of_timer(score_of(job.due), keys::element(job.tries, &job.id));
        let element = ListElement { id: job.id, tries_left: job.tries, due_at: Some(job.due / 1000) };
        Entry { place, element, packed: Some(job) }
    }
}

/// Returns the score of a due time, as lua/clock.lua writes it.
fn score_of(due: Micros) -> String {
    let (second, fraction) = (due / 1_000_000, due % 1_000_000 * 10);
    let whole = if due < 1_000_000 << 32 { 5 } else { 20 };
    format!("{second}.{:07}", if fraction == 0 { whole } else { fraction })
}

/// The first packed jobs behind a position, in order.
#[derive(Default)]
struct PackedEntries {
    entries: Vec<Entry>,
    /// From here on there may be others; `None`: there are none.
    known_to: Option<InTimers>,
}

impl PackedEntries {
    /// Whether there are this many entries before a score.
    fn has(&self, count: usize, before: &str) -> bool {
        let before = InTimers::before(before).at();
        self.entries.iter().filter(|entry| entry.place.at() < before).count() >= count
    }

    /// Drops the entries from a score on, since there may be others.
    fn cut(mut self, score: &str) -> PackedEntries {
        let known_to = InTimers::before(score);
        self.entries.retain(|entry| entry.place.compare(&known_to).is_lt());
        PackedEntries { known_to: Some(known_to), ..self.sorted() }
    }

    fn sorted(mut self) -> PackedEntries {
        self.entries.sort_by(|a, b| a.place.compare(&b.place));
        self
    }
}

impl PartitionCore {
    /// Returns a page of delayed or running jobs.
    pub async fn list_timers(&self, queue: &Queue, list: &JobList, mut place: InTimers) -> Result<JobPage> {
        let mut page = JobPage::default();
        let prefix = keys::member_prefix(queue);
        // Read first, so that a job that is unpacked meanwhile is not missed. One more, to see whether the page is the
        // last.
        let PackedEntries { entries, known_to } = match list.state {
            JobState::Delayed => self.packed_behind(queue, &place, list.limit + 1).await?,
            _ => PackedEntries::default(),
        };
        let mut packed = entries.into_iter().peekable();
        // After a full page the scan continues until it finds another job of the queue or the end, so that cursors do
        // not reveal how many timers other queues have.
        let mut full = false;
        for _ in 0..TIMER_PIECES {
            let (score, side, end, cells) = self.scan_timers(&prefix, &place).await?;
            let mut reach = (!score.is_empty()).then_some(InTimers { score, side, end });
            let mut entries = entries_of(&cells, list.state)?;
            let is_cut =
                known_to.as_ref().is_some_and(|to| reach.as_ref().is_none_or(|r| r.compare(to).is_gt()));
            if is_cut {
                reach = known_to.clone();
            }
            merge(&mut entries, &mut packed, reach.as_ref());
            let mut rest = entries.as_slice();
            while !rest.is_empty() {
                if full {
                    page.cursor = Some(place.write(list.state));
                    return Ok(page);
                }
                let described = self.describe_some(queue, list, rest, list.limit - page.jobs.len()).await?;
                let (jobs, is_short) = described;
                page.scanned += jobs.len() as u64;
                page.jobs.extend(jobs.iter().flatten().cloned());
                // The page reached its limit of jobs, of bytes, or of jobs read.
                full = is_short || page.jobs.len() == list.limit || page.scanned >= MOST_DESCRIBED;
                place = rest[jobs.len().saturating_sub(1)].place.clone();
                rest = &rest[jobs.len()..];
            }
            let Some(reach) = reach else { return Ok(page) };
            place = reach;
            if is_cut {
                break;
            }
        }
        page.cursor = Some(place.write(list.state));
        Ok(page)
    }

    /// Returns the listed fields of the first of these jobs: up to `most` that are packed, or that are not. Also returns
    /// whether there were fewer because their values are large.
    async fn describe_some(
        &self,
        queue: &Queue,
        list: &JobList,
        entries: &[Entry],
        most: usize,
    ) -> Result<(Vec<Option<JobView>>, bool)> {
        let is_packed = entries.first().is_some_and(|first| first.packed.is_some());
        let run = entries.iter().take(most).take_while(|entry| entry.packed.is_some() == is_packed);
        if !is_packed {
            let elements: Vec<&ListElement> = run.map(|entry| &entry.element).collect();
            let described = self.describe(queue, list, elements.iter().copied()).await?;
            let is_short = described.len() < elements.len();
            return Ok((described, is_short));
        }
        let (now, none) = (self.now_micros(), Value::Nil);
        let views = run.map(|Entry { element, packed, .. }| {
            let Some((job, ttl)) = packed.as_ref().and_then(|job| Some((job, job.pttl(now)?))) else {
                return Ok(None);
            };
            let stored = Value::BulkString(job.value.to_vec());
            shown(&self.common.pool, (queue, list), element, (now, ttl), [&none, &none, &none, &stored])
        });
        Ok((views.collect::<Result<_>>()?, false))
    }

    /// Returns the packed jobs of a queue behind a position: at least `want`, unless it reads too much before or there
    /// are no more.
    async fn packed_behind(&self, queue: &Queue, after: &InTimers, want: usize) -> Result<PackedEntries> {
        let mut found = PackedEntries::default();
        if !self.query::<bool>(&redis::Cmd::exists(&self.keys.buckets)).await? {
            return Ok(found);
        }
        // A bucket with a job behind the position may begin before it.
        let lowest = after.at() - packed::longest_window().as_secs_f64();
        let mut next = Some(BucketPlace::default());
        if lowest > 0.0 {
            next = Some((lowest.to_string(), 0));
        }
        let (prefix, mut pieces, mut buckets) = (packed::bucket_prefix(queue), 0, 0);
        while let Some(from) = next {
            if pieces >= NAME_PIECES && InTimers::before(&from.0).at() > after.at()
                || found.has(want, &from.0)
            {
                return Ok(found.cut(&from.0));
            }
            pieces += 1;
            let (more, names) = self.scan_packed(&prefix, &from).await?;
            next = more;
            for some in names.chunks(BUCKETS) {
                let first = &some[0].1;
                let is_behind = InTimers::before(first).at() > after.at();
                if is_behind && (buckets >= MAX_BUCKETS || found.has(want, first)) {
                    return Ok(found.cut(first));
                }
                buckets += if is_behind { some.len() } else { 0 };
                let jobs = self.read_buckets(some).await?.into_iter().map(Entry::of_packed);
                found.entries.extend(jobs.filter(|entry| entry.place.compare(after).is_gt()));
            }
        }
        Ok(found.sorted())
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
        if self.has_packed(queue).await? {
            return Ok(true);
        }
        let (prefix, mut place) = (keys::member_prefix(queue), InTimers::default());
        loop {
            let (score, side, end, cells) = self.scan_timers(&prefix, &place).await?;
            if !cells.is_empty() || score.is_empty() {
                return Ok(!cells.is_empty());
            }
            place = InTimers { score, side, end };
        }
    }
}

/// Returns the jobs of a range of timers that are in this state.
fn entries_of(cells: &[Value], state: JobState) -> Outcome<Vec<Entry>> {
    let mut entries = Vec::new();
    for [score, end] in cells.as_chunks().0 {
        let (score, end): (String, Vec<u8>) = (read(score)?, read(end)?);
        let (Some(id), Some(tries_left)) = (keys::id_of_element(&end), keys::tries_of_element(&end)) else {
            continue;
        };
        let (due, runs) = keys::due_of_score(score.parse().unwrap_or_default(), &id);
        if runs == (state == JobState::Running) {
            let element = ListElement { id, tries_left, due_at: Some(due / 1000) };
            entries.push(Entry { place: InTimers::of_timer(score, end), element, packed: None });
        }
    }
    Ok(entries)
}

/// Adds the packed jobs up to a position, or all, to the timers of a range, and drops timers behind it. A job that was
/// unpacked between the two reads occurs once.
fn merge(entries: &mut Vec<Entry>, packed: &mut Peekable<IntoIter<Entry>>, reach: Option<&InTimers>) {
    let is_in_reach = |entry: &Entry| reach.is_none_or(|reach| entry.place.compare(reach).is_le());
    entries.retain(is_in_reach);
    while let Some(entry) = packed.next_if(is_in_reach) {
        entries.push(entry);
    }
    entries.sort_by(|a, b| a.place.compare(&b.place));
    entries.dedup_by_key(|entry| entry.element.id);
}
