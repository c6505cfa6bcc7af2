//! The two rings of one queue: ten-second steps for an hour, one-minute steps for a day.

use super::point::Point;
use super::ring::Ring;

/// Seconds per step, and number of steps.
pub const FINE: (u64, u64) = (10, 360);
pub const COARSE: (u64, u64) = (60, 1440);
/// Decay of earlier activity per reading, for finding the quietest queues.
const FADES: f32 = 0.98;

/// History of one subject.
#[derive(Debug)]
pub struct Track {
    /// `None` after its eviction.
    fine: Option<Ring<{ FINE.0 }, { FINE.1 }>>,
    coarse: Ring<{ COARSE.0 }, { COARSE.1 }>,
    /// Second of the first reading.
    since: u64,
    busy: f32,
}

impl Track {
    /// Creates an empty track.
    pub fn new(since: u64) -> Track {
        Track { fine: Some(Ring::default()), coarse: Ring::default(), since, busy: 0.0 }
    }

    /// Adds a reading at `second`. `roomy` says that there is memory for ten-second steps.
    pub fn add(&mut self, second: u64, point: &Point, roomy: bool) {
        let done: u64 = point.counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
        self.busy = self.busy * FADES + done as f32;
        if self.fine.is_none() && roomy {
            self.fine = Some(Ring::default());
        }
        if let Some(fine) = &mut self.fine {
            let steps = steps_since(fine.newest(), second, FINE.0);
            fine.add(second, &point.spread(steps));
        }
        let steps = steps_since(self.coarse.newest(), second, COARSE.0);
        self.coarse.add(second, &point.spread(steps));
    }

    /// Returns the points of the hour or the day, newest first.
    pub fn points(&self, day: bool) -> Vec<(u64, Point)> {
        match &self.fine {
            _ if day => self.coarse.newest_first().collect(),
            Some(fine) => fine.newest_first().collect(),
            None => Vec::new(),
        }
    }

    /// Returns the recent activity of the queue. Among quiet ones, larger queues count as busier.
    pub fn busy(&self) -> f32 {
        self.busy
    }

    pub fn since(&self) -> u64 {
        self.since
    }

    /// Returns the second of the last reading, to the minute.
    pub fn last(&self) -> u64 {
        self.coarse.newest().unwrap_or(self.since)
    }

    pub fn has_fine(&self) -> bool {
        self.fine.is_some()
    }

    /// Drops the ten-second steps.
    pub fn drop_fine(&mut self) {
        self.fine = None;
    }

    /// Returns the heap bytes in use.
    pub fn held(&self) -> usize {
        self.fine.as_ref().map_or(0, Ring::held) + self.coarse.held()
    }
}

/// Returns the number of steps begun since the last reading, over which its counts are spread.
fn steps_since(newest: Option<u64>, second: u64, step: u64) -> u64 {
    newest.map_or(1, |newest| (second / step).saturating_sub(newest / step))
}
