//! The worker of one pushed queue on one server: consumes into free slots, and begins requests. Its loop owns the
//! state and never blocks: requests, acks and leases are tasks of their own.
//!
//! ```text
//! Dispatcher ──jobs──> loop ──> attempt (a task each) ──Ended──> loop: the slot is free, breaker, slow-down
//!                        ^                 ├── delivered ──> acks ──> Engine::ack
//!                        │                 └── failed ──> on_dead; Engine::release
//!                        └── slots and rate, which a task leases about once a second
//! ```
//!
//! When the server stops, the worker consumes nothing more. Requests in flight may end within the grace period; the
//! others are cancelled, and their jobs return with their tries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::acks::Acks;
use super::attempt::{Ended, Sending, Slot};
use super::breaker::{Breaker, Gate, SlowDown};
use super::delivery::Plan;
use super::demand::{Demand, Slots};
use super::limits::Window;
use super::record::{PushRecord, Switch};
use super::shared::{AGAIN, MEMORY, PushedQueue};
use super::slots::{self, Teller};
use crate::clock::Millis;
use crate::dispatch::{self, ConsumeError, Delivery};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::name::QueueList;

/// How long one consume waits for jobs. The value does not matter much.
const POLL: Duration = Duration::from_secs(60);
/// Maximum jobs per consume: the dispatcher's bound.
const MOST_CONSUMED: usize = 100;
/// Pause before the change of a record is retried.
const CHANGE_AGAIN: Duration = Duration::from_secs(1);

/// A consume in flight.
struct Consuming {
    count: usize,
    probe: bool,
    delivery: std::pin::Pin<Box<dyn Future<Output = Consumed> + Send>>,
}

type Consumed = std::result::Result<Delivery, ConsumeError>;

struct Worker {
    queue: Arc<PushedQueue>,
    plan: Arc<Plan>,
    /// Consumes nothing more.
    ending: bool,
    in_flight: u32,
    breaker: Breaker,
    /// Since when the endpoint is down, by the breaker.
    down_since: Millis,
    /// `down_since`, shared with others: 0 while the endpoint is up.
    down: Arc<AtomicU64>,
    slow_down: SlowDown,
    window: Window,
    slots: Slots,
    consuming: Option<Consuming>,
    /// No consume begins before this time.
    consume_at: Instant,
    /// The revision whose endpoint returned 410, until the record says so.
    gone: Option<u64>,
    acks: Acks,
    /// The leasing task runs.
    is_leased: bool,
    demand: Teller,
    tell: mpsc::UnboundedSender<Ended>,
}

/// Runs the worker of a queue until it is removed or the tasks are stopped, and all of its requests have ended.
pub async fn run(queue: Arc<PushedQueue>, mut plans: watch::Receiver<Arc<Plan>>, down: Arc<AtomicU64>) {
    let plan = plans.borrow_and_update().clone();
    let stop = queue.server.tasks.stopping().clone();
    let (tell, mut ends) = mpsc::unbounded_channel();
    let (demand, mut slots) = slots::start(&queue);
    let mut worker = Worker {
        plan,
        ending: false,
        in_flight: 0,
        breaker: Breaker::default(),
        down_since: 0,
        down,
        slow_down: SlowDown::default(),
        window: Window::default(),
        slots: *slots.borrow_and_update(),
        consuming: None,
        consume_at: Instant::now(),
        gone: None,
        acks: Acks::start(&queue),
        is_leased: true,
        queue,
        demand,
        tell,
    };
    while !worker.has_ended() {
        let wake = worker.step();
        tokio::select! {
            biased;
            () = stop.cancelled(), if !worker.ending => worker.ending = true,
            () = worker.acks.died(), if !worker.ending => worker.helper_died(),
            changed = plans.changed(), if !worker.ending => match changed {
                Ok(()) => worker.adopt(plans.borrow_and_update().clone()),
                Err(_) => worker.ending = true,
            },
            Some(ended) = ends.recv() => {
                worker.ended(ended);
                while let Ok(ended) = ends.try_recv() {
                    worker.ended(ended);
                }
            }
            delivery = consumed(&mut worker.consuming) => worker.begin_all(delivery),
            changed = slots.changed(), if worker.is_leased => match changed {
                Ok(()) => worker.take_slots(*slots.borrow_and_update()),
                Err(_) => {
                    worker.is_leased = false;
                    worker.helper_died();
                }
            },
            () = sleep_until(wake) => {}
        }
    }
    worker.consuming = None; // jobs that it has fetched return
    worker.reset_breaker();
    worker.tell_demand(Instant::now());
}

/// Waits for the consume in flight; forever without one.
async fn consumed(consuming: &mut Option<Consuming>) -> Consumed {
    match consuming {
        Some(consuming) => (&mut consuming.delivery).await,
        None => std::future::pending().await,
    }
}

impl Worker {
    fn has_ended(&self) -> bool {
        self.ending && self.in_flight == 0
    }

    /// Ends the worker, since the task that acks or the one that leases has died: it is started again, with them.
    fn helper_died(&mut self) {
        if !std::mem::replace(&mut self.ending, true) {
            tracing::error!(
                queue = %self.queue.key,
                "push: the ack or lease task of a queue has died; its worker is restarted"
            );
        }
    }

