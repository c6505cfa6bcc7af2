//! Queues that are spread over partitions: how that begins, what servers that do not know of it do, the bound of the order,
//! and what a server leaves that is killed in the middle of a publish over several partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dormouse::engine::redis::{CompactEngine, CompactLayout, RedisAddress, SpreadRules};
use dormouse::engine::{
    Beside, Engine, Held, How, NewId, OnConflict, Once, Placing, Publication, Published, Quota, Quotas,
    Release, Released, Respawn, Revival, ScheduleBounds, ScheduleId, SchedulePut, ScheduleSetting,
    ScheduleState, ScheduleStep, ScheduleThen, ScheduleVersion, Stepped, Touched,
};
use dormouse::error::{Error, Unreachable};
use dormouse::job::{Attributes, JobId, JobIds, JobRef, JobState, NewJob};
use dormouse::name::{IdempotencyKey, JobKey, Namespace, PoolName, Queue, QueueList, ScheduleName};
use tokio::time::sleep;

use crate::common::{TTR, queue, within};
use crate::proxy::Proxy;
use crate::support::engine_ext::EngineExt;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;

async fn open_with(address: RedisAddress, spread: SpreadRules) -> Arc<CompactEngine> {
    let layout = CompactLayout { prefix: "p".into(), partitions: 8, wait_replicas: 0, spread };
    let engine = CompactEngine::connect(address, &PoolName::default_pool(), &layout).await;
    engine.expect("the Redis is there")
}

/// Spreads a queue once its home has so many jobs.
async fn open(server: &RedisServer, at: u32) -> Arc<CompactEngine> {
    open_with(server.address(), SpreadRules { at, ..SpreadRules::default() }).await
}

/// Every queue is spread.
async fn open_spread(address: RedisAddress) -> Arc<CompactEngine> {
    open_with(address, SpreadRules { spread: vec!["*/*".into()], ..SpreadRules::default() }).await
}

fn placing(engine: &CompactEngine, queue: &Queue, body: String, key: Option<(&str, OnConflict)>) -> Placing {
    let key = key.map(|(key, conflict)| (JobKey::parse(key).expect("a key"), conflict));
    let beside = key.as_ref().map_or(Beside::Nobody, |(key, _)| Beside::Key(key));
    let new = NewId { queue, delay: Duration::ZERO, bytes: body.len(), versioned: false, beside };
    let job = NewJob {
        queue: queue.clone(),
        id: engine.make_id(&JobIds::default(), new),
        body: body.into(),
        attributes: Attributes::new(),
        ttl: None,
        delay: Duration::ZERO,
        tries: NonZeroU16::new(9).expect("not 0"),
    };
    Placing { job, at: None, key }
}

async fn put(engine: &CompactEngine, queue: &Queue, body: impl ToString) {
    let jobs = vec![placing(engine, queue, body.to_string(), None)];
    let done = engine.publish(Publication { jobs, replaces: None, once: None }).await;
    assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
}

async fn take_all(engine: &CompactEngine, queue: &Queue) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let some = engine.consume(&queue.clone().into(), &[TTR; 50]).await.expect("consumed");
        if some.jobs.is_empty() && !some.more {
            return all;
        }
        all.extend(some.jobs.iter().map(|job| String::from_utf8_lossy(&job.body).into_owned()));
    }
}

/// The keys of partitions with this letter behind the base. Names of buckets are bytes that may hold any letter.
fn keys_of_kind(server: &RedisServer, letter: u8) -> Vec<Vec<u8>> {
    let all: Vec<Vec<u8>> = redis::cmd("KEYS").arg("p{*").query(&mut server.connection()).expect("keys");
    let kind = |key: &Vec<u8>| key.iter().skip_while(|byte| **byte != b'}').nth(1) == Some(&letter);
    all.into_iter().filter(kind).collect()
}

/// In how many partitions a queue has a record.
fn partitions_with(server: &RedisServer, queue: &Queue) -> usize {
    let all: Vec<String> = redis::cmd("KEYS")
        .arg(format!("p{{*}}q{}/{}", queue.namespace, queue.name))
        .query(&mut server.connection())
        .expect("keys");
    all.len()
}

/// Guards against a queue that stays where it has no room, and against a server that looks for its jobs at home alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_spread_once_its_home_has_enough_and_every_server_finds_all() {
    let server = RedisServer::start();
    let (a, b, q) = (open(&server, 40).await, open(&server, 0).await, queue("q"));
    for n in 0..39 {
        put(&a, &q, n).await;
    }
    assert_eq!(partitions_with(&server, &q), 1, "it is gathered");
    assert_eq!(b.ready(&q).await.expect("counted"), 39);
    for n in 39..200 {
        put(&a, &q, n).await;
    }
    assert_eq!(partitions_with(&server, &q), 8, "it is spread");
    // Nobody has told the other server.
    assert_eq!(b.ready(&q).await.expect("counted"), 200);
    put(&b, &q, 200).await;
    let (c, late) = (open(&server, 0).await, open(&server, 0).await);
    let head = c.peek(&q).await.expect("peeked").expect("there are some");
    assert_eq!(&head.body[..], b"0", "the oldest of all");
    let mut all: Vec<u32> =
        take_all(&late, &q).await.iter().map(|body| body.parse().expect("a number")).collect();
    all.sort_unstable();
    assert_eq!(all, (0..=200).collect::<Vec<_>>(), "each once");
    let views = c.list_queues(&q.namespace, None, 9).await.expect("listed").queues;
    assert_eq!(views.len(), 1, "one queue: {views:?}");
    assert_eq!((views[0].ready, views[0].running), (Some(0), Some(201)));
    // It stays so when it is empty.
    put(&*open(&server, 0).await, &q, 0).await;
    assert!(c.ready(&q).await.expect("counted") == 1 && take_all(&c, &q).await == ["0"]);
}

/// Guards against a queue that fills its home's node before anybody counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_spread_for_what_its_home_takes_although_it_is_consumed() {
    let server = RedisServer::start();
    let (engine, q) = (open(&server, 60).await, queue("q"));
    let end = Instant::now() + Duration::from_secs(20);
    let mut n = 0;
    while partitions_with(&server, &q) == 1 || n == 0 {
        assert!(Instant::now() < end, "{n} jobs in 20 s");
        put(&engine, &q, n).await;
        for job in engine.consume(&q.clone().into(), &[TTR]).await.expect("consumed").jobs {
            engine.ack_job(JobRef { queue: q.clone(), id: job.id }).await.expect("acked");
        }
        n += 1;
    }
    assert!(n >= 60, "after {n} jobs");
}

/// Guards against a waiting consumer that listens at home alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_hears_of_jobs_in_every_partition_also_when_another_server_spreads_the_queue() {
    use crate::support::notified::Notified;
    let server = RedisServer::start();
    let (a, b, q) = (open(&server, 10).await, open(&server, 0).await, queue("q"));
    let waits = Notified::attach(&*b, std::slice::from_ref(&q));
    for n in 0..40 {
        put(&a, &q, n).await;
    }
    assert_eq!(partitions_with(&server, &q), 8, "it is spread");
    // It learns of it with its next pump.
    b.pump().await.expect("pumped");
    sleep(Duration::from_millis(300)).await;
    assert_eq!(take_all(&a, &q).await.len(), 40);
    sleep(Duration::from_millis(1200)).await;
    waits.told.lock().clear();
    for n in 0..30 {
        put(&a, &q, n).await;
        let began = Instant::now();
        within("it hears of it", waits.next()).await;
        assert!(began.elapsed() < Duration::from_millis(700), "by the notice, not by the sweep");
        take_all(&a, &q).await;
        sleep(Duration::from_millis(5)).await;
        waits.told.lock().clear();
    }
}

