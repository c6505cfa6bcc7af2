//! Values that every server derives from the names of an occurrence without communication: its jitter, and its job
//! id.

use jiff::tz::Offset;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::when::Occurrence;
use crate::clock::Millis;
use crate::job::JobId;
use crate::name::{IdempotencyKey, Namespace, ScheduleName};

/// Returns how long after its due time an occurrence is placed, at most `most`: the same on every server and in every
/// version.
pub fn jitter(name: &ScheduleName, due: Millis, most: Millis) -> Millis {
    if most == 0 {
        return 0;
    }
    let mut bytes = name.as_str().as_bytes().to_vec();
    bytes.extend(due.to_be_bytes());
    xxh3_64(&bytes) % (most + 1)
}

/// Returns the id of an occurrence's job, which does not depend on when it is placed. Its time is the due time, its
/// delay is 0, and the bits between are a hash of the namespace, the schedule and the occurrence's identity (with a
/// clock rule, the local time). It is versioned, since the job has attributes. A partitioned store writes the job's
/// partition into it.
pub fn job_id(namespace: &Namespace, name: &ScheduleName, occurrence: &Occurrence) -> JobId {
    let mut hash = Xxh3::new();
    for text in [namespace.as_str(), name.as_str()] {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    }
    // Local times as if they were UTC, distinguished from instants.
    let local = occurrence.local.and_then(|local| Offset::UTC.to_timestamp(local).ok());
    match local {
        Some(local) => hash.update(&[&b"local"[..], &local.as_second().to_be_bytes()].concat()),
        None => hash.update(&occurrence.due.to_be_bytes()),
    }
    JobId::from_parts(occurrence.due, hash.digest(), 0, true)
}

/// Returns the idempotency key of an occurrence's publish, made of the schedule's name and [`job_id`]. No client can
/// use the same key, since a header cannot contain a byte of value 0.
pub fn occurrence_key(name: &ScheduleName, id: JobId) -> IdempotencyKey {
    let key = [b"schedule\0", name.as_str().as_bytes(), b"\0", id.to_string().as_bytes()].concat();
    IdempotencyKey::new(&key).expect("a name has at most 100 bytes, and an id 27")
}
