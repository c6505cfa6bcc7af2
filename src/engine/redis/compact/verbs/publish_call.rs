//! The arguments of lua/compact/publish.lua and publish_with.lua, and what the latter answers. Knows neither connections nor
//! batches.

use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::super::buckets::{INLINE, near_from};
use super::super::core::CompactCore;
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::{BUCKET_BYTES, id_at, place_of};
use super::super::steps::Usage;
use crate::clock::{Micros, Millis};
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::layout::times::{micros, ttl_millis};
use crate::engine::redis::layout::value;
use crate::engine::redis::reply::read;
use crate::engine::redis::verbs::publish::{MAX_VALUES, unreadable};
use crate::engine::{How, OnConflict, Once, Placed, Placing, Publication, Published, REMEMBERED};
use crate::error::{Result, Unreachable};
use crate::job::{JobId, JobRef, NewJob};
use crate::name::Queue;

/// What became of a call that comes alone.
pub enum Answer {
    Done(Vec<Placed>, Usage),
    Unchanged(Published),
    Taken,
    /// A value that was stored before has ended.
    Ended,
    /// It would add so much, and may not.
    Needs(Usage),
    /// A publish that is not shown yet has one of its keys.
    Busy,
    /// Its queue is spread, and was taken for a gathered one.
    Spread,
    /// What would become of it, and what it would add.
    Would(Vec<Placed>, Usage),
    /// It is not kept here any more.
    Gone,
}

/// In a text of what jobs have in common: their values were stored before.
const STAGED: u8 = 2;

/// How long a publish waits for another one that is not shown yet and has one of its keys; and between two looks.
pub const BUSY: Duration = Duration::from_secs(4);
pub const LOOK: Duration = Duration::from_millis(5);

/// What one attempt came to.
pub enum Tried {
    Published(Published),
    /// A publish that is not shown yet has one of its keys. Nothing was done.
    Busy,
    /// The partition cannot be used now, and was not waited for. Nothing was done.
    Elsewhere(Unreachable),
}

/// The value that is stored, and whether it was stored before.
pub type Stored = (Bytes, bool);

/// The values of a call. Large ones of a call that is too large for one script call are stored before.
pub fn encode(call: &Publication) -> Result<Vec<Stored>> {
    let mut values: Vec<Stored> = Vec::with_capacity(call.jobs.len());
    for Placing { job, .. } in &call.jobs {
        values.push((value::encode(&job.id, &job.body, &job.attributes)?, false));
    }
    let bytes: usize = values.iter().map(|(value, _)| value.len()).sum();
    if values.len() > 1 && bytes > MAX_VALUES {
        values.iter_mut().for_each(|(value, staged)| *staged = value.len() > INLINE);
    }
    Ok(values)
}

impl CompactCore {
    /// A call of several plain publications.
    pub fn plain_step(&self, home: Partition, calls: &[Publication], values: &[Vec<Stored>]) -> Cmd {
        let mut cmd = self.call(&self.scripts.publish, home);
        let queues = queues_of(calls);
        self.arg_queues(&mut cmd, home, &queues);
        // At most 64 jobs.
        cmd.arg(calls.iter().map(|call| call.jobs.len() as u8).collect::<Vec<u8>>());
        let replaced = calls.iter().zip(1..).filter_map(|(call, n)| Some((n, call.replaces.as_ref()?)));
        cmd.arg(replaced.clone().count());
        for (n, old) in replaced {
            cmd.arg::<usize>(n).arg(number_of(&queues, &old.queue)).arg(place_of(home, &old.id));
        }
        let now = self.now_in(home);
        let jobs = calls.iter().zip(values).flat_map(|(call, values)| call.jobs.iter().zip(values));
        let jobs: Vec<InRow<'_>> = jobs
            .map(|(Placing { job, .. }, value)| {
                let near = near_from(now, now + job.delay.as_millis() as u64);
                InRow::new(number_of(&queues, &job.queue), job, near, place_of(home, &job.id), value)
            })
            .collect();
        for row in jobs.chunk_by(|a, b| a.in_common == b.in_common) {
            cmd.arg(row[0].text(row.len())); // a row has at least one job
            for InRow { place, value: (value, staged), .. } in row {
                cmd.arg(&place[BUCKET_BYTES..]);
                if *staged {
                    cmd.arg(value.len())
                } else {
                    cmd.arg(&value[..])
                };
            }
        }
        cmd
    }

