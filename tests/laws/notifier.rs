//! Laws of notification: every step that makes a job ready notifies, or a parked consumer would not wake up.

use std::slice::from_ref;
use std::sync::Arc;

use dormouse::name::Queue;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;
use crate::support::notified::Notified;
use crate::support::wait::until;

impl Notified {
    /// Clears previous notifications.
    pub async fn forget(&self) {
        for _ in 0..10 {
            self.told.lock().clear();
            tokio::task::yield_now().await;
        }
    }
}

/// Attaches a notifier that waits for `q`, without previous notifications.
pub async fn waiting(s: &dyn Stage, q: &Queue) -> Arc<Notified> {
    let notified = Notified::attach(&*s.engine(), from_ref(q));
    notified.forget().await;
    notified
}

pub async fn is_told(notified: &Notified, q: &Queue, what: &str) {
    let told = tokio::time::timeout(TIMEOUT, notified.next()).await;
    assert_eq!(told.ok(), Some([q.clone()].into()), "{what} should notify of {q}");
}

/// Guards against lost wake-ups for a published job.
pub async fn publish_notifies(s: &dyn Stage) {
    let q = queue("q");
    let notified = waiting(s, &q).await;
    for _ in 0..3 {
        s.put(job(&queue("other"), "x")).await;
        s.put(job(&q, "1")).await;
        is_told(&notified, &q, "publish").await;
        assert_eq!(s.drain(&q).await, ["1"], "the job is there when the notification comes");
    }
}

/// Guards against lost wake-ups for a job that became due.
pub async fn a_due_job_notifies(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "1").delay(SHORT)).await;
    let notified = waiting(s, &q).await;
    s.pass(SHORT).await;
    is_told(&notified, &q, "a due job").await;
}

/// Guards against lost wake-ups for a redelivered job.
pub async fn a_returning_job_notifies(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "1").tries(2)).await;
    s.take_one(&q, SHORT).await;
    let notified = waiting(s, &q).await;
    s.pass(SHORT).await;
    is_told(&notified, &q, "a job whose ttr ended").await;
}

/// Guards against lost wake-ups for respawned jobs.
pub async fn respawn_notifies(s: &dyn Stage) {
    let q = queue("q");
    s.kill(&q, [job(&q, "1")]).await;
    let notified = waiting(s, &q).await;
    ok("respawn", s.engine().respawn_oldest(&q, 1, None).await);
    is_told(&notified, &q, "respawn").await;
}

/// Guards against lost wake-ups for a returned job.
pub async fn give_back_notifies(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "1")).await;
    let jobs = s.take(&q, 1, LONG).await;
    let notified = waiting(s, &q).await;
    s.give_back(&jobs).await;
    is_told(&notified, &q, "give_back").await;
}

/// Guards against lost wake-ups for a republished job.
pub async fn republish_notifies(s: &dyn Stage) {
    let q = queue("q");
    let old = s.put(job(&q, "old")).await;
    s.take_one(&q, LONG).await;
    let notified = waiting(s, &q).await;
    ok("republish", s.engine().republish(old.name(), job(&q, "new").make(s)).await);
    is_told(&notified, &q, "republish").await;
}

/// Guards against a second dispatcher that replaces the first.
pub async fn every_attached_notifier_is_told(s: &dyn Stage) {
    let q = queue("q");
    let both = [waiting(s, &q).await, waiting(s, &q).await];
    s.put(job(&q, "1")).await;
    for notified in &both {
        is_told(notified, &q, "publish").await;
    }
}

/// Guards against an engine that keeps a dispatcher alive or fails after it was dropped.
pub async fn a_notifier_that_is_gone_is_in_nobodys_way(s: &dyn Stage) {
    let q = queue("q");
    let (gone, left) = (waiting(s, &q).await, waiting(s, &q).await);
    let weak = Arc::downgrade(&gone);
    drop(gone);
    // The engine may be notifying it at this moment.
    until("the engine owns its notifiers no longer than it tells them something", async || {
        weak.strong_count() == 0
    })
    .await;
    s.put(job(&q, "1")).await;
    is_told(&left, &q, "publish").await;
}
