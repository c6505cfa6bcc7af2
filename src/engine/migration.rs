//! A wrapper that moves a pool: publishes go to the new store, consumes drain the old one first. Jobs of both
//! are acked, peeked, pumped and counted as one. Knows nothing of what the stores are.
//!
//! Each step is atomic in the store that it touches. A republish whose old job is in the old store touches
//! both: the new job is stored before the old one is forgotten, so nothing is lost in between.
//!
//! An old store that is away stops neither publishes nor the consumes of what the new one holds; only the
//! order of the two is lost meanwhile. Consumers hear of it when the new store has nothing for them.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;

use super::notifier::Notifier;
use super::{Consumed, DeadLetter, Engine, Pumped, QueueSize, Stats};
use crate::clock::Millis;
use crate::error::Result;
use crate::job::{Job, JobRef, NewJob};
use crate::name::{Queue, QueueList};

/// From `Old` to `New`.
#[derive(Debug)]
pub struct Migration<Old, New> {
    old: Old,
    new: New,
}

impl<Old: Engine, New: Engine> Migration<Old, New> {
    /// Drains `old` by consumes, and fills `new` by publishes.
    pub fn new(old: Old, new: New) -> Migration<Old, New> {
        Migration { old, new }
    }
}

/// Marks which store handed a job out: the lowest bit of its receipt. Engines give receipts of 63 bits.
const NEW: u64 = 1;

fn marked(mut jobs: Vec<Job>, mark: u64) -> Vec<Job> {
    for job in &mut jobs {
        job.receipt = (job.receipt << 1) | mark;
    }
    jobs
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<Old: Engine, New: Engine> Engine for Migration<Old, New> {
    fn now(&self) -> Millis {
        self.new.now()
    }

    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()> {
        self.new.publish(jobs).await
    }

    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        // The new store forgets the job if it has it, in one step with the publish.
        self.new.republish(old.clone(), new).await?;
        self.old.ack(old).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let (mut consumed, trouble) = match self.old.consume(queues, ttrs).await {
            Ok(consumed) => (Consumed { jobs: marked(consumed.jobs, 0), ..consumed }, None),
            Err(error) => (Consumed::default(), Some(error)),
        };
        // The new store serves whom the old one left without a job.
        let rest = ttrs.get(consumed.jobs.len()..).unwrap_or_default();
        if rest.is_empty() || consumed.more {
            return Ok(consumed);
        }
        match (self.new.consume(queues, rest).await, trouble) {
            (Ok(more), trouble) => {
                consumed.more = more.more;
                consumed.jobs.extend(marked(more.jobs, NEW));
                match trouble {
                    // The old store may hold jobs: nobody can say that there is none.
                    Some(error) if consumed.jobs.is_empty() => Err(error),
                    _ => Ok(consumed),
                }
            }
            // What the old store handed out is on its way; the new one's trouble shows at the next call.
            (Err(_), _) if !consumed.jobs.is_empty() => Ok(consumed),
            (Err(error), _) => Err(error),
        }
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let (mut to_old, mut to_new) = (Vec::new(), Vec::new());
        for mut job in jobs {
            let from_new = job.receipt & NEW == NEW;
            job.receipt >>= 1;
            if from_new { to_new.push(job) } else { to_old.push(job) }
        }
        let old = if to_old.is_empty() { Ok(()) } else { self.old.give_back(to_old).await };
        let new = if to_new.is_empty() { Ok(()) } else { self.new.give_back(to_new).await };
        old.and(new)
    }

    async fn ack(&self, job: JobRef) -> Result<()> {
        // Either may hold it: one that is away must not keep the other from forgetting it.
        let old = self.old.ack(job.clone()).await;
        self.new.ack(job).await.and(old)
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        match self.old.peek(queue).await? {
            Some(job) => Ok(Some(job)),
            None => self.new.peek(queue).await,
        }
    }

    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        match self.old.peek_job(job).await? {
            Some(job) => Ok(Some(job)),
            None => self.new.peek_job(job).await,
        }
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        Ok(self.old.size(queue).await? + self.new.size(queue).await?)
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.old.destroy(queue).await?;
        self.new.destroy(queue).await
    }

    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        let (old, new) = (self.old.dead_letter(queue).await?, self.new.dead_letter(queue).await?);
        Ok(DeadLetter { size: old.size + new.size, head: old.head.or(new.head) })
    }

    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        let old = self.old.respawn(queue, limit, ttl).await?;
        let rest = limit.saturating_sub(old);
        let new = if rest == 0 { 0 } else { self.new.respawn(queue, rest, ttl).await? };
        Ok(old + new)
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let old = self.old.delete_dead(queue, limit).await?;
        let rest = limit.saturating_sub(old);
        let new = if rest == 0 { 0 } else { self.new.delete_dead(queue, rest).await? };
        Ok(old + new)
    }

    async fn pump(&self, limit: usize) -> Result<Pumped> {
        let old = self.old.pump(limit).await?;
        let rest = limit.saturating_sub(old.moved);
        if rest == 0 {
            return Ok(Pumped { moved: old.moved, next: Duration::ZERO });
        }
        let new = self.new.pump(rest).await?;
        Ok(Pumped { moved: old.moved + new.moved, next: old.next.min(new.next) })
    }

    async fn due_earlier(&self) {
        tokio::select! {
            () = self.old.due_earlier() => {}
            () = self.new.due_earlier() => {}
        }
    }

    async fn queues(&self) -> Result<Vec<Queue>> {
        let mut queues = self.old.queues().await?;
        queues.extend(self.new.queues().await?);
        queues.sort_unstable();
        queues.dedup();
        Ok(queues)
    }

    async fn stats(&self) -> Result<Stats> {
        let (old, new) = (self.old.stats().await?, self.new.stats().await?);
        let mut queues: BTreeMap<Queue, (u64, u64)> = BTreeMap::new();
        for size in old.queues.into_iter().chain(new.queues) {
            let (ready, dead) = queues.entry(size.queue).or_default();
            (*ready, *dead) = (*ready + size.ready, *dead + size.dead);
        }
        let queues =
            queues.into_iter().map(|(queue, (ready, dead))| QueueSize { queue, ready, dead }).collect();
        // The new pool's own figures are scraped under its own name; these are the old one's.
        Ok(Stats { timers: old.timers + new.timers, queues, gauges: old.gauges })
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.old.attach(notifier.clone());
        self.new.attach(notifier);
    }

    fn watch(&self, queue: &Queue) {
        self.old.watch(queue);
        self.new.watch(queue);
    }

    async fn check(&self) -> Result<()> {
        self.old.check().await?;
        self.new.check().await
    }

    async fn close(&self) {
        self.old.close().await;
        self.new.close().await;
    }
}
