//! Ready lists that the watch must arm. Plain data and a wake-up.

use ahash::HashSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::name::Queue;

/// Queues and lists to arm: at most the queues with waiters, and the lists that have just changed.
#[derive(Debug, Default)]
pub struct Watch {
    arm: Mutex<ToArm>,
    pub changed: Notify,
}

#[derive(Debug, Default)]
pub struct ToArm {
    /// Queues whose lists must all be armed.
    pub queues: HashSet<Queue>,
    /// Single lists: the changed ones of a queue with many lists.
    pub lists: HashSet<Vec<u8>>,
}

impl Watch {
    /// Requests arming of all lists of these queues.
    pub fn arm(&self, queues: impl IntoIterator<Item = Queue>) {
        self.arm.lock().queues.extend(queues);
        self.changed.notify_one();
    }

    /// Requests arming of this list.
    pub fn arm_list(&self, key: Vec<u8>) {
        self.arm.lock().lists.insert(key);
        self.changed.notify_one();
    }

    pub fn take(&self) -> ToArm {
        std::mem::take(&mut *self.arm.lock())
    }
}
