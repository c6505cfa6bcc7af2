//! What only the compact layout has: where jobs lie, what becomes of them while nobody looks, and scripts in a slot that
//! moves.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dormouse::engine::delays::{DelayCount, DelayedOf};
use dormouse::engine::redis::{CompactEngine, CompactLayout, SpreadRules};
use dormouse::engine::{
    Beside, Engine, JobList, NewId, OnConflict, Placing, Publication, Published, Quota, Quotas, Release,
};
use dormouse::error::Error;
use dormouse::job::{Attributes, Job, JobId, JobIds, JobRef, JobState, NewJob, Receipt};
use dormouse::name::{JobKey, PoolName, Queue};
use redis::Value;

use crate::common::*;
use crate::support::compact_scripts::CompactScripts;
use crate::support::engine_ext::EngineExt;
use crate::support::notified::Notified;
use crate::support::redis_server::RedisServer;

const HOUR: Duration = Duration::from_secs(3600);
/// What the keys of the only partition of a pool `p` begin with.
const BASE: &str = "p{8YG}";

async fn open_with(server: &RedisServer, partitions: u16) -> dormouse::error::Result<Arc<CompactEngine>> {
    let layout =
        CompactLayout { prefix: "p".into(), partitions, wait_replicas: 0, spread: SpreadRules::default() };
    CompactEngine::connect(server.address(), &PoolName::default_pool(), &layout).await
}

async fn open(server: &RedisServer) -> Arc<CompactEngine> {
    open_with(server, 1).await.expect("the server is there")
}

fn new_job(engine: &CompactEngine, queue: &Queue, body: impl AsRef<[u8]>, delay: Duration) -> NewJob {
    let body = bytes::Bytes::copy_from_slice(body.as_ref());
    let new = NewId { queue, delay, bytes: body.len(), versioned: false, beside: Beside::Nobody };
    NewJob {
        queue: queue.clone(),
        id: engine.make_id(&JobIds::default(), new),
        body,
        attributes: Attributes::new(),
        ttl: Some(2 * HOUR + delay),
        delay,
        tries: NonZeroU16::new(2).expect("not 0"),
    }
}

async fn put(engine: &CompactEngine, job: NewJob) -> JobId {
    let id = job.id;
    engine.publish(vec![job].into()).await.expect("published");
    id
}

async fn take(engine: &CompactEngine, queue: &Queue, ttr: Duration) -> Vec<Job> {
    engine.consume(&queue.clone().into(), &[ttr; 9]).await.expect("consumed").jobs
}

async fn list(engine: &CompactEngine, queue: &Queue, state: JobState) -> Vec<JobId> {
    let list = JobList { state, limit: 100, cursor: None, bodies: false };
    let page = engine.list_jobs(queue, list).await.expect("listed").expect("it begins");
    assert_eq!(page.cursor, None, "one page is enough");
    page.jobs.iter().map(|view| view.id).collect()
}

/// The keys of the partition, without their base, by their first letter.
fn keys(redis: &mut redis::Connection) -> BTreeMap<char, Vec<Vec<u8>>> {
    let all: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(redis).expect("keys");
    let mut by_kind: BTreeMap<char, Vec<Vec<u8>>> = BTreeMap::new();
    for rest in all.iter().filter_map(|key| key.strip_prefix(BASE.as_bytes())) {
        by_kind.entry(rest[0].into()).or_default().push(rest.to_vec());
    }
    by_kind
}

fn count(redis: &mut redis::Connection, command: &str, key: &str) -> u64 {
    redis::cmd(command).arg(format!("{BASE}{key}")).query(redis).expect("a figure")
}

/// Has every far bucket be near, as the passing of time would.
fn come_near(redis: &mut redis::Connection) {
    let far: Vec<Vec<u8>> =
        redis::cmd("ZRANGE").arg(format!("{BASE}f")).arg(0).arg(-1).query(redis).expect("far");
    for bucket in far {
        let _: u64 =
            redis::cmd("ZADD").arg(format!("{BASE}f")).arg(1000).arg(bucket).query(redis).expect("set");
    }
}

