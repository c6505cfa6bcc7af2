//! Records every delivery in a ledger: two servers on one Redis, and workers that ack, release, touch, bury, and let
//! the ttr end. `LEDGER_JOBS=100000` runs the long form.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{TTR, engine, id, job, queue};
use crate::support::engine_ext::{EngineExt, tries};
use crate::support::redis_server::RedisServer;
use dormouse::clock::Millis;
use dormouse::engine::redis::RedisEngine;
use dormouse::engine::{Engine, Held, JobList, MAX_PUBLISH, Release, Released, Touched};
use dormouse::job::{Job, JobId, JobRef, JobState, NewJob, Reason, Receipt};
use dormouse::name::Queue;
use parking_lot::Mutex;

/// Default number of jobs.
const JOBS: u64 = 3_000;
const WORKERS: u64 = 32;
const QUEUES: [&str; 3] = ["a", "b", "c"];
/// A ttr that ends during the test.
const SHORT: Duration = Duration::from_millis(60);

/// The recorded events of one job.
#[derive(Debug, Default)]
struct Account {
    tries: u16,
    deliveries: u16,
    /// Number of restored tries, according to the replies.
    restored: u16,
    /// Tries left according to the last delivery. No delivery has more than an earlier one, but deliveries may be
    /// recorded in another order: the ttr of one may end before its worker has read the reply.
    last_tries_left: Option<u16>,
    receipts: HashSet<Receipt>,
    /// An ack replied that the job does not exist.
    is_gone: bool,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Acked,
    Dead,
}

#[derive(Debug, Default)]
struct Ledger {
    jobs: Mutex<HashMap<JobId, Account>>,
    /// Number of calls by kind and result.
    told: Mutex<HashMap<String, u64>>,
}

impl Ledger {
    fn with<T>(&self, job: &Job, change: impl FnOnce(&mut Account) -> T) -> T {
        change(self.jobs.lock().get_mut(&job.id).expect("it was published"))
    }

    fn handed_out(&self, job: &Job, long: bool) {
        self.with(job, |account| {
            // Recorded late, after another delivery, which has fewer tries left.
            let is_earlier = !long && account.last_tries_left < Some(job.tries_left);
            assert!(
                is_earlier || (account.end.is_none() && !account.is_gone),
                "{job:?} was handed out after its end: {account:?}"
            );
            account.deliveries += 1;
            let last = account.last_tries_left.map_or(job.tries_left, |last| last.min(job.tries_left));
            account.last_tries_left = Some(last);
            assert!(account.receipts.insert(job.proof()), "a receipt came twice: {job:?}, {account:?}");
        });
    }

    fn count(&self, what: &str, came: &str) {
        *self.told.lock().entry(format!("{what}: {came}")).or_default() += 1;
    }

    fn end(&self, job: &Job, end: End) {
        self.with(job, |account| {
            assert_eq!(account.end, None, "{job:?} ends a second time");
            account.end = Some(end);
        });
    }
}

/// Pseudo-random numbers, different for each worker and the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A delivery to a worker, and whether its ttr outlasts the test.
struct Mine {
    job: Job,
    receipt: Receipt,
    long: bool,
}

struct Worker {
    engine: Arc<RedisEngine>,
    ledger: Arc<Ledger>,
    random: Random,
}

