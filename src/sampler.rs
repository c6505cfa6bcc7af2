//! The figures of one pool: read from its store each ten seconds, and when a scrape asks; shown to whoever wants to see
//! them, and fed to the history. The only reader of a store's [`Stats`] beside `GET /info`. Never in the way of a
//! request: a look at the last sample takes no lock for longer than it takes to clone an `Arc`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::clock::{Millis, system_now};
use crate::dispatch::Dispatcher;
use crate::engine::{Engine, Pause, QueueSize, Stats};
use crate::error::{Error, Result};
use crate::history::need::{Need, Now, Pushed, QueueWatch};
use crate::history::{self, Of, Point};
use crate::job::JobId;
use crate::metrics::PoolMetrics;
use crate::name::{Namespace, PoolName, Queue, QueueName};
use crate::process::tasks::beside_the_runtime;
use crate::push::{Push, PushState};

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
/// How many queues a sample tells apart.
const MOST_ROWS: usize = 100_000;
/// Rates are those of so many seconds.
const RATES: u64 = 60;

/// Seconds of a time in milliseconds.
fn seconds(at: Millis) -> u64 {
    at / 1000
}

/// What all samplers of a server go by: the time of day at its start, and the time that has passed since. It never
/// goes back.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    wall: Millis,
    at: Instant,
}

impl Began {
    /// Now.
    pub fn now() -> Began {
        Began { wall: system_now(), at: Instant::now() }
    }

    /// When that was.
    pub fn wall(&self) -> Millis {
        self.wall
    }

    /// What time it is.
    pub fn time(&self) -> Millis {
        self.wall + self.at.elapsed().as_millis() as u64
    }
}

/// What a store said when it was read. `None`: it did not answer.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub stats: Option<Arc<Stats>>,
    pub paused: Option<Arc<BTreeMap<Queue, Pause>>>,
}

/// The figures of one queue, or of all queues of a namespace together that are named after jobs.
#[derive(Clone, Debug)]
pub struct QueueRow {
    pub namespace: Namespace,
    /// `None`: those that are named after jobs.
    pub name: Option<QueueName>,
    pub ready: u64,
    pub dead: u64,
    /// `None` where the store does not know them.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    pub oldest: Option<Duration>,
    /// Published, handed out, acked, and died: jobs a second at this server over the last minute. `None` where they are
    /// not counted by queue.
    pub rates: Option<[f64; 4]>,
    /// How many consumers of this server wait.
    pub waiting: u64,
    /// When this server handed out a job last, to a sample's length.
    pub handed_out: Option<Millis>,
    /// When jobs of it were seen to die last, to a sample's length.
    pub died_at: Option<Millis>,
    pub paused: Option<Pause>,
    pub push: Option<PushState>,
    pub need: Option<Need>,
    /// Among rows with the same need the one with more is worse.
    pub worse: u64,
}

impl QueueRow {
    fn key(&self) -> (&Namespace, Option<&QueueName>) {
        (&self.namespace, self.name.as_ref())
    }

    /// Whose history it is.
    pub fn of(&self, pool: &PoolName) -> Of {
        let (pool, namespace) = (pool.clone(), self.namespace.clone());
        match self.name.clone() {
            Some(name) => Of::Queue(pool, Queue { namespace, name }),
            None => Of::Jobs(pool, namespace),
        }
    }

    /// What its need is judged by. `head` tells its first ready job from others.
    fn now(&self, head: Option<u64>) -> Now {
        Now {
            ready: self.ready,
            dead: self.dead,
            oldest: self.oldest,
            paused: self.paused.is_some(),
            pushed: match self.push {
                None => Pushed::No,
                Some(PushState::On | PushState::Paused) => Pushed::Yes,
                Some(PushState::Open | PushState::Off | PushState::Locked) => Pushed::InTrouble,
            },
            head,
        }
    }

    /// What its history keeps.
    fn point(&self, counts: [u64; 4]) -> Point {
        Point {
            counts,
            ready: self.ready,
            dead: self.dead,
            delayed: self.delayed,
            running: self.running,
            oldest: self.oldest.map(|age| age.as_millis() as u64 / 100),
        }
    }
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
}

