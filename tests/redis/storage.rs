//! The layout shared by Dormouse and lmstfy: the bytes that the engine writes, and its handling of structures written
//! as lmstfy writes them.

use std::num::NonZeroU16;
use std::time::Duration;

use crate::common::{TTR, consume, element, engine, id, job, member, queue};
use crate::support::consume;
use crate::support::engine_ext::EngineExt;
use crate::support::redis_admin::open_admin_redis;
use crate::support::redis_server::RedisServer;
use bytes::Bytes;
use dormouse::admin::{AdminStore, Count, Direction, Limit, Scope, TokenKey};
use dormouse::engine::redis::{RedisEngine, Unsafe, check_safety};
use dormouse::engine::{Engine, Held, Listing, Once, Placing, Publication, Pumped, Quota, Quotas, Release};
use dormouse::error::Error;
use dormouse::job::{Attributes, Job, JobId, JobRef, NewJob};
use dormouse::name::{IdempotencyKey, Namespace, PoolName, Queue, QueueList, Token};
use redis::{Commands, Connection};

async fn take(engine: &RedisEngine, queue: &Queue, count: u16, ttr: Duration) -> Vec<Job> {
    consume(engine, queue, count, ttr).await.expect("consume is answered")
}

/// Pumps until `moved` jobs have moved.
async fn pump(engine: &RedisEngine, moved: usize) {
    let mut seen = 0;
    for _ in 0..200 {
        let pumped = engine.pump().await.expect("pump is answered");
        seen += pumped.moved;
        if seen >= moved {
            return;
        }
        // Redis's clock cannot be injected, so this waits for the time in the pump's reply.
        tokio::time::sleep(pumped.next.clamp(Duration::from_millis(1), Duration::from_millis(100))).await;
    }
    panic!("{seen} of {moved} jobs were moved");
}

fn redis_micros(conn: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(conn).expect("TIME");
    seconds * 1_000_000 + micros
}

/// Asserts that the ttl of a key was set to `ttl` after `since`, a time of this Redis.
fn assert_ttl(conn: &mut Connection, key: &str, ttl: Duration, since: u64) {
    let left: i64 = conn.pttl(key).expect("PTTL");
    let spent = (redis_micros(conn) - since).div_ceil(1000) as i64 + 1;
    let most = ttl.as_millis() as i64;
    assert!((most - spent..=most).contains(&left), "{key} has {left} ms of {ttl:?}, {spent} ms later");
}

fn list(conn: &mut Connection, key: &str) -> Vec<Vec<u8>> {
    conn.lrange(key, 0, -1).expect("a list")
}

fn timers(conn: &mut Connection) -> Vec<(Vec<u8>, f64)> {
    conn.zrange_withscores("timer_set", 0, -1).expect("a sorted set")
}

/// Publishes a job without delay as lmstfy does.
fn lmstfy_publish(conn: &mut Connection, name: &str, id: &str, body: &str, ttl: u64, tries: u16) {
    let mut set = redis::cmd("SET");
    set.arg(format!("j/shop/{name}/{id}")).arg(body).arg("NX");
    if ttl > 0 {
        set.arg("EX").arg(ttl);
    }
    set.exec(conn).expect("SET NX");
    let _: u64 = conn.lpush(format!("q/shop/{name}"), element(tries, id)).expect("LPUSH");
}

#[tokio::test]
async fn a_ready_job_is_a_value_an_element_and_two_names() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    let two = vec![
        job(&q, id(1), "one"),
        NewJob { ttl: None, tries: 3.try_into().expect("not 0"), ..job(&q, id(2), "two") },
    ];
    let since = redis_micros(conn);
    engine.publish(two.into()).await.expect("published");
    let (one, two) = (id(1).to_string(), id(2).to_string());
    assert_eq!(conn.get::<_, String>(format!("j/shop/orders/{one}")), Ok("one".into()), "the raw body");
    assert_ttl(conn, &format!("j/shop/orders/{one}"), Duration::from_secs(100), since);
    assert_eq!(conn.ttl::<_, i64>(format!("j/shop/orders/{two}")), Ok(-1), "no ttl is forever");
    assert_eq!(list(conn, "q/shop/orders"), [element(3, &two), element(1, &one)], "the newest at the left");
    assert_eq!(conn.hgetall::<_, Vec<String>>("m/ns"), Ok(vec!["shop".into(), "1".into()]));
    assert_eq!(conn.hgetall::<_, Vec<String>>("m/ns/shop"), Ok(vec!["orders".into(), "1".into()]));
    let mut keys: Vec<String> = conn.keys("*").expect("KEYS");
    keys.sort();
    let job_keys = [one, two].map(|id| format!("j/shop/orders/{id}"));
    let all = [&job_keys[..], &["m/ns".into(), "m/ns/shop".into(), "q/shop/orders".into()]].concat();
    assert_eq!(keys, all, "and nothing else");
}

#[tokio::test]
async fn delayed_and_running_jobs_are_timer_members_with_a_fraction() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("orders");
    let conn = &mut server.connection();
    let before = redis_micros(conn);
    let delay = Duration::from_millis(2500);
    engine.publish(vec![NewJob { delay, ..job(&q, id(1), "x") }].into()).await.expect("published");
    let after = redis_micros(conn);
    let [(bytes, score)] = &timers(conn)[..] else { panic!("one member, came {:?}", timers(conn)) };
    assert_eq!(*bytes, member("orders", 1, &id(1).to_string()), "the member");
    let due = (score * 1e6).round() as u64;
    assert!((before + 2_500_000..=after + 2_500_064).contains(&due), "due {due}, now {before}");
    assert_eq!(engine.ready(&q).await.expect("size"), 0, "not ready yet");

    engine
        .publish(vec![NewJob { tries: 2.try_into().expect("not 0"), ..job(&q, id(2), "y") }].into())
        .await
        .expect("published");
    let got = take(&engine, &q, 1, TTR).await;
    assert_eq!(got[0].tries_left, 1, "one of two tries is left");
    let armed = timers(conn);
    assert_eq!(armed[1].0, member("orders", 1, &id(2).to_string()), "the running job, with the tries left");
    engine.ack_job(JobRef { queue: q.clone(), id: id(2) }).await.expect("acked");
    assert_eq!(timers(conn).len(), 1, "the ack took the timer too, since this server knew the tries");
    assert!(!conn.exists::<_, bool>(format!("j/shop/orders/{}", id(2))).expect("EXISTS"), "and the job");
}

