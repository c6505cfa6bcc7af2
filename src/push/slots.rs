//! Leases the slots and rates of all workers of this server. One task writes the server's record and reads those of
//! the others about once a second, for all queues ([`leases`] has the protocol). No delivery waits for it.
//!
//! ```text
//! worker ──Demand──> task ──Entry──> push/leases/<server>
//!        <──Slots───      <──View─── push/leases/
//! ```
//!
//! A worker keeps to the latest slots it has received. So its demand states the maximum that it may hold until it
//! receives others, and the task changes its share only after the worker has received the previous one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::demand::{Demand, Grant, SharedDemand, Slots};
use super::leases::{self, Entry, View, fair_share, target};
use super::rates::{RateDemand, RateShare};
use super::results::{self, PushReport};
use super::shared::{NewWorker, PushServer, PushedQueue};
use crate::clock::Millis;
use crate::engine::together;
use crate::error::Result;
use crate::random;
use crate::settings::SettingsStore;

/// How long slots may be used after their lease was renewed. Together with [`KEPT`], [`RENEW`] and the time of the
/// calls, the slots of a server that dies are free within 15 s.
pub const LEASE: Duration = Duration::from_secs(10);
/// How long a server's record is kept: longer than its slots are used, since clocks may run at different speeds.
const KEPT: Duration = Duration::from_secs(11);
/// How often leases are renewed.
const RENEW: Duration = Duration::from_secs(1);
/// The same while no request is in flight and no other server pushes: a server that starts to may wait this long.
const RENEW_IDLE: Duration = Duration::from_secs(3);
/// Minimum time between the begin of two rounds.
const GAP: Duration = Duration::from_millis(20);
/// Minimum pause before slots are claimed that became free, or that two servers claimed at once. Each server adds up to a
/// quarter of a second, so that they do not do it at once again.
const AGAIN: Duration = Duration::from_millis(50);
/// How often counts and attempts are reported.
const REPORT: Duration = Duration::from_secs(2);
/// Number of records that are read at a time.
const AT_A_TIME: usize = 64;

/// A worker's end of its leases. Dropped before the last demand, it means that the worker has died: its requests may
/// be in flight, so its slots stay until their lease ends.
#[derive(Debug)]
pub struct Teller {
    queue: Arc<PushedQueue>,
    shared: Arc<SharedDemand>,
}

impl Teller {
    /// Publishes a demand, and wakes the task if others must learn of it at once.
    pub fn tell(&self, demand: Demand) {
        let mut before = self.shared.demand.lock();
        let is_news = demand.is_news(&before) || demand.holds != before.holds;
        // An urgent demand may have waited until the worker received these slots.
        let (is_same, has_waited) = (demand.number == before.number, before.is_urgent);
        *before = Demand { is_urgent: is_news || is_same && has_waited, ..demand };
        if is_news || !is_same && has_waited {
            self.queue.server.leasing.wake.notify_one();
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.shared.is_gone.store(true, Ordering::Release);
        self.queue.server.leasing.wake.notify_one();
    }
}

/// Begins the leases of a worker. They end after its last demand. The receiver fails if the task dies.
pub fn start(queue: &Arc<PushedQueue>) -> (Teller, watch::Receiver<Slots>) {
    let (server, shared) = (&queue.server, Arc::new(SharedDemand::default()));
    let none = Slots { grant: Grant::default(), until: Instant::now(), number: 1 };
    let (slots, receiver) = watch::channel(none);
    let worker = NewWorker { queue: queue.clone(), demand: shared.clone(), slots };
    let mut new = server.leasing.new.lock();
    let refused = match &*new {
        Some(task) => task.send(worker).err().map(|refused| refused.0),
        None => Some(worker),
    };
    if let Some(worker) = refused {
        let (task, workers) = mpsc::unbounded_channel();
        // The receiver is alive.
        let _ = task.send(worker);
        *new = Some(task);
        server.tasks.spawn(Task::new(server.clone(), workers).run());
    }
    drop(new);
    server.leasing.wake.notify_one();
    server.tasks.spawn(report_all(queue.clone(), receiver.clone()));
    (Teller { queue: queue.clone(), shared }, receiver)
}

/// A worker, as the task knows it.
#[derive(Debug)]
struct Member {
    /// Its queue, as text.
    name: String,
    queue: Arc<PushedQueue>,
    shared: Arc<SharedDemand>,
    slots: watch::Sender<Slots>,
    /// The demand of the last round.
    told: Demand,
    /// Number of slots in the server's record, or perhaps in it.
    claimed: u32,
    rate: RateShare,
    /// The results of earlier workers are known: no other has reported since.
    knows_failed: bool,
    /// When the last successful attempt on another server ended, by the pool's clock.
    delivered: Option<Millis>,
}

impl Member {
    fn new(NewWorker { queue, demand, slots }: NewWorker) -> Member {
        Member {
            name: queue.key.to_string(),
            queue,
            shared: demand,
            slots,
            told: Demand::default(),
            claimed: 0,
            rate: RateShare::default(),
            knows_failed: false,
            delivered: None,
        }
    }

