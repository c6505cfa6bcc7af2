//! Reading replies of scripts, and errors shared by several of them. Sends nothing.

use redis::{FromRedisValue, Value};

use super::connection::fault::Outcome;
use crate::error::Error;
use crate::job::Reason;
use crate::name::JobKey;

/// Reads a value of a reply.
pub fn read<T: FromRedisValue>(value: &Value) -> Outcome<T> {
    Ok(redis::from_redis_value_ref(value)?)
}

pub fn key_of(key: &Value) -> Outcome<Option<JobKey>> {
    Ok(read::<Option<String>>(key)?.and_then(|key| JobKey::parse(&key)))
}

/// Reads the reason in a job's details.
pub fn reason_of(reason: &Value) -> Outcome<Option<Reason>> {
    Ok(read::<Option<String>>(reason)?.and_then(|reason| Reason::new(&reason)))
}

/// Returns the error for a publish of an existing id.
pub fn id_taken() -> Error {
    Error::refused("a job with this id is stored already")
}

/// Returns the error for a publish that exceeds a quota, from the code of lua/quotas.lua.
pub fn over_quota(used_up: u64) -> Error {
    Error::OverQuota(match used_up {
        1 => "jobs",
        2 => "bytes",
        _ => "queues",
    })
}

/// Returns the error for a key of the queue that has the wrong type.
pub fn wrong_type() -> Error {
    Error::refused("a key of the queue has the wrong type")
}
