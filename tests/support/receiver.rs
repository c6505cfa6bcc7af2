//! An endpoint for push in this process: answers as it is told, and remembers what has arrived.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response};
use dormouse::http::connection::serve;
use dormouse::process::tasks::{Failure, Tasks};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::TIMEOUT;

/// More than any test opens.
const MOST_CONNECTIONS: usize = 4096;

/// A request that has arrived.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub at: Instant,
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

impl Delivered {
    /// A header's text; empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// How an endpoint answers: after how long, with which status, headers and body.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub after: Duration,
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl Reply {
    /// At once, without a body.
    pub fn status(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }
}

type Script = dyn Fn(&Delivered) -> Reply + Send + Sync;

#[derive(Default)]
struct Seen {
    delivered: Vec<Delivered>,
    in_flight: usize,
    most: usize,
}

struct Shared {
    script: Mutex<Arc<Script>>,
    seen: Mutex<Seen>,
    changed: Notify,
}

/// It ends when it is dropped.
pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    tasks: Tasks,
}

/// Counts a request as long as it is under way.
struct UnderWay(Arc<Shared>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.seen.lock().in_flight -= 1;
    }
}

impl Receiver {
    /// Says 200 to everything.
    pub async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Receiver::on(listener)
    }

    /// On this port.
    pub fn on(listener: TcpListener) -> Receiver {
        let address = listener.local_addr().expect("it is bound");
        let script: Arc<Script> = Arc::new(|_| Reply::status(200));
        let shared =
            Arc::new(Shared { script: Mutex::new(script), seen: Mutex::default(), changed: Notify::new() });
        let of_handler = shared.clone();
        let handler = move |uri: axum::http::Uri, headers: HeaderMap, body: Bytes| {
            let shared = of_handler.clone();
            async move {
                let body = String::from_utf8_lossy(&body).into_owned();
                let delivered = Delivered { at: Instant::now(), path: uri.to_string(), headers, body };
                let under_way = {
                    let mut seen = shared.seen.lock();
                    seen.in_flight += 1;
                    seen.most = seen.most.max(seen.in_flight);
                    seen.delivered.push(delivered.clone());
                    UnderWay(shared.clone())
                };
                shared.changed.notify_waiters();
                let script = shared.script.lock().clone();
                let reply = script(&delivered);
                tokio::time::sleep(reply.after).await;
                drop(under_way);
                let mut response = Response::builder().status(reply.status);
                for (name, value) in reply.headers {
                    response = response.header(name, value);
                }
                response.body(Body::from(reply.body)).expect("a valid answer")
            }
        };
        let router = Router::new().fallback(handler);
        let tasks = Tasks::new(Failure::default());
        tasks.spawn(serve("receiver", listener, router, MOST_CONNECTIONS, tasks.clone()));
        Receiver { address, shared, tasks }
    }

    /// Where a path of it is.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// From now on it does this.
    pub fn does(&self, script: impl Fn(&Delivered) -> Reply + Send + Sync + 'static) {
        *self.shared.script.lock() = Arc::new(script);
    }

    /// What has arrived so far.
    pub fn delivered(&self) -> Vec<Delivered> {
        self.shared.seen.lock().delivered.clone()
    }

    /// How many requests were under way at most.
    pub fn most(&self) -> usize {
        self.shared.seen.lock().most
    }

    /// Returns when so many have arrived.
    pub async fn until(&self, count: usize) -> Vec<Delivered> {
        let arrived = async {
            loop {
                let changed = self.shared.changed.notified();
                let delivered = self.delivered();
                if delivered.len() >= count {
                    return delivered;
                }
                changed.await;
            }
        };
        tokio::time::timeout(TIMEOUT, arrived).await.unwrap_or_else(|_| {
            panic!("{count} requests should arrive within {TIMEOUT:?}, there are {}", self.delivered().len())
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}
