//! Ack: coalesced calls become one script call for each partition. What comes with receipts goes one call at a time.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use redis::Cmd;

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::{BUCKET_BYTES, place_of};
use crate::engine::batch::{self, Call, Reply};
use crate::engine::redis::batches::{self, MAX_WAITING, serve};
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::together;
use crate::error::{Error, Result};
use crate::job::{JobId, JobRef, Receipt};
use crate::name::{Namespace, Queue};

/// Acks of one namespace if that has a quota, and those of all others.
type Part = (Option<Namespace>, Vec<JobRef>, Vec<Reply<()>>);

impl CompactCore {
    /// Acks a job, together with others of its partition.
    pub async fn ack_one(self: &Arc<Self>, job: JobRef) -> Result<()> {
        let home = self.partition_named(&job.queue, &job.id).await?;
        self.ready(home, Lane::HandOver).await?;
        let begin = || {
            let (caller, calls) = batch::channel(MAX_WAITING, batches::ACKS);
            serve(calls, &self.tasks, ("a task that acks", 1), self, move |core, _, batch| async move {
                core.ack_batch(home, batch).await;
            });
            caller
        };
        self.acks.call(home, job, begin).await
    }

    /// Acks the jobs of a batch, and answers each call.
    async fn ack_batch(self: &Arc<Self>, home: Partition, batch: Vec<Call<JobRef, ()>>) {
        let mut parts: Vec<Part> = Vec::new();
        for (job, reply) in batch.into_iter().map(Call::split) {
            let namespace = &job.queue.namespace;
            let counted = self.is_counted(namespace).then(|| namespace.clone());
            match parts.iter_mut().find(|(other, ..)| *other == counted) {
                Some((_, jobs, replies)) => {
                    jobs.push(job);
                    replies.push(reply);
                }
                None => parts.push((counted, vec![job], vec![reply])),
            }
        }
        let parts = parts.into_iter().map(async |(counted, jobs, replies)| {
            self.common.observers.tell(|observer| observer.acked_together(jobs.len()));
            jobs.iter().for_each(|job| _ = self.common.handed_out.remove(&job.id));
            let outcome = self.forget_all(home, &jobs).await;
            if let (Some(namespace), Ok((bytes, count))) = (&counted, &outcome) {
                self.give_room(namespace, [*count, *bytes, 0]).await;
            }
            for reply in replies {
                // A caller that has left needs no answer.
                let _ = reply.send(outcome.clone().map(drop).map_err(Fault::into));
            }
        });
        together::all(parts).await;
    }

    /// Forgets jobs that lie in this partition if they are not at home.
    async fn forget_all(&self, named: Partition, jobs: &[JobRef]) -> Outcome<(i64, i64)> {
        let (mut bytes, mut count) = self.forget(named, Lane::HandOver, jobs).await?;
        if count == jobs.len() as i64 {
            return Ok((bytes, count));
        }
        let mut elsewhere: BTreeMap<Partition, Vec<JobRef>> = BTreeMap::new();
        for job in jobs {
            let home = self.partition_of(&job.queue);
            if home != named {
                elsewhere.entry(home).or_default().push(job.clone());
            }
        }
        for (home, jobs) in elsewhere {
            let (of_bytes, of_count) = self.forget(home, Lane::HandOver, &jobs).await?;
            (bytes, count) = (bytes + of_bytes, count + of_count);
        }
        Ok((bytes, count))
    }

    /// Forgets jobs. Answers how many bytes they had, and how many there were.
    pub async fn forget(&self, home: Partition, lane: Lane, jobs: &[JobRef]) -> Outcome<(i64, i64)> {
        let of = jobs.iter().map(|job| (&job.queue, &job.id, None));
        let answer: Vec<i64> = self.ask(home, lane, &self.scripts.ack, self.ack_call(home, of).0).await?;
        match answer[..] {
            [bytes, count, ..] => Ok((bytes, count)),
            _ => Err(Fault::unreadable("ack")),
        }
    }

    /// Waits until replicas have all that was done there before, where the pool asks for that: by an ack of nothing.
    pub async fn replicas_have_all(&self, partition: Partition) -> Outcome<()> {
        match self.common.wait_replicas {
            0 => Ok(()),
            _ => self.forget(partition, Lane::Other, &[]).await.map(drop),
        }
    }

