//! What queues have together. Routes write it, and pages read it.

use serde::{Deserialize, Serialize};

use crate::sampler::QueueRow;

/// Their jobs, and what happens to them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sums {
    pub ready: u64,
    /// `None` where a store does not know them by queue.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    pub dead: u64,
    /// Jobs a second, of the queues that are counted by themselves.
    #[serde(rename = "in")]
    pub entered: f64,
    pub out: f64,
    pub acked: f64,
    pub died: f64,
}

/// The sums of so many queues.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct OfQueues {
    pub queues: u64,
    #[serde(flatten)]
    pub sums: Sums,
}

/// To three decimals.
pub fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

impl Default for Sums {
    fn default() -> Sums {
        let (delayed, running) = (Some(0), Some(0));
        let (entered, out, acked, died) = (0.0, 0.0, 0.0, 0.0);
        Sums { ready: 0, delayed, running, dead: 0, entered, out, acked, died }
    }
}

impl Sums {
    /// Of all these.
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
        let [entered, out, acked, died] = row.rates.unwrap_or_default();
        self.entered += entered;
        self.out += out;
        self.acked += acked;
        self.died += died;
    }

    /// The same with these rates.
    pub fn with_rates(self, [entered, out, acked, died]: [f64; 4]) -> Sums {
        Sums { entered, out, acked, died, ..self }
    }

    /// With rates of three decimals.
    pub fn rounded(self) -> Sums {
        self.with_rates([self.entered, self.out, self.acked, self.died].map(rounded))
    }
}

impl OfQueues {
    /// And this one.
    pub fn add(&mut self, row: &QueueRow) {
        self.queues += 1;
        self.sums.add(row);
    }

    /// With rates of three decimals.
    pub fn rounded(self) -> OfQueues {
        OfQueues { sums: self.sums.rounded(), ..self }
    }
}
