//! Rows of a sample: one per queue, and one for all of a namespace's queues that are named after jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Millis;
use crate::dispatch::Pause;
use crate::engine::{Estimated, QueueSize};
use crate::history::need::{Need, Now, Pushed};
use crate::history::{Of, Point};
use crate::job::JobId;
use crate::name::{Namespace, PoolName, Queue, QueueName};
use crate::push::PushState;

/// Maximum number of rows in a sample.
const MOST_ROWS: usize = 100_000;

/// Statistics of one queue, or of all queues of a namespace that are named after jobs.
#[derive(Clone, Debug)]
pub struct QueueRow {
    pub namespace: Namespace,
    /// `None` for the queues named after jobs.
    pub name: Option<QueueName>,
    pub ready: u64,
    pub dead: u64,
    /// `None` if the store does not know them.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    pub oldest: Option<Duration>,
    pub estimated: Estimated,
    /// Published, delivered, acked, and died: jobs per second at this server over the last minute. `None` if not
    /// counted by queue.
    pub rates: Option<[f64; 4]>,
    /// Number of consumers waiting at this server.
    pub waiting: u64,
    /// Last delivery by this server, to within one sample.
    pub handed_out: Option<Millis>,
    /// Last death seen, to within one sample.
    pub died_at: Option<Millis>,
    pub paused: Option<Pause>,
    pub push: Option<PushState>,
    /// Since when its endpoint does not respond to this server.
    pub push_failing_since: Option<Millis>,
    pub need: Option<Need>,
    /// Orders rows with the same need, most severe highest.
    pub worse: u64,
}

impl QueueRow {
    /// Returns a row without statistics.
    pub(super) fn new(namespace: Namespace, name: Option<QueueName>) -> QueueRow {
        QueueRow {
            namespace,
            name,
            ready: 0,
            dead: 0,
            delayed: None,
            running: None,
            oldest: None,
            estimated: Estimated::default(),
            rates: None,
            waiting: 0,
            handed_out: None,
            died_at: None,
            paused: None,
            push: None,
            push_failing_since: None,
            need: None,
            worse: 0,
        }
    }

    pub(super) fn key(&self) -> (&Namespace, Option<&QueueName>) {
        (&self.namespace, self.name.as_ref())
    }

    /// Returns the subject of its history.
    pub fn of(&self, pool: &PoolName) -> Of {
        let (pool, namespace) = (pool.clone(), self.namespace.clone());
        match self.name.clone() {
            Some(name) => Of::Queue(pool, Queue { namespace, name }),
            None => Of::Jobs(pool, namespace),
        }
    }

    /// Returns the state that determines its need. `head` identifies its first ready job.
    pub(super) fn now(&self, head: Option<u64>) -> Now {
        Now {
            ready: self.ready,
            dead: self.dead,
            oldest: self.oldest,
            paused: self.paused.is_some(),
            pushed: match self.push {
                None => Pushed::No,
                Some(PushState::On | PushState::Paused) => Pushed::Yes,
                Some(PushState::Open | PushState::Off | PushState::Locked) => Pushed::InTrouble,
            },
            head,
        }
    }

    /// Returns the point for its history.
    pub(super) fn point(&self, counts: [u64; 4]) -> Point {
        Point {
            counts,
            ready: self.ready,
            dead: self.dead,
            delayed: self.delayed,
            running: self.running,
            oldest: self.oldest.map(|age| age.as_millis() as u64 / 100),
        }
    }
}

/// Finds a row in sorted rows.
pub(super) fn of<'a>(rows: &'a [QueueRow], key: (&Namespace, Option<&QueueName>)) -> Option<&'a QueueRow> {
    position(rows, key).ok().map(|at| &rows[at])
}

/// Returns where the row of a queue is, or where it would be inserted.
pub(super) fn position(
    rows: &[QueueRow],
    key: (&Namespace, Option<&QueueName>),
) -> std::result::Result<usize, usize> {
    rows.binary_search_by(|row| row.key().cmp(&key))
}

