//! Schedules. One lies in the home of its queue, so that one script stores its job and its record; the partition that its
//! namespace decides knows where. When its queue's home is another one, it moves: its record says where to, it is written
//! there, its name is told, and it goes here. Whoever meets it in between finishes that.

use std::sync::Arc;
use std::time::Instant;

use redis::Value;

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::steps::{Addressed, Told, Usage};
use super::publish_call::{Answer, outcome_bytes, read_answer, read_placed};
use super::schedule_keys::Elsewhere;
use crate::clock::Millis;
use crate::engine::batch::{self, Call};
use crate::engine::redis::batches::{self, MAX_WAITING, carry_all, serve};
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::layout::value;
use crate::engine::redis::link::PUBLISHERS;
use crate::engine::redis::reply::read;
use crate::engine::redis::verbs::publish::{check, unreadable};
use crate::engine::redis::verbs::schedules::{Row, fields_of, split};
use crate::engine::{
    Landed, Publication, ScheduleBounds, ScheduleId, SchedulePut, ScheduleState, ScheduleStep, ScheduleThen,
    ScheduleVersion, Stepped, StoredSchedule, together,
};
use crate::error::{Error, Result};
use crate::job::JobRef;
use crate::name::Namespace;
use crate::random;

/// How long after its name was claimed a schedule may still be written.
const WRITTEN_WITHIN: Millis = 10_000;

impl CompactCore {
    /// Takes a step.
    pub async fn step_schedule(self: &Arc<Self>, mut step: ScheduleStep) -> Result<Stepped> {
        let mut goes = Vec::new();
        if let ScheduleThen::Put(put) = &mut step.then
            && let Some(job) = &mut put.job
        {
            check(job)?;
            // Its job will lie at home, where nobody sees an id that another partition has. One that cannot be asked now has
            // none most likely, and holds up no schedule.
            for placing in &job.jobs {
                let job = JobRef { queue: placing.job.queue.clone(), id: placing.job.id };
                let named = self.partition_named(&job.queue, &job.id).await?;
                if named != self.partition_of(&job.queue)
                    && self.try_link(named, Lane::Other).is_ok()
                    && self.is_stored(&job).await?
                {
                    return Ok(Stepped::Refused("a job with this id is stored already".to_owned()));
                }
            }
            goes = match self.look_elsewhere(job).await? {
                Elsewhere::Answered(published) => return Ok(Stepped::NotPlaced(published)),
                Elsewhere::Goes(goes) => goes,
            };
        }
        let stepped = self.take_step(step).await?;
        if let Stepped::Done { .. } = stepped {
            self.go_elsewhere(goes).await;
        }
        Ok(stepped)
    }

    async fn take_step(self: &Arc<Self>, step: ScheduleStep) -> Result<Stepped> {
        if step.expected.is_none() {
            return Box::pin(self.create_schedule(step)).await;
        }
        let mut at = None;
        // Its job says where it is; for others the name is asked.
        let home = match step.queue() {
            Some(queue) => self.partition_of(&queue),
            None => match self.find_schedule(&step.id).await? {
                Some((home, mark)) => {
                    at = Some(mark);
                    home
                }
                None => return Ok(Stepped::Stale),
            },
        };
        let dry = matches!(&step.then, ScheduleThen::Put(put) if put.dry);
        let to = wanted(self, &step).filter(|wanted| *wanted != home && !dry);
        if to.is_some() && step.queue().is_some() {
            return Err(Error::refused("a schedule that goes to another queue has no job in that step"));
        }
        let (id, is_deleted) = (step.id.clone(), step.then == ScheduleThen::Delete);
        match self.ask_schedule(Addressed { to, ..Addressed::plain(home, step) }).await? {
            Told::Stepped(done @ Stepped::Done { version, .. }, _) => {
                if to.is_some() {
                    // It is done; whoever looks next finishes it, if this fails.
                    let _ = self.finish_move(&id, home).await;
                } else if let Some(mark) = at.filter(|_| is_deleted) {
                    let _ = self.drop_name(&id, &mark, version.revision).await;
                }
                Ok(done)
            }
            Told::Stepped(stepped, _) => Ok(stepped),
            Told::Moving => {
                self.finish_move(&id, home).await?;
                Ok(Stepped::Stale)
            }
            Told::Needs(_) => Err(unreadable().into()),
        }
    }

