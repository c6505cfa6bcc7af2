//! Which bucket a new job that may be packed goes to. Each server fills buckets of its own: jobs of a queue and
//! partition that are due at about the same time share one until it is full. A window whose buckets are full is halved,
//! so that few buckets contain any one instant, and lists in order of due time read few. Forgetting a bucket costs
//! memory of the Redis, and nothing else. Uses no connection.

use ahash::HashMap;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::cluster::map::Partition;
use super::layout::keys::group;
use super::layout::packed::{Window, mark};
use crate::job::JobId;
use crate::name::Queue;
use crate::random;

/// Jobs of a bucket. With bodies of 100 bytes it then almost fills 8 KiB, the size in which Redis allocates it.
const JOBS: u16 = 62;
/// Buckets of a window before it is halved.
const BUCKETS: u8 = 4;
/// Maximum number of remembered windows.
const MOST_OPEN: usize = 65_536;

/// The buckets that this server fills.
#[derive(Debug, Default)]
pub struct Buckets {
    open: Mutex<HashMap<(Partition, u64, Window), Open>>,
}

/// The newest bucket of a window.
#[derive(Debug)]
struct Open {
    bucket: u16,
    jobs: u16,
    /// Counts the window's jobs, from a random start: other servers may have the same bucket.
    count: u16,
    buckets: u8,
}

impl Open {
    fn new() -> Open {
        Open {
            bucket: u16::from_le_bytes(random::bytes()),
            jobs: 0,
            count: u16::from_le_bytes(random::bytes()),
            buckets: 1,
        }
    }

    /// Returns whether the window takes a job, in the same or a new bucket.
    fn has_room(&mut self, can_be_halved: bool) -> bool {
        if self.jobs < JOBS {
            return true;
        }
        if self.buckets == BUCKETS && can_be_halved {
            return false;
        }
        self.buckets = (self.buckets + 1).min(BUCKETS);
        (self.bucket, self.jobs) = (self.bucket.wrapping_add(1), 0);
        true
    }
}

impl Buckets {
    /// Returns a new job's id with its bucket in it.
    pub fn mark(&self, id: JobId, partition: Partition, queue: &Queue) -> JobId {
        let queue = xxh3_64(group(queue).as_bytes()); // two queues with the same hash just fill fewer buckets
        let mut all = self.open.lock();
        if all.len() >= MOST_OPEN {
            all.retain(|(.., window), _| !window.is_past(id.published_at()));
            if all.len() >= MOST_OPEN {
                all.clear();
            }
        }
        let mut window = Window::longest(&id);
        loop {
            let half = window.half(&id);
            let open = all.entry((partition, queue, window)).or_insert_with(Open::new);
            if open.has_room(half.is_some()) {
                (open.jobs, open.count) = (open.jobs + 1, open.count.wrapping_add(1));
                return mark(id, window, open.bucket, open.count);
            }
            window = half.unwrap_or(window);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::engine::redis::layout::packed::bucket;
    use crate::name::{Namespace, QueueName};

    #[test]
    fn jobs_share_buckets_and_windows_are_halved() {
        let queue = Queue {
            namespace: Namespace::parse("ns").expect("a name"),
            name: QueueName::parse("q").expect("a name"),
        };
        let (buckets, mut ids, mut filled) =
            (Buckets::default(), HashSet::new(), HashMap::<String, u16>::new());
        for n in 0..10_000_u64 {
            // 7 a second, for 24 minutes.
            let id = JobId::from_parts(1_700_000_000_000 + 1000 * (n / 7), n, 86_400, false);
            let id = buckets.mark(id, 3, &queue);
            assert!(ids.insert(id), "{id} was made before");
            *filled.entry(bucket(&queue, &id)).or_default() += 1;
        }
        assert!(filled.values().all(|jobs| *jobs <= JOBS), "{filled:?}");
        let average = 10_000 / filled.len();
        assert!(average > 45, "{average} jobs in a bucket, of up to {JOBS}");
        // How many buckets have jobs of one second.
        let second = |id: &&JobId| id.first_due() / 1000 == 1_700_086_400 + 700;
        let at_once: HashSet<String> = ids.iter().filter(second).map(|id| bucket(&queue, id)).collect();
        assert!(at_once.len() <= 7, "{at_once:?}");
        let mut overlapping = HashMap::<String, (u64, u64)>::new();
        for id in &ids {
            let (from, to) = overlapping.entry(bucket(&queue, id)).or_insert((u64::MAX, 0));
            (*from, *to) = ((*from).min(id.first_due()), (*to).max(id.first_due()));
        }
        let at = 1_700_087_100_000;
        let around = overlapping.values().filter(|(from, to)| *from <= at && at <= *to).count();
        assert!(around < 40, "{around} buckets have jobs due before and after one instant");
    }
}
