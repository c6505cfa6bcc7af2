//! Data that job keys, receipts and lists leave in a Redis, and their handling by several servers and lmstfy's. The
//! laws cover a single store.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{TTR, calls_of, consume, engine, id, job, queue};
use crate::proxy::Proxy;
use crate::support::engine_ext::EngineExt;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;
use dormouse::engine::redis::{RedisAddress, RedisEngine};
use dormouse::engine::{
    By, Detail, Engine, Estimated, Held, How, JobList, OnConflict, Once, Placed, Placing, Publication,
    Published, Release, Revival, Revived, Size,
};
use dormouse::error::Error;
use dormouse::job::{JobId, JobRef, JobState, NewJob, Reason};
use dormouse::name::{IdempotencyKey, JobKey, PoolName, Queue};
use redis::{Commands, Connection};

/// Returns the keys like this, except those of the numbers of timers, which are recorded at any time.
fn keys_like(conn: &mut Connection, pattern: &str) -> BTreeSet<String> {
    let keys: Vec<String> = conn.keys(pattern).expect("KEYS");
    keys.into_iter().filter(|key| !key.starts_with("dormouse/timers")).collect()
}

fn keyed(job: NewJob, key: &str, on_conflict: OnConflict) -> Placing {
    Placing { job, at: None, key: Some((JobKey::parse(key).expect("a key"), on_conflict)) }
}

fn only(placing: Placing) -> Publication {
    Publication { jobs: vec![placing], replaces: None, once: None }
}

async fn publish(engine: &RedisEngine, publication: Publication) -> Published {
    engine.publish(publication).await.expect("publish is answered")
}

async fn place(engine: &RedisEngine, placing: Placing) -> Placed {
    match publish(engine, only(placing)).await {
        Published::Done(placed) => placed[0],
        other => panic!("it should be done: {other:?}"),
    }
}

fn name(queue: &Queue, id: JobId) -> JobRef {
    JobRef { queue: queue.clone(), id }
}

fn list(state: JobState, limit: usize) -> JobList {
    JobList { state, limit, cursor: None, bodies: false }
}

/// Returns all jobs of a list, and the most entries that one call scanned. Calls `meanwhile` after each page.
async fn walk(
    engine: &RedisEngine,
    queue: &Queue,
    mut list: JobList,
    mut meanwhile: impl AsyncFnMut(&[JobId]),
) -> (Vec<JobId>, u64) {
    let (mut ids, mut most) = (Vec::new(), 0);
    for _ in 0..10_000 {
        let page = engine.list_jobs(queue, list.clone()).await.expect("list_jobs").expect("its own cursor");
        let shown: Vec<JobId> = page.jobs.iter().map(|view| view.id).collect();
        meanwhile(&shown).await;
        ids.extend(shown);
        most = most.max(page.scanned);
        list.cursor = page.cursor;
        if list.cursor.is_none() {
            return (ids, most);
        }
    }
    panic!("the list has no end");
}

/// Creates dead jobs, as a pump stores them.
fn dead(conn: &mut Connection, queue: &str, ids: impl IntoIterator<Item = JobId>) {
    let mut all = redis::pipe();
    for id in ids {
        let id = id.to_string();
        let element = [&1u16.to_le_bytes()[..], &(id.len() as u16).to_le_bytes(), id.as_bytes()].concat();
        all.set(format!("j/shop/{queue}/{id}"), "x").lpush(format!("d/shop/{queue}"), element);
    }
    let _: Vec<redis::Value> = all.query(conn).expect("written");
}

#[tokio::test]
async fn what_is_not_used_leaves_no_key() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    for n in 0..3 {
        engine
            .publish(vec![NewJob { tries: NonZeroU16::MAX, ..job(&q, id(n), "x") }].into())
            .await
            .expect("published");
    }
    let held = consume(&engine, &q, 2, TTR).await.expect("consumed");
    engine.ack_job(name(&q, held[0].id)).await.expect("acked");
    let released = engine.release(&name(&q, held[1].id), held[1].proof(), Release::default()).await;
    assert!(matches!(released, Ok(Held::Done(_))), "{released:?}");
    engine.pump().await.expect("pumped");
    assert_eq!(keys_like(&mut server.connection(), "dormouse/*"), BTreeSet::new());
}

