//! Keys and values of the disk store, byte by byte (docs/disk-format.md has drawings). Pure functions over bytes:
//! independent of the database, of clocks and of a job's life.
//!
//! Integers are big-endian, so that keys sort as their numbers do.

mod parts;
mod record;
mod settings;

use std::ops::RangeBounds;

use bytes::{BufMut, Bytes};

pub use self::parts::{Entry, Malformed, TimerKey};
use self::parts::{Reader, Result, put_entry, put_flagged_id, put_id, put_placed, put_short};
pub use self::record::{Location, Record, read_record, record};
pub use self::settings::{read_setting, setting};
use crate::clock::{Micros, Millis};
use crate::engine::{Fingerprint, Placed};
use crate::job::JobId;
use crate::name::{IdempotencyKey, JobKey, Namespace, Queue};

/// Key in `meta` of the number below which all sequence numbers may be in use.
pub const META_SEQ: &[u8] = b"seq";
/// Key in `meta` of the time that the pool's clock has reached.
pub const META_CLOCK: &[u8] = b"clock";
/// Key in `meta` of an upper bound on the ids of stored jobs.
pub const META_NEWEST: &[u8] = b"newest";
/// First number: far above the numbers that returned jobs count down from it.
pub const FIRST_SEQ: u64 = 1 << 48;

/// Returns the prefix of all keys of a queue. No queue's prefix is a prefix of another's, since lengths come first.
pub fn queue_key(queue: &Queue) -> Bytes {
    let (namespace, name) = (queue.namespace.as_str(), queue.name.as_str());
    let mut out = Vec::with_capacity(2 + namespace.len() + name.len());
    put_short(&mut out, namespace);
    put_short(&mut out, name);
    out.into()
}

/// Returns the common prefix of all queues of a namespace.
pub fn namespace_key(namespace: &Namespace) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + namespace.as_str().len());
    put_short(&mut out, namespace.as_str());
    out
}

/// Returns the [`namespace_key`] of the queue in a key of `jobs`.
pub fn namespace_of_job(key: &[u8]) -> Result<&[u8]> {
    let mut r = Reader(key);
    r.id()?;
    let rest = r.0;
    let len = r.short()?.len();
    Ok(&rest[..1 + len]) // the length and the name were read above
}

/// Prefix of the keys of `quotas` that name a namespace's usage.
const USED: &[u8] = b"u";

/// Returns the key in `quotas` of the usage of a namespace with a limit on jobs or bytes.
pub fn used_key(namespace: &Namespace) -> Vec<u8> {
    [USED, namespace.as_str().as_bytes()].concat()
}

/// Returns the range of all [`used_key`]s.
pub fn used_keys() -> impl RangeBounds<&'static [u8]> {
    USED.. // the last prefix
}

/// Reads [`used_key`].
pub fn read_used_key(key: &[u8]) -> Result<Namespace> {
    let name = key.strip_prefix(USED).and_then(|name| std::str::from_utf8(name).ok());
    name.and_then(|name| Namespace::parse(name).ok()).ok_or(Malformed("bad namespace"))
}

/// Returns the value of a [`used_key`]: the number of jobs and the bytes of their bodies.
pub fn used(jobs: u64, bytes: u64) -> [u8; 16] {
    (u128::from(jobs) << 64 | u128::from(bytes)).to_be_bytes()
}

/// Reads [`used`].
pub fn read_used(value: &[u8]) -> Result<(u64, u64)> {
    let mut r = Reader(value);
    let used = (r.u64()?, r.u64()?);
    r.end().map(|()| used)
}

/// Reads [`queue_key`].
pub fn read_queue_key(key: &[u8]) -> Result<Queue> {
    let mut r = Reader(key);
    let queue = r.queue()?;
    r.end().map(|()| queue)
}

/// Returns a key of `jobs`: the id, then the prefix of the queue. Ids grow with time, so new records of any queue sort
/// last: each table holds the jobs of one period, and a read consults one table.
pub fn job_key(queue: &[u8], id: JobId) -> Vec<u8> {
    let mut out = Vec::with_capacity(17 + queue.len());
    put_id(&mut out, id);
    out.put_slice(queue);
    out
}

/// Reads [`job_key`].
pub fn read_job_key(key: &[u8]) -> Result<(JobId, Queue)> {
    let mut r = Reader(key);
    let id = r.id()?;
    read_queue_key(r.0).map(|queue| (id, queue))
}

/// Returns the value of `quarantine`, whose key is that of the job: the entry that referred to it, and the error.
pub fn quarantined(entry: &Entry, reason: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(27 + reason.len());
    put_entry(&mut out, entry);
    out.put_slice(reason.as_bytes());
    out
}

