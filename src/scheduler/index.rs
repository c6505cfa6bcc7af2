//! What a server keeps in memory of a pool's schedules: which there are, and when each is due. It follows the settings
//! store and may be a moment behind; what decides is read again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use ahash::HashMap;

use super::stored::{Head, ScheduleId, ScheduleState};
use crate::clock::Millis;
use crate::name::Namespace;
use crate::settings::SettingVersion;

/// How long other servers leave a due schedule to the one that placed it last.
pub const GRACE: Millis = 250;

/// What is known of one schedule.
#[derive(Clone, Copy, Debug)]
struct Known {
    version: SettingVersion,
    state: ScheduleState,
    next: Option<Millis>,
    /// This server wrote it.
    is_own: bool,
}

/// All schedules of a pool.
#[derive(Debug, Default)]
pub struct Index {
    /// This server, as records name it.
    server: Box<str>,
    known: BTreeMap<ScheduleId, Known>,
    /// By when they are due.
    due: BTreeMap<Millis, BTreeSet<ScheduleId>>,
    counts: [u64; ScheduleState::ALL.len()],
    of_namespace: HashMap<Namespace, u64>,
    /// Number of records seen by the zone database that they were computed with.
    by_zones: BTreeMap<Box<str>, u64>,
    /// While all records are read: those that were not met again.
    unmet: Option<BTreeSet<ScheduleId>>,
}

/// Due schedules, and the time of the next one.
#[derive(Debug, Default)]
pub struct Due {
    pub ids: Vec<ScheduleId>,
    /// When another one is due, perhaps already; `None`: never.
    pub next: Option<Millis>,
}

impl Index {
    pub fn new(server: Box<str>) -> Index {
        Index { server, ..Index::default() }
    }

    /// Records what a schedule is; `None`: it is gone. A record older than the known one is ignored, and so is the absence
    /// of one that is newer than `version`.
    pub fn see(&mut self, id: &ScheduleId, version: SettingVersion, head: Option<&Head>) {
        if let Some(unmet) = &mut self.unmet {
            unmet.remove(id);
        }
        let before = self.known.get(id).copied();
        if before.is_some_and(|before| before.version > version) {
            return;
        }
        if let Some(before) = before {
            self.counts[before.state as usize] -= 1;
            if let Some(Entry::Occupied(mut of)) = before.next.map(|next| self.due.entry(next)) {
                of.get_mut().remove(id);
                if of.get().is_empty() {
                    of.remove();
                }
            }
        }
        let Some(head) = head else {
            if self.known.remove(id).is_some()
                && let Some(count) = self.of_namespace.get_mut(&id.namespace)
            {
                *count -= 1; // it was counted when the schedule came
                if *count == 0 {
                    self.of_namespace.remove(&id.namespace);
                }
            }
            return;
        };
        if before.is_none() {
            *self.of_namespace.entry(id.namespace.clone()).or_default() += 1;
        }
        if before.is_none_or(|before| before.version < version) {
            match self.by_zones.get_mut(&head.zones) {
                Some(count) => *count += 1,
                None => drop(self.by_zones.insert(head.zones.clone(), 1)),
            }
        }
        let Head { state, next, .. } = *head;
        self.counts[state as usize] += 1;
        if let Some(next) = next {
            self.due.entry(next).or_default().insert(id.clone());
        }
        let is_own = head.server == self.server;
        self.known.insert(id.clone(), Known { version, state, next, is_own });
    }

    /// All records are read from now on.
    pub fn begin(&mut self) {
        self.unmet = Some(self.known.keys().cloned().collect());
    }

    /// All were read: what was not met is gone.
    pub fn end(&mut self) {
        for id in self.unmet.take().unwrap_or_default() {
            self.see(&id, SettingVersion::MAX, None);
        }
    }

    /// Number of schedules by state, in the order of [`ScheduleState::ALL`].
    pub fn counts(&self) -> [u64; ScheduleState::ALL.len()] {
        self.counts
    }

    pub fn of_namespace(&self, namespace: &Namespace) -> u64 {
        self.of_namespace.get(namespace).copied().unwrap_or(0)
    }

    pub fn len(&self) -> u64 {
        self.known.len() as u64
    }

    pub fn by_zones(&self) -> BTreeMap<Box<str>, u64> {
        self.by_zones.clone()
    }

    /// Returns up to `limit` schedules that became due at `from` or later and are due `now`, the earliest first. One that
    /// another server placed last is due a little later here.
    pub fn due(&self, from: Millis, now: Millis, limit: usize) -> Due {
        let mut due = Due::default();
        let upcoming = self.due.range(from..).flat_map(|(next, ids)| ids.iter().map(move |id| (*next, id)));
        for (next, id) in upcoming {
            let is_own = self.known.get(id).is_some_and(|known| known.is_own);
            let at = if is_own { next } else { next.saturating_add(GRACE) };
            if at <= now && due.ids.len() < limit {
                due.ids.push(id.clone());
                continue;
            }
            due.next = Some(due.next.map_or(at, |known| known.min(at)));
            if next > now || due.ids.len() >= limit {
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

    /// Guards against two servers that place every occurrence at the same moment, and against one that is left alone when
    /// its server is gone.
    #[test]
    fn who_placed_it_last_goes_first() {
        let mut index = Index::new("me".into());
        index.see(&id("own"), 1, Some(&head("me", Some(1000))));
        index.see(&id("other"), 2, Some(&head("they", Some(1000))));
        index.see(&id("never"), 3, Some(&head("me", None)));
        let due = |now| {
            let Due { ids, next } = index.due(0, now, 9);
            (ids.iter().map(|id| id.name.to_string()).collect::<Vec<_>>(), next)
        };
        assert_eq!(due(999), (vec![], Some(1000)));
        assert_eq!(due(1000), (vec!["own".into()], Some(1000 + GRACE)));
        assert_eq!(due(1000 + GRACE), (vec!["other".into(), "own".into()], None));
        assert_eq!((index.len(), index.counts()[0]), (3, 3));
    }

    /// Guards against what is read late and takes the place of what this server has written since.
    #[test]
    fn what_is_older_is_ignored() {
        let mut index = Index::new("me".into());
        index.see(&id("s"), 5, Some(&head("me", Some(7))));
        index.see(&id("s"), 4, Some(&head("me", Some(3))));
        index.see(&id("s"), 4, None);
        assert_eq!(index.due(0, 9, 9).ids.len(), 1, "the newer one stays");
        index.begin();
        index.see(&id("t"), 6, Some(&head("me", Some(8))));
        index.end();
        assert_eq!(index.due(0, 9, 9).ids, [id("t")], "what was not met is gone");
        assert_eq!(index.of_namespace(&id("s").namespace), 1);
    }
}
