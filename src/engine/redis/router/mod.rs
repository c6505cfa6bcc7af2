//! Routes each call of the engine to the partitions that it concerns: by queue to its home, by id, by the hash of a key; what
//! concerns a spread queue, or the pool as a whole, to all of them. A single Redis has one partition, to which everything
//! goes as it is.
//!
//! - `publish`: which partition takes a publication, and publications that concern several.
//! - `consume`: rotates over the partitions of a spread queue.
//! - `jobs`: calls by id or by key.
//! - `lists`, `figures`: pages and sums over partitions.
//! - `pump`: which partitions are pumped, and by whom.
//! - `each`: one read of many partitions, in one round trip for each node.
//! - `scattered`: queues that the configuration does not spread any more.
//! - `samples`: what namespaces with a quota have, as far as this process knows.
//! - `quotas`: what is one step on a single Redis, and several in a cluster.

mod consume;
mod each;
mod figures;
mod jobs;
mod lists;
mod publish;
mod pump;
pub mod quotas;
mod samples;
pub mod scattered;

use std::sync::Arc;
use std::time::Duration;

use self::samples::Samples;
use super::cluster::map::Partition;
use super::core::PartitionCore;
use super::link::{Lane, Link};
use super::partitions::Partitions;
use super::pool::{Place, Pool};
use super::spread::Spreading;
use crate::clock::Millis;
use crate::engine::delay_in_id;
use crate::error::Unreachable;
use crate::job::{JobId, JobIds};
use crate::name::Queue;
use crate::random;

/// A pool, and all its partitions.
#[derive(Debug)]
pub struct Router {
    pub pool: Arc<Pool>,
    pub parts: Vec<Arc<PartitionCore>>,
    pub partitions: Arc<Partitions>,
    pub spreading: Arc<Spreading>,
    /// By which the lease of a pump says whose it is.
    server: String,
    samples: Samples,
}

impl Router {
    pub fn new(pool: Arc<Pool>, parts: Vec<Arc<PartitionCore>>, partitions: Arc<Partitions>) -> Router {
        Router {
            server: random::ulid().to_string(),
            samples: Samples::default(),
            spreading: pool.spreading.clone(),
            pool,
            parts,
            partitions,
        }
    }

    /// The only partition, on a single Redis.
    pub fn only(&self) -> Option<&Arc<PartitionCore>> {
        match &self.pool.place {
            Place::One(_) => self.parts.first(),
            Place::Cluster(_) => None,
        }
    }

    pub fn part(&self, partition: Partition) -> &Arc<PartitionCore> {
        &self.parts[usize::from(partition)]
    }

    /// The home of a queue.
    pub fn home(&self, queue: &Queue) -> &Arc<PartitionCore> {
        self.part(self.partitions.home(queue))
    }

    /// The partitions that may have jobs of a queue.
    pub fn parts_of(&self, queue: &Queue) -> &[Arc<PartitionCore>] {
        if self.spreading.is_everywhere(queue) {
            return &self.parts;
        }
        std::slice::from_ref(self.home(queue))
    }

    pub fn now(&self) -> Millis {
        self.pool.now_micros() / 1000
    }

    /// An id that names the partition in which the job is going to be.
    pub fn make_id(&self, ids: &JobIds, queue: &Queue, delay: Duration, versioned: bool) -> JobId {
        let delay = delay_in_id(delay);
        if self.only().is_some() {
            return ids.make(self.now(), delay, versioned);
        }
        let partition = if self.spreading.is_spread(queue) {
            self.spreading.turn(|partition| self.can_take(partition))
        } else {
            self.partitions.home(queue)
        };
        let now = self.part(partition).now();
        self.partitions.name(ids.make(now, delay, versioned), partition)
    }

    /// The partition of a job's id, and the home of its queue where that is another one: a job that came from another
    /// store, or was published before its queue was spread, may be there whatever its id names.
    pub fn parts_of_id(&self, queue: &Queue, id: &JobId) -> (Partition, Option<Partition>) {
        let home = self.partitions.home(queue);
        if !self.spreading.is_everywhere(queue) {
            return (home, None);
        }
        let named = self.partitions.of_id(id);
        (named, (named != home).then_some(home))
    }

    /// Has the ready lists of a queue watched.
    pub fn watch(&self, queue: &Queue) {
        let mut links: Vec<Arc<Link>> = Vec::new();
        for part in self.parts_of(queue) {
            let Some(link) = self.pool.place.link(part.partition) else { continue };
            if !links.iter().any(|known| Arc::ptr_eq(known, &link)) {
                link.watch.arm([queue.clone()]);
                links.push(link);
            }
        }
    }

    /// The node of a partition, if a call could be sent there now, without waiting.
    fn try_link(&self, partition: Partition, lane: Lane) -> Result<Arc<Link>, Unreachable> {
        match &self.pool.place {
            Place::One(link) => Ok(link.clone()),
            Place::Cluster(cluster) => cluster.try_link(partition, lane),
        }
    }

    /// Whether a partition can take a publish that another one could take too.
    fn can_take(&self, partition: Partition) -> bool {
        let Ok(link) = self.try_link(partition, Lane::Publish(0)) else { return false };
        let few = link.replicas.want() > 0 && link.replicas.are_few();
        !few && !self.pool.is_slow(&link)
    }
}
