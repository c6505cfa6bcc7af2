//! Random conversations with the real binary, on both ports and both stores. No reply is an undocumented 5xx, nothing
//! panics or hangs, and the server's memory, sockets and waiting consumers return to their initial state.
//!
//! Runs some thousands of requests by default. For more, on each store: `WIRE_FUZZ_REQUESTS=500000 tests/run -P long
//! random_conversations`. `WIRE_FUZZ_SECONDS` limits the time, and `WIRE_FUZZ_SEED` repeats a run, except for the
//! interleaving of conversations.

mod conversation;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::until_status;
use crate::support::client::{create_token, data, request, send};
use crate::support::process::Process;
use crate::support::servers::{Store, on_each_store};
use crate::support::wait::{TIMEOUT, until};
use conversation::{Conversation, Known, Leave, Port, Random, conversation};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Default number of requests on each store.
const REQUESTS: usize = 6_000;
/// Default limit of the time of a run.
const SECONDS: usize = 100;
/// Number of concurrent conversations.
const CLIENTS: usize = 24;
/// Allowed growth of memory from the first quarter of the requests to the end. By then the caches, the metrics of
/// queues and the store's buffers have not all reached their limits.
const GROWTH_KB: usize = 48 * 1024;
/// Conversations that once broke the server, as printed by a failure.
const REPLAYED: &[(Port, &[u8])] = &[
    // Refused before the body is requested.
    (Port::Api, b"PUT /ns/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"),
];
/// Number of ids kept, so that conversations can name existing jobs.
const KEPT_IDS: usize = 200;

fn setting(name: &str, usual: usize) -> usize {
    let Ok(text) = std::env::var(name) else { return usual };
    text.parse().unwrap_or_else(|e| panic!("{name} should be a number ({e}), not {text:?}"))
}

/// A server process and its environment.
struct Stand {
    process: Process,
    dir: TempDir,
    _store: Store,
}

/// Addresses of that process, and access to its state.
struct Target {
    pid: u32,
    api: SocketAddr,
    admin: SocketAddr,
    token: String,
    limited: String,
}

impl Target {
    async fn start(store: Store) -> (Stand, Target) {
        let dir = TempDir::new().expect("a temporary directory");
        // Jobs end within seconds, so that the final measurement does not include remaining jobs.
        let toml = format!(
            "LogDir = \"logs\"\nLogFormat = \"json\"\nTTLSecond = 10\nTTRSecond = 2\n{}",
            store.toml()
        );
        std::fs::write(dir.path().join("c.toml"), toml).expect("it can be written");
        let env = [("DORMOUSE_LOG_DIR", "logs")];
        let process = Process::start(dir.path(), &["-c", "c.toml"], &env);
        let log = dir.path().join("logs/error.log");
        let mut addresses = None;
        until("the server says where it serves", async || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let line = said.lines().find(|line| line.contains("serving")).map(str::to_owned);
            let line: Option<serde_json::Value> = line.and_then(|line| serde_json::from_str(&line).ok());
            addresses = line.map(|line| {
                ["api", "admin"].map(|key| line[key].as_str().expect("an address").parse().expect("one"))
            });
            addresses.is_some()
        })
        .await;
        let [api, admin] = addresses.expect("it was waited for");
        let (token, limited) = (create_token(admin, "ns").await, create_token(admin, "ns").await);
        let target = Target { pid: process.pid(), api, admin, token, limited };
        (Stand { process, dir, _store: store }, target)
    }

    fn addr(&self, port: Port) -> SocketAddr {
        match port {
            Port::Api => self.api,
            Port::Admin => self.admin,
        }
    }

    /// Returns the resident memory in KB.
    fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .expect("the server should be alive");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a live process has memory");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number of KB")
    }

    /// Returns the number of open sockets.
    fn sockets(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).expect("it is alive");
        let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    }

    /// Returns the memory in use after unused memory was released.
    async fn settled_memory(&self, enough: usize) -> usize {
        let began = Instant::now();
        let mut least = self.memory();
        while least > enough && began.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(200)).await;
            // An allocator releases memory while it is used.
            send(request("GET", &format!("http://{}/ping", self.api), "")).await.expect(200);
            least = least.min(self.memory());
        }
        least
    }

    /// Publishes, consumes and acks. Returns how long the three took.
    async fn serves(&self, queue: &str) -> Duration {
        let began = Instant::now();
        let url = format!("http://{}/api/ns/{queue}", self.api);
        send(request("PUT", &format!("{url}?ttl=60"), &self.token).body("alive")).await.expect(201);
        let job = send(request("GET", &format!("{url}?timeout=20"), &self.token)).await.expect(200);
        assert_eq!(job.data(), b"alive", "another job than the one published: {:?}", data(&job.json));
        let ack = format!("{url}/job/{}", job.job_id());
        send(request("DELETE", &ack, &self.token)).await.expect(204);
        began.elapsed()
    }
}

