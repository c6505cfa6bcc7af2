//! The contract of a store of jobs. Each state change is one atomic step. The laws in tests/laws check it for every
//! implementation and every wrapper. Independent of HTTP, tokens and long polls.
//!
//! A job is *delayed*, then *ready*, then *running*, and then deleted (acked), ready again, or *dead*:
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
//! Invariants of every method:
//!
//! - **Atomic.** A step happens as a whole or not at all, for every observer and across `kill -9`.
//! - **Durable.** A step that returned `Ok` survives the process (and, where the store syncs, the machine).
//! - **Never blocks.** Nothing here waits for a job; parking consumers is the dispatcher's work.
//! - **One clock.** Delays, ttl and ttr are measured by the store's clock ([`Engine::now`]), at least to the
//!   millisecond. A job is never delivered early. Instants in arguments and results are in the store's
//!   [time of day](Engine::time_of_day).
//! - **Order.** A queue is first in, first out. Jobs due at the same time become ready in the order in which their
//!   timers were set: delayed ones in publish order, running ones in the order of delivery.
//! - **TTL.** A job whose ttl has ended is never delivered or peeked, and its space is freed. A dead job has no ttl.
//! - **Keys.** A [`JobKey`] belongs to at most one delayed, ready or running job of its queue. The step in which that
//!   job is acked, cancelled, replaced, destroyed, dies or expires frees the key. A dead job has no key.
//! - **Deliveries.** A delivery begins with a consume. It ends with an ack, a release, a bury or a give-back, or when
//!   its ttr ends, even if no pump has moved the job yet. The [`Receipt`] identifies a delivery and is valid until it
//!   ends; a touch replaces it. No two deliveries of a job have the same receipt, on any server.
//! - **Cancel-safe.** If a caller drops the future, the step has happened as a whole or not at all. Jobs delivered to a
//!   dropped consume become ready again after their ttr: the dispatcher never drops one.
//!
//! Responsibilities:
//!
//! | question | decided by | how |
//! |---|---|---|
//! | Has a delivery ended? | the store | by the receipt, in the step that depends on it |
//! | Is a key taken? Was this request executed before? | the store | in the step that publishes |
//! | Is a queue paused? | the dispatcher | it does not fetch from paused queues; stores know no pauses |
//! | Which queue is served first? | the dispatcher | by the [`QueueList`] of each consume; stores know no weights |
//! | Is the quota of a namespace used up? | the store | in the step that publishes |
//! | Is an equal request in flight in this process? | HTTP | the store executes one, and replays it to the other |
//! | Was this occurrence decided before? | the scheduler | by its record in the settings; stores know no schedules |
//! | What is the text of a response? | HTTP | a store remembers the result of a publish, not the response |
//! | Limits, sizes, defaults | HTTP | invalid input never reaches a store |

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
pub mod respawn;
pub mod together;
mod views;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;

pub use self::calls::{
    By, Consumed, Fingerprint, Held, How, Listing, OnConflict, Once, OnceKind, Placed, Placing, Promoted,
    Publication, Published, Pumped, Quota, Quotas, REMEMBERED, Release, Released, Respawn, Respawned,
    Revival, Revived, Touched, Tries, Usage, delay_in_id,
};
use self::delays::{DelayCount, Delays};
use self::notifier::Notifier;
pub use self::views::{
    Cursor, Detail, Estimated, JobList, JobPage, QueuePage, QueueSize, QueueView, Size, SizeOf, Stats,
};
use crate::clock::Millis;
use crate::error::Result;
use crate::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList, QueueName};

/// Maximum number of jobs of one [`Engine::publish`].
pub const MAX_PUBLISH: usize = 64;
/// Maximum number of jobs of one [`Engine::consume`].
pub const MAX_CONSUME: usize = 128;
/// A consume delivers no further job after this many bytes of bodies, since they are held in memory.
pub const MAX_CONSUME_BYTES: usize = 8 << 20;
/// Maximum number of jobs named by one [`Engine::ack`] or [`Engine::respawn`].
pub const MAX_NAMED: usize = 100;
/// Maximum length of a page of [`Engine::list_jobs`] or [`Engine::list_queues`].
pub const MAX_LISTED: usize = 100;

