//! Counts the entries of the lists, the keys and the idempotency keys, on several cores: needed after an unclean
//! shutdown. Reads keys and prefixes, and no record.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::HashMap;
use parking_lot::Mutex;

use crate::engine::disk::codec;
use crate::engine::disk::store::{Fatal, Space, Store};

/// Counts by the prefixes of queues.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of entries, and the number of the first.
    pub ready: BTreeMap<Vec<u8>, (u64, u64)>,
    pub dead: BTreeMap<Vec<u8>, (u64, u64)>,
    pub delayed: HashMap<Vec<u8>, u64>,
    /// Keys of jobs.
    pub keys: u64,
    /// Idempotency keys.
    pub requests: u64,
}

type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Parts per thread: keys are distributed unevenly, and a thread that finishes early takes another part.
const PARTS: usize = 4;
const MOST_THREADS: usize = 8;

/// Counts all entries.
pub fn count(store: &Store) -> Result<Counts, Fatal> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let mut parts: Vec<(Space, Range)> = Vec::new();
    for space in [Space::Delayed, Space::Ready, Space::Dead, Space::Keys, Space::Once] {
        if let Some((first, last)) = store.ends(space)? {
            parts.extend(split(&first, &last, threads * PARTS).into_iter().map(|range| (space, range)));
        }
    }
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(Ok(Counts::default())));
    let work = || {
        while let Some((space, range)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let counted = count_part(store, *space, range.clone());
            let mut counts = counts.lock();
            match counted {
                Ok(part) => {
                    if let Ok(counts) = &mut *counts {
                        counts.add(part);
                    }
                }
                Err(e) => *counts = Err(e),
            }
        }
    };
    // They end within the scope, which propagates panics.
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    counts.into_inner()
}

fn count_part(store: &Store, space: Space, range: Range) -> Result<Counts, Fatal> {
    let mut counts = Counts::default();
    if space == Space::Delayed {
        for item in store.range(space, range) {
            let value = item?.1;
            let (prefix, _) = codec::split_timer_value(&value)?;
            // Allocates only for queues not seen before.
            match counts.delayed.get_mut(prefix) {
                Some(count) => *count += 1,
                None => drop(counts.delayed.insert(prefix.to_vec(), 1)),
            }
        }
        return Ok(counts);
    }
    if let Space::Keys | Space::Once = space {
        for item in store.range(space, range) {
            let (key, _) = item?;
            counts.keys += u64::from(space == Space::Keys);
            counts.requests += u64::from(space == Space::Once && codec::is_once_end(&key));
        }
        return Ok(counts);
    }
    let lists = if space == Space::Ready { &mut counts.ready } else { &mut counts.dead };
    let mut run: Option<(Vec<u8>, (u64, u64))> = None;
    for item in store.range(space, range) {
        let (key, _) = item?;
        let (prefix, seq) = codec::split_list_key(&key)?;
        match &mut run {
            Some((same, (count, _))) if same == prefix => *count += 1,
            _ => lists.extend(run.replace((prefix.to_vec(), (1, seq)))),
        }
    }
    lists.extend(run);
    Ok(counts)
}

impl Counts {
    fn add(&mut self, other: Counts) {
        for (to, from) in [(&mut self.ready, other.ready), (&mut self.dead, other.dead)] {
            for (prefix, (count, first)) in from {
                let sum = to.entry(prefix).or_insert((0, first));
                *sum = (sum.0 + count, sum.1.min(first));
            }
        }
        for (prefix, count) in other.delayed {
            *self.delayed.entry(prefix).or_default() += count;
        }
        self.keys += other.keys;
        self.requests += other.requests;
    }
}

/// Splits the keys from `first` to `last` into ranges of about equal width, by the eight bytes after their common
/// prefix.
fn split(first: &[u8], last: &[u8], parts: usize) -> Vec<Range> {
    let same = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut eight = [0; 8];
        for (to, from) in eight.iter_mut().zip(&key[same..]) {
            *to = *from;
        }
        u64::from_be_bytes(eight)
    };
    let (low, high) = (number(first), number(last));
    let mut from = Bound::Unbounded;
    let mut ranges = Vec::new();
    for part in 1..parts as u64 {
        let at = low + ((u128::from(high - low) * u128::from(part)) / parts as u128) as u64;
        let key = [&first[..same], &at.to_be_bytes()[..]].concat();
        if from != Bound::Included(key.clone()) {
            ranges.push((from, Bound::Excluded(key.clone())));
            from = Bound::Included(key);
        }
    }
    ranges.push((from, Bound::Unbounded));
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_key_is_in_one_part(mut keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..50), parts in 1usize..9) {
            keys.sort();
            let ranges = split(&keys[0], &keys[keys.len() - 1], parts);
            for key in keys {
                use std::ops::RangeBounds;
                let within = ranges.iter().filter(|range| range.contains(&key)).count();
                prop_assert_eq!(within, 1, "{:?} is in {} of {:?}", key, within, ranges);
            }
        }
    }

    #[test]
    fn equal_steps_give_equal_parts() {
        let key = |n: u64| codec::timer_key((7, n));
        let ranges = split(&key(1 << 48), &key((1 << 48) + 1000), 4);
        use std::ops::RangeBounds;
        for range in &ranges {
            let count = (0..=1000).filter(|n| range.contains(&key((1 << 48) + n).to_vec())).count();
            assert!(
                (249..=252).contains(&count),
                "{count} of 1001 keys are in one of four parts: {ranges:?}"
            );
        }
    }
}
