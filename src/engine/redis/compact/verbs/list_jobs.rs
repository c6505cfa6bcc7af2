//! Lists of jobs. Ready and dead ones stand in lists of their queue, which are read as in lmstfy's layout. Delayed ones of
//! all queues are among the timers when they are near, and in far buckets when they are not: both are read in pieces, and
//! merged by when jobs are due. Far buckets are read in groups of those that begin to be near at the same time; their
//! windows may overlap, and then jobs of one stand before earlier ones of the next. Changes nothing.
//!
//! While a list goes on, buckets become near, and their jobs get timers. Those that were shown get them before the place
//! at which the list goes on among the timers, and the others behind it. So a place among far buckets may be forgotten as
//! soon as it is known that others are far now.

use std::collections::VecDeque;

use redis::Value;

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::id_at;
use crate::clock::{Micros, Millis};
use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::reply::read;
use crate::engine::redis::verbs::list_jobs::{
    Element, InList, JobElements, ListElement, ListPlace, bytes_of, cursor_of, list_elements, shown, tag_of,
};
use crate::engine::{Cursor, JobList, JobPage};
use crate::error::Result;
use crate::job::{JobId, JobState, JobView};
use crate::name::Queue;

/// How many timers one script call looks at, how many buckets, and how many such calls one page makes.
const PIECE: usize = 500;
const BUCKETS: usize = 16;
const MAX_PIECES: usize = 6;

/// A job that may be shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    due: Micros,
    seq: i64,
    place: Vec<u8>,
}

/// Where a list of delayed or running jobs goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Spot {
    /// Among the timers, behind this score and member.
    score: Micros,
    member: Vec<u8>,
    /// `None`: nothing more is far.
    far: Option<Far>,
}

/// A place among far buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Far {
    /// From when on buckets were far when the place was made.
    horizon: Millis,
    /// From when on the group's jobs are near, the bucket before its first one, and its last one if it is known.
    from: Millis,
    behind: Vec<u8>,
    last: Vec<u8>,
    /// The last job that was shown of the group.
    shown: Option<Listed>,
    /// Whether this call has read the group. Not in a cursor.
    is_read: bool,
}

impl Listed {
    /// Stands behind the member that the job has, or would have, among timers, and before that of the next job.
    fn behind_member(&self) -> Vec<u8> {
        let mut member = match u32::try_from(self.seq) {
            Ok(seq) => [b"s", &seq.to_be_bytes()[..]].concat(),
            Err(_) => b"d".to_vec(),
        };
        member.extend(&self.place);
        member.extend([0xff; 5]);
        member
    }
}

/// What one call has read and not shown yet.
#[derive(Default)]
struct Merge {
    spot: Spot,
    near: VecDeque<(Listed, Vec<u8>)>,
    /// How far the timers were looked through; `None`: to their end.
    looked: Option<(Micros, Vec<u8>)>,
    far: VecDeque<Listed>,
}

/// What comes next.
enum Next {
    Show(Listed),
    ReadTimers,
    ReadFar,
    End,
}

impl Merge {
    fn next(&mut self) -> Next {
        let looked = |due: Micros| self.looked.as_ref().is_none_or(|(score, _)| *score > due);
        // What is far and was not read is due then at the earliest.
        let unread = self.spot.far.as_ref().map_or(Micros::MAX, |far| far.from * 1000);
        let near_first = match (self.near.front(), self.far.front()) {
            (Some((near, _)), Some(far)) => near <= far,
            (Some((near, _)), None) if near.due < unread => true,
            (None, Some(far)) if looked(far.due) => false,
            (None, None) if self.looked.is_none() && self.spot.far.is_none() => return Next::End,
            (None, _) if !looked(unread) => return Next::ReadTimers,
            (None, Some(_)) => return Next::ReadTimers,
            (_, None) => return Next::ReadFar,
        };
        if near_first && let Some((job, member)) = self.near.pop_front() {
            (self.spot.score, self.spot.member) = (job.due, member);
            return Next::Show(job);
        }
        let Some(job) = self.far.pop_front() else { return Next::End };
        (self.spot.score, self.spot.member) = (job.due, job.behind_member());
        if let Some(far) = &mut self.spot.far {
            far.shown = Some(job.clone());
        }
        Next::Show(job)
    }

