//! Laws of consume: priorities, several ttrs, and skipping deleted jobs.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dormouse::engine::MAX_CONSUME;
use dormouse::name::{Queue, QueueName};

use crate::stage::*;

/// Guards against an engine that waits for a job.
pub async fn an_empty_queue_answers_nothing_at_once(s: &dyn Stage) {
    assert_eq!(s.take_from(&queue_list(&["a", "b"]), &[LONG; 101]).await, [], "nothing was ever published");
    s.put(job(&queue("c"), "elsewhere")).await;
    s.put(job(&queue("a"), "delayed").delay(LONG)).await;
    assert_eq!(s.take(&queue("a"), 1, LONG).await, [], "nothing is ready in a");
}

/// Guards against priorities that follow the names or the times instead of the list.
pub async fn queues_are_served_in_the_order_given(s: &dyn Stage) {
    for name in ["a", "b", "c"] {
        s.put_all([1, 2].map(|i| job(&queue(name), format!("{name}{i}")))).await;
    }
    let list = queue_list(&["c", "a", "b"]);
    let mut order = Vec::new();
    for _ in 0..6 {
        let jobs = s.take_from(&list, &[LONG]).await;
        assert!(jobs.iter().all(|j| bodies(&jobs)[0].starts_with(j.queue.name.as_str())), "{jobs:?}");
        order.extend(bodies(&jobs));
    }
    assert_eq!(order, ["c1", "c2", "a1", "a2", "b1", "b2"], "c first, then a, then b");
}

/// Guards against a batch that stops at the end of the first queue, or takes one from each.
pub async fn a_batch_goes_on_with_the_next_queue(s: &dyn Stage) {
    for name in ["a", "b", "c"] {
        s.put_all([1, 2].map(|i| job(&queue(name), format!("{name}{i}")))).await;
    }
    let jobs = s.take_from(&queue_list(&["b", "empty", "a", "c"]), &[LONG; 5]).await;
    assert_eq!(bodies(&jobs), ["b1", "b2", "a1", "a2", "c1"], "five jobs by priority");
    assert_eq!(s.drain(&queue("c")).await, ["c2"], "the remaining job stays");
}

/// Guards against one ttr for all jobs of a call, which may be for several consumers.
pub async fn each_job_has_the_ttr_in_its_place(s: &dyn Stage) {
    let (q, r) = (queue("q"), queue("r"));
    s.put_all((1..=3).map(|i| job(&q, i.to_string()).tries(2))).await;
    s.put(job(&r, "4").tries(2)).await;
    let got = s.take_from(&queue_list(&["q", "r"]), &[LONG, SHORT, LONG, SHORT, SHORT]).await;
    assert_eq!(bodies(&got), ["1", "2", "3", "4"], "in order, and no more than there are");
    s.pass(SHORT).await;
    assert_eq!(s.drain(&q).await, ["2"], "only the second job had a short ttr");
    assert_eq!(s.drain(&r).await, ["4"], "the fourth job is the first of the second queue");
}

/// Guards against a bound lower than the trait's.
pub async fn a_full_consume_is_served(s: &dyn Stage) {
    let q = queue("q");
    s.put_all((0..MAX_CONSUME + 1).map(|i| job(&q, i.to_string()))).await;
    let got = bodies(&s.take_from(&q.clone().into(), &[LONG; MAX_CONSUME]).await);
    let expected: Vec<_> = (0..MAX_CONSUME).map(|i| i.to_string()).collect();
    assert_eq!(got, expected, "the maximum of one call");
    assert_eq!(s.drain(&q).await.len(), 1, "one is left");
}

/// Guards against reporting a queue as empty while live jobs are behind an acked head.
pub async fn acked_heads_are_skipped(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.put_all((0..6).map(|i| job(&q, i.to_string()))).await;
    for i in [0, 1, 3] {
        s.ack(&jobs[i]).await;
    }
    assert_eq!(bodies(&s.take(&q, 2, LONG).await), ["2", "4"], "two live jobs were asked for");
    assert_eq!(s.drain(&q).await, ["5"], "the rest");
}

/// Guards against a visible bound on skipping: no number of deleted heads hides a live job.
pub async fn two_thousand_acked_heads_are_skipped(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.put_all((0..2000).map(|i| job(&q, i.to_string()))).await;
    for job in &jobs {
        s.ack(job).await;
    }
    assert_eq!(s.take(&q, 1, LONG).await, [], "all are acked");
    let jobs = s.put_all((0..2000).map(|i| job(&q, i.to_string()))).await;
    s.put(job(&q, "live")).await;
    for job in &jobs {
        s.ack(job).await;
    }
    assert_eq!(s.take_one(&q, LONG).await.body, "live", "the one live job behind 2,000");
    assert_eq!(s.take(&q, 1, LONG).await, [], "and nothing more");
}

/// Guards against expired jobs that are delivered or hide live ones.
pub async fn expired_heads_are_skipped(s: &dyn Stage) {
    let q = queue("q");
    s.put_all((0..200).map(|i| job(&q, format!("old{i}")).ttl(SHORT))).await;
    s.put_all(["1", "2"].map(|body| job(&q, body))).await;
    s.advance(SHORT).await;
    s.advance(std::time::Duration::from_millis(1)).await;
    assert_eq!(bodies(&s.take(&q, 1, LONG).await), ["1"], "the first live job");
    assert_eq!(s.drain(&q).await, ["2"], "the rest");
}

/// Guards against a job that is lost, or loses its only try, because its caller disconnected.
pub async fn a_dropped_consume_loses_nothing(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put_all((0..10).map(|i| job(&q, i.to_string()).tries(9))).await;
    let (engine, list) = (s.engine(), q.clone().into());
    for _ in 0..5 {
        let mut call = pin!(engine.consume(&list, &[SHORT]));
        let _dropped: Poll<_> = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    // An engine that serves its callers in order has served the dropped calls before these.
    s.put(job(&queue("other"), "x")).await;
    s.take(&queue("other"), 1, LONG).await;
    s.pass(SHORT).await;
    s.pass(SHORT).await;
    let mut left = s.drain(&q).await;
    left.sort();
    assert_eq!(left.len(), new.len(), "each job is ready again, once: {left:?}");
    left.dedup();
    assert_eq!(left.len(), new.len(), "no job twice: {left:?}");
}

/// Guards against rejecting names that only consume accepts.
pub async fn a_consume_only_queue_name_is_empty(s: &dyn Stage) {
    let name = QueueName::parse_for_consume("_hidden").expect("consume takes a leading _");
    let q = Queue { namespace: queue("x").namespace, name };
    assert_eq!(s.take(&q, 1, LONG).await, [], "publishing to it is impossible");
}
