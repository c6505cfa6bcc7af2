//! The Redis engine when Redis is unavailable, loses data, is full or is shared, and notifications by other servers
//! meanwhile.

use std::future::Future;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{TTR, consume, engine, id, job, queue, within};
use crate::support::engine_ext::EngineExt;
use crate::support::notified::Notified;
use crate::support::redis_server::RedisServer;
use bytes::Bytes;
use dormouse::dispatch::{Dispatcher, ParkedPolls, Request};
use dormouse::engine::redis::{RedisAddress, RedisEngine};
use dormouse::engine::{Engine, Published};
use dormouse::error::{Error, Result};
use dormouse::job::{Job, JobIds, JobRef, NewJob, Receipt};
use dormouse::name::{PoolName, Queue};
use dormouse::process::tasks::Failure;
use redis::Commands;

async fn connect(address: RedisAddress) -> Result<Arc<RedisEngine>> {
    RedisEngine::connect(address, &PoolName::default_pool()).await
}

fn small(queue: &Queue, n: u64) -> NewJob {
    job(queue, id(n), "x")
}

async fn take(engine: &RedisEngine, queue: &Queue, count: u16) -> Result<Vec<Job>> {
    consume(engine, queue, count, TTR).await
}

/// Repeats `ask` until it succeeds. Every error before that must be `Away`.
async fn until_back<T, F: Future<Output = Result<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    within(what, async {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(Error::Away(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(e) => panic!("{what}: expected Away until it is back, came {e}"),
            }
        }
    })
    .await
}

/// Waits for a notification about `queue`, ignoring others.
async fn is_told(what: &str, notified: &Notified, queue: &Queue) {
    within(what, async { while !notified.next().await.contains(queue) {} }).await;
}

