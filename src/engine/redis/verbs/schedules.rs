//! Schedules: steps, batched in script calls like publishes (lua/step_schedule.lua); pages of a namespace's schedules;
//! due schedules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use super::publish::{answer_of_publish, check, read_placed, unreadable};
use crate::clock::Millis;
use crate::engine::batch::{self, BatchSize, Call, Caller};
use crate::engine::redis::batches::{self, MAX_WAITING, arrival_of, carry_all, serve};
use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::in_time::patient;
use crate::engine::redis::layout::fields::Fields;
use crate::engine::redis::link::{Lane, PUBLISHERS};
use crate::engine::redis::reply::read;
use crate::engine::{
    Cursor, DueList, DueSchedules, How, Landed, Placed, ScheduleId, ScheduleList, SchedulePage,
    ScheduleSetting, ScheduleState, ScheduleStep, ScheduleThen, ScheduleVersion, Stepped, StoredSchedule,
};
use crate::error::{Error, Result};
use crate::name::{Namespace, Queue, QueueName, ScheduleName};

/// Maximum sleep of the scheduler: other servers store schedules too, and the Redis's clock may be set.
pub const LOOK: Duration = Duration::from_secs(1);
/// A reply ends after this many bytes of bodies.
pub const MOST_BYTES: usize = 1 << 20;
/// Bytes of a step besides bodies and texts, approximately.
const BESIDE: usize = 512;

impl BatchSize for ScheduleStep {
    fn items(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        BESIDE + self.carried()
    }
}

impl PartitionCore {
    /// Takes a step, batched with concurrent ones.
    pub async fn step_schedule(self: &Arc<Self>, step: ScheduleStep) -> Result<Stepped> {
        step.job().map(check).transpose()?;
        loop {
            match self.steps.get_or_init(|| self.stepper()).call(step.clone()).await? {
                Some(stepped) => return Ok(stepped),
                None => {
                    let Some(queue) = step.queue() else { return Err(unreadable().into()) };
                    self.finish_set_aside(&queue).await?;
                }
            }
        }
    }

    /// Starts the tasks that take waiting steps.
    fn stepper(self: &Arc<Self>) -> Caller<ScheduleStep, Option<Stepped>> {
        let (caller, calls) = batch::channel(MAX_WAITING, batches::PUBLISHES);
        let tasks = ("a task that takes steps of schedules", PUBLISHERS);
        serve(calls, &self.tasks, tasks, self, |core, own, batch| async move {
            core.step_schedules(own, batch).await;
        });
        caller
    }

    /// Takes steps in one script call, and replies to each. `None`: a destroy has set jobs of its job's queue aside,
    /// which must be deleted first.
    pub async fn step_schedules(
        self: &Arc<Self>,
        own: usize,
        batch: Vec<Call<ScheduleStep, Option<Stepped>>>,
    ) {
        let arrived = arrival_of(&batch);
        carry_all(batch, |steps| self.carry_steps(own, arrived, steps)).await;
    }

    async fn carry_steps(
        self: &Arc<Self>,
        own: usize,
        arrived: Instant,
        steps: Arc<Vec<ScheduleStep>>,
    ) -> Result<Vec<Result<Option<Stepped>>>> {
        let mut call = self.call(&self.scripts.step_schedule);
        call.key(&self.keys.schedules).key(&self.keys.due).key(&self.keys.schedule_bytes);
        // Queues whose names the job of each step records.
        let mut new = Vec::with_capacity(steps.len());
        for step in &*steps {
            let job = step.job().map(|job| self.keyed_step(job, false)).transpose()?;
            let (job_keys, job_args) = job.as_ref().map_or_else(Default::default, |job| job.call.parts());
            call.key(self.keys.schedule(&step.id)).key(self.keys.schedules_of(&step.id.namespace));
            call.arg(fields_of(step, (job_keys.len(), job_args.len())).to_arg());
            call.key(job_keys).arg(job_args);
            new.push(job.map(|job| job.new).unwrap_or_default());
        }
        call.arrived_at(arrived);
        // Nothing is undone after a late reply: after an error the scheduler reads the record again before its next
        // step.
        let clock = Instant::now();
        let lane = Lane::Publish(own + 1);
        let reply: Vec<Value> = ask!(self.attempts(lane), |link| async {
            let connection = link.connection(lane).await?;
            let exchange = {
                let (through, mut redis, call) = (link.clone(), patient(&connection), call.clone());
                async move { through.send(&mut redis, &call).await }
            };
            let late = || None::<fn(Value) -> std::future::Ready<()>>;
            let reply = link.exchange(&connection, arrived, exchange, late).await?;
            Ok(redis::from_redis_value(reply)?)
        })
        .map_err(Error::from)?;
        let Some((now, told)) = reply.split_first().filter(|(_, told)| told.len() == steps.len()) else {
            return Err(unreadable().into());
        };
        self.learn(clock, read(now)?);
        let told = steps.iter().zip(&new).zip(told);
        told.map(|((step, new), told)| Ok(self.told_of(step, new, told)?)).collect()
    }