    /// A call of one publication of any kind. What is safe to repeat is remembered for the queue. The jobs that are gone lose
    /// their keys with it.
    pub fn special_step(
        &self,
        home: Partition,
        (call, queue): (&Publication, &Queue),
        gone: &[JobRef],
        values: &[Stored],
        admit: Option<Usage>,
    ) -> Cmd {
        let mut cmd = self.call(&self.scripts.publish_with, home);
        let mut queues = vec![queue];
        for of in queues_of(std::slice::from_ref(call)).into_iter().chain(gone.iter().map(|job| &job.queue)) {
            if !queues.contains(&of) {
                queues.push(of);
            }
        }
        self.arg_queues(&mut cmd, home, &queues);
        cmd.arg(1 + gone.len());
        match &call.once {
            Some(Once { key, fingerprint }) => cmd.arg(fingerprint).arg(key.as_bytes()),
            None => cmd.arg("").arg(""),
        };
        cmd.arg(REMEMBERED.as_millis() as u64);
        match admit {
            Some(room) => cmd.arg(&room),
            None => cmd.arg(&["", "", ""]),
        };
        self.arg_call(&mut cmd, home, &queues, call);
        for (placing, value) in call.jobs.iter().zip(values) {
            self.arg_job(&mut cmd, home, &queues, placing, value);
            let Some((key, conflict)) = &placing.key else {
                cmd.arg("").arg("").arg("").arg("");
                continue;
            };
            cmd.arg(key.as_str());
            match conflict {
                OnConflict::Keep => cmd.arg("keep").arg("").arg(""),
                OnConflict::Replace => cmd.arg("replace").arg("").arg(""),
                OnConflict::Fail => cmd.arg("fail").arg("").arg(""),
                OnConflict::Elsewhere(Placed { id, due_at, how }) => match how {
                    How::New => cmd.arg("replace").arg("").arg(""),
                    How::Replaced(old) => cmd.arg("replaced").arg(&raw(old)[..]).arg(""),
                    How::Duplicate => {
                        let due = due_at.map(|at| at.saturating_mul(1000).to_string());
                        cmd.arg("duplicate").arg(&raw(id)[..]).arg(due.unwrap_or_default())
                    }
                },
            };
        }
        for job in gone {
            cmd.arg(0).arg(number_of(&queues, &job.queue)).arg(place_of(home, &job.id));
        }
        cmd
    }

    /// The queues that calls name, and what is known of each.
    fn arg_queues(&self, cmd: &mut Cmd, home: Partition, queues: &[&Queue]) {
        cmd.arg(queues.len());
        queues.iter().for_each(|queue| _ = cmd.arg(keys::name(queue)));
        let modes = queues.iter().flat_map(|queue| self.spreading.mode(queue, home).to_be_bytes());
        cmd.arg(modes.collect::<Vec<u8>>());
    }

    fn arg_call(&self, cmd: &mut Cmd, home: Partition, queues: &[&Queue], call: &Publication) {
        cmd.arg(call.jobs.len());
        match &call.replaces {
            Some(old) => cmd.arg(number_of(queues, &old.queue)).arg(place_of(home, &old.id)),
            None => cmd.arg(0).arg(""),
        };
    }

