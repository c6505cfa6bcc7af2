//! Sorted names of the queues that lists show, and their number per namespace.

use std::collections::BTreeSet;
use std::ops::Bound;

use ahash::HashMap;

use crate::name::{Namespace, Queue};

#[derive(Debug, Default)]
pub struct Names {
    all: BTreeSet<Queue>,
    of_namespace: HashMap<Namespace, u64>,
}

impl Names {
    pub fn add(&mut self, queue: &Queue) {
        if self.all.insert(queue.clone()) {
            *self.of_namespace.entry(queue.namespace.clone()).or_default() += 1;
        }
    }

    pub fn remove(&mut self, queue: &Queue) {
        if self.all.remove(queue)
            && let Some(count) = self.of_namespace.get_mut(&queue.namespace)
        {
            *count -= 1; // it was counted when its name came
            if *count == 0 {
                self.of_namespace.remove(&queue.namespace);
            }
        }
    }

    /// Returns the number of queues in the namespace.
    pub fn of_namespace(&self, namespace: &Namespace) -> u64 {
        self.of_namespace.get(namespace).copied().unwrap_or(0)
    }

    /// Returns the names from `from` on.
    pub fn from(&self, from: Bound<&Queue>) -> impl Iterator<Item = &Queue> {
        self.all.range::<Queue, _>((from, Bound::Unbounded))
    }
}
