//! Long polls. Consumers that find nothing are parked here, in order of arrival, and are handed jobs when
//! their queues get some. A parked consumer costs a few hundred bytes and no store connection. One dispatcher
//! a pool; it asks the engine, never a store, and knows nothing of HTTP.
//!
//! Consumers with the same list of queues stand in one *line*, first come, first served. A line *looks* when
//! it has reason to: one engine call that serves a few consumers from the front, so a publish to a queue with
//! ten thousand parked consumers costs one small call. At most one look per line is under way. The reasons are
//! a ring of the [`Bell`] (`stale`), and an arrival that cannot rely on the bell.
//!
//! No wake-up is lost: a line that keeps consumers first *watches* its queues, then looks once more. A ring
//! that comes while a look is under way makes the line stale, and it looks again.
//!
//! A ring is heard by one line, the one whose first consumer waits longest, so that ten thousand lines over
//! one queue cost no more than one. That line owes it to the others: a look that found less than it asked for
//! has seen the queues empty, and nobody is owed anything; one that found enough, or a line that empties
//! before it has looked, passes the ring on; one that failed has it rung again after [`RETRY`].
//!
//! No job is burned: what was popped for a consumer travels in a [`Delivery`], which gives its jobs back to
//! the engine when it is dropped before somebody took them.

mod delivery;
mod lines;
mod parking;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

pub use self::delivery::Delivery;
use self::delivery::WayBack;
use self::lines::{Answer, Lines, Round};
pub use self::parking::Parking;
use crate::engine::notifier::Bell;
use crate::engine::{Engine, Want};
use crate::error::Error;
use crate::job::Job;
use crate::name::{Queue, QueueList};

/// After a failed look the jobs that it was told of are looked for again this much later.
const RETRY: Duration = Duration::from_secs(1);
/// The longest that a poll may last: beyond it a timer would overflow. lmstfy's u32 seconds are far longer
/// than any connection lives.
const LONGEST_POLL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why a consumer got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConsumeError {
    /// As many consumers are parked as may be.
    #[error("too many consumers are waiting (at most {0})")]
    Crowded(usize),
    /// The store failed.
    #[error("{0}")]
    Store(Error),
}

/// One pool's dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    engine: Arc<dyn Engine>,
    bell: Arc<Bell>,
    parking: Arc<Parking>,
    lines: Mutex<Lines>,
    back: WayBack,
    /// Looks that are under way, so that a stop can wait for them.
    looks: TaskTracker,
}

