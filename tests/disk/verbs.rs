//! State left in a directory by the verbs that lmstfy does not have, after a close and a crash.

use std::num::NonZeroU16;
use std::time::Duration;

use crate::common::*;
use dormouse::engine::disk::{DiskEngine, Sync};
use dormouse::engine::{
    Engine, Held, Listing, OnConflict, Once, Placing, Publication, Published, REMEMBERED,
};
use dormouse::error::Error;
use dormouse::job::{JobRef, JobState, NewJob};
use dormouse::name::{IdempotencyKey, JobKey};

/// Guards against a reply that says that nothing has happened although some steps of a destroy were done.
#[tokio::test]
async fn what_was_done_before_the_store_closed_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = options(dir.path(), &clock());
    options.sync = Sync::EverySecond;
    let engine = DiskEngine::open(options).expect("it opens");
    let q = queue("q");
    for part in 0..800 {
        engine
            .publish((0..50).map(|n| job(&q, part * 50 + n)).collect::<Vec<_>>().into())
            .await
            .expect("published");
    }
    let call = tokio::spawn({
        let (engine, q) = (engine.clone(), q.clone());
        async move { engine.destroy(&q, Listing::Keep).await }
    });
    while engine.ready(&q).await.expect("size") == 40_000 {}
    engine.close().await;
    let answer = call.await.expect("it does not panic");
    let Err(Error::Partly { done, why }) = answer else { panic!("some but not all are deleted: {answer:?}") };
    assert!((1000..40_000).contains(&done) && matches!(*why, Error::Closed), "{done}: {why}");
    let left = open(dir.path(), &clock()).ready(&q).await.expect("size");
    assert_eq!(left, 40_000 - done, "the reported number");
}

/// Guards against keys, requests and receipts that a restart forgets.
#[tokio::test]
async fn what_the_verbs_leave_survives_a_close_and_a_crash() {
    let (mut dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let q = queue("q");
    let publication = |key: &str| Publication {
        jobs: vec![Placing {
            job: NewJob { tries: NonZeroU16::new(5).expect("not 0"), ..job(&q, 1) },
            at: None,
            key: JobKey::parse(key).map(|key| (key, OnConflict::Keep)),
        }],
        replaces: None,
        once: IdempotencyKey::new(b"request").map(|key| Once::request(key, [1; 16])),
    };
    let mut engine = open(dir.path(), &clock);
    let Published::Done(placed) = engine.publish(publication("key")).await.expect("published") else {
        panic!("nothing is in its way");
    };
    let held = take(&engine, &q, 1, Duration::from_secs(3600)).await.remove(0);
    let mut receipt = held.proof();
    for end in ["a close", "a crash", "a close of what had crashed"] {
        if end == "a crash" {
            let copied = tempfile::tempdir().expect("a directory");
            copy(dir.path(), copied.path());
            engine.close().await;
            dir = copied;
        } else {
            engine.close().await;
        }
        engine = open(dir.path(), &clock);
        let again = engine.publish(publication("key")).await.expect("answered");
        assert_eq!(again, Published::Replay(placed.clone()), "after {end}: the same answer");
        let holder =
            engine.inspect_by_key(&q, &JobKey::parse("key").expect("a key")).await.expect("answered");
        let holder = holder.map(|view| (view.id, view.state, view.tries_left));
        assert_eq!(holder, Some((held.id, Some(JobState::Running), Some(4))), "after {end}: it has its key");
        let name = JobRef { queue: q.clone(), id: held.id };
        let touched = engine.touch(&name, receipt, Duration::from_secs(3600)).await.expect("answered");
        let Held::Done(touched) = touched else { panic!("after {end} the receipt is good: {touched:?}") };
        receipt = touched.receipt;
        let page = engine.list_queues(&q.namespace, None, 9).await.expect("listed");
        let counts = page.queues.iter().find(|view| view.queue == q).map(|view| (view.running, view.delayed));
        assert_eq!(counts, Some((Some(1), Some(0))), "after {end}: one runs");
    }
    engine.close().await;
}

/// Guards against a store that fills up with the names of requests.
#[tokio::test]
async fn requests_are_swept_when_they_need_not_be_remembered_any_more() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let q = queue("q");
    let ask = async |n: u64| {
        let once = IdempotencyKey::new(&n.to_be_bytes()).map(|key| Once::request(key, [1; 16]));
        let jobs = vec![Placing { job: job(&q, n), at: None, key: None }];
        engine.publish(Publication { jobs, replaces: None, once }).await.expect("answered")
    };
    for n in 0..600 {
        assert!(matches!(ask(n).await, Published::Done(_)), "request {n} is new");
    }
    clock.advance(REMEMBERED / 2);
    assert!(matches!(ask(1000).await, Published::Done(_)), "a later one");
    clock.advance(REMEMBERED / 2);
    engine.sweep().await.expect("swept");
    assert!(matches!(ask(1000).await, Published::Replay(_)), "the later one is remembered still");
    engine.ack_job(job_ref(&q, 7)).await.expect("acked");
    assert!(matches!(ask(7).await, Published::Done(_)), "the others are forgotten");
    engine.sweep().await.expect("swept");
    engine.ack_job(job_ref(&q, 7)).await.expect("acked");
    assert!(matches!(ask(7).await, Published::Replay(_)), "the sweep leaves the new one alone");
    engine.close().await;
}

/// Guards against timers of deleted jobs: no other call would ack an expired job.
#[tokio::test]
async fn an_ack_takes_what_has_expired_along_whatever_receipt_it_shows() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let q = queue("q");
    let ttl = Duration::from_millis(40);
    engine.publish(vec![NewJob { ttl: Some(ttl), ..job(&q, 1) }].into()).await.expect("published");
    let [held] = &take(&engine, &q, 1, Duration::from_secs(9)).await[..] else { panic!("one job is ready") };
    clock.advance(ttl);
    let old = dormouse::job::Receipt { delivery: 0, ..held.proof() };
    let stale = engine.ack(&q, &[(held.id, Some(old))]).await.expect("acked");
    assert_eq!(stale, [], "it has expired, so the receipt does not matter");
    assert_eq!(engine.stats().await.expect("figures").timers, 0, "it has no timer any more");
    engine.close().await;
}
