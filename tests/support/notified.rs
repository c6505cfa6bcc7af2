//! A notifier that records its notifications, in place of a dispatcher with waiters.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use dormouse::engine::Engine;
use dormouse::engine::notifier::Notifier;
use dormouse::name::Queue;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Waits for some queues.
#[derive(Debug, Default)]
pub struct Notified {
    waits_for: Vec<Queue>,
    /// Queues notified since the last call.
    pub told: Mutex<BTreeSet<Queue>>,
    more: Notify,
    earlier: Notify,
}

impl Notified {
    /// Returns a notifier attached to `engine`, which watches these queues from now on.
    pub fn attach(engine: &dyn Engine, queues: &[Queue]) -> Arc<Notified> {
        let notified = Arc::new(Notified { waits_for: queues.to_vec(), ..Notified::default() });
        let weak: Weak<Notified> = Arc::downgrade(&notified);
        engine.attach(weak);
        queues.iter().for_each(|queue| engine.watch(queue));
        notified
    }

    /// Waits for a notification, and returns all queues notified since the last call.
    pub async fn next(&self) -> BTreeSet<Queue> {
        loop {
            let told = std::mem::take(&mut *self.told.lock());
            if !told.is_empty() {
                return told;
            }
            self.more.notified().await;
        }
    }

    /// Waits for a notification that the pump must run earlier.
    pub async fn due_earlier(&self) {
        self.earlier.notified().await;
    }
}

impl Notifier for Notified {
    fn notify(&self, queue: &Queue) {
        if self.waits_for.contains(queue) {
            self.told.lock().insert(queue.clone());
            self.more.notify_one();
        }
    }

    fn notify_all(&self) {
        self.told.lock().extend(self.waits_for.iter().cloned());
        self.more.notify_one();
    }

    fn due_earlier(&self) {
        self.earlier.notify_one();
    }

    fn waits_for(&self, queue: &Queue) -> bool {
        self.waits_for.contains(queue)
    }

    fn waited_for(&self) -> Vec<Queue> {
        self.waits_for.clone()
    }
}
