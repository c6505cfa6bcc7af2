//! One delivery of a job: its receipt, its expiry, and its result.
//!
//! All requests with the receipt are sent under one lock, so a touch and a result never cross.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{JobInfo, Released};
use crate::request::{Call, job_path};
use crate::time::{Pauses, seconds};

/// Maximum bytes of a reason; it is truncated to whole characters.
const MAX_REASON: usize = 4096;
/// Minimum remaining time for a retry that is earlier than the server asked for.
const LAST_REPEAT: Duration = Duration::from_millis(100);

/// Why a handler should end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// The job is no longer ours. The handler's result is ignored.
    Lost,
    /// The worker is stopping, and its `drain` has passed.
    Drain,
    /// It exceeded `time_limit`.
    TimeLimit,
}

impl Cause {
    /// Returns the cause as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Lost => "lost",
            Cause::Drain => "drain",
            Cause::TimeLimit => "time_limit",
        }
    }
}

/// The result that was sent for a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Settled {
    Acked,
    Released,
    Buried,
}

/// A request for a job.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Touch { ttr: Duration },
    Ack,
    Release { delay: Duration, spend: bool, reason: String },
    Bury { reason: String },
}

/// Result of a request.
#[derive(Debug)]
pub(crate) enum Done {
    Touched(Timestamp),
    Settled,
    Released(Released),
}

pub(crate) struct Hold {
    client: Client,
    queue: String,
    id: String,
    ttr: Duration,
    standing: Mutex<Standing>,
    /// By the local clock. Readable while a request is in flight.
    expires: watch::Sender<Instant>,
    settled: OnceLock<Settled>,
    cause: OnceLock<Cause>,
    cancel: CancellationToken,
    lost: AtomicBool,
    /// The `ttr` of the last manual touch, for the worker that keeps the job.
    touched: watch::Sender<Duration>,
    attempt: OnceLock<u32>,
}

/// State for the next request of the job.
pub(crate) struct Standing {
    receipt: Option<String>,
    doubts: Doubts,
}

/// Requests that may have been executed: their replies were lost.
#[derive(Clone, Copy, Default)]
struct Doubts {
    /// Set by a touch, which may have replaced the receipt: how long the job is ours in any case. At most one of
    /// several such touches was executed, so the earliest expiry counts.
    unsure: Option<Instant>,
    /// A release or bury.
    given: bool,
    /// A release that restored the try: a look-up may then show another worker's delivery.
    given_back: bool,
}

impl Doubts {
    /// Records that a request is sent now.
    fn add(&mut self, step: &Step, sent: Instant) {
        match step {
            Step::Touch { ttr } => {
                let end = sent.checked_add(*ttr).unwrap_or(sent);
                self.unsure = Some(self.unsure.map_or(end, |known| known.min(end)));
            }
            Step::Release { spend, .. } => {
                self.given = true;
                self.given_back |= !spend;
            }
            Step::Bury { .. } => self.given = true,
            Step::Ack => {}
        }
    }
}

impl Hold {
    pub(crate) fn new(
        client: Client,
        queue: String,
        id: String,
        receipt: Option<String>,
        ttr: Duration,
        since: Instant,
    ) -> Hold {
        Hold {
            client,
            queue,
            id,
            ttr,
            standing: Mutex::new(Standing { receipt, doubts: Doubts::default() }),
            expires: watch::Sender::new(since + ttr),
            settled: OnceLock::new(),
            cause: OnceLock::new(),
            cancel: CancellationToken::new(),
            lost: AtomicBool::new(false),
            touched: watch::Sender::new(ttr),
            attempt: OnceLock::new(),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn cancelled(&self) -> Cause {
        self.cancel.cancelled().await;
        // It is set before the token is cancelled.
        self.cause().unwrap_or(Cause::Lost)
    }

    /// Lost takes precedence over any other cause, since then nothing is sent for the job.
    pub(crate) fn cause(&self) -> Option<Cause> {
        if self.lost.load(Ordering::Acquire) { Some(Cause::Lost) } else { self.cause.get().copied() }
    }

    /// Gives the job up: another worker has it, or will have it.
    pub(crate) fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            tracing::warn!(job = %self.id, queue = %self.queue, "the job is lost: its time ran out, or another has it");
        }
        self.cancel(Cause::Lost);
    }

    /// Receives manual touches, which restart the time until the next touch and the expiry.
    pub(crate) fn touched_by_hand(&self) -> watch::Receiver<Duration> {
        self.touched.subscribe()
    }

    /// Cancels the handler; the first cause stays.
    pub(crate) fn cancel(&self, cause: Cause) {
        let _ = self.cause.set(cause);
        self.cancel.cancel();
    }

    pub(crate) fn settled(&self) -> Option<Settled> {
        self.settled.get().copied()
    }

    pub(crate) fn expires(&self) -> Instant {
        *self.expires.borrow()
    }

