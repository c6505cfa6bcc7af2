//! The worker of one pushed queue on one server: consumes into free slots, sends, and does with each job what the
//! answer says. Its loop owns the state; requests are tasks, and so is the ack of what was delivered, in batches.
//!
//! ```text
//! Dispatcher ──jobs──> loop ──> request (a task each) ──Ended──> loop: the slot is free, breaker, throttle
//!                        ^                 ├── delivered ──> acks ──> Engine::ack_many
//!                        │                 └── failed ──> on_dead; Engine::release or bury
//!                        └── Share: slots and rate, leased about once a second (no delivery waits for it)
//! ```
//!
//! At the stop nothing is consumed any more. Requests in flight may end; those that do not in time are cut, and their
//! jobs go back with their tries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::breaker::{Breaker, Gate, Sign, Throttle};
use super::client;
use super::delivery::{self, Failed, Plan, Verdict};
use super::encrypted;
use super::limits::{Part, Shares, Taken, Window};
use super::setting::{Record, Switch};
use super::store::{Attempt, Grant, Lease, PushKey, PushStore, Report};
use crate::clock::{Clock, Millis};
use crate::dispatch::{self, ConsumeError, Delivery, Dispatcher};
use crate::engine::{Engine, Fingerprint, Held, MAX_NAMED, Once, Placing, Publication, Release, Released};
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobIds, JobRef, NewJob, Reason, Receipt};
use crate::metrics::{PoolMetrics, PushSeries};
use crate::name::{IdempotencyKey, PoolName, Queue, QueueList};
use crate::outage::Outage;
use crate::process::tasks::Tasks;

/// For how long a lease stands. With [`RENEW`] and a request's time a server that dies gives its slots back within 15 s.
const LEASE: Duration = Duration::from_secs(10);
/// How often a lease is renewed.
const RENEW: Duration = Duration::from_secs(1);
/// How often counts and attempts are told.
const REPORT: Duration = Duration::from_secs(2);
/// How long one consume waits for jobs. A longer one would do as well.
const POLL: Duration = Duration::from_secs(60);
/// The most jobs of one consume: the dispatcher's bound.
const MOST_CONSUMED: usize = 100;
/// With so many delivered jobs whose acks wait for the store nothing more is consumed.
const MOST_UNACKED: usize = 2000;
/// A failed job sleeps for so long at least: at once it would be ready before all others.
const SHORTEST_RETRY: Duration = Duration::from_millis(50);
/// The pause before a store that failed is asked again.
const AGAIN: Duration = Duration::from_millis(250);
/// The pause before a message is tried again for which the namespace's quota has no room: thousands may be tried.
const AGAIN_OVER_QUOTA: Duration = Duration::from_secs(5);
/// How much memory bodies and answers in flight may take over all queues, in KiB.
pub const MEMORY: usize = 256 << 10;
/// How long the number of an attempt is looked for: the ttr runs meanwhile.
const NUMBER: Duration = Duration::from_secs(2);
/// How many times the job of an `on_dead` may be handed out. It lives forever.
const TRIES_OF_DEAD: std::num::NonZeroU16 = std::num::NonZeroU16::new(10).expect("ten is not zero");

/// What all workers of a server share.
#[derive(Debug)]
pub struct Shared {
    pub store: Arc<dyn PushStore>,
    /// Hears whether the store answers.
    pub outage: Arc<Outage>,
    pub client: Arc<dyn client::Send>,
    pub clock: Arc<dyn Clock>,
    /// This process; what its workers are called begins with it.
    pub server: String,
    /// Workers, requests, acks.
    pub tasks: Tasks,
    /// Requests in flight are cut.
    pub cut: CancellationToken,
    /// How many requests of all queues may be in flight: open files are bounded.
    pub connections: Arc<Shares>,
    /// How much memory their bodies and answers may take, in KiB: [`MEMORY`].
    pub memory: Arc<Shares>,
}

impl Shared {
    /// The time of day.
    pub fn now(&self) -> Millis {
        self.clock.wall_micros() / 1000
    }

