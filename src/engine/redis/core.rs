//! One partition: its keys, and this process's state for it. The verbs are its methods. The [`Pool`] has the state
//! shared by all partitions.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use redis::{Cmd, FromRedisValue, Pipeline};
use tokio::sync::Mutex;

use super::batches::{Plain, RefusesLate};
use super::cluster::map::Partition;
use super::connection::fault::{Fault, Outcome};
use super::connection::shared::Field;
use super::copies::Copies;
use super::counting::Counting;
use super::layout::keys::Keys;
use super::layout::script_call::ScriptCall;
use super::layout::scripts::Script;
use super::link::Lane;
use super::pool::{Attempts, Pool};
use super::timer_counts::TimerCounts;
use crate::clock::{self, Micros, Millis};
use crate::engine::Published;
use crate::engine::batch::Caller;
use crate::job::JobRef;
use crate::name::Queue;

/// A partition of a pool.
#[derive(Debug)]
pub(crate) struct PartitionCore {
    pub(super) pool: Arc<Pool>,
    pub(super) partition: Partition,
    pub(super) keys: Keys,
    /// Publishes that share script calls. Their tasks start with the first publish; the same holds for the fields
    /// below.
    pub(super) publishes: OnceLock<Caller<Plain, Published>>,
    /// Like `publishes`, for publishes that can move to another partition.
    pub(super) movable: OnceLock<Caller<Plain, Published>>,
    /// Each reply is whether the job existed.
    pub(super) acks: OnceLock<Caller<JobRef, bool>>,
    pub(super) quotas: Counting,
    pub(super) timer_counts: TimerCounts,
    pub(super) copies: Copies,
    /// Held while finishing a destroy that another server started.
    pub(super) finishing: Mutex<()>,
    /// Held while searching a long dead letter for a job; contains the time before which no such search may begin.
    pub(super) far_looks: Mutex<Option<tokio::time::Instant>>,
    /// Time when the next pump unpacks packed jobs, in microseconds; also looks for those of other servers.
    pub(super) unpack_at: AtomicU64,
    /// Time of the last search for unfinished destroys, in microseconds.
    pub(super) looked_for_dropped: AtomicU64,
}

impl Deref for PartitionCore {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

impl RefusesLate for PartitionCore {
    fn too_late(&self) -> Fault {
        self.place.too_late(self.partition)
    }
}

impl PartitionCore {
    pub fn new(pool: Arc<Pool>, partition: Partition, base: &str) -> PartitionCore {
        PartitionCore {
            pool,
            partition,
            keys: Keys::new(base),
            publishes: OnceLock::new(),
            movable: OnceLock::new(),
            acks: OnceLock::new(),
            quotas: Counting::default(),
            timer_counts: TimerCounts::default(),
            copies: Copies::default(),
            finishing: Mutex::default(),
            far_looks: Mutex::default(),
            unpack_at: AtomicU64::default(),
            looked_for_dropped: AtomicU64::default(),
        }
    }

    /// Returns a call of a script, without keys and arguments.
    pub fn call(&self, script: &Script) -> ScriptCall {
        script.call_in(self.keys.base())
    }

    /// Returns the attempts to execute a call.
    pub fn attempts(&self, lane: Lane) -> Attempts<'_> {
        self.attempts_if(true, lane)
    }

    /// Like `attempts`. Waits for a node only if `waits`; otherwise the call can go to another partition.
    pub fn attempts_if(&self, waits: bool, lane: Lane) -> Attempts<'_> {
        self.place.attempts_if(waits, self.partition, lane)
    }

    /// Runs a call.
    pub async fn run<T: FromRedisValue>(&self, lane: Lane, call: &ScriptCall) -> Outcome<T> {
        self.pool.run(self.partition, lane, call).await
    }

    /// Runs a command that is safe to execute twice.
    pub async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Outcome<T> {
        self.query_if(true, cmd).await
    }

    /// Like `query`. Waits for a node only if `waits`.
    pub async fn query_if<T: FromRedisValue>(&self, waits: bool, cmd: &Cmd) -> Outcome<T> {
        self.pool.query(waits, self.partition, Lane::Other, cmd).await
    }

    /// Runs several such commands in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, asked: &Pipeline) -> Outcome<T> {
        self.pool.query_all(self.partition, asked).await
    }

    /// Reads a whole hash in steps, so that Redis serves others in between. A field that changes meanwhile may occur
    /// twice.
    pub async fn scan(
        &self,
        lane: Lane,
        key: &str,
        mut each: impl FnMut(Vec<u8>, Vec<u8>) + Send,
    ) -> Outcome<()> {
        let mut cursor = 0;
        loop {
            let (next, fields) = self.pool.scan_step(self.partition, lane, key, cursor).await?;
            fields.into_iter().for_each(|(field, value)| each(field, value));
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Runs one step of a scan. Returns the cursor of the next step and the fields; the scan starts and ends with
    /// cursor 0.
    pub async fn scan_step(&self, key: &str, cursor: u64) -> Outcome<(u64, Vec<Field>)> {
        self.pool.scan_step(self.partition, Lane::Other, key, cursor).await
    }

    /// Records that this process stored a job due at `due`.
    pub fn stored(&self, due: Micros) {
        self.pool.stored(self.partition, due);
    }

    /// Records that this process stored a job that may be packed.
    pub fn stored_packed(&self, due: Micros, now: Micros) {
        let unpack_at = due.saturating_sub(clock::micros(self.unpack_before())).max(now);
        self.unpack_at.fetch_min(unpack_at, Ordering::Relaxed);
        self.stored(unpack_at);
    }

    /// Notifies waiters that the queue may have ready jobs in this partition.
    pub fn tell_ready(&self, queue: &Queue) {
        self.spreading.notify(queue, self.partition);
        self.common.notifiers.notify(queue);
    }

    /// Returns the time of the partition's clock.
    pub fn now_micros(&self) -> Micros {
        self.pool.now_in(self.partition)
    }

    pub fn now(&self) -> Millis {
        self.now_micros() / 1000
    }

    /// Corrects the partition's clock: the reply to a call sent at `sent` contained the time `now`.
    pub fn learn(&self, sent: Instant, now: Micros) {
        self.pool.learn(self.partition, sent, now);
    }
}