    /// A new one: its name first, then itself.
    async fn create_schedule(self: &Arc<Self>, step: ScheduleStep) -> Result<Stepped> {
        let ScheduleThen::Put(put) = &step.then else { return Ok(Stepped::Stale) };
        let Some(wanted) = wanted(self, &step) else { return Ok(Stepped::Stale) };
        let bounds = put.bounds;
        if self.count_schedules().await? >= bounds.of_pool {
            // One that is there is no new one.
            let is_there = self.find_schedule(&step.id).await?.is_some();
            return Ok(if is_there { Stepped::Stale } else { Stepped::TooMany });
        }
        let dry = put.dry;
        if !dry {
            self.note_schedules().await?;
        }
        let id = step.id.clone();
        let mark = format!("{} {:016x}", self.now(), u64::from_be_bytes(random::bytes()));
        let mut cmd = self.name_call(&id.namespace, "claim");
        cmd.arg(id.name.as_str()).arg(wanted).arg(&mark).arg(bounds.of_namespace).arg(u8::from(dry));
        let (now, home, floor, mark): (u64, i64, u64, String) = self.ask_names(&id.namespace, cmd).await?;
        let Ok(home) = Partition::try_from(home) else { return Ok(Stepped::TooMany) };
        if !dry {
            // A schedule whose name a failover forgot would go on, and nobody would find it.
            self.replicas_have_all(self.partitions.of_namespace(&id.namespace)).await?;
        }
        if home != wanted && step.queue().is_some() {
            return Err(Error::refused("the name of a new schedule that has a job lies elsewhere"));
        }
        let addressed = Addressed {
            to: Some(wanted).filter(|wanted| *wanted != home),
            floor,
            not_after: Some(now / 1000 + WRITTEN_WITHIN),
            ..Addressed::plain(home, step)
        };
        let told = self.ask_schedule(addressed).await;
        match &told {
            _ if dry => {}
            Ok(Told::Stepped(Stepped::Done { .. }, _)) if home != wanted => {
                let _ = self.finish_move(&id, home).await;
            }
            Ok(Told::Stepped(Stepped::Done { .. } | Stepped::Stale, _)) => {}
            // Nothing was written: what cannot be dropped now goes later.
            Ok(Told::Stepped(..) | Told::Needs(_)) | Err(Error::OverQuota(_) | Error::Refused(_)) => {
                let _ = self.drop_name(&id, &mark, floor).await;
            }
            Ok(Told::Moving) => self.finish_move(&id, home).await?,
            Err(_) => {}
        }
        match told? {
            Told::Stepped(stepped, _) => Ok(stepped),
            Told::Moving => Ok(Stepped::Stale),
            Told::Needs(_) => Err(unreadable().into()),
        }
    }

    /// Sends a step with those of others. In a namespace with a quota room is taken first, as much as the script says that
    /// its job needs.
    async fn ask_schedule(self: &Arc<Self>, mut step: Addressed) -> Result<Told> {
        let namespace = step.step.id.namespace.clone();
        if step.step.queue().is_none() || !self.is_counted(&namespace) {
            return self.send_step(step).await;
        }
        let mut taken: Usage = [0; 3];
        let told = loop {
            step.admit = Some(taken);
            match self.send_step(step.clone()).await {
                Ok(Told::Needs(needs)) => {
                    let more = std::array::from_fn(|n| (needs[n] - taken[n]).max(0));
                    if let Err(error) = self.take_room(&namespace, more).await {
                        break Err(error);
                    }
                    taken = std::array::from_fn(|n| taken[n] + more[n]);
                }
                told => break told,
            }
        };
        let added = if let Ok(Told::Stepped(_, added)) = &told { *added } else { [0; 3] };
        if !matches!(&told, Err(Error::Away(_))) {
            self.give_room(&namespace, std::array::from_fn(|n| taken[n] - added[n])).await;
        }
        told
    }

    /// With those of others that go to the same partition.
    async fn send_step(self: &Arc<Self>, step: Addressed) -> Result<Told> {
        let home = step.home;
        self.ready(home, Lane::Publish(0)).await?;
        let begin = || {
            let (caller, calls) = batch::channel(MAX_WAITING, batches::PUBLISHES);
            serve(
                calls,
                &self.tasks,
                ("a task that takes steps of schedules", PUBLISHERS),
                self,
                move |core, own, batch| async move {
                    core.step_schedules(home, own, batch).await;
                },
            );
            caller
        };
        self.steps.call(home, step, begin).await
    }

    /// Takes steps in one script call, and answers each.
    async fn step_schedules(
        self: &Arc<Self>,
        home: Partition,
        own: usize,
        batch: Vec<Call<Addressed, Told>>,
    ) {
        carry_all(batch, |steps| self.carry_steps(own, home, steps)).await;
    }