#[tokio::test]
async fn a_delayed_job_has_no_timer_until_it_is_near() {
    let server = RedisServer::start();
    let (engine, redis, q) = (open(&server).await, &mut server.connection(), queue("q"));
    let mut all = Vec::new();
    for n in 0..30 {
        all.push(put(&engine, new_job(&engine, &q, [n; 100], HOUR + Duration::from_secs(n.into()))).await);
    }
    let kinds: String = keys(redis).keys().collect();
    assert_eq!(kinds, "bfjmnq", "buckets, far buckets, names, figures, names by number, the queue's record");
    // They are due within one window, or within two.
    assert!(count(redis, "ZCARD", "f") <= 2, "30 jobs are in one far bucket or two");
    assert_eq!(count(redis, "EXISTS", "t"), 0, "and have no timer");
    assert_eq!(list(&engine, &q, JobState::Delayed).await, all, "in the order in which they are due");
    come_near(redis);
    engine.pump().await.expect("pumped");
    assert_eq!((count(redis, "EXISTS", "f"), count(redis, "ZCARD", "t")), (0, 30), "each has a timer now");
    assert_eq!(list(&engine, &q, JobState::Delayed).await, all, "the same");
    engine.ack_job(JobRef { queue: q.clone(), id: all[3] }).await.expect("acked");
    assert_eq!(count(redis, "ZCARD", "t"), 29, "its timer went with it");
    let view = engine.list_queues(&q.namespace, None, 9).await.expect("listed").queues.remove(0);
    assert_eq!((view.delayed, view.ready), (Some(29), Some(0)));
}

/// Guards against jobs that a list leaves out or shows twice because their bucket has become near meanwhile.
#[tokio::test]
async fn a_list_of_delayed_jobs_goes_on_while_they_become_near() {
    let server = RedisServer::start();
    let (engine, redis, q) = (open(&server).await, &mut server.connection(), queue("q"));
    let mut all = Vec::new();
    // Windows of one length: of several, they overlap.
    for n in 0..280_u64 {
        let delay = Duration::from_secs(100 + 6 * (n * 149 % 280));
        all.push((delay, put(&engine, new_job(&engine, &q, "x", delay)).await));
    }
    all.sort();
    let expected: Vec<JobId> = all.iter().map(|(_, id)| *id).collect();
    let (mut cursor, mut seen, mut pages) = (None, Vec::new(), 0);
    loop {
        let part = JobList { state: JobState::Delayed, limit: 17, cursor, bodies: false };
        let page = engine.list_jobs(&q, part).await.expect("listed").expect("a good cursor");
        seen.extend(page.jobs.iter().map(|view| view.id));
        (cursor, pages) = (page.cursor, pages + 1);
        if cursor.is_none() {
            break;
        }
        // The first far bucket becomes near, with what it takes to say so.
        let first: Vec<(Vec<u8>, u64)> = redis::cmd("ZRANGE")
            .arg(format!("{BASE}f"))
            .arg(0)
            .arg(0)
            .arg("WITHSCORES")
            .query(redis)
            .expect("far");
        if let Some((_, from)) = first.first()
            && pages % 2 == 0
        {
            let mut horizon = redis::cmd("HSET");
            horizon.arg(format!("{BASE}m")).arg("h").arg(from - 1);
            let _: u64 = horizon.query(redis).expect("set");
            // As a pump does whose clock has come so far.
            explode(redis, from + 1);
        }
    }
    assert_eq!(seen.len(), expected.len(), "each once");
    assert_eq!(seen, expected, "in the order in which they are due");
}

/// Guards against lists that leave jobs out or show them twice, and forecasts that never end, on a machine in whose language
/// letters stand in another order than bytes.
#[tokio::test]
async fn lists_and_forecasts_are_whole_in_every_language() {
    let locales = tempfile::tempdir().expect("a directory");
    let made = locales.path().join("en_US.UTF-8");
    let told = Command::new("localedef").args(["-i", "en_US", "-f", "UTF-8"]).arg(&made).output();
    if !made.join("LC_COLLATE").exists() {
        eprintln!("this machine cannot make a language: {told:?}");
        return;
    }
    let path = locales.path().to_str().expect("a text").to_owned();
    let env = vec![("LOCPATH", path), ("LC_ALL", "en_US.UTF-8".to_owned())];
    let server = RedisServer::start_kind(None, &[], None, env);
    let (engine, redis) = (open(&server).await, &mut server.connection());
    let is_other: bool = redis::cmd("EVAL").arg("return 'a' < 'B'").arg(0).query(redis).expect("it runs");
    assert!(is_other, "its Lua sorts as the language does");
    let at = engine.now() + 20_000;
    for (name, delay, at, limit) in [("near", Duration::ZERO, Some(at), 7), ("far", HOUR, None, 100)] {
        let (q, mut expected) = (queue(name), Vec::new());
        for _ in 0..16 {
            let jobs: Vec<NewJob> = (0..64).map(|_| new_job(&engine, &q, "x", delay)).collect();
            expected.extend(jobs.iter().map(|job| job.id));
            let jobs = jobs.into_iter().map(|job| Placing { at, ..job.into() }).collect();
            engine.publish(Publication { jobs, replaces: None, once: None }).await.expect("published");
        }
        let (mut cursor, mut seen) = (None, Vec::new());
        loop {
            let part = JobList { state: JobState::Delayed, limit, cursor, bodies: false };
            let page = engine.list_jobs(&q, part).await.expect("listed").expect("a good cursor");
            seen.extend(page.jobs.iter().map(|view| view.id));
            cursor = page.cursor;
            if cursor.is_none() || seen.len() > 2 * expected.len() {
                break;
            }
        }
        assert_eq!(seen.len(), expected.len(), "each that is {name} once");
        assert_eq!(seen, expected, "in order");
        let count = DelayCount { of: DelayedOf::Queue(q), step: 60_000, most: 100 };
        let counted = within("they are counted", engine.delays(&count)).await.expect("counted");
        assert_eq!(counted.delayed(), 1024, "those that are {name}: {counted:?}");
    }
}