    /// Waits until the delivery has expired.
    pub(crate) async fn expired(&self) {
        let mut expires = self.expires.subscribe();
        loop {
            let at = *expires.borrow_and_update();
            tokio::select! {
                // A touch may have succeeded meanwhile.
                () = sleep_until(at) => if self.expires() <= at { return },
                _ = expires.changed() => {}
            }
        }
    }

    /// Cancels the handler when the returned guard is dropped.
    pub(crate) fn kept(&self) -> DropGuard {
        self.cancel.clone().drop_guard()
    }

    /// Returns how long it is still ours.
    pub(crate) fn left(&self) -> Duration {
        self.expires().saturating_duration_since(Instant::now())
    }

    /// Returns the pause before a retry. If the job would expire before the time that the server asks for, half of
    /// the remaining time: that server may be back long before.
    pub(crate) fn pause(&self, pauses: &mut Pauses, error: &Error) -> Duration {
        let (left, pause) = (self.left(), pauses.next(error.retry_after()));
        match pause < left {
            true => pause,
            false if left > LAST_REPEAT => left / 2,
            false => left,
        }
    }

    /// Whether a release or bury may have been executed although its reply was lost.
    pub(crate) async fn perhaps_given(&self) -> bool {
        self.standing.lock().await.doubts.given
    }

    pub(crate) async fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().await
    }

    pub(crate) async fn touch(&self, ttr: Duration) -> Result<Timestamp> {
        match self.send_alone(Step::Touch { ttr }).await? {
            Done::Touched(until) => {
                self.touched.send_replace(ttr);
                Ok(until)
            }
            _ => Err(unreadable()),
        }
    }

    pub(crate) async fn ack(&self) -> Result<()> {
        self.send_alone(Step::Ack).await.map(drop)
    }

    pub(crate) async fn release(&self, delay: Duration, spend: bool, reason: &str) -> Result<Released> {
        match self.send_alone(Step::Release { delay, spend, reason: reason.to_owned() }).await? {
            Done::Released(what) => Ok(what),
            _ => Err(unreadable()),
        }
    }

    pub(crate) async fn bury(&self, reason: &str) -> Result<()> {
        self.send_alone(Step::Bury { reason: reason.to_owned() }).await.map(drop)
    }

    /// Returns the attempt in the job's reason plus one. The first call reads it from the server.
    pub(crate) async fn attempt(&self) -> Result<u32> {
        if let Some(attempt) = self.known_attempt() {
            return Ok(attempt);
        }
        if self.cause() == Some(Cause::Lost) {
            return Err(not_yours());
        }
        let info = self.client.get(&self.queue, &self.id).await?;
        Ok(self.learn_attempt(&info))
    }

    pub(crate) fn known_attempt(&self) -> Option<u32> {
        self.attempt.get().copied()
    }

    pub(crate) fn learn_attempt(&self, info: &JobInfo) -> u32 {
        *self.attempt.get_or_init(|| attempt_of(info.reason.as_deref()).saturating_add(1))
    }

    /// Looks the job up once.
    pub(crate) async fn look_at(&self, client: &Client, timeout: Duration) -> Result<JobInfo> {
        let path = job_path(self.client.namespace(), &self.queue, &self.id);
        client.once(&Call::get(path).with("verbose", "1"), timeout).await?.json()
    }

    async fn send_alone(&self, step: Step) -> Result<Done> {
        let mut standing = self.standing.lock().await;
        if self.cause() == Some(Cause::Lost) {
            // Nothing more is sent for it.
            return Err(not_yours());
        }
        let sending = self.send(&self.client, &mut standing, &step, self.client.timeout(), true);
        if self.touched.receiver_count() == 0 {
            return sending.await;
        }
        // If a worker has the job, retries end when it is lost, and its handler learns of it at once.
        let done = tokio::select! {
            done = sending => done,
            () = self.expired() => Err(not_yours()),
        };
        let gone = |e: &Error| matches!(e.kind(), ErrorKind::Lost | ErrorKind::NotFound);
        if done.as_ref().is_err_and(gone) {
            self.lose();
        }
        done
    }

    /// Sends a request. After a 409, checks whether an earlier touch with a lost reply was executed.
    pub(crate) async fn send(
        &self,
        client: &Client,
        standing: &mut Standing,
        step: &Step,
        timeout: Duration,
        repeat: bool,
    ) -> Result<Done> {
        loop {
            let lost = match self.send_once(client, standing, step, timeout, repeat).await {
                Err(e) if e.kind() == ErrorKind::Lost => e,
                other => return other,
            };
            if !self.look(client, standing, timeout).await? {
                return Err(lost);
            }
        }
    }

    /// After a 409: adopts the job's new receipt if it is ours under another one. Returns whether it is.
    pub(crate) async fn look(
        &self,
        client: &Client,
        standing: &mut Standing,
        timeout: Duration,
    ) -> Result<bool> {
        let (Some(end), Some(old)) = (standing.doubts.unsure, standing.receipt.clone()) else {
            return Ok(false);
        };
        if standing.doubts.given_back {
            return Ok(false);
        }
        let path = job_path(self.client.namespace(), &self.queue, &self.id);
        let call = Call::get(path).with("verbose", "1").with("receipt", &old);
        let info: JobInfo = match client.once(&call, timeout).await {
            Ok(answer) => answer.json()?,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        match info.receipt {
            Some(new) if new != old && !self.left().is_zero() => {
                standing.receipt = Some(new);
                standing.doubts.unsure = None;
                self.expires.send_replace(end);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Sends one request; with retries only if the server has done nothing.
    async fn send_once(
        &self,
        client: &Client,
        standing: &mut Standing,
        step: &Step,
        timeout: Duration,
        repeat: bool,
    ) -> Result<Done> {
        let call = self.call(standing, step);
        let (sent, before) = (Instant::now(), standing.doubts);
        // Dropping this future also leaves the request in doubt.
        standing.doubts.add(step, sent);
        let answer = if repeat { client.call(&call).await } else { client.once(&call, timeout).await };
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) => {
                if !e.is_uncertain() {
                    standing.doubts = before;
                }
                return Err(e);
            }
        };
        match step {
            Step::Touch { ttr } => {
                #[derive(Deserialize)]
                struct Touched {
                    receipt: String,
                    until: Timestamp,
                }
                let touched: Touched = answer.json()?;
                standing.receipt = Some(touched.receipt);
                standing.doubts.unsure = None;
                self.expires.send_replace(sent + *ttr);
                Ok(Done::Touched(touched.until))
            }
            Step::Ack => Ok(self.settle(Settled::Acked)),
            Step::Bury { .. } => Ok(self.settle(Settled::Buried)),
            Step::Release { .. } => {
                #[derive(Deserialize)]
                struct Back {
                    remain_tries: Option<u32>,
                }
                let back: Back = answer.json()?;
                self.settle(Settled::Released);
                Ok(Done::Released(match back.remain_tries {
                    Some(remain_tries) => Released::Back { remain_tries },
                    None => Released::Dead,
                }))
            }
        }
    }

    pub(crate) fn settle(&self, what: Settled) -> Done {
        let _ = self.settled.set(what);
        Done::Settled
    }

    fn call(&self, standing: &Standing, step: &Step) -> Call {
        let path = job_path(self.client.namespace(), &self.queue, &self.id);
        let call = match step {
            Step::Touch { ttr } => Call::post(path.join("touch")).with("ttr", &seconds(*ttr)),
            Step::Ack => Call::delete(path).safe(),
            Step::Release { delay, spend, reason } => {
                let call = Call::post(path.join("release")).with("delay", &seconds(*delay));
                let call = if *spend { call } else { call.with("spend", "0") };
                call.body(cut(reason).to_owned())
            }
            Step::Bury { reason } => Call::post(path.join("bury")).body(cut(reason).to_owned()),
        };
        call.with_some("receipt", standing.receipt.as_deref())
    }

    pub(crate) fn receipt(standing: &Standing) -> Option<String> {
        standing.receipt.clone()
    }

    pub(crate) fn ttr(&self) -> Duration {
        self.ttr
    }
}

pub(crate) fn not_yours() -> Error {
    Error::new(ErrorKind::Lost, "the job is not yours any more").with_status(409, None)
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Protocol, "the answer is not that of this call")
}

