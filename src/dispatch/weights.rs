//! Weighted consumes: the order of reading the queues in each engine call, so that queues with jobs are served in
//! proportion to their weights.
//!
//! This is start-time fair queueing. Each queue of a list has a *pass*: the work it has received, divided by its
//! weight. A call reads the queue with the lowest pass first, and raises the passes of the queues that its jobs came
//! from. A queue found empty is raised to the pass that the queue served in its place had before its last job, so an
//! idle queue neither accumulates nor loses turns.

use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::request::{Wanted, Weights, places};
use crate::engine::{Consumed, Engine, MAX_CONSUME_BYTES};
use crate::error::Result;
use crate::job::Job;
use crate::name::QueueList;

/// Maximum number of jobs per call, so that a large `count` is not served from one queue. It bounds the error of the
/// proportions: 1.6 of 100 over a thousand deliveries.
const QUANTUM: usize = 16;
/// Number of lists whose passes are kept, counted in slots as by [`places`]. The least recently used is evicted and
/// starts anew.
const MOST_LISTS: usize = 10_000;
/// Increase of the pass per job, for a queue of weight 1.
const ONE_JOB: u64 = 1 << 32;

/// The passes of all weighted lists.
#[derive(Debug)]
pub struct WeightShares {
    passes: Cache<Wanted, Arc<Mutex<Passes>>, ByPlaces>,
}

/// Weighs a list by its slots, since the cache keeps its queue names.
#[derive(Clone, Debug)]
struct ByPlaces;

impl<P> Weighter<Wanted, P> for ByPlaces {
    fn weight(&self, wanted: &Wanted, _: &P) -> u64 {
        places(&wanted.queues) as u64
    }
}

impl Default for WeightShares {
    fn default() -> WeightShares {
        WeightShares { passes: Cache::with_weighter(MOST_LISTS, MOST_LISTS as u64, ByPlaces) }
    }
}

impl WeightShares {
    /// Like [`Engine::consume`], in several calls of at most [`QUANTUM`] jobs each and about [`MAX_CONSUME_BYTES`]
    /// together: each call asks for as many jobs as fit if none is larger than the largest so far. At most one runs at
    /// a time per list.
    pub async fn consume(
        &self,
        engine: &dyn Engine,
        wanted: &Wanted,
        weights: &Weights,
        ttrs: &[std::time::Duration],
    ) -> Result<Consumed> {
        let passes = self.of(wanted);
        let mut all = Consumed::default();
        let (mut bytes, mut largest) = (0, 0);
        loop {
            let left = &ttrs[all.jobs.len()..];
            let fit = MAX_CONSUME_BYTES.saturating_sub(bytes).checked_div(largest).unwrap_or(QUANTUM);
            let asked = left.len().min(QUANTUM).min(fit);
            if asked == 0 {
                return Ok(Consumed { more: true, notifies: false, ..all });
            }
            let order = passes.lock().order();
            let queues = reordered(&wanted.queues, &order);
            let Consumed { jobs, more, notifies } = match engine.consume(&queues, &left[..asked]).await {
                Ok(consumed) => consumed,
                Err(error) if all.jobs.is_empty() => return Err(error),
                // Deliver the jobs already taken. If the failure persists, the next fetch reports it.
                Err(_) => return Ok(Consumed { more: true, notifies: false, ..all }),
            };
            passes.lock().served(&order, queues_of(&jobs, &wanted.queues), weights);
            let short = jobs.len() < asked;
            for job in &jobs {
                bytes += job.body.len();
                largest = largest.max(job.body.len());
            }
            all.jobs.extend(jobs);
            (all.more, all.notifies) = (more, notifies);
            if short || all.jobs.len() >= ttrs.len() {
                return Ok(all);
            }
        }
    }

    fn of(&self, wanted: &Wanted) -> Arc<Mutex<Passes>> {
        if let Some(passes) = self.passes.get(wanted) {
            return passes;
        }
        let passes = Arc::new(Mutex::new(Passes(vec![0; wanted.queues.names().len()])));
        self.passes.insert(wanted.clone(), passes.clone());
        passes
    }
}

/// Returns the queues in the given order of indices.
fn reordered(queues: &QueueList, order: &[usize]) -> QueueList {
    let names = order.iter().filter_map(|place| queues.names().get(*place)).cloned();
    // Not empty: the order contains each index of a list, which has at least one queue.
    QueueList::new(queues.namespace().clone(), names).unwrap_or_else(|| queues.clone())
}

