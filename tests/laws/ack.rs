//! Laws of ack: an acked job is deleted, in any state and by any caller.

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

/// Guards against an ack that works for running jobs only.
pub async fn ack_forgets_a_job_in_every_state(s: &dyn Stage) {
    for (state, new) in s.one_in_each_state().await {
        assert!(s.find(&new).await.is_some(), "a {state} job is stored");
        s.ack(&new).await;
        assert_eq!(s.find(&new).await, None, "a {state} job after its ack");
        assert_eq!(s.peek(&new.queue).await, None, "a {state} job after its ack");
        assert_eq!(s.take(&new.queue, 9, LONG).await, [], "a {state} job after its ack");
        if s.differences().exact_sizes {
            let sizes = (s.size(&new.queue).await, s.dead(&new.queue).await);
            assert_eq!(sizes, (0, 0), "ready and dead after the ack of a {state} job");
        }
    }
}

/// Guards against errors for jobs that are already deleted.
pub async fn ack_twice_and_of_the_unknown_is_fine(s: &dyn Stage) {
    let q = queue("q");
    s.ack(&job(&q, "never published").make(s)).await;
    let new = s.put(job(&q, "job")).await;
    for _ in 0..2 {
        s.ack(&new).await;
    }
    assert_eq!(s.drain(&q).await, [""; 0], "it was acked");
}

/// Guards against a timer that brings an acked job back, to the queue or to the dead letter.
pub async fn an_acked_job_never_comes_back(s: &dyn Stage) {
    let q = queue("q");
    let delayed = s.put(job(&q, "delayed").delay(SHORT)).await;
    let running = s.put_all(["1", "2"].map(|body| job(&q, body).tries(2))).await;
    let last = s.put(job(&q, "last")).await;
    s.take(&q, 9, SHORT).await;
    for new in running.iter().chain([&delayed, &last]) {
        s.ack(new).await;
    }
    s.pass(SHORT).await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "all four are acked");
    let respawned = ok("respawn", s.engine().respawn_oldest(&q, 9, None).await);
    assert_eq!((respawned, s.size(&q).await), (0, 0), "none is dead");
}

/// Guards against late workers whose work is done again.
pub async fn ack_works_after_ttr_ended(s: &dyn Stage) {
    let q = queue("q");
    let again = s.put(job(&q, "again").tries(2)).await;
    let dead = s.put(job(&q, "dead")).await;
    s.take(&q, 9, SHORT).await;
    s.pass(SHORT).await;
    s.ack(&again).await;
    s.ack(&dead).await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "its late ack counts");
    assert_eq!(
        ok("respawn", s.engine().respawn_oldest(&q, 9, None).await),
        0,
        "the dead one's late ack counts too"
    );
}

/// Guards against an ack accepted only for the current delivery: the first worker was slow, but it completed the job.
pub async fn ack_works_while_another_consumer_runs_the_job(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(3)).await;
    let first = s.take_one(&q, SHORT).await;
    s.pass(SHORT).await;
    let second = s.take_one(&q, SHORT).await;
    assert_eq!(second.id, first.id, "the same job for a second worker");
    s.ack(&first).await;
    assert_eq!(s.find(&second).await, None, "done is done");
    s.pass(SHORT).await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "it does not come back a third time");
    s.ack(&second).await;
}

/// Guards against an ack that takes more than its job.
pub async fn ack_leaves_the_neighbours_alone(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.put_all(["1", "2", "3"].map(|body| job(&q, body).tries(2))).await;
    let twin = s.put(job(&queue("other"), "twin")).await;
    s.take(&q, 2, SHORT).await;
    s.ack(&jobs[0]).await;
    s.pass(SHORT).await;
    assert_eq!(s.drain(&q).await, ["3", "2"], "3 stayed ready, 2 was redelivered");
    assert!(s.find(&twin).await.is_some(), "the other queue's job stays");
}
