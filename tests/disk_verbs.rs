//! What the verbs that lmstfy does not have leave in a directory: over a close, a crash, and from the format before.

mod disk_common;
mod support;

use std::num::NonZeroU16;
use std::time::Duration;

use disk_common::*;
use dormouse::engine::disk::{DiskEngine, Sync};
use dormouse::engine::{
    Engine, Held, JobList, OnConflict, Once, Pause, Placing, Publication, Published, REMEMBERED, Release,
    Released,
};
use dormouse::error::Error;
use dormouse::job::{JobRef, JobState, NewJob, Reason};
use dormouse::name::{IdempotencyKey, JobKey, Queue};

/// Guards against an answer that says that nothing has happened after some steps of a destroy were done.
#[tokio::test]
async fn what_was_done_before_the_store_closed_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = options(dir.path(), &clock());
    options.sync = Sync::EverySecond;
    let engine = DiskEngine::open(options).expect("it opens");
    let q = queue("q");
    for part in 0..800 {
        engine.publish((0..50).map(|n| job(&q, part * 50 + n)).collect()).await.expect("published");
    }
    let call = tokio::spawn({
        let (engine, q) = (engine.clone(), q.clone());
        async move { engine.destroy(&q).await }
    });
    while engine.size(&q).await.expect("size") == 40_000 {}
    engine.close().await;
    let answer = call.await.expect("it does not panic");
    let Err(Error::Partly { done, why }) = answer else { panic!("some are gone, and not all: {answer:?}") };
    assert!((1000..40_000).contains(&done) && matches!(*why, Error::Closed), "{done}: {why}");
    let left = open(dir.path(), &clock()).size(&q).await.expect("size");
    assert_eq!(left, 40_000 - done, "as many as was told");
}

/// The directory was written and closed by the last version of format 2, through its HTTP API: seven queues of
/// namespace `ns`, each with a job that is named as its queue and tells by that where it was left. (Its journal is cut
/// off where its zeros begin, and directories without files are not kept in a repository.)
#[tokio::test]
async fn a_directory_of_format_2_is_opened_in_place() {
    for closed in [true, false] {
        let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/disk-format-2");
        copy(&golden, dir.path());
        for keyspace in 1..10 {
            std::fs::create_dir_all(dir.path().join(format!("db/keyspaces/{keyspace}/tables")))
                .expect("made");
        }
        let mark = dir.path().join("dormouse");
        if !closed {
            std::fs::write(&mark, "dormouse disk pool, format 2\n").expect("written");
        }
        for round in ["opened", "opened again"] {
            let engine = open(dir.path(), &clock);
            let text = std::fs::read_to_string(&mark).expect("it is there");
            assert_eq!(text, "dormouse disk pool, format 3\nmade\n", "no older version opens it any more");
            let expected = [
                ("ready", JobState::Ready, 3),
                ("delayed", JobState::Delayed, 4),
                ("attributes", JobState::Ready, 1),
                ("running", JobState::Running, 1),
                ("back", JobState::Ready, 4),
                ("due", JobState::Ready, 1),
                ("dead", JobState::Dead, 0),
            ];
            for (name, state, tries) in expected {
                let list = JobList { state, limit: 9, cursor: None, bodies: true };
                let page = engine.list_jobs(&queue(name), list).await.expect("listed").expect("it begins");
                let [view] = &page.jobs[..] else { panic!("{round}: one job is {name}: {page:?}") };
                assert_eq!(
                    (view.body.as_deref(), view.tries_left),
                    (Some(name.as_bytes()), Some(tries)),
                    "{round}"
                );
                assert_eq!(view.attributes.len(), usize::from(name == "attributes"), "{round}: {name}");
                let job = JobRef { queue: queue(name), id: view.id };
                let seen = engine.inspect(&job).await.expect("inspected").expect("it is there");
                assert_eq!((seen.state, seen.tries_left), (Some(state), Some(tries)), "{round}: {name}");
            }
            engine.close().await;
        }
        // It takes what is new, beside what is old.
        let engine = open(dir.path(), &clock);
        let held = take(&engine, &queue("ready"), 1, Duration::from_secs(60)).await.remove(0);
        let name = JobRef { queue: held.queue.clone(), id: held.id };
        let touched = engine.touch(&name, held.proof(), Duration::from_secs(60)).await.expect("touched");
        let Held::Done(touched) = touched else { panic!("it is held: {touched:?}") };
        let release =
            Release { reason: Reason::new("later"), delay: Duration::from_secs(9), ..Release::default() };
        let released = engine.release(&name, touched.receipt, release).await.expect("released");
        assert!(matches!(released, Held::Done(Released::Back { tries_left: 2, .. })), "{released:?}");
        engine.close().await;
        let engine = open(dir.path(), &clock);
        let view = engine.inspect(&name).await.expect("inspected").expect("it is there");
        assert_eq!((view.state, view.reason), (Some(JobState::Delayed), Reason::new("later")));
        engine.close().await;
    }
}

