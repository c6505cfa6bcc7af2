//! An in-process server for tests: jobs, keys, receipts, pauses, lists and the dead letter, with a clock that the
//! test moves. The real [`Client`] and [`Worker`] run on it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use dormouse_client::double::Double;
//! use dormouse_client::{Job, NewJob, Outcome, Worker};
//!
//! let double = Double::new();
//! let client = double.client("demo");
//! let worker = Worker::new(client.clone()).queue("mail", async |_: Job| Ok::<(), Outcome>(()));
//! client.publish("mail", NewJob::new("later").delay(Duration::from_secs(3600))).await?;
//! double.run_until_idle(&worker).await?;
//! assert_eq!(client.dead_letter("mail").await?.size, 0);
//! double.advance(Duration::from_secs(3600));
//! assert_eq!(client.size("mail").await?, 1);
//! double.run_until_idle(&worker).await?;
//! assert_eq!(client.size("mail").await?, 0);
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::job::{Attributes, State};
use crate::time::millis;
use crate::transport::{Answer, Answering, Head, Method, Request, Transport};
use crate::worker::{Worker, WorkerError};

const DEFAULT_TTL: i64 = 86_400_000;
const MAX_BODY: usize = 1 << 20;

/// An in-process server. Clones are the same server.
#[derive(Clone)]
pub struct Double(Arc<Inner>);

struct Inner {
    state: Mutex<Store>,
    /// Counts changes, to wake waiting polls.
    changes: watch::Sender<u64>,
}

/// An error response.
struct Refusal {
    status: u16,
    body: Value,
}

type Told = Result<(u16, Value), Refusal>;

fn refuse<T>(status: u16, text: &str) -> Result<T, Refusal> {
    Err(Refusal { status, body: json!({ "error": text }) })
}

#[derive(Clone)]
struct Stored {
    id: String,
    namespace: String,
    queue: String,
    data: Bytes,
    attributes: Attributes,
    published_at: i64,
    expires_at: Option<i64>,
    remain_tries: u32,
    state: State,
    /// When it becomes ready, when its `ttr` ends, or when it became ready or dead.
    due_at: i64,
    /// Its order among the jobs of its state, ascending.
    order: i64,
    receipt: Option<String>,
    key: Option<String>,
    reason: Option<String>,
}

#[derive(Default)]
struct Store {
    now: i64,
    count: i64,
    jobs: BTreeMap<String, Stored>,
    paused: HashMap<(String, String), Option<i64>>,
    repeats: HashMap<(String, String), (String, u16, Value)>,
    /// The waiting polls: number, namespace and queues.
    parked: Vec<(i64, String, String)>,
}

impl Default for Double {
    fn default() -> Double {
        Double::new()
    }
}

impl Double {
    /// Creates an empty server, whose clock starts at the time of day.
    pub fn new() -> Double {
        let store = Store { now: Timestamp::now().as_millisecond(), ..Store::default() };
        Double(Arc::new(Inner { state: Mutex::new(store), changes: watch::Sender::new(0) }))
    }

    /// Returns a client of one of its namespaces. Any token is valid.
    pub fn client(&self, namespace: &str) -> Client {
        Client::builder("http://double.invalid", namespace, "double")
            .transport(Arc::new(self.clone()))
            .build()
            .expect("a name, a token and a transport are all that it needs")
    }

