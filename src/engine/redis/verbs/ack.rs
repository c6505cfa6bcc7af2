//! Ack: coalesced calls become one script call, which also removes the timer members. Of jobs whose tries this process
//! remembers it names them, others are looked for (lua/forget.lua). A member that stays behind is dropped by the pump
//! when it is due. What comes with receipts goes one call at a time.

use std::time::Instant;

use redis::Cmd;

use crate::engine::batch::Call;
use crate::engine::redis::batches::arrival_of;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::layout::keys;
use crate::error::Result;
use crate::job::{JobId, JobRef, Receipt};
use crate::name::Queue;

impl RedisCore {
    /// Acks the jobs of a batch, and answers each call.
    pub async fn ack_batch(&self, batch: Vec<Call<JobRef, ()>>) {
        let arrived = arrival_of(&batch);
        let (jobs, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(Call::split).unzip();
        self.common.observers.tell(|observer| observer.acked_together(jobs.len()));
        let call = || self.forget(jobs.iter().map(|job| (job, self.common.handed_out.remove(&job.id))));
        let outcome: Outcome<u64> = self.run_made(&self.hand_overs, &self.scripts.ack, arrived, call).await;
        for reply in replies {
            // A caller that has left needs no answer.
            let _ = reply.send(outcome.clone().map(drop).map_err(Fault::into));
        }
    }

    /// The call that forgets these jobs, with the timer members of those whose tries are given.
    pub fn forget<'a>(&self, jobs: impl Iterator<Item = (&'a JobRef, Option<u16>)>) -> Cmd {
        let mut jobs: Vec<_> = jobs.collect();
        jobs.sort_by_key(|(_, tries)| tries.is_none());
        let mut call = self.scripts.ack.call(1 + jobs.len());
        call.arg(keys::TIMER_SET);
        for (job, _) in &jobs {
            call.arg(keys::job(&job.queue, &job.id));
        }
        call.arg(jobs.iter().filter(|(_, tries)| tries.is_none()).count());
        for (job, tries) in &jobs {
            if let Some(tries) = tries {
                call.arg(keys::member(&job.queue, *tries, &job.id));
            }
        }
        call
    }

    /// Acks jobs of one queue, each by itself. Answers those that are there and whose receipt does not hold any more.
    pub async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        self.common.observers.tell(|observer| observer.acked_together(jobs.len()));
        let call = || self.ack_call(queue, jobs);
        let stale: Vec<usize> =
            self.run_made(&self.hand_overs, &self.scripts.ack_many, Instant::now(), call).await?;
        let stale: Option<Vec<JobId>> = stale.iter().map(|n| jobs.get(*n).map(|(id, _)| *id)).collect();
        Ok(stale.ok_or_else(|| Fault::unreadable("ack_many"))?)
    }

    fn ack_call(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Cmd {
        let mut cmd = self.scripts.ack_many.call(1 + jobs.len());
        cmd.arg(keys::TIMER_SET);
        for (id, _) in jobs {
            cmd.arg(keys::job(queue, id));
        }
        for (id, receipt) in jobs {
            match receipt {
                Some(receipt) => {
                    cmd.arg(keys::member(queue, receipt.tries_left, id)).arg(receipt.hand_over);
                }
                None => {
                    let member =
                        self.common.handed_out.remove(id).map(|tries| keys::member(queue, tries, id));
                    cmd.arg(member.unwrap_or_default()).arg("");
                }
            }
        }
        cmd
    }
}
