//! Numbers of delayed and running jobs of each queue. An HINCRBY in every script would cost Redis a twentieth of a job's
//! life, so a server counts what it learns from the replies of its calls, and adds it to one hash of the partition once
//! a second. The numbers miss changes of a server that was killed before it recorded them, changes whose reply was lost,
//! and changes by lmstfy's servers. So one server at a time recounts all timers, in parts, and corrects the numbers.
//!
//! During a recount other calls set and delete timers, on both sides of the part that is read. In ascending order of
//! due times the recount sees most of a queue's new timers and the ones deleted behind it, so it finds too many; in
//! descending order it finds too few. Before and after each of two such counts the recorded numbers are read, after a
//! pause in which all servers have recorded what they saw. The true error is between the least and the greatest of these
//! differences. The difference nearest to zero is corrected, if it exceeds the change of the numbers meanwhile. So
//! random arrivals and departures do not look like an error.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::Value;
use tokio::time::sleep;

use crate::clock::Millis;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::script_call::ScriptCall;
use crate::engine::redis::link::Lane;
use crate::engine::redis::timer_counts::Timers;
use crate::job::JobId;
use crate::name::Queue;

/// Interval at which changes are recorded.
const RECORD: Duration = Duration::from_secs(1);
/// Time after which every server has recorded what it saw.
const SETTLED: Duration = Duration::from_millis(2500);
/// Interval between recounts.
const PERIOD: Duration = Duration::from_secs(600);
/// Pause before another attempt to recount, while another server counts or after a failure.
const AGAIN: Duration = Duration::from_secs(5);
/// Numbers are estimates for this long after work of an lmstfy server was seen.
const LMSTFY: Duration = Duration::from_secs(1200);
/// Timers read per script call: these take Redis about a millisecond.
const PART: usize = 1000;
/// Ratio of the rest after a part to the time of the part, so that a recount uses less than a twentieth of Redis's time.
const REST: u32 = 20;
const LEAST_REST: Duration = Duration::from_millis(1);
const MOST_REST: Duration = Duration::from_secs(1);
/// Lease of the server that counts, renewed with each part.
const TURN: Duration = Duration::from_secs(60);
/// Maximum queues per call.
const CHUNK: usize = 256;

/// Numbers of timers by queue, without zeros.
type Counts = HashMap<Queue, Timers>;

/// The result of reading all timers once.
struct Count {
    began: Millis,
    counts: Counts,
}

/// Reply of the script `recount_timers`, after its time.
type Part = (String, u64, Vec<Value>, Vec<Value>);

impl PartitionCore {
    /// Counts timers that a script has deleted: per timer its job's key and its score, empty for a running job's.
    pub fn count_gone(&self, gone: &[Value]) {
        for of in gone.as_chunks::<2>().0 {
            let of: Result<(Vec<u8>, String), _> = redis::from_redis_value(Value::Array(of.to_vec()));
            let Ok((key, score)) = of else { continue };
            let Some((queue, id)) = self.keys.queue_and_id(&key) else { continue };
            let runs = score.is_empty() || self.runs(&score, &id);
            self.timer_counts.add(&queue, if runs { Timers::running(-1) } else { Timers::delayed(-1) });
        }
    }

    /// Whether a score is a running job's. Remembers recent work of lmstfy's servers, whose scores are in whole seconds.
    fn runs(&self, score: &str, id: &JobId) -> bool {
        let score: f64 = score.parse().unwrap_or_default();
        let (_, runs) = keys::due_of_score(score, id);
        let now = self.now();
        if score.fract() == 0.0 && (runs || id.published_at() + LMSTFY.as_millis() as u64 > now) {
            self.timer_counts.lmstfy.fetch_max(now, Ordering::Relaxed);
        }
        runs
    }

