//! An endpoint for pushed queues: responds as a test says, records each request with its arrival time, and can hang,
//! reset, go down and come up again.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;

use crate::support::wait::TIMEOUT;

/// Larger than any request of a test.
const MAX_REQUEST: usize = 4 << 20;

/// A received request.
#[derive(Clone, Debug)]
pub struct Arrived {
    pub method: String,
    /// The path and the query.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// When its last byte arrived.
    pub at: Instant,
    /// Number of requests in flight at that time, itself included.
    pub in_flight: usize,
    /// Number of requests that had been answered or abandoned before.
    pub answered: usize,
}

impl Arrived {
    /// Returns a header's value, or an empty text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the id of its job.
    pub fn job_id(&self) -> &str {
        self.header("webhook-id")
    }

    /// Returns the number of the attempt, from 1.
    #[track_caller]
    pub fn attempt(&self) -> u32 {
        let text = self.header("dormouse-attempt");
        text.parse().unwrap_or_else(|_| panic!("a Dormouse-Attempt was expected, not {text:?} in {self:?}"))
    }

    /// Returns its body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Response to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These bytes, including the status line; the connection stays open if they have a `Content-Length`.
    Bytes(Vec<u8>),
    /// No response, until the caller disconnects.
    Hang,
    /// A connection reset.
    Reset,
    /// The connection is closed without a response.
    Close,
    /// These bytes, once [`Receiver::release`] allows it.
    Held(Vec<u8>),
    /// Only these bytes, until the caller disconnects.
    Part(Vec<u8>),
    /// These bytes, after this time.
    Late(Duration, Vec<u8>),
    /// 200, while the gate of [`Receiver::answer_when_told`] is open.
    Gated,
}

impl Answer {
    /// A status without a body.
    pub fn status(status: u16) -> Answer {
        Answer::with(status, &[], "")
    }

    /// A status with headers and a body.
    pub fn with(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Answer {
        let body = body.as_ref();
        let mut bytes = format!("HTTP/1.1 {status} Scripted\r\n").into_bytes();
        for (name, value) in headers {
            bytes.extend(format!("{name}: {value}\r\n").into_bytes());
        }
        bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes());
        bytes.extend(body);
        Answer::Bytes(bytes)
    }

