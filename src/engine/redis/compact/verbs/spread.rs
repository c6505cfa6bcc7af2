//! Queues that are spread over all partitions: how that begins, how a server learns of it, and where what is asked for lies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue, RedisResult};

use super::super::core::{CompactCore, Lane, Place};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::place_of;
use super::super::spread::{SpreadQueue, UnderWay};
use super::queues::{StoredFigures, ask_figures, since, spread_since};
use crate::clock::{Micros, Millis};
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::link::Link;
use crate::engine::{Beside, NewId, REMEMBERED, together};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::name::{IdempotencyKey, JobKey, Queue};

/// A Redis that has owed an answer to a publish for so long gets no more of those that others can take.
pub const SLOW: Duration = Duration::from_millis(500);

impl CompactCore {
    /// The partition that a new job is made for.
    pub fn partition_for(&self, of: &NewId<'_>) -> Partition {
        let home = self.partition_of(of.queue);
        if matches!(of.beside, Beside::Schedule) || !self.spreading.is_for_all(of.queue) {
            return home;
        }
        match of.beside {
            Beside::Nobody => self.spreading.turn(|partition| self.can_take(partition)),
            Beside::Job(id) => self.partitions.of_id(&id),
            Beside::Key(key) => self.partitions.of_key(of.queue, key),
            Beside::Request(key) => self.partitions.of_request(of.queue, key),
            Beside::Schedule => home,
        }
    }

    /// Whether a queue is spread: who does not know it asks home.
    pub async fn is_spread(&self, queue: &Queue) -> Outcome<Option<Arc<SpreadQueue>>> {
        let known = self.spreading.get(queue);
        if known.is_some() || self.partitions.count() == 1 {
            return Ok(known);
        }
        let home = self.partition_of(queue);
        let record: StoredFigures = self.query(home, &ask_figures(self.partitions.base(home), queue)).await?;
        if let Some(since) = spread_since(&record) {
            self.learn_spread(queue, since);
        }
        Ok(self.spreading.get(queue))
    }

    /// The partition in which a job of this id lies if it is not at home: home itself, if the queue is gathered. An id of
    /// another store, and that which an earlier version has given the job of a schedule, names any partition: who asks that
    /// one would wait for a node that has nothing of the queue.
    pub async fn partition_named(&self, queue: &Queue, id: &JobId) -> Outcome<Partition> {
        let named = self.partitions_named(queue, [id]).await?;
        Ok(named.first().copied().unwrap_or_else(|| self.partition_of(queue)))
    }

    /// The same of each of these.
    pub async fn partitions_named(
        &self,
        queue: &Queue,
        ids: impl IntoIterator<Item = &JobId>,
    ) -> Outcome<Vec<Partition>> {
        let home = self.partition_of(queue);
        let mut named: Vec<Partition> = ids.into_iter().map(|id| self.partitions.of_id(id)).collect();
        if named.iter().any(|partition| *partition != home) && self.is_spread(queue).await?.is_none() {
            named.fill(home);
        }
        Ok(named)
    }

    /// Where a job of this id may lie, and its place there.
    pub async fn find(&self, queue: &Queue, id: &JobId) -> Outcome<Vec<(Partition, Vec<u8>)>> {
        let (named, home) = (self.partition_named(queue, id).await?, self.partition_of(queue));
        let others = (named != home).then_some(home);
        Ok([named].into_iter().chain(others).map(|partition| (partition, place_of(partition, id))).collect())
    }

    /// Spreads a queue, for good.
    pub async fn spread(&self, queue: &Queue) -> Result<()> {
        let home = self.partition_of(queue);
        let is_counted = self.is_counted(&queue.namespace);
        // It may be a new one.
        if is_counted {
            self.take_room(&queue.namespace, [0, 0, 1]).await?;
        }
        let mut cmd = self.call(&self.scripts.spread, home);
        cmd.arg(keys::name(queue));
        let spread: Outcome<(Millis, u8)> = self.ask(home, Lane::Other, &self.scripts.spread, cmd).await;
        if is_counted && !matches!(spread, Ok((_, 1))) {
            self.give_room(&queue.namespace, [0, 0, 1]).await;
        }
        // The connection goes before who has called is through: nothing was published yet.
        if spread.is_err() && self.tasks.stopping().is_cancelled() {
            return Err(Error::Closed);
        }
        self.learn_spread(queue, spread?.0);
        Ok(())
    }

