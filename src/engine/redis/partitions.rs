//! The partitions of a pool: their bases, the home partition of a queue, and the partition in an id. All keys of a
//! partition are in one hash slot of a cluster. A single Redis has one, with an empty base. Sends nothing.

use xxhash_rust::xxh3::xxh3_64;

use super::cluster::SLOTS;
use super::cluster::map::Partition;
use crate::job::JobId;
use crate::name::{IdempotencyKey, JobKey, Queue};

/// Number of copies of the partition count in a cluster, each in another slot.
const COUNT_KEYS: u16 = 16;

/// Characters of tags.
const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// All partitions of a pool.
#[derive(Debug)]
pub struct Partitions {
    prefix: String,
    /// Prefix of the keys of each partition.
    bases: Vec<String>,
}

impl Partitions {
    /// Returns `count` partitions: a power of two up to 4096.
    pub fn new(prefix: &str, count: u16) -> Partitions {
        let base = |tag| format!("{prefix}{{{tag}}}");
        Partitions { prefix: prefix.to_owned(), bases: tags(count).into_iter().map(base).collect() }
    }

    /// Returns the one partition of a single Redis.
    pub fn single() -> Partitions {
        Partitions { prefix: String::new(), bases: vec![String::new()] }
    }

    /// Returns the prefix of every key of the pool.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn count(&self) -> u16 {
        self.bases.len() as u16 // the length came from a `u16`
    }

    pub fn all(&self) -> std::ops::Range<Partition> {
        0..self.count()
    }

    /// Returns the prefix of a partition's keys.
    pub fn base(&self, partition: Partition) -> &str {
        &self.bases[usize::from(partition)]
    }

    /// Returns the keys that store the number of partitions. They are in several slots, so that one reachable node is
    /// enough to read it.
    pub fn count_keys(&self) -> Vec<CountKey> {
        let key = |tag: String| CountKey {
            slot: slot_of(&tag),
            key: format!("{}{{{tag}}}dormouse/partitions", self.prefix),
            compact: format!("{}{{{tag}}}partitions", self.prefix),
        };
        tags(COUNT_KEYS).into_iter().map(key).collect()
    }

    /// Returns the slot of each partition's keys.
    pub fn slots(&self) -> Vec<u16> {
        let part = SLOTS / self.bases.len();
        (0..self.bases.len()).map(|n| (n * part + part / 2) as u16).collect()
    }

    /// Returns the home partition of a queue, which has all its jobs unless it is spread.
    pub fn home(&self, queue: &Queue) -> Partition {
        self.of(format!("{}/{}", queue.namespace, queue.name).as_bytes())
    }

    /// Returns the partition of a job with this key, in a spread queue.
    pub fn of_key(&self, queue: &Queue, key: &JobKey) -> Partition {
        self.of(format!("{}/{}/{key}", queue.namespace, queue.name).as_bytes())
    }

    /// Returns the partition of a publish with this `Idempotency-Key`, in a spread queue.
    pub fn of_request(&self, queue: &Queue, key: &IdempotencyKey) -> Partition {
        let mut text = format!("{}/{}/", queue.namespace, queue.name).into_bytes();
        text.extend(key.as_bytes());
        self.of(&text)
    }

    /// Returns the partition that an id names. An id made by another store may name any.
    pub fn of_id(&self, id: &JobId) -> Partition {
        let bytes = id.to_bytes();
        (u16::from_be_bytes([bytes[9], bytes[10]]) >> 4) % self.count()
    }

    /// Returns an id with this partition, from a new id that names none. Of the 48 bits that distinguish ids of one
    /// millisecond it keeps the lowest 35, which count up; the partition uses 12 bits among them. The first of the 48 is
    /// 0: see layout/packed.rs.
    pub fn name(&self, id: JobId, partition: Partition) -> JobId {
        let mut bytes = id.to_bytes();
        let unique = bytes[6..12].iter().fold(0, |unique: u64, byte| unique << 8 | u64::from(*byte));
        let named = (unique >> 12 & 0x7f_ffff) << 24 | u64::from(partition) << 12 | unique & 0xfff;
        bytes[6..12].copy_from_slice(&named.to_be_bytes()[2..]);
        JobId::from_bytes(bytes, id.is_versioned())
    }

    /// Returns the id with this partition in it, otherwise unchanged; deterministic. Preserves the twelve partition
    /// bits as far as possible, since they may be part of a hash.
    pub fn with_partition(&self, id: &JobId, partition: Partition) -> JobId {
        let mut bytes = id.to_bytes();
        let mixed = u16::from_be_bytes([bytes[9], bytes[10]]);
        let named = (mixed >> 4) / self.count() * self.count() + partition;
        [bytes[9], bytes[10]] = (named << 4 | mixed & 0xf).to_be_bytes();
        JobId::from_bytes(bytes, id.is_versioned())
    }

    /// Returns the partition for a text: the highest bits of its hash.
    pub fn of(&self, text: &[u8]) -> Partition {
        let hash = u128::from(xxh3_64(text)) * self.bases.len() as u128;
        (hash >> 64) as Partition
    }

    /// Returns the partition of a key, and the key without its base.
    pub fn split<'a>(&self, key: &'a [u8]) -> Option<(Partition, &'a [u8])> {
        let (partition, base) =
            self.bases.iter().enumerate().find(|(_, base)| key.starts_with(base.as_bytes()))?;
        Some((Partition::try_from(partition).ok()?, &key[base.len()..]))
    }
}

