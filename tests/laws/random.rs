//! Random steps on a store and on the model, side by side: every reply must be equal.
//!
//! In virtual time both clocks are kept equal. The steps avoid cases that the contract leaves open: times are even and
//! ttls odd, so that nothing expires at the instant of a call; and nothing is returned between the end of its ttr and
//! the pump.
//!
//! A store with its own clock cannot be kept at the same instant as the model. There, times are short or very long,
//! short ones are waited for at once, and remaining times are not compared.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use dormouse::clock::ManualClock;
use dormouse::engine::{Engine, Listing};
use dormouse::job::{Job, JobRef, NewJob, Receipt};
use dormouse::name::{Queue, QueueList};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::stage::*;
use crate::support::engine_ext::EngineExt;
use crate::support::model::ModelEngine;

/// Number of steps of one run; with a real clock each may take real time.
const STEPS: usize = 1200;
const REAL_STEPS: usize = 300;

/// A short time with a real clock.
const SOON: Duration = Duration::from_millis(2);

/// Guards against unforeseen differences.
pub async fn random_steps_agree_with_the_model(s: &dyn Stage) {
    let steps = if s.differences().virtual_time { STEPS } else { REAL_STEPS };
    compare_with_model(s, 0x5eed, steps, false).await;
}

/// Takes `steps` random steps that follow from `seed`, some of them by the verbs that lmstfy does not have if
/// `with_verbs`. A failure names the seed and shows the last steps.
pub async fn compare_with_model(s: &dyn Stage, seed: u64, steps: usize, with_verbs: bool) {
    let clock = Arc::new(ManualClock::new(s.engine().now()));
    let mut run = Run {
        s,
        virtual_time: s.differences().virtual_time,
        model: ModelEngine::new(clock.clone()),
        clock,
        random: Random::new(seed),
        published: Vec::new(),
        running: Vec::new(),
        with_verbs,
        held: Vec::new(),
        unsettled: false,
        log: Vec::new(),
    };
    for step in 0..steps + 1 {
        let result = if step < steps { run.step().await } else { run.compare_what_is_left().await };
        if let Err(difference) = result {
            let last = run.log.iter().rev().take(25).rev().cloned().collect::<Vec<_>>().join("\n");
            panic!("step {step} of seed {seed:#x} differs: {difference}\nthe last steps:\n{last}");
        }
    }
}

pub(super) struct Run<'a> {
    pub(super) s: &'a dyn Stage,
    pub(super) virtual_time: bool,
    pub(super) model: ModelEngine,
    clock: Arc<ManualClock>,
    pub(super) random: Random,
    /// Published jobs, to ack and read in any state.
    published: Vec<JobRef>,
    /// Deliveries of the engine and of the model.
    running: Vec<(Job, Job)>,
    with_verbs: bool,
    /// Receipts of the engine and of the model; some are no longer valid.
    pub(super) held: Vec<(JobRef, Receipt, Receipt)>,
    /// Where time is real: a short time was given, and must end before the next step.
    unsettled: bool,
    pub(super) log: Vec<String>,
}

/// Random numbers that depend on the seed only.
pub(super) struct Random(TestRng);

impl Random {
    fn new(seed: u64) -> Random {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Random(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn queue(&mut self) -> Queue {
        let (namespace, name) = QUEUES[self.below(QUEUES.len() as u64) as usize];
        queue_in(namespace, name)
    }

    /// Returns an even number of milliseconds.
    fn time(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most / 2 + 1) * 2)
    }
}

pub(super) const QUEUES: [(&str, &str); 4] = [("a", "q"), ("a", "q-"), ("a", "r"), ("b", "q")];

/// Returns the reply of both, or an error if they differ.
pub(super) fn same<T: PartialEq + Debug>(what: &str, engine: T, model: T) -> Result<T, String> {
    if engine == model { Ok(engine) } else { Err(format!("{what}: {engine:?}, the model says {model:?}")) }
}

