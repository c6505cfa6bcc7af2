//! What queues did in the last hour and the last day, in bounded memory, and which of them need somebody. Time is an
//! argument, in seconds that never go back; knows no clock, no store and no HTTP.

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

/// How many queues have a history.
const MOST_QUEUES: usize = 10_000;
/// How many namespaces have one of their sums.
const MOST_NAMESPACES: usize = 1_000;
/// What is forgotten when memory is used up makes so much room, in percent of all.
const ROOM: usize = 5;
/// With so much of the memory in use, in percent, queues that had lost them get steps of ten seconds again.
const ROOMY: usize = 80;

/// Whose history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Of {
    Pool(PoolName),
    Namespace(PoolName, Namespace),
    /// The queues of a namespace that are named after jobs, together.
    Jobs(PoolName, Namespace),
    Queue(PoolName, Queue),
}

impl Of {
    fn is_queue(&self) -> bool {
        matches!(self, Of::Queue(..) | Of::Jobs(..))
    }

    /// Sums of pools are few.
    fn is_always_kept(&self) -> bool {
        matches!(self, Of::Pool(_))
    }
}

/// How far back, and how closely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    Hour,
    Day,
}

impl Range {
    /// Seconds of a step.
    pub fn step(self) -> u64 {
        if self == Range::Day { COARSE.0 } else { FINE.0 }
    }

    pub fn steps(self) -> u64 {
        if self == Range::Day { COARSE.1 } else { FINE.1 }
    }
}

/// The history of everything.
#[derive(Debug)]
pub struct History {
    /// Bytes.
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    tracks: HashMap<Of, Track>,
    /// Bytes that all take.
    bytes: usize,
    queues: usize,
    namespaces: usize,
    used: Used,
}

/// What the history takes, and what there was no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub bytes: usize,
    pub tracks: usize,
    /// How often a queue has lost its steps of ten seconds, and how often all.
    pub lost_hours: u64,
    pub lost_days: u64,
}

/// What one track takes: itself, its name, and its place in the table, which has room for half as many more.
const ENTRY: usize = (size_of::<Of>() + size_of::<Track>() + 1) * 3 / 2;

impl History {
    /// Takes so many bytes at most. With 0 nothing is kept.
    pub fn new(most: usize) -> History {
        History { most, kept: Mutex::default() }
    }

    pub fn is_kept(&self) -> bool {
        self.most > 0
    }

    /// What was read of a pool at this second: its queues, which are told apart; and what its sums are beside them.
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
        kept.forget_silent(second);
        kept.bound_queues();
        if kept.bytes > self.most {
            kept.make_room(self.most / 100 * (100 - ROOM));
        }
    }

    /// The points of this range until this second, one for each step, the oldest first; `None` where nothing is known.
    /// And the second since which there is something.
    pub fn of(&self, of: &Of, range: Range, second: u64) -> (Option<u64>, Vec<Option<Point>>) {
        self.sum(&[of], range, second)
    }

    /// The sum of several, of which each is known by itself.
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

    /// Of more readings than there may be histories: those of the busiest queues.
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

    /// Forgets those of which nothing was read for a day: they are gone.
    fn forget_silent(&mut self, second: u64) {
        let day = COARSE.0 * COARSE.1;
        let silent = |(of, track): (&Of, &Track)| (track.last() + day < second).then(|| of.clone());
        let silent: Vec<Of> = self.tracks.iter().filter_map(silent).collect();
        silent.iter().for_each(|of| self.remove(of));
    }

    /// Beyond the bound the quietest queues have none.
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

    /// All that may be forgotten, the quietest first; sums behind queues.
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

    /// The quietest lose the steps of ten seconds, then the day, until all take no more than `most`.
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
