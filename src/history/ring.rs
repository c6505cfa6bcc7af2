//! The points of one subject over a fixed time, one slot per step.

use std::collections::VecDeque;

use super::point::{FIELDS, Point};

/// A point in 36 bytes.
type Slot = [u32; FIELDS];

/// A step without a reading. [`pack`] never returns it.
const UNKNOWN: Slot = [u32::MAX; FIELDS];
/// Number of slots allocated at a time, so that the history of a young queue is small.
const PIECE: usize = 60;

/// The points of the last `steps` steps of `step` seconds.
#[derive(Clone, Debug)]
pub struct Ring {
    step: u64,
    steps: usize,
    /// Step number, since the epoch, of the newest slot.
    newest: u64,
    /// Oldest first.
    slots: VecDeque<Slot>,
}

/// Numbers above the range of a slot saturate.
fn pack(point: &Point) -> Slot {
    point.fields().map(|field| u32::try_from(field).unwrap_or(u32::MAX).min(u32::MAX - 1))
}

fn unpack(slot: Slot) -> Option<Point> {
    (slot != UNKNOWN).then(|| Point::of(slot.map(u64::from)))
}

impl Ring {
    /// Upper bound on the heap bytes of a ring with this many slots.
    pub const fn most(steps: u64) -> usize {
        steps as usize * size_of::<Slot>()
    }

    pub fn new((step, steps): (u64, u64)) -> Ring {
        Ring { step, steps: steps as usize, newest: 0, slots: VecDeque::new() }
    }

    /// Adds a reading at `second`. Readings of one step are merged. A reading older than the newest step is ignored.
    pub fn add(&mut self, second: u64, point: &Point) {
        let at = second / self.step;
        match self.slots.back_mut() {
            Some(_) if at < self.newest => return,
            Some(last) if at == self.newest => {
                *last = pack(&unpack(*last).map_or(*point, |before| before.and(point)));
                return;
            }
            Some(_) => {
                let unknown = usize::try_from(at - self.newest - 1).unwrap_or(usize::MAX);
                (0..unknown.min(self.steps)).for_each(|_| self.push(UNKNOWN));
            }
            None => {}
        }
        self.push(pack(point));
        self.newest = at;
    }

    fn push(&mut self, slot: Slot) {
        if self.slots.len() == self.steps {
            self.slots.pop_front();
        } else if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(PIECE.min(self.steps - self.slots.len()));
        }
        self.slots.push_back(slot);
    }

    /// Returns the known points, newest first, each with the first second of its step.
    pub fn newest_first(&self) -> impl Iterator<Item = (u64, Point)> + '_ {
        let steps = (0..=self.newest).rev();
        steps.zip(self.slots.iter().rev()).filter_map(|(at, slot)| Some((at * self.step, unpack(*slot)?)))
    }

    /// Returns the first second of the newest step.
    pub fn newest(&self) -> Option<u64> {
        (!self.slots.is_empty()).then_some(self.newest * self.step)
    }

    /// Returns the heap bytes in use.
    pub fn held(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let number = || prop_oneof![4 => 0..3u64, 1 => any::<u32>().prop_map(|n| u64::from(n) / 32)];
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
        /// Guards against points that are lost, changed or misplaced.
        #[test]
        fn what_was_added_is_shown(readings in points()) {
            let mut ring = Ring::new((10, 20));
            for (second, point) in &readings {
                ring.add(*second, point);
            }
            let mut shown: Vec<_> = ring.newest_first().collect();
            shown.reverse();
            prop_assert_eq!(shown, model(&readings).into_iter().collect::<Vec<_>>());
        }
    }

    /// Guards against a panic, or a point taken for an unknown step, where a number does not fit a slot.
    #[test]
    fn numbers_that_do_not_fit_saturate() {
        let most = u64::from(u32::MAX - 1);
        let mut ring = Ring::new((10, 20));
        let all = Some(u64::MAX);
        let point = Point {
            counts: [u64::MAX; 4],
            ready: u64::MAX,
            dead: most,
            delayed: all,
            running: all,
            oldest: all,
        };
        ring.add(1000, &point);
        let shown: Vec<_> = ring.newest_first().collect();
        let known = Some(most - 1);
        let expected = Point {
            counts: [most; 4],
            ready: most,
            dead: most,
            delayed: known,
            running: known,
            oldest: known,
        };
        assert_eq!(shown, [(1000, expected)]);
    }

    /// Guards against spare capacity that doubles the memory of each queue.
    #[test]
    fn it_takes_the_memory_of_its_slots() {
        let mut ring = Ring::new((10, 360));
        ring.add(1000, &ready(1));
        assert!(ring.held() <= 60 * size_of::<Slot>(), "{} bytes for one point", ring.held());
        (0..1000).for_each(|n| ring.add(2000 + n * 10, &ready(n)));
        assert!(ring.held() <= Ring::most(360), "{} bytes of at most {}", ring.held(), Ring::most(360));
    }

    #[test]
    fn after_a_long_silence_it_begins_anew() {
        let mut ring = Ring::new((10, 20));
        (0..5).for_each(|n| ring.add(n * 10, &ready(n)));
        ring.add(100_000, &ready(9));
        assert_eq!(ring.newest_first().collect::<Vec<_>>(), [(100_000, ready(9))]);
        ring.add(50_000, &ready(1));
        assert_eq!(ring.newest(), Some(100_000), "older readings are ignored");
    }
}
