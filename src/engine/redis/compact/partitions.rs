//! The parts of a pool: which one is the home of a queue, and what the keys of each begin with. Every key of a partition
//! is in one hash slot of a cluster. Sends nothing.

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::redis::cluster::SLOTS;
pub use crate::engine::redis::cluster::map::Partition;
use crate::job::JobId;
use crate::name::{IdempotencyKey, JobKey, Namespace, Queue};

/// In how many slots a cluster has the number of partitions.
const POOL_KEYS: u16 = 16;

/// What tags are made of.
const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// All partitions of a pool.
#[derive(Debug)]
pub struct Partitions {
    prefix: String,
    /// What the keys of each begin with.
    bases: Vec<String>,
}

impl Partitions {
    /// `count` is a power of two up to 4096.
    pub fn new(prefix: &str, count: u16) -> Partitions {
        let base = |tag| format!("{prefix}{{{tag}}}");
        Partitions { prefix: prefix.to_owned(), bases: tags(count).into_iter().map(base).collect() }
    }

    /// What every key of the pool begins with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn count(&self) -> u16 {
        self.bases.len() as u16 // made from one
    }

    pub fn all(&self) -> std::ops::Range<Partition> {
        0..self.count()
    }

    /// What the keys of a partition begin with.
    pub fn base(&self, partition: Partition) -> &str {
        &self.bases[usize::from(partition)]
    }

    /// Where it is kept how many partitions there are.
    pub fn pool_key(&self) -> String {
        format!("{}{{pool}}partitions", self.prefix)
    }

    /// Whether there ever was a schedule. In the slot of the first partition.
    pub fn schedules_key(&self) -> String {
        format!("{}schedules", self.base(0))
    }

    /// The number of partitions in a cluster, where it is kept in several slots, so that one node is enough to tell:
    /// slot, key.
    pub fn pool_keys(&self) -> Vec<(u16, String)> {
        let key = |tag: String| (slot_of(&tag), format!("{}{{{tag}}}partitions", self.prefix));
        tags(POOL_KEYS).into_iter().map(key).collect()
    }

    /// The slot of each partition's keys.
    pub fn slots(&self) -> Vec<u16> {
        let part = SLOTS / self.bases.len();
        (0..self.bases.len()).map(|n| (n * part + part / 2) as u16).collect()
    }

    /// The home of a queue: a gathered queue has all its jobs there.
    pub fn home(&self, queue: &Queue) -> Partition {
        self.of(format!("{}/{}", queue.namespace, queue.name).as_bytes())
    }

    /// Where what concerns a namespace as a whole is decided.
    pub fn of_namespace(&self, namespace: &Namespace) -> Partition {
        self.of(namespace.as_str().as_bytes())
    }

    /// Where a job with this key lies in a queue that is spread.
    pub fn of_key(&self, queue: &Queue, key: &JobKey) -> Partition {
        self.of(format!("{}/{}/{key}", queue.namespace, queue.name).as_bytes())
    }

    /// Where what became of a publish that is safe to repeat is remembered then.
    pub fn of_request(&self, queue: &Queue, key: &IdempotencyKey) -> Partition {
        let mut text = format!("{}/{}/", queue.namespace, queue.name).into_bytes();
        text.extend(key.as_bytes());
        self.of(&text)
    }

    /// The partition that an id names: `place` has its bytes. One of another store may name any.
    pub fn of_id(&self, id: &JobId) -> Partition {
        let bytes = id.to_bytes();
        (u16::from_be_bytes([bytes[9], bytes[10]]) >> 4) % self.count()
    }

    /// The id that names this partition, and is the same otherwise. It keeps as much as it can of the twelve bits that are
    /// the partition's: of a schedule's job they are part of a hash.
    pub fn with_partition(&self, id: &JobId, partition: Partition) -> JobId {
        let mut bytes = id.to_bytes();
        let mixed = u16::from_be_bytes([bytes[9], bytes[10]]);
        let named = (mixed >> 4) / self.count() * self.count() + partition;
        [bytes[9], bytes[10]] = (named << 4 | mixed & 0xf).to_be_bytes();
        JobId::from_bytes(bytes, id.is_versioned())
    }

    /// The part that a text names: the highest bits of its hash.
    pub fn of(&self, text: &[u8]) -> Partition {
        let hash = u128::from(xxh3_64(text)) * self.bases.len() as u128;
        (hash >> 64) as Partition
    }

    /// The partition that a key is in.
    pub fn at(&self, key: &[u8]) -> Option<Partition> {
        let at = self.bases.iter().position(|base| key.starts_with(base.as_bytes()))?;
        Partition::try_from(at).ok()
    }

    /// Whether a key is of this pool, and what stands behind its tag.
    pub fn rest<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"{")?;
        let end = rest.iter().position(|b| *b == b'}')?;
        Some(&rest[end + 1..])
    }
}

/// The tag of each of so many partitions: the first text of up to three letters and digits whose slot is the middle of
/// the partition's part of all slots. So any layout in ranges gives each master its share within one partition.
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
    // Three letters or digits reach every slot: a test looks at each.
    found.into_iter().flatten().collect()
}

/// The slot of keys with this tag.
fn slot_of(tag: &str) -> u16 {
    crc16(tag.as_bytes()) % SLOTS as u16
}

/// The n-th text of so many letters and digits.
fn text(mut n: usize, length: u32) -> String {
    let mut bytes = vec![b'0'; length as usize];
    for byte in bytes.iter_mut().rev() {
        *byte = LETTERS[n % LETTERS.len()];
        n /= LETTERS.len();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// CRC16 as Redis Cluster counts it (XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8)
            .fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::QueueName;

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

    /// Guards against another version that looks for jobs elsewhere.
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
        assert_eq!(partitions.rest(b"p{abc}rshop/a"), Some(&b"rshop/a"[..]));
        assert_eq!(partitions.rest(b"q{abc}rshop/a"), None);
    }
}