impl Run<'_> {
    async fn step(&mut self) -> Result<(), String> {
        let engine = self.s.engine();
        let q = self.random.queue();
        if self.with_verbs && self.random.below(2) == 0 {
            self.verb(&*engine, q).await?;
            return if self.unsettled { self.pass(&*engine).await } else { Ok(()) };
        }
        match self.random.below(20) {
            0..5 => self.publish(&*engine, q).await?,
            5..10 => self.consume(&*engine, q).await?,
            10 | 11 => self.ack(&*engine).await?,
            12 => self.give_back(&*engine).await?,
            13..16 => self.pass(&*engine).await?,
            16 => self.republish(&*engine, q).await?,
            17 => self.bulk(&*engine, q).await?,
            _ => self.read(&*engine, q).await?,
        }
        if self.unsettled { self.pass(&*engine).await } else { Ok(()) }
    }

    /// Returns the comparable part of a job: without the receipt, and without the time since when it was ready, which
    /// stores know with different precision.
    fn plain(&self, job: &Job) -> Job {
        let job = Job { receipt: 0, due: 0, ..job.clone() };
        if self.virtual_time {
            return job;
        }
        Job { ttl: job.ttl.map(|_| LONG), elapsed: Duration::ZERO, ..job }
    }

    fn plain_all(&self, jobs: &[Job]) -> Vec<Job> {
        jobs.iter().map(|job| self.plain(job)).collect()
    }

    /// Returns an even number of milliseconds up to `most`; with a real clock a short or a long time.
    pub(super) fn time(&mut self, most: u64) -> Duration {
        if self.virtual_time {
            return self.random.time(most);
        }
        let soon = self.random.below(3) > 0;
        self.unsettled |= soon;
        if soon { SOON } else { LONG }
    }

    pub(super) fn ttl(&mut self) -> Option<Duration> {
        let time = if self.virtual_time { self.random.time(600) } else { LONG * 2 };
        (self.random.below(3) > 0).then_some(time + Duration::from_millis(101))
    }

    pub(super) fn new_job(&mut self, q: &Queue) -> NewJob {
        let mut draft = job(q, self.log.len().to_string());
        draft = draft.tries(1 + self.random.below(3) as u16).attributes(&[("step", "x")]);
        if self.random.below(3) == 0 {
            draft = draft.delay(self.time(100)); // less than the shortest ttl
        }
        if let Some(ttl) = self.ttl() {
            draft = draft.ttl(ttl);
        }
        if self.random.below(4) == 0 {
            draft = draft.versioned();
        }
        let new = draft.make(self.s);
        self.published.push(new.name());
        new
    }

    /// Returns one of the latest jobs.
    pub(super) fn any_published(&mut self) -> JobRef {
        match self.published.len() as u64 {
            0 => job(&queue("q"), "unknown").make(self.s).name(),
            n => self.published[(n - 1 - self.random.below(n.min(40))) as usize].clone(),
        }
    }

    async fn publish(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let mut jobs: Vec<NewJob> = (0..1 + self.random.below(4)).map(|_| self.new_job(&q)).collect();
        let taken = self.any_published();
        // Reused ids can be compared only while stored, which only the model knows. (Real ids are never reused, and
        // Redis would not distinguish old entries from new ones.)
        if taken.queue == q && self.random.below(4) == 0 && self.find_in_model(&taken).await.is_some() {
            let at = self.random.below(jobs.len() as u64) as usize;
            jobs[at].id = taken.id;
        }
        self.log.push(format!("publish {jobs:?}"));
        let answers = (engine.publish(jobs.clone().into()).await, self.model.publish(jobs.into()).await);
        same("publish", answers.0.is_ok(), answers.1.is_ok()).map(drop)
    }

    async fn find_in_model(&self, job: &JobRef) -> Option<Job> {
        ok("inspect_stored", self.model.inspect_stored(job).await)
    }

    async fn republish(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let (old, taken) = (self.any_published(), self.any_published());
        let mut new = self.new_job(&q);
        if taken.queue == q && taken != old && self.find_in_model(&taken).await.is_some() {
            new.id = taken.id;
        }
        self.log.push(format!("republish {old:?} as {new:?}"));
        let answers =
            (engine.republish(old.clone(), new.clone()).await, self.model.republish(old, new).await);
        same("republish", answers.0.is_ok(), answers.1.is_ok()).map(drop)
    }

    async fn consume(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let others = ["q", "q-", "r"].into_iter().take(self.random.below(3) as usize);
        let names = [q.name.clone()].into_iter().chain(others.map(|name| queue(name).name));
        let queues = QueueList::new(q.namespace, names).expect("at least one queue");
        let ttrs: Vec<_> =
            (0..1 + self.random.below(7)).map(|_| Duration::from_millis(2) + self.time(80)).collect();
        self.log.push(format!("consume {queues:?} for {ttrs:?}"));
        let jobs = ok("consume", consume(engine, &queues, &ttrs).await);
        let expected = ok("consume", consume(&self.model, &queues, &ttrs).await);
        same("consume", self.plain_all(&jobs), self.plain_all(&expected))?;
        let receipts =
            jobs.iter().zip(&expected).map(|(job, model)| (job.name(), job.proof(), model.proof()));
        self.held.extend(receipts);
        self.running.extend(jobs.into_iter().zip(expected));
        Ok(())
    }

    async fn ack(&mut self, engine: &dyn Engine) -> Result<(), String> {
        let name = match self.running.last() {
            Some((job, _)) if self.random.below(3) > 0 => job.name(),
            _ => self.any_published(),
        };
        self.log.push(format!("ack {name:?}"));
        let answers = (engine.ack_job(name.clone()).await, self.model.ack_job(name).await);
        same("ack", answers.0.is_ok(), answers.1.is_ok()).map(drop)
    }

    /// Returns some late deliveries; some have been acked, ended, or returned before.
    async fn give_back(&mut self, engine: &dyn Engine) -> Result<(), String> {
        self.pump(engine).await?;
        let from = self.running.len().saturating_sub(1 + self.random.below(30) as usize);
        let some = self.running[from..].iter().take(1 + self.random.below(6) as usize).cloned();
        let (jobs, of_model): (Vec<_>, Vec<_>) = some.unzip();
        self.log.push(format!("give back {jobs:?}"));
        let answers = (engine.give_back(jobs).await, self.model.give_back(of_model).await);
        same("give_back", answers.0.is_ok(), answers.1.is_ok()).map(drop)
    }

    /// Advances both clocks, and usually pumps.
    async fn pass(&mut self, engine: &dyn Engine) -> Result<(), String> {
        let time = if self.virtual_time { self.random.time(60) } else { SOON * 2 };
        self.log.push(format!("{time:?} pass"));
        self.clock.advance(time);
        self.s.advance(time).await;
        if self.random.below(4) > 0 || !self.virtual_time {
            self.pump(engine).await?;
        }
        self.unsettled = false;
        if self.virtual_time {
            same("now", engine.now(), self.model.now())?;
        }
        Ok(())
    }

    /// Pumps until nothing more is due.
    async fn pump(&mut self, engine: &dyn Engine) -> Result<(), String> {
        self.log.push("pump".to_owned());
        for _ in 0..1000 {
            let pumped = ok("pump", engine.pump().await);
            let expected = ok("pump", self.model.pump().await);
            // A store may move timers of deleted jobs, and wake for them.
            if pumped.moved == 0 && expected.moved == 0 && !self.s.is_overdue().await {
                let late = self.virtual_time && pumped.next > expected.next;
                let message = || format!("{pumped:?}, but the model's next is due in {:?}", expected.next);
                return if late { Err(message()) } else { Ok(()) };
            }
        }
        Err("the pump finds due jobs without end".to_owned())
    }

    async fn bulk(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let (kind, limit, ttl) = (self.random.below(6), self.random.below(5), self.ttl());
        self.log.push(format!("bulk {kind} of {q}, limit {limit}, ttl {ttl:?}"));
        let counts = match kind {
            0 => {
                let answers =
                    (engine.destroy(&q, Listing::Keep).await, self.model.destroy(&q, Listing::Keep).await);
                (u64::from(answers.0.is_ok()), u64::from(answers.1.is_ok()))
            }
            1 => (
                ok("delete_dead", engine.delete_dead(&q, limit).await),
                ok("delete_dead", self.model.delete_dead(&q, limit).await),
            ),
            _ => (
                ok("respawn", engine.respawn_oldest(&q, limit, ttl).await),
                ok("respawn", self.model.respawn_oldest(&q, limit, ttl).await),
            ),
        };
        same("count", counts.0, counts.1).map(drop)
    }

    /// Compares everything that can be read of a queue and a job.
    async fn read(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let name = self.any_published();
        self.log.push(format!("read {q} and {name:?}"));
        let plain = |job: Option<Job>| job.map(|job| self.plain(&job));
        let heads = (ok("peek", engine.peek(&q).await), ok("peek", self.model.peek(&q).await));
        same("peek", plain(heads.0), plain(heads.1))?;
        let jobs =
            (ok("inspect_stored", engine.inspect_stored(&name).await), self.find_in_model(&name).await);
        same("inspect_stored", plain(jobs.0), plain(jobs.1))?;
        let sizes = (ok("size", engine.ready(&q).await), ok("size", self.model.ready(&q).await));
        let dead = (
            ok("dead_letter", engine.dead_letter(&q).await),
            ok("dead_letter", self.model.dead_letter(&q).await),
        );
        if self.s.differences().exact_sizes {
            same("size", sizes.0, sizes.1)?;
            same("dead_letter", dead.0, dead.1)?;
        }
        let least = sizes.0 >= sizes.1 && dead.0.jobs >= dead.1.jobs;
        if least { Ok(()) } else { Err(format!("{sizes:?} ready, {dead:?} dead: less than there are")) }
    }

    /// At the end everything is ready or dead, and both deliver it in the same order.
    async fn compare_what_is_left(&mut self) -> Result<(), String> {
        let engine = self.s.engine();
        for (namespace, name) in QUEUES {
            let q = queue_in(namespace, name);
            self.read(&*engine, q.clone()).await?;
            if self.with_verbs {
                self.look(&*engine, &q).await?;
            }
            for what in ["ready", "dead"] {
                loop {
                    let queues = q.clone().into();
                    let jobs = ok("consume", consume(&*engine, &queues, &[LONG; 100]).await);
                    let expected = ok("consume", consume(&self.model, &queues, &[LONG; 100]).await);
                    same(what, self.plain_all(&jobs), self.plain_all(&expected))?;
                    if jobs.is_empty() {
                        break;
                    }
                }
                let counts = (
                    engine.respawn_oldest(&q, u64::MAX, None).await,
                    self.model.respawn_oldest(&q, u64::MAX, None).await,
                );
                same("respawned", ok("respawn", counts.0), ok("respawn", counts.1))?;
            }
        }
        Ok(())
    }
}
