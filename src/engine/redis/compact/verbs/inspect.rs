//! What is known of a job: peek, inspect by id and by key, and what is remembered of publishes. Changes no job, but for the
//! cancel of a key.

use std::sync::Arc;

use bytes::Bytes;
use redis::Value;

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::id_at;
use super::publish_call::read_replay;
use crate::clock::Micros;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::layout::value;
use crate::engine::redis::reply::{key_of, read, reason_of};
use crate::engine::{By, Once, Published};
use crate::error::{Error, Result};
use crate::job::{Job, JobState, JobView, Receipt};
use crate::name::{JobKey, Queue};

/// How many calls of the script one peek makes.
const MAX_CALLS: usize = 32;

impl CompactCore {
    /// The head that consume would hand out.
    pub async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        let parts = self.parts_of(queue).await?;
        if let [home] = parts[..] {
            return Ok(self.peek_in(home, queue).await?.map(|(_, job)| job));
        }
        let mut heads = Vec::new();
        for (partition, head) in self.ready_heads(queue, &parts).await {
            heads.extend(head?.map(|since| (since, partition)));
        }
        heads.sort_unstable();
        // Behind entries of jobs that are gone may stand younger ones.
        let mut oldest: Option<(Micros, Job)> = None;
        for (since, partition) in heads {
            if oldest.as_ref().is_some_and(|(oldest, _)| *oldest <= since) {
                break;
            }
            if let Some(found) = self.peek_in(partition, queue).await?
                && oldest.as_ref().is_none_or(|(oldest, _)| found.0 < *oldest)
            {
                oldest = Some(found);
            }
        }
        Ok(oldest.map(|(_, job)| job))
    }

    /// The head of a partition, and since when it is ready.
    async fn peek_in(&self, home: Partition, queue: &Queue) -> Result<Option<(Micros, Job)>> {
        for _ in 0..MAX_CALLS {
            let mut cmd = self.call(&self.scripts.peek, home);
            cmd.arg(keys::name(queue)).arg(1);
            let reply: Vec<Value> = self.ask(home, Lane::Other, &self.scripts.peek, cmd).await?;
            match &reply[..] {
                [now, _, place, since, tries, ttl, stored] => {
                    let id =
                        id_at(home, &read::<Vec<u8>>(place)?).ok_or_else(|| Fault::unreadable("peek"))?;
                    let job = value::job(queue, id, read::<Bytes>(stored)?, read(ttl)?, read(now)?)?;
                    return Ok(Some((read(since)?, Job { tries_left: read(tries)?, ..job })));
                }
                [_, more] if !read::<bool>(more)? => return Ok(None),
                [_, _] => {}
                _ => return Err(Fault::unreadable("peek").into()),
            }
        }
        Err(Error::Overloaded)
    }

    /// Since when the head has been ready, in microseconds. `None` also behind many entries of jobs that are gone.
    pub async fn ready_since(&self, home: Partition, queue: &Queue) -> Outcome<Option<Micros>> {
        let mut cmd = self.call(&self.scripts.peek, home);
        cmd.arg(keys::name(queue)).arg(0);
        let reply: Vec<Value> = self.ask(home, Lane::Other, &self.scripts.peek, cmd).await?;
        reply.get(3).map(read).transpose()
    }

    /// All that is known of a job, with its body. The receipt that is valid now, if the job runs with so many tries left.
    pub async fn inspect(
        &self,
        queue: &Queue,
        by: By<'_>,
        held_with: Option<u16>,
    ) -> Result<Option<JobView>> {
        match by {
            By::Id(id) => {
                for (partition, place) in self.find(queue, &id).await? {
                    let found = self.inspect_in(partition, queue, (&place, ""), held_with).await?;
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                Ok(None)
            }
            By::Key(key) => {
                for partition in self.parts_of_key(queue, key).await? {
                    let found = self.inspect_in(partition, queue, (b"", key.as_str()), held_with).await?;
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                Ok(None)
            }
        }
    }

    /// The same of a partition, by a place or a key.
    pub async fn inspect_in(
        &self,
        home: Partition,
        queue: &Queue,
        (place, key): (&[u8], &str),
        held_with: Option<u16>,
    ) -> Result<Option<JobView>> {
        let mut cmd = self.call(&self.scripts.inspect, home);
        cmd.arg(keys::name(queue)).arg(place).arg(key);
        let reply: Vec<Value> = self.ask(home, Lane::Other, &self.scripts.inspect, cmd).await?;
        let [now, place, state, due, tries, ttl, key, reason, stored] = &reply[..] else { return Ok(None) };
        let id = id_at(home, &read::<Vec<u8>>(place)?).ok_or_else(|| Fault::unreadable("inspect"))?;
        let state = JobState::parse(&read::<String>(state)?).ok_or_else(|| Fault::unreadable("inspect"))?;
        let (now, hand_over): (Micros, Micros) = (read(now)?, read(due)?);
        let job = value::job(queue, id, read::<Bytes>(stored)?, read(ttl)?, now)?;
        let tries_left = if state == JobState::Dead { 0 } else { read(tries)? };
        let is_held = state == JobState::Running && hand_over > now && held_with == Some(tries_left);
        Ok(Some(JobView {
            state: Some(state),
            due_at: Some(hand_over / 1000),
            tries_left: Some(tries_left),
            receipt: is_held.then_some(Receipt { hand_over, tries_left }),
            key: key_of(key)?,
            reason: reason_of(reason)?,
            ..job.into()
        }))
    }

    /// What became of a call that is safe to repeat, if it is remembered.
    pub async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        for partition in self.parts_of_request(queue, &once.key).await? {
            let found = self.recall_in(partition, queue, once).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The same of one partition.
    pub async fn recall_in(&self, home: Partition, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        let key = keys::once(self.partitions.base(home), queue, &once.key);
        let done: Option<Vec<u8>> = self.query(home, redis::cmd("GET").arg(key)).await?;
        let Some(done) = done else { return Ok(None) };
        // The publish may have been answered with an error since its replicas did not have it.
        self.replicas_have_all(home).await?;
        let Some(placed) = done.strip_prefix(&once.fingerprint) else { return Ok(Some(Published::Mismatch)) };
        let replay = read_replay(home, placed);
        replay.map(Some).ok_or_else(|| Error::corrupt("the record of a publish cannot be read"))
    }

    /// Forgets the job that has this key.
    pub async fn cancel_key(self: &Arc<Self>, queue: &Queue, key: &JobKey) -> Result<bool> {
        for partition in self.parts_of_key(queue, key).await? {
            let mut cmd = self.call(&self.scripts.cancel_key, partition);
            cmd.arg(keys::name(queue)).arg(key.as_str());
            let (count, bytes): (i64, i64) =
                self.ask(partition, Lane::Other, &self.scripts.cancel_key, cmd).await?;
            self.freed(queue, [count, bytes, 0]).await;
            if count == 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
