//! Pushed jobs in virtual time: retries, breaker, bounds, and the stop.

use std::time::Duration;

use super::push_stage::{Arrived, PushStage, answer, pushed, refused};
use crate::gated::State;
use crate::support::engine_ext::EngineExt;
use dormouse::engine::{Engine, Release, Tries};
use dormouse::job::{JobRef, JobState, Reason};
use dormouse::push::results::{self, PushReport};
use dormouse::push::shared::MEMORY;
use serde_json::{Value, json};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn seconds(times: impl IntoIterator<Item = Duration>) -> Vec<f64> {
    times.into_iter().map(|time| time.as_secs_f64()).collect()
}

/// Returns the pauses between the received requests.
fn pauses(stage: &PushStage) -> Vec<Duration> {
    let at: Vec<Duration> = stage.endpoint.arrived().iter().map(|arrived| arrived.at).collect();
    at.windows(2).map(|two| two[1] - two[0]).collect()
}

/// Guards against a list of retries that is exhausted, shifted, or restarted after an hour, a day, or a restart of a
/// timer.
#[tokio::test(start_paused = true)]
async fn a_week_of_retries_after_2n_plus_1_minutes() {
    let retry: Vec<u64> = (0..120).map(|n| (2 * n + 1) * 60).collect();
    let stage = PushStage::new(json!({"retry": retry})).await;
    stage.endpoint.says(500, &[], "no");
    let job = stage.publish("x", 200).await;
    sleep(7 * 24 * 60 * MINUTE).await;
    let arrived = stage.endpoint.arrived();
    // 1 + 3 + 5 … + (2n - 1) is the square of n, and a week has 10,080 minutes.
    assert!((95..=106).contains(&arrived.len()), "about 101 attempts in a week, not {}", arrived.len());
    for (n, pause) in pauses(&stage).into_iter().enumerate() {
        let planned = (2 * n as u64 + 1) as f64 * 60.0;
        let ratio = pause.as_secs_f64() / planned;
        assert!((0.899..=1.101).contains(&ratio), "pause {n} was {pause:?}, {planned} s ± 10 % were planned");
    }
    for (n, arrived) in (1..).zip(&arrived) {
        let told = (arrived.attempt(), arrived.header("dormouse-remaining-tries"));
        assert_eq!(told, (n, &*(200 - n).to_string()), "attempt and remaining tries");
    }
    let exact = pauses(&stage).iter().filter(|pause| pause.as_secs() % 120 == 60).count();
    assert!(exact < 20, "the pauses have jitter");
    let view = stage.view(&job).await.expect("the job is there");
    assert_eq!(view.state, Some(JobState::Delayed), "it waits for its next attempt");
}

/// Guards against a response to a change that this server has not applied: a job published afterwards was sent by the
/// old setting. If the change cannot be read again, the response comes within a second.
#[tokio::test(start_paused = true)]
async fn a_change_is_answered_when_this_server_has_applied_it() {
    let stage = PushStage::new(json!({})).await;
    stage.settings.hang_changes(true);
    sleep(SECOND).await;
    let pause = tokio::spawn({
        let (push, key) = (stage.push.clone(), stage.key.clone());
        async move { push.pause(&key).await }
    });
    sleep(SECOND / 2).await;
    assert!(!pause.is_finished(), "answered, although the worker still has the old setting");
    stage.settings.hang_changes(false);
    pause.await.expect("it ends").expect("it is paused");
    stage.publish("x", 1).await;
    sleep(MINUTE).await;
    assert_eq!(stage.endpoint.arrived().len(), 0, "requests after the response");

    stage.settings.hang_changes(true);
    sleep(SECOND).await;
    let began = tokio::time::Instant::now();
    stage.push.resume(&stage.key).await.expect("it is resumed");
    assert!(began.elapsed() <= SECOND, "answered after {:?}", began.elapsed());
}

