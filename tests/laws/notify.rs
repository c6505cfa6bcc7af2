//! Laws of notifications: whoever makes a job ready notifies, or a waiter sleeps beside its job.

use std::sync::Arc;

use dormouse::engine::notifier::Bell;
use dormouse::name::Queue;

use crate::support::stage::*;

/// A notifier that watches `q` from now on.
async fn watching(s: &dyn Stage, q: &Queue) -> Arc<Bell> {
    let notifier = Arc::new(Bell::default());
    s.engine().attach(notifier.clone());
    notifier.watch(q);
    notifier
}

/// Takes notifications that are there already, so that the next one is seen for itself.
async fn drain_notifications(notifier: &Bell) {
    for _ in 0..10 {
        tokio::select! {
            biased;
            _ = notifier.rung() => {}
            () = tokio::task::yield_now() => {}
        }
    }
}

async fn notified(notifier: &Bell, q: &Queue, what: &str) {
    let queues = tokio::time::timeout(TIMEOUT, notifier.rung()).await;
    assert_eq!(queues.ok().as_deref(), Some(&[q.clone()][..]), "{what} should notify of {q}");
}

/// Guards against consumers that sleep beside a published job.
pub async fn publish_notifies(s: &dyn Stage) {
    let q = queue("q");
    let notifier = watching(s, &q).await;
    for _ in 0..3 {
        s.put(job(&queue("other"), "x")).await;
        s.put(job(&q, "1")).await;
        notified(&notifier, &q, "publish").await;
        assert_eq!(s.drain(&q).await, ["1"], "the job is there when the notification comes");
    }
}

/// Guards against consumers that sleep beside a job that became due.
pub async fn a_due_job_notifies(s: &dyn Stage) {
    let q = queue("q");
    let notifier = watching(s, &q).await;
    s.put(job(&q, "1").delay(SHORT)).await;
    drain_notifications(&notifier).await;
    s.pass(SHORT).await;
    notified(&notifier, &q, "a due job").await;
}

/// Guards against consumers that sleep beside a job that another one lost.
pub async fn a_returning_job_notifies(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "1").tries(2)).await;
    s.take_one(&q, SHORT).await;
    let notifier = watching(s, &q).await;
    drain_notifications(&notifier).await;
    s.pass(SHORT).await;
    notified(&notifier, &q, "a job whose ttr ended").await;
}

/// Guards against consumers that sleep beside respawned jobs.
pub async fn respawn_notifies(s: &dyn Stage) {
    let q = queue("q");
    s.kill(&q, [job(&q, "1")]).await;
    let notifier = watching(s, &q).await;
    drain_notifications(&notifier).await;
    ok("respawn", s.engine().respawn(&q, 1, None).await);
    notified(&notifier, &q, "respawn").await;
}

/// Guards against consumers that sleep beside a job that another one left.
pub async fn give_back_notifies(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "1")).await;
    let jobs = s.take(&q, 1, LONG).await;
    let notifier = watching(s, &q).await;
    drain_notifications(&notifier).await;
    s.give_back(&jobs).await;
    notified(&notifier, &q, "give_back").await;
}

/// Guards against consumers that sleep beside a republished job.
pub async fn republish_notifies(s: &dyn Stage) {
    let q = queue("q");
    let old = s.put(job(&q, "old")).await;
    s.take_one(&q, LONG).await;
    let notifier = watching(s, &q).await;
    drain_notifications(&notifier).await;
    ok("republish", s.engine().republish(old.name(), job(&q, "new").make(s)).await);
    notified(&notifier, &q, "republish").await;
}

/// Guards against a second dispatcher that takes the first one's notifications away.
pub async fn every_attached_notifier_is_notified(s: &dyn Stage) {
    let q = queue("q");
    let notifiers = [watching(s, &q).await, watching(s, &q).await];
    s.put(job(&q, "1")).await;
    for notifier in &notifiers {
        notified(notifier, &q, "publish").await;
    }
}

/// Guards against dispatchers woken for queues that nobody waits for.
pub async fn only_watched_queues_notify(s: &dyn Stage) {
    let (q, left) = (queue("q"), queue("left"));
    let notifier = watching(s, &q).await;
    notifier.watch(&left);
    notifier.unwatch(&left);
    s.put_all([job(&left, "1"), job(&left, "2")]).await;
    s.put(job(&queue_in("other", "q"), "3")).await;
    s.put(job(&q, "4")).await;
    notified(&notifier, &q, "publish").await;
}
