//! Long polls. Consumers that find nothing are parked here, in order of arrival, and are handed jobs when
//! their queues get some. A parked consumer costs a few hundred bytes and no store connection. One dispatcher
//! a pool; it asks the engine, never a store, and knows nothing of HTTP.
//!
//! Consumers with the same list of queues stand in one *line*, first come, first served. A line *looks* when
//! it has reason to: one engine call that serves up to [`LOOK_CONSUMERS`] consumers from the front, so a
//! publish to a queue with ten thousand parked consumers costs one small call. At most one look per line is under
//! way. The reasons are a ring of the [`Bell`] (`stale`), and an arrival that cannot rely on the bell.
//!
//! No wake-up is lost: a line that keeps consumers first *watches* its queues, then looks once more. A ring
//! that comes while a look is under way makes the line stale, and it looks again.
//!
//! No job is burned: what was popped for a consumer travels in a [`Delivery`], which gives its jobs back to
//! the engine when it is dropped before somebody took them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::engine::bell::Bell;
use crate::engine::{Engine, MAX_CONSUME, Want};
use crate::error::Error;
use crate::job::Job;
use crate::name::{Queue, QueueList};

/// The most consumers that one look serves.
const LOOK_CONSUMERS: usize = 64;
/// How many a look serves that follows a ring: most rings tell of one job. Each look that finds a job for
/// everybody is followed by one that serves `WIDEN` times as many.
const FIRST_LOOK: usize = 4;
const WIDEN: usize = 4;
/// The longest that a poll may last: beyond it a timer would overflow. lmstfy's u32 seconds are far longer
/// than any connection lives.
const LONGEST_POLL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why a consumer got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConsumeError {
    /// As many consumers are parked as may be.
    #[error("too many consumers are waiting (at most {0})")]
    Crowded(usize),
    /// The store failed. Shared, since one failed look may have been for many.
    #[error("{0}")]
    Store(Arc<Error>),
}

/// Jobs on their way to a consumer. Dropped before they are taken, they go back to the head of their queue.
#[derive(Debug)]
pub struct Delivery {
    jobs: Vec<Job>,
    waited: bool,
    back: mpsc::UnboundedSender<Vec<Job>>,
}

impl Delivery {
    /// The jobs; empty when there was none.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Whether the consumer was parked before the jobs came: it may have left meanwhile.
    pub fn waited(&self) -> bool {
        self.waited
    }

    /// The consumer has them now.
    pub fn take(mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.jobs.is_empty() {
            // Fails only after the dispatcher's tasks have ended; the jobs then come back after their ttr.
            let _ = self.back.send(std::mem::take(&mut self.jobs));
        }
    }
}

/// How many consumers may be parked, over all pools.
#[derive(Debug)]
pub struct Parking {
    most: usize,
    parked: AtomicUsize,
}

impl Parking {
    /// Room for `most`.
    pub fn new(most: usize) -> Parking {
        Parking { most, parked: AtomicUsize::new(0) }
    }

    /// How many are parked.
    pub fn parked(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    fn enter(&self) -> Result<(), ConsumeError> {
        if self.parked.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.leave();
            return Err(ConsumeError::Crowded(self.most));
        }
        Ok(())
    }

