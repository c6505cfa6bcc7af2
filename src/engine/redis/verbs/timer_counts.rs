//! How many jobs of each queue are delayed and running: counted where timers are set and removed, in a hash that all
//! servers share. What a server sees in the replies of its calls it counts itself, and adds it five times a second: an
//! HINCRBY in each script of a consume and of an ack costs the Redis a twentieth of a job's life. Rarer scripts count in
//! the hash themselves (lua/timer_counts.lua).
//!
//! What lmstfy's servers do nobody counts, and what a server has not added is lost when it is killed. So one server at a
//! time reads all timers every ten minutes, in steps, and corrects numbers that cannot be right.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::timer_counts::Change;
use crate::error::Result;
use crate::name::Queue;

/// How long changes gather before they are written down.
const GATHER: Duration = Duration::from_millis(200);
/// How many queues one call writes down: two numbers each.
const CHUNK: usize = 250;
/// How long a count of all timers is good for.
const EACH: Duration = Duration::from_secs(600);
/// How often a server looks whether one is due.
const LOOK: Duration = Duration::from_secs(60);
/// How many timers one call counts: a millisecond or two of the Redis.
const PIECE: usize = 1000;
/// How many times as long as a piece took is rested after it, so that a count takes a tenth of the Redis at most.
const REST: u32 = 10;
const LEAST_REST: Duration = Duration::from_millis(1);
const MOST_REST: Duration = Duration::from_millis(200);
/// How long the turn of a server lasts that says nothing.
const TURN: Duration = Duration::from_secs(15);

/// What a step of a count says: where to go on, how many members of that score were read, queues with their numbers,
/// and members of whole seconds.
type Counted = (String, u64, Vec<Value>, Vec<Value>);

/// The fields of a queue.
fn fields_of(queue: &Queue) -> [String; 2] {
    ["d", "r"].map(|kind| format!("{kind}/{}", keys::group(queue)))
}

/// The numbers of queues in replies of scripts: name, delayed, running.
pub fn counts_of(cells: &[Value]) -> Outcome<Vec<(Queue, Change)>> {
    let mut counts = Vec::with_capacity(cells.len() / 3);
    for of in cells.chunks_exact(3) {
        let (name, delayed, running): (Vec<u8>, i64, i64) =
            redis::from_redis_value(Value::Array(of.to_vec()))?;
        counts.extend(keys::queue_of_group(&name).map(|queue| (queue, Change { delayed, running })));
    }
    Ok(counts)
}

impl RedisCore {
    /// So many timers of these queues are gone.
    pub fn timers_gone(&self, cells: &[Value]) -> Outcome<()> {
        for (queue, Change { delayed, running }) in counts_of(cells)? {
            self.timer_counts.add(&queue, Change { delayed: -delayed, running: -running });
        }
        Ok(())
    }

