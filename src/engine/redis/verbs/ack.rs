//! Ack: coalesced calls become one script call, which also removes the timer members. Of jobs whose tries this process
//! remembers it names them, others are looked for (lua/forget.lua). A member that stays behind is dropped by the pump
//! when it is due. What comes with receipts goes one call at a time.

use std::time::Instant;

use redis::{Cmd, Value};

use crate::engine::batch::Call;
use crate::engine::redis::batches::arrival_of;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::timer_counts::Change;
use crate::error::Result;
use crate::job::{JobId, JobRef, Receipt};
use crate::name::Queue;

impl RedisCore {
    /// Acks the jobs of a batch, and answers each call.
    pub async fn ack_batch(&self, batch: Vec<Call<JobRef, ()>>) {
        let arrived = arrival_of(&batch);
        let (jobs, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(Call::split).unzip();
        self.common.observers.tell(|observer| observer.acked_together(jobs.len()));
        let mut known = Vec::with_capacity(jobs.len());
        let call = || {
            let jobs = jobs.iter().map(|job| (job, self.common.handed_out.remove(&job.id)));
            self.forget(jobs.inspect(|(_, tries)| known.push(tries.is_some())))
        };
        let outcome: Outcome<Value> = self.run_made(&self.hand_overs, &self.scripts.ack, arrived, call).await;
        let outcome = outcome.and_then(|reply| self.acked(&jobs, &known, reply));
        for reply in replies {
            // A caller that has left needs no answer.
            let _ = reply.send(outcome.clone().map_err(Fault::into));
        }
    }

    /// Counts the timers that an ack has removed. `known` says of each job whether its timer was named: it ran.
    fn acked(&self, jobs: &[JobRef], known: &[bool], reply: Value) -> Outcome<()> {
        let (gone, others) = match reply {
            Value::Array(_) => {
                let (_, gone, others): (u64, usize, Vec<Value>) = redis::from_redis_value(reply)?;
                (gone, others)
            }
            // All were there and ran; or the timers that were named are gone, and no others.
            reply => {
                let all = redis::from_redis_value::<usize>(reply)? == jobs.len();
                let ran = jobs.iter().zip(known).filter(|(_, known)| all || **known);
                ran.for_each(|(job, _)| self.timer_counts.running(&job.queue, -1));
                return Ok(());
            }
        };
        // In a batch of several queues nobody knows whose timers were gone before: the recount corrects that.
        let ran = jobs.iter().zip(known).filter(|(_, known)| **known).take(gone);
        ran.for_each(|(job, _)| self.timer_counts.running(&job.queue, -1));
        self.timers_gone(&others)
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
        let (stale, delayed, running): (Vec<usize>, i64, i64) =
            self.run_made(&self.hand_overs, &self.scripts.ack_many, Instant::now(), call).await?;
        self.timer_counts.add(queue, Change { delayed: -delayed, running: -running });
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
