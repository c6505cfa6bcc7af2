//! How many consumers wait in long polls: the two bounds that all pools' dispatchers share.

use ahash::HashMap;
use parking_lot::Mutex;

use super::request::ConsumeError;
use crate::name::Namespace;

/// Counts parked polls, over all pools. Namespaces of the same name in several pools count as one.
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
    /// The places of each namespace that has some.
    by_namespace: HashMap<Namespace, usize>,
}

impl ParkedPolls {
    /// Lets polls be parked at a time that count `most` together, those of one namespace `most_of_namespace`. The last one
    /// that is let in may count more than what was left: so a poll of any list fits in where there is nobody else.
    pub fn new(most: usize, most_of_namespace: usize) -> ParkedPolls {
        ParkedPolls { most, most_of_namespace, count: Mutex::default() }
    }

    /// How many polls are parked.
    pub fn count(&self) -> usize {
        self.count.lock().polls
    }

    /// How many places they take: each as many as it counts.
    pub fn places(&self) -> usize {
        self.count.lock().places
    }

    /// Counts one more, which takes so many places, or refuses it.
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

    /// One that entered with so many is parked no more.
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