/// Guards against jobs that lie unseen in one partition while those of others are handed out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_overtakes_one_that_has_waited_for_a_second_longer() {
    let server = RedisServer::start();
    let engines = [open_spread(server.address()).await, open_spread(server.address()).await];
    let q = queue("q");
    let publishing = Arc::new(AtomicBool::new(true));
    let mut tasks = Vec::new();
    for worker in 0..8 {
        let (engine, q, publishing) = (engines[worker % 2].clone(), q.clone(), publishing.clone());
        tasks.push(tokio::spawn(async move {
            let mut handed_out = Vec::new();
            // Others publish meanwhile, so that there is something to overtake.
            sleep(Duration::from_millis(2500)).await;
            loop {
                let goes_on = publishing.load(Ordering::SeqCst);
                let asked = engine.now();
                let some = engine.consume(&q.clone().into(), &[TTR; 2]).await.expect("consumed");
                let got = engine.now();
                handed_out.extend(some.jobs.iter().map(|job| (asked, got, job.due)));
                if some.jobs.is_empty() && !some.more && !goes_on {
                    return handed_out;
                }
                // Slower than what is published.
                sleep(Duration::from_millis(25)).await;
            }
        }));
    }
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(5) {
        for engine in &engines {
            put(engine, &q, count).await;
            count += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    publishing.store(false, Ordering::SeqCst);
    let mut all: Vec<(u64, u64, u64)> = Vec::new();
    for task in tasks {
        all.extend(within("they are all consumed", task).await.expect("it does not panic"));
    }
    assert_eq!(all.len(), count, "each once");
    let mut worst = 0;
    for (_, got, ready) in &all {
        // Handed out after this one was, although it was ready before.
        let waited = all.iter().filter(|(asked, _, _)| asked > got).map(|(_, _, ready)| *ready).min();
        worst = worst.max(ready.saturating_sub(waited.unwrap_or(u64::MAX)));
    }
    let age = all.iter().map(|(_, got, ready)| got.saturating_sub(*ready)).max().unwrap_or(0);
    assert!(age > 1500, "some waited for long, so that there was something to overtake: {age} ms");
    println!("{count} jobs, the oldest of {age} ms; the worst was overtaken by {worst} ms");
    assert!(worst <= 1010, "{worst} ms of {count} jobs, the oldest of {age} ms");
}

/// Guards against two jobs of one key, a request that is done twice, and a job that is lost, while a queue is spread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_safe_repeats_hold_while_a_queue_is_spread() {
    let server = RedisServer::start();
    // Four servers, of which one spreads it.
    let mut engines = vec![open(&server, 120).await];
    for _ in 0..3 {
        engines.push(open(&server, 0).await);
    }
    let (q, mut calls) = (queue("q"), Vec::new());
    for n in 0..400_usize {
        for twice in 0..2 {
            let engine = engines[(n + 2 * twice) % engines.len()].clone();
            let q = q.clone();
            calls.push(tokio::spawn(async move {
                sleep(Duration::from_millis(n as u64)).await;
                let (key, request) = (format!("k{}", n / 2), format!("r{n}"));
                let once =
                    IdempotencyKey::new(request.as_bytes()).map(|key| Once { key, fingerprint: [1; 16] });
                let conflict = if n % 2 == 0 { OnConflict::Keep } else { OnConflict::Fail };
                let keyed = (n % 4 < 2).then_some((&*key, conflict));
                let jobs = vec![placing(&engine, &q, n.to_string(), keyed)];
                let done = engine.publish(Publication { jobs, replaces: None, once }).await;
                (n, keyed.is_some().then_some(key), done)
            }));
        }
    }
    let (mut new, mut answers): (BTreeMap<String, BTreeSet<String>>, BTreeMap<usize, BTreeSet<String>>) =
        Default::default();
    let mut plain = 0;
    for call in calls {
        let (n, key, done) = within("it is answered", call).await.expect("it does not panic");
        match (key, done.expect("nothing fails")) {
            (key, Published::Done(placed) | Published::Replay(placed)) => {
                answers.entry(n).or_default().insert(placed[0].id.to_string());
                match key {
                    Some(key) if placed[0].how == How::New => {
                        new.entry(key).or_default().insert(placed[0].id.to_string());
                    }
                    Some(_) => {}
                    None => plain += 1,
                }
            }
            (Some(_), Published::Conflict { .. }) => {}
            (key, other) => panic!("{n} {key:?}: {other:?}"),
        }
    }
    assert_eq!(partitions_with(&server, &q), 8, "it was spread meanwhile");
    assert!(new.values().all(|ids| ids.len() == 1), "one job for each key: {new:?}");
    assert!(answers.values().all(|ids| ids.len() == 1), "equal requests get one answer: {answers:?}");
    assert_eq!((new.len(), plain), (100, 400), "of 400 requests, each made twice");
    assert_eq!(take_all(&engines[3], &q).await.len(), 300, "100 with keys, 200 without");
}

/// Guards against half of a batch: a server is killed at any moment of a publish over several partitions.
#[test]
fn a_batch_over_partitions_is_whole_or_absent_whenever_its_server_is_killed() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let q = queue("q");
    let mut answered = BTreeSet::new();
    for n in 0..40_u64 {
        let killed = runtime().expect("a runtime");
        let engine = killed.block_on(open_spread(server.address()));
        let (for_task, of) = (engine.clone(), q.clone());
        let call = killed.spawn(async move {
            let keys: Vec<String> = (0..5).map(|k| format!("{n}-{k}")).collect();
            let jobs =
                keys.iter().map(|key| placing(&for_task, &of, key.clone(), Some((key, OnConflict::Fail))));
            for_task.publish(Publication { jobs: jobs.collect(), replaces: None, once: None }).await
        });
        std::thread::sleep(Duration::from_micros(150 * n));
        if call.is_finished() {
            answered.insert(n);
        }
        killed.shutdown_background();
        drop(engine);
    }
    runtime().expect("a runtime").block_on(async {
        let engine = open_spread(server.address()).await;
        let began = Instant::now();
        // Fifteen seconds are promised.
        loop {
            let waits = keys_of_kind(&server, b'P');
            if waits.is_empty() {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(15), "{} parts wait", waits.len());
            engine.pump().await.expect("pumped");
            sleep(Duration::from_millis(100)).await;
        }
        let mut batches: BTreeMap<String, usize> = BTreeMap::new();
        for body in take_all(&engine, &q).await {
            *batches.entry(body.split('-').next().expect("a number").to_owned()).or_default() += 1;
        }
        assert!(batches.values().all(|jobs| *jobs == 5), "whole or absent: {batches:?}");
        assert!(answered.iter().all(|n| batches.contains_key(&n.to_string())), "what was answered is there");
        assert!(batches.len() > answered.len() / 2 && batches.len() < 40, "{} of 40", batches.len());
        let locks = keys_of_kind(&server, b'L');
        assert_eq!(locks, [b""; 0], "no key is held for a batch that is over");
    });
}

/// Guards against a queue that counts once for each partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_spread_is_one_queue_of_a_quota() {
    let server = RedisServer::start();
    let engine = open_spread(server.address()).await;
    let quota = Quota { jobs: 0, bytes: 0, queues: 2 };
    let quotas: Quotas = [(queue("q").namespace, quota)].into();
    engine.set_quotas(&quotas).await.expect("set");
    for name in ["a", "b"] {
        for n in 0..20 {
            put(&engine, &queue(name), n).await;
        }
        let parts = partitions_with(&server, &queue(name));
        assert_eq!(parts, 8, "what is counted goes to partitions by turns too");
    }
    let jobs = vec![placing(&engine, &queue("c"), "x".into(), None)];
    let refused = engine.publish(Publication { jobs, replaces: None, once: None }).await;
    assert!(matches!(refused, Err(Error::OverQuota("queues"))), "{refused:?}");
}

