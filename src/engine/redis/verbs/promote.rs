//! Promote: makes a delayed job ready before it is due, in one step. The id of a job key's job is read before, and the
//! step checks that the job still holds the key.

use std::time::Instant;

use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::wrong_type;
use crate::engine::redis::timer_counts::Timers;
use crate::engine::{By, Detail, Promoted};
use crate::error::{Error, Result};
use crate::job::{JobId, JobRef, JobState};
use crate::name::Queue;

/// Maximum attempts for a job that is not delayed during a call, but is right after it.
const ATTEMPTS: usize = 5;

impl PartitionCore {
    /// Makes a delayed job ready, after all ready jobs.
    pub async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted> {
        let (id, key) = match by {
            By::Id(id) => {
                self.unpack_one(queue, &id).await?;
                (id, "")
            }
            By::Key(key) => {
                let record = self.keys.job_key(queue, key);
                let id: Option<Vec<u8>> = self.query(redis::cmd("GET").arg(record)).await?;
                let Some(id) = id.and_then(|id| keys::job_id(&id)) else { return Ok(Promoted::NotFound) };
                (id, key.as_str())
            }
        };
        for _ in 0..ATTEMPTS {
            let mut cmd = self.call(&self.scripts.promote);
            cmd.key(&self.keys.timer_set).key(self.keys.job(queue, &id));
            cmd.key(self.keys.ready(queue)).key(self.keys.details(queue, &id));
            cmd.arg(keys::member_prefix(queue)).arg(id.to_string()).arg(key);
            cmd.arg(last_second_of_lmstfy(&id));
            let sent = Instant::now();
            let (now, what): (u64, String) = self.run(Lane::Other, &cmd).await?;
            self.learn(sent, now);
            match &*what {
                "ready" => {
                    self.timer_counts.add(queue, Timers::delayed(-1));
                    self.common.handed_out.release(id, now);
                    self.tell_ready(queue);
                    return Ok(Promoted::Done);
                }
                "gone" => return Ok(Promoted::NotFound),
                "type" => return Err(wrong_type()),
                _ => {}
            }
            let view = match by {
                By::Id(id) => self.inspect(&JobRef { queue: queue.clone(), id }, None).await?,
                By::Key(key) => self.inspect_key(queue, key, Detail::All).await?,
            };
            match view {
                None => return Ok(Promoted::NotFound),
                // It became delayed between the two calls.
                Some(view) if view.state == Some(JobState::Delayed) => {}
                Some(view) => return Ok(Promoted::NotDelayed(view.state)),
            }
        }
        Err(Error::Overloaded)
    }
}

/// Returns the last second when a timer written by lmstfy can be this job's delay; 0 for a job without a delay. See
/// [`keys::due_of_score`].
fn last_second_of_lmstfy(id: &JobId) -> u64 {
    match id.delay_seconds() {
        0 => 0,
        delay => id.published_at() / 1000 + u64::from(delay) + 1,
    }
}
