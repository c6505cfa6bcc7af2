//! Ack: coalesced calls become one script call for each partition. What comes with receipts goes one call at a time.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use redis::Cmd;

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::{BUCKET_BYTES, place_of};
use super::super::steps::Usage;
use crate::engine::batch::{self, Call, Reply};
use crate::engine::redis::batches::{self, MAX_WAITING, serve};
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::together;
use crate::error::{Error, Result};
use crate::job::{JobId, JobRef, Receipt};
use crate::name::{Namespace, Queue};

/// Acks of one namespace if that has a quota, and those of all others.
type Part = (Option<Namespace>, Vec<JobRef>, Vec<Reply<()>>);

/// What became of acks in a partition.
struct Forgotten {
    bytes: i64,
    count: i64,
    /// Their places among what was asked: those whose receipt does not hold any more, and those that are not there.
    stale: Vec<usize>,
    missing: Vec<usize>,
}

impl Forgotten {
    /// What the script answers. `order` has the places of its jobs.
    fn read(answer: &[i64], order: &[usize]) -> Option<Forgotten> {
        let [bytes, count, numbers @ ..] = answer else { return None };
        let mut of = Forgotten { bytes: *bytes, count: *count, stale: Vec::new(), missing: Vec::new() };
        for number in numbers {
            let (list, n) =
                if *number < 0 { (&mut of.missing, -1 - number) } else { (&mut of.stale, *number) };
            list.push(*order.get(usize::try_from(n).ok()?)?);
        }
        Some(of)
    }

