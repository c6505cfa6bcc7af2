//! Laws of the store as a whole: health check, statistics, closing.

use std::time::{Duration, Instant};

use dormouse::clock::Millis;
use dormouse::engine::delays::{DelayCount, DelayedOf, Delays};
use dormouse::engine::{Held, Listing, QueueSize, Release, Released};
use dormouse::error::{Error, Result};
use dormouse::name::Queue;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

/// Guards against a health check that fails while all is well, or that leaves something behind.
pub async fn check_is_fine(s: &dyn Stage) {
    for _ in 0..3 {
        ok("check", s.engine().check().await);
    }
    assert_eq!(ok("queues", s.engine().queues().await), [], "a check publishes nothing");
    assert_eq!(ok("stats", s.engine().stats().await).timers, 0, "a check arms nothing");
}

/// Guards against wrong gauges.
pub async fn stats_count_timers_ready_and_dead(s: &dyn Stage) {
    assert_eq!(ok("stats", s.engine().stats().await).timers, 0, "an empty store");
    let (a, b) = (queue_in("a", "q"), queue_in("b", "q"));
    s.kill(&a, ["1", "2"].map(|body| job(&a, body))).await;
    s.put_all((0..5).map(|i| job(&a, i.to_string()))).await;
    s.take(&a, 2, LONG).await;
    s.put(job(&b, "delayed").delay(LONG)).await;
    let stats = ok("stats", s.engine().stats().await);
    assert_eq!(stats.timers, 3, "two run and one is delayed");
    for (q, expected) in [(&a, (3, 2)), (&b, (0, 0))] {
        let of: Vec<_> = stats.queues.iter().filter(|size| size.queue == *q).collect();
        assert_eq!(of.len(), 1, "{q} is listed once: {:?}", stats.queues);
        assert_eq!((of[0].ready, of[0].dead), expected, "ready and dead of {q}");
    }
    let of_a = stats.queues.iter().find(|size| size.queue == a).expect("it is listed");
    let of_b = stats.queues.iter().find(|size| size.queue == b).expect("it is listed");
    if of_a.running.is_some() {
        let known = |size: &QueueSize| (size.delayed, size.running);
        assert_eq!(
            (known(of_a), known(of_b)),
            ((Some(0), Some(2)), (Some(1), Some(0))),
            "delayed and running"
        );
    }
}

