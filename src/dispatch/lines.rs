//! The lines of parked consumers: who stands where, and which lines a queue's jobs concern. Plain data under
//! the dispatcher's lock; knows neither the engine nor the bell.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokio::sync::oneshot;

use super::{ConsumeError, Delivery};
use crate::engine::{MAX_CONSUME, Want};
use crate::name::{Queue, QueueList};

/// The most consumers that one look serves.
const LOOK_CONSUMERS: usize = 64;
/// How many a look serves that follows a ring: most rings tell of one job. Each look that finds a job for
/// everybody is followed by one that serves `WIDEN` times as many.
const FIRST_LOOK: usize = 4;
const WIDEN: usize = 4;
/// A queue's jobs are looked for by one line at first, then by `WIDEN` times as many, up to `WIDEN` to this.
const WIDEST: u32 = 3;

/// What a consumer is told.
pub type Answer = Result<Delivery, ConsumeError>;

#[derive(Debug, Default)]
pub struct Lines {
    pub by_list: HashMap<QueueList, Line>,
    watched: HashMap<Queue, Seats>,
    /// Queues whose lines look again in a while, since a look failed.
    pub retrying: HashSet<Queue>,
    /// The number of the next arrival: orders consumers within a line, and lines among each other.
    pub arrivals: u64,
    /// No more waiting: the server goes down. Polls look once and are answered.
    pub closed: bool,
}

/// The lines that watch one queue.
#[derive(Debug, Default)]
struct Seats {
    /// By the arrival of their first consumer: the line whose first consumer waits longest is woken first.
    lines: BTreeMap<u64, QueueList>,
    /// How many lines are woken next by one that found enough, as a power of [`WIDEN`].
    wider: u32,
}

#[derive(Debug, Default)]
pub struct Line {
    /// In order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    /// Those of them who are answered as soon as a look finds nothing.
    impatient: BTreeSet<u64>,
    /// The bell tells of jobs for these queues, and the line is found by this number among those that watch
    /// them. Set before the look that lets consumers be parked; an emptied line keeps it until it is removed.
    seat: Option<u64>,
    /// There may be jobs that no look has seen. Then `looking` too.
    pub stale: bool,
    /// A task looks, or is about to.
    pub looking: bool,
    /// The last of those for whom a look is under way.
    pub serving: Option<u64>,
    /// How many consumers the next look serves, as a power of [`WIDEN`] above [`FIRST_LOOK`].
    pub wider: u32,
}

#[derive(Debug)]
struct Waiter {
    want: Want,
    answer: oneshot::Sender<Answer>,
}

/// Whom a look is for.
#[derive(Debug)]
pub struct Round {
    pub arrived: Vec<u64>,
    pub wants: Vec<Want>,
    /// Everybody up to this arrival came before the look.
    pub before: u64,
}

impl Line {
    pub fn push(&mut self, arrival: u64, want: Want, patient: bool, answer: oneshot::Sender<Answer>) {
        self.waiters.insert(arrival, Waiter { want, answer });
        if !patient {
            self.impatient.insert(arrival);
        }
    }

    /// Takes a consumer out of the line; `None` when it has left already.
    pub fn pull(&mut self, arrival: u64) -> Option<oneshot::Sender<Answer>> {
        self.impatient.remove(&arrival);
        self.waiters.remove(&arrival).map(|waiter| waiter.answer)
    }

    /// Takes those out who do not wait and came no later than `before`.
    pub fn pull_impatient(&mut self, before: u64) -> Vec<oneshot::Sender<Answer>> {
        let gone: Vec<u64> = self.impatient.range(..=before).copied().collect();
        gone.into_iter().filter_map(|arrival| self.pull(arrival)).collect()
    }

