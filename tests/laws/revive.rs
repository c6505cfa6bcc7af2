//! Laws of respawn by id.

use std::num::NonZeroU16;
use std::time::Duration;

use dormouse::engine::{Revival, Revived};
use dormouse::job::JobState;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

fn revival(tries: u16) -> Revival {
    Revival { tries: NonZeroU16::new(tries).expect("not 0"), delay: Duration::ZERO, ttl: None }
}

/// Guards against respawning other jobs than the named ones.
pub async fn jobs_are_respawned_by_id(s: &dyn Stage) {
    let q = queue("q");
    let dead = s.kill(&q, (0..5).map(|i| job(&q, i.to_string()))).await;
    s.put(job(&q, "ready")).await;
    let named = [dead[3].id, dead[1].id];
    let notified = super::notifier::waiting(s, &q).await;
    let answers = ok("respawn_jobs", s.engine().respawn_jobs(&q, &named, revival(1)).await);
    assert!(matches!(answers[..], [Revived::Done { .. }, Revived::Done { .. }]), "{answers:?}");
    super::notifier::is_told(&notified, &q, "respawn by id").await;
    assert_eq!(s.drain(&q).await, ["ready", "3", "1"], "behind the ready ones, in the order given");
    let left: Vec<_> = s.list(&q, JobState::Dead, 9).await.iter().map(|view| view.id).collect();
    assert_eq!(left, [dead[0].id, dead[2].id, dead[4].id], "the others are as they were");
    assert_eq!((s.dead(&q).await, ok("respawn", s.engine().respawn_oldest(&q, 9, None).await)), (3, 3));
    assert_eq!(s.drain(&q).await, ["0", "2", "4"], "none of the named jobs is left");
}

/// Guards against a respawned job with its original tries, delay or ttl.
pub async fn a_job_is_respawned_with_what_was_asked(s: &dyn Stage) {
    let q = queue("q");
    let dead = s.kill(&q, ["a", "b"].map(|body| job(&q, body))).await;
    let later = Revival { delay: SHORT, ttl: Some(LONG), ..revival(3) };
    let answers = ok("respawn_jobs", s.engine().respawn_jobs(&q, &[dead[0].id], later).await);
    let [Revived::Done { due_at }] = answers[..] else { panic!("{answers:?}") };
    let view = s.view(&dead[0]).await;
    assert_eq!((view.state, view.due_at, view.tries_left), (Some(JobState::Delayed), Some(due_at), Some(3)));
    assert!(view.ttl.is_some_and(|ttl| ttl <= LONG), "{view:?}");
    s.pass(SHORT).await;
    assert_eq!(s.take_one(&q, LONG).await.tries_left, 2, "three tries, one in use");
    let short = Revival { ttl: Some(SHORT), ..revival(1) };
    ok("respawn_jobs", s.engine().respawn_jobs(&q, &[dead[1].id], short).await);
    s.pass(SHORT + Duration::from_millis(1)).await;
    assert_eq!((s.drain(&q).await, s.dead(&q).await), (vec![], 0), "its new ttl has ended");
}

/// Guards against duplicating a job, and against a wrong reply.
pub async fn only_dead_jobs_are_respawned(s: &dyn Stage) {
    for (name, new) in s.one_in_each_state().await {
        let unknown = job(&new.queue, "unknown").make(s);
        let before = s.view(&new).await;
        let ids = [unknown.id, new.id, new.id];
        let answers = ok("respawn_jobs", s.engine().respawn_jobs(&new.queue, &ids, revival(1)).await);
        assert_eq!(answers[0], Revived::NotFound, "{name}");
        assert_eq!(answers[2], Revived::NotDead, "{name}, the second time");
        if name == "dead" {
            assert!(matches!(answers[1], Revived::Done { .. }), "{answers:?}");
            s.ack(&new).await;
            let answers =
                ok("respawn_jobs", s.engine().respawn_jobs(&new.queue, &[new.id], revival(1)).await);
            assert_eq!(answers, [Revived::NotFound], "it was acked");
        } else {
            assert_eq!(answers[1], Revived::NotDead, "{name}");
            let after = s.view(&new).await;
            assert_eq!(
                (after.state, after.tries_left),
                (before.state, before.tries_left),
                "{name} as before"
            );
        }
    }
    let q = queue("many");
    let dead = s.kill(&q, (0..100).map(|i| job(&q, vec![b'x'; 20_000 + i]))).await;
    let answers = ok("respawn_jobs", s.engine().respawn_jobs(&q, &ids(&dead), revival(1)).await);
    assert_eq!(answers.len(), 100, "the maximum of one call");
    assert!(answers.iter().all(|answer| matches!(answer, Revived::Done { .. })), "{answers:?}");
    assert_eq!((s.size(&q).await, s.dead(&q).await), (100, 0));
}
