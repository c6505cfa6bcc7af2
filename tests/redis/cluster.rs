//! A pool in a Redis Cluster while nodes die, hang and fail over, and slots migrate: checks replies, and that no
//! confirmed job is lost.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse::engine::redis::{RedisAddress, RedisEngine, RedisOptions, check_safety};
use dormouse::engine::{Engine, Listing, OnConflict, Once, Placing, Publication, Release, Respawn, Revival};
use dormouse::error::{Error, Result, Unreachable};
use dormouse::job::{Attributes, Job, JobId, JobIds, JobRef, NewJob};
use dormouse::name::{IdempotencyKey, JobKey, PoolName, Queue};

use crate::common::*;
use crate::support::engine_ext::EngineExt;
use crate::support::notified::Notified;
use crate::support::redis_cluster::{RedisCluster, cli};
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;

const PARTITIONS: u16 = 8;
/// Size of a partition's range of slots. The slot of its keys is the middle one.
const PART: u16 = 16_384 / PARTITIONS;

async fn connect(address: RedisAddress, partitions: u16) -> Result<Arc<RedisEngine>> {
    let options = RedisOptions { prefix: "p".into(), partitions, ..RedisOptions::default() };
    RedisEngine::connect_with(address, &PoolName::default_pool(), &options).await
}

async fn open(cluster: &RedisCluster) -> Arc<RedisEngine> {
    connect(cluster.address(), PARTITIONS).await.expect("the cluster is there")
}

fn new_job(engine: &RedisEngine, queue: &Queue, body: &str) -> NewJob {
    NewJob {
        queue: queue.clone(),
        id: engine.make_id(&JobIds::default(), queue, Duration::ZERO, false),
        body: body.to_owned().into(),
        attributes: Attributes::new(),
        ttl: None,
        delay: Duration::ZERO,
        tries: NonZeroU16::new(2).expect("not 0"),
    }
}

async fn put(engine: &RedisEngine, queue: &Queue, body: &str) -> Result<JobId> {
    let job = new_job(engine, queue, body);
    let id = job.id;
    engine.publish(vec![job].into()).await.map(|_| id)
}

async fn take(engine: &RedisEngine, queue: &Queue) -> Result<Vec<Job>> {
    Ok(engine.consume(&queue.clone().into(), &[TTR; 64]).await?.jobs)
}

async fn ack(engine: &RedisEngine, job: &Job) -> Result<()> {
    engine.ack_job(JobRef { queue: job.queue.clone(), id: job.id }).await
}

/// Returns the slot of a queue's jobs.
fn slot_of(engine: &RedisEngine, queue: &Queue) -> u16 {
    // The partition is in the middle of the 48 bits that distinguish ids of the same millisecond.
    let bytes = new_job(engine, queue, "").id.to_bytes();
    let partition = (u16::from(bytes[9]) << 8 | u16::from(bytes[10])) >> 4;
    partition * PART + PART / 2
}

/// Returns a queue whose jobs are on this server, or one whose jobs are not.
fn queue_at(engine: &RedisEngine, cluster: &RedisCluster, server: usize, there: bool) -> Queue {
    let queues = (0..).map(|n| queue(&format!("q{n}")));
    let on = |queue: &Queue| cluster.master_of(slot_of(engine, queue)).0 == server;
    queues.into_iter().find(|queue| on(queue) == there).expect("there is one")
}

fn unreachable<T: std::fmt::Debug>(answer: Result<T>) -> Unreachable {
    match answer {
        Err(Error::Unreachable(why)) => why,
        other => panic!("it should be unreachable: {other:?}"),
    }
}

/// Workers that publish to queues, consume and ack, and their results.
struct Load {
    stop: AtomicBool,
    stored: AtomicU64,
    acked: AtomicU64,
    /// Duration of the longest call, in milliseconds.
    longest: AtomicU64,
    /// The longest time that a task of this test waited for a processor, in milliseconds.
    stalled: AtomicU64,
    failures: parking_lot::Mutex<Vec<String>>,
}