    /// Takes everybody out for whom no look is under way; the others do not wait for another.
    pub fn close(&mut self) -> Vec<oneshot::Sender<Answer>> {
        let after = self.serving.map_or(0, |last| last + 1);
        let rest = self.waiters.split_off(&after);
        self.impatient = self.waiters.keys().copied().collect();
        rest.into_values().map(|waiter| waiter.answer).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub fn anybody_impatient(&self) -> bool {
        !self.impatient.is_empty()
    }

    /// Whether the bell tells of its jobs.
    pub fn watches(&self) -> bool {
        self.seat.is_some()
    }

    /// Those at the front whom the next look serves.
    pub fn round(&self, before: u64) -> Round {
        let consumers = LOOK_CONSUMERS.min(FIRST_LOOK * WIDEN.pow(self.wider));
        let mut jobs = 0;
        let (arrived, wants) = self
            .waiters
            .iter()
            .take(consumers)
            .take_while(|(_, waiter)| {
                jobs += usize::from(waiter.want.count);
                jobs <= MAX_CONSUME
            })
            .map(|(arrival, waiter)| (*arrival, waiter.want))
            .unzip();
        Round { arrived, wants, before }
    }
}

impl Lines {
    /// The line begins to watch its queues. It has consumers.
    pub fn seat(&mut self, list: &QueueList) {
        let Some(line) = self.by_list.get_mut(list) else { return };
        let Some((first, _)) = line.waiters.first_key_value() else { return };
        line.seat = Some(*first);
        for queue in list.queues() {
            self.watched.entry(queue).or_default().lines.insert(*first, list.clone());
        }
    }

    /// The line's first consumer may be another one now.
    pub fn reseat(&mut self, list: &QueueList) {
        let Some(line) = self.by_list.get_mut(list) else { return };
        let (Some(seat), Some((first, _))) = (line.seat, line.waiters.first_key_value()) else { return };
        if seat == *first {
            return;
        }
        line.seat = Some(*first);
        for queue in list.queues() {
            if let Some(seats) = self.watched.get_mut(&queue) {
                seats.lines.remove(&seat);
                seats.lines.insert(*first, list.clone());
            }
        }
    }

    /// Takes a line away. Answers it, so that its watches can end.
    pub fn remove(&mut self, list: &QueueList) -> Option<Line> {
        let line = self.by_list.remove(list)?;
        if let Some(seat) = line.seat {
            for queue in list.queues() {
                if let Some(seats) = self.watched.get_mut(&queue) {
                    seats.lines.remove(&seat);
                    if seats.lines.is_empty() {
                        self.watched.remove(&queue);
                    }
                }
            }
        }
        Some(line)
    }

    /// Makes the line that waits longest for this queue look. Answers whom to start.
    pub fn wake(&mut self, queue: &Queue) -> Vec<QueueList> {
        self.wake_some(queue, 1)
    }

    /// The line may have left jobs behind: others look, more of them each time. Answers whom to start.
    pub fn pass_on(&mut self, list: &QueueList) -> Vec<QueueList> {
        let mut start = Vec::new();
        for queue in list.queues() {
            let Some(seats) = self.watched.get_mut(&queue) else { continue };
            let lines = WIDEN.pow(seats.wider);
            seats.wider = (seats.wider + 1).min(WIDEST);
            start.extend(self.wake_some(&queue, lines));
        }
        start
    }

    /// The line's queues were seen empty: the next job of theirs is a single one again.
    pub fn narrow(&mut self, list: &QueueList) {
        for queue in list.queues() {
            if let Some(seats) = self.watched.get_mut(&queue) {
                seats.wider = 0;
            }
        }
    }

    fn wake_some(&mut self, queue: &Queue, most: usize) -> Vec<QueueList> {
        let mut start = Vec::new();
        for list in self.watched.get(queue).into_iter().flat_map(|seats| seats.lines.values()).take(most) {
            if let Some(line) = self.by_list.get_mut(list) {
                line.stale = true;
                if !std::mem::replace(&mut line.looking, true) {
                    start.push(list.clone());
                }
            }
        }
        start
    }
}
