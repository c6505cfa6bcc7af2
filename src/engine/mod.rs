//! What a store of jobs must do, whatever it is made of. Each state change is one atomic step. The laws in tests/laws
//! hold every implementation and every wrapper against this page.
//! Knows nothing of HTTP, tokens or long polls.
//!
//! A job is *delayed*, then *ready*, then *running*, and then gone (acked), ready again, or *dead*:
//!
//! ```text
//! publish ──delay──> delayed ──pump──> ready ──consume──> running ──ack──> (gone)
//!    └─────no delay────────────────────> ^ ^                 │ ^└─touch─┐
//!                                        │ └──give_back──────┤ └────────┘
//!                                        ├──release, no delay┤
//!                                        └──pump, tries left─┤
//!            delayed <──release, delay───────────────────────┤
//!                               respawn  ^                   └─bury; pump or release, none left──> dead
//!                                        └───────────────────────────────────────────────────────────┘
//! ```
//!
//! What every method keeps:
//!
//! - **Atomic.** A step happens as a whole or not at all, for every observer and across `kill -9`.
//! - **Durable.** What was answered with `Ok` survives the process (and, where the store syncs, the machine).
//! - **Never blocks.** Nothing here waits for a job; parking consumers is the dispatcher's work.
//! - **One clock.** Delays, ttl and ttr count by [`Engine::now`]'s clock, the store's, and to the millisecond at least. A
//!   job is never handed out early. Instants that a method takes or returns are in the store's
//!   [time of day](Engine::time_of_day).
//! - **Order.** A queue is first in, first out. Jobs due at the same time become ready in the order in which
//!   their timers were set: delayed ones in publish order, running ones in the order they were handed out.
//! - **TTL.** A job whose ttl has ended is never handed out or peeked, and its space comes back. A dead job
//!   has no ttl.
//! - **Keys.** A [`JobKey`] belongs to at most one delayed, ready or running job of its queue. It is free again in
//!   the same step in which that job is acked, cancelled, replaced, destroyed, dies or expires. A dead job has no key.
//! - **Hand-overs.** A hand-over begins with a consume and ends with an ack, a release, a bury, a give-back, or at the
//!   instant at which its ttr ends, whether or not a pump has come by. Its [`Receipt`] is the proof that it still
//!   stands. A touch replaces the receipt. No two hand-overs of a job have the same receipt, whichever server handed
//!   the job out.
//! - **Cancel-safe.** A caller that drops the future leaves a step that happened or did not, never half. Jobs
//!   that a dropped consume handed out come back after their ttr: the dispatcher never drops one.
//!
//! Who decides what:
//!
//! | question | who | how |
//! |---|---|---|
//! | Does a hand-over still stand? | the store | by the receipt, in the step that needs to know |
//! | Who has a key, and was this request done already? | the store | in the step that publishes |
//! | Is a queue paused? | the dispatcher | it does not fetch from paused queues |
//! | Which queue is served first? | the dispatcher | by the order of the [`QueueList`] of each consume; the store knows no weights |
//! | Is the quota of a namespace used up? | the store | in the step that publishes |
//! | Is an equal request under way in this process? | HTTP | the store sees one of them first, and replays it to the other |
//! | What is an answer's text? | HTTP | a store keeps of a publish what it placed, and no text |
//! | Limits, sizes, defaults | HTTP | bad input never gets here |

pub mod backup;
pub mod batch;
mod calls;
pub mod delays;
pub mod disk;
pub mod forget;
pub mod metered;
pub mod migration;
mod next_due;
pub mod nodes;
pub mod notifier;
pub mod observer;
pub mod redis;
pub mod together;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;

pub use self::calls::{
    By, Consumed, Cursor, Detail, Fingerprint, Held, How, JobList, JobPage, OnConflict, Once, OnceKind,
    Placed, Placing, Promoted, Publication, Published, Pumped, QueuePage, QueueSize, QueueView, Quota,
    Quotas, REMEMBERED, Release, Released, Respawn, Respawned, Revival, Revived, Size, SizeOf, Stats,
    Touched, Tries, Usage, delay_in_id,
};
use self::delays::{DelayCount, Delays};
use self::notifier::Notifier;
use self::observer::Observer;
use crate::clock::Millis;
use crate::error::Result;
use crate::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList, QueueName};