/// What was counted of a queue.
#[derive(Debug, Default)]
struct Counted {
    counts: [u64; 4],
    /// What was counted in the last minute: from when, until when, how much.
    lately: Vec<(u64, u64, [u64; 4])>,
    handed_out: Option<Millis>,
}

impl Counted {
    /// The counters are so now, and were read at `before`. Answers what was counted since.
    fn count(&mut self, counts: [u64; 4], before: u64, now: Millis) -> [u64; 4] {
        let mut since = counts;
        since.iter_mut().zip(self.counts).for_each(|(count, old)| *count = count.saturating_sub(old));
        self.counts = counts;
        if since[1] > 0 {
            self.handed_out = Some(now);
        }
        self.lately.retain(|(_, until, _)| until + RATES > seconds(now));
        if since != [0; 4] {
            self.lately.push((before, seconds(now), since));
        } else if self.lately.is_empty() {
            // Most of many queues are at rest.
            self.lately = Vec::new();
        }
        since
    }

    /// At this second, of a server that began then.
    fn rates(&self, began: u64, now: u64) -> [f64; 4] {
        let from = self.lately.iter().map(|(from, ..)| *from).min().unwrap_or(now);
        // A queue that rested for a part of the minute counts for all of it.
        let known = now.saturating_sub(began).clamp(1, RATES);
        let time = now.saturating_sub(from).max(known) as f64;
        let sum = |n: usize| self.lately.iter().map(|(.., counts)| counts[n]).sum::<u64>() as f64;
        std::array::from_fn(|n| sum(n) / time)
    }
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
        let from = seconds(before.at.unwrap_or(self.began.wall));
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
                    row.rates = Some(counted.rates(seconds(self.began.wall), seconds(now)));
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
            rows: Arc::new(rows.into_iter().map(|(row, _)| row).collect()),
            left_out,
            timers: stats.timers,
            overdue: stats.overdue,
            gauges: Arc::new(stats.gauges.clone()),
            full_since: is_full(&stats.gauges).then(|| before.full_since.unwrap_or(now)),
            rates: all.rates(seconds(self.began.wall), seconds(now)),
            interval: (began.elapsed() * SHARE).clamp(STEP, LONGEST),
            trouble: None,
        };
        *self.latest.write() = Arc::new(sample);
    }
}

/// Whether a store has no room for more, by its own figures: a disk below its bound, a Redis at `maxmemory`.
fn is_full(gauges: &[(&'static str, f64)]) -> bool {
    let of = |wanted| gauges.iter().find(|(name, _)| *name == wanted).map_or(0.0, |(_, value)| *value);
    let most = of("max_mem_bytes");
    of("disk_full") > 0.0 || most > 0.0 && of("used_mem_bytes") >= most
}

/// The row of a queue, of rows in order.
fn of<'a>(rows: &'a [QueueRow], key: (&Namespace, Option<&QueueName>)) -> Option<&'a QueueRow> {
    rows.binary_search_by(|row| row.key().cmp(&key)).ok().map(|at| &rows[at])
}