    /// Acks jobs of one queue, each by itself. Answers those that are there and whose receipt does not hold any more.
    pub async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        let home = self.partition_of(queue);
        self.common.observers.tell(|observer| observer.acked_together(jobs.len()));
        let mut parts: BTreeMap<Partition, Vec<(JobId, Option<Receipt>)>> = BTreeMap::new();
        let named = self.partitions_named(queue, jobs.iter().map(|(id, _)| id)).await?;
        named
            .into_iter()
            .zip(jobs)
            .for_each(|(partition, job)| parts.entry(partition).or_default().push(*job));
        let (mut stale, mut done) = (HashSet::new(), 0);
        for (partition, of) in parts {
            let acked = async {
                let (count, of_part) = self.ack_in(partition, queue, &of).await?;
                if partition != home && count + of_part.len() < of.len() {
                    let left: Vec<_> = of.iter().filter(|(id, _)| !of_part.contains(id)).copied().collect();
                    stale.extend(self.ack_in(home, queue, &left).await?.1);
                }
                stale.extend(of_part);
                Outcome::Ok(())
            };
            acked.await.map_err(|fault| Error::from(fault).after(done))?;
            done += of.len() as u64;
        }
        Ok(jobs.iter().map(|(id, _)| *id).filter(|id| stale.contains(id)).collect())
    }

    /// Those that lie there. How many were forgotten, and those whose receipt does not hold any more.
    async fn ack_in(
        &self,
        partition: Partition,
        queue: &Queue,
        jobs: &[(JobId, Option<Receipt>)],
    ) -> Outcome<(usize, Vec<JobId>)> {
        let of = jobs.iter().map(|(id, receipt)| (queue, id, *receipt));
        let (call, ids) = self.ack_call(partition, of);
        let answer: Vec<i64> = self.ask(partition, Lane::HandOver, &self.scripts.ack, call).await?;
        let [bytes, count, stale @ ..] = &answer[..] else { return Err(Fault::unreadable("ack")) };
        self.freed(queue, [*count, *bytes, 0]).await;
        let id = |n: &i64| usize::try_from(*n).ok().and_then(|n| ids.get(n)).copied();
        let stale: Option<Vec<JobId>> = stale.iter().map(id).collect();
        Ok((*count as usize, stale.ok_or_else(|| Fault::unreadable("ack"))?))
    }

    /// A call, and the jobs in the order in which it names them: those of one queue in one bucket stand together, and what is
    /// named twice one behind the other.
    fn ack_call<'a>(
        &self,
        home: Partition,
        jobs: impl Iterator<Item = (&'a Queue, &'a JobId, Option<Receipt>)>,
    ) -> (Cmd, Vec<JobId>) {
        let mut queues: Vec<&Queue> = Vec::new();
        let mut jobs: Vec<Acked> = jobs
            .map(|(queue, id, receipt)| {
                let known = queues.iter().position(|other| *other == queue);
                let queue = known.unwrap_or_else(|| {
                    queues.push(queue);
                    queues.len() - 1
                });
                Acked { queue: queue + 1, place: place_of(home, id), id: *id, receipt }
            })
            .collect();
        jobs.sort_by(|a, b| a.row().cmp(&b.row()).then_with(|| a.place.cmp(&b.place)));
        let mut cmd = self.call(&self.scripts.ack, home);
        cmd.arg(queues.len());
        queues.iter().for_each(|queue| _ = cmd.arg(keys::name(queue)));
        for row in jobs.chunk_by(|a, b| a.row() == b.row()) {
            let with_receipts = row.iter().any(|job| job.receipt.is_some());
            let (queue, bucket) = row[0].row(); // a row has at least one job
            cmd.arg(queue).arg(bucket).arg(row.len()).arg(u8::from(with_receipts));
            for job in row {
                cmd.arg(&job.place[BUCKET_BYTES..]);
                match job.receipt {
                    Some(receipt) => _ = cmd.arg(receipt.hand_over).arg(receipt.tries_left),
                    None if with_receipts => _ = cmd.arg("").arg(""),
                    None => {}
                }
            }
        }
        (cmd, jobs.into_iter().map(|job| job.id).collect())
    }
}

/// A job in a call.
struct Acked {
    /// From 1.
    queue: usize,
    place: Vec<u8>,
    id: JobId,
    receipt: Option<Receipt>,
}

impl Acked {
    /// Its queue and its bucket.
    fn row(&self) -> (usize, &[u8]) {
        (self.queue, &self.place[..BUCKET_BYTES]) // every place begins with it
    }
}
