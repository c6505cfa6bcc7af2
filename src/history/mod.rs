//! Activity of queues over the last hour and day, in bounded memory, and which queues need attention. Time is an
//! argument, in monotonic seconds; independent of clocks, stores and HTTP.

pub mod need;
mod point;
mod ring;
mod track;

use std::cmp::Reverse;
use std::mem::size_of;

use ahash::HashMap;
use parking_lot::Mutex;

pub use self::point::Point;
use self::track::{COARSE, FINE, Track};
use crate::name::{Namespace, PoolName, Queue};

/// Maximum number of queues with a history.
const MOST_QUEUES: usize = 10_000;
/// Maximum number of namespaces with a history of their totals.
const MOST_NAMESPACES: usize = 1_000;
/// Percentage of memory freed when the limit is reached.
const ROOM: usize = 5;
/// Percentage of memory in use below which queues get their ten-second steps back.
const ROOMY: usize = 80;

/// Subject of a history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Of {
    Pool(PoolName),
    Namespace(PoolName, Namespace),
    /// All queues of a namespace that are named after jobs, combined.
    Jobs(PoolName, Namespace),
    Queue(PoolName, Queue),
}

impl Of {
    fn is_queue(&self) -> bool {
        matches!(self, Of::Queue(..) | Of::Jobs(..))
    }

    /// Whether it is never evicted. Pool totals are few.
    fn is_always_kept(&self) -> bool {
        matches!(self, Of::Pool(_))
    }
}

/// Time range and resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    Hour,
    Day,
}

impl Range {
    /// Returns the seconds per step.
    pub fn step(self) -> u64 {
        if self == Range::Day { COARSE.0 } else { FINE.0 }
    }

    pub fn steps(self) -> u64 {
        if self == Range::Day { COARSE.1 } else { FINE.1 }
    }
}

/// History of all queues, namespaces and pools.
#[derive(Debug)]
pub struct History {
    /// Limit in bytes.
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    tracks: HashMap<Of, Track>,
    /// Total bytes in use.
    bytes: usize,
    queues: usize,
    namespaces: usize,
    used: Used,
}

/// Memory in use, and evictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub bytes: usize,
    pub tracks: usize,
    /// Number of queues that have lost their ten-second steps, and number that have lost everything.
    pub lost_hours: u64,
    pub lost_days: u64,
}

/// Fixed size of a track: the track, its name and its table slot, plus 50 % for spare capacity.
const ENTRY: usize = (size_of::<Of>() + size_of::<Track>() + 1) * 3 / 2;

impl History {
    /// Creates a history of at most `most` bytes; 0 disables it.
    pub fn new(most: usize) -> History {
        History { most, kept: Mutex::default() }
    }

    pub fn is_kept(&self) -> bool {
        self.most > 0
    }

    /// Adds the readings of a pool's queues at `second`. `beside` is added to the pool's totals for queues not in
    /// `readings`.
    pub fn add(&self, second: u64, pool: &PoolName, readings: Vec<(Of, Point)>, beside: &Point) {
        if self.most == 0 {
            return;
        }
        let mut kept = self.kept.lock();
        let mut of_pool: Option<Point> = None;
        let mut sums: HashMap<Namespace, Point> = HashMap::default();
        for (of, point) in &readings {
            let (Of::Queue(_, Queue { namespace, .. })
            | Of::Jobs(_, namespace)
            | Of::Namespace(_, namespace)) = of
            else {
                continue;
            };
            of_pool = Some(of_pool.map_or(*point, |sum| sum.plus(point)));
            match sums.get_mut(namespace) {
                Some(sum) => *sum = sum.plus(point),
                None => _ = sums.insert(namespace.clone(), *point),
            }
        }
        let sum = of_pool.unwrap_or(Point { delayed: Some(0), running: Some(0), ..Point::default() });
        let sum = Point { counts: sum.and(beside).counts, ..sum };
        let roomy = kept.bytes < self.most / 100 * ROOMY;
        kept.add(Of::Pool(pool.clone()), second, &sum, roomy);
        for (namespace, sum) in sums {
            kept.add(Of::Namespace(pool.clone(), namespace), second, &sum, roomy);
        }
        for (of, point) in kept.busiest(readings) {
            kept.add(of, second, &point, roomy);
        }
        kept.remove_silent(second);
        kept.bound_queues();
        if kept.bytes > self.most {
            kept.make_room(self.most / 100 * (100 - ROOM));
        }
    }

    /// Returns the points of `range` up to `second`, one per step, oldest first; `None` for unknown steps. Also returns
    /// the second of the first reading.
    pub fn of(&self, of: &Of, range: Range, second: u64) -> (Option<u64>, Vec<Option<Point>>) {
        self.sum(&[of], range, second)
    }

