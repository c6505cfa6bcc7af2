//! The points of one queue over a fixed time, run-length encoded. Equal points, and ages that grow with time, form one
//! run, so an idle queue takes a few bytes.
//!
//! The newest run comes first and is self-contained; each further run is encoded as its difference from the newer one,
//! so that a new point changes only the first bytes. A run is a number (its length and two flags), followed, unless it
//! is unknown, by a mask of the nine fields that differ and the differences. All numbers are LEB128, differences
//! zigzag.

use super::point::{FIELDS, OLDEST, Point};

/// Number of surplus points a ring may keep before the oldest are cut off, which reads all of it.
const SLACK: u64 = 64;
/// Tenths per second.
const TENTHS: u64 = 10;

type Fields = [u64; FIELDS];

/// The points of the last `SLOTS` steps of `STEP` seconds.
#[derive(Clone, Debug, Default)]
pub struct Ring<const STEP: u64, const SLOTS: u64> {
    /// Step number, since the epoch, of the newest point.
    newest: u64,
    /// Number of steps encoded in `bytes`.
    covered: u64,
    bytes: Vec<u8>,
}

/// Consecutive equal or unknown points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    count: u64,
    /// Whether the ages of these points grow by one step each.
    grows: bool,
    /// The newest point; `None` if unknown.
    newest: Option<Fields>,
}

impl Run {
    fn one(fields: Fields) -> Run {
        Run { count: 1, grows: false, newest: Some(fields) }
    }

    /// Returns the `n`-th point, counted from the newest.
    fn at(&self, n: u64, step: u64) -> Option<Fields> {
        let mut fields = self.newest?;
        if self.grows {
            fields[OLDEST] = fields[OLDEST].saturating_sub(n * step * TENTHS);
        }
        Some(fields)
    }

    /// Returns the run extended by a point, if the point continues it.
    fn joined(&self, fields: Fields, step: u64) -> Option<Run> {
        let last = self.newest?;
        if last == fields && (self.count == 1 || !self.grows) {
            return Some(Run { count: self.count + 1, grows: false, ..*self });
        }
        let mut grown = last;
        grown[OLDEST] += step * TENTHS;
        let age = fields[OLDEST];
        // Readings are not exactly one step apart.
        let about = (age / 16).clamp(TENTHS, step * TENTHS);
        let same = last[OLDEST] > 0 && age > 0 && last[..OLDEST] == fields[..OLDEST];
        let goes_on = same && grown[OLDEST].abs_diff(age) <= about && (self.count == 1 || self.grows);
        goes_on.then_some(Run { count: self.count + 1, grows: true, newest: Some(grown) })
    }

    /// Encodes the run relative to `base`, the oldest point of the next newer run.
    fn write(&self, base: &Fields, out: &mut Vec<u8>) {
        put(out, self.count << 2 | u64::from(self.newest.is_none()) << 1 | u64::from(self.grows));
        let Some(fields) = self.newest else { return };
        let differs = (0..FIELDS).filter(|n| fields[*n] != base[*n]);
        put(out, differs.clone().fold(0, |mask, n| mask | 1 << n));
        for n in differs {
            let by = fields[n].wrapping_sub(base[n]) as i64;
            put(out, (by << 1 ^ by >> 63) as u64);
        }
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Decodes runs from the newest on.
struct Runs<'a> {
    bytes: &'a [u8],
    step: u64,
    at: usize,
    base: Fields,
}

impl Runs<'_> {
    /// Reads the next number. The input was written by [`Run::write`].
    fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        while let Some(byte) = self.bytes.get(self.at) {
            self.at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 || shift > 63 {
                break;
            }
        }
        number
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let head = self.number();
        let mut run = Run { count: head >> 2, grows: head & 1 > 0, newest: None };
        if head & 2 == 0 {
            let mask = self.number();
            let mut fields = self.base;
            for (n, field) in fields.iter_mut().enumerate().filter(|(n, _)| mask & 1 << n > 0) {
                let by = self.number();
                let by = (by >> 1) as i64 ^ -((by & 1) as i64);
                debug_assert!(n < FIELDS);
                *field = field.wrapping_add(by as u64);
            }
            run.newest = Some(fields);
            self.base = run.at(run.count.saturating_sub(1), self.step).unwrap_or(fields);
        }
        Some(run)
    }
}

