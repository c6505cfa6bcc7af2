//! Entries that were committed lately, before they go into memtables. Most jobs live for a moment: an entry that is
//! deleted while it stands here leaves nothing behind, no entry, no note that it was deleted, and no work for those who
//! write tables out and merge them. Knows neither the log nor the trees.

use std::collections::VecDeque;

use ahash::HashMap;
use lsm_tree::Slice;

use super::{SPACES, Space};

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
}

impl Entry {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, |value| value.len())
    }
}

/// The entries, in the order in which they were committed.
#[derive(Debug, Default)]
pub struct Recent {
    entries: VecDeque<Option<Entry>>,
    /// How many have left at the front.
    left: usize,
    /// Where the entry of a key is, counted from the first there ever was.
    places: [HashMap<Slice, usize>; SPACES],
    bytes: usize,
}

impl Recent {
    /// Adds an entry of the newest group. `is_new` is whether the key was not there before, anywhere.
    pub fn add(&mut self, group: u64, space: Space, key: Slice, value: Option<Slice>, is_new: bool) {
        let mut entry = Entry { group, space, key, value, is_new };
        let places = &mut self.places[space as usize];
        if let Some(place) = places.get(&entry.key) {
            if let Some(old) = self.entries.get_mut(place - self.left).and_then(Option::take) {
                self.bytes -= old.bytes();
                entry.is_new = old.is_new;
            }
            if entry.is_new && entry.value.is_none() {
                places.remove(&entry.key);
                return;
            }
        }
        self.bytes += entry.bytes();
        places.insert(entry.key.clone(), self.left + self.entries.len());
        self.entries.push_back(Some(entry));
    }

    /// What a key was written last, if that stands here. `Some(None)`: it was deleted.
    pub fn get(&self, space: Space, key: &[u8]) -> Option<Option<Slice>> {
        let place = self.places[space as usize].get(key)?;
        self.entries.get(place - self.left)?.as_ref().map(|entry| entry.value.clone())
    }

    /// Some of the oldest entries, which are to go on now, if there are too many.
    pub fn surplus(&mut self) -> impl Iterator<Item = Entry> {
        let is_too_much = self.entries.len() > ENTRIES || self.bytes > BYTES;
        self.take(if is_too_much { TOGETHER } else { 0 })
    }

    /// Some of the oldest entries, whatever there are.
    pub fn oldest(&mut self) -> impl Iterator<Item = Entry> {
        self.take(TOGETHER)
    }

    fn take(&mut self, most: usize) -> impl Iterator<Item = Entry> {
        std::iter::repeat_with(|| self.pop()).take(most).map_while(|entry| entry)
    }

    fn pop(&mut self) -> Option<Entry> {
        loop {
            let first = self.entries.pop_front()?;
            self.left += 1;
            let Some(entry) = first else { continue };
            self.bytes -= entry.bytes();
            self.places[entry.space as usize].remove(&entry.key);
            return Some(entry);
        }
    }

    /// The first group with an entry that stands here.
    pub fn first(&mut self) -> Option<u64> {
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.left += 1;
        }
        self.entries.front().and_then(Option::as_ref).map(|entry| entry.group)
    }
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
            let (mut recent, mut below, mut all) = (Recent::default(), Below::new(), Below::new());
            for (group, (key, value, gone)) in writes.into_iter().enumerate() {
                let key = vec![key];
                let is_new = value.is_some() && all.get(&key).is_none_or(Option::is_none);
                let slice = value.map(|value| Slice::from([value]));
                recent.add(group as u64, Space::Ready, Slice::from(&key[..]), slice, is_new);
                all.insert(key, value.map(|value| vec![value]));
                for entry in recent.take(gone) {
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
            prop_assert!(recent.places.iter().all(HashMap::is_empty));
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

    #[test]
    fn what_is_too_much_goes_on() {
        let mut recent = Recent::default();
        for n in 0..3 * ENTRIES {
            let key = Slice::from(n.to_be_bytes());
            recent.add(n as u64, Space::Jobs, key, Some(Slice::from([7; 10])), true);
            let gone = recent.surplus().count();
            assert!(gone == 0 || gone == TOGETHER, "{gone} go on together");
            assert!(recent.entries.len() <= ENTRIES, "{} wait", recent.entries.len());
        }
        let large = Slice::from(vec![0; BYTES / 4]);
        for n in 0..9u8 {
            recent.add(9, Space::Jobs, Slice::from([n]), Some(large.clone()), true);
            while recent.surplus().count() > 0 {}
            assert!(recent.bytes <= BYTES, "{} bytes wait", recent.bytes);
        }
    }
}
