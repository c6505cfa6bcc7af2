//! A lane: one long-lived connection that carries coalesced calls, one batch at a time. While a batch is under
//! way the next gathers. Several lanes may share one queue of calls. A lane whose connection breaks answers
//! its callers at once, and heals by itself; it never sends a call twice. Meanwhile it leaves the queue to its
//! siblings; when none of them has a connection either, calls are turned away.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::connector::{Connector, Link};
use super::fault::{Fault, Outcome};
use super::outage::{Kind, Outage, Pause, Place};
use crate::engine::batch::{Call, Calls, Weigh};

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

/// What a lane needs to live.
#[derive(Clone, Debug)]
pub struct Home {
    pub pool: Arc<str>,
    pub connector: Arc<Connector>,
    pub outage: Arc<Outage>,
    pub closing: CancellationToken,
}

/// What lanes of one kind share: a queue of calls, and how many of them are up.
pub struct Siblings<S: Serve> {
    calls: Arc<Mutex<Calls<S::Request, S::Reply>>>,
    kind: Kind,
}

impl<S: Serve> Siblings<S> {
    /// No lanes yet.
    pub fn new(calls: Calls<S::Request, S::Reply>) -> Siblings<S> {
        Siblings { calls: Arc::new(Mutex::new(calls)), kind: Kind::default() }
    }

    /// One more lane, which has yet to [`run`](Lane::run).
    pub fn lane(&self, home: Home, server: S) -> Lane<S> {
        let place = Place::new(home.outage.clone(), self.kind.clone());
        Lane { home, calls: self.calls.clone(), place, server, closed: false }
    }
}

/// One lane.
pub struct Lane<S: Serve> {
    home: Home,
    calls: Arc<Mutex<Calls<S::Request, S::Reply>>>,
    place: Place,
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
    /// Serves until the engine closes and every call that waited is answered.
    pub async fn run(mut self) {
        while let Some(mut link) = self.reconnect().await {
            self.place.up();
            loop {
                let batch = match self.next(&link).await {
                    Next::Batch(batch) => batch,
                    Next::Lost => {
                        self.server.give_up(&Fault::away("the connection was lost"));
                        break;
                    }
                    Next::End => return,
                };
                if let Err(fault) = self.server.serve(&mut link, batch).await
                    && fault.reconnect
                {
                    tracing::debug!(pool = &*self.home.pool, "a lane lost its connection: {}", fault.text());
                    break;
                }
            }
            self.place.down();
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

    /// Connects, again and again. Calls that no sibling can serve meanwhile are answered with the reason.
    /// `None` when the engine closes.
    async fn reconnect(&mut self) -> Option<Link> {
        let (mut pause, mut fault) = (Pause::new(&self.home.outage), None::<Fault>);
        loop {
            let result = {
                let connector = self.home.connector.clone();
                let mut attempt = pin!(async {
                    pause.pass().await;
                    connector.connect().await
                });
                // A server that is gone refuses at once and one that is there takes a millisecond, but more when
                // the machine is busy or Sentinels are asked first: callers are not turned away before that is
                // known.
                let mut patience = pin!(tokio::time::sleep(PATIENCE));
                let mut patient = fault.is_none();
                loop {
                    let closing = self.home.closing.clone();
                    tokio::select! {
                        biased;
                        result = &mut attempt => break result,
                        () = closing.cancelled(), if !self.closed => self.close().await,
                        () = &mut patience, if patient => patient = false,
                        batch = take_unserved(&self.calls, &self.place), if !patient => {
                            let fault = fault.clone().unwrap_or_else(|| Fault::away("the connection was lost"));
                            for call in batch? {
                                // A caller that has left needs no answer.
                                let _ = call.split().1.send(Err(fault.error()));
                            }
                        }
                    }
                }
            };
            match result {
                Ok(link) => return Some(link),
                Err(e) => {
                    self.home.outage.begins(&e);
                    fault = Some(e);
                    pause.lengthen();
                }
            }
        }
    }
}

/// The next batch of a shared queue. Cancel-safe, as both awaits are.
async fn take<Req: Weigh, Rep>(calls: &Mutex<Calls<Req, Rep>>) -> Option<Vec<Call<Req, Rep>>> {
    calls.lock().await.next().await
}

/// The same for a lane that can only turn calls away: none is taken while a sibling is up. Cancel-safe too.
async fn take_unserved<Req: Weigh, Rep>(
    calls: &Mutex<Calls<Req, Rep>>,
    place: &Place,
) -> Option<Vec<Call<Req, Rep>>> {
    loop {
        place.none_up().await;
        tokio::select! {
            biased;
            // Also lets go of the queue, which the sibling needs.
            () = place.some_up() => {}
            batch = take(calls) => return batch,
        }
    }
}
