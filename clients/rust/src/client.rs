//! The client: every verb of the public port, and the rules for retries.

use std::env;
use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderName, HeaderValue};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::job::{
    Acked, DeadLetter, HandedOut, Job, JobInfo, NewJob, Published, QueueInfo, Respawned, State, TRACEPARENT,
};
use crate::lists::{Jobs, Queues};
use crate::request::{Call, Repeat, job_path, namespace_path, queue_path, queues_path};
use crate::time::{Given, Pauses, seconds, seconds_json, whole};
use crate::transport::{Answer, Head, Http, Request, Transport};

/// Maximum of `retry_for`: a server remembers idempotency keys for ten minutes.
const LONGEST_RETRY: Duration = Duration::from_secs(540);
/// Maximum size of a batch of publishes.
const BATCH_JOBS: usize = 64;
const BATCH_BYTES: usize = 8 << 20;
/// Maximum number of ids in one call.
const IDS: usize = 100;
/// How much longer than its poll a consume may take.
const POLL_SLACK: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// The trace of the job in the current handler.
    pub(crate) static TRACE: Option<String>;
}

/// A client of a server and a namespace. Clones share its connections.
///
/// ```no_run
/// # async fn example() -> dormouse_client::Result<()> {
/// use std::time::Duration;
/// use dormouse_client::{Client, NewJob};
///
/// let client = Client::new("http://127.0.0.1:7777", "demo", "the token")?;
/// let job = client.publish("mail", NewJob::new("hello").delay(Duration::from_secs(30))).await?;
/// println!("{} is due at {:?}", job.job_id, job.due_at);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    transport: Arc<dyn Transport>,
    namespace: String,
    token: HeaderValue,
    timeout: Duration,
    retry_for: Duration,
}

/// Builds a [`Client`].
#[derive(Clone)]
pub struct Builder {
    url: String,
    namespace: String,
    token: String,
    timeout: Duration,
    retry_for: Duration,
    transport: Option<Arc<dyn Transport>>,
}

