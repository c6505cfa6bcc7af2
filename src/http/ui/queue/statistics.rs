//! Statistics of a queue: read for the page if its store responds, from the last sample otherwise.

use maud::Markup;
use serde::Deserialize;

use crate::history::need::Need;
use crate::http::operators::queues::{QueueReply, QueuesReply};
use crate::http::ui::page::ask::{Refusal, Said};
use crate::http::ui::page::rows::NOT_BY_QUEUE;
use crate::http::ui::page::text::{known, timers};
use crate::http::ui::page::visit::{PoolQueue, Visit};

#[derive(Debug, Deserialize)]
struct Size {
    size: u64,
}

/// Statistics read for a page.
pub struct Statistics {
    pub listing: Said<QueuesReply>,
    /// Shows whether the names are valid and the pool exists.
    ready: Said<Size>,
}

impl Statistics {
    pub async fn read(visit: &Visit, place: &PoolQueue) -> Statistics {
        visit.refresh(place).await;
        let listing = visit.queues(&format!("{}&limit=1", place.query()));
        let ready = visit.ask.get(place.api("/size", &[])).await;
        Statistics { listing, ready }
    }

    /// Returns the queue's row. `None` also before the first publish to it.
    pub fn row(&self) -> Option<&QueueReply> {
        self.listing.as_ref().ok()?.queues.first()
    }

    /// Returns the error if the queue's name is invalid or its pool does not exist.
    pub fn refusal(&self) -> Option<&Refusal> {
        let all = [self.ready.as_ref().err(), self.listing.as_ref().err()];
        all.into_iter().flatten().find(|refusal| refusal.status.is_client_error())
    }

    /// Returns the number of jobs in a state, if it is known.
    pub fn count(&self, state: &str) -> Option<u64> {
        let Some(row) = self.row() else {
            // A queue that no store reports has no jobs.
            let ready = self.ready.as_ref().ok().map(|size| size.size);
            let is_ready = state == "ready";
            return if is_ready { ready } else { self.listing.is_ok().then_some(0) };
        };
        match state {
            "ready" => Some(row.ready),
            "dead" => Some(row.dead),
            "delayed" => row.delayed,
            _ => row.running,
        }
    }

    /// Shows the number of jobs in a state.
    pub fn jobs(&self, state: &str) -> Markup {
        let count = self.count(state);
        match (state, self.row()) {
            ("delayed" | "running", Some(row)) => timers(count, row.estimated, NOT_BY_QUEUE),
            _ => known(count, NOT_BY_QUEUE),
        }
    }

    /// Returns the state whose jobs a page opens on: dead if jobs are dying or there are no others, then ready, then
    /// delayed.
    pub fn state_that_matters(&self) -> &'static str {
        let has = |state: &str| self.count(state).is_some_and(|jobs| jobs > 0);
        let is_dying = self.row().is_some_and(|row| row.need == Some(Need::Dying));
        let others = ["ready", "delayed", "running"].into_iter().any(has);
        match (has("dead"), is_dying || !others) {
            (true, true) => "dead",
            _ if has("ready") || !has("delayed") => "ready",
            _ => "delayed",
        }
    }
}
