//! Counts delayed jobs by due time: a script counts all timers, a range at a time, so that Redis serves others in
//! between. Changes nothing. Timers of deleted jobs are counted until they are due, as in `timer_sizes`.

use redis::Value;
use tokio::time::{Instant, sleep};

use crate::clock::Millis;
use crate::engine::delays::{DelayCount, DelayedOf, Delays, Rests};
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::{keys, packed};
use crate::engine::redis::link::Lane;
use crate::error::Result;

/// Timers read per script call: these take Redis a millisecond or two.
const PIECE: usize = 1000;

/// The script's reply: now, the score to continue from, members with that score that were read, counts per interval,
/// and members that only their ids classify.
type Counted = (u64, String, u64, Vec<i64>, Vec<Value>);

/// Adds a script's counts, given as pairs of an interval's start and its jobs; the start is -1 for overdue jobs.
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
        // First, so that a job that is unpacked meanwhile is not missed.
        let mut packed = Vec::new();
        self.count_packed(&bucket_prefix(&count.of), count.step, |told| packed.extend(told)).await?;
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
                add(delays, &packed, count);
                return Ok(std::mem::take(delays));
            }
            (from, read) = (next, next_read);
            sleep(rests.after(began.elapsed())).await;
            self.is_open()?;
        }
    }
}

/// Returns the prefix of the names of buckets with these jobs.
fn bucket_prefix(of: &DelayedOf) -> String {
    match of {
        DelayedOf::All => String::new(),
        DelayedOf::Namespace(namespace) => format!("{namespace}/"),
        DelayedOf::Queue(queue) => packed::bucket_prefix(queue),
    }
}

/// Adds members whose scores are whole seconds, written by lmstfy: the id tells whether such a job is delayed.
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