/// Results of the conversations.
#[derive(Default)]
struct Tally {
    requests: AtomicUsize,
    /// Number of replies by port and status.
    answers: Mutex<BTreeMap<(&'static str, u16), usize>>,
    ids: Mutex<Vec<String>>,
    /// Internal errors, each with its conversation. The log must explain them.
    failed: Mutex<Vec<String>>,
    broken: Mutex<Option<String>>,
    stop: AtomicBool,
}

impl Tally {
    fn break_off(&self, why: String) {
        self.broken.lock().get_or_insert(why);
        self.stop.store(true, Ordering::SeqCst);
    }

    fn print(&self) {
        for ((port, status), count) in self.answers.lock().iter() {
            println!("{port:>8} {status} {count:>8}");
        }
    }

    /// Records the replies. Fails with the reason if one is invalid.
    fn note(&self, conversation: &Conversation, read: &[u8], in_order: bool) -> Result<(), String> {
        let port = if conversation.port == Port::Api { "public" } else { "admin" };
        let answers = answers(read)?;
        if answers.len() > conversation.requests + 40 {
            return Err(format!("{} answers to {} requests", answers.len(), conversation.requests));
        }
        // A client sends its next request on a connection that it was not asked to close, and would get no reply. A
        // reset discards replies that the client has not read.
        let all_sent = conversation.tidy && conversation.leave == Leave::Read && in_order;
        let told = answers.last().is_some_and(|answer| answer.last);
        if all_sent && answers.len() < conversation.requests && !told {
            return Err(format!(
                "only {} of {} requests were answered",
                answers.len(),
                conversation.requests
            ));
        }
        for answer in answers {
            *self.answers.lock().entry((port, answer.status)).or_default() += 1;
            let says = || format!("{}: {}", answer.status, answer.body.escape_ascii());
            if answer.status == 500 && answer.body.starts_with(b"{\"error\":\"internal error\",") {
                self.failed.lock().push(format!("{}\n{}", says(), conversation.literal()));
            } else if answer.status >= 500 && !explained(&answer) {
                return Err(says());
            }
            if let Ok(body) = std::str::from_utf8(answer.body)
                && let Some(id) = body.split("\"job_id\":\"").nth(1).and_then(|rest| rest.split('"').next())
            {
                let mut ids = self.ids.lock();
                let at = self.requests.load(Ordering::Relaxed) % KEPT_IDS;
                if ids.len() < KEPT_IDS { ids.push(id.to_owned()) } else { ids[at] = id.to_owned() }
            }
        }
        Ok(())
    }
}

/// Whether a line of the log explains internal errors: counting a request against its limit may take a second, which
/// may be too short on a busy machine. Other causes are logged with other errors.
fn explains(line: &serde_json::Value) -> bool {
    let why = line["error"].as_str().unwrap_or_default();
    line["store"] == "tokens and limits" && why.ends_with("a request was not counted in time")
}

/// The only other 5xx responses that are not faults. lmstfy returns 500 to a POST of an existing limit, and so does
/// Dormouse, as recorded. `/ready` gives each store a second, which may be too short on a busy machine. No other limit
/// that causes a 503 is close.
fn explained(answer: &Answer<'_>) -> bool {
    answer.status == 500 && answer.body.ends_with(b") has already exists\"}")
        || answer.status == 503 && answer.body.ends_with(b" does not answer\"}")
}

struct Answer<'a> {
    status: u16,
    /// The server has announced that this is the last response on the connection.
    last: bool,
    body: &'a [u8],
}