    /// How many jobs of these queues are delayed and running.
    pub async fn timer_counts(&self, queues: &[Queue]) -> Result<Vec<Change>> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(keys::TIMER_COUNTS);
        for queue in queues {
            cmd.arg(&fields_of(queue));
        }
        let _writing = self.timer_counts.writing.lock().await;
        let counted: Vec<Option<i64>> = self.shared.query(&cmd).await?;
        let of = |(queue, counted): (&Queue, &[Option<i64>])| {
            let pending = self.timer_counts.of(queue);
            let number = |n: usize, more: i64| (counted[n].unwrap_or(0) + more).max(0);
            Change { delayed: number(0, pending.delayed), running: number(1, pending.running) }
        };
        Ok(queues.iter().zip(counted.chunks_exact(2)).map(of).collect())
    }

    /// Writes down what this process has counted. What cannot be written waits.
    async fn write_timer_counts(&self) {
        let _writing = self.timer_counts.writing.lock().await;
        let changes: Vec<(Queue, Change)> = self.timer_counts.take().into_iter().collect();
        for chunk in changes.chunks(CHUNK) {
            if self.add_timer_counts(chunk).await.is_err() {
                chunk.iter().for_each(|(queue, change)| self.timer_counts.add(queue, *change));
            }
        }
    }

    async fn add_timer_counts(&self, changes: &[(Queue, Change)]) -> Outcome<()> {
        let mut call = self.scripts.add_timer_counts.call(1);
        call.arg(keys::TIMER_COUNTS);
        let mut any = false;
        for (queue, Change { delayed, running }) in changes {
            for (field, by) in
                fields_of(queue).into_iter().zip([*delayed, *running]).filter(|(_, by)| *by != 0)
            {
                call.arg(field).arg(by);
                any = true;
            }
        }
        if any {
            let _: u64 = self.run(&self.shared, &self.scripts.add_timer_counts, call).await?;
        }
        Ok(())
    }

    /// The numbers that are written down.
    async fn written_timer_counts(&self) -> Outcome<HashMap<Queue, Change>> {
        let mut all: HashMap<Queue, Change> = HashMap::new();
        let each = |field: Vec<u8>, number: Vec<u8>| {
            let number = std::str::from_utf8(&number).ok().and_then(|number| number.parse().ok());
            let (Some(number), Some((kind, group))) = (number, field.split_at_checked(2)) else { return };
            let Some(queue) = keys::queue_of_group(group) else { return };
            match kind {
                b"d/" => all.entry(queue).or_default().delayed = number,
                b"r/" => all.entry(queue).or_default().running = number,
                _ => {}
            }
        };
        self.shared.scan(keys::TIMER_COUNTS, each).await?;
        Ok(all)
    }

    /// Counts a piece of the timer set. Nothing comes back when it is not this server's turn.
    async fn count_piece(&self, from: &str, read: u64, most: usize) -> Outcome<Vec<Value>> {
        let mut call = self.scripts.recount_timers.call(3);
        call.arg(keys::TIMER_SET).arg(keys::TIMER_COUNTS).arg(keys::TIMER_COUNTS_TURN);
        call.arg(&self.timer_counts.server).arg(TURN.as_millis() as u64);
        call.arg(from).arg(read).arg(most);
        self.run(&self.shared, &self.scripts.recount_timers, call).await
    }

    /// Counts all timers, and corrects what is written down. `false`: another server counts, or has counted lately.
    async fn recount_timers(&self) -> Outcome<bool> {
        // Takes the turn.
        if self.count_piece("", 0, 1).await?.is_empty() {
            return Ok(false);
        }
        self.write_timer_counts().await;
        let before = self.written_timer_counts().await?;
        let mut found: BTreeMap<Queue, Change> = BTreeMap::new();
        let (mut from, mut read) = (String::new(), 0);
        loop {
            let began = Instant::now();
            let reply = self.count_piece(&from, read, PIECE).await?;
            if reply.is_empty() {
                return Ok(false);
            }
            let (next, next_read, counts, whole): Counted = redis::from_redis_value(Value::Array(reply))?;
            for (queue, change) in counts_of(&counts)? {
                let of = found.entry(queue).or_default();
                of.delayed += change.delayed;
                of.running += change.running;
            }
            add_whole(&mut found, &whole)?;
            if next.is_empty() {
                break;
            }
            (from, read) = (next, next_read);
            sleep((began.elapsed() * REST).clamp(LEAST_REST, MOST_REST)).await;
        }
        self.write_timer_counts().await;
        let after = self.written_timer_counts().await?;
        let mut corrections = Vec::new();
        let queues = before.keys().chain(after.keys()).chain(found.keys());
        let queues: std::collections::BTreeSet<&Queue> = queues.collect();
        for queue in queues {
            let of = |counts: Option<&Change>| counts.copied().unwrap_or_default();
            let (was, is, has) = (of(before.get(queue)), of(after.get(queue)), of(found.get(queue)));
            let change = Change {
                delayed: correction(was.delayed, is.delayed, has.delayed),
                running: correction(was.running, is.running, has.running),
            };
            if change != Change::default() {
                corrections.push((queue.clone(), change));
            }
        }
        for chunk in corrections.chunks(CHUNK) {
            self.add_timer_counts(chunk).await?;
        }
        let mut done = redis::cmd("PEXPIRE");
        done.arg(keys::TIMER_COUNTS_TURN).arg(EACH.as_millis() as u64);
        let _: u64 = self.shared.query(&done).await?;
        Ok(true)
    }
}

/// By how much a number is to be corrected that was `before` and is `after` by what is written down, and of which so many
/// were found meanwhile. What lies between the two may be right: others went on.
fn correction(before: i64, after: i64, found: i64) -> i64 {
    let (least, most) = (before.min(after), before.max(after));
    if found < least { found - least } else { (found - most).max(0) }
}

/// Adds lmstfy's timers, of whole seconds: whether they are of delayed jobs is told by their ids.
fn add_whole(found: &mut BTreeMap<Queue, Change>, whole: &[Value]) -> Outcome<()> {
    for of in whole.chunks_exact(3) {
        let (group, score, end): (Vec<u8>, String, Vec<u8>) =
            redis::from_redis_value(Value::Array(of.to_vec()))?;
        let (Some(queue), Some(id)) = (keys::queue_of_group(&group), keys::id_of_element(&end)) else {
            continue;
        };
        let of = found.entry(queue).or_default();
        match keys::due_of_score(score.parse().unwrap_or_default(), &id) {
            (_, false) => of.delayed += 1,
            (_, true) => of.running += 1,
        }
    }
    Ok(())
}

/// The task that writes changes down, until the engine closes; then once more.
pub async fn write(core: Arc<RedisCore>) {
    let writes = async {
        loop {
            core.timer_counts.changed.notified().await;
            sleep(GATHER).await;
            core.write_timer_counts().await;
        }
    };
    core.connections.closing.run_until_cancelled(writes).await;
    core.write_timer_counts().await;
}

/// The task that counts all timers: also those that were there before any server counted them.
pub async fn recount(core: Arc<RedisCore>) {
    let counts = async {
        loop {
            // A Redis that is away is told of by all others that use it.
            let counted = core.recount_timers().await;
            sleep(if matches!(counted, Ok(true)) { EACH } else { LOOK }).await;
        }
    };
    core.connections.closing.run_until_cancelled(counts).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_right_is_not_corrected() {
        for (before, after, found, expected) in [
            (5, 5, 5, 0),
            (5, 9, 7, 0),
            (9, 5, 7, 0),
            (5, 5, 3, -2),
            (5, 5, 8, 3),
            (5, 9, 12, 3),
            (-2, -2, 0, 2),
            (4, 0, 0, 0),
        ] {
            assert_eq!(correction(before, after, found), expected, "{before}, {after}: {found} were found");
        }
    }
}
