//! The sums of the queues that somebody asks for.

use serde::Serialize;

use crate::sampler::Row;

/// Over all of them, also those that stand on another page.
#[derive(Clone, Debug, Serialize)]
pub struct Sums {
    queues: u64,
    ready: u64,
    /// `None` where a store does not know them by queue.
    delayed: Option<u64>,
    running: Option<u64>,
    dead: u64,
    /// Jobs a second, of the queues that are counted by themselves.
    #[serde(rename = "in")]
    entered: f64,
    out: f64,
    acked: f64,
    died: f64,
}

/// To three decimals.
pub fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

impl Default for Sums {
    fn default() -> Sums {
        let (delayed, running) = (Some(0), Some(0));
        let (queues, ready, dead) = (0, 0, 0);
        Sums { queues, ready, delayed, running, dead, entered: 0.0, out: 0.0, acked: 0.0, died: 0.0 }
    }
}

impl Sums {
    /// And this one.
    pub fn add(&mut self, row: &Row) {
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        self.queues += 1;
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

    /// With rates of three decimals.
    pub fn rounded(&self) -> Sums {
        let Sums { entered, out, acked, died, .. } = *self;
        let [entered, out, acked, died] = [entered, out, acked, died].map(rounded);
        Sums { entered, out, acked, died, ..self.clone() }
    }
}