    fn arg_job(&self, cmd: &mut Cmd, home: Partition, queues: &[&Queue], placing: &Placing, value: &Stored) {
        let Placing { job, at, .. } = placing;
        let now = self.now_in(home);
        let due = at.unwrap_or(now + job.delay.as_millis() as u64);
        let (value, staged) = value;
        let queue = number_of(queues, &job.queue) as u16; // of 64 jobs
        let staged_size = if *staged { value.len() as u32 } else { 0 };
        // As '>HHI6I7I6I6I4'.
        let mut packed = Vec::with_capacity(33);
        packed.extend(queue.to_be_bytes());
        packed.extend(job.tries.get().to_be_bytes());
        packed.extend(&job.ttl.map_or(0, ttl_millis).to_be_bytes()[2..]);
        packed.extend(&micros(job.delay).to_be_bytes()[1..]);
        packed.extend(&at.map_or(0, |at| at.max(1)).to_be_bytes()[2..]);
        packed.extend(&near_from(now, due).to_be_bytes()[2..]);
        packed.extend(staged_size.to_be_bytes());
        cmd.arg(packed).arg(place_of(home, &job.id)).arg(if *staged { &[][..] } else { &value[..] });
    }
}

/// A job of a plain call. Those that have all this in common, and stand behind each other, are a row.
struct InRow<'a> {
    in_common: ([u16; 2], [u64; 3], u8, [u8; BUCKET_BYTES]),
    place: Vec<u8>,
    value: &'a Stored,
}