    /// Returns the numbers of delayed and running jobs of these queues, and whether they are estimates.
    pub async fn timers_of(&self, queues: &[Queue]) -> Outcome<(Vec<[u64; 2]>, bool)> {
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(&self.keys.timer_counts).arg(keys::COUNTED).arg(keys::SEEN_LMSTFY);
        queues.iter().for_each(|queue| _ = cmd.arg(&keys::count_fields(queue)));
        let counts = &self.timer_counts;
        let _reading = counts.recording.read().await;
        let recorded: Vec<Option<i64>> = self.query(&cmd).await?;
        let [counted, lmstfy, recorded @ ..] = &recorded[..] else { return Err(Fault::unreadable("HMGET")) };
        let timers = queues.iter().zip(recorded.as_chunks().0).map(|(queue, [delayed, running])| {
            let pending = counts.pending(queue);
            // Another server may have recorded the end of a delivery before this one recorded its begin.
            let shown =
                |recorded: &Option<i64>, more: i64| (recorded.unwrap_or(0) + more).max(0).unsigned_abs();
            [shown(delayed, pending.delayed), shown(running, pending.running)]
        });
        let since = counts.since.load(Ordering::Relaxed);
        let counted = counted.unwrap_or(0).max(0).unsigned_abs().max(counts.empty.load(Ordering::Relaxed));
        let lmstfy = lmstfy.unwrap_or(0).max(0).unsigned_abs().max(counts.lmstfy.load(Ordering::Relaxed));
        let with_lmstfy = lmstfy > 0 && lmstfy + LMSTFY.as_millis() as u64 > self.now();
        Ok((timers.collect(), since == 0 || counted < since || with_lmstfy))
    }

    /// Records the changes that this process has seen.
    async fn record_timers(&self) {
        let _recording = self.timer_counts.recording.write().await;
        for chunk in self.timer_counts.take().chunks(CHUNK) {
            let mut call = self.call(&self.scripts.add_timer_counts);
            call.key(&self.keys.timer_counts);
            add_changes(&mut call, chunk);
            // Changes that may have been recorded are not recorded again.
            let recorded: Outcome<u64> = self.run(Lane::Other, &call).await;
            if recorded.is_err_and(|fault| fault.not_begun.is_some() || fault.is_of_part()) {
                self.timer_counts.add_all(chunk.iter().map(|(queue, change)| (queue, *change)));
            }
        }
    }

    /// Returns all recorded numbers.
    async fn recorded_timers(&self) -> Outcome<Counts> {
        let mut all = Counts::new();
        let each = |field: Vec<u8>, number: Vec<u8>| {
            let number = std::str::from_utf8(&number).ok().and_then(|number| number.parse().ok());
            let Some(((queue, runs), number)) = keys::queue_of_count_field(&field).zip(number) else {
                return;
            };
            let of = all.entry(queue).or_default();
            *(if runs { &mut of.running } else { &mut of.delayed }) = number;
        };
        self.scan(Lane::Other, &self.keys.timer_counts, each).await?;
        all.retain(|_, timers| *timers != Timers::default());
        Ok(all)
    }

    /// Counts the timers of all queues; `first` takes the turn. `None` if another server has it.
    async fn count_all_timers(&self, first: bool, descending: bool) -> Outcome<Option<Count>> {
        let mut all = Count { began: 0, counts: Counts::new() };
        // A job that is unpacked meanwhile is counted twice in ascending order, and not at all in descending order.
        if !descending {
            let mut turn = redis::cmd("GET");
            let holder: Option<String> = self.query(turn.arg(&self.keys.timer_counts_turn)).await?;
            if holder.is_some_and(|holder| holder != self.timer_counts.server) {
                return Ok(None);
            }
            self.count_packed_jobs(&mut all.counts).await?;
        }
        let (mut from, mut read) = (String::new(), 0);
        loop {
            // Partitions of one node are counted one after the other.
            let _one = self.counting.acquire().await;
            let sent = Instant::now();
            let mut call = self.call(&self.scripts.recount_timers);
            call.key(&self.keys.timer_set).key(&self.keys.timer_counts_turn);
            call.arg(&self.timer_counts.server).arg(TURN.as_millis() as u64);
            call.arg(u8::from(first && from.is_empty())).arg(u8::from(descending));
            call.arg(&from).arg(read).arg(PART);
            let (now, part): (u64, Vec<Value>) = self.run(Lane::Other, &call).await?;
            self.learn(sent, now);
            self.begin_to_count(now / 1000);
            if part.is_empty() {
                return Ok(None);
            }
            if from.is_empty() {
                all.began = now / 1000;
            }
            let (next, next_read, counts, whole): Part = redis::from_redis_value(Value::Array(part))?;
            self.add_part(&mut all.counts, &counts, &whole)?;
            if next.is_empty() {
                break;
            }
            (from, read) = (next, next_read);
            sleep((sent.elapsed() * REST).clamp(LEAST_REST, MOST_REST)).await;
        }
        if descending {
            self.count_packed_jobs(&mut all.counts).await?;
        }
        Ok(Some(all))
    }

