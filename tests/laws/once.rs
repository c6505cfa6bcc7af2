//! Laws of requests with an idempotency key.

use std::time::Duration;

use dormouse::engine::{OnConflict, Once, Publication, Published, REMEMBERED};
use dormouse::name::{IdempotencyKey, Queue};

use crate::stage::*;

fn once(key: &str, fingerprint: u8) -> Option<Once> {
    let key = IdempotencyKey::new(key.as_bytes()).expect("a short key");
    Some(Once::request(key, [fingerprint; 16]))
}

fn publication(s: &dyn Stage, drafts: &[Draft], key: &str, fingerprint: u8) -> Publication {
    let jobs = drafts.iter().map(|draft| draft.clone().placing(s)).collect();
    Publication { jobs, replaces: None, once: once(key, fingerprint) }
}

/// Looks a request up, without sending it.
async fn recall(s: &dyn Stage, queue: &Queue, key: &str, fingerprint: u8) -> Option<Published> {
    let once = once(key, fingerprint).expect("it is some");
    ok("recall", s.engine().recall(queue, &once).await)
}

/// Sends a request whose jobs get new ids each time, as servers do.
async fn ask(s: &dyn Stage, drafts: &[Draft], key: &str, fingerprint: u8) -> Published {
    s.publication(publication(s, drafts, key, fingerprint)).await
}

/// Returns the reply to the first of equal requests.
fn replay(done: &Published) -> Published {
    match done {
        Published::Done(placed) => Published::Replay(placed.clone()),
        other => panic!("the first request should be done, and is answered {other:?}"),
    }
}

/// Guards against publishing a job twice because a reply was lost.
pub async fn a_repeated_request_gets_the_same_answer_and_does_nothing(s: &dyn Stage) {
    let q = queue("q");
    let taken = s.place(job(&q, "taken").delay(LONG).key("taken")).await;
    let drafts = [
        job(&q, "a"),
        job(&q, "b").delay(LONG).key("b"),
        job(&q, "c").key("taken"),
        job(&q, "d").key_or("d", OnConflict::Replace),
    ];
    s.place(job(&q, "old").key("d")).await;
    assert_eq!(recall(s, &q, "request", 1).await, None, "nobody has made it yet");
    let done = ask(s, &drafts, "request", 1).await;
    let Published::Done(placed) = &done else { panic!("it should be done: {done:?}") };
    assert_eq!(recall(s, &q, "request", 1).await, Some(replay(&done)), "looked up");
    assert_eq!(recall(s, &q, "request", 2).await, Some(Published::Mismatch), "another request");
    assert_eq!(recall(s, &queue("r"), "request", 1).await, None, "of another queue");
    assert_eq!((placed.len(), placed[2].id), (4, taken.id), "one answer for each: {placed:?}");
    for _ in 0..3 {
        assert_eq!(ask(s, &drafts, "request", 1).await, replay(&done), "the same answer");
    }
    assert_eq!(s.drain(&q).await, ["a", "d"], "each once");
    // Even after its job is done.
    s.ack(&dormouse::job::JobRef { queue: q.clone(), id: placed[0].id }).await;
    assert_eq!(ask(s, &drafts, "request", 1).await, replay(&done), "still the same reply");
    assert_eq!(s.size(&q).await, 0, "and nothing is published");
}

/// Guards against the reply to another request.
pub async fn another_request_with_its_key_is_refused(s: &dyn Stage) {
    let q = queue("q");
    let done = ask(s, &[job(&q, "a")], "request", 1).await;
    assert_eq!(ask(s, &[job(&q, "b")], "request", 2).await, Published::Mismatch);
    let twice = [job(&q, "b").key("k"), job(&q, "c").key("k")];
    assert_eq!(ask(s, &twice, "request", 2).await, Published::Mismatch, "whatever else is wrong with it");
    assert_eq!(s.drain(&q).await, ["a"], "nothing has changed");
    assert_eq!(ask(s, &[job(&q, "a")], "request", 1).await, replay(&done), "the first one's is kept");
    assert!(matches!(ask(s, &[job(&q, "b")], "Request", 2).await, Published::Done(_)), "another key");
}

