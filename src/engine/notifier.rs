//! What a store tells its callers: that a queue may have ready jobs, and that the pump must run earlier; and which
//! queues have waiting consumers. The dispatcher and the pump implement [`Notifier`]; engines hold their notifiers in
//! [`Notifiers`].

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::name::Queue;

/// Receives notifications of jobs, and knows which queues consumers wait for. By default it ignores all, and no
/// consumer waits.
///
/// Every method returns at once and may be called from any thread.
pub trait Notifier: Send + Sync + fmt::Debug {
    /// This queue may have ready jobs. A notification for nothing is allowed, and costs one fetch. A missing one
    /// is not: a consumer would sleep beside its job.
    fn notify(&self, _queue: &Queue) {}

    /// Every queue may have ready jobs: notifications may have been lost.
    fn notify_all(&self) {}

    /// This process has stored a job that is due earlier than the last pump's [`next`](super::Pumped::next). A
    /// notification for nothing is allowed, and costs one pump. A missing one makes the job late.
    fn due_earlier(&self) {}

    /// Whether a consumer waits for this queue.
    fn waits_for(&self, _queue: &Queue) -> bool {
        false
    }

    /// Every queue that a consumer waits for, each once.
    fn waited_for(&self) -> Vec<Queue> {
        Vec::new()
    }
}

/// The notifiers of one engine: a dispatcher and a pump, and two of each while another pool migrates to this one. They
/// are not kept alive: a dispatcher owns its engine, not the other way around.
#[derive(Debug, Default)]
pub struct Notifiers {
    all: RwLock<Vec<Weak<dyn Notifier>>>,
}

impl Notifiers {
    /// Adds a notifier.
    pub fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.all.write().push(notifier);
    }

    pub fn notify(&self, queue: &Queue) {
        self.each(|notifier| notifier.notify(queue));
    }

    pub fn notify_all(&self) {
        self.each(|notifier| notifier.notify_all());
    }

    pub fn due_earlier(&self) {
        self.each(|notifier| notifier.due_earlier());
    }

    /// Whether a consumer of any of them waits for this queue.
    pub fn waits_for(&self, queue: &Queue) -> bool {
        let mut waits = false;
        self.each(|notifier| waits |= notifier.waits_for(queue));
        waits
    }

    /// Every queue that a consumer of any of them waits for, each once.
    pub fn waited_for(&self) -> Vec<Queue> {
        let mut queues = Vec::new();
        self.each(|notifier| queues.extend(notifier.waited_for()));
        queues.sort_unstable();
        queues.dedup();
        queues
    }

    fn each(&self, mut tell: impl FnMut(&Arc<dyn Notifier>)) {
        for notifier in self.all.read().iter().filter_map(Weak::upgrade) {
            tell(&notifier);
        }
    }
}