    async fn carry_steps(
        self: &Arc<Self>,
        own: usize,
        home: Partition,
        steps: Arc<Vec<Addressed>>,
    ) -> Result<Vec<Result<Told>>> {
        let mut cmd = self.call(&self.scripts.step_schedule, home);
        for of in &*steps {
            let args =
                of.step.job().map(|job| self.args_of(home, job, of.admit)).transpose()?.unwrap_or_default();
            let mut fields = fields_of(&of.step, (0, args.len()), landed_bytes);
            if let Some(to) = of.to {
                fields.number("to", to.into());
            }
            if of.moves_on {
                fields.number("moves_on", 1);
            }
            if let Some(not_after) = of.not_after {
                fields.number("not_after", not_after);
            }
            fields.number("floor", of.floor);
            cmd.arg(fields.to_arg()).arg(args);
        }
        let sent = Instant::now();
        let reply: Vec<Value> = self.ask(home, Lane::Publish(own), &self.scripts.step_schedule, cmd).await?;
        let Some((now, told)) = reply.split_first().filter(|(_, told)| told.len() == steps.len()) else {
            return Err(unreadable().into());
        };
        self.learn(home, sent, read(now)?);
        Ok(steps.iter().zip(told).map(|(of, told)| self.told_of(home, of, told)).collect())
    }

    /// The arguments of lua/compact/publish_with.lua for a job.
    fn args_of(&self, home: Partition, job: &Publication, admit: Option<Usage>) -> Result<Vec<Vec<u8>>> {
        let values = job.jobs.iter().map(|placing| {
            let job = &placing.job;
            Ok((value::encode(&job.id, &job.body, &job.attributes)?, false))
        });
        let Some(first) = job.jobs.first() else { return Err(unreadable().into()) };
        let values = values.collect::<Result<Vec<_>>>()?;
        let cmd = self.special_step(home, (job, &first.job.queue), &[], &values, admit);
        Ok(split(&cmd).1)
    }

    /// Reads what became of a step, and tells consumers of its job.
    fn told_of(&self, home: Partition, of: &Addressed, told: &Value) -> Result<Told> {
        let told: Vec<Value> = read(told)?;
        let what: String = read(told.first().ok_or_else(unreadable)?)?;
        let stepped = match (&*what, &told[1..]) {
            ("done", [revision, step, _, landed, added @ ..]) => {
                let version = ScheduleVersion { revision: read(revision)?, step: read(step)? };
                let landed = read_landed(home, &read::<Vec<u8>>(landed)?)?;
                if landed.is_some()
                    && let Some(queue) = of.step.queue()
                {
                    self.tell_ready_again(home, &queue);
                }
                let added = match added {
                    [jobs, bytes, queues] => [read(jobs)?, read(bytes)?, read(queues)?],
                    _ => [0; 3],
                };
                return Ok(Told::Stepped(Stepped::Done { version, landed }, added));
            }
            ("moving", _) => return Ok(Told::Moving),
            ("stale", _) => Stepped::Stale,
            ("early", _) => Stepped::TooEarly,
            ("many", _) => Stepped::TooMany,
            _ => {
                let reply = [&[Value::Int(0)][..], &told].concat();
                match read_answer(home, 1, Value::Array(reply))?.1 {
                    Answer::Unchanged(published) => Stepped::NotPlaced(published),
                    Answer::Taken => Stepped::Refused("a job with this id is stored already".to_owned()),
                    Answer::Needs(room) => return Ok(Told::Needs(room)),
                    // Another publish has its key, and is not shown yet; or its queue was spread a moment ago.
                    Answer::Busy => return Err(Error::Overloaded),
                    Answer::Spread => {
                        of.step.queue().iter().for_each(|queue| self.learn_spread(queue, self.now()));
                        return Err(Error::Overloaded);
                    }
                    Answer::Done(..) | Answer::Ended | Answer::Would(..) | Answer::Gone => {
                        return Err(unreadable().into());
                    }
                }
            }
        };
        Ok(Told::Stepped(stepped, [0; 3]))
    }

    /// What is left to do of a move: it is written where it goes to, its name says so, and here it goes.
    pub async fn finish_move(self: &Arc<Self>, id: &ScheduleId, home: Partition) -> Result<()> {
        let rows = self.read_schedules(home, std::slice::from_ref(id), true).await?.1;
        let Some(Row { stored, to: Some(to) }) = rows.into_iter().next() else { return Ok(()) };
        let StoredSchedule { version, state, next, setting, progress, landed, .. } = stored;
        let bounds = ScheduleBounds { of_namespace: u64::MAX >> 11, of_pool: u64::MAX >> 11 };
        let put = SchedulePut {
            setting: Some(setting),
            revision: Some(version.revision),
            bounds,
            ..SchedulePut::plain(state, next, progress, landed)
        };
        let then = ScheduleThen::Put(Box::new(put));
        let arrives = ScheduleStep { id: id.clone(), expected: None, then };
        // Stale: somebody else has written it, and it may be gone already.
        self.send_step(Addressed { moves_on: true, ..Addressed::plain(to, arrives) }).await?;
        let mut cmd = self.name_call(&id.namespace, "move");
        cmd.arg(id.name.as_str()).arg(home).arg(to).arg(version.revision);
        let _: (u64, u8) = self.ask_names(&id.namespace, cmd).await?;
        self.replicas_have_all(self.partitions.of_namespace(&id.namespace)).await?;
        let leaves = ScheduleStep { id: id.clone(), expected: Some(version), then: ScheduleThen::Delete };
        self.send_step(Addressed { moves_on: true, ..Addressed::plain(home, leaves) }).await.map(drop)
    }

