//! The slots and the rate that one worker has. A task of its own leases them about once a second, and tells the store
//! what became of deliveries. No delivery waits for it.
//!
//! ```text
//! worker ──Demand──> task ──Lease──> PushStore
//!        <──Slots───      <──Grant──
//! ```
//!
//! A worker keeps to the slots that it has heard of last. So its demand says the most that it may hold until it hears
//! of others, and the store is asked only when the worker has heard the answer before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::shared::PushedQueue;
use super::store::{Grant, Lease, PushReport};

/// For how long a lease stands. With [`RENEW`] and a request's time a server that dies gives its slots back within 15 s.
pub const LEASE: Duration = Duration::from_secs(10);
/// How often a lease is renewed.
const RENEW: Duration = Duration::from_secs(1);
/// How often counts and attempts are told.
const REPORT: Duration = Duration::from_secs(2);

/// What a worker may do.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub grant: Grant,
    /// Afterwards it may do nothing.
    pub until: Instant,
    /// Which answer of the store it is. There was none before the first.
    pub number: u64,
}

/// What a worker holds until it hears of other slots, and what it could use: the lease to ask for. One without time are
/// its last words: it has ended, and so have all of its requests.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// The slots that it keeps to.
    pub number: u64,
    pub lease: Lease,
    /// The task was told of it at once, under this number.
    pub urgent: bool,
}

impl Demand {
    /// Takes the place of the demand before. Answers whether the task must hear of it at once.
    pub fn replace(mut self, before: &mut Demand) -> bool {
        let (holds, time) = (before.lease.holds, before.lease.time);
        let news =
            (holds, time) != (self.lease.holds, self.lease.time) || is_news(&self.lease, &before.lease);
        // What was urgent may have waited for the worker to hear of these slots.
        let (same, waited) = (self.number == before.number, before.urgent);
        self.urgent = news || same && waited;
        *before = self;
        news || !same && waited
    }
}

/// Whether the store must hear of it at once, which was told another lease.
fn is_news(lease: &Lease, told: &Lease) -> bool {
    let news = |of: &Lease| (of.slots, of.wants, of.rate, of.per, of.open);
    news(lease) != news(told)
}

/// Starts the task of a worker. It ends with the worker, which says so, and gives back what is leased.
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
    // The lease of a worker that has died ends by itself: its requests may be in flight.
    if last.time.is_zero() {
        report(&queue).await;
        let _ = queue.server.store.lease(&queue.key, last).await;
    }
}

/// Returns when the worker has ended.
async fn ended(mut demands: watch::Receiver<Demand>) {
    // An error says so, too.
    let _ = demands.wait_for(|demand| demand.lease.time.is_zero()).await;
}

/// Asks the store, and says what else it has answered.
async fn ask(queue: Arc<PushedQueue>, lease: Lease) -> Option<Grant> {
    let grant = queue.server.store.lease(&queue.key, lease).await;
    queue.server.outage.report(&grant);
    let grant = grant.ok()?;
    queue.failed.fetch_max(grant.failed, Ordering::Relaxed);
    queue.alone.store(grant.alone, Ordering::Relaxed);
    Some(grant)
}

/// Leases slots until the worker is gone, by `ask`.
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
        // The store believes that the worker holds more than it does, and others could have it.
        let gives_up = believed > has.grant.slots && lease.holds <= has.grant.slots;
        if heard && (now >= next || gives_up || is_news(&lease, &told)) {
            (told, believed, next) = (lease.clone(), lease.holds, now + RENEW);
            // Without an answer the last one stands until its end.
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
            // Afterwards the worker has not heard yet, and is not waited for.
            () = sleep_until(if now < next { next } else { now + RENEW }) => {}
        }
    }
}

/// Tells the store what became of deliveries. What could not be told is told with the next.
async fn report(queue: &PushedQueue) {
    let mut report = std::mem::take(&mut *queue.report.lock());
    if report == PushReport::default() {
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

    /// Guards against a store that gives slots to others which the worker may still use.
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
            () = lease(ask, demands, slots) => panic!("it leases as long as there is a worker"),
            () = worker => {}
        }
    }
}