    /// Reads the result of a step, and notifies the queue of its job.
    fn told_of(&self, step: &ScheduleStep, new: &[Queue], told: &Value) -> Outcome<Result<Option<Stepped>>> {
        let told: Vec<Value> = read(told)?;
        let what: String = read(told.first().ok_or_else(unreadable)?)?;
        Ok(Ok(Some(match (&*what, &told[1..]) {
            ("done", [revision, number, _, landed]) => {
                let landed = read_landed(&read::<Vec<u8>>(landed)?)?;
                if landed.is_some() {
                    new.iter().for_each(|queue| self.recorded_queues.add(self.partition, queue.clone()));
                    step.queue().iter().for_each(|queue| self.tell_ready(queue));
                }
                Stepped::Done {
                    version: ScheduleVersion { revision: read(revision)?, step: read(number)? },
                    landed,
                }
            }
            ("stale", _) => Stepped::Stale,
            ("early", _) => Stepped::TooEarly,
            ("many", _) => Stepped::TooMany,
            ("set_aside", _) => return Ok(Ok(None)),
            (what, rest) => match answer_of_publish(what, rest)? {
                Err(Error::Refused(why)) => Stepped::Refused(why.to_string()),
                other => return Ok(other.map(Stepped::NotPlaced).map(Some)),
            },
        })))
    }

    /// Returns a page of a namespace's schedules.
    pub async fn list_schedules(&self, namespace: &Namespace, list: &ScheduleList) -> Result<SchedulePage> {
        let (from, to, limit, bodies) = bounds_of(list);
        let mut cmd = self.call(&self.scripts.list_schedules);
        cmd.key(self.keys.schedules_of(namespace))
            .arg(self.keys.schedule_prefix(namespace))
            .arg(from)
            .arg(to);
        cmd.arg(limit).arg(u8::from(bodies)).arg(MOST_BYTES);
        let sent = Instant::now();
        let reply: Vec<Value> = self.run(Lane::Other, &cmd).await?;
        let [now, more, rows @ ..] = &reply[..] else { return Err(unreadable().into()) };
        let now: u64 = read(now)?;
        self.learn(sent, now);
        let id_of =
            |name: &str| Some(ScheduleId { namespace: namespace.clone(), name: ScheduleName::parse(name)? });
        let row = |row: &Value| read_row(row, id_of);
        let schedules: Vec<StoredSchedule> = rows.iter().map(row).collect::<Outcome<_>>()?;
        let more = read::<u8>(more)? == 1;
        let next = schedules.last().filter(|_| more).map(|last| last.id.name.clone());
        Ok(SchedulePage { now: now / 1000, schedules, next })
    }

    /// Returns the due schedules.
    pub async fn due_schedules(&self, list: DueList) -> Result<DueSchedules> {
        let mut cmd = self.call(&self.scripts.due_schedules);
        cmd.key(&self.keys.due).key(&self.keys.schedules).arg(&self.keys.schedule_base);
        cmd.arg(&args_of_due(&list));
        let sent = Instant::now();
        let reply: Vec<Value> = self.run(Lane::Pump, &cmd).await?;
        let due = read_due(&reply)?;
        self.learn(sent, due.now * 1000);
        Ok(due)
    }
}

/// Returns the bounds of a page, its maximum length, and whether it has bodies.
fn bounds_of(list: &ScheduleList) -> (String, String, usize, bool) {
    match list {
        ScheduleList::One(name) => (format!("[{name}"), format!("[{name}"), 1, true),
        ScheduleList::Page { prefix, after, limit, bodies } => {
            let from = match after {
                Some(after) if after.as_str() >= &**prefix => format!("({after}"),
                _ => format!("[{prefix}"),
            };
            // Names are ASCII.
            (from, if prefix.is_empty() { "+".into() } else { format!("({prefix}\x7f") }, *limit, *bodies)
        }
    }
}

/// Parses `namespace/name`.
fn id_of_member(member: &str) -> Option<ScheduleId> {
    let (namespace, name) = member.split_once('/')?;
    Some(ScheduleId { namespace: Namespace::parse(namespace).ok()?, name: ScheduleName::parse(name)? })
}

/// Returns the arguments of lua/due_schedules.lua.
fn args_of_due(list: &DueList) -> [String; 4] {
    let from = match list {
        DueList::Ever { from, .. } => from.as_ref().map_or("0", |Cursor(at)| at),
        DueList::Now(_) | DueList::Within(..) => "",
    };
    let within = match list {
        DueList::Within(_, time) => time.as_millis().to_string(),
        DueList::Now(_) | DueList::Ever { .. } => String::new(),
    };
    [list.limit().to_string(), from.to_owned(), MOST_BYTES.to_string(), within]
}

