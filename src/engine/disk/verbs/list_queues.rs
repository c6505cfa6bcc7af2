//! Lists of a namespace's queues with statistics: from memory, which has all names of queues, sorted.

use std::ops::Bound::{Excluded, Included};
use std::time::Duration;

use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{STEP_BYTES, STEP_ENTRIES, Step, StepResult};
use crate::engine::disk::store::Fatal;
use crate::engine::{Estimated, QueuePage, QueueView};
use crate::name::{Namespace, Queue, QueueName};

/// Returns up to `limit` queues of a namespace after `after`.
pub struct ListQueues {
    pub namespace: Namespace,
    pub after: Option<QueueName>,
    pub limit: usize,
}

impl Step for ListQueues {
    type Reply = QueuePage;
    const MUST_LAST: bool = false;

    fn items(&self) -> usize {
        self.limit
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<QueuePage> {
        let ListQueues { namespace, after, limit } = self;
        let is_first = after.is_none();
        let from = Queue { namespace, name: after.unwrap_or_else(QueueName::first) };
        let page = state.queues.page(if is_first { Included(&from) } else { Excluded(&from) }, limit + 1);
        let of = page.map(|(queue, _)| queue).take_while(|queue| queue.namespace == from.namespace);
        let mut names: Vec<Queue> = of.cloned().collect();
        let more = names.len() > limit;
        names.truncate(limit);
        let next = names.last().filter(|_| more).map(|last| last.name.clone());
        let mut queues = Vec::with_capacity(names.len());
        let (mut steps, mut bytes) = (0, 0);
        for queue in names {
            let age = state.oldest_ready_age(&queue, now, &mut steps, &mut bytes)?;
            let Some(of) = state.queues.get(&queue) else { continue };
            queues.push(QueueView {
                ready: Some(of.ready),
                delayed: Some(of.timers.saturating_sub(of.running)),
                running: Some(of.running),
                dead: Some(of.dead),
                oldest_ready_age: age,
                estimated: Estimated::default(),
                queue,
            });
        }
        Ok(QueuePage { queues, next })
    }
}

impl WriterState {
    /// Returns the age of the job at the head of a queue. Skips the entries that consume would skip, within the
    /// bounds of a step.
    fn oldest_ready_age(
        &mut self,
        queue: &Queue,
        now: Micros,
        steps: &mut usize,
        bytes: &mut usize,
    ) -> Result<Option<Duration>, Fatal> {
        while *steps < STEP_ENTRIES && *bytes < STEP_BYTES {
            *steps += 1;
            let Some((_, entry, since)) = self.head(queue)? else { return Ok(None) };
            match self.read_entry(queue, &entry)? {
                Some(Ok(record)) if !record.expired(now) => {
                    *bytes += record.body.len();
                    return Ok(Some(Duration::from_millis((now / 1000).saturating_sub(since))));
                }
                unfit => self.pass_over(queue, unfit, now)?,
            }
        }
        Ok(None)
    }
}
