//! Random steps on the engine and on the model, side by side: every answer must be the same. Only in virtual
//! time, where both clocks can be kept equal.
//!
//! Where the contract leaves room the steps keep out of it: times are even and ttls odd, so that nothing
//! expires at the very instant of a look; pumps have no limit, since the order between queues is free; and
//! nothing is given back between the end of its ttr and the pump.

use std::sync::Arc;
use std::time::Duration;

use dormouse::clock::ManualClock;
use dormouse::engine::Engine;
use dormouse::job::{Job, JobRef, NewJob};
use dormouse::name::{Queue, QueueList};

use crate::support::model::ModelEngine;
use crate::support::stage::*;

/// How many steps one run of the law takes.
const STEPS: usize = 1200;

/// Guards against what nobody thought of.
pub async fn random_steps_agree_with_the_model(s: &dyn Stage) {
    if s.traits().virtual_time {
        compare_with_model(s, 0x5eed, STEPS).await;
    }
}

/// Takes `steps` random steps that follow from `seed`. A failure names the seed and shows the last steps.
pub async fn compare_with_model(s: &dyn Stage, seed: u64, steps: usize) {
    let clock = Arc::new(ManualClock::new(s.engine().now()));
    let mut run = Run {
        s,
        model: ModelEngine::new(clock.clone()).with_ties_by_arming(s.traits().ties_by_arming),
        clock,
        dice: Dice(seed),
        known: Vec::new(),
        running: Vec::new(),
        log: Vec::new(),
    };
    for step in 0..steps {
        if let Err(difference) = run.step().await {
            let last = run.log.iter().rev().take(25).rev().cloned().collect::<Vec<_>>().join("\n");
            panic!("step {step} of seed {seed:#x} differs: {difference}\nthe last steps:\n{last}");
        }
    }
}

struct Run<'a> {
    s: &'a dyn Stage,
    model: ModelEngine,
    clock: Arc<ManualClock>,
    dice: Dice,
    /// Jobs that were published, to ack and read them in whatever state they are.
    known: Vec<JobRef>,
    /// Hand-overs, as the engine and as the model gave them.
    running: Vec<(Job, Job)>,
    log: Vec<String>,
}

/// Random numbers that depend on the seed only (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn queue(&mut self) -> Queue {
        let (namespace, name) = [("a", "q"), ("a", "q-"), ("a", "r"), ("b", "q")][self.below(4) as usize];
        queue_in(namespace, name)
    }

    /// An even number of milliseconds.
    fn time(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most / 2 + 1) * 2)
    }

    fn ttl(&mut self) -> Option<Duration> {
        (self.below(3) > 0).then(|| self.time(600) + Duration::from_millis(101))
    }
}

/// What both answered, when it is the same.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, engine: T, model: T) -> Result<T, String> {
    if engine == model { Ok(engine) } else { Err(format!("{what}: {engine:?}, the model says {model:?}")) }
}

/// A job without its receipt, which is the engine's own business.
fn plain(job: &Job) -> Job {
    Job { receipt: 0, ..job.clone() }
}

