//! A worker: a task that owns one long-lived connection and carries coalesced calls, one batch at a time. While
//! a batch is under way the next gathers. Several workers may serve one queue of calls. One whose connection
//! breaks answers the calls of its batch at once, connects again by itself, and never sends a call twice.
//! Meanwhile it leaves the queue to the others; when none of them has a connection either, calls are refused.
//! Knows no key and no script.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::connector::Connection;
use super::fault::{Fault, Outcome};
use super::status::{Backoff, ConnectionStatus, Connections, Group};
use crate::engine::batch::{BatchSize, Call, Calls};

/// How long calls wait for the first attempt to connect again. A server that is gone refuses at once, and one
/// that is there takes a millisecond; but more when the machine is busy or another Redis becomes the master.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);

/// What a worker does with a batch.
pub trait Handler: Send + 'static {
    type Request: BatchSize + Send + 'static;
    type Reply: Send + 'static;

    /// Carries a batch over and answers every call, also when it fails. The fault decides whether the connection is
    /// kept.
    fn handle(
        &mut self,
        connection: &mut Connection,
        batch: Vec<Call<Self::Request, Self::Reply>>,
    ) -> impl Future<Output = Outcome<()>> + Send;
}

/// Where a handler's calls wait.
type CallsOf<H> = Calls<<H as Handler>::Request, <H as Handler>::Reply>;

/// A queue of calls, for the workers that serve it together.
pub struct WorkQueue<H: Handler> {
    calls: Arc<Mutex<CallsOf<H>>>,
    group: Group,
}

impl<H: Handler> WorkQueue<H> {
    /// No workers yet.
    pub fn new(calls: CallsOf<H>) -> WorkQueue<H> {
        WorkQueue { calls: Arc::new(Mutex::new(calls)), group: Group::default() }
    }

    /// One more worker, which has yet to [`run`](Worker::run).
    pub fn worker(&self, connections: Arc<Connections>, handler: H) -> Worker<H> {
        let status = ConnectionStatus::new(connections.clone(), self.group.clone());
        Worker { connections, calls: self.calls.clone(), status, handler, closed: false }
    }
}

/// One worker.
pub struct Worker<H: Handler> {
    connections: Arc<Connections>,
    calls: Arc<Mutex<CallsOf<H>>>,
    status: ConnectionStatus,
    handler: H,
    /// The queue takes no more calls, since the engine closes.
    closed: bool,
}

/// What a worker does next.
enum Next<T> {
    Batch(Vec<T>),
    Reconnect,
    End,
}

impl<H: Handler> Worker<H> {
    /// Serves until the engine closes and every call that waited is answered.
    pub async fn run(mut self) {
        let mut backoff = Backoff::new(&self.connections);
        while let Some(mut connection) = self.connect(&mut backoff).await {
            backoff.connected();
            self.status.up();
            loop {
                let batch = match self.next(&connection).await {
                    Next::Batch(batch) => batch,
                    Next::Reconnect => break,
                    Next::End => return,
                };
                if let Err(fault) = self.handler.handle(&mut connection, batch).await {
                    self.connections.note(&connection, &fault);
                    if fault.reconnect {
                        tracing::debug!(pool = &*self.connections.pool, "a worker connects again: {fault}");
                        break;
                    }
                }
            }
            self.status.down();
            backoff.broke();
        }
    }

    async fn next(&mut self, connection: &Connection) -> Next<Call<H::Request, H::Reply>> {
        loop {
            let closing = self.connections.closing.clone();
            tokio::select! {
                biased;
                () = connection.lost.cancelled() => return Next::Reconnect,
                () = closing.cancelled(), if !self.closed => self.close().await,
                batch = take(&self.calls) => return match batch {
                    Some(batch) => Next::Batch(batch),
                    None => Next::End,
                },
            }
        }
    }

    async fn close(&mut self) {
        self.calls.lock().await.close();
        self.closed = true;
    }

    /// Connects, again and again. Calls that no other worker can serve meanwhile are answered with the reason.
    /// `None` when the engine closes.
    async fn connect(&mut self, backoff: &mut Backoff) -> Option<Connection> {
        let mut fault = None::<Fault>;
        loop {
            let attempt = {
                let connections = self.connections.clone();
                let mut attempt = pin!(async {
                    backoff.wait().await;
                    connections.connect().await
                });
                let mut first = pin!(tokio::time::sleep(FIRST_ATTEMPT));
                // Whether calls wait for this attempt.
                let mut waits = fault.is_none();
                loop {
                    let closing = self.connections.closing.clone();
                    tokio::select! {
                        biased;
                        attempt = &mut attempt => break attempt,
                        () = closing.cancelled(), if !self.closed => self.close().await,
                        () = &mut first, if waits => waits = false,
                        batch = take_unserved(&self.calls, &self.status), if !waits => {
                            let fault = fault.clone().unwrap_or_else(|| Fault::away("the connection was lost"));
                            for call in batch? {
                                // A caller that has left needs no answer.
                                let _ = call.split().1.send(Err(fault.clone().into()));
                            }
                        }
                    }
                }
            };
            match attempt {
                Ok(connection) => return Some(connection),
                Err(e) => {
                    self.connections.failed(&e);
                    fault = Some(e);
                    backoff.lengthen();
                }
            }
        }
    }
}

/// The next batch of a shared queue. Cancel-safe, as both awaits are.
async fn take<Req: BatchSize, Rep>(calls: &Mutex<Calls<Req, Rep>>) -> Option<Vec<Call<Req, Rep>>> {
    calls.lock().await.next().await
}

/// The same for a worker that can only refuse calls: none is taken while another of its group is up. Cancel-safe
/// too.
async fn take_unserved<Req: BatchSize, Rep>(
    calls: &Mutex<Calls<Req, Rep>>,
    status: &ConnectionStatus,
) -> Option<Vec<Call<Req, Rep>>> {
    loop {
        status.none_up().await;
        tokio::select! {
            biased;
            // Also lets go of the queue, which the other one needs.
            () = status.some_up() => {}
            batch = take(calls) => return batch,
        }
    }
}