impl Load {
    /// Starts workers that publish numbers, consume and ack.
    fn start(
        engine: &Arc<RedisEngine>,
        queues: &[Queue],
    ) -> (Arc<Load>, Vec<tokio::task::JoinHandle<Ledger>>) {
        let load = Arc::new(Load {
            stop: AtomicBool::new(false),
            stored: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            failures: parking_lot::Mutex::default(),
        });
        tokio::spawn(load.clone().watch_stalls());
        let worker = |queue: &Queue| tokio::spawn(load.clone().work(engine.clone(), queue.clone()));
        let workers = queues.iter().map(worker).collect();
        (load, workers)
    }

    async fn watch_stalls(self: Arc<Self>) {
        const SHORT: Duration = Duration::from_millis(5);
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            tokio::time::sleep(SHORT).await;
            let late = began.elapsed().saturating_sub(SHORT);
            self.stalled.fetch_max(late.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the milliseconds of the longest call, without those in which the machine may have stalled.
    fn longest(&self) -> u64 {
        let [longest, stalled] = [&self.longest, &self.stalled].map(|of| of.load(Ordering::Relaxed));
        println!("the longest call took {longest} ms, and the machine stalled for {stalled} ms");
        longest.saturating_sub(stalled)
    }

    async fn timed<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Option<T> {
        let began = Instant::now();
        let answer = call.await;
        self.longest.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.failures.lock().push(format!("{what}: {error}"));
                None
            }
        }
    }

