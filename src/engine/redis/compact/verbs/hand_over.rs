//! What becomes of a hand-over: touch, release and bury by its holder, and give back when its consumer has left. The proof
//! is in the job: when its ttr ends, in microseconds, and its tries.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::place_of;
use crate::clock::Micros;
use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::layout::times::micros;
use crate::engine::redis::verbs::give_back::{STEP, until_given};
use crate::engine::{Held, Release, Released, Touched, Tries, together};
use crate::error::Result;
use crate::job::{Job, JobRef, Reason, Receipt};
use crate::name::Queue;

/// What stands in an answer in place of a due time.
const OVER: i64 = 0;
const NOT_FOUND: i64 = -1;

impl CompactCore {
    /// The ttr ends `ttr` from now.
    pub async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        for (partition, place) in self.find(&job.queue, &job.id).await? {
            match self.touch_at(partition, place, job, receipt, ttr).await? {
                Held::NotFound => {}
                held => return Ok(held),
            }
        }
        Ok(Held::NotFound)
    }

    async fn touch_at(
        &self,
        home: Partition,
        place: Vec<u8>,
        job: &JobRef,
        receipt: Receipt,
        ttr: Duration,
    ) -> Result<Held<Touched>> {
        let mut cmd = self.call(&self.scripts.touch, home);
        cmd.arg(keys::name(&job.queue)).arg(place);
        cmd.arg(receipt.hand_over).arg(receipt.tries_left).arg(micros(ttr));
        let sent = Instant::now();
        let (now, due): (u64, i64) = self.ask(home, Lane::HandOver, &self.scripts.touch, cmd).await?;
        self.learn(home, sent, now);
        Ok(match held(due)? {
            Held::Done(due) => {
                self.common.handed_out.touch(job.id, receipt.tries_left, due);
                self.stored(home, due);
                let receipt = Receipt { hand_over: due, tries_left: receipt.tries_left };
                Held::Done(Touched { receipt, until: due / 1000 })
            }
            Held::NotYours => Held::NotYours,
            Held::NotFound => Held::NotFound,
        })
    }

    /// Back to the queue, or dead when no tries are left.
    pub async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        for (partition, place) in self.find(&job.queue, &job.id).await? {
            match self.release_at(partition, place, job, receipt, &release).await? {
                Held::NotFound => {}
                held => return Ok(held),
            }
        }
        Ok(Held::NotFound)
    }

    async fn release_at(
        &self,
        home: Partition,
        place: Vec<u8>,
        job: &JobRef,
        receipt: Receipt,
        release: &Release,
    ) -> Result<Held<Released>> {
        let (queue, Release { delay, tries, reason }) = (&job.queue, release);
        let delay = *delay;
        let tries_left = match tries {
            Tries::Spend => receipt.tries_left,
            Tries::Restore => receipt.tries_left.saturating_add(1),
            Tries::Forfeit => 0,
        };
        let mut cmd = self.call(&self.scripts.release, home);
        cmd.arg(keys::name(queue)).arg(place).arg(receipt.hand_over).arg(receipt.tries_left);
        cmd.arg(tries_left)
            .arg(micros(delay))
            .arg(self.near_after(home, delay))
            .arg(reason.as_ref().map_or("", Reason::as_str));
        let sent = Instant::now();
        let (now, due): (u64, i64) = self.ask(home, Lane::HandOver, &self.scripts.release, cmd).await?;
        self.learn(home, sent, now);
        Ok(match held(due)? {
            Held::Done(_) if tries_left == 0 => Held::Done(Released::Dead),
            Held::Done(due) => {
                self.common.handed_out.release(job.id, due);
                if delay.is_zero() {
                    // It is ready since when it was.
                    self.tell_ready_again(home, queue);
                } else {
                    self.stored(home, due);
                }
                Held::Done(Released::Back { tries_left, due_at: due / 1000 })
            }
            Held::NotYours => Held::NotYours,
            Held::NotFound => Held::NotFound,
        })
    }

    /// Each to the head of its queue, in the order given. What can be given back at once is, before the parts that are away
    /// are tried again, all at the same time.
    pub async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        // The last one goes first, so that the first one ends at the very head.
        let mut jobs: Vec<&Job> = jobs.iter().rev().collect();
        jobs.retain(|job| job.receipt != 0);
        jobs.iter().for_each(|job| _ = self.common.handed_out.remove(&job.id));
        let home = |job: &&Job| self.partition_of(&job.queue);
        let mut parts: BTreeMap<Partition, Vec<&Job>> = BTreeMap::new();
        for of in jobs.chunk_by(|a, b| a.queue == b.queue) {
            // Home is tried again until it answers.
            let named = self.partitions_named(&of[0].queue, of.iter().map(|job| &job.id)).await;
            let named = named.unwrap_or_else(|_| of.iter().map(home).collect());
            named.into_iter().zip(of).for_each(|(part, job)| parts.entry(part).or_default().push(job));
        }
        let mut away = Vec::new();
        for (named, part) in parts {
            if self.give_back_part(named, &part, false).await.is_err() {
                away.push((named, part));
            }
        }
        let again = away.iter().map(|(named, part)| self.give_back_part(*named, part, true));
        together::try_all(again).await.map(drop)
    }

    /// Jobs whose ids name this partition; again and again if that is asked for.
    async fn give_back_part(&self, named: Partition, jobs: &[&Job], again: bool) -> Result<()> {
        let home = |job: &&Job| self.partition_of(&job.queue);
        for step in jobs.chunks(STEP) {
            let given = self.give_back_step(named, step, again).await?;
            // One of a schedule lies at home. What was given back is not given back once more.
            let mut elsewhere: Vec<&Job> = step.to_vec();
            elsewhere.retain(|job| given < step.len() && home(job) != named);
            elsewhere.sort_by_key(home);
            for step in elsewhere.chunk_by(|a, b| home(a) == home(b)) {
                self.give_back_step(home(&step[0]), step, again).await?;
            }
        }
        Ok(())
    }

    /// Jobs of one partition. How many there were.
    async fn give_back_step(&self, home: Partition, jobs: &[&Job], again: bool) -> Result<usize> {
        let mut queues: Vec<&Queue> = Vec::new();
        for job in jobs {
            if !queues.contains(&&job.queue) {
                queues.push(&job.queue);
            }
        }
        let mut call = self.call(&self.scripts.give_back, home);
        call.arg(queues.len());
        queues.iter().for_each(|queue| _ = call.arg(keys::name(queue)));
        for job in jobs {
            let n = queues.iter().position(|queue| **queue == job.queue).map_or(0, |n| n + 1);
            let Receipt { hand_over, tries_left } = job.proof();
            call.arg(n).arg(place_of(home, &job.id)).arg(hand_over).arg(tries_left);
        }
        let give = || self.ask(home, Lane::HandOver, &self.scripts.give_back, call.clone());
        let given = if again { until_given(self.tasks.stopping(), give).await? } else { give().await? };
        for queue in queues {
            self.tell_ready_again(home, queue);
        }
        Ok(given)
    }
}

fn held(due: i64) -> Result<Held<Micros>> {
    match due {
        OVER => Ok(Held::NotYours),
        NOT_FOUND => Ok(Held::NotFound),
        due => Ok(Held::Done(u64::try_from(due).map_err(|_| Fault::unreadable("release"))?)),
    }
}
