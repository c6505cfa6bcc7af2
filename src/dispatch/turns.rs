//! Bounds on concurrent fetches, in total and per namespace.
//!
//! One partition of a store may hang while the others respond, and a client can choose queue names that all lie on it.
//! So a slow fetch gives up its turn, and each namespace has its own bound on slow fetches.

use std::sync::Arc;

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::name::Namespace;

/// Maximum number of turns. Further fetches wait in FIFO order while more waiters join their lists.
const MOST: usize = 256;
/// While at least this many turns are free, fetches are not counted per namespace. Fetches that hang can hold at most
/// the other half.
const UNCOUNTED: usize = MOST / 2;
/// Maximum number of counted fetches per namespace.
const MOST_OF_NAMESPACE: usize = MOST - UNCOUNTED;
/// Maximum number of fetches in flight that have given up their turn. Less than the number of calls that may wait for a
/// store.
const MOST_WITHOUT: usize = 4096;

/// The turns of one dispatcher.
#[derive(Debug)]
pub struct Turns {
    free: Semaphore,
    /// Permits of namespaces that have counted fetches.
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

/// Permission for one fetch; held until it ends.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    namespace: &'a Namespace,
    /// Permit of the whole dispatcher: a turn, or once given up, a permit of `without`.
    of_all: Option<SemaphorePermit<'a>>,
    /// The namespace's permit, if the fetch is counted.
    of_namespace: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits for a turn. Returns `None` only if the semaphores were closed, which never happens.
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
                // Other namespaces must not wait for this namespace.
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
    /// Returns whether the turn can be given up before the fetch ends.
    pub fn can_be_given_back(&self) -> bool {
        self.of_namespace.is_some()
    }

    /// Lets another fetch start in place of a slow one.
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
        // Holders and waiters of a permit have a reference too.
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

    /// Returns a turn if one is free now.
    fn at_once<'a>(turns: &'a Turns, namespace: &'a Namespace) -> Option<Turn<'a>> {
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(turn) = pin!(turns.take(namespace)).poll(&mut context) else { return None };
        turn
    }

    /// Guards against hanging fetches of one namespace that hold all turns, and against namespaces that stay counted
    /// forever.
    #[test]
    fn what_takes_long_gives_its_turn_to_other_namespaces() {
        let turns = Turns::default();
        let [slow, other] = ["slow", "other"].map(namespace);
        let mut taken: Vec<_> = (0..MOST).map_while(|_| at_once(&turns, &slow)).collect();
        assert_eq!(taken.len(), MOST, "one namespace may have all");
        assert!(at_once(&turns, &other).is_none(), "there are no more");
        taken.iter_mut().for_each(Turn::give_back);
        assert_eq!(turns.free.available_permits(), MOST_OF_NAMESPACE, "given back");
        assert!(at_once(&turns, &slow).is_none(), "the namespace is at its limit");
        assert_eq!(
            turns.free.available_permits(),
            MOST_OF_NAMESPACE,
            "a waiter for a slot of its namespace holds no slot of all"
        );
        let others: Vec<_> = (0..MOST).map_while(|_| at_once(&turns, &other)).collect();
        assert_eq!(others.len(), MOST_OF_NAMESPACE, "another namespace has its part");
        drop(others);
        // A counted fetch ends.
        drop(taken.pop());
        assert!(at_once(&turns, &slow).is_some(), "the waiting fetch begins");
        drop(taken);
        let left = (turns.free.available_permits(), turns.without.available_permits());
        assert_eq!(left, (MOST, MOST_WITHOUT), "all have ended");
        assert!(turns.by_namespace.lock().is_empty(), "nothing is kept of a namespace");
    }
}
