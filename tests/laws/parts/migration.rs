//! A migrating pool with one store unavailable. The laws cover the case of two healthy stores.

use std::sync::Arc;
use std::time::Duration;

use super::scheduler::Play;
use crate::gated::{Gated, State};
use crate::gated_settings::GatedSettings;
use crate::jobs::Named;
use crate::stage::{
    Stage, VirtualStage, bodies, consume, job, job_key, manual_clock, ok, queue, queue_in, queue_list,
};
use crate::support::engine_ext::EngineExt;
use crate::support::model::ModelEngine;
use dormouse::clock::ManualClock;
use dormouse::dispatch::{Dispatcher, ParkedPolls, Request};
use dormouse::engine::metered::Metered;
use dormouse::engine::migration::{Migration, PATIENCE};
use dormouse::engine::{
    Engine, Held, How, JobList, Listing, OnConflict, Once, Publication, Published, Release, Revival, Revived,
    Size, Tries,
};
use dormouse::job::{JobRef, JobState, NewJob};
use dormouse::metrics::Metrics;
use dormouse::name::{IdempotencyKey, PoolName};
use dormouse::process::tasks::Failure;
use dormouse::schedule::Became;
use serde_json::json;
use tokio::time::Instant;

const TTR: Duration = Duration::from_secs(60);

async fn moving(old: &Arc<Gated<ModelEngine>>, new: &Arc<Gated<ModelEngine>>) -> Arc<dyn Engine> {
    Arc::new(Migration::start(old.clone(), new.clone(), PATIENCE))
}

/// Two stores, and the pool that moves from the first to the second.
struct Move {
    old: Arc<Gated<ModelEngine>>,
    new: Arc<Gated<ModelEngine>>,
    pool: Arc<dyn Engine>,
    clock: Arc<ManualClock>,
    /// To publish into each.
    stages: [VirtualStage; 2],
}

impl Move {
    async fn new() -> Move {
        let clock = manual_clock();
        let store = || Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        let (old, new) = (store(), store());
        let stages = [old.clone(), new.clone()].map(|engine| VirtualStage::new(engine, clock.clone(), ()));
        let pool = moving(&old, &new).await;
        Move { old, new, pool, clock, stages }
    }

    async fn fill(&self) -> [NewJob; 2] {
        [self.put(0, "old").await, self.put(1, "new").await]
    }

    /// Publishes to the source (0) or the target (1).
    async fn put(&self, store: usize, body: &str) -> NewJob {
        self.put_with(store, body, 1).await
    }

