//! Activity of queues over the last hour and day, in bounded memory, and which queues need attention. Time is an
//! argument, in monotonic seconds; independent of clocks, stores and HTTP.

pub mod need;
mod point;
mod ring;
mod track;

use std::cmp::Reverse;

use ahash::HashMap;
use parking_lot::Mutex;

pub use self::point::Point;
use self::track::{COARSE, FINE, Track};
use crate::name::{Namespace, PoolName, Queue};

/// Maximum number of queues with a history: the busiest ones.
const MOST_QUEUES: usize = 1_000;
/// Maximum number of namespaces with a history of their totals, as a share of all histories.
const NAMESPACE_SHARE: usize = 4;
/// Memory of a full history: the track, its name and its table slot, plus 50 % for spare capacity, and its points.
const FULL: usize = (size_of::<Of>() + size_of::<Track>() + 1) * 3 / 2 + Track::MOST;

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
    /// Maximum number of tracks; totals of pools count, but are always kept.
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    tracks: HashMap<Of, Track>,
    queues: usize,
    namespaces: usize,
    /// Number of queues that have lost their history to busier ones.
    lost: u64,
}

/// Memory in use, and evictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub bytes: usize,
    pub tracks: usize,
    pub lost: u64,
}

impl History {
    /// Creates a history of at most `bytes` bytes; 0 disables it.
    pub fn new(bytes: usize) -> History {
        History { most: bytes / FULL, kept: Mutex::default() }
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
        kept.add(Of::Pool(pool.clone()), second, &sum);
        for (namespace, sum) in sums {
            let of = Of::Namespace(pool.clone(), namespace);
            if kept.namespaces < self.most / NAMESPACE_SHARE || kept.tracks.contains_key(&of) {
                kept.add(of, second, &sum);
            }
        }
        let totals = kept.tracks.len() - kept.queues;
        let most_queues = self.most.saturating_sub(totals).min(MOST_QUEUES);
        for (of, point) in kept.busiest(readings, second, most_queues) {
            kept.add(of, second, &point);
        }
        kept.remove_silent(second);
        kept.bound_queues(second, most_queues);
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
        let bytes = kept.tracks.values().map(|track| FULL - Track::MOST + track.held()).sum();
        Used { bytes, tracks: kept.tracks.len(), lost: kept.lost }
    }
}

impl Kept {
    fn add(&mut self, of: Of, second: u64, point: &Point) {
        if let Some(track) = self.tracks.get_mut(&of) {
            return track.add(second, point);
        }
        let mut track = Track::new(second);
        track.add(second, point);
        self.queues += usize::from(of.is_queue());
        self.namespaces += usize::from(matches!(of, Of::Namespace(..)));
        self.tracks.insert(of, track);
    }

    /// Limits the readings to the `most` busiest queues. Of equally busy ones those that have a history keep it.
    fn busiest(&self, mut readings: Vec<(Of, Point)>, second: u64, most: usize) -> Vec<(Of, Point)> {
        if readings.len() > most {
            let quiet = |(of, point): &(Of, Point)| {
                let track = self.tracks.get(of);
                let busy = track.map_or(0.0, |track| track.busy(second)) + point.events() as f32;
                (Reverse(busy as u64), track.is_none(), of.clone())
            };
            readings.sort_by_cached_key(quiet);
            readings.truncate(most);
        }
        readings
    }

    fn remove(&mut self, of: &Of) {
        if self.tracks.remove(of).is_some() {
            self.queues -= usize::from(of.is_queue());
            self.namespaces -= usize::from(matches!(of, Of::Namespace(..)));
        }
    }

    /// Removes subjects without readings for a day, since they no longer exist.
    fn remove_silent(&mut self, second: u64) {
        let day = COARSE.0 * COARSE.1;
        let silent = |(of, track): (&Of, &Track)| (track.last() + day < second).then(|| of.clone());
        let silent: Vec<Of> = self.tracks.iter().filter_map(silent).collect();
        silent.iter().for_each(|of| self.remove(of));
    }

    /// Evicts the quietest queues beyond `most`. Among equally quiet ones, those read last stay.
    fn bound_queues(&mut self, second: u64, most: usize) {
        let too_many = self.queues.saturating_sub(most);
        if too_many == 0 {
            return;
        }
        let queues = self.tracks.iter().filter(|(of, _)| of.is_queue());
        let mut queues: Vec<(u64, u64, &Of)> =
            queues.map(|(of, track)| (track.busy(second) as u64, track.last(), of)).collect();
        queues.sort_unstable();
        let quietest: Vec<Of> = queues.into_iter().take(too_many).map(|(.., of)| of.clone()).collect();
        quietest.iter().for_each(|of| self.remove(of));
        self.lost += too_many as u64;
    }
}

#[cfg(test)]
mod tests;
