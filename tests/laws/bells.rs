//! Laws of the bell: whoever makes a job ready rings, or a parked consumer sleeps beside its job.

use std::sync::Arc;

use dormouse::engine::notifier::Bell;
use dormouse::name::Queue;

use crate::support::stage::*;

/// A bell that watches `q`, and that is silent: rings that came before were taken.
async fn watching(s: &dyn Stage, q: &Queue) -> Arc<Bell> {
    let bell = Arc::new(Bell::default());
    s.engine().attach(bell.clone());
    bell.watch(q);
    bell
}

/// Takes rings that are there already, so that the next one is heard for itself.
async fn hush(bell: &Bell) {
    for _ in 0..10 {
        tokio::select! {
            biased;
            _ = bell.rung() => {}
            () = tokio::task::yield_now() => {}
        }
    }
}

async fn rings(bell: &Bell, q: &Queue, what: &str) {
    let rung = tokio::time::timeout(PATIENCE, bell.rung()).await;
    assert_eq!(rung.ok().as_deref(), Some(&[q.clone()][..]), "{what} should ring for {q}");
}

/// Guards against consumers that sleep beside a published job.
pub async fn publish_rings(s: &dyn Stage) {
    let q = queue("q");
    let bell = watching(s, &q).await;
    for _ in 0..3 {
        s.put(job(&queue("other"), "x")).await;
        s.put(job(&q, "1")).await;
        rings(&bell, &q, "publish").await;
        assert_eq!(s.drain(&q).await, ["1"], "the job is there when the bell rings");
    }
}

/// Guards against consumers that sleep beside a job that became due.
pub async fn a_due_job_rings(s: &dyn Stage) {
    let q = queue("q");
    let bell = watching(s, &q).await;
    s.put(job(&q, "1").delay(SHORT)).await;
    hush(&bell).await;
    s.pass(SHORT).await;
    rings(&bell, &q, "a due job").await;
}

/// Guards against consumers that sleep beside a job that another one lost.
pub async fn a_returning_job_rings(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "1").tries(2)).await;
    s.take_one(&q, SHORT).await;
    let bell = watching(s, &q).await;
    hush(&bell).await;
    s.pass(SHORT).await;
    rings(&bell, &q, "a job whose ttr ended").await;
}

/// Guards against consumers that sleep beside respawned jobs.
pub async fn respawn_rings(s: &dyn Stage) {
    let q = queue("q");
    s.kill(&q, [job(&q, "1")]).await;
    let bell = watching(s, &q).await;
    hush(&bell).await;
    ok("respawn", s.engine().respawn(&q, 1, None).await);
    rings(&bell, &q, "respawn").await;
}

/// Guards against consumers that sleep beside a job that another one left.
pub async fn give_back_rings(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "1")).await;
    let jobs = s.take(&q, 1, LONG).await;
    let bell = watching(s, &q).await;
    hush(&bell).await;
    s.give_back(&jobs).await;
    rings(&bell, &q, "give_back").await;
}

/// Guards against consumers that sleep beside a republished job.
pub async fn republish_rings(s: &dyn Stage) {
    let q = queue("q");
    let old = s.put(job(&q, "old")).await;
    s.take_one(&q, LONG).await;
    let bell = watching(s, &q).await;
    hush(&bell).await;
    ok("republish", s.engine().republish(old.name(), job(&q, "new").make(s)).await);
    rings(&bell, &q, "republish").await;
}

/// Guards against a second dispatcher that takes the first one's place.
pub async fn every_attached_bell_rings(s: &dyn Stage) {
    let q = queue("q");
    let bells = [watching(s, &q).await, watching(s, &q).await];
    s.put(job(&q, "1")).await;
    for bell in &bells {
        rings(bell, &q, "publish").await;
    }
}

/// Guards against dispatchers woken for queues that nobody waits for.
pub async fn only_watched_queues_ring(s: &dyn Stage) {
    let (q, left) = (queue("q"), queue("left"));
    let bell = watching(s, &q).await;
    bell.watch(&left);
    bell.unwatch(&left);
    s.put_all([job(&left, "1"), job(&left, "2")]).await;
    s.put(job(&queue_in("other", "q"), "3")).await;
    s.put(job(&q, "4")).await;
    rings(&bell, &q, "publish").await;
}