/// A store of jobs.
#[async_trait]
pub trait Engine: Send + Sync + fmt::Debug + 'static {
    /// Returns the store's clock, estimated without a call: for ids and ages.
    fn now(&self) -> Millis;

    /// Returns the time of day of the store's machine, estimated without a call. It differs from [`now`](Engine::now)
    /// if that never goes back and the time of day was set back.
    fn time_of_day(&self) -> Millis {
        self.now()
    }

    /// Returns a new id for a job to be published to this queue, due after `delay`. A store with several partitions
    /// writes the job's partition into it; [`publish`](Engine::publish) may give the job another id. `ids` are the
    /// pool's.
    fn make_id(&self, ids: &JobIds, _queue: &Queue, delay: Duration, versioned: bool) -> JobId {
        ids.make(self.now(), delay_in_id(delay), versioned)
    }

    /// Stores the jobs of a [`Publication`], and deletes the job that it replaces: all in one step, or nothing. Checks
    /// first whether the call was executed before ([`Published::Replay`], [`Published::Mismatch`]), then for stored ids
    /// and duplicate keys, which fail the whole call, then for taken keys ([`Published::Conflict`]). A job without a
    /// key and an instant costs nothing extra. If the call has a [`Once`], the result [`Published::Done`] is
    /// [remembered](OnceKind::remembered) in the same step; no other result is. Jobs are ready at once, in the order
    /// given, or delayed. A store without room rejects the call, and continues to serve other calls.
    async fn publish(&self, publication: Publication) -> Result<Published>;

    /// Returns the result of [`publish`](Engine::publish) for a repeated call with this [`Once`]: [`Published::Replay`]
    /// or [`Published::Mismatch`]. `None` if it was not executed, or is no longer remembered.
    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>>;

    /// Acks the job that has this key, in any state. Returns whether it existed.
    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool>;

    /// Delivers up to `ttrs.len()` ready jobs, oldest first: from the first queue of the list, then from the second,
    /// and so on. The n-th job may run for the n-th ttr, after which it becomes ready again; it has one try less. Acked
    /// and expired jobs are skipped, a bounded number per call. Fewer jobs than requested without
    /// [`more`](Consumed::more) mean that the queues were empty. `ttrs` has 1 to [`MAX_CONSUME`] elements.
    /// [`Unseen`](crate::error::Error::Unseen): no job was found, and a part of a queue could not be read.
    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed>;

    /// Returns jobs that [`consume`](Engine::consume) delivered and no consumer received: each is ready again at the
    /// head of its queue, in the order given, with its try restored. A job whose delivery has ended (acked, or its ttr
    /// ended) is left unchanged. Bodies are ignored.
    async fn give_back(&self, jobs: Vec<Job>) -> Result<()>;

    /// Deletes jobs of one queue, 1 to [`MAX_NAMED`], each in its own step and in any state. With a receipt, a job is
    /// deleted only if that delivery has not ended. Returns the jobs that exist and were not deleted for this reason,
    /// in the order given. Ids without a job are ignored. One job without a receipt is the cheapest call.
    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>>;

    /// Extends a delivery: its ttr ends `ttr` from now. Replaces the receipt.
    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>>;

    /// Ends a delivery: the job returns to its queue, or moves to the dead letter. See [`Release`].
    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>>;

    /// Returns the job that the next consume of this queue would deliver.
    async fn peek(&self, queue: &Queue) -> Result<Option<Job>>;

    /// Returns a job by its id or key, in any state, with its body and the requested fields.
    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>>;

    /// Makes a delayed job ready at once, after all ready ones. Its ttl, tries and key stay.
    async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted>;

    /// Returns a page of a queue's jobs in one state, in the order of delivery; dead ones in the order of their deaths.
    /// Work and result of one call are bounded, for any number of jobs. Over all pages a job that stays in this state
    /// is returned once. A running one that is touched meanwhile moves: it may be returned twice, or not at all. `None`
    /// if the cursor does not belong to this store and state.
    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>>;

    /// Returns the number of ready jobs, or of dead ones with the oldest. May include acked and expired jobs that are
    /// still in the list.
    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size>;

    /// Deletes all jobs that are ready at the time of the call; delayed, running and dead ones stay. In bounded steps,
    /// each atomic. A call of several steps that ends early, here and below, fails with
    /// [`Partly`](crate::error::Error::Partly). The last step of [`Listing::Delete`] also deletes the name of the queue
    /// from all lists, unless the queue has ready or dead jobs then; with delayed ones it may. A job that is stored or
    /// returned later may add the name again.
    async fn destroy(&self, queue: &Queue, listing: Listing) -> Result<()>;

    /// Makes dead jobs ready or delayed again: the oldest ones, in bounded steps, each atomic; or by id, each in its
    /// own atomic step with bounded work, for any number of dead jobs.
    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned>;

    /// Deletes the oldest `limit` dead jobs. Returns their number. In bounded steps, each atomic.
    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64>;

    /// Moves due jobs, earliest first, up to the store's bound for one step: delayed ones and running ones with tries
    /// left become ready, other running ones dead.
    async fn pump(&self) -> Result<Pumped>;

    /// Returns a page of a namespace's queues that jobs were published to, sorted by name: up to `limit`, 1 to
    /// [`MAX_LISTED`], after `after`. A store may drop queues that have been empty for long. Work and result of one
    /// call are bounded. Over all pages a queue that exists throughout is returned once. A store that must sort the
    /// names first does so once for all callers: first pages wait some seconds for it, and then fail with
    /// [`Overloaded`](crate::error::Error::Overloaded).
    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage>;

    /// Returns every queue that jobs were published to, sorted, with its sizes, and statistics of the store. For a
    /// scrape of the metrics. A store may drop queues that have been empty for long.
    async fn stats(&self) -> Result<Stats>;

    /// Returns the number of delayed jobs by due time. Reads all of them in bounded steps with rests between them:
    /// seconds for millions. May miss jobs that are stored, deleted or become due meanwhile.
    async fn delays(&self, count: &DelayCount) -> Result<Delays>;

    /// Replaces all quotas. From now on a publish that would exceed the quota of a namespace fails as a whole with
    /// [`OverQuota`](crate::error::Error::OverQuota). A job replaced in the same step does not count; calls that store
    /// nothing never fail for it. A store with other writers may count their changes and expired jobs late. Returns
    /// once existing jobs are counted or will be soon: the usage of the namespaces whose jobs or bytes are bounded.
    async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>>;

    /// Attaches a notifier of queues that may have new ready jobs: called at once if this process made them ready, soon
    /// if another process did and the queue is [watched](Engine::watch). Also of jobs stored by this process that are
    /// due before the next pump.
    fn attach(&self, notifier: Weak<dyn Notifier>);

    /// Watches a queue that a consumer waits for. The notifier says for how long.
    fn watch(&self, queue: &Queue);

    /// Checks that the store serves requests. A full store does.
    async fn check(&self) -> Result<()>;

    /// Ends the engine's tasks and closes the store in order. Later calls fail with
    /// [`Closed`](crate::error::Error::Closed).
    async fn close(&self);
}