    /// Returns its demand, if it has received its slots.
    fn demand(&self) -> Option<Demand> {
        let demand = self.shared.demand.lock();
        (demand.number == self.slots.borrow().number).then(|| demand.clone())
    }

    /// Whether a round should begin at once.
    fn is_urgent(&self) -> bool {
        let granted = self.slots.borrow().grant.slots;
        self.demand().is_some_and(|demand| {
            // Others may take the slots that it no longer holds.
            let gives_up = self.claimed > granted && demand.holds <= granted;
            gives_up || demand.is_news(&self.told)
        })
    }

    /// Whether its slots are free: it has ended, or has died and its lease is over.
    fn has_left(&self, now: Instant) -> bool {
        self.shared.is_gone.load(Ordering::Acquire)
            && (self.shared.demand.lock().has_ended || self.slots.borrow().until <= now)
    }

    fn entry(&self, demand: &Demand, slots: u32) -> Entry {
        let ago = self.queue.delivered.lock().map(|at| at.elapsed().as_millis() as Millis);
        let now = self.queue.pool.engine.now();
        Entry {
            queue: self.name.clone(),
            worker: self.queue.name.clone(),
            slots,
            wants: demand.wants,
            in_flight: demand.in_flight,
            open: demand.open,
            delivered: ago.map(|ago| now.saturating_sub(ago)),
        }
    }
}

/// What a member asks for in a round.
struct Offer {
    /// `None`: the worker has not received its slots, and nothing changes.
    demand: Option<Demand>,
    target: u32,
    entry: Entry,
}

struct Task {
    server: Arc<PushServer>,
    new: mpsc::UnboundedReceiver<NewWorker>,
    members: Vec<Member>,
    /// The records of the others, as last read.
    view: Option<View>,
    /// When the record was last kept, as far as this server knows.
    kept: Instant,
    /// When the next round is due, and the earliest time of an urgent one.
    next: Instant,
    earliest: Instant,
}

impl Task {
    fn new(server: Arc<PushServer>, new: mpsc::UnboundedReceiver<NewWorker>) -> Task {
        let now = Instant::now();
        Task { server, new, members: Vec::new(), view: None, kept: now, next: now + RENEW, earliest: now }
    }

    async fn run(mut self) {
        loop {
            while let Ok(worker) = self.new.try_recv() {
                self.members.push(Member::new(worker));
            }
            if self.members.is_empty() && self.ends() {
                return;
            }
            let now = Instant::now();
            let due = if self.members.iter().any(|member| member.has_left(now)) {
                now // a stop waits for it
            } else if self.members.iter().any(Member::is_urgent) {
                self.next.min(self.earliest)
            } else {
                self.next
            };
            if now < due {
                tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.server.leasing.wake.notified() => {}
                }
                continue;
            }
            (self.next, self.earliest) = (now + RENEW, now + GAP);
            let done = self.round(now).await;
            self.server.outage.report(&done);
            if done.is_err() {
                self.earliest = self.next; // a store that fails is not called more often
            }
        }
    }

