//! What the engine in the compact layout, its verbs and its tasks have in common, and the one door through which calls
//! go to a partition.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ahash::HashMap;
use parking_lot::{Mutex, RwLock};
use redis::{Cmd, FromRedisValue, Pipeline};
use tokio::time::sleep;

use super::buckets::{Buckets, near_from};
use super::callers::{Callers, Movable};
use super::dues::Dues;
use super::keys;
use super::partitions::{Partition, Partitions};
use super::scripts::Scripts;
use super::spread::Spreading;
use super::steps::{Addressed, Told};
use crate::clock::{Micros, Millis};
use crate::engine::redis::batches::Plain;
use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::layout::scripts::Script;
pub use crate::engine::redis::link::Lane;
use crate::engine::redis::link::{Common, Link};
pub use crate::engine::redis::pool::{Attempts, Place};
use crate::engine::{Published, Quotas};
use crate::error::{Result, Unreachable};
use crate::job::JobRef;
use crate::name::{Namespace, Queue};
use crate::process::tasks::Tasks;

/// The end of a pause is waited for from so many milliseconds before it on.
const LOOKED_AGAIN: Millis = 3000;

/// What the engine and its tasks have in common.
#[derive(Debug)]
pub struct CompactCore {
    pub common: Common,
    pub place: Place,
    pub tasks: Tasks,
    pub scripts: Scripts,
    pub partitions: Arc<Partitions>,
    pub buckets: Buckets,
    /// Publications that share script calls.
    pub publishes: Callers<Plain, Published>,
    /// The same of queues that are spread: another partition takes what one cannot take now.
    pub spread_publishes: Callers<Movable, Published>,
    pub spreading: Arc<Spreading>,
    /// Batches of these that are not answered: to which Redis, and since when.
    pub owed: Mutex<Vec<(usize, Instant)>>,
    pub acks: Callers<JobRef, ()>,
    pub dues: Dues,
    /// By which the lease of a pump says whose it is.
    pub server: [u8; 8],
    /// Steps of schedules that share script calls.
    pub steps: Callers<Addressed, Told>,
    /// There is a schedule in this pool, or was one.
    pub has_schedules: AtomicBool,
    /// When consumers of a paused queue are to look again.
    pub pauses_end: Mutex<HashMap<Queue, Millis>>,
    pub quotas: RwLock<Quotas>,
    /// One change of quotas at a time.
    pub setting_quotas: tokio::sync::Mutex<()>,
}

