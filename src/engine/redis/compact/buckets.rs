//! Which bucket a new job goes to. The server that makes an id chooses: jobs that become near at the same time share a
//! bucket until it is full. Other servers have other buckets. Forgetting one that is not full costs some bytes of the
//! Redis, and nothing else. Knows no connection.

use ahash::HashMap;
use parking_lot::Mutex;

use super::partitions::Partition;
use super::place::{BUCKET_BITS, id_in};
use crate::clock::Millis;
use crate::engine::NewId;
use crate::job::JobId;
use crate::random;

/// How many bytes of jobs a bucket takes: a Redis keeps it in one piece of memory of 8 KiB, and the next larger one has
/// 10. A few bytes are left for what is not known when an id is made: how long the number of its queue is.
const FULL: usize = 8_120;
/// How many jobs: beyond it a Redis would keep a bucket as a table (`hash-max-listpack-entries`).
const MOST_JOBS: usize = 120;
/// A body that is larger lies by itself.
pub const INLINE: usize = 1000;
/// What a job takes beside its body and the delay in its id: 10 bytes with the number of its queue, 15 of times and tries,
/// and 5 by which a Redis tells where each ends.
const BESIDE: usize = 30;
/// How many buckets are remembered.
const MOST_OPEN: usize = 65_536;
/// What is due sooner is near from the start.
const NEAR: Millis = 30_000;
/// The shortest window, and which part of the time until it begins a window may be.
const WINDOW: Millis = 60_000;
const PART: Millis = 16;

/// From when on a job is near that is due then: where its window begins. 0: at once. Windows of jobs far away are
/// longer, so that they fill buckets: between a thirtieth and a sixteenth of the way. Jobs of a window get their timers
/// when it begins.
pub fn near_from(now: Millis, due: Millis) -> Millis {
    let left = due.saturating_sub(now);
    if left < NEAR {
        return 0;
    }
    let windows = (left / PART / WINDOW).max(1);
    let length = WINDOW << windows.ilog2();
    due / length * length
}

/// The buckets that are being filled.
#[derive(Debug, Default)]
pub struct Buckets {
    /// By partition, and from when on they are near.
    open: Mutex<HashMap<(Partition, Millis), Open>>,
}

#[derive(Debug)]
struct Open {
    bucket: u32,
    bytes: usize,
    jobs: usize,
    count: u64,
}

impl Open {
    fn new() -> Open {
        let random = u64::from_be_bytes(random::bytes());
        let bucket = (random >> 12) as u32 & ((1 << BUCKET_BITS) - 1);
        Open { bucket, bytes: 0, jobs: 0, count: random }
    }
}

impl Buckets {
    /// An id for a job that is published now.
    pub fn make_id(&self, now: Millis, partition: Partition, of: &NewId<'_>) -> JobId {
        let from = near_from(now, now + of.delay.as_millis() as Millis);
        let delay = 4 - of.delay_seconds().leading_zeros() as usize / 8;
        let bytes = BESIDE + delay + if of.bytes > INLINE { 4 } else { of.bytes };
        let mut all = self.open.lock();
        if all.len() >= MOST_OPEN {
            all.retain(|(_, from), _| *from == 0 || *from > now);
            if all.len() >= MOST_OPEN {
                all.clear();
            }
        }
        let open = all.entry((partition, from)).or_insert_with(Open::new);
        if open.jobs == MOST_JOBS || open.jobs > 0 && open.bytes + bytes > FULL {
            *open = Open::new();
        }
        (open.bytes, open.jobs, open.count) = (open.bytes + bytes, open.jobs + 1, open.count + 1);
        id_in(now, partition, open.bucket, open.count, of.delay_seconds(), of.versioned)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::time::Duration;

    use super::*;
    use crate::engine::Beside;
    use crate::name::{Namespace, Queue, QueueName};

    #[test]
    fn windows_begin_before_what_is_due_in_them_and_are_a_part_of_the_way() {
        let now = 1_700_000_000_000;
        for left in [0, 29_999, 30_000, 60_000, 3_600_000, 86_400_000, 366 * 86_400_000] {
            let from = near_from(now, now + left);
            assert_eq!(from == 0, left < NEAR, "due in {left}");
            if from > 0 {
                let early = now + left - from;
                assert!(early < WINDOW.max(left / PART), "due in {left}, near {early} before");
            }
        }
    }

    #[test]
    fn jobs_share_a_bucket_until_it_is_full() {
        let queue = Queue {
            namespace: Namespace::parse("ns").expect("a name"),
            name: QueueName::parse("q").expect("a name"),
        };
        let buckets = Buckets::default();
        let (mut seen, mut ids) = (HashMap::<[u8; 3], usize>::new(), HashSet::new());
        for _ in 0..1000 {
            let of = NewId {
                queue: &queue,
                delay: Duration::from_secs(7200),
                bytes: 100,
                versioned: false,
                beside: Beside::Nobody,
            };
            let id = buckets.make_id(1_700_000_000_000, 5, &of);
            assert!(ids.insert(id), "{id} was made before");
            let bytes = id.to_bytes();
            *seen.entry([bytes[6], bytes[7], bytes[8]]).or_default() += 1;
        }
        assert!(seen.values().all(|jobs| *jobs <= FULL / 132), "{seen:?}");
        assert!(seen.len() <= 1000 / (FULL / 132) + 1, "{} buckets", seen.len());
    }
}
