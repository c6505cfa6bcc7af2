//! Publish. A publication goes to the home of its queue. The partition of a spread queue's job is decided by the first
//! of these that it has: its key, the job that it replaces, the `Idempotency-Key` of the request. So publishes that
//! must be compared share a partition. Any other publication goes as a whole to the partition whose turn it is, or to
//! the next available one.
//!
//! Jobs of several partitions (a batch with several keys) are published partition by partition, each part atomically.

use std::collections::BTreeMap;
use std::pin::pin;

use tokio::time::timeout;

use super::Router;
use crate::engine::redis::batches::{Plain, Taken};
use crate::engine::redis::cluster::map::Partition;
use crate::engine::redis::link::Lane;
use crate::engine::redis::pool::SLOW;
use crate::engine::redis::verbs::publish::{check, is_plain};
use crate::engine::{OnConflict, Placed, Placing, Publication, Published};
use crate::error::{Error, Result, Unreachable};
use crate::job::JobRef;

impl Router {
    pub async fn publish(&self, publication: Publication) -> Result<Published> {
        if let Some(only) = self.only() {
            return only.publish(publication).await;
        }
        let Some(first) = publication.jobs.first() else { return Ok(Published::Done(Vec::new())) };
        Box::pin(self.admit(&publication)).await?;
        let queue = &first.job.queue;
        let one_queue = publication.jobs.iter().all(|of| of.job.queue == *queue)
            && publication
                .replaces
                .as_ref()
                .is_none_or(|old| old.queue == *queue && self.is_at_home(queue, &old.id));
        let published = if one_queue && !self.spreading.is_everywhere(queue) {
            self.home(queue).publish(publication).await
        } else if self.is_free(&publication) {
            self.publish_in_turn(publication).await
        } else {
            // Boxed, because it would enlarge the future of every plain publish.
            Box::pin(self.publish_parts(publication)).await
        };
        if let Err(Error::Unreachable(_)) = &published {
            // Nothing was stored. A closing engine disconnects from its nodes, which should be reported as closing.
            self.pool.is_open()?;
        }
        published
    }

    /// Whether any partition may take the publication.
    pub fn is_free(&self, publication: &Publication) -> bool {
        publication.replaces.is_none()
            && publication.once.is_none()
            && publication.jobs.iter().all(|of| of.key.is_none() && self.spreading.is_spread(&of.job.queue))
    }

    /// Publishes to the partition named by the ids, or to the next available one. Waits for a node only if no other
    /// partition is left.
    async fn publish_in_turn(&self, mut publication: Publication) -> Result<Published> {
        check(&publication)?;
        let plain = is_plain(&publication);
        let mut partition = self.partitions.of_id(&publication.jobs[0].job.id); // a publication has a job
        let mut left = self.parts.len();
        loop {
            left -= 1;
            if left == 0 || self.can_take(partition) {
                self.rename(&mut publication, partition);
                let jobs = publication.jobs.len();
                let _under_way = self.spreading.takes(partition, jobs, |partition| self.can_take(partition));
                let part = self.part(partition);
                let published = match (left, plain) {
                    (0, _) => Box::pin(part.publish(publication.clone())).await,
                    (_, true) => self.publish_movable(partition, publication.clone()).await,
                    (_, false) => Box::pin(part.publish_now(publication.clone())).await,
                };
                match published {
                    Err(Error::Unreachable(_)) if left > 0 => {}
                    published => return published,
                }
            }
            match self.spreading.pass(|partition| self.can_take(partition)) {
                Some(next) => partition = next,
                // No partition is available, so wait for the current one.
                None => left = 1,
            }
        }
    }

    /// Publishes coalesced with other publishes to the partition. If the partition becomes unavailable or slow while
    /// the publish is pending, the publish fails as unreachable and can go to another partition.
    async fn publish_movable(&self, partition: Partition, publication: Publication) -> Result<Published> {
        self.try_link(partition, Lane::Publish(0)).map_err(Error::Unreachable)?;
        let taken = Taken::default();
        let mut call = pin!(self.part(partition).publish_movable(Plain::new(publication, taken.clone())));
        loop {
            match timeout(SLOW, &mut call).await {
                Ok(published) => return published,
                Err(_) if self.can_take(partition) => {}
                Err(_) if taken.take() => return Err(Error::Unreachable(Unreachable::Away)),
                // It has been sent.
                Err(_) => return call.await,
            }
        }
    }