/// Truncates a reason to 4 KiB, in whole characters.
pub(crate) fn cut(reason: &str) -> &str {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

/// Returns the number in `attempt <n>: <text>`, as written by workers and push; 0 for other reasons.
pub(crate) fn attempt_of(reason: Option<&str>) -> u32 {
    let number =
        reason.and_then(|reason| reason.strip_prefix("attempt ")).and_then(|rest| rest.split_once(':'));
    number.and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_in_whole_characters() {
        let long = "ä".repeat(3000);
        assert_eq!(cut(&long).len(), 4096);
        let odd = format!("x{long}");
        assert_eq!(cut(&odd).len(), 4095, "half a character was left");
        assert_eq!(cut("short"), "short");
    }

    /// Guards against a long touch that was not executed and hides the expiry of a short one.
    #[test]
    fn of_touches_in_doubt_the_one_that_ends_first_counts() {
        let mut doubts = Doubts::default();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        doubts.add(&Step::Touch { ttr: 600 * second }, now);
        doubts.add(&Step::Touch { ttr: 3 * second }, now + second);
        doubts.add(&Step::Touch { ttr: 600 * second }, now + 2 * second);
        assert_eq!(doubts.unsure, Some(now + 4 * second));
        assert!(!doubts.given, "a touch gives nothing back");
    }

    #[test]
    fn the_attempt_is_read_from_the_reason() {
        assert_eq!(attempt_of(Some("attempt 3: no route")), 3);
        assert_eq!(attempt_of(Some("attempt of a worker")), 0);
        assert_eq!(attempt_of(Some("attempt 99999999999: x")), 0);
        assert_eq!(attempt_of(None), 0);
    }
}