/// Parses the responses on a connection. Only the last may be incomplete.
fn answers(mut read: &[u8]) -> Result<Vec<Answer<'_>>, String> {
    let mut answers = Vec::new();
    while !read.is_empty() {
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { break };
        let wrong = |what: &str| format!("an answer {what}: {}", read[..read.len().min(400)].escape_ascii());
        let head = std::str::from_utf8(&read[..end]).map_err(|_| wrong("whose head is not text"))?;
        let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse::<u16>().ok());
        let status = status.ok_or_else(|| wrong("without a status"))?;
        let rest = &read[end + 4..];
        if status < 200 {
            read = rest;
            continue;
        }
        let header = |wanted: &str| {
            let mut headers = head.lines().filter_map(|line| line.split_once(": "));
            headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
        };
        let last = head.starts_with("HTTP/1.0") || head.to_ascii_lowercase().contains("\nconnection: close");
        let length = match (header("content-length"), header("transfer-encoding")) {
            (Some(length), _) => length.parse::<usize>().map_err(|_| wrong("of no length"))?,
            // A large response is produced while it is sent.
            (None, Some("chunked")) => chunks(rest).ok_or_else(|| wrong("whose chunks have no length"))?,
            (None, _) if head.starts_with("HTTP/1.0 200") => rest.len(),
            (None, _) => 0,
        };
        // The response to a HEAD has a length and no body. No body of ours looks like a response.
        let length = if rest.starts_with(b"HTTP/1.") { 0 } else { length };
        let (body, after) = rest.split_at(length.min(rest.len()));
        answers.push(Answer { status, last, body });
        read = after;
    }
    Ok(answers)
}

/// Returns the length of a chunked body: everything, if it is truncated.
fn chunks(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = &text[at.min(text.len())..];
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Some(text.len()) };
        let size =
            std::str::from_utf8(&rest[..end]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok())?;
        at = at.saturating_add(end + 4).saturating_add(size);
        if size == 0 {
            return Some(at);
        }
    }
}

#[test]
fn answers_are_told_apart_by_length_and_by_chunks() {
    let read = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{\r\n\r\n1\r\n}\r\n0\r\n\r\n\
        HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno\
        HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\ncut off";
    let all: Vec<_> =
        answers(read).expect("all are answers").iter().map(|a| (a.status, a.body.len())).collect();
    assert_eq!(all, [(200, 19), (404, 2), (200, 11)], "status and bytes of each");
    let bad = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n{}\r\n";
    assert!(answers(bad).is_err(), "a chunk without a length is no answer of ours");
}

