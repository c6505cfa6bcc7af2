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
//! After that it asks only for what the engine has notified of ([`Engine::consume_notified`]), as long as nobody is there
//! who does not wait.
//!
//! **One notification, one fetch.** A notification concerns the wait list whose first waiter waits longest, so
//! that ten thousand wait lists over one queue cost no more than one. If a fetch is under way for that waiter, and
//! is not held up, the list fetches once more. That list owes it to the others: a fetch that found less than it asked for has seen the
//! queues empty, and nothing is owed. After one that found enough, or that ended among jobs that are gone, others
//! fetch too. The same holds for a list that becomes empty before it has fetched. After one that failed the queues
//! are notified again in [`RETRY`].
//!
//! **No job is burned.** A fetch runs as a task of its own, so a consumer that leaves cannot drop a call that has
//! taken jobs. The jobs travel in a [`Delivery`], which gives them back to the engine when nobody takes them.

mod delivery;
mod parked_polls;
mod request;
mod wait_lists;
mod weights;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use std::vec::IntoIter;

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

pub use self::delivery::Delivery;
use self::delivery::GiveBack;
pub use self::parked_polls::ParkedPolls;
pub use self::request::{ConsumeError, Request, Weights};
use self::request::{ConsumeResult, Wanted};
use self::wait_lists::{Fetch, WaitLists};
use self::weights::WeightShares;
use crate::engine::notifier::Notifier;
use crate::engine::{Consumed, Engine};
use crate::error::{Error, Result, Unreachable};
use crate::job::Job;
use crate::name::Queue;
use crate::process::tasks::{Failure, Tasks};

/// How long after a failed fetch its queues are notified again.
const RETRY: Duration = Duration::from_secs(1);
/// The longest that a poll may last: beyond it a timer would overflow. lmstfy's u32 seconds are far longer
/// than any connection lives.
const LONGEST_POLL: Duration = Duration::from_secs(365 * 24 * 3600);
/// How many fetches may be under way. Others wait for one to end, first come, first served, while more waiters
/// join their lists.
const MAX_FETCHES: usize = 256;

/// One pool's dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    engine: Arc<dyn Engine>,
    parked: Arc<ParkedPolls>,
    lists: Mutex<WaitLists>,
    /// How many queues are waited for: lets a notification return without the lock while nobody waits.
    waited_for: AtomicUsize,
    give_back: GiveBack,
    fetches: Semaphore,
    /// Which queue is next, of each list with weights.
    shares: WeightShares,
    closing: CancellationToken,
    /// Fetches and retries, so that a stop can wait for them.
    tasks: Tasks,
    /// The task that gives jobs back.
    giving_back: Tasks,
    this: Weak<Dispatcher>,
}

impl Dispatcher {
    /// A dispatcher over `engine`, in the current runtime. A task of it that dies is reported to `failure`.
    pub fn start(engine: Arc<dyn Engine>, parked: Arc<ParkedPolls>, failure: Failure) -> Arc<Dispatcher> {
        let (give_back, run) = GiveBack::new(engine.clone());
        let giving_back = Tasks::new(failure.clone());
        giving_back.spawn_essential("giving jobs back", run);
        let dispatcher = Arc::new_cyclic(|this| Dispatcher {
            engine,
            parked,
            lists: Mutex::default(),
            waited_for: AtomicUsize::new(0),
            give_back,
            fetches: Semaphore::new(MAX_FETCHES),
            shares: WeightShares::default(),
            closing: CancellationToken::new(),
            tasks: Tasks::new(failure),
            giving_back,
            this: this.clone(),
        });
        let notifier: Arc<dyn Notifier> = dispatcher.clone();
        dispatcher.engine.attach(Arc::downgrade(&notifier));
        dispatcher
    }

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
        let parked = patient && counts;
        if parked {
            self.parked.enter(request.queues.namespace())?;
        }
        let deadline = Instant::now() + request.timeout.min(LONGEST_POLL);
        let mut waiting = self.arrive(request, patient, parked);
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
        self.lists.lock().polls()
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
                // A waiter that has just left needs no answer; so everywhere in this file.
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

    fn nothing(&self) -> Delivery {
        self.delivery(Vec::new(), true)
    }

    fn delivery(&self, jobs: Vec<Job>, waited: bool) -> Delivery {
        Delivery::new(jobs, waited, self.give_back.clone())
    }

    /// Puts a consumer into its wait list, and makes the list fetch if it has to.
    fn arrive(self: &Arc<Self>, request: Request, patient: bool, parked: bool) -> Waiting {
        let Request { queues, weights, count, ttr, .. } = request;
        let queues = Wanted { queues, weights };
        let (sender, outcome) = oneshot::channel();
        let mut lists = self.lists.lock();
        lists.arrivals += 1;
        let arrival = lists.arrivals;
        // Asked under the lock: whom `close` does not find in a list must not wait.
        let patient = patient && !lists.closed;
        let list = lists.get_or_insert(&queues);
        let may_be_next = list.is_empty() || list.serving.is_some();
        list.push(arrival, (count, ttr), (patient, parked), sender);
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
        Waiting { dispatcher: self.clone(), queues, arrival, parked, outcome, left: false }
    }

