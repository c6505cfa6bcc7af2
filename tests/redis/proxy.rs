//! A TCP proxy before a Redis: stands where a VIP, a load balancer or a slow network would.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What becomes of the answers of the Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// They go through.
    Pass,
    /// None goes through until this changes. What clients send does.
    Hold,
    /// None goes through on connections on which this command was sent.
    HoldAfter(&'static str),
}

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// What is done before a command goes on to the Redis.
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
    /// How many bytes clients may still send before all connections are cut.
    cut_after: AtomicUsize,
    before: Mutex<Option<Before>>,
    cut: watch::Sender<bool>,
}

impl Proxy {
    /// To `target`, passing everything on.
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

    /// `host:port`.
    pub fn addr(&self) -> String {
        self.addr.clone()
    }

    /// New connections go there. Those that are open stay where they are.
    pub fn lead_to(&self, target: String) {
        *self.shared.target.lock() = target;
    }

    /// From now on.
    pub fn set_answers(&self, answers: Answers) {
        self.shared.answers.send_replace(answers);
    }

    /// From now on does something each time that clients send this command, before it goes on.
    pub fn before(&self, command: &'static str, act: impl FnMut() + Send + 'static) {
        *self.shared.before.lock() = Some(Before { command, act: Box::new(act) });
    }

    /// Cuts every connection once clients have sent so many bytes more, and takes none afterwards.
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