    /// Changes a record by `change`, which may be asked more than once, and answers what was stored. `change` answers
    /// nothing when there is nothing to change. It is given a record that cannot be read as an error. One that is locked
    /// is never changed.
    pub async fn change<E: From<Error>>(
        &self,
        key: &PushKey,
        mut change: impl FnMut(Result<Option<Record>>) -> std::result::Result<Option<Record>, E>,
    ) -> std::result::Result<Option<Record>, E> {
        loop {
            let old = self.store.record(key).await.inspect_err(|error| self.outage.failed(error))?;
            if old.as_ref().is_some_and(|old| encrypted::locked(old).is_some()) {
                return Err(Error::Locked.into());
            }
            let read = |bytes: &bytes::Bytes| {
                Record::parse(bytes, &key.queue.name).map_err(|why| Error::corrupt(format!("{key}: {why}")))
            };
            let record = old.as_ref().map(read).transpose();
            let Some(new) = change(record)? else { return Ok(None) };
            if self.store.swap(key, old, Some(new.to_bytes().into())).await? {
                return Ok(Some(new));
            }
        }
    }
}

/// A pool whose queues are pushed.
#[derive(Debug)]
pub struct Target {
    pub name: PoolName,
    pub engine: Arc<dyn Engine>,
    pub dispatcher: Arc<Dispatcher>,
    pub ids: Arc<JobIds>,
    pub metrics: PoolMetrics,
    /// Hears whether the pool's store answers.
    pub outage: Arc<Outage>,
}

/// What requests and acks share with the loop.
#[derive(Debug)]
struct Queued {
    shared: Arc<Shared>,
    target: Arc<Target>,
    key: PushKey,
    /// This worker, for the leases: an earlier one of the same queue may still have requests in flight.
    name: String,
    metrics: PushSeries,
    /// What was not told to the store yet.
    report: Mutex<Report>,
    /// Delivered, and the ack is not done yet.
    unacked: AtomicUsize,
    /// How many attempts have failed, on any server.
    failed: AtomicU64,
    /// The store knows that attempts fail.
    failure_told: OnceCell<()>,
    /// No other server pushes the queue.
    alone: AtomicBool,
    /// What it holds of connections and memory.
    connections: Part,
    memory: Part,
}

/// A request is over, or what becomes of it is known.
#[derive(Debug)]
struct Ended {
    began: Instant,
    probe: bool,
    sign: Sign,
    slow: bool,
    success: bool,
    /// The revision of the record whose endpoint said 410.
    gone: Option<u64>,
}

/// Tells the loop of the end, also when the request's task panics.
struct Slot {
    ended: Option<Ended>,
    tell: mpsc::UnboundedSender<Ended>,
    _connection: Taken,
}

impl Slot {
    fn end(mut self, with: impl FnOnce(&mut Ended)) {
        if let Some(ended) = &mut self.ended {
            with(ended);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            // The loop waits for all of them.
            let _ = self.tell.send(ended);
        }
    }
}

/// A delivered job.
type ToAck = (JobId, Receipt, Instant);

/// A call of the store that is under way.
type Pending<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

/// A consume that is under way.
struct Consuming {
    count: usize,
    probe: bool,
    delivery: Pending<std::result::Result<Delivery, ConsumeError>>,
}

/// The loop's state.
struct Worker {
    queued: Arc<Queued>,
    plan: Arc<Plan>,
    in_flight: u32,
    breaker: Breaker,
    open_since: Option<Millis>,
    throttle: Throttle,
    window: Window,
    share: Grant,
    share_until: Instant,
    /// What the store believes that this server holds.
    told_holds: u32,
    /// The revision whose endpoint said 410, until the record says so.
    gone: Option<u64>,
    acks: mpsc::UnboundedSender<ToAck>,
    tell: mpsc::UnboundedSender<Ended>,
}

