//! Ack: coalesced calls become one script call, which also removes the timer members. The members of jobs whose tries
//! this process knows are passed by name, others are searched for (lua/forget.lua). The pump drops a member that
//! remains once it is due. Acks with receipts are sent one call at a time.

use std::cmp::Reverse;
use std::sync::Arc;

use redis::Value;

use crate::engine::batch::{self, Call};
use crate::engine::redis::batches::{self, MAX_WAITING, arrival_of, serve};
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::script_call::ScriptCall;
use crate::engine::redis::link::Lane;
use crate::engine::redis::timer_counts::Timers;
use crate::error::Result;
use crate::job::{JobId, JobRef, Receipt};
use crate::name::Queue;

/// Reply of the script `ack`.
#[derive(Clone, Debug)]
struct AckReply {
    /// Number of jobs deleted.
    deleted: u64,
    /// Number of known timers deleted, and the other timers deleted; `None`: the timer of each job, which ran.
    timers: Option<(usize, Vec<Value>)>,
}

impl AckReply {
    fn read(reply: Value) -> Outcome<AckReply> {
        if let Value::Int(_) = reply {
            return Ok(AckReply { deleted: redis::from_redis_value(reply)?, timers: None });
        }
        let (deleted, removed, gone) = redis::from_redis_value(reply)?;
        Ok(AckReply { deleted, timers: Some((removed, gone)) })
    }
}

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
        self.common.observer.acked_together(jobs.len());
        let tries: Vec<_> = jobs.iter().map(|job| self.common.handed_out.tries(&job.id)).collect();
        let mut call = self.forget(jobs.iter().zip(tries.iter().copied()));
        call.arrived_at(arrived);
        let unpack = self.unpack_call(jobs.iter().map(|job| (&job.queue, &job.id)));
        let outcome: Outcome<AckReply> = match self.unpack(unpack).await {
            Ok(()) => self.run(Lane::Delivered, &call).await.and_then(AckReply::read),
            Err(fault) => Err(fault),
        };
        if let Ok(reply) = &outcome {
            self.count_acked(&jobs, &tries, reply);
            jobs.iter().for_each(|job| _ = self.common.handed_out.remove(&job.id));
        }
        for reply in replies {
            // The send fails if the caller has disconnected.
            let all = |acked: AckReply| acked.deleted == jobs.len() as u64;
            let _ = reply.send(outcome.clone().map(all).map_err(Fault::into));
        }
    }

    /// Counts the timers that an ack has deleted, given the jobs and their tries, as far as they are known.
    fn count_acked(&self, jobs: &[JobRef], tries: &[Option<u16>], reply: &AckReply) {
        let Some((removed, gone)) = &reply.timers else {
            let timers = jobs.iter().map(|job| (&job.queue, Timers::running(-1)));
            return self.timer_counts.add_all(timers);
        };
        let known = jobs.iter().zip(tries).filter(|(_, tries)| tries.is_some()).map(|(job, _)| job);
        let mut known: Vec<&JobRef> = known.collect();
        if *removed < known.len() {
            // The script does not name the missing timers: those due first have been moved.
            known.sort_by_cached_key(|job| Reverse(self.common.handed_out.ends(&job.id)));
            known.truncate(*removed);
        }
        self.timer_counts.add_all(known.into_iter().map(|job| (&job.queue, Timers::running(-1))));
        self.count_gone(gone);
    }

    /// Whether a job that this server has not delivered last may be delayed. An id does not tell of a delay that another
    /// server has set by a release: if such a job is deleted before it is due, a running one is counted in its place.
    fn may_be_delayed(&self, id: &JobId) -> bool {
        self.common.handed_out.ends(id).unwrap_or(0).max(id.first_due()) > self.now()
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
        let unknown = || jobs.iter().filter(|(_, tries)| tries.is_none());
        call.arg(unknown().count()).arg(u8::from(unknown().any(|(job, _)| self.may_be_delayed(&job.id))));
        for (job, tries) in &jobs {
            if let Some(tries) = tries {
                call.arg(keys::member(&job.queue, *tries, &job.id));
            }
        }
        call
    }

    /// Acks jobs of one queue independently. Returns the existing jobs whose receipt is no longer valid.
    pub async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        self.common.observer.acked_together(jobs.len());
        self.unpack(self.unpack_call(jobs.iter().map(|(id, _)| (queue, id)))).await?;
        let reply = self.run(Lane::Delivered, &self.ack_call(queue, jobs)).await?;
        let (stale, gone): (Vec<usize>, Vec<Value>) = reply;
        self.count_gone(&gone);
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
