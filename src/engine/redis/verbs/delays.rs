//! What falls due when: all timers, counted by a script a piece at a time. The Redis serves others in between. Changes
//! nothing. A timer that a job has left behind counts until it is due, as in `timer_sizes`.

use redis::Value;
use tokio::time::{Instant, sleep};

use crate::clock::Millis;
use crate::engine::delays::{DelayCount, DelayedOf, Delays, Rests};
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Lane;
use crate::error::Result;

/// How many timers one script call reads: a millisecond or two of the Redis.
const PIECE: usize = 1000;

/// What a script says: now, where to go on, how many of that score it has read, the steps with some, and what only the
/// ids of its members tell.
type Counted = (u64, String, u64, Vec<i64>, Vec<Value>);

/// Adds what a script has counted, by the beginnings of steps; -1 is due already.
pub fn add(delays: &mut Delays, told: &[i64], count: &DelayCount) {
    for of in told.chunks_exact(2) {
        let jobs = u64::try_from(of[1]).unwrap_or(0);
        match Millis::try_from(of[0]) {
            Ok(begins) => delays.add_step(begins, jobs, count.most),
            Err(_) => delays.overdue += jobs,
        }
    }
}

impl PartitionCore {
    /// Counts the delayed jobs.
    pub async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        let prefix = match &count.of {
            DelayedOf::All => Vec::new(),
            DelayedOf::Namespace(namespace) => keys::namespace_prefix(namespace),
            DelayedOf::Queue(queue) => keys::member_prefix(queue),
        };
        let (mut delays, mut from, mut read): (Option<Delays>, String, u64) = (None, String::new(), 0);
        let mut rests = Rests::default();
        loop {
            let began = Instant::now();
            let mut cmd = self.call(&self.scripts.count_timers);
            cmd.key(&self.keys.timer_set).arg(&prefix).arg(count.step).arg(&from).arg(read).arg(PIECE);
            let (now, next, next_read, told, whole): Counted = self.run(Lane::Other, &cmd).await?;
            let delays = delays.get_or_insert_with(|| Delays::new(now / 1000));
            add(delays, &told, count);
            add_whole(delays, &whole, count)?;
            if next.is_empty() {
                return Ok(std::mem::take(delays));
            }
            (from, read) = (next, next_read);
            sleep(rests.after(began.elapsed())).await;
            self.is_open()?;
        }
    }
}

/// Adds those whose scores are of whole seconds, lmstfy's: whether they are delayed is told by their ids.
fn add_whole(delays: &mut Delays, whole: &[Value], count: &DelayCount) -> Outcome<()> {
    for of in whole.chunks_exact(2) {
        let (score, end): (String, Vec<u8>) = redis::from_redis_value(Value::Array(of.to_vec()))?;
        let Some(id) = keys::id_of_element(&end) else { continue };
        let (due, runs) = keys::due_of_score(score.parse().unwrap_or_default(), &id);
        if !runs {
            delays.add(due / 1000, count);
        }
    }
    Ok(())
}