/// Guards against a queue whose jobs at instants fill one partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_at_an_instant_go_to_partitions_by_turns() {
    let server = RedisServer::start();
    let (engine, q) = (open_spread(server.address()).await, queue("q"));
    for n in 0..20 {
        let at = Some(engine.now() + 3_600_000);
        let jobs = vec![Placing { at, ..placing(&engine, &q, n.to_string(), None) }];
        let done = engine.publish(Publication { jobs, replaces: None, once: None }).await;
        assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
    }
    assert_eq!(partitions_with(&server, &q), 8, "they are in all");
}

/// Guards against a list that began while the queue was gathered, and leaves out or repeats what it has then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_goes_on_over_the_spreading() {
    use dormouse::engine::JobList;
    let server = RedisServer::start();
    let (engine, q) = (open(&server, 30).await, queue("q"));
    for n in 0..29 {
        put(&engine, &q, n).await;
    }
    let (mut all, mut cursor) = (Vec::new(), None);
    for page in 0.. {
        let list = JobList { state: JobState::Ready, limit: 7, cursor, bodies: true };
        let of = engine.list_jobs(&q, list).await.expect("listed").expect("its cursor is good");
        all.extend(of.jobs.into_iter().filter_map(|view| view.body));
        cursor = of.cursor;
        if page == 1 {
            for n in 29..90 {
                put(&engine, &q, n).await;
            }
        }
        if cursor.is_none() {
            break;
        }
    }
    let mut all: Vec<u32> =
        all.iter().map(|body| std::str::from_utf8(body).expect("text").parse().expect("a number")).collect();
    all.sort_unstable();
    assert_eq!(all, (0..90).collect::<Vec<_>>(), "each once");
}

/// Guards against a queue over all masters that one of them stops, and against an answer that a part of the queue was left
/// out of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spread_queue_takes_publishes_and_hands_out_jobs_while_a_master_is_away() {
    let mut cluster = RedisCluster::start();
    let (engine, q) = (open_spread(cluster.address()).await, queue("q"));
    for n in 0..80 {
        put(&engine, &q, n).await;
    }
    until("its replica has them", async || cluster.is_copied(0)).await;
    cluster.servers[0].kill();
    let (killed, mut stored, mut longest, mut last) = (Instant::now(), 80, Duration::ZERO, Instant::now());
    let mut answers = BTreeMap::new();
    while killed.elapsed() < Duration::from_secs(6) {
        let jobs = vec![placing(&engine, &q, "while away".into(), None)];
        match engine.publish(Publication { jobs, replaces: None, once: None }).await {
            Ok(_) => {
                stored += 1;
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            // It was on its way to the node.
            Err(error) => *answers.entry(error.to_string()).or_insert(0) += 1,
        }
        if killed.elapsed() > Duration::from_millis(500) && killed.elapsed() < Duration::from_millis(800) {
            let some = engine.consume(&q.clone().into(), &[TTR]).await.expect("others have some").jobs;
            stored -= some.len();
        }
        sleep(Duration::from_millis(5)).await;
    }
    println!("the longest time without a 201: {longest:?}; errors: {answers:?}");
    assert!(longest < Duration::from_secs(1), "{longest:?} without a 201");
    assert!(answers.values().sum::<usize>() < 10, "{answers:?}");
    until("the replica takes its place", async || engine.ready(&q).await.is_ok()).await;
    let left = take_all(&engine, &q).await.len();
    // What was answered with an error may be stored.
    assert!((stored..stored + 10).contains(&left), "{left} are left of {stored}");
    assert!(cluster.servers[0].launch(), "it comes back");
}

/// Guards against a part of one queue that nobody can look at, and that keeps jobs of the queues behind it in the list from
/// whoever consumes; and against an answer that all was seen where it was not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_behind_one_that_cannot_be_looked_at_everywhere_are_served() {
    let mut cluster = RedisCluster::start_of(3, 0);
    let rules = SpreadRules { spread: vec!["*/large".into()], ..SpreadRules::default() };
    let (engine, large) = (open_with(cluster.address(), rules).await, queue("large"));
    put(&engine, &large, "makes it known").await;
    take_all(&engine, &large).await;
    cluster.servers[0].kill();
    // A queue whose home works.
    let mut homes = (0..).map(|n| queue(&format!("q{n}")));
    let small = loop {
        let some = homes.next().expect("without end");
        let jobs = vec![placing(&engine, &some, "there".into(), None)];
        if engine.publish(Publication { jobs, replaces: None, once: None }).await.is_ok() {
            break some;
        }
    };
    let names = [large.name.clone(), small.name.clone()];
    let both = QueueList::new(large.namespace.clone(), names).expect("two names");
    let some = engine.consume(&both, &[TTR; 2]).await.expect("one is there");
    assert_eq!(some.jobs.len(), 1, "the job of the second queue");
    assert!(some.more, "nobody can say that there is no other");
    match engine.consume(&both, &[TTR]).await {
        Err(Error::Unseen(_, queues)) => assert_eq!(queues, [large], "which was not seen whole"),
        other => panic!("nobody could look everywhere, and not {other:?}"),
    }
}

/// Guards against producers that all wait behind a node that hangs, though other nodes could take what they have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_behind_a_node_that_hangs_goes_elsewhere() {
    let cluster = RedisCluster::start_of(3, 0);
    let (engine, q) = (open_spread(cluster.address()).await, queue("q"));
    for n in 0..20 {
        put(&engine, &q, n).await;
    }
    let stalled = cluster.servers[0].stall();
    let began = Instant::now();
    let workers = (0..60).map(|n| {
        let (engine, q) = (engine.clone(), q.clone());
        tokio::spawn(async move {
            let (mut stored, mut longest) = (0, Duration::ZERO);
            // One after the other, so that they are not all in one batch.
            sleep(Duration::from_millis(5 * n)).await;
            while began.elapsed() < Duration::from_secs(3) {
                let asked = Instant::now();
                let jobs = vec![placing(&engine, &q, "while it hangs".into(), None)];
                // One that was sent to it fails: nobody knows whether it was carried out.
                if engine.publish(Publication { jobs, replaces: None, once: None }).await.is_err() {
                    break;
                }
                (stored, longest) = (stored + 1, longest.max(asked.elapsed()));
            }
            (stored, longest)
        })
    });
    let (mut stored, mut longest, mut went_on) = (0, Duration::ZERO, 0);
    for worker in workers.collect::<Vec<_>>() {
        let (some, took) = within("each is answered", worker).await.expect("it does not panic");
        (stored, longest) = (stored + some, longest.max(took));
        went_on += usize::from(took > Duration::from_millis(400));
    }
    drop(stalled);
    println!("{stored} were stored, the slowest after {longest:?}; {went_on} waited behind the node");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    assert!(went_on > 0, "some waited behind what the node owes");
}

/// The partition that an id names, of 8.
fn partition_in(id: &JobId) -> u16 {
    let bytes = id.to_bytes();
    (u16::from_be_bytes([bytes[9], bytes[10]]) >> 4) % 8
}

/// How many reads of a list's head a Redis has answered.
fn reads_of_heads(server: &RedisServer) -> u64 {
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).expect("it answers");
    // Scripts read heads too, of what they hand out.
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    calls("lindex").unwrap_or(0)
}

