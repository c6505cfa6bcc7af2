//! Packed jobs: the stored hashes, and servers that are killed, late, or configured otherwise.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse::engine::delays::{DelayCount, DelayedOf};
use dormouse::engine::redis::{RedisEngine, RedisOptions};
use dormouse::engine::{By, Detail, Engine, Estimated, JobList, Publication, Quota, Quotas};
use dormouse::job::{Attributes, JobId, JobIds, JobRef, JobState, NewJob};
use dormouse::name::{Namespace, PoolName, Queue};
use redis::{Commands, Connection};

use crate::common::{BOUND, TTR, consume, engine, queue};
use crate::support::engine_ext::EngineExt;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;

const HOUR: Duration = Duration::from_secs(3600);

async fn packing(server: &RedisServer, pack_after: Duration) -> Arc<RedisEngine> {
    let options = RedisOptions { pack_after, ..RedisOptions::default() };
    let engine = RedisEngine::connect_with(server.address(), &PoolName::default_pool(), &options).await;
    engine.expect("the server is there")
}

fn delayed(engine: &RedisEngine, queue: &Queue, delay: Duration, body: &str) -> NewJob {
    with_id(engine.make_id(&JobIds::default(), queue, delay, false), queue, delay, body)
}

fn with_id(id: JobId, queue: &Queue, delay: Duration, body: &str) -> NewJob {
    NewJob {
        queue: queue.clone(),
        id,
        body: body.to_owned().into(),
        attributes: Attributes::new(),
        ttl: Some(2 * HOUR + delay),
        delay,
        tries: NonZeroU16::MIN,
    }
}

/// Publishes `count` jobs with different delays from `from` on, and returns their ids.
async fn put(engine: &RedisEngine, queue: &Queue, count: u32, from: Duration) -> BTreeSet<String> {
    let ids = JobIds::default();
    let mut all = BTreeSet::new();
    for first in (0..count).step_by(50) {
        let job = |n: u32| {
            let delay = from + Duration::from_millis(u64::from(n % 7));
            let id = engine.make_id(&ids, queue, delay, n.is_multiple_of(2));
            with_id(id, queue, delay, &format!("job {n}"))
        };
        let jobs: Vec<NewJob> = (first..count.min(first + 50)).map(job).collect();
        all.extend(jobs.iter().map(|job| job.id.to_string()));
        engine.publish(jobs.into()).await.expect("published");
    }
    all
}

/// Returns the number of jobs in each bucket.
fn buckets(conn: &mut Connection) -> HashMap<String, u64> {
    let names: Vec<String> = conn.zrange("dormouse/packed", 0, -1).expect("the set of buckets");
    let jobs = |name: &String| conn.hlen(format!("dormouse/packed/{name}")).expect("a bucket");
    names.iter().cloned().zip(names.iter().map(jobs)).collect()
}

fn packed(conn: &mut Connection) -> u64 {
    buckets(conn).values().sum()
}

fn timers(conn: &mut Connection) -> u64 {
    conn.zcard("timer_set").expect("the timers")
}

fn strings(conn: &mut Connection) -> usize {
    conn.keys::<_, Vec<String>>("j/*").expect("KEYS").len()
}

/// Pumps and consumes until the queue has delivered `count` jobs; none comes before its due time.
async fn deliver(engine: &RedisEngine, queue: &Queue, count: usize) -> Vec<String> {
    let (began, mut ids) = (Instant::now(), Vec::new());
    while ids.len() < count {
        assert!(began.elapsed() < BOUND, "{} of {count} jobs were delivered", ids.len());
        let pumped = engine.pump().await.expect("pumped");
        for job in consume(engine, queue, 100, TTR).await.expect("consumed") {
            let early = (job.id.first_due()).saturating_sub(engine.now());
            assert!(early <= 20, "{} came {early} ms early", job.id);
            ids.push(job.id.to_string());
        }
        // Redis's clock cannot be injected, so this waits for the time in the pump's reply.
        tokio::time::sleep(pumped.next.clamp(Duration::from_millis(1), Duration::from_millis(50))).await;
    }
    ids
}

fn sorted(ids: Vec<String>) -> Vec<String> {
    let mut ids = ids;
    ids.sort();
    ids
}

