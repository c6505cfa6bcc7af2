//! Ack: coalesced calls become one script call, which also takes the timers of jobs whose tries this process
//! knows. A timer that stays behind is dropped by the pump when it is due.

use std::sync::Arc;

use super::Shared;
use super::connection::connector::Link;
use super::connection::fault::{Fault, Outcome};
use super::connection::worker::Serve;
use super::layout::keys;
use crate::engine::batch::{Bound, Call, Weigh};
use crate::job::JobRef;

/// How many acks go together.
pub const BOUND: Bound = Bound { items: 64, bytes: usize::MAX };

impl Weigh for JobRef {
    fn items(&self) -> usize {
        1
    }
}

/// A lane's hands.
#[derive(Debug)]
pub struct Acker(pub Arc<Shared>);

impl Serve for Acker {
    type Request = JobRef;
    type Reply = ();

    async fn serve(&mut self, link: &mut Link, batch: Vec<Call<JobRef, ()>>) -> Outcome<()> {
        let (jobs, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(Call::split).unzip();
        if jobs.is_empty() {
            return Ok(());
        }
        let mut cmd = self.0.scripts.ack.call(1 + jobs.len());
        cmd.arg(keys::TIMER_SET);
        for job in &jobs {
            cmd.arg(keys::job(&job.queue, &job.id));
        }
        for job in &jobs {
            if let Some(tries) = self.0.running.remove(&job.id) {
                cmd.arg(keys::member(&job.queue, tries, &job.id));
            }
        }
        let outcome = self.0.scripts.ack.run(&mut link.conn, &cmd).await.map(drop).map_err(Fault::from);
        for reply in replies {
            // A caller that has left needs no answer.
            let _ = reply.send(outcome.clone().map_err(|fault| fault.error()));
        }
        outcome
    }
}
