//! The two rings of one subject: ten-second steps for an hour, one-minute steps for a day.

use super::point::Point;
use super::ring::Ring;

/// Seconds per step, and number of steps.
pub const FINE: (u64, u64) = (10, 360);
pub const COARSE: (u64, u64) = (60, 1440);
/// Decay of earlier activity per ten seconds, for finding the quietest queues.
const FADES: f32 = 0.98;

/// History of one subject.
#[derive(Debug)]
pub struct Track {
    fine: Ring,
    coarse: Ring,
    /// Second of the first reading.
    since: u64,
    /// Activity at the last reading.
    busy: f32,
}

impl Track {
    /// Upper bound on the heap bytes of a track.
    pub const MOST: usize = Ring::most(FINE.1) + Ring::most(COARSE.1);

    /// Creates an empty track.
    pub fn new(since: u64) -> Track {
        Track { fine: Ring::new(FINE), coarse: Ring::new(COARSE), since, busy: 0.0 }
    }

    /// Adds a reading at `second`.
    pub fn add(&mut self, second: u64, point: &Point) {
        self.busy = self.busy(second) + point.events() as f32;
        let steps = steps_since(self.fine.newest(), second, FINE.0);
        self.fine.add(second, &point.spread(steps));
        let steps = steps_since(self.coarse.newest(), second, COARSE.0);
        self.coarse.add(second, &point.spread(steps));
    }

    /// Returns the points of the hour or the day, newest first.
    pub fn points(&self, day: bool) -> impl Iterator<Item = (u64, Point)> + '_ {
        let ring = if day { &self.coarse } else { &self.fine };
        ring.newest_first()
    }

    /// Returns the recent activity as of `second`.
    pub fn busy(&self, second: u64) -> f32 {
        let steps = second.saturating_sub(self.last()) / FINE.0;
        self.busy * FADES.powi(i32::try_from(steps).unwrap_or(i32::MAX))
    }

    pub fn since(&self) -> u64 {
        self.since
    }

    /// Returns the second of the last reading, to ten seconds.
    pub fn last(&self) -> u64 {
        self.fine.newest().unwrap_or(self.since)
    }

    /// Returns the heap bytes in use.
    pub fn held(&self) -> usize {
        self.fine.held() + self.coarse.held()
    }
}

/// Returns the number of steps begun since the last reading, over which its counts are spread.
fn steps_since(newest: Option<u64>, second: u64, step: u64) -> u64 {
    newest.map_or(1, |newest| (second / step).saturating_sub(newest / step))
}
