//! Laws of reading: peek, inspect and size show the current state and change nothing.

use std::time::Duration;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

/// Guards against a peek that takes a job, or that shows another job than the next one.
pub async fn peek_shows_what_consume_would_give_and_changes_nothing(s: &dyn Stage) {
    let q = queue("q");
    let draft = job(&q, "1").ttl(LONG).tries(3).versioned().attributes(&[("a", "b")]);
    let new = s.put(draft).await;
    s.put(job(&q, "2")).await;
    for _ in 0..3 {
        let seen = s.peek(&q).await.expect("a job is ready");
        assert_eq!((&seen.queue, seen.id, &seen.body), (&q, new.id, &new.body), "the head");
        assert_eq!(seen.attributes, new.attributes, "its attributes");
        assert_eq!((seen.tries_left, seen.receipt), (3, 0), "three tries still, and no hand-over");
        assert!(seen.ttl.is_some_and(|ttl| ttl <= LONG + s.differences().slack), "its ttl: {:?}", seen.ttl);
    }
    let taken = s.take(&q, 9, LONG).await;
    assert_eq!(bodies(&taken), ["1", "2"], "both are still there, in order");
    assert_eq!(taken[0].tries_left, 2, "peek took no try");
}

/// Guards against showing jobs that cannot be consumed.
pub async fn peek_sees_ready_jobs_only(s: &dyn Stage) {
    assert_eq!(s.peek(&queue("never")).await, None, "nothing was published");
    for (state, new) in s.one_in_each_state().await {
        let seen = s.peek(&new.queue).await.map(|j| j.id);
        let expected = (state == "ready").then_some(new.id);
        assert_eq!(seen, expected, "peek at a queue whose only job is {state}");
    }
}

/// Guards against a deleted head that hides the next job.
pub async fn peek_skips_acked_and_expired_heads(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.put_all((0..150).map(|i| job(&q, i.to_string()))).await;
    s.put(job(&q, "expires").ttl(SHORT)).await;
    s.put(job(&q, "live")).await;
    for new in &jobs {
        s.ack(new).await;
    }
    s.advance(SHORT + Duration::from_millis(1)).await;
    assert_eq!(s.peek(&q).await.map(|j| j.body), Some("live".into()), "what consume would give");
    assert_eq!(s.drain(&q).await, ["live"], "consume agrees");
}

/// Guards against jobs that cannot be found while they are delayed, running or dead.
pub async fn inspect_finds_a_job_in_every_state(s: &dyn Stage) {
    for (state, new) in s.one_in_each_state().await {
        for _ in 0..2 {
            let read = s.find(&new).await.unwrap_or_else(|| panic!("a {state} job is found by its id"));
            assert_eq!((&read.queue, read.id, &read.body), (&new.queue, new.id, &new.body), "{state}");
            assert_eq!((read.tries_left, read.receipt), (0, 0), "{state}: tries are not shown here");
            assert_eq!(read.ttl.is_none(), state == "dead", "{state}: ttl {:?}", read.ttl);
        }
    }
    let unknown = job(&queue("ready"), "unknown").make(s);
    assert_eq!(s.find(&unknown).await, None, "an unknown id");
}

/// Guards against finding a job in any queue by its id.
pub async fn inspect_knows_the_queue(s: &dyn Stage) {
    let new = s.put(job(&queue("q"), "job")).await;
    for elsewhere in [queue("other"), queue_in("other", "q")] {
        let name = dormouse::job::JobRef { queue: elsewhere, id: new.id };
        assert_eq!(
            ok("inspect_stored", s.engine().inspect_stored(&name).await),
            None,
            "the id is not in {}",
            name.queue
        );
        ok("ack", s.engine().ack_job(name).await);
    }
    assert!(s.find(&new).await.is_some(), "acks of the same id elsewhere do not reach it");
}

/// Guards against sizes that include jobs which cannot be consumed.
pub async fn size_counts_ready_jobs_only(s: &dyn Stage) {
    assert_eq!(s.size(&queue("never")).await, 0, "nothing was published");
    for (state, new) in s.one_in_each_state().await {
        assert_eq!(s.size(&new.queue).await, u64::from(state == "ready"), "one job that is {state}");
    }
    let q = queue("q");
    let jobs = s.put_all((0..70).map(|i| job(&q, i.to_string()))).await;
    assert_eq!(s.size(&q).await, 70, "published");
    s.take(&q, 20, LONG).await;
    assert_eq!(s.size(&q).await, 50, "20 of 70 run");
    s.ack(&jobs[69]).await;
    let size = s.size(&q).await;
    let expected = if s.differences().exact_sizes { 49..=49 } else { 49..=50 };
    assert!(expected.contains(&size), "{size} after one of 50 was acked, expected {expected:?}");
}
