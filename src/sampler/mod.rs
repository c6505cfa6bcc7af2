//! The figures of one pool: read from its store each ten seconds, and when a scrape asks; shown to whoever wants to see
//! them, and fed to the history. The only reader of a store's [`Stats`] beside `GET /info`. Never in the way of a
//! request: a look at the last sample takes no lock for longer than it takes to clone an `Arc`.

mod counts;
mod refresh;
mod rows;

use std::collections::BTreeMap;
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
use crate::engine::{Engine, Pause, Stats};
use crate::error::{Error, Result};
use crate::history::need::QueueWatch;
use crate::history::{self, Point};
use crate::metrics::PoolMetrics;
use crate::name::{Namespace, PoolName, Queue, QueueName};
use crate::process::tasks::beside_the_runtime;
use crate::push::Push;

/// How often a store is read.
const STEP: Duration = Duration::from_secs(10);
/// A store is read, and what it says is evaluated, for one part in so many of the time, at most.
const SHARE: u32 = 200;
/// The longest pause between two readings, however slow they are.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long a reading that nobody waits for may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a store may take to say that it is well.
pub const CHECK_TIME: Duration = Duration::from_secs(1);
/// A reading that is younger is good enough for a scrape.
const YOUNG: Duration = Duration::from_secs(5);

/// What a store said when it was read. `None`: it did not answer.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub stats: Option<Arc<Stats>>,
    pub paused: Option<Arc<BTreeMap<Queue, Pause>>>,
}

/// A store that did not answer.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub since: Millis,
    pub why: String,
}

/// What is known of a pool.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the store was read; `None` while it never was.
    pub at: Option<Millis>,
    /// By namespace and name.
    pub rows: Arc<Vec<QueueRow>>,
    /// How often rows were refreshed since the store was read.
    pub refreshed: u64,
    /// How many queues there was no room for.
    pub left_out: usize,
    /// Delayed and running jobs of the whole store, and how long ago the earliest was due.
    pub timers: u64,
    pub overdue: Option<Duration>,
    /// Figures that only one kind of store has, by their names.
    pub gauges: Arc<Vec<(&'static str, f64)>>,
    /// Since when the store has no room for more, as far as this server saw.
    pub full_since: Option<Millis>,
    /// Jobs a second at this server over the last minute, of all queues.
    pub rates: [f64; 4],
    /// How long the store is left alone after it.
    pub interval: Duration,
    /// The store did not answer since then.
    pub trouble: Option<Trouble>,
}

/// Reads one pool.
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
    /// What the next sample needs of those before.
    seen: Mutex<Seen>,
    /// When the last reading ended, and what it has for scrapes. Held by who reads, so that no two do at a time.
    last: AsyncMutex<(Instant, Option<Reading>)>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Of the queues that are counted by themselves.
    counted: HashMap<Queue, Counted>,
    others: Counted,
    /// Queues at rest have none.
    watched: HashMap<(Namespace, Option<QueueName>), QueueWatch>,
    /// Queues that were refreshed since the last sample, and when.
    refreshed: Vec<(Queue, Instant)>,
}

impl Sampler {
    /// Reads nothing yet.
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

    /// What is known now.
    pub fn latest(&self) -> Arc<Sample> {
        self.latest.read().clone()
    }

    /// Reads the store at the beginning, and then again and again until it is stopped: each ten seconds, and more seldom
    /// if it takes long. What a scrape has read meanwhile counts.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            {
                let mut last = self.last.lock().await;
                self.ask(PATIENCE, &mut last).await;
                // It is of before the server served: no scrape is shown it.
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

    /// For a scrape: whether the store can be used, and its figures, which may take `patience`. Where they were read a
    /// moment ago it is not asked for them again.
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
                    // The next one, which has more patience, is as soon as it would have been.
                    if reading.stats.is_none() {
                        last.0 = before;
                    }
                    reading
                }
            };
            Some((is_new, reading))
        };
        let (up, figures) = tokio::join!(timeout(CHECK_TIME, self.engine.check()), figures);
        let up = matches!(up, Ok(Ok(())));
        // A store that is away has no figures: those of a moment ago are not its own any more.
        let figures = figures.filter(|(is_new, _)| *is_new || up);
        (up, figures.map(|(_, reading)| reading).unwrap_or_default())
    }

    /// Asks the store, which may take `patience`, and makes a sample of what it says.
    async fn ask(self: &Arc<Self>, patience: Duration, last: &mut (Instant, Option<Reading>)) -> Reading {
        last.1 = None;
        let began = Instant::now();
        let (stats, paused) =
            tokio::join!(timeout(patience, self.engine.stats()), timeout(patience, self.engine.pauses()));
        last.0 = Instant::now();
        let answer =
            |answer: Result<Result<Stats>, _>| answer.unwrap_or(Err(Error::away("it does not answer")));
        let paused = paused.ok().and_then(Result::ok).map(Arc::new);
        let stats = match answer(stats.map_err(|_| Error::Closed)) {
            Ok(stats) => Arc::new(stats),
            Err(error) => {
                self.fails(error.to_string());
                return Reading { stats: None, paused };
            }
        };
        let (this, of_sample, of_paused) = (self.clone(), stats.clone(), paused.clone());
        beside_the_runtime(move || this.see(&of_sample, of_paused.as_deref(), began)).await;
        let reading = Reading { stats: Some(stats), paused };
        last.1 = Some(reading.clone());
        reading
    }

    /// The store did not answer: what is known stays.
    fn fails(&self, why: String) {
        let mut latest = self.latest.write();
        let since = latest.trouble.as_ref().map_or(self.began.time(), |trouble| trouble.since);
        *latest = Arc::new(Sample { trouble: Some(Trouble { since, why }), ..Sample::clone(&latest) });
    }

    /// Makes a sample of what the store said.
    fn see(&self, stats: &Stats, paused: Option<&BTreeMap<Queue, Pause>>, began: Instant) {
        let (waiting, pushed) = (self.dispatcher.waiting(), self.push.states(&self.pool));
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
                row.paused = match paused {
                    Some(paused) => paused.get(queue).copied(),
                    None => of(&before.rows, row.key()).and_then(|row| row.paused),
                };
                row.push = pushed.get(queue).copied();
            }
            let state = row.now(*head);
            // Another server may have seen them die.
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
        // What this reading has of them may be older.
        let newer = seen.refreshed.drain(..).filter(|(_, at)| *at > began);
        newer.for_each(|(queue, _)| self.metrics.changed(&queue));
    }
}

/// Whether a store has no room for more, by its own figures: a disk below its bound, a Redis at `maxmemory`.
fn is_full(gauges: &[(&'static str, f64)]) -> bool {
    let of = |wanted| gauges.iter().find(|(name, _)| *name == wanted).map_or(0.0, |(_, value)| *value);
    let most = of("max_mem_bytes");
    of("disk_full") > 0.0 || most > 0.0 && of("used_mem_bytes") >= most
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a store that refuses each publish, and of which nobody is told.
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