    /// Returns its time of day.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.store().now).unwrap_or(Timestamp::MAX)
    }

    /// Moves its clock: due jobs become ready, and jobs whose `ttr` has ended are redelivered.
    pub fn advance(&self, by: Duration) {
        let mut store = self.store();
        store.now += millis(by);
        store.pump();
        drop(store);
        self.changed();
    }

    /// Runs a worker until its queues have no ready jobs and no job is running, and stops it.
    pub async fn run_until_idle(&self, worker: &Worker) -> Result<(), WorkerError> {
        let stopper = worker.stopper();
        let idle = async {
            let mut changes = self.0.changes.subscribe();
            loop {
                changes.mark_unchanged();
                if self.is_idle() {
                    return;
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let worker = worker.clone().signals(false);
        let run = worker.run();
        tokio::pin!(run);
        tokio::select! {
            ended = &mut run => return ended,
            () = idle => stopper.stop(),
        }
        run.await
    }

    fn is_idle(&self) -> bool {
        let store = self.store();
        let asked = |job: &Stored| {
            let asks = |queues: &str| queues.split(',').any(|queue| queue == job.queue);
            store.parked.iter().any(|(_, namespace, queues)| *namespace == job.namespace && asks(queues))
        };
        let busy = store.jobs.values().any(|job| match job.state {
            State::Running => true,
            State::Ready => asked(job) && !store.is_paused(&job.namespace, &job.queue),
            State::Delayed | State::Dead => false,
        });
        !store.parked.is_empty() && !busy
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    async fn answer(&self, request: Request) -> Answer {
        let mut given = Given::read(&request);
        let told = if given.is_consume() {
            self.consume(&given).await
        } else {
            let told = self.store().serve(&mut given);
            self.changed();
            told
        };
        let (status, body) = told.unwrap_or_else(|refusal| (refusal.status, refusal.body));
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("x-request-id"), HeaderValue::from_static("double"));
        if given.replayed {
            headers.insert(HeaderName::from_static("idempotency-replayed"), HeaderValue::from_static("true"));
        }
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        Answer { status, headers, body }
    }

    async fn consume(&self, given: &Given) -> Told {
        let (Ok(wait), Ok(ttr)) = (given.seconds("timeout", 0), given.seconds("ttr", 120_000)) else {
            return refuse(400, "invalid timeout");
        };
        let until = Instant::now() + Duration::from_millis(wait.unsigned_abs());
        let count: usize = given.number("count")?.unwrap_or(1);
        let mut changes = self.0.changes.subscribe();
        let mut parked = None;
        loop {
            changes.mark_unchanged();
            let jobs = self.store().take(given, count, ttr);
            if !jobs.is_empty() {
                self.changed();
                let one = given.query("count").is_none_or(|count| count == "1");
                return Ok((
                    200,
                    if one { jobs.into_iter().next().unwrap_or_default() } else { jobs.into() },
                ));
            }
            parked.get_or_insert_with(|| Parked::new(self.clone(), given));
            if !matches!(timeout_at(until, changes.changed()).await, Ok(Ok(()))) {
                return Err(Refusal { status: 404, body: json!({ "msg": "no job available" }) });
            }
        }
    }
}

/// A waiting poll, until it gets a reply or is dropped.
struct Parked(Double, i64);

impl Parked {
    fn new(double: Double, given: &Given) -> Parked {
        let number = {
            let mut store = double.store();
            let number = store.next();
            store.parked.push((number, given.path[0].clone(), given.path[1].clone()));
            number
        };
        double.changed();
        Parked(double, number)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.store().parked.retain(|(number, ..)| *number != self.1);
        self.0.changed();
    }
}

impl Transport for Double {
    fn send<'a>(&'a self, request: Request, head: &'a Head) -> Answering<'a> {
        Box::pin(async move {
            let answer = tokio::select! {
                biased;
                answer = self.answer(request) => answer,
                () = head.left() => return Err(Error::new(ErrorKind::Network, "the caller has left")),
            };
            head.came();
            Ok(answer)
        })
    }
}

/// A parsed request.
struct Given {
    method: Method,
    path: Vec<String>,
    query: HashMap<String, String>,
    headers: HeaderMap,
    body: Bytes,
    /// Method, path, query and body, to recognize a repeated request.
    text: String,
    replayed: bool,
}

impl Given {
    fn read(request: &Request) -> Given {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        };
        Given {
            method: request.method.clone(),
            path: path.split('/').skip(2).map(decode).collect(),
            query: query.split('&').filter(|part| !part.is_empty()).map(pair).collect(),
            headers: request.headers.clone(),
            body: request.body.clone(),
            text: format!("{} {} {}", request.method, request.path, STANDARD.encode(&request.body)),
            replayed: false,
        }
    }

    fn is_consume(&self) -> bool {
        self.method == Method::GET && self.path.len() == 2
    }

    fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        match self.query(name).map(str::parse) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => refuse(400, &format!("invalid {name}")),
        }
    }

    /// Returns a parameter in seconds as milliseconds.
    fn seconds(&self, name: &str, default: i64) -> Result<i64, Refusal> {
        Ok(self.number::<f64>(name)?.map_or(default, to_millis))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "tests do not wait for thousands of years")]
