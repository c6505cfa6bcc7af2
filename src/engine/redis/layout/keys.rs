//! The keys of a pool's jobs, and the packed elements and members stored under them. No other Rust code makes them.
//! (Scripts append ids to the prefixes made here, and scripts that move or find jobs also pack elements and members.)
//! All keys except those under `dormouse/` are lmstfy's: lmstfy's servers may read and write them at the same time, so
//! their format never changes. Independent of connections. (Keys of tokens and limits are made in admin/redis.rs.)

use std::sync::Arc;

use crate::clock::Micros;
use crate::job::JobId;
use crate::name::{IdempotencyKey, JobKey, Namespace, Queue};

/// Prefix of the keys of jobs, after the base of their partition. A macro, since the text of scripts needs a literal.
macro_rules! job_prefix {
    () => {
        "j/"
    };
}
pub(super) use job_prefix;

/// A key that never exists: the empty write of a health check uses it and leaves nothing.
pub const CHECK: &str = "dormouse/check";

/// Fields of the hash of numbers of timers: when the last recount began, and when it last saw work of an lmstfy server.
pub const COUNTED: &str = "counted";
pub const SEEN_LMSTFY: &str = "lmstfy";

/// The keys of one partition. All of them begin with its base, which is empty on a single Redis.
#[derive(Clone, Debug)]
pub struct Keys {
    base: Arc<str>,
    /// Sorted set of delayed and running jobs of all queues.
    pub timer_set: String,
    /// Hash of known namespaces.
    pub namespaces: String,
    /// Set of the queues, as `namespace/queue`, whose ready list is set aside.
    pub dropped: String,
    /// Hash of the quotas of namespaces, and their usage.
    pub used: String,
    /// Lease of the server that recounts usage.
    pub used_turn: String,
    /// Hash of the numbers of delayed and running jobs.
    pub timer_counts: String,
    /// Lease of the server that recounts timers.
    pub timer_counts_turn: String,
    /// List of the jobs that have details, as `namespace/queue/id`: the one examined longest ago is at the right.
    pub with_details: String,
    /// Which server pumps the partition, in a cluster.
    pub pump_lease: String,
    /// Sorted set of the buckets of packed jobs.
    pub buckets: String,
}

/// The keys of a single Redis: lmstfy's, byte for byte.
impl Default for Keys {
    fn default() -> Keys {
        Keys::new("")
    }
}

impl Keys {
    pub fn new(base: &str) -> Keys {
        let key = |name: &str| format!("{base}{name}");
        Keys {
            timer_set: key("timer_set"),
            namespaces: key("m/ns"),
            dropped: key("dormouse/dropped"),
            used: key("dormouse/used"),
            used_turn: key("dormouse/used/turn"),
            timer_counts: key("dormouse/timers"),
            timer_counts_turn: key("dormouse/timers/turn"),
            with_details: key("dormouse/details"),
            pump_lease: key("dormouse/pump"),
            buckets: key("dormouse/packed"),
            base: base.into(),
        }
    }

    pub fn base(&self) -> &Arc<str> {
        &self.base
    }

    /// Returns the keys of pauses, schedules and quotas in versions before the first release. All are settings now.
    pub fn before_settings(&self) -> [String; 3] {
        ["paused", "due", "quotas"].map(|name| format!("{}dormouse/{name}", self.base))
    }

    /// Returns the partition's guard, a key that is never written.
    pub fn guard(&self) -> String {
        guard_of(&self.base)
    }

    pub fn job(&self, queue: &Queue, id: &JobId) -> String {
        format!("{}{}{}/{}/{id}", self.base, job_prefix!(), queue.namespace, queue.name)
    }

    /// Returns the queue and the id of a job's key.
    pub fn queue_and_id(&self, key: &[u8]) -> Option<(Queue, JobId)> {
        let rest = key.strip_prefix(self.base.as_bytes())?.strip_prefix(job_prefix!().as_bytes())?;
        let slash = rest.iter().rposition(|byte| *byte == b'/')?;
        Some((queue_of_group(&rest[..slash])?, job_id(&rest[slash + 1..])?))
    }

