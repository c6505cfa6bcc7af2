//! How many jobs of a queue are in each state: counted for the page where the store counts them, or else of the sample.

use maud::{Markup, html};
use serde::Deserialize;

use crate::http::operators::queues::{QueueReply, QueuesReply};
use crate::http::ui::page::ask::{Refusal, Said};
use crate::http::ui::page::rows::NOT_BY_QUEUE;
use crate::http::ui::page::text::{known, number, unknown};
use crate::http::ui::page::visit::{PoolQueue, Visit};

#[derive(Debug, Deserialize)]
struct Size {
    size: u64,
}

#[derive(Debug, Deserialize)]
struct Dead {
    deadletter_size: u64,
}

/// What was read of a queue.
pub struct Figures {
    pub listing: Said<QueuesReply>,
    ready: Said<Size>,
    dead: Said<Dead>,
}

impl Figures {
    pub async fn read(visit: &Visit, place: &PoolQueue) -> Figures {
        visit.refresh(place).await;
        let ask = &visit.ask;
        let (listing, ready, dead) = tokio::join!(
            ask.get(format!("/queues?{}&limit=1", place.query())),
            ask.get(place.api("/size", &[])),
            ask.get(place.api("/deadletter", &[])),
        );
        Figures { listing, ready, dead }
    }

    /// What the last sample has of the queue.
    pub fn row(&self) -> Option<&QueueReply> {
        self.listing.as_ref().ok()?.queues.first()
    }

    /// Why there is no such queue, if its name is none or its pool is not there.
    pub fn refusal(&self) -> Option<&Refusal> {
        let all = [self.ready.as_ref().err(), self.listing.as_ref().err()];
        all.into_iter().flatten().find(|refusal| refusal.status.is_client_error())
    }

    /// How many jobs are in a state.
    pub fn jobs(&self, state: &str) -> Markup {
        let row = self.row();
        // What no store has named has none.
        let sampled =
            |of: fn(&QueueReply) -> Option<u64>| row.map_or_else(|| self.listing.is_ok().then_some(0), of);
        match state {
            "ready" => fresh(self.ready.as_ref().map(|size| size.size), row.map(|row| row.ready)),
            "dead" => fresh(self.dead.as_ref().map(|dead| dead.deadletter_size), row.map(|row| row.dead)),
            "delayed" => known(sampled(|row| row.delayed), NOT_BY_QUEUE),
            _ => known(sampled(|row| row.running), NOT_BY_QUEUE),
        }
    }
}

/// A count that was read for the page, or else the sample's.
fn fresh(read: Result<u64, &Refusal>, sample: Option<u64>) -> Markup {
    match (read, sample) {
        (Ok(n), _) => html! { (number(n)) },
        (Err(refusal), Some(n)) => html! { span title=(refusal.text) { (number(n)) } },
        (Err(refusal), None) => unknown(&refusal.text),
    }
}
