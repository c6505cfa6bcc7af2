//! The calls of the two publish scripts, and their replies. Sends nothing.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use crate::clock::Micros;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::fields::Fields;
use crate::engine::redis::layout::script_call::ScriptCall;
use crate::engine::redis::layout::scripts::Script;
use crate::engine::redis::layout::times::{micros, ttl_millis};
use crate::engine::redis::layout::{keys, packed, value};
use crate::engine::redis::reply::{id_taken, over_quota, read};
use crate::engine::{How, OnConflict, Placed, Placing, Publication, Published};
use crate::error::{Error, Result};
use crate::job::{JobId, JobRef, NewJob};
use crate::name::Queue;

/// The outcome of a job, and its due time in microseconds.
pub type Stored = (Placed, Option<Micros>);

/// Time that a packed job lives at least once it is due.
const AT_LEAST: Duration = Duration::from_secs(1);

/// A script call, and the data needed to read its reply.
pub struct PublishStep {
    pub call: ScriptCall,
    /// The queues whose names it records.
    pub new: Vec<Queue>,
    /// For plain publishes, per job in order: its id, and its delay if it is delayed. `None` for a publish that is not
    /// plain.
    pub plain: Option<Vec<(JobId, Option<Micros>)>>,
}

/// The outcome of the publications of one script call.
pub enum PublishOutcome {
    /// All but the refused publications are stored. `jobs` has every job of all publications, unless the only one was
    /// refused. `gone` are the timers of replaced jobs, for [`PartitionCore::count_gone`].
    Stored { refused: HashMap<usize, Error>, jobs: Vec<Stored>, gone: Vec<Value> },
    /// The result of the only publication. Nothing has changed.
    Unchanged(Published),
    /// A key has the wrong type, so nothing was stored.
    WrongType,
    /// Jobs of the queue of this job that a destroy has set aside must be deleted first.
    SetAside(usize),
}

/// Returns the jobs of these calls, in order.
pub fn jobs_of(calls: &[Publication]) -> impl Iterator<Item = &NewJob> {
    calls.iter().flat_map(|call| &call.jobs).map(|placing| &placing.job)
}

impl PartitionCore {
    /// Returns the call of lua/publish.lua. Staged values are not sent again, here and in `keyed_step`.
    pub fn plain_step(&self, calls: &[Publication], staged: bool) -> Result<PublishStep> {
        let (lists, list_of) = lists_of(calls);
        let new = self.new_queues(&lists);
        let replaced = || calls.iter().enumerate().filter_map(|(i, call)| Some((i, call.replaces.as_ref()?)));
        let mut cmd = self.begin(&self.scripts.publish, &lists, calls, &new);
        cmd.arg(lists.len()).arg(list_of.len()).arg(replaced().count());
        let packable = jobs_of(calls).filter(|job| packed::may_be_packed(&job.id)).count();
        cmd.arg(u8::from(staged) + if packable > 0 { 2 } else { 0 });
        let call_of = calls.iter().enumerate().flat_map(|(i, call)| call.jobs.iter().map(move |_| i));
        let (mut in_order, mut plain) = (InOrder::default(), Vec::with_capacity(list_of.len()));
        for ((job, list), call) in jobs_of(calls).zip(list_of).zip(call_of) {
            let (tries, ttl) = (job.tries.get(), job.ttl.map_or(0, ttl_millis));
            let mut due_after = None;
            if job.delay.is_zero() {
                cmd.arg(call).arg(list).arg(ttl).arg(0).arg(keys::element(tries, &job.id));
            } else {
                let member = keys::member(&job.queue, tries, &job.id);
                let delay = micros(job.delay) + in_order.later(list, &member);
                cmd.arg(call).arg(0).arg(ttl).arg(delay).arg(member);
                due_after = Some(delay);
            }
            plain.push((job.id, due_after));
            let value =
                if staged { Bytes::new() } else { value::encode(&job.id, &job.body, &job.attributes)? };
            cmd.arg(&value[..]);
        }
        for (call, old) in replaced() {
            cmd.arg(call).arg(self.known_timer(old));
        }
        for queue in &new {
            cmd.arg(queue.namespace.as_str()).arg(queue.name.as_str());
        }
        if packable > 0 {
            cmd.key(&self.keys.buckets);
        }
        for (job, number) in jobs_of(calls).zip(1..).filter(|(job, _)| packed::may_be_packed(&job.id)) {
            cmd.arg(number).arg(packed::bucket(&job.queue, &job.id)).arg(&packed::field(&job.id)[..]);
            cmd.arg(job.tries.get());
            match !staged && self.packs_job(job)? {
                true => cmd.arg(job.id.first_due() * 1000),
                false => cmd.arg(""),
            };
        }
        if packable > 0 {
            cmd.arg(packable);
        }
        Ok(PublishStep { call: cmd, new, plain: Some(plain) })
    }