    /// Returns the prefix of the keys of a queue's jobs: scripts append the id. Never a key by itself.
    pub fn job_prefix(&self, queue: &Queue) -> String {
        format!("{}{}{}/{}/", self.base, job_prefix!(), queue.namespace, queue.name)
    }

    /// Returns the key of the list of ready jobs: newest at the left, oldest at the right.
    pub fn ready(&self, queue: &Queue) -> String {
        ready_of(&self.base, queue)
    }

    /// Returns the key of the dead letter, in the same order.
    pub fn dead(&self, queue: &Queue) -> String {
        format!("{}d/{}/{}", self.base, queue.namespace, queue.name)
    }

    /// Returns the key of a list set aside while its jobs are deleted in steps. lmstfy does not use it.
    pub fn set_aside(&self, queue: &Queue) -> String {
        format!("{}/{}/{}", self.dropped, queue.namespace, queue.name)
    }

    /// Returns the key of a job's details: the job key, a worker's reason.
    pub fn details(&self, queue: &Queue, id: &JobId) -> String {
        format!("{}/{}/{}/{id}", self.with_details, queue.namespace, queue.name)
    }

    /// Returns the key that stores the id of the job that holds a job key.
    pub fn job_key(&self, queue: &Queue, key: &JobKey) -> String {
        format!("{}dormouse/key/{}/{}/{key}", self.base, queue.namespace, queue.name)
    }

    /// Returns the key of the record of a publish with an idempotency key.
    pub fn once(&self, queue: &Queue, key: &IdempotencyKey) -> Vec<u8> {
        let mut bytes =
            format!("{}dormouse/once/{}/{}/", self.base, queue.namespace, queue.name).into_bytes();
        bytes.extend(key.as_bytes());
        bytes
    }

    /// Returns the key of a bucket of packed jobs.
    pub fn bucket(&self, name: &str) -> String {
        format!("{}/{name}", self.buckets)
    }

    /// Sorted set of the queues in [`queues_of`](Keys::queues_of), all with the score 0: in the order of their names.
    pub fn index_of(&self, namespace: &Namespace) -> String {
        format!("{}dormouse/queues/{namespace}", self.base)
    }

    /// Returns the key of the hash of a namespace's known queues.
    pub fn queues_of(&self, namespace: &Namespace) -> String {
        format!("{}/{namespace}", self.namespaces)
    }
}

/// Returns the guard of the partition with this base: a key that is never written. A node that migrates the partition's
/// slot rejects each call that names it.
pub fn guard_of(base: &str) -> String {
    format!("{base}!")
}

/// Returns the key written after each call in this partition, if the pool waits for replicas. See waits.rs.
pub fn waited_of(base: &str) -> String {
    format!("{base}dormouse/waited")
}

/// Returns the key of a queue's list of ready jobs in the partition with this base.
pub fn ready_of(base: &str, queue: &Queue) -> String {
    format!("{base}q/{}/{}", queue.namespace, queue.name)
}

/// Returns the queue of a ready list, given its key without the base. `None` for other keys.
pub fn queue_of_ready(rest: &[u8]) -> Option<Queue> {
    queue_of_group(rest.strip_prefix(b"q/")?)
}

/// Returns `namespace/queue`, for sets of queues.
pub fn group(queue: &Queue) -> String {
    format!("{}/{}", queue.namespace, queue.name)
}

/// Parses `namespace/queue`.
pub fn queue_of_group(group: &[u8]) -> Option<Queue> {
    use crate::name::QueueName;
    let (namespace, name) = std::str::from_utf8(group).ok()?.split_once('/')?;
    Some(Queue {
        namespace: Namespace::parse(namespace).ok()?,
        name: QueueName::parse_for_consume(name).ok()?,
    })
}

/// Returns the fields with the numbers of a queue's delayed and running jobs.
pub fn count_fields(queue: &Queue) -> [String; 2] {
    ["d", "r"].map(|kind| format!("{kind}/{}/{}", queue.namespace, queue.name))
}

/// Returns the queue of such a field, and whether it is for running jobs.
pub fn queue_of_count_field(field: &[u8]) -> Option<(Queue, bool)> {
    let (kind, group) = field.split_at_checked(2)?;
    let runs = match kind {
        b"d/" => false,
        b"r/" => true,
        _ => return None,
    };
    Some((queue_of_group(group)?, runs))
}