/// What a pump does at this time.
fn explode(redis: &mut redis::Connection, now_ms: u64) {
    let text = script("pump").replace("redis.call('TIME')", &format!("{{{}, 0}}", now_ms / 1000 - 3));
    let _: Value = redis::cmd("EVAL")
        .arg(text)
        .arg(1)
        .arg(format!("{BASE}!"))
        .arg(&["200", "0", "600000", "a server", "1", "9007199254740991"])
        .query(redis)
        .expect("pumped");
}

/// A script with all preambles.
fn script(name: &str) -> String {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let read = |path: &str| std::fs::read_to_string(lua.join(path)).expect("a script");
    let parts = CompactScripts::read().preambles;
    let parts: String = parts.iter().map(|part| read(&format!("compact/{part}.lua"))).collect();
    let lazy = "local function jobs() return find, remove, die end\n\
                local function pieces() return add_name, remove_name end\n";
    read("clock.lua") + &parts + lazy + &read(&format!("compact/{name}.lua"))
}

#[tokio::test]
async fn what_has_ended_leaves_nothing() {
    let server = RedisServer::start();
    let (engine, redis, q) = (open(&server).await, &mut server.connection(), queue("q"));
    for (n, delay) in [(0, Duration::ZERO), (1, Duration::from_millis(10)), (2, Duration::ZERO)] {
        let job = new_job(&engine, &q, vec![n; 3000], delay);
        let placing = Placing {
            job: NewJob { ttl: Some(Duration::from_millis(300)), ..job },
            at: None,
            key: Some((JobKey::parse(&format!("k{n}")).expect("a key"), OnConflict::Keep)),
        };
        let done = engine.publish(Publication { jobs: vec![placing], replaces: None, once: None }).await;
        assert!(matches!(done, Ok(Published::Done(_))), "{done:?}");
    }
    assert_eq!(take(&engine, &q, HOUR).await.len(), 2, "two run, one is delayed");
    let gone = async {
        while count(redis, "EXISTS", "e") == 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            engine.pump().await.expect("pumped");
        }
    };
    within("what has ended goes", gone).await;
    let left = keys(redis);
    assert!(!left.contains_key(&'b') && !left.contains_key(&'x') && !left.contains_key(&'t'), "{left:?}");
    assert!(!left.contains_key(&'k') && !left.contains_key(&'h'), "their keys are free: {left:?}");
    let view = engine.list_queues(&q.namespace, None, 9).await.expect("listed").queues.remove(0);
    assert_eq!((view.ready, view.delayed, view.running, view.dead), (Some(0), Some(0), Some(0), Some(0)));
}

