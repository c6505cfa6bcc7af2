//! Random operations against the disk engine and against a model that keeps everything in plain maps: after
//! each step both must answer the same, also after a reopen and after a crash.

mod disk_common;

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use disk_common::*;
use dormouse::clock::ManualClock;
use dormouse::engine::Engine;
use dormouse::engine::disk::DiskEngine;
use dormouse::job::{Job, NewJob};
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

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// In the ready list at this place.
    Ready(i64),
    Delayed(u64, i64),
    /// Due, order, receipt.
    Running(u64, i64, u64),
    Dead(i64),
}

#[derive(Clone, Debug)]
struct Stored {
    job: NewJob,
    expires: Option<u64>,
    tries: u16,
    state: State,
}

/// Everything in plain maps.
#[derive(Debug, Default)]
struct Model {
    jobs: BTreeMap<(usize, u64), Stored>,
    order: i64,
    front: i64,
    now: u64,
}

impl Model {
    fn next(&mut self) -> i64 {
        self.order += 1;
        self.order
    }

    fn lives(&self, key: (usize, u64)) -> bool {
        self.jobs.get(&key).is_some_and(|s| s.expires.is_none_or(|at| at > self.now))
    }

    fn insert(&mut self, queue: usize, n: u64, job: NewJob) {
        let order = self.next();
        let delay = job.delay.as_millis() as u64;
        let state = if delay == 0 { State::Ready(order) } else { State::Delayed(self.now + delay, order) };
        let expires = job.ttl.map(|ttl| self.now + ttl.as_millis() as u64);
        let tries = job.tries.get();
        self.jobs.insert((queue, n), Stored { job, expires, tries, state });
    }

    /// The ready jobs of a queue that have not expired, in order.
    fn ready(&self, queue: usize) -> Vec<u64> {
        let mut ready: Vec<(i64, u64)> = self
            .jobs
            .iter()
            .filter(|((q, n), _)| *q == queue && self.lives((*q, *n)))
            .filter_map(|((_, n), s)| match s.state {
                State::Ready(at) => Some((at, *n)),
                _ => None,
            })
            .collect();
        ready.sort_unstable();
        ready.into_iter().map(|(_, n)| n).collect()
    }

    fn dead(&self, queue: usize) -> Vec<u64> {
        let mut dead: Vec<(i64, u64)> = self
            .jobs
            .iter()
            .filter_map(|((q, n), s)| match s.state {
                State::Dead(at) if *q == queue => Some((at, *n)),
                _ => None,
            })
            .collect();
        dead.sort_unstable();
        dead.into_iter().map(|(_, n)| n).collect()
    }

    /// The timers in the order in which they are due.
    fn timers(&self) -> Vec<(u64, i64, (usize, u64))> {
        let mut timers: Vec<_> = self
            .jobs
            .iter()
            .filter_map(|(key, s)| match s.state {
                State::Delayed(due, order) | State::Running(due, order, _) => Some((due, order, *key)),
                _ => None,
            })
            .collect();
        timers.sort_unstable();
        timers
    }

    fn pump(&mut self, limit: usize) -> (usize, Option<u64>) {
        let mut moved = 0;
        while moved < limit {
            let Some(&(due, _, key)) = self.timers().first() else { break };
            if due > self.now {
                break;
            }
            moved += 1;
            let order = self.next();
            let now = self.now;
            let Some(stored) = self.jobs.get_mut(&key) else { break };
            let out = matches!(stored.state, State::Running(..)) && stored.tries == 0;
            if !out {
                stored.state = State::Ready(order);
            } else if stored.expires.is_some_and(|at| at <= now) {
                self.jobs.remove(&key);
            } else {
                stored.state = State::Dead(order);
                stored.expires = None;
            }
        }
        (moved, self.timers().first().map(|(due, _, _)| due.saturating_sub(self.now)))
    }
}

struct World {
    model: Model,
    clock: Arc<ManualClock>,
    dirs: Vec<TempDir>,
    engine: Arc<DiskEngine>,
    handed: Vec<(usize, u64, Job)>,
}

impl World {
    fn new() -> World {
        let clock = clock();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let engine = World::open(&dir, &clock);
        let model = Model { now: START, ..Model::default() };
        World { model, clock, dirs: vec![dir], engine, handed: Vec::new() }
    }

    /// With windows so small that every step crosses their edges.
    fn open(dir: &TempDir, clock: &Arc<ManualClock>) -> Arc<DiskEngine> {
        let mut options = options(dir.path(), clock);
        options.ready_window = 2;
        options.delayed_window = 2;
        options.forget_queues_after = Duration::from_millis(50);
        DiskEngine::open(options).unwrap_or_else(|e| panic!("the store should open: {e}"))
    }

