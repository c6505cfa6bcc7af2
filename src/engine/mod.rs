//! What a store of jobs must do, whatever it is made of. One method is one state change, and each is one
//! atomic step. The laws in tests/laws hold every implementation and every wrapper against this page.
//! Knows nothing of HTTP, tokens or long polls.
//!
//! A job is *delayed*, then *ready*, then *running*, and then gone (acked), ready again, or *dead*:
//!
//! ```text
//! publish ──delay──> delayed ──pump──> ready ──consume──> running ──ack──> (gone)
//!    └─────no delay────────────────────> ^ ^                 │
//!                                        │ └──give_back──────┤
//!                                        └──pump, tries left─┤
//!                               respawn  ^                   └─pump, none left──> dead
//!                                        └────────────────────────────────────────┘
//! ```
//!
//! What every method keeps:
//!
//! - **Atomic.** A step happens as a whole or not at all, for every observer and across `kill -9`.
//! - **Durable.** What was answered with `Ok` survives the process (and, where the store syncs, the machine).
//! - **Never blocks.** Nothing here waits for a job; parking consumers is the dispatcher's work.
//! - **One clock.** Delays, ttl and ttr count by [`Engine::now`]'s clock, the store's, and to the
//!   millisecond at least. A job is never handed out early.
//! - **Order.** A queue is first in, first out. Jobs due at the same time become ready in the order in which
//!   their timers were set: delayed ones in publish order, running ones in the order they were handed out.
//! - **TTL.** A job whose ttl has ended is never handed out or peeked, and its space comes back. A dead job
//!   has no ttl.
//! - **Cancel-safe.** A caller that drops the future leaves a step that happened or did not, never half. Jobs
//!   that a dropped consume handed out come back after their ttr: the dispatcher never drops one.

pub mod batch;
pub mod disk;
pub mod metered;
pub mod migration;
mod next_due;
pub mod notifier;
pub mod redis;
mod shared;

use std::fmt;
use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Millis;
use crate::error::Result;
use crate::job::{Job, JobId, JobRef, NewJob};
use crate::name::{Queue, QueueList};
use notifier::Notifier;

/// The most jobs in one [`Engine::publish`].
pub const MAX_PUBLISH: usize = 64;
/// The most jobs that one [`Engine::consume`] may ask for.
pub const MAX_CONSUME: usize = 128;

/// What one consume handed out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Consumed {
    /// In the order in which they were handed out.
    pub jobs: Vec<Job>,
    /// The queues may have more ready jobs, although fewer than asked for were handed out: the call has reached
    /// its bound while it skipped jobs that are gone. Consume again.
    pub more: bool,
}

/// What one pump did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pumped {
    /// How many due jobs left the timer.
    pub moved: usize,
    /// How long until the next is due: zero when some are due already. Stores that others write to answer at
    /// most a second, since nobody tells them of a job that became due earlier.
    pub next: Duration,
}

/// A queue's dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    pub size: u64,
    /// The oldest.
    pub head: Option<JobId>,
}

/// How many jobs of one queue are where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSize {
    pub queue: Queue,
    pub ready: u64,
    pub dead: u64,
}

/// What a scrape of the metrics shows of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Jobs with a timer: delayed ones and running ones.
    pub timers: u64,
    pub queues: Vec<QueueSize>,
    /// Figures that only one kind of store has, by the name of their gauge (`used_mem_bytes`, …).
    pub gauges: Vec<(&'static str, f64)>,
}

/// A store of jobs.
#[async_trait]
pub trait Engine: Send + Sync + fmt::Debug + 'static {
    /// The store's clock, as well as it is known without asking: ids are made and ages told from it.
    fn now(&self) -> Millis;

    /// Stores 1 to [`MAX_PUBLISH`] jobs, all or none: ready at once in the order given, or delayed. An id
    /// that is stored already fails the whole call. A store without room refuses it, and goes on with what it has.
    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()>;

    /// Acks `old`, if it is there, and publishes `new`, in one step.
    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()>;

    /// Hands out up to `ttrs.len()` ready jobs, oldest first: from the first queue of the list, then from the
    /// second, and so on. The n-th job may run for the n-th ttr, and then comes back; it has one try less.
    /// Acked and expired jobs are skipped, in a bounded number for each call. An answer with fewer jobs than were
    /// asked for, and without [`more`](Consumed::more), means that the queues were seen empty. `ttrs` has 1 to
    /// [`MAX_CONSUME`] elements.
    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed>;

    /// Takes back jobs that [`consume`](Engine::consume) handed out and nobody got: each is ready again at
    /// the head of its queue, in the order given, with its try restored. A job that is no longer in that very
    /// hand-over (acked, or its ttr ended) is left alone.
    async fn give_back(&self, jobs: Vec<Job>) -> Result<()>;

    /// Forgets a job, in whatever state. Forgetting an unknown one is fine.
    async fn ack(&self, job: JobRef) -> Result<()>;

    /// The job that the next consume of this queue would hand out.
    async fn peek(&self, queue: &Queue) -> Result<Option<Job>>;

    /// A job by id, in whatever state; `tries_left` is 0, as lmstfy answers here.
    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>>;

    /// How many jobs are ready. May count acked and expired ones that are still in the list.
    async fn size(&self, queue: &Queue) -> Result<u64>;

    /// Forgets the jobs that are ready when it is called; delayed, running and dead ones stay. Done in
    /// bounded steps, each atomic.
    async fn destroy(&self, queue: &Queue) -> Result<()>;

    /// The dead letter's size and oldest job.
    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter>;

    /// Makes the oldest `limit` dead jobs ready again, each with one try and a new ttl (`None` is forever).
    /// Answers how many. In bounded steps, each atomic.
    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64>;

    /// Deletes the oldest `limit` dead jobs. Answers how many. In bounded steps, each atomic.
    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64>;

    /// Moves up to `limit` due jobs, earliest first: delayed ones become ready, and so do running ones with
    /// tries left; running ones without become dead.
    async fn pump(&self, limit: usize) -> Result<Pumped>;

    /// Returns when this process has stored a job that is due earlier than the last pump's `next` said.
    async fn due_earlier(&self);

    /// Every queue that jobs were published to, sorted. A store may forget queues long empty.
    async fn queues(&self) -> Result<Vec<Queue>>;

    /// Sizes, for a scrape of the metrics.
    async fn stats(&self) -> Result<Stats>;

    /// From now on tells `notifier` of each queue that may have got a ready job, whoever made it ready: at once
    /// when this process did, soon when another did and the queue is [watched](Engine::watch).
    fn attach(&self, notifier: Weak<dyn Notifier>);

    /// A consumer waits for this queue from now on. The notifier says for how long.
    fn watch(&self, queue: &Queue);

    /// Whether the store serves requests now. One without room for more does.
    async fn check(&self) -> Result<()>;

    /// Ends the engine's own tasks and leaves the store in order. Later calls answer
    /// [`Closed`](crate::error::Error::Closed).
    async fn close(&self);
}
