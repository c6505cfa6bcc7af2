//! Ack: coalesced calls become one script call, which also removes the timer members. The members of jobs whose tries
//! this process knows are passed by name, others are searched for (lua/forget.lua). The pump drops a member that
//! remains once it is due. Acks with receipts are sent one call at a time.

use std::sync::Arc;

use crate::engine::batch::{self, Call};
use crate::engine::redis::batches::{self, MAX_WAITING, arrival_of, serve};
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::script_call::ScriptCall;
use crate::engine::redis::link::Lane;
use crate::error::Result;
use crate::job::{JobId, JobRef, Receipt};
use crate::name::Queue;

impl PartitionCore {
    /// Acks a job, coalesced with others. Returns `false` if the job may not have existed in this partition.
    pub async fn ack_one(self: &Arc<Self>, job: JobRef) -> Result<bool> {
        self.is_open()?;
        self.place.ready(self.partition, Lane::Delivered).await?;
        let begin = || {
            let (caller, calls) = batch::channel(MAX_WAITING, batches::ACKS);
            serve(calls, &self.tasks, ("the ack task", 1), self, |core, _, batch| async move {
                core.ack_batch(batch).await;
            });
            caller
        };
        self.acks.get_or_init(begin).call(job).await
    }

    /// Acks the jobs of a batch, and replies to each call.
    async fn ack_batch(&self, batch: Vec<Call<JobRef, bool>>) {
        let arrived = arrival_of(&batch);
        let (jobs, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(Call::split).unzip();
        self.common.observers.tell(|observer| observer.acked_together(jobs.len()));
        let tries = |job: &JobRef| self.common.handed_out.tries(&job.id);
        let mut call = self.forget(jobs.iter().map(|job| (job, tries(job))));
        call.arrived_at(arrived);
        let unpack = self.unpack_call(jobs.iter().map(|job| (&job.queue, &job.id)));
        let outcome: Outcome<u64> = match self.unpack(unpack).await {
            Ok(()) => self.run(Lane::Delivered, &call).await,
            Err(fault) => Err(fault),
        };
        if outcome.is_ok() {
            jobs.iter().for_each(|job| _ = self.common.handed_out.remove(&job.id));
        }
        for reply in replies {
            // The send fails if the caller has disconnected.
            let all = |deleted| deleted == jobs.len() as u64;
            let _ = reply.send(outcome.clone().map(all).map_err(Fault::into));
        }
    }

    /// Returns the call that deletes these jobs, with the timer members of jobs whose tries are given.
    pub fn forget<'a>(&self, jobs: impl Iterator<Item = (&'a JobRef, Option<u16>)>) -> ScriptCall {
        let mut jobs: Vec<_> = jobs.collect();
        jobs.sort_by_key(|(_, tries)| tries.is_none());
        let mut call = self.call(&self.scripts.ack);
        call.key(&self.keys.timer_set);
        for (job, _) in &jobs {
            call.key(self.keys.job(&job.queue, &job.id));
        }
        call.arg(jobs.iter().filter(|(_, tries)| tries.is_none()).count());
        for (job, tries) in &jobs {
            if let Some(tries) = tries {
                call.arg(keys::member(&job.queue, *tries, &job.id));
            }
        }
        call
    }

    /// Acks jobs of one queue independently. Returns the existing jobs whose receipt is no longer valid.
    pub async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        self.common.observers.tell(|observer| observer.acked_together(jobs.len()));
        self.unpack(self.unpack_call(jobs.iter().map(|(id, _)| (queue, id)))).await?;
        let stale: Vec<usize> = self.run(Lane::Delivered, &self.ack_call(queue, jobs)).await?;
        let stale: Option<Vec<JobId>> = stale.iter().map(|n| jobs.get(*n).map(|(id, _)| *id)).collect();
        let stale = stale.ok_or_else(|| Fault::unreadable("ack_many"))?;
        for (id, _) in jobs.iter().filter(|(id, _)| !stale.contains(id)) {
            self.common.handed_out.remove(id);
        }
        Ok(stale)
    }

    fn ack_call(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> ScriptCall {
        let mut cmd = self.call(&self.scripts.ack_many);
        cmd.key(&self.keys.timer_set);
        for (id, _) in jobs {
            cmd.key(self.keys.job(queue, id));
        }
        for (id, receipt) in jobs {
            match receipt {
                Some(receipt) => {
                    cmd.arg(keys::member(queue, receipt.tries_left, id)).arg(receipt.delivery);
                }
                None => {
                    let member = self.common.handed_out.tries(id).map(|tries| keys::member(queue, tries, id));
                    cmd.arg(member.unwrap_or_default()).arg("");
                }
            }
        }
        cmd
    }
}
