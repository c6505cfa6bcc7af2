//! One attempt: sends the request of a job, and acks, releases or buries the job by the response. Runs as a
//! task of its own: the worker receives only [`Ended`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::acks::Acks;
use super::breaker::Sign;
use super::delivery::{self, Failed, Plan, Verdict};
use super::limits::TakenShare;
use super::results::{self, Attempt, PushReport};
use super::shared::{AGAIN, LOOK, PushedQueue};
use crate::engine::{By, Detail, Fingerprint, Held, Once, Publication, Release, Released, Tries};
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, NewJob, Reason};
use crate::name::{IdempotencyKey, Queue, QueueName};

/// Shortest pause before a retry: without one the failed job would be ready before all others.
const SHORTEST_RETRY: Duration = Duration::from_millis(50);
/// Pause before a death message is published again after the namespace's quota refused it: thousands may
/// retry.
const AGAIN_OVER_QUOTA: Duration = Duration::from_secs(5);
/// Timeout for looking up the number of an attempt: the job's ttr runs meanwhile.
const NUMBER: Duration = Duration::from_secs(2);
/// `tries` of a death message. It has no ttl.
const TRIES_OF_DEAD: std::num::NonZeroU16 = std::num::NonZeroU16::new(10).expect("ten is not zero");

/// Twice the time that other servers need to notice a change of a record.
const SEEN: Duration = LOOK.saturating_mul(2);
/// How long before its ttr ends a waiting job is released.
const GIVE_BACK: Duration = Duration::from_secs(3);

/// Sent when a request has ended, or when its consequence is known.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub began: Instant,
    pub probe: bool,
    pub sign: Sign,
    pub slow: bool,
    pub success: bool,
    /// The revision of the record whose endpoint returned 410.
    pub gone: Option<u64>,
}

/// Resources of a request in flight. When dropped, reports the end to the worker, also after a panic of the
/// task.
pub struct Slot {
    ended: Ended,
    tell: mpsc::UnboundedSender<Ended>,
    _connection: TakenShare,
}

impl Slot {
    /// Returns the slot of a request that begins now.
    pub fn new(
        began: Instant,
        probe: bool,
        tell: mpsc::UnboundedSender<Ended>,
        connection: TakenShare,
    ) -> Slot {
        let sign = Sign::None;
        let ended = Ended { began, probe, sign, slow: false, success: false, gone: None };
        Slot { ended, tell, _connection: connection }
    }

    fn end(mut self, with: impl FnOnce(&mut Ended)) {
        with(&mut self.ended);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The worker outlives all of its slots.
        let _ = self.tell.send(self.ended);
    }
}

/// One request and its job.
pub struct Sending {
    pub queue: Arc<PushedQueue>,
    pub plan: Arc<Plan>,
    pub job: Job,
    pub probe: bool,
    pub began: Instant,
    pub _memory: TakenShare,
}

impl Sending {
    pub async fn run(self, slot: Slot, acks: Acks) {
        let server = &self.queue.server;
        let attempt = self.number().await;
        let request = self.plan.request(&self.job, attempt, server.now());
        let body_counts = self.plan.setting.ok_when.is_some();
        let sent = Instant::now();
        let sending = server.client.send(request, self.plan.setting.timeout, body_counts);
        let Some(answer) = server.cut.run_until_cancelled(sending).await else {
            drop(slot);
            self.release(Duration::ZERO, Tries::Restore, None).await;
            return;
        };
        let took = sent.elapsed();
        let now = server.now();
        let verdict = self.plan.judge(&answer, now);
        self.queue.metrics.took(took);
        let status = answer.as_ref().ok().map(|answer| answer.status);
        tracing::debug!(
            queue = %self.queue.key, job = %self.job.id, attempt, status, ?verdict, ?took, "pushed a job"
        );
        let told = Attempt {
            job_id: self.job.id.to_string(),
            time: now,
            status,
            milliseconds: took.as_millis() as u64,
            answer: delivery::shown(&answer),
        };
        drop(answer);
        let told = |delivered: u64, failed: u64, dead: u64| {
            let attempts = vec![told];
            self.queue.report.lock().add(PushReport { delivered, failed, dead, attempts });
        };
        match verdict {
            Verdict::Delivered => {
                acks.add(self.job.id, self.job.proof(), self.began + self.plan.ttr());
                slot.end(|ended| (ended.success, ended.sign) = (true, Sign::Answers));
                self.queue.metrics.delivered.inc();
                *self.queue.delivered.lock() = Some(Instant::now());
                told(1, 0, 0);
            }
            Verdict::Gone => {
                slot.end(|ended| (ended.gone, ended.sign) = (Some(self.plan.revision), Sign::Answers));
                self.queue.metrics.gone.inc();
                told(0, 1, 0);
                self.until_off_is_known().await;
                self.release(Duration::ZERO, Tries::Restore, None).await;
            }
            Verdict::Failed(failed) => {
                // Before the slot is released: from now on workers must look up the numbers of attempts.
                self.queue.failed.fetch_add(1, Ordering::Relaxed);
                let told_already = self.first_failure().await;
                slot.end(|ended| (ended.slow, ended.sign) = (failed.slow, failed.sign));
                let died = self.failed(attempt, &failed).await;
                let metrics = &self.queue.metrics;
                if died {
                    metrics.dead.inc()
                } else {
                    metrics.failed.inc()
                }
                told(0, u64::from(!told_already), u64::from(died));
            }
        }
    }