#[tokio::test]
async fn a_key_leaves_two_records_and_what_is_left_of_old_jobs_goes() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    let conn = &mut server.connection();
    let first = place(&engine, keyed(job(&q, id(0), "x"), "a:b", OnConflict::Keep)).await;
    let name_of = |n| format!("shop/q/{}", id(n));
    let expected = [
        "dormouse/details".to_owned(),
        format!("dormouse/details/{}", name_of(0)),
        "dormouse/key/shop/q/a:b".to_owned(),
    ];
    assert_eq!(keys_like(conn, "dormouse/*"), BTreeSet::from(expected));
    assert_eq!(conn.get::<_, String>("dormouse/key/shop/q/a:b"), Ok(id(0).to_string()));
    let details: Vec<String> = conn.hgetall(format!("dormouse/details/{}", name_of(0))).expect("a hash");
    let ends: u64 = redis::cmd("PEXPIRETIME").arg(format!("j/{}", name_of(0))).query(conn).expect("Redis 7");
    assert_eq!(details, ["key", "a:b", "tries", "1", "until", &ends.to_string()]);
    assert_eq!(first.how, How::New);
    // Acks do not touch job keys.
    for n in 1..500 {
        place(&engine, keyed(job(&q, id(n), "x"), &format!("k{n}"), OnConflict::Keep)).await;
        engine.ack_job(name(&q, id(n))).await.expect("acked");
    }
    let left = keys_like(conn, "dormouse/*");
    assert!(left.len() <= 20, "{} keys are left of 500 jobs: {left:?}", left.len());
    assert!(left.contains("dormouse/key/shop/q/a:b"), "the first one is there: {left:?}");
    assert_eq!(
        place(&engine, keyed(job(&q, id(1000), "x"), "a:b", OnConflict::Keep)).await.how,
        How::Duplicate
    );
}

/// Guards against a key that is held forever after an lmstfy server, which does not know job keys, has let its job die.
#[tokio::test]
async fn a_job_that_lmstfy_lets_die_has_no_key() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    let conn = &mut server.connection();
    for (n, ttl) in [(0, None), (1, Some(Duration::from_secs(100)))] {
        let key = format!("k{n}");
        place(&engine, keyed(NewJob { ttl, ..job(&q, id(n), "x") }, &key, OnConflict::Keep)).await;
        let view = engine.inspect_job(&name(&q, id(n))).await.expect("inspect").expect("it is there");
        assert_eq!((view.ttl.is_none(), view.key.is_some()), (ttl.is_none(), true), "{view:?}");
        // lmstfy's pump does this to a job without tries.
        let _: u64 = conn.persist(format!("j/shop/q/{}", id(n))).expect("PERSIST");
        let again = place(&engine, keyed(job(&q, id(10 + n), "x"), &key, OnConflict::Keep)).await;
        assert_eq!(again.how, How::New, "the key of a dead job is free");
    }
}

/// Guards against a job that regains its key when an lmstfy server respawns it, even if Redis 6.2 cannot tell when a
/// ttl ends.
#[tokio::test]
async fn a_job_that_lmstfy_respawns_has_no_key() {
    for args in [&[][..], &["--rename-command", "PEXPIRETIME", ""]] {
        let server = RedisServer::start_with(None, args);
        let engine = engine(&server).await;
        let q = queue("q");
        let conn = &mut server.connection();
        for n in 0..4 {
            place(&engine, keyed(job(&q, id(n), "x"), &format!("k{n}"), OnConflict::Keep)).await;
            let held = consume(&engine, &q, 1, TTR).await.expect("consumed");
            let buried = engine.bury(&name(&q, id(n)), held[0].proof(), None).await;
            assert_eq!(buried.expect("answered"), Held::Done(()));
        }
        for n in 0..4 {
            // lmstfy's respawn does this.
            let element: Vec<u8> = conn.rpop("d/shop/q", None).expect("RPOP");
            let _: u64 = conn.lpush("q/shop/q", element).expect("LPUSH");
            // Far from the old end, however long the calls took.
            let _: bool = conn.expire(format!("j/shop/q/{}", id(n)), 50).expect("EXPIRE");
        }
        assert_eq!(
            engine.inspect_by_key(&q, &JobKey::parse("k0").expect("a key")).await.expect("inspect_by_key"),
            None
        );
        let page = engine.list_jobs(&q, list(JobState::Ready, 9)).await.expect("listed").expect("no cursor");
        let shown: Vec<_> = page.jobs.into_iter().map(|view| (view.id, view.key)).collect();
        assert_eq!(shown, (0..4).map(|n| (id(n), None)).collect::<Vec<_>>(), "{args:?}: a list says so too");
        let cancelled = engine.cancel_key(&q, &JobKey::parse("k0").expect("a key")).await;
        assert!(!cancelled.expect("cancel_key"), "{args:?}: nobody has it");
        for (n, conflict) in [(1, OnConflict::Keep), (2, OnConflict::Fail), (3, OnConflict::Replace)] {
            let new = NewJob { delay: TTR, ..job(&q, id(10 + n), "x") };
            let new = place(&engine, keyed(new, &format!("k{n}"), conflict)).await;
            assert_eq!(new.how, How::New, "{args:?}, {conflict:?}: it is free");
        }
        assert_eq!(consume(&engine, &q, 9, TTR).await.expect("consumed").len(), 4, "{args:?}: all are there");
        // A job that is delivered and released keeps its key.
        let tries = NonZeroU16::new(9).expect("nine");
        place(&engine, keyed(NewJob { tries, ..job(&q, id(20), "x") }, "k", OnConflict::Keep)).await;
        let held = consume(&engine, &q, 1, TTR).await.expect("consumed");
        engine.release(&name(&q, id(20)), held[0].proof(), Release::default()).await.expect("released");
        let again = place(&engine, keyed(job(&q, id(21), "x"), "k", OnConflict::Keep)).await;
        assert_eq!((again.how, again.id), (How::Duplicate, id(20)), "{args:?}");
    }
}

