//! Laws of the dead letter list and of destroy: bulk changes take the oldest jobs, count correctly and affect no
//! others.

use std::time::Duration;

use dormouse::engine::{Listing, Size};
use dormouse::name::Queue;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

async fn respawn(s: &dyn Stage, q: &Queue, limit: u64, ttl: Option<Duration>) -> u64 {
    ok("respawn", s.engine().respawn_oldest(q, limit, ttl).await)
}

fn numbered(q: &Queue, count: usize) -> impl Iterator<Item = Draft> {
    (0..count).map(|i| job(q, i.to_string()))
}

/// Guards against a dead letter whose head is not the oldest.
pub async fn dead_jobs_lie_in_the_order_they_died(s: &dyn Stage) {
    let q = queue("q");
    let first = s.kill(&q, numbered(&q, 3)).await;
    let later = s.kill(&q, [job(&q, "later")]).await;
    for (gone, new) in first.iter().chain(&later).enumerate() {
        let dead = ok("dead_letter", s.engine().dead_letter(&q).await);
        assert_eq!(dead, Size { jobs: 4 - gone as u64, head: Some(new.id) }, "{gone} were deleted");
        ok("delete_dead", s.engine().delete_dead(&q, 1).await);
    }
}

/// Guards against errors where there is nothing.
pub async fn an_empty_dead_letter_says_so(s: &dyn Stage) {
    let q = queue("q");
    for _ in 0..2 {
        let dead = ok("dead_letter", s.engine().dead_letter(&q).await);
        assert_eq!(dead, Size { jobs: 0, head: None }, "nobody died");
        assert_eq!(respawn(s, &q, 5, None).await, 0, "nothing to respawn");
        assert_eq!(ok("delete_dead", s.engine().delete_dead(&q, 5).await), 0, "nothing to delete");
        ok("destroy", s.engine().destroy(&q, Listing::Keep).await);
        s.put(job(&q, "ready")).await;
    }
}

/// Guards against delivering dead jobs.
pub async fn dead_jobs_are_not_consumed(s: &dyn Stage) {
    let q = queue("q");
    s.kill(&q, numbered(&q, 2)).await;
    s.pass(SHORT * 2).await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "they are dead");
    assert_eq!((s.dead(&q).await, s.size(&q).await), (2, 0), "dead and ready");
    assert_eq!(s.dead(&queue("other")).await, 0, "another queue's dead letter");
}

/// Guards against respawning the newest jobs, or more than requested.
pub async fn respawn_takes_the_oldest_up_to_the_limit(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.kill(&q, numbered(&q, 5)).await;
    assert_eq!(respawn(s, &q, 0, None).await, 0, "none were asked for");
    assert_eq!(respawn(s, &q, 2, None).await, 2, "two were asked for");
    let dead = ok("dead_letter", s.engine().dead_letter(&q).await);
    assert_eq!(dead, Size { jobs: 3, head: Some(jobs[2].id) }, "three stay");
    assert_eq!(s.drain(&q).await, ["0", "1"], "the oldest, in order");
}

/// Guards against a respawned job with its old ttl or old tries.
pub async fn respawned_jobs_have_one_try_and_the_new_ttl(s: &dyn Stage) {
    let q = queue("q");
    let draft = job(&q, b"\xff\0").ttl(LONG * 3).versioned().attributes(&[("a", "b")]);
    let new = s.kill(&q, [draft, job(&q, "forever").ttl(LONG)]).await;
    assert_eq!(respawn(s, &q, 1, Some(LONG)).await, 1, "the first");
    assert_eq!(respawn(s, &q, 1, None).await, 1, "the second");
    assert_eq!(s.peek(&q).await.map(|j| j.tries_left), Some(1), "one try");
    let jobs = s.take(&q, 9, LONG).await;
    assert_eq!(jobs.iter().map(|j| j.id).collect::<Vec<_>>(), ids(&new), "the same jobs");
    assert_eq!(jobs.iter().map(|j| j.tries_left).collect::<Vec<_>>(), [0, 0], "one try, which is in use");
    assert_eq!((&jobs[0].body, &jobs[0].attributes), (&new[0].body, &new[0].attributes), "with all it had");
    let ttl = jobs[0].ttl.expect("respawned with a ttl");
    assert!(ttl <= LONG + s.differences().slack && ttl > LONG / 2, "the new ttl: {ttl:?}");
    assert_eq!(jobs[1].ttl, None, "respawned forever");
}

/// Guards against a respawned job that lives or runs forever.
pub async fn a_respawned_job_expires_and_dies_again(s: &dyn Stage) {
    let q = queue("q");
    let new = s.kill(&q, [job(&q, "dies"), job(&q, "expires")]).await;
    respawn(s, &q, 1, None).await;
    s.take_one(&q, SHORT).await;
    respawn(s, &q, 1, Some(SHORT)).await;
    s.pass(SHORT + Duration::from_millis(1)).await;
    assert_eq!(s.find(&new[1]).await, None, "its new ttl has ended");
    let dead = ok("dead_letter", s.engine().dead_letter(&q).await);
    assert_eq!(dead, Size { jobs: 1, head: Some(new[0].id) }, "its only try has ended");
    assert_eq!(s.take(&q, 9, LONG).await, [], "nothing is ready");
}

