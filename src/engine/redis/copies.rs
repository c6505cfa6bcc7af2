//! Which namespaces' queues are being copied into their index: one copy of each at a time, and few of all. Knows no
//! connection.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::name::Namespace;

/// How many namespaces are copied at the same time.
const MAX_COPIES: usize = 8;

/// How a copy has ended, once it has.
pub type CopyEnd = Option<Result<()>>;

/// The copies under way.
#[derive(Debug, Default)]
pub struct Copies(Mutex<HashMap<Namespace, watch::Receiver<CopyEnd>>>);

impl Copies {
    /// Where the end of the copy of this namespace will be told. If none is under way, `begin` starts one, which keeps
    /// the sender until its end. [`Error::Overloaded`] when too many others are under way.
    pub fn join(
        &self,
        namespace: &Namespace,
        begin: impl FnOnce(watch::Sender<CopyEnd>),
    ) -> Result<watch::Receiver<CopyEnd>> {
        let mut under_way = self.0.lock();
        // A copy has ended when its sender is gone.
        under_way.retain(|_, copy| copy.has_changed().is_ok());
        if let Some(copy) = under_way.get(namespace) {
            return Ok(copy.clone());
        }
        if under_way.len() >= MAX_COPIES {
            return Err(Error::Overloaded);
        }
        let (end, copy) = watch::channel(None);
        under_way.insert(namespace.clone(), copy.clone());
        begin(end);
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_of_a_namespace_is_under_way_at_a_time_and_few_of_all() {
        let (copies, mut ends) = (Copies::default(), Vec::new());
        let namespace = |n: usize| Namespace::parse(&format!("n{n}")).expect("a name");
        for n in 0..MAX_COPIES {
            copies.join(&namespace(n), |end| ends.push(end)).expect("there is room");
        }
        let joined = copies.join(&namespace(0), |_| panic!("a second copy")).expect("it is under way");
        let refused = copies.join(&namespace(MAX_COPIES), |_| panic!("one copy too many"));
        assert!(matches!(refused, Err(Error::Overloaded)), "{refused:?}");
        ends.remove(0).send_replace(Some(Ok(())));
        assert!(matches!(&*joined.borrow(), Some(Ok(()))), "its end is told");
        copies.join(&namespace(MAX_COPIES), |end| ends.push(end)).expect("there is room again");
        assert_eq!(ends.len(), MAX_COPIES, "copies that were begun and have not ended");
    }
}
