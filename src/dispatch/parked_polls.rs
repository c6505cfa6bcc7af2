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
    count: Mutex<NamespacePolls>,
}

#[derive(Debug, Default)]
struct NamespacePolls {
    all: usize,
    /// Only those that have some.
    by_namespace: HashMap<Namespace, usize>,
}

impl ParkedPolls {
    /// Lets `most` polls be parked at a time, `most_of_namespace` of one namespace.
    pub fn new(most: usize, most_of_namespace: usize) -> ParkedPolls {
        ParkedPolls { most, most_of_namespace, count: Mutex::default() }
    }

    pub fn count(&self) -> usize {
        self.count.lock().all
    }

    /// Counts one more, or refuses it.
    pub(super) fn enter(&self, namespace: &Namespace) -> Result<(), ConsumeError> {
        let mut count = self.count.lock();
        if count.all >= self.most {
            return Err(ConsumeError::TooMany(self.most));
        }
        match count.by_namespace.get_mut(namespace) {
            Some(polls) if *polls >= self.most_of_namespace => {
                return Err(ConsumeError::TooManyInNamespace(self.most_of_namespace));
            }
            Some(polls) => *polls += 1,
            None => drop(count.by_namespace.insert(namespace.clone(), 1)),
        }
        count.all += 1;
        Ok(())
    }

    /// One that entered is parked no more.
    pub(super) fn leave(&self, namespace: &Namespace) {
        let mut count = self.count.lock();
        count.all -= 1;
        if let Some(polls) = count.by_namespace.get_mut(namespace) {
            *polls -= 1;
            if *polls == 0 {
                count.by_namespace.remove(namespace);
            }
        }
    }
}