/// Guards against respawned jobs that overtake ready ones.
pub async fn respawned_jobs_go_behind_the_ready_ones(s: &dyn Stage) {
    let q = queue("q");
    s.kill(&q, numbered(&q, 2)).await;
    s.put(job(&q, "ready")).await;
    respawn(s, &q, 9, None).await;
    s.put(job(&q, "late")).await;
    assert_eq!(s.drain(&q).await, ["ready", "0", "1", "late"], "in the order they became ready");
}

/// Guards against a reply limited to the bound of one step.
pub async fn respawn_of_more_than_there_are_takes_all(s: &dyn Stage) {
    let q = queue("q");
    let count = 600;
    s.kill(&q, numbered(&q, count)).await;
    assert_eq!(respawn(s, &q, u64::MAX, None).await, count as u64, "all of them");
    assert_eq!(s.dead(&q).await, 0, "none is left");
    let expected: Vec<_> = (0..count).map(|i| i.to_string()).collect();
    assert_eq!(s.drain(&q).await, expected, "in the order they died");
}

/// Guards against respawning acked jobs, and against counting them towards the limit.
pub async fn respawn_does_not_wake_an_acked_job(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.kill(&q, numbered(&q, 4)).await;
    s.ack(&jobs[0]).await;
    s.ack(&jobs[2]).await;
    assert_eq!(respawn(s, &q, 1, None).await, 1, "one was asked for, two are dead");
    assert_eq!(respawn(s, &q, 9, None).await, 1, "the other");
    assert_eq!(s.drain(&q).await, ["1", "3"], "the jobs that were not acked");
}

/// Guards against counting acked jobs towards the limit of a delete.
pub async fn delete_dead_does_not_count_acked_jobs(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.kill(&q, numbered(&q, 5)).await;
    s.ack(&jobs[0]).await;
    s.ack(&jobs[2]).await;
    assert_eq!(
        ok("delete_dead", s.engine().delete_dead(&q, 2).await),
        2,
        "two were asked for, three are dead"
    );
    assert_eq!(respawn(s, &q, 9, None).await, 1, "the newest is left");
    assert_eq!(s.drain(&q).await, ["4"], "the newest is left");
}

/// Guards against deleting the newest jobs, and against leaving their bodies behind.
pub async fn delete_dead_forgets_the_oldest(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.kill(&q, numbered(&q, 4)).await;
    assert_eq!(ok("delete_dead", s.engine().delete_dead(&q, 0).await), 0, "none were asked for");
    assert_eq!(ok("delete_dead", s.engine().delete_dead(&q, 3).await), 3, "three were asked for");
    for new in &jobs[..3] {
        assert_eq!(s.find(new).await, None, "deleted is forgotten");
    }
    let dead = ok("dead_letter", s.engine().dead_letter(&q).await);
    assert_eq!(dead, Size { jobs: 1, head: Some(jobs[3].id) }, "the newest stays");
    assert!(s.find(&jobs[3]).await.is_some(), "with its body");
}

/// Guards against a reply limited to the bound of one step.
pub async fn delete_dead_of_more_than_there_are_takes_all(s: &dyn Stage) {
    let q = queue("q");
    let count = 600;
    let jobs = s.kill(&q, numbered(&q, count)).await;
    let deleted = ok("delete_dead", s.engine().delete_dead(&q, u64::MAX).await);
    assert_eq!((deleted, s.dead(&q).await), (count as u64, 0), "all of them");
    assert_eq!(s.find(&jobs[count - 1]).await, None, "the last one too");
}

/// Guards against a destroy that deletes jobs which are not ready, or leaves bodies behind.
pub async fn destroy_forgets_ready_jobs_only(s: &dyn Stage) {
    for (state, new) in s.one_in_each_state().await {
        ok("destroy", s.engine().destroy(&new.queue, Listing::Keep).await);
        assert_eq!(s.find(&new).await.is_some(), state != "ready", "a {state} job after destroy");
        assert_eq!(s.size(&new.queue).await, 0, "ready jobs after destroy");
        assert_eq!(s.dead(&new.queue).await, u64::from(state == "dead"), "dead jobs after destroy, {state}");
    }
    let q = queue("q");
    s.put(job(&q, "delayed").delay(SHORT)).await;
    s.put(job(&q, "running").tries(2)).await;
    s.take_one(&q, SHORT).await;
    s.put(job(&q, "ready")).await;
    let neighbour = s.put(job(&queue("q2"), "neighbour")).await;
    ok("destroy", s.engine().destroy(&q, Listing::Keep).await);
    s.put(job(&q, "new")).await;
    s.pass(SHORT).await;
    let mut left = s.drain(&q).await;
    left.sort();
    assert_eq!(left, ["delayed", "new", "running"], "jobs that were not ready, and later ones");
    assert!(s.find(&neighbour).await.is_some(), "another queue's job stays");
}

/// Guards against ready jobs left behind by the bound of one step.
pub async fn destroy_forgets_many(s: &dyn Stage) {
    let q = queue("q");
    let jobs = s.put_all(numbered(&q, 1500)).await;
    ok("destroy", s.engine().destroy(&q, Listing::Keep).await);
    assert_eq!((s.size(&q).await, s.take(&q, 9, LONG).await), (0, vec![]), "all are deleted");
    for new in [&jobs[0], &jobs[700], &jobs[1499]] {
        assert_eq!(s.find(new).await, None, "with their bodies");
    }
}
