//! Random operations on the disk engine and on the model, with windows so small that every step crosses their edges:
//! after each step both must return the same, also after a reopen and after a crash.

use std::fmt::Debug;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use crate::support::engine_ext::tries;
use crate::support::model::ModelEngine;
use dormouse::clock::ManualClock;
use dormouse::engine::disk::DiskEngine;
use dormouse::engine::{
    By, Engine, Held, How, JobList, Listing, OnConflict, Once, Placed, Placing, Publication, Published,
    QueuePage, QueueView, Release, Revival,
};
use dormouse::error::Result;
use dormouse::job::{Job, JobRef, JobState, JobView, NewJob, Reason, Receipt};
use dormouse::name::{IdempotencyKey, JobKey, Queue, QueueList};
use proptest::prelude::*;
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
    PublishWith { queue: usize, jobs: Vec<Keyed>, replaces: Option<u64>, once: Option<(u8, u8)> },
    Touch { back: usize, ttr: u64 },
    Release { back: usize, delay: u64, restore_try: bool, reason: bool },
    Bury { back: usize, reason: bool },
    AckMany { queue: usize, jobs: Vec<(u64, bool)>, back: usize },
    Cancel { queue: usize, key: usize },
    Promote { queue: usize, id: u64, key: Option<usize> },
    RespawnJobs { queue: usize, ids: Vec<u64>, tries: u16, delay: u64, ttl: Option<u64> },
    Pump,
    Advance { ms: u64 },
    Sweep,
    Reopen,
    Crash,
}

/// A job for `Engine::publish`.
#[derive(Clone, Debug)]
struct Keyed {
    id: u64,
    key: Option<(usize, OnConflict)>,
    at: Option<u64>,
    ttl: Option<u64>,
    tries: u16,
}

const KEYS: [&str; 3] = ["k", "kk", "l"];
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
        1 => q.clone().prop_map(|queue| Step::Destroy { queue }),
        8 => (q.clone(), prop::collection::vec(keyed(), 1..4), prop::option::weighted(0.2, 0..IDS), once())
            .prop_map(|(queue, jobs, replaces, once)| Step::PublishWith { queue, jobs, replaces, once }),
        3 => (0usize..6, 1u64..40).prop_map(|(back, ttr)| Step::Touch { back, ttr }),
        6 => (0usize..6, delay(), any::<bool>(), any::<bool>())
            .prop_map(|(back, delay, restore_try, reason)| Step::Release { back, delay, restore_try, reason }),
        2 => (0usize..6, any::<bool>()).prop_map(|(back, reason)| Step::Bury { back, reason }),
        2 => (q.clone(), prop::collection::vec((0..IDS, any::<bool>()), 1..4), 0usize..6)
            .prop_map(|(queue, jobs, back)| Step::AckMany { queue, jobs, back }),
        2 => (q.clone(), 0..KEYS.len()).prop_map(|(queue, key)| Step::Cancel { queue, key }),
        4 => (q.clone(), 0..IDS, prop::option::weighted(0.3, 0..KEYS.len()))
            .prop_map(|(queue, id, key)| Step::Promote { queue, id, key }),
        2 => (q.clone(), prop::collection::vec(0..IDS, 1..4), 1u16..4, delay(), ttl())
            .prop_map(|(queue, ids, tries, delay, ttl)| Step::RespawnJobs { queue, ids, tries, delay, ttl }),
        6 => Just(Step::Pump),
        6 => (1u64..30).prop_map(|ms| Step::Advance { ms }),
        2 => Just(Step::Sweep),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ]
}

fn keyed() -> impl Strategy<Value = Keyed> {
    let on_conflict =
        prop_oneof![1 => Just(OnConflict::Keep), 1 => Just(OnConflict::Fail), 2 => Just(OnConflict::Replace)];
    let key = prop::option::weighted(0.8, (0..KEYS.len(), on_conflict));
    let at = prop::option::of(0u64..40);
    (0..IDS, key, at, prop::option::weighted(0.3, 40u64..90), 1u16..4)
        .prop_map(|(id, key, at, ttl, tries)| Keyed { id, key, at, ttl, tries })
}

/// Generates an idempotency key and a request.
fn once() -> impl Strategy<Value = Option<(u8, u8)>> {
    prop::option::weighted(0.3, (0u8..3, 0u8..2))
}

/// Returns the fields that the engine must know. The time since which a job is ready or dead comes from ids, which all
/// have the same time here.
fn known(view: &JobView, model: &JobView) -> JobView {
    let knows = matches!(model.state, Some(JobState::Delayed | JobState::Running));
    let (due_at, tries_left) =
        if knows { (view.due_at, view.tries_left) } else { (None, view.tries_left.or(model.tries_left)) };
    JobView { due_at, tries_left, ..view.clone() }
}

