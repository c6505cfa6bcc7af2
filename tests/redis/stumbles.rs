//! A Redis that fails while its connections stay open: it hands over to another master, refuses writes, stalls, or
//! replies too late. Every verb works again within two seconds, and nothing happens after its caller got an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{BOUND, TTR, consume, engine, id, job, queue, within};
use crate::proxy::{Answers, Proxy};
use crate::support::engine_ext::EngineExt;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;
use bytes::Bytes;
use dormouse::admin::redis::RedisAdmin;
use dormouse::admin::{AdminStore, Scope, TokenKey};
use dormouse::engine::redis::{RedisAddress, RedisEngine};
use dormouse::engine::{Engine, Listing, OnConflict, Placing, Publication};
use dormouse::error::{Error, Result};
use dormouse::job::{JobRef, NewJob};
use dormouse::name::{JobKey, Namespace, PoolName, Queue, Token};
use dormouse::outage::Outage;
use dormouse::process::tasks::{Failure, Tasks};
use parking_lot::Mutex;
use redis::Commands;

/// Time within which every verb must work again: two seconds are promised, and a busy machine gets more. A call that
/// waits for its time-out takes five.
const RESUMED: Duration = Duration::from_millis(4500);

/// Returns an engine that reaches its Redis through a proxy.
async fn engine_through(proxy: &Proxy) -> Arc<RedisEngine> {
    let address = RedisAddress { addrs: vec![proxy.addr()], ..RedisAddress::default() };
    RedisEngine::connect(address, &PoolName::default_pool()).await.expect("the Redis is there")
}

fn delayed(job: NewJob, delay: Duration) -> NewJob {
    NewJob { delay, ..job }
}

/// Sends a command to this Redis.
fn tell(server: &RedisServer, command: &[&str]) {
    redis::cmd(command[0]).arg(&command[1..]).exec(&mut server.connection()).expect("the Redis does it");
}

