//! The two scripts that publish: what a call of each takes, and what it answers. Sends nothing.

use std::collections::HashMap;

use bytes::Bytes;
use redis::{Cmd, Value};

use crate::clock::Micros;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::layout::fields::Fields;
use crate::engine::redis::layout::scripts::Script;
use crate::engine::redis::layout::times::{micros, ttl_millis};
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::reply::{id_taken, over_quota, read, wrong_type};
use crate::engine::{How, OnConflict, Placed, Placing, Publication, Published, REMEMBERED};
use crate::error::{Error, Result};
use crate::job::{JobId, JobRef, NewJob};
use crate::name::Queue;

/// What became of a job, and when it is due, in microseconds.
pub type Stored = (Placed, Option<Micros>);

/// A script call, and what its answer is read with.
pub struct Step {
    pub plain: bool,
    pub cmd: Cmd,
    /// The queues whose names it records.
    pub new: Vec<Queue>,
    /// Of each delayed job of a plain one: how long after the call it is due.
    pub delays: Vec<Micros>,
}

pub enum ScriptAnswer {
    /// All but the refused calls are stored. A plain one says no more.
    Stored { refused: HashMap<usize, Error>, placed: Option<Vec<Stored>> },
    /// The only call is answered so, and nothing has changed.
    Unchanged(Published),
    /// A value that was stored before has ended.
    Ended,
    /// A key has the wrong type, so nothing was stored.
    WrongType,
    /// What a destroy has set aside of the queue of this job must be deleted first.
    SetAside(usize),
}

/// The jobs of these calls, in order.
pub fn jobs_of(calls: &[Publication]) -> impl Iterator<Item = &NewJob> {
    calls.iter().flat_map(|call| &call.jobs).map(|placing| &placing.job)
}

