//! One job: its handler, its touches, and its result.

use std::any::Any;
use std::future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Next;
use super::hooks::{Ended, Event};
use super::run::Run;
use crate::client::TRACE;
use crate::error::{Error, ErrorKind};
use crate::hold::{Cause, Hold, Settled, Step, not_yours};
use crate::job::{Job, Outcome};
use crate::time::{Pauses, jittered};

/// Timeout of a touch.
const TOUCH_LIMIT: Duration = Duration::from_secs(10);
/// How often an overdue handler is logged.
const OVERDUE: Duration = Duration::from_secs(60);

/// Result of a handler.
type Handled = Result<Result<(), Outcome>, JoinError>;

/// Handles a job from the start of its handler until the server knows its result. The slot is freed when the handler
/// has returned.
pub(super) async fn work(run: Arc<Run>, job: Job, slot: OwnedSemaphorePermit) {
    let begun = Instant::now();
    run.settings.tell(&Event::Start { job: &job });
    let kept = job.hold.kept();
    let returned = CancellationToken::new();
    // Subscribes before the handler can touch.
    let touched = job.hold.touched_by_hand();
    let keeper = tokio::spawn(keep(run.clone(), job.clone(), returned.clone(), touched));
    let keeper = AbortOnDropHandle::new(keeper);
    let handler = start(&run, job.clone());
    let Some(handled) = handle(&run, &job, handler, &returned).await else {
        returned.cancel();
        let _ = keeper.await;
        kept.disarm();
        return;
    };
    let took = begun.elapsed();
    drop(slot);
    returned.cancel();
    // Waits for a touch in flight, which replaces the receipt.
    let _ = keeper.await;
    let outcome = conclude(&run, &job, handled).await;
    finish(&run, &job, outcome, begun, took);
    kept.disarm();
}

/// Returns a job whose handler will not begin, unless it is lost already. Hooks have not seen its start.
pub(super) async fn give_back(run: Arc<Run>, job: Job) {
    settle(&run, &job, back(), Ended::Returned).await;
}

fn finish(run: &Run, job: &Job, outcome: Ended, begun: Instant, took: Duration) {
    let elapsed = job.elapsed + begun.elapsed();
    run.settings.tell(&Event::Finish { job, outcome, took, elapsed });
}

fn start(run: &Run, job: Job) -> JoinHandle<Result<(), Outcome>> {
    let next = Next { settings: run.settings.clone(), at: 0 };
    let trace = job.traceparent().map(str::to_owned);
    // In the runtime of the application: a handler that blocks its thread stops none of our tasks.
    run.handlers.spawn(TRACE.scope(trace, next.run(job)))
}

/// Waits for the handler, and cancels it when its time is up. `None`: the job was settled without it, or given up.
async fn handle(
    run: &Run,
    job: &Job,
    mut handler: JoinHandle<Result<(), Outcome>>,
    returned: &CancellationToken,
) -> Option<Handled> {
    let begun = Instant::now();
    let limit = run.settings.time_limit.and_then(|limit| begun.checked_add(limit));
    let overdue_at = limit.and_then(|limit| limit.checked_add(run.settings.grace));
    let mut drained = false;
    loop {
        let limited = job.hold.cause() == Some(Cause::TimeLimit);
        tokio::select! {
            // A handler that has returned takes precedence, and a handler is cancelled before its job is returned.
            biased;
            handled = &mut handler => return Some(handled),
            () = at(limit), if job.hold.cause().is_none() => job.hold.cancel(Cause::TimeLimit),
            () = at(overdue_at), if limited => {
                overdue(run, job, &mut handler, returned, begun).await;
                return None;
            }
            () = run.drained.cancelled(), if !drained => {
                drained = true;
                job.hold.cancel(Cause::Drain);
            }
            () = run.over.cancelled() => {
                tracing::error!(job = %job.id, queue = %job.queue, "a handler did not return in time; its job is given back");
                run.unfinished.fetch_add(1, Ordering::Relaxed);
                returned.cancel();
                let took = begun.elapsed();
                let outcome = settle(run, job, back(), Ended::Returned).await;
                finish(run, job, outcome, begun, took);
                return None;
            }
        }
    }
}