/// Guards against pauses, keys, requests and receipts that a restart forgets.
#[tokio::test]
async fn what_the_verbs_leave_survives_a_close_and_a_crash() {
    let (mut dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let (q, timed) = (queue("q"), queue("timed"));
    let publication = |key: &str| Publication {
        jobs: vec![Placing {
            job: NewJob { tries: NonZeroU16::new(5).expect("not 0"), ..job(&q, 1) },
            at: None,
            key: JobKey::parse(key).map(|key| (key, OnConflict::Keep)),
        }],
        replaces: None,
        once: IdempotencyKey::new(b"request").map(|key| Once { key, fingerprint: [1; 16] }),
    };
    let mut engine = open(dir.path(), &clock);
    let Published::Done(placed) = engine.publish_with(publication("key")).await.expect("published") else {
        panic!("nothing is in its way");
    };
    let held = take(&engine, &q, 1, Duration::from_secs(3600)).await.remove(0);
    let mut receipt = held.proof();
    let until = engine.pause(&timed, Some(Duration::from_secs(600))).await.expect("paused");
    engine.pause(&q, None).await.expect("paused");
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
        let again = engine.publish_with(publication("key")).await.expect("answered");
        assert_eq!(again, Published::Replay(placed.clone()), "after {end}: the same answer");
        let holder = engine.find_key(&q, &JobKey::parse("key").expect("a key")).await.expect("answered");
        let holder = holder.map(|view| (view.id, view.state, view.tries_left));
        assert_eq!(holder, Some((held.id, Some(JobState::Running), Some(4))), "after {end}: it has its key");
        let name = JobRef { queue: q.clone(), id: held.id };
        let touched = engine.touch(&name, receipt, Duration::from_secs(3600)).await.expect("answered");
        let Held::Done(touched) = touched else { panic!("after {end} the receipt is good: {touched:?}") };
        receipt = touched.receipt;
        let page = engine.list_queues(&q.namespace, 9, None).await.expect("listed").expect("it begins");
        let paused =
            |q: &Queue| page.queues.iter().find(|view| view.queue == *q).and_then(|view| view.paused);
        let pauses = (paused(&q), paused(&timed));
        assert_eq!(pauses, (Some(Pause { until: None }), Some(until)), "after {end}");
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
        let once = IdempotencyKey::new(&n.to_be_bytes()).map(|key| Once { key, fingerprint: [1; 16] });
        let jobs = vec![Placing { job: job(&q, n), at: None, key: None }];
        engine.publish_with(Publication { jobs, replaces: None, once }).await.expect("answered")
    };
    for n in 0..600 {
        assert!(matches!(ask(n).await, Published::Done(_)), "request {n} is new");
    }
    clock.advance(REMEMBERED / 2);
    assert!(matches!(ask(1000).await, Published::Done(_)), "a later one");
    clock.advance(REMEMBERED / 2);
    engine.sweep().await.expect("swept");
    assert!(matches!(ask(1000).await, Published::Replay(_)), "the later one is remembered still");
    engine.ack(job_ref(&q, 7)).await.expect("acked");
    assert!(matches!(ask(7).await, Published::Done(_)), "the others are forgotten");
    engine.sweep().await.expect("swept");
    engine.ack(job_ref(&q, 7)).await.expect("acked");
    assert!(matches!(ask(7).await, Published::Replay(_)), "the sweep leaves the new one alone");
    engine.close().await;
}

/// Guards against timers of jobs that are gone: nobody else would ack an expired job.
#[tokio::test]
async fn an_ack_takes_what_has_expired_along_whatever_receipt_it_shows() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let q = queue("q");
    let ttl = Duration::from_millis(40);
    engine.publish(vec![NewJob { ttl: Some(ttl), ..job(&q, 1) }]).await.expect("published");
    let [held] = &take(&engine, &q, 1, Duration::from_secs(9)).await[..] else { panic!("one job is ready") };
    clock.advance(ttl);
    let old = dormouse::job::Receipt { hand_over: 0, ..held.proof() };
    let stale = engine.ack_many(&q, &[(held.id, Some(old))]).await.expect("acked");
    assert_eq!(stale, [], "it has expired, so it is nobody's");
    assert_eq!(engine.stats().await.expect("figures").timers, 0, "it has no timer any more");
    engine.close().await;
}