    /// Starts fetching for lists whose `fetching` was set. They ask the store in this order: each begins once the one
    /// before it has asked.
    fn start_fetches(&self, lists: Vec<Wanted>) {
        self.start_next(lists.into_iter());
    }

    fn start_fetch(&self, queues: Wanted) {
        self.start_fetches(vec![queues]);
    }

    fn start_next(&self, mut lists: IntoIter<Wanted>) {
        // `None` only while the last reference is dropped: nobody waits any more.
        let (Some(this), Some(queues)) = (self.this.upgrade(), lists.next()) else { return };
        self.tasks.spawn(this.fetch(queues, lists));
    }

    /// Fetches until the list is empty, or knows that its queues are. Runs as a task of its own, so that a
    /// consumer that leaves cannot drop a call that has taken jobs.
    /// Once it has asked the store it starts the `others`.
    async fn fetch(self: Arc<Self>, queues: Wanted, mut others: IntoIter<Wanted>) {
        loop {
            // Nobody closes the semaphore.
            let Ok(_permit) = self.fetches.acquire().await else { return };
            let next = Next { dispatcher: &self, lists: std::mem::take(&mut others) };
            let Some(fetch) = self.begin(&queues) else { return };
            let mut under_way = UnderWay { dispatcher: &self, queues: &queues, fetch: Some(fetch) };
            let (ttrs, notified) =
                under_way.fetch.as_ref().map_or((&[][..], false), |fetch| (&fetch.ttrs, fetch.notified));
            let call: StoreCall<'_, Result<Consumed>> = match &queues.weights {
                None if notified => self.engine.consume_notified(&queues.queues, ttrs),
                None => self.engine.consume(&queues.queues, ttrs),
                Some(weights) => Box::pin(self.shares.consume(&*self.engine, &queues, weights, ttrs)),
            };
            let result = next.after(call).await;
            if let Some(fetch) = under_way.fetch.take()
                && !self.end(&queues, fetch, result)
            {
                return;
            }
        }
    }

    /// Chooses whom to fetch for. `None` ends the fetching.
    fn begin(&self, queues: &Wanted) -> Option<Fetch> {
        let mut lists = self.lists.lock();
        let arrivals = lists.arrivals;
        let list = lists.get(queues)?;
        if list.is_empty() {
            let owes = list.stale && list.is_registered();
            self.remove(&mut lists, queues);
            if owes {
                self.start_fetches(lists.wake_others(queues));
            }
            return None;
        }
        if !list.stale {
            list.fetching = false;
            return None;
        }
        list.stale = false;
        let next = lists.next_of_others(queues);
        let fetch = lists.get(queues)?.fetch(arrivals, next);
        lists.reorder(queues);
        if let Some((first, _)) = fetch.waiters.first() {
            lists.serves(queues, *first, true);
        }
        Some(fetch)
    }

    /// Hands out what a fetch brought. Answers whether its task goes on.
    fn end(&self, queues: &Wanted, fetch: Fetch, result: Result<Consumed>) -> bool {
        let mut lists = self.lists.lock();
        if let Some((first, _)) = fetch.waiters.first() {
            lists.serves(queues, *first, false);
        }
        // A list is removed by its own fetch, or while none is under way.
        let Some(list) = lists.get(queues) else { return false };
        list.serving = None;
        match result {
            Ok(Consumed { jobs, more }) => {
                let full = jobs.len() >= fetch.ttrs.len();
                list.skipping = more && !full;
                let mut jobs = jobs.into_iter();
                for (arrival, count) in fetch.waiters {
                    let share: Vec<Job> = jobs.by_ref().take(count).collect();
                    if share.is_empty() {
                        break;
                    }
                    let delivery = self.delivery(share, list.is_registered());
                    // If the waiter has left, or leaves now, the delivery is dropped and its jobs go back.
                    if let Some(waiter) = list.remove(arrival) {
                        let _ = waiter.send(Ok(delivery));
                    }
                }
                if full || more {
                    // There may be more jobs, for this list and for others. A list that is empty now wakes the
                    // others when it is removed.
                    list.stale = true;
                    if list.is_registered() && !list.is_empty() {
                        // Whoever waits longest is next, in this list or in another. Those that do not wait are
                        // owed an answer by this list alone.
                        let goes_on = list.anybody_impatient();
                        (list.stale, list.fetching) = (goes_on, goes_on);
                        lists.reorder(queues);
                        self.start_fetches(lists.wake_others(queues));
                        return goes_on;
                    }
                } else {
                    list.looked |= fetch.registered;
                    // The queues were empty at some moment after the fetch began.
                    for waiter in list.remove_impatient(fetch.before) {
                        let _ = waiter.send(Ok(self.nothing()));
                    }
                    if list.is_registered() {
                        lists.reorder(queues);
                        lists.narrow(queues);
                    } else if !list.is_empty() {
                        self.register(&mut lists, queues);
                    }
                }
            }
            Err(error) => {
                list.looked = false;
                // Who waits goes on waiting while there may be jobs where nobody could look.
                let unseen = if let Error::Unseen(why, of) = &error { Some((*why, &of[..])) } else { None };
                let failed = fetch.waiters.iter().filter(|_| unseen.is_none());
                let failed: Vec<_> = failed.filter_map(|(arrival, _)| list.remove(*arrival)).collect();
                for waiter in failed.into_iter().chain(list.remove_impatient(fetch.before)) {
                    let _ = waiter.send(Err(ConsumeError::Store(error.clone())));
                }
                // Those that came meanwhile are answered by a fetch of their own.
                list.stale |= list.anybody_impatient() || unseen.is_none() && !list.is_registered();
                if list.is_registered() {
                    lists.reorder(queues);
                    self.notify_later(&mut lists, queues);
                } else if unseen.is_some() && !list.is_empty() {
                    self.register(&mut lists, queues);
                }
                if let Some((why, of)) = unseen {
                    lists.could_not_look(queues, of, why);
                }
            }
        }
        true
    }

    /// From here on notifications come. One more fetch sees what came before.
    fn register(&self, lists: &mut WaitLists, queues: &Wanted) {
        if let Some(list) = lists.get(queues) {
            list.stale = true;
        }
        let new = lists.register(queues);
        self.waited_for.store(lists.queue_count(), Ordering::SeqCst);
        new.iter().for_each(|queue| self.engine.watch(queue));
    }

    /// A fetch that failed may have been told of a job that is still there, and nobody will tell again.
    fn notify_later(&self, lists: &mut WaitLists, list: &Wanted) {
        let queues: Vec<Queue> = list.queues().filter(|queue| lists.retrying.insert(queue.clone())).collect();
        if queues.is_empty() {
            return;
        }
        let (this, closing) = (self.this.clone(), self.closing.clone());
        let retry = async move {
            if closing.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_none() {
                return;
            }
            let Some(dispatcher) = this.upgrade() else { return };
            let mut lists = dispatcher.lists.lock();
            for queue in &queues {
                lists.retrying.remove(queue);
                dispatcher.start_fetches(lists.wake(queue));
            }
        };
        self.tasks.spawn(retry);
    }

    fn remove(&self, lists: &mut WaitLists, queues: &Wanted) {
        lists.remove(queues);
        self.waited_for.store(lists.queue_count(), Ordering::SeqCst);
    }
}

