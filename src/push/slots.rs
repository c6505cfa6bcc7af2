//! A worker's slots and rate. A separate task leases them about once a second, and reports results to the store. No
//! delivery waits for it.
//!
//! ```text
//! worker ──Demand──> task ──Lease──> PushStore
//!        <──Slots───      <──Grant──
//! ```
//!
//! A worker keeps to the latest slots it has received. So its demand states the maximum that it may hold until it
//! receives others, and the store is asked only after the worker has received the previous grant.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::shared::PushedQueue;
use super::store::{Grant, Lease, PushReport};

/// Duration of a lease. Together with [`RENEW`] and the time of a request, the slots of a server that dies are free
/// within 15 s.
pub const LEASE: Duration = Duration::from_secs(10);
/// How often a lease is renewed.
const RENEW: Duration = Duration::from_secs(1);
/// How often counts and attempts are reported.
const REPORT: Duration = Duration::from_secs(2);

/// The slots and rate granted to a worker.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub grant: Grant,
    /// The worker may do nothing after this time.
    pub until: Instant,
    /// Number of this grant, counted from 1.
    pub number: u64,
}

/// The lease that a worker asks for: the most that it may hold until it receives other slots, and how much it could use.
/// A lease without time is its last: the worker and all of its requests have ended.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Number of the grant that it keeps to.
    pub number: u64,
    pub lease: Lease,
    /// The task was woken for a demand with this number.
    pub urgent: bool,
}

impl Demand {
    /// Replaces the previous demand. Returns whether to wake the task.
    pub fn replace(mut self, before: &mut Demand) -> bool {
        let (holds, time) = (before.lease.holds, before.lease.time);
        let news =
            (holds, time) != (self.lease.holds, self.lease.time) || is_news(&self.lease, &before.lease);
        // An urgent demand may have waited until the worker received these slots.
        let (same, waited) = (self.number == before.number, before.urgent);
        self.urgent = news || same && waited;
        *before = self;
        news || !same && waited
    }
}

/// Whether the store must learn at once of a lease that differs from `told`.
fn is_news(lease: &Lease, told: &Lease) -> bool {
    let news = |of: &Lease| (of.slots, of.wants, of.rate, of.per, of.open);
    news(lease) != news(told)
}

/// Starts the leasing task of a worker. It ends after the worker's last demand, and releases the lease.
pub fn start(queue: &Arc<PushedQueue>) -> (watch::Sender<Demand>, watch::Receiver<Slots>) {
    let (demand, demands) =
        watch::channel(Demand { lease: Lease { time: LEASE, ..Lease::default() }, ..Demand::default() });
    let none = Slots { grant: Grant::default(), until: Instant::now(), number: 1 };
    let (tell, slots) = watch::channel(none);
    queue.server.tasks.spawn(run(queue.clone(), demands, tell));
    (demand, slots)
}

async fn run(queue: Arc<PushedQueue>, demands: watch::Receiver<Demand>, slots: watch::Sender<Slots>) {
    let leases = async {
        tokio::select! {
            biased;
            () = ended(demands.clone()) => {}
            () = lease(|lease| ask(queue.clone(), lease), demands.clone(), slots) => {}
        }
    };
    let reports = async {
        while timeout(REPORT, ended(demands.clone())).await.is_err() {
            report(&queue).await;
        }
    };
    tokio::join!(leases, reports);
    let last = demands.borrow().lease.clone();
    // The lease of a worker that died expires by itself: its requests may be in flight.
    if last.time.is_zero() {
        report(&queue).await;
        let _ = queue.server.store.lease(&queue.key, last).await;
    }
}

/// Completes when the worker has ended.
async fn ended(mut demands: watch::Receiver<Demand>) {
    // An error means the same.
    let _ = demands.wait_for(|demand| demand.lease.time.is_zero()).await;
}

