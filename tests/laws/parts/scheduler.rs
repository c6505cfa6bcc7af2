//! The scheduler on a store, in virtual time: what becomes of occurrences while the store is away, full, or its clock is set.

use std::sync::Arc;
use std::time::Duration;

use dormouse::clock::{ManualClock, Millis};
use dormouse::engine::{Engine, JobList, Quota, Quotas, ScheduleBounds, ScheduleId};
use dormouse::job::{JobState, JobView};
use dormouse::metrics::Metrics;
use dormouse::name::PoolName;
use dormouse::schedule::{Entry, Given, JobDefaults, Outcome, Zones, job_id};
use dormouse::scheduler::{Changed, Condition, Schedule, Scheduler};
use serde_json::{Value, json};

use crate::gated::Gated;
use crate::schedules::schedule;
use crate::stage::*;
use crate::support::engine_ext::EngineExt;
use crate::support::model::ModelEngine;

const SECOND: Duration = Duration::from_secs(1);
const BOUNDS: ScheduleBounds = ScheduleBounds { of_namespace: 10_000, of_pool: 10_000 };

struct Play {
    clock: Arc<ManualClock>,
    engine: Arc<dyn Engine>,
    scheduler: Arc<Scheduler>,
}

impl Play {
    fn new() -> Play {
        let clock = manual_clock();
        let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new(clock.clone()));
        let scheduler = Arc::new(Play::scheduler(&engine));
        Play { clock, engine, scheduler }
    }

    fn scheduler(engine: &Arc<dyn Engine>) -> Scheduler {
        let (pool, zones) = (PoolName::default_pool(), Arc::new(Zones::bundled()));
        let metrics = Metrics::default().of_schedules(&pool);
        Scheduler::new(pool, engine.clone(), zones, BOUNDS, metrics)
    }

    async fn set(&self, name: &str, setting: Value) -> Changed {
        let id = schedule(name);
        let defaults = JobDefaults { tries: std::num::NonZeroU16::MIN, ttl: None };
        let given =
            Given::parse(&id.name, &setting, &self.scheduler.zones, &defaults).expect("a good setting");
        self.scheduler.set(&id, &given, &Condition::default(), false).await.expect("it is set").0
    }

    async fn get(&self, name: &str) -> Schedule {
        self.scheduler.get(&schedule(name)).await.expect("it is there").0
    }

    /// Looks until nothing more is due.
    async fn look(&self) {
        for _ in 0..1000 {
            if !ok("look", self.scheduler.look().await).is_zero() {
                return;
            }
        }
        panic!("something is due without end");
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.look().await;
    }

    /// What became of a schedule's occurrences, the oldest first.
    async fn history(&self, name: &str) -> Vec<Entry> {
        self.get(name).await.state.history.entries.into_iter().rev().collect()
    }

    async fn outcomes(&self, name: &str) -> Vec<(Millis, Outcome)> {
        self.history(name).await.into_iter().map(|entry| (entry.due - START, entry.outcome)).collect()
    }

    /// The ready jobs of the queue `q`.
    async fn jobs(&self) -> Vec<JobView> {
        let list = JobList { state: JobState::Ready, limit: 100, cursor: None, bodies: true };
        ok("list_jobs", self.engine.list_jobs(&queue("q"), list).await).expect("it begins").jobs
    }
}

/// Guards against what comes twice or not at all, and against another order than that of time.
#[tokio::test]
async fn occurrences_are_placed_in_time_and_once() {
    let play = Play::new();
    assert_eq!(play.set("s", json!({ "queue": "q", "every": 10 })).await, Changed::Created);
    play.pass(Duration::from_millis(9_999)).await;
    assert_eq!(play.jobs().await.len(), 0, "not one millisecond early");
    play.pass(Duration::from_millis(1)).await;
    for _ in 0..4 {
        // Another server looks too.
        let other = Play {
            scheduler: Arc::new(Play::scheduler(&play.engine)),
            engine: play.engine.clone(),
            clock: play.clock.clone(),
        };
        tokio::join!(play.look(), other.look());
        play.pass(Duration::from_secs(10)).await;
    }
    let expected: Vec<_> = (1..=5).map(|n| (n * 10_000, Outcome::Placed)).collect();
    assert_eq!(play.outcomes("s").await, expected);
    let ids: Vec<_> = play.jobs().await.iter().map(|job| job.id.to_string()).collect();
    let told: Vec<_> = play.history("s").await.into_iter().filter_map(|entry| entry.job_id).collect();
    assert_eq!(ids, told, "the jobs that the history tells of");
}