impl Notifier for Dispatcher {
    fn notify(&self, queue: &Queue) {
        // A list registers before its last fetch, and a job is stored before its notification: if the list is not
        // seen here, its fetch sees the job.
        if self.waited_for.load(Ordering::SeqCst) > 0 {
            self.start_fetches(self.lists.lock().wake(queue));
        }
    }

    fn notify_all(&self) {
        let mut lists = self.lists.lock();
        for queue in lists.waited_for() {
            self.start_fetches(lists.wake(&queue));
        }
    }

    fn waits_for(&self, queue: &Queue) -> bool {
        self.lists.lock().waits_for(queue)
    }

    fn waited_for(&self) -> Vec<Queue> {
        self.lists.lock().waited_for()
    }
}

type StoreCall<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Lists that are to fetch after another one. Dropped when that one has asked the store, or need not, or has panicked.
struct Next<'a> {
    dispatcher: &'a Dispatcher,
    lists: IntoIter<Wanted>,
}

impl Next<'_> {
    /// Starts them once the call has begun. The call's answer.
    async fn after<T>(self, mut call: StoreCall<'_, T>) -> T {
        let begun = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        drop(self);
        match begun {
            Poll::Ready(answer) => answer,
            Poll::Pending => call.await,
        }
    }
}

impl Drop for Next<'_> {
    fn drop(&mut self) {
        self.dispatcher.start_next(std::mem::take(&mut self.lists));
    }
}

/// A fetch under way. If the engine panics, those that it was for get an error, and the list goes on.
struct UnderWay<'a> {
    dispatcher: &'a Arc<Dispatcher>,
    queues: &'a Wanted,
    fetch: Option<Fetch>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // A fetch that is dropped because the runtime ends has nobody to answer.
        if let Some(fetch) = self.fetch.take().filter(|_| std::thread::panicking()) {
            self.dispatcher.end(self.queues, fetch, Err(Error::refused("the engine panicked")));
            self.dispatcher.start_fetch(self.queues.clone());
        }
    }
}

/// A consumer's place in its wait list. The consumer leaves when this is dropped.
struct Waiting {
    dispatcher: Arc<Dispatcher>,
    queues: Wanted,
    arrival: u64,
    /// It counts as a parked poll.
    parked: bool,
    outcome: oneshot::Receiver<ConsumeResult>,
    left: bool,
}

impl Waiting {
    /// Why the last fetch could not look everywhere, if it could not.
    fn leave(&mut self) -> Option<Unreachable> {
        if std::mem::replace(&mut self.left, true) {
            return None;
        }
        if self.parked {
            self.dispatcher.parked.leave(self.queues.queues.namespace());
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
