//! Laws of ttl: it counts from the publish, and dead jobs do not expire.

use std::time::{Duration, Instant};

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

const MS: Duration = Duration::from_millis(1);

/// Guards against a time to live that restarts when the job is due, delivered, or returned.
pub async fn ttl_is_counted_from_publish(s: &dyn Stage) {
    let q = queue("q");
    // In virtual time the store's clock is exact. For a real store we measure the time ourselves.
    let (before, began) = (s.engine().now(), Instant::now());
    s.put(job(&q, "job").delay(SHORT).ttl(LONG).tries(9)).await;
    for times in 1..=3 {
        s.pass(SHORT).await;
        let left = s.take_one(&q, SHORT).await.ttl.expect("a ttl was given");
        let most = LONG - SHORT * times + s.differences().slack;
        let spent = Duration::from_millis(s.engine().now() - before).max(began.elapsed());
        let spent = spent + s.differences().slack;
        assert!(left <= most, "{left:?} left after {times} times {SHORT:?}, at most {most:?} expected");
        assert!(left + spent >= LONG, "{left:?} left, though only {spent:?} were spent");
    }
}

/// Checks that no read or consume finds a job.
pub async fn is_gone(s: &dyn Stage, new: &dormouse::job::NewJob, what: &str) {
    let q = &new.queue;
    assert_eq!(s.find(new).await, None, "{what} by id");
    assert_eq!(s.peek(q).await, None, "{what} by peek");
    assert_eq!(s.take(q, 9, LONG).await, [], "{what} by consume");
    if s.differences().exact_sizes {
        assert_eq!((s.size(q).await, s.dead(q).await), (0, 0), "ready and dead after {what}");
    }
    assert_eq!(ok("respawn", s.engine().respawn_oldest(q, 9, None).await), 0, "{what} by respawn");
}

/// Guards against ready jobs that outlive their ttl.
pub async fn a_ready_job_expires(s: &dyn Stage) {
    let new = s.put(job(&queue("q"), "job").ttl(s.life())).await;
    assert!(s.find(&new).await.is_some(), "it lives");
    s.advance(s.life() + MS).await;
    is_gone(s, &new, "an expired ready job").await;
}

/// Guards against delivering a job that becomes due and expires at the same time.
pub async fn a_delayed_job_expires(s: &dyn Stage) {
    let new = s.put(job(&queue("q"), "job").ttl(SHORT * 2).delay(SHORT)).await;
    let equal = s.put(job(&queue("r"), "job").ttl(SHORT * 2).delay(SHORT * 2)).await;
    s.advance(SHORT * 2 + MS).await;
    for when in ["before the pump", "after it"] {
        is_gone(s, &new, &format!("an expired delayed job {when}")).await;
        is_gone(s, &equal, &format!("a job whose delay is its ttl {when}")).await;
        s.pump().await;
    }
}

/// Guards against redelivering a running job after it expired.
pub async fn a_running_job_expires_and_does_not_come_back(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put(job(&q, "job").ttl(s.life()).tries(5)).await;
    let taken = s.take(&q, 1, SHORT).await;
    assert_eq!(taken.len(), 1, "it was ready");
    s.advance(s.life() + MS).await;
    s.give_back(&taken).await;
    is_gone(s, &new, "an expired running job given back").await;
    s.pump().await;
    is_gone(s, &new, "an expired running job after its ttr").await;
}

/// Guards against a dead letter without a body.
pub async fn an_expired_running_job_does_not_die(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put(job(&q, "job").ttl(s.life())).await;
    s.take_one(&q, s.life() / 2).await;
    s.pass(s.life() + MS).await;
    assert_eq!(s.dead(&q).await, 0, "it expired before it could die");
    is_gone(s, &new, "a job that expired on its last try").await;
}

/// Guards against a dead letter that loses its jobs before an operator has seen them.
pub async fn a_dead_job_does_not_expire(s: &dyn Stage) {
    let q = queue("q");
    let new = s.kill(&q, [job(&q, "job").ttl(s.life())]).await.remove(0);
    s.pass(s.life() + MS).await;
    let read = s.find(&new).await.expect("a dead job stays");
    assert_eq!((read.body, read.ttl), (new.body, None), "it has no ttl");
    assert_eq!(ok("respawn", s.engine().respawn_oldest(&q, 1, None).await), 1, "and can be respawned");
    assert_eq!(s.drain(&q).await, ["job"], "and consumed");
}

/// Guards against "forever" read as "at once".
pub async fn a_job_without_ttl_stays(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put(job(&q, "job").tries(2)).await;
    for _ in 0..2 {
        assert_eq!(s.find(&new).await.map(|j| j.ttl), Some(None), "forever by id");
        assert_eq!(s.take_one(&q, SHORT).await.ttl, None, "forever by consume");
        s.pass(SHORT).await;
    }
}