/// Guards against a queue without consumers, or a pump that falls behind, that no gauge shows.
pub async fn stats_say_how_late_it_is(s: &dyn Stage) {
    let (q, late) = (queue("q"), Duration::from_millis(1300));
    s.put(job(&q, "delayed").delay(SHORT)).await;
    s.put(job(&q, "ready")).await;
    s.advance(late).await;
    let slack = s.differences().slack;
    let (least, began) = (late - SHORT - slack, Instant::now());
    // The clock of another node of a cluster is an estimate, and behind for as long as a reply was under way.
    loop {
        let stats = ok("stats", s.engine().stats().await);
        let oldest = stats.queues.iter().find(|size| size.queue == q).and_then(|size| size.oldest_ready);
        let seen = (oldest, stats.overdue);
        let most = late + TIMEOUT;
        assert!(seen.0 < Some(most) && seen.1 < Some(most), "this did not happen so long ago: {seen:?}");
        if oldest >= Some(late - slack) && stats.overdue >= Some(least) {
            break;
        }
        let what = format!("a job is ready for {late:?} and a timer ended {least:?} ago");
        assert!(began.elapsed() < TIMEOUT, "{what}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    s.pump().await;
    assert_eq!(s.drain(&q).await.len(), 2, "both are ready");
    let stats = ok("stats", s.engine().stats().await);
    let oldest = stats.queues.iter().find(|size| size.queue == q).and_then(|size| size.oldest_ready);
    assert_eq!((oldest, stats.overdue), (None, None), "nothing is ready, and nothing due");
}

/// Guards against reporting a consumed queue as without consumers, and the opposite.
pub async fn stats_tell_the_head_from_other_jobs(s: &dyn Stage) {
    let (q, other) = (queue("q"), queue("other"));
    let head = async |q: &Queue| {
        let stats = ok("stats", s.engine().stats().await);
        stats.queues.iter().find(|size| size.queue == *q).and_then(|size| size.head)
    };
    s.put_all((0..3).map(|i| job(&q, i.to_string()).tries(9))).await;
    s.put(job(&other, "x")).await;
    let (first, of_other) = (head(&q).await, head(&other).await);
    assert!(first.is_some() && of_other.is_some(), "both have ready jobs: {first:?} {of_other:?}");
    s.put(job(&q, "behind").tries(9)).await;
    s.advance(SHORT).await;
    assert_eq!(head(&q).await, first, "a new job is behind it");
    let held = s.take_one(&q, LONG).await;
    let second = head(&q).await;
    assert!(second.is_some() && second != first, "another job is at the head: {second:?}");
    assert_eq!(head(&other).await, of_other, "the other queue is unchanged");
    s.advance(Duration::from_millis(5)).await;
    let released = s.release(&held, held.proof(), dormouse::engine::Release::default()).await;
    assert!(matches!(released, dormouse::engine::Held::Done(_)), "it is held: {released:?}");
    let back = head(&q).await;
    // The same job: a store may distinguish its deliveries, but need not.
    assert!(back.is_some() && back != second, "it returned to the head: {back:?}");
    s.drain(&q).await;
    assert_eq!(head(&q).await, None, "nothing is ready");
}

/// Guards against a forecast that omits jobs, counts them twice, or includes other queues' jobs.
pub async fn delays_are_counted_by_when_they_end(s: &dyn Stage) {
    const HOUR: Millis = 3_600_000;
    let (a, b, other) = (queue_in("a", "q"), queue_in("a", "r"), queue_in("ab", "q"));
    let hours = |n: u64| Duration::from_secs(3600 * n);
    s.put_all([1, 1, 3].map(|n| job(&a, "delayed").delay(hours(n)))).await;
    s.put_all([1, 50].map(|n| job(&b, "delayed").delay(hours(n)))).await;
    s.put(job(&other, "delayed").delay(hours(2))).await;
    // None of these is delayed except the first, which is due.
    s.put(job(&a, "overdue").delay(SHORT).tries(2)).await;
    s.put_all(["ready", "running", "acked"].map(|body| job(&b, body).tries(2))).await;
    s.take(&b, 2, LONG).await;
    let acked = s.put(job(&a, "acked").delay(hours(1))).await;
    s.ack(&acked).await;
    s.advance(SHORT).await;
    let counted = async |of: DelayedOf, most: usize| {
        let count = DelayCount { of, step: HOUR, most };
        ok("delays", s.engine().delays(&count).await)
    };
    let all = counted(DelayedOf::All, 100).await;
    let slack = ms(s.differences().slack);
    assert!(all.now.abs_diff(s.engine().now()) <= slack + ms(TIMEOUT), "by the store's clock: {}", all.now);
    let parts =
        |delays: &Delays| (delays.overdue, delays.steps.values().copied().collect::<Vec<_>>(), delays.later);
    // An hour starts between now and then: jobs with the same delay are in two intervals only if the test started at
    // the end of an hour.
    assert_eq!((all.overdue, all.later, all.delayed()), (1, 0, 7), "all of them: {all:?}");
    assert!(all.steps.keys().all(|begins| begins % HOUR == 0), "whole steps: {all:?}");
    assert!(all.steps.values().all(|jobs| *jobs > 0), "none is empty: {all:?}");
    let last = *all.steps.keys().next_back().expect("some");
    assert!((48..=50).contains(&((last - all.now / HOUR * HOUR) / HOUR)), "the last in 50 hours: {all:?}");
    let first = counted(DelayedOf::All, 1).await;
    assert_eq!(first.steps.first_key_value(), all.steps.first_key_value(), "the first step");
    assert_eq!((first.steps.len(), first.delayed()), (1, 7), "and the rest is later: {:?}", parts(&first));
    for (of, expected) in [
        (DelayedOf::Namespace(a.namespace.clone()), 6),
        (DelayedOf::Namespace(other.namespace.clone()), 1),
        (DelayedOf::Queue(a.clone()), 4),
        (DelayedOf::Queue(b.clone()), 2),
        (DelayedOf::Queue(queue("nothing")), 0),
    ] {
        let some = counted(of.clone(), 100).await;
        assert_eq!(some.delayed(), expected, "of {of:?}: {some:?}");
    }
}

/// Guards against jobs counted twice or omitted at the boundary of two reads, even among many that are due together.
pub async fn delays_of_many_jobs_are_counted_in_parts(s: &dyn Stage) {
    let q = queue("q");
    s.put_all((0..2100).map(|n| job(&q, "x").delay(Duration::from_secs(10 + 40 * (n % 3))))).await;
    let count = DelayCount { of: DelayedOf::Queue(q), step: 60_000, most: 100 };
    let delays = ok("delays", s.engine().delays(&count).await);
    assert_eq!(delays.delayed(), 2100, "{delays:?}");
}

/// Guards against a lateness that includes the delay, or the ttr of the previous delivery.
pub async fn a_job_says_when_it_was_due(s: &dyn Stage) {
    let (q, slack) = (queue("q"), ms(s.differences().slack));
    let new = s.put(job(&q, "job").delay(Duration::from_secs(1)).tries(9)).await;
    let (made, published) = (new.id.published_at(), s.engine().now());
    s.pass(Duration::from_millis(1200)).await;
    let first = s.take_one(&q, SHORT).await;
    // Some stores count the delay from the publish, others from its id, which is made before that.
    let due = made + 1000 - slack..=published.max(made) + 1000 + slack;
    assert!(due.contains(&first.due), "due at {due:?} by its delay: {}", first.due);
    let ends = s.engine().now() + ms(SHORT);
    s.pass(Duration::from_millis(300)).await;
    let second = s.take_one(&q, LONG).await;
    let latest = ends + slack;
    assert!(
        (first.due + ms(SHORT)..=latest).contains(&second.due),
        "due by {latest} at the end of its ttr: {}",
        second.due
    );
    let release = Release { delay: Duration::from_millis(200), ..Release::default() };
    let before = s.engine().now();
    let Held::Done(Released::Back { due_at, .. }) = s.release(&new, second.proof(), release).await else {
        panic!("the hand-over stands")
    };
    assert!(due_at + slack >= before + 200, "released at {before} for 200 ms, until {due_at}");
    s.pass(Duration::from_millis(300)).await;
    assert_eq!(s.take_one(&q, LONG).await.due, due_at, "at the end of its release");
}

fn closed<T: std::fmt::Debug>(what: &str, answer: Result<T>) {
    assert!(matches!(answer, Err(Error::Closed)), "{what} after close answered {answer:?}");
}

/// Guards against calls that hang, or seem to work, while the server shuts down.
pub async fn after_close_every_call_says_closed(s: &dyn Stage) {
    let (q, engine) = (queue("q"), s.engine());
    let stored = s.put(job(&q, "job")).await;
    let taken = s.take(&q, 1, LONG).await;
    engine.close().await;
    closed("publish", engine.publish(vec![job(&q, "new").make(s)].into()).await);
    closed("republish", engine.republish(stored.name(), job(&q, "new").make(s)).await);
    closed("consume", consume(&*engine, &q.clone().into(), &[LONG]).await);
    closed("give_back", engine.give_back(taken).await);
    closed("ack", engine.ack_job(stored.name()).await);
    closed("peek", engine.peek(&q).await);
    closed("inspect_stored", engine.inspect_stored(&stored.name()).await);
    closed("size", engine.ready(&q).await);
    closed("destroy", engine.destroy(&q, Listing::Keep).await);
    closed("dead_letter", engine.dead_letter(&q).await);
    closed("respawn", engine.respawn_oldest(&q, 1, None).await);
    closed("delete_dead", engine.delete_dead(&q, 1).await);
    closed("pump", engine.pump().await);
    closed("stats", engine.stats().await);
    closed("check", engine.check().await);
}

/// Guards against a second signal that hangs or panics, and against calls that end without a reply.
pub async fn close_twice_is_fine(s: &dyn Stage) {
    let q = queue("q");
    let mut calls = Vec::new();
    for i in 0..20 {
        let (engine, new) = (s.engine(), job(&q, i.to_string()).make(s));
        calls.push(tokio::spawn(async move { engine.publish(vec![new].into()).await }));
    }
    s.engine().close().await;
    s.engine().close().await;
    for call in calls {
        let answer = call.await.expect("publish does not panic");
        assert!(matches!(answer, Ok(_) | Err(Error::Closed)), "a call during close answered {answer:?}");
    }
}
