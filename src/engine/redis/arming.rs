//! Which ready lists the watch is to arm. Plain data, and a wake-up.

use ahash::HashSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::name::Queue;

/// Queues that are to be armed. Holds at most those that are waited for and those that have just changed.
#[derive(Debug, Default)]
pub struct Watch {
    arm: Mutex<HashSet<Queue>>,
    pub changed: Notify,
}

impl Watch {
    /// Arms these soon.
    pub fn arm(&self, queues: impl IntoIterator<Item = Queue>) {
        self.arm.lock().extend(queues);
        self.changed.notify_one();
    }

    pub fn take(&self) -> Vec<Queue> {
        std::mem::take(&mut *self.arm.lock()).into_iter().collect()
    }
}
