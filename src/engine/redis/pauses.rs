//! What this server remembers of paused queues, and which of what it hears counts. Asks nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ahash::HashMap;
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::{Micros, Millis};
use crate::engine::Pause;
use crate::name::{Namespace, Queue, QueueName};

/// How old what is remembered may be. Others see a pause within a second: this, and what an answer takes.
pub const BELIEVED: Duration = Duration::from_millis(800);
/// How long a change of this process is remembered: longer than its answer may take to be read.
pub const REMEMBERED: Duration = Duration::from_secs(10);

/// What this server knows of the paused queues.
#[derive(Debug, Default)]
pub struct Pauses {
    pub known: RwLock<Known>,
    /// A pause may end earlier than the task knows.
    pub earlier: Notify,
}

/// What the task knows.
#[derive(Debug, Default)]
pub struct Known {
    /// The version that this is; 0 while nothing is paused. `None`: nothing was read yet.
    pub version: Option<Micros>,
    pub paused: BTreeMap<Queue, Pause>,
    /// The ends of those that end by themselves.
    pub ends: BTreeSet<(Millis, Queue)>,
    /// When the version was last seen to be the newest; never at first.
    pub read_at: Option<Instant>,
    /// When a change of this process was left out that seemed older than what is known: what was read before is not
    /// believed. The Redis's clock may have gone back.
    pub doubted_at: Option<Instant>,
    /// The newest change of this process to each queue, for [`REMEMBERED`].
    pub own: HashMap<Queue, Own>,
    /// From the version before a change of this process to the one after it, and when its answer came: those that do
    /// not follow on `version` yet.
    pub links: HashMap<Micros, (Micros, Instant)>,
}

/// A change of this process.
#[derive(Debug)]
pub struct Own {
    /// Orders the changes, also those that leave version 0.
    pub order: Micros,
    pub pause: Option<Pause>,
    /// When its answer came.
    pub at: Instant,
}

/// What a script says of the versions: before a change, and after it.
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

    /// Goes on to the version that this process's changes have led to.
    pub fn follow(&mut self) {
        while let Some((after, _)) = self.version.and_then(|version| self.links.remove(&version)) {
            self.version = Some(after);
        }
    }

    /// All was read by an asking that began at `asked` and saw this version. Answers what is paused no more.
    pub fn replace(&mut self, version: Micros, paused: BTreeMap<Queue, Pause>, asked: Instant) -> Vec<Queue> {
        let before = std::mem::replace(&mut self.paused, paused);
        let ends = self.paused.iter().filter_map(|(queue, pause)| Some((pause.until?, queue.clone())));
        self.ends = ends.collect();
        // What this process has changed meanwhile may be newer than what was read. If it is not, its link says that
        // the next asking must read again.
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
    /// The queue's pause, if it has one.
    pub fn of(&self, queue: &Queue, now: Millis) -> Option<Pause> {
        let known = self.known.read();
        known.paused.get(queue).copied().filter(|pause| pause.lasts(now))
    }

    /// Every paused queue of a namespace whose name comes after `after`, in the order of their names.
    pub fn in_namespace(&self, namespace: &Namespace, after: Option<&QueueName>) -> Vec<Queue> {
        let known = self.known.read();
        let name = after.cloned().unwrap_or_else(QueueName::first);
        let of = known.paused.range(Queue { namespace: namespace.clone(), name }..).map(|(queue, _)| queue);
        let of = of.take_while(|queue| queue.namespace == *namespace);
        of.filter(|queue| after.is_none_or(|after| queue.name > *after)).cloned().collect()
    }

    /// This process has changed a queue's pause.
    pub fn change(&self, queue: &Queue, pause: Option<Pause>, versions: Versions) {
        let Versions { now, before, after } = versions;
        let (order, at) = (now.max(before + 1), Instant::now());
        let mut known = self.known.write();
        // Answers may be read in another order than they were given.
        if known.own.get(queue).is_some_and(|own| own.order > order) {
            known.doubted_at = Some(at);
            return;
        }
        known.own.insert(queue.clone(), Own { order, pause, at });
        if known.version.is_some_and(|version| version >= order) {
            known.doubted_at = Some(at);
            return; // it was read
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

    /// Guards against a Redis whose clock went back, after which a change of this process seems to be read already: it
    /// would not hold here until the next asking.
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
        // All were resumed, and the clock went back.
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