/// Guards against a read of each partition for each job that comes, and against a job that nobody looks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_notified_looks_only_where_a_job_may_be() {
    use crate::support::notified::Notified;
    let server = RedisServer::start();
    let (a, b, q) = (open_spread(server.address()).await, open_spread(server.address()).await, queue("q"));
    put(&a, &q, 0).await;
    let waits = Notified::attach(&*b, std::slice::from_ref(&q));
    assert_eq!(take_all(&b, &q).await, ["0"], "it has seen all partitions, and heads of none");
    for n in 1..20 {
        put(&a, &q, n).await;
        let before = reads_of_heads(&server);
        // A notification may be of the job before.
        let job = loop {
            within("it is notified", waits.next()).await;
            let some = b.consume_notified(&q.clone().into(), &[TTR; 9]).await.expect("consumed");
            if let [job] = &some.jobs[..] {
                break job.clone();
            }
        };
        assert_eq!(&job.body[..], n.to_string().as_bytes());
        let reads = reads_of_heads(&server) - before;
        assert!(reads <= 6, "{reads} reads for job {n}");
    }
    let before = reads_of_heads(&server);
    let none = b.consume(&q.clone().into(), &[TTR]).await.expect("consumed");
    assert!(none.jobs.is_empty() && reads_of_heads(&server) - before >= 8, "who was not looks everywhere");
}

/// Guards against a publish that fails since one node refuses what others would take, and against one that does not wait
/// for the last of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_refuses_goes_elsewhere_and_the_last_part_is_waited_for() {
    let cluster = RedisCluster::start_of(3, 0);
    let (engine, q) = (open_spread(cluster.address()).await, queue("q"));
    put(&engine, &q, "makes it known").await;
    // It says that the slots are nobody's, and is asked all the same.
    let slots = |server: usize| {
        let node = cluster.nodes().into_iter().find(|node| cluster.server_at(node.port) == server);
        let slots = node.expect("a node").slots;
        slots.iter().flat_map(|(first, last)| [first.to_string(), last.to_string()]).collect::<Vec<_>>()
    };
    let all: Vec<Vec<String>> = (0..3).map(slots).collect();
    let tell = |server: usize, what: &str| {
        let words = ["CLUSTER", what].into_iter().chain(all[server].iter().map(String::as_str));
        cluster.tell::<()>(server, &words.collect::<Vec<_>>());
    };
    let later = |n: usize| {
        let (engine, q) = (engine.clone(), q.clone());
        async move {
            let at = n.is_multiple_of(2).then(|| engine.now() + 3_600_000);
            let jobs = vec![Placing { at, ..placing(&engine, &q, n.to_string(), None) }];
            engine.publish(Publication { jobs, replaces: None, once: None }).await
        }
    };
    tell(0, "DELSLOTSRANGE");
    for n in 0..20 {
        let done = later(n).await;
        assert!(matches!(done, Ok(Published::Done(_))), "{n}: {done:?}");
    }
    tell(1, "DELSLOTSRANGE");
    tell(2, "DELSLOTSRANGE");
    let (one, other) = (tokio::spawn(later(0)), tokio::spawn(later(1)));
    sleep(Duration::from_millis(200)).await;
    (0..3).for_each(|server| tell(server, "ADDSLOTSRANGE"));
    for waited in [one, other] {
        let done = waited.await.expect("it does not panic");
        assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
    }
}

/// Guards against room of a quota that a job keeps although another one has its key and it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_key_goes_to_another_partition_is_counted_no_more() {
    let server = RedisServer::start();
    let (engine, knows, q) = (open(&server, 5).await, open_spread(server.address()).await, queue("q"));
    let quota = Quota { jobs: 6, bytes: 0, queues: 0 };
    engine.set_quotas(&[(q.namespace.clone(), quota)].into()).await.expect("set");
    let home = partition_in(&placing(&engine, &q, String::new(), None).job.id);
    let keyed = |engine: &CompactEngine, key: &str, body: &str| {
        placing(engine, &q, body.into(), Some((key, OnConflict::Replace)))
    };
    let keys = (0..).map(|n| format!("k{n}"));
    let key = keys
        .into_iter()
        .find(|key| partition_in(&keyed(&knows, key, "").job.id) != home)
        .expect("there is one");
    let put_job = |jobs: Vec<Placing>| engine.publish(Publication { jobs, replaces: None, once: None });
    let first = put_job(vec![keyed(&engine, &key, "old")]).await;
    assert!(matches!(first, Ok(Published::Done(_))), "{first:?}");
    for n in 0..4 {
        put(&engine, &q, n).await;
    }
    let second = put_job(vec![keyed(&engine, &key, "new")]).await;
    let Ok(Published::Done(placed)) = second else { panic!("{second:?}") };
    assert!(matches!(placed[0].how, How::Replaced(_)), "{placed:?}");
    assert_ne!(partition_in(&placed[0].id), home, "the queue is spread");
    put(&engine, &q, "the sixth").await;
    let refused = put_job(vec![placing(&engine, &q, "the seventh".into(), None)]).await;
    assert!(matches!(refused, Err(Error::OverQuota("jobs"))), "{refused:?}");
}

/// The job of a schedule, which lies at the queue's home whatever its key says.
fn of_schedule(engine: &CompactEngine, queue: &Queue, key: &str) -> Placing {
    let body = "ours";
    let new =
        NewId { queue, delay: Duration::ZERO, bytes: body.len(), versioned: false, beside: Beside::Schedule };
    let id = engine.make_id(&JobIds::default(), new);
    let Placing { job, .. } = placing(engine, queue, body.into(), None);
    let key = JobKey::parse(key).expect("a key");
    Placing { job: NewJob { id, ..job }, at: None, key: Some((key, OnConflict::Replace)) }
}

/// Steps a schedule of this queue. The version that it has then.
async fn step(
    engine: &CompactEngine,
    queue: &Queue,
    expected: Option<ScheduleVersion>,
    job: Option<Placing>,
) -> ScheduleVersion {
    let id =
        ScheduleId { namespace: queue.namespace.clone(), name: ScheduleName::parse("s").expect("a name") };
    let setting = ScheduleSetting { queue: queue.name.clone(), text: "t".into(), body: "b".into() };
    let setting = expected.is_none().then_some(setting);
    let (places, job) =
        (job.is_some(), job.map(|job| Publication { jobs: vec![job], replaces: None, once: None }));
    let bounds = ScheduleBounds { of_namespace: 9, of_pool: 9 };
    let plain = SchedulePut::plain(ScheduleState::On, Some(1), "p".into(), None);
    let then = ScheduleThen::Put(Box::new(SchedulePut { setting, job, bounds, ..plain }));
    match engine.step_schedule(ScheduleStep { id, expected, then }).await {
        Ok(Stepped::Done { version, landed }) if landed.is_some() == places => version,
        other => panic!("{other:?}"),
    }
}

