//! Every key and value of the disk store, byte by byte (docs/disk-format.md draws them). Pure functions over
//! bytes: knows no database, no clock, and nothing of what a job goes through.
//!
//! Integers are big-endian, so that keys sort as their numbers do.

use std::fmt;

use bytes::{BufMut, Bytes};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::clock::{Micros, Millis};
use crate::job::{Attributes, JobId};
use crate::name::{Namespace, Queue, QueueName};

/// Bytes that are not what this format says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The name of the number in `meta` below which all numbers may be in use.
pub const META_SEQ: &[u8] = b"seq";
/// The name of the time in `meta` that the pool's clock has reached.
pub const META_CLOCK: &[u8] = b"clock";
/// The name of the id in `meta` above which no stored job's is.
pub const META_NEWEST: &[u8] = b"newest";
/// The name of the number in `meta` that the last orderly close took.
pub const META_CLOSED: &[u8] = b"closed";
/// The name in `meta` of the newest group: the last item of each batch (guard/groups.rs).
pub const META_GROUP: &[u8] = b"group";
/// Numbers begin here: far above what giving back counts down from it.
pub const FIRST_SEQ: u64 = 1 << 48;

type Result<T> = std::result::Result<T, Malformed>;

/// Orders timers: when it is due, then the number it got when it was set, so that jobs due at one moment
/// keep the order in which they were published.
pub type TimerKey = (Micros, u64);

/// What every list and timer holds of a job. An entry stands for a job only while the stored record has the
/// same `generation`: an id may be acked and published again, and the old entry must not hand out the new job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: JobId,
    /// How many times the job may still be handed out.
    pub tries: u16,
    /// The number that the publish took; never used twice.
    pub generation: u64,
}

/// Where a job was when its record was last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the ready list at this number, at least at first.
    Ready(u64),
    /// Delayed until this timer, at least at first.
    Delayed(TimerKey),
    /// In the dead letter at this number: exact, since leaving it rewrites the record.
    Dead(u64),
}

/// A job as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub location: Location,
    pub generation: u64,
    /// When its ttl ends; `None` is never.
    pub expires: Option<Micros>,
    pub attributes: Attributes,
    pub body: Bytes,
}

impl Record {
    /// Whether its ttl has ended.
    pub fn expired(&self, now: Micros) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }
}

/// Reads from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed("cut short"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed("cut short"))
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn short(&mut self) -> Result<&'a str> {
        let len = self.u8()?;
        std::str::from_utf8(self.take(usize::from(len))?).map_err(|_| Malformed("not UTF-8"))
    }

    fn long(&mut self) -> Result<String> {
        let len = self.u32()?;
        let bytes = self.take(len as usize)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("not UTF-8"))
    }

    fn id(&mut self) -> Result<JobId> {
        let versioned = match self.u8()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed("no such id version")),
        };
        Ok(JobId::from_bytes(self.array()?, versioned))
    }

    fn queue(&mut self) -> Result<Queue> {
        let namespace = Namespace::parse(self.short()?).map_err(|_| Malformed("bad namespace"))?;
        let name = QueueName::parse_for_consume(self.short()?).map_err(|_| Malformed("bad queue name"))?;
        Ok(Queue { namespace, name })
    }

    fn entry(&mut self) -> Result<Entry> {
        Ok(Entry { id: self.id()?, tries: self.u16()?, generation: self.u64()? })
    }

    fn end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("too long")) }
    }
}

/// A name is at most 255 bytes (`name.rs` holds that), so its length fits one byte.
fn put_short(out: &mut Vec<u8>, s: &str) {
    out.put_u8(s.len() as u8);
    out.put_slice(s.as_bytes());
}

fn put_id(out: &mut Vec<u8>, id: JobId) {
    out.put_u8(u8::from(id.is_versioned()));
    out.put_slice(&id.to_bytes());
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    put_id(out, entry.id);
    out.put_u16(entry.tries);
    out.put_u64(entry.generation);
}

/// The prefix of all keys of a queue. No queue's prefix begins another's, since lengths come first.
pub fn queue_key(queue: &Queue) -> Bytes {
    let (namespace, name) = (queue.namespace.as_str(), queue.name.as_str());
    let mut out = Vec::with_capacity(2 + namespace.len() + name.len());
    put_short(&mut out, namespace);
    put_short(&mut out, name);
    out.into()
}

/// Reads [`queue_key`].
pub fn read_queue_key(key: &[u8]) -> Result<Queue> {
    let mut r = Reader(key);
    let queue = r.queue()?;
    r.end().map(|()| queue)
}

/// `jobs`: the id, then the prefix of the queue. Ids grow with time, so new records come behind all others,
/// whatever their queue: a table holds the jobs of one stretch of time, and a read looks into one.
pub fn job_key(queue: &[u8], id: JobId) -> Vec<u8> {
    let mut out = Vec::with_capacity(17 + queue.len());
    put_id(&mut out, id);
    out.put_slice(queue);
    out
}

/// `ready` and `dead`: prefix of the queue, then the number.
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

/// The value of `ready` and `dead` at number `seq`. A job's first entry has its generation for a number, and does
/// not repeat it.
pub fn list_value(seq: u64, entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(27);
    put_id(&mut out, entry.id);
    out.put_u16(entry.tries);
    if entry.generation != seq {
        out.put_u64(entry.generation);
    }
    out
}

/// Reads [`list_value`].
pub fn read_list_value(seq: u64, value: &[u8]) -> Result<Entry> {
    let mut r = Reader(value);
    let (id, tries) = (r.id()?, r.u16()?);
    let generation = if r.0.is_empty() { seq } else { r.u64()? };
    r.end().map(|()| Entry { id, tries, generation })
}

