//! Ack: coalesced calls become one script call, which also removes the timer members of jobs whose tries this
//! process remembers. A member that stays behind is dropped by the pump when it is due.

use std::sync::Arc;

use super::RedisCore;
use super::connection::connector::Connection;
use super::connection::fault::{Fault, Outcome};
use super::connection::worker::Handler;
use super::layout::keys;
use crate::engine::batch::{BatchLimit, BatchSize, Call};
use crate::job::JobRef;

/// How many acks go together.
pub const LIMIT: BatchLimit = BatchLimit { items: 64, bytes: usize::MAX };

impl BatchSize for JobRef {
    fn items(&self) -> usize {
        1
    }
}

/// Handles batches of acks.
#[derive(Debug)]
pub struct AckHandler(pub Arc<RedisCore>);

impl Handler for AckHandler {
    type Request = JobRef;
    type Reply = ();

    async fn handle(&mut self, connection: &mut Connection, batch: Vec<Call<JobRef, ()>>) -> Outcome<()> {
        let (jobs, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(Call::split).unzip();
        let script = &self.0.scripts.ack;
        let mut cmd = script.call(1 + jobs.len());
        cmd.arg(keys::TIMER_SET);
        for job in &jobs {
            cmd.arg(keys::job(&job.queue, &job.id));
        }
        for job in &jobs {
            if let Some(tries) = self.0.tries.remove(&job.id) {
                cmd.arg(keys::member(&job.queue, tries, &job.id));
            }
        }
        let outcome = script.run(&mut connection.redis, &cmd).await.map(drop).map_err(Fault::from);
        for reply in replies {
            // A caller that has left needs no answer.
            let _ = reply.send(outcome.clone().map_err(Fault::into));
        }
        outcome
    }
}
