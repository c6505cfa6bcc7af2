//! The dispatcher's fetch loop: decides when a wait list calls the store, which waiters the fetch serves, and how its
//! jobs are distributed.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use std::vec::IntoIter;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::delivery::{Delivery, GiveBack};
use super::parked_polls::ParkedPolls;
use super::paused::{Open, PausedQueues};
use super::request::{ConsumeError, Wanted};
use super::turns::{Turn, Turns};
use super::wait_lists::{Fetch, HELD_UP, WaitLists};
use super::weights::WeightShares;
use crate::engine::notifier::Notifier;
use crate::engine::{Consumed, Engine};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::name::Queue;
use crate::process::tasks::{Failure, Tasks};

/// Delay after a failed fetch before its queues are notified again.
const RETRY: Duration = Duration::from_secs(1);

/// One pool's dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) parked: Arc<ParkedPolls>,
    pub(super) lists: Mutex<WaitLists>,
    /// Number of queues with waiters. While it is 0, a notification returns without taking the lock.
    pub(super) waited_for: AtomicUsize,
    pub(super) paused: PausedQueues,
    /// Notified when a fetch has ended.
    pub(super) fetch_ended: Notify,
    pub(super) give_back: GiveBack,
    turns: Turns,
    /// Fair-queueing state of each wait list with weights.
    shares: WeightShares,
    pub(super) closing: CancellationToken,
    /// Fetches and retries, so that shutdown can wait for them.
    pub(super) tasks: Tasks,
    /// The tasks that return jobs.
    pub(super) giving_back: Tasks,
    this: Weak<Dispatcher>,
}

