//! Peek: returns the job that the next consume would deliver. Changes no job.

use bytes::Bytes;
use redis::{FromRedisValue, Value};

use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::link::Lane;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::name::Queue;

/// Maximum script calls of one peek. Together they examine 30,752 elements.
const MAX_CALLS: usize = 32;

impl PartitionCore {
    /// Returns the job that the next consume would deliver. `Overloaded` if the deleted jobs before it are more than
    /// one peek examines. It has removed their elements, so the next peek gets further.
    pub async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        let script = &self.scripts.peek;
        let mut skip = 0_i64;
        for _ in 0..MAX_CALLS {
            let mut cmd = self.call(script);
            cmd.key(self.keys.ready(queue)).arg(self.keys.job_prefix(queue)).arg(skip);
            let mut reply: Vec<Value> = self.run(Lane::Other, &cmd).await?;
            if reply.len() == 6 {
                let (now, _, id, tries, ttl, stored): (u64, i64, Vec<u8>, u16, i64, Bytes) =
                    FromRedisValue::from_redis_value(Value::Array(reply)).map_err(Fault::from)?;
                let id = keys::job_id(&id)
                    .ok_or_else(|| Error::corrupt(format!("malformed job id in {queue}")))?;
                let job = value::job(queue, id, stored, ttl, now)?;
                return Ok(Some(Job { tries_left: tries, ..job }));
            }
            skip = match reply.pop().map(i64::from_redis_value) {
                Some(Ok(skip)) => skip,
                _ => return Err(Fault::unreadable("peek").into()),
            };
            if skip < 0 {
                return Ok(None);
            }
        }
        Err(Error::Overloaded)
    }
}