#[tokio::test]
async fn long_delays_share_hashes_and_have_no_timers() {
    let server = RedisServer::start_with(None, &["--hash-max-listpack-value", "1100"]);
    let engine = packing(&server, Duration::from_secs(600)).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    put(&engine, &q, 200, HOUR).await;
    let all = buckets(conn);
    assert_eq!((all.values().sum::<u64>(), timers(conn), strings(conn)), (200, 0, 0), "buckets: {all:?}");
    assert!(all.len() <= 5, "200 jobs of one moment in {all:?}");
    for name in all.keys() {
        let key = format!("dormouse/packed/{name}");
        assert!(name.starts_with("shop/orders/"), "{name}");
        let encoding: String = redis::cmd("OBJECT").arg("ENCODING").arg(&key).query(conn).expect("OBJECT");
        assert_eq!(encoding, "listpack", "{key}");
    }
    let pumped = engine.pump().await.expect("pumped");
    assert_eq!((pumped.moved, packed(conn)), (0, 200), "not due within an hour");

    // These stay in lmstfy's layout.
    let plain = delayed(&engine, &q, Duration::from_secs(600), "not longer than PackAfter");
    let large = delayed(&engine, &q, HOUR, &"x".repeat(1001));
    let mortal = NewJob { ttl: Some(HOUR), ..delayed(&engine, &q, HOUR, "its ttl ends before") };
    let foreign = NewJob {
        id: JobId::from_parts(engine.now(), 1, 3600, false),
        ..delayed(&engine, &q, HOUR, "its id names no bucket")
    };
    for job in [plain, large, mortal, foreign] {
        let key = format!("j/shop/orders/{}", job.id);
        engine.publish(vec![job].into()).await.expect("published");
        assert_eq!(conn.exists::<_, bool>(&key), Ok(true), "{key}");
    }
    assert_eq!((packed(conn), timers(conn), strings(conn)), (200, 4, 4));
}

/// Guards against state that only the server that packed a job understands.
#[tokio::test]
async fn a_server_that_packs_nothing_reads_and_changes_packed_jobs() {
    let server = RedisServer::start();
    let (packer, other) = (packing(&server, Duration::from_secs(600)).await, engine(&server).await);
    let (q, conn) = (queue("q"), &mut server.connection());
    let jobs: Vec<NewJob> =
        (0..5).map(|n| delayed(&packer, &q, HOUR + Duration::from_secs(n), "body")).collect();
    packer.publish(jobs.clone().into()).await.expect("published");
    let stats = other.stats().await.expect("statistics");
    assert_eq!((packed(conn), stats.timers), (5, 5));
    let list = JobList { state: JobState::Delayed, limit: 2, cursor: None, bodies: true };
    let page = other.list_jobs(&q, list.clone()).await.expect("listed").expect("no cursor");
    let ids: Vec<_> = page.jobs.iter().map(|job| job.id).collect();
    assert_eq!(ids, [jobs[0].id, jobs[1].id], "in order of due time");
    // A job that is unpacked between two pages is neither missed nor repeated.
    let promoted = other.promote(&q, By::Id(jobs[3].id)).await.expect("promoted");
    assert_eq!(promoted, dormouse::engine::Promoted::Done);
    let page = other.list_jobs(&q, JobList { cursor: page.cursor, limit: 9, ..list }).await;
    let ids: Vec<_> = page.expect("listed").expect("its cursor").jobs.iter().map(|job| job.id).collect();
    assert_eq!(ids, [jobs[2].id, jobs[4].id]);
    let view = other.inspect(&q, By::Id(jobs[1].id), Detail::All).await.expect("read").expect("it is there");
    assert_eq!((view.state, view.body.as_deref()), (Some(JobState::Delayed), Some(&b"body"[..])));
    let (due, named) = (view.due_at.expect("a due time"), jobs[1].id.first_due());
    assert!(due.abs_diff(named) < 1000, "due at {due}, its id names {named}");
    assert_eq!(view.ttl.map(|ttl| ttl.as_secs().abs_diff(3 * 3600) <= 2), Some(true), "{:?}", view.ttl);
    assert_eq!(packed(conn), 4, "reads change nothing");
    let count = DelayCount { of: DelayedOf::Queue(q.clone()), step: 60_000, most: 9 };
    assert_eq!(other.delays(&count).await.expect("counted").delayed(), 4);

    let replaced = JobRef { queue: q.clone(), id: jobs[1].id };
    let new = NewJob { delay: Duration::ZERO, ..delayed(&other, &q, Duration::ZERO, "new") };
    let publication = Publication { replaces: Some(replaced), ..vec![new].into() };
    other.publish(publication).await.expect("published");
    let failed = other.publish(vec![jobs[2].clone()].into()).await;
    assert!(failed.is_err(), "an id that is packed is taken, came {failed:?}");
    other.ack(&q, &[(jobs[2].id, None)]).await.expect("acked");
    other.ack(&q, &[(jobs[0].id, None), (jobs[4].id, None)]).await.expect("acked");
    assert_eq!((packed(conn), timers(conn), conn.exists("dormouse/packed")), (0, 0, Ok(false)));
    let ready = consume(&other, &q, 9, TTR).await.expect("consumed");
    let ready: Vec<_> = ready.iter().map(|job| &job.body[..]).collect();
    assert_eq!(ready, [&b"body"[..], b"new"], "the promoted and the replacing job");
}