fn to_millis(seconds: f64) -> i64 {
    (seconds * 1000.0).round() as i64
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let escape = behind.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn instant(millis: i64) -> Value {
    let at = Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX);
    format!("{at:.3}").into()
}

/// A job to be stored.
#[derive(Default)]
struct Placing {
    data: Bytes,
    delay: Option<i64>,
    at: Option<i64>,
    ttl: Option<i64>,
    tries: Option<u32>,
    key: Option<String>,
    on_conflict: String,
    attributes: Attributes,
}

impl Placing {
    fn of_request(given: &Given) -> Result<Placing, Refusal> {
        let mut attributes = Attributes::new();
        for (name, value) in &given.headers {
            if let (Some(name), Ok(value)) = (name.as_str().strip_prefix("job-attr-"), value.to_str()) {
                attributes.insert(name.to_owned(), value.to_owned());
            }
        }
        let at = match (given.query("at"), given.number::<i64>("at_ms")?) {
            (Some(at), _) => Some(read_at(&json!(at))?),
            (None, at) => at,
        };
        let seconds = |name| Ok(given.number::<f64>(name)?.map(to_millis));
        Ok(Placing {
            data: given.body.clone(),
            delay: seconds("delay")?,
            at,
            ttl: seconds("ttl")?,
            tries: given.number("tries")?,
            key: given.query("key").map(str::to_owned),
            on_conflict: given.query("on_conflict").unwrap_or("keep").to_owned(),
            attributes,
        })
    }

    fn of_element(element: &Value) -> Result<Placing, Refusal> {
        let text = |name: &str| element[name].as_str().map(str::to_owned);
        let data = match (text("data").map(|data| STANDARD.decode(data)), text("text")) {
            (Some(Ok(data)), None) => data.into(),
            (None, Some(text)) => text.into(),
            _ => return refuse(400, "invalid data"),
        };
        let at = match (&element["at"], element["at_ms"].as_i64()) {
            (Value::Null, at) => at,
            (at, _) => Some(read_at(at)?),
        };
        let attributes = element["attributes"].as_object().into_iter().flatten();
        let attribute = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        Ok(Placing {
            data,
            delay: element["delay"].as_f64().map(to_millis),
            at,
            ttl: element["ttl"].as_f64().map(to_millis),
            tries: element["tries"].as_u64().and_then(|tries| tries.try_into().ok()),
            key: text("key"),
            on_conflict: text("on_conflict").unwrap_or_else(|| "keep".to_owned()),
            attributes: attributes.filter_map(attribute).collect(),
        })
    }
}

fn read_at(at: &Value) -> Result<i64, Refusal> {
    let seconds = at.as_f64().or_else(|| at.as_str()?.parse().ok());
    let text = || at.as_str()?.parse::<Timestamp>().ok().map(Timestamp::as_millisecond);
    match seconds.map(to_millis).or_else(text) {
        Some(at) => Ok(at),
        None => refuse(400, "invalid at"),
    }
}

impl Store {
    fn next(&mut self) -> i64 {
        self.count += 1;
        self.count
    }

    fn is_paused(&self, namespace: &str, queue: &str) -> bool {
        match self.paused.get(&(namespace.to_owned(), queue.to_owned())) {
            Some(Some(until)) => *until > self.now,
            Some(None) => true,
            None => false,
        }
    }

    /// Handles everything due: jobs expire, become ready, are redelivered or die.
    fn pump(&mut self) {
        let now = self.now;
        self.jobs.retain(|_, job| {
            let held = matches!(job.state, State::Dead);
            held || job.expires_at.is_none_or(|at| at > now)
        });
        let mut due: Vec<(i64, i64, String)> = self
            .jobs
            .values()
            .filter(|job| matches!(job.state, State::Delayed | State::Running) && job.due_at <= now)
            .map(|job| (job.due_at, job.order, job.id.clone()))
            .collect();
        due.sort();
        for (at, _, id) in due {
            let order = self.next();
            if let Some(job) = self.jobs.get_mut(&id) {
                job.receipt = None;
                (job.due_at, job.order) = (at, order);
                if job.remain_tries == 0 { job.die() } else { job.state = State::Ready }
            }
        }
    }

