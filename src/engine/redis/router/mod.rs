//! Routes each call of the engine to partitions: a queue's calls to its home partition; calls by id or key of a spread
//! queue to the partition named by the id or by the key's hash; other calls about a spread queue, or about the whole
//! pool, to all partitions. A single Redis has one partition, which gets every call unchanged.
//!
//! - `publish`: chooses the partition of a publication, and splits publications that concern several.
//! - `consume`: rotates over the partitions of a spread queue.
//! - `jobs`: calls by id or by key.
//! - `lists`, `statistics`: pages and sums over partitions.
//! - `pump`: decides which partitions this server pumps.
//! - `each`: reads many partitions, with one round trip per node.
//! - `scattered`: queues that are no longer spread by configuration.
//! - `samples`: usage of namespaces with a quota, as far as this process knows.
//! - `quotas`: one step on a single Redis, and several in a cluster.

mod consume;
mod each;
mod jobs;
mod lists;
mod publish;
mod pump;
pub mod quotas;
mod samples;
pub mod scattered;
mod statistics;

use std::sync::Arc;
use std::time::Duration;

use self::samples::Samples;
use super::cluster::map::Partition;
use super::core::PartitionCore;
use super::link::{Lane, Link};
use super::packing::Buckets;
use super::partitions::Partitions;
use super::pool::{Place, Pool};
use super::spread::Spreading;
use crate::clock::Millis;
use crate::engine::delay_in_id;
use crate::error::{Error, Result, Unreachable};
use crate::job::{JobId, JobIds};
use crate::name::Queue;
use crate::random;

/// A pool and all its partitions.
#[derive(Debug)]
pub struct Router {
    pub pool: Arc<Pool>,
    pub parts: Vec<Arc<PartitionCore>>,
    pub partitions: Arc<Partitions>,
    pub spreading: Arc<Spreading>,
    /// Identifies this server in the leases of pumps.
    server: String,
    samples: Samples,
    buckets: Buckets,
}

impl Router {
    pub fn new(pool: Arc<Pool>, parts: Vec<Arc<PartitionCore>>, partitions: Arc<Partitions>) -> Router {
        Router {
            server: random::ulid().to_string(),
            samples: Samples::default(),
            buckets: Buckets::default(),
            spreading: pool.spreading.clone(),
            pool,
            parts,
            partitions,
        }
    }

    /// Returns the only partition of a single Redis.
    pub fn only(&self) -> Option<&Arc<PartitionCore>> {
        match &self.pool.place {
            Place::One(_) => self.parts.first(),
            Place::Cluster(_) => None,
        }
    }

    pub fn part(&self, partition: Partition) -> &Arc<PartitionCore> {
        &self.parts[usize::from(partition)]
    }

    /// Returns the home partition of a queue.
    pub fn home(&self, queue: &Queue) -> &Arc<PartitionCore> {
        self.part(self.partitions.home(queue))
    }

    /// Returns the partitions that may have jobs of a queue.
    pub fn parts_of(&self, queue: &Queue) -> &[Arc<PartitionCore>] {
        if self.spreading.is_everywhere(queue) {
            return &self.parts;
        }
        std::slice::from_ref(self.home(queue))
    }

    pub fn now(&self) -> Millis {
        self.pool.now_micros() / 1000
    }

    /// Fails if a partition has pauses, schedules or quotas that this version would ignore. Passes over unavailable
    /// partitions, without which a server starts.
    pub async fn refuse_earlier(&self) -> Result<()> {
        let parts: Vec<Partition> = self.partitions.all().collect();
        let exist = |part: &PartitionCore| redis::Cmd::exists(&part.keys.before_settings()[..]);
        for (partition, exist) in self.read_each::<u64>(&parts, true, exist).await {
            if exist.is_ok_and(|exist| exist > 0) {
                return Err(Error::refused(format!(
                    "the Redis has pauses, schedules or quotas of a version before the first release: end them with \
                     that version, or delete the keys {} (of each partition)",
                    self.part(partition).keys.before_settings().join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Returns a new id, which names the partition that is expected to store the job, and its bucket if the job may be
    /// packed.
    pub fn make_id(&self, ids: &JobIds, queue: &Queue, delay: Duration, versioned: bool) -> JobId {
        let packs = self.pool.packs(delay);
        let delay = delay_in_id(delay);
        if self.only().is_some() {
            let id = ids.make(self.now(), delay, versioned);
            return if packs { self.buckets.mark(id, 0, queue) } else { id };
        }
        let partition = if self.spreading.is_spread(queue) {
            self.spreading.turn(|partition| self.can_take(partition))
        } else {
            self.partitions.home(queue)
        };
        let now = self.part(partition).now();
        let id = self.partitions.name(ids.make(now, delay, versioned), partition);
        if packs { self.buckets.mark(id, partition, queue) } else { id }
    }

    /// Returns where a job probably is, and the other partition where it may be: the one named by its id, and the
    /// queue's home. A job that came from another store, or was published before its queue was spread, may be in the
    /// home partition; one of a queue that another server still spreads is in the one named by its id.
    pub fn parts_of_id(&self, queue: &Queue, id: &JobId) -> (Partition, Option<Partition>) {
        let (home, named) = (self.partitions.home(queue), self.partitions.of_id(id));
        let (first, second) = if self.spreading.is_everywhere(queue) { (named, home) } else { (home, named) };
        (first, (second != first).then_some(second))
    }

    /// Whether a job can only be in its queue's home partition.
    pub fn is_at_home(&self, queue: &Queue, id: &JobId) -> bool {
        self.partitions.of_id(id) == self.partitions.home(queue)
    }

    /// Starts to watch the ready lists of a queue.
    pub fn watch(&self, queue: &Queue) {
        if self.spreading.is_everywhere(queue) {
            self.spreading.hints(queue).lock().mark_unread();
        }
        let mut links: Vec<Arc<Link>> = Vec::new();
        for part in self.parts_of(queue) {
            let Some(link) = self.pool.place.link(part.partition) else { continue };
            if !links.iter().any(|known| Arc::ptr_eq(known, &link)) {
                link.watch.arm([queue.clone()]);
                links.push(link);
            }
        }
    }

    /// Returns the node of a partition, if a call can be sent to it now.
    fn try_link(&self, partition: Partition, lane: Lane) -> Result<Arc<Link>, Unreachable> {
        match &self.pool.place {
            Place::One(link) => Ok(link.clone()),
            Place::Cluster(cluster) => cluster.try_link(partition, lane),
        }
    }

    /// Whether a partition can take a publish that other partitions could take too.
    fn can_take(&self, partition: Partition) -> bool {
        let Ok(link) = self.try_link(partition, Lane::Publish(0)) else { return false };
        let few = link.replicas.want() > 0 && link.replicas.are_few();
        !few && !self.pool.is_slow(&link)
    }
}
