//! An endpoint for pushed queues, on the benchmark's own clock: it responds with 200 at once, records when each job
//! arrived, and can be down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Outcome;
use super::ledger::Ledger;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A running endpoint.
pub struct Receiver {
    addr: SocketAddr,
    shared: Arc<Shared>,
    up: Option<(CancellationToken, JoinHandle<()>)>,
}

struct Shared {
    ledger: Arc<Ledger>,
    /// Arrival of each request, and the number of its job.
    arrived: Mutex<Vec<(Instant, usize)>>,
}

impl Receiver {
    /// Starts an endpoint on a free port, which also records each job in the ledger.
    pub async fn start(ledger: Arc<Ledger>) -> Outcome<Receiver> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared { ledger, arrived: Mutex::default() });
        let up = Some(serve(listener, &shared));
        Ok(Receiver { addr, shared, up })
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }

    /// Returns the arrival of each request, with the number of its job.
    pub fn arrived(&self) -> Vec<(Instant, usize)> {
        self.shared.arrived.lock().clone()
    }

    /// Stops listening, and closes every connection.
    pub async fn down(&mut self) -> Outcome {
        if let Some((up, task)) = self.up.take() {
            up.cancel();
            task.await?;
        }
        Ok(())
    }

    /// Listens again.
    pub async fn up(&mut self) -> Outcome {
        self.up = Some(serve(TcpListener::bind(self.addr).await?, &self.shared));
        Ok(())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some((up, _)) = &self.up {
            up.cancel();
        }
    }
}

fn serve(listener: TcpListener, shared: &Arc<Shared>) -> (CancellationToken, JoinHandle<()>) {
    let (up, shared) = (CancellationToken::new(), shared.clone());
    let ended = up.clone();
    let task = tokio::spawn(async move {
        while let Some(Ok((stream, _))) = ended.run_until_cancelled(listener.accept()).await {
            let (shared, ended) = (shared.clone(), ended.clone());
            tokio::spawn(async move { ended.run_until_cancelled(talk(stream, &shared)).await });
        }
    });
    (up, task)
}

async fn talk(mut stream: TcpStream, shared: &Shared) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut read = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
        while let Some((job, used)) = parse(&read) {
            shared.ledger.received(job);
            shared.arrived.lock().push((Instant::now(), job));
            read.drain(..used);
            stream.write_all(ANSWER).await.ok()?;
        }
    }
}

/// Returns the number in the first request's body, and the length of the request; `None` if it is incomplete.
fn parse(read: &[u8]) -> Option<(usize, usize)> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&read[..end]).ok()?;
    let length = head.lines().filter_map(|line| line.split_once(':'));
    let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let all = end + length.next()?.1.trim().parse::<usize>().ok()?;
    let body = std::str::from_utf8(read.get(end..all)?).ok()?;
    // Any other body counts as an unknown job; the right one is then missing.
    Some((body.parse().unwrap_or(usize::MAX), all))
}
