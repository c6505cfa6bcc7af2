//! Effects on callers of a Redis for tokens and limits that is distant, hangs, or contains very many limits.

use std::time::{Duration, Instant};

use crate::common::until_status;
use crate::slow_proxy::SlowProxy;
use crate::support::client::{Response, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::TestServer;

/// Longer than a token's cached record is valid.
const STALE: Duration = Duration::from_millis(1100);
/// Shorter than the timeout of calls to a Redis.
const SHORT: Duration = Duration::from_secs(4);

/// Starts a server whose jobs are on a Redis, and whose tokens are behind a proxy to it.
async fn behind_proxy(redis: &RedisServer, round_trip: Duration) -> (TestServer, SlowProxy) {
    let proxy = SlowProxy::start(redis.addr(), round_trip).await;
    let toml = format!("[Pool.default]\n{}[AdminRedis]\nAddr = {:?}\n", redis.keys(), proxy.addr());
    (TestServer::start(&toml, ()).await, proxy)
}

async fn timed(answer: impl Future<Output = Response>) -> (Response, Duration) {
    let began = Instant::now();
    let answer = answer.await;
    (answer, began.elapsed())
}

/// Guards against one token check at a time: guesses at tokens would delay all requests, here by four seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_at_a_distant_store_do_not_delay_a_publish() {
    let redis = RedisServer::start();
    let (server, _proxy) = behind_proxy(&redis, Duration::from_millis(100)).await;
    for round in 0..5 {
        // It is not cached yet, so the server must ask about it.
        let token = server.token("ns").await;
        let guess = |n: usize| {
            let request = server.api("GET", "/api/ns/q", &format!("guess-{round}-{n}"));
            tokio::spawn(async move { send(request).await.expect(401) })
        };
        let guesses: Vec<_> = (0..40).map(guess).collect();
        tokio::time::sleep(Duration::from_millis(20)).await; // most guesses are in flight by then
        let (answer, took) = timed(server.put(&token, "/api/ns/q", "x")).await;
        answer.expect(201);
        assert!(took < Duration::from_secs(2), "publish {round}, beside 40 guesses, took {took:?}");
        for guess in guesses {
            guess.await.expect("each guess is refused");
        }
    }
}

/// Guards against a hanging store that delays requests with recently accepted tokens by its timeout of five seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_hangs_delays_good_tokens_by_a_moment() {
    let redis = RedisServer::start();
    let (server, proxy) = behind_proxy(&redis, Duration::ZERO).await;
    let (free, limited) = (server.token("ns").await, server.token("ns").await);
    server.limit(&limited, r#"{"read":100,"write":100,"interval":600}"#).await;
    for token in [&free, &limited] {
        server.put(token, "/api/ns/q", "x").await.expect(201);
    }
    tokio::time::sleep(STALE).await;
    proxy.hang(true);
    for n in 0..3 {
        let (answer, took) = timed(server.put(&free, "/api/ns/q", "x")).await;
        assert_eq!(answer.status, 201, "publish {n} while the store hangs: {answer:?}");
        assert!(took < SHORT, "publish {n} while the store hangs took {took:?}");
    }
    let (answer, took) = timed(server.put(&limited, "/api/ns/q", "x")).await;
    assert_eq!(answer.status, 500, "what cannot be counted is not let in: {answer:?}");
    assert!(took < SHORT, "the refusal took {took:?}");
    proxy.hang(false);
    until_status(201, async || server.put(&limited, "/api/ns/q", "x").await).await;
    send(server.admin("DELETE", &format!("/token/ns/{free}"))).await.expect(204);
    server.put(&free, "/api/ns/q", "x").await.expect(401);
}

/// Guards against a server that reads all limits of the fleet each second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limits_of_others_cost_nothing() {
    let redis = RedisServer::start();
    let mut conn = redis.connection();
    let limit = r#"{"read":1,"write":1,"interval":600}"#;
    let limits: Vec<(String, &str)> = (0..5000).map(|n| (format!("default/ns/idle-{n}"), limit)).collect();
    let _: () = redis::Commands::hset_multiple(&mut conn, "__throttler_keys__", &limits).expect("HSET");
    let server = TestServer::start(&crate::support::servers::redis_toml(&redis), ()).await;
    let token = server.token("ns").await;
    // Returns the number of steps in which whole tables were read: paused and pushed queues at the start, and paused
    // queues with each sample.
    let steps = |redis: &mut redis::Connection| {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(redis).expect("INFO");
        assert!(!stats.contains("cmdstat_hgetall:"), "in steps: {stats}");
        let scans = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hscan:calls="));
        let calls = scans.and_then(|rest| rest.split(',').next()).map(str::parse::<u64>);
        calls.map_or(0, |calls| calls.expect("a number"))
    };
    let begun = Instant::now();
    while steps(&mut conn) < 2 && begun.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = steps(&mut conn);
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        server.put(&token, "/api/ns/q", "x").await.expect(201);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let quiet = steps(&mut conn) - before;
    // On request all are listed, in steps.
    let all = send(server.admin("GET", "/limits")).await.expect(200);
    assert_eq!(all.json.as_array().map(Vec::len), Some(5000), "each limit once");
    let listed = steps(&mut conn) - before - quiet;
    assert!(quiet <= 2 && listed > 4, "{quiet} steps beside publishes; all limits take {listed}");
    // A limit written by lmstfy, without a notification, is seen.
    let _: u64 = redis::Commands::hset(&mut conn, "__throttler_keys__", format!("default/ns/{token}"), limit)
        .expect("HSET");
    until_status(429, async || server.put(&token, "/api/ns/q", "x").await).await;
}
