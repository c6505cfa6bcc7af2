//! The keys of a pool of jobs, and the packed elements and members in them. Nothing else in Rust makes them (the
//! scripts append ids to the prefixes made here, and the pump and consume scripts pack elements and members). All
//! but those that begin with `dormouse/` are lmstfy's: both kinds of server read and write these bytes at the same
//! time, so they never change. Knows no connection. (Keys of tokens and limits are made in admin/redis.rs.)

use crate::job::JobId;
use crate::name::{Namespace, Queue};

/// The one sorted set of a database: delayed and running jobs of all queues.
pub const TIMER_SET: &str = "timer_set";
/// Hash of known namespaces.
pub const NAMESPACES: &str = "m/ns";
/// Set of the queues, as `namespace/queue`, whose ready list is set aside.
pub const DROPPED: &str = "dormouse/dropped";
/// A key that nobody makes: the empty write of a health check goes there and leaves nothing.
pub const CHECK: &str = "dormouse/check";

/// A job's value.
pub fn job(queue: &Queue, id: &JobId) -> String {
    format!("j/{}/{}/{id}", queue.namespace, queue.name)
}

/// What the keys of a queue's jobs begin with: scripts put the id behind it. Never a key by itself.
pub fn job_prefix(queue: &Queue) -> String {
    format!("j/{}/{}/", queue.namespace, queue.name)
}

/// The list of ready jobs: the newest at the left, the oldest at the right.
pub fn ready(queue: &Queue) -> String {
    format!("q/{}/{}", queue.namespace, queue.name)
}

/// The dead letter, in the same order.
pub fn dead(queue: &Queue) -> String {
    format!("d/{}/{}", queue.namespace, queue.name)
}

/// Where a list stands aside while its jobs are deleted in steps. Not lmstfy's, and not in its way.
pub fn set_aside(queue: &Queue) -> String {
    format!("dormouse/dropped/{}/{}", queue.namespace, queue.name)
}

/// `namespace/queue`, for sets of queues.
pub fn group(queue: &Queue) -> String {
    format!("{}/{}", queue.namespace, queue.name)
}

/// Hash of the known queues of a namespace.
pub fn queues_of(namespace: &Namespace) -> String {
    format!("{NAMESPACES}/{namespace}")
}

/// The queue that a ready list's key names, when it is one.
pub fn queue_of_ready(key: &[u8]) -> Option<Queue> {
    queue_of_group(key.strip_prefix(b"q/")?)
}

/// The queue that `namespace/queue` names, when it is one.
pub fn queue_of_group(group: &[u8]) -> Option<Queue> {
    use crate::name::QueueName;
    let (namespace, name) = std::str::from_utf8(group).ok()?.split_once('/')?;
    Some(Queue {
        namespace: Namespace::parse(namespace).ok()?,
        name: QueueName::parse_for_consume(name).ok()?,
    })
}

/// An element of a ready list or a dead letter: `struct.pack("<HHc0", tries, #id, id)`.
pub fn element(tries: u16, id: &JobId) -> Vec<u8> {
    let id = id.to_string();
    let mut bytes = Vec::with_capacity(4 + id.len());
    bytes.extend(tries.to_le_bytes());
    text(&mut bytes, &id);
    bytes
}

/// The id in an element, when it is one that a server has given out.
pub fn id_of_element(element: &[u8]) -> Option<JobId> {
    let (length, id) = element.get(2..)?.split_at_checked(2)?;
    (usize::from(u16::from_le_bytes(length.try_into().ok()?)) == id.len()).then(|| job_id(id))?
}

/// An id as stored.
pub fn job_id(id: &[u8]) -> Option<JobId> {
    JobId::parse(std::str::from_utf8(id).ok()?)
}

/// What the timer members of a queue begin with. Scripts put tries and id behind it.
pub fn member_prefix(queue: &Queue) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    text(&mut bytes, queue.namespace.as_str());
    text(&mut bytes, queue.name.as_str());
    bytes
}

/// A member of the timer set: `struct.pack("<Hc0Hc0HHc0", #ns, ns, #queue, queue, tries, #id, id)`.
pub fn member(queue: &Queue, tries: u16, id: &JobId) -> Vec<u8> {
    let mut bytes = member_prefix(queue);
    bytes.extend(element(tries, id));
    bytes
}

/// A length and what is that long. Names have at most 255 bytes and ids 27.
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

    proptest! {
        #[test]
        fn a_member_says_what_it_was_made_of(
            ns in "[-_A-Za-z0-9]{1,255}", q in "[-_A-Za-z0-9]{1,255}", tries: u16,
            bytes: [u8; 16], versioned: bool,
        ) {
            let id = JobId::from_bytes(bytes, versioned);
            let read = unpack(&member(&queue(&ns, &q), tries, &id));
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
            prop_assert_eq!(queue_of_ready(ready(&queue).as_bytes()), Some(queue));
        }

        #[test]
        fn other_keys_name_none(key in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(queue) = queue_of_ready(&key) {
                prop_assert_eq!(ready(&queue).into_bytes(), key);
            }
        }
    }
}
