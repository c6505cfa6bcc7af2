//! Laws of pauses: nothing is delivered, everything else works, and all consumers are served when it ends.

use std::time::Duration;

use dormouse::engine::{MAX_PAUSED, Pause, Pausing};
use dormouse::error::Error;
use dormouse::name::Queue;

use super::notifier::{is_told, waiting};
use crate::stage::*;
use crate::support::engine_ext::EngineExt;

async fn pause(s: &dyn Stage, queue: &Queue, time: Option<Duration>) -> Pause {
    ok("pause", s.engine().pause_for(queue, time).await)
}

async fn resume(s: &dyn Stage, queue: &Queue) {
    ok("resume", s.engine().resume(queue).await);
}

/// Guards against delivering jobs during a pause, and against a pause that stops anything else.
pub async fn a_paused_queue_hands_out_nothing(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["a", "b"].map(|body| job(&q, body).tries(3))).await;
    let held = s.take_one(&q, LONG).await;
    assert_eq!(pause(s, &q, None).await, Pause { until: None });
    let taken = ok("consume", s.engine().consume(&q.clone().into(), &[LONG; 9]).await);
    assert_eq!((taken.jobs, taken.more), (vec![], false), "it looks empty");
    assert_eq!(s.peek(&q).await.map(|job| job.body), Some("b".into()), "but it is not");
    s.put(job(&q, "c").delay(SHORT)).await;
    s.give_back(&[held]).await;
    s.pass(SHORT).await;
    assert_eq!((s.size(&q).await, s.take(&q, 9, LONG).await), (3, vec![]), "everything else works");
    resume(s, &q).await;
    assert_eq!(s.drain(&q).await, ["a", "b", "c"]);
}

/// Guards against one paused queue that stops the others of its consumers.
pub async fn other_queues_go_on(s: &dyn Stage) {
    for name in ["a", "b", "c"] {
        s.put(job(&queue(name), name)).await;
    }
    s.put(job(&queue_in("other", "b"), "other")).await;
    pause(s, &queue("b"), None).await;
    let taken = s.take_from(&queue_list(&["a", "b", "c"]), &[LONG; 9]).await;
    assert_eq!(bodies(&taken), ["a", "c"]);
    assert_eq!(s.drain(&queue_in("other", "b")).await, ["other"], "of another namespace");
    resume(s, &queue("b")).await;
    assert_eq!(s.drain(&queue("b")).await, ["b"]);
}

/// Guards against consumers that sleep beside jobs which they may have.
pub async fn a_pause_ends_when_it_is_told(s: &dyn Stage) {
    let q = queue("q");
    // Also of a queue without any jobs yet, and twice.
    for _ in 0..2 {
        pause(s, &q, None).await;
    }
    s.put(job(&q, "job")).await;
    assert_eq!(s.take(&q, 1, LONG).await, []);
    let notified = waiting(s, &q).await;
    resume(s, &q).await;
    is_told(&notified, &q, "resume").await;
    assert_eq!(s.drain(&q).await, ["job"]);
    resume(s, &q).await;
    resume(s, &queue("unknown")).await;
}

/// Guards against a pause that its end does not end, for the queue or for its consumers.
pub async fn a_pause_ends_by_itself(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job")).await;
    let before = s.engine().now();
    let until = pause(s, &q, Some(LIFE)).await.until.expect("it ends");
    let slack = ms(s.differences().slack);
    assert!(until + slack >= before + ms(LIFE), "paused at {before} for a second, until {until}");
    s.pump().await;
    let pumped = ok("pump", s.engine().pump().await);
    assert!(pumped.next <= LIFE, "the pump looks again when it ends: {pumped:?}");
    assert_eq!(s.take(&q, 1, LONG).await, []);
    let notified = waiting(s, &q).await;
    s.pass(LIFE).await;
    is_told(&notified, &q, "the end of a pause").await;
    assert_eq!(s.drain(&q).await, ["job"]);
    assert_eq!(s.queue_view(&q).await.and_then(|view| view.paused), None);
}

