//! Connections and calls in flight when the Sentinels name another master. The Sentinels are fakes, the Redis servers
//! real. tests/process/sentinel_failover.rs uses real Sentinels.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{calls_of, id, job, queue, within};
use crate::fake_sentinel::FakeSentinel;
use crate::proxy::{Answers, Proxy};
use crate::support::engine_ext::EngineExt;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;
use dormouse::admin::AdminStore;
use dormouse::admin::redis::RedisAdmin;
use dormouse::engine::Engine;
use dormouse::engine::redis::{RedisAddress, RedisEngine};
use dormouse::error::Error;
use dormouse::name::PoolName;
use dormouse::outage::Outage;
use dormouse::process::tasks::{Failure, Tasks};
use redis::Commands;

/// Returns the address of the master for an engine that uses these Sentinels.
fn through(sentinels: &[&FakeSentinel]) -> RedisAddress {
    RedisAddress {
        addrs: sentinels.iter().map(|sentinel| sentinel.addr.to_string()).collect(),
        master_name: Some("dorm".into()),
        ..RedisAddress::default()
    }
}

async fn connect(address: RedisAddress) -> Arc<RedisEngine> {
    let pool = PoolName::default_pool();
    within("connected", RedisEngine::connect(address, &pool)).await.expect("the Sentinels name a master")
}

/// Returns the number of clients of a Redis, except `conn`.
fn clients(conn: &mut redis::Connection) -> usize {
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(conn).expect("CLIENT LIST");
    clients.lines().count() - 1
}

/// Returns two unrelated Redis servers: the old master keeps accepting all writes.
fn two() -> (RedisServer, RedisServer) {
    (RedisServer::start(), RedisServer::start())
}

/// Waits until all connections of an engine can be used.
async fn is_well(engine: &RedisEngine) {
    until("the engine is well", async || engine.check().await.is_ok()).await;
}

/// After a failover that leaves the old master alive, no connection to it must remain.
#[tokio::test]
async fn every_connection_leaves_a_master_that_lives_on() {
    let (old, new) = two();
    let sentinel = FakeSentinel::start(&old.addr(), false).await;
    let engine = connect(through(&[&sentinel])).await;
    let (outage, tasks) = (Outage::new("the tokens of a test"), Tasks::new(Failure::default()));
    let address = through(&[&sentinel]);
    let admin =
        within("connected", RedisAdmin::connect(&address, "", outage, &tasks)).await.expect("a master");
    engine.publish(vec![job(&queue("orders"), id(1), "x")].into()).await.expect("published");
    let (on_old, on_new) = (&mut old.connection(), &mut new.connection());
    // At least two for publishes, and one each for consumes, calls that end deliveries, the watch, and tokens.
    let before = clients(on_old);
    assert!(before >= 6, "{before} connections to the master");
    let mut fastest = Duration::MAX;
    for (n, to_new) in [true, false, true, false, true].into_iter().enumerate() {
        let began = Instant::now();
        sentinel.name(&(if to_new { &new } else { &old }).addr());
        sentinel.event("+switch-master", "dorm 127.0.0.1 1 127.0.0.1 2");
        until(
            "all connections left the old master, and those that are kept are on the new one",
            async || {
                let (on_old, on_new) = (clients(on_old), clients(on_new));
                let (left, joined) = if to_new { (on_old, on_new) } else { (on_new, on_old) };
                left == 0 && joined >= 5
            },
        )
        .await;
        if n > 0 {
            fastest = fastest.min(began.elapsed());
        }
    }
    // Without events each change after the first would be noticed a second after the previous one, by the next query.
    assert!(
        fastest < Duration::from_millis(600),
        "events were heard, but no change took less than {fastest:?}"
    );
    is_well(&engine).await;
    engine.publish(vec![job(&queue("orders"), id(2), "x")].into()).await.expect("published");
    assert_eq!(on_new.llen("q/shop/orders"), Ok(1_u64), "publishes go to the new master");
    until("tokens are asked for there too", async || admin.check().await.is_ok()).await;
    assert_eq!(clients(on_old), 0, "nobody came back");
}

/// Without this, calls to an old master that hangs would wait five seconds; and it may still execute them.
#[tokio::test]
async fn a_call_under_way_to_the_old_master_fails_at_once_and_is_not_sent_again() {
    let (old, new) = two();
    let proxy = Proxy::start(old.addr()).await;
    let sentinel = FakeSentinel::start(&proxy.addr(), false).await;
    let (engine, q) = (connect(through(&[&sentinel])).await, queue("orders"));
    engine.publish(vec![job(&q, id(1), "x")].into()).await.expect("published");
    is_well(&engine).await;
    // Loads the script.
    crate::common::consume(&engine, &queue("empty"), 1, crate::common::TTR).await.expect("consumed");
    // No replies, as if it hung, but the test can check which calls have arrived.
    proxy.set_answers(Answers::Hold);
    let on_old = &mut old.connection();
    calls_of(on_old, "llen");
    let began = Instant::now();
    let calls: Vec<_> = (2..6)
        .map(|n| {
            let (engine, q) = (engine.clone(), q.clone());
            tokio::spawn(async move {
                match n {
                    2 | 3 => engine.publish(vec![job(&q, id(n), "x")].into()).await.map(drop),
                    4 => crate::common::consume(&engine, &q, 1, crate::common::TTR).await.map(drop),
                    _ => engine.ready(&q).await.map(drop),
                }
            })
        })
        .collect();
    // A call that is not sent yet would go to the new master.
    let (mut published, mut consumed, mut asked) = (0, 0, 0);
    until("all calls have been sent", async || {
        published = on_old.keys::<_, Vec<String>>("j/shop/orders/*").expect("KEYS").len();
        consumed = on_old.zcard("timer_set").expect("ZCARD");
        asked += calls_of(on_old, "llen");
        (published, consumed) == (3, 1_u64) && asked > 0
    })
    .await;
    sentinel.name(&new.addr());
    sentinel.event("+switch-master", "dorm 127.0.0.1 1 127.0.0.1 2");
    for call in calls {
        let outcome = within("a call is answered", call).await.expect("no panic");
        assert!(matches!(outcome, Err(Error::Away(_))), "Away was expected, came {outcome:?}");
    }
    let took = began.elapsed();
    assert!(took < Duration::from_millis(4500), "at once, and not after a time-out of 5 s: {took:?}");
    is_well(&engine).await;
    within("published", engine.publish(vec![job(&q, id(9), "x")].into())).await.expect("to the new master");
    let there: Vec<String> = new.connection().keys("j/shop/orders/*").expect("KEYS");
    assert_eq!(there.len(), 1, "only what was published since: {there:?}");
}

