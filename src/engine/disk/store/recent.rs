//! Recently committed entries, before they enter memtables. Most jobs live only briefly: an entry deleted while it is
//! here leaves neither an entry nor a tombstone, and no work for flushes and merges. Independent of log and trees.

use std::collections::VecDeque;

use ahash::RandomState;
use hashbrown::HashTable;
use lsm_tree::Slice;

use super::space::Space;

/// Maximum number of entries, including removed ones that are not yet at the front.
const ENTRIES: usize = 1 << 15;
/// Maximum bytes of keys and values.
const BYTES: usize = 8 << 20;
/// Number of entries moved to memtables at a time, so that the memtables stay in the processor's caches.
const TOGETHER: usize = 1 << 9;

/// An entry of a group; the value `None` deletes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub group: u64,
    pub space: Space,
    pub key: Slice,
    pub value: Option<Slice>,
    /// Whether memtables and tables do not contain the key.
    is_new: bool,
    hash: u64,
}

impl Entry {
    fn is_of(&self, space: Space, key: &[u8]) -> bool {
        self.space == space && *self.key == *key
    }

    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, |value| value.len())
    }
}

/// Entries in commit order.
#[derive(Debug, Default)]
pub struct Recent {
    entries: VecDeque<Option<Entry>>,
    /// Number of entries removed at the front so far, modulo 2^32.
    left: u32,
    /// Position of each key's entry, counted from the first entry ever: four bytes each, so that the table fits a
    /// processor's cache.
    places: HashTable<u32>,
    hasher: RandomState,
    bytes: usize,
}

impl Recent {
    /// Adds an entry of the newest group. `is_new` says that the key existed nowhere before. Returns whether the entry
    /// was kept: a deletion of a key that exists nowhere below is dropped.
    pub fn add(&mut self, group: u64, space: Space, key: Slice, value: Option<Slice>, is_new: bool) -> bool {
        let hash = self.hash(space, &key);
        let mut entry = Entry { group, space, key, value, is_new, hash };
        let next = self.left.wrapping_add(self.entries.len() as u32);
        let (entries, left) = (&mut self.entries, self.left);
        let is_it =
            |place: &u32| entry_at(entries, left, *place).is_some_and(|at| at.is_of(space, &entry.key));
        match self.places.find_entry(hash, is_it) {
            Ok(mut known) => {
                let at = known.get().wrapping_sub(left) as usize;
                if let Some(old) = entries.get_mut(at).and_then(Option::take) {
                    self.bytes -= old.bytes();
                    entry.is_new = old.is_new;
                }
                if entry.is_new && entry.value.is_none() {
                    known.remove();
                    return false;
                }
                *known.get_mut() = next;
            }
            Err(_) if entry.is_new && entry.value.is_none() => return false,
            Err(_) => {
                // Called only when the table grows, to rehash its contents.
                let rehash = |place: &u32| entry_at(entries, left, *place).map_or(0, |entry| entry.hash);
                self.places.insert_unique(hash, next, rehash);
            }
        }
        self.bytes += entry.bytes();
        self.entries.push_back(Some(entry));
        true
    }

    fn hash(&self, space: Space, key: &[u8]) -> u64 {
        self.hasher.hash_one((space as u8, key))
    }

    /// Returns the last write of a key, if it is here; `Some(None)` if the key was deleted.
    pub fn get(&self, space: Space, key: &[u8]) -> Option<Option<Slice>> {
        let at = |place: &u32| entry_at(&self.entries, self.left, *place);
        let is_it = |place: &u32| at(place).is_some_and(|entry| entry.is_of(space, key));
        let place = self.places.find(self.hash(space, key), is_it)?;
        at(place).map(|entry| entry.value.clone())
    }

    /// Removes the oldest entries beyond the limits, in whole groups: a table has either all entries of a group or
    /// none.
    pub fn surplus(&mut self) -> impl Iterator<Item = Entry> {
        let is_too_much = self.entries.len() > ENTRIES || self.bytes > BYTES;
        let most = if is_too_much { TOGETHER.max(self.entries.len().saturating_sub(ENTRIES)) } else { 0 };
        self.take(most, if is_too_much { BYTES } else { usize::MAX })
    }

    /// Removes some of the oldest entries, in whole groups.
    pub fn oldest(&mut self) -> impl Iterator<Item = Entry> {
        self.take(TOGETHER, usize::MAX)
    }

    /// Removes `most` entries, further ones until at most `bytes` are left, and the rest of the last entry's group.
    fn take(&mut self, most: usize, bytes: usize) -> impl Iterator<Item = Entry> {
        let (mut taken, mut last) = (0, None);
        std::iter::from_fn(move || {
            if taken >= most && self.bytes <= bytes && self.first() != last {
                return None;
            }
            let entry = self.pop()?;
            (taken, last) = (taken + 1, Some(entry.group));
            Some(entry)
        })
    }