    /// A queue is spread since then. Who waits for it looks everywhere.
    pub fn learn_spread(&self, queue: &Queue, since: Millis) {
        if self.spreading.learn(queue, since) && self.common.notifiers.waits_for(queue) {
            self.arm(queue);
            self.common.notifiers.notify(queue);
        }
    }

    /// So many queues are spread that are at home in this partition: asks which, if that is news.
    pub fn look_for_spread(self: &Arc<Self>, partition: Partition, count: u64) {
        if !self.spreading.is_news(partition, count) {
            return;
        }
        let core = self.clone();
        self.tasks.spawn(async move {
            let key = keys::spread(core.partitions.base(partition));
            let all: Outcome<Vec<(Vec<u8>, Millis)>> =
                core.query(partition, redis::cmd("HGETALL").arg(key)).await;
            // Without an answer the next pump tries again.
            let Ok(all) = all else { return };
            for (name, since) in &all {
                if let Some(queue) = crate::engine::redis::layout::keys::queue_of_group(name) {
                    core.learn_spread(&queue, *since);
                }
            }
            core.spreading.was_asked(partition, count);
        });
    }

    /// Has the ready lists of a queue watched.
    pub fn arm(&self, queue: &Queue) {
        let parts = match self.spreading.get(queue) {
            Some(_) => self.partitions.all(),
            None => {
                let home = self.partition_of(queue);
                home..home + 1
            }
        };
        let mut links: Vec<Arc<Link>> = Vec::new();
        for link in parts.filter_map(|partition| self.link(partition)) {
            if !links.iter().any(|known| Arc::ptr_eq(known, &link)) {
                link.watch.arm([queue.clone()]);
                links.push(link);
            }
        }
    }

    /// The partitions that have jobs of a queue.
    pub async fn parts_of(&self, queue: &Queue) -> Outcome<Vec<Partition>> {
        match self.is_spread(queue).await? {
            Some(_) => Ok(self.partitions.all().collect()),
            None => Ok(vec![self.partition_of(queue)]),
        }
    }

    /// Those in which a job with this key may lie: what was stored while the queue was gathered, and what a schedule has
    /// stored, is at home.
    pub async fn parts_of_key(&self, queue: &Queue, key: &JobKey) -> Outcome<Vec<Partition>> {
        let mut parts = vec![self.partition_of(queue)];
        if self.is_spread(queue).await?.is_some() {
            parts.push(self.partitions.of_key(queue, key));
            parts.dedup();
        }
        Ok(parts)
    }

    /// Those that may remember what became of a publish that is safe to repeat.
    pub async fn parts_of_request(&self, queue: &Queue, key: &IdempotencyKey) -> Outcome<Vec<Partition>> {
        let home = self.partition_of(queue);
        let Some(spread) = self.is_spread(queue).await? else { return Ok(vec![home]) };
        let mut parts = vec![self.partitions.of_request(queue, key)];
        if self.is_fresh(&spread) && !parts.contains(&home) {
            parts.push(home);
        }
        Ok(parts)
    }

    /// Whether home may remember publishes of when it had all jobs of the queue.
    pub fn is_fresh(&self, spread: &SpreadQueue) -> bool {
        spread.since > 1 && self.now() < spread.since + REMEMBERED.as_millis() as Millis
    }

    /// Since when the first entry of the ready list of each of these partitions is there.
    pub async fn ready_heads(
        &self,
        queue: &Queue,
        parts: &[Partition],
    ) -> Vec<(Partition, Outcome<Option<Micros>>)> {
        heads_of(self.query_each(parts, |partition| self.ask_head(partition, queue)).await)
    }

    /// The same, without waiting for those that cannot be asked now.
    pub async fn ready_heads_now(
        &self,
        queue: &Queue,
        parts: &[Partition],
    ) -> Vec<(Partition, Outcome<Option<Micros>>)> {
        heads_of(self.query_each_in(parts, |partition| self.ask_head(partition, queue), false).await)
    }

