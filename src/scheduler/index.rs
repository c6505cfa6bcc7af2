//! A server's in-memory index of a pool's schedules and their due times. It follows the settings store with a short
//! delay, so records are read again before a decision.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use ahash::HashMap;
use parking_lot::Mutex;

use super::stored::{Head, ScheduleBounds, ScheduleId, ScheduleState};
use crate::clock::Millis;
use crate::name::Namespace;
use crate::settings::SettingVersion;

/// Time for which other servers leave a due schedule to the one that wrote its record.
pub const GRACE: Millis = 250;

/// With less room than this, other servers' changes are read before a schedule is created.
const NEAR: u64 = 1000;

/// Entry of one schedule.
#[derive(Clone, Copy, Debug)]
struct Known {
    version: SettingVersion,
    state: ScheduleState,
    next: Option<Millis>,
    /// Whether this server wrote the record.
    is_own: bool,
    /// Size of its setting.
    bytes: u64,
    /// Set when a reading of all records begins, until it reaches this one: a failover may have lost this version.
    may_be_lost: bool,
}

/// Number of a namespace's schedules, and the size of their settings.
#[derive(Clone, Copy, Debug, Default)]
struct OfNamespace {
    count: u64,
    bytes: u64,
}

/// The index of a pool's schedules.
#[derive(Debug, Default)]
pub struct Index {
    /// Name of this server in records.
    server: Box<str>,
    known: HashMap<ScheduleId, Known>,
    /// By due time. Always with an id: `None` precedes them all in a range.
    due: BTreeSet<(Millis, Option<ScheduleId>)>,
    counts: [u64; ScheduleState::ALL.len()],
    of_namespace: HashMap<Namespace, OfNamespace>,
    /// Number of records seen, by the zone database that computed them.
    by_zones: BTreeMap<Box<str>, u64>,
    /// Schedules being created by this server, each with its number of callers.
    creating: BTreeMap<ScheduleId, usize>,
    /// While all records are read: the schedules not read again yet.
    unmet: Option<BTreeSet<ScheduleId>>,
}

/// Due schedules, and the time of the next one.
#[derive(Debug, Default)]
pub struct Due {
    /// With their due times, earliest first.
    pub schedules: Vec<(Millis, ScheduleId)>,
    /// Due time of the next schedule, possibly past; `None`: never. Exact up to [`GRACE`] from now.
    pub next: Option<Millis>,
}

/// Counts a schedule that is being created, until this is dropped.
#[derive(Debug)]
pub struct Creating<'a> {
    index: &'a Mutex<Index>,
    id: ScheduleId,
}

impl Creating<'_> {
    /// Begins to create a schedule. `None` if there is no room for it.
    pub fn begin<'a>(
        index: &'a Mutex<Index>,
        id: &ScheduleId,
        bounds: ScheduleBounds,
    ) -> Option<Creating<'a>> {
        let mut locked = index.lock();
        let is_counted = locked.creating.contains_key(id);
        if !is_counted && locked.room(&id.namespace, bounds) == 0 {
            return None;
        }
        *locked.creating.entry(id.clone()).or_default() += 1;
        Some(Creating { index, id: id.clone() })
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let mut index = self.index.lock();
        if let Entry::Occupied(mut callers) = index.creating.entry(self.id.clone()) {
            *callers.get_mut() -= 1; // `begin` has added it
            if *callers.get() == 0 {
                callers.remove();
            }
        }
    }
}

impl Index {
    pub fn new(server: Box<str>) -> Index {
        Index { server, ..Index::default() }
    }

    /// Updates the index from the head of a schedule's record and the size of its setting; `None`: it was deleted. A
    /// record or a deletion older than the known record is ignored. Returns the total size of the
    /// namespace's settings if it has changed.
    pub fn see(
        &mut self,
        id: &ScheduleId,
        version: SettingVersion,
        record: Option<(&Head, u64)>,
    ) -> Option<u64> {
        if let Some(unmet) = &mut self.unmet {
            unmet.remove(id);
        }
        let before = self.known.get(id).copied();
        if before.is_some_and(|before| before.version > version && !before.may_be_lost) {
            return None;
        }
        let bytes_before = before.map_or(0, |before| before.bytes);
        let bytes = record.map_or(0, |(_, bytes)| bytes);
        let total = self.count(&id.namespace, (before.is_some(), bytes_before), (record.is_some(), bytes));
        self.replace(id, version, before, record);
        (bytes != bytes_before).then_some(total)
    }

