//! Random operations on the disk engine and on the model, with windows so small that every step crosses their
//! edges: after each step both must answer the same, also after a reopen and after a crash.

mod disk_common;
mod support;

use std::fmt::Debug;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use disk_common::*;
use dormouse::clock::ManualClock;
use dormouse::engine::Engine;
use dormouse::engine::disk::DiskEngine;
use dormouse::error::Result;
use dormouse::job::{Job, NewJob};
use dormouse::name::{Queue, QueueList};
use proptest::prelude::*;
use support::model::ModelEngine;
use tempfile::TempDir;

/// One random step. Queues and ids are few, so that they meet.
#[derive(Clone, Debug)]
enum Step {
    Publish { queue: usize, ids: Vec<u64>, delay: u64, ttl: Option<u64>, tries: u16 },
    Republish { queue: usize, old: u64, new: u64, delay: u64 },
    Consume { queues: Vec<usize>, counts: Vec<u16>, ttr: u64 },
    GiveBack { last: usize },
    Ack { queue: usize, id: u64 },
    Respawn { queue: usize, limit: u64, ttl: Option<u64> },
    DeleteDead { queue: usize, limit: u64 },
    Destroy { queue: usize },
    Pump { limit: usize },
    Advance { ms: u64 },
    Sweep,
    Reopen,
    Crash,
}

const QUEUES: [&str; 3] = ["a", "ab", "b"];
const IDS: u64 = 12;

fn steps() -> impl Strategy<Value = Step> {
    let q = 0..QUEUES.len();
    let delay = || prop_oneof![2 => Just(0u64), 3 => 1u64..40];
    let ttl = || prop_oneof![2 => Just(None), 1 => (40u64..90).prop_map(Some)];
    let n = 0..IDS;
    prop_oneof![
        10 => (q.clone(), prop::collection::vec(n.clone(), 1..5), delay(), ttl(), 1u16..4)
            .prop_map(|(queue, ids, delay, ttl, tries)| Step::Publish { queue, ids, delay, ttl, tries }),
        3 => (q.clone(), n.clone(), n.clone(), delay())
            .prop_map(|(queue, old, new, delay)| Step::Republish { queue, old, new, delay }),
        8 => (prop::collection::vec(q.clone(), 1..3), prop::collection::vec(1u16..4, 1..3), 1u64..40)
            .prop_map(|(queues, counts, ttr)| Step::Consume { queues, counts, ttr }),
        3 => (1usize..5).prop_map(|last| Step::GiveBack { last }),
        6 => (q.clone(), n).prop_map(|(queue, id)| Step::Ack { queue, id }),
        2 => (q.clone(), 1u64..4, ttl()).prop_map(|(queue, limit, ttl)| Step::Respawn { queue, limit, ttl }),
        1 => (q.clone(), 1u64..3).prop_map(|(queue, limit)| Step::DeleteDead { queue, limit }),
        1 => q.prop_map(|queue| Step::Destroy { queue }),
        6 => (1usize..8).prop_map(|limit| Step::Pump { limit }),
        6 => (1u64..30).prop_map(|ms| Step::Advance { ms }),
        2 => Just(Step::Sweep),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ]
}

/// The engine and the model, with one clock.
struct World {
    model: ModelEngine,
    clock: Arc<ManualClock>,
    dir: TempDir,
    engine: Arc<DiskEngine>,
    /// Hand-overs, as the engine and as the model gave them.
    running: Vec<(Job, Job)>,
}

/// A job without its receipt, which is the engine's own business.
fn plain(job: &Job) -> Job {
    Job { receipt: 0, ..job.clone() }
}

fn queues() -> impl Iterator<Item = Queue> {
    QUEUES.into_iter().map(queue)
}

impl World {
    fn new() -> World {
        let (clock, dir) = (clock(), tempfile::tempdir().expect("a temporary directory"));
        let engine = World::open(&dir, &clock);
        let model = ModelEngine::new(clock.clone()).with_expired_timers();
        World { model, clock, dir, engine, running: Vec::new() }
    }

    fn open(dir: &TempDir, clock: &Arc<ManualClock>) -> Arc<DiskEngine> {
        let mut options = options(dir.path(), clock);
        options.ready_window = 2;
        options.delayed_window = 2;
        options.forget_queues_after = Duration::from_millis(50);
        DiskEngine::open(options).unwrap_or_else(|e| panic!("the store should open: {e}"))
    }

    async fn reopen(&mut self) {
        self.engine.close().await;
        self.engine = World::open(&self.dir, &self.clock);
    }

    /// Asks both.
    async fn both<T>(&self, what: &str, ask: impl AsyncFn(&dyn Engine) -> Result<T>) -> (T, T) {
        let (engine, model) = (ask(&*self.engine).await, ask(&self.model).await);
        let answered = |answer: Result<T>| answer.unwrap_or_else(|e| panic!("{what} should succeed: {e}"));
        (answered(engine), answered(model))
    }

