//! A pool that is moved while one of its stores is away. What both do when they are well is in the laws.

mod support;

use std::sync::Arc;
use std::time::Duration;

use dormouse::dispatch::{Dispatcher, ParkedPolls, Request};
use dormouse::engine::migration::{Migration, PATIENCE};
use dormouse::engine::{DeadLetter, Engine};
use dormouse::job::NewJob;
use dormouse::process::tasks::Failure;
use support::client::{send, until_status};
use support::gated::{Gated, State};
use support::jobs::Named;
use support::model::ModelEngine;
use support::redis_server::RedisServer;
use support::servers::TestServer;
use support::stage::{Stage, VirtualStage, bodies, consume, job, manual_clock, ok, queue, queue_list};
use tokio::time::Instant;

const TTR: Duration = Duration::from_secs(60);

/// Two stores, and the pool that moves from the first to the second.
struct Move {
    old: Arc<Gated<ModelEngine>>,
    new: Arc<Gated<ModelEngine>>,
    pool: Arc<dyn Engine>,
    /// To publish into each.
    stages: [VirtualStage; 2],
}

impl Move {
    fn new() -> Move {
        let clock = manual_clock();
        let store = || Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        let (old, new) = (store(), store());
        let stages = [old.clone(), new.clone()].map(|engine| VirtualStage::new(engine, clock.clone(), ()));
        let pool = Arc::new(Migration::new(old.clone(), new.clone()));
        Move { old, new, pool, stages }
    }

    async fn fill(&self) -> [NewJob; 2] {
        [self.put(0, "old").await, self.put(1, "new").await]
    }

    /// Publishes into the old store (0) or the new one (1).
    async fn put(&self, store: usize, body: &str) -> NewJob {
        self.put_with(store, body, 1).await
    }

    async fn put_with(&self, store: usize, body: &str, tries: u16) -> NewJob {
        let job = job(&queue("a"), body).tries(tries).make(&self.stages[store]);
        ok("publish", self.stages[store].engine().publish(vec![job.clone()]).await);
        job
    }

    /// Lets a job of each store die.
    async fn kill(&self) {
        self.fill().await;
        for stage in &self.stages {
            let stage: &dyn Stage = stage;
            stage.take(&queue("a"), 1, Duration::from_secs(1)).await;
        }
        let stage: &dyn Stage = &self.stages[0];
        stage.pass(Duration::from_secs(1)).await;
        let stage: &dyn Stage = &self.stages[1];
        stage.pump().await;
    }

    async fn consume(&self, count: u16) -> dormouse::error::Result<Vec<String>> {
        Ok(bodies(&consume(&*self.pool, &queue_list(&["a"]), &vec![TTR; count.into()]).await?))
    }
}

#[tokio::test]
async fn an_old_store_that_is_away_does_not_keep_the_new_ones_jobs_back() {
    let pools = Move::new();
    pools.fill().await;
    pools.old.set_away(true);
    assert_eq!(ok("consume", pools.consume(2).await), ["new"], "jobs of the store that is there");
    let none = pools.consume(2).await;
    assert!(none.is_err(), "nobody can say that there is no job: {none:?}");
    pools.old.set_away(false);
    assert_eq!(ok("consume", pools.consume(2).await), ["old"], "it is back");
}

#[tokio::test]
async fn a_new_store_that_is_away_does_not_keep_the_old_ones_jobs_back() {
    let pools = Move::new();
    pools.fill().await;
    pools.new.set_away(true);
    assert_eq!(ok("consume", pools.consume(2).await), ["old"], "jobs of the store that is there");
    assert!(pools.consume(2).await.is_err(), "nobody can say that there is no job");
}

#[tokio::test]
async fn sizes_of_both_stores_add_up() {
    let pools = Move::new();
    pools.fill().await;
    let other = job(&queue("b"), "x").make(&pools.stages[1]);
    ok("publish", pools.new.publish(vec![other]).await);
    let sizes = ok("stats", pools.pool.stats().await).queues;
    let sizes: Vec<_> = sizes.iter().map(|size| (size.queue.name.as_str(), size.ready)).collect();
    assert_eq!(sizes, [("a", 2), ("b", 1)], "ready jobs per queue");
}

/// The pools in which the old store is away, and those in which it hangs.
async fn without_the_old(states: &[State], mut test: impl AsyncFnMut(Move, State)) {
    for state in states {
        test(Move::new(), *state).await;
    }
}

const BOTH: [State; 2] = [State::Away, State::Hangs];