    /// Ends the task unless a worker was added meanwhile.
    fn ends(&self) -> bool {
        let mut new = self.server.leasing.new.lock();
        let ends = self.new.is_empty();
        if ends {
            *new = None;
        }
        ends
    }

    /// Renews the leases of all workers. After an error their slots stay as they were, until they end.
    async fn round(&mut self, began: Instant) -> Result<()> {
        let server = self.server.clone();
        let settings = &*server.settings;
        self.remove_ended(began).await;
        if self.view.is_none() && !self.members.is_empty() {
            self.view = Some(View::read(settings, Some(&server.name)).await?);
        }
        let offers = self.offers();
        let entries: Vec<&Entry> = offers.iter().map(|offer| &offer.entry).collect();
        let kept = if entries.is_empty() { RENEW } else { KEPT };
        let keeps = Instant::now();
        settings.keep(&leases::key_of(&server.name), leases::encode(&entries)?.into(), kept).await?;
        let lapsed = Instant::now() >= self.kept + KEPT;
        self.kept = keeps;
        if lapsed {
            // Others may have taken the slots of this server.
            self.members.iter_mut().for_each(|member| member.rate.lapsed());
        }
        let mut view = View::read(settings, Some(&server.name)).await?;
        view.set_here(entries);
        self.learn_failures(&offers, &view).await?;
        let members = self.members.iter_mut().zip(&offers);
        let rates = together::all(members.map(|(member, offer)| rate(settings, member, offer, &view))).await;
        let mut done = Ok(());
        for (at, rate) in rates.into_iter().enumerate() {
            match rate {
                Ok(rate) => self.grant(at, (&offers[at], &view), (rate, began + LEASE), lapsed),
                Err(error) => done = Err(error),
            }
        }
        let is_alone = view.has_no_others();
        self.view = Some(view);
        let is_idle = |offer: &Offer| offer.entry.in_flight == 0;
        if done.is_ok() && is_alone && offers.iter().all(is_idle) {
            self.next = self.next.max(began + RENEW_IDLE);
        }
        done
    }

    /// Removes workers that have ended. Requests that they have begun still count in their rates.
    async fn remove_ended(&mut self, now: Instant) {
        let settings = self.server.settings.clone();
        for member in self.members.extract_if(.., |member| member.has_left(now)).collect::<Vec<_>>() {
            let Member { queue, rate, shared, .. } = member;
            let held = shared.demand.lock().rate_held;
            let ended = rate.end((&*settings, &queue.key, &queue.name), held, queue.pool.engine.now()).await;
            self.server.outage.report(&ended);
        }
    }

    /// Returns what each worker holds or claims now, judged by the records last read.
    fn offers(&mut self) -> Vec<Offer> {
        let entries: Vec<Entry> = (self.members.iter())
            .map(|member| member.entry(&member.shared.demand.lock(), member.claimed))
            .collect();
        let mut view = self.view.take().unwrap_or_default();
        view.set_here(&entries);
        let offer = |(member, own): (&mut Member, &Entry)| {
            let Some(demand) = member.demand() else {
                return Offer { demand: None, target: 0, entry: own.clone() };
            };
            let fair = fair_share(demand.slots, own, view.others(own), |entry| entry.wants);
            let taken = view.others(own).map(|entry| entry.slots).sum();
            let target = target(demand.slots, fair, demand.holds, taken);
            member.claimed = demand.holds.max(target);
            member.told = demand.clone();
            let entry = Entry { slots: member.claimed, ..own.clone() };
            Offer { demand: Some(demand), target, entry }
        };
        self.members.iter_mut().zip(&entries).map(offer).collect()
    }

