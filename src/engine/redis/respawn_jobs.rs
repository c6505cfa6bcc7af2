//! Respawn by id. Where a dead job stands is looked up in steps; one script call for each job checks that, and does the
//! step.

use std::collections::{HashMap, HashSet};

use redis::Value;

use super::RedisCore;
use super::connection::fault::Fault;
use super::inspect::read;
use super::layout::keys;
use super::publish::{micros, ttl_millis};
use crate::engine::{Revival, Revived};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::name::Queue;

/// How many elements one look reads.
const LOOK: u64 = 500;
/// How often a job is looked for again that others have moved meanwhile.
const MAX_LOOKS: usize = 10;

impl RedisCore {
    /// Makes dead jobs ready or delayed again, by id.
    pub async fn respawn_jobs(
        &self,
        queue: &Queue,
        jobs: &[JobId],
        revival: Revival,
    ) -> Result<Vec<Revived>> {
        let mut revived = vec![None; jobs.len()];
        for _ in 0..MAX_LOOKS {
            let left: Vec<JobId> =
                jobs.iter().zip(&revived).filter(|(_, done)| done.is_none()).map(|(id, _)| *id).collect();
            if left.is_empty() {
                break;
            }
            let older = self.places_among_dead(queue, &left).await?;
            for (id, done) in jobs.iter().zip(&mut revived).filter(|(_, done)| done.is_none()) {
                *done = self.respawn_job(queue, id, older.get(id).copied(), revival).await?;
            }
        }
        revived.into_iter().map(|done| done.ok_or(Error::Overloaded)).collect()
    }

    /// How many elements are older than each of these jobs. Those that are not dead have no place. Reads the dead letter
    /// in steps, and only as far as there is one to be found.
    async fn places_among_dead(&self, queue: &Queue, jobs: &[JobId]) -> Result<HashMap<JobId, u64>> {
        let mut ttls = redis::pipe();
        for id in jobs {
            ttls.cmd("PTTL").arg(keys::job(queue, id));
        }
        let ttls: Vec<i64> = self.shared.query_all(&ttls).await?;
        // What has an expiry lives.
        let mut wanted: HashSet<JobId> =
            jobs.iter().zip(ttls).filter(|(_, ttl)| *ttl == -1).map(|(id, _)| *id).collect();
        let (mut places, mut passed) = (HashMap::new(), 0);
        while !wanted.is_empty() {
            let elements = self.elements(&keys::dead(queue), passed, passed + LOOK).await?;
            for (at, element) in (passed..).zip(&elements) {
                if let Some(id) = keys::id_of_element(element).filter(|id| wanted.remove(id)) {
                    places.insert(id, at);
                }
            }
            if (elements.len() as u64) < LOOK {
                break;
            }
            passed += LOOK;
        }
        Ok(places)
    }

    /// `None`: it is to be looked for again.
    async fn respawn_job(
        &self,
        queue: &Queue,
        id: &JobId,
        older: Option<u64>,
        revival: Revival,
    ) -> Result<Option<Revived>> {
        let script = &self.scripts.respawn_job;
        let mut cmd = script.call(5);
        cmd.arg(keys::dead(queue)).arg(keys::ready(queue)).arg(keys::TIMER_SET).arg(keys::job(queue, id));
        cmd.arg(keys::details(queue, id)).arg(id.to_string());
        cmd.arg(older.map_or(-1, |older| older as i64)).arg(revival.tries.get()).arg(micros(revival.delay));
        cmd.arg(revival.ttl.map_or(0, ttl_millis)).arg(keys::member_prefix(queue));
        let sent = self.clock.mark();
        let reply: Vec<Value> = self.run(&self.shared, script, cmd).await?;
        let [now, what, more @ ..] = reply.as_slice() else {
            return Err(Fault::unreadable("respawn_job").into());
        };
        self.clock.learn(sent, read(now)?);
        Ok(Some(match (&*read::<String>(what)?, more) {
            ("done", [due, ready]) => {
                let due: u64 = read(due)?;
                if read(ready)? {
                    self.notifiers.notify(queue);
                } else {
                    self.next_due.stored(due);
                }
                Revived::Done { due_at: due / 1000 }
            }
            ("alive", _) => Revived::NotDead,
            ("gone", _) => Revived::NotFound,
            ("moved", _) => return Ok(None),
            ("type", _) => {
                return Err(Error::refused("a key of the queue is not of the type that it must be"));
            }
            _ => return Err(Fault::unreadable("respawn_job").into()),
        }))
    }
}
