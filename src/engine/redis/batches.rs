//! What shares script calls: how large such calls grow, and how many wait.

use crate::engine::batch::{BatchLimit, BatchSize};
use crate::engine::{MAX_PUBLISH, Publication};
use crate::job::{JobRef, NewJob};

/// How many calls of one kind may wait to be gathered into a batch.
pub const MAX_WAITING: usize = 16_384;

/// How large a batch of publishes grows, so that one script call keeps the Redis busy for a few milliseconds. A call
/// with more bytes goes alone.
pub const PUBLISHES: BatchLimit = BatchLimit { items: MAX_PUBLISH, bytes: 1 << 20 };

/// How many tasks share what publishes, as many as a link has connections for them: one batch is made while the Redis works
/// on another. A large bulk on one of them delays nobody on the other. More make smaller batches, which cost the Redis
/// more, and with one alone everybody waits behind a large bulk. Measured with 64 callers: two cost within a tenth of what
/// one costs and answer as fast or faster; four cost a fifth more and gain nothing.
pub const PUBLISHERS: usize = 2;

/// A publication that shares a script call with others.
#[derive(Debug)]
pub struct Plain(pub Publication);

impl BatchSize for Plain {
    fn items(&self) -> usize {
        self.0.jobs.len()
    }

    fn bytes(&self) -> usize {
        self.0.jobs.iter().map(|placing| bytes_of(&placing.job)).sum()
    }
}

/// What a job counts in a batch.
pub fn bytes_of(job: &NewJob) -> usize {
    job.body.len() + 256
}

/// How many acks go together.
pub const ACKS: BatchLimit = BatchLimit { items: 64, bytes: usize::MAX };

impl BatchSize for JobRef {
    fn items(&self) -> usize {
        1
    }
}