    /// The room that they had.
    fn room(&self) -> Usage {
        [self.count, self.bytes, 0]
    }
}

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
    async fn ack_batch(self: &Arc<Self>, named: Partition, batch: Vec<Call<JobRef, ()>>) {
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
            let outcome = self.forget_all(named, Lane::HandOver, &jobs).await;
            match outcome {
                Ok(forgotten) => self.answer_acks(named, counted, (jobs, replies), forgotten),
                Err(fault) => answer_all(replies, Err(fault)),
            }
        });
        together::all(parts).await;
    }

    /// Answers acks that were carried out where the ids say. Those that are not there may lie at home. What is to be done in
    /// other partitions is done in tasks of its own: the next batch does not wait for them.
    fn answer_acks(
        self: &Arc<Self>,
        named: Partition,
        counted: Option<Namespace>,
        (jobs, replies): (Vec<JobRef>, Vec<Reply<()>>),
        forgotten: Forgotten,
    ) {
        let mut elsewhere: BTreeMap<Partition, (Vec<JobRef>, Vec<Reply<()>>)> = BTreeMap::new();
        let mut done = Vec::with_capacity(replies.len());
        for (n, (job, reply)) in jobs.into_iter().zip(replies).enumerate() {
            let home = self.partition_of(&job.queue);
            if home == named || !forgotten.missing.contains(&n) {
                done.push(reply);
                continue;
            }
            let (jobs, replies) = elsewhere.entry(home).or_default();
            jobs.push(job);
            replies.push(reply);
        }
        match &counted {
            None => answer_all(done, Ok(())),
            Some(namespace) => {
                let (core, namespace, room) = (self.clone(), namespace.clone(), forgotten.room());
                self.tasks.spawn(async move {
                    core.give_room(&namespace, room).await;
                    answer_all(done, Ok(()));
                });
            }
        }
        for (home, (jobs, replies)) in elsewhere {
            let (core, counted) = (self.clone(), counted.clone());
            self.tasks.spawn(async move {
                let outcome = core.forget_all(home, Lane::HandOver, &jobs).await;
                if let (Some(namespace), Ok(forgotten)) = (&counted, &outcome) {
                    core.give_room(namespace, forgotten.room()).await;
                }
                answer_all(replies, outcome.map(drop));
            });
        }
    }

    /// Forgets jobs that lie in this partition.
    async fn forget_all(&self, home: Partition, lane: Lane, jobs: &[JobRef]) -> Outcome<Forgotten> {
        let call = self.ack_call(home, jobs.iter().map(|job| (&job.queue, &job.id, None)));
        self.send_acks(home, lane, call).await
    }

    /// The same, for who needs not know which of them were there.
    pub async fn forget(&self, home: Partition, lane: Lane, jobs: &[JobRef]) -> Outcome<()> {
        self.forget_all(home, lane, jobs).await.map(drop)
    }

    /// Waits until replicas have all that was done there before, where the pool asks for that: by an ack of nothing.
    pub async fn replicas_have_all(&self, partition: Partition) -> Outcome<()> {
        match self.common.wait_replicas {
            0 => Ok(()),
            _ => self.forget(partition, Lane::Other, &[]).await,
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
        // One that is away keeps no other from forgetting its own.
        let asked = parts.into_iter().map(async |(partition, of)| {
            let Forgotten { stale, missing, .. } = self.ack_in(partition, queue, &of).await?;
            let mut stale: Vec<JobId> = stale.iter().map(|n| of[*n].0).collect();
            if partition != home && !missing.is_empty() {
                let left: Vec<_> = missing.iter().map(|n| of[*n]).collect();
                let at_home = self.ack_in(home, queue, &left).await?;
                stale.extend(at_home.stale.iter().map(|n| left[*n].0));
            }
            Outcome::Ok((of.len() as u64, stale))
        });
        let (mut stale, mut done, mut failed) = (HashSet::new(), 0, None);
        for acked in together::all(asked).await {
            match acked {
                Ok((count, of_part)) => {
                    done += count;
                    stale.extend(of_part);
                }
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        if let Some(fault) = failed {
            return Err(Error::from(fault).after(done));
        }
        Ok(jobs.iter().map(|(id, _)| *id).filter(|id| stale.contains(id)).collect())
    }

    /// Acks those that lie there.
    async fn ack_in(
        &self,
        partition: Partition,
        queue: &Queue,
        jobs: &[(JobId, Option<Receipt>)],
    ) -> Outcome<Forgotten> {
        let call = self.ack_call(partition, jobs.iter().map(|(id, receipt)| (queue, id, *receipt)));
        let forgotten = self.send_acks(partition, Lane::HandOver, call).await?;
        self.freed(queue, forgotten.room()).await;
        Ok(forgotten)
    }

    async fn send_acks(
        &self,
        home: Partition,
        lane: Lane,
        (call, order): (Cmd, Vec<usize>),
    ) -> Outcome<Forgotten> {
        let answer: Vec<i64> = self.ask(home, lane, &self.scripts.ack, call).await?;
        Forgotten::read(&answer, &order).ok_or_else(|| Fault::unreadable("ack"))
    }

    /// A call, and in which order it names the jobs: those of one queue in one bucket stand together, and what is named twice
    /// one behind the other.
    fn ack_call<'a>(
        &self,
        home: Partition,
        jobs: impl Iterator<Item = (&'a Queue, &'a JobId, Option<Receipt>)>,
    ) -> (Cmd, Vec<usize>) {
        let mut queues: Vec<&Queue> = Vec::new();
        let mut jobs: Vec<Acked> = jobs
            .enumerate()
            .map(|(n, (queue, id, receipt))| {
                let known = queues.iter().position(|other| *other == queue);
                let queue = known.unwrap_or_else(|| {
                    queues.push(queue);
                    queues.len() - 1
                });
                Acked { queue: queue + 1, place: place_of(home, id), n, receipt }
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
        (cmd, jobs.into_iter().map(|job| job.n).collect())
    }
}

/// A job in a call.
struct Acked {
    /// From 1.
    queue: usize,
    place: Vec<u8>,
    /// Its place among what was asked.
    n: usize,
    receipt: Option<Receipt>,
}

impl Acked {
    /// Its queue and its bucket.
    fn row(&self) -> (usize, &[u8]) {
        (self.queue, &self.place[..BUCKET_BYTES]) // every place begins with it
    }
}

/// Gives all callers this answer. Who has left needs none.
fn answer_all(replies: Vec<Reply<()>>, outcome: Outcome<()>) {
    for reply in replies {
        let _ = reply.send(outcome.clone().map_err(Fault::into));
    }
}
