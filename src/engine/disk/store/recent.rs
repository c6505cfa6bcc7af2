//! Entries that were committed lately, before they go into memtables. Most jobs live for a moment: an entry that is
//! deleted while it stands here leaves nothing behind, no entry, no note that it was deleted, and no work for those who
//! write tables out and merge them. Knows neither the log nor the trees.

use std::collections::VecDeque;

use ahash::RandomState;
use hashbrown::HashTable;
use lsm_tree::Slice;

use super::space::Space;

/// So many entries may wait, those that left counted until their turn comes,
const ENTRIES: usize = 1 << 15;
/// and so many bytes of keys and values.
const BYTES: usize = 8 << 20;
/// How many go on together: so they find the memtables in the processor's caches.
const TOGETHER: usize = 1 << 9;

/// An entry of a group. `None` in place of a value deletes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub group: u64,
    pub space: Space,
    pub key: Slice,
    pub value: Option<Slice>,
    /// Whether below, in memtables and tables, there is no such key.
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

/// The entries, in the order in which they were committed.
#[derive(Debug, Default)]
pub struct Recent {
    entries: VecDeque<Option<Entry>>,
    /// How many have left at the front.
    left: u32,
    /// Where the entry of a key is, counted from the first there ever was: four bytes each, which a processor's cache
    /// holds.
    places: HashTable<u32>,
    hasher: RandomState,
    bytes: usize,
}

impl Recent {
    /// Adds an entry of the newest group. `is_new` is whether the key was not there before, anywhere. Answers whether
    /// the entry stands here now: one that deletes a key of which nothing is below leaves nothing.
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
                // Only when the table grows: it asks for the hash of what it holds.
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

    /// What a key was written last, if that stands here. `Some(None)`: it was deleted.
    pub fn get(&self, space: Space, key: &[u8]) -> Option<Option<Slice>> {
        let at = |place: &u32| entry_at(&self.entries, self.left, *place);
        let is_it = |place: &u32| at(place).is_some_and(|entry| entry.is_of(space, key));
        let place = self.places.find(self.hash(space, key), is_it)?;
        at(place).map(|entry| entry.value.clone())
    }

    /// The oldest entries, as many as are too many. Groups go on as a whole: of a group that a table has it has all.
    pub fn surplus(&mut self) -> impl Iterator<Item = Entry> {
        let is_too_much = self.entries.len() > ENTRIES || self.bytes > BYTES;
        let most = if is_too_much { TOGETHER.max(self.entries.len().saturating_sub(ENTRIES)) } else { 0 };
        self.take(most, if is_too_much { BYTES } else { usize::MAX })
    }

    /// Some of the oldest entries, whatever there are, in whole groups.
    pub fn oldest(&mut self) -> impl Iterator<Item = Entry> {
        self.take(TOGETHER, usize::MAX)
    }

    /// Takes `most` entries, and more until `bytes` are left, and the rest of the last one's group.
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
        // What has left in the middle stands first no more.
        self.first()?;
        let (place, entry) = (self.left, self.entries.pop_front().flatten()?);
        self.left = place.wrapping_add(1);
        self.bytes -= entry.bytes();
        if let Ok(known) = self.places.find_entry(entry.hash, |known| *known == place) {
            known.remove();
        }
        Some(entry)
    }

    /// The first group with an entry that stands here.
    pub fn first(&mut self) -> Option<u64> {
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.left = self.left.wrapping_add(1);
        }
        self.entries.front().and_then(Option::as_ref).map(|entry| entry.group)
    }
}

/// The entry at this place, if it has not left.
fn entry_at(entries: &VecDeque<Option<Entry>>, left: u32, place: u32) -> Option<&Entry> {
    entries.get(place.wrapping_sub(left) as usize)?.as_ref()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// What is below: the newest value of each key, and the notes of what was deleted.
    type Below = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    proptest! {
        /// Whatever is written, and whenever entries go on: who looks here first and below then sees the last write,
        /// and below sees it alone when all have gone on.
        #[test]
        fn what_is_here_and_below_is_what_was_written(
            writes in proptest::collection::vec((0u8..6, proptest::option::of(any::<u8>()), 0usize..4), 0..200),
        ) {
            // Places are counted beyond the last number.
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
                prop_assert!(first >= last, "groups come in order");
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
        // What was below before is deleted there, too.
        recent.add(1, Space::Ready, Slice::from([1]), Some(Slice::from([2])), false);
        recent.add(2, Space::Ready, Slice::from([1]), None, false);
        let left: Vec<_> = recent.oldest().map(|entry| (entry.group, entry.value)).collect();
        assert_eq!(left, [(2, None)], "a note that it was deleted");
    }

    /// A table tells by its newest group what it has.
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