/// Guards against an absence that loses or doubles, for each way of catching up.
#[tokio::test]
async fn six_hours_away() {
    for (catch_up, jobs) in [("none", 0), ("last", 1), ("all", 6)] {
        let play = Play::new();
        play.set("s", json!({ "queue": "q", "every": 3600, "catch_up": catch_up })).await;
        play.pass(Duration::from_secs(6 * 3600 + 1800)).await;
        let placed = play.jobs().await;
        assert_eq!(placed.len(), jobs, "catch_up {catch_up}");
        assert!(
            placed.iter().all(|job| job.attributes.get("caught-up").is_some_and(|it| it == "1")),
            "{placed:?}"
        );
        let schedule = play.get("s").await;
        let counts = &schedule.state.history.counts;
        let count = |outcome| counts.get(&outcome).copied().unwrap_or(0);
        assert_eq!(count(Outcome::CaughtUp), jobs as u64, "catch_up {catch_up}: {counts:?}");
        assert_eq!(count(Outcome::Missed), 6 - jobs as u64, "catch_up {catch_up}: {counts:?}");
        play.pass(Duration::from_secs(1800)).await;
        assert_eq!(play.outcomes("s").await.last(), Some(&(7 * 3_600_000, Outcome::Placed)), "it goes on");
    }
}

/// Guards against a job that is dropped at once when there is no room, and against one that is tried for ever.
#[tokio::test]
async fn a_namespace_over_its_quota_is_tried_until_the_deadline() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 600, "deadline": 30, "catch_up": "none" })).await;
    let quota = |jobs| Quotas::from([(queue("q").namespace, Quota { jobs, ..Quota::default() })]);
    ok("set_quotas", play.engine.set_quotas(&quota(1)).await);
    let other =
        ok("publish", play.engine.publish(vec![job(&queue("r"), "x").make(&stage(&play))].into()).await);
    let dormouse::engine::Published::Done(placed) = other else { panic!("it is stored: {other:?}") };
    play.pass(Duration::from_secs(600)).await;
    assert_eq!((play.jobs().await.len(), play.history("s").await.len()), (0, 0), "there is no room");
    play.pass(Duration::from_secs(10)).await;
    ok("ack", play.engine.ack_job(dormouse::job::JobRef { queue: queue("r"), id: placed[0].id }).await);
    play.pass(SECOND).await;
    assert_eq!(play.outcomes("s").await, [(600_000, Outcome::Placed)], "now there is");
    // The job of before takes the room.
    play.pass(Duration::from_secs(589)).await;
    for _ in 0..35 {
        play.pass(SECOND).await;
    }
    let missed = play.history("s").await.pop().expect("an entry");
    assert_eq!((missed.due - START, missed.outcome, missed.count), (1_200_000, Outcome::Missed, Some(1)));
    let why = missed.why.expect("a reason");
    assert!(why.contains("quota"), "it says {why}");
    assert!(play.get("s").await.state.ailing, "its log says so once");
    ok("set_quotas", play.engine.set_quotas(&Quotas::new()).await);
    play.pass(Duration::from_secs(565)).await;
    assert!(!play.get("s").await.state.ailing, "it is well again");
}

/// A stage of this store, to make jobs on.
fn stage(play: &Play) -> VirtualStage {
    VirtualStage::new(play.engine.clone(), play.clock.clone(), ())
}

/// Guards against one job that stops its schedule.
#[tokio::test]
async fn what_the_store_refuses_of_a_job_alone_has_failed() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 10 })).await;
    // Somebody has the id of its first job.
    let of = play.get("s").await;
    let first =
        of.when(&play.scheduler.zones).and_then(|when| when.next(of.state.progress.cursor)).expect("one");
    let ScheduleId { namespace, name } = &of.id;
    let mut taken = job(&queue("q"), "x").make(&stage(&play));
    taken.id = job_id(namespace, name, &first);
    ok("publish", play.engine.publish(vec![taken].into()).await);
    play.pass(Duration::from_secs(10)).await;
    let failed = play.history("s").await.pop().expect("an entry");
    assert_eq!((failed.outcome, failed.job_id), (Outcome::Failed, None));
    assert!(failed.why.is_some(), "with a reason");
    play.pass(Duration::from_secs(10)).await;
    assert_eq!(play.outcomes("s").await[1], (20_000, Outcome::Placed), "it goes on");
}

