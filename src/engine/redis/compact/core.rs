//! What the engine in the compact layout, its verbs and its tasks have in common, and the one door through which calls
//! go to a partition.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, RwLock};
use redis::{Cmd, FromRedisValue, Pipeline};
use tokio::time::sleep;

use super::buckets::{Buckets, near_from};
use super::dues::Dues;
use super::keys;
use super::partitions::{Partition, Partitions};
use super::place::place_of;
use super::scripts::Scripts;
use super::steps::{Addressed, Told};
use crate::clock::Millis;
use crate::engine::batch::Caller;
use crate::engine::redis::batches::Plain;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::connection::shared::SharedConnection;
use crate::engine::redis::layout::scripts::Script;
use crate::engine::redis::link::Link;
use crate::engine::{Published, Quotas};
use crate::job::{JobId, JobRef};
use crate::name::{Namespace, Queue};

/// What a call is for: each kind has connections of its own, so that none holds up the others.
#[derive(Clone, Copy, Debug)]
pub enum Lane {
    Consume,
    Pump,
    /// What publishes, by this one of those that do.
    Publish(usize),
    /// What ends hand-overs.
    HandOver,
    /// Everything off the hot path.
    Other,
}

/// What the engine and its tasks have in common.
#[derive(Debug)]
pub struct CompactCore {
    pub link: Arc<Link>,
    pub scripts: Scripts,
    pub partitions: Arc<Partitions>,
    pub buckets: Buckets,
    /// Publications that share script calls.
    pub publishes: Caller<Plain, Published>,
    pub acks: Caller<JobRef, ()>,
    pub dues: Dues,
    /// Steps of schedules that share script calls.
    pub steps: Caller<Addressed, Told>,
    /// There is a schedule in this pool, or was one.
    pub has_schedules: AtomicBool,
    /// When consumers of a paused queue are to look again.
    pub pauses_end: Mutex<HashMap<Queue, Millis>>,
    pub quotas: RwLock<Quotas>,
    /// One change of quotas at a time.
    pub setting_quotas: tokio::sync::Mutex<()>,
}

impl Deref for CompactCore {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl CompactCore {
    /// The connection over which calls of a kind go to a partition.
    fn connection_to(&self, _partition: Partition, lane: Lane) -> &SharedConnection {
        match lane {
            Lane::Consume => &self.link.consumes,
            Lane::Pump => &self.link.pumps,
            Lane::Publish(own) => &self.link.publish_connections[own % 2],
            Lane::HandOver => &self.link.hand_overs,
            Lane::Other => &self.link.shared,
        }
    }

    /// The same, for who keeps it for the length of a call that is listened to.
    pub fn lane(&self, partition: Partition, lane: Lane) -> &SharedConnection {
        self.connection_to(partition, lane)
    }

    /// The beginning of a call of a script, with its one key. Arguments follow.
    pub fn call(&self, script: &Script, partition: Partition) -> Cmd {
        let mut cmd = script.call(1);
        cmd.arg(keys::guard(self.partitions.base(partition)));
        cmd
    }

    /// Runs it.
    pub async fn ask<T: FromRedisValue>(
        &self,
        partition: Partition,
        lane: Lane,
        script: &Script,
        call: Cmd,
    ) -> Outcome<T> {
        self.run(self.connection_to(partition, lane), script, call).await
    }

    /// A command that changes nothing.
    pub async fn query<T: FromRedisValue>(&self, partition: Partition, cmd: &Cmd) -> Outcome<T> {
        self.connection_to(partition, Lane::Other).query(cmd).await
    }

    /// Several of them in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, partition: Partition, asked: &Pipeline) -> Outcome<T> {
        self.connection_to(partition, Lane::Other).query_all(asked).await
    }

    /// Where a job of this queue is looked for: at home, whatever partition its id names.
    pub fn partition_of(&self, queue: &Queue) -> Partition {
        self.partitions.home(queue)
    }

    /// A job's partition, and its place there.
    pub fn find(&self, queue: &Queue, id: &JobId) -> (Partition, Vec<u8>) {
        let partition = self.partition_of(queue);
        (partition, place_of(partition, id))
    }

    /// From when on a job is near that is due after this delay.
    pub fn near_after(&self, delay: Duration) -> Millis {
        let now = self.clock.now();
        near_from(now, now.saturating_add(delay.as_millis() as Millis))
    }

    /// Whether what this namespace has is counted.
    pub fn is_counted(&self, namespace: &Namespace) -> bool {
        self.quotas.read().contains_key(namespace)
    }

    /// Has its notifiers told when a pause ends by itself.
    pub fn notify_at(self: &Arc<Self>, queue: &Queue, until: Millis) {
        if self.pauses_end.lock().insert(queue.clone(), until) == Some(until) {
            return;
        }
        let (core, queue) = (self.clone(), queue.clone());
        self.tasks.spawn(async move {
            let end = async {
                let left = (until + 1).saturating_sub(core.clock.now());
                sleep(Duration::from_millis(left)).await;
                let mut all = core.pauses_end.lock();
                if all.get(&queue) == Some(&until) {
                    all.remove(&queue);
                }
                drop(all);
                core.notifiers.notify(&queue);
            };
            core.connections.closing.run_until_cancelled(end).await;
        });
    }
}
