//! Rebuilds lost parts of lists from the jobs: a job's record says where it was when it was written. For the directory
//! that a repair writes, before anything else opens it. Information kept only in the entry is lost: the tries left, and
//! moves since the record was written.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;

use crate::clock::Micros;
use crate::engine::disk::codec::{
    self, Entry, FIRST_SEQ, Location, META_CLOCK, META_NEWEST, META_SEQ, Malformed, Record,
};
use crate::engine::disk::store::txn::Txn;
use crate::engine::disk::store::{Fatal, Found, Slice, Space, Store};
use crate::job::JobId;
use crate::name::JobKey;

/// The lists of jobs, by precedence: a job found in two stays in the first, so that no second consumer gets a running
/// job.
pub const LISTS: [Space; 4] = [Space::Running, Space::Delayed, Space::Ready, Space::Dead];
/// Tries left for a job whose entry was lost.
const TRIES: u16 = 1;

/// Result of a rebuild.
#[derive(Debug, Default)]
pub struct Rebuilt {
    /// Jobs that were added to a list.
    jobs: usize,
    /// Entries without a job, which were deleted.
    entries: usize,
}

impl Rebuilt {
    /// Describes the result, one line each.
    pub fn notes(&self) -> Vec<String> {
        let jobs = format!("{} jobs missing from all lists were added to one, with one try left", self.jobs);
        let entries = format!("{} list entries without a job were deleted", self.entries);
        if self.entries > 0 { vec![jobs, entries] } else { vec![jobs] }
    }
}

/// Adds every job missing from all lists to the one that its record names (delayed, ready or dead; a running job
/// becomes ready) with one try left, and deletes list entries without a job. Also rewrites job keys.
pub fn rebuild(store: &Store) -> Result<Rebuilt, Fatal> {
    let known = Known::read(store)?;
    let mut txn = Txn::new(store.clone());
    known.write(&mut txn)?;
    txn.settle(true)?;
    Ok(Rebuilt { jobs: known.lost.len(), entries: known.stale.len() })
}

/// Readable contents of a store. Everything is read before anything is changed.
#[derive(Default)]
struct Known {
    /// Jobs missing from all lists, without bodies.
    lost: Vec<(Vec<u8>, Record)>,
    /// Jobs with keys, and their generations.
    keys: Vec<(Vec<u8>, JobKey, u64)>,
    /// List entries without a job.
    stale: Vec<(Space, Slice)>,
    /// Queues of lost jobs that are not in `queues`.
    queues: HashSet<Bytes>,
    /// The first unused sequence number.
    next: u64,
    /// A time that the pool's clock has reached; recorded for lost jobs as the time when they entered their lists.
    now: Micros,
}

/// Upper bound on the job sequence numbers that lost data may have reserved. There are 2^24 times as many numbers.
const SEQS_LOST: u64 = 1 << 40;

/// Raises the numbers in `meta` above all that were ever assigned, since their last values may be lost.
pub fn raise_numbers(store: &Store) -> Result<(), Fatal> {
    let mut txn = Txn::new(store.clone());
    let seq = store.number(META_SEQ)?.unwrap_or(FIRST_SEQ);
    txn.put(Space::Meta, META_SEQ, (seq + SEQS_LOST).to_be_bytes());
    // A publish with a larger id does not check whether the id exists.
    if let Some((_, last)) = store.ends(Space::Jobs)? {
        let last = codec::read_job_key(&last)?.0;
        let newest = store.get(Space::Meta, META_NEWEST)?;
        if newest.and_then(|id| codec::read_newest(&id).ok()).is_none_or(|newest| newest < last) {
            txn.put(Space::Meta, META_NEWEST, last.to_bytes());
        }
    }
    txn.settle(true).map(drop)
}

/// Reports which of these jobs and of the jobs in quarantine are lost, and removes the lost and the readable ones
/// from quarantine.
pub fn tidy(store: &Store, mut jobs: BTreeSet<Vec<u8>>, notes: &mut Vec<String>) -> Result<(), Fatal> {
    for row in store.all(Space::Quarantine) {
        jobs.insert(row?.0.to_vec());
    }
    let (mut txn, mut lost) = (Txn::new(store.clone()), 0u64);
    for job in jobs {
        match store.job(&job)? {
            Found::Corrupt(_) => continue,
            Found::Record(_) => {}
            Found::Nothing => {
                let (id, queue) = codec::read_job_key(&job)?;
                notes.push(format!("job {id} of {queue} is lost: its record could not be read"));
                lost += 1;
            }
        }
        txn.delete(Space::Quarantine, job);
        txn.relieve()?;
    }
    txn.settle(true)?;
    notes.push(format!("{lost} jobs are lost: their records could not be read"));
    Ok(())
}

