//! Numbers of delayed and running jobs that several servers count on one Redis: what other servers, killed ones and
//! lmstfy's do. The laws cover one server.

use std::io::{BufRead, BufReader};
use std::num::NonZeroU16;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{TTR, consume, engine, job, member, queue};
use crate::support::engine_ext::EngineExt;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;
use dormouse::engine::redis::{RedisAddress, RedisEngine};
use dormouse::engine::{Engine, Estimated, QueueView};
use dormouse::job::{JobId, JobIds, JobRef, NewJob};
use dormouse::name::{PoolName, Queue};
use redis::{Commands, Connection};

const CHILD: &str = "REDIS_TIMER_COUNTS_ADDR";
const COUNTS: &str = "dormouse/timers";

fn conn(server: &RedisServer) -> Connection {
    server.connection()
}

async fn view(engine: &RedisEngine, queue: &Queue) -> QueueView {
    let page = engine.list_queues(&queue.namespace, None, 100).await.expect("list_queues");
    let found = page.queues.into_iter().find(|view| view.queue == *queue);
    found.unwrap_or_else(|| QueueView::empty(queue.clone()))
}

/// Waits until a server reports these numbers of delayed and running jobs.
async fn counts(engine: &RedisEngine, queue: &Queue, delayed: u64, running: u64) {
    let mut seen = QueueView::empty(queue.clone());
    let what = format!("{queue} has {delayed} delayed and {running} running jobs");
    until(&what, async || {
        let now = view(engine, queue).await;
        if now != seen {
            println!("{queue}: {:?} delayed, {:?} running", now.delayed, now.running);
        }
        seen = now;
        (seen.delayed, seen.running) == (Some(delayed), Some(running))
    })
    .await;
}

/// Waits until the numbers are no estimates.
async fn exact(engine: &RedisEngine, queue: &Queue) {
    until("the timers are counted", async || view(engine, queue).await.estimated == Estimated::default())
        .await;
}

async fn put(engine: &RedisEngine, queue: &Queue, ids: &JobIds, delay: u64) -> JobId {
    let new = NewJob {
        delay: Duration::from_secs(delay),
        tries: NonZeroU16::new(3).expect("not 0"),
        ttl: None,
        ..job(queue, ids.make(engine.now(), delay as u32, false), "x")
    };
    let id = new.id;
    engine.publish(vec![new].into()).await.expect("published");
    id
}

/// Guards against numbers that each server keeps for itself.
#[tokio::test]
async fn every_server_shows_what_all_have_done() {
    let server = RedisServer::start();
    let (a, b, q, ids) = (engine(&server).await, engine(&server).await, queue("q"), JobIds::default());
    for _ in 0..3 {
        put(&a, &q, &ids, 600).await;
    }
    put(&a, &q, &ids, 0).await;
    counts(&b, &q, 3, 0).await;
    let held = consume(&b, &q, 1, TTR).await.expect("consumed").remove(0);
    counts(&a, &q, 3, 1).await;
    // It does not know the timer of a job that another server has delivered.
    a.ack_job(JobRef { queue: q.clone(), id: held.id }).await.expect("acked");
    counts(&b, &q, 3, 0).await;
    exact(&a, &q).await;
    a.close().await;
    b.close().await;
    let recorded: Vec<String> = conn(&server).hkeys(COUNTS).expect("HKEYS");
    assert_eq!(recorded, ["d/shop/q"], "numbers that are zero have no field");
}

/// The child process: changes numbers, and waits to be killed.
#[tokio::test]
async fn child_that_is_killed() {
    let Ok(addr) = std::env::var(CHILD) else { return };
    let address = RedisAddress { addrs: vec![addr], ..RedisAddress::default() };
    let engine = RedisEngine::connect(address, &PoolName::default_pool()).await.expect("the server is there");
    let (q, ids) = (queue("q"), JobIds::default());
    for _ in 0..3 {
        put(&engine, &q, &ids, 600).await;
    }
    put(&engine, &q, &ids, 0).await;
    consume(&engine, &q, 1, TTR).await.expect("consumed");
    println!("\ndone");
    std::future::pending::<()>().await;
}

