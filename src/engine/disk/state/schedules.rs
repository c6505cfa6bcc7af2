//! The writer's index of schedules in memory: versions, states and due times. Settings and progress are read from the
//! disk. Changes memory only: the steps write the same change to the disk.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use ahash::HashMap;

use crate::clock::Millis;
use crate::engine::disk::codec::{self, META_REVISION};
use crate::engine::disk::store::{Fatal, Space, Store};
use crate::engine::{ScheduleId, ScheduleState, ScheduleVersion};
use crate::name::{Namespace, ScheduleName};

/// Index entry of one schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub version: ScheduleVersion,
    pub state: ScheduleState,
    pub next: Option<Millis>,
    /// Bytes of the setting.
    pub bytes: u64,
}

impl Known {
    /// Whether it has not moved to another store.
    fn is_here(&self) -> bool {
        self.state != ScheduleState::Moved || self.next.is_some()
    }
}

/// Index of all schedules of the pool.
#[derive(Debug, Default)]
pub struct Schedules {
    known: BTreeMap<ScheduleId, Known>,
    /// Schedules that have not moved to another store, by due time.
    due: BTreeMap<Millis, BTreeSet<ScheduleId>>,
    counts: [u64; ScheduleState::ALL.len()],
    /// Number of schedules of each namespace, and bytes of their settings.
    of_namespace: HashMap<Namespace, (u64, u64)>,
    /// Upper bound on the revisions of deleted schedules.
    pub gone: u64,
    /// Number of steps since the open, by [`SchedulePut::by`](crate::engine::SchedulePut::by).
    pub by: BTreeMap<Box<str>, u64>,
}

impl Schedules {
    /// Reads the index from the disk.
    pub fn load(store: &Store) -> Result<Schedules, Fatal> {
        let gone = store.number(META_REVISION)?.unwrap_or(0);
        let mut all = Schedules { gone, ..Schedules::default() };
        for item in store.range(Space::Schedules, codec::progress_keys()) {
            let (key, value) = item?;
            let codec::Progress { version, state, next, .. } = codec::read_progress(&value)?;
            let id = codec::read_progress_key(&key)?;
            let setting = store.get(Space::Schedules, &codec::setting_key(&id))?;
            // An unreadable setting fails when the schedule is read.
            let setting = setting.and_then(|row| codec::read_setting(&row, true).ok());
            let bytes = setting.map_or(0, |setting| setting.bytes() as u64);
            all.set(id, Some(Known { version, state, next, bytes }));
        }
        Ok(all)
    }

    pub fn get(&self, id: &ScheduleId) -> Option<Known> {
        self.known.get(id).copied()
    }

    pub fn counts(&self) -> [u64; ScheduleState::ALL.len()] {
        self.counts
    }

    pub fn of_namespace(&self, namespace: &Namespace) -> u64 {
        self.of_namespace.get(namespace).map_or(0, |(count, _)| *count)
    }

    /// Returns the bytes of the settings of a namespace's schedules.
    pub fn bytes_of_namespace(&self, namespace: &Namespace) -> u64 {
        self.of_namespace.get(namespace).map_or(0, |(_, bytes)| *bytes)
    }

    pub fn len(&self) -> u64 {
        self.known.len() as u64
    }

    /// Replaces the entry of a schedule; `None` deletes it.
    pub fn set(&mut self, id: ScheduleId, known: Option<Known>) {
        let place = |known: &Known| known.next.unwrap_or(Millis::MAX);
        if let Some(before) = self.known.get(&id) {
            if let Entry::Occupied(mut of) = self.due.entry(place(before)) {
                of.get_mut().remove(&id);
                if of.get().is_empty() {
                    of.remove();
                }
            }
            self.counts[before.state as usize] -= 1;
        }
        if let Some(known) = &known {
            self.counts[known.state as usize] += 1;
            if known.is_here() {
                self.due.entry(place(known)).or_default().insert(id.clone());
            }
        }
        let size = |known: Option<Known>| known.map_or((0, 0), |known| (1, known.bytes));
        let (count, bytes) = size(known);
        let before = match known {
            Some(known) => self.known.insert(id.clone(), known),
            None => self.known.remove(&id),
        };
        let (count_before, bytes_before) = size(before);
        let of = self.of_namespace.entry(id.namespace.clone()).or_default();
        of.0 = (of.0 + count).saturating_sub(count_before);
        of.1 = (of.1 + bytes).saturating_sub(bytes_before);
        if of.0 == 0 {
            self.of_namespace.remove(&id.namespace);
        }
    }

    /// Returns the schedules after `after` that have not moved to another store, by name.
    pub fn here(&self, after: Option<ScheduleId>) -> impl Iterator<Item = &ScheduleId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.known.range((from, Bound::Unbounded));
        range.filter(|(_, known)| known.is_here()).map(|(id, _)| id)
    }

    /// Returns the schedules that are due at `from` or later, earliest first.
    pub fn due(&self, from: Millis) -> impl Iterator<Item = (Millis, &ScheduleId)> {
        self.due.range(from..).flat_map(|(due, ids)| ids.iter().map(move |id| (*due, id)))
    }

    /// Returns a namespace's schedules from `prefix` on and after `after`, by name.
    pub fn of(
        &self,
        namespace: &Namespace,
        prefix: ScheduleName,
        after: Option<ScheduleName>,
    ) -> impl Iterator<Item = &ScheduleId> {
        let at = |name| ScheduleId { namespace: namespace.clone(), name };
        let from = match after.filter(|after| *after >= prefix) {
            Some(after) => Bound::Excluded(at(after)),
            None => Bound::Included(at(prefix)),
        };
        let range = self.known.range((from, Bound::Unbounded)).map(|(id, _)| id);
        range.take_while(|id| id.namespace == *namespace)
    }
}