    /// Returns the jobs of a queue in a state, in order.
    fn of(&self, namespace: &str, queue: &str, state: State) -> Vec<&Stored> {
        let mut jobs: Vec<_> = self
            .jobs
            .values()
            .filter(|job| job.namespace == namespace && job.queue == queue && job.state == state)
            .collect();
        jobs.sort_by_key(|job| match state {
            State::Delayed | State::Running => (job.due_at, job.order),
            State::Ready | State::Dead => (0, job.order),
        });
        jobs
    }

    fn take(&mut self, given: &Given, count: usize, ttr: i64) -> Vec<Value> {
        self.pump();
        let namespace = given.path[0].clone();
        let mut ids = Vec::new();
        for queue in given.path[1].split(',') {
            if !self.is_paused(&namespace, queue) {
                let ready = self.of(&namespace, queue, State::Ready);
                ids.extend(ready.iter().map(|job| job.id.clone()));
            }
        }
        ids.truncate(count);
        let mut taken = Vec::with_capacity(ids.len());
        for id in ids {
            let number = self.next();
            let now = self.now;
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.state = State::Running;
            job.remain_tries -= 1;
            (job.due_at, job.order) = (now + ttr, number);
            job.receipt = Some(format!("r{number}"));
            let mut shown = job.shown(now);
            shown.insert("msg".to_owned(), "new job".into());
            if given.query("receipt") == Some("1") {
                shown.insert("receipt".to_owned(), json!(job.receipt));
            }
            taken.push(shown.into());
        }
        taken
    }

    fn serve(&mut self, given: &mut Given) -> Told {
        self.pump();
        let key = given.header("idempotency-key").map(str::to_owned);
        let Some(key) = key else {
            return self.route(given);
        };
        let scope = (given.path.iter().take(2).cloned().collect::<Vec<_>>().join("/"), key);
        if let Some((text, status, body)) = self.repeats.get(&scope) {
            if *text != given.text {
                return refuse(422, "the idempotency key was used for another request");
            }
            given.replayed = true;
            return Ok((*status, body.clone()));
        }
        let told = self.route(given);
        if let Ok((status, body)) = &told {
            self.repeats.insert(scope, (given.text.clone(), *status, body.clone()));
        }
        told
    }