/// Waits until the number of the server's clients satisfies `enough`.
async fn clients(what: &str, conn: &mut redis::Connection, enough: impl Fn(usize) -> bool) {
    within(what, async {
        loop {
            let clients: String = redis::cmd("CLIENT").arg("LIST").query(conn).expect("CLIENT LIST");
            if enough(clients.lines().count()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let conn = &mut server.connection();
    for n in 0..3 {
        engine.publish(vec![small(&q, n)].into()).await.expect("published");
        redis::cmd("SCRIPT").arg("FLUSH").exec(conn).expect("SCRIPT FLUSH");
    }
    assert_eq!(take(&engine, &q, 9).await.expect("consumed").len(), 3, "each was stored once");
    redis::cmd("SCRIPT").arg("FLUSH").exec(conn).expect("SCRIPT FLUSH");
    engine.pump().await.expect("pumped");
    assert_eq!(engine.peek(&q).await.expect("peeked"), None, "the queue is empty");
}

#[tokio::test]
async fn a_killed_server_is_away_and_nothing_acknowledged_is_lost() {
    let mut server = RedisServer::start_with(None, &["--appendfsync", "always"]);
    let (engine, q) = (engine(&server).await, queue("orders"));
    let ids = Arc::new(JobIds::default());
    let publishers: Vec<_> = (0..16)
        .map(|_| {
            let (engine, q, ids) = (engine.clone(), q.clone(), ids.clone());
            tokio::spawn(async move {
                let mut stored = Vec::new();
                for _ in 0..100_000 {
                    let id = ids.make(engine.now(), 0, false);
                    match engine.publish(vec![job(&q, id, "x")].into()).await {
                        Ok(_) => stored.push(id),
                        Err(e) => return (stored, Some(e)),
                    }
                }
                (stored, None)
            })
        })
        .collect();
    within("some jobs are stored", async {
        while engine.ready(&q).await.expect("answered") < 500 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    server.kill();
    let mut stored = Vec::new();
    for publisher in publishers {
        let (ids, error) = within("a publisher is answered", publisher).await.expect("the task ends");
        assert!(matches!(error, Some(Error::Away(_))), "the server was killed, came {error:?}");
        stored.extend(ids);
    }
    let off_path = engine.ready(&q).await;
    assert!(matches!(off_path, Err(Error::Away(_))), "off the hot path too, came {off_path:?}");

    server.restart();
    until_back("publish heals", || engine.publish(vec![small(&q, 1)].into())).await;
    let mut there = std::collections::HashSet::new();
    loop {
        let jobs = until_back("consume heals", || take(&engine, &q, 100)).await;
        if jobs.is_empty() {
            break;
        }
        there.extend(jobs.iter().map(|job| job.id));
    }
    let lost = stored.iter().filter(|id| !there.contains(id)).count();
    assert_eq!(lost, 0, "{} jobs were acknowledged", stored.len());
    until_back("size heals", || engine.ready(&q)).await;
}

/// Guards against timers that remain: an ack that was not sent must not drop the recorded tries that its timer's name
/// needs. A job with this many tries is not found by searching for its timer.
#[tokio::test]
async fn acks_that_are_not_sent_forget_no_timer() {
    let mut server = RedisServer::start_with(None, &["--appendfsync", "always"]);
    let (engine, q) = (engine(&server).await, queue("orders"));
    let tries = NonZeroU16::new(2000).expect("not zero");
    let jobs = (0..3).map(|n| NewJob { tries, ..small(&q, n) });
    engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    let running = take(&engine, &q, 3).await.expect("consumed");
    let [first, others @ ..] = &running[..] else { panic!("three were published, came {running:?}") };
    let first = JobRef { queue: q.clone(), id: first.id };
    let others: Vec<_> = others.iter().map(|job| (job.id, None)).collect();
    server.kill();
    // Whether or not this call is sent, the connection for acks is down afterwards.
    let touched = engine.touch(&first, Receipt { tries_left: 1, delivery: 1 }, Duration::from_secs(9)).await;
    assert!(matches!(touched, Err(Error::Away(_))), "the server was killed, came {touched:?}");
    let acked = engine.ack_job(first.clone()).await;
    assert!(matches!(acked, Err(Error::Away(_))), "the server was killed, came {acked:?}");
    let acked = engine.ack(&q, &others).await;
    assert!(matches!(acked, Err(Error::Away(_))), "the server was killed, came {acked:?}");
    server.restart();
    until_back("all connections are back", || engine.check()).await;
    engine.ack_job(first).await.expect("acked");
    engine.ack(&q, &others).await.expect("acked");
    let timers: u64 = server.connection().zcard("timer_set").expect("ZCARD");
    assert_eq!(timers, 0, "the acks removed the timers of their jobs");
}

#[tokio::test]
async fn a_full_redis_refuses_the_whole_call_and_can_be_drained() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let conn = &mut server.connection();
    let delayed = NewJob { delay: Duration::from_micros(1), ..small(&q, 2) };
    engine.publish(vec![small(&q, 1), delayed].into()).await.expect("published");
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1mb").exec(conn).expect("CONFIG SET");
    let stored = |conn: &mut redis::Connection| {
        let keys: Vec<String> = conn.keys("*").expect("KEYS");
        // The numbers of timers are recorded at any time.
        keys.into_iter().filter(|key| !key.starts_with("dormouse/timers")).collect::<Vec<_>>()
    };
    let keys = stored(conn);
    let big = Bytes::from(vec![0; 1 << 19]);
    let jobs = (10..20).map(|n| NewJob { body: big.clone(), queue: queue("other"), ..small(&q, n) });
    let refused = engine.publish(jobs.collect::<Vec<_>>().into()).await;
    let Err(Error::Refused(why)) = refused else { panic!("full: expected Refused, came {refused:?}") };
    assert!(why.to_string().contains("OOM"), "the reason should be told: {why}");
    let after = stored(conn);
    assert_eq!(after.len(), keys.len(), "nothing of it was stored: {after:?}");
    engine.check().await.expect("consumers are still sent to a full Redis");

    engine.pump().await.expect("a full Redis still pumps");
    let got = take(&engine, &q, 9).await.expect("and hands out");
    assert_eq!(got.len(), 2, "the ready and the delayed one");
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0").exec(conn).expect("CONFIG SET");
    engine.publish(vec![small(&q, 3)].into()).await.expect("room again");
}

#[tokio::test]
async fn a_replica_refuses_and_a_master_again_takes() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let conn = &mut server.connection();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").exec(conn).expect("REPLICAOF");
    let refused = engine.publish(vec![small(&q, 1)].into()).await;
    assert!(refused.is_err(), "read-only: expected an error");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(conn).expect("REPLICAOF");
    until_back("it is connected again", || engine.publish(vec![small(&q, 2)].into())).await;
}

#[tokio::test]
async fn connections_that_were_killed_while_idle_cost_no_caller_anything() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let conn = &mut server.connection();
    for n in 0..5 {
        engine.publish(vec![small(&q, n)].into()).await.expect("published");
        let killed: u64 =
            redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(conn).expect("CLIENT KILL");
        assert!(killed > 0, "the connections");
        // Waits until most of them have reconnected.
        clients("they are made again", conn, |n| n >= 6).await;
    }
    assert_eq!(engine.ready(&q).await.expect("answered"), 5, "each publish was answered");
}

#[tokio::test]
async fn publishes_use_the_other_connection_while_one_cannot_be_made_and_the_check_says_no() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let conn = &mut server.connection();
    engine.publish(vec![small(&q, 0)].into()).await.expect("published");
    engine.check().await.expect("all is well");
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(conn).expect("CLIENT LIST");
    // A client that disconnects now cannot reconnect.
    let room = |n: usize| redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(n).clone();
    room(clients.lines().count() - 1).exec(conn).expect("CONFIG SET");
    let published =
        clients.lines().find(|client| client.contains(" cmd=eval")).expect("the connection of the publish");
    let id = published.split_once("id=").and_then(|(_, rest)| rest.split(' ').next()).expect("its id");
    redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).exec(conn).expect("CLIENT KILL");
    let no = within("the check says no", async {
        loop {
            match engine.check().await {
                Ok(()) => tokio::task::yield_now().await,
                Err(e) => return e.to_string(),
            }
        }
    })
    .await;
    assert!(no.contains("1 of its connections"), "it says what is missing: {no}");
    for n in 1..=100 {
        engine.publish(vec![small(&q, n)].into()).await.expect("the other connection is there");
    }
    room(1000).exec(conn).expect("CONFIG SET");
    until_back("the check says yes", || engine.check()).await;
    assert_eq!(engine.ready(&q).await.expect("answered"), 101, "each publish was answered");
}

#[tokio::test]
async fn a_consumer_that_left_loses_nothing() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let dispatcher =
        Dispatcher::start(engine.clone(), Arc::new(ParkedPolls::new(100, 100)), Failure::default());
    engine.publish((0..50).map(|n| small(&q, n)).collect::<Vec<_>>().into()).await.expect("published");
    let mut taken = 0;
    for _ in 0..50 {
        let request = Request {
            queues: q.clone().into(),
            weights: None,
            count: 1,
            ttr: TTR,
            timeout: Duration::ZERO,
            head: 0,
        };
        // Disconnects between the request and its reply.
        let poll = tokio::time::timeout(Duration::from_micros(200), dispatcher.consume(request)).await;
        taken += poll.map_or(0, |delivery| delivery.expect("the Redis is there").take().len());
    }
    within("the others' jobs are back", dispatcher.settled()).await;
    let (mut both, conn) = (redis::pipe(), &mut server.connection());
    both.atomic().llen("q/shop/orders").zcard("timer_set");
    let (ready, running): (usize, usize) = both.query(conn).expect("LLEN and ZCARD");
    assert_eq!((ready, running), (50 - taken, taken), "ready, and running for those that were answered");
    let left = take(&engine, &q, 100).await.expect("consumed");
    assert!(left.iter().all(|job| job.tries_left == 0), "each job has its one try still: {left:?}");
}