    /// Nothing was found: what was looked through need not be looked through again, up to what is far.
    fn pass(&mut self) {
        let unread = self.spot.far.as_ref().map_or(Micros::MAX, |far| far.from * 1000);
        let most = self.far.front().map_or(unread, |far| far.due);
        if self.near.is_empty()
            && let Some((score, member)) = self.looked.take_if(|(score, _)| *score < most)
            && (score, &member) > (self.spot.score, &self.spot.member)
        {
            (self.spot.score, self.spot.member) = (score, member);
        }
    }
}

impl CompactCore {
    /// A part of a queue's jobs in one state that lie in this partition.
    pub async fn list_in(&self, home: Partition, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        if matches!(list.state, JobState::Ready | JobState::Dead) {
            let place = match &list.cursor {
                None => InList::default(),
                Some(cursor) => match ListPlace::read(&cursor.0, list.state) {
                    Some(ListPlace::InList(place)) => place,
                    _ => return Ok(None),
                },
            };
            let of = Elements { core: self, home, queue, list: &list };
            return Ok(Some(list_elements(&of, &list, place).await?));
        }
        let spot = match &list.cursor {
            None => Spot { far: (list.state == JobState::Delayed).then(Far::default), ..Spot::default() },
            Some(cursor) => match Spot::read(&cursor.0, list.state) {
                Some(spot) => spot,
                None => return Ok(None),
            },
        };
        Ok(Some(self.list_timers(home, queue, &list, spot).await?))
    }

    /// Delayed or running jobs.
    async fn list_timers(
        &self,
        home: Partition,
        queue: &Queue,
        list: &JobList,
        spot: Spot,
    ) -> Result<JobPage> {
        let mut page = JobPage::default();
        let looked = Some((spot.score, spot.member.clone()));
        let mut merge = Merge { spot, looked, ..Merge::default() };
        let mut pieces = 0;
        let mut found: Vec<(Listed, Spot)> = Vec::new();
        loop {
            let before = merge.spot.clone();
            let next = merge.next();
            let room = list.limit - page.jobs.len();
            // Behind a full page the list goes on until it is known whether another job of the queue comes.
            if room == 0 && matches!(next, Next::Show(_)) {
                page.cursor = Some(before.write(list.state));
                return Ok(page);
            }
            let mut flush = true;
            if let Next::Show(job) = &next {
                found.push((job.clone(), merge.spot.clone()));
                flush = found.len() == room;
            }
            if flush && !found.is_empty() {
                let some: Vec<&Listed> = found.iter().map(|(job, _)| job).collect();
                let described = self.describe(home, queue, list, &some).await?;
                page.scanned += described.len() as u64;
                page.jobs.extend(described.iter().flatten().cloned());
                // What is large ends a page early.
                if described.len() < found.len() {
                    page.cursor = Some(found[described.len().max(1) - 1].1.write(list.state));
                    return Ok(page);
                }
                found.clear();
            }
            match next {
                Next::Show(_) => continue,
                Next::End => return Ok(page),
                _ if pieces == MAX_PIECES => {
                    merge.pass();
                    page.cursor = Some(merge.spot.write(list.state));
                    return Ok(page);
                }
                Next::ReadTimers => self.read_timers(home, queue, list.state, &mut merge).await?,
                Next::ReadFar => self.read_far(home, queue, &mut merge).await?,
            }
            pieces += 1;
        }
    }

