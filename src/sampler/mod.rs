//! Queue statistics of one pool: read from its store every ten seconds and for scrapes, shown to operators, and
//! recorded in the history. Apart from `GET /info`, the only reader of a store's [`Stats`]. Never blocks a request:
//! reading the last sample only clones an `Arc` under a lock.

mod counts;
mod refresh;
mod rows;

use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::counts::{Counted, seconds};
pub use self::rows::QueueRow;
use self::rows::{of, rows};
use crate::clock::{Began, Millis};
use crate::dispatch::Dispatcher;
use crate::engine::{Engine, Stats};
use crate::error::{Error, Result};
use crate::history::need::QueueWatch;
use crate::history::{self, Point};
use crate::metrics::PoolMetrics;
use crate::name::{Namespace, PoolName, Queue, QueueName};
use crate::process::tasks::beside_the_runtime;
use crate::push::Push;

/// Interval between readings.
const STEP: Duration = Duration::from_secs(10);
/// Reading and evaluating a store take at most one part in this many of the time.
const SHARE: u32 = 200;
/// Longest pause between two readings, however slow they are.
const LONGEST: Duration = Duration::from_secs(3600);
/// Timeout of a background reading.
const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of a store's health check.
pub const CHECK_TIME: Duration = Duration::from_secs(1);
/// Maximum age of a reading that is reused for a scrape.
const YOUNG: Duration = Duration::from_secs(5);

/// Result of reading a store; `None` if it did not reply.
pub type Reading = Option<Arc<Stats>>;

/// A store that did not reply.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub since: Millis,
    pub why: String,
}

/// The latest statistics of a pool.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time of the last reading; `None` if never.
    pub at: Option<Millis>,
    /// Sorted by namespace and name.
    pub rows: Arc<Vec<QueueRow>>,
    /// Number of times that rows were refreshed since the store was read.
    pub refreshed: u64,
    /// Number of queues omitted because of the limit.
    pub left_out: usize,
    /// Delayed and running jobs of the whole store, and how long the earliest has been overdue.
    pub timers: u64,
    pub overdue: Option<Duration>,
    /// Gauges specific to one kind of store, by name.
    pub gauges: Arc<Vec<(&'static str, f64)>>,
    /// Time since which the store has been full, as far as this server knows.
    pub full_since: Option<Millis>,
    /// Jobs per second at this server over the last minute, all queues together.
    pub rates: [f64; 4],
    /// Pause after this reading.
    pub interval: Duration,
    /// Set while the store does not reply.
    pub trouble: Option<Trouble>,
}

/// Samples one pool.
#[derive(Debug)]
pub struct Sampler {
    pool: PoolName,
    engine: Arc<dyn Engine>,
    dispatcher: Arc<Dispatcher>,
    metrics: Arc<PoolMetrics>,
    push: Arc<Push>,
    history: Arc<history::History>,
    began: Began,
    latest: RwLock<Arc<Sample>>,
    /// State carried from sample to sample.
    seen: Mutex<Seen>,
    /// When the last reading ended, and its result for scrapes. Locked while reading, so that only one reading runs at
    /// a time.
    last: AsyncMutex<(Instant, Option<Reading>)>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Queues with counters of their own.
    counted: HashMap<Queue, Counted>,
    others: Counted,
    /// Idle queues have no entry.
    watched: HashMap<(Namespace, Option<QueueName>), QueueWatch>,
    /// Queues that were refreshed since the last sample, and when.
    refreshed: Vec<(Queue, Instant)>,
}

impl Sampler {
    /// Creates a sampler without a sample.
    pub fn new(
        pool: PoolName,
        (engine, dispatcher): (Arc<dyn Engine>, Arc<Dispatcher>),
        metrics: Arc<PoolMetrics>,
        push: Arc<Push>,
        history: Arc<history::History>,
        began: Began,
    ) -> Arc<Sampler> {
        let sample = Sample {
            at: None,
            rows: Arc::default(),
            refreshed: 0,
            left_out: 0,
            timers: 0,
            overdue: None,
            gauges: Arc::default(),
            full_since: None,
            rates: [0.0; 4],
            interval: STEP,
            trouble: None,
        };
        let (latest, seen) = (RwLock::new(Arc::new(sample)), Mutex::default());
        let last = AsyncMutex::new((Instant::now(), None));
        Arc::new(Sampler { pool, engine, dispatcher, metrics, push, history, began, latest, seen, last })
    }

