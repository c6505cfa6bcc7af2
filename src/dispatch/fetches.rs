//! The dispatcher itself: its wait lists, and the fetches for them. Decides when a list asks the store, for whom, and who
//! gets what that brings.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use std::vec::IntoIter;

use parking_lot::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::delivery::{Delivery, GiveBack};
use super::parked_polls::ParkedPolls;
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

/// How long after a failed fetch its queues are notified again.
const RETRY: Duration = Duration::from_secs(1);

/// One pool's dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    engine: Arc<dyn Engine>,
    pub(super) parked: Arc<ParkedPolls>,
    pub(super) lists: Mutex<WaitLists>,
    /// How many queues are waited for: lets a notification return without the lock while nobody waits.
    pub(super) waited_for: AtomicUsize,
    pub(super) give_back: GiveBack,
    turns: Turns,
    /// Which queue is next, of each list with weights.
    shares: WeightShares,
    pub(super) closing: CancellationToken,
    /// Fetches and retries, so that a stop can wait for them.
    pub(super) tasks: Tasks,
    /// Those that give jobs back.
    pub(super) giving_back: Tasks,
    this: Weak<Dispatcher>,
}

impl Dispatcher {
    /// A dispatcher over `engine`, in the current runtime. A task of it that dies is reported to `failure`.
    pub fn start(engine: Arc<dyn Engine>, parked: Arc<ParkedPolls>, failure: Failure) -> Arc<Dispatcher> {
        let giving_back = Tasks::new(failure.clone());
        let give_back = GiveBack::start(engine.clone(), &giving_back);
        let dispatcher = Arc::new_cyclic(|this| Dispatcher {
            engine,
            parked,
            lists: Mutex::default(),
            waited_for: AtomicUsize::new(0),
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

    /// Starts fetching for lists whose `fetching` was set. They ask the store in this order: each begins once the one
    /// before it has asked.
    fn start_fetches(&self, lists: Vec<Wanted>) {
        self.start_next(lists.into_iter());
    }

    pub(super) fn start_fetch(&self, queues: Wanted) {
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
            let Some(mut turn) = self.turns.take(queues.queues.namespace()).await else { return };
            let next = Next { dispatcher: &self, lists: std::mem::take(&mut others) };
            let Some(fetch) = self.begin(&queues) else { return };
            let mut under_way = FetchUnderWay { dispatcher: &self, queues: &queues, fetch: Some(fetch) };
            let fetch = under_way.fetch.as_ref();
            let (ttrs, began) = fetch.map_or((&[][..], 0), |fetch| (&fetch.ttrs, fetch.began));
            let call: StoreCall<'_, Result<Consumed>> = match &queues.weights {
                None => self.engine.consume(&queues.queues, ttrs),
                Some(weights) => Box::pin(self.shares.consume(&*self.engine, &queues, weights, ttrs)),
            };
            let result = self.in_time(&queues, began, &mut turn, next.after(call)).await;
            if let Some(fetch) = under_way.fetch.take()
                && !self.end(&queues, fetch, result)
            {
                return;
            }
        }
    }

    /// The call's answer. If it takes long, another fetch may have its turn; and one of the queues may be why, so jobs of
    /// the others are left to other lists.
    async fn in_time<T>(
        &self,
        queues: &Wanted,
        began: u64,
        turn: &mut Turn<'_>,
        call: impl Future<Output = T>,
    ) -> T {
        // Whoever else waits for the one queue of a list would be held up too.
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

    /// Chooses whom to fetch for. `None` ends the fetching.
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

    /// Hands out what a fetch brought. Answers whether its task goes on.
    fn end(&self, queues: &Wanted, fetch: Fetch, result: Result<Consumed>) -> bool {
        let mut lists = self.lists.lock();
        if let Some((first, _)) = fetch.waiters.first() {
            lists.serves(queues, *first, false);
        }
        let goes_on = match result {
            Ok(consumed) => self.hand_out(&mut lists, queues, fetch, consumed),
            Err(error) => self.fail(&mut lists, queues, &fetch, &error),
        };
        goes_on.unwrap_or(false)
    }

    /// The same, of a fetch that did not fail. `None`: the list was removed, by its own fetch, or while none was under way.
    fn hand_out(
        &self,
        lists: &mut WaitLists,
        queues: &Wanted,
        fetch: Fetch,
        Consumed { jobs, more }: Consumed,
    ) -> Option<bool> {
        let list = lists.get(queues)?;
        (list.serving, list.took_over) = (None, false);
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
            // There may be more jobs, for this list and for others. A list that is empty now wakes the others when it is
            // removed.
            list.stale = true;
            if list.is_registered() && !list.is_empty() {
                // Whoever waits longest is next, in this list or in another. Those that do not wait are owed an answer
                // by this list alone.
                let goes_on = list.anybody_impatient();
                (list.stale, list.fetching) = (goes_on, goes_on);
                lists.reorder(queues);
                self.start_fetches(lists.wake_others(queues));
                return Some(goes_on);
            }
            return Some(true);
        }
        // The queues were empty at some moment after the fetch began.
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

    /// The same, of a fetch that failed.
    fn fail(&self, lists: &mut WaitLists, queues: &Wanted, fetch: &Fetch, error: &Error) -> Option<bool> {
        let list = lists.get(queues)?;
        (list.serving, list.took_over) = (None, false);
        // Who waits goes on waiting while there may be jobs where nobody could look.
        let unseen = if let Error::Unseen(why, of) = error { Some((*why, &of[..])) } else { None };
        let failed = fetch.waiters.iter().filter(|_| unseen.is_none());
        let failed: Vec<_> = failed.filter_map(|(arrival, _)| list.remove(*arrival)).collect();
        for waiter in failed.into_iter().chain(list.remove_impatient(fetch.before)) {
            let _ = waiter.send(Err(ConsumeError::Store(error.clone())));
        }
        // Those that came meanwhile are answered by a fetch of their own.
        list.stale |= list.anybody_impatient() || unseen.is_none() && !list.is_registered();
        if list.is_registered() {
            lists.reorder(queues);
            self.notify_later(lists, queues);
        } else if unseen.is_some() && !list.is_empty() {
            self.register(lists, queues);
        }
        if let Some((why, of)) = unseen {
            lists.could_not_look(queues, of, why);
        }
        Some(true)
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

    pub(super) fn remove(&self, lists: &mut WaitLists, queues: &Wanted) {
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
struct FetchUnderWay<'a> {
    dispatcher: &'a Arc<Dispatcher>,
    queues: &'a Wanted,
    fetch: Option<Fetch>,
}

impl Drop for FetchUnderWay<'_> {
    fn drop(&mut self) {
        // A fetch that is dropped because the runtime ends has nobody to answer.
        if let Some(fetch) = self.fetch.take().filter(|_| std::thread::panicking()) {
            self.dispatcher.end(self.queues, fetch, Err(Error::refused("the engine panicked")));
            self.dispatcher.start_fetch(self.queues.clone());
        }
    }
}