    /// Updates the counts of a namespace for a replaced schedule; `before` and `after` are existence and size. Returns
    /// the total size.
    fn count(&mut self, namespace: &Namespace, before: (bool, u64), after: (bool, u64)) -> u64 {
        let of = self.of_namespace.entry(namespace.clone()).or_default();
        // The schedule before was counted.
        of.count = of.count + u64::from(after.0) - u64::from(before.0);
        of.bytes = of.bytes + after.1 - before.1;
        let bytes = of.bytes;
        if of.count == 0 {
            self.of_namespace.remove(namespace);
        }
        bytes
    }

    fn replace(
        &mut self,
        id: &ScheduleId,
        version: SettingVersion,
        before: Option<Known>,
        record: Option<(&Head, u64)>,
    ) {
        if let Some(before) = before {
            self.counts[before.state as usize] -= 1;
            if let Some(next) = before.next {
                self.due.remove(&(next, Some(id.clone())));
            }
        }
        let Some((head, bytes)) = record else {
            self.known.remove(id);
            return;
        };
        if before.is_none_or(|before| before.version < version) {
            match self.by_zones.get_mut(&head.zones) {
                Some(count) => *count += 1,
                None => drop(self.by_zones.insert(head.zones.clone(), 1)),
            }
        }
        let Head { state, next, .. } = *head;
        self.counts[state as usize] += 1;
        if let Some(next) = next {
            self.due.insert((next, Some(id.clone())));
        }
        let is_own = head.server == self.server;
        self.known.insert(id.clone(), Known { version, state, next, is_own, bytes, may_be_lost: false });
    }

    /// Returns whether the known record of a schedule is this version or a later one.
    pub fn knows(&self, id: &ScheduleId, version: SettingVersion) -> bool {
        self.known.get(id).is_some_and(|known| known.version >= version && !known.may_be_lost)
    }

    /// Begins a reading of all records. It replaces known entries even by earlier versions, since a failover has lost
    /// the later ones.
    pub fn begin(&mut self) {
        self.known.values_mut().for_each(|known| known.may_be_lost = true);
        self.unmet = Some(self.known.keys().cloned().collect());
    }

    /// Ends a reading of all records. Returns the known schedules that it did not read: they were deleted.
    pub fn end(&mut self) -> BTreeSet<ScheduleId> {
        self.unmet.take().unwrap_or_default()
    }

    /// Returns the number of schedules by state, in the order of [`ScheduleState::ALL`].
    pub fn counts(&self) -> [u64; ScheduleState::ALL.len()] {
        self.counts
    }

    /// Returns the number of schedules of a namespace.
    pub fn of_namespace(&self, namespace: &Namespace) -> u64 {
        self.of_namespace.get(namespace).map_or(0, |of| of.count)
    }

    /// Returns how many more schedules a namespace may have, also counting those being created.
    fn room(&self, namespace: &Namespace, bounds: ScheduleBounds) -> u64 {
        let new = self.creating.keys().filter(|id| !self.known.contains_key(*id));
        let (mut all, mut of_namespace) = (self.len(), self.of_namespace(namespace));
        for id in new {
            all += 1;
            of_namespace += u64::from(id.namespace == *namespace);
        }
        bounds.of_pool.saturating_sub(all).min(bounds.of_namespace.saturating_sub(of_namespace))
    }

    /// Returns whether a namespace or the pool is near its bound.
    pub fn is_near(&self, namespace: &Namespace, bounds: ScheduleBounds) -> bool {
        self.room(namespace, bounds) < NEAR
    }

    /// Returns the size of a schedule's setting; 0 if it does not exist.
    pub fn bytes(&self, id: &ScheduleId) -> u64 {
        self.known.get(id).map_or(0, |known| known.bytes)
    }

    pub fn len(&self) -> u64 {
        self.known.len() as u64
    }

    pub fn by_zones(&self) -> BTreeMap<Box<str>, u64> {
        self.by_zones.clone()
    }

