//! What the servers that push show each other: each keeps one record `push/leases/<server>` of the settings, with an
//! entry for each of its workers. Divides slots; time is no concern here.
//!
//! To take slots, a server writes its record with the claim, then reads those of the others. It owns what it claims if
//! all records together claim no more slots than there are, and otherwise withdraws the claim. Two servers that claim
//! the same slots at once both withdraw. All owned slots together never exceed the total: of all owners, the one that
//! wrote last has read the records of the others after they wrote.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::key::PushKey;
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::settings::{SettingsStore, scan_all};

/// Prefix of the keys of the servers' records.
const PREFIX: &str = "push/leases/";

/// Returns the key of a server's record.
pub fn key_of(server: &str) -> String {
    format!("{PREFIX}{server}")
}

/// What a worker shows the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// [`PushKey`] as text.
    pub queue: String,
    /// Unique over all servers.
    pub worker: String,
    /// Number of slots that it holds or claims.
    pub slots: u32,
    /// How many it could use.
    pub wants: u32,
    pub in_flight: u32,
    /// Since when its breaker is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<Millis>,
    /// When its last successful attempt ended, by the pool's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Millis>,
}

/// Returns a server's record.
pub fn encode(entries: &[&Entry]) -> Result<Vec<u8>> {
    serde_json::to_vec(entries).map_err(Error::refused)
}

/// Entries by queue.
type ByQueue = HashMap<String, Vec<Entry>>;

fn add(all: &mut ByQueue, entry: Entry) {
    match all.get_mut(&entry.queue) {
        Some(entries) => entries.push(entry),
        None => _ = all.insert(entry.queue.clone(), vec![entry]),
    }
}

fn of<'a>(all: &'a ByQueue, queue: &str) -> &'a [Entry] {
    all.get(queue).map_or(&[], Vec::as_slice)
}

/// The entries of all servers.
#[derive(Debug, Default)]
pub struct View {
    elsewhere: ByQueue,
    here: ByQueue,
}

impl View {
    /// Reads the records of all servers except `own`.
    pub async fn read(settings: &dyn SettingsStore, own: Option<&str>) -> Result<View> {
        let (mut view, own) = (View::default(), own.map(key_of));
        scan_all(settings, PREFIX, |key, record| {
            if own.as_ref() != Some(&key) {
                // A newer version may write another format.
                let entries: Vec<Entry> = serde_json::from_slice(&record.value).unwrap_or_default();
                entries.into_iter().for_each(|entry| add(&mut view.elsewhere, entry));
            }
        })
        .await?;
        Ok(view)
    }

    /// Replaces the entries of this server.
    pub fn set_here<'a>(&mut self, entries: impl IntoIterator<Item = &'a Entry>) {
        self.here.clear();
        entries.into_iter().for_each(|entry| add(&mut self.here, entry.clone()));
    }

    /// Whether no other server pushes.
    pub fn has_no_others(&self) -> bool {
        self.elsewhere.is_empty()
    }

    /// Returns the entries of a queue's workers on other servers.
    pub fn elsewhere(&self, queue: &str) -> &[Entry] {
        of(&self.elsewhere, queue)
    }

    /// Returns the entries of the other workers of a queue. A server can have two: one may be ending.
    pub fn others<'a>(&'a self, own: &'a Entry) -> impl Iterator<Item = &'a Entry> {
        let here = of(&self.here, &own.queue).iter().filter(|entry| entry.worker != own.worker);
        here.chain(self.elsewhere(&own.queue))
    }

    /// Returns the number of a queue's requests in flight, and since when the breaker of some server is open.
    pub fn summary(&self, key: &PushKey) -> (u64, Option<Millis>) {
        let entries = self.elsewhere(&key.to_string());
        let in_flight = entries.iter().map(|entry| u64::from(entry.in_flight)).sum();
        (in_flight, entries.iter().filter_map(|entry| entry.open).min())
    }
}

/// Returns an even share of `total` for `own`, at most the number it wants. If there is less than one for each, workers
/// with an open breaker get none, since they could not use it. Every worker computes the same division.
pub fn fair_share<'a>(
    total: u32,
    own: &'a Entry,
    others: impl Iterator<Item = &'a Entry>,
    wants: impl Fn(&Entry) -> u32,
) -> u32 {
    let mut all: Vec<_> = others
        .chain([own])
        .map(|entry| (wants(entry), entry.open.is_none(), entry.worker.as_str()))
        .collect();
    all.sort_unstable();
    let (mut left, mut count) = (total, all.len() as u32);
    for (wants, _, worker) in all {
        let gets = wants.min(left / count);
        if worker == own.worker {
            return gets;
        }
        (left, count) = (left - gets, count - 1);
    }
    0
}

/// Returns how many of `total` to hold or claim: the fair share, or what others have left of it.
pub fn target(total: u32, fair: u32, holds: u32, others: u32) -> u32 {
    if fair <= holds { fair } else { fair.min(holds.max(total.saturating_sub(others))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(worker: &str, wants: u32, is_open: bool) -> Entry {
        Entry { worker: worker.into(), wants, open: is_open.then_some(1), ..Entry::default() }
    }

    #[test]
    fn shares_are_even_and_never_more_than_there_is() {
        for (total, wants, expected) in [
            (10, [10, 10, 10], [3, 3, 4]),
            (10, [1, 10, 10], [1, 4, 5]),
            (10, [0, 10, 10], [0, 5, 5]),
            (1, [1, 1, 1], [0, 0, 1]),
            (0, [1, 1, 1], [0, 0, 0]),
        ] {
            let all: Vec<_> =
                ["a", "b", "c"].iter().zip(wants).map(|(name, n)| entry(name, n, false)).collect();
            let share = |own: &Entry| {
                fair_share(total, own, all.iter().filter(|other| *other != own), |entry| entry.wants)
            };
            assert_eq!(all.iter().map(share).collect::<Vec<_>>(), expected, "of {total} for {wants:?}");
        }
        for (broken, healthy) in [("a", "b"), ("b", "a")] {
            let (broken, healthy) = (entry(broken, 1, true), entry(healthy, 1, false));
            let share = |own, other| fair_share(1, own, [other].into_iter(), |entry: &Entry| entry.wants);
            assert_eq!((share(&broken, &healthy), share(&healthy, &broken)), (0, 1), "the only slot");
        }
    }

    #[test]
    fn a_claim_takes_what_others_have_left() {
        for (total, fair, holds, others, expected) in
            [(4, 4, 0, 0, 4), (4, 2, 0, 4, 0), (4, 2, 4, 0, 2), (4, 2, 0, 3, 1), (4, 2, 1, 4, 1)]
        {
            let claimed = target(total, fair, holds, others);
            assert_eq!(claimed, expected, "of {total}: fair {fair}, held {holds}, by others {others}");
        }
    }
}