fn all_known(views: &[JobView], models: &[JobView]) -> Vec<JobView> {
    views.iter().enumerate().map(|(i, view)| known(view, models.get(i).unwrap_or(view))).collect()
}

/// The engine and the model, with one clock.
struct World {
    model: ModelEngine,
    clock: Arc<ManualClock>,
    dir: TempDir,
    engine: Arc<DiskEngine>,
    /// Deliveries, as returned by the engine and by the model.
    running: Vec<(Job, Job)>,
    /// Receipts of deliveries, of both.
    held: Vec<(JobRef, Receipt, Receipt)>,
}

/// A job without its receipt, which is the engine's own business.
fn plain(job: &Job) -> Job {
    Job { receipt: 0, due: 0, ..job.clone() }
}

fn job_key(key: &str) -> JobKey {
    JobKey::parse(key).expect("a key")
}

/// So few that a pump leaves some behind.
const PUMP: usize = 3;

fn queues() -> impl Iterator<Item = Queue> {
    QUEUES.into_iter().map(queue)
}

impl World {
    fn new() -> World {
        let (clock, dir) = (clock(), tempfile::tempdir().expect("a temporary directory"));
        let engine = World::open(&dir, &clock);
        let mut model = ModelEngine::new(clock.clone());
        model.expired_timers_stay = true;
        model.pump = PUMP;
        World { model, clock, dir, engine, running: Vec::new(), held: Vec::new() }
    }

