//! Which ready lists the watch is to arm. Plain data, and a wake-up.

use ahash::HashSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::name::Queue;

/// What is to be armed. Holds at most the queues that are waited for, and the lists that have just changed.
#[derive(Debug, Default)]
pub struct Watch {
    arm: Mutex<ToArm>,
    pub changed: Notify,
}

#[derive(Debug, Default)]
pub struct ToArm {
    /// All lists of these.
    pub queues: HashSet<Queue>,
    /// Single ones: of a queue with many lists only those that have changed.
    pub lists: HashSet<Vec<u8>>,
}

impl Watch {
    /// Arms all lists of these soon.
    pub fn arm(&self, queues: impl IntoIterator<Item = Queue>) {
        self.arm.lock().queues.extend(queues);
        self.changed.notify_one();
    }

    /// Arms this list soon.
    pub fn arm_list(&self, key: Vec<u8>) {
        self.arm.lock().lists.insert(key);
        self.changed.notify_one();
    }

    pub fn take(&self) -> ToArm {
        std::mem::take(&mut *self.arm.lock())
    }
}