    /// Publishes the demand, and consumes into the free slots. Returns the latest time of the next call.
    fn step(&mut self) -> Instant {
        let now = Instant::now();
        self.tell_demand(now);
        let (room, wake) = self.room(now);
        let probe = self.breaker.is_open();
        if self.consuming.as_ref().is_some_and(|consuming| consuming.count > room || consuming.probe != probe)
        {
            self.consuming = None; // jobs that it has fetched return
        }
        if self.consuming.is_none() && room > 0 {
            self.consuming = Some(self.consume(room, probe));
        }
        let lapses = (now < self.slots.until).then_some(self.slots.until);
        wake.into_iter().chain(lapses).min().unwrap_or(now + POLL)
    }

    /// Returns how many jobs may be consumed now. If none, also when to look again at the latest.
    fn room(&mut self, now: Instant) -> (usize, Option<Instant>) {
        if self.ending || !self.is_on() || now >= self.slots.until {
            return (0, None);
        }
        if now < self.consume_at {
            return (0, Some(self.consume_at));
        }
        let server = &self.queue.server;
        let connections = server.connections.room(&self.queue.connections);
        let memory = server.memory.room(&self.queue.memory);
        if connections == 0 || memory == 0 || self.acks.are_behind() {
            return (0, Some(now + AGAIN));
        }
        let wake = self.slow_down.tick(now);
        let slots = self.may_hold();
        let mut room = self.slow_down.limit(slots).saturating_sub(self.in_flight) as usize;
        match self.breaker.gate(now) {
            Gate::Closed => {}
            // Requests in flight when the breaker opened may occupy all slots for long: the probe does not wait for
            // them.
            Gate::Probe => room = usize::from(slots > 0),
            Gate::Wait(next) => return (0, next),
        }
        if room > 0 && self.plan.setting.rate > 0 {
            match self.window.room(now, self.slots.grant.rate, self.plan.setting.per) {
                Ok(begin) => room = room.min(begin),
                Err(next) => return (0, next),
            }
        }
        (room.min(connections).min(MOST_CONSUMED), wake)
    }

    /// Whether jobs should be sent.
    fn is_on(&self) -> bool {
        self.plan.switch == Switch::On && self.gone != Some(self.plan.revision)
    }

    /// Returns how many requests may be in flight while the lease is valid.
    fn may_hold(&self) -> u32 {
        self.slots.grant.slots.min(self.plan.setting.concurrency)
    }

    fn consume(&self, count: usize, probe: bool) -> Consuming {
        let request = dispatch::Request {
            queues: QueueList::from(self.queue.key.queue.clone()),
            weights: None,
            count: count as u16, // at most MOST_CONSUMED
            ttr: self.plan.ttr(),
            timeout: POLL,
            head: 0,
        };
        let delivery = Box::pin(self.queue.pool.dispatcher.consume_for_server(request));
        Consuming { count, probe, delivery }
    }

    /// Handles the end of the consume in flight: sends its jobs, or backs off.
    fn begin_all(&mut self, delivery: Consumed) {
        let probe = self.consuming.take().is_some_and(|consuming| consuming.probe);
        let all = match delivery {
            Ok(delivery) => self.begin(delivery, probe),
            // The dispatcher has retried for a while, and logs the outage.
            Err(error) => {
                tracing::debug!(queue = %self.queue.key, %error, "push: consuming failed; it is retried");
                false
            }
        };
        if !all {
            self.consume_at = Instant::now() + AGAIN;
        }
    }

    /// Sends jobs that were consumed. Returns whether there was room for all of them.
    fn begin(&mut self, mut delivery: Delivery, probe: bool) -> bool {
        let now = Instant::now();
        let server = &self.queue.server;
        // Another queue may have taken the connections meanwhile, and jobs may be large.
        let room = |job: &Job| {
            // Capped, so that every job fits. A job that exceeds the queue's remaining part waits while others use
            // the rest.
            let kib = self.plan.memory(job).div_ceil(1024).min(MEMORY / 8);
            let connection = server.connections.take(&self.queue.connections, 1)?;
            Some((connection, server.memory.take(&self.queue.memory, kib)?))
        };
        let rooms: Vec<_> = delivery.jobs().iter().map_while(room).collect();
        let all = rooms.len() == delivery.jobs().len();
        delivery.truncate(rooms.len());
        for (job, (connection, memory)) in delivery.take().into_iter().zip(rooms) {
            self.in_flight += 1;
            self.queue.metrics.in_flight.inc();
            // Without a rate nothing would remove them again.
            if self.plan.setting.rate > 0 {
                self.window.begun(now);
            }
            if probe {
                self.breaker.probing();
            }
            let slot = Slot::new(now, probe, self.tell.clone(), connection);
            let (queue, plan) = (self.queue.clone(), self.plan.clone());
            let sending = Sending { queue, plan, job, probe, began: now, _memory: memory };
            server.tasks.spawn(sending.run(slot, self.acks.clone()));
        }
        all
    }

