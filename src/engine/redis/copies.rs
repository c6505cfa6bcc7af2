//! Which namespaces' queues are being copied into their index: one copy of each at a time, and few of all. Knows no
//! connection.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::error::{Error, Result};
use crate::name::Namespace;

/// How many namespaces are copied at the same time.
const MAX_COPIES: usize = 8;
/// How many namespaces' copies may be under way or wait for their turn.
const MAX_WAITING: usize = 1024;

/// How a copy has ended, once it has.
pub type CopyEnd = Option<Result<()>>;

/// The copies under way, and those that wait for their turn.
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
    /// Where the end of the copy of this namespace will be told. If none is under way, `begin` starts one, which keeps
    /// the sender until its end. [`Error::Overloaded`] when too many others wait.
    pub fn join(
        &self,
        namespace: &Namespace,
        begin: impl FnOnce(watch::Sender<CopyEnd>),
    ) -> Result<watch::Receiver<CopyEnd>> {
        let mut under_way = self.all.lock();
        // A copy has ended when its sender is gone.
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

    /// Waits for the turn of a copy, first come, first served. It lasts until what is answered is dropped.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Nobody closes it.
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
        let joined = copies.join(&namespace(0), |_| panic!("a second copy")).expect("it is under way");
        let refused = copies.join(&namespace(MAX_WAITING), |_| panic!("one copy too many"));
        assert!(matches!(refused, Err(Error::Overloaded)), "{refused:?}");
        ends.remove(0).send_replace(Some(Ok(())));
        assert!(matches!(&*joined.borrow(), Some(Ok(()))), "its end is told");
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