    /// The timers of the queue in the next piece.
    async fn read_timers(
        &self,
        home: Partition,
        queue: &Queue,
        state: JobState,
        merge: &mut Merge,
    ) -> Result<()> {
        let Some((score, member)) = &merge.looked else { return Ok(()) };
        let begins = *score == 0 && member.is_empty();
        let mut cmd = self.call(&self.scripts.list_timers, home);
        cmd.arg(keys::name(queue)).arg(u8::from(state == JobState::Running));
        cmd.arg(if begins { String::new() } else { score.to_string() }).arg(&member[..]).arg(PIECE);
        let reply: Vec<Value> = self.ask(home, Lane::Other, &self.scripts.list_timers, cmd).await?;
        let [horizon, score, member, cells @ ..] = &reply[..] else {
            return Err(Fault::unreadable("list_timers").into());
        };
        let horizon: Millis = read(horizon)?;
        for cell in cells.chunks_exact(3) {
            let (due, place, member): (Micros, Vec<u8>, Vec<u8>) =
                (read(&cell[0])?, read(&cell[1])?, read(&cell[2])?);
            // Members of one instant say in which order their jobs came.
            let seq = member.strip_prefix(b"s").and_then(|rest| rest.first_chunk::<4>());
            let seq = seq.map_or(-1, |seq| u32::from_be_bytes(*seq).into());
            merge.near.push_back((Listed { due, seq, place }, member));
        }
        let score: String = read(score)?;
        merge.looked = if score.is_empty() {
            None
        } else {
            Some((score.parse().map_err(|_| Fault::unreadable("list_timers"))?, read(member)?))
        };
        if let Some(far) = &mut merge.spot.far
            && far.horizon == 0
        {
            *far = Far { horizon, from: horizon, ..Far::default() };
        }
        Ok(())
    }

    /// The jobs of the queue in the next group of far buckets.
    async fn read_far(&self, home: Partition, queue: &Queue, merge: &mut Merge) -> Result<()> {
        let Some(far) = merge.spot.far.clone() else { return Ok(()) };
        let mut cmd = self.call(&self.scripts.list_far, home);
        // The group of a cursor is read again; else it is the next one's turn.
        let (behind, last) = if far.is_read { (&far.last, &Vec::new()) } else { (&far.behind, &far.last) };
        cmd.arg(keys::name(queue)).arg(far.from).arg(&behind[..]).arg(&last[..]).arg(BUCKETS);
        let (horizon, from, last, cells): (Millis, Millis, Vec<u8>, Vec<Value>) =
            self.ask(home, Lane::Other, &self.scripts.list_far, cmd).await?;
        if horizon > far.horizon {
            // Some buckets are near by now: their jobs are among the timers, of which more were read perhaps.
            let looked = Some((merge.spot.score, merge.spot.member.clone()));
            let far = match far {
                // They were shown.
                far if far.from >= horizon => Far { horizon, is_read: false, ..far },
                _ => Far { horizon, from: horizon, ..Far::default() },
            };
            let spot = Spot { far: Some(far), ..merge.spot.clone() };
            *merge = Merge { spot, looked, ..Merge::default() };
            return Ok(());
        }
        if last.is_empty() {
            merge.spot.far = None;
            return Ok(());
        }
        let again = far.shown.filter(|_| !far.is_read);
        let behind = if from == far.from { behind.clone() } else { Vec::new() };
        let mut jobs = Vec::new();
        for cell in cells.chunks_exact(3) {
            let job = Listed { due: read(&cell[0])?, seq: read(&cell[1])?, place: read(&cell[2])? };
            if again.as_ref().is_none_or(|shown| job > *shown) {
                jobs.push(job);
            }
        }
        jobs.sort_unstable();
        merge.spot.far = Some(Far { horizon, from, behind, last, shown: again, is_read: true });
        merge.far = jobs.into();
        Ok(())
    }