/// Guards against a value that is read wrong where it is read without a table: where each field begins depends on which
/// others there are.
#[tokio::test]
async fn jobs_of_every_form_are_handed_out_and_forgotten() {
    let server = RedisServer::start();
    let (engine, redis, q) = (open(&server).await, &mut server.connection(), queue("q"));
    let mut put_in = Vec::new();
    for tries in [1, 2, 3, 255, 256, 257, 1000] {
        for ttl in [None, Some(HOUR)] {
            for size in [0, 1, 100, 1000, 1001] {
                for kind in ["plain", "delayed", "instant", "keyed"] {
                    let delay = Duration::from_millis(if kind == "delayed" { 1 } else { 0 });
                    let mut job = new_job(&engine, &q, vec![b'x'; size], delay);
                    (job.ttl, job.tries) = (ttl, NonZeroU16::new(tries).expect("not 0"));
                    let key = format!("{tries}-{size}-{}", ttl.is_some());
                    let key =
                        (kind == "keyed").then(|| (JobKey::parse(&key).expect("a key"), OnConflict::Fail));
                    let at = (kind == "instant").then(|| engine.now() + 2);
                    put_in.push((job.id, (tries, ttl.is_some(), size)));
                    let jobs = vec![Placing { job, at, key }];
                    engine
                        .publish(Publication { jobs, replaces: None, once: None })
                        .await
                        .expect("published");
                }
            }
        }
    }
    let mut expected: BTreeMap<JobId, (u16, bool, usize)> = put_in.into_iter().collect();
    let mut handed_out = Vec::new();
    let all = async {
        while handed_out.len() < expected.len() {
            engine.pump().await.expect("pumped");
            handed_out.extend(take(&engine, &q, HOUR).await);
        }
    };
    within("all are handed out", all).await;
    // A third goes by receipts, a third without them, and a third comes back and is handed out once more.
    let mut again = 0;
    for (n, job) in handed_out.into_iter().enumerate() {
        let (tries, ends, size) = expected[&job.id];
        assert_eq!((job.body.len(), job.tries_left, job.ttl.is_some()), (size, tries - 1, ends));
        let receipt = Receipt { hand_over: job.receipt, tries_left: job.tries_left };
        match n % 3 {
            0 => {
                let wrong = Receipt { hand_over: job.receipt + 1, ..receipt };
                let stale = engine.ack(&q, &[(job.id, Some(wrong))]).await.expect("acked");
                assert_eq!(stale, [job.id], "of another hand-over");
                assert_eq!(engine.ack(&q, &[(job.id, Some(receipt))]).await.expect("acked"), []);
            }
            1 => assert_eq!(engine.ack(&q, &[(job.id, None)]).await.expect("acked"), []),
            _ => {
                engine.give_back(vec![job]).await.expect("given back");
                again += 1;
                continue;
            }
        }
        expected.remove(&job.id);
    }
    while again > 0 {
        for job in take(&engine, &q, HOUR).await {
            let (tries, _, size) = expected.remove(&job.id).expect("it was given back");
            assert_eq!((job.body.len(), job.tries_left), (size, tries - 1), "its try is restored");
            engine.ack_job(JobRef { queue: q.clone(), id: job.id }).await.expect("acked");
            again -= 1;
        }
    }
    let left = keys(redis);
    for kind in ['b', 'x', 't', 'k', 'h', 'r'] {
        assert!(!left.contains_key(&kind), "{kind} of {left:?}");
    }
    let record: Vec<u8> = redis::cmd("GET").arg(format!("{BASE}qshop/q")).query(redis).expect("its record");
    assert_eq!(record[4..26], [0; 22], "jobs, delayed, running, dead, bytes");
}

/// Guards against figures that a job which is acked twice in one call has left twice.
#[tokio::test]
async fn a_job_that_is_named_twice_is_forgotten_once() {
    let server = RedisServer::start();
    let (engine, redis, q) = (open(&server).await, &mut server.connection(), queue("q"));
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(put(&engine, new_job(&engine, &q, [n; 10], Duration::ZERO)).await);
    }
    let held = take(&engine, &q, HOUR).await;
    let of = |n: usize| Receipt { hand_over: held[n].receipt, tries_left: held[n].tries_left };
    let wrong = Receipt { hand_over: 1, tries_left: 1 };
    let jobs = [
        (ids[2], None),
        (ids[0], Some(wrong)),
        (ids[1], Some(of(1))),
        (ids[0], Some(of(0))),
        (ids[2], None),
        (ids[1], Some(of(1))),
    ];
    assert_eq!(
        engine.ack(&q, &jobs).await.expect("acked"),
        [ids[0], ids[0]],
        "one receipt of its two is stale"
    );
    let figures = |redis: &mut redis::Connection| -> Vec<u8> {
        redis::cmd("GET").arg(format!("{BASE}qshop/q")).query(redis).expect("its record")
    };
    assert_eq!(figures(redis)[7], 1, "one job is left");
    assert_eq!(figures(redis)[15], 1, "and runs");
    assert_eq!((figures(redis)[25], count(redis, "ZCARD", "t")), (10, 1), "its bytes, and its timer");
}