#[tokio::test]
async fn what_one_server_publishes_wakes_the_other() {
    let server = RedisServer::start();
    let (one, two, q) = (engine(&server).await, engine(&server).await, queue("orders"));
    let notified = Notified::attach(&*two, std::slice::from_ref(&q));
    // The fallback sweep also notifies, once a second. So sixty notifications within the bound prove that tracking
    // works.
    within("sixty publishes of the other server notify", async {
        for n in 0..60 {
            one.publish(vec![small(&q, n)].into()).await.expect("published");
            is_told("a publish of the other server notifies", &notified, &q).await;
            while !take(&two, &q, 9).await.expect("consumed").is_empty() {}
        }
    })
    .await;
}

#[tokio::test]
async fn a_push_of_lmstfy_notifies_also_after_the_connection_broke() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let notified = Notified::attach(&*engine, std::slice::from_ref(&q));
    let conn = &mut server.connection();
    for round in 0..5 {
        let _: u64 = conn.lpush("q/shop/orders", "\u{1}").expect("LPUSH");
        is_told(&format!("push {round} notifies"), &notified, &q).await;
        let _: u64 = conn.del("q/shop/orders").expect("DEL");
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(conn).expect("CLIENT KILL");
    }
}

#[tokio::test]
async fn notifications_outlive_a_restart_of_the_server() {
    let mut server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let notified = Notified::attach(&*engine, std::slice::from_ref(&q));
    server.restart();
    is_told("a reconnect notifies of everything", &notified, &q).await;
    let _: u64 = server.connection().lpush("q/shop/orders", "x").expect("LPUSH");
    is_told("and listens again", &notified, &q).await;
}