/// Sends everything and reads the replies. Returns them, and whether the connection ended without a reset. Fails if the
/// server does not end it in time.
async fn talk(addr: SocketAddr, conversation: &Conversation) -> Result<(Vec<u8>, bool), String> {
    let stream = TcpStream::connect(addr).await.map_err(|e| format!("no connection: {e}"))?;
    let _ = stream.set_nodelay(true);
    let (mut reader, mut writer) = stream.into_split();
    let leave = conversation.leave;
    let write = async {
        let mut from = 0;
        for to in conversation.pieces.iter().copied().chain([conversation.bytes.len()]) {
            // A server may close as soon as it has read invalid input.
            if writer.write_all(&conversation.bytes[from..to]).await.is_err() {
                break;
            }
            from = to;
            // Makes pieces arrive separately.
            tokio::task::yield_now().await;
        }
        if leave == Leave::Read {
            let _ = writer.shutdown().await;
        }
        writer
    };
    let whole = async {
        if leave != Leave::Read {
            let writer = write.await;
            let stream = reader.reunite(writer).expect("the halves of one stream");
            if leave == Leave::Reset {
                let _ = stream.set_zero_linger();
            }
            return (Vec::new(), true);
        }
        let mut read = Vec::new();
        let (_writer, end) = tokio::join!(write, reader.read_to_end(&mut read));
        (read, end.is_ok())
    };
    tokio::time::timeout(TIMEOUT, whole)
        .await
        .map_err(|_| format!("the connection has not ended after {TIMEOUT:?}"))
}

/// Sends conversations one after another, until there were enough requests.
async fn client(
    client: usize,
    seed: u64,
    enough: usize,
    end: Instant,
    target: Arc<Target>,
    tally: Arc<Tally>,
) {
    for number in 0.. {
        if tally.stop.load(Ordering::SeqCst) || Instant::now() > end {
            return;
        }
        if tally.requests.load(Ordering::Relaxed) >= enough {
            return;
        }
        // Each conversation has its own seed, independent of other clients.
        let mut random = Random::new(seed ^ (client as u64) << 48 ^ number << 8);
        let ids = tally.ids.lock().clone();
        let known = Known { token: target.token.clone(), limited: target.limited.clone(), ids };
        let conversation = conversation(&mut random, &known);
        tally.requests.fetch_add(conversation.requests, Ordering::Relaxed);
        let outcome = match talk(target.addr(conversation.port), &conversation).await {
            Ok((read, in_order)) => tally.note(&conversation, &read, in_order),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            let literal = conversation.literal();
            tally.break_off(format!(
                "{error}\nseed {seed}, client {client}, conversation {number}; its bytes, for `REPLAYED`:\n{literal}"
            ));
            return;
        }
    }
}

/// Runs until there were `enough` requests in total.
async fn throw(target: &Arc<Target>, tally: &Arc<Tally>, seed: u64, enough: usize, end: Instant) {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| tokio::spawn(client(n, seed, enough, end, target.clone(), tally.clone())))
        .collect();
    let thrown = async {
        for client in clients {
            client.await.expect("a client does not panic");
        }
    };
    tokio::pin!(thrown);
    // Meanwhile a valid client must be served.
    let mut slowest = Duration::ZERO;
    loop {
        tokio::select! {
            () = &mut thrown => break,
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        tokio::select! {
            () = &mut thrown => break,
            took = target.serves("honest") => slowest = slowest.max(took),
        }
    }
    let requests = tally.requests.load(Ordering::Relaxed);
    println!(
        "{requests:>8} requests, {:>6} KB, {} sockets; publish, consume and ack beside them in {slowest:?} at most",
        target.memory(),
        target.sockets()
    );
    if let Some(why) = tally.broken.lock().take() {
        tally.print();
        panic!("after {requests} requests: {why}");
    }
}

