//! Calls by id go to the partition named by the id or the home partition, and if the job is not there to the other one:
//! see [`Router::parts_of_id`]. Calls by key go to the partition of the key's hash.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Router;
use crate::engine::redis::cluster::map::Partition;
use crate::engine::{
    By, Detail, Held, Listing, Once, Promoted, Published, Release, Released, Respawn, Respawned, Revival,
    Revived, Touched, together,
};
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, JobView, Receipt};
use crate::name::{JobKey, Queue};

impl Router {
    /// Acks a job, coalesced with others of its partition.
    pub async fn ack_one(&self, queue: &Queue, id: JobId) -> Result<()> {
        let job = JobRef { queue: queue.clone(), id };
        let (first, second) = self.parts_of_id(queue, &id);
        let was_there = self.part(first).ack_one(job.clone()).await?;
        match second {
            Some(second) if !was_there => self.part(second).ack_one(job).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Acks jobs of one queue independently. Returns the existing jobs whose receipt is no longer valid.
    pub async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        if jobs.iter().all(|(id, _)| self.is_at_home(queue, id)) {
            return self.home(queue).ack(queue, jobs).await;
        }
        let mut parts: BTreeMap<Partition, Vec<(JobId, Option<Receipt>)>> = BTreeMap::new();
        for job in jobs {
            let (first, second) = self.parts_of_id(queue, &job.0);
            // An ack changes nothing in a partition without the job.
            for partition in [first].into_iter().chain(second) {
                parts.entry(partition).or_default().push(*job);
            }
        }
        // An unavailable partition does not prevent the others from deleting their jobs.
        let asked = parts.into_iter().map(async |(partition, of)| {
            let named = of.iter().filter(|(id, _)| self.partitions.of_id(id) == partition).count();
            (named as u64, self.part(partition).ack(queue, &of).await)
        });
        let (mut stale, mut done, mut failed) = (Vec::new(), 0, None);
        for (count, acked) in together::all(asked).await {
            match acked {
                Ok(of_part) => {
                    done += count;
                    stale.extend(of_part);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error.after(done)),
            None => Ok(jobs.iter().map(|(id, _)| *id).filter(|id| stale.contains(id)).collect()),
        }
    }

    pub async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        let (first, second) = self.parts_of_id(&job.queue, &job.id);
        match (self.part(first).touch(job, receipt, ttr).await?, second) {
            (Held::NotFound, Some(second)) => self.part(second).touch(job, receipt, ttr).await,
            (held, _) => Ok(held),
        }
    }

    pub async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        let (first, second) = self.parts_of_id(&job.queue, &job.id);
        match (self.part(first).release(job, receipt, release.clone()).await?, second) {
            (Held::NotFound, Some(second)) => self.part(second).release(job, receipt, release).await,
            (held, _) => Ok(held),
        }
    }