/// Returns the queue of a timer's member, and the rest of the member: tries and id.
pub fn queue_of_member(member: &[u8]) -> Option<(Queue, &[u8])> {
    use crate::name::QueueName;
    let (namespace, rest) = split_text(member)?;
    let (name, rest) = split_text(rest)?;
    let queue = Queue {
        namespace: Namespace::parse(namespace).ok()?,
        name: QueueName::parse_for_consume(name).ok()?,
    };
    Some((queue, rest))
}

/// Splits off a string that [`text`] has appended.
fn split_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

/// Returns an element of a ready list or a dead letter: `struct.pack("<HHc0", tries, #id, id)`.
pub fn element(tries: u16, id: &JobId) -> Vec<u8> {
    let id = id.to_string();
    let mut bytes = Vec::with_capacity(4 + id.len());
    bytes.extend(tries.to_le_bytes());
    text(&mut bytes, &id);
    bytes
}

/// Returns the id in an element, if it is valid.
pub fn id_of_element(element: &[u8]) -> Option<JobId> {
    let (length, id) = element.get(2..)?.split_at_checked(2)?;
    (usize::from(u16::from_le_bytes(length.try_into().ok()?)) == id.len()).then(|| job_id(id))?
}

/// Returns the tries in an element, or in a member after its [`member_prefix`].
pub fn tries_of_element(element: &[u8]) -> Option<u16> {
    element.first_chunk().map(|tries| u16::from_le_bytes(*tries))
}

/// Returns when a timer's job is due, given its score, and whether the job is running. Our servers write even
/// microseconds for delayed jobs and odd ones for running jobs (lua/details.lua). lmstfy writes whole seconds for both;
/// a score at most a second after the first due time in the id is that of a delayed job.
pub fn due_of_score(score: f64, id: &JobId) -> (Micros, bool) {
    let second = score.floor();
    let part = (score - second) * 1e6;
    let second = second as Micros * 1_000_000;
    if part == 0.0 {
        let first_due = id.published_at() / 1000 + u64::from(id.delay_seconds());
        let delayed = id.delay_seconds() > 0 && second / 1_000_000 <= first_due + 1;
        return (second, !delayed);
    }
    // Our whole seconds are written half a microsecond later (lua/clock.lua).
    let part = if part < 0.75 { 0 } else { part.round() as Micros };
    (second + part, part % 2 == 1)
}

/// Parses a stored id.
pub fn job_id(id: &[u8]) -> Option<JobId> {
    JobId::parse(std::str::from_utf8(id).ok()?)
}

/// Returns the prefix of a namespace's timer members.
pub fn namespace_prefix(namespace: &Namespace) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    text(&mut bytes, namespace.as_str());
    bytes
}

/// Returns the prefix of a queue's timer members. Scripts append tries and id.
pub fn member_prefix(queue: &Queue) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    text(&mut bytes, queue.namespace.as_str());
    text(&mut bytes, queue.name.as_str());
    bytes
}

/// Returns a member of the timer set: `struct.pack("<Hc0Hc0HHc0", #ns, ns, #queue, queue, tries, #id, id)`.
pub fn member(queue: &Queue, tries: u16, id: &JobId) -> Vec<u8> {
    let mut bytes = member_prefix(queue);
    bytes.extend(element(tries, id));
    bytes
}