    /// Asks both, who must answer the same.
    async fn agree<T: PartialEq + Debug>(
        &self,
        what: &str,
        ask: impl AsyncFn(&dyn Engine) -> Result<T>,
    ) -> T {
        let (engine, model) = self.both(what, ask).await;
        assert_eq!(engine, model, "{what}: the engine's answer is on the left, the model's on the right");
        engine
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Publish { queue: q, ids, delay, ttl, tries } => {
                let new = |n: &u64| NewJob {
                    body: format!("{n} at {}", self.model.now()).into(),
                    delay: Duration::from_millis(*delay),
                    ttl: ttl.map(Duration::from_millis),
                    tries: NonZeroU16::new(*tries).expect("tries begin at 1"),
                    ..job(&queue(QUEUES[*q]), *n)
                };
                let jobs: Vec<NewJob> = ids.iter().map(new).collect();
                self.agree("publish", async |e| Ok(e.publish(jobs.clone()).await.is_ok())).await;
            }
            Step::Republish { queue: q, old, new, delay } => {
                let q = queue(QUEUES[*q]);
                let new = NewJob { delay: Duration::from_millis(*delay), ..job(&q, *new) };
                let republish =
                    async |e: &dyn Engine| Ok(e.republish(job_ref(&q, *old), new.clone()).await.is_ok());
                self.agree("republish", republish).await;
            }
            Step::Consume { queues, counts, ttr } => {
                let names = queues.iter().map(|q| queue(QUEUES[*q]).name);
                let list = QueueList::new(queue("a").namespace, names).expect("not empty");
                let asked = counts.iter().map(|count| usize::from(*count)).sum();
                let ttrs = vec![Duration::from_millis(*ttr); asked];
                let (ours, models) = self.both("consume", async |e| consume(e, &list, &ttrs).await).await;
                let plain = |jobs: &[Job]| jobs.iter().map(plain).collect::<Vec<Job>>();
                assert_eq!(plain(&ours), plain(&models), "consume: the engine's jobs, and the model's");
                self.running.extend(ours.into_iter().zip(models));
            }
            Step::GiveBack { last } => {
                let from = self.running.len().saturating_sub(*last);
                let (ours, models) = self.running.split_off(from).into_iter().unzip();
                self.engine.give_back(ours).await.expect("give_back should succeed");
                self.model.give_back(models).await.expect("the model takes jobs back");
            }
            Step::Ack { queue: q, id } => {
                let job = job_ref(&queue(QUEUES[*q]), *id);
                self.agree("ack", async |e| e.ack(job.clone()).await).await;
            }
            Step::Respawn { queue: q, limit, ttl } => {
                let (q, ttl) = (queue(QUEUES[*q]), ttl.map(Duration::from_millis));
                self.agree("respawn", async |e| e.respawn(&q, *limit, ttl).await).await;
            }
            Step::DeleteDead { queue: q, limit } => {
                let q = queue(QUEUES[*q]);
                self.agree("delete_dead", async |e| e.delete_dead(&q, *limit).await).await;
            }
            Step::Destroy { queue: q } => {
                let q = queue(QUEUES[*q]);
                self.agree("destroy", async |e| e.destroy(&q).await).await;
                assert_eq!(self.agree("size", async |e| e.size(&q).await).await, 0, "ready after a destroy");
            }
            Step::Pump { limit } => {
                // The longest that the engine says; the model says "never".
                const LONGEST: Duration = Duration::from_secs(3600);
                let pump =
                    async |e: &dyn Engine| e.pump(*limit).await.map(|p| (p.moved, p.next.min(LONGEST)));
                self.agree("pump", pump).await;
            }
            Step::Advance { ms } => self.clock.advance(Duration::from_millis(*ms)),
            Step::Sweep => self.engine.sweep().await.expect("sweep should succeed"),
            Step::Reopen => self.reopen().await,
            Step::Crash => {
                let copied = tempfile::tempdir().expect("a temporary directory");
                copy(self.dir.path(), copied.path());
                self.engine.close().await;
                self.engine = World::open(&copied, &self.clock);
                self.dir = copied;
            }
        }
    }

    /// Everything that can be asked without changing anything.
    async fn compare(&self) {
        let listed = self.engine.queues().await.expect("queues should succeed");
        for q in queues() {
            self.agree("peek", async |e| e.peek(&q).await).await;
            self.agree("dead_letter", async |e| e.dead_letter(&q).await).await;
            // The engine may count jobs that were acked or have expired.
            let (size, least) = self.both("size", async |e| e.size(&q).await).await;
            assert!(size >= least, "{size} ready in {q}, and there are {least}");
            let mut used = false;
            for n in 0..IDS {
                let job = job_ref(&q, n);
                used |= self.agree("peek_job", async |e| e.peek_job(&job).await).await.is_some();
            }
            assert!(!used || listed.contains(&q), "{q} holds jobs and is not listed: {listed:?}");
        }
        self.agree("timers", async |e| e.stats().await.map(|stats| stats.timers)).await;
    }

    /// After everything has been acked and swept, nothing may be left.
    async fn drain(&mut self) {
        for q in queues() {
            for n in 0..IDS {
                self.engine.ack(job_ref(&q, n)).await.expect("ack should succeed");
            }
        }
        // Once for the entries, and once more for the queues that are empty since.
        for _ in 0..2 {
            self.clock.advance(Duration::from_secs(10));
            self.engine.sweep().await.expect("sweep should succeed");
        }
        for left in ["in memory", "on disk"] {
            let stats = self.engine.stats().await.expect("stats should succeed");
            assert_eq!((stats.timers, &stats.queues[..]), (0, &[][..]), "nothing should be left {left}");
            self.reopen().await;
        }
        self.engine.close().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_what_the_model_does(steps in prop::collection::vec(steps(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut world = World::new();
            for step in &steps {
                world.step(step).await;
                world.compare().await;
            }
            world.drain().await;
        });
    }
}