/// A row for each queue, in order, and what its head is known by. Beyond the bound those with the most jobs. And how many
/// were left out.
fn rows(queues: &[QueueSize]) -> (Vec<(QueueRow, Option<u64>)>, usize) {
    let mut of_jobs: BTreeMap<&Namespace, QueueRow> = BTreeMap::new();
    let mut rows = Vec::with_capacity(queues.len());
    for size in queues {
        let Queue { namespace, name } = &size.queue;
        let row = |name| QueueRow {
            namespace: namespace.clone(),
            name,
            ready: size.ready,
            dead: size.dead,
            delayed: size.delayed,
            running: size.running,
            oldest: size.oldest_ready,
            rates: None,
            waiting: 0,
            handed_out: None,
            died_at: None,
            paused: None,
            push: None,
            need: None,
            worse: 0,
        };
        if JobId::parse(name.as_str()).is_none() {
            rows.push((row(Some(name.clone())), size.head));
            continue;
        }
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        match of_jobs.get_mut(namespace) {
            None => _ = of_jobs.insert(namespace, row(None)),
            Some(sum) => {
                sum.ready += size.ready;
                sum.dead += size.dead;
                sum.delayed = both(sum.delayed, size.delayed);
                sum.running = both(sum.running, size.running);
                sum.oldest = sum.oldest.max(size.oldest_ready);
            }
        }
    }
    rows.extend(of_jobs.into_values().map(|row| (row, None)));
    let left_out = rows.len().saturating_sub(MOST_ROWS);
    if left_out > 0 {
        let jobs = |row: &QueueRow| row.ready + row.dead + row.delayed.unwrap_or(0) + row.running.unwrap_or(0);
        rows.select_nth_unstable_by_key(MOST_ROWS, |(row, _)| std::cmp::Reverse(jobs(row)));
        rows.truncate(MOST_ROWS);
    }
    rows.sort_unstable_by(|(a, _), (b, _)| a.key().cmp(&b.key()));
    (rows, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(namespace: &str, name: &str, ready: u64) -> QueueSize {
        QueueSize {
            queue: Queue {
                namespace: Namespace::parse(namespace).expect("a literal"),
                name: QueueName::parse_for_consume(name).expect("a name"),
            },
            ready,
            dead: 1,
            delayed: Some(2),
            running: None,
            oldest_ready: Some(Duration::from_secs(ready)),
            head: Some(7),
        }
    }

    /// Guards against a page of ten thousand queues that are gone when it is read.
    #[test]
    fn queues_that_are_named_after_jobs_are_one_row_a_namespace() {
        let id = |n: u64| JobId::from_parts(n, 1, 0, false).to_string();
        let queues = [size("a", &id(1), 1), size("a", &id(2), 5), size("a", "mail", 9), size("b", &id(3), 2)];
        let (rows, left_out) = rows(&queues);
        let shown: Vec<_> = rows
            .iter()
            .map(|(row, head)| {
                (row.namespace.as_str(), row.name.as_ref().map(QueueName::as_str), row.ready, *head)
            })
            .collect();
        let expected = [("a", None, 6, None), ("a", Some("mail"), 9, Some(7)), ("b", None, 2, None)];
        assert_eq!((shown.as_slice(), left_out), (expected.as_slice(), 0));
        let sum = &rows[0].0;
        assert_eq!(
            (sum.dead, sum.delayed, sum.running, sum.oldest),
            (2, Some(4), None, Some(Duration::from_secs(5)))
        );
    }

    #[test]
    fn the_smallest_are_left_out_and_counted() {
        let queues: Vec<_> = (0..MOST_ROWS + 3).map(|n| size("ns", &format!("q{n}"), n as u64)).collect();
        let (rows, left_out) = rows(&queues);
        assert_eq!((rows.len(), left_out), (MOST_ROWS, 3));
        assert!(rows.is_sorted_by(|(a, _), (b, _)| a.key() < b.key()), "by name");
        assert!(rows.iter().all(|(row, _)| row.ready >= 3), "the three smallest are left out");
    }

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

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let mut counted = Counted::default();
        let at = |second: u64| (1_000_000 + second) * 1000;
        for second in (10..=120).step_by(10) {
            let count = 5 * second;
            let since = counted.count([count, 0, 0, 0], 1_000_000 + second - 10, at(second));
            assert_eq!(since, [50, 0, 0, 0]);
        }
        assert_eq!(counted.rates(1_000_000, 1_000_120)[0], 5.0);
        let (mut early, quarter) = (Counted::default(), at(15));
        early.count([30, 0, 0, 0], 1_000_000, quarter);
        assert_eq!(early.rates(1_000_000, 1_000_015)[0], 2.0, "a server that began a moment ago");
        counted.count([600, 0, 0, 0], 1_000_120, at(150));
        assert_eq!(counted.rates(1_000_000, 1_000_150)[0], 2.5, "half a minute of nothing");
        counted.count([600, 1, 0, 0], 1_000_150, at(300));
        assert_eq!((counted.rates(1_000_000, 1_000_300)[0], counted.handed_out), (0.0, Some(at(300))));
    }
}
