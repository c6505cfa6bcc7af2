//! What the answers of scripts are read with, and the refusals that several of them give. Sends nothing.

use redis::{FromRedisValue, Value};

use super::connection::fault::Outcome;
use crate::error::Error;
use crate::job::Reason;
use crate::name::JobKey;

/// A value of an answer.
pub fn read<T: FromRedisValue>(value: &Value) -> Outcome<T> {
    Ok(redis::from_redis_value_ref(value)?)
}

pub fn key_of(key: &Value) -> Outcome<Option<JobKey>> {
    Ok(read::<Option<String>>(key)?.and_then(|key| JobKey::parse(&key)))
}

/// The reason in a job's details.
pub fn reason_of(reason: &Value) -> Outcome<Option<Reason>> {
    Ok(read::<Option<String>>(reason)?.and_then(|reason| Reason::new(&reason)))
}

/// A publish of an id that is there.
pub fn id_taken() -> Error {
    Error::refused("a job with this id is stored already")
}

/// A publish for which there is no room: what lua/quotas.lua answers.
pub fn over_quota(used_up: u64) -> Error {
    Error::OverQuota(match used_up {
        1 => "jobs",
        2 => "bytes",
        _ => "queues",
    })
}

/// A step that found another kind of value under a key of the queue than it must have.
pub fn wrong_type() -> Error {
    Error::refused("a key of the queue is not of the type that it must be")
}
