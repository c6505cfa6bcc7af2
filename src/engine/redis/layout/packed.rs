//! Packed jobs: a delayed job that is due much later is a field of a hash, a *bucket*, with about sixty others of its
//! queue that are due at about the same time. The id names the bucket: its first bits after the time are a mark, the
//! length of the bucket's window of due times, and a number. So only ids with the mark are ever looked for in buckets.
//! lua/packed.lua describes fields and values, and packs and unpacks jobs. Independent of connections.

use std::time::Duration;

use bytes::Bytes;

use super::keys::group;
use crate::clock::{Micros, Millis};
use crate::job::JobId;
use crate::name::Queue;

/// Marks the ids of jobs that may be packed, in the seventh byte. An ordinary id has a first bit of 0 there.
const MARK: u8 = 0xf0;
/// Binary logarithms of the lengths of windows in milliseconds: 128 ms to 70 minutes.
const SHORTEST: u32 = 7;
const LONGEST: u32 = 22;
/// A window is at most this part of the delay.
const PART: u64 = 16;
/// Bytes before the value of a packed job.
const HEAD: usize = 12;
/// Largest value that is packed. With its head it fits into a listpack where `hash-max-listpack-value` is at least
/// [`LISTPACK_VALUE`].
pub const MAX_VALUE: usize = 1000;
pub const LISTPACK_VALUE: u64 = 1100;
/// Maximum time between a job's due time and the end of the delay in its id (lua/publish.lua); so no job of a bucket is
/// due outside its window by more.
const APART: Millis = 30_000;

/// A field of a bucket: an id without the three bytes that all jobs of the bucket share. Its first bit, which is 0 in
/// ids until the year 6429, says whether the id is versioned.
type Field = [u8; 13];

/// Whether a job with this id may be packed.
pub fn may_be_packed(id: &JobId) -> bool {
    id.to_bytes()[6] & MARK == MARK
}

/// The window of due times of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Binary logarithm of its length in milliseconds.
    power: u32,
    number: u64,
}

impl Window {
    /// Returns the longest window for a new job with this id.
    pub fn longest(id: &JobId) -> Window {
        let part = u64::from(id.delay_seconds()) * 1000 / PART;
        Window::of(id, part.checked_ilog2().unwrap_or(0).clamp(SHORTEST, LONGEST))
    }

    fn of(id: &JobId, power: u32) -> Window {
        Window { power, number: id.first_due() >> power }
    }

    /// Returns the half of this window with the job's due time; `None` if there is no shorter window.
    pub fn half(self, id: &JobId) -> Option<Window> {
        (self.power > SHORTEST).then(|| Window::of(id, self.power - 1))
    }

    /// Whether the window has ended.
    pub fn is_past(self, now: Millis) -> bool {
        now >> self.power > self.number
    }
}

/// Returns the id with the mark, in the bucket with this number. `count` distinguishes the jobs of a bucket: 12 bits.
pub fn mark(id: JobId, window: Window, bucket: u16, count: u16) -> JobId {
    let mut bytes = id.to_bytes();
    bytes[6] = MARK | (window.power - SHORTEST) as u8; // at most 15
    bytes[7..9].copy_from_slice(&bucket.to_be_bytes());
    let [high, low] = (count & 0xfff).to_be_bytes();
    (bytes[10], bytes[11]) = (bytes[10] & 0xf0 | high, low);
    JobId::from_bytes(bytes, id.is_versioned())
}

/// Returns the name of the bucket of a job.
pub fn bucket(queue: &Queue, id: &JobId) -> String {
    let bytes = id.to_bytes();
    let window = Window::of(id, SHORTEST + u32::from(bytes[6] & !MARK));
    let [a, b, c] = [bytes[6], bytes[7], bytes[8]];
    format!("{}/{:x}-{a:02x}{b:02x}{c:02x}", group(queue), window.number)
}

/// Returns the prefix of the names of a queue's buckets.
pub fn bucket_prefix(queue: &Queue) -> String {
    format!("{}/", group(queue))
}

/// Returns the field of a job in its bucket.
pub fn field(id: &JobId) -> Field {
    let bytes = id.to_bytes();
    let mut field = [0; 13];
    field[..6].copy_from_slice(&bytes[..6]);
    field[6..].copy_from_slice(&bytes[9..]);
    field[0] |= if id.is_versioned() { 0x80 } else { 0 };
    field
}

/// Upper bound on the time between the due times of two jobs of a bucket.
pub const fn longest_window() -> Duration {
    Duration::from_millis((1 << LONGEST) + 2 * APART)
}