/// Guards against idempotency keys shared by several tenants.
pub async fn requests_of_other_queues_do_not_mix(s: &dyn Stage) {
    for q in [queue_in("a", "q"), queue_in("a", "q-"), queue_in("b", "q"), queue_in("aq", "-")] {
        let done = ask(s, &[job(&q, "x")], "request", 1).await;
        assert!(matches!(done, Published::Done(_)), "{q}: {done:?}");
        assert_eq!(s.drain(&q).await, ["x"], "{q}");
    }
}

/// Guards against an error that is repeated for ten minutes although its cause has ended.
pub async fn what_failed_is_not_remembered(s: &dyn Stage) {
    let q = queue("q");
    let holder = s.place(job(&q, "holder").delay(LONG).key("k")).await;
    let drafts = [job(&q, "job").key_or("k", OnConflict::Fail)];
    let conflict = Published::Conflict { index: 0, id: holder.id };
    assert_eq!(ask(s, &drafts, "request", 1).await, conflict);
    assert_eq!(ask(s, &drafts, "request", 1).await, conflict, "asked anew");
    assert!(ok("cancel_key", s.engine().cancel_key(&q, &job_key("k")).await));
    let mut same_id = publication(s, &drafts, "request", 1);
    let stored = s.put(job(&q, "stored")).await;
    same_id.jobs[0].job.id = stored.id;
    let refused = s.engine().publish(same_id).await;
    assert!(refused.is_err(), "the id is taken: {refused:?}");
    let done = ask(s, &drafts, "request", 1).await;
    assert!(matches!(done, Published::Done(_)), "nothing is in its way now: {done:?}");
    assert_eq!(ask(s, &drafts, "request", 1).await, replay(&done));
}

/// Guards against a republish that acks or publishes twice.
pub async fn a_republish_is_safe_to_repeat(s: &dyn Stage) {
    let q = queue("q");
    let old = s.put(job(&q, "old")).await;
    let request = |body| {
        let publication = publication(s, &[job(&q, body)], "request", 1);
        Publication { replaces: Some(old.name()), ..publication }
    };
    let done = s.publication(request("new")).await;
    assert_eq!(s.find(&old).await, None, "it was acked");
    assert_eq!(s.publication(request("new")).await, replay(&done));
    assert_eq!(s.drain(&q).await, ["new"], "once");
}

/// Guards against a store that fills up with remembered requests, and against one that forgets too soon.
pub async fn a_request_is_forgotten_in_the_end(s: &dyn Stage) {
    // Real stores would need to wait for ten minutes.
    if !s.differences().virtual_time {
        return;
    }
    let (q, minute) = (queue("q"), Duration::from_secs(60));
    let done = ask(s, &[job(&q, "a")], "request", 1).await;
    s.pass(REMEMBERED - minute).await;
    assert_eq!(ask(s, &[job(&q, "a")], "request", 1).await, replay(&done), "after nine minutes");
    s.pass(2 * minute).await;
    let again = ask(s, &[job(&q, "a")], "request", 2).await;
    assert!(matches!(again, Published::Done(_)), "after eleven minutes: {again:?}");
    assert_eq!(ask(s, &[job(&q, "a")], "request", 2).await, replay(&again), "and for ten minutes more");
    assert_eq!(s.drain(&q).await, ["a", "a"]);
}

/// Guards against two servers that both execute one request.
pub async fn one_of_many_equal_requests_is_done(s: &dyn Stage) {
    let q = queue("q");
    let mut calls = Vec::new();
    for _ in 0..30 {
        let (engine, request) = (s.engine(), publication(s, &[job(&q, "a"), job(&q, "b")], "request", 1));
        calls.push(tokio::spawn(async move { engine.publish(request).await }));
    }
    let (mut done, mut replays) = (Vec::new(), Vec::new());
    for call in calls {
        match ok("publish", call.await.expect("publish does not panic")) {
            Published::Done(placed) => done.push(placed),
            Published::Replay(placed) => replays.push(placed),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(done.len(), 1, "one is done");
    assert!(replays.iter().all(|placed| *placed == done[0]), "the others get its answer");
    assert_eq!(s.drain(&q).await, ["a", "b"], "once");
}