/// Guards against scripts that ask the Redis once for each job: that is what a call costs it.
#[tokio::test]
async fn what_goes_together_goes_in_one_command() {
    let server = RedisServer::start();
    let (engine, redis, q) = (open(&server).await, &mut server.connection(), queue("q"));
    put(&engine, new_job(&engine, &q, "first", Duration::ZERO)).await;
    assert_eq!(take(&engine, &q, HOUR).await.len(), 1);
    let commands = |redis: &mut redis::Connection| -> BTreeMap<String, u64> {
        let text: String = redis::cmd("INFO").arg("commandstats").query(redis).expect("figures");
        let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let count =
            |rest: &str| rest.split(',').next().and_then(|count| count.parse().ok()).expect("a count");
        lines.map(|(name, rest)| (name.to_owned(), count(rest))).collect()
    };
    let mut before = commands(redis);
    let mut since = |redis: &mut redis::Connection| -> String {
        let now = commands(redis);
        let of = |name: &&str| now.get(*name).unwrap_or(&0) - before.get(*name).unwrap_or(&0);
        let names = ["hget", "hmget", "hset", "hdel", "zadd", "zrem", "lpop", "rpush", "get", "set"];
        let new = names.iter().filter(|name| of(name) > 0).map(|name| format!("{name} {}", of(name)));
        let new: Vec<String> = new.collect();
        before = now;
        new.join(", ")
    };
    let jobs: Vec<NewJob> = (0..9).map(|n| new_job(&engine, &q, [n; 100], Duration::ZERO)).collect();
    let ids: Vec<(JobId, Option<Receipt>)> = jobs.iter().map(|job| (job.id, None)).collect();
    engine.publish(jobs.into()).await.expect("published");
    assert_eq!(since(redis), "hmget 1, hset 1, zadd 1, rpush 1, get 1, set 1", "nine are published");
    assert_eq!(take(&engine, &q, HOUR).await.len(), 9);
    assert_eq!(since(redis), "hmget 1, hset 1, zadd 1, lpop 1, get 1, set 1", "nine are handed out");
    assert_eq!(engine.ack(&q, &ids).await.expect("acked"), []);
    assert_eq!(since(redis), "hmget 1, hdel 1, zrem 1, get 1, set 1", "nine are acked");
}

/// Guards against figures that count for many minutes what has ended.
#[tokio::test]
async fn many_jobs_that_have_ended_are_counted_for_moments() {
    let server = RedisServer::start();
    let (engine, redis, q) = (open(&server).await, &mut server.connection(), queue("q"));
    let ends = Duration::from_secs(3);
    for _ in 0..120 {
        let job = || NewJob { ttl: Some(ends), ..new_job(&engine, &q, "x", Duration::ZERO) };
        engine.publish((0..64).map(|_| job()).collect::<Vec<_>>().into()).await.expect("published");
    }
    assert!(count(redis, "ZCARD", "e") > 60, "they are in many buckets");
    let over = tokio::time::Instant::now() + ends;
    let gone = async {
        loop {
            let next = engine.pump().await.expect("pumped").next;
            let view = engine.list_queues(&q.namespace, None, 9).await.expect("listed").queues.remove(0);
            if view.ready == Some(0) {
                return;
            }
            tokio::time::sleep(next).await;
        }
    };
    within("what has ended goes", gone).await;
    // A bucket that had others is looked at again after ten seconds.
    assert!(over.elapsed() < Duration::from_secs(15), "after {:?}", over.elapsed());
    assert_eq!(count(redis, "EXISTS", "e"), 0, "nothing is left");
}

#[tokio::test]
async fn a_queue_that_is_empty_for_long_is_forgotten() {
    let server = RedisServer::start();
    let (engine, redis) = (open(&server).await, &mut server.connection());
    let (full, empty) = (queue("full"), queue("empty"));
    put(&engine, new_job(&engine, &full, "x", Duration::ZERO)).await;
    let id = put(&engine, new_job(&engine, &empty, "x", Duration::ZERO)).await;
    engine.ack_job(JobRef { queue: empty.clone(), id }).await.expect("acked");
    // Since when it is empty: the last field of its record.
    let mut since = redis::cmd("SETRANGE");
    since.arg(format!("{BASE}qshop/empty")).arg(32).arg(b"\0\0\0\0\0\x01");
    let _: u64 = since.query(redis).expect("set");
    engine.pump().await.expect("pumped");
    assert_eq!(
        engine.queues().await.expect("queues"),
        std::slice::from_ref(&full),
        "the other one is forgotten"
    );
    let left = keys(redis);
    assert_eq!((left[&'q'].len(), left[&'r'].len()), (1, 1), "no key of it is left: {left:?}");
    put(&engine, new_job(&engine, &empty, "again", Duration::ZERO)).await;
    assert_eq!(take(&engine, &empty, HOUR).await.len(), 1, "it is there again");
    assert_eq!(engine.queues().await.expect("queues"), [empty, full]);
}