/// Returns a sorted row per queue with the identity of its head job, and the number of rows omitted. Beyond the limit,
/// keeps the queues with the most jobs.
pub(super) fn rows(queues: &[QueueSize]) -> (Vec<(QueueRow, Option<u64>)>, usize) {
    let mut of_jobs: BTreeMap<&Namespace, QueueRow> = BTreeMap::new();
    let mut rows = Vec::with_capacity(queues.len());
    for size in queues {
        let Queue { namespace, name } = &size.queue;
        let row = |name| QueueRow {
            ready: size.ready,
            dead: size.dead,
            delayed: size.delayed,
            running: size.running,
            oldest: size.oldest_ready,
            estimated: size.estimated,
            ..QueueRow::new(namespace.clone(), name)
        };
        if JobId::parse(name.as_str()).is_none() {
            rows.push((row(Some(name.clone())), size.head));
            continue;
        }
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        match of_jobs.get_mut(namespace) {
            None => _ = of_jobs.insert(namespace, row(None)),
            Some(sum) => {
                sum.ready += size.ready;
                sum.dead += size.dead;
                sum.delayed = both(sum.delayed, size.delayed);
                sum.running = both(sum.running, size.running);
                sum.oldest = sum.oldest.max(size.oldest_ready);
                sum.estimated |= size.estimated;
            }
        }
    }
    rows.extend(of_jobs.into_values().map(|row| (row, None)));
    let left_out = rows.len().saturating_sub(MOST_ROWS);
    if left_out > 0 {
        let jobs =
            |row: &QueueRow| row.ready + row.dead + row.delayed.unwrap_or(0) + row.running.unwrap_or(0);
        rows.select_nth_unstable_by_key(MOST_ROWS, |(row, _)| std::cmp::Reverse(jobs(row)));
        rows.truncate(MOST_ROWS);
    }
    rows.sort_unstable_by(|(a, _), (b, _)| a.key().cmp(&b.key()));
    (rows, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(namespace: &str, name: &str, ready: u64) -> QueueSize {
        QueueSize {
            queue: Queue {
                namespace: Namespace::parse(namespace).expect("a literal"),
                name: QueueName::parse_for_consume(name).expect("a name"),
            },
            ready,
            dead: 1,
            delayed: Some(2),
            running: None,
            oldest_ready: Some(Duration::from_secs(ready)),
            estimated: Estimated::default(),
            head: Some(7),
        }
    }

    /// Guards against a page of ten thousand queues that no longer exist when it is read.
    #[test]
    fn queues_that_are_named_after_jobs_are_one_row_a_namespace() {
        let id = |n: u64| JobId::from_parts(n, 1, 0, false).to_string();
        let queues = [size("a", &id(1), 1), size("a", &id(2), 5), size("a", "mail", 9), size("b", &id(3), 2)];
        let (rows, left_out) = rows(&queues);
        let shown: Vec<_> = rows
            .iter()
            .map(|(row, head)| {
                (row.namespace.as_str(), row.name.as_ref().map(QueueName::as_str), row.ready, *head)
            })
            .collect();
        let expected = [("a", None, 6, None), ("a", Some("mail"), 9, Some(7)), ("b", None, 2, None)];
        assert_eq!((shown.as_slice(), left_out), (expected.as_slice(), 0));
        let sum = &rows[0].0;
        assert_eq!(
            (sum.dead, sum.delayed, sum.running, sum.oldest),
            (2, Some(4), None, Some(Duration::from_secs(5)))
        );
    }

    #[test]
    fn the_smallest_are_left_out_and_counted() {
        let queues: Vec<_> = (0..MOST_ROWS + 3).map(|n| size("ns", &format!("q{n}"), n as u64)).collect();
        let (rows, left_out) = rows(&queues);
        assert_eq!((rows.len(), left_out), (MOST_ROWS, 3));
        assert!(rows.is_sorted_by(|(a, _), (b, _)| a.key() < b.key()), "by name");
        assert!(rows.iter().all(|(row, _)| row.ready >= 3), "the three smallest are left out");
    }
}
