//! Refreshes single queues between two samples, so that a page shows the effect of a change at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::rows::{QueueRow, position};
use super::{Sample, Sampler, seconds};
use crate::clock::Millis;
use crate::engine::{Estimated, QueueView, SizeOf, together};
use crate::error::Result;
use crate::job::JobId;
use crate::metrics::PoolMetrics;
use crate::name::Queue;

impl Sampler {
    /// Refreshes the queues changed since they were sampled, and `shown`, the queue of a page. If the store does not
    /// reply in time, the sample is unchanged, and the next refresh reads the changed queues.
    pub async fn refresh(&self, shown: Option<&Queue>) {
        let mut changed = Changed { metrics: &self.metrics, unread: self.metrics.take_changed() };
        let mut queues = changed.unread.clone();
        queues.extend(shown.filter(|queue| JobId::parse(queue.name.as_str()).is_none()).cloned());
        if queues.is_empty() {
            return;
        }
        let began = Instant::now();
        let views = together::all(queues.iter().map(|queue| self.view(queue))).await;
        let mut seen = self.seen.lock();
        let mut sample = Sample::clone(&self.latest());
        let mut rows = Vec::clone(&sample.rows);
        for (queue, view) in queues.into_iter().zip(views) {
            let Ok(view) = view else { continue };
            changed.unread.remove(&queue);
            let key = (&queue.namespace, Some(&queue.name));
            let at = match position(&rows, key) {
                Ok(at) => at,
                // An unknown queue has no row.
                Err(_) if view.is_none() && self.dispatcher.pause_of(&queue).is_none() => continue,
                Err(at) => {
                    rows.insert(at, QueueRow::new(queue.namespace.clone(), Some(queue.name.clone())));
                    at
                }
            };
            let row = &mut rows[at];
            row.refresh(view.as_ref(), self.began.time());
            row.paused = self.dispatcher.pause_of(&queue);
            let watch = seen.watched.get(&(queue.namespace.clone(), Some(queue.name.clone())));
            (row.need, row.worse) =
                watch.cloned().unwrap_or_default().need(seconds(self.began.time()), &row.now(None));
            seen.refreshed.push((queue, began));
        }
        sample.rows = Arc::new(rows);
        sample.refreshed += 1;
        *self.latest.write() = Arc::new(sample);
    }

    /// Returns a queue as its store lists it, or only its sizes if the list lacks it. `None` if it has no jobs.
    async fn view(&self, queue: &Queue) -> Result<Option<QueueView>> {
        let Queue { namespace, name } = queue;
        let page = self.engine.list_queues(namespace, name.just_before().as_ref(), 1).await?;
        if let Some(view) = page.queues.into_iter().find(|view| view.queue == *queue) {
            return Ok(Some(view));
        }
        let (ready, dead) =
            tokio::join!(self.engine.size(queue, SizeOf::Ready), self.engine.size(queue, SizeOf::Dead));
        let (ready, dead) = (ready?.jobs, dead?.jobs);
        Ok((ready + dead > 0).then(|| QueueView {
            queue: queue.clone(),
            ready: Some(ready),
            delayed: None,
            running: None,
            dead: Some(dead),
            oldest_ready_age: None,
            estimated: Estimated::default(),
        }))
    }
}

/// Changed queues while they are read. Those not read by the end have changed still.
struct Changed<'a> {
    metrics: &'a PoolMetrics,
    unread: BTreeSet<Queue>,
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.unread.iter().for_each(|queue| self.metrics.changed(queue));
    }
}

impl QueueRow {
    /// Updates the row from a view read at `now`; fields unknown to the view stay. `None`: the queue has no jobs.
    fn refresh(&mut self, view: Option<&QueueView>, now: Millis) {
        let Some(view) = view else {
            (self.ready, self.dead, self.oldest) = (0, 0, None);
            (self.delayed, self.running) = (self.delayed.map(|_| 0), self.running.map(|_| 0));
            return;
        };
        let dead = view.dead.unwrap_or(self.dead);
        if dead > self.dead {
            self.died_at = Some(now);
        }
        self.dead = dead;
        self.ready = view.ready.unwrap_or(self.ready);
        self.delayed = view.delayed.or(self.delayed);
        self.running = view.running.or(self.running);
        self.estimated.timers = view.estimated.timers;
        self.oldest = view.oldest_ready_age.or(self.oldest.filter(|_| self.ready > 0));
    }
}