/// Leases from the store, and records what else the grant contains.
async fn ask(queue: Arc<PushedQueue>, lease: Lease) -> Option<Grant> {
    let grant = queue.server.store.lease(&queue.key, lease).await;
    queue.server.outage.report(&grant);
    let grant = grant.ok()?;
    queue.failed.fetch_max(grant.failed, Ordering::Relaxed);
    queue.alone.store(grant.alone, Ordering::Relaxed);
    Some(grant)
}

/// Leases slots through `ask` until the worker has ended.
async fn lease<F: Future<Output = Option<Grant>>>(
    ask: impl Fn(Lease) -> F,
    mut demands: watch::Receiver<Demand>,
    slots: watch::Sender<Slots>,
) {
    let (mut told, mut believed, mut next) = (Lease::default(), 0, Instant::now());
    loop {
        let Demand { number, lease, .. } = demands.borrow_and_update().clone();
        let has = *slots.borrow();
        let (now, heard) = (Instant::now(), number == has.number);
        // The store assumes that the worker holds more than it does; others could use the difference.
        let gives_up = believed > has.grant.slots && lease.holds <= has.grant.slots;
        if heard && (now >= next || gives_up || is_news(&lease, &told)) {
            (told, believed, next) = (lease.clone(), lease.holds, now + RENEW);
            // Without a grant the previous one stays valid until it ends.
            if let Some(grant) = ask(lease).await {
                believed = believed.max(grant.slots);
                slots.send_replace(Slots { grant, until: now + LEASE, number: has.number + 1 });
            }
            continue;
        }
        tokio::select! {
            changed = demands.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            // In the second case the worker has not received its slots yet, so only a demand wakes this early.
            () = sleep_until(if now < next { next } else { now + RENEW }) => {}
        }
    }
}

/// Reports results to the store. A report that fails is merged into the next.
async fn report(queue: &PushedQueue) {
    let mut report = std::mem::take(&mut *queue.report.lock());
    if report == PushReport::default() {
        return;
    }
    // A deleted setting has no results.
    if matches!(queue.server.records.get(&queue.key).await, Ok(None)) {
        return;
    }
    report.delivered_ago = queue.delivered.lock().map(|at| at.elapsed());
    let told = queue.server.store.report(&queue.key, report.clone()).await;
    queue.server.outage.report(&told);
    if told.is_err() {
        let mut untold = queue.report.lock();
        let later = std::mem::replace(&mut *untold, report);
        untold.add(later);
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::time::sleep;

    use super::*;

    /// Guards against a store that grants others slots which the worker may still use.
    #[tokio::test(start_paused = true)]
    async fn the_store_is_asked_only_when_the_worker_has_heard_the_answer_before() {
        let asked = Mutex::new(Vec::new());
        let ask = |lease: Lease| {
            asked.lock().push(lease.holds);
            std::future::ready(Some(Grant { slots: 3, ..Grant::default() }))
        };
        let demand = |number, holds| Demand {
            number,
            lease: Lease { time: LEASE, slots: 10, wants: 10, holds, ..Lease::default() },
            urgent: false,
        };
        let (tell, demands) = watch::channel(demand(0, 0));
        let grant = Grant { slots: 10, ..Grant::default() };
        let (slots, _has) = watch::channel(Slots { grant, until: Instant::now() + LEASE, number: 1 });
        let worker = async {
            let hears = async |number, holds| {
                tell.send_replace(demand(number, holds));
                sleep(RENEW / 10).await;
            };
            sleep(RENEW * 3).await;
            assert!(asked.lock().is_empty(), "the worker has not heard that it has ten slots");
            hears(1, 10).await;
            sleep(RENEW * 3).await;
            assert_eq!(*asked.lock(), [10], "nor, since then, that it has three");
            hears(2, 7).await;
            assert_eq!(*asked.lock(), [10, 7], "seven requests are in flight");
            hears(3, 4).await;
            assert_eq!(*asked.lock(), [10, 7], "it holds too many still: a second has not passed");
            hears(3, 3).await;
            assert_eq!(*asked.lock(), [10, 7, 3], "others may have the rest at once");
        };
        tokio::select! {
            () = lease(ask, demands, slots) => panic!("leasing ended before the worker"),
            () = worker => {}
        }
    }
}