/// `delayed` and `running`: when due, then the number.
pub fn timer_key((due, seq): TimerKey) -> [u8; 16] {
    (u128::from(due) << 64 | u128::from(seq)).to_be_bytes()
}

/// Reads [`timer_key`].
pub fn read_timer_key(key: &[u8]) -> Result<TimerKey> {
    let mut r = Reader(key);
    let timer = (r.u64()?, r.u64()?);
    r.end().map(|()| timer)
}

/// The value of `delayed` and `running`.
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

/// An id larger than `id` and all ids of the `ms` milliseconds after it.
pub fn id_after(id: JobId, ms: Millis) -> JobId {
    let ulid = u128::from_be_bytes(id.to_bytes());
    // The time is in the upper 48 bits; the rest is filled up.
    let after = ulid.saturating_add(u128::from(ms) << 80) | ((1 << 80) - 1);
    JobId::from_bytes(after.to_be_bytes(), true)
}

/// An id in `meta`: [`id_after`], without the version, which it has.
pub fn read_newest(value: &[u8]) -> Result<JobId> {
    let mut r = Reader(value);
    let bytes = r.array()?;
    r.end().map(|()| JobId::from_bytes(bytes, true))
}

/// A number in `meta`.
pub fn read_number(value: &[u8]) -> Result<u64> {
    let mut r = Reader(value);
    let number = r.u64()?;
    r.end().map(|()| number)
}

/// The value of `jobs`. The checksum in front covers key and value: a record found under another key, or with
/// any byte changed, does not read.
pub fn record(key: &[u8], record: &Record) -> Vec<u8> {
    let attributes: usize = record.attributes.iter().map(|(k, v)| 8 + k.len() + v.len()).sum();
    let mut out = Vec::with_capacity(8 + 17 + 16 + 4 + attributes + record.body.len());
    out.put_u64(0);
    let (tag, due, seq) = match record.location {
        Location::Ready(seq) => (0, 0, seq),
        Location::Delayed((due, seq)) => (1, due, seq),
        Location::Dead(seq) => (2, 0, seq),
    };
    out.put_u8(tag);
    out.put_u64(due);
    out.put_u64(seq);
    out.put_u64(record.generation);
    // 0 is "never": a ttl that ends at the epoch ends a microsecond later instead, and is over all the same.
    out.put_u64(record.expires.map_or(0, |at| at.max(1)));
    out.put_u32(record.attributes.len() as u32);
    for (k, v) in &record.attributes {
        for s in [k, v] {
            out.put_u32(s.len() as u32);
            out.put_slice(s.as_bytes());
        }
    }
    out.put_slice(&record.body);
    let sum = checksum(key, &out[8..]);
    out[..8].copy_from_slice(&sum.to_be_bytes());
    out
}

fn checksum(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key))
}

/// Reads [`record`]. The body is a copy, so that it keeps no part of the database in memory.
pub fn read_record(key: &[u8], value: &[u8]) -> Result<Record> {
    let mut r = Reader(value);
    if r.u64()? != checksum(key, r.0) {
        return Err(Malformed("the checksum does not match"));
    }
    let (tag, due, seq) = (r.u8()?, r.u64()?, r.u64()?);
    let location = match tag {
        0 => Location::Ready(seq),
        1 => Location::Delayed((due, seq)),
        2 => Location::Dead(seq),
        _ => return Err(Malformed("no such location")),
    };
    let generation = r.u64()?;
    let expires = Some(r.u64()?).filter(|at| *at > 0);
    let count = r.u32()?;
    let mut attributes = Attributes::new();
    for _ in 0..count {
        let (k, v) = (r.long()?, r.long()?);
        attributes.insert(k, v);
    }
    Ok(Record { location, generation, expires, attributes, body: Bytes::copy_from_slice(r.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
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
        (ids(), any::<u16>(), any::<u64>()).prop_map(|(id, tries, generation)| Entry {
            id,
            tries,
            generation,
        })
    }

    fn records() -> impl Strategy<Value = Record> {
        let location = prop_oneof![
            any::<u64>().prop_map(Location::Ready),
            any::<(u64, u64)>().prop_map(Location::Delayed),
            any::<u64>().prop_map(Location::Dead),
        ];
        let attributes = proptest::collection::btree_map(".{0,8}", ".{0,8}", 0..4);
        (location, any::<u64>(), proptest::option::of(1u64..), attributes, any::<Vec<u8>>()).prop_map(
            |(location, generation, expires, attributes, body)| Record {
                location,
                generation,
                expires,
                attributes,
                body: body.into(),
            },
        )
    }

    proptest! {
        #[test]
        fn keys_and_entries_survive(queue in queues(), entry in entries(), seq: u64, timer: (u64, u64)) {
            let prefix = queue_key(&queue);
            prop_assert_eq!(read_queue_key(&prefix), Ok(queue));
            let (listed, timed) = (list_key(&prefix, seq), timer_value(&prefix, &entry));
            prop_assert_eq!(split_list_key(&listed), Ok((&prefix[..], seq)));
            prop_assert_eq!(split_timer_value(&timed), Ok((&prefix[..], entry)));
            prop_assert_eq!(read_list_value(seq, &list_value(seq, &entry)), Ok(entry));
            let first = Entry { generation: seq, ..entry };
            prop_assert_eq!(read_list_value(seq, &list_value(seq, &first)), Ok(first));
            prop_assert_eq!(read_timer_key(&timer_key(timer)), Ok(timer));
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
            prop_assert!(read_record(&bytes, &bytes).is_err(), "random bytes are no record");
        }
    }
}