    /// Reports the first failure to the other servers before the failed job is released: otherwise the knowledge that
    /// attempts fail would be lost with this server. Returns whether this call has reported it.
    async fn first_failure(&self) -> bool {
        let (queue, mut told) = (&self.queue, false);
        let tell = async {
            let first = PushReport { failed: 1, ..PushReport::default() };
            results::add(&*queue.server.settings, &queue.key, &first).await?;
            told = true;
            Ok::<_, Error>(())
        };
        // After the timeout the regular report includes it.
        let _ = timeout(NUMBER, queue.failure_told.get_or_try_init(|| tell)).await;
        told
    }

    /// Returns the number of this attempt, from the reason that the previous failure left with the job on
    /// whichever server. Skips the look-up if there can be no previous failure: the job has just become due,
    /// or no attempt has failed since push was set and no other server pushes the queue.
    async fn number(&self) -> u64 {
        let (queue, job) = (&self.queue, &self.job);
        let since_due = job.elapsed.saturating_sub(Duration::from_secs(u64::from(job.id.delay_seconds())));
        let none_failed = queue.failed.load(Ordering::Relaxed) == 0
            && queue.alone.load(Ordering::Relaxed)
            && !self.probe
            && job.id.published_at() * 1000 > self.plan.revision;
        if none_failed || since_due < SHORTEST_RETRY {
            return 1;
        }
        let view = queue.pool.engine.inspect(&job.queue, By::Id(job.id), Detail::All);
        match timeout(NUMBER, view).await {
            Ok(Ok(Some(view))) => delivery::attempts_in(view.reason.as_ref()) + 1,
            // A wrong number is better than no request.
            Ok(Ok(None) | Err(_)) | Err(_) => 1,
        }
    }

    /// Waits until `off` is stored and other servers have noticed it: before that they would consume the job
    /// and call the endpoint once more. Returns before the ttr ends, which would cost the job a try.
    async fn until_off_is_known(&self) {
        let known = async {
            let mut turned_off = self.queue.turned_off.subscribe();
            let is_stored = turned_off.wait_for(|revision| *revision >= self.plan.revision).await.is_ok();
            if is_stored && !self.queue.alone.load(Ordering::Relaxed) {
                sleep(SEEN).await;
            }
        };
        let until = self.began + self.plan.ttr() - GIVE_BACK;
        let _ = self.queue.server.cut.run_until_cancelled(timeout_at(until, known)).await;
    }

    fn job_ref(&self) -> JobRef {
        JobRef { queue: self.job.queue.clone(), id: self.job.id }
    }

    /// Handles a failed attempt. Returns whether the job has died.
    async fn failed(&self, attempt: u64, failed: &Failed) -> bool {
        // The endpoint may fail for this job alone, so the next probe should use another job.
        let is_free = self.probe && failed.sign == Sign::Down && !failed.never;
        let reason = delivery::reason(attempt, &failed.reason);
        let (pause, tries, last) = if is_free {
            let behind = if failed.was_sent { SHORTEST_RETRY } else { Duration::ZERO };
            (failed.retry_after.unwrap_or_default().max(behind), Tries::Restore, false)
        } else {
            let pause = failed.retry_after.unwrap_or_else(|| {
                let pause = self.plan.setting.pause_after(attempt);
                pause.mul_f64(0.9 + 0.2 * jitter(&self.job.id, attempt))
            });
            (pause.max(SHORTEST_RETRY), Tries::Spend, failed.never || self.job.tries_left == 0)
        };
        if last || self.expires_within(pause) {
            self.tell_of_death(attempt, failed).await;
            return self.release(Duration::ZERO, Tries::Forfeit, reason).await;
        }
        let died = self.release(pause, tries, reason.filter(|_| !is_free)).await;
        if died {
            // By the store's clock, the ttl ends within the pause.
            self.tell_of_death(attempt, failed).await;
        }
        died
    }