    /// What lists show of these jobs, in order; `None` for one that is gone, or not so any more. Fewer than were asked for
    /// when their values are large, and at least one.
    async fn describe(
        &self,
        home: Partition,
        queue: &Queue,
        list: &JobList,
        jobs: &[&Listed],
    ) -> Result<Vec<Option<JobView>>> {
        let mut cmd = self.call(&self.scripts.describe, home);
        cmd.arg(keys::name(queue)).arg(u8::from(list.bodies));
        for job in jobs {
            cmd.arg(&job.place[..]).arg(job.due);
            match list.state {
                JobState::Delayed => cmd.arg(0),
                JobState::Running => cmd.arg(1),
                JobState::Dead => cmd.arg(2),
                JobState::Ready => cmd.arg(""),
            };
        }
        let reply: Vec<Value> = self.ask(home, Lane::Other, &self.scripts.describe, cmd).await?;
        let cut_short = || Fault::unreadable("describe");
        let (now, cells) = reply.split_first().ok_or_else(cut_short)?;
        let now: u64 = read(now)?;
        if cells.is_empty() && !jobs.is_empty() {
            return Err(cut_short().into());
        }
        let mut views = Vec::with_capacity(jobs.len());
        for (job, [tries, ttl, key, reason, size, value]) in jobs.iter().zip(cells.as_chunks().0) {
            let (Ok(tries), Some(id)) = (u16::try_from(read::<i64>(tries)?), id_at(home, &job.place)) else {
                views.push(None);
                continue;
            };
            let tries_left = if list.state == JobState::Dead { 0 } else { tries };
            let element = ListElement { id, tries_left, due_at: Some(job.due / 1000) };
            let value = if list.bodies || id.is_versioned() { value } else { &Value::Nil };
            let said = [size, key, reason, value];
            views.push(shown(&self.common.pool, (queue, list), &element, (now, read(ttl)?), said)?);
        }
        Ok(views)
    }

    /// The first of a queue's dead jobs in a partition, and when it died.
    pub async fn first_dead(&self, home: Partition, queue: &Queue) -> Result<Option<(Millis, JobId)>> {
        let list = JobList { state: JobState::Dead, limit: 1, cursor: None, bodies: false };
        let of = Elements { core: self, home, queue, list: &list };
        let page = list_elements(&of, &list, InList::default()).await?;
        Ok(page.jobs.first().map(|view| (view.due_at.unwrap_or(0), view.id)))
    }
}

/// The ready list or the dead letter of a queue. An entry is seven bytes of microseconds, and a place.
struct Elements<'a> {
    core: &'a CompactCore,
    home: Partition,
    queue: &'a Queue,
    list: &'a JobList,
}

/// What an entry says.
fn read_entry(entry: &[u8]) -> Option<(Micros, &[u8])> {
    let (time, place) = entry.split_first_chunk::<7>()?;
    Some((time.iter().fold(0, |time, byte| time << 8 | u64::from(*byte)), place))
}

impl JobElements for Elements<'_> {
    async fn elements(&self, from: u64, to: u64) -> Result<Vec<Vec<u8>>> {
        let Elements { core, home, queue, list } = self;
        let base = core.partitions.base(*home);
        let key =
            if list.state == JobState::Dead { keys::dead(base, queue) } else { keys::ready(base, queue) };
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(key).arg(from).arg(to as i64 - 1);
        Ok(core.query(*home, &cmd).await?)
    }

    fn read(&self, element: &[u8]) -> Option<Element> {
        let (time, place) = read_entry(element)?;
        Some(Element { id: id_at(self.home, place)?, tries: time as u16 })
    }

    async fn describe(&self, elements: &[&[u8]]) -> Result<Vec<Option<JobView>>> {
        let Elements { core, home, queue, list } = self;
        let jobs = elements.iter().filter_map(|element| read_entry(element));
        let jobs = jobs.map(|(due, place)| Listed { due, seq: 0, place: place.to_vec() });
        let jobs: Vec<Listed> = jobs.collect();
        core.describe(*home, queue, list, &jobs.iter().collect::<Vec<_>>()).await
    }
}