impl<const STEP: u64, const SLOTS: u64> Ring<STEP, SLOTS> {
    fn runs(&self) -> Runs<'_> {
        Runs { bytes: &self.bytes, step: STEP, at: 0, base: [0; FIELDS] }
    }

    /// Returns the newest run and its encoded length.
    fn first(&self) -> Option<(Run, usize)> {
        let mut runs = self.runs();
        let first = runs.next()?;
        Some((first, runs.at))
    }

    /// Adds a reading at `second`. Readings of one step are merged. A reading older than the newest step is ignored.
    pub fn add(&mut self, second: u64, point: &Point) {
        let slot = second / STEP;
        if self.bytes.is_empty() || slot >= self.newest + SLOTS {
            self.bytes.clear();
            Run::one(point.fields()).write(&[0; FIELDS], &mut self.bytes);
            (self.newest, self.covered) = (slot, 1);
        } else if slot == self.newest {
            let Some(before) = self.pop() else { return };
            self.add(second, &before.and(point));
        } else if slot > self.newest {
            self.push(slot, point.fields());
        }
    }

    fn push(&mut self, slot: u64, fields: Fields) {
        let Some((first, size)) = self.first() else { return };
        let unknown = slot - self.newest - 1;
        let mut head = Vec::new();
        match first.joined(fields, STEP).filter(|_| unknown == 0) {
            Some(joined) => joined.write(&[0; FIELDS], &mut head),
            None => {
                Run::one(fields).write(&[0; FIELDS], &mut head);
                if unknown > 0 {
                    Run { count: unknown, grows: false, newest: None }.write(&fields, &mut head);
                }
                first.write(&fields, &mut head);
            }
        }
        self.bytes.splice(..size, head);
        self.newest = slot;
        self.covered += unknown + 1;
        if self.covered > SLOTS + SLACK {
            self.cut();
        }
    }

    /// Removes and returns the newest point.
    fn pop(&mut self) -> Option<Point> {
        let mut runs = self.runs();
        let first = runs.next()?;
        let fields = first.newest?;
        let (mut head, mut gone, mut end) = (Vec::new(), 1, runs.at);
        if first.count > 1 {
            let rest = Run { count: first.count - 1, newest: first.at(1, STEP), ..first };
            rest.write(&[0; FIELDS], &mut head);
        } else {
            for next in runs.by_ref() {
                end = runs_end(&self.bytes, end);
                if next.newest.is_some() {
                    next.write(&[0; FIELDS], &mut head);
                    break;
                }
                gone += next.count;
            }
        }
        self.bytes.splice(..end, head);
        self.newest -= gone;
        self.covered -= gone;
        Some(Point::of(fields))
    }

    /// Cuts off points older than the range.
    fn cut(&mut self) {
        let (mut left, mut end, mut cut) = (SLOTS, 0, None);
        for run in self.runs() {
            let begin = end;
            end = runs_end(&self.bytes, begin);
            if run.count >= left {
                cut = Some((begin, run, left));
                break;
            }
            left -= run.count;
        }
        let Some((begin, run, left)) = cut else { return };
        self.bytes.truncate(end);
        let mut head = Vec::new();
        put(&mut head, left << 2 | u64::from(run.newest.is_none()) << 1 | u64::from(run.grows));
        let old = begin..number_end(&self.bytes, begin);
        self.bytes.splice(old, head);
        self.covered = SLOTS;
        self.bytes.shrink_to(self.bytes.len() + self.bytes.len() / 8);
    }

    /// Returns the known points, newest first, each with the first second of its step.
    pub fn newest_first(&self) -> impl Iterator<Item = (u64, Point)> + '_ {
        let mut slot = self.newest + 1;
        let points = self.runs().flat_map(|run| (0..run.count).map(move |n| run.at(n, STEP)));
        points.take(SLOTS as usize).filter_map(move |fields| {
            slot -= 1;
            Some((slot * STEP, Point::of(fields?)))
        })
    }

    /// Returns the first second of the newest step.
    pub fn newest(&self) -> Option<u64> {
        (!self.bytes.is_empty()).then_some(self.newest * STEP)
    }

    /// Returns the heap bytes in use.
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Returns the end of the number at `at`.
fn number_end(bytes: &[u8], at: usize) -> usize {
    let last = bytes[at..].iter().position(|byte| byte & 0x80 == 0);
    last.map_or(bytes.len(), |last| at + last + 1)
}