#[tokio::test]
async fn where_tracking_is_refused_polling_is_told() {
    let server = RedisServer::start();
    let conn = &mut server.connection();
    redis::cmd("ACL").arg("SETUSER").arg("default").arg("-client|tracking").exec(conn).expect("ACL SETUSER");
    let (engine, q) = (engine(&server).await, queue("orders"));
    let notified = Notified::attach(&*engine, &[q.clone(), queue("idle")]);
    for _ in 0..3 {
        let _: u64 = conn.lpush("q/shop/orders", "x").expect("LPUSH");
        is_told("polling finds the push", &notified, &q).await;
        let _: u64 = conn.del("q/shop/orders").expect("DEL");
    }
}

#[tokio::test]
async fn one_change_among_ten_thousand_watched_queues_is_little_work() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let queues: Vec<Queue> = (0..10_000).map(|n| queue(&format!("q{n}"))).collect();
    let notified = Notified::attach(&*engine, &queues);
    let conn = &mut server.connection();
    // Each key that an EXISTS reads counts as a hit or a miss.
    let keys_read = |conn: &mut redis::Connection| {
        let stats: redis::InfoDict = redis::cmd("INFO").arg("stats").query(conn).expect("INFO");
        let read = |field| stats.get::<u64>(field).expect("a number of keys");
        read("keyspace_hits") + read("keyspace_misses")
    };
    within("all are armed", async {
        while keys_read(conn) < 10_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let begun = tokio::time::Instant::now();
    let before = keys_read(conn);
    for queue in &queues[..20] {
        let _: u64 = conn.lpush(format!("q/shop/{}", queue.name), "x").expect("LPUSH");
        is_told("the changed queue is notified of", &notified, queue).await;
        let _: u64 = conn.del(format!("q/shop/{}", queue.name)).expect("DEL");
    }
    // An LPUSH and its DEL arm once each. A sweep, one a second, reads all lists, and each list again in a chunk of a
    // thousand with a ready job. One sweep may have started before the first change.
    let sweeps = begun.elapsed().as_secs() + 2;
    let keys = keys_read(conn) - before;
    assert!(keys <= 20 * 8 + sweeps * 11_000, "{keys} keys read for 20 changes and at most {sweeps} sweeps");
}

#[tokio::test]
async fn a_delayed_publish_wakes_the_pump_before_it_would_look() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    for n in 0..20 {
        let notified = Notified::attach(&*engine, &[]);
        let before = engine.now();
        let pumped = engine.pump().await.expect("pumped");
        assert_eq!(pumped.next, Duration::from_secs(1), "nothing is due, so a second");
        let job = NewJob { delay: Duration::from_millis(5), ..small(&q, n) };
        let Ok(Published::Done(placed)) = engine.publish(vec![job].into()).await else { panic!("published") };
        // With less than a second between the two calls, by Redis's clock.
        if placed[0].due_at.is_some_and(|due| due + 10 < before + 1000) {
            return within("the pump is told", notified.due_earlier()).await;
        }
        engine.ack_job(JobRef { queue: q.clone(), id: id(n) }).await.expect("acked");
    }
    panic!("this machine never did the test within a second");
}