    /// 200 with the beginning of a longer body, whose rest never arrives.
    pub fn part(body: &str) -> Answer {
        let length = body.len() + 1;
        Answer::Part(format!("HTTP/1.1 200 Scripted\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes())
    }

    /// Delays the response by this time.
    pub fn after(self, time: Duration) -> Answer {
        match self {
            Answer::Bytes(bytes) => Answer::Late(time, bytes),
            other => other,
        }
    }

    /// Holds the response until [`Receiver::release`].
    pub fn held(self) -> Answer {
        match self {
            Answer::Bytes(bytes) => Answer::Held(bytes),
            other => other,
        }
    }
}

type Script = Box<dyn FnMut(&Arrived) -> Answer + Send>;

struct Shared {
    script: Mutex<Script>,
    arrived: Mutex<Vec<Arrived>>,
    in_flight: Mutex<InFlight>,
    /// Notified when a request arrives or is answered.
    changed: Notify,
    held: Semaphore,
    gate: watch::Sender<bool>,
    connections: Mutex<usize>,
}

/// Holds back the responses of a receiver, or lets them pass.
pub struct Gate(Arc<Shared>);

impl Gate {
    pub fn close(&self) {
        self.0.gate.send_replace(false);
    }

    pub fn open(&self) {
        self.0.gate.send_replace(true);
    }
}

#[derive(Clone, Copy, Default)]
struct InFlight {
    now: usize,
    most: usize,
    answered: usize,
}

/// A running endpoint. Stops on drop.
pub struct Receiver {
    addr: SocketAddr,
    shared: Arc<Shared>,
    /// Dropping it closes the listener and every connection.
    up: Option<(watch::Sender<()>, JoinHandle<()>)>,
    /// Keeps the port while it is down.
    port: Option<TcpSocket>,
}

impl Receiver {
    /// Starts on a free port of 127.0.0.1. Responds with 200 until a test changes that.
    pub async fn start() -> Receiver {
        Receiver::start_at("127.0.0.1:0").await
    }

    /// Starts at an address of this machine.
    pub async fn start_at(addr: &str) -> Receiver {
        let shared = Arc::new(Shared {
            script: Mutex::new(Box::new(|_| Answer::status(200))),
            arrived: Mutex::default(),
            in_flight: Mutex::default(),
            changed: Notify::new(),
            held: Semaphore::new(0),
            gate: watch::Sender::new(true),
            connections: Mutex::default(),
        });
        let listener = TcpListener::bind(addr).await.unwrap_or_else(|e| panic!("{addr} can be bound: {e}"));
        let addr = listener.local_addr().expect("it is bound");
        let up = Some(serve(listener, shared.clone()));
        Receiver { addr, shared, up, port: None }
    }

    /// Returns its address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Sets the function that answers each request.
    pub fn answer(&self, script: impl FnMut(&Arrived) -> Answer + Send + 'static) {
        *self.shared.script.lock() = Box::new(script);
    }

    /// Sets responses to be used in turn; then the last is repeated.
    pub fn answer_in_turn(&self, answers: impl IntoIterator<Item = Answer>) {
        let mut answers: VecDeque<Answer> = answers.into_iter().collect();
        self.answer(move |_| {
            let last = answers.len() == 1;
            if last { answers.front().cloned() } else { answers.pop_front() }.expect("one answer at least")
        });
    }

    /// Responds with 200 while the gate is open, as it is at first, and holds requests while it is closed.
    pub fn answer_when_told(&self) -> Gate {
        self.answer(|_| Answer::Gated);
        Gate(self.shared.clone())
    }

    /// Releases `answers` held responses, present or future.
    pub fn release(&self, answers: usize) {
        self.shared.held.add_permits(answers);
    }

    /// Returns the requests received so far.
    pub fn arrived(&self) -> Vec<Arrived> {
        self.shared.arrived.lock().clone()
    }

    /// Returns the number of requests received so far.
    pub fn count(&self) -> usize {
        self.shared.arrived.lock().len()
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        *self.shared.connections.lock()
    }

    /// Returns the number of requests that are in flight now.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.lock().now
    }

    /// Returns the maximum that were ever in flight together.
    pub fn most_in_flight(&self) -> usize {
        self.shared.in_flight.lock().most
    }

    /// Waits until this number of requests has been received in total, and returns all.
    pub async fn until(&self, requests: usize) -> Vec<Arrived> {
        let what = format!("{requests} requests at the receiver");
        self.until_so(&what, |receiver| receiver.count() >= requests).await;
        self.arrived()
    }

    /// Waits for a condition, which is checked whenever a request arrives or is answered.
    pub async fn until_so(&self, what: &str, holds: impl Fn(&Receiver) -> bool) {
        let looking = async {
            loop {
                let mut changed = std::pin::pin!(self.shared.changed.notified());
                changed.as_mut().enable();
                if holds(self) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(TIMEOUT, looking).await.is_err() {
            panic!("within {TIMEOUT:?} there should be {what}; {} requests have come", self.count());
        }
    }

    /// Closes the listener and all connections.
    pub async fn down(&mut self) {
        if let Some((up, task)) = self.up.take() {
            drop(up);
            let _ = task.await;
            self.port = Some(bound(self.addr));
        }
    }

    /// Listens again, at the same address.
    pub async fn up(&mut self) {
        if let Some(port) = self.port.take() {
            let listener = port.listen(1024).expect("the port is ours");
            self.up = Some(serve(listener, self.shared.clone()));
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.up {
            task.abort();
        }
    }
}

/// Returns an address without a listener: its port stays taken until the process ends.
pub fn nobody() -> SocketAddr {
    let socket = bound("127.0.0.1:0".parse().expect("a literal"));
    let addr = socket.local_addr().expect("it is bound");
    std::mem::forget(socket);
    addr
}

/// Returns a socket that has a port and does not listen.
fn bound(addr: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket");
    socket.bind(addr).expect("the port is ours");
    socket
}

fn serve(listener: TcpListener, shared: Arc<Shared>) -> (watch::Sender<()>, JoinHandle<()>) {
    let (up, mut ended) = watch::channel(());
    let task = tokio::spawn(async move {
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = ended.changed() => return, // an error: the sender is gone
            };
            let Ok((stream, _)) = stream else { continue };
            *shared.connections.lock() += 1;
            let (shared, mut ended) = (shared.clone(), ended.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = talk(stream, &shared) => {}
                    _ = ended.changed() => {}
                }
            });
        }
    });
    (up, task)
}