/// Sets the ready list of a queue aside, as a server does that is killed after the first step of a destroy.
fn set_aside(conn: &mut Connection, queue: &str) {
    let _: () =
        conn.rename(format!("q/shop/{queue}"), format!("dormouse/dropped/shop/{queue}")).expect("RENAME");
    let _: u64 = conn.sadd("dormouse/dropped", format!("shop/{queue}")).expect("SADD");
}

/// Guards against lost publishes: reported as duplicates of jobs that a destroy is deleting, or was when its server was
/// killed.
#[tokio::test]
async fn what_a_destroy_has_set_aside_holds_no_key() {
    let server = RedisServer::start();
    let (one, two) = (engine(&server).await, engine(&server).await);
    let conn = &mut server.connection();
    let key = |n| JobKey::parse(&format!("k{n}")).expect("a key");
    for what in ["keep", "fail", "replace", "find", "find-stored", "cancel", "large"] {
        let q = queue(what);
        for n in 0..600 {
            place(&one, keyed(job(&q, id(n), "x"), &format!("k{n}"), OnConflict::Keep)).await;
        }
        // A delayed job stays, with its key.
        let later = NewJob { delay: TTR, ..job(&q, id(900), "later") };
        place(&one, keyed(later, "later", OnConflict::Keep)).await;
        set_aside(conn, what);
        let new = job(&q, id(1000), if what == "large" { vec![b'x'; 2 << 20] } else { vec![b'x'] });
        let conflict = match what {
            "fail" => OnConflict::Fail,
            "replace" => OnConflict::Replace,
            _ => OnConflict::Keep,
        };
        match what {
            "find" => assert_eq!(two.inspect_by_key(&q, &key(0)).await.expect("inspect_by_key"), None),
            "find-stored" => {
                let stored = two.inspect(&q, By::Key(&key(0)), Detail::Stored).await;
                assert_eq!(stored.expect("inspect"), None);
            }
            "cancel" => assert!(!two.cancel_key(&q, &key(0)).await.expect("cancel_key"), "nobody has it"),
            _ => {
                let placed = place(&two, keyed(new, "k0", conflict)).await;
                assert_eq!((placed.how, placed.id), (How::New, id(1000)), "{what}: it is free");
                let found = consume(&two, &q, 9, TTR).await.expect("consumed");
                assert_eq!(
                    found.iter().map(|job| job.id).collect::<Vec<_>>(),
                    [id(1000)],
                    "{what}: and stored"
                );
            }
        }
        let again = place(&two, keyed(job(&q, id(1001), "x"), "later", OnConflict::Keep)).await;
        assert_eq!(again.id, id(900), "{what}: what is not ready stays");
        assert_eq!(
            two.inspect_stored(&name(&q, id(599))).await.expect("inspect_stored"),
            None,
            "{what}: all are gone"
        );
    }
}

/// Guards against jobs that stay forever because the server that was destroying them was killed and no other is
/// started.
#[tokio::test]
async fn any_pump_finishes_what_a_destroy_has_set_aside() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("q"), &mut server.connection());
    until("the look of the start is over", async || {
        engine.pump().await.expect("pumped");
        engine.publish(vec![job(&q, id(1), "x")].into()).await.is_ok()
    })
    .await;
    for round in 0..2 {
        for part in 0..12 {
            let jobs =
                (0..50).map(|n| job(&q, id(100 + round * 1000 + part * 50 + n), "x")).collect::<Vec<_>>();
            engine.publish(jobs.into()).await.expect("published");
        }
        set_aside(conn, "q");
        until("a pump finishes it", async || {
            engine.pump().await.expect("pumped");
            keys_like(conn, "dormouse/*").is_empty()
        })
        .await;
        assert_eq!(keys_like(conn, "j/*").len(), 0, "round {round}: no job is left");
    }
}

/// Guards against an error that denies steps of a delete that were done.
#[tokio::test]
async fn what_was_done_before_the_redis_went_is_told() {
    let mut server = RedisServer::start();
    let engine = engine(&server).await;
    let (q, conn) = (queue("q"), &mut server.connection());
    let fill = "for i = 1, 100000 do local id = string.format('01HF7YAT00%016d', i) \
        redis.call('SET', 'j/shop/q/' .. id, 'x') \
        redis.call('LPUSH', 'd/shop/q', struct.pack('<HH', 1, #id) .. id) end";
    redis::cmd("EVAL").arg(fill).arg(0).exec(conn).expect("EVAL");
    let call = tokio::spawn({
        let (engine, q) = (engine.clone(), q.clone());
        async move { engine.delete_dead(&q, u64::MAX).await }
    });
    while conn.llen::<_, u64>("d/shop/q").expect("LLEN") > 99_000 {
        tokio::task::yield_now().await;
    }
    server.kill();
    let answer = call.await.expect("it does not panic");
    let Err(Error::Partly { done, why }) = answer else {
        panic!("some were deleted, and not all: {answer:?}")
    };
    // A step deletes 250 jobs, and the reply of the last step may be lost.
    assert!((750..100_000).contains(&done) && matches!(*why, Error::Away(_)), "{done}: {why}");
}