/// Handles a handler that ignores its time limit: its job counts as failed now, its slot is taken until it returns.
async fn overdue(
    run: &Run,
    job: &Job,
    handler: &mut JoinHandle<Result<(), Outcome>>,
    returned: &CancellationToken,
    begun: Instant,
) {
    returned.cancel();
    let took = begun.elapsed();
    let outcome = fail(run, job, "time limit", None).await;
    finish(run, job, outcome, begun, took);
    let mut each = interval(OVERDUE);
    loop {
        tokio::select! {
            biased;
            _ = &mut *handler => break,
            () = run.over.cancelled() => {
                run.unfinished.fetch_add(1, Ordering::Relaxed);
                break;
            }
            _ = each.tick() => {
                let seconds = begun.elapsed().as_secs();
                tracing::error!(job = %job.id, queue = %job.queue, seconds, "a handler is past its time limit and runs on");
            }
        }
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => future::pending().await,
    }
}

/// Touches the job after each third of its `ttr` until its handler has returned. If the job is lost, cancels the
/// handler at once.
async fn keep(run: Arc<Run>, job: Job, returned: CancellationToken, by_hand: watch::Receiver<Duration>) {
    tokio::select! {
        // Nothing is sent for a job whose delivery has expired.
        biased;
        () = job.hold.expired() => {}
        kept = touches(&run, &job, &returned, by_hand) => if kept { return },
    }
    if job.hold.settled().is_none() {
        job.hold.lose();
    }
}

/// Returns whether the handler returned, or settled the job by itself, while the job was ours.
async fn touches(
    run: &Run,
    job: &Job,
    returned: &CancellationToken,
    mut by_hand: watch::Receiver<Duration>,
) -> bool {
    let third = job.hold.ttr() / 3;
    let step = Step::Touch { ttr: job.hold.ttr() };
    let mut wait = third;
    loop {
        tokio::select! {
            () = returned.cancelled() => return true,
            // After a manual touch, the next touch is due after a third of its `ttr`. Our own touch in flight may
            // have followed it, and shortened the delivery.
            _ = by_hand.changed() => {
                wait = (*by_hand.borrow_and_update()).min(job.hold.left()) / 3;
                continue;
            }
            () = sleep(jittered(wait)) => {}
        }
        wait = third;
        let mut pauses = Pauses::default();
        loop {
            let limit = third.min(TOUCH_LIMIT).min(job.hold.left());
            let touched = {
                let mut standing = job.hold.standing().await;
                let lost = job.hold.cause() == Some(Cause::Lost);
                if lost || returned.is_cancelled() || job.hold.settled().is_some() {
                    return true;
                }
                if limit.is_zero() {
                    return false;
                }
                job.hold.send(&run.client, &mut standing, &step, limit, false).await
            };
            run.settings.tell(&Event::Touch { job, error: touched.as_ref().err() });
            let error = match touched {
                Ok(_) => break,
                Err(e) if is_lost(&e) => return false,
                Err(e) => e,
            };
            tokio::select! {
                () = returned.cancelled() => return true,
                () = sleep(job.hold.pause(&mut pauses, &error)) => {}
            }
        }
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotFound)
}

/// Returns the result of a job whose handler has returned.
async fn conclude(run: &Run, job: &Job, handled: Handled) -> Ended {
    if let Some(settled) = job.hold.settled() {
        return match settled {
            Settled::Acked => Ended::Acked,
            Settled::Released => Ended::Released,
            Settled::Buried => Ended::Buried,
        };
    }
    let cause = job.hold.cause();
    if cause == Some(Cause::Lost) {
        return Ended::Lost;
    }
    let outcome = match handled {
        Ok(Ok(())) => return settle(run, job, Step::Ack, Ended::Acked).await,
        Ok(Err(outcome)) => outcome,
        // A middleware panicked; panics of handlers are caught earlier.
        Err(e) => match e.try_into_panic() {
            Ok(payload) => panicked(job, &*payload),
            Err(_) => Outcome::Failed("the handler was aborted".to_owned()),
        },
    };
    match (cause, outcome) {
        (Some(Cause::Drain), _) => settle(run, job, back(), Ended::Returned).await,
        (Some(_), _) => fail(run, job, "time limit", None).await,
        (None, Outcome::Failed(text)) => fail(run, job, &text, None).await,
        (None, Outcome::RetryAfter(delay, text)) => fail(run, job, &text, Some(delay)).await,
        (None, Outcome::Permanent(text)) => {
            let reason = reason(run, job, &text).await.1;
            settle(run, job, Step::Bury { reason }, Ended::Buried).await
        }
        (None, Outcome::Snooze(delay)) => {
            let step = Step::Release { delay, spend: false, reason: String::new() };
            settle(run, job, step, Ended::Snoozed).await
        }
    }
}

