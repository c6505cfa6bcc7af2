//! Overdue and currently due schedules, in virtual time, with the tasks that place them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse::engine::Engine;
use dormouse::outage::Outage;
use dormouse::schedule::Became;
use dormouse::scheduler;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::scheduler::Play;
use crate::gated::Gated;
use crate::gated_settings::GatedSettings;
use crate::settings_stage::MemorySettings;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;
use crate::support::model::ModelEngine;
use crate::support::wait::TIMEOUT;

const SECOND: Duration = Duration::from_secs(1);

/// Waits until the queue has `jobs` ready jobs.
async fn ready(play: &Play, name: &str, jobs: u64, why: &str) {
    let began = Instant::now();
    loop {
        let there = ok("size", play.engine.ready(&queue(name)).await);
        if there == jobs {
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "{there} jobs instead of {jobs} in {name}: {why}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Guards against a slow catch-up that delays schedules that become due meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_caught_up_holds_up_nothing_that_is_due() {
    let clock = manual_clock();
    let gated = Arc::new(Gated::new(ModelEngine::new(clock.clone())));
    let engine: Arc<dyn Engine> = gated.clone();
    let play = Play::on(engine, clock);
    for n in 0..20 {
        play.set(&format!("old{n}"), json!({ "queue": "old", "every": 60, "catch_up": "all" })).await;
    }
    play.clock.advance(Duration::from_secs(3 * 86_400));
    play.set("now", json!({ "queue": "q", "every": 1 })).await;
    gated.hang_publishes_to(Some("old"));
    let (stop, outage) = (CancellationToken::new(), Outage::new("the store"));
    let late = tokio::spawn(scheduler::catch_up(play.scheduler.clone(), outage.clone(), stop.clone()));
    let runs = tokio::spawn(scheduler::run(play.scheduler.clone(), outage, stop.clone()));
    for second in 1..=5 {
        play.clock.advance(SECOND);
        ready(&play, "q", second, "a backlog of others is in the way").await;
    }
    gated.hang_publishes_to(None);
    // One of each is in time, and the newest hundred of the others come.
    ready(&play, "old", 20 * 101, "nothing of the backlog is lost").await;
    stop.cancel();
    runs.await.expect("no panic").expect("it has a timer");
    late.await.expect("no panic");
    let of = play.get("now").await.state.history;
    assert_eq!(of.counts.get(&Became::Placed), Some(&5), "{of:?}");
}

/// Guards against losing a wake-up that comes while the task for overdue schedules walks through all of them.
#[tokio::test]
async fn what_is_late_is_heard_of_during_a_walk() {
    let (clock, gated) = (manual_clock(), GatedSettings::new(Arc::new(MemorySettings::default()), None));
    let play = Play::with(Arc::new(ModelEngine::new(clock.clone())), gated.clone(), clock);
    play.set("old", json!({ "queue": "old", "every": 60, "catch_up": "all" })).await;
    play.clock.advance(Duration::from_secs(86_400));
    play.set("now", json!({ "queue": "q", "every": 1 })).await;
    play.clock.advance(SECOND);
    // Fills the index before scans hang.
    ok("look", play.scheduler.store.count().await);
    gated.hang_scans(true);
    let (stop, outage) = (CancellationToken::new(), Outage::new("the store"));
    let late = tokio::spawn(scheduler::catch_up(play.scheduler.clone(), outage.clone(), stop.clone()));
    // It starts its pass before the other task starts.
    tokio::task::yield_now().await;
    let runs = tokio::spawn(scheduler::run(play.scheduler.clone(), outage, stop.clone()));
    ready(&play, "q", 1, "the other task has reported the overdue schedules").await;
    gated.hang_scans(false);
    ready(&play, "old", 101, "one in time, and the newest hundred missed ones").await;
    stop.cancel();
    runs.await.expect("no panic").expect("it has a timer");
    late.await.expect("no panic");
}

/// Guards against a backlog that its own schedule's occurrences interrupt forever, or that is lost with its server.
#[tokio::test]
async fn a_backlog_is_caught_up_beside_what_is_due_and_by_another_server() {
    let play = Play::new();
    play.set("s", json!({ "queue": "q", "every": 1, "catch_up": "all", "deadline": 1 })).await;
    play.clock.advance(Duration::from_secs(3600));
    // The first server decides which occurrences were missed, and stops.
    ok("look", play.scheduler.look().await);
    let begun = play.get("s").await.state.progress.backlog.len();
    assert!((1..=100).contains(&begun), "{begun} are left");
    let other = play.other();
    let mut seconds = 0;
    while !other.get("s").await.state.progress.backlog.is_empty() {
        other.pass(SECOND).await;
        seconds += 1;
        assert!(seconds < 20, "{} are left", other.get("s").await.state.progress.backlog.len());
    }
    let counts = other.get("s").await.state.history.counts;
    assert_eq!(counts.get(&Became::CaughtUp), Some(&100), "{counts:?}");
}
