//! This server's view of paused queues, and which updates apply to it. Uses no connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ahash::HashMap;
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::{Micros, Millis};
use crate::engine::Pause;
use crate::name::{Namespace, Queue, QueueName};

/// Maximum age of the view. Other servers see a pause within a second: this plus the time of a reply.
pub const BELIEVED: Duration = Duration::from_millis(800);
/// How long a change by this process is remembered: longer than it can take to read its reply.
pub const REMEMBERED: Duration = Duration::from_secs(10);

/// This server's view of the paused queues.
#[derive(Debug, Default)]
pub struct Pauses {
    pub known: RwLock<Known>,
    /// Notifies the task that a pause may end earlier than it knows.
    pub earlier: Notify,
}

/// The view, maintained by the task.
#[derive(Debug, Default)]
pub struct Known {
    /// Version of the view; 0 while nothing is paused. `None`: nothing was read yet.
    pub version: Option<Micros>,
    pub paused: BTreeMap<Queue, Pause>,
    /// Ends of the pauses that expire.
    pub ends: BTreeSet<(Millis, Queue)>,
    /// When the version was last confirmed to be the newest; `None` at first.
    pub read_at: Option<Instant>,
    /// When a change by this process was skipped because it seemed older than the view: earlier reads are then not
    /// trusted. Redis's clock may have gone back.
    pub doubted_at: Option<Instant>,
    /// The newest change by this process to each queue, for [`REMEMBERED`].
    pub own: HashMap<Queue, Own>,
    /// Maps the version before a change by this process to the version after it and the time of its reply: changes that
    /// do not follow on `version` yet.
    pub links: HashMap<Micros, (Micros, Instant)>,
}

/// A change by this process.
#[derive(Debug)]
pub struct Own {
    /// Orders all changes, even if they leave version 0.
    pub order: Micros,
    pub pause: Option<Pause>,
    /// Time of its reply.
    pub at: Instant,
}

/// The versions in a script's reply: before and after a change.
#[derive(Clone, Copy, Debug)]
pub struct Versions {
    pub now: Micros,
    pub before: Micros,
    pub after: Micros,
}

impl Known {
    pub fn set(&mut self, queue: &Queue, pause: Option<Pause>) {
        let before = match pause {
            Some(pause) => self.paused.insert(queue.clone(), pause),
            None => self.paused.remove(queue),
        };
        if let Some(until) = before.and_then(|pause| pause.until) {
            self.ends.remove(&(until, queue.clone()));
        }
        if let Some(until) = pause.and_then(|pause| pause.until) {
            self.ends.insert((until, queue.clone()));
        }
    }

    /// Advances to the version reached by this process's changes.
    pub fn follow(&mut self) {
        while let Some((after, _)) = self.version.and_then(|version| self.links.remove(&version)) {
            self.version = Some(after);
        }
    }

    /// Replaces the view by a complete read that began at `asked` and saw this version. Returns the queues that are no
    /// longer paused.
    pub fn replace(&mut self, version: Micros, paused: BTreeMap<Queue, Pause>, asked: Instant) -> Vec<Queue> {
        let before = std::mem::replace(&mut self.paused, paused);
        let ends = self.paused.iter().filter_map(|(queue, pause)| Some((pause.until?, queue.clone())));
        self.ends = ends.collect();
        // Changes by this process in the meantime may be newer than the read. If they are not, their link makes the
        // next check read again.
        let own = std::mem::take(&mut self.own);
        for (queue, own) in own.iter().filter(|(_, own)| own.at >= asked && own.order > version) {
            self.set(queue, own.pause);
        }
        self.own = own;
        self.links.retain(|_, (_, at)| *at >= asked);
        self.version = Some(version);
        self.follow();
        before.into_keys().filter(|queue| !self.paused.contains_key(queue)).collect()
    }
}