impl RedisCore {
    /// The call of lua/publish.lua. Values that are stored already are not sent again, here and below.
    pub fn plain_step(&self, calls: &[Publication], staged: bool) -> Result<Step> {
        let (lists, list_of) = lists_of(calls);
        let new = self.new_queues(&lists);
        let replaced = || calls.iter().enumerate().filter_map(|(i, call)| Some((i, call.replaces.as_ref()?)));
        let mut cmd = begin(&self.scripts.publish, &lists, list_of.len(), calls, &new, 0);
        cmd.arg(lists.len()).arg(list_of.len()).arg(replaced().count()).arg(u8::from(staged));
        let call_of = calls.iter().enumerate().flat_map(|(i, call)| call.jobs.iter().map(move |_| i));
        let (mut in_order, mut delays) = (InOrder::default(), Vec::new());
        for ((job, list), call) in jobs_of(calls).zip(list_of).zip(call_of) {
            let (tries, ttl) = (job.tries.get(), job.ttl.map_or(0, ttl_millis));
            if job.delay.is_zero() {
                cmd.arg(call).arg(list).arg(ttl).arg(0).arg(keys::element(tries, &job.id));
            } else {
                let member = keys::member(&job.queue, tries, &job.id);
                let delay = micros(job.delay) + in_order.later(list, &member);
                cmd.arg(call).arg(0).arg(ttl).arg(delay).arg(member);
                delays.push(delay);
            }
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
        Ok(Step { plain: true, cmd, new, delays })
    }

    /// The call of lua/publish_with.lua.
    pub fn keyed_step(&self, call: &Publication, staged: bool) -> Result<Step> {
        let calls = std::slice::from_ref(call);
        let (lists, list_of) = lists_of(calls);
        let new = self.new_queues(&lists);
        let once = call.once.as_ref().zip(call.jobs.first());
        let more = 1 + usize::from(once.is_some());
        let mut cmd = begin(&self.scripts.publish_with, &lists, list_of.len(), calls, &new, more);
        cmd.arg(keys::WITH_DETAILS);
        let [job_base, details_base, key_base] = keys::BASES;
        let mut args = Fields::default();
        args.number("forever", value::FOREVER);
        args.text("job_base", job_base).text("details_base", details_base).text("key_base", key_base);
        if staged {
            args.number("staged", 1);
        }
        if let Some(old) = &call.replaces {
            args.text("replaced", self.known_timer(old));
        }
        if let Some((once, first)) = once {
            cmd.arg(keys::once(&first.job.queue, &once.key));
            args.text("fingerprint", once.fingerprint).number("remembered", REMEMBERED.as_millis() as u64);
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
        Ok(Step { plain: false, cmd, new, delays: Vec::new() })
    }

    /// Those of these queues whose names are not known to be recorded.
    fn new_queues(&self, lists: &[&Queue]) -> Vec<Queue> {
        lists.iter().filter(|queue| !self.recorded_queues.has(queue)).copied().cloned().collect()
    }

    /// The timer member of a job that is to be replaced, if this process knows it.
    fn known_timer(&self, old: &JobRef) -> Vec<u8> {
        let tries = self.common.handed_out.tries(&old.id);
        tries.map(|tries| keys::member(&old.queue, tries, &old.id)).unwrap_or_default()
    }
}

/// The queues of the jobs of these calls, and which of them each job's is, counted from 1.
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

/// The call of a script, with the keys that both scripts begin with. `more` keys are to follow.
fn begin(
    script: &Script,
    lists: &[&Queue],
    jobs: usize,
    calls: &[Publication],
    new: &[Queue],
    more: usize,
) -> Cmd {
    let replaced = || calls.iter().filter_map(|call| call.replaces.as_ref());
    let mut cmd = script.call(1 + lists.len() + jobs + replaced().count() + 3 * new.len() + more);
    cmd.arg(keys::TIMER_SET);
    for queue in lists {
        cmd.arg(keys::ready(queue));
    }
    for job in jobs_of(calls) {
        cmd.arg(keys::job(&job.queue, &job.id));
    }
    for old in replaced() {
        cmd.arg(keys::job(&old.queue, &old.id));
    }
    for Queue { namespace, .. } in new {
        cmd.arg(keys::NAMESPACES).arg(keys::queues_of(namespace)).arg(keys::index_of(namespace));
    }
    cmd
}

/// A job as lua/publish_with.lua takes it.
fn fields_of(Placing { job, at, key }: &Placing, list: usize, later: Micros) -> Fields {
    let mut fields = Fields::default();
    fields.number("list", list as u64).number("ttl", job.ttl.map_or(0, ttl_millis));
    fields.number("delay", if job.delay.is_zero() { 0 } else { micros(job.delay) + later });
    if let Some(at) = at {
        fields.number("at", at * 1000 + later); // check has bounded it
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

/// Keeps delayed jobs of one call in order that would be due together: timers of one score stand in the order of their
/// members, which begin with queue and tries.
#[derive(Debug, Default)]
struct InOrder {
    /// The last member of each list.
    last: HashMap<usize, Vec<u8>>,
    later: Micros,
}

impl InOrder {
    /// How many microseconds later than asked for the job of the next member is due.
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

/// What lua/publish.lua answers.
pub fn read_plain(reply: Value) -> Outcome<(Micros, ScriptAnswer)> {
    let refusal = |refused: &u64| {
        let error = if *refused < 1000 { id_taken() } else { over_quota(refused / 1000) };
        ((refused % 1000) as usize, error)
    };
    let answer = match &redis::from_redis_value::<Vec<u64>>(reply)?[..] {
        [now, 0, refused @ ..] => {
            (*now, ScriptAnswer::Stored { refused: refused.iter().map(refusal).collect(), placed: None })
        }
        [now, 1, ..] => (*now, ScriptAnswer::WrongType),
        [now, 2, ..] => (*now, ScriptAnswer::Ended),
        _ => return Err(unreadable()),
    };
    Ok(answer)
}

/// What became of a job of a plain call, which lua/publish.lua does not say. Takes the delay of a delayed one, which is
/// due at an even microsecond.
pub fn placed_plain(job: &NewJob, delays: &mut impl Iterator<Item = Micros>, now: Micros) -> Stored {
    let delay = if job.delay.is_zero() { None } else { delays.next() };
    let due = delay.map_or(now, |delay| (now + delay).next_multiple_of(2));
    (Placed { id: job.id, due_at: Some(due / 1000), how: How::New }, Some(due))
}

/// What lua/publish_with.lua answers.
pub fn read_keyed(reply: Value) -> Outcome<(Micros, ScriptAnswer)> {
    let reply: Vec<Value> = redis::from_redis_value(reply)?;
    let [now, what, rest @ ..] = &reply[..] else { return Err(unreadable()) };
    let first = || rest.first().ok_or_else(unreadable);
    let placed = || read_placed(&read::<String>(first()?)?).ok_or_else(unreadable);
    let refused =
        |error| ScriptAnswer::Stored { refused: HashMap::from([(0, error)]), placed: Some(Vec::new()) };
    let answer = match &*read::<String>(what)? {
        "done" => ScriptAnswer::Stored { refused: HashMap::new(), placed: Some(placed()?) },
        "replay" => ScriptAnswer::Unchanged(Published::Replay(
            placed()?.into_iter().map(|(placed, _)| placed).collect(),
        )),
        "mismatch" => ScriptAnswer::Unchanged(Published::Mismatch),
        "conflict" => {
            let id: String = read(rest.get(1).ok_or_else(unreadable)?)?;
            let id = JobId::parse(&id).ok_or_else(unreadable)?;
            ScriptAnswer::Unchanged(Published::Conflict { index: read(first()?)?, id })
        }
        "taken" => refused(id_taken()),
        "quota" => refused(over_quota(read(first()?)?)),
        "ended" => ScriptAnswer::Ended,
        "type" => ScriptAnswer::WrongType,
        "set_aside" => ScriptAnswer::SetAside(read(first()?)?),
        _ => return Err(unreadable()),
    };
    Ok((read(now)?, answer))
}

/// What a publication that has stored nothing is answered, by the words of lua/publish_with.lua.
pub fn answer_of_publish(what: &str, rest: &[Value]) -> Outcome<Result<Published>> {
    let reply = [&[Value::Int(0), Value::SimpleString(what.into())][..], rest].concat();
    match read_keyed(Value::Array(reply))?.1 {
        ScriptAnswer::Unchanged(published) => Ok(Ok(published)),
        ScriptAnswer::Stored { mut refused, .. } => Ok(Err(refused.remove(&0).ok_or_else(unreadable)?)),
        ScriptAnswer::WrongType => Ok(Err(wrong_type())),
        ScriptAnswer::Ended | ScriptAnswer::SetAside(_) => Err(unreadable()),
    }
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