impl Known {
    fn read(store: &Store) -> Result<Known, Fatal> {
        let mut known = Known::default();
        // Stored entries may have larger numbers and later times than a damaged `meta`.
        let (mut newest, mut now) = (0, store.number(META_CLOCK)?.unwrap_or(0));
        // Jobs in a list stay there.
        let mut listed = HashSet::new();
        for list in LISTS {
            for item in store.all(list) {
                let (key, value) = item?;
                let Ok((prefix, entry)) = entry(list, &key, &value) else {
                    known.stale.push((list, key));
                    continue;
                };
                // A list key ends with its number.
                newest = newest.max(codec::split_list_key(&key)?.1);
                if matches!(list, Space::Ready | Space::Dead) {
                    // The time in an id may be another pool's; a rebuild that knows no time writes it too.
                    let is_known = |at: &Micros| *at != micros_of(entry.id);
                    now = now.max(codec::read_list_time(&value).filter(is_known).unwrap_or(0));
                }
                // The tombstone of an entry may be lost.
                if !listed.insert((codec::job_key(prefix, entry.id), entry.generation)) {
                    known.stale.push((list, key));
                }
            }
        }
        let mut corrupt = HashSet::new();
        for item in store.all(Space::Jobs) {
            let (key, value) = item?;
            let Ok(record) = codec::read_record(&key, &value) else {
                corrupt.insert(key.to_vec());
                continue;
            };
            let (Location::Ready(seq) | Location::Delayed((_, seq)) | Location::Dead(seq)) = record.location;
            newest = newest.max(seq).max(record.generation);
            if let Some(name) = &record.key {
                known.keys.push((key.to_vec(), name.clone(), record.generation));
            }
            let is_listed = listed.remove(&(key.to_vec(), record.generation));
            if !is_listed && store.get(Space::Quarantine, &key)?.is_none() {
                known.lost.push((key.to_vec(), Record { body: Default::default(), ..record }));
            }
        }
        // The remaining entries belong to no readable job.
        listed.retain(|(job, _)| !corrupt.contains(job));
        for list in LISTS.into_iter().filter(|_| !listed.is_empty()) {
            for item in store.all(list) {
                let (key, value) = item?;
                let Ok((prefix, entry)) = entry(list, &key, &value) else { continue };
                if listed.contains(&(codec::job_key(prefix, entry.id), entry.generation)) {
                    known.stale.push((list, key));
                }
            }
        }
        for (key, _) in &known.lost {
            let prefix = codec::queue_key(&codec::read_job_key(key)?.1);
            if store.get(Space::Queues, &prefix)?.is_none() {
                known.queues.insert(prefix);
            }
        }
        known.next = store.number(META_SEQ)?.unwrap_or(FIRST_SEQ).max(newest + 1);
        known.now = now;
        Ok(known)
    }

    /// Adds the lost jobs to lists.
    fn write(&self, txn: &mut Txn) -> Result<(), Fatal> {
        let mut next = self.next;
        for prefix in &self.queues {
            txn.put(Space::Queues, prefix, []);
        }
        txn.put(Space::Meta, META_SEQ, (next + self.lost.len() as u64).to_be_bytes());
        txn.put(Space::Meta, META_CLOCK, self.now.to_be_bytes());
        for (list, key) in &self.stale {
            txn.delete(*list, key);
            txn.relieve()?;
        }
        for (key, record) in &self.lost {
            let (id, queue) = codec::read_job_key(key)?;
            let prefix = codec::queue_key(&queue);
            // No job is ready before it was published, even if the pool's time was lost too.
            let since = Some(self.now.max(micros_of(id)));
            let entry =
                Entry { id, tries: TRIES, generation: record.generation, keyed: record.key.is_some() };
            match record.location {
                Location::Delayed(timer) => {
                    txn.put(Space::Delayed, codec::timer_key(timer), codec::timer_value(&prefix, &entry));
                }
                Location::Dead(seq) => {
                    txn.put(Space::Dead, codec::list_key(&prefix, seq), codec::list_value(&entry, since));
                }
                // In order, behind all others: their old numbers may be in use by now.
                Location::Ready(_) => {
                    txn.put(Space::Ready, codec::list_key(&prefix, next), codec::list_value(&entry, since));
                    next += 1;
                }
            }
            txn.relieve()?;
        }
        for (key, name, generation) in &self.keys {
            let (id, queue) = codec::read_job_key(key)?;
            let row = codec::key_key(&codec::queue_key(&queue), name);
            txn.put(Space::Keys, row, codec::key_value(id, *generation));
            txn.relieve()?;
        }
        Ok(())
    }
}

/// Returns the creation time of an id in microseconds.
fn micros_of(id: JobId) -> Micros {
    id.published_at().saturating_mul(1000)
}

/// Parses a list entry and the prefix of its queue.
pub fn entry<'a>(list: Space, key: &'a [u8], value: &'a [u8]) -> Result<(&'a [u8], Entry), Malformed> {
    match list {
        Space::Ready | Space::Dead => {
            let (prefix, seq) = codec::split_list_key(key)?;
            Ok((prefix, codec::read_list_value(seq, value)?.0))
        }
        _ => codec::split_timer_value(value),
    }
}
