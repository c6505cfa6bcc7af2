//! A Redis that stalls and continues (a fork, a slow disk, a suspended machine) under a load of publishers and
//! impatient consumers. Requests that failed during the stall must have no effect after it: no job is burned for a
//! consumer that has disconnected, no publish is stored after a 5xx, no acked job is delivered again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::client::{create_token, data, job_id};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;
use parking_lot::Mutex;
use redis::Commands;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Jobs with one try: a burned one is never seen again.
const ONCE: &str = "once";
/// Jobs with many tries and a short ttr: redelivered until acked.
const AGAIN: &str = "again";
const CONSUMERS: usize = 200;
const PUBLISHERS: usize = 20;
/// Jobs in each queue at the start, so that some can be burned.
const BACKLOG: usize = 3_000;
/// How long a consumer works on a job before the queues are drained.
const WORK: Duration = Duration::from_millis(300);
/// The ttr of [`AGAIN`].
const TTR: Duration = Duration::from_secs(2);
/// Within 2 s on an idle machine, as measured by `cargo bench --bench recovery`. This machine also runs other tests.
const RESUMED: Duration = Duration::from_secs(5);
/// Publishers wait long for their response.
const PATIENT: Duration = Duration::from_secs(20);
/// A response that arrives this soon after its consumer has disconnected was already in transit, which no server can
/// know. A later one was sent to a consumer known to have disconnected.
const ON_ITS_WAY: Duration = Duration::from_millis(500);
/// The verbs that must work again after the stall.
const VERBS: [&str; 3] = ["publish", "consume", "ack"];
/// Maximum time for draining. It is exceeded only if jobs are stuck.
const DRAIN: Duration = Duration::from_secs(100);

/// Duration of the stall, and timeout of a consumer.
#[derive(Clone, Copy)]
struct Stall {
    lasts: Duration,
    patience: Duration,
}

/// Observed responses. A job is identified by its body.
#[derive(Default)]
struct Told {
    /// The status of each publish; 0 without a response.
    published: HashMap<String, u16>,
    /// When the poll of each delivery was sent.
    delivered: HashMap<String, Vec<Instant>>,
    /// When the first 204 arrived.
    acked: HashMap<String, Instant>,
    /// Delays between a consumer's disconnect and jobs that it still received.
    on_their_way: Vec<Duration>,
    /// Delay of the first success of each verb for a request that began after the stall.
    resumed: BTreeMap<&'static str, Duration>,
}

struct Fleet {
    addr: SocketAddr,
    token: String,
    patience: Duration,
    told: Mutex<Told>,
    number: AtomicUsize,
    publishing: AtomicBool,
    /// Consumers only consume and ack, without working.
    draining: AtomicBool,
    consuming: AtomicBool,
    over: Mutex<Option<Instant>>,
}

/// A request after its client's timeout.
struct Left {
    stream: TcpStream,
    read: Vec<u8>,
    asked: Instant,
}

impl Left {
    /// Closes the client's half of the connection, so that the server can notice, and reads on: this distinguishes
    /// responses in transit from responses sent later. Returns a response that still arrives, and its delay.
    async fn read_on(mut self) -> Option<((u16, Vec<u8>), Duration)> {
        let rest = async {
            self.stream.shutdown().await.ok()?;
            let since = Instant::now();
            while whole(&self.read).is_none() && self.stream.read_buf(&mut self.read).await.ok()? > 0 {}
            Some(since)
        };
        let since = tokio::time::timeout(PATIENT, rest).await.ok()??;
        Some((whole(&self.read)?, since.elapsed()))
    }
}

impl Fleet {
    /// Sends a request over a new connection. `None` without a complete response in time.
    async fn ask(&self, method: &str, path: &str, body: &str, patience: Duration) -> Option<(u16, Vec<u8>)> {
        self.ask_or_leave(method, path, body, patience).await.ok()
    }

