//! Times when each job was sent, answered and received, all by this process's monotonic clock, independent of the
//! servers' clocks.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::report::Bench;

/// Times of jobs 0, 1, 2, …; the number is the job's body.
#[derive(Debug)]
pub struct Ledger {
    jobs: Mutex<Vec<Entry>>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// Time from its publish until it is due.
    delay: Duration,
    /// Just before the request was written.
    sent: Option<Instant>,
    /// Just after its reply was read.
    answered: Option<Instant>,
    received: Vec<Instant>,
}

impl Ledger {
    /// Creates a ledger for `jobs` jobs.
    pub fn new(jobs: usize) -> Ledger {
        Ledger { jobs: Mutex::new(vec![Entry::default(); jobs]) }
    }

    pub fn sent(&self, job: usize, delay: Duration) {
        self.entry(job, |entry| (entry.sent, entry.delay) = (Some(Instant::now()), delay));
    }

    pub fn answered(&self, job: usize) {
        self.entry(job, |entry| entry.answered = Some(Instant::now()));
    }

    /// Records a delivery. Returns the number of earlier ones.
    pub fn received(&self, job: usize) -> usize {
        let now = Instant::now();
        let mut before = 0;
        self.entry(job, |entry| {
            before = entry.received.len();
            entry.received.push(now);
        });
        before
    }

    /// Returns the number of jobs that were received at least `times` times.
    pub fn count(&self, times: usize) -> usize {
        self.jobs.lock().iter().filter(|entry| entry.received.len() >= times).count()
    }

    /// Waits until every job was received `times` times, or `patience` has passed.
    pub async fn complete(&self, times: usize, patience: Duration) {
        let end = Instant::now() + patience;
        let all = self.jobs.lock().len();
        while self.count(times) < all && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the times from the publish's first byte to the consumer, for jobs without a delay.
    pub fn delivery(&self) -> Spread {
        let mut spread = Spread::default();
        for entry in self.jobs.lock().iter() {
            if let (Some(sent), Some(received)) = (entry.sent, entry.received.first()) {
                spread.add(received.saturating_duration_since(sent));
            }
        }
        spread
    }

    /// Prints the lateness of delayed jobs. A server counts a delay from some moment between request and reply, so
    /// lateness has an upper and a lower bound.
    pub fn lateness(&self, bench: &Bench) {
        let delayed = |e: &Entry| Some((e.sent? + e.delay, e.answered? + e.delay, *e.received.first()?));
        self.print_lateness(bench, "delay", delayed);
    }

    /// Like [`lateness`](Ledger::lateness), for jobs redelivered without an ack: the ttr begins between the publish
    /// (the job was ready at once) and the first delivery.
    pub fn ttr_lateness(&self, bench: &Bench, ttr: Duration) {
        self.print_lateness(bench, "ttr", |e| {
            Some((e.sent? + ttr, *e.received.first()? + ttr, *e.received.get(1)?))
        });
    }

    fn print_lateness(
        &self,
        bench: &Bench,
        what: &str,
        times: impl Fn(&Entry) -> Option<(Instant, Instant, Instant)>,
    ) {
        let jobs = self.jobs.lock();
        let (mut high, mut low) = (Spread::default(), Spread::default());
        let (mut early, mut margin, mut lost) = (0, f64::MAX, 0);
        for entry in jobs.iter() {
            let Some((first, last, received)) = times(entry) else {
                lost += 1;
                continue;
            };
            high.add(received.saturating_duration_since(first));
            low.add(received.saturating_duration_since(last));
            let after = signed_ms(received, first);
            margin = margin.min(after);
            early += usize::from(received < first);
        }
        bench.none(&format!("{what}: lost"), lost, jobs.len());
        bench.none(&format!("{what}: early"), early, jobs.len());
        if lost < jobs.len() {
            bench.figure(&format!("{what}: the earliest, after it was due"), margin, "ms");
            bench.at_most(&format!("{what}: late p50, counted from the sending"), high.ms(0.5), 2.0, "ms");
            bench.at_most(&format!("{what}: late p99, counted from the sending"), high.ms(0.99), 15.0, "ms");
            bench.at_most(&format!("{what}: late p50, counted from the answer"), low.ms(0.5), 2.0, "ms");
            bench.at_most(&format!("{what}: late p99, counted from the answer"), low.ms(0.99), 15.0, "ms");
            bench.figure(&format!("{what}: the latest, counted from the sending"), high.ms(1.0), "ms");
        }
    }

    fn entry(&self, job: usize, change: impl FnOnce(&mut Entry)) {
        // An unknown number is not counted; the job with the right number is then missing.
        if let Some(entry) = self.jobs.lock().get_mut(job) {
            change(entry);
        }
    }
}

/// A distribution of durations.
#[derive(Debug)]
pub struct Spread(Histogram<u64>);

impl Default for Spread {
    fn default() -> Spread {
        // Microseconds up to a minute, with three digits.
        Spread(Histogram::new_with_bounds(1, 60_000_000, 3).expect("constant bounds that hdrhistogram takes"))
    }
}

impl Spread {
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    pub fn merge(&mut self, other: &Spread) -> &mut Spread {
        // The bounds are the same, so it fits.
        let _ = self.0.add(&other.0);
        self
    }

    pub fn len(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    /// Returns a quantile, in milliseconds.
    pub fn ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1000.0
    }
}

fn signed_ms(a: Instant, b: Instant) -> f64 {
    a.saturating_duration_since(b).as_secs_f64() * 1000.0
        - b.saturating_duration_since(a).as_secs_f64() * 1000.0
}
