//! Sums over queues. Routes write them, and pages read them.

use serde::Serialize;

use crate::engine::Estimated;
use crate::sampler::QueueRow;

/// Jobs and rates.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sums {
    pub ready: u64,
    /// `None` if the store does not know them by queue.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    pub dead: u64,
    #[serde(skip_serializing_if = "Estimated::is_none")]
    pub estimated: Estimated,
    /// Jobs per second, over the queues that are counted individually.
    #[serde(rename = "in")]
    pub entered: f64,
    pub out: f64,
    pub acked: f64,
    pub died: f64,
}

/// Sums, and the number of queues.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct OfQueues {
    pub queues: u64,
    #[serde(flatten)]
    pub sums: Sums,
}

/// Rounds to three decimals.
pub fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

impl Default for Sums {
    fn default() -> Sums {
        let (delayed, running) = (Some(0), Some(0));
        let (entered, out, acked, died) = (0.0, 0.0, 0.0, 0.0);
        let estimated = Estimated::default();
        Sums { ready: 0, delayed, running, dead: 0, estimated, entered, out, acked, died }
    }
}

impl Sums {
    /// Sums these rows.
    pub fn of(rows: &[QueueRow]) -> Sums {
        let mut sums = Sums::default();
        rows.iter().for_each(|row| sums.add(row));
        sums
    }

    fn add(&mut self, row: &QueueRow) {
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        self.ready += row.ready;
        self.delayed = both(self.delayed, row.delayed);
        self.running = both(self.running, row.running);
        self.dead += row.dead;
        self.estimated.timers |= row.estimated.timers;
        let [entered, out, acked, died] = row.rates.unwrap_or_default();
        self.entered += entered;
        self.out += out;
        self.acked += acked;
        self.died += died;
    }

    /// Replaces the rates.
    pub fn with_rates(self, [entered, out, acked, died]: [f64; 4]) -> Sums {
        Sums { entered, out, acked, died, ..self }
    }

    /// Rounds the rates to three decimals.
    pub fn rounded(self) -> Sums {
        self.with_rates([self.entered, self.out, self.acked, self.died].map(rounded))
    }
}

impl OfQueues {
    /// Adds a queue.
    pub fn add(&mut self, row: &QueueRow) {
        self.queues += 1;
        self.sums.add(row);
    }

    /// Rounds the rates to three decimals.
    pub fn rounded(self) -> OfQueues {
        OfQueues { sums: self.sums.rounded(), ..self }
    }
}