    async fn put_with(&self, store: usize, body: &str, tries: u16) -> NewJob {
        let job = job(&queue("a"), body).tries(tries).make(&self.stages[store]);
        ok("publish", self.stages[store].engine().publish(vec![job.clone()].into()).await);
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

    /// One call of a consume.
    async fn consume(&self, count: u16) -> dormouse::error::Result<Vec<String>> {
        Ok(bodies(&self.pool.consume(&queue_list(&["a"]), &vec![TTR; count.into()]).await?.jobs))
    }
}

#[tokio::test]
async fn an_old_store_that_is_away_does_not_keep_the_new_ones_jobs_back() {
    let pools = Move::new().await;
    pools.fill().await;
    pools.old.set_away(true);
    assert_eq!(ok("consume", pools.consume(2).await), ["new"], "jobs of the available store");
    let none = pools.consume(2).await;
    assert!(none.is_err(), "it is unknown whether there is a job: {none:?}");
    pools.old.set_away(false);
    assert_eq!(ok("consume", pools.consume(2).await), ["old"], "it is back");
}

#[tokio::test]
async fn a_new_store_that_is_away_does_not_keep_the_old_ones_jobs_back() {
    let pools = Move::new().await;
    pools.fill().await;
    pools.new.set_away(true);
    assert_eq!(ok("consume", pools.consume(2).await), ["old"], "jobs of the available store");
    assert!(pools.consume(2).await.is_err(), "it is unknown whether there is a job");
}

#[tokio::test]
async fn sizes_of_both_stores_add_up() {
    let pools = Move::new().await;
    pools.fill().await;
    let other = job(&queue("b"), "x").make(&pools.stages[1]);
    ok("publish", pools.new.publish(vec![other].into()).await);
    let sizes = ok("stats", pools.pool.stats().await).queues;
    let sizes: Vec<_> = sizes.iter().map(|size| (size.queue.name.as_str(), size.ready)).collect();
    assert_eq!(sizes, [("a", 2), ("b", 1)], "ready jobs per queue");
}

/// Publishes a job with the key `k` into a store, or into the pool.
async fn publish_keyed(
    engine: &dyn Engine,
    stage: &dyn Stage,
    body: &str,
    conflict: OnConflict,
) -> Published {
    let jobs = vec![job(&queue("a"), body).key_or("k", conflict).placing(stage)];
    ok("publish", engine.publish(Publication { jobs, replaces: None, once: None }).await)
}

/// Guards against two jobs with one key, since there are two stores.
#[tokio::test]
async fn a_key_that_a_job_of_the_old_store_has_is_taken() {
    for (conflict, runs) in [
        (OnConflict::Keep, false),
        (OnConflict::Replace, false),
        (OnConflict::Fail, false),
        (OnConflict::Keep, true),
        (OnConflict::Replace, true),
    ] {
        let pools = Move::new().await;
        let stage: &dyn Stage = &pools.stages[0];
        let Published::Done(placed) = publish_keyed(&*pools.old, stage, "old", OnConflict::Fail).await else {
            panic!("it is the first")
        };
        let old = placed[0].id;
        if runs {
            ok("consume", pools.consume(1).await);
        }
        let published = publish_keyed(&*pools.pool, &pools.stages[1], "new", conflict).await;
        let holder = ok("inspect_by_key", pools.pool.inspect_by_key(&queue("a"), &job_key("k")).await)
            .map(|view| view.id);
        let what = format!("{conflict:?}, runs: {runs}: {published:?}");
        match (conflict, published) {
            (OnConflict::Fail, Published::Conflict { index: 0, id }) => assert_eq!(id, old, "{what}"),
            (OnConflict::Keep, Published::Done(placed)) => {
                assert_eq!((placed[0].id, placed[0].how), (old, How::Duplicate), "{what}");
                assert_eq!(holder, Some(old), "{what}");
            }
            (OnConflict::Replace, Published::Done(placed)) => {
                assert_eq!(placed[0].how, if runs { How::New } else { How::Replaced(old) }, "{what}");
                assert_eq!(holder, Some(placed[0].id), "{what}");
                assert_eq!(ok("consume", pools.consume(9).await), ["new"], "{what}");
            }
            _ => panic!("{what}"),
        }
    }
}

/// Guards against a call that waits for the source once more for each job that it replaces there.
#[tokio::test(start_paused = true)]
async fn jobs_of_the_old_store_are_replaced_together() {
    let pools = Move::new().await;
    let request = |conflict| {
        let drafts = (0..64).map(|n| job(&queue("a"), n.to_string()).key_or(&format!("k{n}"), conflict));
        let jobs = drafts.map(|draft| draft.placing(&pools.stages[0])).collect();
        Publication { jobs, replaces: None, once: None }
    };
    ok("publish", pools.old.publish(request(OnConflict::Fail)).await);
    let slow = Duration::from_millis(100);
    pools.old.set(State::Slow(slow));
    let began = Instant::now();
    let done = ok("publish", pools.pool.publish(request(OnConflict::Replace)).await);
    let took = began.elapsed();
    assert!(
        took < 70 * slow,
        "64 keys are looked up one by one, and their jobs deleted in one call: {took:?}"
    );
    pools.old.set(State::Up);
    let Published::Done(placed) = done else { panic!("{done:?}") };
    let replaced = placed.iter().filter(|placed| matches!(placed.how, How::Replaced(_))).count();
    assert_eq!((replaced, ok("size", pools.old.ready(&queue("a")).await)), (64, 0), "all are replaced");
}

/// Guards against a call whose parts lose their order, or that is done twice.
#[tokio::test]
async fn a_call_with_keys_of_both_stores_answers_for_each_in_order() {
    let pools = Move::new().await;
    publish_keyed(&*pools.old, &pools.stages[0], "old", OnConflict::Fail).await;
    let request = || {
        let drafts = [job(&queue("a"), "1"), job(&queue("a"), "2").key("k"), job(&queue("a"), "3").key("l")];
        let jobs = drafts.map(|draft| draft.placing(&pools.stages[1])).into();
        let key = IdempotencyKey::new(b"once").expect("short");
        Publication { jobs, replaces: None, once: Some(Once::request(key, [1; 16])) }
    };
    let Published::Done(first) = ok("publish", pools.pool.publish(request()).await) else {
        panic!("it is the first")
    };
    let how: Vec<How> = first.iter().map(|placed| placed.how).collect();
    assert_eq!(how, [How::New, How::Duplicate, How::New]);
    let again = ok("publish", pools.pool.publish(request()).await);
    assert_eq!(again, Published::Replay(first), "the same answer");
    assert_eq!(ok("consume", pools.consume(9).await), ["old", "1", "3"], "each once");
}

#[tokio::test]
async fn a_holder_is_answered_by_the_store_that_handed_out() {
    let pools = Move::new().await;
    let named = pools.fill().await.map(|job| job.name());
    let jobs = ok("consume", consume(&*pools.pool, &queue_list(&["a"]), &[TTR; 2]).await);
    for (job, name) in jobs.iter().zip(&named) {
        let touched = ok("touch", pools.pool.touch(name, job.proof(), TTR).await);
        let Held::Done(touched) = touched else { panic!("it is held: {touched:?}") };
        let first = ok("touch", pools.pool.touch(name, job.proof(), TTR).await);
        assert_eq!(first, Held::NotYours, "its receipt was replaced");
        let release = Release { tries: Tries::Restore, ..Release::default() };
        let released = ok("release", pools.pool.release(name, touched.receipt, release).await);
        assert!(matches!(released, Held::Done(_)), "{released:?}");
    }
    let jobs = ok("consume", consume(&*pools.pool, &queue_list(&["a"]), &[TTR; 2]).await);
    let named: Vec<_> = jobs.iter().map(|job| (job.id, Some(job.proof()))).collect();
    assert_eq!(ok("ack", pools.pool.ack(&queue("a"), &named[..1]).await), []);
    let buried = ok("bury", pools.pool.bury(&jobs[1].name(), jobs[1].proof(), None).await);
    assert_eq!(buried, Held::Done(()));
    let stale = ok("ack", pools.pool.ack(&queue("a"), &named).await);
    assert_eq!(stale, [jobs[1].id], "one is deleted, the other is dead");
    let revival = Revival { tries: std::num::NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    let ids = [jobs[0].id, jobs[1].id];
    let revived = ok("respawn_jobs", pools.pool.respawn_jobs(&queue("a"), &ids, revival).await);
    assert!(matches!(revived[..], [Revived::NotFound, Revived::Done { .. }]), "{revived:?}");
}

#[tokio::test]
async fn lists_show_the_jobs_and_queues_of_both_stores() {
    let pools = Move::new().await;
    let mut expected = Vec::new();
    for store in 0..2 {
        for n in 0..5 {
            expected.push(pools.put(store, &format!("{n}")).await.id);
        }
    }
    for limit in [1, 4, 5, 7, 100] {
        let (mut shown, mut cursor) = (Vec::new(), None);
        loop {
            let list = JobList { state: JobState::Ready, limit, cursor, bodies: false };
            let page =
                ok("list_jobs", pools.pool.list_jobs(&queue("a"), list).await).expect("its own cursor");
            assert!(page.jobs.len() <= limit, "{} of {limit}", page.jobs.len());
            shown.extend(page.jobs.iter().map(|view| view.id));
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(shown, expected, "by {limit}: jobs of the old store come first");
    }
    for (store, names) in [["a", "c", "d", "e"], ["a", "b", "e", "f"]].into_iter().enumerate() {
        for name in names {
            let new = job(&queue_in("n", name), "x").make(&pools.stages[store]);
            ok("publish", pools.stages[store].engine().publish(vec![new].into()).await);
        }
    }
    for limit in [1, 2, 3, 100] {
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            let page = pools.pool.list_queues(&queue_in("n", "a").namespace, after.as_ref(), limit).await;
            let page = ok("list_queues", page);
            assert!(page.queues.len() <= limit, "{} of {limit}", page.queues.len());
            shown.extend(page.queues.into_iter().map(|view| (view.queue.name.to_string(), view.ready)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected = [("a", 2), ("b", 1), ("c", 1), ("d", 1), ("e", 2), ("f", 1)];
        let expected = expected.map(|(name, ready)| (name.to_owned(), Some(ready)));
        assert_eq!(shown, expected, "by {limit}");
    }
}

/// Guards against a worker that loses its job because a server with `MigrateTo`, or one without, has delivered it.
#[tokio::test]
async fn a_receipt_is_good_with_each_server_that_has_the_jobs_store() {
    let pools = Move::new().await;
    let back = moving(&pools.new, &pools.old).await;
    for (store, alone) in [pools.old.clone(), pools.new.clone()].into_iter().enumerate() {
        let name = pools.put(store, "x").await.name();
        let servers: [&dyn Engine; 3] = [&*pools.pool, &*alone, &*back];
        for giver in servers {
            let [job] = &ok("consume", giver.consume(&queue_list(&["a"]), &[TTR]).await).jobs[..] else {
                panic!("the job of store {store} should be handed out")
            };
            let mut receipt = job.proof();
            for (n, taker) in servers.into_iter().enumerate() {
                let touched = ok("touch", taker.touch(&name, receipt, TTR).await);
                let Held::Done(touched) = touched else { panic!("store {store}, server {n}: {touched:?}") };
                let stale = ok("ack", taker.ack(&name.queue, &[(name.id, Some(receipt))]).await);
                assert_eq!(stale, [name.id], "store {store}, server {n}: its receipt was replaced");
                receipt = touched.receipt;
            }
            let release = Release { tries: Tries::Restore, ..Release::default() };
            let released = ok("release", pools.pool.release(&name, receipt, release).await);
            assert!(matches!(released, Held::Done(_)), "store {store}: {released:?}");
        }
        ok("ack", pools.pool.ack_job(name).await);
    }
}

/// Guards against a repeated request that has another effect after the job that the first one met in the source was
/// deleted.
#[tokio::test]
async fn what_a_request_met_in_the_old_store_is_remembered() {
    for (conflict, expected) in [(OnConflict::Keep, 0), (OnConflict::Replace, 1)] {
        let pools = Move::new().await;
        let Published::Done(placed) =
            publish_keyed(&*pools.old, &pools.stages[0], "old", OnConflict::Fail).await
        else {
            panic!("it is the first")
        };
        let request = || {
            let key = IdempotencyKey::new(b"once").expect("short");
            let jobs = vec![job(&queue("a"), "new").key_or("k", conflict).placing(&pools.stages[1])];
            Publication { jobs, replaces: None, once: Some(Once::request(key, [1; 16])) }
        };
        let Published::Done(first) = ok("publish", pools.pool.publish(request()).await) else {
            panic!("it is the first")
        };
        ok("ack", pools.pool.ack_job(JobRef { queue: queue("a"), id: placed[0].id }).await);
        for server in [&pools.pool, &(pools.new.clone() as Arc<dyn Engine>)] {
            let again = ok("publish", server.publish(request()).await);
            assert_eq!(again, Published::Replay(first.clone()), "{conflict:?}: the same answer");
        }
        assert_eq!(ok("consume", pools.consume(9).await).len(), expected, "{conflict:?}: nothing is stored");
    }
}

/// Guards against a backlog of less urgent jobs in the source that delays urgent ones of the target.
#[tokio::test]
async fn the_first_queue_goes_first_whichever_store_has_its_jobs() {
    for in_old in [vec!["c", "d"], vec!["a", "c"], vec!["b", "d"], vec!["a", "b", "c", "d"], vec![]] {
        let pools = Move::new().await;
        for (store, queues) in [in_old.clone(), vec!["a", "b", "c"]].into_iter().enumerate() {
            for name in queues {
                for n in 0..2 {
                    let new = job(&queue(name), format!("{name} {} {n}", ["old", "new"][store])).tries(1);
                    let new = new.make(&pools.stages[store]);
                    ok("publish", pools.stages[store].engine().publish(vec![new].into()).await);
                }
            }
        }
        let list = queue_list(&["a", "b", "c", "d"]);
        let mut expected = Vec::new();
        for name in ["a", "b", "c", "d"] {
            for (store, has) in [("old", in_old.contains(&name)), ("new", name != "d")] {
                expected.extend((0..2).filter(|_| has).map(|n| format!("{name} {store} {n}")));
            }
        }
        let ttrs: Vec<Duration> = (1..=20).map(Duration::from_secs).collect();
        let mut got = Vec::new();
        loop {
            let asked = &ttrs[got.len()..(got.len() + 3).min(ttrs.len())];
            let consumed = ok("consume", pools.pool.consume(&list, asked).await);
            assert!(consumed.jobs.len() <= asked.len(), "{consumed:?}");
            for (job, ttr) in consumed.jobs.iter().zip(asked) {
                let view = ok("inspect", pools.pool.inspect_job(&job.name()).await).expect("it is there");
                let ends = pools.pool.now() + ttr.as_millis() as u64;
                assert_eq!(view.due_at, Some(ends), "{:?} has its ttr", job.body);
            }
            got.extend(bodies(&consumed.jobs));
            if consumed.jobs.len() < asked.len() && !consumed.more {
                break;
            }
        }
        assert_eq!(got, expected, "in the old store are jobs of {in_old:?}");
    }
}

/// Guards against an empty reply to the second consumer of a fetch when a store with jobs is unavailable.
#[tokio::test(start_paused = true)]
async fn a_consume_that_could_ask_one_store_alone_says_that_there_may_be_more() {
    for store in 0..2 {
        for state in [State::Away, State::Hangs] {
            let pools = Move::new().await;
            pools.fill().await;
            let trouble = [&pools.old, &pools.new][store];
            if store == 1 && state == State::Hangs {
                continue;
            }
            trouble.set(state);
            let consumed = ok("consume", pools.pool.consume(&queue_list(&["a"]), &[TTR; 2]).await);
            assert_eq!((consumed.jobs.len(), consumed.more), (1, true), "store {store} is {state:?}");
        }
    }
}

/// Guards against returns to the target that wait for those to a hanging source.
#[tokio::test(start_paused = true)]
async fn give_backs_to_the_new_store_do_not_wait_for_the_old_one() {
    let pools = Move::new().await;
    pools.fill().await;
    let jobs = ok("consume", pools.pool.consume(&queue_list(&["a"]), &[TTR; 2]).await).jobs;
    pools.old.set(State::Hangs);
    let began = Instant::now();
    for job in &jobs {
        ok("give_back", pools.pool.give_back(vec![job.clone()]).await);
    }
    assert!(began.elapsed() <= PATIENCE, "two give-backs took {:?}", began.elapsed());
    assert_eq!(
        ok("consume", pools.consume(1).await),
        ["new"],
        "it was returned, and the old store is not called"
    );
    pools.old.set(State::Up);
    assert_eq!(ok("consume", pools.consume(1).await), ["old"], "the other job was returned later");
}

#[tokio::test(start_paused = true)]
async fn without_the_old_store_nobody_says_that_a_key_is_free() {
    without_the_old(&BOTH, async |pools, state| {
        pools.old.set(state);
        let began = Instant::now();
        let jobs = vec![job(&queue("a"), "x").key("k").placing(&pools.stages[1])];
        let keyed = pools.pool.publish(Publication { jobs, replaces: None, once: None }).await;
        assert!(keyed.is_err(), "its key may be taken: {keyed:?}");
        assert_eq!(ok("size", pools.new.ready(&queue("a")).await), 0, "nothing is stored");
        let jobs = vec![job(&queue("a"), "plain").placing(&pools.stages[1])];
        let plain = pools.pool.publish(Publication { jobs, replaces: None, once: None }).await;
        assert!(matches!(plain, Ok(Published::Done(_))), "without a key: {plain:?}");
        let list = JobList { state: JobState::Ready, limit: 9, cursor: None, bodies: false };
        assert!(pools.pool.list_jobs(&queue("a"), list).await.is_err(), "half of a list");
        assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
    })
    .await;
}

/// Runs a test with an unavailable source, and with a hanging one.
async fn without_the_old(states: &[State], mut test: impl AsyncFnMut(Move, State)) {
    for state in states {
        test(Move::new().await, *state).await;
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
        let found = ok("inspect_stored", pools.pool.inspect_stored(&new.name()).await);
        assert_eq!(found.map(|job| job.id), Some(new.id), "by id, while the old store is {state:?}");
        assert_eq!(ok("size", pools.pool.ready(&q).await), 1, "what can be had while it is {state:?}");
        let dead = ok("dead_letter", pools.pool.dead_letter(&q).await);
        assert_eq!(dead, Size { jobs: 0, head: None }, "the new store's, while it is {state:?}");
        assert!(began.elapsed() <= 4 * PATIENCE, "four calls took {:?}", began.elapsed());
        // It is unknown whether there is such a job.
        let unknown = pools.pool.inspect_stored(&old.name()).await;
        assert!(unknown.is_err(), "the old store is {state:?}: {unknown:?}");
        let none = pools.pool.peek(&queue("b")).await;
        assert!(none.is_err(), "the old store is {state:?}: {none:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_queue_answer_without_the_new_store() {
    let pools = Move::new().await;
    let [old, _] = pools.fill().await;
    pools.new.set(State::Away);
    let head = ok("peek", pools.pool.peek(&queue("a")).await);
    assert_eq!(head.map(|job| job.id), Some(old.id), "the old store's head");
    assert_eq!(ok("size", pools.pool.ready(&queue("a")).await), 1, "what can be had");
    pools.old.set(State::Away);
    assert!(pools.pool.ready(&queue("a")).await.is_err(), "neither store answers");
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
            while ok("inspect_stored", pools.old.inspect_stored(&old.name()).await).is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let acked = tokio::time::timeout(Duration::from_secs(10), acked).await;
        assert!(acked.is_ok(), "the old job is acked once its store is back from {state:?}");
    })
    .await;
}

/// Guards against a job that is delivered once more because the client of its republish has left.
#[tokio::test(start_paused = true)]
async fn a_republish_whose_caller_leaves_is_done_to_its_end() {
    let pools = Move::new().await;
    let old = pools.put(0, "old").await;
    let again = job(&queue("a"), "again").make(&pools.stages[1]);
    pools.old.set(State::Hangs);
    let left = tokio::time::timeout(PATIENCE / 2, pools.pool.republish(old.name(), again)).await;
    assert!(left.is_err(), "it waits for the old store: {left:?}");
    tokio::time::sleep(2 * PATIENCE).await;
    pools.old.set(State::Up);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(ok("consume", pools.consume(9).await), ["again"], "the other job is acked");
}

#[tokio::test(start_paused = true)]
async fn an_ack_of_the_new_stores_job_needs_no_old_store() {
    without_the_old(&BOTH, async |pools, state| {
        let [old, new] = pools.fill().await;
        pools.old.set(state);
        let began = Instant::now();
        ok("ack", pools.pool.ack_job(new.name()).await);
        assert!(began.elapsed() <= PATIENCE, "the ack took {:?}", began.elapsed());
        assert_eq!(ok("size", pools.new.ready(&queue("a")).await), 0, "it is gone");
        let ack = tokio::time::timeout(2 * PATIENCE, pools.pool.ack_job(old.name())).await;
        assert!(!matches!(ack, Ok(Ok(()))), "the old job is not acked while its store is {state:?}: {ack:?}");
    })
    .await;
}

/// Guards against a bulk ack that waits the full timeout of a hanging store for each of its jobs.
#[tokio::test(start_paused = true)]
async fn an_ack_of_many_jobs_fails_soon_without_the_old_store() {
    without_the_old(&BOTH, async |pools, state| {
        let [old, new] = pools.fill().await;
        let named: Vec<_> =
            (0..100).map(|_| (job(&queue("a"), "x").make(&pools.stages[1]).id, None)).collect();
        let named: Vec<_> = [(old.id, None)].into_iter().chain(named).chain([(new.id, None)]).collect();
        let slow = Duration::from_millis(100);
        pools.old.set(state);
        pools.new.set(State::Slow(slow));
        let began = Instant::now();
        let acked = tokio::time::timeout(60 * slow, pools.pool.ack(&queue("a"), &named)).await;
        assert!(matches!(acked, Ok(Err(_))), "the old store is {state:?}: {acked:?}");
        assert!(began.elapsed() <= PATIENCE + 2 * slow, "{:?} while it is {state:?}", began.elapsed());
        assert_eq!(ok("size", pools.new.ready(&queue("a")).await), 0, "what is there is acked");
    })
    .await;
}

/// Guards against counting an unavailable store as one with more jobs to move.
#[tokio::test(start_paused = true)]
async fn a_pump_without_the_old_store_tells_what_the_new_one_has_left() {
    let metrics = Metrics::default();
    let pools = Move::new().await;
    let pool = Metered::new(pools.pool.clone(), metrics.engine.pool(&PoolName::default_pool()));
    let stage: &dyn Stage = &pools.stages[1];
    for body in ["1", "2"] {
        let job = job(&queue("a"), body).delay(Duration::from_secs(5)).make(stage);
        ok("publish", pools.new.publish(vec![job].into()).await);
        stage.advance(Duration::from_secs(5)).await;
        pools.old.set(State::Away);
        let pumped = ok("pump", pool.pump().await);
        assert!(pumped.moved == 1 && !pumped.next.is_zero(), "none is left there: {pumped:?}");
        assert!(
            pumped.next <= Duration::from_secs(1),
            "the unavailable store is tried again soon: {pumped:?}"
        );
        assert!(pool.pump().await.is_err(), "the trouble shows");
        pools.old.set(State::Up);
    }
    let text = String::from_utf8(metrics.text()).expect("UTF-8");
    let full = text.lines().find(|line| line.starts_with("infra_lmstfy_redis_timer_full_batches{"));
    assert!(full.is_none_or(|line| line.ends_with(" 0")), "{full:?}");
}

#[tokio::test(start_paused = true)]
async fn what_changes_many_jobs_changes_nothing_without_the_old_store() {
    let pools = Move::new().await;
    pools.kill().await;
    pools.fill().await;
    let q = queue("a");
    pools.old.set(State::Away);
    assert!(pools.pool.respawn_oldest(&q, 1, None).await.is_err(), "the oldest dead job is in the old store");
    assert!(pools.pool.delete_dead(&q, 1).await.is_err(), "the oldest dead job is in the old store");
    assert!(pools.pool.destroy(&q, Listing::Keep).await.is_err(), "some jobs are in the old store");
    assert!(pools.pool.stats().await.is_err(), "half of the figures would look like an old store run dry");
    assert!(pools.pool.queues().await.is_err(), "half of the queues");
    assert!(pools.pool.check().await.is_err(), "a consumer may get an error");
    assert_eq!(ok("dead_letter", pools.new.dead_letter(&q).await).jobs, 1, "nothing has changed");
    assert_eq!(ok("size", pools.new.ready(&q).await), 1, "nothing has changed");
    // Work done before the failure is reported.
    pools.old.set(State::Up);
    pools.new.set(State::Away);
    assert_eq!(ok("respawn", pools.pool.respawn_oldest(&q, 9, None).await), 1, "the old store's");
    assert!(pools.pool.respawn_oldest(&q, 9, None).await.is_err(), "nothing was done");
}

#[tokio::test(start_paused = true)]
async fn an_old_store_that_hangs_holds_up_the_new_ones_jobs_for_a_moment_only() {
    let pools = Move::new().await;
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
    assert!(began.elapsed().is_zero(), "a store known to hang is not waited for");
    let none = pools.consume(1).await;
    assert!(none.is_err(), "it is unknown whether there is a job: {none:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "the error took {:?}", began.elapsed());
    assert_eq!(pools.old.fetches(), 1, "one consume hangs there");
    pools.old.set(State::Up);
    assert_eq!(ok("consume", pools.consume(1).await), ["old"], "the old store goes first again");
}

#[tokio::test(start_paused = true)]
async fn jobs_that_the_old_store_hands_out_too_late_keep_their_tries() {
    let pools = Move::new().await;
    pools.put_with(0, "old", 1).await;
    pools.put(1, "new").await;
    // It pops, and its reply hangs.
    let held = pools.old.hold().await;
    assert_eq!(ok("consume", pools.consume(1).await), ["new"], "a job of the store that answers");
    drop(held);
    let jobs = ok("consume", consume(&*pools.pool, &queue_list(&["a"]), &[TTR]).await);
    assert_eq!(bodies(&jobs), ["old"], "it was given back, with its only try");
}

#[tokio::test(start_paused = true)]
async fn a_short_stall_of_the_old_store_is_no_error() {
    let pools = Move::new().await;
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
    let pools = Move::new().await;
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
    let left = ok("size", pools.old.ready(&queue("a")).await);
    assert_eq!(left, 0, "jobs that are left of five in the old store, after six consumes");
}

#[tokio::test(start_paused = true)]
async fn a_poll_gets_a_job_of_the_new_store_while_the_old_one_hangs() {
    let pools = Move::new().await;
    let parked = Arc::new(ParkedPolls::new(10, 10));
    let dispatcher = Dispatcher::start(pools.pool.clone(), parked, Failure::default());
    pools.old.set(State::Hangs);
    let timeout = Duration::from_secs(30);
    let request = Request { queues: queue_list(&["a"]), weights: None, count: 1, ttr: TTR, timeout, head: 0 };
    let poll = tokio::spawn(dispatcher.consume(request));
    tokio::time::sleep(Duration::from_millis(500)).await;
    pools.put(1, "new").await;
    let published = Instant::now();
    let delivery = poll.await.expect("no panic").expect("a job");
    assert_eq!(bodies(delivery.jobs()), ["new"], "the job published while the old store hung");
    assert!(published.elapsed() <= 2 * PATIENCE, "it came after {:?}", published.elapsed());
}

/// Returns a server with the schedules of the migrating pool.
fn scheduler_of(pools: &Move) -> Play {
    Play::on(pools.pool.clone(), pools.clock.clone())
}

/// Guards against overlapping jobs of a schedule, because the key of the earlier one is in the other store.
#[tokio::test]
async fn overlap_counts_jobs_of_the_old_store() {
    for (overlap, runs) in [("skip", false), ("skip", true), ("replace", false), ("replace", true)] {
        let pools = Move::new().await;
        let Published::Done(placed) =
            publish_keyed(&*pools.old, &pools.stages[0], "old", OnConflict::Fail).await
        else {
            panic!("it is the first")
        };
        if runs {
            ok("consume", pools.consume(1).await);
        }
        let play = scheduler_of(&pools);
        let setting = json!({ "queue": "a", "every": 10, "text": "new", "overlap": overlap, "key": "k" });
        play.set("s", setting).await;
        play.pass(Duration::from_secs(10)).await;
        let entry = play.history("s").await.pop().expect("it is decided");
        let what = format!("{overlap}, runs: {runs}: {entry:?}");
        if overlap == "skip" {
            assert_eq!(entry.outcome, Became::Skipped, "{what}");
            assert_eq!(entry.job_id, Some(placed[0].id.to_string()), "the one that lives: {what}");
        } else {
            assert_eq!(entry.outcome, Became::Placed, "{what}");
            assert_eq!(
                ok("consume", pools.consume(9).await),
                ["new"],
                "the old job is deleted or runs: {what}"
            );
        }
    }
}

/// Guards against an unavailable source that stops schedules, and against an occurrence that is published twice: to the
/// source, and again to the target.
#[tokio::test]
async fn schedules_need_no_old_store() {
    let pools = Move::new().await;
    let play = scheduler_of(&pools);
    play.set("s", json!({ "queue": "a", "every": 10, "text": "job" })).await;
    pools.old.set(State::Away);
    play.pass(Duration::from_secs(10)).await;
    assert_eq!(play.outcomes("s").await, [(10_000, Became::Placed)], "without the old store");
    pools.old.set(State::Up);
    // A server that knows only the source publishes the next one, and dies before it writes the record.
    let alone = Play::with(pools.old.clone(), play.settings.clone(), pools.clock.clone());
    let settings = GatedSettings::new(play.settings.clone(), None);
    let dies = Play::with(pools.old.clone(), settings.clone(), pools.clock.clone());
    pools.clock.advance(Duration::from_secs(11));
    settings.refuse_puts(usize::MAX);
    let _ = dies.scheduler.look().await;
    assert_eq!(alone.outcomes("s").await.len(), 1, "it is not written down");
    play.pass(Duration::from_secs(1)).await;
    assert_eq!(play.outcomes("s").await.len(), 2, "the next server goes on");
    assert_eq!(ok("consume", pools.consume(9).await), ["job", "job"], "one job each");
}
