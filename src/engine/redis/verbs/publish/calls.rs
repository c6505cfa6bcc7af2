//! Checks and divides the publishes of a batch before it is sent. Uses no connection.

use std::collections::HashSet;

use super::script::jobs_of;
use crate::clock::Millis;
use crate::engine::batch::{Call, Reply};
use crate::engine::redis::batches::{Plain, bytes_of};
use crate::engine::redis::reply::id_taken;
use crate::engine::{Placing, Publication, Published};
use crate::error::{Error, Result};
use crate::job::JobRef;

/// Maximum bytes of values in one script call. A single value may be larger.
pub const MAX_VALUES: usize = 1 << 20;
/// Latest due time, in the year 2255: Lua's numbers are exact up to here, with a margin for additions. HTTP accepts at
/// most 136 years.
pub const LATEST: Millis = ((1 << 53) - (1 << 30)) / 1000;

pub fn is_plain(publication: &Publication) -> bool {
    publication.once.is_none() && publication.jobs.iter().all(|job| job.key.is_none() && job.at.is_none())
}

/// Whether the values are too large for one script call, and are staged.
pub fn is_large(calls: &[Publication]) -> bool {
    let alone = matches!(calls, [call] if call.jobs.len() == 1);
    !alone && jobs_of(calls).map(bytes_of).sum::<usize>() > MAX_VALUES
}

/// Returns the jobs, with their tries, of the calls that can be undone. Excludes calls with a key or an idempotency
/// key, since another caller may already know their jobs, and calls that replace a job, which is already deleted.
pub fn names_to_take_back(calls: &[Publication]) -> Vec<(usize, Vec<(JobRef, u16)>)> {
    let may = |Publication { jobs, replaces, once }: &Publication| {
        replaces.is_none() && once.is_none() && jobs.iter().all(|placing| placing.key.is_none())
    };
    let name =
        |Placing { job, .. }: &Placing| (JobRef { queue: job.queue.clone(), id: job.id }, job.tries.get());
    let calls = calls.iter().enumerate().filter(|(_, call)| may(call));
    calls.map(|(i, call)| (i, call.jobs.iter().map(name).collect())).collect()
}

/// Rejects publishes that can never be stored.
pub fn check(publication: &Publication) -> Result<()> {
    let (mut ids, mut taken) = (HashSet::new(), HashSet::new());
    for Placing { job, at, key } in &publication.jobs {
        if !ids.insert((&job.queue, job.id)) {
            return Err(id_taken());
        }
        if at.is_some_and(|at| at > LATEST) {
            return Err(Error::refused("the due time is too far in the future"));
        }
        if let Some((key, _)) = key
            && !taken.insert((&job.queue, key))
        {
            return Err(Error::refused("two jobs of one publish have the same key"));
        }
    }
    Ok(())
}

/// Drops calls whose callers have disconnected, and rejects calls with an id that another job of the batch has, which
/// can never be stored. Returns the others.
pub fn calls_to_send(batch: Vec<Call<Plain, Published>>) -> (Vec<Publication>, Vec<Reply<Published>>) {
    let mut seen = HashSet::new();
    let (mut calls, mut replies) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
    for call in batch {
        let (Plain { publication, taken }, reply) = call.split();
        if !taken.take() {
            continue; // it was taken by another partition
        }
        let fresh =
            publication.jobs.iter().all(|Placing { job, .. }| seen.insert((job.queue.clone(), job.id)));
        if reply.is_abandoned() {
            // The caller disconnected. Nothing was sent, so nothing is stored.
        } else if fresh {
            calls.push(publication);
            replies.push(reply);
        } else {
            let _ = reply.send(Err(id_taken())); // fails if the caller has disconnected
        }
    }
    (calls, replies)
}
