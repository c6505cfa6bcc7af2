//! What every server works out alike from the names of an occurrence, without asking another: its jitter, and the id of
//! its job.

use jiff::tz::Offset;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::when::Occurrence;
use crate::clock::Millis;
use crate::job::JobId;
use crate::name::{Namespace, ScheduleName};

/// How long after its due time an occurrence is placed, of `most` at most: the same on every server and for ever.
pub fn jitter(name: &ScheduleName, due: Millis, most: Millis) -> Millis {
    if most == 0 {
        return 0;
    }
    let mut bytes = name.as_str().as_bytes().to_vec();
    bytes.extend(due.to_be_bytes());
    xxh3_64(&bytes) % (most + 1)
}

/// The id of an occurrence's job, the same whenever it is placed: its time is the due time, its delay is none, and the
/// bits between come from the names of the namespace and the schedule and from the occurrence's identity, which by the
/// clock is the local time. It is versioned, since the job has attributes. A store of several parts writes into it where the
/// job lies.
pub fn job_id(namespace: &Namespace, name: &ScheduleName, occurrence: &Occurrence) -> JobId {
    let mut hash = Xxh3::new();
    for text in [namespace.as_str(), name.as_str()] {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    }
    // Local times as if they were UTC, told apart from instants.
    let local = occurrence.local.and_then(|local| Offset::UTC.to_timestamp(local).ok());
    match local {
        Some(local) => hash.update(&[&b"local"[..], &local.as_second().to_be_bytes()].concat()),
        None => hash.update(&occurrence.due.to_be_bytes()),
    }
    JobId::from_parts(occurrence.due, hash.digest(), 0, true)
}