    /// Whether to pack a job whose id allows it.
    fn packs_job(&self, job: &NewJob) -> Result<bool> {
        let lives = job.ttl.is_none_or(|ttl| ttl >= job.delay + AT_LEAST);
        let fits = || Ok(value::encode(&job.id, &job.body, &job.attributes)?.len() <= packed::MAX_VALUE);
        if self.packs(job.delay) && lives && job.body.len() <= packed::MAX_VALUE { fits() } else { Ok(false) }
    }

    /// Returns the call of lua/publish_with.lua.
    pub fn keyed_step(&self, call: &Publication, staged: bool) -> Result<PublishStep> {
        let calls = std::slice::from_ref(call);
        let (lists, list_of) = lists_of(calls);
        let new = self.new_queues(&lists);
        let once = call.once.as_ref().zip(call.jobs.first());
        let mut cmd = self.begin(&self.scripts.publish_with, &lists, calls, &new);
        cmd.key(&self.keys.with_details);
        let mut args = Fields::default();
        args.number("forever", value::FOREVER);
        if staged {
            args.number("staged", 1);
        }
        if let Some(old) = &call.replaces {
            args.text("replaced", self.known_timer(old));
        }
        if let Some((once, first)) = once {
            cmd.key(self.keys.once(&first.job.queue, &once.key));
            let remembered = once.kind.remembered().as_millis() as u64;
            args.text("fingerprint", once.fingerprint).number("remembered", remembered);
        }
        let list = |queue: &&Queue| {
            let mut list = Fields::default();
            list.text("namespace", queue.namespace.as_str()).text("name", queue.name.as_str());
            list.text("prefix", keys::member_prefix(queue));
            if new.contains(queue) {
                list.number("new", 1);
            }
            list
        };
        args.list("lists", &lists.iter().map(list).collect::<Vec<_>>());
        let mut in_order = InOrder::default();
        let placings = call.jobs.iter().zip(list_of).map(|(placing, list)| {
            let Placing { job, .. } = placing;
            let later = in_order.later(list, &keys::member(&job.queue, job.tries.get(), &job.id));
            fields_of(placing, list, later)
        });
        args.list("jobs", &placings.collect::<Vec<_>>());
        cmd.arg(args.to_arg());
        for job in jobs_of(calls).filter(|_| !staged) {
            cmd.arg(&value::encode(&job.id, &job.body, &job.attributes)?[..]);
        }
        Ok(PublishStep { call: cmd, new, plain: None })
    }

    /// Returns the call of a script, with the first keys, which are the same for both scripts.
    fn begin(&self, script: &Script, lists: &[&Queue], calls: &[Publication], new: &[Queue]) -> ScriptCall {
        let mut call = self.call(script);
        call.key(&self.keys.timer_set);
        for queue in lists {
            call.key(self.keys.ready(queue));
        }
        for job in jobs_of(calls) {
            call.key(self.keys.job(&job.queue, &job.id));
        }
        for old in calls.iter().filter_map(|call| call.replaces.as_ref()) {
            call.key(self.keys.job(&old.queue, &old.id));
        }
        for Queue { namespace, .. } in new {
            call.key(&self.keys.namespaces);
            call.key(self.keys.queues_of(namespace)).key(self.keys.index_of(namespace));
        }
        call
    }

    /// Returns the queues whose names are not known to be recorded.
    fn new_queues(&self, lists: &[&Queue]) -> Vec<Queue> {
        lists
            .iter()
            .filter(|queue| !self.recorded_queues.has(self.partition, queue))
            .copied()
            .cloned()
            .collect()
    }