/// Guards against treating a running job as a delayed one, if lmstfy delivered it.
#[tokio::test]
async fn a_job_that_lmstfy_runs_is_not_replaced() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    let conn = &mut server.connection();
    let tries = NonZeroU16::new(3).expect("three");
    place(&engine, keyed(NewJob { tries, ..job(&q, id(0), "x") }, "k", OnConflict::Keep)).await;
    let element: Vec<u8> = conn.rpop("q/shop/q", None).expect("RPOP");
    let mut member = b"\x04\x00shop\x01\x00q".to_vec();
    member.extend(2u16.to_le_bytes());
    member.extend(&element[2..]);
    let now: (u64, u64) = redis::cmd("TIME").query(conn).expect("TIME");
    let _: u64 = conn.zadd("timer_set", member, now.0 + 600).expect("ZADD");
    let view = engine.inspect_job(&name(&q, id(0))).await.expect("inspect").expect("it is there");
    assert_eq!((view.state, view.tries_left), (Some(JobState::Running), Some(2)));
    let new = place(&engine, keyed(job(&q, id(1), "x"), "k", OnConflict::Replace)).await;
    assert_eq!(new.how, How::New, "a running job runs on");
    assert!(
        engine.inspect_job(&name(&q, id(0))).await.expect("inspect").is_some_and(|view| view.key.is_none())
    );
}

#[tokio::test]
async fn a_repeated_request_is_known_to_every_server_for_ten_minutes() {
    let server = RedisServer::start();
    let (one, two) = (engine(&server).await, engine(&server).await);
    let q = queue("q");
    let request = |n| {
        let key = IdempotencyKey::new(b"\x00 any\xffbytes").expect("short");
        let jobs = vec![Placing { job: job(&q, id(n), "x"), at: None, key: None }];
        Publication { jobs, replaces: None, once: Some(Once::request(key, *b"0123456789abcdef")) }
    };
    let Published::Done(placed) = publish(&one, request(0)).await else { panic!("it is the first") };
    assert_eq!(publish(&two, request(1)).await, Published::Replay(placed.clone()), "another server");
    one.close().await;
    two.close().await;
    let three = engine(&server).await;
    assert_eq!(publish(&three, request(2)).await, Published::Replay(placed), "after a restart");
    assert_eq!(three.ready(&q).await.expect("size"), 1, "it was published once");
    let conn = &mut server.connection();
    let records: Vec<Vec<u8>> = conn.keys("dormouse/once/*").expect("KEYS");
    assert_eq!(records, [b"dormouse/once/shop/q/\x00 any\xffbytes".to_vec()]);
    let ttl: i64 = conn.ttl(&records[0]).expect("TTL");
    assert!((590..=600).contains(&ttl), "ten minutes, not {ttl} s");
}

/// Guards against a paused queue that resumes, or a schedule that ends, because this version keeps both elsewhere.
#[tokio::test]
async fn what_an_earlier_version_has_paused_or_scheduled_is_not_ignored() {
    for (key, command) in [("dormouse/paused", "HSET"), ("dormouse/due", "ZADD"), ("dormouse/quotas", "HSET")]
    {
        let server = RedisServer::start();
        let conn = &mut server.connection();
        let _: u64 = redis::cmd(command).arg(key).arg("0").arg("shop/q").query(conn).expect("written");
        let refused = RedisEngine::connect(server.address(), &PoolName::default_pool()).await;
        let why = refused.expect_err("it is refused").to_string();
        assert!(why.contains(key), "{key}: {why}");
        let _: u64 = conn.del(key).expect("deleted");
        engine(&server).await.close().await;
    }
}

/// Guards against a list that shows a job twice or not at all because jobs on its page were respawned, and against a
/// respawn that searches a long dead letter in one step.
#[tokio::test]
async fn a_long_dead_letter_is_listed_while_its_jobs_are_respawned_by_id() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    let all: Vec<JobId> = (0..5000).map(id).collect();
    dead(&mut server.connection(), "q", all.iter().copied());
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    let mut page = 0;
    let (shown, scanned) = walk(&engine, &q, list(JobState::Dead, 20), async |ids| {
        page += 1;
        // Respawns whole pages, and ends of pages.
        let gone = if page % 3 == 0 { ids } else { &ids[ids.len() / 2..] };
        if page % 2 == 1 || page % 3 == 0 {
            let answers = engine.respawn_jobs(&q, gone, revival).await.expect("respawned");
            assert!(answers.iter().all(|answer| matches!(answer, Revived::Done { .. })), "{answers:?}");
        }
        if page == 100 {
            assert_eq!(engine.delete_dead(&q, 300).await.expect("deleted"), 300, "the oldest go");
        }
    })
    .await;
    assert_eq!(shown, all, "each once, in order");
    assert!(scanned <= 5000, "one call looked at {scanned}");
    let ready = engine.ready(&q).await.expect("size");
    let (still_dead, _) = walk(&engine, &q, list(JobState::Dead, 100), async |_| {}).await;
    assert_eq!(still_dead.len() as u64 + ready + 300, 5000, "dead, ready again, or deleted");
    let dead = engine.dead_letter(&q).await.expect("dead_letter");
    let expected = Size { jobs: still_dead.len() as u64, head: still_dead.first().copied() };
    assert_eq!(dead, expected, "nothing is left of jobs that were respawned from the middle");
}