impl CompactCore {
    /// A call that is about to be sent to a partition's Redis. In a cluster it is made again as long as no node has begun
    /// it.
    pub fn attempts(&self, partition: Partition, lane: Lane) -> Attempts<'_> {
        match &self.place {
            Place::One(link) => Attempts::One(link),
            Place::Cluster(cluster) => Attempts::Cluster(cluster.attempts(partition, lane)),
        }
    }

    /// The same if the call waits. Else another partition takes it when this one cannot.
    pub fn attempts_if(&self, waits: bool, partition: Partition, lane: Lane) -> Attempts<'_> {
        match &self.place {
            Place::Cluster(cluster) if !waits => Attempts::Cluster(cluster.attempt_now(partition, lane)),
            _ => self.attempts(partition, lane),
        }
    }

    /// Waits until a partition can be used, for calls that wait for others then.
    pub async fn ready(&self, partition: Partition, lane: Lane) -> Outcome<()> {
        match &self.place {
            Place::One(_) => Ok(()),
            Place::Cluster(cluster) => cluster.ready(partition, lane).await,
        }
    }

    /// A partition's Redis, if it can be used now.
    pub fn try_link(&self, partition: Partition, lane: Lane) -> Result<Arc<Link>, Unreachable> {
        match &self.place {
            Place::One(link) => Ok(link.clone()),
            Place::Cluster(cluster) => cluster.try_link(partition, lane),
        }
    }

    /// A partition's Redis as it was last, for its clock and its watch.
    pub fn link(&self, partition: Partition) -> Option<Arc<Link>> {
        match &self.place {
            Place::One(link) => Some(link.clone()),
            Place::Cluster(cluster) => cluster.link(partition),
        }
    }

    /// The pool's clock: that of the first partition's Redis, so that all servers agree.
    pub fn now_micros(&self) -> Micros {
        let first = self.partitions.all().find_map(|partition| self.link(partition));
        first.map_or(0, |link| link.clock.now_micros())
    }

    pub fn now(&self) -> Millis {
        self.now_micros() / 1000
    }

    /// The clock of a partition, by which all of it is due.
    pub fn now_in(&self, partition: Partition) -> Millis {
        self.link(partition).map_or_else(|| self.now(), |link| link.clock.now())
    }

    /// A job was stored there that is due then, by the partition's clock.
    pub fn stored(&self, partition: Partition, due: Micros) {
        self.dues.stored(partition, self.in_pool_time(partition, due), self.now_micros());
    }

    /// A time of a partition's clock by the pool's.
    pub fn in_pool_time(&self, partition: Partition, at: Micros) -> Micros {
        match (&self.place, self.link(partition)) {
            (Place::Cluster(_), Some(link)) => {
                (at + self.now_micros()).saturating_sub(link.clock.now_micros())
            }
            _ => at,
        }
    }

    /// The beginning of a call of a script, with its one key. Arguments follow.
    pub fn call(&self, script: &Script, partition: Partition) -> Cmd {
        let mut cmd = script.call(1);
        cmd.arg(keys::guard(self.partitions.base(partition)));
        cmd
    }

    /// A call that is about to be sent. In a cluster it may have to be sent again.
    pub fn for_sending(&self, call: &mut Cmd) -> Cmd {
        match &self.place {
            Place::One(_) => std::mem::take(call),
            Place::Cluster(_) => call.clone(),
        }
    }

    /// The Redis of a partition said when it was, to a call that was sent then.
    pub fn learn(&self, partition: Partition, sent: Instant, now: Micros) {
        if let Some(link) = self.link(partition) {
            link.clock.learn(sent, now);
        }
    }

    /// Runs it.
    pub async fn ask<T: FromRedisValue>(
        &self,
        partition: Partition,
        lane: Lane,
        script: &Script,
        call: Cmd,
    ) -> Outcome<T> {
        self.ask_with(self.attempts(partition, lane), lane, script, call).await
    }

    /// Runs it, in these attempts.
    pub async fn ask_with<T: FromRedisValue>(
        &self,
        attempts: Attempts<'_>,
        lane: Lane,
        script: &Script,
        mut call: Cmd,
    ) -> Outcome<T> {
        ask!(attempts, |link| link.run(link.lane(lane), script, self.for_sending(&mut call)))
    }

    /// A command that may be carried out twice.
    pub async fn query<T: FromRedisValue>(&self, partition: Partition, cmd: &Cmd) -> Outcome<T> {
        self.query_if(true, partition, cmd).await
    }

    /// The same, of which another partition is asked if it does not wait.
    pub async fn query_if<T: FromRedisValue>(
        &self,
        waits: bool,
        partition: Partition,
        cmd: &Cmd,
    ) -> Outcome<T> {
        ask!(self.attempts_if(waits, partition, Lane::Other), |link| link.shared.query(cmd))
    }

    /// Several of them in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, partition: Partition, asked: &Pipeline) -> Outcome<T> {
        ask!(self.attempts(partition, Lane::Other), |link| link.shared.query_all(asked))
    }

    /// The home of a queue. A gathered one has all its jobs there.
    pub fn partition_of(&self, queue: &Queue) -> Partition {
        self.partitions.home(queue)
    }

    /// From when on a job is near there that is due after this delay.
    pub fn near_after(&self, partition: Partition, delay: Duration) -> Millis {
        let now = self.now_in(partition);
        near_from(now, now.saturating_add(delay.as_millis() as Millis))
    }

    /// Whether what this namespace has is counted.
    pub fn is_counted(&self, namespace: &Namespace) -> bool {
        self.quotas.read().contains_key(namespace)
    }

    /// Tells consumers of a job that is ready there since then.
    pub fn tell_ready(&self, partition: Partition, queue: &Queue, since: Micros) {
        if let Some(spread) = self.spreading.get(queue) {
            spread.heads.lock().ready(partition, since);
        }
        self.common.notifiers.notify(queue);
    }

    /// The same of a job that was ready before, or was due a moment ago: since when is not known.
    pub fn tell_ready_again(&self, partition: Partition, queue: &Queue) {
        if let Some(spread) = self.spreading.get(queue) {
            spread.heads.lock().unsure(partition);
        }
        self.common.notifiers.notify(queue);
    }

    /// There may be jobs of a queue wherever it lies, of any age.
    pub fn look_again(&self, queue: &Queue) {
        if let Some(spread) = self.spreading.get(queue) {
            spread.heads.lock().forget();
        }
        self.common.notifiers.notify(queue);
    }

    /// Has its notifiers told when a pause ends by itself. One that lasts for longer is told of again: who waits looks at
    /// what is ready once a second. So nobody keeps a task here for as long as a pause may last.
    pub fn notify_at(self: &Arc<Self>, queue: &Queue, until: Millis) {
        let left = until.saturating_sub(self.now_in(self.partition_of(queue)));
        if left > LOOKED_AGAIN || self.pauses_end.lock().insert(queue.clone(), until) == Some(until) {
            return;
        }
        let (core, queue) = (self.clone(), queue.clone());
        self.tasks.spawn(async move {
            let end = async {
                let left = (until + 1).saturating_sub(core.now_in(core.partition_of(&queue)));
                sleep(Duration::from_millis(left)).await;
                let mut all = core.pauses_end.lock();
                if all.get(&queue) == Some(&until) {
                    all.remove(&queue);
                }
                drop(all);
                core.look_again(&queue);
            };
            core.tasks.stopping().run_until_cancelled(end).await;
        });
    }
}