/// Reads [`quarantined`].
pub fn read_quarantined(value: &[u8]) -> Result<(Entry, String)> {
    let mut r = Reader(value);
    let entry = r.entry()?;
    Ok((entry, String::from_utf8_lossy(r.0).into_owned()))
}

/// Returns a key of `ready` and `dead`: the prefix of the queue, then the number.
pub fn list_key(queue: &[u8], seq: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(queue.len() + 8);
    out.put_slice(queue);
    out.put_u64(seq);
    out
}

/// Splits [`list_key`] into the queue's prefix and the number.
pub fn split_list_key(key: &[u8]) -> Result<(&[u8], u64)> {
    let (queue, seq) = key.split_last_chunk::<8>().ok_or(Malformed("cut short"))?;
    Ok((queue, u64::from_be_bytes(*seq)))
}

/// Returns the value of `ready` and `dead`. `since` is when the job became ready or dead. An entry written by a publish
/// omits both: its number is its generation, and it has been ready since then.
pub fn list_value(entry: &Entry, since: Option<Micros>) -> Vec<u8> {
    let mut out = Vec::with_capacity(35);
    put_flagged_id(&mut out, entry.id, entry.keyed);
    out.put_u16(entry.tries);
    if let Some(since) = since {
        out.put_u64(entry.generation);
        out.put_u64(since);
    }
    out
}

/// Reads [`list_value`] at number `seq`. Returns the entry and the time since which it is in the list.
pub fn read_list_value(seq: u64, value: &[u8]) -> Result<(Entry, Millis)> {
    let mut r = Reader(value);
    let (id, keyed) = r.flagged_id()?;
    let tries = r.u16()?;
    let (generation, since) = match r.0.len() {
        0 => (seq, id.published_at()),
        _ => (r.u64()?, r.u64()? / 1000),
    };
    r.end().map(|()| (Entry { id, tries, generation, keyed }, since))
}

/// Returns the time in a [`list_value`], by the pool's clock, if it has one.
pub fn read_list_time(value: &[u8]) -> Option<Micros> {
    read_number(value.get(27..)?).ok()
}

/// Returns a key of `delayed` and `running`: the due time, then the number.
pub fn timer_key((due, seq): TimerKey) -> [u8; 16] {
    (u128::from(due) << 64 | u128::from(seq)).to_be_bytes()
}

/// Reads [`timer_key`].
pub fn read_timer_key(key: &[u8]) -> Result<TimerKey> {
    let mut r = Reader(key);
    let timer = (r.u64()?, r.u64()?);
    r.end().map(|()| timer)
}

/// Returns a value of `delayed` and `running`: the entry, then the prefix of the queue.
pub fn timer_value(queue: &[u8], entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(27 + queue.len());
    put_entry(&mut out, entry);
    out.put_slice(queue);
    out
}

/// Splits [`timer_value`] into the queue's prefix and the entry.
pub fn split_timer_value(value: &[u8]) -> Result<(&[u8], Entry)> {
    let mut r = Reader(value);
    let entry = r.entry()?;
    Ok((r.0, entry))
}

/// Returns a key of `keys`: the prefix of the queue, then the job key.
pub fn key_key(queue: &[u8], key: &JobKey) -> Vec<u8> {
    [queue, key.as_str().as_bytes()].concat()
}

/// Returns the value of `keys`: the job that has the key.
pub fn key_value(id: JobId, generation: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(25);
    put_id(&mut out, id);
    out.put_u64(generation);
    out
}

/// Reads [`key_value`].
pub fn read_key_value(value: &[u8]) -> Result<(JobId, u64)> {
    let mut r = Reader(value);
    let holder = (r.id()?, r.u64()?);
    r.end().map(|()| holder)
}

/// Prefix of the keys of `once` that name an idempotency key.
const ONCE_KEY: u8 = b'k';
/// Prefix of the keys of `once` that give its expiry.
const ONCE_END: u8 = b't';

/// Returns a key of `once`: the prefix of the queue, then the idempotency key.
pub fn once_key(queue: &[u8], key: &IdempotencyKey) -> Vec<u8> {
    [&[ONCE_KEY][..], queue, key.as_bytes()].concat()
}

/// Returns the expiry row of a [`once_key`]. Sorts by that time.
pub fn once_end(until: Micros, key: &[u8]) -> Vec<u8> {
    let mut out = once_ends_at(until);
    out.put_slice(key.get(1..).unwrap_or_default());
    out
}

/// Returns the common prefix of all [`once_end`] with this time.
pub fn once_ends_at(until: Micros) -> Vec<u8> {
    let mut out = vec![ONCE_END];
    out.put_u64(until);
    out
}