/// Guards against a job that is taken from a worker that has just got it, by a schedule whose job gets its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_begins_to_run_while_a_schedule_takes_its_key_runs_on() {
    let cluster = RedisCluster::start_of(3, 0);
    let (engine, q) = (open_spread(cluster.address()).await, queue("q"));
    let home = partition_in(&of_schedule(&engine, &q, "x").job.id);
    let key = (0..).map(|n| format!("k{n}")).find(|key| {
        partition_in(&placing(&engine, &q, String::new(), Some((key, OnConflict::Fail))).job.id) != home
    });
    let key = key.expect("there is one");
    let theirs = placing(&engine, &q, "theirs".into(), Some((&key, OnConflict::Fail)));
    let theirs_id = theirs.job.id;
    let done = engine.publish(Publication { jobs: vec![theirs], replaces: None, once: None }).await;
    assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
    let set = step(&engine, &q, None, None).await;
    // The step waits for its home, and has looked at the key before.
    let ours = of_schedule(&engine, &q, &key);
    let (slot, to) = (home * 2048 + 1024, |from: usize| (from + 1) % 3);
    let (from, _) = cluster.master_of(slot);
    cluster.begin_move(slot, to(from));
    let key = JobKey::parse(&key).expect("a key");
    let stepping = tokio::spawn({
        let (engine, q) = (engine.clone(), q.clone());
        async move { step(&engine, &q, Some(set), Some(ours)).await }
    });
    sleep(Duration::from_millis(500)).await;
    let running = engine.consume(&q.clone().into(), &[TTR]).await.expect("it can be reached").jobs;
    assert_eq!(running.iter().map(|job| job.id).collect::<Vec<_>>(), [theirs_id]);
    for server in [from, to(from)] {
        cluster.tell::<()>(server, &["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
    }
    stepping.await.expect("it does not panic");
    let job = JobRef { queue: q.clone(), id: theirs_id };
    let seen = engine.inspect_job(&job).await.expect("looked at").expect("it is there");
    assert_eq!((seen.state, seen.key), (Some(JobState::Running), None), "it runs on without its key");
    let ours = engine.inspect_by_key(&q, &key).await.expect("looked at").expect("it has the key");
    assert_eq!(ours.state, Some(JobState::Ready));
}

/// Guards against a job that is told as replaced and handed out all the same: its ttr has ended, and nobody has written
/// that into it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_came_back_goes_when_its_key_goes_to_another_partition() {
    let server = RedisServer::start();
    let (engine, q) = (open_spread(server.address()).await, queue("q"));
    let key = (0..).map(|n| format!("k{n}")).find(|key| {
        let at_home = partition_in(&of_schedule(&engine, &q, key).job.id);
        partition_in(&placing(&engine, &q, String::new(), Some((key, OnConflict::Fail))).job.id) != at_home
    });
    let key = key.expect("there is one");
    let ours = of_schedule(&engine, &q, &key);
    let id = ours.job.id;
    let set = step(&engine, &q, None, None).await;
    step(&engine, &q, Some(set), Some(ours)).await;
    let running =
        engine.consume(&q.clone().into(), &[Duration::from_millis(300)]).await.expect("consumed").jobs;
    assert_eq!(running.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
    let job = JobRef { queue: q.clone(), id };
    within("it is ready again", async {
        loop {
            engine.pump().await.expect("pumped");
            let seen = engine.inspect_job(&job).await.expect("looked at").expect("it is there");
            if seen.state == Some(JobState::Ready) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let theirs = placing(&engine, &q, "theirs".into(), Some((&key, OnConflict::Replace)));
    let theirs_id = theirs.job.id;
    let done = engine.publish(Publication { jobs: vec![theirs], replaces: None, once: None }).await;
    assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
    assert!(engine.inspect_job(&job).await.expect("looked at").is_none(), "it is replaced");
    let next = engine.consume(&q.clone().into(), &[TTR; 2]).await.expect("consumed").jobs;
    assert_eq!(next.iter().map(|job| job.id).collect::<Vec<_>>(), [theirs_id]);
}

/// Guards against a schedule that places nothing, and a job that no worker can end, while a node is away that has nothing of
/// their queue: the id that an earlier version has given such a job names any partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_schedules_need_no_partition_but_the_home_of_their_queue() {
    needs_its_home_alone(SpreadRules::default(), |_, _, id| id).await;
}

/// The same of a queue that is spread, where each job is looked for in the partition that its id names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_schedules_need_their_home_alone_in_a_queue_that_is_spread() {
    let rules = SpreadRules { spread: vec!["*/*".into()], ..SpreadRules::default() };
    needs_its_home_alone(rules, |engine, q, id| engine.id_at_home(q, id)).await;
}

/// Has a schedule place a job, and does with it all that a worker does, while a node is away that has nothing of the queue.
async fn needs_its_home_alone(rules: SpreadRules, id_of: impl Fn(&CompactEngine, &Queue, JobId) -> JobId) {
    let mut cluster = RedisCluster::start_of(3, 0);
    let engine = open_with(cluster.address(), rules).await;
    let server_of = |partition: u16| cluster.master_of(partition * 2048 + 1024).0;
    let away = (0..8).find(|partition| server_of(*partition) == 0).expect("it has some");
    let home_of = |q: &Queue| partition_in(&of_schedule(&engine, q, "k").job.id);
    let q =
        (0..).map(|n| queue(&format!("q{n}"))).find(|q| server_of(home_of(q)) != 0).expect("there is one");
    let mut ours = Placing { key: None, ..of_schedule(&engine, &q, "k") };
    let made_of_names = JobId::from_parts(1_700_000_000_000, u64::from(away) << 12, 0, true);
    ours.job.id = id_of(&engine, &q, made_of_names);
    let job = JobRef { queue: q.clone(), id: ours.job.id };
    let set = step(&engine, &q, None, None).await;
    cluster.servers[0].kill();
    within("it is placed", step(&engine, &q, Some(set), Some(ours))).await;
    let take = async || {
        let mut jobs = engine.consume(&q.clone().into(), &[TTR]).await.expect("consumed").jobs;
        assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [job.id]);
        jobs.remove(0).proof()
    };
    let receipt = take().await;
    let touched = engine.touch(&job, receipt, TTR).await.expect("touched");
    let Held::Done(Touched { receipt, .. }) = touched else { panic!("{touched:?}") };
    let back = engine.release(&job, receipt, Release::bury(None)).await.expect("buried");
    assert!(matches!(back, Held::Done(Released::Dead)), "{back:?}");
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    let revived = engine.respawn(&q, Respawn::Jobs(&[job.id], revival)).await.expect("respawned");
    assert_eq!(revived.count, 1, "{revived:?}");
    let jobs = engine.consume(&q.clone().into(), &[TTR]).await.expect("consumed").jobs;
    engine.give_back(jobs).await.expect("given back");
    let receipt = take().await;
    assert!(engine.inspect_job(&job).await.expect("looked at").is_some());
    let stale = engine.ack(&q, &[(job.id, Some(receipt))]).await.expect("acked");
    assert_eq!(stale, []);
    assert!(engine.inspect_job(&job).await.expect("looked at").is_none());
    // Of a job that is gone too.
    engine.ack_job(job).await.expect("acked");
}

/// Guards against a part that is away, and for which others forget none of theirs: who acks would work on all again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_of_many_is_done_where_it_can_be() {
    let mut cluster = RedisCluster::start_of(3, 0);
    let (engine, q) = (open_spread(cluster.address()).await, queue("q"));
    for n in 0..64 {
        put(&engine, &q, n).await;
    }
    let jobs = engine.consume(&q.clone().into(), &[TTR; 64]).await.expect("consumed").jobs;
    let server_of = |id: &JobId| cluster.master_of(partition_in(id) * 2048 + 1024).0;
    let (away, there): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| server_of(&job.id) == 0);
    assert!(!away.is_empty() && there.len() > 1, "some lie in each: {} and {}", away.len(), there.len());
    cluster.servers[0].kill();
    let named: Vec<_> = away.iter().chain(&there).map(|job| (job.id, Some(job.proof()))).collect();
    let acked = engine.ack(&q, &named).await;
    assert!(
        matches!(&acked, Err(Error::Partly { done, .. }) if *done == there.len() as u64),
        "{acked:?} of {}",
        there.len()
    );
    for job in there {
        let job = JobRef { queue: q.clone(), id: job.id };
        assert!(engine.inspect_job(&job).await.expect("looked at").is_none(), "{job:?} is there");
    }
}

