//! Steps over many jobs: destroy, and the dead letter's respawn and delete. Each in bounded steps, and never more than was
//! there at the start: entries say since when they stand where they stand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::place::place_of;
use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::layout::times::{micros, ttl_millis};
use crate::engine::{Revival, Revived};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::name::Queue;

/// How many jobs one step takes.
const STEP: u64 = 250;

impl CompactCore {
    /// Drops what is ready now. In a task, so that a caller that leaves does not leave half of the steps undone.
    pub async fn destroy(self: &Arc<Self>, queue: &Queue) -> Result<()> {
        let (core, queue) = (self.clone(), queue.clone());
        let task = self.tasks.spawn(async move {
            let home = core.partition_of(&queue);
            let (mut began, mut more) = (0_u64, true);
            while more {
                let mut cmd = core.call(&core.scripts.destroy, home);
                cmd.arg(keys::name(&queue)).arg(began).arg(STEP);
                let (count, bytes): (i64, i64);
                (began, more, count, bytes) =
                    core.ask(home, Lane::Other, &core.scripts.destroy, cmd).await.map_err(Error::from)?;
                core.freed(&queue, [count, bytes, 0]).await;
            }
            Ok(())
        });
        task.await.map_err(Error::away)?
    }

    /// Makes the oldest dead jobs ready again.
    pub async fn respawn_oldest(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        self.take_dead(queue, limit, ttl.map_or(0, |ttl| ttl_millis(ttl) as i64)).await
    }

    /// Deletes the oldest dead jobs.
    pub async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.take_dead(queue, limit, -1).await
    }

    /// With a ttl in milliseconds, or -1 to forget them.
    async fn take_dead(&self, queue: &Queue, limit: u64, ttl: i64) -> Result<u64> {
        let home = self.partition_of(queue);
        let (mut began, mut more, mut done) = (0_u64, true, 0);
        while more && done < limit {
            let mut cmd = self.call(&self.scripts.respawn, home);
            cmd.arg(keys::name(queue)).arg(began).arg(STEP.min(limit - done)).arg(ttl);
            let step = self.ask(home, Lane::Other, &self.scripts.respawn, cmd).await;
            let (count, bytes): (u64, i64);
            (began, more, count, bytes) = step.map_err(|e| Error::from(e).after(done))?;
            done += count;
            if ttl < 0 {
                self.freed(queue, [count as i64, bytes, 0]).await;
            } else if count > 0 {
                self.common.notifiers.notify(queue);
            }
        }
        Ok(done)
    }

    /// Makes dead jobs ready or delayed again, by id.
    pub async fn respawn_jobs(
        &self,
        queue: &Queue,
        jobs: &[JobId],
        revival: Revival,
    ) -> Result<Vec<Revived>> {
        let home = self.partition_of(queue);
        let mut cmd = self.call(&self.scripts.respawn_job, home);
        cmd.arg(keys::name(queue)).arg(revival.tries.get()).arg(micros(revival.delay));
        cmd.arg(self.near_after(home, revival.delay)).arg(revival.ttl.map_or(0, ttl_millis));
        jobs.iter().for_each(|id| _ = cmd.arg(place_of(home, id)));
        let sent = Instant::now();
        let answer: Vec<i64> = self.ask(home, Lane::Other, &self.scripts.respawn_job, cmd).await?;
        let [now, due, each @ ..] = &answer[..] else { return Err(Fault::unreadable("respawn_job").into()) };
        self.learn(home, sent, *now as u64);
        let (now, due, mut any) = (*now as u64, *due as u64, false);
        let mut revived = Vec::with_capacity(each.len());
        for (n, one) in each.iter().enumerate() {
            revived.push(match one {
                1 => {
                    any = true;
                    let due = if due > now { due + n as u64 } else { due };
                    Revived::Done { due_at: due / 1000 }
                }
                0 => Revived::NotDead,
                _ => Revived::NotFound,
            });
        }
        if any && due > now {
            self.stored(home, due);
        } else if any {
            self.common.notifiers.notify(queue);
        }
        Ok(revived)
    }
}
