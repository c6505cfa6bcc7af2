//! A TCP proxy in front of a Redis: like a virtual IP, a load balancer or a slow network.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How the proxy handles replies of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Forwards replies.
    Pass,
    /// Holds all replies until this changes. Requests are forwarded.
    Hold,
    /// Holds all replies on connections that have sent this command.
    HoldAfter(&'static str),
}

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// An action to run before a command is forwarded to Redis.
struct Before {
    command: &'static str,
    act: Box<dyn FnMut() + Send>,
}

impl fmt::Debug for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.command)
    }
}

#[derive(Debug)]
struct Shared {
    target: Mutex<String>,
    answers: watch::Sender<Answers>,
    /// Number of bytes that clients may still send before all connections are closed.
    cut_after: AtomicUsize,
    before: Mutex<Option<Before>>,
    cut: watch::Sender<bool>,
}

impl Proxy {
    /// Starts a proxy to `target` that forwards everything.
    pub async fn start(target: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port can be bound");
        let addr = listener.local_addr().expect("a bound socket has an address").to_string();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            answers: watch::Sender::new(Answers::Pass),
            cut_after: AtomicUsize::new(usize::MAX),
            before: Mutex::default(),
            cut: watch::Sender::default(),
        });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (shared, target) = (accepting.clone(), accepting.target.lock().clone());
                if *shared.cut.borrow() {
                    continue;
                }
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else { return };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    let held = watch::Sender::new(false);
                    let mut cut = shared.cut.subscribe();
                    tokio::select! {
                        () = requests(from_client, to_server, &shared, &held) => {}
                        () = answers(from_server, to_client, &shared, held.subscribe()) => {}
                        _ = cut.wait_for(|cut| *cut) => {}
                    }
                });
            }
        });
        Proxy { addr, shared, task }
    }

    /// Returns `host:port` of the proxy.
    pub fn addr(&self) -> String {
        self.addr.clone()
    }

    /// Directs new connections to `target`. Open connections stay connected to the old one.
    pub fn lead_to(&self, target: String) {
        *self.shared.target.lock() = target;
    }

    /// Sets how replies are handled from now on.
    pub fn set_answers(&self, answers: Answers) {
        self.shared.answers.send_replace(answers);
    }

    /// Runs `act` whenever a client sends this command, before it is forwarded.
    pub fn before(&self, command: &'static str, act: impl FnMut() + Send + 'static) {
        *self.shared.before.lock() = Some(Before { command, act: Box::new(act) });
    }

    /// Closes every connection once clients have sent `bytes` more bytes, and accepts no further ones.
    pub fn cut_after(&self, bytes: usize) {
        self.shared.cut_after.store(bytes, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.cut.send_replace(true);
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    held: &watch::Sender<bool>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if let Answers::HoldAfter(command) = *shared.answers.borrow()
            && buffer[..n].windows(command.len()).any(|bytes| bytes == command.as_bytes())
        {
            held.send_replace(true);
        }
        if let Some(Before { command, act }) = &mut *shared.before.lock()
            && buffer[..n].windows(command.len()).any(|bytes| bytes == command.as_bytes())
        {
            act();
        }
        let left = shared.cut_after.load(Ordering::SeqCst);
        if left != usize::MAX && left <= n {
            shared.cut.send_replace(true);
            return;
        }
        if left != usize::MAX {
            shared.cut_after.fetch_sub(n, Ordering::SeqCst);
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    held: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 1 << 16];
    let mut answers = shared.answers.subscribe();
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let passes = |answers: &Answers| match answers {
            Answers::Pass => true,
            Answers::Hold => false,
            Answers::HoldAfter(_) => !*held.borrow(),
        };
        if answers.wait_for(passes).await.is_err() || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