    /// Handles the end of a request: frees its slot.
    fn ended(&mut self, ended: Ended) {
        let now = Instant::now();
        self.in_flight -= 1;
        self.queue.metrics.in_flight.dec();
        let slots = self.may_hold();
        if ended.slow {
            self.slow_down.slow(ended.began, now, slots);
        }
        if ended.success {
            self.slow_down.success(now, slots);
        }
        if self.breaker.ended(now, ended.probe, ended.sign) {
            self.breaker_changed();
        }
        if let Some(revision) = ended.gone.filter(|revision| self.gone != Some(*revision)) {
            self.gone = Some(revision);
            let queue = self.queue.clone();
            self.queue.server.tasks.spawn(turn_off(queue, revision));
        }
    }

    fn breaker_changed(&mut self) {
        let key = &self.queue.key;
        let (pool, queue) = (key.pool.as_str(), key.queue.to_string());
        if self.breaker.is_down() {
            self.down_since = self.queue.server.now();
            self.queue.metrics.breaker_open.inc();
            self.down.store(self.down_since, Ordering::Relaxed);
            tracing::warn!(pool, queue, "push: the endpoint is down; only probes are sent until it responds");
        } else {
            self.queue.metrics.breaker_open.dec();
            self.down.store(0, Ordering::Relaxed);
            tracing::info!(pool, queue, "push: the endpoint responds again");
        }
    }

    /// Discards the failures counted so far.
    fn reset_breaker(&mut self) {
        if self.breaker.reset() {
            self.queue.metrics.breaker_open.dec();
            self.down.store(0, Ordering::Relaxed);
        }
    }

    /// Applies a changed record.
    fn adopt(&mut self, plan: Arc<Plan>) {
        let turned_on = plan.switch == Switch::On && self.plan.switch != Switch::On;
        if turned_on || plan.setting != self.plan.setting {
            // It is unknown whether the new endpoint responds.
            self.reset_breaker();
        }
        if plan.setting != self.plan.setting {
            self.slow_down = SlowDown::default();
        }
        self.gone = None;
        self.plan = plan;
        self.consuming = None; // its ttr may differ
    }

    /// Applies a grant.
    fn take_slots(&mut self, slots: Slots) {
        self.slots = slots;
        if self.breaker.learn_delivered(Instant::now(), slots.grant.delivered_ago) {
            self.breaker_changed();
        }
    }

    /// Publishes the worker's demand, and the most that it holds until it receives other slots.
    fn tell_demand(&mut self, now: Instant) {
        let setting = &self.plan.setting;
        let stands = now < self.slots.until;
        let wants = match self.is_on() && !self.ending {
            false => 0,
            true if self.breaker.is_open() => 1,
            true => setting.concurrency,
        };
        let holds = if stands && !self.has_ended() { self.may_hold() } else { 0 };
        let rate_held = match stands && wants > 0 {
            true => self.slots.grant.rate.min(setting.rate),
            false => {
                // It counts even if the lease has ended.
                let begun = self.window.count(now, setting.per);
                if stands { begun.min(self.slots.grant.rate) } else { begun }
            }
        };
        // Keeps to the published maximum, also if it is resumed or changed before the grant arrives.
        (self.slots.grant.slots, self.slots.grant.rate) = (self.may_hold(), rate_held);
        self.demand.tell(Demand {
            number: self.slots.number,
            slots: setting.concurrency,
            wants,
            holds: holds.max(self.in_flight),
            rate: setting.rate,
            per: setting.per,
            rate_held,
            in_flight: self.in_flight,
            open: (self.breaker.is_down() && !self.ending).then_some(self.down_since),
            has_ended: self.has_ended(),
            is_urgent: false,
        });
    }
}

/// Handles a 410: turns the queue off until an operator resumes it, unless the record was changed since.
async fn turn_off(queue: Arc<PushedQueue>, revision: u64) {
    store_off(&queue, revision).await;
    queue.turned_off.send_replace(revision);
}

async fn store_off(queue: &PushedQueue, revision: u64) {
    loop {
        let now = queue.server.now();
        let change = |record: Result<Option<PushRecord>>| -> Result<Option<PushRecord>> {
            let is_it = |record: &PushRecord| record.revision == revision && record.switch == Switch::On;
            let off = |record: PushRecord| record.switched(Switch::Off, now, "the endpoint answered 410");
            Ok(record?.filter(is_it).map(off))
        };
        match queue.server.change(&queue.key, change).await {
            Ok(None) => return,
            Ok(Some(_)) => {
                let (pool, name) = (queue.key.pool.as_str(), queue.key.queue.to_string());
                tracing::warn!(
                    pool,
                    queue = name,
                    "push: the endpoint answered 410; push is off until it is resumed"
                );
                return;
            }
            // Servers that have the key learn it from the endpoint too.
            Err(Error::Locked) => return,
            Err(_) => {
                let stop = queue.server.tasks.stopping();
                if stop.run_until_cancelled(sleep(CHANGE_AGAIN)).await.is_none() {
                    return;
                }
            }
        }
    }
}