#[tokio::test]
async fn the_longest_delay_and_ttr_are_written_in_full() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("orders");
    let longest = Duration::from_secs(u32::MAX.into());
    let far = NewJob { delay: longest, ttl: Some(longest), ..job(&q, id(1), "x") };
    engine.publish(vec![far, job(&q, id(2), "y")].into()).await.expect("published");
    assert_eq!(take(&engine, &q, 1, longest).await.len(), 1, "the ready one");
    let conn = &mut server.connection();
    let least = redis_micros(conn) as f64 / 1e6 + 4_294_967_290.0;
    for (_, score) in timers(conn) {
        assert!(score > least, "due in 136 years, came {score}");
    }
    assert_eq!(engine.pump().await.expect("pump").moved, 0, "nothing is due");
    let ttl: i64 = conn.ttl(format!("j/shop/orders/{}", id(1))).expect("TTL");
    assert!(ttl > 4_294_967_290, "the ttl, came {ttl}");
}

#[tokio::test]
async fn a_versioned_job_is_json() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("orders");
    let versioned = JobId::from_parts(1_700_000_000_000, 1, 0, true);
    let attributes = Attributes::from([("flag".to_owned(), "1".to_owned())]);
    engine
        .publish(vec![NewJob { attributes: attributes.clone(), ..job(&q, versioned, "hi") }].into())
        .await
        .expect("published");
    let conn = &mut server.connection();
    let stored: String = conn.get(format!("j/shop/orders/{versioned}")).expect("GET");
    assert_eq!(stored, r#"{"body":"aGk=","attributes":{"flag":"1"}}"#);
    let got = take(&engine, &q, 1, TTR).await;
    assert_eq!((&got[0].body[..], &got[0].attributes), (&b"hi"[..], &attributes), "read back");
}

#[tokio::test]
async fn a_dead_job_is_an_element_with_one_try_and_no_ttl() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("orders");
    engine.publish(vec![job(&q, id(1), "a"), job(&q, id(2), "b")].into()).await.expect("published");
    assert_eq!(take(&engine, &q, 2, Duration::from_millis(1)).await.len(), 2);
    pump(&engine, 2).await;
    let conn = &mut server.connection();
    let (one, two) = (id(1).to_string(), id(2).to_string());
    assert_eq!(list(conn, "d/shop/orders"), [element(1, &two), element(1, &one)], "the oldest at the right");
    assert_eq!(conn.ttl::<_, i64>(format!("j/shop/orders/{one}")), Ok(-1), "a dead job has no ttl");
    let dead = engine.dead_letter(&q).await.expect("dead letter");
    assert_eq!((dead.jobs, dead.head), (2, Some(id(1))), "size and oldest");

    let (since, ttl) = (redis_micros(conn), Duration::from_secs(50));
    assert_eq!(engine.respawn_oldest(&q, 1, Some(ttl)).await.expect("respawn"), 1);
    assert_eq!(list(conn, "q/shop/orders"), [element(1, &one)], "the oldest is ready with one try");
    assert_ttl(conn, &format!("j/shop/orders/{one}"), ttl, since);
    assert_eq!(engine.delete_dead(&q, 5).await.expect("delete"), 1, "the one that is left");
    assert!(!conn.exists::<_, bool>(format!("j/shop/orders/{two}")).expect("EXISTS"), "its job is gone");
}

#[tokio::test]
async fn what_lmstfy_wrote_is_consumed_acked_expired_and_respawned() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("go"), &mut server.connection());
    let ids: Vec<String> = (1..=5).map(|n| id(n).to_string()).collect();
    for (n, id) in ids.iter().enumerate() {
        lmstfy_publish(conn, "go", id, &format!("body {n}"), 100, 2);
    }
    // lmstfy acks with DEL alone, before and after our consume; and a ttl ends.
    let _: u64 = conn.del(format!("j/shop/go/{}", ids[0])).expect("DEL");
    let _: bool = conn.pexpire(format!("j/shop/go/{}", ids[1]), 1).expect("PEXPIRE");
    while conn.exists(format!("j/shop/go/{}", ids[1])).expect("EXISTS") {}
    assert_eq!(engine.ready(&q).await.expect("size"), 5, "size counts the dead ones, as lmstfy does");
    let head = engine.peek(&q).await.expect("peek").expect("a live job");
    assert_eq!((head.id, head.tries_left), (id(3), 2), "the head is the first live one");
    let got = take(&engine, &q, 2, Duration::from_millis(1)).await;
    let seen: Vec<_> = got.iter().map(|job| (job.id, &job.body[..], job.tries_left)).collect();
    assert_eq!(seen, [(id(3), &b"body 2"[..], 1), (id(4), &b"body 3"[..], 1)]);
    let _: u64 = conn.del(format!("j/shop/go/{}", ids[2])).expect("DEL");

    // lmstfy's consume: RPOP, then ZADD with whole seconds. The job returns when its ttr ends.
    let popped: Vec<u8> = conn.rpop("q/shop/go", None).expect("RPOP");
    assert_eq!(popped, element(2, &ids[4]), "the last of five");
    let due = redis_micros(conn) / 1_000_000;
    let _: u64 = conn.zadd("timer_set", member("go", 1, &ids[4]), due).expect("ZADD");
    pump(&engine, 3).await;
    let left = take(&engine, &q, 9, Duration::from_millis(1)).await;
    let seen: Vec<_> = left.iter().map(|job| (job.id, job.tries_left)).collect();
    assert_eq!(seen.len(), 2, "the third was acked: {seen:?}");
    assert!(seen.contains(&(id(4), 0)) && seen.contains(&(id(5), 0)), "their last try: {seen:?}");
    pump(&engine, 2).await;
    assert_eq!(engine.dead_letter(&q).await.expect("dead letter").jobs, 2, "no tries left");
    let _: u64 = conn.del(format!("j/shop/go/{}", ids[3])).expect("DEL");
    assert_eq!(engine.respawn_oldest(&q, 9, None).await.expect("respawn"), 1, "the acked one does not count");
    assert_eq!(take(&engine, &q, 9, TTR).await.len(), 1, "ready again");
}

