//! Laws of stores that delete dead jobs after an age: [`AGE`] on the stages of these laws.

use std::num::NonZeroU16;
use std::time::Duration;

use dormouse::engine::{Release, Revival, Revived};
use dormouse::job::JobState;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

/// How long dead jobs are kept.
pub const AGE: Duration = Duration::from_secs(3);
const MS: Duration = Duration::from_millis(1);

/// Guards against a dead job that stays forever, and against one that is still counted or listed after its age has
/// ended.
pub async fn a_dead_job_goes_after_its_age(s: &dyn Stage) {
    let q = queue("q");
    let first = s.kill(&q, ["a", "b"].map(|body| job(&q, body).ttl(LONG))).await;
    let view = s.view(&first[0]).await;
    assert_eq!(view.state, Some(JobState::Dead));
    assert!(view.ttl.is_some_and(|ttl| ttl <= AGE), "what is left of its age: {view:?}");
    assert!(s.find(&first[0]).await.is_some_and(|job| job.ttl.is_some_and(|ttl| ttl <= AGE)), "the same");
    let listed = s.list(&q, JobState::Dead, 9).await;
    let ids: Vec<_> = listed.iter().map(|view| view.id).collect();
    assert_eq!(ids, [first[0].id, first[1].id], "both are listed");
    assert!(listed.iter().all(|view| view.ttl.is_some_and(|ttl| ttl <= AGE)), "with their age: {listed:?}");
    s.pass(AGE / 2).await;
    let second = s.kill(&q, [job(&q, "c")]).await;
    s.pass(AGE / 2 + MS).await;
    for new in &first {
        assert_eq!((s.find(new).await, s.inspect(new).await), (None, None), "{new:?} is too old");
    }
    let left: Vec<_> = s.list(&q, JobState::Dead, 9).await.iter().map(|view| view.id).collect();
    assert!(left.iter().all(|id| *id == second[0].id), "the old ones are not listed: {left:?}");
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    let revived = ok("respawn", s.engine().respawn_jobs(&q, &[first[0].id], revival).await);
    assert_eq!(revived, [Revived::NotFound], "nor can they be respawned");
    if s.differences().virtual_time {
        let dead = ok("dead_letter", s.engine().dead_letter(&q).await);
        assert_eq!((dead.jobs, dead.head), (1, Some(second[0].id)), "one is left");
        assert_eq!(s.queue_view(&q).await.and_then(|view| view.dead), Some(1), "in the list of queues too");
    }
    s.pass(AGE).await;
    assert_eq!(s.dead(&q).await, 0, "nothing is left");
    assert_eq!(s.queue_view(&q).await.and_then(|view| view.dead).unwrap_or(0), 0, "in the list of queues");
    assert_eq!(ok("respawn", s.engine().respawn_oldest(&q, 9, None).await), 0);
    assert_eq!(ok("delete_dead", s.engine().delete_dead(&q, 9).await), 0);
    let stats = ok("stats", s.engine().stats().await);
    assert_eq!(stats.queues.iter().map(|of| of.dead).sum::<u64>(), 0, "{stats:?}");
}

/// Guards against jobs that stay forever depending on how they died, and against a job key that outlives its job.
pub async fn every_death_has_an_age(s: &dyn Stage) {
    let q = queue("q");
    // Its ttl ends when its age as a dead job does, so its expiry is nearly as it was.
    s.place(job(&q, "buried").tries(9).ttl(AGE).key("k")).await;
    let held = s.take_one(&q, LONG).await;
    s.bury(&held, held.proof(), None).await;
    assert_eq!(s.holder(&q, "k").await, None, "a dead job has no key");
    s.place(job(&q, "beyond").tries(9).ttl(LONG)).await;
    let held = s.take_one(&q, LONG).await;
    s.release(&held, held.proof(), Release { delay: LONG, ..Release::default() }).await;
    s.kill(&q, [job(&q, "tries")]).await;
    s.pass(AGE + Duration::from_millis(300)).await;
    assert_eq!((s.dead(&q).await, s.list(&q, JobState::Dead, 9).await), (0, vec![]), "all three are gone");
}

/// Guards against a respawned job that expires by its age as a dead job.
pub async fn a_respawned_job_has_its_own_ttl(s: &dyn Stage) {
    let q = queue("q");
    let dead = s.kill(&q, ["a", "b"].map(|body| job(&q, body))).await;
    assert_eq!(ok("respawn", s.engine().respawn_oldest(&q, 1, None).await), 1);
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: Some(LONG) };
    let revived = ok("respawn", s.engine().respawn_jobs(&q, &[dead[1].id], revival).await);
    assert!(matches!(revived[..], [Revived::Done { .. }]), "{revived:?}");
    s.pass(AGE + MS).await;
    assert_eq!(s.drain(&q).await, ["a", "b"], "both live");
}

/// Guards against treating a live job as a dead one because both have an expiry.
pub async fn only_the_dead_have_an_age(s: &dyn Stage) {
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    for (name, new) in s.one_in_each_state().await {
        let state = s.inspect(&new).await.and_then(|view| view.state);
        if name == "dead" {
            assert_eq!(state.unwrap_or(JobState::Dead), JobState::Dead, "{name}");
            continue;
        }
        assert_ne!(state, Some(JobState::Dead), "{name}");
        let revived = ok("respawn", s.engine().respawn_jobs(&new.queue, &[new.id], revival).await);
        assert_eq!(revived, [Revived::NotDead], "{name}");
        s.pass(AGE + MS).await;
        assert!(s.find(&new).await.is_some(), "{name} lives as long as its ttl says");
    }
}