    /// Returns the timer member of a job to be replaced, if this process knows it.
    fn known_timer(&self, old: &JobRef) -> Vec<u8> {
        let tries = self.common.handed_out.tries(&old.id);
        tries.map(|tries| keys::member(&old.queue, tries, &old.id)).unwrap_or_default()
    }
}

/// Returns the queues of these calls, and for each job the number of its queue, counted from 1.
fn lists_of(calls: &[Publication]) -> (Vec<&Queue>, Vec<usize>) {
    let (mut lists, mut numbers) = (Vec::new(), HashMap::new());
    let mut list_of = Vec::with_capacity(calls.iter().map(|call| call.jobs.len()).sum());
    list_of.extend(jobs_of(calls).map(|job| {
        *numbers.entry(&job.queue).or_insert_with(|| {
            lists.push(&job.queue);
            lists.len()
        })
    }));
    (lists, list_of)
}

/// Returns a job in the form of lua/publish_with.lua.
fn fields_of(Placing { job, at, key }: &Placing, list: usize, later: Micros) -> Fields {
    let mut fields = Fields::default();
    fields.number("list", list as u64).number("ttl", job.ttl.map_or(0, ttl_millis));
    fields.number("delay", if job.delay.is_zero() { 0 } else { micros(job.delay) + later });
    if let Some(at) = at {
        fields.number("at", at * 1000 + later); // bounded by `check`
    }
    fields.number("tries", job.tries.get().into()).text("id", job.id.to_string());
    if let Some((key, conflict)) = key {
        fields.text("key", key.as_str());
        match conflict {
            OnConflict::Keep => fields.text("conflict", "keep"),
            OnConflict::Replace => fields.text("conflict", "replace"),
            OnConflict::Fail => fields.text("conflict", "fail"),
            OnConflict::Elsewhere(Placed { id, due_at, how }) => match how {
                How::New => fields.text("conflict", "replace"),
                How::Replaced(old) => fields.text("conflict", "replaced").text("other", old.to_string()),
                How::Duplicate => {
                    if let Some(at) = due_at {
                        fields.number("other_due", at.saturating_mul(1000));
                    }
                    fields.text("conflict", "duplicate").text("other", id.to_string())
                }
            },
        };
    }
    fields
}

/// Preserves the order of delayed jobs of one call that would be due together: timers with equal scores are ordered by
/// member, which begins with queue and tries.
#[derive(Debug, Default)]
struct InOrder {
    /// The last member of each list.
    last: HashMap<usize, Vec<u8>>,
    later: Micros,
}

impl InOrder {
    /// Returns by how many microseconds the job with this member is due later than requested.
    fn later(&mut self, list: usize, member: &[u8]) -> Micros {
        let last = self.last.insert(list, member.to_vec());
        if last.is_some_and(|last| *member < last[..]) {
            self.later += 2; // delayed jobs are due at even microseconds
        }
        self.later
    }
}

pub fn unreadable() -> Fault {
    Fault::unreadable("publish")
}

impl PublishOutcome {
    /// Reads the script's reply and its time. `plain` has the jobs of plain publishes.
    pub fn read(
        reply: Value,
        plain: Option<Vec<(JobId, Option<Micros>)>>,
    ) -> Outcome<(Micros, PublishOutcome)> {
        match plain {
            Some(jobs) => read_plain(reply, jobs),
            None => read_keyed(reply),
        }
    }
}

/// Returns the fault of a publish whose staged values have expired.
fn too_slow() -> Fault {
    Fault::away("storing the bodies took too long")
}

/// Reads the reply of lua/publish.lua. It has no outcome per job: a delayed job is due at an even microsecond.
fn read_plain(reply: Value, jobs: Vec<(JobId, Option<Micros>)>) -> Outcome<(Micros, PublishOutcome)> {
    let refusal = |refused: &u64| {
        let error = if *refused < 1000 { id_taken() } else { over_quota(refused / 1000) };
        ((refused % 1000) as usize, error)
    };
    let mut reply: Vec<Value> = redis::from_redis_value(reply)?;
    let gone = match reply.pop_if(|last| matches!(last, Value::Array(_))) {
        Some(gone) => redis::from_redis_value(gone)?,
        None => Vec::new(),
    };
    let (now, refused) = match &redis::from_redis_value::<Vec<u64>>(Value::Array(reply))?[..] {
        [now, 0, refused @ ..] => (*now, refused.iter().map(refusal).collect()),
        [now, 1, ..] => return Ok((*now, PublishOutcome::WrongType)),
        [_, 2, ..] => return Err(too_slow()),
        _ => return Err(unreadable()),
    };
    let stored = |(id, delay): (JobId, Option<Micros>)| {
        let due = delay.map_or(now, |delay| (now + delay).next_multiple_of(2));
        (Placed { id, due_at: Some(due / 1000), how: How::New }, Some(due))
    };
    Ok((now, PublishOutcome::Stored { refused, jobs: jobs.into_iter().map(stored).collect(), gone }))
}

