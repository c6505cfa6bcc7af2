//! Rebuilds lists that cannot be read, from the jobs: a job's record says where it was when it was written. For a store
//! that nobody has open. What a list alone knows is lost: how many tries its jobs have left, and which of them had moved
//! on since their record was written. Settings stand in no job: of those the rows that can be read are kept.

use std::collections::HashSet;
use std::path::Path;

use bytes::Bytes;

use crate::engine::disk::codec::{
    self, Entry, FIRST_SEQ, Location, META_CLOCK, META_SEQ, Malformed, QUOTA, Record,
};
use crate::engine::disk::store::mark::OpenError;
use crate::engine::disk::store::open;
use crate::engine::disk::store::txn::Txn;
use crate::engine::disk::store::{Fatal, Slice, Space, Store, StoreLimits};
use crate::name::JobKey;

/// The lists, in the order in which they are rebuilt.
pub const LISTS: [Space; 4] = [Space::Ready, Space::Dead, Space::Delayed, Space::Running];
/// What operators have set and what push keeps: nothing but their own rows says it.
pub const SETTINGS: [Space; 3] = [Space::Quotas, Space::Push, Space::Schedules];
/// How many tries a job has left after its list was lost.
const TRIES: u16 = 1;

/// Rebuilds those lists of the pool in `path` that cannot be read, and keeps of settings what can be read. Each job of
/// such a list goes where its record says: it is delayed, ready or dead. One that was handed out is ready. It has one
/// try left. Answers how many jobs were put into a list; nothing is changed where every list and every setting can be
/// read.
pub fn rebuild_lists(path: &Path) -> Result<u64, OpenError> {
    let (store, _mark) = open::open(path, StoreLimits::OF_A_TOOL)?;
    let damaged = unreadable(&store).map_err(|e| OpenError::Io(path.to_owned(), e))?;
    let rebuilt = rebuild(&store, &damaged, false);
    rebuilt.map_err(|Fatal(reason)| OpenError::Damaged(path.to_owned(), reason))
}

/// The lists that cannot be read, those of the keys and of the remembered requests among them, and the settings. An error
/// that says nothing of what is stored, such as too many open files, makes none of them one.
pub fn unreadable(store: &Store) -> std::io::Result<Vec<Space>> {
    let mut damaged = Vec::new();
    for space in LISTS.into_iter().chain([Space::Keys, Space::Once]).chain(SETTINGS) {
        let is_list = LISTS.contains(&space);
        let read =
            |key: &[u8], value: &[u8]| if is_list { entry(space, key, value).map(drop) } else { Ok(()) };
        if store.is_damaged(space, read)? {
            damaged.push(space);
        }
    }
    Ok(damaged)
}

/// As [`rebuild_lists`], of those that are [`unreadable`]. With `gaps` also a list that can be read may have lost entries:
/// every job that stands in none is put into one. Answers how many. Jobs that cannot be read stand in no list that is
/// rebuilt.
pub fn rebuild(store: &Store, damaged: &[Space], gaps: bool) -> Result<u64, Fatal> {
    if damaged.is_empty() && !gaps {
        return Ok(0);
    }
    let known = Known::read(store, damaged)?;
    let mut txn = Txn::new(store.clone());
    // They are in the log before what is damaged goes: nothing else says them.
    known.put_settings(&mut txn)?;
    let (settings, lists): (Vec<Space>, Vec<Space>) =
        damaged.iter().partition(|space| SETTINGS.contains(space));
    for settings in settings {
        tracing::warn!(?settings, "settings cannot all be read: those that can are kept");
        store.drop_tables(settings)?;
    }
    // Many of them were written out at once, and have gone with the tables.
    known.put_settings(&mut txn)?;
    for list in lists {
        tracing::warn!(
            ?list,
            jobs_in_no_list = known.lost.len(),
            "a list cannot be read and is rebuilt from the jobs"
        );
        store.clear(list)?;
    }
    known.write(&mut txn, |list| gaps || damaged.contains(&list))?;
    txn.settle(true)?;
    Ok(known.lost.len() as u64)
}

/// What can be read of a store, of which some keyspaces cannot. Everything is read before anything is changed.
#[derive(Default)]
struct Known {
    /// The jobs that stand in no list, without their bodies.
    lost: Vec<(Vec<u8>, Record)>,
    /// Jobs with keys, and their generations.
    keys: Vec<(Vec<u8>, JobKey, u64)>,
    /// Rows of settings.
    settings: Vec<(Space, Slice, Slice)>,
    /// What namespaces with a quota have: it is counted anew.
    counts: Vec<Slice>,
    /// Queues of lost jobs that no list of queues names.
    queues: HashSet<Bytes>,
    /// The first free number,
    next: u64,
    /// and the pool's time: since when lost jobs were where they were is lost.
    now: u64,
}

