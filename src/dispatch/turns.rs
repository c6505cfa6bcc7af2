//! Turns to ask the store: how many fetches may be under way, and how many of one namespace. Knows no wait list.
//!
//! A store may have parts, of which one hangs while the others answer. Whoever chooses the names of many queues can have
//! them all lie there. So a fetch that takes long gives its turn to another one, and each namespace has a bound of its own
//! on fetches that do.

use std::sync::Arc;

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::name::Namespace;

/// How many turns there are. Others wait for one to end, first come, first served, while more waiters join their lists.
const MOST: usize = 256;
/// While more turns than these are left nobody counts whose they are. So that many at most are kept by fetches that hang.
const UNCOUNTED: usize = MOST / 2;
/// How many fetches that are counted one namespace may have.
const MOST_OF_NAMESPACE: usize = MOST - UNCOUNTED;
/// How many fetches may be under way that have given their turns back. Fewer than calls may wait for a store.
const MOST_WITHOUT: usize = 4096;

/// One dispatcher's.
#[derive(Debug)]
pub struct Turns {
    free: Semaphore,
    /// Of those namespaces that have fetches that are counted.
    by_namespace: Mutex<HashMap<Namespace, Arc<Semaphore>>>,
    without: Semaphore,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            free: Semaphore::new(MOST),
            by_namespace: Mutex::default(),
            without: Semaphore::new(MOST_WITHOUT),
        }
    }
}

/// A fetch may be under way as long as this is kept.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    namespace: &'a Namespace,
    /// One of those that all share: the turn itself, until it is given back.
    of_all: Option<SemaphorePermit<'a>>,
    /// One of its namespace's, if it is counted.
    of_namespace: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits for a turn. `None` never: nobody closes the semaphores.
    pub async fn take<'a>(&'a self, namespace: &'a Namespace) -> Option<Turn<'a>> {
        let mut turn = Turn { turns: self, namespace, of_all: None, of_namespace: None };
        turn.of_all = Some(self.free.acquire().await.ok()?);
        if self.free.available_permits() >= UNCOUNTED {
            return Some(turn);
        }
        let own = self.by_namespace.lock().entry(namespace.clone()).or_insert_with(new_share).clone();
        match own.clone().try_acquire_owned() {
            Ok(of_namespace) => turn.of_namespace = Some(of_namespace),
            Err(_) => {
                // Other namespaces need not wait for this one's.
                turn.of_all = None;
                turn.of_namespace = Some(own.acquire_owned().await.ok()?);
                turn.of_all = Some(self.free.acquire().await.ok()?);
            }
        }
        Some(turn)
    }
}

fn new_share() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MOST_OF_NAMESPACE))
}

impl Turn<'_> {
    /// Whether another fetch can have the turn before this one has ended.
    pub fn can_be_given_back(&self) -> bool {
        self.of_namespace.is_some()
    }

    /// The fetch takes long: another one may begin.
    pub fn give_back(&mut self) {
        if self.can_be_given_back()
            && self.of_all.is_some()
            && let Ok(without) = self.turns.without.try_acquire()
        {
            self.of_all = Some(without);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(of_namespace) = self.of_namespace.take() else { return };
        drop(of_namespace);
        let mut by_namespace = self.turns.by_namespace.lock();
        // Whoever has one, or waits for one, has a handle too.
        if by_namespace.get(self.namespace).is_some_and(|own| Arc::strong_count(own) == 1) {
            by_namespace.remove(self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn namespace(name: &str) -> Namespace {
        Namespace::parse(name).expect("a literal")
    }

    /// A turn, if it is there at once.
    fn at_once<'a>(turns: &'a Turns, namespace: &'a Namespace) -> Option<Turn<'a>> {
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(turn) = pin!(turns.take(namespace)).poll(&mut context) else { return None };
        turn
    }

    /// Guards against fetches of one namespace that hang and keep all turns, and against namespaces that are counted for
    /// ever.
    #[test]
    fn what_takes_long_gives_its_turn_to_other_namespaces() {
        let turns = Turns::default();
        let [slow, other] = ["slow", "other"].map(namespace);
        let mut taken: Vec<_> = (0..MOST).map_while(|_| at_once(&turns, &slow)).collect();
        assert_eq!(taken.len(), MOST, "one namespace may have all");
        assert!(at_once(&turns, &other).is_none(), "there are no more");
        taken.iter_mut().for_each(Turn::give_back);
        assert_eq!(turns.free.available_permits(), MOST_OF_NAMESPACE, "given back");
        assert!(at_once(&turns, &slow).is_none(), "it has as many as it may");
        assert_eq!(
            turns.free.available_permits(),
            MOST_OF_NAMESPACE,
            "who waits for its own keeps none of all"
        );
        let others: Vec<_> = (0..MOST).map_while(|_| at_once(&turns, &other)).collect();
        assert_eq!(others.len(), MOST_OF_NAMESPACE, "another namespace has its part");
        drop(others);
        // One of those that are counted ends.
        drop(taken.pop());
        assert!(at_once(&turns, &slow).is_some(), "another one begins");
        drop(taken);
        let left = (turns.free.available_permits(), turns.without.available_permits());
        assert_eq!(left, (MOST, MOST_WITHOUT), "all have ended");
        assert!(turns.by_namespace.lock().is_empty(), "nothing is kept of a namespace");
    }
}