/// Reads the reply of lua/due_schedules.lua.
fn read_due(reply: &[Value]) -> Outcome<DueSchedules> {
    let [now, next, counts, by, scan, rows @ ..] = reply else { return Err(unreadable()) };
    let now: Millis = read::<u64>(now)? / 1000;
    let scan: String = read(scan)?;
    let schedules = rows.iter().map(|row| read_row(row, id_of_member)).collect::<Outcome<_>>()?;
    let next = match &*read::<String>(next)? {
        "" => LOOK,
        due => {
            let due: f64 = due.parse().map_err(|_| unreadable())?;
            Duration::from_millis((due as Millis).saturating_sub(now)).min(LOOK)
        }
    };
    let counts: Vec<u64> = read(counts)?;
    let counts = counts.try_into().map_err(|_| unreadable())?;
    let by: Vec<String> = read(by)?;
    let by = by.chunks_exact(2).map(|of| Some((of[0].as_str().into(), of[1].parse().ok()?)));
    let by = by.collect::<Option<_>>().ok_or_else(unreadable)?;
    let more = Some(scan).filter(|scan| !matches!(&**scan, "" | "0")).map(Cursor);
    Ok(DueSchedules { now, schedules, more, next, counts, by })
}

/// Encodes a step for lua/step_schedule.lua.
fn fields_of(step: &ScheduleStep, (job_keys, job_args): (usize, usize)) -> Fields {
    let mut fields = Fields::default();
    fields.number("keys", job_keys as u64).number("args", job_args as u64);
    fields.text("name", step.id.name.as_str()).text("member", step.id.to_string());
    if let Some(ScheduleVersion { revision, step }) = step.expected {
        fields.number("revision", revision).number("step", step);
    }
    let ScheduleThen::Put(put) = &step.then else {
        fields.number("delete", 1);
        return fields;
    };
    fields
        .number("state", put.state as u64)
        .text("progress", &put.progress)
        .number("not_before", put.not_before);
    fields.number("of_namespace", put.bounds.of_namespace).number("of_pool", put.bounds.of_pool);
    if let Some(of) = &put.landed {
        fields.text("landed", landed_line(of));
    }
    if let Some(next) = put.next {
        fields.number("next", next);
    }
    if put.state == ScheduleState::Moved && put.next.is_none() {
        fields.number("moved", 1);
    }
    if let Some(revision) = put.revision {
        fields.number("exact", revision);
    }
    if !put.by.is_empty() {
        fields.text("by", put.by.as_bytes());
    }
    if put.dry {
        fields.number("dry", 1);
    }
    if let Some(ScheduleSetting { queue, text, body }) = &put.setting {
        fields.text("queue", queue.as_str()).text("text", text).text("body", body);
    }
    fields
}

/// Reads a schedule's row. `id_of` parses the name under which it was found.
fn read_row(row: &Value, id_of: impl Fn(&str) -> Option<ScheduleId>) -> Outcome<StoredSchedule> {
    let row: Vec<Value> = read(row)?;
    let [name, revision, step, state, next, queue, text, progress, placed, body] = &row[..] else {
        return Err(unreadable());
    };
    let id = id_of(&read::<String>(name)?).ok_or_else(unreadable)?;
    let queue = QueueName::parse(&read::<String>(queue)?).map_err(|_| unreadable())?;
    let next: String = read(next)?;
    let body: Option<Vec<u8>> = read(body)?;
    let (text, body) = (read::<Vec<u8>>(text)?.into(), body.unwrap_or_default().into());
    Ok(StoredSchedule {
        id,
        version: ScheduleVersion { revision: read(revision)?, step: read(step)? },
        state: *ScheduleState::ALL.get(read::<usize>(state)?).ok_or_else(unreadable)?,
        next: if next.is_empty() { None } else { Some(next.parse().map_err(|_| unreadable())?) },
        setting: ScheduleSetting { queue, text, body },
        progress: read::<Vec<u8>>(progress)?.into(),
        landed: read_landed(&read::<Vec<u8>>(placed)?)?,
    })
}

/// Encodes a result for [`read_landed`].
fn landed_line(Landed { at, placed: Placed { id, due_at, how } }: &Landed) -> Vec<u8> {
    let due = due_at.map(|due| due.saturating_mul(1000).to_string()).unwrap_or_default();
    let line = match how {
        How::New => format!("{at} new {id} {due} "),
        How::Duplicate => format!("{at} duplicate {id} {due} "),
        How::Replaced(old) => format!("{at} replaced {id} {due} {old}"),
    };
    line.into_bytes()
}

/// Reads the result of the last job: when it was placed, and a line written by lua/publish_with.lua.
fn read_landed(landed: &[u8]) -> Outcome<Option<Landed>> {
    if landed.is_empty() {
        return Ok(None);
    }
    let read = || {
        let (at, line) = std::str::from_utf8(landed).ok()?.split_once(' ')?;
        let (placed, _) = read_placed(line)?.into_iter().next()?;
        Some(Landed { at: at.parse().ok()?, placed })
    };
    read().map(Some).ok_or_else(unreadable)
}