/// Guards against work per call that grows with the dead letter, and against a reply about jobs that were not searched
/// for.
#[tokio::test]
async fn a_respawn_by_id_looks_near_the_ends_of_a_dead_letter() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    let conn = &mut server.connection();
    // Inserts elements of deleted jobs between the jobs to respawn.
    let gone = |conn: &mut Connection, count: u32| {
        let fill = "for i = 1, ARGV[1] do redis.call('LPUSH', KEYS[1], struct.pack('<HH', 1, 5) .. i) end";
        redis::cmd("EVAL").arg(fill).arg(1).arg("d/shop/q").arg(count).exec(conn).expect("EVAL");
    };
    for (n, newer) in [(0, 9_000), (1, 40_000), (2, 60_000), (3, 110_000), (4, 0)] {
        dead(conn, "q", [id(n)]);
        gone(conn, newer);
    }
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    let revive = async |ids: &[JobId]| engine.respawn_jobs(&q, ids, revival).await.expect("answered");
    engine.publish(vec![NewJob { ttl: None, ..job(&q, id(8), "x") }].into()).await.expect("published");
    let answers = revive(&[1, 4, 2, 3, 8, 9].map(id)).await;
    assert!(
        matches!(answers[..3], [Revived::Done { .. }, Revived::Done { .. }, Revived::Done { .. }]),
        "near either end, and further away: {answers:?}"
    );
    let expected = [Revived::OutOfReach, Revived::OutOfReach, Revived::NotFound];
    assert_eq!(answers[3..], expected, "too far from both ends, alive, and not there");
    let named: Vec<JobId> = std::iter::repeat_n(id(8), 20).chain([id(0)]).collect();
    let answers = revive(&named).await;
    assert!(answers[..20].iter().all(|answer| *answer == Revived::OutOfReach), "{answers:?}");
    assert!(matches!(answers[20], Revived::Done { .. }), "it is the oldest: {:?}", answers[20]);
    // If Redis stalls during a search, the pause after it must not grow with the stall.
    let stalls = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        redis::cmd("CLIENT").arg("PAUSE").arg(700).exec(conn).expect("CLIENT PAUSE");
    };
    let (many, began) = ([id(8); 10], Instant::now());
    tokio::join!(revive(&many), stalls);
    let took = began.elapsed();
    // A pause of nine times the stall, as after any other search, is 6.3 s.
    assert!(took < Duration::from_secs(6), "ten looks around a stall of 0.7 s took {took:?}");
    let _: () = conn.ltrim("d/shop/q", 0, -20_001).expect("LTRIM");
    let answers = revive(&[3, 8].map(id)).await;
    assert!(matches!(answers[..], [Revived::Done { .. }, Revived::NotDead]), "now it is near: {answers:?}");
}

/// Guards against an order by tries and id: another server's ids may be smaller within a millisecond. And against more
/// jobs at one instant than its millisecond has microseconds.
#[tokio::test]
async fn jobs_of_one_instant_come_in_publish_order_from_several_servers() {
    let server = RedisServer::start();
    let engines = [engine(&server).await, engine(&server).await];
    let q = queue("q");
    let at = engines[0].now() + 3_600_000;
    let mut expected = Vec::new();
    for n in 0..450_u64 {
        let id = JobId::from_parts(1_700_000_000_000, 1000 - n % 2 * 500 + n, 3600, false);
        let tries = NonZeroU16::new(1 + n as u16 % 3).expect("1 to 3");
        let placing = Placing { job: NewJob { tries, ..job(&q, id, "x") }, at: Some(at), key: None };
        let placed = place(&engines[n as usize % 2], placing).await;
        assert_eq!(placed.due_at, Some(at), "job {n}");
        expected.push(placed.id);
    }
    // Bulks from one server, with increasing ids.
    for bulk in 0..50 {
        let ids = (0..64).map(|n| JobId::from_parts(1_700_000_000_001 + bulk, n, 3600, false));
        expected.extend(ids.clone());
        let jobs = ids.map(|id| Placing { job: job(&q, id, "x"), at: Some(at), key: None }).collect();
        publish(&engines[0], Publication { jobs, replaces: None, once: None }).await;
    }
    let (listed, _) = walk(&engines[0], &q, list(JobState::Delayed, 100), async |_| {}).await;
    let wrong = listed.iter().zip(&expected).filter(|(a, b)| a != b).count();
    assert!(listed == expected, "{wrong} of {} are out of order", expected.len());
    let scores: Vec<(Vec<u8>, f64)> =
        server.connection().zrange_withscores("timer_set", 0, -1).expect("a sorted set");
    let (first, last) = (at as f64 / 1e3, (at + 1) as f64 / 1e3);
    assert!(
        scores.iter().all(|(_, score)| (first..last).contains(score)),
        "due in that millisecond, not from {} to {}",
        scores[0].1,
        scores[scores.len() - 1].1
    );
}

