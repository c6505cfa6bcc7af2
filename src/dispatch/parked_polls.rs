//! Counts of parked polls, and the two limits on them that all pools share.

use ahash::HashMap;
use parking_lot::Mutex;

use super::request::ConsumeError;
use crate::name::Namespace;

/// Counts parked polls over all pools. Namespaces with the same name in different pools count as one.
#[derive(Debug)]
pub struct ParkedPolls {
    most: usize,
    most_of_namespace: usize,
    count: Mutex<Count>,
}

#[derive(Debug, Default)]
struct Count {
    polls: usize,
    places: usize,
    /// Slots in use by namespace; no entry for 0.
    by_namespace: HashMap<Namespace, usize>,
}

impl ParkedPolls {
    /// Limits parked polls to `most` slots in total and `most_of_namespace` per namespace. A poll is admitted while any
    /// slot is free, even if it uses more than that, so that a poll of any size can be admitted to an idle server.
    pub fn new(most: usize, most_of_namespace: usize) -> ParkedPolls {
        ParkedPolls { most, most_of_namespace, count: Mutex::default() }
    }

    /// Returns the number of parked polls.
    pub fn count(&self) -> usize {
        self.count.lock().polls
    }

    /// Returns the number of slots in use; see [`places`](super::request::places).
    pub fn places(&self) -> usize {
        self.count.lock().places
    }

    /// Admits one poll that uses `places` slots, or refuses it.
    pub(super) fn enter(&self, namespace: &Namespace, places: usize) -> Result<(), ConsumeError> {
        let mut count = self.count.lock();
        if count.places >= self.most {
            return Err(ConsumeError::TooMany(self.most));
        }
        match count.by_namespace.get_mut(namespace) {
            Some(of_namespace) if *of_namespace >= self.most_of_namespace => {
                return Err(ConsumeError::TooManyInNamespace(self.most_of_namespace));
            }
            Some(of_namespace) => *of_namespace += places,
            None => drop(count.by_namespace.insert(namespace.clone(), places)),
        }
        count.polls += 1;
        count.places += places;
        Ok(())
    }

    /// Releases the slots of a poll that was admitted with `places`.
    pub(super) fn leave(&self, namespace: &Namespace, places: usize) {
        let mut count = self.count.lock();
        count.polls -= 1;
        count.places -= places;
        if let Some(of_namespace) = count.by_namespace.get_mut(namespace) {
            *of_namespace -= places;
            if *of_namespace == 0 {
                count.by_namespace.remove(namespace);
            }
        }
    }
}