#[tokio::test]
async fn errors_of_connecting_say_why_in_one_line_without_the_password() {
    let server = RedisServer::start_with(Some("open sesame"), &[]);
    let good = RedisAddress { password: Some("open sesame".into()), ..server.address() };
    connect(good.clone()).await.expect("the right password");
    // Bound without listening, so that nobody takes the port meanwhile.
    let bound = tokio::net::TcpSocket::new_v4().expect("a socket");
    bound.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let port_of_nobody = bound.local_addr().expect("it is bound");
    for (address, refused) in [
        (RedisAddress { password: Some("hunter2".into()), ..good.clone() }, true),
        (RedisAddress { password: None, ..good.clone() }, true),
        (RedisAddress { db: 99, ..good.clone() }, true),
        (RedisAddress { addrs: vec![], ..good.clone() }, true),
        (RedisAddress { addrs: vec![port_of_nobody.to_string()], ..good.clone() }, false),
        (
            RedisAddress { master_name: Some("m".into()), addrs: vec![port_of_nobody.to_string()], ..good },
            false,
        ),
    ] {
        let shown = format!("{address:?}");
        let error = within("an answer", connect(address)).await.expect_err(&shown);
        assert_eq!(matches!(error, Error::Refused(_)), refused, "{shown}: {error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("sesame") && !text.contains("hunter2"), "a secret is told: {text}");
        assert_eq!(error.to_string().lines().count(), 1, "one line: {error}");
    }
}

/// Starts a Sentinel that monitors this master as `dorm`. Returns it, the address of the master for an engine, and the
/// Sentinel's configuration file.
fn sentinel(master: &RedisServer, settings: &str) -> (RedisServer, RedisAddress, tempfile::NamedTempFile) {
    let conf = tempfile::NamedTempFile::new().expect("a temporary file");
    let addr = master.addr().replace(':', " ");
    std::fs::write(conf.path(), format!("sentinel monitor dorm {addr} 1\n{settings}")).expect("written");
    let sentinel =
        RedisServer::start_kind(None, &[], Some(conf.path().to_str().expect("a path in UTF-8")), Vec::new());
    let addrs = vec![sentinel.addr()];
    let address = RedisAddress { addrs, master_name: Some("dorm".into()), ..master.address() };
    (sentinel, address, conf)
}

#[tokio::test]
async fn a_sentinel_tells_where_the_master_is() {
    let server = RedisServer::start();
    let (_sentinel, address, _conf) = sentinel(&server, "");
    let engine = within("connected", connect(address.clone())).await.expect("the sentinel knows the master");
    engine.publish(vec![small(&queue("orders"), 1)].into()).await.expect("published");
    assert_eq!(server.connection().llen("q/shop/orders"), Ok(1_u64), "it went to the master");
    let nobody =
        within("answered", connect(RedisAddress { master_name: Some("no".into()), ..address })).await;
    assert!(nobody.is_err(), "the sentinel knows no such master");
}

#[tokio::test]
async fn a_failover_loses_nothing_that_the_replica_has() {
    // The replica's sync starts at once instead of after five seconds.
    let mut master = RedisServer::start_with(None, &["--repl-diskless-sync-delay", "0"]);
    let follow = master.addr().replace(':', " ");
    let replica = RedisServer::start_with(None, &["--replicaof", &follow]);
    let field = |server: &RedisServer, field: &str| {
        let info: redis::InfoDict =
            redis::cmd("INFO").arg("replication").query(&mut server.connection()).expect("INFO");
        info.get::<String>(field).unwrap_or_default()
    };
    let soon = || tokio::time::sleep(Duration::from_millis(20));
    within("the replica follows", async {
        while field(&replica, "master_link_status") != "up" || field(&master, "connected_slaves") != "1" {
            soon().await;
        }
    })
    .await;
    // A stall of the machine is no failure of the master, until it is killed.
    let settings = "sentinel down-after-milliseconds dorm 60000\nsentinel failover-timeout dorm 5000\n";
    let (sentinel, address, _conf) = sentinel(&master, settings);
    within("the sentinel knows the replica", async {
        let conn = &mut sentinel.connection();
        loop {
            let known: String =
                redis::cmd("INFO").arg("sentinel").query(conn).expect("a sentinel answers INFO");
            if known.contains("status=ok") && known.contains("slaves=1") {
                return;
            }
            soon().await;
        }
    })
    .await;

    let (engine, q) = (within("connected", connect(address)).await.expect("a master"), queue("orders"));
    let notified = Notified::attach(&*engine, &[queue("parked")]);
    engine.publish((0..50).map(|n| small(&q, n)).collect::<Vec<_>>().into()).await.expect("published");
    let running = take(&engine, &q, 10).await.expect("consumed");
    assert_eq!(running.len(), 10, "ten are running");
    // WAIT covers the last write of its connection, and so all earlier writes.
    let conn = &mut master.connection();
    let _: () = conn.set("mark", 1).expect("SET");
    let copied: u64 = redis::cmd("WAIT").arg(1).arg(5000).query(conn).expect("WAIT is answered");
    assert_eq!(copied, 1, "the replica has all of it");

    let mut quick = redis::cmd("SENTINEL");
    quick.arg("SET").arg("dorm").arg("down-after-milliseconds").arg(500);
    quick.exec(&mut sentinel.connection()).expect("SENTINEL SET");
    master.kill();
    within("the engine follows to the replica", async {
        while engine.publish(vec![small(&q, 1000)].into()).await.is_err() {
            soon().await;
        }
    })
    .await;
    let ready = until_back("consume follows too", || take(&engine, &q, 100)).await;
    assert_eq!(ready.len(), 41, "the forty that were ready and the new one");
    let timers: u64 = replica.connection().zcard("timer_set").expect("ZCARD");
    assert_eq!(timers, 51, "the ten that were running are armed beside them");
    engine.give_back(running).await.expect("what ran before the failover can be given back");
    let size = until_back("size follows too", || engine.ready(&q)).await;
    assert_eq!(size, 10, "and is ready again");
    let _: u64 = replica.connection().lpush("q/shop/parked", "x").expect("LPUSH");
    is_told("the pushes of the new master notify", &notified, &queue("parked")).await;
}

#[tokio::test]
async fn a_closed_engine_says_so_and_leaves_no_connection() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let notified = Notified::attach(&*engine, std::slice::from_ref(&q));
    engine.publish(vec![small(&q, 1)].into()).await.expect("published");
    within("closed", engine.close()).await;
    let publish = engine.publish(vec![small(&q, 2)].into()).await;
    assert!(matches!(publish, Err(Error::Closed)), "publish, came {publish:?}");
    let peek = engine.peek(&q).await;
    assert!(matches!(peek, Err(Error::Closed)), "peek, came {peek:?}");
    drop(notified);
    let conn = &mut server.connection();
    clients("its connections end", conn, |n| n == 1).await;
}

#[tokio::test]
#[ignore = "takes as long as three response timeouts, sixteen seconds"]
async fn a_server_that_hangs_is_away_and_heals() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    engine.publish(vec![small(&q, 1)].into()).await.expect("published");
    let stalled = server.stall();
    for n in 2..4 {
        let publish = within("answered", engine.publish(vec![small(&q, n)].into())).await;
        assert!(matches!(publish, Err(Error::Away(_))), "the server hangs, came {publish:?}");
    }
    // More calls than connections off the hot path: no call waits for another's timeout before its own.
    let sizes: Vec<_> = (0..20)
        .map(|_| {
            let (engine, q) = (engine.clone(), q.clone());
            tokio::spawn(async move { engine.ready(&q).await })
        })
        .collect();
    let answers = tokio::time::timeout(Duration::from_secs(8), async {
        for size in sizes {
            let size = size.await.expect("the task ends");
            assert!(matches!(size, Err(Error::Away(_))), "the server hangs, came {size:?}");
        }
    });
    answers.await.expect("twenty sizes are answered within one timeout, not several");
    drop(stalled);
    until_back("publish heals", || engine.publish(vec![small(&q, 9)].into())).await;
    until_back("size heals", || engine.ready(&q)).await;
}