/// Appends a string and its length. Names have at most 255 bytes, ids 27.
fn text(bytes: &mut Vec<u8>, s: &str) {
    bytes.extend((s.len() as u16).to_le_bytes());
    bytes.extend(s.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::QueueName;
    use proptest::prelude::*;

    fn queue(namespace: &str, name: &str) -> Queue {
        Queue {
            namespace: Namespace::parse(namespace).expect("the strategy makes names"),
            name: QueueName::parse_for_consume(name).expect("the strategy makes names"),
        }
    }

    #[test]
    fn members_and_elements_are_packed_as_lmstfy_packs_them() {
        let id = JobId::parse("01AAAAAAAAAAAAAAAAAAAAAAAA").expect("a plain ULID");
        assert_eq!(
            element(258, &id),
            b"\x02\x01\x1a\x0001AAAAAAAAAAAAAAAAAAAAAAAA",
            "tries and length in little-endian, then the id"
        );
        assert_eq!(
            member(&queue("shop", "orders"), 1, &id),
            b"\x04\x00shop\x06\x00orders\x01\x00\x1a\x0001AAAAAAAAAAAAAAAAAAAAAAAA",
            "both names with their lengths, then tries, length and id"
        );
    }

    /// Reads a member as lmstfy's `struct.unpack("Hc0Hc0HHc0", …)` does.
    fn unpack(mut bytes: &[u8]) -> (String, String, u16, String) {
        let number = |bytes: &mut &[u8]| {
            let (two, rest) = bytes.split_at(2);
            *bytes = rest;
            u16::from_le_bytes([two[0], two[1]])
        };
        let mut words = Vec::new();
        let mut tries = 0;
        for i in 0..3 {
            if i == 2 {
                tries = number(&mut bytes);
            }
            let length = number(&mut bytes);
            let (word, rest) = bytes.split_at(length.into());
            words.push(String::from_utf8(word.into()).expect("names and ids are ASCII"));
            bytes = rest;
        }
        assert!(bytes.is_empty(), "bytes behind the id: {bytes:?}");
        (words.remove(0), words.remove(0), tries, words.remove(0))
    }

    #[test]
    fn a_score_tells_delayed_from_running() {
        let id = |delay| JobId::from_parts(1_700_000_000_500, 1, delay, false);
        for (score, delay, expected) in [
            (1_700_000_000.0000005, 0, (1_700_000_000_000_000, false)),
            (1_700_000_000.000001, 0, (1_700_000_000_000_001, true)),
            (1_700_000_000.999998, 0, (1_700_000_000_999_998, false)),
            (1_700_000_000.999999, 0, (1_700_000_000_999_999, true)),
            (4_294_967_000.0000005, 0, (4_294_967_000_000_000, false)),
            (4_294_967_000.000003, 0, (4_294_967_000_000_003, true)),
            (1_700_000_007.0, 7, (1_700_000_007_000_000, false)),
            (1_700_000_017.0, 7, (1_700_000_017_000_000, true)),
            (1_700_000_001.0, 0, (1_700_000_001_000_000, true)),
        ] {
            assert_eq!(due_of_score(score, &id(delay)), expected, "score {score}, delay {delay}");
        }
    }

    proptest! {
        #[test]
        fn a_member_says_what_it_was_made_of(
            ns in "[-_A-Za-z0-9]{1,255}", q in "[-_A-Za-z0-9]{1,255}", tries: u16,
            bytes: [u8; 16], versioned: bool,
        ) {
            let id = JobId::from_bytes(bytes, versioned);
            let member = member(&queue(&ns, &q), tries, &id);
            let split = queue_of_member(&member);
            prop_assert_eq!(split, Some((queue(&ns, &q), &element(tries, &id)[..])), "and whose it is");
            let job = Keys::new("b{x}").job(&queue(&ns, &q), &id);
            let of_key = Keys::new("b{x}").queue_and_id(job.as_bytes());
            prop_assert_eq!(of_key, Some((queue(&ns, &q), id)), "as does its job's key");
            let read = unpack(&member);
            prop_assert_eq!(read, (ns, q, tries, id.to_string()));
        }

        #[test]
        fn an_element_gives_back_its_id_and_garbage_gives_none(
            tries: u16, bytes: [u8; 16], versioned: bool, cut in 0usize..31,
        ) {
            let id = JobId::from_bytes(bytes, versioned);
            let packed = element(tries, &id);
            prop_assert_eq!(id_of_element(&packed), Some(id));
            let cut = cut.min(packed.len() - 1);
            prop_assert_eq!(id_of_element(&packed[..cut]), None, "cut short at {}", cut);
        }

        #[test]
        fn a_ready_key_names_its_queue(ns in "[-_A-Za-z0-9]{1,255}", q in "[-_A-Za-z0-9]{1,255}") {
            let queue = queue(&ns, &q);
            prop_assert_eq!(queue_of_ready(Keys::default().ready(&queue).as_bytes()), Some(queue));
        }

        #[test]
        fn other_keys_name_none(key in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(queue) = queue_of_ready(&key) {
                prop_assert_eq!(Keys::default().ready(&queue).into_bytes(), key);
            }
        }
    }
}