impl Run<'_> {
    async fn step(&mut self) -> Result<(), String> {
        let engine = self.s.engine();
        let q = self.dice.queue();
        match self.dice.below(20) {
            0..5 => self.publish(&*engine, q).await,
            5..10 => self.consume(&*engine, q).await,
            10 | 11 => self.ack(&*engine).await,
            12 => self.give_back(&*engine).await,
            13..16 => self.pass(&*engine).await,
            16 => self.republish(&*engine, q).await,
            17 => self.bulk(&*engine, q).await,
            _ => self.look(&*engine, q).await,
        }
    }

    fn new_job(&mut self, q: &Queue) -> NewJob {
        let mut draft = job(q, self.log.len().to_string());
        draft = draft.tries(1 + self.dice.below(3) as u16).attributes(&[("step", "x")]);
        if self.dice.below(3) == 0 {
            draft = draft.delay(self.dice.time(100)); // less than the shortest ttl
        }
        if let Some(ttl) = self.dice.ttl() {
            draft = draft.ttl(ttl);
        }
        if self.dice.below(4) == 0 {
            draft = draft.versioned();
        }
        let new = draft.make(self.s);
        self.known.push(new.name());
        new
    }

    fn any_known(&mut self, q: &Queue) -> JobRef {
        match self.known.len() as u64 {
            0 => job(q, "unknown").make(self.s).name(),
            n => self.known[(n - 1 - self.dice.below(n.min(40))) as usize].clone(), // one of the latest
        }
    }

    async fn publish(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let jobs: Vec<NewJob> = (0..1 + self.dice.below(4)).map(|_| self.new_job(&q)).collect();
        self.log.push(format!("publish {jobs:?}"));
        let answers = (engine.publish(jobs.clone()).await, self.model.publish(jobs).await);
        same("publish", answers.0.is_ok(), answers.1.is_ok()).map(drop)
    }

    async fn republish(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let old = self.any_known(&q);
        let new = self.new_job(&old.queue);
        self.log.push(format!("republish {old:?} as {new:?}"));
        let answers =
            (engine.republish(old.clone(), new.clone()).await, self.model.republish(old, new).await);
        same("republish", answers.0.is_ok(), answers.1.is_ok()).map(drop)
    }

    async fn consume(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let others = ["q", "q-", "r"].into_iter().take(self.dice.below(3) as usize);
        let names = [q.name.clone()].into_iter().chain(others.map(|name| queue(name).name));
        let queues = QueueList::new(q.namespace, names).expect("at least one queue");
        let ttrs: Vec<_> =
            (0..1 + self.dice.below(9)).map(|_| Duration::from_millis(2) + self.dice.time(80)).collect();
        self.log.push(format!("consume {queues:?} for {ttrs:?}"));
        let ours = ok("consume", consume(engine, &queues, &ttrs).await);
        let models = ok("consume", consume(&self.model, &queues, &ttrs).await);
        let plain_jobs = |jobs: &[Job]| jobs.iter().map(plain).collect::<Vec<_>>();
        same("consume", plain_jobs(&ours), plain_jobs(&models))?;
        self.running.extend(ours.into_iter().zip(models));
        Ok(())
    }

    async fn ack(&mut self, engine: &dyn Engine) -> Result<(), String> {
        let name = match self.running.last() {
            Some((job, _)) if self.dice.below(3) > 0 => job.name(),
            _ => self.any_known(&queue("q")),
        };
        self.log.push(format!("ack {name:?}"));
        let answers = (engine.ack(name.clone()).await, self.model.ack(name).await);
        same("ack", answers.0.is_ok(), answers.1.is_ok()).map(drop)
    }

    /// Gives back some late hand-overs; some of those were acked, or ended, or given back before.
    async fn give_back(&mut self, engine: &dyn Engine) -> Result<(), String> {
        self.pump(engine).await;
        let from = self.running.len().saturating_sub(1 + self.dice.below(30) as usize);
        let some = self.running[from..].iter().take(1 + self.dice.below(6) as usize).cloned();
        let (ours, models): (Vec<_>, Vec<_>) = some.unzip();
        self.log.push(format!("give back {ours:?}"));
        let answers = (engine.give_back(ours).await, self.model.give_back(models).await);
        same("give_back", answers.0.is_ok(), answers.1.is_ok()).map(drop)
    }

    /// Moves both clocks, and most of the times what is due.
    async fn pass(&mut self, engine: &dyn Engine) -> Result<(), String> {
        let time = self.dice.time(60);
        self.log.push(format!("{time:?} pass"));
        self.clock.advance(time);
        self.s.advance(time).await;
        if self.dice.below(4) > 0 {
            self.pump(engine).await;
        }
        same("now", engine.now(), self.model.now()).map(drop)
    }

    async fn pump(&mut self, engine: &dyn Engine) {
        self.log.push("pump".to_string());
        for engine in [engine, &self.model] {
            for _ in 0..100 {
                if ok("pump", engine.pump(1000).await).moved == 0 {
                    break;
                }
            }
        }
    }

    async fn bulk(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let (kind, limit, ttl) = (self.dice.below(6), self.dice.below(5), self.dice.ttl());
        self.log.push(format!("bulk {kind} of {q}, limit {limit}, ttl {ttl:?}"));
        let counts = match kind {
            0 => {
                let answers = (engine.destroy(&q).await, self.model.destroy(&q).await);
                (u64::from(answers.0.is_ok()), u64::from(answers.1.is_ok()))
            }
            1 => (
                ok("delete_dead", engine.delete_dead(&q, limit).await),
                ok("delete_dead", self.model.delete_dead(&q, limit).await),
            ),
            _ => (
                ok("respawn", engine.respawn(&q, limit, ttl).await),
                ok("respawn", self.model.respawn(&q, limit, ttl).await),
            ),
        };
        same("count", counts.0, counts.1).map(drop)
    }

    async fn look(&mut self, engine: &dyn Engine, q: Queue) -> Result<(), String> {
        let name = self.any_known(&q);
        self.log.push(format!("look at {q} and {name:?}"));
        let heads = (ok("peek", engine.peek(&q).await), ok("peek", self.model.peek(&q).await));
        same("peek", heads.0, heads.1)?;
        let jobs =
            (ok("peek_job", engine.peek_job(&name).await), ok("peek_job", self.model.peek_job(&name).await));
        same("peek_job", jobs.0, jobs.1)?;
        let sizes = (ok("size", engine.size(&q).await), ok("size", self.model.size(&q).await));
        let dead = (
            ok("dead_letter", engine.dead_letter(&q).await),
            ok("dead_letter", self.model.dead_letter(&q).await),
        );
        if self.s.traits().exact_sizes {
            same("size", sizes.0, sizes.1)?;
            same("dead_letter", dead.0, dead.1)?;
        }
        let least = sizes.0 >= sizes.1 && dead.0.size >= dead.1.size;
        if least { Ok(()) } else { Err(format!("{sizes:?} ready, {dead:?} dead: less than there are")) }
    }
}