/// The Sentinel that leads a failover announces it before it promotes a replica. From then on no call is sent to the
/// old master: calls wait for the new one.
#[tokio::test]
async fn a_call_waits_while_a_replica_is_promoted() {
    let (old, new) = two();
    let sentinel = FakeSentinel::start(&old.addr(), false).await;
    let (engine, q) = (connect(through(&[&sentinel])).await, queue("orders"));
    let addr = old.addr().replace(':', " ");
    let event = format!("slave {0} {1} @ dorm {addr}", new.addr(), new.addr().replace(':', " "));
    sentinel.event("+failover-state-send-slaveof-noone", &event);
    let on_old = &mut old.connection();
    until("all connections left the old master", async || clients(on_old) == 0).await;
    let publish = tokio::spawn({
        let (engine, q) = (engine.clone(), q.clone());
        async move { engine.publish(vec![job(&q, id(1), "x")].into()).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!publish.is_finished(), "there is no master at the moment");
    sentinel.name(&new.addr());
    sentinel.event("+promoted-slave", &event);
    within("the publish is answered", publish).await.expect("no panic").expect("published");
    assert_eq!(new.connection().llen("q/shop/orders"), Ok(1_u64), "to the new master");
    assert_eq!(on_old.exists("q/shop/orders"), Ok(false), "and not to the old one");
}

/// Not every Sentinel sends events, and an event may be lost.
#[tokio::test]
async fn a_sentinel_that_sends_no_events_is_asked_every_second() {
    let (old, new) = two();
    let sentinel = FakeSentinel::start(&old.addr(), true).await;
    let engine = connect(through(&[&sentinel])).await;
    sentinel.name(&new.addr());
    let on_old = &mut old.connection();
    until("all connections left the old master", async || clients(on_old) == 0).await;
    is_well(&engine).await;
    engine.publish(vec![job(&queue("orders"), id(1), "x")].into()).await.expect("published");
    assert_eq!(new.connection().llen("q/shop/orders"), Ok(1_u64), "to the new master");
}

/// Sentinels may lag behind.
#[tokio::test]
async fn a_replica_is_not_used_though_a_sentinel_names_it() {
    let (old, new) = two();
    let sentinel = FakeSentinel::start(&old.addr(), false).await;
    let (engine, q) = (connect(through(&[&sentinel])).await, queue("orders"));
    let conn = &mut new.connection();
    let (host, port) = ("127.0.0.1", old.addr().rsplit_once(':').expect("host:port").1.to_owned());
    redis::cmd("REPLICAOF").arg(host).arg(port).exec(conn).expect("REPLICAOF");
    sentinel.name(&new.addr());
    sentinel.event("+switch-master", "dorm 127.0.0.1 1 127.0.0.1 2");
    let refused = until_err(&engine, &q).await;
    assert!(refused.contains("it is a replica"), "the reason should be told: {refused}");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(conn).expect("REPLICAOF");
    until("it is used", async || engine.publish(vec![job(&q, id(2), "x")].into()).await.is_ok()).await;
    assert_eq!(conn.exists("q/shop/orders"), Ok(true), "the new master has it");
}

/// Publishes until a publish fails, and returns the error.
async fn until_err(engine: &RedisEngine, q: &dormouse::name::Queue) -> String {
    within("a publish fails", async {
        for n in 100.. {
            if let Err(e) = engine.publish(vec![job(q, id(n), "x")].into()).await
                && e.to_string().contains("replica")
            {
                return e.to_string();
            }
        }
        unreachable!("there is always another number")
    })
    .await
}

/// A Sentinel that is partitioned from the others still names the old master. The highest epoch wins.
#[tokio::test]
async fn a_sentinel_that_is_cut_off_is_not_believed() {
    let (old, new) = two();
    let (cut_off, heard) =
        (FakeSentinel::start(&old.addr(), false).await, FakeSentinel::start(&old.addr(), false).await);
    heard.name(&new.addr());
    let engine = connect(through(&[&cut_off, &heard])).await;
    let on_old = &mut old.connection();
    until("nobody is at the old master", async || clients(on_old) == 0).await;
    is_well(&engine).await;
    cut_off.event("+switch-master", "dorm 127.0.0.1 1 127.0.0.1 2");
    // Time for a query, which nothing reports: the Sentinel replies as before.
    tokio::time::sleep(Duration::from_millis(200)).await;
    engine.publish(vec![job(&queue("orders"), id(1), "x")].into()).await.expect("published");
    assert_eq!(new.connection().llen("q/shop/orders"), Ok(1_u64), "to the new master");
    assert_eq!(clients(on_old), 0, "nobody is at the old one");
}
