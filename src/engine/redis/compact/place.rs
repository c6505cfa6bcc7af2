//! Where a job lies, and how its id says so. An id of the compact layout has the form of lmstfy's: of the 48 bits that
//! tell ids of one millisecond apart, 24 are the bucket, 12 the partition, and 12 are counted up within the bucket.
//!
//! A *place* is what a partition knows a job by: the three bytes of its bucket, and its tail: six bytes of milliseconds,
//! two of the count with, in the lowest four bits, how many bytes of the delay follow (times two) and whether the id is
//! versioned; then the delay's bytes that are not zero. An id that names another partition than the one that it lies in
//! was made by another store: its partition and its whole delay follow then, and 5 says so.

use super::partitions::Partition;
use crate::clock::Millis;
use crate::job::JobId;

/// The bits of the count.
const COUNT: u64 = (1 << 12) - 1;
/// How many bits a bucket has, and how many bytes of a place it is.
pub const BUCKET_BITS: u32 = 24;
pub const BUCKET_BYTES: usize = 3;
/// In place of the length of a delay.
const FOREIGN: u8 = 5;

/// An id in this bucket.
pub fn id_in(
    at: Millis,
    partition: Partition,
    bucket: u32,
    count: u64,
    delay: u32,
    versioned: bool,
) -> JobId {
    let unique = u64::from(bucket) << 24 | u64::from(partition) << 12 | (count & COUNT);
    JobId::from_parts(at, unique, delay, versioned)
}

/// Where a job of this id lies in a partition.
pub fn place_of(partition: Partition, id: &JobId) -> Vec<u8> {
    let bytes = id.to_bytes();
    let (at, bucket, delay) = (&bytes[..6], &bytes[6..9], &bytes[12..]);
    let mixed = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]);
    let named = (mixed >> 12) as Partition;
    let used = 4 - delay.iter().rev().take_while(|b| **b == 0).count();
    let length = if named == partition { used as u8 } else { FOREIGN };
    let count = (mixed as u16 & COUNT as u16) << 4 | u16::from(length << 1) | u16::from(id.is_versioned());
    let mut place = Vec::with_capacity(17);
    place.extend(bucket);
    place.extend(at);
    place.extend(count.to_be_bytes());
    if length == FOREIGN {
        place.extend(named.to_be_bytes());
        place.extend(delay);
    } else {
        place.extend(&delay[..used]);
    }
    place
}

/// The id of a job that lies there; `None` when it is no place.
pub fn id_at(partition: Partition, place: &[u8]) -> Option<JobId> {
    let (bucket, rest) = place.split_first_chunk::<3>()?;
    let (at, rest) = rest.split_first_chunk::<6>()?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let count = u16::from_be_bytes(*count);
    let (versioned, length) = (count & 1 == 1, (count >> 1 & 7) as u8);
    let (named, delay) = match length {
        FOREIGN => {
            rest.split_first_chunk::<2>().map(|(named, delay)| (Partition::from_be_bytes(*named), delay))?
        }
        _ => (partition, rest),
    };
    if length != FOREIGN && usize::from(length) != delay.len() || delay.len() > 4 {
        return None;
    }
    let mixed = (u32::from(named) & COUNT as u32) << 12 | u32::from(count >> 4);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(at);
    bytes[6..9].copy_from_slice(bucket);
    bytes[9..12].copy_from_slice(&mixed.to_be_bytes()[1..]);
    bytes[12..12 + delay.len()].copy_from_slice(delay);
    Some(JobId::from_bytes(bytes, versioned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_of_the_partition_has_a_short_place() {
        let id = id_in(0x0102_0304_0506, 0xabc, 0x0011_2233, 0x456, 3600, false);
        let place = place_of(0xabc, &id);
        assert_eq!(place, [0x11, 0x22, 0x33, 1, 2, 3, 4, 5, 6, 0x45, 0x64, 0x10, 0x0e]);
        assert_eq!(id_at(0xabc, &place), Some(id));
        assert_eq!((id.published_at(), id.delay_seconds()), (0x0102_0304_0506, 3600));
        assert_eq!(place_of(0xabd, &id).len(), 17, "in another partition");
    }

    proptest! {
        #[test]
        fn a_place_says_which_job_it_is(bytes: [u8; 16], versioned: bool, partition in 0u16..4096) {
            let id = JobId::from_bytes(bytes, versioned);
            prop_assert_eq!(id_at(partition, &place_of(partition, &id)), Some(id));
        }

        #[test]
        fn other_bytes_are_no_panic(bytes: Vec<u8>, partition in 0u16..4096) {
            id_at(partition, &bytes);
        }
    }
}