/// Guards against an end of a pause that has been replaced.
pub async fn a_second_pause_takes_the_place_of_the_first(s: &dyn Stage) {
    let (a, b) = (queue("a"), queue("b"));
    for q in [&a, &b] {
        s.put(job(q, q.to_string())).await;
    }
    pause(s, &a, None).await;
    pause(s, &a, Some(SHORT)).await;
    pause(s, &b, Some(SHORT)).await;
    pause(s, &b, None).await;
    s.pass(SHORT).await;
    assert_eq!(s.drain(&a).await, ["ns/a"], "the second one has ended");
    assert_eq!(s.drain(&b).await, [""; 0], "the second one has no end");
    resume(s, &b).await;
    pause(s, &b, Some(SHORT)).await;
    resume(s, &b).await;
    pause(s, &b, None).await;
    s.pass(SHORT).await;
    assert_eq!(s.drain(&b).await, [""; 0], "the end of a pause that was resumed ends no other");
}

/// Guards against a stopped queue without a visible cause.
pub async fn a_pause_is_shown(s: &dyn Stage) {
    let (q, unknown) = (queue("q"), queue("unknown"));
    s.put(job(&q, "job")).await;
    let shown = async |q: &Queue| {
        let shown = s.queue_view(q).await.and_then(|view| view.paused);
        assert_eq!(ok("pauses", s.engine().pauses().await).get(q).copied(), shown, "{q} among all pauses");
        shown
    };
    assert_eq!(shown(&q).await, None);
    for q in [&q, &unknown] {
        for time in [None, Some(LONG)] {
            let paused = pause(s, q, time).await;
            assert_eq!(paused.until.is_some(), time.is_some(), "{paused:?}");
            assert_eq!(shown(q).await, Some(paused), "of {q}, as it was set");
        }
        resume(s, q).await;
        assert_eq!(shown(q).await, None, "{q} was resumed");
        pause(s, q, Some(SHORT)).await;
        s.pass(SHORT).await;
        assert_eq!(shown(q).await, None, "the pause of {q} has ended");
    }
}

/// Guards against one namespace that has every server remember names without bound.
pub async fn a_namespace_has_so_many_paused_queues_at_most(s: &dyn Stage) {
    let numbered = |n: usize| queue(&format!("q{n}"));
    let pauses: Vec<_> = (0..MAX_PAUSED)
        .map(|n| {
            let engine = s.engine();
            tokio::spawn(async move { engine.pause(&numbered(n), Pausing::UntilResumed).await })
        })
        .collect();
    for pause in pauses {
        ok("pause", pause.await.expect("no panic"));
    }
    let refused = s.engine().pause(&queue("more"), Pausing::UntilResumed).await;
    assert!(matches!(refused, Err(Error::TooManyPaused(MAX_PAUSED))), "one more: {refused:?}");
    s.put(job(&queue("more"), "job")).await;
    assert_eq!(s.drain(&queue("more")).await, ["job"], "a refused pause has no effect");
    pause(s, &queue_in("other", "more"), None).await;
    resume(s, &numbered(1)).await;
    resume(s, &numbered(1)).await;
    pause(s, &queue("more"), None).await;
    assert!(s.engine().pause(&numbered(1), Pausing::UntilResumed).await.is_err(), "only one place was free");
    pause(s, &numbered(0), Some(SHORT)).await;
    s.pass(SHORT).await;
    let place = async {
        while let Err(error) = s.engine().pause(&numbered(1), Pausing::UntilResumed).await {
            assert!(matches!(error, Error::TooManyPaused(_)), "{error}");
            tokio::time::sleep(SHORT / 10).await;
        }
    };
    tokio::time::timeout(LONG, place).await.expect("the pause that has ended makes place");
    assert!(s.engine().pause(&numbered(0), Pausing::UntilResumed).await.is_err(), "only one pause has ended");
}