/// Guards against an instant rounded to an earlier one, and against a delayed job of a distant year that is read as
/// running: such scores are too coarse for half microseconds.
#[tokio::test]
async fn jobs_of_a_far_year_are_held_until_then() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    let mut expected = Vec::new();
    for (n, at) in
        [4_294_967_296_000, 4_503_599_627_371, 5_680_281_600_000, 6_000_000_000_001].iter().enumerate()
    {
        let placing = Placing { job: job(&q, id(n as u64), "x"), at: Some(*at), key: None };
        assert_eq!(
            place(&engine, placing).await.due_at,
            Some(*at),
            "not earlier, and not a millisecond later"
        );
        expected.push((id(n as u64), Some(*at)));
    }
    expected.sort_by_key(|(_, at)| *at);
    let page = engine.list_jobs(&q, list(JobState::Delayed, 100)).await.expect("a list").expect("no cursor");
    let listed: Vec<_> = page.jobs.iter().map(|view| (view.id, view.due_at)).collect();
    assert_eq!(listed, expected, "delayed, each until then");
    let far = Placing { job: job(&q, id(9), "x"), at: Some(u64::MAX), key: None };
    let refused = engine.publish(only(far)).await;
    assert!(refused.is_err(), "what cannot be kept is refused: {refused:?}");
}

/// Guards against a list that skips or repeats jobs because others changed it between two commands of one call.
#[tokio::test(flavor = "multi_thread")]
async fn lists_are_whole_while_others_take_jobs_between_any_two_reads() {
    for state in [JobState::Ready, JobState::Dead] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.addr()).await;
        let address = RedisAddress { addrs: vec![proxy.addr()], ..server.address() };
        let engine = RedisEngine::connect(address, &PoolName::default_pool()).await.expect("connected");
        let q = queue("q");
        let all: Vec<JobId> = (0..3000).map(id).collect();
        let mut conn = server.connection();
        match state {
            JobState::Dead => dead(&mut conn, "q", all.iter().copied()),
            _ => {
                for ids in all.chunks(50) {
                    let jobs = ids.iter().map(|id| job(&q, *id, "x"));
                    engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
                }
            }
        }
        let key = if state == JobState::Dead { "d/shop/q" } else { "q/shop/q" };
        let mut taken = 0;
        // Jobs are removed at the head, and sometimes a few return there.
        proxy.before("LRANGE", move || {
            if taken < 1500 {
                taken += 7;
                let some: Vec<Vec<u8>> = conn.rpop(key, NonZeroUsize::new(7)).expect("RPOP");
                if taken % 3 == 0 && state == JobState::Ready {
                    taken -= 2;
                    let _: u64 = conn.rpush(key, &[&some[6], &some[5]]).expect("RPUSH");
                }
            }
        });
        let (shown, _) = walk(&engine, &q, list(state, 20), async |_| {}).await;
        let stayed: Vec<JobId> = shown.into_iter().filter(|id| all[1507..].contains(id)).collect();
        let missed = all[1507..].iter().filter(|id| !stayed.contains(id)).count();
        assert!(stayed == all[1507..], "{state:?}: of 1,493 {missed} are missed, {} are shown", stayed.len());
    }
}

/// Guards against a list that skips the jobs before one that has moved to the end.
#[tokio::test]
async fn a_list_does_not_follow_a_job_that_comes_back_at_the_end() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    let all: Vec<JobId> = (0..100).map(id).collect();
    for ids in all.chunks(50) {
        let jobs = ids.iter().map(|id| NewJob { tries: NonZeroU16::MAX, ..job(&q, *id, "x") });
        engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    }
    let mut first = true;
    let (shown, _) = walk(&engine, &q, list(JobState::Ready, 20), async |_| {
        if std::mem::take(&mut first) {
            // Lets their ttr end, so that all jobs known to the cursor move to the end.
            consume(&engine, &q, 30, Duration::from_millis(1)).await.expect("consumed");
            until("they are back", async || {
                engine.pump().await.expect("pumped");
                engine.ready(&q).await.expect("size") == 100
            })
            .await;
        }
    })
    .await;
    let stayed: Vec<JobId> = shown.into_iter().filter(|id| all[30..].contains(id)).collect();
    assert_eq!(stayed, all[30..], "each that was ready all the while, once");
}

