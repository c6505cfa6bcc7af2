//! The latest changes by operators on this server, with their authors. The log has all of them.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::clock::{Millis, system_now};

/// Number of changes kept.
const REMEMBERED: usize = 200;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorChange {
    pub at: Millis,
    /// An account, or an address.
    pub by: String,
    pub action: String,
    pub pool: String,
    /// A namespace, a queue, or the path of the request.
    pub of: String,
}

/// The latest changes.
#[derive(Debug, Default)]
pub struct Changes(Mutex<VecDeque<OperatorChange>>);

impl Changes {
    /// Records a change at this moment.
    pub fn add(&self, by: &str, action: &str, pool: &str, of: &str) {
        let [by, action, pool, of] = [by, action, pool, of].map(str::to_owned);
        let mut all = self.0.lock();
        all.push_front(OperatorChange { at: system_now(), by, action, pool, of });
        all.truncate(REMEMBERED);
    }

    /// Returns the recorded changes, newest first.
    pub fn list(&self) -> Vec<OperatorChange> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered() {
        let changes = Changes::default();
        for n in 0..REMEMBERED + 5 {
            changes.add("ann", "a queue was paused", "default", &format!("ns/q{n}"));
        }
        let all = changes.list();
        assert_eq!((all.len(), &*all[0].of), (REMEMBERED, &*format!("ns/q{}", REMEMBERED + 4)));
    }
}