/// Guards against numbers that stay wrong after a server was killed before it recorded them.
#[tokio::test]
async fn what_a_killed_server_did_not_record_is_recounted() {
    let me = std::env::current_exe().expect("a test knows its own path");
    let mut kills = 0;
    // A server records within a second, so a kill on a slow machine may come too late.
    let (server, recorded) = loop {
        kills += 1;
        let server = RedisServer::start();
        let mut child = Command::new(&me)
            .args(["--exact", "timer_counts::child_that_is_killed", "--nocapture"])
            .env(CHILD, server.addr())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let done = out.lines().any(|line| line.expect("the pipe can be read") == "done");
        child.kill().expect("SIGKILL");
        child.wait().expect("it was killed");
        assert!(done, "the child ended by itself");
        let recorded: Option<u64> = conn(&server).hget(COUNTS, "d/shop/q").expect("HGET");
        if recorded.unwrap_or(0) < 3 {
            break (server, recorded);
        }
        assert!(kills < 10, "every kill came after the record: {recorded:?}");
    };
    println!("{recorded:?} of 3 delayed jobs are recorded");
    let (engine, q) = (engine(&server).await, queue("q"));
    counts(&engine, &q, 3, 1).await;
    exact(&engine, &q).await;
}

/// Sets timers as lmstfy does, whose scores are whole seconds.
fn set_timers(conn: &mut Connection, queue: &str, due: u64, ids: impl Iterator<Item = JobId>) {
    let timers: Vec<(u64, Vec<u8>)> = ids.map(|id| (due, member(queue, 1, &id.to_string()))).collect();
    for chunk in timers.chunks(500) {
        let _: u64 = conn.zadd_multiple("timer_set", chunk).expect("ZADD");
    }
}

/// Guards against a recount that skips, repeats or mistakes timers of lmstfy, of which thousands have one score.
#[tokio::test]
async fn timers_of_lmstfy_are_counted_and_make_the_numbers_estimates() {
    const DELAYED: u64 = 2_500;
    let (server, q, beside) = (RedisServer::start(), queue("q"), queue("beside"));
    let mut conn = conn(&server);
    let now: (u64, u64) = redis::cmd("TIME").query(&mut conn).expect("TIME");
    let id = |n, delay| JobId::from_parts(now.0 * 1000, n, delay, false);
    set_timers(&mut conn, "q", now.0 + 600, (0..DELAYED).map(|n| id(n, 600)));
    set_timers(&mut conn, "q", now.0 + 60, (0..3).map(|n| id(DELAYED + n, 0)));
    let _: () = conn.hset_multiple("m/ns/shop", &[("q", 1), ("beside", 1)]).expect("HSET");
    let engine = engine(&server).await;
    for _ in 0..5 {
        put(&engine, &beside, &JobIds::default(), 600).await;
    }
    counts(&engine, &q, DELAYED, 3).await;
    counts(&engine, &beside, 5, 0).await;
    until("the timers are counted", async || conn.hexists(COUNTS, "counted").expect("HEXISTS")).await;
    let shown = view(&engine, &q).await;
    assert!(shown.estimated.timers, "lmstfy's servers do not count what they do: {shown:?}");
    // What lmstfy has left falls due.
    let _: () = conn.del("timer_set").expect("DEL");
    set_timers(&mut conn, "q", now.0 - 5, (0..3).map(|n| id(DELAYED + n, 0)));
    while engine.pump().await.expect("pumped").moved > 0 {}
    counts(&engine, &q, DELAYED, 0).await;
}

/// Guards against a recount that makes right numbers wrong because jobs come and go meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_recount_beside_a_load_corrects_only_what_is_wrong() {
    let server = RedisServer::start();
    let (busy, wrong, ids) = (queue("busy"), queue("wrong"), Arc::new(JobIds::default()));
    let mut conn = conn(&server);
    let far = 4_000_000_000;
    set_timers(&mut conn, "wrong", far, (0..4_000).map(|n| JobId::from_parts(far * 1000, n, 1, false)));
    let _: () = conn.hset_multiple("m/ns/shop", &[("wrong", 1), ("busy", 1)]).expect("HSET");
    let _: () = conn.hset_multiple(COUNTS, &[("d/shop/wrong", 17), ("r/shop/wrong", -3)]).expect("HSET");
    let (engine, over) = (engine(&server).await, Arc::new(AtomicBool::new(false)));
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (engine, over, q, ids) = (engine.clone(), over.clone(), busy.clone(), ids.clone());
        load.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                put(&engine, &q, &ids, 600).await;
                put(&engine, &q, &ids, 0).await;
                for job in consume(&engine, &q, 1, TTR).await.expect("consumed") {
                    engine.ack_job(JobRef { queue: q.clone(), id: job.id }).await.expect("acked");
                }
            }
        });
    }
    until("the timers are counted", async || conn.hexists(COUNTS, "counted").expect("HEXISTS")).await;
    over.store(true, Ordering::Relaxed);
    while load.join_next().await.is_some_and(|ended| ended.is_ok()) {}
    counts(&engine, &wrong, 4_000, 0).await;
    let timers: u64 = conn.zcard("timer_set").expect("ZCARD");
    counts(&engine, &busy, timers - 4_000, 0).await;
}