async fn random_conversations_leave_no_trace(store: Store) {
    let enough = setting("WIRE_FUZZ_REQUESTS", REQUESTS);
    let end = Instant::now() + Duration::from_secs(setting("WIRE_FUZZ_SECONDS", SECONDS) as u64);
    let by_time = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as usize);
    let seed = setting("WIRE_FUZZ_SEED", by_time) as u64;
    println!("WIRE_FUZZ_SEED={seed}");
    let (stand, target) = Target::start(store).await;
    let target = Arc::new(target);
    let tally = Arc::new(Tally::default());
    let (fresh, sockets) = (target.memory(), target.sockets());

    // Fills caches and the store's buffers.
    throw(&target, &tally, seed, enough / 4, end).await;
    let warm = target.memory();
    for part in 1..=8u64 {
        throw(&target, &tally, seed.wrapping_add(part), enough / 4 + enough * 3 / 4 * part as usize / 8, end)
            .await;
    }
    let peak = target.memory();
    tally.print();

    target.serves("after").await;
    let ready = || send(request("GET", &format!("http://{}/ready", target.admin), ""));
    until_status(200, async || ready().await).await;
    let mut metrics = String::new();
    let nobody_waits = async {
        while !metrics.contains("\ndormouse_parked_polls 0\n") {
            tokio::time::sleep(Duration::from_millis(50)).await;
            metrics = send(request("GET", &format!("http://{}/metrics", target.admin), "")).await.text;
        }
    };
    let left = tokio::time::timeout(TIMEOUT, nobody_waits).await;
    let polls = metrics.lines().find(|line| line.starts_with("dormouse_parked_polls"));
    assert!(left.is_ok(), "all clients have left, so no consumer should wait, but: {polls:?}");
    // The server has detected the disconnections by now; some of the sockets belong to a Redis.
    until("the connections are closed", async || target.sockets() <= sockets + 8).await;
    let settled = target.settled_memory(warm + GROWTH_KB).await;
    println!("memory in KB: fresh {fresh}, warm {warm}, at the end {peak}, settled {settled}");
    assert!(
        settled <= warm + GROWTH_KB,
        "{settled} KB after {} requests, {warm} KB after a quarter of them, {fresh} KB before",
        tally.requests.load(Ordering::Relaxed)
    );

    stand.process.signal("TERM");
    let ended = stand.process.ended();
    assert_eq!(ended.status.code(), Some(0), "it stops as always; it said:\n{}", ended.said);
    let logs = ["error.log", "access.log"].map(|name| {
        std::fs::read_to_string(stand.dir.path().join("logs").join(name)).expect("a log is text")
    });
    let mut late = false;
    for line in logs[0].lines().chain(logs[1].lines()) {
        let parsed: serde_json::Value = serde_json::from_str(line)
            .unwrap_or_else(|e| panic!("a line of a log should be JSON ({e}): {line:?}"));
        let level = parsed["level"].as_str().unwrap_or_default();
        let is_explained = explains(&parsed);
        late |= is_explained;
        assert!(matches!(level, "INFO" | "WARN") || is_explained, "nothing failed, but the log says: {line}");
    }
    let failed = tally.failed.lock();
    let first = failed.first().map_or("", String::as_str);
    assert!(failed.is_empty() || late, "{} internal errors without a reason, such as {first}", failed.len());
    drop(failed);
    let warnings: Vec<&str> = logs[0].lines().filter(|line| line.contains("\"WARN\"")).collect();
    assert!(warnings.is_empty(), "nothing to warn of, but: {}", warnings[..warnings.len().min(5)].join("\n"));
    assert!(!logs[0].contains(&target.token), "the token is in error.log");
}

async fn what_broke_it_once_is_answered(store: Store) {
    let (stand, target) = Target::start(store).await;
    for (port, bytes) in REPLAYED {
        let (bytes, pieces) = (bytes.to_vec(), Vec::new());
        let replayed =
            Conversation { port: *port, bytes, requests: 1, pieces, leave: Leave::Read, tidy: false };
        let (read, _) = talk(target.addr(*port), &replayed)
            .await
            .unwrap_or_else(|e| panic!("{e}: {}", replayed.literal()));
        let answers = answers(&read).unwrap_or_else(|e| panic!("{e}: {}", replayed.literal()));
        assert!(!answers.is_empty(), "no answer to {}", replayed.literal());
        for answer in answers {
            assert!(
                answer.status < 500 || explained(&answer),
                "{} for {}",
                answer.status,
                replayed.literal()
            );
        }
    }
    target.serves("after").await;
    stand.process.kill();
}

on_each_store!(random_conversations_leave_no_trace, what_broke_it_once_is_answered);
