//! Polls: one at a time, for as many jobs as there are free slots, with pauses after failures.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::hooks::Event;
use super::stop::Stopper;
use super::{Settings, WorkerError};
use crate::client::{Client, Consume, is_empty};
use crate::error::{Error, ErrorKind, Result};
use crate::job::Job;
use crate::time::Pauses;
use crate::transport::Head;

/// Maximum jobs per poll.
const MOST: usize = 100;

/// How long to wait for a reply that has not begun when the worker stops.
const LAST_WORD: Duration = Duration::from_millis(500);
/// How long to wait for the rest of a reply that has begun when the worker stops.
const REST: Duration = Duration::from_secs(5);

/// A job, and the slot of its handler.
pub(super) type Slotted = (Job, OwnedSemaphorePermit);

pub(super) struct Polls {
    settings: Arc<Settings>,
    client: Client,
    stopper: Stopper,
    slots: Arc<Semaphore>,
    consume: Consume,
    pauses: Pauses,
    /// Since when polls fail.
    away: Option<Instant>,
}

impl Polls {
    pub(super) fn new(settings: Arc<Settings>, client: Client, stopper: Stopper) -> Polls {
        let queues = settings.handlers.iter().map(|(queue, _)| queue);
        // Jobs get the application's client, for requests of their handlers.
        let consume = settings
            .client
            .consume(queues)
            .weights(settings.weights.clone())
            .ttr(settings.ttr)
            .timeout(settings.poll);
        let slots = Arc::new(Semaphore::new(settings.concurrency));
        Polls { settings, client, stopper, slots, consume, pauses: Pauses::default(), away: None }
    }

    /// Returns the next jobs; `None` if the worker is stopping. Jobs of that last reply have not begun.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Slotted>>, WorkerError> {
        loop {
            let Some(mut free) = self.free().await else {
                return Ok(None);
            };
            let begun = Instant::now();
            let Some(answer) = self.poll(free.len()).await else {
                return Ok(None);
            };
            let took = begun.elapsed();
            let jobs = answer.as_ref().map_or(0, Vec::len);
            self.settings.tell(&Event::Poll { jobs, took, error: answer.as_ref().err() });
            match answer {
                Ok(jobs) if !jobs.is_empty() => {
                    self.works();
                    free.truncate(jobs.len());
                    return Ok(Some(jobs.into_iter().zip(free).collect()));
                }
                // A stopping server replies early, and so does a proxy: polling again at once would be a busy loop.
                Ok(_) if took < self.settings.poll / 2 => {
                    let text = format!("a poll of {:?} came back empty after {took:?}", self.settings.poll);
                    self.fails(Error::new(ErrorKind::Unavailable, text)).await;
                }
                Ok(_) => self.works(),
                Err(e) if ends(&e) => return Err(e.into()),
                Err(e) => self.fails(e).await,
            }
        }
    }

    /// Returns the number of running handlers.
    pub(super) fn running(&self) -> usize {
        self.settings.concurrency - self.slots.available_permits()
    }

    /// Returns the free slots, at least one; `None` if the worker is stopping.
    async fn free(&self) -> Option<Vec<OwnedSemaphorePermit>> {
        let first = tokio::select! {
            biased;
            () = self.stopper.asked(1) => return None,
            // The semaphore is never closed.
            slot = self.slots.clone().acquire_owned() => slot.ok()?,
        };
        let mut free = vec![first];
        while free.len() < MOST {
            match self.slots.clone().try_acquire_owned() {
                Ok(slot) => free.push(slot),
                Err(_) => break,
            }
        }
        Some(free)
    }

    /// Sends one poll. If the worker stops meanwhile, closes the write side of its connection, so that the server
    /// gives the job to the next consumer; a job sent before that still arrives.
    async fn poll(&self, count: usize) -> Option<Result<Vec<Job>>> {
        let consume = self.consume.clone().count(count);
        let call = consume.call();
        let head = Head::default();
        let answer = {
            let sent = self.client.once_seen(&call, consume.limit(), &head);
            tokio::pin!(sent);
            tokio::select! {
                biased;
                answer = &mut sent => answer,
                () = self.stopper.asked(1) => {
                    head.leave();
                    let came = match timeout(LAST_WORD, &mut sent).await {
                        Err(_) if head.at().is_some() => timeout(REST, &mut sent).await,
                        came => came,
                    };
                    // Other results no longer matter.
                    Ok(came.ok()?.ok()?)
                }
            }
        };
        Some(consume.jobs(answer, head.at().unwrap_or_else(Instant::now)))
    }

    fn works(&mut self) {
        self.pauses = Pauses::default();
        if let Some(since) = self.away.take() {
            tracing::info!(seconds = since.elapsed().as_secs_f64(), "the server answers polls again");
            self.settings.tell(&Event::Back { after: since.elapsed() });
        }
    }

    async fn fails(&mut self, error: Error) {
        if self.away.is_none() {
            self.away = Some(Instant::now());
            tracing::warn!(%error, "a poll failed; it is tried again");
            self.settings.tell(&Event::Away { error: &error });
        }
        let pause: Duration = self.pauses.next(error.retry_after());
        tokio::select! {
            () = sleep(pause) => {}
            () = self.stopper.asked(1) => {}
        }
    }
}

/// Whether an error is permanent.
fn ends(error: &Error) -> bool {
    use ErrorKind::*;
    matches!(error.kind(), Invalid | Unauthorized | Forbidden | NotFound | Unsupported) && !is_empty(error)
}