    fn route(&mut self, given: &Given) -> Told {
        let path: Vec<&str> = given.path.iter().map(String::as_str).collect();
        match (given.method.as_str(), path.as_slice()) {
            ("GET", [ns]) => Ok((200, self.queues(ns))),
            ("PUT", [ns, queue]) | ("POST", [ns, queue, "jobs"]) => {
                let placed = self.place(ns, queue, Placing::of_request(given)?, None)?;
                Ok((201, placed.into()))
            }
            ("POST", [ns, queue, "jobs", "batch"]) => self.batch(ns, queue, given),
            ("GET", [ns, queue, "jobs"]) => self.list(ns, queue, given),
            ("GET", [ns, queue, "peek"]) => match self.of(ns, queue, State::Ready).first() {
                Some(job) => Ok((200, job.shown(self.now).into())),
                None => refuse(404, "the queue is empty"),
            },
            ("GET", [ns, queue, "size"]) => {
                let size = self.of(ns, queue, State::Ready).len();
                Ok((200, json!({ "namespace": ns, "queue": queue, "size": size })))
            }
            ("DELETE", [ns, queue]) => {
                self.jobs.retain(|_, job| !(job.is_of(ns, queue) && job.state == State::Ready));
                Ok((204, Value::Null))
            }
            ("POST", [ns, queue, "ack"]) => self.ack_many(ns, queue, given),
            ("POST", [ns, queue, "pause"]) => {
                let until = given.number::<f64>("for")?.map(|seconds| self.now + to_millis(seconds));
                self.paused.insert(((*ns).to_owned(), (*queue).to_owned()), until);
                Ok((200, json!({ "msg": "paused", "until": until.map(instant) })))
            }
            ("POST", [ns, queue, "resume"]) => {
                self.paused.remove(&((*ns).to_owned(), (*queue).to_owned()));
                Ok((200, json!({ "msg": "resumed" })))
            }
            (_, [ns, queue, "deadletter", rest @ ..]) => self.dead_letter(ns, queue, rest, given),
            (method, [ns, queue, "key", key]) => {
                let found =
                    self.jobs.values().find(|job| job.is_of(ns, queue) && job.key.as_deref() == Some(*key));
                match (method, found.cloned()) {
                    ("GET", Some(job)) => Ok((200, job.verbose(self.now, given).into())),
                    ("DELETE", Some(job)) => {
                        self.jobs.remove(&job.id);
                        Ok((204, Value::Null))
                    }
                    (_, None) => refuse(404, "no job has this key"),
                    _ => refuse(404, "api not found"),
                }
            }
            ("POST", [ns, queue, "key", key, "promote"]) => {
                let holder = |job: &&Stored| job.is_of(ns, queue) && job.key.as_deref() == Some(*key);
                match self.jobs.values().find(holder).map(|job| job.id.clone()) {
                    Some(id) => self.job(ns, queue, &id, &["promote"], given),
                    None => refuse(404, "no job has this key"),
                }
            }
            (_, [ns, queue, "job", id, rest @ ..]) => self.job(ns, queue, id, rest, given),
            _ => refuse(404, "api not found"),
        }
    }

    /// Stores a job, or returns the job that has its key. `batch` is its index in a batch.
    fn place(
        &mut self,
        ns: &str,
        queue: &str,
        placing: Placing,
        batch: Option<usize>,
    ) -> Result<Map<String, Value>, Refusal> {
        let refuse = |status: u16, mut body: Map<String, Value>| {
            if let Some(index) = batch {
                body.insert("index".to_owned(), index.into());
            }
            Err(Refusal { status, body: body.into() })
        };
        let wrong = |text: &str| Map::from_iter([("error".to_owned(), text.into())]);
        if placing.data.len() > MAX_BODY {
            return refuse(413, wrong("job too large"));
        }
        if placing.tries == Some(0) {
            return refuse(400, wrong("tries shouldn't be zero"));
        }
        if placing.delay.is_some() && placing.at.is_some() {
            return refuse(400, wrong("only one of delay, at and at_ms can be given"));
        }
        let delay = placing.at.map(|at| (at - self.now).max(0)).or(placing.delay).unwrap_or(0);
        let ttl = placing.ttl.unwrap_or(delay + DEFAULT_TTL);
        if ttl != 0 && ttl < delay {
            return refuse(400, wrong("ttl is shorter than delay"));
        }
        if ttl != 0 && ttl == delay {
            return refuse(400, wrong("ttl equals delay: the job would expire when it is due"));
        }
        let mut replaced = None;
        if let Some(key) = &placing.key {
            let holder =
                self.jobs.values_mut().find(|job| job.is_of(ns, queue) && job.key.as_ref() == Some(key));
            match (holder, placing.on_conflict.as_str()) {
                (None, _) => {}
                (Some(job), "fail") => {
                    let mut body = wrong("the key is taken");
                    body.insert("job_id".to_owned(), job.id.clone().into());
                    return refuse(409, body);
                }
                (Some(job), "replace") if job.state == State::Running => job.key = None,
                (Some(job), "replace") => replaced = Some(job.id.clone()),
                (Some(job), _) => {
                    let found = json!({ "msg": "published", "job_id": job.id, "due_at": instant(job.due_at), "duplicate": true });
                    return Ok(found.as_object().cloned().unwrap_or_default());
                }
            }
        }
        if let Some(id) = &replaced {
            self.jobs.remove(id);
        }
        let number = self.next();
        let id = format!("{number:026}");
        let due_at = self.now + delay;
        let state = if delay > 0 { State::Delayed } else { State::Ready };
        let job = Stored {
            id: id.clone(),
            namespace: ns.to_owned(),
            queue: queue.to_owned(),
            data: placing.data,
            attributes: placing.attributes,
            published_at: self.now,
            expires_at: (ttl > 0).then_some(self.now + ttl),
            remain_tries: placing.tries.unwrap_or(1),
            state,
            due_at,
            order: number,
            receipt: None,
            key: placing.key,
            reason: None,
        };
        self.jobs.insert(id.clone(), job);
        let mut placed = Map::new();
        placed.insert("msg".to_owned(), "published".into());
        placed.insert("job_id".to_owned(), id.into());
        placed.insert("due_at".to_owned(), instant(due_at));
        if let Some(id) = replaced {
            placed.insert("replaced".to_owned(), id.into());
        }
        Ok(placed)
    }