impl Dispatcher {
    /// A dispatcher over `engine`, and its two tasks: one that hears the bell, one that gives jobs back. They
    /// end some time after the dispatcher is dropped.
    pub fn start(engine: Arc<dyn Engine>, parking: Arc<Parking>) -> Arc<Dispatcher> {
        let bell = Arc::new(Bell::default());
        engine.attach(bell.clone());
        let dispatcher = Arc::new(Dispatcher {
            back: WayBack::open(engine.clone()),
            engine,
            bell: bell.clone(),
            parking,
            lines: Mutex::default(),
            looks: TaskTracker::new(),
        });
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
    ) -> impl Future<Output = Answer> + Send + 'static {
        let dispatcher = self.clone();
        async move { dispatcher.serve(queues, want, timeout).await }
    }

    async fn serve(self: Arc<Self>, queues: QueueList, want: Want, timeout: Duration) -> Answer {
        let patient = !timeout.is_zero();
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
        // Nobody drops a consumer's channel unanswered while the runtime lives.
        answer.unwrap_or_else(|_| Err(ConsumeError::Store(Error::Closed)))
    }

    /// Answers every parked consumer with nothing, now, and lets nobody wait from here on. Those whom a look
    /// is serving get what it brings.
    pub fn close(&self) {
        let mut lines = self.lines.lock();
        lines.closed = true;
        let mut idle = Vec::new();
        for (list, line) in &mut lines.by_list {
            for answer in line.close() {
                let _ = answer.send(Ok(self.nothing()));
            }
            if !line.looking {
                idle.push(list.clone());
            }
        }
        for list in idle {
            self.remove(&mut lines, &list);
        }
    }

    /// After [`close`](Dispatcher::close): returns when no look is under way and every job that nobody took
    /// has been given back, so that the engine can be closed.
    pub async fn settled(&self) {
        self.looks.close();
        self.looks.wait().await;
        self.back.flushed().await;
    }

    fn nothing(&self) -> Delivery {
        Delivery::new(Vec::new(), true, self.back.clone())
    }

    /// Puts a consumer into its line, and makes the line look if it has to.
    fn arrive(self: &Arc<Self>, queues: QueueList, want: Want, parked: bool) -> Place {
        let (answer, receiver) = oneshot::channel();
        let mut lines = self.lines.lock();
        lines.arrivals += 1;
        let arrival = lines.arrivals;
        // Asked under the lock: whom `close` does not find in a line must not wait.
        let patient = parked && !lines.closed;
        let line = lines.by_list.entry(queues.clone()).or_default();
        let was_empty = line.is_empty();
        line.push(arrival, want, patient, answer);
        // A line that watches and is not stale knows its queues to be empty, or that another line was told: a
        // patient consumer just waits. The impatient one must not rely on the bell, which may be a moment
        // late for other servers' jobs.
        if !patient || !line.watches() {
            line.stale = true;
        }
        if line.stale && !std::mem::replace(&mut line.looking, true) {
            self.start_look(queues.clone());
        }
        if was_empty {
            lines.reseat(&queues);
        }
        drop(lines);
        Place { dispatcher: self.clone(), queues, arrival, parked, answer: receiver, left: false }
    }

    /// Some queues may have jobs: for each, a line looks.
    fn hear(self: &Arc<Self>, queues: &[Queue]) {
        let mut lines = self.lines.lock();
        for queue in queues {
            self.start_looks(lines.wake(queue));
        }
    }

    fn start_looks(self: &Arc<Self>, lines: Vec<QueueList>) {
        lines.into_iter().for_each(|list| self.start_look(list));
    }

    /// The line's `looking` is set.
    fn start_look(self: &Arc<Self>, queues: QueueList) {
        self.looks.spawn(self.clone().look(queues));
    }

    /// Looks until the line is empty or knows that its queues are. Runs as its own task, so that a consumer
    /// that leaves cannot cancel a call that has popped jobs.
    async fn look(self: Arc<Self>, queues: QueueList) {
        while let Some(round) = self.begin(&queues) {
            let mut look = Look { dispatcher: &self, queues: &queues, round, answered: false };
            let result = self.engine.consume(&queues, &look.round.wants).await;
            look.answered = true;
            self.end(&queues, &look.round, result);
        }
    }

    /// Takes stock of whom to look for; `None` ends the looking.
    fn begin(self: &Arc<Self>, queues: &QueueList) -> Option<Round> {
        let mut lines = self.lines.lock();
        let arrivals = lines.arrivals;
        let line = lines.by_list.get_mut(queues)?;
        if line.is_empty() {
            let owes = line.stale && line.watches();
            self.remove(&mut lines, queues);
            if owes {
                self.start_looks(lines.pass_on(queues));
            }
            return None;
        }
        if !line.stale {
            line.looking = false;
            return None;
        }
        line.stale = false;
        let round = line.round(arrivals);
        line.serving = round.arrived.last().copied();
        Some(round)
    }

    /// Hands out what a look brought.
    fn end(self: &Arc<Self>, queues: &QueueList, round: &Round, result: Result<Vec<Vec<Job>>, Error>) {
        let mut lines = self.lines.lock();
        // A line is removed only by its look, or while none is under way.
        let Some(line) = lines.by_list.get_mut(queues) else { return };
        line.serving = None;
        match result {
            Ok(lists) => {
                let full = lists.len() == round.wants.len()
                    && lists
                        .iter()
                        .zip(&round.wants)
                        .all(|(jobs, want)| jobs.len() >= usize::from(want.count));
                for (arrival, jobs) in round.arrived.iter().zip(lists).filter(|(_, jobs)| !jobs.is_empty()) {
                    let delivery = Delivery::new(jobs, line.watches(), self.back.clone());
                    // Whoever has left, or leaves now, drops the delivery: its jobs go back.
                    if let Some(answer) = line.pull(*arrival) {
                        let _ = answer.send(Ok(delivery));
                    }
                }
                if full {
                    // Everybody asked for got all they wanted: there may be more for those behind, and for
                    // those in other lines, whom a line that is empty now passes the ring on to as it goes.
                    line.stale = true;
                    line.wider = (line.wider + 1).min(2);
                    if line.watches() && !line.is_empty() {
                        lines.reseat(queues);
                        self.start_looks(lines.pass_on(queues));
                    }
                } else {
                    line.wider = 0;
                    // The queues were empty after this look began: whoever came before it and is impatient
                    // has the answer.
                    for answer in line.pull_impatient(round.before) {
                        let _ = answer.send(Ok(self.nothing()));
                    }
                    if line.watches() {
                        lines.reseat(queues);
                        lines.narrow(queues);
                    } else if !line.is_empty() {
                        // From here on the bell tells; what came before it is seen by one more look.
                        line.stale = true;
                        queues.queues().for_each(|queue| self.bell.watch(&queue));
                        lines.seat(queues);
                    }
                }
            }
            Err(error) => {
                for arrival in &round.arrived {
                    if let Some(answer) = line.pull(*arrival) {
                        let _ = answer.send(Err(ConsumeError::Store(error.clone())));
                    }
                }
                for answer in line.pull_impatient(round.before) {
                    let _ = answer.send(Err(ConsumeError::Store(error.clone())));
                }
                // Those who asked meanwhile are answered by a look of their own.
                line.stale |= line.anybody_impatient() || !line.watches();
                if line.watches() {
                    lines.reseat(queues);
                    self.ring_later(&mut lines, queues);
                }
            }
        }
    }

    /// A look that failed may have been told of a job that is still there, and nobody will tell again.
    fn ring_later(self: &Arc<Self>, lines: &mut Lines, list: &QueueList) {
        let queues: Vec<Queue> = list.queues().filter(|queue| lines.retrying.insert(queue.clone())).collect();
        if queues.is_empty() {
            return;
        }
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(RETRY).await;
            let Some(dispatcher) = weak.upgrade() else { return };
            let mut lines = dispatcher.lines.lock();
            lines.retrying.retain(|queue| !queues.contains(queue));
            drop(lines);
            dispatcher.hear(&queues);
        });
    }

    /// Takes an empty line away.
    fn remove(&self, lines: &mut Lines, list: &QueueList) {
        if lines.remove(list).is_some_and(|line| line.watches()) {
            list.queues().for_each(|queue| self.bell.unwatch(&queue));
        }
    }
}