/// Guards against a conflict that is told to who repeats a request that was done: the key has gone on to another job since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_gets_its_answer_although_a_schedule_has_the_key_by_now() {
    let server = RedisServer::start();
    let (engine, q) = (open_spread(server.address()).await, queue("q"));
    let home = partition_in(&of_schedule(&engine, &q, "k").job.id);
    let keys = (0..).map(|n| format!("k{n}"));
    let keyed = |key: &str| placing(&engine, &q, "theirs".into(), Some((key, OnConflict::Fail)));
    let key = keys.into_iter().find(|key| partition_in(&keyed(key).job.id) != home).expect("there is one");
    let request = || {
        let once = Once { key: IdempotencyKey::new(b"once").expect("a key"), fingerprint: [1; 16] };
        engine.publish(Publication { jobs: vec![keyed(&key)], replaces: None, once: Some(once) })
    };
    let first = request().await;
    let Ok(Published::Done(placed)) = first else { panic!("{first:?}") };
    let set = step(&engine, &q, None, None).await;
    step(&engine, &q, Some(set), Some(of_schedule(&engine, &q, &key))).await;
    let repeated = request().await;
    let Ok(Published::Replay(replayed)) = repeated else { panic!("{repeated:?}") };
    assert_eq!(replayed[0].id, placed[0].id);
}

/// Guards against a job that comes again although its worker has replaced it: that of a schedule lies at home, whatever
/// partition its id names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_replaces_the_job_of_a_schedule_is_rid_of_it() {
    let server = RedisServer::start();
    let (engine, q) = (open_spread(server.address()).await, queue("q"));
    let mut ours = of_schedule(&engine, &q, "k");
    let home = partition_in(&ours.job.id);
    // An id that is a function of the schedule and of when its job is due.
    ours.job.id = JobId::from_parts(1_700_000_000_000, u64::from((home + 1) % 8) << 12, 0, true);
    let old = JobRef { queue: q.clone(), id: ours.job.id };
    let set = step(&engine, &q, None, None).await;
    step(&engine, &q, Some(set), Some(ours)).await;
    let running = engine.consume(&q.clone().into(), &[TTR; 2]).await.expect("consumed").jobs;
    assert_eq!(running.iter().map(|job| job.id).collect::<Vec<_>>(), [old.id]);
    let jobs = vec![placing(&engine, &q, "the next step".into(), None)];
    let done = engine.publish(Publication { jobs, replaces: Some(old.clone()), once: None }).await;
    assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
    assert!(engine.inspect_job(&old).await.expect("looked at").is_none(), "it is acked");
    assert_eq!(take_all(&engine, &q).await, ["the next step"]);
}

/// Guards against a job that comes again although its worker has replaced it, by a server that does not know yet that its
/// queue is spread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_know_of_the_spreading_replaces_a_job_all_the_same() {
    let server = RedisServer::start();
    let (engine, late, q) = (open_spread(server.address()).await, open(&server, 0).await, queue("q"));
    let home = partition_in(&placing(&late, &q, String::new(), None).job.id);
    for n in 0..16 {
        put(&engine, &q, n).await;
    }
    let running = engine.consume(&q.clone().into(), &[TTR; 16]).await.expect("consumed").jobs;
    let job = running.iter().find(|job| partition_in(&job.id) != home).expect("some lie elsewhere");
    let old = JobRef { queue: q.clone(), id: job.id };
    let jobs = vec![placing(&late, &q, "the next step".into(), None)];
    let done = late.publish(Publication { jobs, replaces: Some(old.clone()), once: None }).await;
    assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
    assert!(engine.inspect_job(&old).await.expect("looked at").is_none(), "it is acked");
    assert_eq!(take_all(&engine, &q).await, ["the next step"]);
}

/// Has every connection to a Redis broken.
fn cut_all(server: &RedisServer) {
    let mut kill = redis::cmd("CLIENT");
    let _: u64 = kill.arg("KILL").arg("TYPE").arg("normal").query(&mut server.connection()).expect("done");
}

/// Guards against jobs that run for nobody, since a queue behind theirs turned out to be spread and its home could not be
/// asked about that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_handed_out_is_kept_when_the_queue_behind_cannot_be_looked_at() {
    let server = Arc::new(RedisServer::start());
    let (engine, spread) = (open_spread(server.address()).await, queue("q"));
    let proxy = Proxy::start(server.addr()).await;
    let address = RedisAddress { addrs: vec![proxy.addr()], ..RedisAddress::default() };
    let late = open_with(address, SpreadRules::default()).await;
    let home_of = |queue: &Queue| partition_in(&placing(&late, queue, String::new(), None).job.id);
    let gathered = (0..).map(|n| queue(&format!("g{n}"))).find(|q| home_of(q) == home_of(&spread));
    let gathered = gathered.expect("some have the same home");
    put(&engine, &spread, "behind").await;
    put(&late, &gathered, "first").await;
    let queues = QueueList::new(spread.namespace.clone(), [gathered.name, spread.name]).expect("two");
    // It asks whether the queue is spread after the script has handed out what is before it.
    let asked = Arc::new(AtomicBool::new(false));
    let (to_cut, was_asked) = (server.clone(), asked.clone());
    proxy.before("\r\nGET\r\n", move || {
        if !was_asked.swap(true, Ordering::SeqCst) {
            cut_all(&to_cut);
        }
    });
    let consumed = within("it is answered", late.consume(&queues, &[TTR; 9])).await.expect("it has some");
    assert!(asked.load(Ordering::SeqCst), "it has asked");
    let bodies: Vec<&[u8]> = consumed.jobs.iter().map(|job| &job.body[..]).collect();
    assert_eq!(bodies.first(), Some(&&b"first"[..]), "{bodies:?}");
    assert!(consumed.more || bodies.len() == 2, "the other queue is asked again");
}

/// Guards against a part of a batch that is lost since it was shown late, when its large bodies had ended; and against
/// bodies of a batch that is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_of_a_batch_stay_until_its_parts_are_shown_or_dropped() {
    let server = Arc::new(RedisServer::start());
    let (other, q) = (open_spread(server.address()).await, queue("q"));
    let proxy = Proxy::start(server.addr()).await;
    let address = RedisAddress { addrs: vec![proxy.addr()], ..RedisAddress::default() };
    let rules = SpreadRules { spread: vec!["*/*".into()], ..SpreadRules::default() };
    let engine = open_with(address, rules).await;
    let to_cut = server.clone();
    proxy.before("\r\ndecide\r\n", move || cut_all(&to_cut));
    let jobs: Vec<Placing> = (0..40)
        .map(|n| placing(&engine, &q, "x".repeat(400_000), Some((&format!("k{n}"), OnConflict::Fail))))
        .collect();
    let done = engine.publish(Publication { jobs, replaces: None, once: None }).await;
    assert!(done.is_err(), "its server has lost its Redis: {done:?}");
    let (parts, bodies) = (keys_of_kind(&server, b'P'), keys_of_kind(&server, b'x'));
    assert!(parts.len() > 1 && bodies.len() == 40, "{} parts, {} bodies", parts.len(), bodies.len());
    let redis = &mut server.connection();
    for body in &bodies {
        let left: i64 = redis::cmd("PTTL").arg(body).query(redis).expect("it is there");
        assert_eq!(left, -1, "it is kept as long as the part");
    }
    // They have waited for too long.
    for queue in keys_of_kind(&server, b'W') {
        let waits: Vec<Vec<u8>> = redis::cmd("ZRANGE").arg(&queue).arg(0).arg(-1).query(redis).expect("some");
        for id in waits {
            let _: u64 = redis::cmd("ZADD").arg(&queue).arg(1).arg(id).query(redis).expect("set");
        }
    }
    until("they are dropped", async || {
        other.pump().await.expect("pumped");
        keys_of_kind(&server, b'P').is_empty()
    })
    .await;
    assert_eq!(keys_of_kind(&server, b'x').len(), 0, "nothing is left of it");
    assert_eq!(other.ready(&q).await.expect("counted"), 0);
}