    fn batch(&mut self, ns: &str, queue: &str, given: &Given) -> Told {
        let elements: Vec<Value> = match serde_json::from_slice(&given.body) {
            Ok(elements) => elements,
            Err(_) => return refuse(400, "request body should be an array of objects"),
        };
        if elements.is_empty() || elements.len() > 64 {
            return refuse(400, if elements.is_empty() { "no jobs" } else { "too many jobs" });
        }
        // All are stored or none.
        let before = self.jobs.clone();
        let mut placed = Vec::with_capacity(elements.len());
        for (index, element) in elements.iter().enumerate() {
            let one = Placing::of_element(element).and_then(|job| self.place(ns, queue, job, Some(index)));
            match one {
                Ok(one) => placed.push(one),
                Err(mut refusal) => {
                    self.jobs = before;
                    refusal.body["index"] = index.into();
                    return Err(refusal);
                }
            }
        }
        placed.iter_mut().for_each(|job| drop(job.remove("msg")));
        Ok((201, json!({ "msg": "published", "jobs": placed })))
    }

    fn job(&mut self, ns: &str, queue: &str, id: &str, rest: &[&str], given: &Given) -> Told {
        let now = self.now;
        let number = self.next();
        let Some(job) = self.jobs.get_mut(id).filter(|job| job.is_of(ns, queue)) else {
            return match (given.method.as_str(), rest) {
                ("DELETE", []) => Ok((204, Value::Null)),
                _ => refuse(404, "job not found"),
            };
        };
        let receipt = given.query("receipt");
        let stale = job.state != State::Running || job.receipt.as_deref() != receipt;
        match (given.method.as_str(), rest) {
            ("GET", []) if given.query("verbose") == Some("1") => Ok((200, job.verbose(now, given).into())),
            ("GET", []) => Ok((200, job.shown(now).into())),
            ("DELETE", []) if receipt.is_some() && stale => refuse(409, "the job is not yours any more"),
            ("DELETE", []) => {
                self.jobs.remove(id);
                Ok((204, Value::Null))
            }
            ("POST", ["promote"]) if job.state == State::Delayed => {
                (job.state, job.due_at, job.order) = (State::Ready, now, number);
                Ok((200, json!({ "msg": "ready" })))
            }
            ("POST", ["promote"]) => {
                let body = json!({ "error": "the job is not delayed", "state": job.state.as_str() });
                Err(Refusal { status: 409, body })
            }
            ("POST", ["touch" | "release" | "bury"]) if receipt.is_none() => refuse(400, "invalid receipt"),
            ("POST", ["touch" | "release" | "bury"]) if stale => refuse(409, "the job is not yours any more"),
            ("POST", ["touch"]) => {
                job.due_at = now + given.seconds("ttr", 120_000)?;
                job.receipt = Some(format!("r{number}"));
                Ok((200, json!({ "msg": "touched", "receipt": job.receipt, "until": instant(job.due_at) })))
            }
            ("POST", ["release"]) => {
                if !given.body.is_empty() {
                    job.reason = Some(String::from_utf8_lossy(&given.body).into_owned());
                }
                job.receipt = None;
                if given.query("spend") == Some("0") {
                    job.remain_tries += 1;
                }
                let delay = given.seconds("delay", 0)?;
                job.due_at = now + delay;
                if job.remain_tries == 0 || job.expires_at.is_some_and(|at| at <= job.due_at) {
                    job.order = number;
                    job.die();
                    return Ok((200, json!({ "msg": "dead" })));
                }
                // Without a delay it returns to the head.
                (job.state, job.order) =
                    if delay > 0 { (State::Delayed, number) } else { (State::Ready, -number) };
                Ok((
                    200,
                    json!({ "msg": "released", "remain_tries": job.remain_tries, "due_at": instant(job.due_at) }),
                ))
            }
            ("POST", ["bury"]) => {
                if !given.body.is_empty() {
                    job.reason = Some(String::from_utf8_lossy(&given.body).into_owned());
                }
                (job.due_at, job.order) = (now, number);
                job.die();
                Ok((200, json!({ "msg": "dead" })))
            }
            _ => refuse(404, "api not found"),
        }
    }