/// Calls every verb until each has succeeded once. Returns how long that took for each.
async fn all_work(engine: &Arc<RedisEngine>) -> BTreeMap<&'static str, Duration> {
    let began = Instant::now();
    let mut took = BTreeMap::new();
    let q = queue("verbs");
    let mut n = 1_000_000; // number of the last id
    macro_rules! until_it_works {
        ($verb:literal, $call:expr) => {
            loop {
                let done = within($verb, async { $call }).await;
                if done.is_ok() {
                    took.insert($verb, began.elapsed());
                    break;
                }
                assert!(began.elapsed() < BOUND, "{}: {:?}", $verb, done.err());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
    }
    until_it_works!("consume", consume(engine, &q, 1, TTR).await);
    until_it_works!("publish", {
        n += 1;
        engine.publish(vec![job(&q, id(n), "x")].into()).await
    });
    until_it_works!("give_back", give_back_one(engine, &q).await);
    until_it_works!("peek", engine.peek(&q).await);
    until_it_works!("size", engine.ready(&q).await);
    until_it_works!("ack", engine.ack_job(JobRef { queue: q.clone(), id: id(1) }).await);
    until_it_works!("republish", {
        n += 1;
        engine.republish(JobRef { queue: q.clone(), id: id(1) }, job(&q, id(n), "x")).await
    });
    let due = delayed(job(&q, id(n + 1), "x"), Duration::from_micros(1));
    engine.publish(vec![due].into()).await.expect("it published a moment ago");
    until_it_works!("pump", engine.pump().await);
    until_it_works!("respawn", engine.respawn_oldest(&q, 1, None).await);
    until_it_works!("delete_dead", engine.delete_dead(&q, 1).await);
    until_it_works!("dead_letter", engine.dead_letter(&q).await);
    until_it_works!("stats", engine.stats().await);
    until_it_works!("destroy", engine.destroy(&q, Listing::Keep).await);
    until_it_works!("check", engine.check().await);
    took
}

/// Consumes a ready job and returns it, which must make it ready again.
async fn give_back_one(engine: &Arc<RedisEngine>, q: &Queue) -> Result<()> {
    let jobs = consume(engine, q, 1, TTR).await?;
    if jobs.is_empty() {
        return Err(Error::away("nothing is ready"));
    }
    engine.give_back(jobs).await
}

/// Returns the clients of a Redis, each by a unique name.
fn clients(conn: &mut redis::Connection) -> Vec<String> {
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(conn).expect("CLIENT LIST");
    clients.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

fn all_within(limit: Duration, took: &BTreeMap<&'static str, Duration>) {
    let slow: Vec<_> = took.iter().filter(|(_, took)| **took > limit).collect();
    assert!(slow.is_empty(), "each verb should work within {limit:?}, but: {slow:?}");
}

#[tokio::test]
async fn a_master_that_hands_over_while_connections_stay_is_left_within_two_seconds() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(old.addr()).await;
    let engine = engine_through(&proxy).await;
    all_work(&engine).await;
    proxy.lead_to(new.addr());
    tell(&old, &["REPLICAOF", "127.0.0.1", "1"]);
    let took = all_work(&engine).await;
    all_within(RESUMED, &took);
    engine.publish(vec![job(&queue("after"), id(1), "x")].into()).await.expect("published");
    let there: u64 = new.connection().llen("q/shop/after").expect("LLEN");
    assert_eq!(there, 1, "the new master has what is published now");
}

/// Guards against discovering only by a failed write of a token that the Redis is no longer the master.
#[tokio::test]
async fn tokens_follow_a_master_that_handed_over_while_nobody_writes_one() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(old.addr()).await;
    let address = RedisAddress { addrs: vec![proxy.addr()], ..RedisAddress::default() };
    let tasks = Tasks::new(Failure::default());
    let admin =
        RedisAdmin::connect(&address, "", Outage::new("tokens"), &tasks).await.expect("the Redis is there");
    let key = TokenKey {
        scope: Scope { pool: PoolName::default_pool(), namespace: Namespace::parse("ns").expect("a name") },
        token: Token::new("01GA47SA3EXAMPLETOKEN000").expect("a token"),
    };
    assert!(!admin.look_up(&key).await.expect("looked up").exists, "it is not there");
    proxy.lead_to(new.addr());
    tell(&old, &["REPLICAOF", "127.0.0.1", "1"]);
    let (began, on_old) = (Instant::now(), &mut old.connection());
    let only_ours = async || clients(on_old).len() == 1;
    until("its connection has left what is no master any more", only_ours).await;
    until("it reads from the new master", async || admin.look_up(&key).await.is_ok()).await;
    assert!(began.elapsed() < RESUMED, "it followed after {:?}", began.elapsed());
    let added = admin.add_token(&key, "the first write").await;
    assert!(matches!(added, Ok(true)), "the first write of a token after a failover: {added:?}");
    let there: u64 = new.connection().hlen("tk/default/ns").expect("HLEN");
    assert_eq!(there, 1, "the new master has it");
}