/// Guards against reads that no limit bounds and that block Redis for milliseconds: a page of timers that belong to
/// other queues, and a job whose position is unknown.
#[tokio::test]
async fn looks_cost_the_redis_little() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let conn = &mut server.connection();
    let (q, other) = (queue("q"), queue("other"));
    for ids in (0..9600).map(id).collect::<Vec<_>>().chunks(64) {
        let jobs = ids.iter().map(|id| NewJob { delay: Duration::from_secs(50), ..job(&other, *id, "x") });
        engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    }
    // The first call loads the script.
    walk(&engine, &queue("r"), list(JobState::Delayed, 20), async |_| {}).await;
    // The background calls scripts too: to count all timers at the start, and to record their numbers each second.
    until("the timers are counted, and their numbers recorded", async || {
        let page = engine.list_queues(&q.namespace, None, 10).await.expect("listed");
        let recorded: Option<u64> = conn.hget("dormouse/timers", "d/shop/other").expect("HGET");
        page.queues.iter().all(|view| view.estimated == Estimated::default()) && recorded == Some(9600)
    })
    .await;
    calls_of(conn, "evalsha");
    let page = engine.list_jobs(&q, list(JobState::Delayed, 20)).await.expect("a list").expect("no cursor");
    assert_eq!((page.jobs.len(), page.scanned), (0, 0), "none of its own");
    assert!(page.cursor.is_some(), "and more to look through");
    let pieces = calls_of(conn, "evalsha");
    assert!(pieces <= 4, "2,000 timers of others in pieces of 500, but {pieces} were read");
    let (shown, _) = walk(&engine, &other, list(JobState::Delayed, 100), async |_| {}).await;
    assert_eq!(shown.len(), 9600, "all come in the end");

    for ids in (10_000..12_000).map(id).collect::<Vec<_>>().chunks(50) {
        engine
            .publish(ids.iter().map(|id| job(&q, *id, "x")).collect::<Vec<_>>().into())
            .await
            .expect("published");
    }
    for (n, what) in [(10_001, "at the head"), (11_999, "at the end"), (10_900, "far from both")] {
        calls_of(conn, "lrange");
        let view = engine.inspect_job(&name(&q, id(n))).await.expect("inspect").expect("it is there");
        assert_eq!((view.state, view.tries_left), (Some(JobState::Ready), Some(1)), "{what}");
        assert_eq!(calls_of(conn, "lrange"), 0, "{what}: a list was read in place of being searched");
    }
}

/// Guards against a list of timers that skips or repeats jobs: lmstfy gives thousands the same score, and the timer
/// where the list stopped may be deleted.
#[tokio::test]
async fn timers_of_one_second_are_listed_once() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let conn = &mut server.connection();
    let mut all = redis::pipe();
    for name in ["p", "q", "qq"] {
        for n in 0..3000u64 {
            // In the order of their members.
            let id = JobId::from_parts(1_700_000_000_000, n, 9_000_000, false).to_string();
            let mut member = b"\x04\x00shop".to_vec();
            member.extend((name.len() as u16).to_le_bytes());
            member.extend(name.as_bytes());
            member.extend([1, 0, id.len() as u8, 0]);
            member.extend(id.as_bytes());
            all.zadd("timer_set", member, 1_709_000_000u64).ignore();
            all.set(format!("j/shop/{name}/{id}"), "x").ignore();
        }
    }
    let _: () = all.query(conn).expect("written");
    let q = queue("q");
    let mut gone = Vec::new();
    let (shown, scanned) = walk(&engine, &q, list(JobState::Delayed, 7), async |ids| {
        // Deletes the timer at the cursor.
        if let Some(last) = ids.last().filter(|_| gone.len() < 200) {
            gone.push(*last);
            let mut member = b"\x04\x00shop\x01\x00q\x01\x00\x1a\x00".to_vec();
            member.extend(last.to_string().as_bytes());
            let removed: u64 = server.connection().zrem("timer_set", member).expect("ZREM");
            assert_eq!(removed, 1, "its timer");
        }
    })
    .await;
    let ids: Vec<JobId> =
        (0..3000).map(|n| JobId::from_parts(1_700_000_000_000, n, 9_000_000, false)).collect();
    assert_eq!(shown, ids, "each once");
    assert!(scanned <= 5000, "one call looked at {scanned}");
    let (running, _) = walk(&engine, &q, list(JobState::Running, 100), async |_| {}).await;
    assert_eq!(running, [], "their ids say that they are delayed");
}

/// Guards against a call that is half executed on a full Redis, and against workers that cannot return jobs there.
#[tokio::test]
async fn a_full_redis_refuses_keys_as_a_whole_and_lets_holders_go_on() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    for n in 0..3 {
        let job = NewJob { tries: NonZeroU16::MAX, ..job(&q, id(n), "x") };
        place(&engine, keyed(job, &format!("k{n}"), OnConflict::Keep)).await;
    }
    let held = consume(&engine, &q, 3, TTR).await.expect("consumed");
    let conn = &mut server.connection();
    let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(conn).expect("CONFIG SET");
    let before = keys_like(conn, "*");
    for conflict in [OnConflict::Keep, OnConflict::Replace] {
        let jobs =
            vec![keyed(job(&q, id(10), "x"), "new", conflict), keyed(job(&q, id(11), "x"), "k0", conflict)];
        let full = engine.publish(Publication { jobs, replaces: None, once: None }).await;
        assert!(full.is_err(), "there is no room: {full:?}");
    }
    assert_eq!(keys_like(conn, "*"), before, "nothing has changed");
    let touched = engine.touch(&name(&q, held[0].id), held[0].proof(), TTR).await;
    assert!(matches!(touched, Ok(Held::Done(_))), "{touched:?}");
    let delay = Duration::from_secs(9);
    let release = Release { delay, reason: Reason::new("full"), ..Release::default() };
    let released = engine.release(&name(&q, held[1].id), held[1].proof(), release).await;
    assert!(matches!(released, Ok(Held::Done(_))), "{released:?}");
    let buried = engine.bury(&name(&q, held[2].id), held[2].proof(), Reason::new("full")).await;
    assert!(matches!(buried, Ok(Held::Done(()))), "{buried:?}");
}

