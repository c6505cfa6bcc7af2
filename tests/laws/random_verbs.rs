//! The random steps of [`random`](super::random) with the verbs that lmstfy does not have.
//!
//! If a store may not know a value (since when a job is ready, how many tries a ready one has left), it must be right
//! or absent.

use std::time::Duration;

use dormouse::engine::{
    By, Engine, Held, OnConflict, Once, OnceKind, Placed, Placing, Promoted, Publication, Published, Release,
    Revival,
};
use dormouse::job::{JobId, JobRef, JobState, JobView, Reason, Receipt};
use dormouse::name::{IdempotencyKey, Queue};

use super::random::{QUEUES, Run, compare_with_model, same};
use crate::stage::*;
use crate::support::engine_ext::{EngineExt, tries};

const STEPS: usize = 2500;
const REAL_STEPS: usize = 400;
const KEYS: [&str; 3] = ["k", "kk", "l"];

/// Guards against unforeseen differences.
pub async fn random_verbs_agree_with_the_model(s: &dyn Stage) {
    let steps = if s.differences().virtual_time { STEPS } else { REAL_STEPS };
    compare_with_model(s, 0x5eed, steps, true).await;
    for (namespace, name) in QUEUES {
        // So that another round could begin.
        let q = queue_in(namespace, name);
        for state in JobState::ALL {
            for view in s.list(&q, state, 100).await {
                s.ack(&JobRef { queue: q.clone(), id: view.id }).await;
            }
            assert_eq!(s.list(&q, state, 100).await, [], "all {state:?} jobs of {q} were acked");
        }
        for key in KEYS {
            assert_eq!(s.holder(&q, key).await, None, "no job is left with {key} in {q}");
        }
    }
}

/// What a store that need not know a job's state answers, with the model's state.
fn told(ours: Promoted, models: Promoted) -> Promoted {
    if ours == Promoted::NotDelayed(None) && models != Promoted::Done { models } else { ours }
}