impl Dispatcher {
    /// Starts a dispatcher over `engine` in the current runtime. If one of its tasks dies, this is reported to
    /// `failure`.
    pub fn start(engine: Arc<dyn Engine>, parked: Arc<ParkedPolls>, failure: Failure) -> Arc<Dispatcher> {
        let giving_back = Tasks::new(failure.clone());
        let give_back = GiveBack::start(engine.clone(), &giving_back);
        let dispatcher = Arc::new_cyclic(|this| Dispatcher {
            engine,
            parked,
            lists: Mutex::default(),
            waited_for: AtomicUsize::new(0),
            paused: PausedQueues::default(),
            fetch_ended: Notify::new(),
            give_back,
            turns: Turns::default(),
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

    pub(super) fn nothing(&self) -> Delivery {
        self.delivery(Vec::new(), true)
    }

    pub(super) fn delivery(&self, jobs: Vec<Job>, waited: bool) -> Delivery {
        Delivery::new(jobs, waited, self.give_back.clone())
    }

    /// Starts fetching for lists whose `fetching` flag was just set. They call the store in this order: each starts
    /// once the previous one has made its call.
    pub(super) fn start_fetches(&self, lists: Vec<Wanted>) {
        self.start_next(lists.into_iter());
    }

    pub(super) fn start_fetch(&self, queues: Wanted) {
        self.start_fetches(vec![queues]);
    }

    fn start_next(&self, mut lists: IntoIter<Wanted>) {
        // `None` only while the last reference is dropped, when there are no more waiters.
        let (Some(this), Some(queues)) = (self.this.upgrade(), lists.next()) else { return };
        self.tasks.spawn(this.fetch(queues, lists));
    }

    /// Fetches until the list has no waiters or its queues are known to be empty. Runs as its own task, so that a
    /// consumer that disconnects cannot cancel a call that has already taken jobs. Starts `others` once its own call
    /// has been made.
    async fn fetch(self: Arc<Self>, queues: Wanted, mut others: IntoIter<Wanted>) {
        loop {
            let Some(mut turn) = self.turns.take(queues.queues.namespace()).await else { return };
            let next = Next { dispatcher: &self, lists: std::mem::take(&mut others) };
            let Some(fetch) = self.begin(&queues) else { return };
            let mut in_flight = FetchInFlight { dispatcher: &self, queues: &queues, fetch: Some(fetch) };
            let fetch = in_flight.fetch.as_ref();
            let (ttrs, began) = fetch.map_or((&[][..], 0), |fetch| (&fetch.ttrs, fetch.began));
            // After `begin`, so that a concurrent pause sees this fetch, or this fetch sees the pause.
            let open = self.open(&queues);
            let wanted = if let Open::Some(open) = &open { open } else { &queues };
            let call: StoreCall<'_, Result<Consumed>> = match &wanted.weights {
                _ if matches!(open, Open::None) => Box::pin(async { Ok(Consumed::default()) }),
                None => self.engine.consume(&wanted.queues, ttrs),
                Some(weights) => Box::pin(self.shares.consume(&*self.engine, wanted, weights, ttrs)),
            };
            let result = self.in_time(&queues, began, &mut turn, next.after(call)).await;
            if let Some(fetch) = in_flight.fetch.take()
                && !self.end(&queues, fetch, result)
            {
                return;
            }
        }
    }

    /// Awaits `call`. If it takes longer than [`HELD_UP`], gives up its turn and passes this list's notifications on to
    /// other lists, since one slow queue may be holding up jobs of the others.
    async fn in_time<T>(
        &self,
        queues: &Wanted,
        began: u64,
        turn: &mut Turn<'_>,
        call: impl Future<Output = T>,
    ) -> T {
        // With a single queue, other lists would be held up by it too.
        let has_others = queues.queues.names().len() > 1;
        if !has_others && !turn.can_be_given_back() {
            return call.await;
        }
        let mut call = pin!(call);
        match timeout(HELD_UP + Duration::from_millis(1), &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                turn.give_back();
                if has_others {
                    self.start_fetches(self.lists.lock().pass_on(queues, began));
                }
                call.await
            }
        }
    }

    /// Starts a fetch by choosing the waiters it serves. `None` ends the task.
    fn begin(&self, queues: &Wanted) -> Option<Fetch> {
        let mut lists = self.lists.lock();
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
        let fetch = lists.fetch(queues)?;
        lists.reorder(queues);
        if let Some((first, _)) = fetch.waiters.first() {
            lists.serves(queues, *first, true);
        }
        Some(fetch)
    }

    /// Distributes the result of a fetch. Returns whether its task continues.
    fn end(&self, queues: &Wanted, fetch: Fetch, result: Result<Consumed>) -> bool {
        let mut lists = self.lists.lock();
        if let Some((first, _)) = fetch.waiters.first() {
            lists.serves(queues, *first, false);
        }
        lists.in_flight.remove(&fetch.began);
        self.fetch_ended.notify_waiters();
        let goes_on = match result {
            Ok(consumed) => self.hand_out(&mut lists, queues, fetch, consumed),
            Err(error) => self.fail(&mut lists, queues, &fetch, &error),
        };
        goes_on.unwrap_or(false)
    }

    /// [`end`](Dispatcher::end) for a fetch that succeeded. `None` if the list has been removed meanwhile.
    fn hand_out(
        &self,
        lists: &mut WaitLists,
        queues: &Wanted,
        fetch: Fetch,
        Consumed { jobs, more, notifies }: Consumed,
    ) -> Option<bool> {
        let list = lists.get(queues)?;
        (list.serving, list.took_over) = (None, false);
        let full = jobs.len() >= fetch.ttrs.len();
        let more = more && !(notifies && list.is_registered() && !list.has_impatient());
        list.skipping = more && !notifies && !full;
        let mut jobs = jobs.into_iter();
        for (arrival, count) in fetch.waiters {
            let share: Vec<Job> = jobs.by_ref().take(count).collect();
            if share.is_empty() {
                break;
            }
            let delivery = self.delivery(share, list.is_registered());
            // If the waiter has disconnected, the delivery is dropped and its jobs are returned.
            if let Some(waiter) = list.remove(arrival) {
                let _ = waiter.send(Ok(delivery));
            }
        }
        if full || more {
            // There may be more jobs, for this list or for others. If this list is empty now, it wakes the others when
            // it is removed.
            list.stale = true;
            if list.is_registered() && !list.is_empty() {
                // The longest waiter is next, in this list or another; but only this list can answer its own callers
                // with a timeout of zero.
                let goes_on = list.has_impatient();
                (list.stale, list.fetching) = (goes_on, goes_on);
                lists.reorder(queues);
                // If the store notifies, no job is known that others could take.
                if !notifies {
                    self.start_fetches(lists.wake_others(queues));
                }
                return Some(goes_on);
            }
            return Some(true);
        }
        // The queues were empty at some moment after the fetch began; or the store notifies of their jobs, and nobody here
        // is impatient.
        for waiter in list.remove_impatient(fetch.before) {
            let _ = waiter.send(Ok(self.nothing()));
        }
        if list.is_registered() {
            lists.reorder(queues);
            lists.narrow(queues, fetch.began);
        } else if !list.is_empty() {
            self.register(lists, queues);
        }
        Some(true)
    }

    /// [`end`](Dispatcher::end) for a fetch that failed.
    fn fail(&self, lists: &mut WaitLists, queues: &Wanted, fetch: &Fetch, error: &Error) -> Option<bool> {
        let list = lists.get(queues)?;
        (list.serving, list.took_over) = (None, false);
        // Waiters keep waiting while there may be jobs in unavailable partitions.
        let unseen = if let Error::Unseen(why, of) = error { Some((*why, &of[..])) } else { None };
        let failed = fetch.waiters.iter().filter(|_| unseen.is_none());
        let failed: Vec<_> = failed.filter_map(|(arrival, _)| list.remove(*arrival)).collect();
        for waiter in failed.into_iter().chain(list.remove_impatient(fetch.before)) {
            let _ = waiter.send(Err(ConsumeError::Store(error.clone())));
        }
        // Callers that arrived meanwhile are answered by their own fetch.
        list.stale |= list.has_impatient() || unseen.is_none() && !list.is_registered();
        if list.is_registered() {
            lists.reorder(queues);
            self.notify_later(lists, queues);
        } else if unseen.is_some() && !list.is_empty() {
            self.register(lists, queues);
        }
        if let Some((why, of)) = unseen {
            lists.mark_unseen(queues, of, why);
        }
        Some(true)
    }

    /// Registers the list for notifications, then marks it for one more fetch, which finds the jobs stored before.
    fn register(&self, lists: &mut WaitLists, queues: &Wanted) {
        if let Some(list) = lists.get(queues) {
            list.stale = true;
        }
        let new = lists.register(queues);
        self.waited_for.store(lists.queue_count(), Ordering::SeqCst);
        new.iter().for_each(|queue| self.engine.watch(queue));
    }

    /// Notifies the failed list's queues again after [`RETRY`]: the fetch may have consumed the only notification of a
    /// job that is still ready.
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

    pub(super) fn remove(&self, lists: &mut WaitLists, queues: &Wanted) {
        lists.remove(queues);
        self.waited_for.store(lists.queue_count(), Ordering::SeqCst);
    }
}

impl Notifier for Dispatcher {
    fn notify(&self, queue: &Queue) {
        // Resuming a queue wakes its waiters.
        if self.pause_of(queue).is_some() {
            return;
        }
        // A list registers before its last fetch, and a job is stored before its notification. So if the list is not
        // visible here yet, its fetch will find the job.
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

/// Lists to start after another list has called the store. Dropped then, or if it has nothing to fetch or panics.
struct Next<'a> {
    dispatcher: &'a Dispatcher,
    lists: IntoIter<Wanted>,
}

impl Next<'_> {
    /// Polls `call` once, starts the lists, then awaits the call.
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

/// A fetch in flight. If the engine panics, its waiters get an error and the list fetches again.
struct FetchInFlight<'a> {
    dispatcher: &'a Arc<Dispatcher>,
    queues: &'a Wanted,
    fetch: Option<Fetch>,
}

impl Drop for FetchInFlight<'_> {
    fn drop(&mut self) {
        // If it is dropped because the runtime ends, there is nothing to answer.
        if let Some(fetch) = self.fetch.take().filter(|_| std::thread::panicking()) {
            self.dispatcher.end(self.queues, fetch, Err(Error::refused("the engine panicked")));
            self.dispatcher.start_fetch(self.queues.clone());
        }
    }
}