/// Returns whether a key of `once` is a [`once_end`].
pub fn is_once_end(key: &[u8]) -> bool {
    key.first() == Some(&ONCE_END)
}

/// Splits [`once_end`] into the time and the [`once_key`].
pub fn read_once_end(key: &[u8]) -> Result<(Micros, Vec<u8>)> {
    let mut r = Reader(key);
    if r.u8()? != ONCE_END {
        return Err(Malformed("not the end of a request"));
    }
    let until = r.u64()?;
    Ok((until, [&[ONCE_KEY][..], r.0].concat()))
}

/// Recorded result of a request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub until: Micros,
    pub fingerprint: Fingerprint,
    pub placed: Vec<Placed>,
}

/// Returns the value of a [`once_key`].
pub fn remembered(it: &Remembered) -> Vec<u8> {
    let mut out = Vec::with_capacity(24 + it.placed.len() * 26);
    out.put_u64(it.until);
    out.put_slice(&it.fingerprint);
    it.placed.iter().for_each(|placed| put_placed(&mut out, placed));
    out
}

/// Reads [`remembered`].
pub fn read_remembered(value: &[u8]) -> Result<Remembered> {
    let mut r = Reader(value);
    let (until, fingerprint) = (r.u64()?, r.array()?);
    let mut placed = Vec::new();
    while !r.0.is_empty() {
        placed.push(r.placed()?);
    }
    Ok(Remembered { until, fingerprint, placed })
}

/// Returns an id larger than `id` and all ids of the `ms` milliseconds after it.
pub fn id_after(id: JobId, ms: Millis) -> JobId {
    let ulid = u128::from_be_bytes(id.to_bytes());
    // The time is in the upper 48 bits; all others are set.
    let after = ulid.saturating_add(u128::from(ms) << 80) | ((1 << 80) - 1);
    JobId::from_bytes(after.to_be_bytes(), true)
}

/// Reads an id in `meta`, written by [`id_after`] without its version.
pub fn read_newest(value: &[u8]) -> Result<JobId> {
    let mut r = Reader(value);
    let bytes = r.array()?;
    r.end().map(|()| JobId::from_bytes(bytes, true))
}