/// Returns the job to its queue at once, as if it had not been delivered.
fn back() -> Step {
    Step::Release { delay: Duration::ZERO, spend: false, reason: String::new() }
}

/// Releases the job for a retry, which uses a try.
async fn fail(run: &Run, job: &Job, text: &str, delay: Option<Duration>) -> Ended {
    let (attempt, reason) = reason(run, job, text).await;
    let delay = delay.unwrap_or_else(|| (run.settings.backoff)(attempt, text));
    tracing::info!(job = %job.id, queue = %job.queue, attempt, error = text, "a job failed");
    settle(run, job, Step::Release { delay, spend: true, reason }, Ended::Released).await
}

/// Returns the number of the attempt, and the reason that contains it.
async fn reason(run: &Run, job: &Job, text: &str) -> (u32, String) {
    let mut pauses = Pauses::default();
    let attempt = loop {
        if let Some(attempt) = job.hold.known_attempt() {
            break attempt;
        }
        let left = job.hold.left();
        match job.hold.look_at(&run.client, left.min(run.client.timeout())).await {
            Ok(info) => break job.hold.learn_attempt(&info),
            Err(e) if is_lost(&e) => break 1,
            Err(e) => {
                let pause = pauses.next(e.retry_after());
                // The rest of the time is reserved for the release itself.
                if job.hold.left().saturating_sub(job.hold.ttr() / 6) <= pause {
                    break 1;
                }
                sleep(pause).await;
            }
        }
    };
    (attempt, format!("attempt {attempt}: {text}"))
}

/// Sends the result of the job, until it is accepted or the job is lost.
async fn settle(run: &Run, job: &Job, step: Step, done: Ended) -> Ended {
    let mut pauses = Pauses::default();
    loop {
        let left = job.hold.left();
        if left.is_zero() || job.hold.cause() == Some(Cause::Lost) {
            job.hold.lose();
            return Ended::Lost;
        }
        let error = match send(run, &job.hold, job, &step, left).await {
            Ok(()) => return done,
            // A reply was lost, perhaps to a manual release: it was executed.
            Err(e) if is_lost(&e) && !matches!(step, Step::Ack) && job.hold.perhaps_given().await => {
                job.hold.settle(Settled::Released);
                return done;
            }
            Err(e) if is_lost(&e) => {
                job.hold.lose();
                return Ended::Lost;
            }
            Err(e) => e,
        };
        tracing::debug!(job = %job.id, %error, "a result is sent again");
        sleep(job.hold.pause(&mut pauses, &error)).await;
    }
}

async fn send(run: &Run, hold: &Hold, job: &Job, step: &Step, left: Duration) -> Result<(), Error> {
    let limit = left.min(run.client.timeout());
    let mut standing = hold.standing().await;
    if hold.settled().is_some() {
        return Ok(());
    }
    if !matches!(step, Step::Ack) {
        return hold.send(&run.client, &mut standing, step, limit, false).await.map(drop);
    }
    loop {
        let receipt = Hold::receipt(&standing);
        if run.acks.ack(&job.queue, &job.id, receipt, limit).await? {
            hold.settle(Settled::Acked);
            return Ok(());
        }
        if !hold.look(&run.client, &mut standing, limit).await? {
            return Err(not_yours());
        }
    }
}

/// Returns the outcome of a panic. The process's panic hook has written its stack.
pub(super) fn panicked(job: &Job, payload: &(dyn Any + Send)) -> Outcome {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "of an unknown kind",
    };
    tracing::error!(job = %job.id, queue = %job.queue, panic = text, "a handler panicked");
    Outcome::Failed(format!("panic: {text}"))
}