/// Returns the index in the list of each job's queue.
fn queues_of<'a>(jobs: &'a [Job], queues: &'a QueueList) -> impl Iterator<Item = usize> + 'a {
    jobs.iter().filter_map(|job| queues.names().iter().position(|name| *name == job.queue.name))
}

/// The pass of each queue of one list.
#[derive(Debug)]
struct Passes(Vec<u64>);

impl Passes {
    /// Returns the queue indices, lowest pass first.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        order.sort_by_key(|place| self.0[*place]);
        order
    }

    /// Records that a call with this order got one job from each of the queue indices in `jobs`.
    fn served(&mut self, order: &[usize], jobs: impl Iterator<Item = usize>, weights: &Weights) {
        // Last position in `order` that was served, and the pass of its queue before its last job.
        let mut last = None;
        for place in jobs {
            let (Some(pass), Some(weight)) = (self.0.get_mut(place), weights.as_slice().get(place)) else {
                continue;
            };
            let before = *pass;
            *pass += ONE_JOB / u64::from((*weight).max(1));
            last = last.max(order.iter().position(|other| *other == place).map(|at| (at, before)));
        }
        let Some((last, before)) = last else { return };
        // Every queue before this position was found empty.
        for place in &order[..last] {
            self.0[*place] = self.0[*place].max(before);
        }
        // Only differences matter; this keeps the numbers small.
        let least = self.0.iter().copied().min().unwrap_or(0);
        self.0.iter_mut().for_each(|pass| *pass -= least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves a thousand jobs, one at a time, from the queues that have any. Returns the number from each.
    fn thousand(passes: &mut Passes, weights: &Weights, has_jobs: impl Fn(usize) -> bool) -> Vec<u32> {
        let mut got = vec![0; weights.as_slice().len()];
        for _ in 0..1000 {
            let order = passes.order();
            let from = order.iter().copied().find(|place| has_jobs(*place)).expect("one has jobs");
            passes.served(&order, [from].into_iter(), weights);
            got[from] += 1;
        }
        got
    }

    #[test]
    fn turns_go_by_weight_and_nobody_saves_them_up() {
        let weights = Weights::new(vec![5, 3, 2]);
        let mut passes = Passes(vec![0; 3]);
        assert_eq!(thousand(&mut passes, &weights, |_| true), [500, 300, 200], "all have jobs");
        assert_eq!(thousand(&mut passes, &weights, |place| place == 2), [0, 0, 1000], "only the third has");
        let two = thousand(&mut passes, &weights, |place| place != 0);
        assert!(two[1].abs_diff(600) <= 2 && two[2].abs_diff(400) <= 2, "the second and third have: {two:?}");
        let all = thousand(&mut passes, &weights, |_| true);
        for (got, wanted) in all.iter().zip([500, 300, 200]) {
            assert!(got.abs_diff(wanted) <= 2, "all have jobs again, and turns were saved up: {all:?}");
        }
    }

    /// Guards against names kept forever: ten thousand lists of a hundred long names would take 300 MB.
    #[test]
    fn of_lists_of_many_queues_fewer_are_remembered() {
        let shares = WeightShares::default();
        let namespace = crate::name::Namespace::parse("ns").expect("a literal");
        for list in 0..2_000 {
            let name = |i| crate::name::QueueName::parse(&format!("q-{list}-{i}")).expect("a name");
            let queues = QueueList::new(namespace.clone(), (0..100).map(name)).expect("not empty");
            shares.of(&Wanted::new(queues, Some(Weights::new(vec![1; 100]))));
        }
        let lists = shares.passes.len();
        assert!((500..=1_000).contains(&lists), "{lists} lists of a hundred queues are remembered");
    }

    #[test]
    fn passes_do_not_grow_without_bound() {
        let weights = Weights::new(vec![1, 1000]);
        let mut passes = Passes(vec![0; 2]);
        for _ in 0..100 {
            thousand(&mut passes, &weights, |_| true);
            thousand(&mut passes, &weights, |place| place == 1);
        }
        assert!(passes.0.iter().all(|pass| *pass <= 2 * ONE_JOB), "{passes:?}");
    }
}
