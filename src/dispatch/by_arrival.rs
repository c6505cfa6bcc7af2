//! Wait lists ordered by arrival number.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use super::request::Wanted;

/// Map from an arrival number to a wait list. There is one map for each queue name that a poll waits for, and most hold
/// at most one list, so the first entry is stored inline.
#[derive(Debug, Default)]
pub struct ByArrival {
    one: Option<(u64, Wanted)>,
    /// All entries, once there has been more than one. Never empty.
    #[expect(
        clippy::box_collection,
        reason = "each queue has two, mostly `None`, and an unboxed map takes three times the space"
    )]
    many: Option<Box<BTreeMap<u64, Wanted>>>,
}

impl ByArrival {
    pub fn insert(&mut self, arrival: u64, list: Wanted) {
        if let Some(many) = &mut self.many {
            many.insert(arrival, list);
            return;
        }
        match self.one.take() {
            Some(first) if first.0 != arrival => {
                self.many = Some(Box::new(BTreeMap::from([first, (arrival, list)])));
            }
            _ => self.one = Some((arrival, list)),
        }
    }

    pub fn remove(&mut self, arrival: u64) {
        self.one.take_if(|one| one.0 == arrival);
        if let Some(many) = &mut self.many {
            many.remove(&arrival);
            // An empty map would keep its allocation.
            self.many.take_if(|many| many.is_empty());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.one.is_none() && self.many.is_none()
    }

    /// Returns the entries with an arrival in `arrivals`, in ascending order.
    pub fn range(&self, arrivals: impl RangeBounds<u64>) -> impl Iterator<Item = (u64, &Wanted)> {
        let bounds = (arrivals.start_bound().cloned(), arrivals.end_bound().cloned());
        let one =
            self.one.as_ref().filter(|one| arrivals.contains(&one.0)).map(|(arrival, list)| (*arrival, list));
        let many = self.many.as_ref().map(|many| many.range(bounds).map(|(arrival, list)| (*arrival, list)));
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::name::{Namespace, Queue, QueueName};

    proptest! {
        /// Behaves like a `BTreeMap`, and allocates only while it has held more than one list.
        #[test]
        fn lists_are_kept_by_arrival(changes in prop::collection::vec((any::<bool>(), 0..6u64), 0..40)) {
            let namespace = Namespace::parse("ns").expect("a literal");
            let list = |i: usize| {
                let name = QueueName::parse(&format!("q-{i}")).expect("a name");
                Wanted::new(Queue { namespace: namespace.clone(), name }.into(), None)
            };
            let (mut lists, mut expected) = (ByArrival::default(), BTreeMap::new());
            for (i, (inserts, arrival)) in changes.into_iter().enumerate() {
                let ever_two = lists.many.is_some();
                if inserts {
                    lists.insert(arrival, list(i));
                    expected.insert(arrival, list(i));
                } else {
                    lists.remove(arrival);
                    expected.remove(&arrival);
                }
                let all: Vec<_> = lists.range(..).map(|(arrival, list)| (arrival, list.clone())).collect();
                prop_assert_eq!(&all, &expected.clone().into_iter().collect::<Vec<_>>());
                for bound in 0..6 {
                    let before: Vec<u64> = lists.range(..bound).map(|(arrival, _)| arrival).collect();
                    let after: Vec<u64> = lists.range(bound..).map(|(arrival, _)| arrival).collect();
                    prop_assert_eq!(before, expected.range(..bound).map(|(at, _)| *at).collect::<Vec<_>>());
                    prop_assert_eq!(after, expected.range(bound..).map(|(at, _)| *at).collect::<Vec<_>>());
                }
                prop_assert_eq!(lists.is_empty(), expected.is_empty());
                prop_assert!(lists.many.is_none() || expected.len() > 1 || ever_two && !expected.is_empty());
            }
        }
    }
}