#[tokio::test]
async fn reads_follow_a_master_that_handed_over_while_nobody_writes() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(old.addr()).await;
    let (engine, q) = (engine_through(&proxy).await, queue("orders"));
    assert_eq!(engine.ready(&q).await.expect("size"), 0, "nothing yet");
    proxy.lead_to(new.addr());
    tell(&old, &["REPLICAOF", "127.0.0.1", "1"]);
    let _: u64 = new.connection().lpush("q/shop/orders", "x").expect("LPUSH");
    let began = Instant::now();
    within("size tells of the new master's queue", async {
        while !matches!(engine.ready(&q).await, Ok(1)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(began.elapsed() < RESUMED, "reads followed after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_redis_without_its_replicas_refuses_and_takes_again_over_the_same_connections() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    engine.publish(vec![job(&q, id(1), "x")].into()).await.expect("published");
    let before = clients(&mut server.connection());
    tell(&server, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let publish = engine.publish(vec![job(&q, id(2), "x")].into()).await.map(drop);
    let consume = consume(&engine, &q, 1, TTR).await.map(drop);
    let ack = engine.ack_job(JobRef { queue: q.clone(), id: id(1) }).await;
    let check = engine.check().await;
    for (verb, answer) in [("publish", publish), ("consume", consume), ("ack", ack), ("check", check)] {
        let Err(Error::Refused(why)) = answer else { panic!("{verb}: expected Refused, came {answer:?}") };
        assert!(why.to_string().contains("NOREPLICAS"), "{verb} should tell the reason: {why}");
        assert!(!why.to_string().contains("user_script"), "{verb}: where in the script is noise: {why}");
    }
    tell(&server, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    all_within(RESUMED, &all_work(&engine).await);
    let after = clients(&mut server.connection());
    let kept = before.iter().filter(|id| after.contains(id)).count();
    assert_eq!(
        kept,
        before.len() - 1,
        "only this test's own connection is another one: {before:?} {after:?}"
    );
    assert_eq!(engine.ready(&q).await.expect("size"), 1, "what was refused has not happened");
}

#[tokio::test]
async fn calls_that_were_given_up_while_the_redis_stalled_do_not_happen_when_it_goes_on() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    engine.publish((0..20).map(|n| job(&q, id(n), "x")).collect::<Vec<_>>().into()).await.expect("published");
    let acked = consume(&engine, &q, 1, TTR).await.expect("consumed").remove(0);
    let given_back = consume(&engine, &q, 1, TTR).await.expect("consumed");
    let stalled = server.stall();
    let began = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for n in 100..120 {
        let (engine, q) = (engine.clone(), q.clone());
        let jobs = vec![job(&q, id(n), "x"), delayed(job(&q, id(n + 100), "x"), TTR)];
        calls.spawn(async move { engine.publish(jobs.into()).await.map(drop) });
    }
    for _ in 0..5 {
        let (engine, q) = (engine.clone(), q.clone());
        calls.spawn(async move { consume(&engine, &q, 2, TTR).await.map(drop) });
    }
    let (other, lost) = (engine.clone(), JobRef { queue: q.clone(), id: acked.id });
    calls.spawn(async move { other.ack_job(lost).await });
    let other = engine.clone();
    let giving_back = tokio::spawn(async move { other.give_back(given_back).await });
    while let Some(answer) = within("an answer", calls.join_next()).await {
        let answer = answer.expect("no panic");
        assert!(matches!(answer, Err(Error::Away(_))), "the Redis stalls, came {answer:?}");
    }
    let answered = began.elapsed();
    assert!(answered < Duration::from_secs(10), "callers waited {answered:?}");
    drop(stalled);
    all_work(&engine).await;
    within("given back", giving_back).await.expect("no panic").expect("it is tried until the Redis is back");
    let conn = &mut server.connection();
    let stored: Vec<String> = conn.keys("j/shop/orders/*").expect("KEYS");
    assert_eq!(stored.len(), 20, "no publish that was answered with an error is stored, no such ack done");
    let timers: u64 = conn.zcard("timer_set").expect("ZCARD");
    assert_eq!(timers, 1, "only the job whose ack failed is running");
    let left = consume(&engine, &q, 100, TTR).await.expect("consumed");
    assert_eq!(left.len(), 19, "no consume that was answered with an error took a job");
    assert_eq!(left[0].id, id(1), "what was given back is at the head");
}

/// Guards against a publish whose deadline counts from when it is sent instead of from its arrival. A publish waited in
/// a batch queue, was sent on the second connection with four more seconds to start, and its caller got an error when
/// that connection was closed a moment later; Redis stored it when it resumed.
#[tokio::test]
async fn no_publish_begins_after_its_caller_was_answered() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    all_work(&engine).await; // loads the scripts
    let stalled = server.stall();
    let began = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    // The first two keep both publishing tasks busy. The others arrive until just before Redis resumes.
    for n in 1..=32 {
        let (engine, q) = (engine.clone(), q.clone());
        // A publish that replaces a job is not undone, so every call that starts leaves its job.
        let replaces = (n > 2).then(|| JobRef { queue: q.clone(), id: id(9_000) });
        let jobs = vec![Placing::from(job(&q, id(n), "x"))];
        let publication = Publication { jobs, replaces, once: None };
        tokio::time::sleep_until((began + Duration::from_millis(100 + 200 * (n - 1))).into()).await;
        calls.spawn(async move {
            let asked = Instant::now();
            let answer = engine.publish(publication).await;
            (n, answer.is_ok(), asked.elapsed())
        });
    }
    tokio::time::sleep_until((began + Duration::from_secs(7)).into()).await;
    drop(stalled);
    let answers = within("answers", calls.join_all()).await;
    let failed: Vec<u64> = answers.iter().filter(|(_, stored, _)| !stored).map(|(n, ..)| *n).collect();
    assert!(failed.contains(&3), "the third came to a Redis that stalled for 6.5 s: {answers:?}");
    let slowest = answers.iter().map(|(.., waited)| *waited).max();
    assert!(
        slowest < Some(Duration::from_millis(6500)),
        "each is answered 5 s after its arrival: {answers:?}"
    );
    all_work(&engine).await;
    // Requests in the sockets were read before these calls, so all of them have been handled.
    let stored = |n: &u64| server.connection().exists(format!("j/shop/orders/{}", id(*n))).expect("EXISTS");
    let both: Vec<u64> = failed.into_iter().filter(stored).collect();
    assert!(both.is_empty(), "answered with an error, and stored when the Redis went on: {both:?}");
}

#[tokio::test]
async fn what_was_done_before_the_answers_got_stuck_is_taken_back_when_they_come() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let (engine, q) = (engine_through(&proxy).await, queue("orders"));
    all_work(&engine).await; // loads the scripts
    engine.publish((0..10).map(|n| job(&q, id(n), "x")).collect::<Vec<_>>().into()).await.expect("published");
    proxy.set_answers(Answers::Hold);
    let conn = &mut server.connection();
    let jobs = vec![job(&q, id(100), "x"), delayed(job(&q, id(101), "x"), TTR)];
    let (publish, consumed) =
        within("answers", async { tokio::join!(engine.publish(jobs.into()), consume(&engine, &q, 4, TTR)) })
            .await;
    assert!(matches!(publish, Err(Error::Away(_))), "no answer came, but {publish:?}");
    assert!(matches!(consumed, Err(Error::Away(_))), "no answer came, but {consumed:?}");
    let running: u64 = conn.zcard("timer_set").expect("ZCARD");
    assert_eq!(running, 5, "the Redis did it: four are running, one is delayed");
    proxy.set_answers(Answers::Pass);
    within("what nobody was told of is taken back", async {
        while conn.zcard::<_, u64>("timer_set").expect("ZCARD") > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let stored: Vec<String> = conn.keys("j/shop/orders/*").expect("KEYS");
    assert_eq!(stored.len(), 10, "what was answered with an error is not stored: {stored:?}");
    all_work(&engine).await;
    let left = consume(&engine, &q, 100, TTR).await.expect("consumed");
    let ids: Vec<_> = left.iter().map(|job| job.id).collect();
    assert_eq!(ids, (0..10).map(id).collect::<Vec<_>>(), "all are ready again, in their order");
    assert!(left.iter().all(|job| job.tries_left == 0), "with their one try");
}

/// Guards against callers that wait for one timeout after another: after a batch with a key of the wrong type, whose
/// calls are repeated one by one while Redis stalls.
#[tokio::test]
async fn calls_that_go_one_by_one_end_with_their_connection() {
    let server = Arc::new(RedisServer::start());
    let proxy = Proxy::start(server.addr()).await;
    let engine = engine_through(&proxy).await;
    all_work(&engine).await; // loads the scripts
    let _: () = server.connection().set("q/shop/bad", "no list").expect("SET");
    // This id is in the batch's call, and then in its own call, before which Redis stalls.
    let (stalled, redis, mut met) = (Arc::new(Mutex::new(None)), server.clone(), 0);
    let stall = stalled.clone();
    proxy.before(id(3).to_string().leak(), move || {
        met += 1;
        if met == 2 {
            *stall.lock() = Some(redis.stall());
        }
    });
    let mut calls = tokio::task::JoinSet::new();
    for n in 1..=8 {
        let (engine, q) = (engine.clone(), queue(if n == 1 { "bad" } else { "orders" }));
        calls.spawn(async move { (n, engine.publish(vec![job(&q, id(n), "x")].into()).await) });
    }
    let mut answers = within("one time-out, and not six", calls.join_all()).await;
    answers.sort_by_key(|(n, _)| *n);
    assert!(matches!(answers[0], (1, Err(Error::Refused(_)))), "its key is no list: {answers:?}");
    assert!(matches!(answers[1], (2, Ok(_))), "it was stored before the Redis stalled: {answers:?}");
    let away = answers[2..].iter().all(|(_, answer)| matches!(answer, Err(Error::Away(_))));
    assert!(away, "the Redis stalls: {answers:?}");
    stalled.lock().take();
    all_work(&engine).await;
    let stored: Vec<String> = server.connection().keys("j/shop/orders/*").expect("KEYS");
    assert_eq!(stored.len(), 1, "what was answered with an error is not stored: {stored:?}");
}

/// Guards against a publish that waits for its own timeout after those of others, and against sending a publish whose
/// caller is about to get an error.
#[tokio::test]
async fn a_publish_that_waited_too_long_is_answered_and_not_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let (engine, q) = (engine_through(&proxy).await, queue("orders"));
    all_work(&engine).await; // loads the scripts
    proxy.set_answers(Answers::Hold);
    let conn = &mut server.connection();
    let publish = |n| {
        let (engine, jobs) = (engine.clone(), vec![job(&q, id(n), "x")]);
        tokio::spawn(async move { engine.publish(jobs.into()).await })
    };
    let mut held = Vec::new();
    for n in 0..2 {
        held.push(publish(n));
        within("it was sent", async {
            while conn.llen::<_, u64>("q/shop/orders").expect("LLEN") <= n {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        // The first times out before the second.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let third = publish(2);
    for publish in held {
        let answer = within("answered", publish).await.expect("no panic");
        assert!(matches!(answer, Err(Error::Away(_))), "no answer came, but {answer:?}");
    }
    let third = tokio::time::timeout(Duration::from_secs(4), third).await;
    let answer = third.expect("it waits no longer than the second").expect("no panic");
    assert!(matches!(answer, Err(Error::Away(_))), "both tasks hung, but {answer:?}");
    let sent: u64 = conn.llen("q/shop/orders").expect("LLEN");
    assert_eq!(sent, 2, "the third was too old when the first had timed out");
    proxy.set_answers(Answers::Pass);
    within("both are taken back", async {
        while !conn.keys::<_, Vec<String>>("j/shop/orders/*").expect("KEYS").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Guards against waiting for a late reply, which keeps a connection open for a minute, if nothing is done with the
/// reply.
#[tokio::test]
async fn nobody_listens_for_a_publish_that_cannot_be_taken_back() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let (engine, q) = (engine_through(&proxy).await, queue("orders"));
    all_work(&engine).await; // loads the scripts
    let conn = &mut server.connection();
    let before = clients(conn);
    proxy.set_answers(Answers::HoldAfter("the-key"));
    let key = JobKey::parse("the-key").expect("a key");
    let placing = Placing { job: job(&q, id(1), "x"), at: None, key: Some((key, OnConflict::Keep)) };
    let publication = Publication { jobs: vec![placing], replaces: None, once: None };
    let answer = within("answered", engine.publish(publication)).await;
    assert!(matches!(answer, Err(Error::Away(_))), "no answer came, but {answer:?}");
    within("its connection is closed", async {
        loop {
            let now = clients(conn);
            let left = before.iter().filter(|client| now.contains(client)).count();
            if left == before.len() - 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_publish_whose_caller_left_while_it_waited_is_not_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let (engine, q) = (engine_through(&proxy).await, queue("orders"));
    all_work(&engine).await; // loads the scripts
    proxy.set_answers(Answers::Hold);
    // Both publishing tasks wait for a reply.
    let conn = &mut server.connection();
    let mut held = Vec::new();
    for n in 0..2 {
        let (other, jobs) = (engine.clone(), vec![job(&q, id(n), "x")]);
        held.push(tokio::spawn(async move { other.publish(jobs.into()).await }));
        within("it was sent", async {
            while conn.llen::<_, u64>("q/shop/orders").expect("LLEN") <= n {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }
    let left =
        tokio::time::timeout(Duration::from_millis(20), engine.publish(vec![job(&q, id(8), "x")].into()))
            .await;
    assert!(left.is_err(), "it waits for one of the tasks");
    let (other, jobs) = (engine.clone(), vec![job(&q, id(9), "x")]);
    held.push(tokio::spawn(async move { other.publish(jobs.into()).await }));
    proxy.set_answers(Answers::Pass);
    for publish in held {
        within("answered", publish).await.expect("no panic").expect("published");
    }
    let got = consume(&engine, &q, 10, TTR).await.expect("consumed");
    let ids: Vec<_> = got.iter().map(|job| job.id).collect();
    assert_eq!(ids, [id(0), id(1), id(9)], "those whose callers waited");
}

#[tokio::test]
async fn reads_that_hang_hold_up_no_pump_no_give_back_and_nothing_on_the_hot_path() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let (engine, q) = (engine_through(&proxy).await, queue("orders"));
    engine.publish(vec![job(&q, id(1), "x")].into()).await.expect("published");
    proxy.set_answers(Answers::HoldAfter("LLEN"));
    let mut sizes = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (engine, q) = (engine.clone(), q.clone());
        sizes.spawn(async move { engine.ready(&q).await });
    }
    let conn = &mut server.connection();
    within("the sizes are asked for", async {
        loop {
            let stats: redis::InfoDict = redis::cmd("INFO").arg("commandstats").query(conn).expect("INFO");
            if stats.get::<String>("cmdstat_llen").is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    let others = async {
        let jobs = consume(&engine, &q, 1, TTR).await.expect("consumed");
        engine.give_back(jobs).await.expect("given back");
        let due = delayed(job(&q, id(2), "x"), Duration::from_micros(1));
        engine.publish(vec![due].into()).await.expect("published");
        engine.pump().await.expect("pumped");
        consume(&engine, &q, 2, TTR).await.expect("consumed").len()
    };
    let jobs = tokio::time::timeout(Duration::from_secs(4), others).await;
    assert_eq!(jobs.expect("nothing waits for the sizes"), 2, "the one given back and the one that was due");
    assert_eq!(sizes.len(), 50, "the sizes still hang");
}

/// Returns a bulk of `jobs` jobs, each with a body of `bytes` bytes.
fn bulk(q: &Queue, jobs: u64, bytes: usize) -> Vec<NewJob> {
    let body = Bytes::from(vec![b'x'; bytes]);
    (0..jobs).map(|n| job(q, id(n), body.clone())).collect()
}

#[tokio::test]
async fn a_large_bulk_is_stored_in_many_small_calls() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let mut jobs = bulk(&q, 64, 700 << 10);
    for (n, job) in jobs.iter_mut().enumerate() {
        job.delay = if n % 2 == 0 { Duration::ZERO } else { TTR };
        job.ttl = if n % 3 == 0 { None } else { Some(Duration::from_secs(3600)) };
    }
    let conn = &mut server.connection();
    engine.publish(jobs.clone().into()).await.expect("published");
    let stats: redis::InfoDict = redis::cmd("INFO").arg("commandstats").query(conn).expect("INFO");
    let calls: String = stats.get("cmdstat_evalsha").expect("scripts were called");
    let calls = calls.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse::<usize>().ok());
    assert!(calls >= Some(64), "two values are more than a call may carry, so 64 calls and more: {calls:?}");
    let (ready, delayed): (u64, u64) =
        (conn.llen("q/shop/orders").expect("LLEN"), conn.zcard("timer_set").expect("ZCARD"));
    assert_eq!((ready, delayed), (32, 32), "all of them");
    for job in &jobs {
        let ttl: i64 = conn.pttl(format!("j/shop/orders/{}", job.id)).expect("PTTL");
        match job.ttl {
            None => assert_eq!(ttl, -1, "it lives for ever"),
            Some(_) => assert!((3_500_000..=3_600_000).contains(&ttl), "an hour is left, not {ttl} ms"),
        }
    }
    let got = consume(&engine, &q, 100, TTR).await.expect("consumed");
    let expected: Vec<_> = (0..64).step_by(2).map(id).collect();
    let mut ids: Vec<_> = got.iter().map(|job| job.id).collect();
    while ids.len() < expected.len() {
        ids.extend(consume(&engine, &q, 100, TTR).await.expect("consumed").iter().map(|job| job.id));
    }
    assert_eq!(ids, expected, "in publish order");
    assert!(got.iter().all(|job| job.body.len() == 700 << 10), "each with its body");
}

#[tokio::test]
async fn a_large_bulk_that_breaks_off_is_never_seen_and_ends_by_itself() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let (engine, q) = (engine_through(&proxy).await, queue("orders"));
    proxy.cut_after(20 << 20);
    let cut = within("answered", engine.publish(bulk(&q, 64, 1 << 20).into())).await;
    assert!(matches!(cut, Err(Error::Away(_))), "the connection was cut, came {cut:?}");
    let conn = &mut server.connection();
    let keys: Vec<String> = conn.keys("*").expect("KEYS");
    assert!(keys.len() >= 10, "some of its values were stored: {keys:?}");
    for key in keys {
        let ttl: i64 = conn.pttl(&key).expect("PTTL");
        assert!(key.starts_with("j/shop/orders/") && (1..=600_000).contains(&ttl), "{key} ends in {ttl} ms");
    }
}

#[tokio::test]
async fn a_large_bulk_is_refused_as_a_whole_for_one_id_or_one_key_of_another_type() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let conn = &mut server.connection();
    engine.publish(vec![job(&queue("orders"), id(60), "taken")].into()).await.expect("published");
    let taken = engine.publish(bulk(&q, 64, 1 << 20).into()).await;
    assert!(matches!(taken, Err(Error::Refused(_))), "one id is taken, came {taken:?}");
    let keys: Vec<String> = conn.keys("j/*").expect("KEYS");
    assert_eq!(keys, [format!("j/shop/orders/{}", id(60))], "nothing of it is left");
    let other = queue("other");
    let _: () = conn.set("q/shop/other", "no list").expect("SET");
    let refused = engine.publish(bulk(&other, 3, 1 << 20).into()).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "the key is no list, came {refused:?}");
    let keys: Vec<String> = conn.keys("j/shop/other/*").expect("KEYS");
    assert!(keys.is_empty(), "nothing of it is left: {keys:?}");
}

#[tokio::test]
async fn a_peek_behind_a_very_long_row_of_dead_entries_ends_and_the_next_goes_on() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    let conn = &mut server.connection();
    for part in 0..10_u64 {
        let mut lpush = redis::cmd("LPUSH");
        lpush.arg("q/shop/orders");
        for n in 0..10_000 {
            let name = id(part * 10_000 + n).to_string();
            lpush.arg([&1_u16.to_le_bytes()[..], &26_u16.to_le_bytes(), name.as_bytes()].concat());
        }
        lpush.exec(conn).expect("LPUSH");
    }
    engine.publish(vec![job(&q, id(1_000_000), "alive")].into()).await.expect("published");
    let mut peeks = 0;
    let found = loop {
        peeks += 1;
        let before = engine.ready(&q).await.expect("size");
        match engine.peek(&q).await {
            Ok(found) => break found.map(|job| job.id),
            Err(Error::Overloaded) => {
                let walked = before - engine.ready(&q).await.expect("size");
                assert!((10_000..=32 * 961).contains(&walked), "one peek dropped {walked} dead entries");
            }
            Err(e) => panic!("expected a job or Overloaded, came {e}"),
        }
    };
    assert_eq!((found, peeks), (Some(id(1_000_000)), 4), "a hundred thousand dead ones in steps of 30,752");
}

#[tokio::test]
async fn a_redis_in_cluster_mode_is_refused_at_the_start() {
    let server = RedisServer::start_with(None, &["--cluster-enabled", "yes"]);
    let pool = RedisEngine::connect(server.address(), &PoolName::default_pool()).await.map(drop);
    let (outage, tasks) = (Outage::new("tokens of a test"), Tasks::new(Failure::default()));
    let admin = RedisAdmin::connect(&server.address(), "", outage, &tasks).await.map(drop);
    for (what, answer) in [("a pool", pool), ("tokens", admin)] {
        let Err(Error::Refused(why)) = answer else { panic!("{what}: expected Refused, came {answer:?}") };
        assert!(why.to_string().contains("cluster mode"), "{what}: the reason should be told: {why}");
    }
}
