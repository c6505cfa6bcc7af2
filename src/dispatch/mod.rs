//! Distributes jobs to consumers. Consumers that find no job wait here, in order of arrival, until their queues get
//! jobs. A waiter costs a few hundred bytes and no store connection. Each pool has one dispatcher. It depends on the
//! `Engine` trait only, and knows nothing of HTTP.
//!
//! The dispatcher alone decides which engine call serves which consumers:
//!
//! ```text
//! consume ──> wait list of its queues ──> fetch: one Engine::consume for the list's first waiters
//!                   ^      │                        │
//!                   │      │ empty: register,       ├── jobs ──> Delivery ──> consumer
//!                   │      │ then fetch once more   │                └─ dropped: Engine::give_back
//!                   │      v                        └── nothing: the waiters stay
//!                notify(queue), from the engine
//! ```
//!
//! Consumers of the same queues with the same [`weights`] share a *wait list*. A wait list has at most one *fetch* in
//! flight, which serves as many of its first waiters as one engine call can. So a publish to a queue with ten thousand
//! waiters costs one call.
//!
//! **Order.** A fetch serves no waiter that arrived after the next waiter of another list with one of the same queues.
//! Lists that are to fetch at the same time call the store one after the other, in the order of their next waiters.
//!
//! **No lost wake-ups.** A wait list that still has waiters after its first fetch registers for its queues and then
//! fetches once more. A notification during a fetch marks the list as stale, and it fetches again.
//!
//! **One notification, one fetch.** A notification goes to the wait list with the longest waiter, so ten thousand wait
//! lists over one queue cost no more than one. If that waiter's fetch is already in flight and not held up, its list
//! fetches once more. A fetch that returned fewer jobs than it asked for has seen the queues empty, and the
//! notification is settled. After a full fetch, or one that stopped among deleted jobs, further lists fetch too; so
//! they do when a list becomes empty before it has fetched. A fetch over several queues that takes longer than
//! [`HELD_UP`](wait_lists::HELD_UP) passes its notifications on, since one of the queues may lie on a node that does
//! not respond: once, and only to a list that shares exactly one queue with it. After a failed fetch, its queues are
//! notified again after a second.
//!
//! **Paused queues.** A fetch leaves them out, and their notifications are dropped. When a pause ends, the list of the
//! queue's longest waiter fetches.
//!
//! **Isolation of namespaces.** The number of fetches in flight is bounded. When most of that bound is used, a fetch
//! that takes long gives up its turn, and each namespace has its own bound ([`turns`]).
//!
//! **No delivery is wasted.** A fetch runs as its own task, so a consumer that disconnects cannot cancel a call that
//! has taken jobs. Jobs travel in a [`Delivery`], which returns them to the engine if it is dropped; each namespace's
//! jobs are returned separately.

mod by_arrival;
mod delivery;
mod fetches;
mod parked_polls;
mod paused;
mod pausing;
mod request;
mod turns;
mod wait_lists;
mod weights;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ahash::HashMap;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

pub use self::delivery::Delivery;
pub use self::fetches::Dispatcher;
pub use self::parked_polls::ParkedPolls;
pub use self::paused::Pause;
pub use self::request::{ConsumeError, Request, Weights};
use self::request::{ConsumeResult, Wanted};
use crate::error::{Error, Result, Unreachable};
use crate::name::Queue;

/// Longest timeout of a poll: beyond it a timer would overflow. lmstfy accepts u32 seconds, which is far longer than
/// any connection lives.
const LONGEST_POLL: Duration = Duration::from_secs(365 * 24 * 3600);