/// A cursor of this layout begins so, and then says of which state it is.
const MARK: u8 = b'c';

fn put(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.push(text.len() as u8); // members and places are short
    bytes.extend(text);
}

fn take(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let (length, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*length))?;
    *bytes = rest;
    Some(text.to_vec())
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_be_bytes(*number)).filter(|number| *number < 1 << 53)
}

impl Far {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.horizon.to_be_bytes());
        bytes.extend(self.from.to_be_bytes());
        put(bytes, &self.behind);
        put(bytes, &self.last);
        if let Some(Listed { due, seq, place }) = &self.shown {
            bytes.extend(due.to_be_bytes());
            bytes.extend(((seq + 1) as u64).to_be_bytes());
            put(bytes, place);
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Far> {
        let (horizon, from) = (take_number(bytes)?, take_number(bytes)?);
        let (behind, last) = (take(bytes)?, take(bytes)?);
        let shown = if bytes.is_empty() {
            None
        } else {
            let (due, seq) = (take_number(bytes)?, take_number(bytes)? as i64 - 1);
            Some(Listed { due, seq, place: take(bytes)?.into_iter().collect() })
        };
        let good = |bucket: &[u8]| bucket.is_empty() || bucket.len() == 3;
        let far = Far { horizon, from, behind, last, shown, is_read: false };
        (good(&far.behind) && good(&far.last)).then_some(far)
    }
}

impl Spot {
    fn write(&self, state: JobState) -> Cursor {
        let mut bytes = tag_of(MARK, state).to_vec();
        bytes.extend(self.score.to_be_bytes());
        put(&mut bytes, &self.member);
        if let Some(far) = &self.far {
            far.write(&mut bytes);
        }
        cursor_of(&bytes)
    }

    fn read(cursor: &str, state: JobState) -> Option<Spot> {
        let bytes = &mut &bytes_of(cursor, MARK, state)?[..];
        let (score, member) = (take_number(bytes)?, take(bytes)?);
        let far = if bytes.is_empty() { None } else { Some(Far::read(bytes)?) };
        let fits = bytes.is_empty() && (far.is_none() || state == JobState::Delayed);
        fits.then_some(Spot { score, member, far })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn far() -> impl Strategy<Value = Far> {
        let bucket = || prop_oneof![Just(Vec::new()), prop::collection::vec(any::<u8>(), 3)];
        let place = prop::collection::vec(any::<u8>(), 11..=17);
        let shown = prop::option::of((0..1u64 << 53, -1i64..1 << 32, place));
        (0..1u64 << 53, 0..1u64 << 53, bucket(), bucket(), shown).prop_map(
            |(horizon, from, behind, last, shown)| {
                let shown = shown.map(|(due, seq, place)| Listed { due, seq, place });
                Far { horizon, from, behind, last, shown, is_read: false }
            },
        )
    }

    proptest! {
        #[test]
        fn a_place_survives_its_cursor(
            score in 0..1u64 << 53, member in prop::collection::vec(any::<u8>(), 0..40), far in prop::option::of(far()),
        ) {
            let is_far = far.is_some();
            let spot = Spot { score, member, far };
            let cursor = spot.write(JobState::Delayed);
            prop_assert!(cursor.0.len() <= 600, "{} characters", cursor.0.len());
            prop_assert_eq!(Spot::read(&cursor.0, JobState::Delayed), Some(spot));
            prop_assert_eq!(Spot::read(&cursor.0, JobState::Running), None);
            prop_assert!(!is_far || cursor.0.len() > 16);
        }

        #[test]
        fn other_text_is_no_place(bytes: Vec<u8>) {
            let mut all = tag_of(MARK, JobState::Delayed).to_vec();
            all.extend(bytes);
            Spot::read(&cursor_of(&all).0, JobState::Delayed);
        }
    }
}