/// Where the number of partitions is stored.
#[derive(Debug)]
pub struct CountKey {
    pub slot: u16,
    pub key: String,
    /// The key of a pool in the compact layout, which is no longer supported.
    pub compact: String,
}

/// Returns the tags of `count` partitions: for each the first text of up to three letters and digits whose slot is the
/// middle of the partition's range of slots. So any layout in ranges gives each master its share within one partition.
fn tags(count: u16) -> Vec<String> {
    let count = usize::from(count);
    let part = SLOTS / count;
    let mut found: Vec<Option<String>> = vec![None; count];
    let mut left = count;
    for length in 1..=3 {
        for n in 0..LETTERS.len().pow(length) {
            let tag = text(n, length);
            let slot = usize::from(slot_of(&tag));
            let place = &mut found[slot / part];
            if slot % part == part / 2 && place.is_none() {
                *place = Some(tag);
                left -= 1;
            }
            if left == 0 {
                return found.into_iter().flatten().collect();
            }
        }
    }
    // Three letters or digits reach every slot: a test checks each.
    found.into_iter().flatten().collect()
}

/// Returns the slot of keys with this tag.
fn slot_of(tag: &str) -> u16 {
    crc16(tag.as_bytes()) % SLOTS as u16
}

/// Returns the n-th text of `length` letters and digits.
fn text(mut n: usize, length: u32) -> String {
    let mut bytes = vec![b'0'; length as usize];
    for byte in bytes.iter_mut().rev() {
        *byte = LETTERS[n % LETTERS.len()];
        n /= LETTERS.len();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// CRC16 as computed by Redis Cluster (XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8)
            .fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, QueueName};

    #[test]
    fn slots_are_those_of_a_cluster() {
        // CLUSTER KEYSLOT of Redis 7.0.15.
        assert_eq!(crc16(b"123456789"), 0x31c3, "the check value of XMODEM");
        assert_eq!(usize::from(crc16(b"foo")) % SLOTS, 12_182);
    }

    #[test]
    fn every_partition_has_a_tag_in_the_middle_of_its_part() {
        for power in 0..=12 {
            let count = 1_u16 << power;
            let tags = tags(count);
            assert_eq!(tags.len(), usize::from(count), "of {count} partitions");
            let part = SLOTS / usize::from(count);
            for (n, tag) in tags.iter().enumerate() {
                assert_eq!(usize::from(slot_of(tag)), n * part + part / 2, "{tag} of {count}");
            }
            let slots: Vec<u16> = tags.iter().map(|tag| slot_of(tag)).collect();
            assert_eq!(Partitions::new("p", count).slots(), slots);
        }
    }

    #[test]
    fn an_id_names_the_partition_that_is_written_into_it_and_keeps_the_rest() {
        for power in 0..=12 {
            let partitions = Partitions::new("p", 1 << power);
            for bytes in [[0; 16], [0xff; 16], [0x5a; 16]] {
                for partition in [0, partitions.count() / 2, partitions.count() - 1] {
                    let id = JobId::from_bytes(bytes, true);
                    let named = partitions.with_partition(&id, partition);
                    assert_eq!(partitions.of_id(&named), partition, "{id} of {} partitions", 1 << power);
                    assert_eq!(partitions.with_partition(&named, partitions.of_id(&id)), id, "nothing else");
                }
            }
        }
    }

    /// Guards against two jobs of one millisecond and partition with the same id.
    #[test]
    fn ids_that_count_up_stay_apart_when_they_name_a_partition() {
        let partitions = Partitions::new("p", 64);
        let mut seen = std::collections::HashSet::new();
        for unique in (0xfff_ff00_u64..).take(20_000) {
            let id = partitions.name(JobId::from_parts(7, unique, 60, true), 63);
            assert_eq!((partitions.of_id(&id), id.published_at(), id.delay_seconds()), (63, 7, 60), "{id}");
            assert!(id.is_versioned() && seen.insert(id), "{id} is a duplicate");
        }
    }

    /// Guards against a version that looks for jobs in other partitions.
    #[test]
    fn homes_and_tags_stay_what_they_are() {
        let partitions = Partitions::new("p", 8);
        let queue = |name| Queue {
            namespace: Namespace::parse("shop").expect("a name"),
            name: QueueName::parse(name).expect("a name"),
        };
        let homes: Vec<_> = ["a", "b", "c", "orders"].map(|name| partitions.home(&queue(name))).into();
        let bases: Vec<_> = partitions.all().map(|p| partitions.base(p)).collect();
        assert_eq!(homes, [3, 6, 7, 2]);
        assert_eq!(bases, ["p{2VY}", "p{5j7}", "p{QJ}", "p{6KV}", "p{bL}", "p{5H3}", "p{7F}", "p{5Y1}"]);
        assert_eq!(partitions.split(b"p{QJ}q/shop/a"), Some((2, &b"q/shop/a"[..])));
        assert_eq!(partitions.split(b"p{abc}q/shop/a"), None);
        assert_eq!(Partitions::single().split(b"q/shop/a"), Some((0, &b"q/shop/a"[..])));
    }
}