/// Returns the end of the run at `at`.
fn runs_end(bytes: &[u8], at: usize) -> usize {
    let mut runs = Runs { bytes, step: 0, at, base: [0; FIELDS] };
    runs.next();
    runs.at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Small = Ring<10, 20>;

    fn ready(ready: u64) -> Point {
        Point { ready, ..Point::default() }
    }

    /// Computes the points with a map by step, as a reference.
    fn model(readings: &[(u64, Point)]) -> std::collections::BTreeMap<u64, Point> {
        let mut all = std::collections::BTreeMap::<u64, Point>::new();
        for (second, point) in readings {
            let slot = second / 10 * 10;
            if all.last_key_value().is_some_and(|(last, _)| *last > slot) {
                continue;
            }
            let both = all.get(&slot).map_or(*point, |before| before.and(point));
            all.insert(slot, both);
        }
        let newest = all.last_key_value().map_or(0, |(last, _)| *last);
        all.retain(|slot, _| slot + 200 > newest);
        all
    }

    fn points() -> impl Strategy<Value = Vec<(u64, Point)>> {
        let number = || prop_oneof![4 => 0..3u64, 1 => any::<u64>().prop_map(|n| n / 4)];
        let known = move || proptest::option::of(number());
        let point = (proptest::array::uniform4(number()), number(), number(), known(), known()).prop_map(
            |(counts, ready, dead, delayed, running)| Point {
                counts,
                ready,
                dead,
                delayed,
                running,
                oldest: None,
            },
        );
        let step = prop_oneof![8 => 0..12u64, 1 => 0..50u64, 1 => 0..400u64];
        proptest::collection::vec((step, point), 0..200).prop_map(|steps| {
            let mut now = 1_000_000;
            let at = |(step, point)| {
                now += step;
                (now, point)
            };
            steps.into_iter().map(at).collect()
        })
    }

    proptest! {
        /// Guards against points lost, changed or misplaced by the encoding.
        #[test]
        fn what_was_added_is_shown(readings in points()) {
            let mut ring = Small::default();
            for (second, point) in &readings {
                ring.add(*second, point);
            }
            let mut shown: Vec<_> = ring.newest_first().collect();
            shown.reverse();
            prop_assert_eq!(shown, model(&readings).into_iter().collect::<Vec<_>>());
        }
    }

    /// Guards against a queue without consumers whose growing age fills memory, and against drifting ages.
    #[test]
    fn an_age_that_grows_with_time_takes_no_room() {
        let mut ring = Ring::<10, 360>::default();
        for step in 0..5000u64 {
            let second = 1_000_000 + step * 10 + step * 7 % 3;
            let age = (second - 999_000) * 10;
            ring.add(second, &Point { oldest: Some(age), ..ready(5) });
        }
        assert!(ring.held() < 64, "{} bytes", ring.held());
        let mut count = 0;
        for (second, point) in ring.newest_first() {
            let expected = (second - 999_000) * 10;
            let age = point.oldest.expect("an age");
            assert!(age.abs_diff(expected) <= 10 * TENTHS, "{age} in place of {expected} at {second}");
            count += 1;
        }
        assert_eq!(count, 360, "an hour");
    }

    #[test]
    fn an_age_that_stays_small_is_shown_as_it_was() {
        let mut ring = Small::default();
        for step in 0..15 {
            ring.add(1000 + step * 10, &Point { oldest: Some(step % 2), ..ready(1) });
        }
        let ages: Vec<_> = ring.newest_first().map(|(_, point)| point.oldest).collect();
        assert_eq!(ages[..4], [Some(0), Some(1), Some(0), Some(1)]);
    }

    #[test]
    fn after_a_long_silence_it_begins_anew() {
        let mut ring = Small::default();
        (0..5).for_each(|n| ring.add(n * 10, &ready(n)));
        ring.add(100_000, &ready(9));
        assert_eq!(ring.newest_first().collect::<Vec<_>>(), [(100_000, ready(9))]);
        ring.add(50_000, &ready(1));
        assert_eq!(ring.newest(), Some(100_000), "older readings are ignored");
    }
}