impl Known {
    fn read(store: &Store, damaged: &[Space]) -> Result<Known, Fatal> {
        // Jobs that stand in a list that can be read stay there.
        let (mut listed, mut newest) = (HashSet::new(), 0);
        for list in LISTS.into_iter().filter(|list| !damaged.contains(list)) {
            for item in store.all(list) {
                let (key, value) = item?;
                let (prefix, entry) = entry(list, &key, &value)?;
                // A key of a list ends with its number.
                newest = newest.max(codec::split_list_key(&key)?.1);
                listed.insert((codec::job_key(prefix, entry.id), entry.generation));
            }
        }
        // A walk ends at the first block that cannot be read.
        let lacks_jobs = store.is_damaged(Space::Jobs, |_, _| Ok(()))?;
        let mut known = Known::default();
        let mut job = |key: Slice, value: Slice| -> Result<(), Fatal> {
            let Ok(record) = codec::read_record(&key, &value) else { return Ok(()) };
            let (Location::Ready(seq) | Location::Delayed((_, seq)) | Location::Dead(seq)) = record.location;
            newest = newest.max(seq).max(record.generation);
            if let Some(name) = &record.key {
                known.keys.push((key.to_vec(), name.clone(), record.generation));
            }
            let quarantined = store.get(Space::Quarantine, &key)?.is_some();
            if !quarantined && !listed.contains(&(key.to_vec(), record.generation)) {
                known.lost.push((key.to_vec(), Record { body: Default::default(), ..record }));
            }
            Ok(())
        };
        match lacks_jobs {
            true => store.readable(Space::Jobs, job)?,
            false => store.all(Space::Jobs).try_for_each(|item| item.and_then(|(k, v)| job(k, v)))?,
        }
        for settings in SETTINGS.into_iter().filter(|settings| damaged.contains(settings)) {
            store.readable(settings, |key, value| {
                known.settings.push((settings, key, value));
                Ok(())
            })?;
        }
        known.settings.retain(|(settings, key, _)| *settings != Space::Quotas || key.starts_with(QUOTA));
        if !damaged.contains(&Space::Quotas) {
            for row in store.range(Space::Quotas, codec::used_keys()) {
                known.counts.push(row?.0);
            }
        }
        for (key, _) in &known.lost {
            let prefix = codec::queue_key(&codec::read_job_key(key)?.1);
            // What is there may say that a queue is paused.
            if store.get(Space::Queues, &prefix)?.is_none() {
                known.queues.insert(prefix);
            }
        }
        // What is stored may have larger numbers than what is left of `meta` says, where that was lost more than once.
        known.next = store.number(META_SEQ)?.unwrap_or(FIRST_SEQ).max(newest + 1);
        known.now = store.number(META_CLOCK)?.unwrap_or(0);
        Ok(known)
    }

    /// Puts the rows of settings into the log.
    fn put_settings(&self, txn: &mut Txn) -> Result<(), Fatal> {
        for (settings, key, value) in &self.settings {
            txn.put(*settings, key.clone(), value.clone());
        }
        txn.settle(true).map(drop)
    }

    /// Writes what stands in no list into those that are `rebuilt`, or makes it ready.
    fn write(&self, txn: &mut Txn, rebuilt: impl Fn(Space) -> bool) -> Result<(), Fatal> {
        let mut next = self.next;
        for prefix in &self.queues {
            txn.put(Space::Queues, prefix, codec::queue_value(None));
        }
        txn.put(Space::Meta, META_SEQ, (next + self.lost.len() as u64).to_be_bytes());
        for (key, record) in &self.lost {
            let (id, queue) = codec::read_job_key(key)?;
            let prefix = codec::queue_key(&queue);
            // No job is older than itself, where the pool's time was lost too.
            let since = Some(self.now.max(id.published_at().saturating_mul(1000)));
            let entry =
                Entry { id, tries: TRIES, generation: record.generation, keyed: record.key.is_some() };
            match record.location {
                Location::Delayed(timer) if rebuilt(Space::Delayed) => {
                    txn.put(Space::Delayed, codec::timer_key(timer), codec::timer_value(&prefix, &entry));
                }
                Location::Dead(seq) if rebuilt(Space::Dead) => {
                    txn.put(Space::Dead, codec::list_key(&prefix, seq), codec::list_value(&entry, since));
                }
                // In their order, behind all others: where they stood, another job may stand by now.
                Location::Ready(_) | Location::Delayed(_) | Location::Dead(_) => {
                    txn.put(Space::Ready, codec::list_key(&prefix, next), codec::list_value(&entry, since));
                    next += 1;
                }
            }
            txn.relieve()?;
        }
        for (key, name, generation) in self.keys.iter().filter(|_| rebuilt(Space::Keys)) {
            let (id, queue) = codec::read_job_key(key)?;
            let row = codec::key_key(&codec::queue_key(&queue), name);
            txn.put(Space::Keys, row, codec::key_value(id, *generation));
            txn.relieve()?;
        }
        for count in &self.counts {
            txn.delete(Space::Quotas, count.clone());
        }
        Ok(())
    }
}

/// The entry that stands there in a list, with the prefix of its queue.
pub fn entry<'a>(list: Space, key: &'a [u8], value: &'a [u8]) -> Result<(&'a [u8], Entry), Malformed> {
    match list {
        Space::Ready | Space::Dead => {
            let (prefix, seq) = codec::split_list_key(key)?;
            Ok((prefix, codec::read_list_value(seq, value)?.0))
        }
        _ => codec::split_timer_value(value),
    }
}