    fn open(dir: &TempDir, clock: &Arc<ManualClock>) -> Arc<DiskEngine> {
        let mut options = options(dir.path(), clock);
        options.ready_window = 2;
        options.delayed_window = 2;
        options.pump = PUMP;
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

    /// Calls both, which must reply equally.
    async fn agree<T: PartialEq + Debug>(
        &self,
        what: &str,
        ask: impl AsyncFn(&dyn Engine) -> Result<T>,
    ) -> T {
        let (engine, model) = self.both(what, ask).await;
        assert_eq!(engine, model, "{what}: the engine's answer is on the left, the model's on the right");
        engine
    }

    /// Returns one of the latest deliveries, which may have ended.
    fn held(&self, back: usize) -> Option<(JobRef, Receipt, Receipt)> {
        self.held.iter().rev().nth(back).cloned()
    }

    fn reason(&self, given: bool) -> Option<Reason> {
        given.then(|| Reason::new(&format!("at {}", self.model.now())).expect("short"))
    }

    /// All jobs of a queue in one state.
    async fn list(&self, engine: &dyn Engine, q: &Queue, state: JobState) -> Vec<JobView> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let list = JobList { state, limit: 3, cursor, bodies: true };
            let page =
                engine.list_jobs(q, list).await.expect("list_jobs should succeed").expect("its own cursor");
            all.extend(page.jobs);
            cursor = page.cursor;
            if cursor.is_none() {
                return all;
            }
        }
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
                self.agree("publish", async |e| Ok(e.publish(jobs.clone().into()).await.is_ok())).await;
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
                let job = |job: &Job| JobRef { queue: job.queue.clone(), id: job.id };
                let receipts =
                    ours.iter().zip(&models).map(|(ours, model)| (job(ours), ours.proof(), model.proof()));
                self.held.extend(receipts);
                self.running.extend(ours.into_iter().zip(models));
            }
            Step::PublishWith { queue: q, jobs, replaces, once } => {
                let q = queue(QUEUES[*q]);
                let now = self.model.now();
                let placing = |keyed: &Keyed| Placing {
                    job: NewJob {
                        body: format!("{} at {now}", keyed.id).into(),
                        ttl: keyed.ttl.map(Duration::from_millis),
                        tries: NonZeroU16::new(keyed.tries).expect("tries begin at 1"),
                        ..job(&q, keyed.id)
                    },
                    at: keyed.at.map(|at| now + at),
                    key: keyed.key.map(|(key, on_conflict)| (job_key(KEYS[key]), on_conflict)),
                };
                let publication = Publication {
                    jobs: jobs.iter().map(placing).collect(),
                    replaces: replaces.map(|old| job_ref(&q, old)),
                    once: once.map(|(key, what)| {
                        Once::request(IdempotencyKey::new(&[key]).expect("one byte"), [what; 16])
                    }),
                };
                let without_times = |placed: Vec<Placed>| -> Vec<Placed> {
                    let told = |placed: &Placed| placed.how != How::Duplicate;
                    placed
                        .into_iter()
                        .map(|p| Placed { due_at: p.due_at.filter(|_| told(&p)), ..p })
                        .collect()
                };
                let publish = async |e: &dyn Engine| {
                    Ok(match e.publish(publication.clone()).await {
                        Ok(Published::Done(placed)) => Some(Published::Done(without_times(placed))),
                        Ok(Published::Replay(placed)) => Some(Published::Replay(without_times(placed))),
                        other => other.ok(),
                    })
                };
                self.agree("publish", publish).await;
            }
            Step::Touch { back, ttr } => {
                let Some((job, ours, model)) = self.held(*back) else { return };
                let ttr = Duration::from_millis(*ttr);
                let ours = self.engine.touch(&job, ours, ttr).await.expect("touch should answer");
                let model = self.model.touch(&job, model, ttr).await.expect("the model answers");
                match (ours, model) {
                    (Held::Done(ours), Held::Done(model)) => {
                        assert_eq!(ours.until, model.until, "touch: the engine's until, and the model's");
                        self.held.push((job, ours.receipt, model.receipt));
                    }
                    (ours, model) => assert_eq!(ours, model, "touch: the engine's answer, and the model's"),
                }
            }
            Step::Release { back, delay, restore_try, reason } => {
                let Some((job, ours, model)) = self.held(*back) else { return };
                let release = Release {
                    delay: Duration::from_millis(*delay),
                    tries: tries(*restore_try),
                    reason: self.reason(*reason),
                };
                let ours =
                    self.engine.release(&job, ours, release.clone()).await.expect("release should answer");
                let model = self.model.release(&job, model, release).await.expect("the model answers");
                assert_eq!(ours, model, "release: the engine's answer, and the model's");
            }
            Step::Bury { back, reason } => {
                let Some((job, ours, model)) = self.held(*back) else { return };
                let reason = self.reason(*reason);
                let ours = self.engine.bury(&job, ours, reason.clone()).await.expect("bury should answer");
                let model = self.model.bury(&job, model, reason).await.expect("the model answers");
                assert_eq!(ours, model, "bury: the engine's answer, and the model's");
            }
            Step::AckMany { queue: q, jobs, back } => {
                let q = queue(QUEUES[*q]);
                let Some((_, ours, model)) = self.held(*back) else { return };
                // A receipt of another job is invalid.
                let of = |n: u64, receipt: Receipt, with: bool| {
                    let last = self.held.iter().rev().find(|(job, ..)| *job == job_ref(&q, n));
                    let own = |(_, ours, model): &(JobRef, Receipt, Receipt)| (*ours, *model);
                    with.then(|| last.map_or((receipt, receipt), own))
                };
                let of_engine: Vec<_> =
                    jobs.iter().map(|(n, with)| (id(*n), of(*n, ours, *with).map(|r| r.0))).collect();
                let of_model: Vec<_> =
                    jobs.iter().map(|(n, with)| (id(*n), of(*n, model, *with).map(|r| r.1))).collect();
                let ours = self.engine.ack(&q, &of_engine).await.expect("ack should answer");
                let models = self.model.ack(&q, &of_model).await.expect("the model answers");
                assert_eq!(ours, models, "ack: the engine's answer, and the model's");
            }
            Step::Cancel { queue: q, key } => {
                let (q, key) = (queue(QUEUES[*q]), job_key(KEYS[*key]));
                self.agree("cancel_key", async |e| e.cancel_key(&q, &key).await).await;
            }
            Step::Promote { queue: q, id: n, key } => {
                let (q, key) = (queue(QUEUES[*q]), key.map(|key| job_key(KEYS[key])));
                let by = key.as_ref().map_or(By::Id(id(*n)), By::Key);
                self.agree("promote", async |e| e.promote(&q, by).await).await;
            }
            Step::RespawnJobs { queue: q, ids, tries, delay, ttl } => {
                let (q, ids): (_, Vec<_>) = (queue(QUEUES[*q]), ids.iter().map(|n| id(*n)).collect());
                let revival = Revival {
                    tries: NonZeroU16::new(*tries).expect("tries begin at 1"),
                    delay: Duration::from_millis(*delay),
                    ttl: ttl.map(Duration::from_millis),
                };
                self.agree("respawn_jobs", async |e| e.respawn_jobs(&q, &ids, revival).await).await;
            }
            Step::GiveBack { last } => {
                let from = self.running.len().saturating_sub(*last);
                let (ours, models) = self.running.split_off(from).into_iter().unzip();
                self.engine.give_back(ours).await.expect("give_back should succeed");
                self.model.give_back(models).await.expect("the model takes jobs back");
            }
            Step::Ack { queue: q, id } => {
                let job = job_ref(&queue(QUEUES[*q]), *id);
                self.agree("ack", async |e| e.ack_job(job.clone()).await).await;
            }
            Step::Respawn { queue: q, limit, ttl } => {
                let (q, ttl) = (queue(QUEUES[*q]), ttl.map(Duration::from_millis));
                self.agree("respawn", async |e| e.respawn_oldest(&q, *limit, ttl).await).await;
            }
            Step::DeleteDead { queue: q, limit } => {
                let q = queue(QUEUES[*q]);
                self.agree("delete_dead", async |e| e.delete_dead(&q, *limit).await).await;
            }
            Step::Destroy { queue: q } => {
                let q = queue(QUEUES[*q]);
                self.agree("destroy", async |e| e.destroy(&q, Listing::Keep).await).await;
                assert_eq!(self.agree("size", async |e| e.ready(&q).await).await, 0, "ready after a destroy");
            }
            Step::Pump => {
                // The longest that the engine says; the model says "never".
                const LONGEST: Duration = Duration::from_secs(3600);
                let pump = async |e: &dyn Engine| e.pump().await.map(|p| (p.moved, p.next.min(LONGEST)));
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

    /// Compares the lists of one queue.
    async fn look(&self, q: &Queue) {
        for key in KEYS.map(job_key) {
            let find =
                async |e: &dyn Engine| Ok(e.inspect_by_key(q, &key).await?.map(|view| (view.id, view.key)));
            self.agree("inspect_by_key", find).await;
        }
        for state in JobState::ALL {
            let (ours, model) =
                (self.list(&*self.engine, q, state).await, self.list(&self.model, q, state).await);
            assert_eq!(
                all_known(&ours, &model),
                all_known(&model, &model),
                "{state:?} jobs: the engine's, the model's"
            );
        }
        let views = self.both("list_queues", async |e| e.list_queues(&q.namespace, None, 100).await).await;
        let view = |page: QueuePage| page.queues.into_iter().find(|view| view.queue == *q);
        let (ours, model) = (view(views.0), view(views.1));
        if let (Some(ours), Some(model)) = (ours, model) {
            let counts = |view: &QueueView| (view.delayed, view.running, view.dead);
            assert_eq!(
                counts(&ours),
                counts(&model),
                "delayed, running, dead: the engine's, and the model's"
            );
        }
    }

    /// Everything that can be asked without changing anything, of one queue closely.
    async fn compare(&self, close: usize) {
        let listed = self.engine.queues().await.expect("queues should succeed");
        for (at, q) in queues().enumerate() {
            self.agree("peek", async |e| Ok(e.peek(&q).await?.as_ref().map(plain))).await;
            self.agree("dead_letter", async |e| e.dead_letter(&q).await).await;
            // The engine may count jobs that were acked or have expired.
            let (size, least) = self.both("size", async |e| e.ready(&q).await).await;
            assert!(size >= least, "{size} ready in {q}, and there are {least}");
            let mut used = false;
            for n in 0..IDS {
                let job = job_ref(&q, n);
                used |= self.agree("inspect_stored", async |e| e.inspect_stored(&job).await).await.is_some();
                if at != close {
                    continue;
                }
                let (ours, model) = self.both("inspect", async |e| e.inspect_job(&job).await).await;
                let (ours, model) = (ours.as_slice(), model.as_slice());
                assert_eq!(
                    all_known(ours, model),
                    all_known(model, model),
                    "inspect of {n}: the engine's, the model's"
                );
            }
            assert!(!used || listed.contains(&q), "{q} holds jobs and is not listed: {listed:?}");
            if at == close {
                self.look(&q).await;
            }
        }
        self.agree("timers", async |e| e.stats().await.map(|stats| stats.timers)).await;
    }

    /// After everything has been acked and swept, nothing may be left.
    async fn drain(&mut self) {
        for q in queues() {
            for n in 0..IDS {
                self.engine.ack_job(job_ref(&q, n)).await.expect("ack should succeed");
            }
        }
        for q in queues() {
            for key in KEYS.map(job_key) {
                assert_eq!(
                    self.engine.inspect_by_key(&q, &key).await.expect("inspect_by_key should succeed"),
                    None,
                    "of {q}"
                );
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
            for (at, step) in steps.iter().enumerate() {
                world.step(step).await;
                world.compare(at % QUEUES.len()).await;
            }
            world.drain().await;
        });
    }
}