    fn path(&self) -> std::path::PathBuf {
        self.dirs.last().expect("one is open").path().to_owned()
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Publish { queue: q, ids, delay, ttl, tries } => {
                let jobs: Vec<NewJob> = ids
                    .iter()
                    .map(|n| NewJob {
                        body: format!("{n} at {}", self.model.now).into(),
                        delay: Duration::from_millis(*delay),
                        ttl: ttl.map(Duration::from_millis),
                        tries: NonZeroU16::new(*tries).expect("tries begin at 1"),
                        ..job(&queue(QUEUES[*q]), *n)
                    })
                    .collect();
                let twice = (1..ids.len()).any(|i| ids[..i].contains(&ids[i]));
                let taken = ids.iter().any(|n| self.model.lives((*q, *n)));
                let answer = self.engine.publish(jobs.clone()).await;
                assert_eq!(answer.is_ok(), !twice && !taken, "publish of {ids:?} to {q}: {answer:?}");
                if answer.is_ok() {
                    for (n, job) in ids.iter().zip(jobs) {
                        self.model.insert(*q, *n, job);
                    }
                }
            }
            Step::Republish { queue: q, old, new, delay } => {
                let name = queue(QUEUES[*q]);
                let job = NewJob { delay: Duration::from_millis(*delay), ..job(&name, *new) };
                let refused = old != new && self.model.lives((*q, *new));
                let answer = self.engine.republish(job_ref(&name, *old), job.clone()).await;
                assert_eq!(answer.is_ok(), !refused, "republish of {old} as {new}: {answer:?}");
                if !refused {
                    self.model.jobs.remove(&(*q, *old));
                    self.model.insert(*q, *new, job);
                }
            }
            Step::Consume { queues, counts, ttr } => self.consume(queues, counts, *ttr).await,
            Step::GiveBack { last } => {
                let from = self.handed.len().saturating_sub(*last);
                let back = self.handed.split_off(from);
                for (q, n, job) in back.iter().rev() {
                    self.model.front -= 1;
                    let front = self.model.front;
                    if let Some(stored) = self.model.jobs.get_mut(&(*q, *n))
                        && matches!(stored.state, State::Running(_, _, receipt) if receipt == job.receipt)
                    {
                        stored.tries += 1;
                        stored.state = State::Ready(front);
                    }
                }
                let jobs = back.into_iter().map(|(_, _, job)| job).collect();
                self.engine.give_back(jobs).await.expect("give_back should answer");
            }
            Step::Ack { queue: q, id } => {
                self.model.jobs.remove(&(*q, *id));
                self.engine.ack(job_ref(&queue(QUEUES[*q]), *id)).await.expect("ack should answer");
            }
            Step::Respawn { queue: q, limit, ttl } => {
                let mut dead = self.model.dead(*q);
                dead.truncate(*limit as usize);
                for n in &dead {
                    let order = self.model.next();
                    let expires = ttl.map(|ttl| self.model.now + ttl);
                    let stored = self.model.jobs.get_mut(&(*q, *n)).expect("it was listed");
                    (stored.state, stored.tries, stored.expires) = (State::Ready(order), 1, expires);
                }
                let ttl = ttl.map(Duration::from_millis);
                let count = self.engine.respawn(&queue(QUEUES[*q]), *limit, ttl).await;
                assert_eq!(count.expect("respawn should answer"), dead.len() as u64, "respawned");
            }
            Step::DeleteDead { queue: q, limit } => {
                let mut dead = self.model.dead(*q);
                dead.truncate(*limit as usize);
                for n in &dead {
                    self.model.jobs.remove(&(*q, *n));
                }
                let count = self.engine.delete_dead(&queue(QUEUES[*q]), *limit).await;
                assert_eq!(count.expect("delete_dead should answer"), dead.len() as u64, "deleted");
            }
            Step::Destroy { queue: q } => {
                self.model.jobs.retain(|(at, _), s| at != q || !matches!(s.state, State::Ready(_)));
                self.engine.destroy(&queue(QUEUES[*q])).await.expect("destroy should answer");
                let size = self.engine.size(&queue(QUEUES[*q])).await;
                assert_eq!(size.expect("size should answer"), 0, "nothing is ready after a destroy");
            }
            Step::Pump { limit } => {
                let (moved, next) = self.model.pump(*limit);
                let pumped = self.engine.pump(*limit).await.expect("pump should answer");
                assert_eq!(pumped.moved, moved, "moved");
                let next = Duration::from_millis(next.unwrap_or(3_600_000));
                assert_eq!(pumped.next, next, "until the next is due");
            }
            Step::Advance { ms } => {
                self.model.now += ms;
                self.clock.advance(Duration::from_millis(*ms));
            }
            Step::Sweep => self.engine.sweep().await.expect("sweep should answer"),
            Step::Reopen => {
                self.engine.close().await;
                self.engine = World::open(&self.dirs[self.dirs.len() - 1], &self.clock);
            }
            Step::Crash => {
                let dir = tempfile::tempdir().expect("a temporary directory");
                copy(&self.path(), dir.path());
                self.engine.close().await;
                self.engine = World::open(&dir, &self.clock);
                self.dirs = vec![dir];
            }
        }
    }

    async fn consume(&mut self, queues: &[usize], counts: &[u16], ttr: u64) {
        let names = queues.iter().map(|q| queue(QUEUES[*q]).name);
        let list = dormouse::name::QueueList::new(queue("a").namespace, names).expect("not empty");
        let mut expected: Vec<(usize, u64)> = Vec::new();
        for q in queues {
            let ready = self.model.ready(*q).into_iter().map(|n| (*q, n));
            expected.extend(ready.filter(|it| !expected.contains(it)).collect::<Vec<_>>());
        }
        expected.truncate(counts.iter().map(|c| usize::from(*c)).sum());
        let asked = counts.iter().map(|count| usize::from(*count)).sum();
        let ttrs = vec![Duration::from_millis(ttr); asked];
        let jobs = self.engine.consume(&list, &ttrs).await.expect("consume should answer").jobs;
        assert_eq!(jobs.len(), expected.len(), "jobs handed out, of {expected:?}");
        for (job, (q, n)) in jobs.into_iter().zip(expected) {
            let order = self.model.next();
            let now = self.model.now;
            let stored = self.model.jobs.get_mut(&(q, n)).expect("it was listed");
            stored.tries -= 1;
            stored.state = State::Running(now + ttr, order, job.receipt);
            assert_eq!((job.id, &job.queue), (id(n), &queue(QUEUES[q])), "the oldest is handed out first");
            assert_eq!(job.body, stored.job.body, "the body of {n}");
            assert_eq!(job.tries_left, stored.tries, "tries left of {n}");
            let ttl = stored.expires.map(|at| Duration::from_millis(at - now));
            assert_eq!(job.ttl, ttl, "ttl of {n}");
            self.handed.push((q, n, job));
        }
    }

    /// Everything that can be asked without changing anything.
    async fn compare(&self) {
        for (q, name) in QUEUES.iter().enumerate() {
            let name = queue(name);
            let ready = self.model.ready(q);
            let head = self.engine.peek(&name).await.expect("peek should answer");
            assert_eq!(head.map(|job| job.id), ready.first().map(|n| id(*n)), "head of {q}");
            let size = self.engine.size(&name).await.expect("size should answer");
            assert!(size >= ready.len() as u64, "{size} ready in {q}, and there are {}", ready.len());
            let dead = self.engine.dead_letter(&name).await.expect("dead_letter should answer");
            let expected = self.model.dead(q);
            assert_eq!(dead.size, expected.len() as u64, "dead in {q}");
            assert_eq!(dead.head, expected.first().map(|n| id(*n)), "oldest dead of {q}");
            for n in 0..IDS {
                let peeked = self.engine.peek_job(&job_ref(&name, n)).await.expect("peek should answer");
                let lives = self.model.lives((q, n));
                assert_eq!(peeked.is_some(), lives, "job {n} of {q} is there");
            }
        }
        let stats = self.engine.stats().await.expect("stats should answer");
        assert_eq!(stats.timers, self.model.timers().len() as u64, "timers");
        let known = self.engine.queues().await.expect("queues should answer");
        for (q, name) in QUEUES.iter().enumerate() {
            let used = self.model.jobs.keys().any(|(at, n)| *at == q && self.model.lives((q, *n)));
            assert!(!used || known.contains(&queue(name)), "{name} holds jobs and is not listed: {known:?}");
        }
    }

    /// After everything has been acked and swept, nothing may be left.
    async fn drain(&mut self) {
        for (q, n) in self.model.jobs.keys().copied().collect::<Vec<_>>() {
            self.step(&Step::Ack { queue: q, id: n }).await;
        }
        // Once for the entries, and once more for the queues that are empty since.
        for _ in 0..2 {
            self.clock.advance(Duration::from_secs(10));
            self.engine.sweep().await.expect("sweep should answer");
        }
        let stats = self.engine.stats().await.expect("stats should answer");
        assert_eq!(stats.timers, 0, "timers are left");
        assert_eq!(stats.queues, [], "queues are left");
        self.engine.close().await;
        self.engine = World::open(&self.dirs[self.dirs.len() - 1], &self.clock);
        let stats = self.engine.stats().await.expect("stats should answer");
        assert_eq!((stats.timers, &stats.queues[..]), (0, &[][..]), "something is left on disk");
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