impl Builder {
    /// Timeout of one request; 10 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = timeout;
        self
    }

    /// How long a call may be retried; 30 s by default, at most 540 s, zero for never.
    pub fn retry_for(mut self, retry_for: Duration) -> Builder {
        self.retry_for = retry_for;
        self
    }

    /// Uses another transport, such as a [double](crate::double).
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Builder {
        self.transport = Some(transport);
        self
    }

    /// Builds the client; opens no connection yet.
    pub fn build(self) -> Result<Client> {
        if self.retry_for > LONGEST_RETRY {
            return Err(Error::invalid("retry_for should be 540 seconds at most"));
        }
        if self.timeout.is_zero() {
            return Err(Error::invalid("timeout should not be zero"));
        }
        if self.namespace.is_empty() {
            return Err(Error::invalid("the namespace is missing"));
        }
        let mut token = HeaderValue::from_str(&self.token)
            .map_err(|_| Error::invalid("the token has characters that no header can carry"))?;
        token.set_sensitive(true);
        let transport = match self.transport {
            Some(transport) => transport,
            None => Arc::new(Http::new(&self.url)?),
        };
        let (namespace, timeout, retry_for) = (self.namespace, self.timeout, self.retry_for);
        Ok(Client(Arc::new(Inner { transport, namespace, token, timeout, retry_for })))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("url", &self.url)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("namespace", &self.0.namespace).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client of the server at `url`, which may have a path before `/api`.
    pub fn new(url: &str, namespace: &str, token: &str) -> Result<Client> {
        Client::builder(url, namespace, token).build()
    }

    /// Returns a builder, for more options.
    pub fn builder(url: &str, namespace: &str, token: &str) -> Builder {
        Builder {
            url: url.to_owned(),
            namespace: namespace.to_owned(),
            token: token.to_owned(),
            timeout: Duration::from_secs(10),
            retry_for: Duration::from_secs(30),
            transport: None,
        }
    }

    /// Creates a client from `DORMOUSE_URL` (default `http://127.0.0.1:7777`), `DORMOUSE_NAMESPACE` and
    /// `DORMOUSE_TOKEN`, as `dormouse queue` does.
    pub fn from_env() -> Result<Client> {
        let read = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let url = read("DORMOUSE_URL").unwrap_or_else(|| "http://127.0.0.1:7777".to_owned());
        let namespace =
            read("DORMOUSE_NAMESPACE").ok_or_else(|| Error::invalid("DORMOUSE_NAMESPACE is not set"))?;
        Client::new(&url, &namespace, &read("DORMOUSE_TOKEN").unwrap_or_default())
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// Returns a client with its own connections.
    pub(crate) fn fork(&self) -> Result<Client> {
        let Some(transport) = self.0.transport.fork() else {
            return Ok(self.clone());
        };
        Ok(Client(Arc::new(Inner {
            transport: transport?,
            namespace: self.0.namespace.clone(),
            token: self.0.token.clone(),
            timeout: self.0.timeout,
            retry_for: self.0.retry_for,
        })))
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Publishes a job. It is durable when this returns. Retries use the same idempotency key, so that the job is
    /// stored once.
    pub fn publish(&self, queue: &str, job: impl Into<NewJob>) -> Publish {
        Publish { client: self.clone(), queue: queue.to_owned(), job: job.into(), idempotency_key: None }
    }

    /// Publishes any number of jobs in order, in batches. Each batch is stored completely or not at all. An error has
    /// the jobs published before it.
    pub async fn publish_many(&self, queue: &str, jobs: Vec<NewJob>) -> Result<Vec<Published>> {
        let mut elements = Vec::with_capacity(jobs.len());
        for (n, job) in jobs.iter().enumerate() {
            let element = element(job).map_err(|e| e.with_job(None, Some(n)).behind(Vec::new(), 0))?;
            elements.push(serde_json::to_vec(&element).map_err(|e| Error::invalid(e.to_string()))?);
        }
        let mut published = Vec::with_capacity(elements.len());
        let mut next = 0;
        while next < elements.len() {
            let (mut body, mut end) = (vec![b'['], next);
            while end < elements.len() && end - next < BATCH_JOBS {
                if end > next && body.len() + elements[end].len() + 2 > BATCH_BYTES {
                    break;
                }
                if end > next {
                    body.push(b',');
                }
                body.extend_from_slice(&elements[end]);
                end += 1;
            }
            body.push(b']');
            match self.batch(queue, body, end - next, None).await {
                Ok(jobs) => published.extend(jobs),
                Err(e) => return Err(e.behind(published, next)),
            }
            next = end;
        }
        Ok(published)
    }

    async fn batch(
        &self,
        queue: &str,
        body: Vec<u8>,
        count: usize,
        key: Option<String>,
    ) -> Result<Vec<Published>> {
        #[derive(Deserialize)]
        struct Placed {
            jobs: Vec<Published>,
        }
        let path = queue_path(self.namespace(), queue).join("jobs").join("batch");
        let answer = self.call(&once_only(Call::post(path).body(body), key)?).await?;
        let mut placed: Placed = answer.json()?;
        if placed.jobs.len() != count {
            let text = format!("{count} jobs were sent, and {} answered", placed.jobs.len());
            return Err(Error::new(ErrorKind::Protocol, text).with_status(answer.status, answer.request_id()));
        }
        let replayed = replayed(&answer);
        placed.jobs.iter_mut().for_each(|job| job.replayed = replayed);
        Ok(placed.jobs)
    }

    /// Deletes a job, in any state.
    pub async fn cancel(&self, queue: &str, id: &str) -> Result<()> {
        self.call(&Call::delete(job_path(self.namespace(), queue, id)).safe()).await.map(drop)
    }

    /// Deletes the job with this key. A retry that finds it gone succeeds.
    pub async fn cancel_key(&self, queue: &str, key: &str) -> Result<()> {
        let call = Call::delete(self.key_path(queue, key)?).safe();
        let mut repeated = false;
        match self.repeat(&call, &mut repeated).await {
            Err(e) if repeated && e.kind() == ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }

    /// Makes a delayed job ready now, after other ready jobs. [`ErrorKind::Conflict`] if it is not delayed.
    pub async fn promote(&self, queue: &str, id: &str) -> Result<()> {
        self.call(&Call::post(job_path(self.namespace(), queue, id).join("promote"))).await.map(drop)
    }

    /// Makes the delayed job with this key ready now. [`ErrorKind::NotFound`] if no job has it.
    pub async fn promote_key(&self, queue: &str, key: &str) -> Result<()> {
        self.call(&Call::post(self.key_path(queue, key)?.join("promote"))).await.map(drop)
    }

    /// Returns a job by id, in any state.
    pub async fn get(&self, queue: &str, id: &str) -> Result<JobInfo> {
        let call = Call::get(job_path(self.namespace(), queue, id)).with("verbose", "1");
        self.call(&call).await?.json()
    }

    /// Returns the job with this key.
    pub async fn get_key(&self, queue: &str, key: &str) -> Result<JobInfo> {
        self.call(&Call::get(self.key_path(queue, key)?).with("verbose", "1")).await?.json()
    }

    fn key_path(&self, queue: &str, key: &str) -> Result<crate::request::Path> {
        if key.is_empty() {
            return Err(Error::invalid("the key is empty"));
        }
        Ok(queue_path(self.namespace(), queue).join("key").join(key))
    }

    /// Returns the job that the next consume would get.
    pub async fn peek(&self, queue: &str) -> Result<Option<JobInfo>> {
        match self.call(&Call::get(queue_path(self.namespace(), queue).join("peek"))).await {
            Ok(answer) => answer.json().map(Some),
            Err(e) if e.kind() == ErrorKind::NotFound && e.message() == "the queue is empty" => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Consumes jobs of these queues. [`Consume`] sets how many, and how long to wait.
    pub fn consume<Q: AsRef<str>>(&self, queues: impl IntoIterator<Item = Q>) -> Consume {
        Consume {
            client: self.clone(),
            queues: queues.into_iter().map(|queue| queue.as_ref().to_owned()).collect(),
            weights: Vec::new(),
            count: 1,
            ttr: Duration::from_secs(30),
            timeout: Duration::ZERO,
        }
    }

    /// Acks jobs of one queue, each independently.
    pub async fn ack_many(&self, queue: &str, jobs: &[Job]) -> Result<Acked> {
        let mut acked = Acked::default();
        for part in jobs.chunks(IDS) {
            let mut ids = Vec::with_capacity(part.len());
            for job in part {
                ids.push((job.id.clone(), Hold::receipt(&*job.hold.standing().await)));
            }
            let part = self.ack_ids(queue, &ids, None).await?;
            acked.acked += part.acked;
            acked.stale.extend(part.stale);
        }
        Ok(acked)
    }

    /// Sends one request, within `limit` and without retries if given.
    pub(crate) async fn ack_ids(
        &self,
        queue: &str,
        ids: &[(String, Option<String>)],
        limit: Option<Duration>,
    ) -> Result<Acked> {
        #[derive(Deserialize)]
        struct Answered {
            acked: u64,
            stale: Vec<String>,
        }
        let jobs: Vec<Value> =
            ids.iter().map(|(id, receipt)| json!({ "id": id, "receipt": receipt })).collect();
        let call = Call::post(queue_path(self.namespace(), queue).join("ack"))
            .body(json!({ "jobs": jobs }).to_string())
            .safe();
        let answer = match limit {
            Some(limit) => self.once(&call, limit).await?,
            None => self.call(&call).await?,
        };
        let answered: Answered = answer.json()?;
        Ok(Acked { acked: answered.acked, stale: answered.stale })
    }

    /// Stops deliveries from this queue, for `during` or until it is resumed.
    pub async fn pause(&self, queue: &str, during: Option<Duration>) -> Result<Option<Timestamp>> {
        #[derive(Deserialize)]
        struct Paused {
            until: Option<Timestamp>,
        }
        let call = Call::post(queue_path(self.namespace(), queue).join("pause")).safe();
        let paused: Paused = self.call(&call.with_some("for", during.map(seconds))).await?.json()?;
        Ok(paused.until)
    }

    /// Ends a pause.
    pub async fn resume(&self, queue: &str) -> Result<()> {
        self.call(&Call::post(queue_path(self.namespace(), queue).join("resume")).safe()).await.map(drop)
    }

    /// Returns the number of ready jobs.
    pub async fn size(&self, queue: &str) -> Result<u64> {
        #[derive(Deserialize)]
        struct Size {
            size: u64,
        }
        let call = Call::get(queue_path(self.namespace(), queue).join("size"));
        Ok(self.call(&call).await?.json::<Size>()?.size)
    }

    /// Lists the queues of the namespace, reading pages as needed.
    pub fn queues(&self) -> Queues {
        Queues::new(self.clone())
    }

    /// Lists the jobs of a queue in one state, reading pages as needed.
    pub fn jobs(&self, queue: &str, state: State) -> Jobs {
        Jobs::new(self.clone(), queue, state)
    }

    /// Returns the number of dead jobs of a queue, and the oldest.
    pub async fn dead_letter(&self, queue: &str) -> Result<DeadLetter> {
        #[derive(Deserialize)]
        struct Shown {
            deadletter_size: u64,
            deadletter_head: String,
        }
        let call = Call::get(queue_path(self.namespace(), queue).join("deadletter"));
        let shown: Shown = self.call(&call).await?.json()?;
        Ok(DeadLetter {
            size: shown.deadletter_size,
            head: Some(shown.deadletter_head).filter(|id| !id.is_empty()),
        })
    }

    /// Makes dead jobs ready again, by id or the oldest.
    pub fn respawn(&self, queue: &str) -> Respawn {
        Respawn { client: self.clone(), queue: queue.to_owned(), tries: None, delay: None, ttl: None }
    }

    /// Deletes up to `oldest` of the oldest dead jobs.
    pub async fn delete_dead(&self, queue: &str, oldest: u64) -> Result<()> {
        let call = Call::delete(queue_path(self.namespace(), queue).join("deadletter"));
        self.call(&call.with("limit", &oldest.to_string())).await.map(drop)
    }

    /// Deletes the ready jobs of a queue.
    pub async fn destroy(&self, queue: &str) -> Result<()> {
        self.call(&Call::delete(queue_path(self.namespace(), queue))).await.map(drop)
    }

    /// Sends a call, with the retries that its kind allows.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer> {
        self.repeat(call, &mut false).await
    }

    /// Like [`call`](Client::call); sets `lost` if a reply may have been lost.
    async fn repeat(&self, call: &Call, lost: &mut bool) -> Result<Answer> {
        let until = Instant::now() + self.0.retry_for;
        let mut pauses = Pauses::default();
        let mut limit = self.0.timeout;
        let mut before: Option<Error> = None;
        loop {
            let error = match self.once(call, limit).await {
                Ok(answer) => return Ok(answer),
                // The end of the retries cut it short: the error before is more informative.
                Err(error) if error.kind() == ErrorKind::Timeout && limit < self.0.timeout => {
                    return Err(before.unwrap_or(error));
                }
                Err(error) => error,
            };
            let again = match call.repeat {
                Repeat::Safe => error.is_passing(),
                Repeat::Undone => error.did_nothing(),
            };
            *lost |= again && error.is_uncertain();
            let pause = pauses.next(error.retry_after());
            if !again || pause >= until.saturating_duration_since(Instant::now()) {
                return Err(error);
            }
            before = Some(error);
            sleep(pause).await;
            limit = self.0.timeout.min(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Sends one request, within `limit`.
    pub(crate) async fn once(&self, call: &Call, limit: Duration) -> Result<Answer> {
        self.once_seen(call, limit, &Head::default()).await
    }

    /// Like [`once`](Client::once); records in `head` when the head of the response arrived.
    pub(crate) async fn once_seen(&self, call: &Call, limit: Duration, head: &Head) -> Result<Answer> {
        let mut headers = call.headers.clone();
        headers.insert(HeaderName::from_static("x-token"), self.0.token.clone());
        let request = Request {
            method: call.method.clone(),
            path: call.path.clone(),
            headers,
            body: call.body.clone(),
        };
        match timeout(limit, self.0.transport.send(request, head)).await {
            Ok(answer) => answer?.accept(),
            Err(_) => Err(Error::new(ErrorKind::Timeout, format!("no answer within {limit:?}"))),
        }
    }
}

/// Adds an idempotency key, so that the call is executed once however often it is sent.
fn once_only(mut call: Call, key: Option<String>) -> Result<Call> {
    let key = match key {
        Some(key) => key,
        None => {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes).map_err(|e| Error::invalid(format!("no random bytes: {e}")))?;
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        }
    };
    let key =
        HeaderValue::from_str(&key).map_err(|_| Error::invalid("no header can carry the idempotency key"))?;
    call.headers.insert(HeaderName::from_static("idempotency-key"), key);
    Ok(call.safe())
}

fn replayed(answer: &Answer) -> bool {
    answer.header("idempotency-replayed").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Returns the attributes of a job, with the trace of the handler that publishes it.
fn attributes(job: &NewJob) -> crate::job::Attributes {
    let mut attributes = job.attributes.clone();
    if !attributes.contains_key(TRACEPARENT) && attributes.len() < 16 {
        if let Ok(Some(trace)) = TRACE.try_with(Clone::clone) {
            attributes.insert(TRACEPARENT.to_owned(), trace);
        }
    }
    attributes
}

/// Whether a header transports this attribute unchanged, also through proxies, which drop names with a `_`.
fn fits_header(name: &str, value: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && value.trim() == value;
    plain && name.bytes().all(token)
}

/// Returns the JSON of a job in a batch.
fn element(job: &NewJob) -> Result<Value> {
    job.check()?;
    let mut element = Map::new();
    let mut put = |name: &str, value: Value| element.insert(name.to_owned(), value);
    put("data", STANDARD.encode(&job.data).into());
    if let Some(delay) = job.delay {
        put("delay", seconds_json(delay));
    }
    match job.at.as_ref().map(|at| &at.0) {
        Some(Given::Millis(at)) => drop(put("at_ms", (*at).max(0).into())),
        Some(Given::Text(at)) => drop(put("at", at.clone().into())),
        None => {}
    }
    if let Some(ttl) = job.ttl {
        put("ttl", seconds_json(ttl));
    }
    if let Some(tries) = job.tries {
        put("tries", tries.into());
    }
    if let Some(key) = &job.key {
        put("key", key.clone().into());
    }
    if let Some(what) = job.on_conflict {
        put("on_conflict", what.as_str().into());
    }
    let attributes = attributes(job);
    if !attributes.is_empty() {
        put("attributes", json!(attributes));
    }
    Ok(Value::Object(element))
}

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A publish; `.await` sends it.
#[must_use = "nothing is sent before it is awaited"]
#[derive(Debug)]
pub struct Publish {
    client: Client,
    queue: String,
    job: NewJob,
    idempotency_key: Option<String>,
}

impl Publish {
    /// Sets the idempotency key, so that another process can repeat the publish.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Publish {
        self.idempotency_key = Some(key.into());
        self
    }

    async fn send(self) -> Result<Published> {
        let job = &self.job;
        job.check()?;
        let attributes = attributes(job);
        if !attributes.iter().all(|(name, value)| fits_header(name, value)) {
            let body = json!([element(job)?]).to_string();
            let jobs = self.client.batch(&self.queue, body.into(), 1, self.idempotency_key).await;
            let mut jobs = jobs.map_err(|e| {
                let job_id = e.job_id().map(str::to_owned);
                e.with_job(job_id, None)
            })?;
            return jobs.pop().ok_or_else(|| Error::new(ErrorKind::Protocol, "the answer names no job"));
        }
        let mut call = Call::post(queue_path(self.client.namespace(), &self.queue).join("jobs"))
            .with_some("delay", job.delay.map(seconds))
            .with_some("ttl", job.ttl.map(seconds))
            .with_some("tries", job.tries.map(|tries| tries.to_string()))
            .with_some("key", job.key.as_ref())
            .with_some("on_conflict", job.on_conflict.map(|what| what.as_str()))
            .body(job.data.clone());
        call = match job.at.as_ref().map(|at| &at.0) {
            Some(Given::Millis(at)) => call.with("at_ms", &(*at).max(0).to_string()),
            Some(Given::Text(at)) => call.with("at", at),
            None => call,
        };
        if !attributes.is_empty() {
            call.headers.insert("enable-job-version", HeaderValue::from_static("YES"));
        }
        for (name, value) in &attributes {
            let name = HeaderName::try_from(format!("job-attr-{name}"));
            let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) else {
                return Err(Error::invalid("no header can carry the attributes"));
            };
            call.headers.insert(name, value);
        }
        let answer = self.client.call(&once_only(call, self.idempotency_key)?).await?;
        let mut published: Published = answer.json()?;
        published.replayed = replayed(&answer);
        Ok(published)
    }
}

impl IntoFuture for Publish {
    type Output = Result<Published>;
    type IntoFuture = Boxed<Published>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A consume; `.await` sends it, once. For programs without a [`Worker`](crate::Worker).
#[must_use = "nothing is sent before it is awaited"]
#[derive(Clone, Debug)]
pub struct Consume {
    pub(crate) client: Client,
    pub(crate) queues: Vec<String>,
    pub(crate) weights: Vec<u32>,
    pub(crate) count: usize,
    pub(crate) ttr: Duration,
    pub(crate) timeout: Duration,
}

impl Consume {
    /// Sets the proportions of the queues; one weight per queue.
    pub fn weights(mut self, weights: impl Into<Vec<u32>>) -> Consume {
        self.weights = weights.into();
        self
    }

    /// Maximum number of jobs, 1 to 100.
    pub fn count(mut self, count: usize) -> Consume {
        self.count = count;
        self
    }

    /// Time until a job is redelivered unless touched; whole seconds, rounded up, 30 by default.
    pub fn ttr(mut self, ttr: Duration) -> Consume {
        self.ttr = whole(ttr);
        self
    }

    /// How long to wait for a job; whole seconds, rounded up, by default not at all.
    pub fn timeout(mut self, timeout: Duration) -> Consume {
        self.timeout = whole(timeout);
        self
    }

    pub(crate) fn call(&self) -> Call {
        let weights: Vec<String> = self.weights.iter().map(u32::to_string).collect();
        Call::get(queues_path(self.client.namespace(), &self.queues))
            .with("receipt", "1")
            .with("ttr", &self.ttr.as_secs().to_string())
            .with("timeout", &self.timeout.as_secs().to_string())
            .with("count", &self.count.to_string())
            .with_some("weights", (!weights.is_empty()).then(|| weights.join(",")))
            .undone()
    }

    /// Returns the timeout of the poll's request.
    pub(crate) fn limit(&self) -> Duration {
        self.timeout.saturating_add(POLL_SLACK)
    }

    /// Returns the jobs of a reply whose head arrived at `since`.
    pub(crate) fn jobs(&self, answer: Result<Answer>, since: Instant) -> Result<Vec<Job>> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Many(Vec<HandedOut>),
            One(Box<HandedOut>),
        }
        let given = match answer {
            Ok(answer) => answer.json::<Given>()?,
            Err(e) if is_empty(&e) => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let given = match given {
            Given::Many(jobs) => jobs,
            Given::One(job) => vec![*job],
        };
        if given.iter().any(|job| job.receipt.is_none()) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the server shows no receipts: it is older, or lmstfy's",
            ));
        }
        let job = |job: HandedOut| {
            let hold = Hold::new(
                self.client.clone(),
                job.queue.clone(),
                job.job_id.clone(),
                job.receipt,
                self.ttr,
                since,
            );
            Job {
                id: job.job_id,
                queue: job.queue,
                namespace: job.namespace,
                data: job.data.unwrap_or_default(),
                remain_tries: job.remain_tries,
                ttl: (job.ttl > 0).then(|| Duration::from_secs(job.ttl)),
                elapsed: Duration::from_millis(job.elapsed_ms),
                attributes: job.attributes.unwrap_or_default(),
                hold: Arc::new(hold),
            }
        };
        Ok(given.into_iter().map(job).collect())
    }

    async fn send(self) -> Result<Vec<Job>> {
        let call = self.call();
        let limit = self.timeout.saturating_add(self.client.timeout());
        let until = Instant::now() + self.client.0.retry_for;
        let mut pauses = Pauses::default();
        loop {
            let head = Head::default();
            let answer = self.client.once_seen(&call, limit, &head).await;
            let jobs = self.jobs(answer, head.at().unwrap_or_else(Instant::now));
            let error = match jobs {
                Err(e) if e.did_nothing() => e,
                other => return other,
            };
            let pause = pauses.next(error.retry_after());
            if pause >= until.saturating_duration_since(Instant::now()) {
                return Err(error);
            }
            sleep(pause).await;
        }
    }
}

/// Whether the poll ended without a job.
pub(crate) fn is_empty(error: &Error) -> bool {
    error.status() == Some(404) && error.message() == "no job available"
}

impl IntoFuture for Consume {
    type Output = Result<Vec<Job>>;
    type IntoFuture = Boxed<Vec<Job>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A respawn of dead jobs.
#[derive(Clone, Debug)]
pub struct Respawn {
    client: Client,
    queue: String,
    tries: Option<u32>,
    delay: Option<Duration>,
    ttl: Option<Duration>,
}

impl Respawn {
    /// Number of deliveries; 1 by default. Only by ids.
    pub fn tries(mut self, tries: u32) -> Respawn {
        self.tries = Some(tries);
        self
    }

    /// Time until they are due. Only by ids.
    pub fn delay(mut self, delay: Duration) -> Respawn {
        self.delay = Some(delay);
        self
    }

    /// Time until they expire; zero is forever.
    pub fn ttl(mut self, ttl: Duration) -> Respawn {
        self.ttl = Some(ttl);
        self
    }

    /// Respawns these jobs, any number of them.
    pub async fn jobs(self, ids: &[impl AsRef<str>]) -> Result<Respawned> {
        #[derive(Deserialize)]
        struct Answered {
            respawned: u64,
            missing: Vec<String>,
        }
        let mut all = Respawned::default();
        let path = queue_path(self.client.namespace(), &self.queue).join("deadletter").join("respawn");
        for part in ids.chunks(IDS) {
            let ids: Vec<&str> = part.iter().map(AsRef::as_ref).collect();
            let call = Call::post(path.clone())
                .with_some("tries", self.tries.map(|tries| tries.to_string()))
                .with_some("delay", self.delay.map(seconds))
                .with_some("ttl", self.ttl.map(seconds))
                .body(json!({ "jobs": ids }).to_string());
            let answered: Answered = self.client.call(&call).await?.json()?;
            all.respawned += answered.respawned;
            all.missing.extend(answered.missing);
        }
        Ok(all)
    }

    /// Respawns up to `limit` of the oldest jobs. Returns how many.
    pub async fn oldest(self, limit: u64) -> Result<u64> {
        #[derive(Deserialize)]
        struct Answered {
            count: u64,
        }
        if self.tries.is_some() || self.delay.is_some() {
            return Err(Error::invalid("tries and delay are for a respawn by ids"));
        }
        let mut call = Call::put(queue_path(self.client.namespace(), &self.queue).join("deadletter"))
            .with("limit", &limit.to_string());
        if let Some(ttl) = self.ttl {
            call = call.with("ttl", &whole(ttl).as_secs().to_string());
        }
        Ok(self.client.call(&call).await?.json::<Answered>()?.count)
    }
}

/// A page of a list, and the cursor of the next one.
pub(crate) type Page<T> = (Vec<T>, Option<String>);

/// Reads a page of queues.
pub(crate) async fn queues(client: Client, cursor: Option<String>) -> Result<Page<QueueInfo>> {
    #[derive(Deserialize)]
    struct Listed {
        queues: Vec<QueueInfo>,
        cursor: Option<String>,
    }
    let call = Call::get(namespace_path(client.namespace())).with("limit", "100").with_some("cursor", cursor);
    let listed: Listed = client.call(&call).await?.json()?;
    Ok((listed.queues, listed.cursor))
}

/// Reads a page of jobs.
pub(crate) async fn jobs(
    client: Client,
    queue: String,
    state: State,
    data: bool,
    cursor: Option<String>,
) -> Result<Page<JobInfo>> {
    #[derive(Deserialize)]
    struct Listed {
        jobs: Vec<JobInfo>,
        cursor: Option<String>,
    }
    let call = Call::get(queue_path(client.namespace(), &queue).join("jobs"))
        .with("state", state.as_str())
        .with("limit", "100")
        .with_some("data", data.then_some("1"))
        .with_some("cursor", cursor);
    let listed: Listed = client.call(&call).await?.json()?;
    Ok((listed.jobs, listed.cursor))
}
