//! Steps over many jobs: destroy, and the dead letter's respawn and delete. Each in bounded steps, and never more than was
//! there at the start: entries say since when they stand where they stand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::place_of;
use super::queues::since;
use crate::engine::redis::connection::fault::{Fault, Outcome};
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
            let mut done = 0;
            for partition in core.parts_of(&queue).await? {
                let (mut began, mut more) = (0_u64, true);
                while more {
                    let mut cmd = core.call(&core.scripts.destroy, partition);
                    cmd.arg(keys::name(&queue)).arg(began).arg(STEP);
                    let (count, bytes): (i64, i64);
                    (began, more, count, bytes) = core
                        .ask(partition, Lane::Other, &core.scripts.destroy, cmd)
                        .await
                        .map_err(|fault| Error::from(fault).after(done))?;
                    done += count as u64;
                    core.freed(&queue, [count, bytes, 0]).await;
                }
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

    /// With a ttl in milliseconds, or -1 to forget them. Of a queue that is spread the oldest of all partitions first: none
    /// before one that is older by more than the bound.
    async fn take_dead(&self, queue: &Queue, limit: u64, ttl: i64) -> Result<u64> {
        let parts = self.parts_of(queue).await?;
        let mut began: BTreeMap<Partition, u64> = BTreeMap::new();
        let mut over: BTreeSet<Partition> = BTreeSet::new();
        let mut done = 0;
        while done < limit {
            let (partition, until) = match parts[..] {
                [home] => (home, None),
                _ => match self
                    .oldest_dead(queue, &parts, &over)
                    .await
                    .map_err(|e| Error::from(e).after(done))?
                {
                    Some((partition, until)) => (partition, Some(until)),
                    None => break,
                },
            };
            let mut cmd = self.call(&self.scripts.respawn, partition);
            cmd.arg(keys::name(queue)).arg(began.get(&partition).copied().unwrap_or(0));
            cmd.arg(STEP.min(limit - done)).arg(ttl);
            cmd.arg(until.map_or_else(String::new, |until: u64| until.to_string()));
            let step = self.ask(partition, Lane::Other, &self.scripts.respawn, cmd).await;
            let (since, more, count, bytes): (u64, bool, u64, i64) =
                step.map_err(|e| Error::from(e).after(done))?;
            began.insert(partition, since);
            done += count;
            if ttl < 0 {
                self.freed(queue, [count as i64, bytes, 0]).await;
            } else if count > 0 {
                self.tell_ready_again(partition, queue);
            }
            match until {
                None if !more => break,
                // What is left there has died since.
                Some(_) if count == 0 && !more => _ = over.insert(partition),
                _ => {}
            }
        }
        Ok(done)
    }

    /// The partition with the oldest dead job of those that are not over, and when jobs must have died there to be next.
    async fn oldest_dead(
        &self,
        queue: &Queue,
        parts: &[Partition],
        over: &BTreeSet<Partition>,
    ) -> Outcome<Option<(Partition, u64)>> {
        let first = |partition: Partition| {
            let mut cmd = redis::cmd("LINDEX");
            cmd.arg(keys::dead(self.partitions.base(partition), queue)).arg(0);
            cmd
        };
        let left: Vec<Partition> =
            parts.iter().filter(|partition| !over.contains(partition)).copied().collect();
        let heads = self.query_each(&left, first).await;
        let mut all = Vec::new();
        for (partition, head) in heads {
            let head: Option<Vec<u8>> = head?;
            all.extend(head.and_then(|head| since(&head)).map(|at| (at, partition)));
        }
        all.sort_unstable();
        let ahead = micros(self.spreading.rules.ahead);
        Ok(match all[..] {
            [] => None,
            [(_, partition)] => Some((partition, u64::MAX >> 11)),
            [(oldest, partition), (next, _), ..] => Some((partition, (next + ahead).max(oldest))),
        })
    }

    /// Makes dead jobs ready or delayed again, by id.
    pub async fn respawn_jobs(
        &self,
        queue: &Queue,
        jobs: &[JobId],
        revival: Revival,
    ) -> Result<Vec<Revived>> {
        let home = self.partition_of(queue);
        let mut revived = vec![Revived::NotFound; jobs.len()];
        let mut parts: BTreeMap<Partition, Vec<usize>> = BTreeMap::new();
        let named = self.partitions_named(queue, jobs).await?;
        named.into_iter().enumerate().for_each(|(n, partition)| parts.entry(partition).or_default().push(n));
        let mut done = 0;
        for (partition, of) in parts {
            for at in [Some(partition), (partition != home).then_some(home)].into_iter().flatten() {
                let left: Vec<usize> =
                    of.iter().filter(|n| revived[**n] == Revived::NotFound).copied().collect();
                if left.is_empty() {
                    break;
                }
                let ids: Vec<JobId> = left.iter().map(|n| jobs[*n]).collect();
                let each = self.respawn_in(at, queue, &ids, revival).await;
                let each = each.map_err(|error| error.after(done))?;
                done += each.iter().filter(|one| matches!(one, Revived::Done { .. })).count() as u64;
                left.iter().zip(each).for_each(|(n, one)| revived[*n] = one);
            }
        }
        Ok(revived)
    }

    /// Those that lie there.
    async fn respawn_in(
        &self,
        home: Partition,
        queue: &Queue,
        jobs: &[JobId],
        revival: Revival,
    ) -> Result<Vec<Revived>> {
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
            self.tell_ready_again(home, queue);
        }
        Ok(revived)
    }
}