#[tokio::test]
async fn lmstfys_delayed_jobs_with_whole_seconds_become_ready() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let conn = &mut server.connection();
    let text = id(1).to_string();
    let _: () = conn.set(format!("j/shop/go/{text}"), "late").expect("SET");
    let due = redis_micros(conn) / 1_000_000 - 1;
    let _: u64 = conn.zadd("timer_set", member("go", 7, &text), due).expect("ZADD");
    let pumped = engine.pump().await.expect("pump");
    assert_eq!(pumped, Pumped { moved: 1, next: Duration::from_secs(1) }, "moved, and none is left");
    assert_eq!(take(&engine, &queue("go"), 1, TTR).await[0].tries_left, 6, "six of seven tries");
}

/// lmstfy truncates the fraction of a due time. Its jobs are due at the end of that second, and our jobs before and
/// after them in the timer set are due on time.
#[tokio::test]
async fn no_job_of_lmstfy_is_early() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let conn = &mut server.connection();
    let add = |conn: &mut Connection, n: u64, score: String| {
        let text = id(n).to_string();
        let _: () = conn.set(format!("j/shop/go/{text}"), "x").expect("SET");
        let _: u64 = conn.zadd("timer_set", member("go", 1, &text), score).expect("ZADD");
    };
    'again: for _ in 0..20 {
        let _: () = conn.del("timer_set").expect("DEL");
        // Starts early in a second, so that most of it is left for the test.
        let mut now = redis_micros(conn);
        while now % 1_000_000 > 300_000 {
            tokio::time::sleep(Duration::from_micros(1_000_001 - now % 1_000_000)).await;
            now = redis_micros(conn);
        }
        let second = now / 1_000_000;
        add(conn, 1, format!("{}.5", second - 1));
        for n in 2..5 {
            add(conn, n, format!("{second}"));
        }
        add(conn, 5, format!("{second}.000001"));
        add(conn, 6, format!("{second}.9"));
        add(conn, 7, format!("{}", second + 1));
        add(conn, 8, format!("{}", second - 1));
        let pumped = engine.pump().await.expect("pumped");
        let left: Vec<f64> = timers(conn).iter().map(|(_, score)| *score).collect();
        let now = redis_micros(conn);
        if now / 1_000_000 > second || now % 1_000_000 > 890_000 {
            continue; // the second has ended, so other jobs are due
        }
        let second = second as f64;
        assert_eq!(left, [second, second, second, second + 0.9, second + 1.0], "timers that are left");
        assert_eq!(pumped.moved, 3, "jobs that are due");
        let next = Duration::from_micros(900_000 - now % 1_000_000);
        assert!(
            pumped.next >= next && pumped.next < Duration::from_millis(900),
            "the one at {second}.9 is due in {next:?} or a little more, and the pump says {:?}",
            pumped.next
        );
        let _: u64 = conn.zrem("timer_set", member("go", 1, &id(6).to_string())).expect("ZREM");
        // Batches of one timer give the same result.
        let mut looks_after = 0;
        loop {
            let pumped = engine.pump().await.expect("pumped");
            let now = redis_micros(conn) as f64 / 1e6;
            if now >= second + 2.0 {
                continue 'again; // the next second has ended too
            }
            let left = timers(conn).len();
            let expected = if now < second + 1.0 { 4..=4 } else { 1..=4 };
            assert!(
                expected.contains(&left),
                "{left} timers are left at {now}: 3 end with {second}, and one with the next second"
            );
            looks_after += usize::from(left == 1);
            if looks_after == 2 {
                return;
            }
            tokio::time::sleep(pumped.next.min(Duration::from_millis(20))).await;
        }
    }
    panic!("this machine never did the test within a second");
}

/// A score without a fraction would be read as lmstfy's, and the job would be a second late.
#[tokio::test]
async fn no_score_is_written_without_a_fraction() {
    let server = RedisServer::start();
    let conn = &mut server.connection();
    let script =
        concat!(include_str!("../../lua/clock.lua"), "\nreturn {score(ARGV[1] + 0), score(ARGV[1] + 1)}");
    for second in [1_u64, 1_700_000_000, 4_294_967_295] {
        let scores: Vec<String> = redis::cmd("EVAL")
            .arg(script)
            .arg(0)
            .arg(second * 1_000_000)
            .arg((1_u64 << 53) - 1)
            .query(conn)
            .expect("the script runs");
        let scores: Vec<f64> = scores.iter().map(|score| score.parse().expect("a number")).collect();
        assert!(scores[0] > second as f64, "{} s is written with a fraction: {scores:?}", second);
        assert!(scores[0] < scores[1], "a microsecond later is later: {scores:?}");
        assert!(scores[1] < second as f64 + 2e-6, "a microsecond later: {scores:?}");
    }
}

