//! Occurrences that a failover may have lost. The job and the record of a step may be on different servers of a store,
//! or be sent over different connections. So a failover can lose the job although the record says that it was placed.
//! Publishing it again stores what was lost, and has no effect on what was not.

use super::core::Scheduler;
use super::record::Schedule;
use crate::clock::Millis;
use crate::engine::{Publication, Published};
use crate::error::Result;
use crate::job::JobId;
use crate::schedule::{self, Became, Entry, Place};

/// How long ago an occurrence may have been placed. A master that was replaced accepts writes for some ten seconds.
const LATELY: Millis = 60_000;

impl Scheduler {
    /// Returns the publications of a schedule's recent occurrences.
    pub(super) fn placed_lately(&self, schedule: &Schedule, now: Millis) -> Vec<Publication> {
        // The same setting and zone database compute the same id.
        let since = now.saturating_sub(LATELY).max(schedule.changed_at);
        if schedule.state.zones != self.zones.version() {
            return Vec::new();
        }
        let is_placed =
            |entry: &&Entry| entry.at > since && matches!(entry.outcome, Became::Placed | Became::CaughtUp);
        // Of those that share a key, an earlier one must not replace a later one.
        let most = if schedule.setting.key.is_some() { 1 } else { usize::MAX };
        let entries = schedule.state.history.entries.iter().filter(is_placed).take(most);
        let mut entries = entries.peekable();
        let Some(when) = entries.peek().and_then(|_| schedule.when(&self.zones)) else { return Vec::new() };
        let publication = |entry: &Entry| {
            let occurrence = when.after(entry.due.saturating_sub(1)).next()?;
            let id = schedule::job_id(&schedule.id.namespace, &schedule.id.name, &occurrence);
            // The store may have written a partition into the middle of the id.
            let end = |id: JobId| id.to_bytes()[11..].to_vec();
            let is_same = entry.job_id.as_deref().and_then(JobId::parse).is_some_and(|of| end(of) == end(id));
            let place = Place { occurrence, caught_up: entry.outcome == Became::CaughtUp };
            (occurrence.due == entry.due && is_same).then(|| self.job_of(schedule, &place))
        };
        entries.filter_map(publication).collect()
    }

    /// Publishes the job of an occurrence again.
    pub(super) async fn confirm(&self, job: Publication) -> Result<()> {
        let id = job.jobs.first().map(|of| of.job.id.to_string());
        if let Published::Done(_) = self.engine.publish(job).await? {
            tracing::warn!(pool = %self.pool, id, "the job of a placed occurrence was lost in a failover; it is published again");
        }
        Ok(())
    }
}