impl<'a> InRow<'a> {
    fn new(queue: usize, job: &NewJob, near: Millis, place: Vec<u8>, value: &'a Stored) -> InRow<'a> {
        let mut bucket = [0; BUCKET_BYTES];
        bucket.copy_from_slice(&place[..BUCKET_BYTES]); // every place begins with it
        let apart = value.0.len() > INLINE;
        let where_it_is = if value.1 { STAGED } else { u8::from(apart) };
        let times = [job.ttl.map_or(0, ttl_millis), micros(job.delay), near];
        let of = [queue as u16, job.tries.get()]; // of 64 jobs
        InRow { in_common: (of, times, where_it_is, bucket), place, value }
    }

    /// What so many have in common, as '>HHHI6I7I6Bc3'.
    fn text(&self, jobs: usize) -> Vec<u8> {
        let ([queue, tries], [ttl, delay, near], where_it_is, bucket) = self.in_common;
        let mut text = Vec::with_capacity(29);
        for number in [queue, jobs as u16, tries] {
            text.extend(number.to_be_bytes());
        }
        text.extend(&ttl.to_be_bytes()[2..]);
        text.extend(&delay.to_be_bytes()[1..]);
        text.extend(&near.to_be_bytes()[2..]);
        text.push(where_it_is);
        text.extend(bucket);
        text
    }
}

/// The queues that these calls name, which are numbered from 1.
pub fn queues_of(calls: &[Publication]) -> Vec<&Queue> {
    let mut queues: Vec<&Queue> = Vec::new();
    let jobs = calls.iter().flat_map(|call| &call.jobs).map(|placing| &placing.job.queue);
    for queue in jobs.chain(calls.iter().filter_map(|call| call.replaces.as_ref()).map(|old| &old.queue)) {
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    queues
}

fn number_of(queues: &[&Queue], queue: &Queue) -> usize {
    queues.iter().position(|other| *other == queue).map_or(0, |n| n + 1)
}

/// An id of any store: whether it is versioned, and its bytes.
pub fn raw(id: &JobId) -> [u8; 17] {
    let mut raw = [0; 17];
    raw[0] = u8::from(id.is_versioned());
    raw[1..].copy_from_slice(&id.to_bytes());
    raw
}

/// What the script answers to a call that comes alone. And when each job is due, in microseconds.
pub fn read_answer(
    home: Partition,
    jobs: usize,
    reply: Value,
) -> Outcome<(Micros, Answer, Vec<Option<Micros>>)> {
    let reply: Vec<Value> = redis::from_redis_value(reply)?;
    let [now, what, rest @ ..] = &reply[..] else { return Err(unreadable()) };
    let room = |of: &[Value]| -> Outcome<Usage> {
        let [a, b, c] = of else { return Err(unreadable()) };
        Ok([read(a)?, read(b)?, read(c)?])
    };
    let placed = || {
        let first = rest.first().ok_or_else(unreadable)?;
        read_placed(home, &read::<Vec<u8>>(first)?).filter(|all| all.len() == jobs).ok_or_else(unreadable)
    };
    let mut dues = Vec::new();
    let answer = match &*read::<String>(what)? {
        "done" => {
            let all = placed()?;
            dues = all.iter().map(|(_, due)| *due).collect();
            Answer::Done(all.into_iter().map(|(placed, _)| placed).collect(), room(&rest[1..])?)
        }
        "replay" => {
            let text: Vec<u8> = read(rest.first().ok_or_else(unreadable)?)?;
            Answer::Unchanged(read_replay(home, &text).ok_or_else(unreadable)?)
        }
        "mismatch" => Answer::Unchanged(Published::Mismatch),
        "conflict" => {
            let [index, place] = rest else { return Err(unreadable()) };
            let id = id_at(home, &read::<Vec<u8>>(place)?).ok_or_else(unreadable)?;
            Answer::Unchanged(Published::Conflict { index: read(index)?, id })
        }
        "would" => {
            let all = placed()?;
            dues = all.iter().map(|(_, due)| *due).collect();
            Answer::Would(all.into_iter().map(|(placed, _)| placed).collect(), room(&rest[1..])?)
        }
        "busy" => Answer::Busy,
        "spread" => Answer::Spread,
        "gone" => Answer::Gone,
        "taken" => Answer::Taken,
        "ended" => Answer::Ended,
        "needs" => Answer::Needs(room(rest)?),
        _ => return Err(unreadable()),
    };
    Ok((read(now)?, answer, dues))
}

/// What became of jobs and when each is due, in microseconds, as [`read_placed`] reads it.
pub fn outcome_bytes(all: impl IntoIterator<Item = (Placed, Option<Micros>)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (Placed { id, how, .. }, due) in all {
        let (word, old) = match how {
            How::New => (b'n', None),
            How::Duplicate => (b'd', None),
            How::Replaced(old) => (b'r', Some(old)),
        };
        bytes.push(word);
        bytes.extend(&due.unwrap_or(0).to_be_bytes()[1..]);
        for id in [id].into_iter().chain(old) {
            let raw = raw(&id);
            bytes.push(raw.len() as u8 + 1);
            bytes.push(b'x');
            bytes.extend(raw);
        }
    }
    bytes
}

/// What became of an earlier call.
pub fn read_replay(home: Partition, bytes: &[u8]) -> Option<Published> {
    let placed = read_placed(home, bytes)?;
    Some(Published::Replay(placed.into_iter().map(|(placed, _)| placed).collect()))
}

/// What became of each job, as the script writes it.
pub fn read_placed(home: Partition, mut bytes: &[u8]) -> Option<Vec<(Placed, Option<Micros>)>> {
    fn id(home: Partition, bytes: &mut &[u8]) -> Option<JobId> {
        let (length, rest) = bytes.split_first()?;
        let (told, rest) = rest.split_at_checked(usize::from(*length))?;
        *bytes = rest;
        match told.split_first()? {
            (b'x', raw) if raw.len() == 17 => Some(JobId::from_bytes(raw[1..].try_into().ok()?, raw[0] == 1)),
            _ => id_at(home, told),
        }
    }
    let mut all = Vec::new();
    while let Some((how, rest)) = bytes.split_first() {
        let (due, rest) = rest.split_first_chunk::<7>()?;
        let due = u64::from_be_bytes([0, due[0], due[1], due[2], due[3], due[4], due[5], due[6]]);
        bytes = rest;
        let of = id(home, &mut bytes)?;
        let how = match how {
            b'n' => How::New,
            b'd' => How::Duplicate,
            b'r' => How::Replaced(id(home, &mut bytes)?),
            _ => return None,
        };
        let due = (due > 0).then_some(due);
        all.push((Placed { id: of, due_at: due.map(|due| due / 1000), how }, due));
    }
    Some(all)
}