/// Guards against a large call that is executed partially, and against values left behind by a call that published
/// nothing.
#[tokio::test]
async fn a_large_call_with_keys_goes_through_and_a_refused_one_leaves_nothing() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    let q = queue("q");
    let body = vec![b'x'; 300_000];
    let jobs = |from: u64, conflict| -> Publication {
        let jobs = (0..12).map(|n| keyed(job(&q, id(from + n), body.clone()), &format!("k{n}"), conflict));
        Publication { jobs: jobs.collect(), replaces: None, once: None }
    };
    let done = publish(&engine, jobs(0, OnConflict::Fail)).await;
    assert!(matches!(&done, Published::Done(placed) if placed.len() == 12), "{done:?}");
    let conn = &mut server.connection();
    let before = keys_like(conn, "j/*");
    let conflict = publish(&engine, jobs(100, OnConflict::Fail)).await;
    assert_eq!(conflict, Published::Conflict { index: 0, id: id(0) });
    let kept = publish(&engine, jobs(200, OnConflict::Keep)).await;
    assert!(matches!(&kept, Published::Done(placed) if placed.iter().all(|p| p.how == How::Duplicate)));
    assert_eq!(keys_like(conn, "j/*"), before, "no value is left of what was not stored");
    let got = consume(&engine, &q, 100, TTR).await.expect("consumed");
    assert_eq!(got.iter().map(|job| job.body.len()).collect::<Vec<_>>(), [300_000; 12]);
}

/// Guards against a list without queues that only lmstfy has published to, or with deleted queues.
#[tokio::test]
async fn queues_that_others_made_are_listed() {
    let server = RedisServer::start();
    let engine: Arc<dyn Engine> = engine(&server).await;
    let conn = &mut server.connection();
    let namespace = queue("x").namespace;
    let names: Vec<String> = (0..1500).map(|n| format!("q{n:04}")).collect();
    let write = |conn: &mut Connection, names: &[String]| {
        let mut all = redis::pipe();
        for name in names {
            all.hset("m/ns/shop", name, 1).ignore();
        }
        let _: () = all.query(conn).expect("written");
    };
    write(conn, &names[..1000]);
    let all = async || {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let page = engine.list_queues(&namespace, after.as_ref(), 70).await.expect("listed");
            names.extend(page.queues.into_iter().map(|view| view.queue.name.to_string()));
            after = page.next;
            if after.is_none() {
                return names;
            }
        }
    };
    assert_eq!(all().await, names[..1000], "in the order of their names");
    write(conn, &names[1000..]);
    engine.publish(vec![job(&queue("a"), id(1), "x")].into()).await.expect("published");
    let _: u64 = conn.hdel("m/ns/shop", "q0000").expect("HDEL");
    let expected: Vec<String> = ["a".to_owned()].into_iter().chain(names[1..].iter().cloned()).collect();
    assert_eq!(all().await, expected, "what is new, and not what is gone");
}

/// Returns how often a command was called.
fn served(conn: &mut Connection, command: &str) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(conn).expect("INFO");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number"))
}

/// Guards against concurrent copies of a long hash, one per caller that disconnects and retries.
#[tokio::test]
async fn callers_who_leave_early_start_one_copy_and_a_long_namespace_is_listed_whole() {
    const CALLERS: u64 = 30;
    let server = RedisServer::start();
    let engine: Arc<dyn Engine> = engine(&server).await;
    let conn = &mut server.connection();
    let namespace = queue("x").namespace;
    let names: Vec<String> = (0..30_000).map(|n| format!("q{n:05}")).collect();
    for names in names.chunks(5000) {
        let fields: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let _: () = conn.hset_multiple("m/ns/shop", &fields).expect("written");
    }
    let (mut steps, mut cursor) = (0, 0);
    loop {
        let step = redis::cmd("HSCAN").arg("m/ns/shop").arg(cursor).arg("COUNT").arg(500).query(conn);
        let (next, _): (u64, Vec<String>) = step.expect("HSCAN");
        steps += 1;
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    let before = (served(conn, "hscan"), served(conn, "hlen"));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (engine, namespace) = (engine.clone(), namespace.clone());
            tokio::spawn(async move { engine.list_queues(&namespace, None, 100).await })
        })
        .collect();
    until("all callers have begun", async || served(conn, "hlen") >= before.1 + CALLERS).await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = engine.list_queues(&namespace, after.as_ref(), 100).await.expect("listed");
        listed.extend(page.queues.into_iter().map(|view| view.queue.name.to_string()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(listed.len(), names.len());
    assert!(listed == names, "each once, in the order of their names");
    engine.close().await;
    let made = served(conn, "hscan") - before.0;
    assert!(made <= 2 * steps, "{made} steps were made, where a copy takes {steps}");
}
