//! Laws of promote, which makes a delayed job due now.

use std::time::Duration;

use dormouse::engine::{By, OnConflict, Promoted, Release};
use dormouse::job::{JobState, NewJob};

use crate::stage::*;

async fn promote(s: &dyn Stage, new: &NewJob) -> Promoted {
    ok("promote", s.engine().promote(&new.queue, By::Id(new.id)).await)
}

/// Guards against a promoted job that overtakes others, or whose ttl or tries change.
pub async fn a_promoted_job_is_ready_behind_the_others(s: &dyn Stage) {
    let q = queue("q");
    for tries in [1, 3, 40, 1200, 65_000] {
        s.put_all(["a", "b"].map(|body| job(&q, body))).await;
        let later = s.put(job(&q, "later").delay(LONG).ttl(LONG * 2).tries(tries)).await;
        s.put(job(&q, "c")).await;
        assert_eq!(promote(s, &later).await, Promoted::Done, "of {tries} tries");
        let view = s.view(&later).await;
        assert_eq!(view.state.unwrap_or(JobState::Ready), JobState::Ready, "of {tries} tries: {view:?}");
        assert_eq!(view.tries_left.unwrap_or(tries), tries, "{view:?}");
        assert!(view.ttl.is_some_and(|ttl| ttl > LONG && ttl <= LONG * 2), "its ttl goes on: {view:?}");
        s.put(job(&q, "d")).await;
        let taken = s.take(&q, 9, LONG).await;
        assert_eq!(bodies(&taken), ["a", "b", "c", "later", "d"], "of {tries} tries");
        assert_eq!(taken[3].tries_left, tries - 1, "it has all of its tries");
        for job in &taken {
            s.ack(job).await;
        }
    }
    assert_eq!(s.list(&q, JobState::Delayed, 9).await, [], "no timer is left");
}

/// Guards against a timer left behind, which would deliver a promoted job twice.
pub async fn a_promoted_job_comes_once(s: &dyn Stage) {
    let q = queue("q");
    let all = s.put_all((0..5).map(|n| job(&q, n.to_string()).delay(s.life()).tries(2))).await;
    for new in [&all[3], &all[1]] {
        assert_eq!(promote(s, new).await, Promoted::Done);
        assert_eq!(promote(s, new).await.state(), Some(JobState::Ready), "the second time");
    }
    let held = s.take(&q, 9, LONG).await;
    assert_eq!(bodies(&held), ["3", "1"]);
    assert_eq!(promote(s, &all[3]).await, Promoted::NotDelayed(Some(JobState::Running)));
    s.ack(&held[0]).await;
    assert_eq!(promote(s, &all[3]).await, Promoted::NotFound, "it was acked");
    s.pass(s.life()).await;
    assert_eq!(s.drain(&q).await, ["0", "2", "4"], "the others come at their time");
    assert_eq!(ok("stats", s.engine().stats().await).timers, 4, "of the four that run");
}

/// The state that [`Promoted`] reports for a job that was not delayed.
trait OfState {
    /// Returns the state; ready if the store need not know it.
    fn state(self) -> Option<JobState>;
}

impl OfState for Promoted {
    fn state(self) -> Option<JobState> {
        match self {
            Promoted::NotDelayed(state) => Some(state.unwrap_or(JobState::Ready)),
            Promoted::Done | Promoted::NotFound => None,
        }
    }
}

/// Guards against taking a job from its worker, and against reviving a dead one.
pub async fn only_delayed_jobs_are_promoted(s: &dyn Stage) {
    for (name, new) in s.one_in_each_state().await {
        let before = s.view(&new).await;
        let promoted = promote(s, &new).await;
        if name == "delayed" {
            assert_eq!(promoted, Promoted::Done);
            continue;
        }
        let expected = before.state.expect("of a short list it is known");
        assert_eq!(promoted, Promoted::NotDelayed(Some(expected)), "{name}");
        let after = s.view(&new).await;
        assert_eq!((after.state, after.due_at), (before.state, before.due_at), "{name} is as it was");
    }
    let q = queue("q");
    let unknown = job(&q, "unknown").make(s);
    assert_eq!(promote(s, &unknown).await, Promoted::NotFound);
    let delayed = s.put(job(&q, "job").delay(LONG)).await;
    let elsewhere = NewJob { queue: queue("r"), ..delayed.clone() };
    assert_eq!(promote(s, &elsewhere).await, Promoted::NotFound, "of another queue");
    assert_eq!(s.view(&delayed).await.state, Some(JobState::Delayed));
    let short = s.put(job(&q, "short").delay(SHORT).ttl(SHORT * 2)).await;
    s.advance(SHORT * 2 + Duration::from_millis(1)).await;
    assert_eq!(promote(s, &short).await, Promoted::NotFound, "its ttl has ended");
}

/// Guards against a producer that cannot address its job by its key, and against a lost key.
pub async fn a_job_is_promoted_by_its_key(s: &dyn Stage) {
    let q = queue("q");
    let by_key = async |key: &str| ok("promote", s.engine().promote(&q, By::Key(&job_key(key))).await);
    assert_eq!(by_key("k").await, Promoted::NotFound, "nobody has it");
    let placed = s.place(job(&q, "first").delay(LONG).tries(2).key("k")).await;
    s.place(job(&q, "other").delay(LONG).key("l")).await;
    assert_eq!(by_key("k").await, Promoted::Done);
    assert_eq!(s.holder(&q, "k").await.map(|view| view.id), Some(placed.id), "it keeps its key");
    assert_eq!(by_key("k").await.state(), Some(JobState::Ready));
    let again = s.place(job(&q, "again").key_or("k", OnConflict::Keep)).await;
    assert_eq!(again.id, placed.id, "the key is taken");
    let held = s.take_one(&q, LONG).await;
    assert_eq!(held.body, "first");
    assert_eq!(by_key("k").await, Promoted::NotDelayed(Some(JobState::Running)));
    s.ack(&held).await;
    assert_eq!(by_key("k").await, Promoted::NotFound, "its job is gone");
    assert_eq!(s.take(&q, 9, LONG).await, [], "the other one waits");
}

/// Guards against a promote limited to the delay of a publish.
pub async fn a_released_job_can_be_promoted(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put(job(&q, "job").tries(9)).await;
    for tries_left in [8, 7, 6] {
        let held = s.take_one(&q, LONG).await;
        assert_eq!(held.tries_left, tries_left);
        let later = Release { delay: LONG, ..Release::default() };
        s.release(&held, held.proof(), later).await;
        assert_eq!(s.take(&q, 9, LONG).await, [], "it waits");
        assert_eq!(promote(s, &new).await, Promoted::Done);
    }
    assert_eq!(s.drain(&q).await, ["job"]);
}

/// Guards against lost wake-ups for a promoted job.
pub async fn promote_notifies(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put(job(&q, "job").delay(LONG)).await;
    let notified = super::notifier::waiting(s, &q).await;
    assert_eq!(promote(s, &new).await, Promoted::Done);
    super::notifier::is_told(&notified, &q, "promote").await;
    assert_eq!(s.drain(&q).await, ["job"]);
}