    /// Returns jobs whose consumer disconnected, in the order given within each partition.
    pub async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        if let Some(only) = self.only() {
            return only.give_back(jobs).await;
        }
        let mut parts: BTreeMap<Partition, Vec<Job>> = BTreeMap::new();
        for job in jobs {
            let (first, second) = self.parts_of_id(&job.queue, &job.id);
            if let Some(second) = second {
                parts.entry(second).or_default().push(job.clone());
            }
            parts.entry(first).or_default().push(job);
        }
        let given = parts.into_iter().map(|(partition, jobs)| self.part(partition).give_back(jobs));
        together::all(given).await.into_iter().collect()
    }

    pub async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        let (first, second) = self.parts_of_job(queue, by);
        match (self.part(first).inspect_by(queue, by, detail).await?, second) {
            (None, Some(second)) => self.part(second).inspect_by(queue, by, detail).await,
            (found, _) => Ok(found),
        }
    }

    /// Makes a delayed job ready.
    pub async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted> {
        let (first, second) = self.parts_of_job(queue, by);
        match (self.part(first).promote(queue, by).await?, second) {
            (Promoted::NotFound, Some(second)) => self.part(second).promote(queue, by).await,
            (promoted, _) => Ok(promoted),
        }
    }

    fn parts_of_job(&self, queue: &Queue, by: By<'_>) -> (Partition, Option<Partition>) {
        match by {
            By::Id(id) => self.parts_of_id(queue, &id),
            By::Key(key) => self.parts_of_key(queue, key),
        }
    }

    /// Returns the partition of a key, and the queue's home partition if it differs: a job that was published before
    /// the queue was spread keeps its key there.
    fn parts_of_key(&self, queue: &Queue, key: &JobKey) -> (Partition, Option<Partition>) {
        let home = self.partitions.home(queue);
        if !self.spreading.is_everywhere(queue) {
            return (home, None);
        }
        let of_key = self.partitions.of_key(queue, key);
        (of_key, (of_key != home).then_some(home))
    }

    pub async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        let (first, second) = self.parts_of_key(queue, key);
        let cancelled = self.part(first).cancel_key(queue, key).await?;
        match second {
            Some(second) => Ok(self.part(second).cancel_key(queue, key).await? || cancelled),
            None => Ok(cancelled),
        }
    }

    /// Returns the recorded result of a publish with this idempotency key, from any partition.
    pub async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        let asked = self.parts_of(queue).iter().map(|part| part.recall(queue, once));
        let mut found: Vec<Published> = together::try_all(asked).await?.into_iter().flatten().collect();
        // A mismatch in any partition is a mismatch.
        let mismatch = found.iter().position(|of| *of == Published::Mismatch);
        Ok(mismatch.or((!found.is_empty()).then_some(0)).map(|at| found.swap_remove(at)))
    }

    /// Whether a job is stored in a partition.
    pub async fn is_stored(&self, partition: Partition, job: &JobRef) -> Result<bool> {
        let part = self.part(partition);
        if part.is_packed(job).await? {
            return Ok(true);
        }
        Ok(part.query(&redis::Cmd::exists(part.keys.job(&job.queue, &job.id))).await?)
    }

    pub async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        match which {
            Respawn::Oldest { limit, ttl } => {
                let count = self.respawn_oldest(queue, limit, ttl).await?;
                Ok(Respawned { count, each: Vec::new() })
            }
            Respawn::Jobs(jobs, revival) => Ok(Respawned::of(self.respawn_jobs(queue, jobs, revival).await?)),
        }
    }

    /// Makes the oldest dead jobs of each partition ready again, at most `limit` in total.
    async fn respawn_oldest(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        let mut done = 0;
        for part in self.parts_of(queue) {
            done += part.respawn_oldest(queue, limit - done, ttl).await.map_err(|e| e.after(done))?;
        }
        Ok(done)
    }

    /// Deletes the oldest dead jobs of each partition, at most `limit` in total.
    pub async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let mut done = 0;
        for part in self.parts_of(queue) {
            done += part.delete_dead(queue, limit - done).await.map_err(|e| e.after(done))?;
        }
        Ok(done)
    }

    /// Makes dead jobs ready or delayed again, by id.
    async fn respawn_jobs(&self, queue: &Queue, jobs: &[JobId], revival: Revival) -> Result<Vec<Revived>> {
        if jobs.iter().all(|id| self.is_at_home(queue, id)) {
            return self.home(queue).respawn_jobs(queue, jobs, revival).await;
        }
        let mut all = Vec::with_capacity(jobs.len());
        for id in jobs {
            let (first, second) = self.parts_of_id(queue, id);
            let one = async {
                let revived = self.part(first).respawn_jobs(queue, &[*id], revival).await?;
                match (revived.first(), second) {
                    (Some(Revived::NotFound), Some(second)) => {
                        self.part(second).respawn_jobs(queue, &[*id], revival).await
                    }
                    _ => Ok(revived),
                }
            };
            let revived = one.await.map_err(|e: Error| e.after(all.len() as u64))?;
            all.extend(revived);
        }
        Ok(all)
    }

    /// Deletes the ready jobs in every partition, and the name in those without ready and dead jobs of the queue.
    pub async fn destroy(&self, queue: &Queue, listing: Listing) -> Result<()> {
        let parts = self.parts_of(queue).iter().map(|part| part.destroy(queue, listing));
        together::all(parts).await.into_iter().collect()
    }
}