    /// Reads the number of failed attempts of queues that no other worker pushes, if others may have reported some.
    async fn learn_failures(&mut self, offers: &[Offer], view: &View) -> Result<()> {
        let mut unknown = Vec::new();
        for (member, offer) in self.members.iter_mut().zip(offers) {
            let alone = view.others(&offer.entry).next().is_none();
            member.knows_failed &= alone;
            if !alone {
                member.queue.alone.store(false, Ordering::Relaxed);
            } else if !member.knows_failed {
                unknown.push(member);
            }
        }
        let settings = &*self.server.settings;
        for some in unknown.chunks_mut(AT_A_TIME) {
            let reports = some.iter().map(|member| results::get(settings, &member.queue.key));
            let reports = together::try_all(reports).await?;
            for (member, report) in some.iter_mut().zip(reports) {
                member.queue.failed.fetch_max(report.failed, Ordering::Relaxed);
                member.queue.alone.store(true, Ordering::Relaxed);
                member.knows_failed = true;
            }
        }
        Ok(())
    }

    /// Grants a worker the slots that it owns and this rate, until `until`. If its lease has lapsed, it owns only what
    /// nobody else has taken.
    fn grant(
        &mut self,
        at: usize,
        (offer, view): (&Offer, &View),
        (rate, until): (u32, Instant),
        lapsed: bool,
    ) {
        let member = &mut self.members[at];
        let Some(demand) = &offer.demand else { return };
        let held = if lapsed { demand.in_flight } else { demand.holds };
        let taken: u32 = view.others(&offer.entry).map(|entry| entry.slots).sum();
        let lost = offer.target > held && taken + offer.entry.slots > demand.slots;
        let slots = if lost { held } else { offer.target };
        let fair = fair_share(demand.slots, &offer.entry, view.others(&offer.entry), |entry| entry.wants);
        if lost || target(demand.slots, fair, slots, taken) > slots {
            let pause = AGAIN + Duration::from_millis(random::bytes::<1>()[0].into());
            self.next = self.next.min(Instant::now() + pause);
        }
        member.delivered = view
            .elsewhere(&member.name)
            .iter()
            .filter_map(|entry| entry.delivered)
            .max()
            .max(member.delivered);
        let now = member.queue.pool.engine.now();
        let delivered_ago = member.delivered.map(|at| Duration::from_millis(now.saturating_sub(at)));
        let number = member.slots.borrow().number + 1;
        member.slots.send_replace(Slots { grant: Grant { slots, rate, delivered_ago }, until, number });
    }
}

/// Returns how many requests a worker may begin per `per`; 0 if there is no limit.
async fn rate(settings: &dyn SettingsStore, member: &mut Member, offer: &Offer, view: &View) -> Result<u32> {
    let Some(demand) = offer.demand.as_ref().filter(|demand| demand.rate > 0) else { return Ok(0) };
    let others = || view.others(&offer.entry);
    let fair = match demand.wants {
        0 => demand.rate.min(demand.rate_held),
        _ => fair_share(
            demand.rate,
            &offer.entry,
            others(),
            |entry| if entry.wants > 0 { demand.rate } else { 0 },
        ),
    };
    let live: HashSet<&str> = others().map(|entry| entry.worker.as_str()).collect();
    let demand = RateDemand { rate: demand.rate, per: demand.per, fair, held: demand.rate_held };
    let (queue, now) = (&member.queue, member.queue.pool.engine.now());
    member.rate.divide((settings, &queue.key, &queue.name), demand, &live, now).await
}

/// Reports the results of a worker until its leases have ended.
async fn report_all(queue: Arc<PushedQueue>, mut slots: watch::Receiver<Slots>) {
    let ended = async { while slots.changed().await.is_ok() {} };
    tokio::pin!(ended);
    while timeout(REPORT, &mut ended).await.is_err() {
        report(&queue).await;
    }
    report(&queue).await;
}

/// Reports results. A report that fails is merged into the next.
async fn report(queue: &PushedQueue) {
    let report = std::mem::take(&mut *queue.report.lock());
    if report == PushReport::default() {
        return;
    }
    let told = results::add(&*queue.server.settings, &queue.key, &report).await;
    queue.server.outage.report(&told);
    if told.is_err() {
        let mut untold = queue.report.lock();
        let later = std::mem::replace(&mut *untold, report);
        untold.add(later);
    }
}
