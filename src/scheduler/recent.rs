//! What this server has published lately, in memory: a failover may have lost it. Calls nothing.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::engine::{OnConflict, Publication};

/// How long publications are remembered. A master that was replaced accepts writes for some ten seconds.
const LATELY: Duration = Duration::from_secs(60);
/// Maximum number of remembered publications, and bytes of their bodies.
const MOST: usize = 4096;
const MOST_BYTES: usize = 16 << 20;

/// What this server has published lately.
#[derive(Debug, Default)]
pub struct Recent(Mutex<Jobs>);

#[derive(Debug, Default)]
struct Jobs {
    all: VecDeque<(Instant, Publication)>,
    bytes: usize,
}

impl Recent {
    pub fn add(&self, mut job: Publication) {
        // If it is published again, a newer job may have its key.
        job.jobs.iter_mut().filter_map(|of| of.key.as_mut()).for_each(|(_, on)| *on = OnConflict::Keep);
        let mut jobs = self.0.lock();
        jobs.bytes += job.bytes();
        jobs.all.push_back((Instant::now(), job));
        while let Some((at, oldest)) = jobs.all.front()
            && (at.elapsed() > LATELY || jobs.all.len() > MOST || jobs.bytes > MOST_BYTES)
        {
            jobs.bytes -= oldest.bytes();
            jobs.all.pop_front();
        }
    }

    pub fn all(&self) -> Vec<Publication> {
        self.0.lock().all.iter().map(|(_, job)| job.clone()).collect()
    }
}