    async fn work(self: Arc<Self>, engine: Arc<RedisEngine>, queue: Queue) -> Ledger {
        let mut ledger = Ledger::default();
        while !self.stop.load(Ordering::Relaxed) {
            let body = ledger.next.to_string();
            ledger.next += 1;
            if self.timed("publish", put(&engine, &queue, &body)).await.is_some() {
                ledger.stored.push(body);
                self.stored.fetch_add(1, Ordering::Relaxed);
            }
            for job in self.timed("consume", take(&engine, &queue)).await.unwrap_or_default() {
                let body = String::from_utf8(job.body.to_vec()).expect("text");
                ledger.seen.push(body.clone());
                if self.timed("ack", ack(&engine, &job)).await.is_some() {
                    ledger.acked.push(body);
                    self.acked.fetch_add(1, Ordering::Relaxed);
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        ledger.queue = Some(queue);
        ledger
    }

    /// Stops the workers. Checks that every stored job is delivered, and none after its ack.
    async fn end(&self, engine: &Arc<RedisEngine>, workers: Vec<tokio::task::JoinHandle<Ledger>>) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let mut ledger = worker.await.expect("no panic");
            let queue = ledger.queue.take().expect("it has ended");
            let rest = take(engine, &queue).await.expect("the cluster is well");
            for job in rest {
                let body = String::from_utf8(job.body.to_vec()).expect("text");
                assert!(!ledger.acked.contains(&body), "{queue}: {body} came again after its ack");
                ledger.seen.push(body);
            }
            let lost: Vec<_> = ledger.stored.iter().filter(|body| !ledger.seen.contains(body)).collect();
            assert!(lost.is_empty(), "{queue}: of {} jobs these are lost: {lost:?}", ledger.stored.len());
        }
    }
}

#[derive(Debug, Default)]
struct Ledger {
    queue: Option<Queue>,
    next: u64,
    stored: Vec<String>,
    seen: Vec<String>,
    acked: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_under_load_and_nothing_fails() {
    let cluster = RedisCluster::start_of(3, 0);
    let engine = open(&cluster).await;
    let queues: Vec<Queue> = (0..8).map(|n| queue(&format!("q{n}"))).collect();
    let (load, workers) = Load::start(&engine, &queues);
    for round in 0..6 {
        // Moves the slot there and back.
        let slot = slot_of(&engine, &queues[round % 3]);
        let to = (cluster.master_of(slot).0 + 1) % 3;
        let before = load.acked.load(Ordering::Relaxed);
        cluster.begin_move(slot, to);
        cluster.move_keys(slot, to, 2);
        // Other partitions keep working meanwhile.
        until("others go on", async || load.acked.load(Ordering::Relaxed) > before + 20).await;
        cluster.move_keys(slot, to, 1);
        cluster.end_move(slot, to);
        assert_eq!(cluster.master_of(slot).0, to);
    }
    load.end(&engine, workers).await;
    assert_eq!(*load.failures.lock(), Vec::<String>::new(), "no call fails");
    let longest = load.longest();
    assert!(longest < 3000, "the longest call took {longest} ms");
    assert!(load.stored.load(Ordering::Relaxed) > 100, "the load was one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_for_long_is_told_of_and_others_do_not_notice() {
    let cluster = RedisCluster::start_of(3, 0);
    let engine = open(&cluster).await;
    let here = queue_at(&engine, &cluster, 0, true);
    let slot = slot_of(&engine, &here);
    let other = (0..).map(|n| queue(&format!("q{n}"))).find(|q| slot_of(&engine, q) != slot).expect("one");
    put(&engine, &here, "before").await.expect("stored");
    cluster.begin_move(slot, 1);
    let began = Instant::now();
    let (stored, taken) = tokio::join!(put(&engine, &here, "x"), take(&engine, &here));
    assert_eq!([unreachable(stored), unreachable(taken)], [Unreachable::Moving; 2]);
    let waited = began.elapsed();
    // Two waits, one after the other, would take eight.
    assert!(
        (Duration::from_secs(4)..Duration::from_millis(7500)).contains(&waited),
        "it waits 4 s, not {waited:?}"
    );
    let began = Instant::now();
    put(&engine, &other, "y").await.expect("stored");
    assert!(began.elapsed() < Duration::from_secs(3), "the other partition took {:?}", began.elapsed());
    // A call that is waiting when the migration ends is executed.
    let waiting = tokio::spawn({
        let (engine, here) = (engine.clone(), here.clone());
        async move { put(&engine, &here, "waited").await }
    });
    cluster.move_keys(slot, 1, 1);
    cluster.end_move(slot, 1);
    within("the call that waited", waiting).await.expect("no panic").expect("stored");
    let bodies: Vec<_> = take(&engine, &here).await.expect("taken").into_iter().map(|job| job.body).collect();
    assert_eq!(bodies, ["before", "waited"], "nothing else was stored");
}

/// Guards against a paused queue that resumes, because only the open of a single Redis looked for what this version
/// keeps elsewhere.
#[tokio::test]
async fn what_an_earlier_version_has_paused_or_scheduled_is_not_ignored() {
    let cluster = RedisCluster::start();
    let (engine, q) = (open(&cluster).await, queue("orders"));
    put(&engine, &q, "stays").await.expect("published");
    engine.close().await;
    let ready = format!("q/{}/{}", q.namespace, q.name);
    let keys_of = |server: usize| cluster.tell::<Vec<String>>(server, &["KEYS", "p{*"]);
    let found = (0..cluster.servers.len()).find_map(|server| {
        let base = keys_of(server).into_iter().find_map(|key| key.strip_suffix(&ready).map(str::to_owned));
        base.map(|base| (server, base))
    });
    let (server, base) = found.expect("a node has the queue");
    for name in ["paused", "due", "quotas"] {
        let key = format!("{base}dormouse/{name}");
        cluster.tell::<()>(server, &["SET", &key, "x"]);
        let refused = connect(cluster.address(), PARTITIONS).await;
        let why = refused.expect_err("it is refused").to_string();
        assert!(why.contains(&key), "{key}: {why}");
        cluster.tell::<u64>(server, &["DEL", &key]);
    }
    let engine = open(&cluster).await;
    assert_eq!(take(&engine, &q).await.expect("consumed").len(), 1, "the pool is unchanged");
}

/// Returns every key of a node with its value.
fn dump(cluster: &RedisCluster, server: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let keys: Vec<Vec<u8>> = cluster.tell(server, &["KEYS", "*"]);
    let mut connection = cluster.servers[server].connection();
    // Excludes the pump's lease and the numbers of timers: other partitions are pumped and counted meanwhile.
    let mut all = BTreeMap::new();
    let changes = |key: &[u8]| {
        let key = String::from_utf8_lossy(key);
        key.ends_with("dormouse/pump") || key.contains("dormouse/timers")
    };
    for key in keys.into_iter().filter(|key| !changes(key)) {
        if let Ok(Some(value)) = redis::cmd("DUMP").arg(&key).query(&mut connection) {
            all.insert(key, value);
        }
    }
    all
}

/// Guards against a script that starts in a migrating slot, where it could stop half-way.
#[tokio::test]
async fn every_call_is_rejected_while_its_slot_migrates_and_changes_nothing() {
    let cluster = RedisCluster::start_of(3, 0);
    let engine = open(&cluster).await;
    let q = queue_at(&engine, &cluster, 0, true);
    // A job in each state, and one with a job key.
    let key = JobKey::parse("key").expect("a key");
    let keyed =
        |conflict| Placing { key: Some((key.clone(), conflict)), ..new_job(&engine, &q, "keyed").into() };
    for body in ["dead", "runs", "ready", "ready too"] {
        put(&engine, &q, body).await.expect("published");
    }
    let delayed = NewJob { delay: Duration::from_secs(3600), ..new_job(&engine, &q, "delayed") };
    engine.publish(vec![delayed].into()).await.expect("published");
    let jobs = engine.consume(&q.clone().into(), &[TTR; 2]).await.expect("consumed").jobs;
    let name = |n: usize| JobRef { queue: q.clone(), id: jobs[n].id };
    engine.bury(&name(0), jobs[0].proof(), None).await.expect("buried");
    let publication = |jobs| Publication { jobs, replaces: None, once: None };
    engine.publish(publication(vec![keyed(OnConflict::Keep)])).await.expect("published");

    let (slot, to) = (slot_of(&engine, &q), 1);
    cluster.begin_move(slot, to);
    cluster.move_keys(slot, to, 2);
    let before = [dump(&cluster, 0), dump(&cluster, to)];
    let once = Some(Once::request(IdempotencyKey::new(b"once").expect("a key"), [1; 16]));
    let new = || vec![new_job(&engine, &q, "new").into()];
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    let dead = [jobs[0].id];
    let (running, receipts) = (name(1), [(jobs[1].id, Some(jobs[1].proof()))]);
    let answers = tokio::join!(
        engine.publish(publication(new())),
        engine.publish(publication(vec![keyed(OnConflict::Replace)])),
        engine.publish(Publication { jobs: new(), replaces: Some(name(1)), once: None }),
        engine.publish(Publication { jobs: new(), replaces: None, once }),
        engine.ack_job(name(1)),
        engine.ack(&q, &receipts),
        engine.cancel_key(&q, &key),
        engine.destroy(&q, Listing::Keep),
        engine.respawn(&q, Respawn::Jobs(&dead, revival)),
    );
    let others = tokio::join!(
        take(&engine, &q),
        engine.touch(&running, jobs[1].proof(), TTR),
        engine.release(&running, jobs[1].proof(), Release::default()),
        engine.give_back(Vec::new()),
    );
    let moving = Unreachable::Moving;
    assert_eq!(unreachable(answers.0), moving, "publish");
    assert_eq!(unreachable(answers.1), moving, "publish with a key");
    assert_eq!(unreachable(answers.2), moving, "republish");
    assert_eq!(unreachable(answers.3), moving, "publish that is safe to repeat");
    assert_eq!(unreachable(answers.4), moving, "ack");
    assert_eq!(unreachable(answers.5), moving, "ack with a receipt");
    assert_eq!(unreachable(answers.6), moving, "cancel");
    assert_eq!(unreachable(answers.7), moving, "destroy");
    assert_eq!(unreachable(answers.8), moving, "respawn");
    assert_eq!(unreachable(others.0), moving, "consume");
    assert_eq!(unreachable(others.1), moving, "touch");
    assert_eq!(unreachable(others.2), moving, "release");
    let after = [dump(&cluster, 0), dump(&cluster, to)];
    assert_eq!(after, before, "nothing has changed on either node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_by_hand_fails_nothing() {
    let cluster = RedisCluster::start();
    let engine = open(&cluster).await;
    let queues: Vec<Queue> = (0..8).map(|n| queue(&format!("q{n}"))).collect();
    let (load, workers) = Load::start(&engine, &queues);
    // A node that lost an election waits for several of these timeouts before the next.
    let cluster = cluster.quick();
    for server in 0..3 {
        let id: String = cluster.tell(server, &["CLUSTER", "MYID"]);
        let replica = cluster.replica_of(&id);
        let before = load.acked.load(Ordering::Relaxed);
        cluster.tell::<()>(replica, &["CLUSTER", "FAILOVER"]);
        let taken_over =
            async || cluster.nodes().iter().any(|n| n.is_master && n.port == cluster.servers[replica].port);
        until("the replica is the master", taken_over).await;
        until("the load goes on", async || load.acked.load(Ordering::Relaxed) > before + 100).await;
    }
    load.end(&engine, workers).await;
    assert_eq!(*load.failures.lock(), Vec::<String>::new(), "no call fails");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_replaced_and_other_parts_go_on() {
    let mut cluster = RedisCluster::start();
    let engine = open(&cluster).await;
    let here = queue_at(&engine, &cluster, 0, true);
    let elsewhere = queue_at(&engine, &cluster, 0, false);
    let notified = Notified::attach(&*engine, std::slice::from_ref(&here));
    for n in 0..20 {
        put(&engine, &here, &n.to_string()).await.expect("stored");
    }
    until("its replica has them", async || cluster.is_copied(0)).await;
    let (load, workers) = Load::start(&engine, std::slice::from_ref(&elsewhere));
    cluster.servers[0].kill();
    let killed = Instant::now();
    // A call sent before the connection was known to be broken may have been executed. Others wait for a second.
    let mut answer = put(&engine, &here, "while away").await;
    if let Err(Error::Away(_)) = &answer {
        answer = put(&engine, &here, "while away").await;
    }
    assert_eq!(unreachable(answer), Unreachable::Away);
    let waited = killed.elapsed();
    // A call that waits for its time-out takes five seconds.
    assert!((900..4500).contains(&waited.as_millis()), "told after {waited:?}");
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let began = Instant::now();
        assert!(engine.check().await.is_ok(), "the pool serves");
        let _ = engine.list_queues(&here.namespace, None, 10).await;
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_secs(2), "what is away holds nobody up: {fastest:?}");
    // Only now may the replica take its place: before, all callers were to be told that the node is away.
    let mut cluster = cluster.quick();
    until("the replica takes its place", async || put(&engine, &here, "after").await.is_ok()).await;
    println!("without a 201 for {:?}", killed.elapsed());
    within("who waits is told", notified.next()).await;
    let bodies: Vec<String> = take(&engine, &here).await.expect("taken").iter().map(text).collect();
    let all: Vec<String> = (0..20).map(|n| n.to_string()).chain(["after".to_owned()]).collect();
    assert_eq!(bodies, all, "all that was there, and what was refused is not");
    load.end(&engine, workers).await;
    assert_eq!(*load.failures.lock(), Vec::<String>::new(), "no call elsewhere fails");
    let longest = load.longest();
    assert!(longest < 1000, "the longest call elsewhere took {longest} ms");
    // A server that starts now finds the cluster through two of its three configured nodes.
    let other = open(&cluster).await;
    put(&other, &here, "from the other").await.expect("stored");
    assert!(cluster.servers[0].launch(), "it comes back");
    cluster.agree();
    put(&engine, &here, "to the same").await.expect("stored");
    assert_eq!(take(&other, &here).await.expect("taken").len(), 2);
}

fn text(job: &Job) -> String {
    String::from_utf8_lossy(&job.body).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_is_replaced_and_its_late_answers_count_for_nothing() {
    let cluster = RedisCluster::start();
    let engine = open(&cluster).await;
    let (here, elsewhere) = (queue_at(&engine, &cluster, 1, true), queue_at(&engine, &cluster, 1, false));
    put(&engine, &here, "before").await.expect("stored");
    until("its replica has it", async || cluster.is_copied(1)).await;
    let cluster = cluster.quick();
    let stalled = cluster.servers[1].stall();
    let hung = Instant::now();
    let (lost, fine) =
        tokio::join!(put(&engine, &here, "sent to the hung one"), put(&engine, &elsewhere, "x"));
    fine.expect("others go on");
    // The call was sent, so whether it was executed is unknown.
    assert!(matches!(lost, Err(Error::Away(_))), "{lost:?}");
    until("the replica takes its place", async || put(&engine, &here, "after").await.is_ok()).await;
    println!("without a 201 for {:?}", hung.elapsed());
    assert!(hung.elapsed() < Duration::from_secs(5), "{:?}", hung.elapsed());
    drop(stalled);
    cluster.agree();
    let bodies: Vec<String> = take(&engine, &here).await.expect("taken").iter().map(text).collect();
    assert_eq!(bodies, ["before", "after"]);
}

/// Guards against serving a partition with half of its jobs after a master died while its slot was migrating.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_on_two_nodes_is_not_used_until_it_is_mended() {
    let cluster = RedisCluster::start();
    let engine = open(&cluster).await;
    let here = queue_at(&engine, &cluster, 0, true);
    let slot = slot_of(&engine, &here);
    for n in 0..50 {
        put(&engine, &here, &format!("{n:04}").repeat(300)).await.expect("stored");
    }
    cluster.begin_move(slot, 1);
    let moved = cluster.move_keys(slot, 1, 2);
    assert!(moved > 10, "{moved} keys have moved");
    until("its replica knows", async || cluster.is_copied(0)).await;
    let (_, id) = cluster.master_of(slot);
    let replica = cluster.replica_of(&id);
    let mut cluster = cluster.quick();
    cluster.servers[0].kill();
    let taken_over =
        async || cluster.nodes().iter().any(|n| n.is_master && n.port == cluster.servers[replica].port);
    until("the replica is the master", taken_over).await;
    let is_split = |why: Option<Error>| matches!(why, Some(Error::Unreachable(Unreachable::Split)));
    until("the part is known to be on two nodes", async || is_split(put(&engine, &here, "x").await.err()))
        .await;
    // While it looks again at a node that was slow, the part is away.
    until("no job of it is consumed", async || {
        is_split(Some(take(&engine, &here).await.expect_err("half of its jobs are there")))
    })
    .await;
    // A server that starts now detects the split too.
    let other = open(&cluster).await;
    until("the other server knows it too", async || {
        is_split(Some(put(&other, &here, "x").await.expect_err("half of its jobs are there")))
    })
    .await;
    // redis-cli repairs nothing while a master is dead. It rejoins as a replica.
    assert!(cluster.servers[0].launch(), "it comes back");
    cluster.agree();
    cluster.fix();
    let (mut taken, mut seen) = (Vec::new(), 0);
    until("it comes back by itself", async || match take(&engine, &here).await {
        Ok(jobs) => {
            seen += 1;
            taken.extend(jobs.iter().map(|job| text(job)[..4].to_owned()));
            taken.len() == 50
        }
        Err(_) => false,
    })
    .await;
    assert!(seen > 0);
    let all: Vec<String> = (0..50).map(|n| format!("{n:04}")).collect();
    assert_eq!(taken, all, "nothing is lost, and nothing comes twice");
    until("the other server uses it again", async || put(&other, &here, "x").await.is_ok()).await;
}

/// Guards against a cluster that cannot grow or shrink while servers work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_comes_and_goes_under_load_and_nothing_fails() {
    let mut cluster = RedisCluster::start_of(3, 0);
    let engine = open(&cluster).await;
    let queues: Vec<Queue> = (0..8).map(|n| queue(&format!("q{n}"))).collect();
    let (load, workers) = Load::start(&engine, &queues);
    let (here, first) = (cluster.servers[0].addr(), cluster.servers[0].port);
    let id_at = |cluster: &RedisCluster, port| {
        cluster.nodes().into_iter().find(|node| node.port == port).expect("it is a node").id
    };
    cluster.servers.push(RedisCluster::server());
    let (new, port) = (cluster.servers[3].addr(), cluster.servers[3].port);
    cli(&["--cluster", "add-node", &new, &here]);
    cluster.agree();
    let (old_id, new_id) = (id_at(&cluster, first), id_at(&cluster, port));
    // Number of slots up to the slot of the first partition.
    let slots = (PART / 2 + 1).to_string();
    let move_slots = |from: &str, to: &str| {
        let words = ["--cluster-from", from, "--cluster-to", to, "--cluster-slots", &slots, "--cluster-yes"];
        cli(&[&["--cluster", "reshard", &here][..], &words[..]].concat());
    };
    move_slots(&old_id, &new_id);
    assert_eq!(cluster.master_of(PART / 2).0, 3, "the new node has a partition");
    let before = load.acked.load(Ordering::Relaxed);
    until("the load goes on", async || load.acked.load(Ordering::Relaxed) > before + 100).await;
    move_slots(&new_id, &old_id);
    cli(&["--cluster", "del-node", &here, &new_id]);
    let before = load.acked.load(Ordering::Relaxed);
    until("the load goes on", async || load.acked.load(Ordering::Relaxed) > before + 100).await;
    load.end(&engine, workers).await;
    assert_eq!(*load.failures.lock(), Vec::<String>::new(), "no call fails");
    let longest = load.longest();
    assert!(longest < 3000, "the longest call took {longest} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_pool_is_refused_at_the_start() {
    let (cluster, alone) = (RedisCluster::start_of(3, 0), RedisServer::start());
    let refused = async |address: RedisAddress, partitions, says: &str| {
        let error = connect(address, partitions).await.map(drop).expect_err(says).to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{says:?} should be said: {error}");
    };
    refused(RedisAddress { cluster: true, ..alone.address() }, 8, "use Addr instead").await;
    refused(cluster.servers[0].address(), 8, "use Cluster instead of Addr").await;
    cluster.tell::<()>(1, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let evicts = check_safety(&cluster.address()).await.expect_err("a full one drops jobs").to_string();
    assert!(evicts.starts_with(&format!("node {}: ", cluster.servers[1].addr())), "which node: {evicts}");
    // A new pool needs every node.
    let mut cluster = cluster.quick();
    cluster.servers[2].kill();
    refused(cluster.address(), 8, "every slot").await;
    assert!(cluster.servers[2].launch(), "it comes back");
    cluster.agree();
    let first = open(&cluster).await;
    first.close().await;
    refused(cluster.address(), 16, "Partitions").await;
    // A pool that was used before starts with the reachable nodes, and reports that it has another number of
    // partitions.
    cluster.servers[2].kill();
    refused(cluster.address(), 16, "Partitions").await;
    let engine = open(&cluster).await;
    let (here, away) = (queue_at_any(&engine, &cluster, 0), queue_at_any(&engine, &cluster, 2));
    put(&engine, &here, "x").await.expect("stored");
    assert_eq!(unreachable(put(&engine, &away, "x").await), Unreachable::Away);
    assert!(cluster.servers[2].launch(), "it comes back");
    until("the rest is found", async || put(&engine, &away, "x").await.is_ok()).await;
}

/// Returns a queue whose slot belonged to this server when the three masters were created.
fn queue_at_any(engine: &RedisEngine, _: &RedisCluster, server: u16) -> Queue {
    let queues = (0..).map(|n| queue(&format!("q{n}")));
    queues.into_iter().find(|queue| slot_of(engine, queue) / 5462 == server).expect("there is one")
}

/// Guards against a page of queues that reads the sizes of a page of each partition, and against queues that are
/// skipped because the names of their partition were not all read, or are not valid.
#[tokio::test]
async fn a_page_of_queues_reads_the_sizes_of_its_own_queues() {
    const LIMIT: usize = 50;
    let cluster = RedisCluster::start();
    let engine = open(&cluster).await;
    // Most of the first names have the same home.
    let slot = slot_of(&engine, &queue("a"));
    let same = (0..).map(|n| format!("a{n:05}")).filter(|name| slot_of(&engine, &queue(name)) == slot);
    let mut names: Vec<String> = same.take(150).chain((0..150).map(|n| format!("b{n:03}"))).collect();
    names.push("a".to_owned());
    names.sort_unstable();
    for name in &names {
        put(&engine, &queue(name), "job").await.expect("published");
    }
    assert_eq!(all_queues(&cluster, &engine, LIMIT).await, names, "each queue once, in order");
    // Another program adds names that no queue can have.
    let (node, hash) = hash_of_queues(&cluster, slot);
    for n in 0..60 {
        let () = redis::cmd("HSET")
            .arg(&hash)
            .arg(format!("!{n}"))
            .arg(1)
            .query(&mut node.connection())
            .expect("HSET");
    }
    assert_eq!(all_queues(&cluster, &engine, LIMIT).await, names, "the invalid names are skipped");
    assert_eq!(all_queues(&cluster, &engine, 1).await, names, "one at a time");
}

/// Lists all queues, and checks that each page reads the sizes of its queues only.
async fn all_queues(cluster: &RedisCluster, engine: &RedisEngine, limit: usize) -> Vec<String> {
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        calls_of_nodes(cluster, "llen");
        let page = engine.list_queues(&queue("q").namespace, after.as_ref(), limit).await.expect("listed");
        let sizes = calls_of_nodes(cluster, "llen");
        assert_eq!(sizes, 2 * page.queues.len() as u64, "ready and dead jobs of each queue of the page");
        let ready = page.queues.iter().all(|view| view.ready == Some(1));
        assert!(ready, "each queue has a job: {:?}", page.queues);
        seen.extend(page.queues.iter().map(|view| view.queue.name.to_string()));
        let Some(next) = page.next else { return seen };
        assert_eq!(page.queues.len(), limit, "a page with another after it is full");
        after = Some(next);
    }
}

/// Returns the master of a slot, and the key of its hash of queues.
fn hash_of_queues(cluster: &RedisCluster, slot: u16) -> (&RedisServer, String) {
    let node = &cluster.servers[cluster.master_of(slot).0];
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut node.connection()).expect("KEYS");
    let of_slot = |key: &String| {
        let found: u16 =
            redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut node.connection()).expect("KEYSLOT");
        let kind: String = redis::cmd("TYPE").arg(key).query(&mut node.connection()).expect("TYPE");
        let is_there =
            || redis::cmd("HEXISTS").arg(key).arg("a").query(&mut node.connection()).expect("HEXISTS");
        found == slot && kind == "hash" && is_there()
    };
    (node, keys.into_iter().find(of_slot).expect("the hash of queues"))
}

/// Guards against a first start that ends because a node was slow once: each has to take the number of partitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_start_waits_for_a_slow_node() {
    let cluster = RedisCluster::start_of(3, 0);
    let stalled = cluster.servers[2].stall();
    let address = cluster.address();
    let start = tokio::spawn(async move { connect(address, 8).await });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!start.is_finished(), "it waits: {:?}", start.await);
    drop(stalled);
    start.await.expect("no panic").expect("the node answers again");
}