#[tokio::test]
async fn the_job_of_an_earlier_occurrence_is_told() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 10, "overlap": "skip" })).await;
    play.pass(Duration::from_secs(10)).await;
    play.pass(Duration::from_secs(10)).await;
    let history = play.history("s").await;
    assert_eq!((history[0].outcome, history[1].outcome), (Outcome::Placed, Outcome::Skipped));
    assert_eq!(history[1].job_id, history[0].job_id, "the one that lives");
    play.set("s", json!({ "queue": "q", "every": 10, "overlap": "replace" })).await;
    play.pass(Duration::from_secs(10)).await;
    let (history, jobs) = (play.history("s").await, play.jobs().await);
    assert_eq!(
        jobs.iter().map(|job| Some(job.id.to_string())).collect::<Vec<_>>(),
        [history[2].job_id.clone()]
    );
}

/// Guards against an occurrence that comes again after the clock was set back, and against a storm after it was set ahead.
#[tokio::test]
async fn the_clock_is_set() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 60, "catch_up": "none" })).await;
    play.pass(Duration::from_secs(60)).await;
    play.clock.step_wall(-600_000);
    for _ in 0..10 {
        play.pass(Duration::from_secs(60)).await;
    }
    assert_eq!(play.jobs().await.len(), 1, "what was decided is not placed again");
    play.pass(Duration::from_secs(60)).await;
    assert_eq!(play.jobs().await.len(), 2, "it goes on where it was");
    play.clock.step_wall(3_600_000);
    play.look().await;
    let counts = play.get("s").await.state.history.counts;
    let now_and_missed = (counts.get(&Outcome::Placed), counts.get(&Outcome::Missed));
    assert_eq!(
        now_and_missed,
        (Some(&4), Some(&58)),
        "as after an absence: those within the deadline are placed"
    );
}

/// Guards against a change that owes what the new setting would have had before, or drops what the old one owed.
#[tokio::test]
async fn what_was_due_before_a_change_is_the_old_settings() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 60, "text": "old" })).await;
    play.clock.advance(Duration::from_secs(70));
    // Nobody has looked since it was due.
    play.set("s", json!({ "queue": "q", "every": 7, "text": "new" })).await;
    play.look().await;
    assert_eq!(play.outcomes("s").await, [(60_000, Outcome::Placed)], "the old one's");
    assert_eq!(play.jobs().await[0].body.as_deref(), Some(&b"old"[..]));
    play.pass(Duration::from_secs(7)).await;
    assert_eq!(play.outcomes("s").await.last(), Some(&(77_000, Outcome::Placed)), "counted from the change");
}

/// Guards against a backlog that makes others late.
#[tokio::test]
async fn what_is_due_now_goes_before_what_is_caught_up() {
    let play = Play::new();
    for n in 0..1500 {
        play.set(&format!("old{n}"), json!({ "queue": "old", "every": 3600 })).await;
    }
    play.clock.advance(Duration::from_secs(3000));
    play.set("now", json!({ "queue": "q", "every": 3600 })).await;
    play.clock.advance(Duration::from_secs(3600));
    // All but the last are an hour and more late.
    ok("look", play.scheduler.look().await);
    assert_eq!(play.jobs().await.len(), 1, "it does not wait for the others");
    play.look().await;
    assert_eq!(ok("size", play.engine.ready(&queue("old")).await), 1500, "which come too");
}

/// Guards against an occurrence that takes two steps: a death between them would store a job that nobody knows of.
#[tokio::test]
async fn a_death_after_any_call_leaves_the_job_and_its_schedule_as_one() {
    for calls in 0..6 {
        let clock = manual_clock();
        let gated = Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        let engine: Arc<dyn Engine> = gated.clone();
        let play = Play { scheduler: Arc::new(Play::scheduler(&engine)), engine, clock };
        play.set("s", json!({ "queue": "q", "every": 10 })).await;
        play.clock.advance(Duration::from_secs(10));
        gated.set_calls_left(Some(calls)).await;
        let _ = play.scheduler.look().await; // it dies here, or has come to its end
        gated.set_calls_left(None).await;
        let (jobs, outcomes) = (play.jobs().await.len(), play.outcomes("s").await.len());
        assert_eq!(jobs, outcomes, "jobs and what is told of them, after {calls} calls");
        play.look().await;
        assert_eq!(play.outcomes("s").await, [(10_000, Outcome::Placed)], "after {calls} calls");
        assert_eq!(play.jobs().await.len(), 1, "its job, after {calls} calls");
    }
}