#[tokio::test]
async fn garbage_in_the_timer_set_and_in_a_list_holds_nothing_up() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    let whole = member("orders", 1, &id(9).to_string());
    // Truncated within the id, and within the queue's name, where it is a prefix of the job's own member.
    for garbage in [&b""[..], b"x", b"\xff\xff", b"\x04\x00shop", &whole[..20], &whole[..12]] {
        let _: u64 = conn.zadd("timer_set", garbage, 1).expect("ZADD");
        let _: u64 = conn.lpush("q/shop/orders", garbage).expect("LPUSH");
    }
    let none: u64 = conn.lpush("q/shop/orders", element(0, &id(8).to_string())).expect("LPUSH");
    let _: () = conn.set(format!("j/shop/orders/{}", id(8)), "no tries").expect("SET");
    engine
        .publish(vec![NewJob { delay: Duration::from_micros(1), ..job(&q, id(1), "x") }].into())
        .await
        .expect("published");
    pump(&engine, 7).await;
    assert_eq!(timers(conn), [], "{none} garbage members are dropped");
    assert_eq!(engine.peek(&q).await.expect("peek").map(|job| job.id), Some(id(1)), "the head is the job");
    let got = take(&engine, &q, 9, TTR).await;
    assert_eq!(got.iter().map(|job| job.id).collect::<Vec<_>>(), [id(1)], "and nothing else is handed out");
    let dead = engine.dead_letter(&q).await.expect("dead letter");
    assert_eq!(dead.head, Some(id(8)), "a job without tries is dead, not lost");
}

#[tokio::test]
async fn a_list_of_another_type_neither_wedges_the_pump_nor_tears_a_publish() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (bad, good, conn) = (queue("bad"), queue("good"), &mut server.connection());
    let soon = |queue: &Queue, n| NewJob { delay: Duration::from_micros(1), ..job(queue, id(n), "x") };
    engine.publish(vec![soon(&bad, 1), soon(&good, 2)].into()).await.expect("published");
    let _: () = conn.set("q/shop/bad", "not a list").expect("SET");
    pump(&engine, 2).await;
    assert_eq!(take(&engine, &good, 1, TTR).await.len(), 1, "the other queue's job");
    assert_eq!(timers(conn).len(), 2, "the bad queue's job waits in the timer, beside the running one");

    let torn = engine.publish(vec![job(&good, id(3), "x"), job(&bad, id(4), "x")].into()).await;
    assert!(torn.is_err(), "one of the two cannot be stored");
    assert_eq!(engine.ready(&good).await.expect("size"), 0, "so neither is");
    assert!(!conn.exists::<_, bool>(format!("j/shop/good/{}", id(3))).expect("EXISTS"), "nor its value");
    engine.publish(vec![job(&good, id(3), "x")].into()).await.expect("alone it is");
}

#[tokio::test]
async fn an_id_that_is_stored_refuses_its_call_and_no_other() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("orders");
    engine.publish(vec![job(&q, id(1), "first")].into()).await.expect("published");
    let calls = (2..40).map(|n| {
        let jobs = match n {
            9 => vec![job(&q, id(100), "x"), job(&q, id(1), "again")],
            10 => vec![job(&q, id(101), "x"), job(&q, id(101), "twice")],
            _ => vec![job(&q, id(n), "x")],
        };
        let engine = engine.clone();
        tokio::spawn(async move { engine.publish(jobs.into()).await.is_ok() })
    });
    let mut stored = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        stored.push(call.await.expect("the task ends"));
    }
    let refused: Vec<usize> = (2..40).zip(&stored).filter(|(_, ok)| !**ok).map(|(n, _)| n).collect();
    assert_eq!(refused, [9, 10], "the two with an id that is stored");
    assert_eq!(engine.ready(&q).await.expect("size"), 37, "the first and the other 36");
}

#[tokio::test]
async fn a_long_row_of_acked_jobs_hides_no_live_one() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    let elements: Vec<Vec<u8>> = (0..5000).map(|n| element(1, &id(n).to_string())).collect();
    let _: u64 = conn.lpush("q/shop/orders", &elements).expect("LPUSH");
    engine
        .publish(vec![job(&q, id(9001), "a"), job(&q, id(9002), "b"), job(&q, id(9003), "c")].into())
        .await
        .expect("published");
    assert_eq!(engine.peek(&q).await.expect("peek").map(|j| j.id), Some(id(9001)), "peek looks behind them");
    let left = engine.ready(&q).await.expect("size");
    assert_eq!(
        left,
        5003 - 4838,
        "what it walked over was dropped, up to the row in which the first live one is"
    );
    assert_eq!(engine.peek(&q).await.expect("peek").map(|j| j.id), Some(id(9001)), "nothing that lives was");
    let got = consume::consume(&*engine, &q.clone().into(), &[TTR; 6]).await.expect("consume");
    let ids: Vec<JobId> = got.iter().map(|job| job.id).collect();
    assert_eq!(ids, [id(9001), id(9002), id(9003)], "all that live, in order");
}

#[tokio::test]
async fn given_back_jobs_stand_at_the_head_with_their_try() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("orders");
    engine.publish((1..=4).map(|n| job(&q, id(n), "x")).collect::<Vec<_>>().into()).await.expect("published");
    let got = take(&engine, &q, 3, TTR).await;
    engine.ack_job(JobRef { queue: q.clone(), id: id(2) }).await.expect("acked");
    engine.give_back(got.clone()).await.expect("given back");
    engine.give_back(got).await.expect("a second time changes nothing");
    let conn = &mut server.connection();
    let expected = [4, 3, 1].map(|n| element(1, &id(n).to_string()));
    assert_eq!(list(conn, "q/shop/orders"), expected, "1 and 3 at the head, the acked one not");
    assert_eq!(timers(conn), [], "no timer is left");
}

#[tokio::test]
async fn a_hand_over_that_has_ended_cannot_be_given_back() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("orders");
    engine.publish(vec![job(&q, id(1), "x")].into()).await.expect("published");
    let ended = take(&engine, &q, 1, Duration::from_millis(1)).await;
    pump(&engine, 1).await;
    assert_eq!(engine.respawn_oldest(&q, 1, None).await.expect("respawned"), 1, "it was dead");
    let running = take(&engine, &q, 1, TTR).await;
    assert_eq!(running[0].tries_left, ended[0].tries_left, "the two hand-overs have the same timer member");
    engine.give_back(ended).await.expect("answered");
    assert_eq!(engine.ready(&q).await.expect("size"), 0, "the job is running, in another hand-over");
    engine.give_back(running).await.expect("answered");
    assert_eq!(engine.ready(&q).await.expect("size"), 1, "and that one can be given back");
}