    async fn count_packed_jobs(&self, all: &mut Counts) -> Outcome<()> {
        self.each_bucket(|queue, jobs| {
            *all.entry(queue).or_default() += Timers::delayed(jobs as i64); // far below 2^63
        })
        .await
    }

    /// Notes when this process began to count, once.
    fn begin_to_count(&self, now: Millis) {
        let since = &self.timer_counts.since;
        let _ = since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Adds a part of a count: per queue its names and numbers, and the timers whose scores are in whole seconds.
    fn add_part(&self, all: &mut Counts, counts: &[Value], whole: &[Value]) -> Outcome<()> {
        for of in counts.as_chunks::<3>().0 {
            let (names, delayed, running): (Vec<u8>, _, _) =
                redis::from_redis_value(Value::Array(of.to_vec()))?;
            if let Some((queue, _)) = keys::queue_of_member(&names) {
                *all.entry(queue).or_default() += Timers { delayed, running };
            }
        }
        for of in whole.as_chunks::<2>().0 {
            let (member, score): (Vec<u8>, String) = redis::from_redis_value(Value::Array(of.to_vec()))?;
            let Some((queue, element)) = keys::queue_of_member(&member) else { continue };
            let Some(id) = keys::id_of_element(element) else { continue };
            let runs = self.runs(&score, &id);
            *all.entry(queue).or_default() += if runs { Timers::running(1) } else { Timers::delayed(1) };
        }
        Ok(())
    }

    /// Recounts all timers and corrects the numbers. Returns `false` if another server has the turn.
    async fn recount_timers(&self) -> Outcome<bool> {
        self.record_timers().await;
        let mut cmd = redis::cmd("EXISTS");
        cmd.arg(&self.keys.timer_set).arg(&self.keys.buckets).arg(&self.keys.timer_counts);
        if self.query::<u64>(&cmd).await? == 0 {
            // An unused pool gets no key.
            self.begin_to_count(self.now());
            self.timer_counts.empty.store(self.now(), Ordering::Relaxed);
            return Ok(true);
        }
        let before = self.recorded_timers().await?;
        let Some(up) = self.count_all_timers(true, false).await? else { return Ok(false) };
        let mut corrections = Vec::new();
        // In a store without traffic the numbers are either right or wrong for sure.
        if up.counts != before {
            sleep(SETTLED).await;
            let between = self.recorded_timers().await?;
            let Some(down) = self.count_all_timers(false, true).await? else { return Ok(false) };
            sleep(SETTLED).await;
            let after = self.recorded_timers().await?;
            corrections = corrections_of(&up.counts, &down.counts, [&before, &between, &after]);
        }
        self.correct_timers(&corrections, up.began).await
    }

    /// Corrects the numbers, and notes when the count began. Returns `false` if another server has the turn.
    async fn correct_timers(&self, corrections: &[(Queue, Timers)], began: Millis) -> Outcome<bool> {
        let chunks: Vec<_> = corrections.chunks(CHUNK).collect();
        for n in 0..chunks.len().max(1) {
            let mut call = self.call(&self.scripts.add_timer_counts);
            call.key(&self.keys.timer_counts).key(&self.keys.timer_counts_turn);
            call.arg(&self.timer_counts.server);
            let is_last = n + 1 >= chunks.len();
            let lmstfy = self.timer_counts.lmstfy.load(Ordering::Relaxed);
            let some = |at: Millis, is_known| if is_known { at.to_string() } else { String::new() };
            call.arg(some(began, is_last)).arg(some(lmstfy, lmstfy > 0));
            add_changes(&mut call, chunks.get(n).copied().unwrap_or_default());
            if self.run::<u64>(Lane::Other, &call).await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the time until the next recount: zero if the last one began before this server did.
    async fn recount_due(&self) -> Outcome<Duration> {
        let mut cmd = redis::cmd("HGET");
        cmd.arg(&self.keys.timer_counts).arg(keys::COUNTED);
        let counted = self.query::<Option<u64>>(&cmd).await?.unwrap_or(0);
        let counted = counted.max(self.timer_counts.empty.load(Ordering::Relaxed));
        let since = self.timer_counts.since.load(Ordering::Relaxed);
        if since == 0 || counted < since {
            return Ok(Duration::ZERO);
        }
        let due = counted.saturating_add(PERIOD.as_millis() as u64).saturating_sub(self.now());
        Ok(Duration::from_millis(due).min(PERIOD))
    }
}

/// Appends the changes of numbers to a call of the script `add_timer_counts`.
fn add_changes(call: &mut ScriptCall, changes: &[(Queue, Timers)]) {
    for (queue, change) in changes {
        for (field, by) in keys::count_fields(queue).iter().zip([change.delayed, change.running]) {
            if by != 0 {
                call.arg(field).arg(by);
            }
        }
    }
}

/// Returns the corrections after an ascending and a descending count, given the numbers recorded before, between and
/// after them.
fn corrections_of(up: &Counts, down: &Counts, recorded: [&Counts; 3]) -> Vec<(Queue, Timers)> {
    let mut queues: Vec<&Queue> = [up, down].into_iter().chain(recorded).flat_map(HashMap::keys).collect();
    queues.sort_unstable();
    queues.dedup();
    let correct = |queue: &Queue| {
        let number = |of: &Counts, kind: fn(&Timers) -> i64| of.get(queue).map_or(0, kind);
        let by =
            |kind| correction([up, down].map(|of| number(of, kind)), recorded.map(|of| number(of, kind)));
        let change = Timers { delayed: by(|of| of.delayed), running: by(|of| of.running) };
        (change != Timers::default()).then(|| (queue.clone(), change))
    };
    queues.into_iter().filter_map(correct).collect()
}

/// Returns the correction of one number, from what two counts found.
fn correction([up, down]: [i64; 2], [before, between, after]: [i64; 3]) -> i64 {
    let errors = [up - before, up - between, down - between, down - after];
    let (least, most) = errors.iter().fold((i64::MAX, i64::MIN), |(a, b), e| (a.min(*e), b.max(*e)));
    let nearest = if least > 0 { least } else { most.min(0) };
    if nearest.abs() > most - least { nearest } else { 0 }
}

/// Records changes until the engine closes; then once more.
pub async fn record(core: Arc<PartitionCore>) {
    let records = async {
        loop {
            core.timer_counts.changed.notified().await;
            sleep(RECORD).await;
            core.record_timers().await;
        }
    };
    core.tasks.stopping().run_until_cancelled(records).await;
    core.record_timers().await;
}

/// Recounts at the start and periodically until the engine closes.
pub async fn recount(core: Arc<PartitionCore>) {
    let counts = async {
        loop {
            // Other calls log an outage.
            let pause = match core.recount_due().await {
                Ok(Duration::ZERO) => match core.recount_timers().await {
                    Ok(true) => PERIOD,
                    _ => AGAIN,
                },
                Ok(due) => due,
                Err(_) => AGAIN,
            };
            sleep(pause).await;
        }
    };
    core.tasks.stopping().run_until_cancelled(counts).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a recount that makes right numbers wrong while jobs come and go.
    #[test]
    fn a_number_is_corrected_only_if_both_counts_contradict_it() {
        for (found, recorded, expected, why) in [
            ([5, 5], [5, 5, 5], 0, "right"),
            ([5, 5], [0, 0, 0], 5, "nothing was recorded"),
            ([0, 0], [7, 7, 7], -7, "a lost end of deliveries"),
            ([9, 3], [5, 5, 5], 0, "timers move up between the two counts"),
            ([20, 30], [10, 20, 30], 0, "it rises, and is recorded a little later"),
            ([30, 40], [5, 15, 25], 15, "it rises, and fifteen were never recorded"),
            ([30, 40], [15, 25, 35], 0, "it rises by more than may be missing"),
            ([4, 2], [0, 0, 1], 0, "running jobs, whose number changes all the time"),
            ([3, 4], [-2, -2, -2], 5, "below zero"),
        ] {
            assert_eq!(
                correction(found, recorded),
                expected,
                "{why}: {found:?} found, {recorded:?} recorded"
            );
        }
    }
}
