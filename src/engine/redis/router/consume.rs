//! Consume. Consecutive queues of the list with the same home share one script call. A spread queue is consumed
//! separately: its consumes rotate over the partitions that may have jobs, so that backlogs drain evenly. A reply
//! without `more` means that every reachable partition was seen empty during the call.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Router;
use crate::engine::redis::cluster::map::Partition;
use crate::engine::redis::pool::Place;
use crate::engine::{Consumed, together};
use crate::error::{Error, Result, Unreachable};
use crate::name::{Queue, QueueList};

/// Maximum partitions consumed from concurrently, when each has few jobs.
const AT_A_TIME: usize = 16;

/// Partitions that could not be reached, and why.
type Failed = BTreeMap<Partition, Unreachable>;

impl Router {
    /// Delivers up to one job per ttr.
    pub async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let queues: Vec<Queue> = queues.queues().collect();
        if let Some(only) = self.only() {
            return only.consume(queues, ttrs, true).await;
        }
        let mut consumed = Consumed::default();
        // Queues that were not seen empty, and why.
        let mut unseen: Option<(Unreachable, Vec<Queue>)> = None;
        let mut rest = &queues[..];
        while let Some(first) = rest.first() {
            let ttrs = &ttrs[consumed.jobs.len()..];
            if ttrs.is_empty() {
                break;
            }
            let asked = if self.spreading.is_everywhere(first) {
                rest = &rest[1..];
                Box::pin(self.consume_everywhere(first, ttrs, queues.len() == 1)).await
            } else {
                let home = self.partitions.home(first);
                let same = |queue: &&Queue| {
                    self.partitions.home(queue) == home && !self.spreading.is_everywhere(queue)
                };
                let (some, behind) = rest.split_at(rest.iter().take_while(same).count().max(1));
                rest = behind;
                self.part(home).consume(some.to_vec(), ttrs, true).await
            };
            match asked {
                Ok(some) => {
                    consumed.jobs.extend(some.jobs);
                    (consumed.more, consumed.notifies) = (some.more, some.notifies);
                }
                // The queues after it are still served.
                Err(Error::Unseen(why, some)) => unseen.get_or_insert((why, Vec::new())).1.extend(some),
                // Delivered jobs are returned to the caller.
                Err(_) if !consumed.jobs.is_empty() => consumed.more = true,
                Err(error) => return Err(error),
            }
            // A queue is served only if all queues before it were seen empty.
            if consumed.more {
                break;
            }
        }
        match unseen {
            Some((why, queues)) if consumed.jobs.is_empty() && !consumed.more => {
                Err(Error::Unseen(why, queues))
            }
            unseen => {
                consumed.more |= unseen.is_some();
                Ok(consumed)
            }
        }
    }

    /// Like `consume`, from a queue that may have jobs in any partition. `alone`: no other queue is consumed after it, so
    /// partitions that may have jobs are enough, and whether the others have some can stay open.
    async fn consume_everywhere(&self, queue: &Queue, ttrs: &[Duration], alone: bool) -> Result<Consumed> {
        let hints = self.spreading.hints(queue);
        let (mut consumed, mut failed) = (Consumed::default(), Failed::new());
        let (mut read, mut looked, mut waited) = (false, false, false);
        // Bounded, since other calls publish meanwhile.
        for _ in 0..8 * self.parts.len() {
            let rest = &ttrs[consumed.jobs.len()..];
            if rest.is_empty() {
                return Ok(consumed);
            }
            // With different ttrs one partition at a time, since any of them may have the next job.
            let most = match hints.lock().few {
                Some(few) if rest.iter().all(|ttr| *ttr == rest[0]) => {
                    rest.len().div_ceil(few.max(1)).min(AT_A_TIME).min(rest.len())
                }
                _ => 1,
            };
            let asked = hints.lock().take(most, |partition| failed.contains_key(&partition));
            if asked.is_empty() {
                if !looked {
                    let followed = std::mem::replace(&mut hints.lock().followed, read);
                    // Reading all partitions after each job would cost more than the job. The dispatcher also consumes
                    // again for a notice that came during the last consume.
                    if (read || followed) && alone && failed.is_empty() && self.notifies_of(queue) {
                        (consumed.more, consumed.notifies) = (true, true);
                        return Ok(consumed);
                    }
                    looked = true;
                    let reading = hints.lock().begin_reading();
                    self.look(queue, &mut failed).await;
                    match failed.is_empty() {
                        true => hints.lock().end_reading(reading),
                        false => hints.lock().mark_unread(),
                    }
                } else if consumed.jobs.is_empty() && !failed.is_empty() && !waited {
                    (looked, waited) = (false, true);
                    self.wait_for(queue, std::mem::take(&mut failed)).await?;
                } else {
                    break;
                }
                continue;
            }
            read = true;
            let share = &rest[..rest.len() / asked.len()];
            let question = hints.lock().asks();
            let answers = asked
                .iter()
                .map(|partition| self.part(*partition).consume(vec![queue.clone()], share, false));
            let (had, mut is_over, mut refused) = (consumed.jobs.len(), false, None);
            for (partition, answer) in asked.iter().zip(together::all(answers).await) {
                match answer {
                    Ok(some) => {
                        if some.jobs.len() < share.len() && !some.more {
                            hints.lock().is_empty(*partition, question);
                        }
                        is_over |= some.more;
                        consumed.jobs.extend(some.jobs);
                    }
                    Err(Error::Unreachable(why)) => _ = failed.insert(*partition, why),
                    Err(error) => refused = Some(error),
                }
            }
            let came = consumed.jobs.len() - had;
            looked &= came == 0;
            let short = came < share.len() * asked.len() && !is_over;
            hints.lock().few = short.then_some(came / asked.len());
            if is_over || refused.is_some() {
                consumed.more = true;
                return refused.filter(|_| consumed.jobs.is_empty()).map_or(Ok(consumed), Err);
            }
        }
        if let (true, Some(why)) = (consumed.jobs.is_empty(), failed.values().next()) {
            return Err(Error::Unseen(*why, vec![queue.clone()]));
        }
        // There may be jobs in partitions that were not read.
        consumed.more = !failed.is_empty() || !looked;
        Ok(consumed)
    }

    /// Whether a partition without a hint has no jobs of this queue, or soon a hint: a consumer waits for the queue, all
    /// partitions were read since, and all nodes report changed lists.
    fn notifies_of(&self, queue: &Queue) -> bool {
        let Place::Cluster(cluster) = &self.pool.place else { return false };
        self.pool.common.notifiers.waits_for(queue)
            && self.spreading.hints(queue).lock().is_read()
            && cluster.nodes().iter().all(|(link, _)| link.connections.are_up())
    }

    /// Finds the partitions with jobs. Skips partitions that have already failed.
    async fn look(&self, queue: &Queue, failed: &mut Failed) {
        let parts: Vec<Partition> =
            self.partitions.all().filter(|partition| !failed.contains_key(partition)).collect();
        let exists = self.read_each::<bool>(&parts, false, |part| redis::Cmd::exists(part.keys.ready(queue)));
        for (partition, has_jobs) in exists.await {
            match has_jobs.map_err(Error::from) {
                Ok(true) => self.spreading.notify(queue, partition),
                Ok(false) => {}
                Err(Error::Unreachable(why)) => _ = failed.insert(partition, why),
                // The node does not reply, or the connection failed, so the partition's state is unknown.
                Err(_) => _ = failed.insert(partition, Unreachable::Away),
            }
        }
    }

    /// Waits, as any call does, for partitions that could not be reached, after the others were seen empty. Reads their
    /// guard keys, which are never written: while a slot migrates, an existing list can still be read, but no script
    /// can start.
    async fn wait_for(&self, queue: &Queue, failed: Failed) -> Result<()> {
        let parts: Vec<Partition> = failed.into_keys().collect();
        let guards = self.read_each::<u8>(&parts, true, |part| redis::Cmd::exists(part.keys.guard()));
        for (_, answer) in guards.await {
            answer.map_err(|fault| match Error::from(fault) {
                Error::Unreachable(why) => Error::Unseen(why, vec![queue.clone()]),
                error => error,
            })?;
        }
        Ok(())
    }
}