#[tokio::test(start_paused = true)]
async fn reads_of_a_queue_answer_without_the_old_store() {
    without_the_old(&BOTH, async |pools, state| {
        let [old, new] = pools.fill().await;
        pools.old.set(state);
        let (q, began) = (queue("a"), Instant::now());
        let head = ok("peek", pools.pool.peek(&q).await).expect("the new store's head");
        assert_eq!(head.id, new.id, "the head while the old store is {state:?}");
        let found = ok("peek_job", pools.pool.peek_job(&new.name()).await);
        assert_eq!(found.map(|job| job.id), Some(new.id), "by id, while the old store is {state:?}");
        assert_eq!(ok("size", pools.pool.size(&q).await), 1, "what can be had while it is {state:?}");
        let dead = ok("dead_letter", pools.pool.dead_letter(&q).await);
        assert_eq!(dead, DeadLetter { size: 0, head: None }, "the new store's, while it is {state:?}");
        assert!(began.elapsed() <= 4 * PATIENCE, "four calls took {:?}", began.elapsed());
        // Nobody can say that there is no such job.
        let unknown = pools.pool.peek_job(&old.name()).await;
        assert!(unknown.is_err(), "the old store is {state:?}: {unknown:?}");
        let none = pools.pool.peek(&queue("b")).await;
        assert!(none.is_err(), "the old store is {state:?}: {none:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_queue_answer_without_the_new_store() {
    let pools = Move::new();
    let [old, _] = pools.fill().await;
    pools.new.set(State::Away);
    let head = ok("peek", pools.pool.peek(&queue("a")).await);
    assert_eq!(head.map(|job| job.id), Some(old.id), "the old store's head");
    assert_eq!(ok("size", pools.pool.size(&queue("a")).await), 1, "what can be had");
    pools.old.set(State::Away);
    assert!(pools.pool.size(&queue("a")).await.is_err(), "neither store answers");
    assert!(pools.pool.dead_letter(&queue("a")).await.is_err(), "neither store answers");
}

#[tokio::test(start_paused = true)]
async fn a_republish_goes_on_without_the_old_store_and_acks_there_later() {
    without_the_old(&BOTH, async |pools, state| {
        let [old, new] = pools.fill().await;
        let again = job(&queue("a"), "again").make(&pools.stages[1]);
        let once_more = job(&queue("a"), "once more").make(&pools.stages[1]);
        pools.old.set(state);
        ok("republish", pools.pool.republish(new.name(), again).await);
        ok("republish", pools.pool.republish(old.name(), once_more).await);
        assert_eq!(ok("consume", pools.consume(9).await), ["again", "once more"], "of the new store");
        pools.old.set(State::Up);
        let acked = async {
            while ok("peek_job", pools.old.peek_job(&old.name()).await).is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let acked = tokio::time::timeout(Duration::from_secs(10), acked).await;
        assert!(acked.is_ok(), "the old job is acked once its store is back from {state:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_ack_of_the_new_stores_job_needs_no_old_store() {
    without_the_old(&BOTH, async |pools, state| {
        let [old, new] = pools.fill().await;
        pools.old.set(state);
        let began = Instant::now();
        ok("ack", pools.pool.ack(new.name()).await);
        assert!(began.elapsed() <= PATIENCE, "the ack took {:?}", began.elapsed());
        assert_eq!(ok("size", pools.new.size(&queue("a")).await), 0, "it is gone");
        let ack = tokio::time::timeout(2 * PATIENCE, pools.pool.ack(old.name())).await;
        assert!(!matches!(ack, Ok(Ok(()))), "the old job is not acked while its store is {state:?}: {ack:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_changes_many_jobs_changes_nothing_without_the_old_store() {
    let pools = Move::new();
    pools.kill().await;
    pools.fill().await;
    let q = queue("a");
    pools.old.set(State::Away);
    assert!(pools.pool.respawn(&q, 1, None).await.is_err(), "the oldest dead job is in the old store");
    assert!(pools.pool.delete_dead(&q, 1).await.is_err(), "the oldest dead job is in the old store");
    assert!(pools.pool.destroy(&q).await.is_err(), "some jobs are in the old store");
    assert!(pools.pool.stats().await.is_err(), "half of the figures would look like an old store run dry");
    assert!(pools.pool.queues().await.is_err(), "half of the queues");
    assert!(pools.pool.check().await.is_err(), "a consumer may get an error");
    assert_eq!(ok("dead_letter", pools.new.dead_letter(&q).await).size, 1, "nothing has changed");
    assert_eq!(ok("size", pools.new.size(&q).await), 1, "nothing has changed");
    // What was done before the trouble is told.
    pools.old.set(State::Up);
    pools.new.set(State::Away);
    assert_eq!(ok("respawn", pools.pool.respawn(&q, 9, None).await), 1, "the old store's");
    assert!(pools.pool.respawn(&q, 9, None).await.is_err(), "nothing was done");
}

#[tokio::test(start_paused = true)]
async fn an_old_store_that_hangs_holds_up_the_new_ones_jobs_for_a_moment_only() {
    let pools = Move::new();
    pools.fill().await;
    for body in ["new 2", "new 3"] {
        pools.put(1, body).await;
    }
    pools.old.set(State::Hangs);
    let began = Instant::now();
    assert_eq!(ok("consume", pools.consume(1).await), ["new"], "a job of the store that answers");
    assert!(began.elapsed() <= PATIENCE, "it took {:?}", began.elapsed());
    let began = Instant::now();
    assert_eq!(ok("consume", pools.consume(2).await), ["new 2", "new 3"], "and all others");
    assert!(began.elapsed().is_zero(), "a store that is known to hang is waited for by nobody");
    let none = pools.consume(1).await;
    assert!(none.is_err(), "nobody can say that there is no job: {none:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "the error took {:?}", began.elapsed());
    assert_eq!(pools.old.fetches(), 1, "one consume hangs there");
    pools.old.set(State::Up);
    assert_eq!(ok("consume", pools.consume(1).await), ["old"], "the old store goes first again");
}

#[tokio::test(start_paused = true)]
async fn jobs_that_the_old_store_hands_out_too_late_keep_their_tries() {
    let pools = Move::new();
    pools.put_with(0, "old", 1).await;
    pools.put(1, "new").await;
    // It pops, and its answer hangs.
    let held = pools.old.hold().await;
    assert_eq!(ok("consume", pools.consume(1).await), ["new"], "a job of the store that answers");
    drop(held);
    let jobs = ok("consume", consume(&*pools.pool, &queue_list(&["a"]), &[TTR]).await);
    assert_eq!(bodies(&jobs), ["old"], "it was given back, with its only try");
}

#[tokio::test(start_paused = true)]
async fn a_short_stall_of_the_old_store_is_no_error() {
    let pools = Move::new();
    pools.put(0, "old").await;
    pools.old.set(State::Hangs);
    let goes_on = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        pools.old.set(State::Up);
    };
    let (consumed, ()) = tokio::join!(pools.consume(1), goes_on);
    assert_eq!(ok("consume", consumed), ["old"], "after a stall of 700 ms");
}

#[tokio::test(start_paused = true)]
async fn an_old_store_that_is_slow_all_the_time_is_drained_all_the_same() {
    let pools = Move::new();
    for n in 0..5 {
        pools.put(0, &format!("old {n}")).await;
        pools.put(1, &format!("new {n}")).await;
    }
    pools.old.set(State::Slow(PATIENCE + PATIENCE / 4));
    for _ in 0..6 {
        ok("consume", pools.consume(1).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    pools.old.set(State::Up);
    let left = ok("size", pools.old.size(&queue("a")).await);
    assert_eq!(left, 0, "jobs that are left of five in the old store, after six consumes");
}

#[tokio::test(start_paused = true)]
async fn a_poll_gets_a_job_of_the_new_store_while_the_old_one_hangs() {
    let pools = Move::new();
    let parked = Arc::new(ParkedPolls::new(10, 10));
    let dispatcher = Dispatcher::start(pools.pool.clone(), parked, Failure::default());
    pools.old.set(State::Hangs);
    let timeout = Duration::from_secs(30);
    let request = Request { queues: queue_list(&["a"]), weights: None, count: 1, ttr: TTR, timeout };
    let poll = tokio::spawn(dispatcher.consume(request));
    tokio::time::sleep(Duration::from_millis(500)).await;
    pools.put(1, "new").await;
    let published = Instant::now();
    let delivery = poll.await.expect("no panic").expect("a job");
    assert_eq!(bodies(delivery.jobs()), ["new"], "what was published while the old store hung");
    assert!(published.elapsed() <= 2 * PATIENCE, "it came after {:?}", published.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_does_not_keep_the_new_pools_jobs_back() {
    let (old, tokens) = (RedisServer::start(), RedisServer::start());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let toml = format!(
        "[Pool.default]\n{}MigrateTo = \"disk\"\n[Pool.disk]\nPath = {:?}\n[AdminRedis]\n{}",
        old.keys(),
        dir.path().join("jobs"),
        tokens.keys()
    );
    let server = TestServer::start(&toml, (dir, tokens)).await;
    let token = server.token("ns").await;
    server.get(&token, "/api/ns/q").await.expect(404);
    let _stopped = old.stall();
    for n in 0..3 {
        server.put(&token, "/api/ns/q", &format!("job {n}")).await.expect(201);
        let began = std::time::Instant::now();
        let job = server.get(&token, "/api/ns/q?timeout=3").await.expect(200);
        assert!(began.elapsed() < Duration::from_secs(2), "job {n} came after {:?}", began.elapsed());
        send(server.api("DELETE", &format!("/api/ns/q/job/{}", job.job_id()), &token)).await.expect(204);
        server.put(&token, "/api/ns/peeked", "x").await.expect(201);
        server.get(&token, "/api/ns/peeked/peek").await.expect(200);
        assert_eq!(server.size("/api/ns/peeked").await, n + 1, "jobs that can be had");
    }
    drop(_stopped);
    until_status(404, async || server.get(&token, "/api/ns/q").await).await;
}