/// Guards against a full Redis that nobody can empty.
#[tokio::test]
async fn a_full_redis_refuses_publishes_and_can_be_drained() {
    let server = RedisServer::start();
    let (engine, redis, q) = (open(&server).await, &mut server.connection(), queue("q"));
    let delayed = put(&engine, new_job(&engine, &q, "delayed", Duration::from_millis(100))).await;
    put(&engine, new_job(&engine, &q, "ready", Duration::ZERO)).await;
    tell(redis, &["CONFIG", "SET", "maxmemory", "1"]);
    for delay in [Duration::ZERO, HOUR] {
        let full = engine.publish(vec![new_job(&engine, &q, "more", delay)].into()).await;
        assert!(matches!(full, Err(Error::Refused(_))), "{full:?}");
    }
    engine.check().await.expect("consumers are still sent to a full Redis");
    let taken = take(&engine, &q, HOUR).await;
    assert_eq!(taken.len(), 1, "the ready one");
    engine.ack_job(JobRef { queue: q.clone(), id: taken[0].id }).await.expect("acked");
    let due = async {
        loop {
            engine.pump().await.expect("pumped");
            let taken = take(&engine, &q, HOUR).await;
            if let [job] = &taken[..] {
                return job.id;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(within("the delayed one", due).await, delayed);
    let name = JobRef { queue: q, id: delayed };
    engine.ack_job(name).await.expect("acked");
    tell(redis, &["CONFIG", "SET", "maxmemory", "0"]);
    assert!(!keys(redis).contains_key(&'b'), "nothing of the publishes that were refused is left");
}

/// Guards against an age that is that of a job which was acked while it was ready.
#[tokio::test]
async fn figures_leave_out_what_was_acked_in_whatever_state() {
    let server = RedisServer::start();
    let (engine, q) = (open(&server).await, queue("q"));
    let first = put(&engine, new_job(&engine, &q, "first", Duration::ZERO)).await;
    let delayed = put(&engine, new_job(&engine, &q, "delayed", HOUR)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    put(&engine, new_job(&engine, &q, "second", Duration::ZERO)).await;
    let view = async || engine.list_queues(&q.namespace, None, 9).await.expect("listed").queues.remove(0);
    let before = view().await;
    assert!(before.oldest_ready_age >= Some(Duration::from_millis(300)), "{before:?}");
    for id in [first, delayed] {
        engine.ack_job(JobRef { queue: q.clone(), id }).await.expect("acked");
    }
    let after = view().await;
    assert_eq!((after.ready, after.delayed), (Some(1), Some(0)));
    assert!(after.oldest_ready_age < before.oldest_ready_age, "{before:?}, then {after:?}");
}

/// Guards against a job that is listed among the timers and once more in its bucket, which is far for another one.
#[tokio::test]
async fn jobs_that_were_released_for_long_are_listed_once() {
    let server = RedisServer::start();
    let (engine, q) = (open(&server).await, queue("q"));
    for body in ["a", "b"] {
        put(&engine, new_job(&engine, &q, body, Duration::ZERO)).await;
    }
    let taken = take(&engine, &q, HOUR).await;
    // Longer than a window lasts.
    for (job, delay) in taken.iter().zip([HOUR, HOUR + Duration::from_secs(600)]) {
        let name = JobRef { queue: q.clone(), id: job.id };
        let release = Release { delay, ..Release::default() };
        engine.release(&name, job.proof(), release).await.expect("released");
    }
    let expected: Vec<JobId> = taken.iter().map(|job| job.id).collect();
    assert_eq!(list(&engine, &q, JobState::Delayed).await, expected);
}

#[tokio::test]
async fn the_number_of_partitions_stays() {
    let server = RedisServer::start();
    let first = open_with(&server, 4).await.expect("the first one");
    first.close().await;
    let other = open_with(&server, 8).await.expect_err("another number");
    let text = other.to_string();
    assert!(
        matches!(other, Error::Refused(_)) && text.contains("Partitions") && text.contains('4'),
        "{text}"
    );
    open_with(&server, 4).await.expect("the same number");
}

#[tokio::test]
async fn another_server_hears_of_a_job() {
    let server = RedisServer::start();
    let (one, other, q) =
        (open_with(&server, 4).await.expect("one"), open_with(&server, 4).await.expect("other"), queue("q"));
    let notified = Notified::attach(&*other, std::slice::from_ref(&q));
    put(&one, new_job(&one, &q, "x", Duration::ZERO)).await;
    within("the other server is told", notified.next()).await;
    assert_eq!(take(&other, &q, HOUR).await.len(), 1);
}

/// Guards against a task for each pause that anybody asks for, which waits for as long as that lasts.
#[tokio::test]
async fn long_pauses_leave_no_tasks() {
    let server = RedisServer::start();
    let engine = open_with(&server, 4).await.expect("it is there");
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for n in 0..200 {
        let q = queue(&format!("q{}", n % 100));
        engine.pause_for(&q, Some(HOUR + Duration::from_secs(n))).await.expect("paused");
        assert!(take(&engine, &q, HOUR).await.is_empty());
    }
    assert!(tasks() < before + 20, "{} tasks, {before} before", tasks());
}

/// Guards against room that is lost or won where queues of a namespace lie in several partitions.
#[tokio::test]
async fn a_quota_holds_over_partitions_and_servers() {
    let server = RedisServer::start();
    let (one, other) =
        (open_with(&server, 8).await.expect("one"), open_with(&server, 8).await.expect("other"));
    put(&one, new_job(&one, &queue("before"), "x", HOUR)).await;
    let quotas = Quotas::from([(queue("q").namespace, Quota { jobs: 10, bytes: 0, queues: 0 })]);
    for engine in [&one, &other] {
        engine.set_quotas(&quotas).await.expect("set");
    }
    let (mut stored, mut refused) = (Vec::new(), 0);
    for n in 0..20 {
        let (engine, q) = (if n % 2 == 0 { &one } else { &other }, queue(&format!("q{}", n % 7)));
        let job = new_job(engine, &q, "x", Duration::ZERO);
        match engine.publish(vec![job.clone()].into()).await {
            Ok(_) => stored.push(JobRef { queue: q, id: job.id }),
            Err(Error::OverQuota("jobs")) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((stored.len(), refused), (9, 11), "beside the one that was there");
    let last = stored.pop().expect("nine");
    other.ack_job(last.clone()).await.expect("acked");
    put(&one, new_job(&one, &last.queue, "x", Duration::ZERO)).await;
    let more = one.publish(vec![new_job(&one, &last.queue, "x", HOUR)].into()).await;
    assert!(matches!(more, Err(Error::OverQuota("jobs"))), "{more:?}");
}

/// All keys of a server, with what is in them.
fn dump(redis: &mut redis::Connection) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let all: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(redis).expect("keys");
    let dump = |key: Vec<u8>| {
        // Where a slot is imported its keys are shown to those who were sent there.
        let _: redis::RedisResult<()> = redis::cmd("ASKING").query(redis);
        let value: Value = redis::cmd("DUMP").arg(&key).query(redis).expect("a value");
        (key, redis::from_redis_value(value).unwrap_or_default())
    };
    all.into_iter().map(dump).collect()
}

fn tell(redis: &mut redis::Connection, words: &[&str]) -> Value {
    let mut cmd = redis::cmd(words[0]);
    cmd.arg(&words[1..]);
    cmd.query(redis).unwrap_or_else(|e| panic!("{words:?}: {e}"))
}

/// Guards against a script that begins in a slot that moves, where it could not end.
#[tokio::test]
async fn every_script_refuses_in_a_moving_slot_and_changes_nothing() {
    let server = RedisServer::start();
    let (engine, q) = (open(&server).await, queue("q"));
    // A job in each state, with a key and a reason, small and large, and a pause.
    put(&engine, new_job(&engine, &q, "far", HOUR)).await;
    put(&engine, new_job(&engine, &q, "near", Duration::from_secs(20))).await;
    put(&engine, new_job(&engine, &q, vec![1; 5000], Duration::ZERO)).await;
    put(&engine, new_job(&engine, &q, "runs", Duration::ZERO)).await;
    let held = take(&engine, &q, HOUR).await;
    let bury = Release::bury(dormouse::job::Reason::new("never"));
    engine.release(&JobRef { queue: q.clone(), id: held[0].id }, held[0].proof(), bury).await.expect("dead");
    let keyed = Placing {
        key: Some((JobKey::parse("key").expect("a key"), OnConflict::Keep)),
        ..new_job(&engine, &q, "keyed", Duration::ZERO).into()
    };
    engine.publish(Publication { jobs: vec![keyed], replaces: None, once: None }).await.expect("published");
    engine.pause_for(&queue("paused"), None).await.expect("paused");
    engine.close().await;

    let nodes = [(); 2].map(|()| RedisServer::start_with(None, &["--cluster-enabled", "yes"]));
    let [from, to] = &mut [nodes[0].connection(), nodes[1].connection()];
    let [port, to_port] = [&nodes[0], &nodes[1]].map(|node| node.port.to_string());
    tell(from, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    tell(to, &["CLUSTER", "MEET", "127.0.0.1", &port]);
    let ready = async {
        loop {
            let known = |redis: &mut redis::Connection| -> String {
                redis::from_redis_value(tell(redis, &["CLUSTER", "INFO"])).expect("a text")
            };
            let both = [known(from), known(to)];
            if both.iter().all(|info| info.contains("cluster_state:ok") && info.contains("known_nodes:2")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("two nodes know each other", ready).await;
    // The whole partition, as it is.
    let mut filled = server.connection();
    for (key, value) in dump(&mut filled) {
        if key.starts_with(BASE.as_bytes()) {
            let () = redis::cmd("RESTORE").arg(&key).arg(0).arg(value).query(from).expect("restored");
        }
    }
    let guard = format!("{BASE}!");
    let slot: u64 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(&guard).query(from).expect("a slot");
    assert_eq!(slot, 8192, "the middle of all slots");
    let scripts = CompactScripts::read().scripts;
    assert!(scripts.len() > 15, "{scripts:?}");
    let run = |redis: &mut redis::Connection, name: &str| -> redis::RedisResult<Value> {
        let mut cmd = redis::cmd("EVAL");
        // The deadline, and arguments that let most of them go to work.
        cmd.arg(script(name)).arg(1).arg(&guard).arg(&["shop/q", "0", "0", "600000", "9007199254740991"]);
        cmd.query(redis)
    };
    let code = |answer: redis::RedisResult<Value>| match answer {
        Ok(_) => "OK".to_owned(),
        Err(error) => error.code().unwrap_or("none").to_owned(),
    };
    let ids: [String; 2] = [&mut *from, &mut *to]
        .map(|redis| redis::from_redis_value(tell(redis, &["CLUSTER", "MYID"])).expect("an id"));
    let slot = slot.to_string();
    tell(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
    tell(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
    for half in [false, true] {
        if half {
            let all: Vec<Vec<u8>> = dump(from).into_keys().collect();
            for key in all.iter().step_by(2) {
                let mut cmd = redis::cmd("MIGRATE");
                cmd.arg("127.0.0.1").arg(&to_port).arg(key).arg(0).arg(5000);
                let () = cmd.query(from).expect("moved");
            }
        }
        let before = [dump(from), dump(to)];
        assert_eq!(before[1].is_empty(), !half, "some keys have moved: {half}");
        for name in &scripts {
            let refusals = [code(run(from, name)), code(run(to, name))];
            assert_eq!(refusals, ["ASK", "MOVED"], "{name}, half of the keys moved: {half}");
        }
        assert_eq!([dump(from), dump(to)], before, "nothing has changed");
    }
    // And none refuses at rest.
    tell(to, &["CLUSTER", "SETSLOT", &slot, "STABLE"]);
    tell(from, &["CLUSTER", "SETSLOT", &slot, "STABLE"]);
    for name in &scripts {
        let code = code(run(from, name));
        assert!(!["ASK", "MOVED", "TRYAGAIN"].contains(&&*code), "{name}: {code}");
    }
}

/// Guards against a list that drops the name of a schedule on its way, and against a mover that comes late.
#[test]
fn a_name_goes_and_moves_with_what_was_read_alone() {
    let server = RedisServer::start();
    let redis = &mut server.connection();
    let text = script("name_schedule");
    let mut call = |args: &[&str]| -> Vec<String> {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(&text).arg(1).arg(format!("{BASE}e")).arg("ns").arg(args).arg("9007199254740991");
        let answer: Vec<Value> = cmd.query(redis).expect("it runs");
        answer[1..].iter().map(|value| redis::from_redis_value_ref(value).expect("a text")).collect()
    };
    let claimed = call(&["claim", "n", "1", "1 aa", "9"]);
    assert_eq!(claimed, ["1", "0", "1 aa 0"]);
    assert_eq!(call(&["move", "n", "1", "2", "5"]), ["1"]);
    assert_eq!(call(&["drop", "n", &claimed[2], "0"]), ["0"], "it is in 2 by now");
    assert_eq!(call(&["find", "n"]), ["2", "1 aa 5"]);
    assert_eq!(call(&["move", "n", "2", "1", "6"]), ["1"], "and back");
    assert_eq!(call(&["move", "n", "1", "2", "5"]), ["0"], "a mover of before");
    assert_eq!(call(&["claim", "n", "2", "2 bb", "9"]), ["1", "6", "2 bb 6"], "the claim knows it too");
    assert_eq!(call(&["drop", "n", "2 bb 6", "7"]), ["1"]);
    assert_eq!(call(&["claim", "n", "2", "3 cc", "9"]), ["2", "7", "3 cc 7"], "above all that are gone");
    assert_eq!(call(&["move", "n", "2", "1", "7"]), ["0"], "a mover of the one that is gone");
}
