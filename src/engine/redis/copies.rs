//! Copies of namespaces' queues into their indexes: one copy of each namespace at a time, and a bounded number in all.
//! Uses no connection.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::error::{Error, Result};
use crate::name::Namespace;

/// Maximum number of concurrent copies.
const MAX_COPIES: usize = 8;
/// Maximum number of copies in flight or pending.
const MAX_WAITING: usize = 1024;

/// The result of a copy, once it has ended.
pub type CopyEnd = Option<Result<()>>;

/// The copies in flight and pending.
#[derive(Debug)]
pub struct Copies {
    all: Mutex<HashMap<Namespace, watch::Receiver<CopyEnd>>>,
    turns: Semaphore,
}

impl Default for Copies {
    fn default() -> Copies {
        Copies { all: Mutex::default(), turns: Semaphore::new(MAX_COPIES) }
    }
}

impl Copies {
    /// Returns a receiver of the result of this namespace's copy. If none is in flight, `begin` starts one, which keeps
    /// the sender until its end. [`Error::Overloaded`] if too many others wait.
    pub fn join(
        &self,
        namespace: &Namespace,
        begin: impl FnOnce(watch::Sender<CopyEnd>),
    ) -> Result<watch::Receiver<CopyEnd>> {
        let mut under_way = self.all.lock();
        // A copy has ended when its sender was dropped.
        under_way.retain(|_, copy| copy.has_changed().is_ok());
        if let Some(copy) = under_way.get(namespace) {
            return Ok(copy.clone());
        }
        if under_way.len() >= MAX_WAITING {
            return Err(Error::Overloaded);
        }
        let (end, copy) = watch::channel(None);
        under_way.insert(namespace.clone(), copy.clone());
        begin(end);
        Ok(copy)
    }

    /// Waits for a copy's turn, first come, first served. The turn ends when the permit is dropped.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.turns.acquire().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_of_a_namespace_is_under_way_at_a_time_and_so_many_of_all() {
        let (copies, mut ends) = (Copies::default(), Vec::new());
        let namespace = |n: usize| Namespace::parse(&format!("n{n}")).expect("a name");
        for n in 0..MAX_WAITING {
            copies.join(&namespace(n), |end| ends.push(end)).expect("there is room");
        }
        let joined = copies.join(&namespace(0), |_| panic!("a second copy")).expect("the copy is running");
        let refused = copies.join(&namespace(MAX_WAITING), |_| panic!("one copy too many"));
        assert!(matches!(refused, Err(Error::Overloaded)), "{refused:?}");
        ends.remove(0).send_replace(Some(Ok(())));
        assert!(matches!(&*joined.borrow(), Some(Ok(()))), "the waiter learns the result");
        copies.join(&namespace(MAX_WAITING), |end| ends.push(end)).expect("there is room again");
        assert_eq!(ends.len(), MAX_WAITING, "copies that were begun and have not ended");
    }

    #[tokio::test]
    async fn few_copies_have_their_turn_and_the_next_waits_for_it() {
        let copies = Copies::default();
        let mut turns = Vec::new();
        for _ in 0..MAX_COPIES {
            turns.push(copies.turn().await);
        }
        let mut next = Box::pin(copies.turn());
        let early = tokio::time::timeout(std::time::Duration::ZERO, next.as_mut()).await;
        assert!(early.is_err(), "one more has no turn yet");
        turns.pop();
        assert!(next.await.is_some(), "it has the turn of one that has ended");
    }
}