    /// Returns the latest sample.
    pub fn latest(&self) -> Arc<Sample> {
        self.latest.read().clone()
    }

    /// Reads the store at the start, then every ten seconds until stopped, less often if reading takes long. A reading
    /// by a scrape counts too.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            {
                let mut last = self.last.lock().await;
                self.ask(PATIENCE, &mut last).await;
                // Read before the server served, so it must not be used for scrapes.
                last.1 = None;
            }
            loop {
                let mut last = self.last.lock().await;
                let rest = self.latest().interval.saturating_sub(last.0.elapsed());
                if rest.is_zero() {
                    self.ask(PATIENCE, &mut last).await;
                } else {
                    drop(last);
                    sleep(rest).await;
                }
            }
        })
        .await;
    }

    /// Reads the store now.
    pub async fn read(self: &Arc<Self>) {
        let mut last = self.last.lock().await;
        self.ask(PATIENCE, &mut last).await;
    }

    /// Records that a queue was paused or resumed, so that the next page shows it.
    pub fn changed(&self, queue: &Queue) {
        self.metrics.changed(queue);
    }

    /// Hides a forgotten queue from samples and scrapes, unless the store reports it again. Waits for a running
    /// reading, which may include the queue.
    pub async fn forget(&self, queue: &Queue) {
        let mut last = self.last.lock().await;
        last.1 = None;
        let mut seen = self.seen.lock();
        seen.counted.remove(queue);
        seen.watched.remove(&(queue.namespace.clone(), Some(queue.name.clone())));
        let mut latest = self.latest.write();
        let is_other =
            |row: &&QueueRow| row.namespace != queue.namespace || row.name.as_ref() != Some(&queue.name);
        let rows: Vec<QueueRow> = latest.rows.iter().filter(is_other).cloned().collect();
        *latest = Arc::new(Sample { rows: Arc::new(rows), ..Sample::clone(&latest) });
    }

    /// For a scrape: whether the store can be used, and its statistics, within `patience`. Recent statistics are
    /// reused.
    pub async fn scrape(self: &Arc<Self>, patience: Duration) -> (bool, Reading) {
        let end = Instant::now() + patience;
        let figures = async {
            let mut last = timeout_at(end, self.last.lock()).await.ok()?;
            let young = last.1.clone().filter(|_| last.0.elapsed() < YOUNG);
            let is_new = young.is_none();
            let reading = match young {
                Some(reading) => reading,
                None => {
                    let before = last.0;
                    let reading = self.ask(end.saturating_duration_since(Instant::now()), &mut last).await;
                    // A failed scrape does not delay the next background reading, which has a longer timeout.
                    if reading.is_none() {
                        last.0 = before;
                    }
                    reading
                }
            };
            Some((is_new, reading))
        };
        let (up, figures) = tokio::join!(timeout(CHECK_TIME, self.engine.check()), figures);
        let up = matches!(up, Ok(Ok(())));
        // A store that is unavailable has no statistics: recent ones are no longer valid.
        let figures = figures.filter(|(is_new, _)| *is_new || up);
        (up, figures.map(|(_, reading)| reading).unwrap_or_default())
    }

    /// Reads the store within `patience` and makes a sample of the result.
    async fn ask(self: &Arc<Self>, patience: Duration, last: &mut (Instant, Option<Reading>)) -> Reading {
        last.1 = None;
        let began = Instant::now();
        let stats = timeout(patience, self.engine.stats()).await;
        last.0 = Instant::now();
        let answer = |answer: Result<Result<Stats>, _>| answer.unwrap_or(Err(Error::away("no response")));
        let stats = match answer(stats.map_err(|_| Error::Closed)) {
            Ok(stats) => Arc::new(stats),
            Err(error) => {
                self.fails(error.to_string());
                return None;
            }
        };
        let (this, of_sample) = (self.clone(), stats.clone());
        beside_the_runtime(move || this.see(&of_sample, began)).await;
        let reading = Some(stats);
        last.1 = Some(reading.clone());
        reading
    }

    /// Records that the store did not reply; the statistics stay.
    fn fails(&self, why: String) {
        let mut latest = self.latest.write();
        let since = latest.trouble.as_ref().map_or(self.began.time(), |trouble| trouble.since);
        *latest = Arc::new(Sample { trouble: Some(Trouble { since, why }), ..Sample::clone(&latest) });
    }

    /// Makes a sample of the store's statistics.
    fn see(&self, stats: &Stats, began: Instant) {
        let (waiting, pushed) = (self.dispatcher.waiting(), self.push.states(&self.pool));
        let paused = self.dispatcher.pauses();
        let failing = self.push.failing_since(&self.pool);
        let mut seen = self.seen.lock();
        let now = self.began.time();
        let before = self.latest();
        let (mut rows, left_out) = rows(&stats.queues);
        let from = seconds(before.at.unwrap_or(self.began.wall()));
        let mut readings = Vec::with_capacity(rows.len());
        let mut watched = std::mem::take(&mut seen.watched);
        let mut all = Counted::default();
        for (row, head) in &mut rows {
            let queue = row.name.clone().map(|name| Queue { namespace: row.namespace.clone(), name });
            let mut since = [0; 4];
            if let Some(queue) = &queue {
                if let Some(counts) = self.metrics.counts(queue) {
                    let counted = seen.counted.entry(queue.clone()).or_default();
                    since = counted.count(counts, from, now);
                    row.rates = Some(counted.rates(seconds(self.began.wall()), seconds(now)));
                    row.handed_out = counted.handed_out;
                    all.lately.extend(&counted.lately);
                }
                row.waiting = waiting.get(queue).copied().unwrap_or_default();
                row.paused = paused.get(queue).copied();
                row.push = pushed.get(queue).copied();
                row.push_failing_since = failing.get(queue).copied();
            }
            let state = row.now(*head);
            // They may have died through another server.
            let row_before = of(&before.rows, row.key());
            let dead_before = row_before.map_or(0, |row| row.dead);
            let rose = if before.at.is_some() { row.dead.saturating_sub(dead_before) } else { 0 };
            let died = since[3].max(rose);
            row.died_at = if died > 0 { Some(now) } else { row_before.and_then(|row| row.died_at) };
            let key = (row.namespace.clone(), row.name.clone());
            let mut watch = watched.remove(&key).unwrap_or_default();
            watch.see(seconds(now), &state, died);
            (row.need, row.worse) = watch.need(seconds(now), &state);
            if !watch.is_idle() {
                seen.watched.insert(key, watch);
            }
            readings.push((row.of(&self.pool), row.point(since)));
        }
        let beside = seen.others.count(self.metrics.counts_of_others(), from, now);
        all.lately.extend(&seen.others.lately);
        self.history.add(seconds(now), &self.pool, readings, &Point { counts: beside, ..Point::default() });
        let sample = Sample {
            at: Some(now),
            refreshed: 0,
            rows: Arc::new(rows.into_iter().map(|(row, _)| row).collect()),
            left_out,
            timers: stats.timers,
            overdue: stats.overdue,
            gauges: Arc::new(stats.gauges.clone()),
            full_since: is_full(&stats.gauges).then(|| before.full_since.unwrap_or(now)),
            rates: all.rates(seconds(self.began.wall()), seconds(now)),
            interval: (began.elapsed() * SHARE).clamp(STEP, LONGEST),
            trouble: None,
        };
        *self.latest.write() = Arc::new(sample);
        // This reading may have older values of them.
        let newer = seen.refreshed.drain(..).filter(|(_, at)| *at > began);
        newer.for_each(|(queue, _)| self.metrics.changed(&queue));
    }
}

/// Returns whether a store is full according to its gauges: a disk below its limit, a Redis at `maxmemory`.
fn is_full(gauges: &[(&'static str, f64)]) -> bool {
    let of = |wanted| gauges.iter().find(|(name, _)| *name == wanted).map_or(0.0, |(_, value)| *value);
    let most = of("max_mem_bytes");
    of("disk_full") > 0.0 || most > 0.0 && of("used_mem_bytes") >= most
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a store that refuses each publish without this being shown.
    #[test]
    fn a_store_without_room_is_full() {
        for (gauges, full) in [
            (&[("disk_full", 0.0), ("disk_bytes", 9.0)][..], false),
            (&[("disk_bytes", 9.0), ("disk_full", 1.0)], true),
            (&[("max_mem_bytes", 0.0), ("used_mem_bytes", 9.0)], false),
            (&[("max_mem_bytes", 10.0), ("used_mem_bytes", 9.0)], false),
            (&[("used_mem_bytes", 10.0), ("max_mem_bytes", 10.0)], true),
            (&[], false),
        ] {
            assert_eq!(is_full(gauges), full, "{gauges:?}");
        }
    }
}
