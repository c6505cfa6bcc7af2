//! Statistics of a queue or of the whole pool: sizes, heads and lists of queues, summed over the partitions. Changes
//! no job, but drops ids of expired dead jobs and names of destroyed queues.

use std::collections::{BTreeMap, HashMap};

use super::Router;
use crate::engine::delays::{DelayCount, DelayedOf, Delays};
use crate::engine::redis::cluster::map::Partition;
use crate::engine::{QueuePage, QueueSize, QueueView, Size, SizeOf, Stats, together};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::name::{Namespace, Queue, QueueName};

impl Router {
    /// Returns the number of ready jobs; or the number of dead jobs and the id of the oldest, by publish time, among
    /// the partitions' oldest ones.
    pub async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        let parts = self.parts_of(queue);
        if let [only] = parts {
            return only.size(queue, of).await;
        }
        if of == SizeOf::Dead {
            self.trim_dead(queue).await?;
        }
        let parts: Vec<Partition> = parts.iter().map(|part| part.partition).collect();
        let lengths = self.read_each::<u64>(&parts, true, |part| {
            redis::Cmd::llen(if of == SizeOf::Ready { part.keys.ready(queue) } else { part.keys.dead(queue) })
        });
        let (mut jobs, mut with_some) = (0, Vec::new());
        for (partition, length) in lengths.await {
            let length = length?;
            jobs += length;
            if length > 0 {
                with_some.push(partition);
            }
        }
        if of == SizeOf::Ready {
            return Ok(Size { jobs, head: None });
        }
        let heads =
            together::try_all(with_some.iter().map(|partition| self.part(*partition).size(queue, of)));
        let heads = heads.await?.into_iter().filter_map(|size| size.head);
        Ok(Size { jobs, head: heads.min_by_key(|id| id.published_at()) })
    }

    /// Drops the ids of expired dead jobs, so that lengths do not count them.
    async fn trim_dead(&self, queue: &Queue) -> Result<()> {
        let queue = std::slice::from_ref(queue);
        together::try_all(self.parts_of(&queue[0]).iter().map(|part| part.trim_dead(queue))).await.map(drop)
    }

    /// Returns the numbers of ready and dead jobs of a queue per partition.
    pub async fn lengths(&self, queue: &Queue) -> Result<Vec<(Partition, [u64; 2])>> {
        self.trim_dead(queue).await?;
        let parts: Vec<Partition> = self.parts_of(queue).iter().map(|part| part.partition).collect();
        let ready = self.read_each::<u64>(&parts, true, |part| redis::Cmd::llen(part.keys.ready(queue)));
        let dead = self.read_each::<u64>(&parts, true, |part| redis::Cmd::llen(part.keys.dead(queue)));
        let (ready, dead) = tokio::join!(ready, dead);
        let both = ready.into_iter().zip(dead);
        both.map(|((part, ready), (_, dead))| Ok((part, [ready?, dead?]))).collect()
    }

    /// Returns the oldest of the partitions' first ready jobs.
    pub async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        let parts = self.parts_of(queue);
        if let [only] = parts {
            return only.peek(queue).await;
        }
        let parts: Vec<Partition> = parts.iter().map(|part| part.partition).collect();
        let exists = self.read_each::<bool>(&parts, true, |part| redis::Cmd::exists(part.keys.ready(queue)));
        let mut with_some = Vec::new();
        for (partition, exists) in exists.await {
            if exists? {
                with_some.push(partition);
            }
        }
        let heads = together::try_all(with_some.iter().map(|partition| self.part(*partition).peek(queue)));
        Ok(heads.await?.into_iter().flatten().min_by_key(|job| job.id.first_due()))
    }

    /// Returns one page of the queues of a namespace, in order of name.
    pub async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let names = self.queue_names(namespace, after, limit).await?;
        let mut by_part: HashMap<Partition, Vec<Queue>> = HashMap::new();
        for (name, parts) in &names.all {
            let queue = Queue { namespace: namespace.clone(), name: name.clone() };
            parts.iter().for_each(|part| by_part.entry(*part).or_default().push(queue.clone()));
        }
        let views = by_part.into_iter().map(|(part, queues)| self.part(part).views(namespace, queues));
        let mut queues: Vec<QueueView> = Vec::new();
        let mut views: Vec<QueueView> = together::try_all(views).await?.into_iter().flatten().collect();
        views.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        for view in views {
            match queues.last_mut().filter(|last| last.queue == view.queue) {
                Some(last) => add_view(last, &view),
                None => queues.push(view),
            }
        }
        let next = names.all.into_keys().next_back().filter(|_| names.more);
        Ok(QueuePage { queues, next })
    }

    /// Returns the first names of a namespace's queues after a name.
    async fn queue_names(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<FirstNames> {
        // One round usually suffices, since the homes of queues are distributed evenly. Of spread queues each partition
        // has all names, so a page takes several rounds.
        let share = limit.min(2 * limit / self.parts.len() + 16);
        let (mut names, mut after) = (FirstNames::default(), after.cloned());
        loop {
            let found = self.parts.iter().map(|part| part.queue_names(namespace, after.as_ref(), share));
            let found = together::try_all(found).await?;
            // Where a partition has more names, the later ones of others are not the next ones.
            let last = found.iter().filter(|(_, more)| *more).filter_map(|(names, _)| names.last()).min();
            let last = last.cloned();
            for (part, (of_part, _)) in self.parts.iter().zip(found) {
                for name in of_part.into_iter().filter(|name| last.as_ref().is_none_or(|last| name <= last)) {
                    names.all.entry(name).or_default().push(part.partition);
                }
            }
            names.more = last.is_some();
            if names.all.len() >= limit || !names.more {
                break;
            }
            after = last;
        }
        while names.all.len() > limit {
            names.all.pop_last();
            names.more = true;
        }
        Ok(names)
    }

    /// Returns the sizes of all queues, and the gauges of a single Redis.
    pub async fn stats(&self) -> Result<Stats> {
        let each = together::try_all(self.parts.iter().map(|part| part.stats())).await?;
        let mut stats = Stats { gauges: self.pool.place.gauges().await, ..Stats::default() };
        for of_part in each {
            stats.timers += of_part.timers;
            stats.overdue = stats.overdue.max(of_part.overdue);
            stats.queues.extend(of_part.queues);
        }
        stats.queues.sort_by(|a, b| a.queue.cmp(&b.queue));
        stats.queues.dedup_by(|other, queue| {
            let is_same = other.queue == queue.queue;
            if is_same {
                add_size(queue, other);
            }
            is_same
        });
        Ok(stats)
    }

    /// Counts delayed jobs by due time.
    pub async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        let parts = match &count.of {
            DelayedOf::Queue(queue) => self.parts_of(queue),
            DelayedOf::All | DelayedOf::Namespace(_) => &self.parts,
        };
        let mut all: Option<Delays> = None;
        // One partition at a time, so that each node rests in between.
        for part in parts {
            let delays = part.delays(count).await?;
            match &mut all {
                Some(all) => all.merge(delays, count.most),
                None => all = Some(delays),
            }
        }
        all.ok_or(Error::Closed) // there is always a partition
    }
}

/// The first names of queues, and the partitions that have each.
#[derive(Debug, Default)]
struct FirstNames {
    all: BTreeMap<QueueName, Vec<Partition>>,
    more: bool,
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a? + b?)
}

/// Adds the sizes of a queue in another partition.
fn add_size(queue: &mut QueueSize, other: &QueueSize) {
    queue.ready += other.ready;
    queue.dead += other.dead;
    queue.delayed = sum(queue.delayed, other.delayed);
    queue.running = sum(queue.running, other.running);
    queue.estimated |= other.estimated;
    if other.oldest_ready > queue.oldest_ready {
        (queue.oldest_ready, queue.head) = (other.oldest_ready, other.head);
    }
}

fn add_view(queue: &mut QueueView, other: &QueueView) {
    queue.ready = sum(queue.ready, other.ready);
    queue.delayed = sum(queue.delayed, other.delayed);
    queue.running = sum(queue.running, other.running);
    queue.estimated |= other.estimated;
    queue.dead = sum(queue.dead, other.dead);
    queue.oldest_ready_age = queue.oldest_ready_age.max(other.oldest_ready_age);
}