    /// Changes the ids of spread queues' jobs to name this partition.
    fn rename(&self, publication: &mut Publication, partition: Partition) {
        for Placing { job, .. } in &mut publication.jobs {
            if self.spreading.is_spread(&job.queue) && self.partitions.of_id(&job.id) != partition {
                job.id = self.partitions.with_partition(&job.id, partition);
            }
        }
    }

    /// Publishes each partition's part, one after the other.
    async fn publish_parts(&self, publication: Publication) -> Result<Published> {
        if let Err(error) = check(&publication) {
            // A repeated publish gets its recorded result, even if it is invalid now.
            let once = publication.once.as_ref().zip(publication.jobs.first());
            let Some((once, first)) = once else { return Err(error) };
            return self.recall(&first.job.queue, once).await?.ok_or(error);
        }
        let Publication { jobs, replaces, once } = publication;
        let old = match &replaces {
            Some(old) => Some(self.partition_of_stored(old).await?),
            None => None,
        };
        let mut parts: BTreeMap<Partition, Vec<usize>> = BTreeMap::new();
        let mut free = None;
        for (n, Placing { job, key, .. }) in jobs.iter().enumerate() {
            let queue = &job.queue;
            let partition = match (key, old, &once) {
                _ if !self.spreading.is_spread(queue) => self.partitions.home(queue),
                (Some((key, _)), ..) => self.partitions.of_key(queue, key),
                (None, Some(old), _) => old,
                (None, None, Some(once)) => self.partitions.of_request(&jobs[0].job.queue, &once.key),
                (None, None, None) => *free.get_or_insert_with(|| self.partitions.of_id(&job.id)),
            };
            parts.entry(partition).or_default().push(n);
        }
        let fails = |of: &Placing| matches!(of.key, Some((_, OnConflict::Fail)));
        if parts.len() > 1 && jobs.iter().any(fails) {
            return Err(Error::SeveralPartitions);
        }
        let mut placed: Vec<Option<Placed>> = vec![None; jobs.len()];
        let (mut stored, mut replayed) = (0, true);
        for (partition, of) in &parts {
            let here = replaces.clone().filter(|_| old == Some(*partition));
            let of_part = of.iter().map(|n| jobs[*n].clone()).collect();
            let mut part = Publication { jobs: of_part, replaces: here, once: once.clone() };
            self.rename(&mut part, *partition);
            let published = Box::pin(self.part(*partition).publish(part)).await;
            let (all, is_replay) = match published.map_err(|e| e.after(stored))? {
                Published::Done(all) => (all, false),
                Published::Replay(all) => (all, true),
                Published::Mismatch => return Ok(Published::Mismatch),
                Published::Conflict { index, id } => {
                    let index = of.get(index).copied().unwrap_or(index);
                    return Ok(Published::Conflict { index, id });
                }
            };
            stored += all.len() as u64;
            replayed &= is_replay;
            of.iter().zip(all).for_each(|(n, one)| placed[*n] = Some(one));
        }
        // The new job's key determined its partition. The replaced job is in a different partition, and is deleted
        // after the new job is stored.
        if let (Some(JobRef { queue, id }), Some(old)) = (&replaces, old)
            && !parts.contains_key(&old)
        {
            self.part(old).ack(queue, &[(*id, None)]).await?;
        }
        let placed = placed.into_iter().flatten().collect();
        Ok(if replayed { Published::Replay(placed) } else { Published::Done(placed) })
    }

    /// Returns the partition that stores a job; where it would probably be if none does.
    async fn partition_of_stored(&self, job: &JobRef) -> Result<Partition> {
        match self.parts_of_id(&job.queue, &job.id) {
            (first, Some(second))
                if !self.is_stored(first, job).await? && self.is_stored(second, job).await? =>
            {
                Ok(second)
            }
            (first, _) => Ok(first),
        }
    }
}
