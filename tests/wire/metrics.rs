//! Contents of a scrape, on each store, while a store is unavailable, and while one hangs.

use std::time::{Duration, Instant};

use crate::common::raw;
use crate::support::client::{Response, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::{TIMEOUT, until};

/// The text of a scrape.
pub struct Scrape(String);

impl Scrape {
    pub async fn of(server: &TestServer) -> Scrape {
        Scrape(send(server.admin("GET", "/metrics")).await.expect(200).text)
    }

    /// Scrapes until series have these values: a store counts as unavailable if it does not reply within a second.
    async fn with(server: &TestServer, expected: &[(&str, f64)]) -> Scrape {
        let began = Instant::now();
        loop {
            let scrape = Scrape::of(server).await;
            if expected.iter().all(|(series, value)| scrape.value(series) == Some(*value)) {
                return scrape;
            }
            if began.elapsed() > TIMEOUT {
                scrape.says(expected);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns the value of a series, in Prometheus's format.
    pub fn value(&self, series: &str) -> Option<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    /// Checks the values of series.
    #[track_caller]
    pub fn says(&self, expected: &[(&str, f64)]) {
        for (series, value) in expected {
            assert_eq!(self.value(series), Some(*value), "{series} in:\n{}", self.0);
        }
    }

    /// Returns the series of a family.
    pub fn family(&self, name: &str) -> Vec<&str> {
        let of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        self.0.lines().filter(of).collect()
    }
}

/// Guards against an `increase` that misses the first event because its series started with it.
async fn series_are_born_with_nothing(store: Store) {
    let on_disk = matches!(store, Store::Disk(_));
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let scrape = Scrape::with(&server, &[("dormouse_ready", 1.0)]).await;
    scrape.says(&[
        ("dormouse_ready", 1.0),
        ("dormouse_tokens_up", 1.0),
        (r#"dormouse_pool_up{pool="default"}"#, 1.0),
        (r#"dormouse_timer_overdue_seconds{pool="default"}"#, 0.0),
        ("dormouse_parked_polls", 0.0),
        ("dormouse_parked_polls_limit", 100_000.0),
        (r#"dormouse_connections_limit{port="admin"}"#, 1024.0),
        (r#"dormouse_accept_failures_total{port="public"}"#, 0.0),
        (r#"dormouse_accept_failures_total{port="admin"}"#, 0.0),
        (r#"dormouse_bad_requests_total{port="public"}"#, 0.0),
        (r#"dormouse_given_back_jobs_total{pool="default"}"#, 0.0),
        (r#"dormouse_store_seconds_count{operation="release",pool="default"}"#, 0.0),
        (r#"dormouse_batch_jobs_count{operation="publish",pool="default"}"#, 0.0),
        (r#"infra_lmstfy_redis_qps{command="consume",node="default",status="error"}"#, 0.0),
    ]);
    assert!(scrape.value(r#"dormouse_connections{port="admin"}"#) >= Some(1.0), "this is one");
    assert_eq!(scrape.family("dormouse_build_info").len(), 1, "what runs");
    for name in ["process_start_time_seconds", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(scrape.value(name) > Some(0.0), "{name}");
    }
    let of_disk = [
        r#"dormouse_expired_jobs_total{pool="default"}"#,
        r#"dormouse_disk_min_free_bytes{pool="default"}"#,
        r#"dormouse_store_seconds_count{operation="sync",pool="default"}"#,
    ];
    for series in of_disk {
        assert_eq!(scrape.value(series).is_some(), on_disk, "{series} is of a disk");
    }
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    Scrape::of(&server).await.says(&[
        (r#"infra_lmstfy_redis_publish_queue_jobs{namespace="ns",pool="default",queue="q"}"#, 1.0),
        (r#"infra_lmstfy_redis_consume_queue_jobs{namespace="ns",pool="default",queue="q"}"#, 0.0),
        (r#"dormouse_dead_jobs_total{namespace="ns",pool="default",queue="q"}"#, 0.0),
        (r#"dormouse_redelivered_jobs_total{namespace="ns",pool="default",queue="q"}"#, 0.0),
        (r#"dormouse_released_jobs_total{namespace="ns",pool="default",queue="q"}"#, 0.0),
        (r#"dormouse_lateness_seconds_count{namespace="ns",pool="default",queue="q"}"#, 0.0),
    ]);
}

/// Guards against graphs that do not show a job that fails, is redelivered or dies.
async fn the_life_of_jobs_is_to_be_seen(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let of = |name: &str| format!(r#"dormouse_{name}{{namespace="ns",pool="default",queue="q"}}"#);
    let take = async |path: &str| send(server.api("GET", path, &token)).await.expect(200);
    let held = async |job: &Response, what: &str| {
        let receipt = job.json["receipt"].as_str().expect("a receipt");
        let join = if what.contains('?') { '&' } else { '?' };
        let path = format!("/api/ns/q/job/{}/{what}{join}receipt={receipt}", job.job_id());
        send(server.api("POST", &path, &token)).await.expect(200);
    };
    let began = Instant::now();
    server.put(&token, "/api/ns/q?tries=9", "x").await.expect(201);
    server.put(&token, "/api/ns/q?delay=600", "x").await.expect(201);
    for what in ["release", "bury"] {
        held(&take("/api/ns/q?ttr=600&receipt=1").await, what).await;
    }
    server.put(&token, "/api/ns/q?tries=2", "x").await.expect(201);
    let job = take("/api/ns/q?ttr=600&receipt=1").await;
    let took = began.elapsed().as_secs_f64();
    server.sampled().await;
    let running = Scrape::of(&server).await;
    running.says(&[
        (r#"dormouse_queue_jobs{namespace="ns",pool="default",queue="q",state="delayed"}"#, 1.0),
        (r#"dormouse_queue_jobs{namespace="ns",pool="default",queue="q",state="running"}"#, 1.0),
    ]);
    held(&job, "touch?ttr=0.1").await;
    // What the store does by itself is counted a moment later.
    Scrape::with(&server, &[(&of("redelivered_jobs_total"), 1.0)]).await;
    until("one is ready for some time", async || {
        server.sampled().await;
        Scrape::of(&server).await.value(&of("oldest_ready_seconds")) > Some(0.0)
    })
    .await;
    let back = Scrape::of(&server).await;
    back.says(&[(&of("redelivered_jobs_total"), 1.0), (&of("released_jobs_total"), 1.0)]);
    back.says(&[(&of("dead_jobs_total"), 1.0), (&of("lateness_seconds_count"), 3.0)]);
    // All three were handed out as soon as they were due. The store's clock has milliseconds.
    let late = back.value(&of("lateness_seconds_sum")).expect("it is there");
    assert!(late <= took + 0.003, "jobs of the last {took} s were late by {late} s");
    let bucket = r#"dormouse_lateness_seconds_bucket{namespace="ns",pool="default",queue="q",le="0.5"}"#;
    assert!(took > 0.5 || back.value(bucket) == Some(3.0), "{took} s: {:?}", back.value(bucket));
    take("/api/ns/q?ttr=1").await;
    Scrape::with(&server, &[(&of("dead_jobs_total"), 2.0)]).await;
    assert_eq!(server.size("/api/ns/q/deadletter").await, 2, "it had no tries left");
    send(server.api("POST", "/api/ns/q/pause", &token)).await.expect(200);
    server.sampled().await;
    let dead = Scrape::of(&server).await;
    dead.says(&[
        (&of("dead_jobs_total"), 2.0),
        (&of("queue_paused"), 1.0),
        (&of("oldest_ready_seconds"), 0.0),
    ]);
    send(server.api("POST", "/api/ns/q/resume", &token)).await.expect(200);
    server.sampled().await;
    assert_eq!(Scrape::of(&server).await.family("dormouse_queue_paused"), [""; 0], "no queue is paused");
}

on_each_store!(series_are_born_with_nothing, the_life_of_jobs_is_to_be_seen);

/// Guards against reading the store for each of many scrapes, and against statistics that do not change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reading_that_is_younger_than_five_seconds_is_shared() {
    const YOUNG: Duration = Duration::from_secs(5);
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let of = |name: &str| format!(r#"infra_lmstfy_redis_{name}{{namespace="ns",pool="default",queue="q"}}"#);
    let (size, published) = (of("queue_sizes"), of("publish_queue_jobs"));
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    Scrape::of(&server).await.says(&[(&size, 1.0), (&published, 1.0)]);
    let began = Instant::now();
    server.sampled().await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    let young = Scrape::of(&server).await;
    if began.elapsed() < YOUNG {
        young.says(&[(&size, 1.0), (&published, 2.0)]);
    }
    let queues = send(server.admin("GET", "/queues")).await.expect(200).json;
    until("it is read anew", async || Scrape::of(&server).await.value(&size) == Some(2.0)).await;
    assert!(began.elapsed() >= YOUNG, "it was read after {:?}", began.elapsed());
    let later = send(server.admin("GET", "/queues")).await.expect(200).json;
    assert_ne!(queues["sampled_at"], later["sampled_at"], "and lists of queues show it");
}

/// Guards against attacks and broken clients that leave no trace because hyper rejects their requests.
#[tokio::test]
async fn what_is_no_request_is_counted() {
    let server = TestServer::on_disk().await;
    for (bytes, status) in [
        ("nonsense\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(70_000)), 431),
    ] {
        let answer = raw(server.api_addr, bytes.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status} was expected: {answer}");
    }
    Scrape::of(&server).await.says(&[
        (r#"dormouse_bad_requests_total{port="public"}"#, 2.0),
        (r#"dormouse_bad_requests_total{port="admin"}"#, 0.0),
    ]);
}

/// Guards against stale statistics of an unavailable store, and against a scrape that waits for a hanging store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_or_hangs_is_told_by_its_absence() {
    let mut redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    let sizes = r#"infra_lmstfy_redis_queue_sizes{namespace="ns",pool="default",queue="q"}"#;
    let memory = r#"infra_lmstfy_redis_used_mem_bytes{pool="default"}"#;
    let counter = r#"infra_lmstfy_redis_publish_queue_jobs{namespace="ns",pool="default",queue="q"}"#;
    let well = Scrape::with(&server, &[(sizes, 1.0), (r#"dormouse_pool_up{pool="default"}"#, 1.0)]).await;
    assert!(well.value(memory).is_some(), "the Redis says how much it uses");
    let absent = |scrape: &Scrape| {
        scrape.says(&[("dormouse_ready", 0.0), ("dormouse_tokens_up", 0.0), (counter, 1.0)]);
        scrape.says(&[(r#"dormouse_pool_up{pool="default"}"#, 0.0)]);
        let figures = ["infra_lmstfy_redis_queue_sizes", "infra_lmstfy_redis_used_mem_bytes"];
        for name in
            figures.into_iter().chain(["dormouse_oldest_ready_seconds", "dormouse_timer_overdue_seconds"])
        {
            assert_eq!(scrape.family(name), [""; 0], "the Redis is unavailable");
        }
    };
    let stalled = redis.stall();
    let began = Instant::now();
    let hangs = Scrape::of(&server).await;
    let took = began.elapsed();
    // It waits for two seconds. A call to the Redis fails after five.
    assert!(took < Duration::from_millis(4700), "a scrape took {took:?}");
    absent(&hangs);
    drop(stalled);
    redis.kill();
    absent(&Scrape::of(&server).await);
}
