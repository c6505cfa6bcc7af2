//! A lane: one long-lived connection that carries coalesced calls, one batch at a time. While a batch is under
//! way the next gathers. Several lanes may share one queue of calls. A lane whose connection breaks answers
//! its callers at once, and heals by itself; it never sends a call twice.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::connect::{Connector, Link};
use super::fault::{Fault, Outcome};
use crate::engine::coalesce::{Call, Calls, Weigh};

/// How soon after a failed attempt the next begins; doubled each time.
pub const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// And at most this.
pub const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// How long callers wait for the first attempt to connect again.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a lane does with a batch.
pub trait Serve: Send + 'static {
    type Request: Weigh + Send + 'static;
    type Reply: Send + 'static;

    /// Carries a batch over and answers every call, also when it fails. The batch is empty when only what
    /// [`has_more`](Serve::has_more) is to be carried on. The fault decides whether the connection is kept.
    fn serve(
        &mut self,
        link: &mut Link,
        batch: Vec<Call<Self::Request, Self::Reply>>,
    ) -> impl Future<Output = Outcome<()>> + Send;

    /// Whether a call has begun that takes one more batch.
    fn has_more(&self) -> bool {
        false
    }

    /// The connection broke between two batches: answers what [`has_more`](Serve::has_more) holds.
    fn give_up(&mut self, _fault: &Fault) {}
}

/// Whether the Redis is away, for the log: one line when it goes and one when it is back, whoever finds out.
#[derive(Debug, Default)]
pub struct Outage {
    away: AtomicBool,
}

impl Outage {
    /// A connection could not be kept or made.
    pub fn begins(&self, pool: &str, fault: &Fault) {
        if !self.away.swap(true, Ordering::Relaxed) {
            tracing::warn!(pool, "the Redis is away: {}", fault.text());
        }
    }

    /// A connection was made.
    pub fn ends(&self, pool: &str) {
        if self.away.swap(false, Ordering::Relaxed) {
            tracing::info!(pool, "the Redis is back");
        }
    }
}

/// What a lane needs to live.
#[derive(Clone, Debug)]
pub struct Home {
    pub pool: Arc<str>,
    pub connector: Arc<Connector>,
    pub outage: Arc<Outage>,
    pub closing: CancellationToken,
}

/// The queue of calls that lanes of one kind share.
type Shared<S> = Arc<Mutex<Calls<<S as Serve>::Request, <S as Serve>::Reply>>>;

/// One lane.
pub struct Lane<S: Serve> {
    home: Home,
    calls: Shared<S>,
    server: S,
    closed: bool,
}

/// What a lane found in its queue.
enum Next<T> {
    Batch(Vec<T>),
    Lost,
    End,
}

impl<S: Serve> Lane<S> {
    /// A lane that has yet to [`run`](Lane::run).
    pub fn new(home: Home, calls: Shared<S>, server: S) -> Lane<S> {
        Lane { home, calls, server, closed: false }
    }

    /// Serves until the engine closes and every call that waited is answered.
    pub async fn run(mut self) {
        let mut link = None;
        loop {
            let Some(open) = &mut link else {
                match self.reconnect().await {
                    Some(new) => link = Some(new),
                    None => return,
                }
                continue;
            };
            let batch = match self.next(open).await {
                Next::Batch(batch) => batch,
                Next::Lost => {
                    self.server.give_up(&Fault::away("the connection was lost"));
                    link = None;
                    continue;
                }
                Next::End => return,
            };
            if let Err(fault) = self.server.serve(open, batch).await
                && fault.reconnect
            {
                tracing::debug!(pool = &*self.home.pool, "a lane lost its connection: {}", fault.text());
                link = None;
            }
        }
    }

    async fn next(&mut self, link: &Link) -> Next<Call<S::Request, S::Reply>> {
        loop {
            let closing = self.home.closing.clone();
            tokio::select! {
                biased;
                () = link.lost.cancelled() => return Next::Lost,
                () = closing.cancelled(), if !self.closed => self.close().await,
                batch = take(&self.calls) => return match batch {
                    Some(batch) => Next::Batch(batch),
                    None if self.server.has_more() => Next::Batch(Vec::new()),
                    None => Next::End,
                },
                () = std::future::ready(()), if self.server.has_more() => return Next::Batch(Vec::new()),
            }
        }
    }

    async fn close(&mut self) {
        self.calls.lock().await.close();
        self.closed = true;
    }

    /// Connects, again and again. Meanwhile calls are answered with the reason. `None` when the engine closes.
    async fn reconnect(&mut self) -> Option<Link> {
        let (mut wait, mut fault) = (Duration::ZERO, None::<Fault>);
        loop {
            let connector = self.home.connector.clone();
            let mut attempt = pin!(async move {
                tokio::time::sleep(wait).await;
                connector.connect().await
            });
            // A server that is gone refuses at once and one that is there takes a millisecond, but more when the
            // machine is busy or Sentinels are asked first: callers are not turned away before that is known.
            let mut patience = pin!(tokio::time::sleep(PATIENCE));
            let mut patient = fault.is_none();
            let result = loop {
                let closing = self.home.closing.clone();
                tokio::select! {
                    biased;
                    result = &mut attempt => break result,
                    () = closing.cancelled(), if !self.closed => self.close().await,
                    () = &mut patience, if patient => patient = false,
                    batch = take(&self.calls), if !patient => {
                        let fault = fault.clone().unwrap_or_else(|| Fault::away("the connection was lost"));
                        for call in batch? {
                            // A caller that has left needs no answer.
                            let _ = call.split().1.send(Err(fault.error()));
                        }
                    }
                }
            };
            match result {
                Ok(link) => {
                    self.home.outage.ends(&self.home.pool);
                    return Some(link);
                }
                Err(e) => {
                    self.home.outage.begins(&self.home.pool, &e);
                    fault = Some(e);
                    wait = (wait * 2).clamp(FIRST_BACKOFF, LAST_BACKOFF);
                }
            }
        }
    }
}

/// The next batch of a shared queue. Cancel-safe, as both awaits are.
async fn take<Req: Weigh, Rep>(calls: &Mutex<Calls<Req, Rep>>) -> Option<Vec<Call<Req, Rep>>> {
    calls.lock().await.next().await
}