impl Pauses {
    /// Returns the queue's pause, if it has one.
    pub fn of(&self, queue: &Queue, now: Millis) -> Option<Pause> {
        let known = self.known.read();
        known.paused.get(queue).copied().filter(|pause| pause.lasts(now))
    }

    /// Returns the paused queues of a namespace after `after`, by name.
    pub fn in_namespace(&self, namespace: &Namespace, after: Option<&QueueName>) -> Vec<Queue> {
        let known = self.known.read();
        let name = after.cloned().unwrap_or_else(QueueName::first);
        let of = known.paused.range(Queue { namespace: namespace.clone(), name }..).map(|(queue, _)| queue);
        let of = of.take_while(|queue| queue.namespace == *namespace);
        of.filter(|queue| after.is_none_or(|after| queue.name > *after)).cloned().collect()
    }

    /// Records a change of a queue's pause by this process.
    pub fn change(&self, queue: &Queue, pause: Option<Pause>, versions: Versions) {
        let Versions { now, before, after } = versions;
        let (order, at) = (now.max(before + 1), Instant::now());
        let mut known = self.known.write();
        // Replies may be read in another order than they were sent.
        if known.own.get(queue).is_some_and(|own| own.order > order) {
            known.doubted_at = Some(at);
            return;
        }
        known.own.insert(queue.clone(), Own { order, pause, at });
        if known.version.is_some_and(|version| version >= order) {
            known.doubted_at = Some(at);
            return; // the view has it
        }
        known.set(queue, pause);
        if before != after {
            known.links.insert(before, (after, at));
            known.follow();
        }
        let first = pause.is_some() && known.ends.first().is_some_and(|(_, first)| first == queue);
        drop(known);
        if first {
            self.earlier.notify_one();
        }
    }

    pub fn believed(&self) -> bool {
        let known = self.known.read();
        known
            .read_at
            .is_some_and(|at| at.elapsed() < BELIEVED && known.doubted_at.is_none_or(|doubted| at > doubted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(namespace: &str, name: &str) -> Queue {
        Queue {
            namespace: Namespace::parse(namespace).expect("a name"),
            name: QueueName::parse(name).expect("a name"),
        }
    }

    /// Guards against a change by this process that has no effect here until the next check, because Redis's clock was
    /// set back and the change seems older than the view.
    #[test]
    fn a_change_that_seems_old_is_asked_about() {
        let (pauses, q) = (Pauses::default(), queue("shop", "q"));
        {
            let mut known = pauses.known.write();
            known.replace(2000, BTreeMap::new(), Instant::now());
            known.read_at = Some(Instant::now());
        }
        assert!(pauses.believed(), "what was just read is believed");
        let pause = Some(Pause { until: None });
        pauses.change(&q, pause, Versions { now: 2500, before: 2000, after: 2500 });
        assert!(pauses.believed() && pauses.of(&q, 0).is_some(), "a change that follows is applied");
        // All pauses ended, and the clock was set back.
        pauses.change(&q, None, Versions { now: 1000, before: 0, after: 1000 });
        assert!(!pauses.believed(), "one that seems older than what is known is asked about");
    }

    #[test]
    fn the_paused_queues_of_a_namespace_are_those_and_no_others() {
        let pauses = Pauses::default();
        let names = [("a", "z"), ("shop", "-"), ("shop", "a"), ("shop", "b"), ("shop-", "c"), ("t", "a")];
        let paused = names.map(|(namespace, name)| (queue(namespace, name), Pause { until: None }));
        pauses.known.write().replace(1, paused.into(), Instant::now());
        for (after, expected) in [(None, &["-", "a", "b"][..]), (Some("a"), &["b"]), (Some("b"), &[])] {
            let after = after.map(|after| QueueName::parse(after).expect("a name"));
            let found = pauses.in_namespace(&queue("shop", "q").namespace, after.as_ref());
            let found: Vec<_> = found.iter().map(|queue| queue.name.as_str()).collect();
            assert_eq!(found, expected, "after {after:?}");
        }
    }
}