    fn ack_many(&mut self, ns: &str, queue: &str, given: &Given) -> Told {
        let body: Value = serde_json::from_slice(&given.body).unwrap_or_default();
        let jobs = body["jobs"].as_array().cloned().unwrap_or_default();
        if jobs.is_empty() || jobs.len() > 100 {
            return refuse(400, if jobs.is_empty() { "no jobs" } else { "too many jobs" });
        }
        let mut stale = Vec::new();
        let mut acked = 0;
        for job in jobs {
            let id = job.as_str().or(job["id"].as_str()).unwrap_or_default();
            let receipt = job["receipt"].as_str();
            let found = self.jobs.get(id).filter(|job| job.is_of(ns, queue));
            let ours = |job: &Stored| {
                receipt.is_none() || (job.state == State::Running && job.receipt.as_deref() == receipt)
            };
            if found.is_none_or(ours) {
                self.jobs.remove(id);
                acked += 1;
            } else {
                stale.push(id.to_owned());
            }
        }
        Ok((200, json!({ "acked": acked, "stale": stale })))
    }

    fn queues(&self, ns: &str) -> Value {
        let mut names: Vec<&str> =
            self.jobs.values().filter(|job| job.namespace == ns).map(|job| &*job.queue).collect();
        names.extend(self.paused.keys().filter(|(of, _)| of == ns).map(|(_, queue)| &**queue));
        names.sort_unstable();
        names.dedup();
        let size = |queue: &str, state| self.of(ns, queue, state).len();
        let queues: Vec<Value> = names
            .into_iter()
            .map(|queue| {
                json!({
                    "queue": queue,
                    "ready": size(queue, State::Ready),
                    "delayed": size(queue, State::Delayed),
                    "running": size(queue, State::Running),
                    "dead": size(queue, State::Dead),
                    "paused": self.is_paused(ns, queue),
                })
            })
            .collect();
        json!({ "namespace": ns, "queues": queues, "cursor": null })
    }

    /// A cursor is the number of jobs shown.
    fn list(&self, ns: &str, queue: &str, given: &Given) -> Told {
        let state = match given.query("state").unwrap_or("ready") {
            "ready" => State::Ready,
            "delayed" => State::Delayed,
            "running" => State::Running,
            "dead" => State::Dead,
            _ => return refuse(400, "invalid state"),
        };
        let (from, limit): (usize, usize) =
            (given.number("cursor")?.unwrap_or(0), given.number("limit")?.unwrap_or(20));
        let all = self.of(ns, queue, state);
        let data = given.query("data") == Some("1");
        let shown: Vec<Value> =
            all.iter().skip(from).take(limit).map(|job| job.listed(self.now, data).into()).collect();
        let next = from + shown.len();
        let cursor = (next < all.len()).then(|| next.to_string());
        Ok((200, json!({ "jobs": shown, "cursor": cursor, "scanned": shown.len() })))
    }