#[tokio::test]
async fn jobs_due_together_keep_their_order_whatever_their_tries() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("orders");
    let jobs = (0..64).map(|n| NewJob {
        delay: Duration::from_millis(1),
        tries: NonZeroU16::new(64 - n as u16).expect("64 down to 1"),
        ..job(&q, id((n * 37) % 64), "x")
    });
    engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    pump(&engine, 64).await;
    let got: Vec<JobId> = take(&engine, &q, 100, TTR).await.iter().map(|job| job.id).collect();
    assert_eq!(got, (0..64).map(|n| id((n * 37) % 64)).collect::<Vec<_>>(), "publish order");
}

/// Guards against timers that remain for a month-long delay after their jobs are acked. The timer's name contains the
/// job's tries, which an ack does not know unless its server delivered the job.
#[tokio::test]
async fn who_forgets_a_delayed_job_takes_its_timer_too() {
    let server = RedisServer::start();
    let engines = [engine(&server).await, engine(&server).await];
    let (q, conn) = (queue("orders"), &mut server.connection());
    let delayed = |n: u64, tries: u16| NewJob {
        delay: Duration::from_secs(50),
        tries: NonZeroU16::new(tries).expect("not 0"),
        ..job(&q, id(n), "x")
    };
    let named = |n: u64| JobRef { queue: q.clone(), id: id(n) };
    let stays = engines[0].publish(vec![delayed(9000, 7)].into()).await;
    stays.expect("published");
    for n in 0..200 {
        engines[0].publish(vec![delayed(n, 1 + n as u16)].into()).await.expect("published");
        engines[1].ack_job(named(n)).await.expect("acked");
    }
    assert_eq!(timers(conn).len(), 1, "of 200 delayed jobs that were acked");
    engines[0]
        .publish((200..264).map(|n| delayed(n, 3)).collect::<Vec<_>>().into())
        .await
        .expect("published");
    let many: Vec<_> = (200..264).map(|n| (id(n), None)).collect();
    engines[0].ack(&q, &many).await.expect("acked");
    assert_eq!(timers(conn).len(), 1, "of 64 that were acked in one call");
    // A debounce: each republish replaces the previous job.
    engines[0].publish(vec![delayed(300, 3)].into()).await.expect("published");
    for n in 300..400 {
        engines[0].republish(named(n), delayed(n + 1, 3)).await.expect("republished");
    }
    assert_eq!(timers(conn).len(), 2, "of 101 jobs, each in the place of the one before it");
    let once = Once::request(IdempotencyKey::new(b"once").expect("a key"), [1; 16]);
    let placing = Placing { job: delayed(500, 3), at: None, key: None };
    let publication = Publication { jobs: vec![placing], replaces: Some(named(400)), once: Some(once) };
    engines[0].publish(publication).await.expect("republished");
    assert_eq!(timers(conn).len(), 2, "the same, safe to repeat");
    // A job that another server has delivered.
    engines[0]
        .publish(vec![NewJob { tries: NonZeroU16::new(5).expect("not 0"), ..job(&q, id(600), "x") }].into())
        .await
        .expect("published");
    take(&engines[0], &q, 1, TTR).await;
    engines[1].ack_job(named(600)).await.expect("acked");
    assert_eq!(timers(conn).len(), 2, "of a running job that another server has handed out");
}

/// Guards against a timer that remains for a long delay, because the server that deletes the job knows the job's tries
/// from an earlier delivery, and another server has delivered the job since.
#[tokio::test]
async fn who_knows_old_tries_of_a_delayed_job_takes_its_timer_too() {
    let server = RedisServer::start();
    let [a, b] = [engine(&server).await, engine(&server).await];
    let (q, conn) = (queue("orders"), &mut server.connection());
    let named = |n: u64| JobRef { queue: q.clone(), id: id(n) };
    let jobs = (0..44).map(|n| NewJob { tries: NonZeroU16::new(5).expect("not 0"), ..job(&q, id(n), "x") });
    a.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    assert_eq!(take(&a, &q, 44, Duration::from_millis(1)).await.len(), 44, "handed out by the first server");
    pump(&b, 44).await;
    for job in take(&b, &q, 44, TTR).await {
        let release = Release { delay: Duration::from_secs(50), ..Release::default() };
        let name = JobRef { queue: q.clone(), id: job.id };
        let released = b.release(&name, job.proof(), release).await;
        assert!(matches!(released, Ok(Held::Done(_))), "{released:?}");
    }
    assert_eq!(timers(conn).len(), 44, "all are delayed");
    a.ack_job(named(0)).await.expect("acked");
    assert_eq!(timers(conn).len(), 43, "after an ack");
    a.ack(&q, &[(id(1), None)]).await.expect("acked");
    assert_eq!(timers(conn).len(), 42, "after an ack by a list");
    a.republish(named(2), job(&q, id(102), "x")).await.expect("republished");
    assert_eq!(timers(conn).len(), 41, "after a republish");
    let placing = Placing { job: job(&q, id(103), "x"), at: None, key: None };
    let once = Once::request(IdempotencyKey::new(b"once").expect("a key"), [1; 16]);
    let publication = Publication { jobs: vec![placing], replaces: Some(named(3)), once: Some(once) };
    a.publish(publication).await.expect("republished");
    assert_eq!(timers(conn).len(), 40, "after a republish that is safe to repeat");
    // With timers of known names in between.
    let jobs = (200..220).map(|n| job(&q, id(n), "x"));
    a.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    take(&a, &q, 22, TTR).await;
    let acks = (4..44).chain(200..220).map(|n| {
        let (a, name) = (a.clone(), named(n));
        async move { a.ack_job(name).await }
    });
    for acked in acks.collect::<tokio::task::JoinSet<_>>().join_all().await {
        acked.expect("acked");
    }
    let rest: Vec<_> = timers(conn).into_iter().map(|(member, _)| member).collect();
    let running = [102, 103].map(|n| member("orders", 0, &id(n).to_string()));
    assert_eq!(rest, running, "after many acks at once, those of the two jobs that run are left");
}