    /// Like `ask`. `Err` after the timeout, without [`Left`] if the connection was aborted.
    async fn ask_or_leave(
        &self,
        method: &str,
        path: &str,
        body: &str,
        patience: Duration,
    ) -> Result<(u16, Vec<u8>), Option<Left>> {
        let head = format!(
            "{method} /api/ns/{path} HTTP/1.1\r\nHost: x\r\nX-Token: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        let asked = Instant::now();
        let mut stream = TcpStream::connect(self.addr).await.map_err(|_| None)?;
        let mut read = Vec::new();
        let talk = async {
            stream.write_all(head.as_bytes()).await.ok()?;
            while whole(&read).is_none() {
                if stream.read_buf(&mut read).await.ok()? == 0 {
                    break;
                }
            }
            Some(())
        };
        let answered = tokio::time::timeout(patience, talk).await;
        match (whole(&read), answered) {
            (Some(answer), _) => Ok(answer),
            (None, Err(_)) => Err(Some(Left { stream, read, asked })),
            (None, Ok(_)) => Err(None),
        }
    }

    /// Records the first success of a verb after the stall.
    fn works(&self, verb: &'static str, asked: Instant) {
        if let Some(over) = *self.over.lock()
            && asked >= over
        {
            self.told.lock().resumed.entry(verb).or_insert_with(|| over.elapsed());
        }
    }

    async fn publish(&self, queue: &str, jobs: usize) {
        let tries = if queue == ONCE { 1 } else { 9 };
        let first = self.number.fetch_add(jobs, Ordering::Relaxed);
        let bodies: Vec<String> = (first..first + jobs).map(|n| format!("\"{queue}-{n}\"")).collect();
        let (path, body) = match &bodies[..] {
            [one] => (format!("{queue}?tries={tries}"), one.clone()),
            all => (format!("{queue}/bulk?tries={tries}"), format!("[{}]", all.join(","))),
        };
        let asked = Instant::now();
        let status = self.ask("PUT", &path, &body, PATIENT).await.map_or(0, |(status, _)| status);
        if status == 201 {
            self.works("publish", asked);
        }
        self.told.lock().published.extend(bodies.into_iter().map(|body| (body, status)));
    }

    async fn publisher(self: Arc<Fleet>) {
        for round in 0.. {
            if !self.publishing.load(Ordering::SeqCst) {
                return;
            }
            let queue = if round % 2 == 0 { ONCE } else { AGAIN };
            self.publish(queue, if round % 5 == 0 { 3 } else { 1 }).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Polls, works, acks. A third of the polls do not wait, the others are short.
    async fn consumer(self: Arc<Fleet>, number: usize) {
        let mut acks = JoinSet::new();
        while self.consuming.load(Ordering::SeqCst) {
            let queue = if number.is_multiple_of(2) { ONCE } else { AGAIN };
            // The ttr of ONCE is longer than the test: only a burn keeps a job away.
            let ttr = if queue == ONCE { 600 } else { TTR.as_secs() };
            let (timeout, count) = (number / 2 % 3, if number / 2 % 10 == 9 { 5 } else { 1 });
            // Never longer than the consumer's timeout, so that only the stall makes consumers disconnect.
            let timeout = timeout.min(self.patience.as_secs().saturating_sub(1) as usize);
            let asked = Instant::now();
            // Polls with further queues are in another wait list, and are fetched for concurrently.
            let besides =
                if number.is_multiple_of(3) { format!(",empty{}", number % 5) } else { String::new() };
            let path = format!("{queue}{besides}?ttr={ttr}&timeout={timeout}&count={count}");
            let text = match self.ask_or_leave("GET", &path, "", self.patience).await {
                Ok((200, text)) => text,
                left => {
                    if let Err(Some(left)) = left {
                        acks.spawn(self.clone().was_left(queue, left));
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            self.works("consume", asked);
            let jobs = self.delivered(&text, asked);
            if !self.draining.load(Ordering::SeqCst) {
                tokio::time::sleep(WORK).await;
            }
            // In parallel with the next poll, so that the stall affects consumes and not only acks.
            for (id, body) in jobs {
                acks.spawn(self.clone().ack(format!("{queue}/job/{id}"), body));
            }
        }
        while let Some(acked) = acks.join_next().await {
            acked.expect("no panic");
        }
    }

    /// Records the response to a consume that was sent at `asked`. Returns ids and bodies.
    fn delivered(&self, text: &[u8], asked: Instant) -> Vec<(String, String)> {
        let text: Value = serde_json::from_slice(text).expect("JSON");
        let jobs = text.as_array().cloned().unwrap_or_else(|| vec![text]);
        let body = |job| String::from_utf8(data(job)).expect("a body of ours");
        let jobs: Vec<_> = jobs.iter().map(|job| (job_id(job), body(job))).collect();
        for (_, body) in &jobs {
            self.told.lock().delivered.entry(body.clone()).or_default().push(asked);
        }
        jobs
    }

    /// Handles a disconnected consumer. Jobs in transit count as delivered, and are acked.
    async fn was_left(self: Arc<Fleet>, queue: &'static str, left: Left) {
        let asked = left.asked;
        let Some(((200, text), after)) = left.read_on().await else { return };
        self.told.lock().on_their_way.push(after);
        if after < ON_ITS_WAY {
            for (id, body) in self.delivered(&text, asked) {
                self.clone().ack(format!("{queue}/job/{id}"), body).await;
            }
        }
    }

    /// Acks until a response arrives.
    async fn ack(self: Arc<Fleet>, path: String, body: String) {
        loop {
            let asked = Instant::now();
            if let Some((204, _)) = self.ask("DELETE", &path, "", self.patience).await {
                self.works("ack", asked);
                self.told.lock().acked.entry(body).or_insert_with(Instant::now);
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn deliveries(&self) -> usize {
        self.told.lock().delivered.values().map(Vec::len).sum()
    }
}

/// Returns the status and body of a response, if it is complete.
fn whole(read: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
    let status = head.get(9..12)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().expect("a length"));
    let body = &read[end + 4..];
    (body.len() >= length).then(|| (status, body[..length].to_vec()))
}

async fn what_is_asked_in_vain_is_not_done_later(stall: Stall) {
    // Tokens are in another Redis, so that requests reach the stalled one.
    let (redis, admin) = (RedisServer::start(), RedisServer::start());
    let toml = format!("[Pool.default]\n{}[AdminRedis]\n{}", redis.keys(), admin.keys());
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), toml).expect("it can be written");
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let addr = process.address("api").parse().expect("an address");
    let token = create_token(process.address("admin"), "ns").await;
    let fleet = Arc::new(Fleet {
        addr,
        token,
        patience: stall.patience,
        told: Mutex::default(),
        number: AtomicUsize::new(0),
        publishing: AtomicBool::new(true),
        draining: AtomicBool::new(false),
        consuming: AtomicBool::new(true),
        over: Mutex::new(None),
    });
    for queue in [ONCE, AGAIN] {
        for _ in 0..BACKLOG / 50 {
            fleet.publish(queue, 50).await;
        }
    }
    let publishers: Vec<_> = (0..PUBLISHERS).map(|_| tokio::spawn(fleet.clone().publisher())).collect();
    let consumers: Vec<_> = (0..CONSUMERS).map(|n| tokio::spawn(fleet.clone().consumer(n))).collect();
    // All consumers are working.
    until("every consumer had a job", async || fleet.deliveries() > CONSUMERS).await;
    let stalled = redis.stall();
    tokio::time::sleep(stall.lasts).await;
    drop(stalled);
    *fleet.over.lock() = Some(Instant::now());
    tokio::time::sleep(Duration::from_secs(2)).await;
    until("every verb works again", async || fleet.told.lock().resumed.len() == VERBS.len()).await;
    fleet.publishing.store(false, Ordering::SeqCst);
    for publisher in publishers {
        publisher.await.expect("no panic");
    }
    fleet.draining.store(true, Ordering::SeqCst);
    // Until nothing is ready, and no timer is left that could redeliver a job. On a busy machine this takes long,
    // with seconds without any delivery. The timer of a burned job stays, so the counts show it.
    let (began, conn) = (Instant::now(), &mut redis.connection());
    let mut left = || -> (u64, u64, u64) {
        let mut lengths = redis::pipe();
        lengths.llen(format!("q/ns/{ONCE}")).llen(format!("q/ns/{AGAIN}")).zcard("timer_set");
        lengths.query(conn).expect("LLEN and ZCARD")
    };
    while left() != (0, 0, 0) && began.elapsed() < DRAIN {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (once, again, timers) = left();
    println!("drained in {:?}: {once} and {again} are ready, {timers} timers", began.elapsed());
    assert_eq!((once, again), (0, 0), "both queues were drained");
    fleet.consuming.store(false, Ordering::SeqCst);
    for consumer in consumers {
        consumer.await.expect("no panic");
    }

    let keys: Vec<String> = conn.keys("j/ns/*").expect("KEYS");
    let mut left = BTreeSet::new();
    for key in &keys {
        left.extend(conn.get::<_, Option<String>>(key).expect("GET"));
    }
    let told = fleet.told.lock();
    let count = |kind: &dyn Fn(u16) -> bool| told.published.values().filter(|status| kind(**status)).count();
    let with = |kind: fn(u16) -> bool| {
        told.published.iter().filter(move |(_, status)| kind(**status)).map(|(body, _)| body)
    };
    let burned: BTreeSet<_> =
        with(|status| status == 201).filter(|body| !told.delivered.contains_key(*body)).collect();
    let stored: BTreeSet<_> = with(|status| status >= 500)
        .filter(|body| told.delivered.contains_key(*body) || left.contains(*body))
        .collect();
    let again: BTreeSet<_> = told
        .acked
        .iter()
        .filter(|(body, acked)| told.delivered[*body].iter().any(|asked| asked > *acked))
        .map(|(body, _)| body)
        .collect();
    println!(
        "stall of {:?}, {CONSUMERS} consumers with a patience of {:?}: {} jobs answered 201, {} answered 5xx, {} not \
         answered; sent to consumers that had just left {:?}; burned {}; 5xx and stored all the same {}; {} acked, handed \
         out again {}; resumed after {:?}",
        stall.lasts,
        stall.patience,
        count(&|status| status == 201),
        count(&|status| status >= 500),
        count(&|status| status == 0),
        told.on_their_way,
        burned.len(),
        stored.len(),
        told.acked.len(),
        again.len(),
        told.resumed,
    );
    assert!(burned.is_empty(), "{} jobs were handed to nobody, such as {:?}", burned.len(), burned.first());
    assert!(
        stored.is_empty(),
        "{} publishes were answered 5xx and stored, such as {:?}",
        stored.len(),
        stored.first()
    );
    assert!(again.is_empty(), "{} acked jobs came again, such as {:?}", again.len(), again.first());
    for verb in VERBS {
        let resumed = told.resumed.get(verb).unwrap_or_else(|| panic!("{verb} never worked again"));
        assert!(*resumed < RESUMED, "{verb} works within {RESUMED:?} after the stall, not {resumed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_shorter_than_the_response_timeout_burns_nothing() {
    let stall = Stall { lasts: Duration::from_millis(3000), patience: Duration::from_secs(2) };
    what_is_asked_in_vain_is_not_done_later(stall).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_of_seven_seconds_burns_nothing_and_stores_nothing_late() {
    let stall = Stall { lasts: Duration::from_secs(7), patience: Duration::from_secs(3) };
    what_is_asked_in_vain_is_not_done_later(stall).await;
}