/// Reads a number in `meta`.
pub fn read_number(value: &[u8]) -> Result<u64> {
    let mut r = Reader(value);
    let number = r.u64()?;
    r.end().map(|()| number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::How;
    use crate::job::Reason;
    use crate::name::QueueName;
    use proptest::prelude::*;

    fn queues() -> impl Strategy<Value = Queue> {
        ("[-_A-Za-z0-9]{1,255}", "[-A-Za-z0-9][-_A-Za-z0-9]{0,254}").prop_map(|(ns, q)| Queue {
            namespace: Namespace::parse(&ns).unwrap(), // the pattern makes names
            name: QueueName::parse(&q).unwrap(),
        })
    }

    fn ids() -> impl Strategy<Value = JobId> {
        (any::<[u8; 16]>(), any::<bool>()).prop_map(|(bytes, versioned)| JobId::from_bytes(bytes, versioned))
    }

    fn entries() -> impl Strategy<Value = Entry> {
        (ids(), any::<u16>(), any::<u64>(), any::<bool>()).prop_map(|(id, tries, generation, keyed)| Entry {
            id,
            tries,
            generation,
            keyed,
        })
    }

    fn keys() -> impl Strategy<Value = JobKey> {
        "[!-~]{1,255}".prop_map(|key| JobKey::parse(&key).unwrap()) // the pattern makes keys
    }

    fn remembereds() -> impl Strategy<Value = Remembered> {
        let how = prop_oneof![Just(How::New), Just(How::Duplicate), ids().prop_map(How::Replaced)];
        let placed = (ids(), proptest::option::of(1u64..), how).prop_map(|(id, due_at, how)| Placed {
            id,
            due_at,
            how,
        });
        (any::<u64>(), any::<Fingerprint>(), proptest::collection::vec(placed, 0..9))
            .prop_map(|(until, fingerprint, placed)| Remembered { until, fingerprint, placed })
    }

    fn records() -> impl Strategy<Value = Record> {
        let location = prop_oneof![
            any::<u64>().prop_map(Location::Ready),
            any::<(u64, u64)>().prop_map(Location::Delayed),
            any::<u64>().prop_map(Location::Dead),
        ];
        let attributes = proptest::collection::btree_map(".{0,8}", ".{0,8}", 0..4);
        let reason = proptest::option::of("\\PC{1,99}".prop_map(|text| Reason::new(&text).unwrap())); // short
        let extras = (proptest::option::of(keys()), reason);
        (location, any::<u64>(), proptest::option::of(1u64..), attributes, extras, any::<Vec<u8>>()).prop_map(
            |(location, generation, expires, attributes, (key, reason), body)| Record {
                location,
                generation,
                expires,
                attributes,
                key,
                reason,
                body: body.into(),
            },
        )
    }

    proptest! {
        #[test]
        fn keys_and_entries_survive(
            queue in queues(), entry in entries(), seq: u64, since: u64, timer: (u64, u64),
        ) {
            let prefix = queue_key(&queue);
            prop_assert_eq!(read_queue_key(&prefix), Ok(queue));
            let (listed, timed) = (list_key(&prefix, seq), timer_value(&prefix, &entry));
            prop_assert_eq!(split_list_key(&listed), Ok((&prefix[..], seq)));
            prop_assert_eq!(split_timer_value(&timed), Ok((&prefix[..], entry)));
            let read = read_list_value(seq, &list_value(&entry, Some(since)));
            prop_assert_eq!(read, Ok((entry, since / 1000)));
            let first = Entry { generation: seq, ..entry };
            let read = read_list_value(seq, &list_value(&first, None));
            prop_assert_eq!(read, Ok((first, first.id.published_at())));
            prop_assert_eq!(read_timer_key(&timer_key(timer)), Ok(timer));
            prop_assert_eq!(read_job_key(&job_key(&prefix, entry.id)).map(|(id, _)| id), Ok(entry.id));
            let reason = "a bad sector".to_owned();
            prop_assert_eq!(read_quarantined(&quarantined(&entry, &reason)), Ok((entry, reason)));
        }

        #[test]
        fn keys_sort_as_their_numbers_do(queue in queues(), a: u64, b: u64, s: u64, t: u64) {
            let prefix = queue_key(&queue);
            prop_assert_eq!(list_key(&prefix, a).cmp(&list_key(&prefix, b)), a.cmp(&b));
            prop_assert_eq!(timer_key((a, s)).cmp(&timer_key((b, t))), (a, s).cmp(&(b, t)));
        }

        #[test]
        fn an_id_after_is_larger_than_all_before(id in ids(), other in ids(), ms in 0u64..10_000) {
            let after = id_after(id, ms);
            prop_assert_eq!(read_newest(&after.to_bytes()), Ok(after));
            prop_assert!(after >= id, "{:?} is below {:?}", after, id);
            if other.published_at() <= id.published_at().saturating_add(ms).min((1 << 48) - 1) {
                prop_assert!(after >= other, "{:?} is below {:?}", after, other);
            }
        }

        #[test]
        fn no_queue_reads_into_another(a in queues(), b in queues()) {
            prop_assert_eq!(queue_key(&a).starts_with(&queue_key(&b)), a == b);
        }

        #[test]
        fn a_record_survives(queue in queues(), id in ids(), it in records()) {
            let key = job_key(&queue_key(&queue), id);
            prop_assert_eq!(read_record(&key, &record(&key, &it)), Ok(it));
        }

        #[test]
        fn names_of_jobs_and_requests_survive(
            queue in queues(), key in keys(), id in ids(), number: u64, it in remembereds(),
            name in proptest::collection::vec(any::<u8>(), 1..256),
        ) {
            let prefix = queue_key(&queue);
            let full = key_key(&prefix, &key);
            prop_assert_eq!(full.strip_prefix(&prefix[..]), Some(key.as_str().as_bytes()));
            prop_assert_eq!(read_key_value(&key_value(id, number)), Ok((id, number)));
            prop_assert_eq!(read_remembered(&remembered(&it)), Ok(it));
            let name = once_key(&prefix, &IdempotencyKey::new(&name).unwrap()); // 1 to 255 bytes
            let end = once_end(number, &name);
            prop_assert!(end.starts_with(&once_ends_at(number)), "it sorts by its time");
            prop_assert_eq!(read_once_end(&end), Ok((number, name)));
        }

        #[test]
        fn no_changed_byte_reads_as_a_record(it in records(), at: prop::sample::Index, with in 1u8..) {
            let mut bytes = record(b"key", &it);
            prop_assert!(read_record(b"other", &bytes).is_err(), "read under another key");
            let at = at.index(bytes.len());
            bytes[at] ^= with;
            prop_assert!(read_record(b"key", &bytes).is_err(), "byte {} was changed", at);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read_queue_key(&bytes);
            let _ = split_list_key(&bytes);
            let _ = read_list_value(7, &bytes);
            let _ = split_timer_value(&bytes);
            let _ = read_key_value(&bytes);
            let _ = (read_once_end(&bytes), read_remembered(&bytes));
            prop_assert!(read_record(&bytes, &bytes).is_err(), "random bytes are no record");
        }
    }
}