/// A packed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedJob {
    pub id: JobId,
    pub tries: u16,
    pub due: Micros,
    /// End of its ttl.
    pub ends: Option<Millis>,
    /// The value of its string once it is unpacked.
    pub value: Bytes,
}

impl PackedJob {
    /// Reads a field of a bucket. `None` if it is not a job of this bucket.
    pub fn read(bucket: &str, field: &[u8], value: &Bytes) -> Option<PackedJob> {
        let (_, three) = bucket.rsplit_once('-')?;
        let three = u32::from_str_radix(three, 16).ok()?.to_be_bytes();
        let field: Field = field.try_into().ok()?;
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&field[..6]);
        bytes[0] &= 0x7f;
        bytes[6..9].copy_from_slice(&three[1..]);
        bytes[9..].copy_from_slice(&field[6..]);
        let id = JobId::from_bytes(bytes, field[0] & 0x80 != 0);
        PackedJob::of(id, value)
    }

    /// Reads the value of the job with this id.
    pub fn of(id: JobId, value: &Bytes) -> Option<PackedJob> {
        let (head, rest) = value.split_first_chunk::<HEAD>()?;
        let [t0, t1, l0, l1, l2, l3, ends @ ..] = *head;
        let later = i64::from(i32::from_le_bytes([l0, l1, l2, l3]));
        let due = (id.first_due() * 1000).checked_add_signed(later)?;
        let [e0, e1, e2, e3, e4, e5] = ends;
        let left = u64::from_le_bytes([e0, e1, e2, e3, e4, e5, 0, 0]);
        Some(PackedJob {
            id,
            tries: u16::from_le_bytes([t0, t1]),
            due,
            ends: (left > 0).then_some(due / 1000 + left),
            value: value.slice_ref(rest),
        })
    }

    /// Returns Redis's PTTL of the job once it is unpacked; `None` if its ttl has ended.
    pub fn pttl(&self, now: Micros) -> Option<i64> {
        match self.ends {
            None => Some(-1),
            Some(ends) => ends.checked_sub(now / 1000).filter(|left| *left > 0).map(|left| left as i64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, QueueName};
    use proptest::prelude::*;

    fn queue() -> Queue {
        Queue {
            namespace: Namespace::parse("shop").expect("a name"),
            name: QueueName::parse("orders").expect("a name"),
        }
    }

    proptest! {
        #[test]
        fn a_job_is_found_in_the_bucket_that_its_id_names(
            at in 1u64..1 << 42, unique: u64, delay in 1u32..200_000_000, versioned: bool, halves in 0usize..20,
            number: u16, count: u16, tries: u16, later in -30_000_000i32..30_000_000, left in 0u64..1 << 48,
            value: Vec<u8>,
        ) {
            let id = JobId::from_parts(at, unique & ((1 << 47) - 1), delay, versioned);
            prop_assert!(!may_be_packed(&id));
            let longest = Window::longest(&id);
            let window = (0..halves).fold(longest, |window, _| window.half(&id).unwrap_or(window));
            let marked = mark(id, window, number, count);
            prop_assert!(may_be_packed(&marked));
            prop_assert_eq!((marked.first_due(), marked.is_versioned()), (id.first_due(), versioned));
            let name = bucket(&queue(), &marked);
            prop_assert!(name.starts_with(&bucket_prefix(&queue())), "{}", name);
            let mut stored = tries.to_le_bytes().to_vec();
            stored.extend(later.to_le_bytes());
            stored.extend(&left.to_le_bytes()[..6]);
            stored.extend(&value);
            let read = PackedJob::read(&name, &field(&marked), &stored.into()).expect("a packed job");
            let due = (id.first_due() * 1000).saturating_add_signed(later.into());
            let ends = (left > 0).then(|| due / 1000 + left);
            prop_assert_eq!(read, PackedJob { id: marked, tries, due, ends, value: value.into() });
        }

        #[test]
        fn garbage_is_no_job(bucket in ".{0,30}", field: Vec<u8>, value: Vec<u8>) {
            // Nothing panics.
            PackedJob::read(&bucket, &field, &value.into());
        }
    }

    #[test]
    fn windows_are_a_part_of_the_delay() {
        for (delay, longest) in [(1, 128), (600, 32_768), (86_400, 1 << 22), (100_000_000, 1 << 22)] {
            let id = JobId::from_parts(1_700_000_000_000, 1, delay, false);
            let window = Window::longest(&id);
            assert_eq!(1 << window.power, longest, "of a job due in {delay} s");
            assert!(!window.is_past(id.first_due()) && window.is_past(id.first_due() + longest));
        }
    }
}
