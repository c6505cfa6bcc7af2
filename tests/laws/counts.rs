//! Laws of the numbers of delayed and running jobs.

use std::num::NonZeroU16;
use std::time::Duration;

use dormouse::engine::{
    By, OnConflict, Promoted, Publication, Published, Release, Revival, Revived, together,
};
use dormouse::job::NewJob;
use dormouse::name::Queue;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;
use crate::support::wait::until;

/// Waits until a queue has these numbers of delayed and running jobs, in its list and in the store's statistics.
async fn counts(s: &dyn Stage, q: &Queue, expected: [u64; 2], after: &str) {
    let mut seen = None;
    let began = tokio::time::Instant::now();
    loop {
        let stats = ok("stats", s.engine().stats().await);
        let size = stats.queues.iter().find(|size| size.queue == *q).map(|size| [size.delayed, size.running]);
        let view = s.queue_view(q).await.map(|view| [view.delayed, view.running]);
        let both = (view, size);
        if both == (Some(expected.map(Some)), Some(expected.map(Some))) {
            return;
        }
        assert!(
            began.elapsed() < TIMEOUT,
            "after {after} {q} should have {expected:?} delayed and running jobs, listed and in the statistics, but \
             has {both:?}"
        );
        if seen.replace(both) == Some(both) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn promote(s: &dyn Stage, job: &NewJob) {
    let promoted = ok("promote", s.engine().promote(&job.queue, By::Id(job.id)).await);
    assert_eq!(promoted, Promoted::Done, "{:?} is delayed", job.id);
}

/// Guards against verbs that lose count of a queue's jobs.
pub async fn delayed_and_running_jobs_are_counted(s: &dyn Stage) {
    let (q, other) = (queue("q"), queue("other"));
    let mut delayed = s.put_all((0..6).map(|n| job(&q, n.to_string()).tries(3).delay(LONG))).await;
    s.put(job(&other, "beside").delay(LONG)).await;
    counts(s, &q, [6, 0], "a publish of six delayed jobs").await;
    let mut next = || delayed.remove(0);
    promote(s, &next()).await;
    counts(s, &q, [5, 0], "a promote").await;
    let held = s.take_one(&q, LONG).await;
    counts(s, &q, [5, 1], "a consume").await;
    s.touch(&held, held.proof(), LONG * 2).await;
    counts(s, &q, [5, 1], "a touch").await;
    s.give_back(std::slice::from_ref(&held)).await;
    let touched = s.take(&q, 1, LONG).await;
    // A touched delivery has another receipt, so that it is not given back.
    counts(s, &q, [5, 1], "a give-back of an earlier delivery").await;
    assert_eq!(touched, [], "nothing was given back");
    s.ack(&held).await;
    counts(s, &q, [5, 0], "an ack of a running job").await;
    s.ack(&next()).await;
    counts(s, &q, [4, 0], "an ack of a delayed job").await;
    promote(s, &next()).await;
    let held = s.take_one(&q, LONG).await;
    s.give_back(std::slice::from_ref(&held)).await;
    counts(s, &q, [3, 0], "a give-back").await;
    let held = s.take_one(&q, LONG).await;
    s.release(&held, held.proof(), Release { delay: LONG, ..Release::default() }).await;
    counts(s, &q, [4, 0], "a release with a delay").await;
    promote(s, &next()).await;
    let held = s.take_one(&q, LONG).await;
    s.release(&held, held.proof(), Release::default()).await;
    counts(s, &q, [3, 0], "a release").await;
    let held = s.take_one(&q, LONG).await;
    assert!(s.ack_held(&held, held.proof()).await, "its delivery is current");
    counts(s, &q, [3, 0], "an ack with a receipt").await;
    promote(s, &next()).await;
    let held = s.take_one(&q, LONG).await;
    s.bury(&held, held.proof(), None).await;
    counts(s, &q, [2, 0], "a bury").await;
    let revival = Revival { tries: NonZeroU16::MIN, delay: LONG, ttl: None };
    let revived = ok("respawn_jobs", s.engine().respawn_jobs(&q, &[held.id], revival).await);
    assert!(matches!(revived[..], [Revived::Done { .. }]), "{revived:?}");
    counts(s, &q, [3, 0], "a respawn with a delay").await;
    let both: Vec<_> = [held.id, next().id].into_iter().map(|id| (id, None)).collect();
    ok("ack", s.engine().ack(&q, &both).await);
    counts(s, &q, [1, 0], "an ack of two delayed jobs").await;
    counts(s, &other, [1, 0], "calls of another queue").await;
}

/// Guards against keys and republishes that lose count of the jobs that they replace.
pub async fn replaced_and_cancelled_jobs_are_no_longer_counted(s: &dyn Stage) {
    let q = queue("q");
    let keyed = |key: &str| job(&q, key).key_or(key, OnConflict::Replace).tries(2);
    s.place_all(["a", "b"].map(|key| keyed(key).delay(LONG))).await;
    counts(s, &q, [2, 0], "a publish of two keys").await;
    s.place(keyed("a").delay(LONG)).await;
    counts(s, &q, [2, 0], "a replacement").await;
    s.place(keyed("b")).await;
    counts(s, &q, [1, 0], "a replacement that is ready").await;
    let held = s.take_one(&q, LONG).await;
    counts(s, &q, [1, 1], "a consume").await;
    for key in ["a", "b"] {
        assert!(ok("cancel_key", s.engine().cancel_key(&q, &job_key(key)).await), "{key} is taken");
    }
    counts(s, &q, [0, 0], "a cancel of a delayed and of a running job").await;
    assert_eq!(s.find(&held).await, None, "it is cancelled");
    s.put(job(&q, "runs")).await;
    let old = s.take_one(&q, LONG).await;
    let late = s.put(job(&q, "late").delay(LONG)).await;
    for (state, old) in [("running", old.name()), ("delayed", late.name())] {
        let publication =
            Publication { replaces: Some(old), ..vec![job(&q, "new").delay(LONG).make(s)].into() };
        let published = ok("republish", s.engine().publish(publication).await);
        assert!(matches!(published, Published::Done(_)), "{published:?}");
        counts(s, &q, [2, 0], &format!("a republish of a {state} job")).await;
    }
}

/// Guards against a pump that loses count of due jobs.
pub async fn due_jobs_are_no_longer_counted(s: &dyn Stage) {
    let (q, dies) = (queue("q"), queue("dies"));
    s.put(job(&q, "stays").delay(LONG)).await;
    s.put(job(&q, "due").delay(SHORT)).await;
    s.put_all([job(&q, "returns").tries(2), job(&dies, "dies")]).await;
    s.take_one(&q, SHORT).await;
    s.take_one(&dies, SHORT).await;
    let deleted = s.put(job(&dies, "deleted")).await;
    s.take_one(&dies, LONG).await;
    s.pass(SHORT).await;
    counts(s, &q, [1, 0], "a pump of a delayed and of a running job").await;
    counts(s, &dies, [0, 1], "a pump of a job that died").await;
    s.ack(&deleted).await;
    counts(s, &dies, [0, 0], "an ack").await;
    assert_eq!((s.dead(&dies).await, s.size(&q).await), (1, 2), "one died, and two are ready");
}

/// Guards against acks and consumes of many jobs that are counted once.
pub async fn jobs_of_one_call_are_each_counted(s: &dyn Stage) {
    let (a, b) = (queue("a"), queue("b"));
    s.put_all((0..5).map(|n| job(&a, n.to_string()).tries(2))).await;
    s.put_all((0..3).map(|n| job(&b, n.to_string()).tries(2))).await;
    let mut held = s.take(&a, 5, LONG).await;
    held.extend(s.take(&b, 3, LONG).await);
    counts(s, &a, [0, 5], "a consume of five").await;
    counts(s, &b, [0, 3], "a consume of three").await;
    s.give_back(&held[3..6]).await;
    counts(s, &a, [0, 3], "a give-back of two").await;
    counts(s, &b, [0, 2], "a give-back of one").await;
    // At once, so that a store may combine them.
    let acks = held[..3].iter().chain(&held[6..]).map(|job| s.ack(job));
    together::all(acks).await;
    counts(s, &a, [0, 0], "acks of three").await;
    counts(s, &b, [0, 0], "acks of two").await;
    until("both are ready", async || (s.size(&a).await, s.size(&b).await) == (2, 1)).await;
}