impl Worker {
    /// Works until all queues are empty and no timer is left.
    async fn run(mut self) {
        loop {
            let queue = queue(QUEUES[self.random.below(3) as usize]);
            let long = self.random.below(4) > 0;
            let ttr = if long { TTR } else { SHORT };
            let count = 1 + self.random.below(4) as usize;
            let consumed =
                self.engine.consume(&queue.clone().into(), &vec![ttr; count]).await.expect("consumed");
            if consumed.jobs.is_empty() && !consumed.more {
                let stats = self.engine.stats().await.expect("stats");
                if stats.timers == 0 && stats.queues.iter().all(|queue| queue.ready == 0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            consumed.jobs.iter().for_each(|job| self.ledger.handed_out(job, long));
            for job in consumed.jobs {
                let receipt = job.proof();
                self.work(Mine { job, receipt, long }).await;
            }
        }
    }

    async fn work(&mut self, mut mine: Mine) {
        let name = JobRef { queue: mine.job.queue.clone(), id: mine.job.id };
        if self.random.below(3) == 0 {
            let long = self.random.below(2) == 0;
            let touched = self.engine.touch(&name, mine.receipt, if long { TTR } else { SHORT }).await;
            match self.mine("touch", &mine, touched.expect("touch is answered")) {
                Some(Touched { receipt, .. }) => {
                    let old = mine.receipt;
                    let new = self.ledger.with(&mine.job, |account| account.receipts.insert(receipt));
                    assert!(new, "a touch gave a receipt again: {receipt:?}");
                    mine = Mine { receipt, long, ..mine };
                    // The touch replaced the first receipt.
                    let again = self.engine.touch(&name, old, TTR).await.expect("touch is answered");
                    // If the new ttr has ended too, the next worker may have acked the job.
                    let tries_left = self.ledger.with(&mine.job, |account| account.last_tries_left);
                    let is_next = !long && tries_left < Some(mine.job.tries_left);
                    assert!(
                        again == Held::NotYours || (again == Held::NotFound && is_next),
                        "{old:?} was replaced by {receipt:?}: {again:?}"
                    );
                }
                None => return,
            }
        }
        match self.random.below(10) {
            0..3 => self.ack(&mine).await,
            3..8 => {
                let restore_try = self.random.below(2) == 0;
                let delay = Duration::from_millis(self.random.below(3) * 10);
                let reason = (self.random.below(20) == 0).then(|| Reason::new("later").expect("short"));
                let release = Release { delay, tries: tries(restore_try), reason };
                let released = self.engine.release(&name, mine.receipt, release).await;
                // Another worker may have the job by now: the ledger is compared at the end.
                match self.mine("release", &mine, released.expect("release is answered")) {
                    Some(Released::Dead) => {
                        assert!(!restore_try && mine.job.tries_left == 0, "it had tries: {:?}", mine.job);
                        self.ledger.end(&mine.job, End::Dead);
                    }
                    Some(Released::Back { tries_left, .. }) => {
                        assert_eq!(tries_left, mine.job.tries_left + u16::from(restore_try), "as asked");
                        if restore_try {
                            self.ledger.with(&mine.job, |account| account.restored += 1);
                        }
                    }
                    None => {}
                }
            }
            8 => {
                let buried = self.engine.bury(&name, mine.receipt, Reason::new("never")).await;
                if self.mine("bury", &mine, buried.expect("bury is answered")).is_some() {
                    self.ledger.end(&mine.job, End::Dead);
                }
            }
            // Lets the ttr end, then acks with the expired receipt.
            _ if !mine.long => {
                let until: Millis = mine.receipt.delivery / 1000 + 1;
                tokio::time::sleep(Duration::from_millis(until.saturating_sub(self.engine.now()) + 5)).await;
                let late = self.engine.release(&name, mine.receipt, Release::default()).await;
                let late = late.expect("release is answered");
                assert!(!matches!(late, Held::Done(_)), "its ttr has ended: {late:?}");
                self.ledger.count("too late", &format!("{late:?}"));
                let job = (mine.job.id, Some(mine.receipt));
                let stale = self.engine.ack(&mine.job.queue, &[job]).await.expect("ack is answered");
                // If the ack was not stale, another worker has acked the job.
                let gone = self.engine.inspect_stored(&name).await.expect("peek is answered").is_none();
                assert!(!stale.is_empty() || gone, "acked after its ttr");
            }
            _ => self.ack(&mine).await,
        }
    }

    async fn ack(&mut self, mine: &Mine) {
        let job = (mine.job.id, Some(mine.receipt));
        let stale = self.engine.ack(&mine.job.queue, &[job]).await.expect("ack is answered");
        // A short ttr may have ended and another worker may have acked the job, so that nothing is stale either.
        if stale.is_empty() && mine.long {
            self.ledger.count("ack", "done");
            self.ledger.end(&mine.job, End::Acked);
        } else if stale.is_empty() {
            self.ledger.count("ack", "done, or gone");
            self.ledger.with(&mine.job, |account| account.is_gone = true);
        } else {
            self.ledger.count("ack", "stale");
            assert!(!mine.long, "its ttr does not end: {:?}", mine.job);
        }
    }

    fn mine<T: std::fmt::Debug>(&self, what: &str, mine: &Mine, held: Held<T>) -> Option<T> {
        match held {
            Held::Done(done) => {
                self.ledger.count(what, "done");
                Some(done)
            }
            other => {
                self.ledger.count(what, &format!("{other:?}"));
                assert!(!mine.long, "{what} of what stands for a minute: {other:?}, {:?}", mine.job);
                None
            }
        }
    }
}

async fn dead_of(engine: &RedisEngine, queue: &Queue) -> Vec<JobId> {
    let (mut dead, mut cursor) = (Vec::new(), None);
    loop {
        let list = JobList { state: JobState::Dead, limit: 100, cursor, bodies: false };
        let page = engine.list_jobs(queue, list).await.expect("a list").expect("its own cursor");
        dead.extend(page.jobs.iter().map(|view| view.id));
        cursor = page.cursor;
        if cursor.is_none() {
            return dead;
        }
    }
}

/// Guards against lost and duplicated jobs with two servers, and against tries that differ from the replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_ends_where_the_ledger_says_with_the_tries_that_were_told() {
    let count = std::env::var("LEDGER_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(JOBS);
    let server = RedisServer::start();
    let engines = [engine(&server).await, engine(&server).await];
    let ledger = Arc::new(Ledger::default());
    let mut random = Random(count);
    let jobs: Vec<NewJob> = (0..count)
        .map(|n| {
            let tries = NonZeroU16::new(1 + random.below(4) as u16).expect("1 to 4");
            let delay = Duration::from_millis(random.below(3) * 20);
            NewJob { tries, delay, ttl: None, ..job(&queue(QUEUES[n as usize % 3]), id(n), n.to_string()) }
        })
        .collect();
    for batch in jobs.chunks(MAX_PUBLISH) {
        let accounts =
            batch.iter().map(|job| (job.id, Account { tries: job.tries.get(), ..Account::default() }));
        ledger.jobs.lock().extend(accounts);
        engines[0].publish(batch.to_vec().into()).await.expect("published");
    }
    let pumps = engines.clone().map(|engine| {
        tokio::spawn(async move {
            loop {
                let pumped = engine.pump().await.expect("pumped");
                tokio::time::sleep(pumped.next.clamp(Duration::from_millis(2), Duration::from_millis(50)))
                    .await;
            }
        })
    });
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| {
            let engine = engines[n as usize % 2].clone();
            tokio::spawn(Worker { engine, ledger: ledger.clone(), random: Random(n) }.run())
        })
        .collect();
    for worker in workers {
        worker.await.expect("the ledger is right");
    }
    pumps.iter().for_each(tokio::task::JoinHandle::abort);

    let mut told: Vec<_> = ledger.told.lock().clone().into_iter().collect();
    told.sort();
    println!("{count} jobs: {told:?}");
    let (mut dead, mut acked) = (HashSet::new(), 0);
    for name in QUEUES {
        for id in dead_of(&engines[1], &queue(name)).await {
            assert!(dead.insert(id), "{id} is in a dead letter twice");
        }
    }
    let accounts = std::mem::take(&mut *ledger.jobs.lock());
    for (n, job) in jobs.iter().enumerate() {
        let account = &accounts[&job.id];
        let name = JobRef { queue: job.queue.clone(), id: job.id };
        let there = engines[0].inspect_stored(&name).await.expect("peek is answered").is_some();
        let end = match account.end {
            Some(end) => end,
            None if account.is_gone => End::Acked,
            // No reply reported the end: the ttr of its last try ended.
            None => {
                assert_eq!(account.last_tries_left, Some(0), "job {n} is nowhere: {account:?}");
                End::Dead
            }
        };
        acked += u64::from(end == End::Acked);
        let is_dead = dead.contains(&job.id);
        assert_eq!((there, is_dead), (end == End::Dead, end == End::Dead), "job {n} ended so: {account:?}");
        let spent = account.deliveries - account.restored;
        let last = account.last_tries_left.expect("each is handed out");
        assert_eq!(account.tries - spent, last, "the tries of job {n}: {account:?}");
    }
    assert_eq!(acked + dead.len() as u64, count, "each is acked or dead");
    assert!(
        acked > count / 10 && dead.len() as u64 > count / 10,
        "both happened: {acked} and {}",
        dead.len()
    );
}