/// Guards against confusing statuses, by their effect on the job.
#[tokio::test(start_paused = true)]
async fn each_answer_does_with_the_job_what_is_promised() {
    type Headers = &'static [(&'static str, &'static str)];
    /// Status, headers, body, and the job's state and tries afterwards; `None` if it is deleted.
    type Case = (u16, Headers, &'static str, Option<(JobState, u16)>);
    let no: Headers = &[("dormouse-retry", "no")];
    let cases: [Case; 16] = [
        (200, &[], "", None),
        (204, &[], "", None),
        (299, &[], "", None),
        (301, &[("location", "https://shop.example/")], "", Some((JobState::Delayed, 2))),
        (304, &[], "", Some((JobState::Delayed, 2))),
        (400, &[], "", Some((JobState::Delayed, 2))),
        (404, &[], "", Some((JobState::Delayed, 2))),
        (410, &[], "", Some((JobState::Ready, 3))),
        (429, &[], "", Some((JobState::Delayed, 2))),
        (500, &[], "", Some((JobState::Delayed, 2))),
        (503, &[], "", Some((JobState::Delayed, 2))),
        (400, no, "", Some((JobState::Dead, 0))),
        (500, &[("dormouse-retry", "NO")], "", Some((JobState::Dead, 0))),
        (500, &[("dormouse-retry", "yes")], "", Some((JobState::Delayed, 2))),
        (200, no, "", None),
        (410, no, "", Some((JobState::Ready, 3))),
    ];
    for (status, headers, body, becomes) in cases {
        let stage = PushStage::new(json!({})).await;
        stage.endpoint.says(status, headers, body);
        let job = stage.publish("x", 3).await;
        sleep(SECOND).await;
        let view =
            stage.view(&job).await.map(|view| (view.state.expect("known"), view.tries_left.unwrap_or(0)));
        assert_eq!(view, becomes, "after {status} {headers:?}");
        assert_eq!(stage.endpoint.arrived().len(), 1, "{status} was answered once");
    }
}

/// Guards against an ok_when that is ignored, or that treats non-JSON bodies as success.
#[tokio::test(start_paused = true)]
async fn ok_when_looks_into_the_answer() {
    for (body, good) in [
        (r#"{"code":0}"#, true),
        (r#"{"code":0.0,"more":1}"#, true),
        (r#"{"code":1}"#, false),
        (r#"{"code":"0"}"#, false),
        (r#"{}"#, false),
        ("", false),
        ("ok", false),
        (r#"{"code":0"#, false),
    ] {
        let stage = PushStage::new(json!({"ok_when": {"pointer": "/code", "equals": 0}})).await;
        stage.endpoint.says(200, &[], body);
        let job = stage.publish("x", 3).await;
        sleep(SECOND).await;
        assert_eq!(stage.view(&job).await.is_none(), good, "after the answer {body:?}");
    }
    let stage = PushStage::new(json!({"ok_when": {"pointer": "/code", "equals": 0}})).await;
    stage.endpoint.does(|_| {
        let mut cut = answer(200, &[], r#"{"code":0}"#);
        if let Ok(answer) = &mut cut {
            answer.whole = false;
        }
        (Duration::ZERO, cut)
    });
    let job = stage.publish("x", 3).await;
    sleep(SECOND).await;
    assert!(stage.view(&job).await.is_some(), "a body that is cut is no success");
}

/// Guards against a Retry-After that is ignored, jittered, or obeyed without a bound.
#[tokio::test(start_paused = true)]
async fn retry_after_goes_before_retry_without_jitter_and_24_hours_at_most() {
    for (value, expected) in [("7", 7.0), ("86400", 86_400.0), ("9999999", 86_400.0), ("nonsense", 5.0)] {
        let stage = PushStage::new(json!({})).await;
        stage.endpoint.does(move |_| (Duration::ZERO, answer(500, &[("retry-after", value)], "")));
        stage.publish("x", 2).await;
        sleep(25 * 60 * MINUTE).await;
        let pause = pauses(&stage)[0].as_secs_f64();
        let slack = if value == "nonsense" { 0.51 } else { 0.01 };
        assert!((pause - expected).abs() <= slack, "after Retry-After: {value} the pause was {pause} s");
    }
    // A date in HTTP's format: the clock starts at 2023-11-14 22:13:20, and this is 40 s later.
    let stage = PushStage::new(json!({})).await;
    stage.endpoint.says(503, &[("retry-after", "Tue, 14 Nov 2023 22:14:00 GMT")], "");
    stage.publish("x", 2).await;
    sleep(MINUTE).await;
    let second = stage.endpoint.arrived()[1].at;
    assert!(
        (seconds([second])[0] - 40.0).abs() < 0.1,
        "the second attempt came at {second:?}, not at the date"
    );
}

/// Guards against unreported deaths, and against a death reported twice.
#[tokio::test(start_paused = true)]
async fn the_queue_of_on_dead_is_told_of_each_job_that_dies() {
    let stage = PushStage::new(json!({"retry": [1], "on_dead": "failed"})).await;
    stage.endpoint.does(|arrived| {
        (
            Duration::ZERO,
            match arrived.body.as_str() {
                "never" => answer(422, &[("dormouse-retry", "no")], "bad order"),
                "down" => Err(dormouse::push::client::ConnectFault::TimeOut(SECOND)),
                _ => answer(500, &[], ""),
            },
        )
    });
    let never = stage.publish("never", 5).await;
    let down = stage.publish("down", 1).await;
    let spent = stage.publish("spent", 2).await;
    sleep(10 * SECOND).await;
    for job in [&never, &down, &spent] {
        let state = stage.view(job).await.expect("dead jobs stay").state;
        assert_eq!(state, Some(JobState::Dead), "{job:?}");
    }
    let told = stage.take("failed").await;
    let expected = [
        json!({"job_id": never.id.to_string(), "queue": "q", "attempts": 1, "last_status": 422, "reason": "status 422", "data": "bmV2ZXI="}),
        json!({"job_id": down.id.to_string(), "queue": "q", "attempts": 1, "last_status": null, "reason": "no answer within 1 seconds", "data": "ZG93bg=="}),
        json!({"job_id": spent.id.to_string(), "queue": "q", "attempts": 2, "last_status": 500, "reason": "status 500", "data": "c3BlbnQ="}),
    ];
    assert_eq!(told, expected);
    let counts = stage.shown().await["counts"].clone();
    assert_eq!(counts, json!({"delivered": 0, "failed": 4, "dead": 3, "in_flight": 0}));
}

/// Guards against a job that vanishes unreported because its ttl ends before its next attempt.
#[tokio::test(start_paused = true)]
async fn a_pause_beyond_the_ttl_kills_at_once_and_on_dead_is_told() {
    let slow: &[(&str, &str)] = &[("retry-after", "3600")];
    for (what, status, headers, retry) in
        [("back-off", 500, &[][..], 3600), ("Retry-After", 503, slow, 1), ("Retry-After", 429, slow, 1)]
    {
        let stage = PushStage::new(json!({"retry": [retry], "on_dead": "failed"})).await;
        stage.endpoint.says(status, headers, "");
        let short = stage.publish_for(&stage.key, "short", 9, Some(10 * MINUTE)).await;
        let long = stage.publish_for(&stage.key, "long", 9, Some(120 * MINUTE)).await;
        sleep(SECOND).await;
        let dead = stage.view(&short).await.expect("dead jobs stay");
        let reason = dead.reason.as_ref().map(|reason| reason.as_str().to_owned());
        let expected = format!("attempt 1: status {status}");
        assert_eq!(
            (dead.state, reason),
            (Some(JobState::Dead), Some(expected.clone())),
            "{what} of {status}"
        );
        let waits = stage.view(&long).await.expect("it lives").state;
        assert_eq!(waits, Some(JobState::Delayed), "{what} of {status} within the ttl");
        let told = stage.take("failed").await;
        assert_eq!(told.len(), 1, "{what} of {status}: one job died: {told:?}");
        assert_eq!(told[0]["job_id"], json!(short.id.to_string()), "{what} of {status}: {told:?}");
        sleep(10 * SECOND).await;
        assert_eq!(stage.shown().await["counts"]["dead"], 1, "{what} of {status}");
    }
}

/// Guards against retries of the message until nothing is left of the ttr: the release came too late, and the endpoint
/// got the job again.
#[tokio::test(start_paused = true)]
async fn a_job_whose_message_cannot_be_stored_dies_all_the_same() {
    let stage = PushStage::new(json!({"timeout": 1, "on_dead": "failed"})).await;
    stage.endpoint.says(422, &[("dormouse-retry", "no")], "");
    stage.engine.refuse_publishes_to(Some("failed"));
    let job = stage.publish("x", 9).await;
    stage.engine.set(State::Slow(Duration::from_millis(300)));
    sleep(MINUTE).await;
    stage.engine.set(State::Up);
    let view = stage.view(&job).await.expect("its ttl has not ended");
    assert_eq!((view.state, stage.endpoint.arrived().len()), (Some(JobState::Dead), 1), "{view:?}");
}

/// Guards against a probe whose job vanishes, although a probe spends no try.
#[tokio::test(start_paused = true)]
async fn a_probe_that_is_told_to_come_back_after_the_ttl_dies() {
    let stage = PushStage::new(json!({"on_dead": "failed"})).await;
    stage.endpoint.does(|_| (Duration::ZERO, refused()));
    for n in 0..11 {
        stage.publish(&n.to_string(), 30).await;
    }
    sleep(Duration::from_millis(200)).await;
    assert_eq!(stage.shown().await["state"], "open");
    let before = stage.endpoint.arrived().len();
    stage.endpoint.says(503, &[("retry-after", "86400")], "");
    let key = stage.key.clone();
    let job = stage.publish_for(&key, "short", 30, Some(60 * MINUTE)).await;
    sleep(30 * MINUTE).await;
    assert!(stage.endpoint.arrived().len() > before, "probes are sent");
    let view = stage.view(&job).await.expect("its ttl has not ended, and it is not gone untold");
    assert_eq!(view.state, Some(JobState::Dead), "{view:?}");
    assert!(view.reason.is_some(), "it says why: {view:?}");
    let told = stage.take("failed").await;
    assert_eq!(told.iter().filter(|one| one["job_id"] == json!(job.id.to_string())).count(), 1, "{told:?}");
}

/// Guards against an outage that spends the tries of jobs that become ready during it.
#[tokio::test(start_paused = true)]
async fn an_outage_of_a_minute_kills_no_job_and_is_left_in_peace() {
    let stage = PushStage::new(json!({})).await;
    stage.endpoint.does(|_| (Duration::ZERO, refused()));
    let mut jobs = Vec::new();
    for n in 0..3000 {
        jobs.push(stage.publish(&n.to_string(), 3).await);
        sleep(Duration::from_millis(20)).await;
    }
    let while_down = stage.endpoint.arrived().len();
    assert!(while_down <= 10 + 10 + 7, "{while_down} requests were sent to an endpoint that was down");
    let shown = stage.shown().await;
    assert_eq!(shown["state"], "open", "{shown}");
    assert!(shown["since"].as_str().is_some_and(|since| since.starts_with("2023-11-14T22:13:2")), "{shown}");
    stage.endpoint.says(200, &[], "");
    sleep(3 * MINUTE).await;
    for job in &jobs {
        assert!(stage.view(job).await.is_none(), "{job:?} was not delivered");
    }
    let shown = stage.shown().await;
    assert_eq!((&shown["state"], &shown["counts"]["dead"]), (&json!("on"), &json!(0)), "{shown}");
    assert_eq!(shown["counts"]["delivered"], 3000, "{shown}");
}

/// Guards against a single job rejected by the endpoint that blocks all others behind an open breaker.
#[tokio::test(start_paused = true)]
async fn an_answer_to_a_probe_closes_the_breaker_also_when_it_is_no_success() {
    let stage = PushStage::new(json!({"concurrency": 1})).await;
    stage.endpoint.does(|_| (Duration::ZERO, refused()));
    for n in 0..11 {
        stage.publish(&n.to_string(), 3).await;
    }
    sleep(2 * SECOND).await;
    assert_eq!(stage.shown().await["state"], "open");
    let bad = stage.publish("bad", 3).await;
    stage
        .endpoint
        .does(|arrived| (Duration::ZERO, answer(if arrived.body == "10" { 400 } else { 200 }, &[], "")));
    sleep(10 * SECOND).await;
    assert_eq!(stage.shown().await["state"], "on", "400 is a reply");
    assert!(stage.view(&bad).await.is_none(), "the jobs behind it are delivered");
}

/// Guards against an ack that waits for an unavailable partition and delays all other acks until their ttr ends, so
/// that jobs would be sent again.
#[tokio::test(start_paused = true)]
async fn an_ack_that_cannot_be_done_holds_up_no_other() {
    let stage = PushStage::new(json!({})).await;
    stage.push.pause(&stage.key).await.expect("it pauses");
    let away = stage.publish("away", 9).await;
    stage.engine.set_unreachable(Some(away.id)).await;
    stage.push.resume(&stage.key).await.expect("it resumes");
    sleep(SECOND).await;
    for n in 0..5 {
        let job = stage.publish(&n.to_string(), 9).await;
        sleep(SECOND).await;
        assert!(stage.view(&job).await.is_none(), "job {n} is acked");
    }
    assert!(stage.view(&away).await.is_some(), "it is not");
    stage.engine.set_unreachable(None).await;
    sleep(SECOND).await;
    assert!(stage.view(&away).await.is_none(), "it is tried again");
    assert_eq!(stage.endpoint.arrived().len(), 6, "each was sent once");
}

/// Guards against jobs that the endpoint never answers and that block all others behind an open breaker: each probe
/// would send the same job, whose try is restored.
#[tokio::test(start_paused = true)]
async fn a_probe_that_is_not_answered_goes_behind_the_others() {
    for fault in [None, Some(503)] {
        let stage = PushStage::new(json!({"concurrency": 1, "timeout": 1, "retry": [3600]})).await;
        stage.endpoint.does(move |arrived| match (arrived.body.as_str(), fault) {
            ("good", _) => (Duration::ZERO, answer(200, &[], "")),
            (_, Some(status)) => (Duration::ZERO, answer(status, &[], "")),
            (_, None) => (MINUTE, answer(200, &[], "")),
        });
        for _ in 0..12 {
            stage.publish("bad", 3).await;
        }
        let good = stage.publish("good", 3).await;
        sleep(30 * SECOND).await;
        assert!(stage.view(&good).await.is_none(), "it is delivered: {fault:?}");
        let before = stage.endpoint.arrived().iter().position(|arrived| arrived.body == "good");
        assert_eq!(before, Some(10 + 2), "ten, and a probe for each of the other two: {fault:?}");
    }
}

/// Guards against losing the order while the endpoint is unreachable, which no job can cause.
#[tokio::test(start_paused = true)]
async fn a_probe_that_finds_nobody_stays_in_front() {
    let stage = PushStage::new(json!({"concurrency": 1, "retry": [3600]})).await;
    stage.endpoint.does(|_| (Duration::ZERO, refused()));
    for n in 0..14 {
        stage.publish(&n.to_string(), 3).await;
    }
    sleep(10 * SECOND).await;
    stage.endpoint.says(200, &[], "");
    sleep(MINUTE).await;
    let order: Vec<String> = stage.endpoint.arrived().into_iter().map(|arrived| arrived.body).collect();
    assert_eq!(order[order.len() - 4..], ["10", "11", "12", "13"], "{order:?}");
}

/// Guards against more requests than slots, and against slots that stay unused.
#[tokio::test(start_paused = true)]
async fn as_many_requests_are_in_flight_as_there_are_slots() {
    let stage = PushStage::new(json!({"concurrency": 7})).await;
    stage.endpoint.does(|_| (SECOND, answer(200, &[], "")));
    for n in 0..70 {
        stage.publish(&n.to_string(), 1).await;
    }
    sleep(11 * SECOND).await;
    let arrived = stage.endpoint.arrived().len();
    assert_eq!((stage.endpoint.most(), arrived), (7, 70), "in flight at most, and delivered in 10 s");
}

/// Guards against bursts above the rate, and against a rate that is never reached.
#[tokio::test(start_paused = true)]
async fn no_more_than_the_rate_begin_in_any_stretch() {
    let stage = PushStage::new(json!({"rate": 5, "per": 10, "concurrency": 100})).await;
    for n in 0..40 {
        stage.publish(&n.to_string(), 1).await;
    }
    sleep(75 * SECOND).await;
    let at: Vec<_> = stage.endpoint.arrived().iter().map(|arrived| arrived.at).collect();
    assert_eq!(at.len(), 40, "5 in each 10 s: at {:?}", seconds(at.clone()));
    for six in at.windows(6) {
        assert!(six[5] - six[0] >= 10 * SECOND, "6 began between {:?} and {:?}", six[0], six[5]);
    }
}

/// Guards against a paused queue that keeps the rate reserved for requests it never started: after it nothing would be
/// sent for one `per`.
#[tokio::test(start_paused = true)]
async fn a_paused_queue_holds_of_the_rate_only_what_it_has_begun() {
    let stage = PushStage::new(json!({"rate": 3, "per": 3600})).await;
    sleep(3 * SECOND).await;
    assert_eq!(stage.rate_reserved().await, 3, "the requests it may start");
    stage.publish("x", 1).await;
    sleep(SECOND).await;
    stage.push.pause(&stage.key).await.expect("it pauses");
    sleep(3 * SECOND).await;
    assert_eq!(
        (stage.endpoint.arrived().len(), stage.rate_reserved().await),
        (1, 1),
        "the request it has started"
    );
}

/// Guards against a rate that is doubled by a restart while the leases fail.
#[tokio::test(start_paused = true)]
async fn what_was_begun_is_told_after_the_lease_has_lapsed() {
    let stage = PushStage::new(json!({"rate": 3, "per": 30})).await;
    for n in 0..3 {
        stage.publish(&n.to_string(), 1).await;
    }
    sleep(SECOND).await;
    assert_eq!(stage.endpoint.arrived().len(), 3, "the maximum of the rate");
    stage.settings.refuse_keeps(true);
    sleep(15 * SECOND).await;
    assert_eq!(stage.rate_reserved().await, 3, "while leases fail");
    stage.push.stop();
    stage.push.ended().await;
    assert_eq!(stage.rate_reserved().await, 3, "by the last words");
}

/// Guards against a failed job that is retried before the next one has been sent.
#[tokio::test(start_paused = true)]
async fn with_one_slot_order_is_strict_and_a_failing_job_holds_nobody_up() {
    for retry in [0.0, 30.0] {
        let stage = PushStage::new(json!({"concurrency": 1, "retry": [retry]})).await;
        stage.endpoint.does(|arrived| {
            let bad = arrived.body == "1" && arrived.attempt() == 1;
            (Duration::from_millis(20), answer(if bad { 500 } else { 200 }, &[], ""))
        });
        for n in 0..4 {
            stage.publish(&n.to_string(), 5).await;
        }
        sleep(MINUTE).await;
        let order: Vec<String> = stage.endpoint.arrived().into_iter().map(|arrived| arrived.body).collect();
        assert_eq!(order, ["0", "1", "2", "3", "1"], "retry after {retry} s");
    }
}

/// Guards against overloading a slow endpoint further, and against a concurrency that never recovers.
#[tokio::test(start_paused = true)]
async fn an_overloaded_endpoint_gets_half_and_then_more_with_each_success() {
    let stage = PushStage::new(json!({"concurrency": 16, "retry": [1]})).await;
    stage.endpoint.does(|arrived| {
        let first = arrived.at < Duration::from_millis(1500);
        (SECOND, answer(if first { 429 } else { 200 }, &[], ""))
    });
    for n in 0..200 {
        stage.publish(&n.to_string(), 50).await;
    }
    sleep(2 * MINUTE).await;
    let arrived = stage.endpoint.arrived();
    let in_second = |n: u64| {
        let (from, to) = (n * SECOND.as_millis() as u64, (n + 1) * SECOND.as_millis() as u64);
        arrived.iter().filter(|a| (from..to).contains(&(a.at.as_millis() as u64))).count()
    };
    let by_second: Vec<usize> = (0..8).map(in_second).collect();
    assert_eq!(by_second[..2], [16, 8], "the concurrency is halved: {by_second:?}");
    assert!(by_second[2..].contains(&16), "and grows again: {by_second:?}");
    assert_eq!(stage.shown().await["counts"]["delivered"], 200);
}

/// Guards against push continuing after it was stopped, and against jobs lost or tries spent meanwhile.
#[tokio::test(start_paused = true)]
async fn pause_resume_410_and_delete_keep_the_jobs() {
    let stage = PushStage::new(json!({})).await;
    let state = async |stage: &PushStage| stage.shown().await["state"].clone();
    stage.push.pause(&stage.key).await.expect("it pauses");
    sleep(SECOND).await;
    let job = stage.publish("x", 1).await;
    sleep(MINUTE).await;
    assert_eq!((stage.endpoint.arrived().len(), state(&stage).await), (0, json!("paused")));
    stage.endpoint.says(410, &[], "gone");
    stage.push.resume(&stage.key).await.expect("it resumes");
    sleep(MINUTE).await;
    assert_eq!((stage.endpoint.arrived().len(), state(&stage).await), (1, json!("off")));
    let view = stage.view(&job).await.expect("it stays");
    assert_eq!((view.state, view.tries_left), (Some(JobState::Ready), Some(1)), "410 costs no try");
    stage.endpoint.says(200, &[], "");
    stage.set(json!({})).await;
    sleep(SECOND).await;
    assert_eq!((stage.endpoint.arrived().len(), state(&stage).await), (2, json!("on")), "a PUT turns it on");
    assert!(stage.view(&job).await.is_none(), "it is delivered");
    stage.push.delete(&stage.key).await.expect("it is deleted");
    sleep(SECOND).await;
    let job = stage.publish("y", 1).await;
    sleep(MINUTE).await;
    assert!(
        stage.view(&job).await.is_some_and(|view| view.state == Some(JobState::Ready)),
        "it is not delivered"
    );
    assert_eq!(stage.endpoint.arrived().len(), 2);
}

/// Guards against a stop that loses a try, aborts requests that could end, or sends new jobs.
#[tokio::test(start_paused = true)]
async fn at_the_stop_requests_may_end_and_those_that_do_not_give_their_tries_back() {
    let stage = PushStage::new(json!({"concurrency": 2})).await;
    stage.endpoint.does(|arrived| {
        (if arrived.body == "slow" { 10 * SECOND } else { 2 * SECOND }, answer(200, &[], ""))
    });
    let quick = stage.publish("quick", 1).await;
    let slow = stage.publish("slow", 1).await;
    let waits = stage.publish("waits", 1).await;
    sleep(SECOND).await;
    stage.push.stop();
    sleep(3 * SECOND).await;
    assert!(stage.view(&quick).await.is_none(), "it has ended, and is acked");
    assert_eq!(stage.endpoint.arrived().len(), 2, "nothing is taken after the stop");
    stage.push.cut();
    stage.push.ended().await;
    for job in [&slow, &waits] {
        let view = stage.view(job).await.expect("it is there");
        assert_eq!((view.state, view.tries_left), (Some(JobState::Ready), Some(1)), "{job:?}");
    }
}

/// Guards against requests with missing or forbidden content.
#[tokio::test(start_paused = true)]
async fn a_request_says_what_is_promised() {
    let setting =
        json!({"headers": {"Authorization": "Bearer secret", "X-Shop": "1"}, "format": "cloudevents"});
    let stage = PushStage::new(setting).await;
    let job = stage.publish("hello", 4).await;
    sleep(SECOND).await;
    let arrived = stage.endpoint.arrived().remove(0);
    let id = job.id.to_string();
    for (header, value) in [
        ("webhook-id", &*id),
        ("webhook-timestamp", "1700000000"),
        ("dormouse-namespace", "ns"),
        ("dormouse-queue", "q"),
        ("dormouse-attempt", "1"),
        ("dormouse-remaining-tries", "3"),
        ("dormouse-due", "2023-11-14T22:13:20.000Z"),
        ("content-type", "application/octet-stream"),
        ("authorization", "Bearer secret"),
        ("x-shop", "1"),
        ("ce-id", &*id),
        ("ce-source", "/ns/q"),
        ("ce-specversion", "1.0"),
    ] {
        assert_eq!(arrived.header(header), value, "{header}");
    }
    assert_eq!(arrived.body, "hello");
    assert!(arrived.header("user-agent").starts_with("Dormouse/"), "{arrived:?}");
    assert!(arrived.header("webhook-signature").starts_with("v1,"), "{arrived:?}");
    let shown = stage.shown().await.to_string();
    assert!(!shown.contains("Bearer"), "a header's value is shown: {shown}");
    stage.push.new_secret(&stage.key).await.expect("a new secret");
    sleep(SECOND).await;
    stage.publish("again", 1).await;
    sleep(SECOND).await;
    let signatures = |n: usize| stage.endpoint.arrived()[n].header("webhook-signature").split(' ').count();
    assert_eq!(signatures(1), 2, "both secrets sign");
    sleep(24 * 60 * MINUTE).await;
    stage.publish("later", 1).await;
    sleep(SECOND).await;
    assert_eq!(signatures(2), 1, "after a day the new one alone");
}

/// Guards against attempts that are not recorded, or shown in the wrong order.
#[tokio::test(start_paused = true)]
async fn the_last_20_attempts_are_shown_the_newest_first() {
    let stage = PushStage::new(json!({"concurrency": 1})).await;
    let long = "é".repeat(2000);
    stage.endpoint.does(move |_| (Duration::from_millis(3), answer(200, &[], &long)));
    for n in 0..25 {
        stage.publish(&n.to_string(), 1).await;
    }
    let last = stage.publish("last", 1).await;
    sleep(5 * SECOND).await;
    let shown = stage.shown().await;
    let attempts = shown["attempts"].as_array().expect("a list");
    assert_eq!((attempts.len(), &attempts[0]["job_id"]), (20, &json!(last.id.to_string())));
    let Value::Object(first) = &attempts[0] else { panic!("an object was expected, not {}", attempts[0]) };
    assert_eq!((&first["status"], &first["milliseconds"]), (&json!(200), &json!(3)));
    let answer = first["answer"].as_str().expect("a text");
    assert!((1000..=1027).contains(&answer.len()), "the first KiB of the answer, not {} bytes", answer.len());
    assert!(stage.engine.check().await.is_ok());
    assert!(stage.elapsed() < MINUTE, "shown at most 5 s late");
}

/// Guards against a worker that handles nothing while it waits for a store to accept failed jobs.
#[tokio::test(start_paused = true)]
async fn a_stop_is_heard_at_once_while_consumes_fail() {
    for millis in (2000..6000).step_by(173) {
        let stage = PushStage::new(json!({})).await;
        stage.engine.set_away(true);
        stage.publish("x", 1).await;
        sleep(Duration::from_millis(millis)).await;
        let asked = stage.elapsed();
        stage.push.stop();
        stage.push.ended().await;
        let took = stage.elapsed() - asked;
        assert!(took < Duration::from_millis(5), "a stop {millis} ms after the beginning took {took:?}");
    }
}

/// Guards against a worker that continues without its leases or acks, and sends nothing until its consume ends.
#[tokio::test(start_paused = true)]
async fn a_worker_whose_helper_has_died_is_begun_again_within_a_second() {
    for ack in [false, true] {
        let stage = PushStage::new(json!({})).await;
        let first = stage.publish("first", 1).await;
        sleep(3 * SECOND).await;
        assert_eq!(
            (stage.endpoint.arrived().len(), stage.view(&first).await),
            (1, None),
            "it is sent and acked"
        );
        let worker = stage.worker().await.expect("it leases");
        if ack {
            stage.engine.an_ack_panics();
            stage.publish("its ack panics", 1).await;
        } else {
            stage.settings.a_keep_panics();
        }
        sleep(2 * SECOND).await; // leases are renewed each second, workers are checked twice a second
        let now = stage.worker().await.expect("one leases");
        assert_ne!(now, worker, "another worker leases; of the acks: {ack}");
    }
}

/// Delivers the job, while push is paused, to a worker that releases it with this reason.
async fn fails_elsewhere(stage: &PushStage, job: &JobRef, reason: &str) {
    stage.push.pause(&stage.key).await.expect("it pauses");
    sleep(SECOND).await;
    let jobs = stage.engine.consume(&job.queue.clone().into(), &[MINUTE]).await.expect("it answers").jobs;
    let release = Release { delay: SECOND, tries: Tries::Spend, reason: Reason::new(reason) };
    stage.engine.release(job, jobs[0].proof(), release).await.expect("it is released");
    stage.push.resume(&stage.key).await.expect("it resumes");
}

/// Guards against ignoring an attempt just made by another server and not yet reported: the number would be wrong, the
/// first delay repeated, and the death report one attempt short.
#[tokio::test(start_paused = true)]
async fn an_attempt_of_another_server_counts_before_that_has_told_of_it() {
    let stage = PushStage::new(json!({})).await;
    stage.share_with_another(None).await;
    stage.push.pause(&stage.key).await.expect("it pauses");
    let job = stage.publish("x", 3).await;
    fails_elsewhere(&stage, &job, "attempt 1: status 500").await;
    sleep(MINUTE).await;
    let arrived = stage.endpoint.arrived();
    assert_eq!(arrived.first().map(Arrived::attempt), Some(2), "the attempt after the first one");
}

/// Guards against a count that restarts when push is deleted and set again.
#[tokio::test(start_paused = true)]
async fn attempts_are_counted_on_when_push_is_set_again() {
    let stage = PushStage::new(json!({"retry": [30]})).await;
    stage.endpoint.says(500, &[], "");
    stage.publish("x", 3).await;
    sleep(5 * SECOND).await;
    stage.push.delete(&stage.key).await.expect("it is deleted");
    sleep(SECOND).await;
    stage.set(json!({})).await;
    sleep(MINUTE).await;
    let attempts: Vec<u64> = stage.endpoint.arrived().iter().map(Arrived::attempt).collect();
    assert_eq!(attempts[..2], [1, 2], "the second attempt is the second one");
}

/// Guards against mistaking another worker's reason for one of ours, and counting on from its number.
#[tokio::test(start_paused = true)]
async fn a_reason_with_the_largest_number_overflows_nothing() {
    let stage = PushStage::new(json!({"retry": [1]})).await;
    stage.endpoint.says(500, &[], "");
    let report = PushReport { failed: 1, ..PushReport::default() };
    results::add(&*stage.settings, &stage.key, &report).await.expect("it is told");
    stage.push.pause(&stage.key).await.expect("it pauses");
    let job = stage.publish("x", 3).await;
    fails_elsewhere(&stage, &job, "attempt 18446744073709551615: status 500").await;
    sleep(MINUTE).await;
    let attempts: Vec<u64> = stage.endpoint.arrived().iter().map(Arrived::attempt).collect();
    assert_eq!(attempts, [1, 2], "no number is skipped");
    let view = stage.view(&job).await.expect("it is there");
    assert_eq!(view.state, Some(JobState::Dead), "two tries were left");
}

/// Guards against a server that shows `open` forever: after the outage other servers have delivered all jobs, so it has
/// none to probe with.
#[tokio::test(start_paused = true)]
async fn a_success_elsewhere_ends_the_open_state_of_a_server_that_has_nothing_to_probe_with() {
    let stage = PushStage::new(json!({"retry": [1]})).await;
    stage.endpoint.does(|_| (Duration::ZERO, refused()));
    for n in 0..10 {
        stage.publish(&n.to_string(), 1).await;
    }
    sleep(2 * SECOND).await;
    let state = async || stage.shown().await["state"].clone();
    assert_eq!(state().await, "open");
    sleep(MINUTE).await;
    assert_eq!(state().await, "open", "there was no reply yet");
    stage.share_with_another(Some(SECOND / 2)).await;
    sleep(3 * SECOND).await;
    assert_eq!(state().await, "on", "it has answered another server");
    // This server does not know yet: it probes with the next job, which spends no try.
    let job = stage.publish("probe", 1).await;
    let others = [stage.publish("1", 1).await, stage.publish("2", 1).await];
    let before = stage.endpoint.arrived().len();
    sleep(900 * Duration::from_millis(1)).await;
    assert_eq!(stage.endpoint.arrived().len() - before, 1, "one request, a probe");
    sleep(3 * SECOND).await;
    assert_eq!(state().await, "open", "the probe has failed");
    let view = stage.view(&job).await.expect("it is there");
    assert_eq!((view.state, view.tries_left), (Some(JobState::Ready), Some(1)), "a probe costs no try");
    stage.endpoint.says(200, &[], "");
    sleep(2 * MINUTE).await;
    for job in others {
        assert!(stage.view(&job).await.is_none(), "{job:?} was not delivered");
    }
    assert_eq!(state().await, "on");
}

/// Guards against a server that shows `open` forever because it mistook deliveries by other servers, made within seconds
/// of its last failure, for earlier ones.
#[tokio::test(start_paused = true)]
async fn a_success_elsewhere_right_after_the_last_failure_ends_the_open_state_too() {
    // The last failure is a second old when the other server reports its deliveries.
    for (ago, state) in [(SECOND / 2, "on"), (3 * SECOND, "open")] {
        let stage = PushStage::new(json!({"timeout": 1, "retry": [1]})).await;
        stage.endpoint.does(|_| (MINUTE, answer(200, &[], "")));
        for n in 0..10 {
            stage.publish(&n.to_string(), 1).await;
        }
        sleep(2 * SECOND).await;
        assert_eq!(stage.shown().await["state"], "open", "ten have timed out, and are dead");
        stage.share_with_another(Some(ago)).await;
        sleep(75 * SECOND).await;
        let shown = stage.shown().await;
        assert_eq!(shown["state"], state, "delivered {ago:?} before it was told: {shown}");
    }
}

/// Guards against a job returned after a 410 before all servers know that push is off: another server would send it to the
/// endpoint.
#[tokio::test(start_paused = true)]
async fn a_job_is_given_back_after_a_410_when_every_server_knows_of_it() {
    for is_shared in [false, true] {
        let stage = PushStage::new(json!({})).await;
        if is_shared {
            stage.share_with_another(None).await;
        }
        sleep(3 * SECOND).await; // the lease reports the other server
        stage.endpoint.says(410, &[], "gone");
        stage.settings.refuse_puts(usize::MAX);
        let job = stage.publish("x", 3).await;
        let state = async || stage.view(&job).await.expect("it stays").state;
        sleep(3 * SECOND).await;
        assert_eq!(state().await, Some(JobState::Running), "nobody knows of it while it cannot be stored");
        stage.settings.refuse_puts(0);
        let (mut off, mut ready) = (None, None);
        for _ in 0..100 {
            sleep(SECOND / 20).await;
            if stage.shown().await["state"] == "off" {
                off = off.or(Some(stage.elapsed()));
            }
            if state().await == Some(JobState::Ready) {
                ready = ready.or(Some(stage.elapsed()));
            }
        }
        let (off, ready) = (off.expect("it is off"), ready.expect("it is given back"));
        // Servers read the settings every half second.
        let waited = ready.saturating_sub(off) >= SECOND / 2;
        assert_eq!((ready >= off, waited), (true, is_shared), "off at {off:?}, ready at {ready:?}");
        assert_eq!(stage.view(&job).await.expect("it stays").tries_left, Some(3), "it costs no try");
        assert_eq!(stage.endpoint.arrived().len(), 1, "requests");
    }
}

/// Guards against a lost try because the effect of a 410 could not be stored for long.
#[tokio::test(start_paused = true)]
async fn a_job_is_given_back_after_a_410_before_its_hand_over_ends() {
    let stage = PushStage::new(json!({"timeout": 5})).await;
    stage.endpoint.says(410, &[], "gone");
    stage.settings.refuse_puts(usize::MAX);
    let job = stage.publish("x", 1).await;
    sleep(MINUTE).await;
    let view = stage.view(&job).await.expect("it stays");
    assert_eq!((view.state, view.tries_left), (Some(JobState::Ready), Some(1)), "it costs no try");
    assert_eq!(stage.endpoint.arrived().len(), 1, "requests");
    stage.settings.refuse_puts(0);
    sleep(3 * SECOND).await;
    assert_eq!(stage.shown().await["state"], "off", "it is stored as soon as it can be");
}

/// Guards against slow endpoints that occupy all of the server's connections, whether their queues existed before the quick
/// one or are added later.
#[tokio::test(start_paused = true)]
async fn slow_endpoints_leave_connections_to_another_queue() {
    let setting = json!({"concurrency": 1000, "timeout": 300});
    for is_first in [true, false] {
        let stage = PushStage::with(setting.clone(), 42, MEMORY).await;
        stage.endpoint.does(|arrived| {
            let slow = arrived.body == "slow";
            (if slow { 12 * SECOND } else { SECOND / 10 }, answer(if slow { 500 } else { 200 }, &[], ""))
        });
        let quick = pushed("quick");
        if is_first {
            stage.set_of(&quick, setting.clone()).await.expect("a setting");
        }
        for key in ["q", "slow2", "slow3", "slow4", "slow5", "slow6"].map(pushed) {
            stage.set_of(&key, setting.clone()).await.expect("a setting");
            for _ in 0..100 {
                stage.publish_to(&key, "slow", 9).await;
            }
            // Until it has taken its maximum.
            sleep(SECOND).await;
        }
        if !is_first {
            stage.set_of(&quick, setting.clone()).await.expect("a setting");
            sleep(SECOND).await;
        }
        let slow = stage.endpoint.most();
        assert!((28..42).contains(&slow), "{slow} of 42 connections were taken by slow endpoints");
        for n in 0..40 {
            let job = stage.publish_to(&quick, "quick", 1).await;
            sleep(SECOND / 2).await;
            assert!(stage.view(&job).await.is_none(), "job {n} is delivered at once; first: {is_first}");
        }
        // By then each slow queue has its share, and no more than that while others want theirs.
        let mut jobs = Vec::new();
        for _ in 0..3 {
            jobs.push(stage.publish_to(&quick, "quick", 1).await);
        }
        sleep(SECOND / 5).await;
        for job in jobs {
            assert!(stage.view(&job).await.is_none(), "its part is three; first: {is_first}");
        }
    }
}

/// Guards against bodies in flight that use up the server's memory.
#[tokio::test(start_paused = true)]
async fn bodies_in_flight_stay_within_their_memory() {
    const KIB: usize = 16 << 10;
    let stage = PushStage::with(json!({"concurrency": 1000}), 1000, KIB).await;
    stage.endpoint.does(|_| (SECOND, answer(200, &[], "")));
    let body = "x".repeat(192 << 10);
    for _ in 0..150 {
        stage.publish(&body, 1).await;
    }
    sleep(20 * SECOND).await;
    // 192 KiB, and 64 for the reply. A quarter is kept for queues that hold nothing.
    assert_eq!(stage.endpoint.most(), KIB / 256 * 3 / 4, "requests in flight at most");
    assert_eq!(stage.endpoint.arrived().len(), 150, "all of them were delivered");
}

/// Guards against settings that send the dead jobs of one queue to another and back.
#[tokio::test(start_paused = true)]
async fn a_circle_of_on_dead_is_refused() {
    let stage = PushStage::new(json!({"on_dead": "b"})).await;
    let set = async |queue: &str, on_dead: &str| {
        let set = stage.set_of(&pushed(queue), json!({"on_dead": on_dead})).await;
        set.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(set("b", "c").await, Ok(()), "a chain is none");
    let refused = set("c", "q").await.expect_err("q, b, c, q");
    assert!(refused.contains("on_dead") && refused.contains("queue b"), "{refused}");
    let refused = set("b", "q").await.expect_err("q, b, q");
    assert!(refused.contains("on_dead") && refused.contains("queue q"), "{refused}");
    for n in 0..17 {
        let made = set(&format!("n{}", n + 1), &format!("n{n}")).await;
        assert_eq!(made.is_ok(), n < 16, "a chain of {} queues: {made:?}", n + 1);
    }
}

/// Guards against a circle through a setting whose secrets this server cannot read.
#[tokio::test(start_paused = true)]
async fn a_circle_through_a_locked_setting_is_refused() {
    let stage = PushStage::new(json!({})).await;
    let b = pushed("b");
    stage.set_of(&b, json!({"on_dead": "q"})).await.expect("a setting");
    let stored = stage.records.get(&b).await.expect("it answers").expect("a record");
    let mut locked: Value = serde_json::from_slice(&stored.plain).expect("JSON");
    locked["encrypted"] = json!("by another server's key");
    assert!(locked.as_object_mut().and_then(|record| record.remove("secret")).is_some());
    let put = stage.records.put(&b, Some(locked.to_string().into()), Some(stored.version));
    assert!(put.await.expect("it answers"));
    let refused = stage.set_of(&stage.key, json!({"on_dead": "b"})).await.expect_err("q, b, q");
    assert!(refused.to_string().contains("queue b"), "{refused}");
}

/// Guards against a cycle that two servers stored at the same time: one job became hundreds.
#[tokio::test(start_paused = true)]
async fn a_circle_that_is_stored_ends_with_the_first_message() {
    let stage = PushStage::new(json!({"retry": [1], "on_dead": "b"})).await;
    stage.endpoint.says(422, &[("dormouse-retry", "no")], "no");
    // As another server would store it, without checking other queues.
    let (b, c) = (pushed("b"), pushed("c"));
    stage.set_of(&c, json!({"on_dead": "q"})).await.expect("a setting");
    let record = stage.records.get(&c).await.expect("it answers").map(|stored| stored.plain);
    assert!(stage.records.put(&b, record, None).await.expect("it answers"));
    let job = stage.publish("x", 5).await;
    stage.publish_to(&b, "y", 5).await;
    sleep(MINUTE).await;
    let dead = async |queue: &str| {
        stage.engine.dead_letter(&crate::jobs::queue(queue)).await.expect("it answers").jobs
    };
    assert_eq!((dead("q").await, dead("b").await), (2, 2), "each job, and one message of it");
    assert_eq!(stage.endpoint.arrived().len(), 4, "requests");
    let bodies: Vec<String> = stage.endpoint.arrived().into_iter().map(|arrived| arrived.body).collect();
    let told =
        bodies.iter().find(|body| body.contains(&job.id.to_string())).expect("a message of the first job");
    let told: Value = serde_json::from_str(told).expect("JSON");
    assert_eq!(told["data"], "eA==", "with the body of the job");
}