    fn pop(&mut self) -> Option<Entry> {
        // Skips entries that were removed from the middle.
        self.first()?;
        let (place, entry) = (self.left, self.entries.pop_front().flatten()?);
        self.left = place.wrapping_add(1);
        self.bytes -= entry.bytes();
        if let Ok(known) = self.places.find_entry(entry.hash, |known| *known == place) {
            known.remove();
        }
        Some(entry)
    }

    /// Returns the group of the oldest entry.
    pub fn first(&mut self) -> Option<u64> {
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.left = self.left.wrapping_add(1);
        }
        self.entries.front().and_then(Option::as_ref).map(|entry| entry.group)
    }
}

/// Returns the entry at `place`, if it has not been removed.
fn entry_at(entries: &VecDeque<Option<Entry>>, left: u32, place: u32) -> Option<&Entry> {
    entries.get(place.wrapping_sub(left) as usize)?.as_ref()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Stands in for memtables and tables: the newest value of each key, and tombstones.
    type Below = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    proptest! {
        /// A read that consults the recent entries first and those below second sees the last write at any time, and
        /// the entries below alone have the last writes once all have been moved.
        #[test]
        fn what_is_here_and_below_is_what_was_written(
            writes in proptest::collection::vec((0u8..6, proptest::option::of(any::<u8>()), 0usize..4), 0..200),
        ) {
            // Positions wrap around.
            let mut recent = Recent { left: u32::MAX - 50, ..Recent::default() };
            let (mut below, mut all) = (Below::new(), Below::new());
            for (n, (key, value, gone)) in writes.into_iter().enumerate() {
                let group = n / 3;
                let key = vec![key];
                let is_new = value.is_some() && all.get(&key).is_none_or(Option::is_none);
                let slice = value.map(|value| Slice::from([value]));
                recent.add(group as u64, Space::Ready, Slice::from(&key[..]), slice, is_new);
                all.insert(key, value.map(|value| vec![value]));
                for entry in recent.take(gone, usize::MAX) {
                    below.insert(entry.key.to_vec(), entry.value.map(|value| value.to_vec()));
                }
                for (key, value) in &all {
                    let seen = match recent.get(Space::Ready, key) {
                        Some(value) => value.map(|value| value.to_vec()),
                        None => below.get(key).cloned().flatten(),
                    };
                    prop_assert_eq!(&seen, value);
                }
            }
            let mut last = 0;
            while let Some(first) = recent.first() {
                prop_assert!(first >= last, "groups arrive in order");
                last = first;
                for entry in recent.oldest() {
                    below.insert(entry.key.to_vec(), entry.value.map(|value| value.to_vec()));
                }
            }
            prop_assert_eq!(recent.bytes, 0);
            prop_assert!(recent.places.is_empty());
            for (key, value) in &all {
                prop_assert_eq!(&below.get(key).cloned().flatten(), value);
            }
        }
    }

    #[test]
    fn what_is_written_and_deleted_here_leaves_nothing() {
        let mut recent = Recent::default();
        for group in 0..1000 {
            recent.add(group, Space::Ready, Slice::from([1]), Some(Slice::from([2])), true);
            recent.add(group, Space::Ready, Slice::from([1]), None, false);
        }
        assert_eq!(recent.first(), None, "nothing is left");
        // A key that exists below needs a tombstone.
        recent.add(1, Space::Ready, Slice::from([1]), Some(Slice::from([2])), false);
        recent.add(2, Space::Ready, Slice::from([1]), None, false);
        let left: Vec<_> = recent.oldest().map(|entry| (entry.group, entry.value)).collect();
        assert_eq!(left, [(2, None)], "a tombstone");
    }

    /// The newest group of a table determines which groups it has.
    #[test]
    fn a_group_goes_on_as_a_whole() {
        let mut recent = Recent::default();
        let group = |n: u64| n / 700;
        for n in 0..7000u64 {
            recent.add(group(n), Space::Jobs, Slice::from(n.to_be_bytes()), Some(Slice::from([7])), true);
        }
        let mut gone = 0;
        while let Some(next) = recent.first() {
            gone += recent.oldest().count() as u64;
            assert_eq!(gone % 700, 0, "{gone} of groups of 700 have gone on, the next was {next}");
        }
        assert_eq!(gone, 7000, "all");
    }

    #[test]
    fn what_is_too_much_goes_on() {
        let mut recent = Recent::default();
        for n in 0..3 * ENTRIES {
            let key = Slice::from(n.to_be_bytes());
            recent.add(n as u64, Space::Jobs, key, Some(Slice::from([7; 10])), true);
            let gone = recent.surplus().count();
            assert!(gone == 0 || gone >= TOGETHER, "{gone} go on together");
            assert!(recent.entries.len() <= ENTRIES, "{} wait", recent.entries.len());
        }
        let large = Slice::from(vec![0; BYTES / 4]);
        for n in 0..9u8 {
            recent.add(9, Space::Jobs, Slice::from([n]), Some(large.clone()), true);
            let _ = recent.surplus().count();
            assert!(recent.bytes <= BYTES, "{} bytes wait", recent.bytes);
        }
    }
}