/// Reads the reply of lua/publish_with.lua.
fn read_keyed(reply: Value) -> Outcome<(Micros, PublishOutcome)> {
    let reply: Vec<Value> = redis::from_redis_value(reply)?;
    let [now, what, rest @ ..] = &reply[..] else { return Err(unreadable()) };
    let first = || rest.first().ok_or_else(unreadable);
    let placed = || read_placed(&read::<String>(first()?)?).ok_or_else(unreadable);
    let refused = |error| {
        let (jobs, gone) = (Vec::new(), Vec::new());
        PublishOutcome::Stored { refused: HashMap::from([(0, error)]), jobs, gone }
    };
    let outcome = match &*read::<String>(what)? {
        "done" => {
            let gone = read(rest.get(1).ok_or_else(unreadable)?)?;
            PublishOutcome::Stored { refused: HashMap::new(), jobs: placed()?, gone }
        }
        "replay" => PublishOutcome::Unchanged(Published::Replay(
            placed()?.into_iter().map(|(placed, _)| placed).collect(),
        )),
        "mismatch" => PublishOutcome::Unchanged(Published::Mismatch),
        "conflict" => {
            let id: String = read(rest.get(1).ok_or_else(unreadable)?)?;
            let id = JobId::parse(&id).ok_or_else(unreadable)?;
            PublishOutcome::Unchanged(Published::Conflict { index: read(first()?)?, id })
        }
        "taken" => refused(id_taken()),
        "quota" => refused(over_quota(read(first()?)?)),
        "ended" => return Err(too_slow()),
        "type" => PublishOutcome::WrongType,
        "set_aside" => PublishOutcome::SetAside(read(first()?)?),
        _ => return Err(unreadable()),
    };
    Ok((read(now)?, outcome))
}

/// What became of each job, from the lines that lua/publish_with.lua writes.
pub fn read_placed(lines: &str) -> Option<Vec<Stored>> {
    let read = |line: &str| {
        let mut words = line.split(' ');
        let (how, id, due, old) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let how = match how {
            "new" => How::New,
            "duplicate" => How::Duplicate,
            "replaced" => How::Replaced(JobId::parse(old)?),
            _ => return None,
        };
        let due: Option<Micros> = if due.is_empty() { None } else { Some(due.parse().ok()?) };
        let due_at = due.map(|due| due / 1000);
        Some((Placed { id: JobId::parse(id)?, due_at, how }, due))
    };
    lines.split('\n').map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_became_of_jobs() {
        let (a, b) = ("01AAAAAAAAAAAAAAAAAAAAAAAA", "101AAAAAAAAAAAAAAAAAAAAAAAB");
        let lines = format!("new {a} 1700000000000999 \nduplicate {b}  \nreplaced {a} 5000 {b}");
        let [a, b] = [a, b].map(|id| JobId::parse(id).expect("an id"));
        let placed = read_placed(&lines).expect("as the script writes them");
        let placed: Vec<_> = placed.into_iter().map(|(p, _)| (p.id, p.due_at, p.how)).collect();
        assert_eq!(
            placed,
            [
                (a, Some(1_700_000_000_000), How::New),
                (b, None, How::Duplicate),
                (a, Some(5), How::Replaced(b))
            ]
        );
        for bad in [
            "",
            "new",
            "old 01AAAAAAAAAAAAAAAAAAAAAAAA 1 ",
            "new x 1 ",
            "replaced 01AAAAAAAAAAAAAAAAAAAAAAAA 1 ",
        ] {
            assert!(read_placed(bad).is_none(), "{bad:?} is no such line");
        }
    }
}