impl Run<'_> {
    pub(super) async fn verb(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        match self.random.below(18) {
            0..4 => self.place(engine, q).await,
            4..7 => self.touch(engine).await,
            7..11 => self.release(engine).await,
            11 => self.bury(engine).await,
            12 | 13 => self.ack_many(engine, q).await,
            14 => self.cancel(engine, q).await,
            15 if self.random.below(2) == 0 => self.promote(engine, q).await,
            15 => self.respawn_jobs(engine, q).await,
            _ => self.look(engine, &q).await,
        }
    }

    /// Returns one of the latest deliveries, which has usually ended.
    fn any_held(&mut self) -> (JobRef, Receipt, Receipt) {
        match self.held.len() as u64 {
            0 => {
                let none = Receipt { delivery: 0, tries_left: 0 };
                (self.any_published(), none, none)
            }
            n => self.held[(n - 1 - self.random.below(n.min(12))) as usize].clone(),
        }
    }

    fn reason(&mut self) -> Option<Reason> {
        let text = format!("step {}", self.log.len());
        (self.random.below(3) == 0).then(|| Reason::new(&text).expect("short"))
    }

    async fn place(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        // Before its own jobs are made: no caller replaces one of those.
        let replaces = (self.random.below(5) == 0).then(|| self.any_published());
        let mut jobs = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let job = self.new_job(&q);
            let on_conflict = match self.random.below(4) {
                0 => OnConflict::Fail,
                1 => OnConflict::Keep,
                _ => OnConflict::Replace,
            };
            let key = KEYS[self.random.below(KEYS.len() as u64) as usize];
            let key = (self.random.below(4) > 0).then(|| (job_key(key), on_conflict));
            // As far from now as its delay says, which is not longer than its ttl.
            let at = (self.virtual_time && self.random.below(3) == 0)
                .then(|| (engine.now() + ms(job.delay)).saturating_sub(self.random.below(2) * 1000));
            jobs.push(Placing { job, at, key });
        }
        let name = [b'a' + self.random.below(6) as u8];
        let once = (self.random.below(3) == 0).then(|| Once {
            key: IdempotencyKey::new(&name).expect("one byte"),
            fingerprint: [self.random.below(2) as u8; 16],
            kind: OnceKind::Request,
        });
        let publication = Publication { jobs, replaces, once };
        self.log.push(format!("publish with {publication:?}"));
        let answers = (engine.publish(publication.clone()).await, self.model.publish(publication).await);
        match answers {
            (Ok(ours), Ok(models)) => {
                let (ours, models) = (self.times_of(ours, &models), self.times_of(models.clone(), &models));
                same("publish", ours, models).map(drop)
            }
            (ours, models) => same("publish", ours.is_ok(), models.is_ok()).map(drop),
        }
    }

    /// An answer with the model's due times where the store need not know them, or where time is real.
    fn times_of(&self, published: Published, model: &Published) -> Published {
        let (Published::Done(of) | Published::Replay(of)) = model else { return published };
        let adopt = |placed: Vec<Placed>| {
            let all = placed.into_iter().enumerate();
            all.map(|(i, placed)| {
                let due_at =
                    placed.due_at.filter(|_| self.virtual_time).or(of.get(i).and_then(|of| of.due_at));
                Placed { due_at, ..placed }
            })
            .collect()
        };
        match published {
            Published::Done(placed) => Published::Done(adopt(placed)),
            Published::Replay(placed) => Published::Replay(adopt(placed)),
            other => other,
        }
    }

    async fn touch(&mut self, engine: &dyn Engine) -> Result<(), String> {
        let (job, ours, models) = self.any_held();
        let ttr = Duration::from_millis(2) + self.time(80);
        self.log.push(format!("touch {job:?} with {ours:?} for {ttr:?}"));
        let ours = ok("touch", engine.touch(&job, ours, ttr).await);
        let models = ok("touch", self.model.touch(&job, models, ttr).await);
        match (ours, models) {
            (Held::Done(ours), Held::Done(models)) => {
                self.held.push((job, ours.receipt, models.receipt));
                if self.virtual_time { same("until", ours.until, models.until).map(drop) } else { Ok(()) }
            }
            (ours, models) => same("touch", ours, models).map(drop),
        }
    }

    async fn release(&mut self, engine: &dyn Engine) -> Result<(), String> {
        let (job, ours, models) = self.any_held();
        let delay = if self.random.below(2) == 0 { Duration::ZERO } else { self.time(60) };
        let tries = tries(self.random.below(2) == 0);
        let release = Release { delay, tries, reason: self.reason() };
        self.log.push(format!("release {job:?} with {ours:?}: {release:?}"));
        let ours = ok("release", engine.release(&job, ours, release.clone()).await);
        let models = ok("release", self.model.release(&job, models, release).await);
        if self.virtual_time {
            return same("release", ours, models).map(drop);
        }
        let plain = |held| format!("{held:?}").split(", due_at").next().map(str::to_owned);
        same("release", plain(ours), plain(models)).map(drop)
    }

    async fn bury(&mut self, engine: &dyn Engine) -> Result<(), String> {
        let (job, ours, models) = self.any_held();
        let reason = self.reason();
        self.log.push(format!("bury {job:?} with {ours:?}: {reason:?}"));
        let ours = ok("bury", engine.bury(&job, ours, reason.clone()).await);
        same("bury", ours, ok("bury", self.model.bury(&job, models, reason).await)).map(drop)
    }

    async fn ack_many(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let (mut ours, mut models) = (Vec::<(JobId, Option<Receipt>)>::new(), Vec::new());
        for _ in 0..1 + self.random.below(4) {
            // A pool that moves says of a job that is named twice what both of its receipts are.
            let is_new = |all: &[(JobId, _)], job: &JobRef| all.iter().all(|(id, _)| *id != job.id);
            if self.random.below(4) == 0 {
                let job = self.any_published();
                if !is_new(&ours, &job) {
                    continue;
                }
                ours.push((job.id, None));
                models.push((job.id, None));
            } else {
                let (job, receipt, of_model) = self.any_held();
                if !is_new(&ours, &job) {
                    continue;
                }
                ours.push((job.id, Some(receipt)));
                models.push((job.id, Some(of_model)));
            }
        }
        self.log.push(format!("ack many of {q}: {ours:?}"));
        let stale = ok("ack", engine.ack(&q, &ours).await);
        same("ack", stale, ok("ack", self.model.ack(&q, &models).await)).map(drop)
    }

    async fn cancel(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let key = job_key(KEYS[self.random.below(KEYS.len() as u64) as usize]);
        self.log.push(format!("cancel {key} of {q}"));
        let cancelled = ok("cancel_key", engine.cancel_key(&q, &key).await);
        same("cancel_key", cancelled, ok("cancel_key", self.model.cancel_key(&q, &key).await)).map(drop)
    }

    async fn promote(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let key = job_key(KEYS[self.random.below(KEYS.len() as u64) as usize]);
        let delayed = self.s.list(&q, JobState::Delayed, 100).await;
        let (job, any) = (self.any_published().id, self.random.below(1 + delayed.len() as u64) as usize);
        let by = match self.random.below(3) {
            0 => By::Key(&key),
            _ => By::Id(delayed.get(any).map_or(job, |view| view.id)),
        };
        self.log.push(format!("promote {by:?} of {q}"));
        let ours = ok("promote", engine.promote(&q, by).await);
        let models = ok("promote", self.model.promote(&q, by).await);
        same("promote", told(ours, models), models).map(drop)
    }

    async fn respawn_jobs(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let dead = self.s.list(&q, JobState::Dead, 100).await;
        let mut jobs = vec![self.any_published().id];
        jobs.extend(dead.iter().map(|view| view.id).filter(|_| self.random.below(2) == 0).take(4));
        let delay = if self.random.below(2) == 0 { Duration::ZERO } else { self.time(60) };
        let tries = (1 + self.random.below(3) as u16).try_into().expect("not 0");
        let revival = Revival { tries, delay, ttl: self.ttl() };
        self.log.push(format!("respawn {jobs:?} of {q}: {revival:?}"));
        let ours = ok("respawn_jobs", engine.respawn_jobs(&q, &jobs, revival).await);
        let models = ok("respawn_jobs", self.model.respawn_jobs(&q, &jobs, revival).await);
        if self.virtual_time {
            return same("respawn_jobs", ours, models).map(drop);
        }
        let plain = |all: Vec<_>| all.iter().map(std::mem::discriminant).collect::<Vec<_>>();
        same("respawn_jobs", plain(ours), plain(models)).map(drop)
    }

    /// A view as far as it must be the same.
    fn seen(&self, view: &JobView, model: &JobView) -> JobView {
        let view = view.clone();
        let knows = !matches!(model.state, Some(JobState::Ready | JobState::Dead));
        JobView {
            due_at: view
                .due_at
                .filter(|_| self.virtual_time)
                .or(model.due_at.filter(|_| !knows || !self.virtual_time)),
            tries_left: view.tries_left.or(model.tries_left.filter(|_| !knows)),
            ttl: if self.virtual_time { view.ttl } else { view.ttl.map(|_| LONG) },
            elapsed: if self.virtual_time { view.elapsed } else { Duration::ZERO },
            ..view
        }
    }

    fn same_views(&self, what: &str, ours: &[JobView], models: &[JobView]) -> Result<(), String> {
        same(what, ours.len(), models.len()).map_err(|e| format!("{e}: {ours:?}, the model: {models:?}"))?;
        for (ours, model) in ours.iter().zip(models) {
            same(what, self.seen(ours, model), self.seen(model, model))?;
        }
        Ok(())
    }

    /// Compares everything readable.
    pub(super) async fn look(&mut self, engine: &dyn Engine, q: &Queue) -> Result<(), String> {
        let job = self.any_published();
        self.log.push(format!("look at {q} and {job:?}"));
        let ours = ok("inspect", engine.inspect_job(&job).await);
        let models = ok("inspect", self.model.inspect_job(&job).await);
        self.same_views("inspect", ours.as_slice(), models.as_slice())?;
        for key in KEYS.map(job_key) {
            let ours = ok("inspect_by_key", engine.inspect_by_key(q, &key).await);
            let models = ok("inspect_by_key", self.model.inspect_by_key(q, &key).await);
            self.same_views("inspect_by_key", ours.as_slice(), models.as_slice())?;
        }
        let limit = 1 + self.random.below(5) as usize;
        for state in JobState::ALL {
            let ours = self.s.list(q, state, limit).await;
            let list = dormouse::engine::JobList { state, limit: usize::MAX, cursor: None, bodies: false };
            let models = ok("list_jobs", self.model.list_jobs(q, list).await).expect("it begins");
            self.same_views(&format!("the {state:?} jobs of {q}"), &ours, &models.jobs)?;
        }
        let ours = self.s.queue_view(q).await;
        let page = ok("list_queues", self.model.list_queues(&q.namespace, None, 1000).await);
        let models = page.queues.into_iter().find(|view| view.queue == *q);
        // Queues without jobs may be forgotten, and not be known yet.
        let (Some(ours), Some(models)) = (ours, models) else { return Ok(()) };
        for (ours, model, what) in [
            (ours.ready, models.ready, "ready"),
            (ours.delayed, models.delayed, "delayed"),
            (ours.running, models.running, "running"),
            (ours.dead, models.dead, "dead"),
        ] {
            if ours < model && ours.is_some() {
                return Err(format!("{ours:?} {what} in {q}, the model says {model:?}"));
            }
        }
        if self.virtual_time && ours.oldest_ready_age.is_some() {
            same("oldest_ready_age", ours.oldest_ready_age, models.oldest_ready_age)?;
        }
        Ok(())
    }
}
