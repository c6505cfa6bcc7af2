//! A TCP proxy between a server and its Redis that adds latency, or lets nothing through for a while.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// A running proxy. Stops on drop.
pub struct SlowProxy {
    addr: SocketAddr,
    hangs: watch::Sender<bool>,
}

impl SlowProxy {
    /// Starts a proxy for `target` that delays bytes by half of `round_trip` in each direction.
    pub async fn start(target: String, round_trip: Duration) -> SlowProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let (hangs, hung) = watch::channel(false);
        tokio::spawn(async move {
            let mut ended = hung.clone();
            loop {
                let client = tokio::select! {
                    client = listener.accept() => client,
                    _ = ended.wait_for(|_| false) => return, // an error: the proxy was dropped
                };
                let Ok((client, _)) = client else { return };
                let (target, hung) = (target.clone(), hung.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else { return };
                    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
                    let ((client_read, client_write), (server_read, server_write)) =
                        (client.into_split(), server.into_split());
                    let there = pass(client_read, server_write, round_trip / 2, hung.clone());
                    let back = pass(server_read, client_write, round_trip / 2, hung);
                    let _ = tokio::join!(there, back);
                });
            }
        });
        SlowProxy { addr, hangs }
    }

    /// Returns `host:port`.
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// Holds all bytes, also on new connections, or releases them.
    pub fn hang(&self, hangs: bool) {
        self.hangs.send_replace(hangs);
    }
}

/// Forwards bytes, each `delay` after it arrived, until either side ends or the proxy is dropped.
async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    delay: Duration,
    mut hung: watch::Receiver<bool>,
) -> io::Result<()> {
    let (tell, mut come) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 || tell.send((Instant::now() + delay, buffer[..count].to_vec())).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let write = async move {
        while let Some((when, bytes)) = come.recv().await {
            tokio::time::sleep_until(when).await;
            let gone = |_| io::Error::other("the proxy was dropped");
            hung.wait_for(|hangs| !hangs).await.map_err(gone)?;
            to.write_all(&bytes).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}