    /// Whether the job's ttl ends before a pause that begins now does.
    fn expires_within(&self, pause: Duration) -> bool {
        self.job.ttl.is_some_and(|left| left.saturating_sub(self.began.elapsed()) <= pause)
    }

    /// Publishes to the `on_dead` queue before the job dies. A receiver recognizes a repeated message by the
    /// job's id.
    async fn tell_of_death(&self, attempt: u64, failed: &Failed) {
        let Some(name) = &self.plan.setting.on_dead else { return };
        // Two servers can create a circle of settings, and messages would multiply forever.
        if delivery::is_death_message(&self.job) {
            return;
        }
        let (pool, queue) = (&self.queue.pool, &self.job.queue);
        let body = delivery::death_message(&queue.name, &self.job, attempt, failed);
        let to = Queue { namespace: queue.namespace.clone(), name: name.clone() };
        let id = self.job.id.to_string();
        // One message per death: a job that was respawned can die again.
        let once = format!("push/{queue}/{id}/{attempt}");
        let fingerprint: Fingerprint = xxhash_rust::xxh3::xxh3_128(once.as_bytes()).to_be_bytes();
        let once = IdempotencyKey::new(&fingerprint).map(|key| Once::request(key, fingerprint));
        let job = NewJob {
            id: pool.engine.make_id(&pool.ids, &to, Duration::ZERO, false),
            queue: to,
            body,
            attributes: Default::default(),
            ttl: None,
            delay: Duration::ZERO,
            tries: TRIES_OF_DEAD,
        };
        let publication = Publication { once, ..vec![job].into() };
        let publish = || pool.engine.publish(publication.clone());
        // The release that follows needs time as well.
        let published = self.retried(publish, GIVE_BACK).await;
        self.log_message(name, &id, published.err());
    }

    /// Logs when messages begin to be dropped, and when one is published again: on a full store every dying job would
    /// log a line.
    fn log_message(&self, on_dead: &QueueName, id: &str, error: Option<Error>) {
        let (queue, dropped) = (&self.queue.key, &self.queue.dropped_messages);
        let Some(error) = error else {
            let dropped = dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::info!(%queue, %on_dead, dropped, "push: messages about dead jobs are published again");
            }
            return;
        };
        if dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(%queue, %on_dead, job = id, %error, "push: messages about dead jobs are dropped");
        }
    }

    /// Releases the job for a retry, or for the last time. Returns whether it has died.
    async fn release(&self, delay: Duration, tries: Tries, reason: Option<Reason>) -> bool {
        let (job, receipt) = (self.job_ref(), self.job.proof());
        let release = Release { delay, tries, reason };
        let engine = &self.queue.pool.engine;
        // After the ttr the job returns by itself.
        let step = || engine.release(&job, receipt, release.clone());
        let released = self.retried(step, Duration::ZERO).await;
        matches!(released, Ok(Held::Done(Released::Dead)))
    }

    /// Retries a step until `spare` before the end of the ttr.
    async fn retried<T, F: Future<Output = Result<T>>>(
        &self,
        step: impl Fn() -> F,
        spare: Duration,
    ) -> Result<T> {
        let end = self.began + self.plan.ttr() - spare;
        loop {
            let done = step().await;
            self.queue.pool.outage.report(&done);
            let pause = if let Err(Error::OverQuota(_)) = &done { AGAIN_OVER_QUOTA } else { AGAIN };
            let over = Instant::now() + pause >= end;
            match done {
                Err(
                    Error::Away(_)
                    | Error::Overloaded
                    | Error::Refused(_)
                    | Error::Full { .. }
                    | Error::OverQuota(_),
                ) if !over && !self.queue.server.cut.is_cancelled() => {
                    sleep(pause).await;
                }
                done => return done,
            }
        }
    }
}

/// Returns a number from 0 to 1 that differs per attempt, so that jobs that failed together do not retry
/// together.
fn jitter(id: &JobId, attempt: u64) -> f64 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&id.to_bytes());
    bytes[16..].copy_from_slice(&attempt.to_be_bytes());
    (xxhash_rust::xxh3::xxh3_64(&bytes) >> 11) as f64 / (1u64 << 53) as f64
}