impl Dispatcher {
    /// Returns up to `count` jobs from the first queue of the list that has any, waiting up to `timeout` for the first.
    /// The delivery is empty if none arrived. Dropping the future leaves the wait list.
    pub fn consume(
        self: &Arc<Self>,
        request: Request,
    ) -> impl Future<Output = Result<Delivery, ConsumeError>> + Send + 'static {
        // Not wrapped in another future, which would store the request twice for each parked poll.
        self.clone().serve(request, true)
    }

    /// Like [`consume`](Dispatcher::consume), for a consumer within this server. It is not counted as a parked poll.
    pub fn consume_for_server(
        self: &Arc<Self>,
        request: Request,
    ) -> impl Future<Output = Result<Delivery, ConsumeError>> + Send + 'static {
        self.clone().serve(request, false)
    }

    async fn serve(self: Arc<Self>, request: Request, counts: bool) -> ConsumeResult {
        let patient = !request.timeout.is_zero();
        let places = if patient && counts { request.places() } else { 0 };
        if places > 0 {
            self.parked.enter(request.queues.namespace(), places)?;
        }
        let deadline = Instant::now() + request.timeout.min(LONGEST_POLL);
        let mut waiting = self.arrive(request, patient, places);
        let outcome = if patient {
            match timeout_at(deadline, &mut waiting.outcome).await {
                Ok(outcome) => outcome,
                // Timed out. Leaving the wait list decides whether a fetch was faster.
                Err(_) => {
                    let unseen = waiting.leave();
                    let nothing = || match unseen {
                        Some(why) => Err(ConsumeError::Store(Error::Unseen(why, Vec::new()))),
                        None => Ok(self.nothing()),
                    };
                    Ok(waiting.outcome.try_recv().unwrap_or_else(|_| nothing()))
                }
            }
        } else {
            (&mut waiting.outcome).await
        };
        // While the runtime lives, no waiter's channel is dropped without a result.
        outcome.unwrap_or_else(|_| Err(ConsumeError::Store(Error::Closed)))
    }

    /// Returns the number of long polls that wait for each queue. Visits every poll, so it must not be called per
    /// request.
    pub fn waiting(&self) -> HashMap<Queue, u64> {
        if self.waited_for.load(Ordering::Relaxed) == 0 {
            return HashMap::default();
        }
        // There may be half a million names, so they are counted without the lock.
        let polls = self.lists.lock().polls();
        let mut by_queue: HashMap<Queue, u64> = HashMap::default();
        for (queues, waiting) in &polls {
            queues.queues().for_each(|queue| *by_queue.entry(queue).or_default() += waiting);
        }
        by_queue
    }

    /// Answers every parked consumer with no jobs and lets no more wait. Waiters with a fetch in flight get its result.
    pub fn close(&self) {
        self.closing.cancel();
        let mut lists = self.lists.lock();
        lists.closed = true;
        let mut idle = Vec::new();
        for (queues, list) in lists.iter_mut() {
            for waiter in list.close() {
                // Sending fails if the waiter has just left; ignored throughout this module.
                let _ = waiter.send(Ok(self.nothing()));
            }
            if !list.fetching {
                idle.push(queues.clone());
            }
        }
        for queues in idle {
            self.remove(&mut lists, &queues);
        }
    }

    /// Waits, after [`close`](Dispatcher::close), until no fetch is in flight and every job that no consumer took has
    /// been returned, so that the engine can be closed.
    pub async fn settled(&self) {
        self.tasks.stop();
        self.tasks.ended().await;
        self.give_back.flush().await;
        self.giving_back.stop();
    }

    /// Adds a consumer to its wait list and starts a fetch if one is needed.
    fn arrive(self: &Arc<Self>, request: Request, patient: bool, places: usize) -> Waiting {
        let Request { queues, weights, count, ttr, .. } = request;
        let (sender, outcome) = oneshot::channel();
        let mut lists = self.lists.lock();
        lists.arrivals += 1;
        let arrival = lists.arrivals;
        // Checked under the lock: a waiter that `close` does not find must not wait.
        let patient = patient && !lists.closed;
        let (queues, list) = lists.get_or_insert(Wanted::new(queues, weights));
        let may_be_next = list.is_empty() || list.serving.is_some();
        list.push(arrival, (count, ttr), (patient, places > 0), sender);
        // A registered list that is not stale knows that its queues are empty or that another list was notified, so a
        // patient consumer just waits. With a timeout of zero it must not rely on notifications, which may arrive late
        // for jobs published through other servers.
        if !patient || !list.is_registered() {
            list.stale = true;
        }
        let start = list.stale && !std::mem::replace(&mut list.fetching, true);
        if may_be_next {
            lists.reorder(&queues);
        }
        drop(lists);
        if start {
            self.start_fetch(queues.clone());
        }
        Waiting { dispatcher: self.clone(), queues, arrival, places, outcome, left: false }
    }
}

/// A consumer's entry in its wait list; dropping it leaves the list.
struct Waiting {
    dispatcher: Arc<Dispatcher>,
    queues: Wanted,
    arrival: u64,
    /// Slots that it uses as a parked poll; 0 if it is not one.
    places: usize,
    outcome: oneshot::Receiver<ConsumeResult>,
    left: bool,
}

impl Waiting {
    /// Leaves the wait list. Returns an error if the last fetch could not read the whole store.
    fn leave(&mut self) -> Option<Unreachable> {
        if std::mem::replace(&mut self.left, true) {
            return None;
        }
        if self.places > 0 {
            self.dispatcher.parked.leave(self.queues.queues.namespace(), self.places);
        }
        let mut lists = self.dispatcher.lists.lock();
        let unseen = lists.unseen(&self.queues);
        let list = lists.get(&self.queues)?;
        list.remove(self.arrival)?; // already answered if it is absent
        if list.is_empty() && !list.fetching {
            self.dispatcher.remove(&mut lists, &self.queues);
        } else {
            lists.reorder(&self.queues);
        }
        unseen
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.leave();
    }
}