/// An engine whose connections to the Redis go through a proxy.
async fn open_through(proxy: &Proxy, spread: &str) -> Arc<CompactEngine> {
    let address = RedisAddress { addrs: vec![proxy.addr()], ..RedisAddress::default() };
    open_with(address, SpreadRules { spread: vec![spread.into()], ..SpreadRules::default() }).await
}

/// Waits for something where nothing can be awaited.
fn wait_for<T>(what: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(what))
}

/// Guards against a job that is stored although its producer was told that another one has its key: that one goes between
/// the look at all parts of a batch and the step that shows them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_batch_was_told_of_a_key_stands_although_its_holder_goes_meanwhile() {
    let server = RedisServer::start();
    let (other, q) = (open_spread(server.address()).await, queue("q"));
    let proxy = Proxy::start(server.addr()).await;
    let engine = open_through(&proxy, "*/*").await;
    let keyed = |key: &str| placing(&engine, &q, key.to_owned(), Some((key, OnConflict::Keep)));
    for held_decides in [false, true] {
        let held = format!("held-{held_decides}");
        let is_elsewhere =
            |key: &String| partition_in(&keyed(key).job.id) != partition_in(&keyed(&held).job.id);
        let free =
            (0..).map(|n| format!("free-{held_decides}-{n}")).find(is_elsewhere).expect("there is one");
        let theirs = placing(&other, &q, "theirs".into(), Some((held.as_str(), OnConflict::Fail)));
        let holder = JobRef { queue: q.clone(), id: theirs.job.id };
        let done = other.publish(Publication { jobs: vec![theirs], replaces: None, once: None }).await;
        assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
        let (to_ack, job) = (other.clone(), holder.clone());
        proxy.before("\r\ndecide\r\n", move || wait_for(to_ack.ack_job(job.clone())).expect("acked"));
        let mut keys = [&free, &held];
        if held_decides {
            keys.reverse();
        }
        let jobs = keys.map(|key| keyed(key)).into();
        let done = engine.publish(Publication { jobs, replaces: None, once: None }).await;
        let Ok(Published::Done(placed)) = done else { panic!("{done:?}") };
        let of_held = &placed[usize::from(!held_decides)];
        assert_eq!((of_held.how, of_held.id), (How::Duplicate, holder.id), "it was there");
        assert!(other.inspect_job(&holder).await.expect("looked at").is_none(), "and is acked by now");
        assert_eq!(take_all(&other, &q).await, [free], "what was told to be new");
    }
}

/// Guards against a batch that fails, and leaves its large bodies for ever, since one of its queues is spread between look and
/// show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_published_although_one_of_its_queues_is_spread_meanwhile() {
    let server = RedisServer::start();
    let (other, proxy) = (open_spread(server.address()).await, Proxy::start(server.addr()).await);
    let (engine, all, late) = (open_through(&proxy, "*/all").await, queue("all"), queue("late"));
    let large = || "x".repeat(600_000);
    // The home of the first one decides.
    let mut jobs = vec![placing(&engine, &late, large(), None), placing(&engine, &late, large(), None)];
    let home = partition_in(&jobs[0].job.id);
    let keyed = |key: &str| placing(&engine, &all, "small".into(), Some((key, OnConflict::Fail)));
    let keys = (0..).map(|n| format!("k{n}"));
    let key = keys.into_iter().find(|key| partition_in(&keyed(key).job.id) != home).expect("there is one");
    jobs.push(keyed(&key));
    let (to_spread, name, was) = (other.clone(), late.clone(), AtomicBool::new(false));
    proxy.before("\r\ndecide\r\n", move || {
        if !was.swap(true, Ordering::SeqCst) {
            wait_for(put(&to_spread, &name, "spreads it"));
        }
    });
    let done = engine.publish(Publication { jobs, replaces: None, once: None }).await;
    assert!(matches!(&done, Ok(Published::Done(placed)) if placed.len() == 3), "{done:?}");
    assert_eq!(keys_of_kind(&server, b'x').len(), 2, "the bodies of two jobs");
    let sizes = async |queue: &Queue| {
        let mut sizes: Vec<usize> = take_all(&other, queue).await.iter().map(String::len).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sizes(&late).await, [10, 600_000, 600_000]);
    assert_eq!(sizes(&all).await, [5]);
}

/// Guards against acks of queues in other partitions that wait behind one of a job that is gone, which may lie at home while
/// home is moved; and behind the room of a quota that is counted in a partition which is moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_that_needs_another_partition_holds_up_no_others() {
    let cluster = RedisCluster::start_of(3, 0);
    let rules = SpreadRules { spread: vec!["*/all".into()], ..SpreadRules::default() };
    let (engine, all) = (open_with(cluster.address(), rules).await, queue("all"));
    let quota = Quota { jobs: 1000, bytes: 0, queues: 0 };
    let quotas: Quotas = [(all.namespace.clone(), quota)].into();
    engine.set_quotas(&quotas).await.expect("set");
    // Where the namespace is counted.
    let counts = (0..3).find_map(|server| {
        let keys: Vec<String> = cluster.tell(server, &["KEYS", "p{*}lshop"]);
        Some(cluster.tell::<u16>(0, &["CLUSTER", "KEYSLOT", keys.first()?.as_str()]))
    });
    let counts = counts.expect("it is counted somewhere");
    engine.set_quotas(&Quotas::default()).await.expect("set");

    let home_of = |q: &Queue| partition_in(&of_schedule(&engine, q, "x").job.id);
    for n in 0..40 {
        put(&engine, &all, n).await;
    }
    let take = async |q: &Queue, count| {
        let jobs = engine.consume(&q.clone().into(), &vec![TTR; count]).await.expect("consumed").jobs;
        jobs.into_iter().map(|job| JobRef { queue: q.clone(), id: job.id }).collect::<Vec<_>>()
    };
    let taken = take(&all, 40).await;
    let is_apart = |job: &&JobRef| {
        let partition = partition_in(&job.id);
        partition != home_of(&all) && partition != counts / 2048
    };
    let gone = taken.iter().find(is_apart).expect("some are").clone();
    engine.ack_job(gone.clone()).await.expect("acked");
    let here = partition_in(&gone.id);
    let ours = (0..).map(|n| queue(&format!("q{n}"))).find(|q| home_of(q) == here).expect("there is one");
    let namespace = Namespace::parse("theirs").expect("a name");
    let theirs = (0..).map(|n| Queue { namespace: namespace.clone(), ..queue(&format!("q{n}")) });
    let theirs = theirs.into_iter().find(|q| home_of(q) == here).expect("there is one");
    // While this slot moves that ack waits, and those of the other queue in its partition do not.
    let moving = async |slot: u16, waits: JobRef| {
        put(&engine, &theirs, "x").await;
        let other = take(&theirs, 1).await.remove(0);
        let from = cluster.master_of(slot).0;
        let to = (from + 1) % 3;
        cluster.begin_move(slot, to);
        let waiting = tokio::spawn({
            let engine = engine.clone();
            async move { engine.ack_job(waits).await }
        });
        sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "it waits");
        let began = Instant::now();
        engine.ack_job(other).await.expect("acked");
        assert!(began.elapsed() < Duration::from_secs(1), "the other one waited for {:?}", began.elapsed());
        let waited = waiting.await.expect("it does not panic");
        for server in [from, to] {
            cluster.tell::<()>(server, &["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
        }
        waited
    };
    let unseen = moving(home_of(&all) * 2048 + 1024, gone).await;
    assert!(matches!(unseen, Err(Error::Unreachable(Unreachable::Moving))), "it may lie there: {unseen:?}");
    put(&engine, &ours, "x").await;
    let counted = take(&ours, 1).await.remove(0);
    engine.set_quotas(&quotas).await.expect("set");
    moving(counts, counted).await.expect("it is acked: the count is corrected later");
}

