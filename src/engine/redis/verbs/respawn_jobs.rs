//! Respawn by id: one script call for each job, which looks for it near both ends of the dead letter, and a second one
//! where that is not enough.

use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep_until, timeout};

use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::times::{micros, ttl_millis};
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::{read, wrong_type};
use crate::engine::{Revival, Revived};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::name::Queue;

/// How far from either end of the dead letter a job is looked for: 0.3 ms of the Redis for one that is not there.
const REACH: u64 = 10_000;
/// And at least, when the same call has looked for others in vain: 100 of them take 4 ms. One that is not found so near
/// is looked for far away.
const LEAST_REACH: u64 = 1000;
/// How far from either end it is looked for where that was not enough: up to 3 ms of the Redis. There is
/// one such look at a time, and then a rest that is nine times as long, so that all of them take a tenth of it.
const FAR_REACH: u64 = 100_000;
const REST: u32 = 9;
/// The longest rest: a look that took longer waited for a Redis that was busy or away. And the rest after a look whose
/// caller has left.
const LONG_REST: Duration = Duration::from_millis(50);
/// How long a caller waits for its turn, which begins after the rest of the one before it.
const IN_LINE: Duration = Duration::from_secs(5);

impl PartitionCore {
    /// Makes dead jobs ready or delayed again, by id.
    pub async fn respawn_jobs(
        &self,
        queue: &Queue,
        jobs: &[JobId],
        revival: Revival,
    ) -> Result<Vec<Revived>> {
        let (mut revived, mut in_vain) = (Vec::with_capacity(jobs.len()), 0);
        for id in jobs {
            let reach = (REACH / (1 + in_vain)).max(LEAST_REACH);
            let mut step = self.respawn_job(queue, id, reach, revival).await;
            if matches!(step, Ok((Revived::OutOfReach, _))) {
                step = self.respawn_far_job(queue, id, revival).await;
            }
            let (answer, looked) = step.map_err(|e| e.after(revived.len() as u64))?;
            in_vain += u64::from(looked);
            revived.push(answer);
        }
        Ok(revived)
    }

    /// The same in a long dead letter, when it is this caller's turn.
    async fn respawn_far_job(&self, queue: &Queue, id: &JobId, revival: Revival) -> Result<(Revived, bool)> {
        let turn = async {
            let rested = self.far_looks.lock().await;
            if let Some(rested) = *rested {
                sleep_until(rested).await;
            }
            rested
        };
        let Ok(mut rested) = timeout(IN_LINE, turn).await else {
            return Err(Error::Overloaded);
        };
        let began = Instant::now();
        *rested = Some(began + LONG_REST);
        let step = self.respawn_job(queue, id, FAR_REACH, revival).await;
        *rested = Some(Instant::now() + (began.elapsed() * REST).min(LONG_REST));
        step
    }

    /// Answers also whether it was looked for in vain.
    async fn respawn_job(
        &self,
        queue: &Queue,
        id: &JobId,
        reach: u64,
        revival: Revival,
    ) -> Result<(Revived, bool)> {
        let script = &self.scripts.respawn_job;
        let mut cmd = self.call(script);
        cmd.key(self.keys.dead(queue)).key(self.keys.ready(queue));
        cmd.key(&self.keys.timer_set).key(self.keys.job(queue, id));
        cmd.arg(id.to_string()).arg(reach).arg(revival.tries.get()).arg(micros(revival.delay));
        cmd.arg(revival.ttl.map_or(0, ttl_millis)).arg(keys::member_prefix(queue));
        cmd.arg(keys::group(queue));
        let sent = std::time::Instant::now();
        let reply: Vec<Value> = self.run(Lane::Other, &cmd).await?;
        let [now, what, more @ ..] = reply.as_slice() else {
            return Err(Fault::unreadable("respawn_job").into());
        };
        self.learn(sent, read(now)?);
        Ok(match (&*read::<String>(what)?, more) {
            ("done", [due, ready]) => {
                let due: u64 = read(due)?;
                if read(ready)? {
                    self.tell_ready(queue);
                } else {
                    self.stored(due);
                }
                (Revived::Done { due_at: due / 1000 }, false)
            }
            ("alive", _) => (Revived::NotDead, false),
            ("absent", _) => (Revived::NotDead, true),
            ("far", _) => (Revived::OutOfReach, true),
            ("gone", _) => (Revived::NotFound, false),
            ("type", _) => return Err(wrong_type()),
            _ => return Err(Fault::unreadable("respawn_job").into()),
        })
    }
}