    /// Returns the sum of several histories.
    pub fn sum(&self, all: &[&Of], range: Range, second: u64) -> (Option<u64>, Vec<Option<Point>>) {
        let kept = self.kept.lock();
        let newest = second / range.step();
        let mut points: Vec<Option<Point>> = vec![None; range.steps() as usize];
        let mut since: Option<u64> = None;
        for track in all.iter().filter_map(|of| kept.tracks.get(of)) {
            since = Some(since.map_or(track.since(), |since| since.min(track.since())));
            for (second, point) in track.points(range == Range::Day) {
                let Some(back) = newest.checked_sub(second / range.step()) else { continue };
                let Some(at) = (range.steps() - 1).checked_sub(back) else { continue };
                let sum = &mut points[at as usize];
                *sum = Some(sum.map_or(point, |sum| sum.plus(&point)));
            }
        }
        (since, points)
    }

    pub fn used(&self) -> Used {
        let kept = self.kept.lock();
        Used { bytes: kept.bytes, tracks: kept.tracks.len(), ..kept.used }
    }
}

impl Kept {
    fn add(&mut self, of: Of, second: u64, point: &Point, roomy: bool) {
        if let Some(track) = self.tracks.get_mut(&of) {
            self.bytes -= track.held();
            track.add(second, point, roomy);
            self.bytes += track.held();
            return;
        }
        if matches!(of, Of::Namespace(..)) && self.namespaces >= MOST_NAMESPACES {
            return;
        }
        let mut track = Track::new(second);
        track.add(second, point, true);
        self.bytes += ENTRY + track.held();
        self.queues += usize::from(of.is_queue());
        self.namespaces += usize::from(matches!(of, Of::Namespace(..)));
        self.tracks.insert(of, track);
    }

    /// Limits the readings to the busiest queues.
    fn busiest(&self, mut readings: Vec<(Of, Point)>) -> Vec<(Of, Point)> {
        if readings.len() > MOST_QUEUES {
            let busy = |(of, point): &(Of, Point)| {
                let now: u64 = point.counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
                self.tracks.get(of).map_or(0.0, Track::busy) + now as f32
            };
            readings.sort_by_cached_key(|reading| (Reverse(busy(reading) as u64), reading.0.clone()));
            readings.truncate(MOST_QUEUES);
        }
        readings
    }

    fn remove(&mut self, of: &Of) {
        let Some(track) = self.tracks.remove(of) else { return };
        self.bytes -= ENTRY + track.held();
        self.queues -= usize::from(of.is_queue());
        self.namespaces -= usize::from(matches!(of, Of::Namespace(..)));
    }

    /// Removes subjects without readings for a day, since they no longer exist.
    fn remove_silent(&mut self, second: u64) {
        let day = COARSE.0 * COARSE.1;
        let silent = |(of, track): (&Of, &Track)| (track.last() + day < second).then(|| of.clone());
        let silent: Vec<Of> = self.tracks.iter().filter_map(silent).collect();
        silent.iter().for_each(|of| self.remove(of));
    }

    /// Evicts the quietest queues beyond the limit.
    fn bound_queues(&mut self) {
        let too_many = self.queues.saturating_sub(MOST_QUEUES);
        if too_many == 0 {
            return;
        }
        for of in self.quietest().into_iter().filter(Of::is_queue).take(too_many) {
            self.remove(&of);
            self.used.lost_days += 1;
        }
    }

    /// Returns everything evictable, quietest first, queues before totals.
    fn quietest(&self) -> Vec<Of> {
        let mut all: Vec<(bool, f32, &Of)> = self
            .tracks
            .iter()
            .filter(|(of, _)| !of.is_always_kept())
            .map(|(of, track)| (!of.is_queue(), track.busy(), of))
            .collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(b.2)));
        all.into_iter().map(|(.., of)| of.clone()).collect()
    }

    /// Evicts the ten-second steps, then the rest, of the quietest until at most `most` bytes are used.
    fn make_room(&mut self, most: usize) {
        let quietest = self.quietest();
        for of in &quietest {
            if self.bytes <= most {
                return;
            }
            if let Some(track) = self.tracks.get_mut(of).filter(|track| track.has_fine()) {
                self.bytes -= track.held();
                track.drop_fine();
                self.bytes += track.held();
                self.used.lost_hours += 1;
            }
        }
        for of in &quietest {
            if self.bytes <= most {
                return;
            }
            self.remove(of);
            self.used.lost_days += 1;
        }
    }
}

#[cfg(test)]
mod tests;
