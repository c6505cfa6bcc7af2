//! Hands jobs to consumers. Consumers that find nothing wait here, in order of arrival, and are served when their
//! queues get jobs. A waiting consumer costs a few hundred bytes and no store connection. There is one dispatcher
//! for each pool. It asks the engine, never a store, and knows nothing of HTTP.
//!
//! The dispatcher alone decides who is served by which call of the engine:
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
//! Consumers that asked for the same queues, with the same [`weights`], share a *wait list*. At most one *fetch* per
//! wait list is under way, and it serves as many of the first waiters as one call of the engine may. So a publish to a
//! queue with ten thousand waiters costs one call.
//!
//! **Order.** A fetch serves nobody who came after the next waiter of another list of one of its queues. Lists that
//! are to fetch at the same time ask the store one after the other, in the order of their next waiters.
//!
//! **No wake-up is lost.** A wait list that is left with waiters first registers for its queues, and then fetches
//! once more. A notification that comes during a fetch marks the list as stale, and it fetches again.
//!
//! **One notification, one fetch.** A notification concerns the wait list whose first waiter waits longest, so
//! that ten thousand wait lists over one queue cost no more than one. If a fetch is under way for that waiter, and
//! is not held up, the list fetches once more. That list owes it to the others: a fetch that found less than it asked
//! for has seen the queues empty, and nothing is owed. After one that found enough, or that ended among jobs that are
//! gone, others fetch too. The same holds for a list that becomes empty before it has fetched. A fetch of several
//! queues that takes longer than a moment passes on what is owed, since one of them may lie where nobody answers: once,
//! and to a list that has no second queue in common with it. After one that failed the queues are notified again after a
//! second.
//!
//! **One namespace does not hold up others.** So many fetches are under way at a time. Where most of these places are
//! taken, a fetch that takes longer than a moment gives its place back, and each namespace has a bound of its own
//! ([`turns`]).
//!
//! **No job is burned.** A fetch runs as a task of its own, so a consumer that leaves cannot drop a call that has
//! taken jobs. The jobs travel in a [`Delivery`], which gives them back to the engine when nobody takes them: those of
//! each namespace by themselves.

mod by_arrival;
mod delivery;
mod fetches;
mod parked_polls;
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
pub use self::request::{ConsumeError, Request, Weights};
use self::request::{ConsumeResult, Wanted};
use crate::error::{Error, Result, Unreachable};
use crate::name::Queue;

/// The longest that a poll may last: beyond it a timer would overflow. lmstfy's u32 seconds are far longer
/// than any connection lives.
const LONGEST_POLL: Duration = Duration::from_secs(365 * 24 * 3600);

impl Dispatcher {
    /// Hands out up to `count` jobs, from the first queue of the list that has some. Waits up to `timeout` for
    /// the first one. The delivery is empty when none came. A consumer leaves by dropping the future.
    pub fn consume(
        self: &Arc<Self>,
        request: Request,
    ) -> impl Future<Output = Result<Delivery, ConsumeError>> + Send + 'static {
        // Not within another future: each parked poll would keep the request twice.
        self.clone().serve(request, true)
    }

    /// The same for a consumer that is a part of this server. It is no parked poll, and no bound of them holds it up.
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
                // Nothing in time. Leaving the wait list settles whether a fetch was faster.
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
        // Nobody drops a waiter's channel unanswered while the runtime lives.
        outcome.unwrap_or_else(|_| Err(ConsumeError::Store(Error::Closed)))
    }

    /// How many consumers wait in long polls for each queue. Looks at all of them: not for a request's way.
    pub fn waiting(&self) -> HashMap<Queue, u64> {
        if self.waited_for.load(Ordering::Relaxed) == 0 {
            return HashMap::default();
        }
        // There may be half a million names, so they are gathered without the lock.
        let polls = self.lists.lock().polls();
        let mut by_queue: HashMap<Queue, u64> = HashMap::default();
        for (queues, waiting) in &polls {
            queues.queues().for_each(|queue| *by_queue.entry(queue).or_default() += waiting);
        }
        by_queue
    }

    /// Answers every parked consumer with nothing, now, and lets nobody wait from here on. Those that a fetch is
    /// under way for get what it brings.
    pub fn close(&self) {
        self.closing.cancel();
        let mut lists = self.lists.lock();
        lists.closed = true;
        let mut idle = Vec::new();
        for (queues, list) in lists.iter_mut() {
            for waiter in list.close() {
                // A waiter that has just left needs no answer; so everywhere in this folder.
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

    /// After [`close`](Dispatcher::close): returns when no fetch is under way and every job that nobody took
    /// has been given back, so that the engine can be closed.
    pub async fn settled(&self) {
        self.tasks.stop();
        self.tasks.ended().await;
        self.give_back.flush().await;
        self.giving_back.stop();
    }

    /// Puts a consumer into its wait list, and makes the list fetch if it has to.
    fn arrive(self: &Arc<Self>, request: Request, patient: bool, places: usize) -> Waiting {
        let Request { queues, weights, count, ttr, .. } = request;
        let (sender, outcome) = oneshot::channel();
        let mut lists = self.lists.lock();
        lists.arrivals += 1;
        let arrival = lists.arrivals;
        // Asked under the lock: whom `close` does not find in a list must not wait.
        let patient = patient && !lists.closed;
        let (queues, list) = lists.get_or_insert(Wanted::new(queues, weights));
        let may_be_next = list.is_empty() || list.serving.is_some();
        list.push(arrival, (count, ttr), (patient, places > 0), sender);
        // A registered list that is not stale knows that its queues are empty, or that another list was notified:
        // a patient consumer just waits. One that does not wait must not rely on notifications, which may be a
        // moment late for the jobs of other servers.
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

/// A consumer's place in its wait list. The consumer leaves when this is dropped.
struct Waiting {
    dispatcher: Arc<Dispatcher>,
    queues: Wanted,
    arrival: u64,
    /// Those that it takes as a parked poll; 0 if it is none.
    places: usize,
    outcome: oneshot::Receiver<ConsumeResult>,
    left: bool,
}

impl Waiting {
    /// Why the last fetch could not look everywhere, if it could not.
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
        list.remove(self.arrival)?; // answered already if it is not there
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