/// Runs the worker of a queue until its plan is gone or the tasks are stopped, and all of its requests have ended.
pub async fn run(
    shared: Arc<Shared>,
    target: Arc<Target>,
    key: PushKey,
    mut plans: watch::Receiver<Option<Arc<Plan>>>,
) {
    let Some(plan) = plans.borrow_and_update().clone() else { return };
    let queued = Arc::new(Queued {
        name: format!("{}-{}", shared.server, ulid::Ulid::r#gen()),
        metrics: target.metrics.pushed(&key.queue),
        report: Mutex::default(),
        unacked: AtomicUsize::new(0),
        failed: AtomicU64::new(0),
        failure_told: OnceCell::new(),
        alone: AtomicBool::new(false),
        connections: Part::default(),
        memory: Part::default(),
        shared: shared.clone(),
        target,
        key,
    });
    let (acks, to_ack) = mpsc::unbounded_channel();
    shared.tasks.spawn(ack(queued.clone(), to_ack));
    let (tell, mut ends) = mpsc::unbounded_channel();
    let now = Instant::now();
    let mut worker = Worker {
        queued,
        plan,
        in_flight: 0,
        breaker: Breaker::default(),
        open_since: None,
        throttle: Throttle::default(),
        window: Window::default(),
        share: Grant::default(),
        share_until: now,
        told_holds: 0,
        gone: None,
        acks,
        tell,
    };
    let stop = shared.tasks.stopping().clone();
    let (mut lease_at, mut report_at, mut consume_at) = (now, now + REPORT, now);
    let (mut leasing, mut reporting, mut consuming) = (None, None, None::<Consuming>);
    let mut ending = false;
    loop {
        let now = Instant::now();
        if worker.acks.is_closed() && !ending {
            tracing::error!(queue = %worker.queued.key, "push: the task that acks has died");
            (ending, consuming) = (true, None);
        }
        if ending && worker.in_flight == 0 {
            break;
        }
        if leasing.is_none() && (now >= lease_at || worker.gives_up()) {
            leasing = Some(worker.lease(now, ending));
            lease_at = now + RENEW;
        }
        if reporting.is_none() && now >= report_at {
            reporting = worker.report();
            report_at = now + REPORT;
        }
        let (mut room, mut wake) = (0, None);
        if !ending {
            (room, wake) = worker.room(now);
        }
        let probe = worker.breaker.is_open();
        if consuming.as_ref().is_some_and(|consuming| consuming.count > room || consuming.probe != probe) {
            consuming = None; // what it has brought meanwhile goes back
        }
        if room > 0 && now < consume_at {
            (room, wake) = (0, Some(consume_at));
        }
        if consuming.is_none() && room > 0 {
            consuming = Some(Consuming { count: room, probe, delivery: worker.consume(room) });
        }
        // A call that is under way ends by itself: its next time may have passed already.
        let next_lease = leasing.is_none().then_some(lease_at);
        let next_report = reporting.is_none().then_some(report_at);
        let wake = wake.into_iter().chain(next_lease).chain(next_report).min().unwrap_or(now + RENEW);
        tokio::select! {
            biased;
            () = stop.cancelled(), if !ending => {
                (ending, consuming, lease_at) = (true, None, now);
            }
            changed = plans.changed(), if !ending => {
                let plan = plans.borrow_and_update().clone();
                match plan.filter(|_| changed.is_ok()) {
                    Some(plan) => {
                        worker.adopt(plan);
                        consuming = None; // its ttr was another one
                        lease_at = Instant::now();
                    }
                    None => (ending, consuming, lease_at) = (true, None, now),
                }
            }
            Some(ended) = ends.recv() => {
                let before = (worker.breaker.is_open(), worker.breaker.is_down());
                worker.ended(ended);
                while let Ok(ended) = ends.try_recv() {
                    worker.ended(ended);
                }
                if (worker.breaker.is_open(), worker.breaker.is_down()) != before {
                    lease_at = Instant::now(); // so that it is shown
                }
            }
            delivery = pending(&mut consuming, |consuming| &mut consuming.delivery) => {
                consuming = None;
                match delivery {
                    Ok(delivery) => {
                        if !worker.begin(delivery, probe) {
                            consume_at = Instant::now() + AGAIN;
                        }
                    }
                    // The dispatcher has tried for a while, and tells the outage.
                    Err(error) => {
                        worker.consume_failed(&error);
                        consume_at = Instant::now() + AGAIN;
                    }
                }
            }
            share = pending(&mut leasing, |leasing| leasing) => {
                leasing = None;
                if worker.shared(share) {
                    lease_at = Instant::now(); // so that it is shown
                }
            }
            failed = pending(&mut reporting, |reporting| reporting) => {
                reporting = None;
                if let Some(mut failed) = failed {
                    let mut report = worker.queued.report.lock();
                    failed.add(std::mem::take(&mut *report));
                    *report = failed;
                }
            }
            () = sleep_until(wake) => {}
        }
    }
    drop(consuming);
    worker.leave().await;
}

/// Waits for what is under way; forever when nothing is.
async fn pending<P, T>(of: &mut Option<P>, future: impl FnOnce(&mut P) -> &mut Pending<T>) -> T {
    match of {
        Some(of) => future(of).await,
        None => std::future::pending().await,
    }
}

impl Worker {
    /// How many jobs may be consumed now; when it is none, when to look again unless something happens.
    fn room(&mut self, now: Instant) -> (usize, Option<Instant>) {
        if self.plan.switch != Switch::On || self.gone == Some(self.plan.revision) {
            return (0, None);
        }
        if now >= self.share_until {
            return (0, None);
        }
        let shared = &self.queued.shared;
        let connections = shared.connections.room(&self.queued.connections);
        let memory = shared.memory.room(&self.queued.memory);
        if connections == 0 || memory == 0 || self.queued.unacked.load(Ordering::Relaxed) >= MOST_UNACKED {
            return (0, Some(now + AGAIN));
        }
        let mut wake = self.throttle.tick(now);
        wake = Some(wake.map_or(self.share_until, |wake| wake.min(self.share_until)));
        let slots = self.share.slots.min(self.plan.setting.concurrency);
        let mut room = self.throttle.limit(slots).saturating_sub(self.in_flight) as usize;
        match self.breaker.gate(now) {
            Gate::Closed => {}
            // What was in flight when it opened may take all slots for long: a probe is sent beside it.
            Gate::Probe => room = usize::from(slots > 0),
            Gate::Wait(next) => return (0, next),
        }
        if room > 0 && self.plan.setting.rate > 0 {
            match self.window.room(now, self.share.rate, self.plan.setting.per) {
                Ok(begin) => room = room.min(begin),
                Err(next) => return (0, next),
            }
        }
        (room.min(connections).min(MOST_CONSUMED), wake)
    }

    fn consume(&self, room: usize) -> Pending<std::result::Result<Delivery, ConsumeError>> {
        let request = dispatch::Request {
            queues: QueueList::from(self.queued.key.queue.clone()),
            weights: None,
            count: room as u16, // MOST_CONSUMED at most
            ttr: self.plan.ttr(),
            timeout: POLL,
        };
        Box::pin(self.queued.target.dispatcher.consume_for_server(request))
    }

    fn consume_failed(&self, error: &ConsumeError) {
        tracing::debug!(queue = %self.queued.key, %error, "push could not consume");
    }

    /// Sends jobs that were consumed. Answers whether there was room for all of them.
    fn begin(&mut self, mut delivery: Delivery, probe: bool) -> bool {
        let now = Instant::now();
        let shared = &self.queued.shared;
        // Another queue may have taken the connections meanwhile, and jobs may be large.
        let room = |job: &Job| {
            // A part of the whole at most, so that each job fits. One that is larger than what the queue has left waits
            // while others take the rest.
            let kib = self.plan.memory(job).div_ceil(1024).min(MEMORY / 8);
            let connection = shared.connections.take(&self.queued.connections, 1)?;
            Some((connection, shared.memory.take(&self.queued.memory, kib)?))
        };
        let rooms: Vec<_> = delivery.jobs().iter().map_while(room).collect();
        let all = rooms.len() == delivery.jobs().len();
        delivery.keep(rooms.len());
        for (job, (connection, memory)) in delivery.take().into_iter().zip(rooms) {
            self.in_flight += 1;
            self.queued.metrics.in_flight.inc();
            // Nobody would take them out again.
            if self.plan.setting.rate > 0 {
                self.window.begun(now);
            }
            if probe {
                self.breaker.probing();
            }
            let ended =
                Ended { began: now, probe, sign: Sign::None, slow: false, success: false, gone: None };
            let slot = Slot { ended: Some(ended), tell: self.tell.clone(), _connection: connection };
            let (queued, plan) = (self.queued.clone(), self.plan.clone());
            let sending = Sending { queued, plan, job, probe, began: now, _memory: memory };
            shared.tasks.spawn(sending.run(slot, self.acks.clone()));
        }
        all
    }

    /// A request has ended: its slot is free.
    fn ended(&mut self, ended: Ended) {
        let now = Instant::now();
        self.in_flight -= 1;
        self.queued.metrics.in_flight.dec();
        let slots = self.share.slots.min(self.plan.setting.concurrency);
        if ended.slow {
            self.throttle.slow(ended.began, now, slots);
        }
        if ended.success {
            self.throttle.success(now, slots);
        }
        if self.breaker.ended(now, ended.probe, ended.sign) {
            self.breaker_changed();
        }
        if let Some(revision) = ended.gone.filter(|revision| self.gone != Some(*revision)) {
            self.gone = Some(revision);
            let queued = self.queued.clone();
            self.queued.shared.tasks.spawn(async move { queued.turn_off(revision).await });
        }
    }

    fn breaker_changed(&mut self) {
        let key = &self.queued.key;
        let (pool, queue) = (key.pool.as_str(), key.queue.to_string());
        if self.breaker.is_down() {
            self.open_since = Some(self.queued.shared.now());
            self.queued.metrics.breaker_open.inc();
            tracing::warn!(
                pool,
                queue,
                "push: the endpoint is down; nothing but probes is sent until it answers"
            );
        } else {
            self.open_since = None;
            self.queued.metrics.breaker_open.dec();
            tracing::info!(pool, queue, "push: the endpoint answers again");
        }
    }

    /// What was counted so far does not count any more.
    fn reset_breaker(&mut self) {
        if self.breaker.reset() {
            self.open_since = None;
            self.queued.metrics.breaker_open.dec();
        }
    }

    /// The record has changed.
    fn adopt(&mut self, plan: Arc<Plan>) {
        let turned_on = plan.switch == Switch::On && self.plan.switch != Switch::On;
        if turned_on || plan.setting != self.plan.setting {
            // Nobody knows yet whether the endpoint answers.
            self.reset_breaker();
        }
        if plan.setting != self.plan.setting {
            self.throttle = Throttle::default();
        }
        self.gone = None;
        self.plan = plan;
    }

    /// Whether the store believes that this server holds more than it does, and others could have it.
    fn gives_up(&self) -> bool {
        self.told_holds > self.share.slots && self.in_flight <= self.share.slots
    }

    /// How much of its part of the rate is begun. It counts as well when the lease has lapsed.
    fn begun(&mut self, now: Instant) -> u32 {
        let begun = self.window.count(now, self.plan.setting.per);
        if now < self.share_until { begun.min(self.share.rate) } else { begun }
    }

    /// Asks the store for slots. What is held until the answer is told with the question.
    fn lease(&mut self, now: Instant, ending: bool) -> Pending<(Instant, Result<Grant>)> {
        let queued = self.queued.clone();
        let setting = &self.plan.setting;
        let (slots, rate, per) = (setting.concurrency, setting.rate, setting.per);
        let valid = now < self.share_until;
        let may = if valid { self.share.slots.min(slots) } else { 0 };
        let holds = may.max(self.in_flight);
        let wants = match self.plan.switch {
            Switch::On if ending || self.gone == Some(self.plan.revision) => 0,
            Switch::On if self.breaker.is_open() => 1,
            Switch::On => slots,
            Switch::Paused | Switch::Off => 0,
        };
        let rate_held = if valid && wants > 0 { self.share.rate.min(rate) } else { self.begun(now) };
        if wants == 0 {
            // Also if it is resumed before the answer.
            self.share.rate = rate_held;
        }
        let (in_flight, open) = (self.in_flight, self.open_since.filter(|_| !ending));
        self.told_holds = holds;
        Box::pin(async move {
            let server = queued.name.as_str();
            let lease =
                Lease { server, time: LEASE, slots, wants, holds, rate, per, rate_held, in_flight, open };
            let share = queued.shared.store.lease(&queued.key, lease).await;
            queued.shared.outage.report(&share);
            (now, share)
        })
    }

    /// What the store has answered to a lease that was asked for then. Without an answer the last one stands until its
    /// end. Answers whether an endpoint that was down here answers others.
    fn shared(&mut self, (asked, share): (Instant, Result<Grant>)) -> bool {
        let Ok(share) = share else { return false };
        self.told_holds = self.told_holds.max(share.slots);
        self.share = share;
        self.share_until = asked + LEASE;
        self.queued.failed.fetch_max(share.failed, Ordering::Relaxed);
        self.queued.alone.store(share.alone, Ordering::Relaxed);
        let ends = self.breaker.told(Instant::now(), share.delivered);
        if ends {
            self.breaker_changed();
        }
        ends
    }

    /// Tells the store what was delivered. Answers what could not be told.
    fn report(&self) -> Option<Pending<Option<Report>>> {
        let report = std::mem::take(&mut *self.queued.report.lock());
        if report == Report::default() {
            return None;
        }
        let queued = self.queued.clone();
        Some(Box::pin(async move {
            let told = queued.shared.store.report(&queued.key, report.clone()).await;
            queued.shared.outage.report(&told);
            told.is_err().then_some(report)
        }))
    }

    /// The last words: slots are free for others, and nothing is forgotten.
    async fn leave(mut self) {
        self.reset_breaker();
        let queued = self.queued.clone();
        if let Some(report) = self.report() {
            report.await;
        }
        let rate_held = self.begun(Instant::now());
        let setting = &self.plan.setting;
        let lease = Lease {
            server: &queued.name,
            time: Duration::ZERO,
            slots: setting.concurrency,
            wants: 0,
            holds: 0,
            rate: setting.rate,
            per: setting.per,
            rate_held,
            in_flight: 0,
            open: None,
        };
        // Without it the lease ends by itself.
        let _ = queued.shared.store.lease(&queued.key, lease).await;
    }
}

impl Queued {
    /// The endpoint has said 410: nobody calls it until an operator says so. Not if the record was changed since.
    async fn turn_off(&self, revision: u64) {
        loop {
            let now = self.shared.now();
            let change = |record: Result<Option<Record>>| -> Result<Option<Record>> {
                Ok(record?.filter(|record| record.revision == revision && record.switch == Switch::On).map(
                    |record| Record {
                        switch: Switch::Off,
                        since: now,
                        why: "the endpoint answered 410".into(),
                        revision: record.revision + 1,
                        ..record
                    },
                ))
            };
            match self.shared.change(&self.key, change).await {
                Ok(None) => return,
                Ok(Some(_)) => {
                    let (pool, queue) = (self.key.pool.as_str(), self.key.queue.to_string());
                    tracing::warn!(
                        pool,
                        queue,
                        "push: the endpoint answered 410; push is off until it is resumed"
                    );
                    return;
                }
                // Those that have the key hear it from the endpoint, too.
                Err(Error::Locked) => return,
                Err(_) => {
                    let stop = self.shared.tasks.stopping();
                    if stop.run_until_cancelled(sleep(4 * AGAIN)).await.is_none() {
                        return;
                    }
                }
            }
        }
    }
}

/// Acks what was delivered: one call at a time, and what comes meanwhile goes with the next.
async fn ack(queued: Arc<Queued>, mut delivered: mpsc::UnboundedReceiver<ToAck>) {
    let mut jobs = Vec::with_capacity(MAX_NAMED);
    while delivered.recv_many(&mut jobs, MAX_NAMED).await > 0 {
        let count = jobs.len();
        while !jobs.is_empty() {
            let named: Vec<_> = jobs.iter().map(|(id, receipt, _)| (*id, Some(*receipt))).collect();
            let acked = queued.target.engine.ack_many(&queued.key.queue, &named).await;
            queued.target.outage.report(&acked);
            match acked {
                Ok(late) => {
                    if !late.is_empty() {
                        tracing::debug!(queue = %queued.key, count = late.len(), "delivered after their ttr");
                    }
                    jobs.clear();
                }
                // What is not acked in time is sent once more: the receiver knows it by its id.
                Err(Error::Closed) => jobs.clear(),
                Err(_) => {
                    sleep(AGAIN).await;
                    let now = Instant::now();
                    jobs.retain(|(_, _, until)| now < *until);
                }
            }
        }
        queued.unacked.fetch_sub(count, Ordering::Relaxed);
    }
}

/// One request, and what becomes of its job.
struct Sending {
    queued: Arc<Queued>,
    plan: Arc<Plan>,
    job: Job,
    probe: bool,
    began: Instant,
    _memory: Taken,
}

impl Sending {
    async fn run(self, slot: Slot, acks: mpsc::UnboundedSender<ToAck>) {
        let shared = &self.queued.shared;
        let attempt = self.number().await;
        let request = self.plan.request(&self.job, attempt, shared.now());
        let body_counts = self.plan.setting.ok_when.is_some();
        let sent = Instant::now();
        let sending = shared.client.send(request, self.plan.setting.timeout, body_counts);
        let Some(answer) = shared.cut.run_until_cancelled(sending).await else {
            drop(slot);
            self.release(Duration::ZERO, true, None).await;
            return;
        };
        let took = sent.elapsed();
        let now = shared.now();
        let verdict = self.plan.judge(&answer, UNIX_EPOCH + Duration::from_millis(now));
        self.queued.metrics.took(took);
        let status = answer.as_ref().ok().map(|answer| answer.status);
        tracing::debug!(
            queue = %self.queued.key, job = %self.job.id, attempt, status, ?verdict, ?took, "pushed a job"
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
            self.queued.report.lock().add(Report { delivered, failed, dead, attempts });
        };
        match verdict {
            Verdict::Delivered => {
                self.queued.unacked.fetch_add(1, Ordering::Relaxed);
                // The receiver ends after all of its senders.
                let _ = acks.send((self.job.id, self.job.proof(), self.began + self.plan.ttr()));
                slot.end(|ended| (ended.success, ended.sign) = (true, Sign::Answers));
                self.queued.metrics.delivered.inc();
                told(1, 0, 0);
            }
            Verdict::Gone => {
                slot.end(|ended| (ended.gone, ended.sign) = (Some(self.plan.revision), Sign::Answers));
                self.queued.metrics.gone.inc();
                told(0, 1, 0);
                self.release(Duration::ZERO, true, None).await;
            }
            Verdict::Failed(failed) => {
                // Before the slot is free: who looks for earlier attempts must look from now on.
                self.queued.failed.fetch_add(1, Ordering::Relaxed);
                let told_already = self.first_failure().await;
                slot.end(|ended| (ended.slow, ended.sign) = (failed.slow, failed.sign));
                let died = self.failed(attempt, &failed).await;
                let metrics = &self.queued.metrics;
                if died {
                    metrics.dead.inc()
                } else {
                    metrics.failed.inc()
                }
                told(0, u64::from(!told_already), u64::from(died));
            }
        }
    }

    /// The store is told that attempts fail before the first job that failed comes back: a server that is killed must
    /// not take the knowledge with it. Answers whether this failure was told so.
    async fn first_failure(&self) -> bool {
        let (queued, mut told) = (&self.queued, false);
        let tell = async {
            let first = Report { failed: 1, ..Report::default() };
            queued.shared.store.report(&queued.key, first).await?;
            told = true;
            Ok::<_, Error>(())
        };
        // Later than that it is told with the others.
        let _ = timeout(NUMBER, queued.failure_told.get_or_try_init(|| tell)).await;
        told
    }

    /// Which attempt this is. The reason of an earlier failure tells of it, whichever server it was on. It is not
    /// looked for where there can be none: the job has just become due, or no attempt has failed since push was set,
    /// and no other server can know better.
    async fn number(&self) -> u64 {
        let (queued, job) = (&self.queued, &self.job);
        let since_due = job.elapsed.saturating_sub(Duration::from_secs(u64::from(job.id.delay_seconds())));
        let none_failed = queued.failed.load(Ordering::Relaxed) == 0
            && queued.alone.load(Ordering::Relaxed)
            && !self.probe
            && job.id.published_at() * 1000 > self.plan.revision;
        if none_failed || since_due < SHORTEST_RETRY {
            return 1;
        }
        let job = self.job_ref();
        match timeout(NUMBER, self.queued.target.engine.inspect(&job)).await {
            Ok(Ok(Some(view))) => delivery::attempts_told(view.reason.as_ref()) + 1,
            // Better sent with a wrong number than not at all.
            Ok(Ok(None) | Err(_)) | Err(_) => 1,
        }
    }

    fn job_ref(&self) -> JobRef {
        JobRef { queue: self.job.queue.clone(), id: self.job.id }
    }

    /// What follows a failed attempt. Answers whether the job has died.
    async fn failed(&self, attempt: u64, failed: &Failed) -> bool {
        if self.probe && failed.sign == Sign::Down && !failed.never {
            return self.release(failed.retry_after.unwrap_or_default(), true, None).await;
        }
        if failed.never || self.job.tries_left == 0 {
            self.tell_of_death(attempt, failed).await;
        }
        let reason = delivery::reason(attempt, &failed.reason);
        if failed.never {
            return self.bury(reason).await;
        }
        let pause = failed.retry_after.unwrap_or_else(|| {
            let pause = self.plan.setting.pause_after(attempt);
            pause.mul_f64(0.9 + 0.2 * jitter(&self.job.id, attempt))
        });
        self.release(pause.max(SHORTEST_RETRY), false, reason).await
    }

    /// Publishes to the queue of `on_dead`, before the job dies: who is told twice knows it by the job's id.
    async fn tell_of_death(&self, attempt: u64, failed: &Failed) {
        let Some(name) = &self.plan.setting.on_dead else { return };
        // Or circles of settings, which two servers can make, would never end.
        if delivery::is_obituary(&self.job) {
            return;
        }
        let (target, queue) = (&self.queued.target, &self.job.queue);
        let body = delivery::obituary(&queue.name, &self.job, attempt, failed);
        let to = Queue { namespace: queue.namespace.clone(), name: name.clone() };
        let id = self.job.id.to_string();
        // Told once for each death: a job that was respawned dies again.
        let once = format!("push/{queue}/{id}/{attempt}");
        let fingerprint: Fingerprint = xxhash_rust::xxh3::xxh3_128(once.as_bytes()).to_be_bytes();
        let once = IdempotencyKey::new(&fingerprint).map(|key| Once { key, fingerprint });
        let job = NewJob {
            queue: to,
            id: target.ids.make(target.engine.now(), 0, false),
            body,
            attributes: Default::default(),
            ttl: None,
            delay: Duration::ZERO,
            tries: TRIES_OF_DEAD,
        };
        let publication =
            Publication { jobs: vec![Placing { job, at: None, key: None }], replaces: None, once };
        let publish = || target.engine.publish_with(publication.clone());
        if let Err(error) = self.until_ttr(publish).await {
            let queue = self.queued.key.to_string();
            tracing::warn!(queue, job = id, %error, "push: the queue of on_dead could not be told of a dead job");
        }
    }

    /// Puts the job back. Answers whether it has died.
    async fn release(&self, delay: Duration, restore_try: bool, reason: Option<Reason>) -> bool {
        let (job, receipt) = (self.job_ref(), self.job.proof());
        let release = Release { delay, restore_try, reason };
        let engine = &self.queued.target.engine;
        let released = self.until_ttr(|| engine.release(&job, receipt, release.clone())).await;
        matches!(released, Ok(Held::Done(Released::Dead)))
    }

    /// Puts the job into the dead letter. Answers whether it is there.
    async fn bury(&self, reason: Option<Reason>) -> bool {
        let (job, receipt) = (self.job_ref(), self.job.proof());
        let engine = &self.queued.target.engine;
        let buried = self.until_ttr(|| engine.bury(&job, receipt, reason.clone())).await;
        matches!(buried, Ok(Held::Done(())))
    }

    /// Asks the store again and again until the hand-over ends: after it the job comes back by itself.
    async fn until_ttr<T, F: Future<Output = Result<T>>>(&self, step: impl Fn() -> F) -> Result<T> {
        loop {
            let done = step().await;
            self.queued.target.outage.report(&done);
            let pause = if let Err(Error::OverQuota(_)) = &done { AGAIN_OVER_QUOTA } else { AGAIN };
            let over = Instant::now() + pause >= self.began + self.plan.ttr();
            match done {
                Err(
                    Error::Away(_)
                    | Error::Overloaded
                    | Error::Refused(_)
                    | Error::Full { .. }
                    | Error::OverQuota(_),
                ) if !over && !self.queued.shared.cut.is_cancelled() => {
                    sleep(pause).await;
                }
                done => return done,
            }
        }
    }
}

/// From 0 to 1, another one for each attempt, so that jobs that failed together do not come back together.
fn jitter(id: &JobId, attempt: u64) -> f64 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&id.to_bytes());
    bytes[16..].copy_from_slice(&attempt.to_be_bytes());
    (xxhash_rust::xxh3::xxh3_64(&bytes) >> 11) as f64 / (1u64 << 53) as f64
}