/// Guards against a queue that stops, or loses jobs, while one of its parts is moved; and against a consume that never ends,
/// since the list of ready jobs can be read until it has moved, and no script begins there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spread_queue_goes_on_while_one_of_its_parts_is_moved() {
    let cluster = RedisCluster::start_of(3, 0);
    let (engine, q) = (open_spread(cluster.address()).await, queue("q"));
    for n in 0..40 {
        put(&engine, &q, n).await;
    }
    let (moved, slot) = (3, 3 * 2048 + 1024);
    let to = (cluster.master_of(slot).0 + 1) % 3;
    cluster.begin_move(slot, to);
    let mut longest = Duration::ZERO;
    for n in 40..80 {
        let began = Instant::now();
        put(&engine, &q, n).await;
        longest = longest.max(began.elapsed());
    }
    assert!(longest < Duration::from_secs(1), "others take it: {longest:?}");
    let keyed = |key: &str| placing(&engine, &q, "keyed".into(), Some((key, OnConflict::Fail)));
    let key = (0..).map(|n| format!("k{n}")).find(|key| partition_in(&keyed(key).job.id) == moved);
    let keyed = vec![keyed(&key.expect("there is one"))];
    let stays = engine.publish(Publication { jobs: keyed, replaces: None, once: None });
    let others = async {
        let mut bodies = Vec::new();
        loop {
            match engine.consume(&q.clone().into(), &[TTR; 100]).await {
                Ok(some) => bodies.extend(some.jobs.iter().map(|job| job.body.clone())),
                Err(error) => return (bodies, error),
            }
        }
    };
    let (stays, (mut bodies, unseen)) = tokio::join!(stays, within("it is told so", others));
    assert!(matches!(stays, Err(Error::Unreachable(Unreachable::Moving))), "{stays:?}");
    assert!(
        matches!(&unseen, Error::Unseen(Unreachable::Moving, queues) if *queues == [q.clone()]),
        "{unseen:?}"
    );
    assert!((40..80).contains(&bodies.len()), "{} jobs of the others", bodies.len());
    cluster.move_keys(slot, to, 1);
    cluster.end_move(slot, to);
    until("the rest is there", async || {
        let some = engine.consume(&q.clone().into(), &[TTR; 100]).await;
        bodies.extend(some.iter().flat_map(|some| &some.jobs).map(|job| job.body.clone()));
        bodies.len() >= 80
    })
    .await;
    let mut all: Vec<u32> = bodies
        .iter()
        .map(|body| std::str::from_utf8(body).expect("text").parse().expect("a number"))
        .collect();
    all.sort_unstable();
    assert_eq!(all, (0..80).collect::<Vec<_>>(), "each once");
}

/// Guards against jobs that are lost or done twice, and requests that are answered in two ways, when a queue is spread while
/// publishes with keys, batches and safe repeats are under way on two servers, and workers consume and ack.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_done_twice_when_a_queue_is_spread_under_load() {
    let cluster = RedisCluster::start_of(3, 0);
    let (mut engines, q) = (Vec::new(), queue("q"));
    for at in [200, 0] {
        engines.push(open_with(cluster.address(), SpreadRules { at, ..SpreadRules::default() }).await);
    }
    let publishing = Arc::new(AtomicBool::new(true));
    let workers: Vec<_> = (0..6)
        .map(|n| {
            let (engine, q, publishing) = (engines[n % 2].clone(), q.clone(), publishing.clone());
            tokio::spawn(async move {
                let mut done = Vec::new();
                loop {
                    let goes_on = publishing.load(Ordering::SeqCst);
                    let some = engine.consume(&q.clone().into(), &[TTR; 4]).await.expect("consumed");
                    for job in &some.jobs {
                        let name = JobRef { queue: q.clone(), id: job.id };
                        engine.ack_job(name).await.expect("acked");
                        done.push(String::from_utf8_lossy(&job.body).into_owned());
                    }
                    if some.jobs.is_empty() && !some.more && !goes_on {
                        return done;
                    }
                    sleep(Duration::from_millis(5)).await;
                }
            })
        })
        .collect();
    let producers: Vec<_> = (0..8)
        .map(|producer| {
            let (engines, q) = (engines.clone(), q.clone());
            tokio::spawn(async move {
                let mut told = Vec::new();
                for n in 0..60 {
                    let body = format!("{producer}-{n}");
                    let (one, other) = (&engines[producer % 2], &engines[(producer + 1) % 2]);
                    match n % 3 {
                        0 => {
                            put(one, &q, &body).await;
                            told.push(body);
                        }
                        1 => {
                            // Both ask the same at the same time; every other one has a key.
                            let ask = |engine: &Arc<CompactEngine>| {
                                let key = IdempotencyKey::new(body.as_bytes()).expect("a key");
                                let keyed = (n % 2 == 0).then_some((&*body, OnConflict::Fail));
                                let jobs = vec![placing(engine, &q, body.clone(), keyed)];
                                let once = Some(Once { key, fingerprint: [1; 16] });
                                let engine = engine.clone();
                                async move { engine.publish(Publication { jobs, replaces: None, once }).await }
                            };
                            let answers = tokio::join!(ask(one), ask(other));
                            let id = |answer: dormouse::error::Result<Published>| match answer {
                                Ok(Published::Done(placed) | Published::Replay(placed)) => placed[0].id,
                                other => panic!("{body}: {other:?}"),
                            };
                            assert_eq!(id(answers.0), id(answers.1), "{body}: one answer for both");
                            told.push(body);
                        }
                        _ => {
                            let bodies: Vec<String> = (0..4).map(|k| format!("{body}-{k}")).collect();
                            let jobs = bodies
                                .iter()
                                .map(|body| placing(one, &q, body.clone(), Some((body.as_str(), OnConflict::Fail))));
                            let jobs = Publication { jobs: jobs.collect(), replaces: None, once: None };
                            let done = one.publish(jobs).await;
                            assert!(matches!(done, Ok(Published::Done(_))), "{body}: {done:?}");
                            told.extend(bodies);
                        }
                    }
                }
                told
            })
        })
        .collect();
    let (mut told, mut done) = (Vec::new(), Vec::new());
    for producer in producers {
        told.extend(within("all is published", producer).await.expect("it does not panic"));
    }
    publishing.store(false, Ordering::SeqCst);
    for worker in workers {
        done.extend(within("all is consumed", worker).await.expect("it does not panic"));
    }
    let records: usize =
        (0..3).map(|server| cluster.tell::<Vec<String>>(server, &["KEYS", "p{*}qshop/q"]).len()).sum();
    assert_eq!(records, 8, "it was spread meanwhile");
    told.sort_unstable();
    done.sort_unstable();
    assert_eq!(told.len(), 8 * 20 * 6, "each request was answered");
    assert_eq!(done, told, "each job was handed out once");
}