/// Guards against a step after whose end jobs of a bucket are in neither place, or in both.
#[tokio::test]
async fn a_server_killed_between_two_steps_of_unpacking_loses_and_repeats_nothing() {
    let server = RedisServer::start();
    let packer = packing(&server, Duration::from_secs(1)).await;
    let (q, conn) = (queue("q"), &mut server.connection());
    let all = put(&packer, &q, 700, Duration::from_millis(2500)).await;
    assert_eq!((packed(conn), timers(conn)), (700, 0), "all of them are packed");
    drop(packer);
    // Without packing a server unpacks a minute before.
    let (first, second) = (engine(&server).await, engine(&server).await);
    first.pump().await.expect("pumped");
    let (left, out) = (packed(conn), timers(conn));
    assert_eq!((left + out, left > 0, out > 0), (700, true, true), "{left} packed and {out} unpacked jobs");
    drop(first);
    let delivered = deliver(&second, &q, 700).await;
    assert_eq!(sorted(delivered), all.into_iter().collect::<Vec<_>>());
    assert_eq!((packed(conn), timers(conn)), (0, 700), "all are running");
}

/// Guards against jobs that nobody unpacks once they are overdue, and against the delivery of expired ones.
#[tokio::test]
async fn jobs_that_fell_due_while_no_server_ran_come_afterwards_unless_they_have_expired() {
    let server = RedisServer::start();
    let packer = packing(&server, Duration::from_millis(500)).await;
    let (q, conn) = (queue("q"), &mut server.connection());
    let delay = Duration::from_secs(1);
    let ttl = Some(delay + Duration::from_secs(1));
    let short = NewJob { ttl, ..delayed(&packer, &q, delay, "short") };
    let forever = NewJob { ttl: None, ..delayed(&packer, &q, delay, "forever") };
    packer.publish(vec![short.clone(), forever].into()).await.expect("published");
    assert_eq!((packed(conn), timers(conn)), (2, 0));
    drop(packer);
    tokio::time::sleep(delay + Duration::from_millis(1100)).await;
    let other = engine(&server).await;
    let gone = other.inspect(&q, By::Id(short.id), Detail::All).await.expect("read");
    assert_eq!(gone, None, "its ttl has ended");
    let list = JobList { state: JobState::Delayed, limit: 9, cursor: None, bodies: false };
    let listed = other.list_jobs(&q, list).await.expect("listed").expect("no cursor").jobs;
    assert_eq!(listed.len(), 1, "{listed:?}");
    deliver(&other, &q, 1).await;
    assert_eq!((packed(conn), strings(conn)), (0, 1), "the expired job is gone");
}

