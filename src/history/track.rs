//! The two rings of one queue: ten seconds for an hour, a minute for a day.

use super::point::Point;
use super::ring::Ring;

/// Seconds of a step, and how many steps there are.
pub const FINE: (u64, u64) = (10, 360);
pub const COARSE: (u64, u64) = (60, 1440);
/// How much of what a queue did counts still at the next reading, when the quietest are looked for.
const FADES: f32 = 0.98;

/// What is kept of one queue, or of a sum.
#[derive(Debug)]
pub struct Track {
    /// `None` where there was no room for it.
    fine: Option<Ring<{ FINE.0 }, { FINE.1 }>>,
    coarse: Ring<{ COARSE.0 }, { COARSE.1 }>,
    /// When the first reading was.
    since: u64,
    busy: f32,
}

impl Track {
    /// From this second on.
    pub fn new(since: u64) -> Track {
        Track { fine: Some(Ring::default()), coarse: Ring::default(), since, busy: 0.0 }
    }

    /// A reading of this second. `roomy`: there is room for steps of ten seconds.
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

    /// The points of the hour or of the day, from the newest on.
    pub fn points(&self, day: bool) -> Vec<(u64, Point)> {
        match &self.fine {
            _ if day => self.coarse.newest_first().collect(),
            Some(fine) => fine.newest_first().collect(),
            None => Vec::new(),
        }
    }

    /// How busy the queue was lately. Of quiet ones, the larger are the busier.
    pub fn busy(&self) -> f32 {
        self.busy
    }

    pub fn since(&self) -> u64 {
        self.since
    }

    /// When a reading was last, to the minute.
    pub fn last(&self) -> u64 {
        self.coarse.newest().unwrap_or(self.since)
    }

    pub fn has_fine(&self) -> bool {
        self.fine.is_some()
    }

    /// Forgets the steps of ten seconds.
    pub fn drop_fine(&mut self) {
        self.fine = None;
    }

    /// Bytes that it takes beside itself.
    pub fn held(&self) -> usize {
        self.fine.as_ref().map_or(0, Ring::held) + self.coarse.held()
    }
}

/// How many steps have begun since the last reading: what was counted since then is spread over them.
fn steps_since(newest: Option<u64>, second: u64, step: u64) -> u64 {
    newest.map_or(1, |newest| (second / step).saturating_sub(newest / step))
}