/// The most jobs in one [`Engine::publish`].
pub const MAX_PUBLISH: usize = 64;
/// The most jobs that one [`Engine::consume`] may ask for.
pub const MAX_CONSUME: usize = 128;
/// What is handed out for one fetch ends after so many bytes of bodies, or one job: it is held in memory.
pub const MAX_CONSUME_BYTES: usize = 8 << 20;
/// The most jobs that one [`Engine::ack`] or [`Engine::respawn`] names.
pub const MAX_NAMED: usize = 100;
/// The most that one page of [`Engine::list_jobs`] or [`Engine::list_queues`] shows.
pub const MAX_LISTED: usize = 100;

/// A store of jobs.
#[async_trait]
pub trait Engine: Send + Sync + fmt::Debug + 'static {
    /// The store's clock, as well as it is known without asking: ids are made and ages told from it.
    fn now(&self) -> Millis;

    /// Returns the time of day of the store's machine, as well as it is known without asking. It differs from
    /// [`now`](Engine::now) where that never goes back and this was set back.
    fn time_of_day(&self) -> Millis {
        self.now()
    }

    /// Returns a new id for a job that is about to be published to this queue, due after `delay`. A store with several
    /// partitions writes into it the one that the job is going to be in; [`publish`](Engine::publish) may give the job
    /// another id. `ids` are the pool's.
    fn make_id(&self, ids: &JobIds, _queue: &Queue, delay: Duration, versioned: bool) -> JobId {
        ids.make(self.now(), delay_in_id(delay), versioned)
    }

    /// Stores the jobs of a [`Publication`], and forgets the one that it replaces: everything in one step, or nothing.
    /// Looks first whether the call was done already ([`Published::Replay`], [`Published::Mismatch`]), then for ids that
    /// are stored already and for keys that it uses twice, which fail the whole call, then for keys that must not be
    /// taken ([`Published::Conflict`]). Which of this a call needs shows in the call: a job without a key and an instant
    /// costs nothing more. What [`Published::Done`] says is [remembered](OnceKind::remembered) if the call has a [`Once`], in
    /// the same step; nothing else is remembered. Jobs are ready at once in the order given, or delayed. A store without
    /// room refuses the call, and goes on with what it has.
    async fn publish(&self, publication: Publication) -> Result<Published>;

    /// What [`publish`](Engine::publish) would answer if the call with this [`Once`] was done already:
    /// [`Published::Replay`] or [`Published::Mismatch`]. `None` if it was not, or is not remembered.
    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>>;

    /// Acks the job that has this key, in whatever state it is. Answers whether there was one.
    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool>;

    /// Hands out up to `ttrs.len()` ready jobs, oldest first: from the first queue of the list, then from the
    /// second, and so on. The n-th job may run for the n-th ttr, and then comes back; it has one try less.
    /// Acked and expired jobs are skipped, in a bounded number for each call. An answer with fewer jobs than were
    /// asked for, and without [`more`](Consumed::more), means that the queues were seen empty. `ttrs` has 1 to
    /// [`MAX_CONSUME`] elements. [`Unseen`](crate::error::Error::Unseen): nothing
    /// was found, and a part of a queue could not be looked at.
    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed>;

    /// Takes back jobs that [`consume`](Engine::consume) handed out and nobody got: each is ready again at
    /// the head of its queue, in the order given, with its try restored. A job that is no longer in that very
    /// hand-over (acked, or its ttr ended) is left alone. Their bodies are not looked at.
    async fn give_back(&self, jobs: Vec<Job>) -> Result<()>;

    /// Forgets jobs of one queue, 1 to [`MAX_NAMED`], each by itself and in whatever state. One that comes with a
    /// receipt is forgotten only if that hand-over still stands. Answers those that are there and were not forgotten
    /// for that, in the order given. Ids without a job are fine. One job without a receipt costs the least.
    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>>;

    /// The holder works on: the ttr ends `ttr` from now. The receipt is replaced by another one.
    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>>;

    /// The holder gives up, for now or for good: the job goes back to its queue, or into the dead letter. See
    /// [`Release`].
    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>>;

    /// The job that the next consume of this queue would hand out.
    async fn peek(&self, queue: &Queue) -> Result<Option<Job>>;

    /// A job by its id or by its key, in whatever state, with its body, and with as much as was asked for.
    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>>;

    /// Makes a delayed job ready at once, behind those that are ready. Its ttl, tries and key stay.
    async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted>;

    /// A part of a queue's jobs in one state, in the order in which they will come; dead ones in the order in which
    /// they died. Work and answer of one call are bounded, however many jobs there are. Over the calls of one list a
    /// job that is in this state all the while is shown once. A running one that is touched meanwhile has another place:
    /// it may be shown twice, or not at all. `None` when the cursor is not one of this store and this state.
    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>>;

    /// How many jobs are ready, or how many are dead and which of them is the oldest. May count acked and expired ones
    /// that are still in the list.
    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size>;

    /// Forgets the jobs that are ready when it is called; delayed, running and dead ones stay. Done in
    /// bounded steps, each atomic. A call of several steps that ends early, here and below, says so with
    /// [`Partly`](crate::error::Error::Partly).
    async fn destroy(&self, queue: &Queue) -> Result<()>;

    /// Forgets the name of a queue, so that no list shows it; one that has ready or dead jobs keeps its name, and one that
    /// has delayed jobs may. Running jobs go on. A job that is stored, or that comes back, may bring the name back.
    /// [`forget`](forget::forget) empties the queue before.
    async fn forget_queue(&self, queue: &Queue) -> Result<()>;

    /// Makes dead jobs ready or delayed again: the oldest ones, in bounded steps, each atomic; or by id, each in an
    /// atomic step of its own, with bounded work for each, however many dead jobs there are.
    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned>;

    /// Deletes the oldest `limit` dead jobs. Answers how many. In bounded steps, each atomic.
    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64>;

    /// Moves due jobs, earliest first, as many as the store moves well in one step: delayed ones become ready, and so do
    /// running ones with tries left; running ones without become dead.
    async fn pump(&self) -> Result<Pumped>;

    /// Returns when this process has stored a job that is due earlier than the last pump's `next` said.
    async fn due_earlier(&self);

    /// A part of the queues of a namespace, sorted by name: up to `limit`, 1 to [`MAX_LISTED`], behind `after`. Those
    /// that jobs were published to; a store may forget queues long empty. Work and answer of one call
    /// are bounded. Over the calls of one list a queue that is there all the while is shown once. A store that must
    /// sort the names first does that once for all callers: first pages wait for it some seconds, and fail with
    /// [`Overloaded`](crate::error::Error::Overloaded) while it is not done.
    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage>;

    /// Every queue that jobs were published to, sorted, with its sizes; and figures of the whole store. For a scrape of
    /// the metrics. A store may forget queues long empty.
    async fn stats(&self) -> Result<Stats>;

    /// How many delayed jobs fall due when. Reads all of them in bounded steps, and rests between these: seconds for
    /// millions. Jobs that come, go or fall due meanwhile may be missed.
    async fn delays(&self, count: &DelayCount) -> Result<Delays>;

    /// From now on a publish of any kind that would leave a namespace with more than its quota is refused as a whole,
    /// with [`OverQuota`](crate::error::Error::OverQuota). A job that is replaced in the same step counts no more; what
    /// stores nothing is not refused. Nothing else is. Takes the place of all quotas before. A store that others write
    /// to may count late what they did, and what has expired. Returns once what was stored before is counted, or will be
    /// soon: the usage of the namespaces whose jobs or bytes are bounded.
    async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>>;

    /// From now on tells `notifier` of each queue that may have got a ready job, whoever made it ready: at once
    /// when this process did, soon when another did and the queue is [watched](Engine::watch).
    fn attach(&self, notifier: Weak<dyn Notifier>);

    /// A consumer waits for this queue from now on. The notifier says for how long.
    fn watch(&self, queue: &Queue);

    /// From now on tells `observer` what the store does beside what it answers.
    fn observe(&self, observer: Arc<dyn Observer>);

    /// Whether the store serves requests now. One without room for more does.
    async fn check(&self) -> Result<()>;

    /// Ends the engine's own tasks and leaves the store in order. Later calls answer
    /// [`Closed`](crate::error::Error::Closed).
    async fn close(&self);
}