/// Guards against a bucket that is too large for one step, as two servers may make it, and against keys of others.
#[tokio::test]
async fn a_large_bucket_is_unpacked_in_parts_and_garbage_holds_nothing_up() {
    let server = RedisServer::start();
    let packer = packing(&server, Duration::from_millis(500)).await;
    let (q, conn) = (queue("q"), &mut server.connection());
    let delay = Duration::from_millis(1500);
    let one = delayed(&packer, &q, delay, "x");
    // The same bucket, by the id.
    let like = |n: u32| {
        let mut bytes = one.id.to_bytes();
        [bytes[10], bytes[11]] = (n as u16).to_be_bytes();
        NewJob { id: JobId::from_bytes(bytes, false), ..one.clone() }
    };
    for first in (0..1000).step_by(50) {
        let jobs: Vec<NewJob> = (first..first + 50).map(like).collect();
        packer.publish(jobs.into()).await.expect("published");
    }
    assert_eq!(buckets(conn).into_values().collect::<Vec<_>>(), [1000]);
    for garbage in ["shop/q/1-f00001", "no bucket", "shop/q/2-f00002"] {
        let _: u64 = conn.zadd("dormouse/packed", garbage, 1).expect("ZADD");
    }
    let _: () = conn.set("dormouse/packed/shop/q/1-f00001", "a string").expect("SET");
    let _: u64 = conn.hset("dormouse/packed/no bucket", "field", "value").expect("HSET");
    let _: u64 = conn.hset("dormouse/packed/shop/q/2-f00002", "0123456789abc", "short").expect("HSET");
    let (mut most, mut before) = (0, 1000);
    let began = Instant::now();
    while before > 0 {
        assert!(began.elapsed() < BOUND, "{before} jobs stay packed");
        let pumped = packer.pump().await.expect("pumped");
        let key = format!("dormouse/packed/{}", bucket_of(conn));
        let left: u64 = conn.hlen(key).unwrap_or(0);
        (most, before) = (most.max(before - left), left);
        tokio::time::sleep(pumped.next.clamp(Duration::from_millis(1), Duration::from_millis(50))).await;
    }
    assert!((1..=400).contains(&most), "up to {most} of a thousand jobs in one step");
    let delivered = deliver(&packer, &q, 1000).await;
    assert_eq!(delivered.iter().collect::<BTreeSet<_>>().len(), 1000, "each once");
}

/// Returns the name of the fullest bucket.
fn bucket_of(conn: &mut Connection) -> String {
    let names: Vec<String> = conn.zrange("dormouse/packed", 0, -1).expect("the set of buckets");
    names.into_iter().find(|name| name.starts_with("shop/q/") && !name.contains("-f0000")).unwrap_or_default()
}

/// Guards against packed jobs that a quota does not see, in the step that stores them or in a recount.
#[tokio::test]
async fn quotas_count_packed_jobs() {
    let server = RedisServer::start();
    let engine = packing(&server, Duration::from_secs(600)).await;
    let (q, conn) = (queue("q"), &mut server.connection());
    put(&engine, &q, 3, HOUR).await;
    let quota =
        Quotas::from([(Namespace::parse("shop").expect("a name"), Quota { jobs: 5, ..Quota::default() })]);
    let usage = engine.set_quotas(&quota).await.expect("set");
    let usage: Vec<_> = usage.values().map(|usage| (usage.jobs, usage.bytes)).collect();
    assert_eq!(usage[0].0, 3, "the first count sees packed jobs: {usage:?}");
    let two = put(&engine, &q, 2, HOUR).await;
    let refused = engine.publish(vec![delayed(&engine, &q, HOUR, "one too many")].into()).await;
    assert!(matches!(refused, Err(dormouse::error::Error::OverQuota("jobs"))), "came {refused:?}");
    assert_eq!(packed(conn), 5);
    let id = JobId::parse(two.first().expect("two ids")).expect("an id");
    engine.ack(&q, &[(id, None)]).await.expect("acked");
    let used: i64 = conn.hget("dormouse/used", "shop/jobs").expect("usage");
    assert_eq!(used, 4, "an ack credits it");
    engine.publish(vec![delayed(&engine, &q, HOUR, "fits")].into()).await.expect("there is room");
}

/// Guards against numbers of delayed jobs that lack packed ones, or count an unpacked one twice.
#[tokio::test]
async fn packed_jobs_are_counted_as_delayed() {
    let server = RedisServer::start();
    let engine = packing(&server, Duration::from_secs(600)).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    let ids = put(&engine, &q, 200, HOUR).await;
    let delayed = async |engine: &RedisEngine, expected: u64| {
        until(&format!("{expected} delayed jobs are counted"), async || {
            let page = engine.list_queues(&q.namespace, None, 10).await.expect("list_queues");
            let seen = page.queues.first().map(|view| (view.delayed, view.running, view.estimated));
            println!("delayed, running, estimated: {seen:?}");
            seen == Some((Some(expected), Some(0), Estimated::default()))
        })
        .await;
    };
    delayed(&engine, 200).await;
    let id = JobId::parse(ids.first().expect("200 ids")).expect("an id");
    engine.ack_job(JobRef { queue: q.clone(), id }).await.expect("acked");
    delayed(&engine, 199).await;
    engine.close().await;
    // A recount finds them without any number recorded.
    let _: u64 = conn.del("dormouse/timers").expect("DEL");
    let engine = packing(&server, Duration::from_secs(600)).await;
    delayed(&engine, 199).await;
    assert_eq!(packed(conn), 199, "the recount unpacked jobs");
    engine.close().await;
}