    fn leave(&self) {
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One pool's dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    engine: Arc<dyn Engine>,
    bell: Arc<Bell>,
    parking: Arc<Parking>,
    lines: Mutex<Lines>,
    back: mpsc::UnboundedSender<Vec<Job>>,
    /// No more waiting: the server goes down. Polls look once and are answered.
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Lines {
    by_list: HashMap<QueueList, Line>,
    /// Which lines a ring concerns. Only lines that watch are here.
    by_queue: HashMap<Queue, Vec<QueueList>>,
    /// The number of the next arrival: orders consumers within a line, and lines among each other.
    arrivals: u64,
}

#[derive(Debug, Default)]
struct Line {
    /// In order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    /// The bell tells of jobs for these queues. Set before the look that lets consumers be parked.
    watching: bool,
    /// There may be jobs that no look has seen.
    stale: bool,
    /// A task looks, or is about to.
    looking: bool,
    /// How many consumers the next look serves, as a power of [`WIDEN`] above [`FIRST_LOOK`].
    wider: u32,
}

#[derive(Debug)]
struct Waiter {
    want: Want,
    /// Is parked when nothing is there; otherwise answered at once.
    patient: bool,
    answer: oneshot::Sender<Result<Delivery, ConsumeError>>,
}

impl Dispatcher {
    /// A dispatcher over `engine`, and its two tasks: one that hears the bell, one that gives jobs back. They
    /// end when the dispatcher is dropped.
    pub fn start(engine: Arc<dyn Engine>, parking: Arc<Parking>) -> Arc<Dispatcher> {
        let bell = Arc::new(Bell::default());
        engine.attach(bell.clone());
        let (back, returned) = mpsc::unbounded_channel();
        let dispatcher = Arc::new(Dispatcher {
            engine: engine.clone(),
            bell: bell.clone(),
            parking,
            lines: Mutex::default(),
            back,
            closed: AtomicBool::new(false),
        });
        tokio::spawn(give_back(engine, returned));
        let weak = Arc::downgrade(&dispatcher);
        tokio::spawn(async move {
            loop {
                let queues = bell.rung().await;
                let Some(dispatcher) = weak.upgrade() else { return };
                dispatcher.hear(&queues);
            }
        });
        dispatcher
    }

    /// Hands out up to `want.count` jobs, from the first queue of the list that has some; waits up to
    /// `timeout` for the first one. The delivery is empty when none came.
    pub fn consume(
        self: &Arc<Self>,
        queues: QueueList,
        want: Want,
        timeout: Duration,
    ) -> impl Future<Output = Result<Delivery, ConsumeError>> + Send + 'static {
        let dispatcher = self.clone();
        async move { dispatcher.serve(queues, want, timeout).await }
    }

    async fn serve(
        self: Arc<Self>,
        queues: QueueList,
        want: Want,
        timeout: Duration,
    ) -> Result<Delivery, ConsumeError> {
        let patient = !timeout.is_zero() && !self.closed.load(Ordering::SeqCst);
        if patient {
            self.parking.enter()?;
        }
        let deadline = Instant::now() + timeout.min(LONGEST_POLL);
        let mut place = self.arrive(queues, want, patient);
        let answer = if patient {
            match timeout_at(deadline, &mut place.answer).await {
                Ok(answer) => answer,
                // Nothing in time. Leaving the line settles whether a look was faster.
                Err(_) => {
                    place.leave();
                    match place.answer.try_recv() {
                        Ok(answer) => Ok(answer),
                        Err(_) => Ok(Ok(self.nothing())),
                    }
                }
            }
        } else {
            (&mut place.answer).await
        };
        // A look that panicked drops its waiters' channels; it is logged where it happened.
        answer.unwrap_or_else(|_| Err(ConsumeError::Store(Arc::new(Error::Closed))))
    }

    /// Answers every parked consumer with nothing, now, and lets nobody wait from here on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut lines = self.lines.lock();
        for line in lines.by_list.values_mut() {
            // Those whom a look is serving may still get a job: it decides, and it is soon over.
            let patient: Vec<u64> =
                line.waiters.iter().filter(|(_, w)| w.patient).map(|(arrival, _)| *arrival).collect();
            for arrival in patient {
                if let Some(waiter) = line.waiters.remove(&arrival) {
                    let _ = waiter.answer.send(Ok(self.nothing()));
                }
            }
        }
    }

    fn nothing(&self) -> Delivery {
        Delivery { jobs: Vec::new(), waited: true, back: self.back.clone() }
    }

    /// Puts a consumer into its line, and makes the line look if it has to.
    fn arrive(self: &Arc<Self>, queues: QueueList, want: Want, patient: bool) -> Place {
        let (answer, receiver) = oneshot::channel();
        let mut lines = self.lines.lock();
        lines.arrivals += 1;
        let arrival = lines.arrivals;
        let line = lines.by_list.entry(queues.clone()).or_default();
        line.waiters.insert(arrival, Waiter { want, patient, answer });
        // A line that watches and is not stale knows its queues to be empty: a patient consumer just waits.
        // The impatient one must not rely on the bell, which may be a moment late for other servers' jobs.
        if !patient || !line.watching {
            line.stale = true;
        }
        if line.stale && !line.looking {
            line.looking = true;
            tokio::spawn(self.clone().look(queues.clone()));
        }
        drop(lines);
        Place { dispatcher: self.clone(), queues, arrival, patient, answer: receiver, left: false }
    }

    /// Some queues may have jobs: their lines look.
    fn hear(self: &Arc<Self>, queues: &[Queue]) {
        let mut lines = self.lines.lock();
        let Lines { by_list, by_queue, .. } = &mut *lines;
        for queue in queues {
            // The line whose first consumer waits longest looks first.
            let mut concerned: Vec<(u64, &QueueList)> = Vec::new();
            for list in by_queue.get(queue).into_iter().flatten() {
                if let Some((first, _)) = by_list.get(list).and_then(|line| line.waiters.first_key_value()) {
                    concerned.push((*first, list));
                }
            }
            concerned.sort_unstable_by_key(|(first, _)| *first);
            for (_, list) in concerned {
                if let Some(line) = by_list.get_mut(list) {
                    line.stale = true;
                    if !line.looking {
                        line.looking = true;
                        tokio::spawn(self.clone().look(list.clone()));
                    }
                }
            }
        }
    }

    /// Looks until the line is empty or knows that its queues are. Runs as its own task, so that a consumer
    /// that leaves cannot cancel a call that has popped jobs.
    async fn look(self: Arc<Self>, queues: QueueList) {
        loop {
            let Some(round) = self.begin(&queues) else { return };
            let result = self.engine.consume(&queues, &round.wants).await;
            self.end(&queues, round, result);
        }
    }