/// Counts a request in flight, until dropped.
struct Flying<'a>(&'a Shared);

impl<'a> Flying<'a> {
    /// Counts a request, and records in it how many were in flight when it arrived.
    fn new(shared: &'a Shared, request: &mut Arrived) -> Flying<'a> {
        let mut in_flight = shared.in_flight.lock();
        in_flight.now += 1;
        in_flight.most = in_flight.most.max(in_flight.now);
        (request.in_flight, request.answered) = (in_flight.now, in_flight.answered);
        Flying(shared)
    }
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.0.in_flight.lock();
        in_flight.now -= 1;
        in_flight.answered += 1;
        drop(in_flight);
        self.0.changed.notify_waiters();
    }
}

/// Serves one connection until either side ends it.
async fn talk(mut stream: TcpStream, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let mut read = Vec::new();
    while let Some(mut request) = receive(&mut stream, &mut read).await {
        let flying = Flying::new(shared, &mut request);
        let answer = (shared.script.lock())(&request);
        shared.arrived.lock().push(request);
        shared.changed.notify_waiters();
        let bytes = match answer {
            Answer::Bytes(bytes) => Some(bytes),
            Answer::Held(bytes) => tokio::select! {
                permit = shared.held.acquire() => {
                    permit.expect("it is never closed").forget();
                    Some(bytes)
                }
                () = gone(&mut stream) => None,
            },
            Answer::Late(after, bytes) => tokio::select! {
                () = tokio::time::sleep(after) => Some(bytes),
                () = gone(&mut stream) => None,
            },
            Answer::Gated => {
                let mut gate = shared.gate.subscribe();
                let opened = async { gate.wait_for(|open| *open).await.is_ok() };
                tokio::select! {
                    opened = opened => opened.then(|| ok().to_vec()),
                    () = gone(&mut stream) => None,
                }
            }
            Answer::Hang => {
                gone(&mut stream).await;
                None
            }
            Answer::Part(bytes) => {
                let _ = stream.write_all(&bytes).await;
                gone(&mut stream).await;
                None
            }
            Answer::Reset => {
                let _ = stream.set_zero_linger();
                None
            }
            Answer::Close => None,
        };
        let Some(bytes) = bytes else { return };
        // Counted as answered before the caller can see the response: its next request may follow at once.
        drop(flying);
        if stream.write_all(&bytes).await.is_err() || !has_length(&bytes) {
            return;
        }
    }
}

fn ok() -> &'static [u8] {
    b"HTTP/1.1 200 Scripted\r\nContent-Length: 0\r\n\r\n"
}

/// Completes when the peer has closed the connection. It sends nothing before it gets a response.
async fn gone(stream: &mut TcpStream) {
    let mut byte = [0];
    let _ = stream.read(&mut byte).await;
}

fn has_length(answer: &[u8]) -> bool {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(answer, |end| &answer[..end]);
    let head = String::from_utf8_lossy(head).to_lowercase();
    head.contains("\r\ncontent-length:") && !head.contains("\r\nconnection: close")
}

/// Reads the next request of a connection. `read` keeps surplus bytes.
async fn receive(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<Arrived> {
    loop {
        if let Some((request, used)) = parse(read) {
            read.drain(..used);
            return Some(request);
        }
        assert!(read.len() < MAX_REQUEST, "a request without end came");
        if stream.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
}

fn parse(read: &[u8]) -> Option<(Arrived, usize)> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&read[..end]);
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_bytes(value.trim().as_bytes());
        headers.append(name.expect("a header's name"), value.expect("a header's value"));
    }
    assert!(!headers.contains_key("transfer-encoding"), "a job's length is known: {head}");
    let length = headers.get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
    let all = end + 4 + length.unwrap_or(0);
    let body = read.get(end + 4..all)?.to_vec();
    let at = Instant::now();
    Some((Arrived { method, target, headers, body, at, in_flight: 0, answered: 0 }, all))
}