    fn dead_letter(&mut self, ns: &str, queue: &str, rest: &[&str], given: &Given) -> Told {
        let dead: Vec<String> = self.of(ns, queue, State::Dead).iter().map(|job| job.id.clone()).collect();
        let limit = given.number("limit")?.unwrap_or(1);
        match (given.method.as_str(), rest) {
            ("GET", []) => {
                let head = dead.first().cloned().unwrap_or_default();
                Ok((
                    200,
                    json!({ "namespace": ns, "queue": queue, "deadletter_head": head, "deadletter_size": dead.len() }),
                ))
            }
            ("PUT", []) => {
                let ttl = given.seconds("ttl", DEFAULT_TTL)?;
                let count = dead.iter().take(limit).filter(|id| self.respawn(id, 1, 0, ttl)).count();
                Ok((200, json!({ "msg": "respawned", "count": count })))
            }
            ("DELETE", []) => {
                for id in dead.iter().take(limit) {
                    self.jobs.remove(id);
                }
                Ok((204, Value::Null))
            }
            ("POST", ["respawn"]) => {
                let body: Value = serde_json::from_slice(&given.body).unwrap_or_default();
                let tries = given.number("tries")?.unwrap_or(1);
                let delay = given.seconds("delay", 0)?;
                let ttl = given.seconds("ttl", delay + DEFAULT_TTL)?;
                let (mut respawned, mut missing) = (0, Vec::new());
                for id in body["jobs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if dead.iter().any(|dead| dead == id) && self.respawn(id, tries, delay, ttl) {
                        respawned += 1;
                    } else {
                        missing.push(id.to_owned());
                    }
                }
                Ok((200, json!({ "respawned": respawned, "missing": missing })))
            }
            _ => refuse(404, "api not found"),
        }
    }

    fn respawn(&mut self, id: &str, tries: u32, delay: i64, ttl: i64) -> bool {
        let (now, order) = (self.now, self.next());
        let Some(job) = self.jobs.get_mut(id).filter(|job| job.state == State::Dead) else {
            return false;
        };
        job.state = if delay > 0 { State::Delayed } else { State::Ready };
        (job.due_at, job.order, job.remain_tries) = (now + delay, order, tries);
        job.expires_at = (ttl > 0).then_some(now + ttl);
        true
    }
}

impl Stored {
    fn is_of(&self, namespace: &str, queue: &str) -> bool {
        self.namespace == namespace && self.queue == queue
    }

    /// A dead job has no key, no tries and no time to live.
    fn die(&mut self) {
        (self.state, self.remain_tries, self.key, self.receipt) = (State::Dead, 0, None, None);
    }

    fn ttl(&self, now: i64) -> i64 {
        self.expires_at.map_or(0, |at| ((at - now + 500) / 1000).max(1))
    }

    fn shown(&self, now: i64) -> Map<String, Value> {
        let attributes = (!self.attributes.is_empty()).then_some(&self.attributes);
        let shown = json!({
            "namespace": self.namespace,
            "queue": self.queue,
            "job_id": self.id,
            "data": STANDARD.encode(&self.data),
            "elapsed_ms": now - self.published_at,
            "remain_tries": self.remain_tries,
            "ttl": self.ttl(now),
            "attributes": attributes,
        });
        shown.as_object().cloned().unwrap_or_default()
    }

    fn verbose(&self, now: i64, given: &Given) -> Map<String, Value> {
        let mut shown = self.shown(now);
        let mut put = |name: &str, value: Value| drop(shown.insert(name.to_owned(), value));
        put("state", self.state.as_str().into());
        put("due_at", instant(self.due_at));
        put("key", json!(self.key));
        put("reason", json!(self.reason));
        if given.query("receipt").is_some() {
            put("receipt", json!(self.receipt));
        }
        shown
    }

    fn listed(&self, now: i64, data: bool) -> Map<String, Value> {
        let listed = json!({
            "job_id": self.id,
            "state": self.state.as_str(),
            "due_at": instant(self.due_at),
            "published_at": instant(self.published_at),
            "remain_tries": self.remain_tries,
            "ttl": self.ttl(now),
            "key": self.key,
            "reason": self.reason,
            "size": self.data.len(),
        });
        let mut listed = listed.as_object().cloned().unwrap_or_default();
        if data {
            listed.insert("data".to_owned(), STANDARD.encode(&self.data).into());
            listed.insert("attributes".to_owned(), json!(self.attributes));
        }
        listed
    }
}
