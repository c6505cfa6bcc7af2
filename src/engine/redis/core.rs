//! What the engine on a Redis, its verbs and its tasks have in common: connections, and what this process remembers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::Mutex;

use super::arming::Watch;
use super::batches::Plain;
use super::cache::{RecordedQueues, TriesCache};
use super::clock::RedisClock;
use super::connection::shared::SharedConnection;
use super::connection::status::Connections;
use super::copies::Copies;
use super::counting::Counting;
use super::layout::scripts::Scripts;
use super::pauses::Pauses;
use crate::engine::Published;
use crate::engine::batch::Caller;
use crate::engine::next_due::NextDue;
use crate::engine::notifier::Notifiers;
use crate::error::{Error, Result};
use crate::outage::Outage;
use crate::process::tasks::Tasks;

/// What the engine and its tasks have in common.
#[derive(Debug)]
pub(crate) struct RedisCore {
    /// The name of the pool of jobs, for messages.
    pub(super) pool: Arc<str>,
    /// What all connections have in common.
    pub(super) connections: Arc<Connections>,
    /// Hears of every connection that is lost.
    pub(super) outage: Arc<Outage>,
    /// One for each task that publishes: a large bulk on one of them delays nobody on the other. Two tasks, since more
    /// make smaller batches, which cost the Redis more, and with one alone everybody waits behind a large bulk. Measured
    /// with 64 callers: two cost within a tenth of what one costs and answer as fast or faster; four cost a fifth more
    /// and gain nothing.
    pub(super) publish_connections: [SharedConnection; 2],
    /// Publications that share script calls.
    pub(super) publishes: Caller<Plain, Published>,
    pub(super) consumes: SharedConnection,
    /// The pump, and what ends hand-overs, have connections of their own, so that nobody's reads delay them.
    pub(super) pumps: SharedConnection,
    pub(super) hand_overs: SharedConnection,
    /// For everything off the hot path.
    pub(super) shared: SharedConnection,
    pub(super) scripts: Scripts,
    pub(super) clock: RedisClock,
    pub(super) next_due: NextDue,
    pub(super) notifiers: Notifiers,
    pub(super) recorded_queues: RecordedQueues,
    pub(super) tries: TriesCache,
    pub(super) watch: Watch,
    pub(super) pauses: Pauses,
    pub(super) copies: Copies,
    /// Held by who finishes destroys of others.
    pub(super) finishing: Mutex<()>,
    /// Held by who looks for a job in a long dead letter, and when the next such look may begin.
    pub(super) far_looks: Mutex<Option<tokio::time::Instant>>,
    /// When a pump has begun that last, in microseconds.
    pub(super) looked_for_dropped: AtomicU64,
    pub(super) quotas: Counting,
    pub(super) tasks: Tasks,
    /// Those that keep the shared connections. They end after `tasks`, some of which need them until their end.
    pub(super) keepers: Tasks,
}

impl RedisCore {
    /// `Closed` once the engine is closing.
    pub(super) fn open(&self) -> Result<()> {
        if self.connections.closing.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }
}