/// Returns the recorded number of jobs and bytes of the namespace.
fn used(conn: &mut Connection) -> (u64, u64) {
    conn.hmget("dormouse/used", &["shop/jobs", "shop/bytes"]).expect("figures")
}

/// Guards against leftovers of a publish that stores nothing: a queue name that would stay forever, and deleted values
/// that still count.
#[tokio::test]
async fn a_publish_that_is_refused_under_a_quota_leaves_nothing() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    let set = async |jobs| {
        let quota = Quota { jobs, bytes: 0, queues: 0 };
        let quotas = Quotas::from([(q.namespace.clone(), quota)]);
        engine.set_quotas(&quotas).await.expect("set");
    };
    set(1).await;
    engine.publish(vec![job(&q, id(11), "x")].into()).await.expect("published");
    let refused = engine.publish(vec![job(&queue("other"), id(1), "x")].into()).await;
    assert!(matches!(refused, Err(Error::OverQuota("jobs"))), "{refused:?}");
    let names: Vec<String> = conn.hkeys("m/ns/shop").expect("names");
    assert_eq!(names, ["orders"], "the queue of a publish that was refused has no name");
    set(50).await;
    engine.publish(vec![job(&queue("other"), id(12), "x")].into()).await.expect("published");
    assert_eq!(conn.hlen("m/ns/shop"), Ok(2), "that of one that was stored has one");
    let before = used(conn);
    let bulk = |q: &Queue| (0..12).map(|n| job(q, id(n), vec![b'x'; 300_000])).collect::<Vec<_>>();
    engine.publish(bulk(&q).into()).await.expect_err("the last id is taken");
    assert_eq!(used(conn), before, "after a large bulk that was refused");
}

/// Guards against two republishes of one batch that both free the quota of the same job.
#[tokio::test]
async fn the_room_of_a_job_that_two_republishes_name_counts_once() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    let quotas = Quotas::from([(q.namespace.clone(), Quota { jobs: 1, bytes: 0, queues: 0 })]);
    engine.set_quotas(&quotas).await.expect("set");
    engine.publish(vec![job(&q, id(1), "x")].into()).await.expect("published");
    let old = || JobRef { queue: q.clone(), id: id(1) };
    let (first, second) = tokio::join!(
        engine.republish(old(), job(&q, id(2), "x")),
        engine.republish(old(), job(&q, id(3), "x"))
    );
    assert!(first.is_ok(), "the first takes its room: {first:?}");
    assert!(matches!(second, Err(Error::OverQuota("jobs"))), "there is none for the second: {second:?}");
    let keys: Vec<String> = conn.keys("j/*").expect("KEYS");
    assert_eq!(keys.len(), 1, "{keys:?}");
}

#[tokio::test]
async fn republish_acks_the_old_and_its_timer_in_one_step() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    engine.publish(vec![job(&q, id(1), "old")].into()).await.expect("published");
    take(&engine, &q, 1, TTR).await;
    let old = JobRef { queue: q.clone(), id: id(1) };
    engine.republish(old.clone(), job(&q, id(2), "new")).await.expect("republished");
    assert_eq!(timers(conn), [], "the old one's timer is gone");
    assert_eq!(engine.inspect_stored(&old).await.expect("peek"), None, "and the old one");
    assert_eq!(take(&engine, &q, 9, TTR).await.len(), 1, "the new one is ready");
    engine.republish(old, job(&q, id(2), "taken")).await.expect_err("the new id is taken");
}

#[tokio::test]
async fn destroy_drops_what_is_ready_and_nothing_else() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    for chunk in 0..20 {
        let jobs = (0..60).map(|n| job(&q, id(chunk * 60 + n), "x"));
        engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    }
    take(&engine, &q, 1, TTR).await;
    engine.publish(vec![NewJob { delay: TTR, ..job(&q, id(9001), "x") }].into()).await.expect("published");
    engine.destroy(&q, Listing::Keep).await.expect("destroyed");
    engine.destroy(&q, Listing::Keep).await.expect("an empty queue too");
    let keys: Vec<String> = conn.keys("j/*").expect("KEYS");
    assert_eq!(keys.len(), 2, "the running and the delayed job are left: {keys:?}");
    let mut aside: Vec<String> = conn.keys("dormouse/*").expect("KEYS");
    // The numbers of timers are recorded at any time.
    aside.retain(|key| !key.starts_with("dormouse/timers"));
    assert_eq!(aside, [""; 0], "nothing is left set aside");
}

#[tokio::test]
async fn a_bulk_of_64_mebibytes_goes_through() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("big");
    let body = Bytes::from(vec![7; 1 << 20]);
    let jobs = (0..64).map(|n| NewJob { body: body.clone(), ..job(&q, id(n), "") });
    engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    let got = take(&engine, &q, 100, TTR).await;
    assert_eq!(got.len(), 64, "all come back in one call, over the bound on a step");
    assert!(got.iter().all(|job| job.body == body), "as they were");
}

#[tokio::test]
async fn names_and_sizes_are_told() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (a, b) = (queue("a"), queue("b"));
    engine
        .publish(
            vec![job(&b, id(1), "x"), job(&a, id(2), "x"), NewJob { delay: TTR, ..job(&a, id(3), "x") }]
                .into(),
        )
        .await
        .expect("published");
    let conn = &mut server.connection();
    let _: u64 = conn.hset("m/ns", "not a name!", 1).expect("HSET");
    assert_eq!(engine.queues().await.expect("queues"), [a, b], "sorted, without what is no name");
    let stats = engine.stats().await.expect("stats");
    assert_eq!((stats.timers, stats.queues.iter().map(|q| q.ready).collect::<Vec<_>>()), (1, vec![1, 1]));
    for name in [
        "max_mem_bytes",
        "used_mem_bytes",
        "connections",
        "blocking_connections",
        "total_keys",
        "total_ttl_keys",
    ] {
        assert!(
            stats.gauges.iter().any(|(gauge, _)| *gauge == name),
            "{name} is missing: {:?}",
            stats.gauges
        );
    }
    engine.check().await.expect("it would take a job");
    assert!(!conn.exists::<_, bool>("dormouse/check").expect("EXISTS"), "a check leaves nothing");
    let clock = redis_micros(conn) / 1000;
    assert!(
        engine.now().abs_diff(clock) < 5000,
        "the engine's clock {} is the Redis's {clock}",
        engine.now()
    );
}