    fn ask_head(&self, partition: Partition, queue: &Queue) -> Cmd {
        let mut cmd = redis::cmd("LINDEX");
        cmd.arg(keys::ready(self.partitions.base(partition), queue)).arg(0);
        cmd
    }

    /// A read of each of these partitions: those of one node in one round trip, nodes at the same time.
    pub async fn query_each<T: FromRedisValue>(
        &self,
        parts: &[Partition],
        ask: impl Fn(Partition) -> Cmd,
    ) -> Vec<(Partition, Outcome<T>)> {
        self.query_each_in(parts, ask, true).await
    }

    async fn query_each_in<T: FromRedisValue>(
        &self,
        parts: &[Partition],
        ask: impl Fn(Partition) -> Cmd,
        waits: bool,
    ) -> Vec<(Partition, Outcome<T>)> {
        let mut by_link: Vec<(Arc<Link>, Vec<Partition>)> = Vec::new();
        let mut left: Vec<Partition> = Vec::new();
        for partition in parts {
            match self.try_link(*partition, Lane::Other) {
                Ok(link) => match by_link.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &link)) {
                    Some((_, parts)) => parts.push(*partition),
                    None => by_link.push((link, vec![*partition])),
                },
                Err(_) => left.push(*partition),
            }
        }
        let asked = together::all(by_link.iter().map(async |(link, parts)| {
            let mut each = redis::pipe();
            parts.iter().for_each(|partition| _ = each.add_command(ask(*partition)));
            each.ignore_errors();
            let told: Outcome<Vec<RedisResult<T>>> = link.shared.query_all(&each).await;
            told
        }));
        let mut all = Vec::with_capacity(parts.len());
        for ((_, parts), told) in by_link.iter().zip(asked.await) {
            match told {
                Ok(told) if told.len() == parts.len() => {
                    for (partition, told) in parts.iter().zip(told) {
                        match told {
                            Ok(told) => all.push((*partition, Ok(told))),
                            // It may have moved: this one finds its way.
                            Err(_) => left.push(*partition),
                        }
                    }
                }
                _ => left.extend(parts),
            }
        }
        let singly = left
            .into_iter()
            .map(async |partition| (partition, self.query_if(waits, partition, &ask(partition)).await));
        all.extend(together::all(singly).await);
        all.sort_unstable_by_key(|(partition, _)| *partition);
        all
    }

    /// A batch of so many jobs that others could take too goes to this partition, and is under way until this is dropped.
    pub fn takes(&self, partition: Partition, jobs: usize) -> UnderWay<'_> {
        self.spreading.taken(partition, jobs, |partition| self.can_take(partition))
    }

    /// Whether a partition can take a batch of what others can take too.
    pub fn can_take(&self, partition: Partition) -> bool {
        if let Place::One(_) = &self.place {
            return true;
        }
        let Ok(link) = self.try_link(partition, Lane::Publish(0)) else { return false };
        let few = link.replicas.want() > 0 && link.replicas.are_few();
        !few && !self.is_slow(&link)
    }

    fn is_slow(&self, link: &Arc<Link>) -> bool {
        let link = Arc::as_ptr(link) as usize;
        self.owed.lock().iter().any(|(owes, since)| *owes == link && since.elapsed() >= SLOW)
    }

    /// A batch is on its way to this Redis until this is dropped.
    pub fn owes(&self, link: &Arc<Link>) -> impl Drop + use<'_> {
        let entry = (Arc::as_ptr(link) as usize, Instant::now());
        self.owed.lock().push(entry);
        Owes { core: self, entry }
    }
}

struct Owes<'a> {
    core: &'a CompactCore,
    entry: (usize, Instant),
}

impl Drop for Owes<'_> {
    fn drop(&mut self) {
        let mut owed = self.core.owed.lock();
        if let Some(at) = owed.iter().position(|entry| *entry == self.entry) {
            owed.swap_remove(at);
        }
    }
}

fn heads_of(
    entries: Vec<(Partition, Outcome<Option<Vec<u8>>>)>,
) -> Vec<(Partition, Outcome<Option<Micros>>)> {
    let head = |entry: Option<Vec<u8>>| entry.and_then(|entry| since(&entry));
    entries.into_iter().map(|(partition, entry)| (partition, entry.map(head))).collect()
}
