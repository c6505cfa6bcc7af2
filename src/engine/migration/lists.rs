//! Lists and statistics of both stores combined.

use std::collections::BTreeMap;

use super::stores::TwoStores;
use crate::engine::{Cursor, Estimated, JobList, JobPage, QueuePage, QueueSize, QueueView, Stats};
use crate::error::Result;
use crate::name::{Namespace, Queue, QueueName};

/// Prefix of a cursor of a list of jobs: the store where the list continues.
const IN_OLD: &str = "o";
const IN_NEW: &str = "n";

impl TwoStores {
    pub async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        let Some((in_old, inner)) = store_of(list.cursor.as_ref()) else { return Ok(None) };
        if !in_old {
            let list = JobList { cursor: inner, ..list };
            return Ok(self.new.list_jobs(queue, list).await?.map(|page| in_store(page, IN_NEW)));
        }
        let from_old = JobList { cursor: inner, ..list.clone() };
        let Some(page) = self.ask_old(self.old.list_jobs(queue, from_old)).await? else { return Ok(None) };
        if page.cursor.is_some() {
            return Ok(Some(in_store(page, IN_OLD)));
        }
        let room = list.limit.saturating_sub(page.jobs.len());
        if room == 0 {
            return Ok(Some(JobPage { cursor: Some(Cursor(IN_NEW.into())), ..page }));
        }
        let from_new = JobList { cursor: None, limit: room, ..list };
        let Some(rest) = self.new.list_jobs(queue, from_new).await? else { return Ok(None) };
        let mut rest = in_store(rest, IN_NEW);
        rest.scanned += page.scanned;
        rest.jobs.splice(..0, page.jobs);
        Ok(Some(rest))
    }

    pub async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let (old, new) = tokio::try_join!(
            self.old.list_queues(namespace, after, limit),
            self.new.list_queues(namespace, after, limit)
        )?;
        // After the end of either page the other page may lack queues.
        let end = [&old.next, &new.next].into_iter().flatten().min().cloned();
        let mut all: BTreeMap<QueueName, QueueView> = BTreeMap::new();
        for view in old.queues.into_iter().chain(new.queues) {
            if end.as_ref().is_none_or(|end| view.queue.name <= *end) {
                let view = match all.remove(&view.queue.name) {
                    Some(other) => together(other, view),
                    None => view,
                };
                all.insert(view.queue.name.clone(), view);
            }
        }
        let more = all.len() > limit;
        let queues: Vec<QueueView> = all.into_values().take(limit).collect();
        let next = if more { queues.last().map(|last| last.queue.name.clone()) } else { end };
        Ok(QueuePage { queues, next })
    }

    pub async fn stats(&self) -> Result<Stats> {
        let (old, new) = (self.old.stats().await?, self.new.stats().await?);
        let mut queues: BTreeMap<Queue, QueueSize> = BTreeMap::new();
        for size in old.queues.into_iter().chain(new.queues) {
            let both = match queues.remove(&size.queue) {
                Some(other) => QueueSize {
                    ready: other.ready + size.ready,
                    dead: other.dead + size.dead,
                    delayed: sum(other.delayed, size.delayed),
                    running: sum(other.running, size.running),
                    oldest_ready: other.oldest_ready.max(size.oldest_ready),
                    estimated: either(other.estimated, size.estimated),
                    // The source's jobs are delivered first.
                    head: other.head.or(size.head),
                    queue: size.queue,
                },
                None => size,
            };
            queues.insert(both.queue.clone(), both);
        }
        Ok(Stats {
            timers: old.timers + new.timers,
            overdue: old.overdue.max(new.overdue),
            queues: queues.into_values().collect(),
            // The target's own gauges are scraped under its own pool's name; these are the source's.
            gauges: old.gauges,
        })
    }
}

/// Returns whether a list continues in the source, and the position there.
fn store_of(cursor: Option<&Cursor>) -> Option<(bool, Option<Cursor>)> {
    let Some(Cursor(cursor)) = cursor else { return Some((true, None)) };
    let (in_old, rest) = match cursor.strip_prefix(IN_OLD) {
        Some(rest) => (true, rest),
        None => (false, cursor.strip_prefix(IN_NEW)?),
    };
    Some((in_old, (!rest.is_empty()).then(|| Cursor(rest.to_owned()))))
}

/// Returns the page with a cursor that names its store.
fn in_store(page: JobPage, store: &str) -> JobPage {
    JobPage { cursor: page.cursor.map(|Cursor(cursor)| Cursor(format!("{store}{cursor}"))), ..page }
}

/// Returns the sum, if both are known.
fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a? + b?)
}

fn either(mut a: Estimated, b: Estimated) -> Estimated {
    a |= b;
    a
}

/// Combines the statistics of one queue in both stores.
fn together(a: QueueView, b: QueueView) -> QueueView {
    let age_known = |view: &QueueView| view.ready == Some(0) || view.oldest_ready_age.is_some();
    let age = if age_known(&a) && age_known(&b) { a.oldest_ready_age.max(b.oldest_ready_age) } else { None };
    QueueView {
        queue: a.queue,
        ready: sum(a.ready, b.ready),
        delayed: sum(a.delayed, b.delayed),
        running: sum(a.running, b.running),
        dead: sum(a.dead, b.dead),
        oldest_ready_age: age,
        estimated: either(a.estimated, b.estimated),
    }
}