    /// Where a schedule of this name is, if it is there, and its mark.
    pub async fn find_schedule(&self, id: &ScheduleId) -> Result<Option<(Partition, String)>> {
        let mut cmd = self.name_call(&id.namespace, "find");
        cmd.arg(id.name.as_str());
        let (_, partition, mark): (u64, String, String) = self.ask_names(&id.namespace, cmd).await?;
        Ok(partition.parse().ok().map(|partition| (partition, mark)))
    }

    pub async fn drop_name(&self, id: &ScheduleId, mark: &str, revision: u64) -> Result<()> {
        let mut cmd = self.name_call(&id.namespace, "drop");
        cmd.arg(id.name.as_str()).arg(mark).arg(revision);
        let _: (u64, u8) = self.ask_names(&id.namespace, cmd).await?;
        Ok(())
    }

    pub fn name_call(&self, namespace: &Namespace, what: &str) -> redis::Cmd {
        let mut cmd = self.call(&self.scripts.name_schedule, self.partitions.of_namespace(namespace));
        cmd.arg(namespace.as_str()).arg(what);
        cmd
    }

    pub async fn ask_names<T: redis::FromRedisValue>(
        &self,
        namespace: &Namespace,
        cmd: redis::Cmd,
    ) -> Outcome<T> {
        let partition = self.partitions.of_namespace(namespace);
        self.ask(partition, Lane::Other, &self.scripts.name_schedule, cmd).await
    }

    /// Whether there ever was a schedule in this pool. Without one a look is one read. While the partition that says so
    /// cannot be used, there may be some.
    pub async fn has_schedules(&self) -> Result<bool> {
        use std::sync::atomic::Ordering::Relaxed;
        if self.has_schedules.load(Relaxed) || self.try_link(0, Lane::Other).is_err() {
            return Ok(true);
        }
        let there: u8 = self.query(0, redis::cmd("EXISTS").arg(self.partitions.schedules_key())).await?;
        self.has_schedules.store(there == 1, Relaxed);
        Ok(there == 1)
    }

    /// There is one from now on.
    async fn note_schedules(&self) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        if !self.has_schedules.load(Relaxed) {
            let key = self.partitions.schedules_key();
            let _: Value = self.query(0, redis::cmd("SET").arg(key).arg(1)).await?;
            // Without it no server looks for schedules.
            self.replicas_have_all(0).await?;
            self.has_schedules.store(true, Relaxed);
        }
        Ok(())
    }

    async fn count_schedules(&self) -> Result<u64> {
        let states: Vec<usize> = (0..ScheduleState::ALL.len()).collect();
        let each = together::try_all(self.partitions.all().map(async |partition| {
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(keys::schedules(self.partitions.base(partition))).arg(&states);
            self.query::<Vec<Option<u64>>>(partition, &cmd).await
        }));
        Ok(each.await?.into_iter().flatten().flatten().sum())
    }
}

/// The home of the queue that a step sets.
fn wanted(core: &CompactCore, step: &ScheduleStep) -> Option<Partition> {
    let ScheduleThen::Put(put) = &step.then else { return None };
    let name = put.setting.as_ref()?.queue.clone();
    let namespace = step.id.namespace.clone();
    Some(core.partition_of(&crate::name::Queue { namespace, name }))
}

/// As [`read_landed`] reads it.
fn landed_bytes(Landed { at, placed }: &Landed) -> Vec<u8> {
    let due = placed.due_at.map(|at| at.saturating_mul(1000));
    [format!("{at} ").into_bytes(), outcome_bytes([(*placed, due)])].concat()
}

/// When the last job was placed, and what became of it.
pub fn read_landed(home: Partition, bytes: &[u8]) -> Outcome<Option<Landed>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let read = || {
        let end = bytes.iter().position(|byte| *byte == b' ')?;
        let at = std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
        let (placed, _) = read_placed(home, &bytes[end + 1..])?.into_iter().next()?;
        Some(Landed { at, placed })
    };
    read().map(Some).ok_or_else(unreadable)
}
