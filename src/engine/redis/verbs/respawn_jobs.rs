//! Respawn by id: one script call per job, which searches near both ends of the dead letter, and a second call with a
//! longer range if the job is not found.

use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep_until, timeout};

use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::times::{micros, ttl_millis};
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::{read, wrong_type};
use crate::engine::redis::timer_counts::Timers;
use crate::engine::{Revival, Revived};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::name::Queue;

/// Number of elements searched from each end of the dead letter. An unsuccessful search takes Redis 0.3 ms.
const REACH: u64 = 10_000;
/// Minimum number of elements, after earlier unsuccessful searches of the same call: 100 of them take 4 ms. A job that
/// is not found is then searched for with [`FAR_REACH`].
const LEAST_REACH: u64 = 1000;
/// Number of elements searched from each end in the second call: up to 3 ms. These searches run one at a time, each
/// followed by a rest nine times as long, so that they use at most a tenth of Redis's time.
const FAR_REACH: u64 = 100_000;
const REST: u32 = 9;
/// Maximum rest, since a longer search was waiting for a busy or unavailable Redis. Also the rest after a search whose
/// caller disconnected.
const LONG_REST: Duration = Duration::from_millis(50);
/// Time that a caller waits for its turn.
const IN_LINE: Duration = Duration::from_secs(5);

impl PartitionCore {
    /// Makes dead jobs ready or delayed again, by id.
    pub async fn respawn_jobs(
        &self,
        queue: &Queue,
        jobs: &[JobId],
        revival: Revival,
    ) -> Result<Vec<Revived>> {
        // Only so that they are known.
        self.unpack(self.unpack_call(jobs.iter().map(|id| (queue, id)))).await?;
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

    /// Like `respawn_job`, with the longer range, one caller at a time.
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

    /// Respawns one job. Also returns whether the whole range was searched without finding it.
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
                    self.timer_counts.add(queue, Timers::delayed(1));
                    self.common.handed_out.release(*id, due);
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