#[tokio::test]
async fn a_redis_that_loses_jobs_is_told_apart() {
    let good = RedisServer::start();
    check_safety(&good.address()).await.expect("append-only and noeviction");
    let forgets = RedisServer::start_with(None, &["--appendonly", "no"]);
    let told = check_safety(&forgets.address()).await;
    assert!(matches!(told, Err(Unsafe::NotAppendOnly(_))), "appendonly no, came {told:?}");
    let evicts = RedisServer::start_with(None, &["--maxmemory-policy", "allkeys-lru"]);
    let told = check_safety(&evicts.address()).await;
    assert!(matches!(told, Err(Unsafe::Evicts(_))), "allkeys-lru, came {told:?}");
    // A managed Redis forbids CONFIG; INFO contains the same fields.
    let managed = RedisServer::start_with(None, &["--rename-command", "CONFIG", "", "--appendonly", "no"]);
    let told = check_safety(&managed.address()).await;
    assert!(matches!(told, Err(Unsafe::NotAppendOnly(_))), "told by INFO, came {told:?}");
}

/// Returns a token of namespace `shop`.
fn token(text: &str) -> TokenKey {
    let namespace = Namespace::parse("shop").expect("a name");
    let scope = Scope { pool: PoolName::default_pool(), namespace };
    TokenKey { scope, token: Token::new(text).expect("not empty") }
}

#[tokio::test]
async fn tokens_limits_and_counters_are_lmstfys() {
    let server = RedisServer::start();
    let admin = open_admin_redis(&server).await;
    let conn = &mut server.connection();
    let key = token("01/TOKEN");
    assert!(admin.add_token(&key, "mine").await.expect("answered"), "it is new");
    assert!(!admin.add_token(&key, "yours").await.expect("answered"), "it is taken");
    assert_eq!(conn.hget::<_, _, String>("tk/default/shop", "01/TOKEN"), Ok("mine".into()));
    let limit = Limit { read: 1, write: 2, interval: 3 };
    assert!(admin.add_limit(&key, limit).await.expect("answered"), "there is none");
    assert!(!admin.add_limit(&key, limit).await.expect("answered"), "there is one");
    let stored: String = conn.hget("__throttler_keys__", "default/shop/01/TOKEN").expect("HGET");
    assert_eq!(stored, r#"{"read":1,"write":2,"interval":3}"#);
    let _: u64 = conn.hset("__throttler_keys__", "default/shop/bad", "{").expect("HSET");
    assert_eq!(
        admin.limits().await.expect("answered"),
        [(key.clone(), limit)],
        "the unreadable one is skipped"
    );

    let interval = Duration::from_secs(30);
    let count = async || admin.count(&key, Direction::Write, 3, interval).await.expect("answered");
    let since = redis_micros(conn);
    let Count::Counted(ends) = count().await else { panic!("the first of three should be counted") };
    assert!(matches!(count().await, Count::Counted(_)), "the second");
    assert_ttl(conn, "l/default/shop/01/TOKEN/w", interval, since);
    admin.uncount(&key, Direction::Write, ends).await.expect("answered");
    admin.uncount(&key, Direction::Read, ends).await.expect("answered");
    assert_eq!(conn.get::<_, i64>("l/default/shop/01/TOKEN/w"), Ok(1), "one given back");
    // lmstfy also counts the requests it refuses.
    let _: i64 = conn.incr("l/default/shop/01/TOKEN/w", 10).expect("INCR");
    assert!(matches!(count().await, Count::Full(_)), "over the limit of three");
    assert_eq!(conn.get::<_, i64>("l/default/shop/01/TOKEN/w"), Ok(11), "and not counted");
    assert!(
        !conn.exists::<_, bool>("l/default/shop/01/TOKEN/r").expect("EXISTS"),
        "none is begun by giving back"
    );

    admin.remove_token(&key).await.expect("answered");
    assert!(!admin.look_up(&key).await.expect("answered").exists, "gone");
    assert!(admin.limits().await.expect("answered").is_empty(), "and its limit");
}

#[tokio::test]
async fn coalesced_consumers_of_one_queue_and_of_several_get_each_job_once() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (a, b) = (queue("a"), queue("b"));
    let stored = (0..60).map(|n| job(if n % 2 == 0 { &a } else { &b }, id(n), "x"));
    engine.publish(stored.collect::<Vec<_>>().into()).await.expect("published");
    let both = |first: &Queue, second: &Queue| {
        QueueList::new(first.namespace.clone(), [first.name.clone(), second.name.clone()]).expect("two names")
    };
    let lists = [a.clone().into(), b.clone().into(), both(&a, &b), both(&b, &a)];
    let consumers: Vec<_> = (0..40)
        .map(|n| {
            let (engine, list) = (engine.clone(), lists[n % 4].clone());
            tokio::spawn(async move {
                let got = consume::consume(&*engine, &list, &[TTR; 3]).await.expect("consumed");
                for job in &got {
                    assert!(list.queues().any(|queue| queue == job.queue), "{} was not asked for", job.queue);
                }
                got.into_iter().map(|job| job.id).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut ids = Vec::new();
    for consumer in consumers {
        ids.extend(consumer.await.expect("the consumer ends"));
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..60).map(id).collect::<Vec<_>>(), "120 were wanted, so all 60 go out, each once");
}

#[tokio::test]
async fn a_queue_that_is_no_list_takes_no_other_queues_jobs_with_it() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (good, bad, conn) = (queue("good"), queue("bad"), &mut server.connection());
    engine.publish(vec![job(&good, id(1), "x")].into()).await.expect("published");
    let _: () = conn.set("q/shop/bad", "not a list").expect("SET");
    let both = QueueList::new(good.namespace.clone(), [good.name, bad.name.clone()]).expect("two names");
    let got = consume::consume(&*engine, &both, &[TTR; 5]).await.expect("one queue is well");
    assert_eq!(got.iter().map(|job| job.id).collect::<Vec<_>>(), [id(1)], "its job is handed out");
    assert_eq!(timers(conn).len(), 1, "and armed");
    let refused = consume::consume(&*engine, &bad.clone().into(), &[TTR]).await;
    assert!(refused.is_err(), "from the other alone: expected an error, came {refused:?}");
    engine.destroy(&bad, Listing::Keep).await.expect_err("not a list");
    assert_eq!(conn.get::<_, String>("q/shop/bad"), Ok("not a list".into()), "it is not ours to drop");

    let _: u64 = conn.del("q/shop/good").expect("DEL");
    let _: () = conn.set("q/shop/good", "not a list any more").expect("SET");
    engine.give_back(got).await.expect("answered");
    assert_eq!(timers(conn).len(), 1, "the hand-over stands: it has nowhere to go back to");
}

#[tokio::test]
async fn a_dead_letter_that_is_no_list_loses_no_job() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    engine.publish(vec![job(&q, id(1), "x")].into()).await.expect("published");
    let none = id(2).to_string();
    let _: () = conn.set(format!("j/shop/orders/{none}"), "no tries").expect("SET");
    let _: u64 = conn.lpush("q/shop/orders", element(0, &none)).expect("LPUSH");
    let _: () = conn.set("d/shop/orders", "not a list").expect("SET");
    let got = take(&engine, &q, 5, TTR).await;
    assert_eq!(got.iter().map(|job| job.id).collect::<Vec<_>>(), [id(1)], "the one with a try left");
    let mut waiting: Vec<_> = timers(conn).into_iter().map(|(member, _)| member).collect();
    waiting.sort();
    let both = [2, 1].map(|n| member("orders", 0, &id(n).to_string()));
    assert!(both.iter().all(|m| waiting.contains(m)), "both wait in the timer, came {waiting:?}");
}

#[tokio::test]
async fn a_job_that_cannot_be_read_hides_none_behind_it() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    for n in 1..=3 {
        let torn = JobId::from_parts(1_700_000_000_000, n, 0, true).to_string();
        lmstfy_publish(conn, "orders", &torn, "{", 100, 1);
    }
    engine.publish(vec![job(&q, id(9), "x")].into()).await.expect("published");
    let got = take(&engine, &q, 1, TTR).await;
    assert_eq!(got.iter().map(|job| job.id).collect::<Vec<_>>(), [id(9)], "the one that can be read");
    assert_eq!(timers(conn).len(), 4, "the others come back, and end in the dead letter");
}