    /// Returns up to `limit` schedules that became due at `from` or later and are due `now`, earliest first. A schedule
    /// whose record another server wrote is due [`GRACE`] later here.
    pub fn due(&self, from: Millis, now: Millis, limit: usize) -> Due {
        let mut due = Due::default();
        let upcoming = self.due.range((from, None)..);
        for (next, id) in upcoming.filter_map(|(next, id)| Some((*next, id.as_ref()?))) {
            // No further schedule is due before the next one found so far.
            if due.next.is_some_and(|known| known <= next) {
                break;
            }
            let is_own = self.known.get(id).is_some_and(|known| known.is_own);
            let at = if is_own { next } else { next.saturating_add(GRACE) };
            if at <= now && due.schedules.len() < limit {
                due.schedules.push((next, id.clone()));
                continue;
            }
            due.next = Some(due.next.map_or(at, |known| known.min(at)));
            // The next check takes place before any later schedule is due.
            if due.schedules.len() >= limit || next > now.saturating_add(GRACE) {
                break;
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::ScheduleName;

    fn id(name: &str) -> ScheduleId {
        let namespace = Namespace::parse("ns").expect("a literal");
        ScheduleId { namespace, name: ScheduleName::parse(name).expect("a literal") }
    }

    fn head(server: &str, next: Option<Millis>) -> Head {
        let text = serde_json::json!({
            "revision": 1, "state": "on", "next": next, "server": server, "zones": "2026f", "queue": "q",
        });
        serde_json::from_value(text).expect("a head")
    }

    /// Guards against two servers that place every occurrence at the same moment, and against a schedule that stops
    /// when its server dies.
    #[test]
    fn who_placed_it_last_goes_first() {
        let mut index = Index::new("me".into());
        index.see(&id("own"), 1, Some((&head("me", Some(1000)), 1)));
        index.see(&id("other"), 2, Some((&head("they", Some(1000)), 1)));
        index.see(&id("never"), 3, Some((&head("me", None), 1)));
        let due = |now| {
            let Due { schedules, next } = index.due(0, now, 9);
            (schedules.iter().map(|(_, id)| id.name.to_string()).collect::<Vec<_>>(), next)
        };
        assert_eq!(due(999), (vec![], Some(1000)));
        assert_eq!(due(1000), (vec!["own".into()], Some(1000 + GRACE)));
        assert_eq!(due(1000 + GRACE), (vec!["other".into(), "own".into()], None));
        assert_eq!((index.len(), index.counts()[0]), (3, 3));
    }

    /// Guards against a late reading that replaces a newer record of this server.
    #[test]
    fn what_is_older_is_ignored() {
        let mut index = Index::new("me".into());
        let see = |index: &mut Index, name, version, next| {
            index.see(&id(name), version, Some((&head("me", Some(next)), 10 * version)))
        };
        assert_eq!(see(&mut index, "s", 5, 7), Some(50), "the size of all");
        assert_eq!(see(&mut index, "s", 4, 3), None, "an older record");
        assert_eq!(index.see(&id("s"), 4, None), None, "an older deletion");
        assert_eq!(index.due(0, 9, 9).schedules.len(), 1, "the newer one stays");
        index.begin();
        assert_eq!(see(&mut index, "t", 6, 8), Some(110));
        for gone in index.end() {
            assert_eq!(index.see(&gone, SettingVersion::MAX, None), Some(60));
        }
        assert_eq!(
            index.due(0, 9, 9).schedules,
            [(8, id("t"))],
            "the one that was not read again was deleted"
        );
        assert_eq!(index.of_namespace(&id("s").namespace), 1);
    }

    /// Guards against bounds that concurrent creations exceed, and against schedules that count twice.
    #[test]
    fn schedules_being_created_count_once() {
        let index = Mutex::new(Index::new("me".into()));
        let bounds = ScheduleBounds { of_namespace: 2, of_pool: 9 };
        let begin = |name| Creating::begin(&index, &id(name), bounds);
        let (first, second) = (begin("a"), begin("b"));
        assert!(first.is_some() && second.is_some() && begin("a").is_some(), "two names");
        assert!(begin("c").is_none(), "a third name");
        index.lock().see(&id("a"), 1, Some((&head("me", None), 1)));
        assert!(begin("c").is_none(), "one is stored, one is being created");
        drop((first, second));
        let third = begin("c");
        assert!(third.is_some() && begin("d").is_none(), "one is stored and one is being created");
    }

    /// Guards against a schedule that is never checked because a failover has lost its latest record.
    #[test]
    fn what_a_failover_has_lost_is_replaced() {
        let mut index = Index::new("me".into());
        let see = |index: &mut Index, version, next| {
            index.see(&id("s"), version, Some((&head("me", Some(next)), 1)));
        };
        see(&mut index, 5, 900);
        index.begin();
        see(&mut index, 3, 7);
        assert_eq!(index.due(0, 9, 9).schedules, [(7, id("s"))], "the record that is left");
        // This server writes while all are read.
        index.begin();
        see(&mut index, 6, 900);
        see(&mut index, 3, 7);
        assert_eq!(index.due(0, 9, 9).schedules, [], "the newest record");
    }
}