    /// Takes stock of whom to look for; `None` ends the looking.
    fn begin(&self, queues: &QueueList) -> Option<Round> {
        let mut lines = self.lines.lock();
        let arrivals = lines.arrivals;
        let line = lines.by_list.get_mut(queues)?;
        if line.waiters.is_empty() {
            self.remove(&mut lines, queues);
            return None;
        }
        if !line.stale {
            line.looking = false;
            return None;
        }
        line.stale = false;
        let consumers = LOOK_CONSUMERS.min(FIRST_LOOK * WIDEN.pow(line.wider));
        let mut jobs = 0;
        let (arrived, wants) = line
            .waiters
            .iter()
            .take(consumers)
            .take_while(|(_, waiter)| {
                jobs += usize::from(waiter.want.count);
                jobs <= MAX_CONSUME
            })
            .map(|(arrival, waiter)| (*arrival, waiter.want))
            .unzip();
        Some(Round { arrived, wants, before: arrivals })
    }

    /// Hands out what a look brought.
    fn end(&self, queues: &QueueList, round: Round, result: Result<Vec<Vec<Job>>, Error>) {
        let mut lines = self.lines.lock();
        // A line is removed only by its look, or while none is under way.
        let Some(line) = lines.by_list.get_mut(queues) else { return };
        match result {
            Ok(lists) => {
                let full = lists.len() == round.wants.len()
                    && lists
                        .iter()
                        .zip(&round.wants)
                        .all(|(jobs, want)| jobs.len() >= usize::from(want.count));
                for (arrival, jobs) in round.arrived.iter().zip(lists) {
                    if jobs.is_empty() {
                        continue;
                    }
                    let delivery = Delivery { jobs, waited: line.watching, back: self.back.clone() };
                    // Whoever has left, or leaves now, drops the delivery: its jobs go back.
                    if let Some(waiter) = line.waiters.remove(arrival) {
                        let _ = waiter.answer.send(Ok(delivery));
                    }
                }
                if full {
                    // Everybody asked for got all they wanted: there may be more for those behind.
                    line.stale = true;
                    line.wider = (line.wider + 1).min(2);
                } else {
                    line.wider = 0;
                    // The queues were empty after this look began: whoever came before it and is impatient
                    // has the answer.
                    let answered: Vec<u64> = line
                        .waiters
                        .range(..=round.before)
                        .filter(|(_, waiter)| !waiter.patient)
                        .map(|(arrival, _)| *arrival)
                        .collect();
                    for arrival in answered {
                        if let Some(waiter) = line.waiters.remove(&arrival) {
                            let _ = waiter.answer.send(Ok(self.nothing()));
                        }
                    }
                    if !line.watching && !line.waiters.is_empty() {
                        // From here on the bell tells; what came before it is seen by one more look.
                        line.watching = true;
                        line.stale = true;
                        for queue in queues.queues() {
                            self.bell.watch(&queue);
                            lines.by_queue.entry(queue).or_default().push(queues.clone());
                        }
                    }
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for arrival in &round.arrived {
                    if let Some(waiter) = line.waiters.remove(arrival) {
                        let _ = waiter.answer.send(Err(ConsumeError::Store(error.clone())));
                    }
                }
                // Those who asked meanwhile are answered by a look of their own.
                line.stale = line.waiters.values().any(|waiter| !waiter.patient) || !line.watching;
            }
        }
    }

    /// Takes an empty line away.
    fn remove(&self, lines: &mut Lines, queues: &QueueList) {
        let Some(line) = lines.by_list.remove(queues) else { return };
        if line.watching {
            for queue in queues.queues() {
                self.bell.unwatch(&queue);
                if let Some(lists) = lines.by_queue.get_mut(&queue) {
                    lists.retain(|list| list != queues);
                    if lists.is_empty() {
                        lines.by_queue.remove(&queue);
                    }
                }
            }
        }
    }
}

/// Whom a look is for.
struct Round {
    arrived: Vec<u64>,
    wants: Vec<Want>,
    /// Everybody up to this arrival came before the look.
    before: u64,
}

/// A consumer's place in its line. Leaving it, on time-out or because the consumer is gone, is its drop.
struct Place {
    dispatcher: Arc<Dispatcher>,
    queues: QueueList,
    arrival: u64,
    patient: bool,
    answer: oneshot::Receiver<Result<Delivery, ConsumeError>>,
    left: bool,
}

impl Place {
    fn leave(&mut self) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        if self.patient {
            self.dispatcher.parking.leave();
        }
        let mut lines = self.dispatcher.lines.lock();
        if let Some(line) = lines.by_list.get_mut(&self.queues) {
            line.waiters.remove(&self.arrival);
            if line.waiters.is_empty() && !line.looking {
                self.dispatcher.remove(&mut lines, &self.queues);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Gives back what was popped for consumers that have left. What waits goes in one call.
async fn give_back(engine: Arc<dyn Engine>, mut returned: mpsc::UnboundedReceiver<Vec<Job>>) {
    while let Some(mut jobs) = returned.recv().await {
        while jobs.len() < MAX_CONSUME
            && let Ok(more) = returned.try_recv()
        {
            jobs.extend(more);
        }
        let count = jobs.len();
        if let Err(error) = engine.give_back(jobs).await {
            tracing::warn!(%error, count, "jobs of consumers that left could not be given back; they come back after their ttr");
        }
    }
}