/// A look under way. Should the engine panic, those it was for get an error, and the line looks on.
struct Look<'a> {
    dispatcher: &'a Arc<Dispatcher>,
    queues: &'a QueueList,
    round: Round,
    answered: bool,
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        // Dropped by a runtime that ends, there is nobody to answer.
        if !self.answered && std::thread::panicking() {
            let error = Error::refused("looking for jobs panicked");
            self.dispatcher.end(self.queues, &self.round, Err(error));
            self.dispatcher.start_look(self.queues.clone());
        }
    }
}

/// A consumer's place in its line. Leaving it, on time-out or because the consumer is gone, is its drop.
struct Place {
    dispatcher: Arc<Dispatcher>,
    queues: QueueList,
    arrival: u64,
    /// Takes one of the places for parked consumers.
    parked: bool,
    answer: oneshot::Receiver<Answer>,
    left: bool,
}

impl Place {
    fn leave(&mut self) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        if self.parked {
            self.dispatcher.parking.leave();
        }
        let mut lines = self.dispatcher.lines.lock();
        let Some(line) = lines.by_list.get_mut(&self.queues) else { return };
        if line.pull(self.arrival).is_none() {
            return; // answered, and out of the line since
        }
        if line.is_empty() && !line.looking {
            self.dispatcher.remove(&mut lines, &self.queues);
        } else {
            lines.reseat(&self.queues);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}