#[tokio::test]
async fn what_a_killed_server_was_dropping_is_finished_by_the_next() {
    let server = RedisServer::start();
    let conn = &mut server.connection();
    // The state after the first step of a destroy.
    for n in 0..700 {
        let id = id(n).to_string();
        let _: () = conn.set(format!("j/shop/old/{id}"), "x").expect("SET");
        let _: u64 = conn.lpush("dormouse/dropped/shop/old", element(1, &id)).expect("LPUSH");
    }
    let _: u64 = conn.sadd("dormouse/dropped", "shop/old").expect("SADD");
    lmstfy_publish(conn, "old", &id(9001).to_string(), "new", 0, 1);
    let engine = engine(&server).await;
    for _ in 0..1000 {
        if !conn.exists::<_, bool>("dormouse/dropped").expect("EXISTS") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let left: Vec<String> = conn.keys("*").expect("KEYS");
    assert_eq!(left.len(), 2, "the new job and its list are left: {} keys", left.len());
    assert_eq!(take(&engine, &queue("old"), 9, TTR).await.len(), 1, "a job published since is not dropped");
}

#[tokio::test]
async fn a_destroy_whose_caller_leaves_is_finished() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("orders"), &mut server.connection());
    let elements: Vec<Vec<u8>> = (0..20_000).map(|n| element(1, &id(n).to_string())).collect();
    let _: u64 = conn.lpush("q/shop/orders", &elements).expect("LPUSH");
    let left = tokio::time::timeout(Duration::from_millis(1), engine.destroy(&q, Listing::Keep)).await;
    drop(left); // the destroy may have ended already
    engine.close().await;
    let keys: Vec<String> = conn.keys("*").expect("KEYS");
    let none: &[String] = &[];
    assert!(keys == none || keys == ["q/shop/orders"], "finished or not begun, came {keys:?}");
}

#[tokio::test]
async fn a_counter_without_an_end_gets_one() {
    let server = RedisServer::start();
    let admin = open_admin_redis(&server).await;
    let conn = &mut server.connection();
    let key = token("01TOKEN");
    // The state after a server was killed between counting and setting the expiry.
    let _: () = conn.set("l/default/shop/01TOKEN/w", 1000).expect("SET");
    let interval = Duration::from_secs(30);
    for (most, counts) in [(2000, true), (1, false)] {
        let since = redis_micros(conn);
        let count = admin.count(&key, Direction::Write, most, interval).await.expect("answered");
        assert_eq!(matches!(count, Count::Counted(_)), counts, "1000 and a limit of {most}: {count:?}");
        // Without an end the token would be locked out for ever.
        assert_ttl(conn, "l/default/shop/01TOKEN/w", interval, since);
        let _: bool = conn.persist("l/default/shop/01TOKEN/w").expect("PERSIST");
    }
    assert_eq!(conn.get::<_, i64>("l/default/shop/01TOKEN/w"), Ok(1001), "it counts on");
}
