//! The conformance program: the library behind lines of JSON, for the suite in `clients/conformance`.
#![allow(clippy::unwrap_used, reason = "a lock is poisoned by a panic of this program, which ends it")]

mod double;
mod handler;
mod read;
mod show;

use std::collections::HashMap;
use std::io::{self, BufRead as _, Write as _};
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dormouse_client::{
    Client, Error, Event, Job, Next, SignatureError, State, Stopper, StreamExt as _, Worker, WorkerError,
    verify_at,
};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use handler::Handlers;
use read::{Op, duration, instant_of};

/// Objects created by this program.
struct Program {
    clients: Mutex<HashMap<String, Client>>,
    /// Consumed jobs, by client and id.
    jobs: Mutex<HashMap<(String, String), Job>>,
    workers: Mutex<HashMap<String, Worker>>,
    running: Mutex<HashMap<String, Run>>,
    /// A worker has ended with running handlers.
    unclean: AtomicBool,
    handlers: Handlers,
}

/// A started worker.
#[derive(Clone)]
struct Run {
    stopper: Stopper,
    /// Whether it ended cleanly, once it has ended.
    ended: watch::Receiver<Option<bool>>,
}

impl Run {
    async fn clean(mut self) -> bool {
        self.ended.wait_for(Option::is_some).await.is_ok_and(|clean| *clean == Some(true))
    }
}

/// Why an operation has no result.
enum Failed {
    Call(Box<Error>),
    Signature(SignatureError),
    Wrong(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Call(Box::new(error))
    }
}

type Told = Result<Value, Failed>;

fn wrong<T>(text: impl Into<String>) -> Result<T, Failed> {
    Err(Failed::Wrong(text.into()))
}

/// Writes a line to standard output.
pub fn say(line: &Value) {
    let mut out = io::stdout().lock();
    // The reader has gone: the end of input follows.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Writes an event, with its time.
pub fn event(mut event: Value) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    event["at"] = json!(u64::try_from(now.as_millis()).unwrap_or_default());
    say(&event);
}

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    let (lines, mut read) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let program = Arc::new(Program {
        clients: Mutex::default(),
        jobs: Mutex::default(),
        workers: Mutex::default(),
        running: Mutex::default(),
        unclean: AtomicBool::new(false),
        handlers: Handlers::default(),
    });
    say(&json!({ "event": "ready", "language": "rust", "version": env!("CARGO_PKG_VERSION"), "lacks": [] }));
    let driver = "the runtime has its driver of signals";
    let mut term = signal(SignalKind::terminate()).expect(driver);
    let mut int = signal(SignalKind::interrupt()).expect(driver);
    let mut stopping = false;
    loop {
        tokio::select! {
            line = read.recv() => match line {
                Some(line) => answer_or_begin(&program, &line).await,
                None => exit(0),
            },
            _ = term.recv(), if !stopping => stopping = end_with_workers(&program),
            _ = int.recv(), if !stopping => stopping = end_with_workers(&program),
        }
    }
}

/// Workers handle signals themselves; when all have ended, so does this program.
fn end_with_workers(program: &Arc<Program>) -> bool {
    let runs: Vec<Run> = program.running.lock().unwrap().values().cloned().collect();
    let program = program.clone();
    tokio::spawn(async move {
        for run in runs {
            run.clean().await;
        }
        exit(i32::from(program.unclean.load(Ordering::SeqCst)));
    });
    true
}

/// Requests run concurrently, except those that create clients, workers and gates for later lines.
async fn answer_or_begin(program: &Arc<Program>, line: &str) {
    let op: Value = match serde_json::from_str(line) {
        Ok(op) => op,
        Err(e) => return say(&json!({ "id": null, "error": { "type": "wrong", "message": e.to_string() } })),
    };
    let answer = answer(program.clone(), op.clone());
    if matches!(op["op"].as_str(), Some("client" | "worker" | "start" | "open")) {
        answer.await;
    } else {
        tokio::spawn(answer);
    }
}

async fn answer(program: Arc<Program>, op: Value) {
    let id = op["id"].clone();
    let told = program.perform(&Op(op)).await;
    say(&match told {
        Ok(result) => json!({ "id": id, "result": result }),
        Err(Failed::Call(error)) => json!({ "id": id, "error": show::error(&error) }),
        Err(Failed::Signature(error)) => {
            json!({ "id": id, "error": show::plain("signature", &error.to_string()) })
        }
        Err(Failed::Wrong(text)) => json!({ "id": id, "error": show::plain("wrong", &text) }),
    });
}

impl Program {
    async fn perform(self: &Arc<Self>, op: &Op) -> Told {
        match op.text("op")? {
            "client" => self.make_client(op),
            "worker" => self.make_worker(op),
            "start" => self.start(op),
            "stop" => self.stop(op).await,
            "open" => {
                self.handlers.open(op.text("gate")?);
                Ok(json!({}))
            }
            "verify" => verify(op),
            "double" => double::run(op).await,
            "touch" | "release" | "bury" | "ack" => self.hold(op).await,
            _ => self.call(op, self.client(op)?).await,
        }
    }

    fn client(&self, op: &Op) -> Result<Client, Failed> {
        let name = op.text("client")?;
        self.clients
            .lock()
            .unwrap()
            .get(name)
            .cloned()
            .ok_or_else(|| Failed::Wrong(format!("no client {name}")))
    }

    fn make_client(&self, op: &Op) -> Told {
        let mut builder = Client::builder(op.text("url")?, op.text("namespace")?, op.text("token")?);
        if let Some(timeout) = op.seconds("timeout")? {
            builder = builder.timeout(timeout);
        }
        if let Some(retry_for) = op.seconds("retry_for")? {
            builder = builder.retry_for(retry_for);
        }
        self.clients.lock().unwrap().insert(op.text("client")?.to_owned(), builder.build()?);
        Ok(json!({}))
    }

    async fn call(&self, op: &Op, client: Client) -> Told {
        let queue = op.maybe_text("queue").unwrap_or_default();
        match op.text("op")? {
            "publish" => {
                let mut publish = client.publish(queue, read::job(op)?);
                if let Some(key) = op.maybe_text("idempotency_key") {
                    publish = publish.idempotency_key(key);
                }
                Ok(show::published(&publish.await?))
            }
            "publish_many" => {
                let jobs =
                    op.list("jobs")?.into_iter().map(|job| read::job(&Op(job))).collect::<Result<_, _>>()?;
                let published = client.publish_many(queue, jobs).await?;
                Ok(json!({ "jobs": published.iter().map(show::published).collect::<Vec<_>>() }))
            }
            "consume" => self.consume(op, &client).await,
            "ack_many" => {
                let jobs = op.texts("job_ids")?.into_iter().map(|id| self.job(op, &id));
                let acked = client.ack_many(queue, &jobs.collect::<Result<Vec<_>, _>>()?).await?;
                Ok(json!({ "acked": acked.acked, "stale": acked.stale }))
            }
            "cancel" => {
                match (op.maybe_text("job_id"), op.maybe_text("key")) {
                    (Some(id), _) => client.cancel(queue, id).await?,
                    (None, Some(key)) => client.cancel_key(queue, key).await?,
                    (None, None) => return wrong("a cancel needs job_id or key"),
                }
                Ok(json!({}))
            }
            "promote" => {
                match (op.maybe_text("job_id"), op.maybe_text("key")) {
                    (Some(id), _) => client.promote(queue, id).await?,
                    (None, Some(key)) => client.promote_key(queue, key).await?,
                    (None, None) => return wrong("a promote needs job_id or key"),
                }
                Ok(json!({}))
            }
            "get" => {
                let info = match (op.maybe_text("job_id"), op.maybe_text("key")) {
                    (Some(id), _) => client.get(queue, id).await?,
                    (None, Some(key)) => client.get_key(queue, key).await?,
                    (None, None) => return wrong("a get needs job_id or key"),
                };
                Ok(show::info(&info))
            }
            "peek" => Ok(json!({ "job": client.peek(queue).await?.as_ref().map(show::info) })),
            "size" => Ok(json!({ "size": client.size(queue).await? })),
            "dead" => {
                let dead = client.dead_letter(queue).await?;
                Ok(json!({ "size": dead.size, "head": dead.head }))
            }
            "destroy" => client.destroy(queue).await.map(|()| json!({})).map_err(Into::into),
            "resume" => client.resume(queue).await.map(|()| json!({})).map_err(Into::into),
            "pause" => {
                let until = client.pause(queue, op.seconds("for")?).await?;
                Ok(json!({ "until": until.map(jiff::Timestamp::as_millisecond) }))
            }
            "respawn" => respawn(op, &client).await,
            "delete_dead" => {
                let oldest = op.number("oldest")?.unwrap_or(1);
                client.delete_dead(queue, oldest).await?;
                Ok(json!({}))
            }
            "list" => {
                let state = match op.text("state")? {
                    "ready" => State::Ready,
                    "delayed" => State::Delayed,
                    "running" => State::Running,
                    "dead" => State::Dead,
                    other => return wrong(format!("no state {other}")),
                };
                let take = op.number("take")?.map_or(usize::MAX, |take: u32| take as usize);
                let mut drawn = client.jobs(queue, state).data(op.flag("data")).take(take);
                let mut jobs = Vec::new();
                while let Some(job) = drawn.next().await {
                    jobs.push(show::info(&job?));
                }
                Ok(json!({ "jobs": jobs }))
            }
            "queues" => {
                let take = op.number("take")?.map_or(usize::MAX, |take: u32| take as usize);
                let mut drawn = client.queues().take(take);
                let mut queues = Vec::new();
                while let Some(queue) = drawn.next().await {
                    queues.push(show::queue(&queue?));
                }
                Ok(json!({ "queues": queues }))
            }
            other => wrong(format!("no op {other}")),
        }
    }

    async fn consume(&self, op: &Op, client: &Client) -> Told {
        let mut consume = client.consume(op.texts("queues")?);
        if let Some(weights) = op.numbers("weights")? {
            consume = consume.weights(weights);
        }
        if let Some(count) = op.number("count")? {
            consume = consume.count(count);
        }
        if let Some(ttr) = op.seconds("ttr")? {
            consume = consume.ttr(ttr);
        }
        if let Some(timeout) = op.seconds("timeout")? {
            consume = consume.timeout(timeout);
        }
        let jobs = consume.await?;
        let shown: Vec<Value> = jobs.iter().map(show::job).collect();
        let name = op.text("client")?.to_owned();
        let mut all = self.jobs.lock().unwrap();
        for job in jobs {
            all.insert((name.clone(), job.id.clone()), job);
        }
        Ok(json!({ "jobs": shown }))
    }

    fn job(&self, op: &Op, id: &str) -> Result<Job, Failed> {
        let place = (op.text("client")?.to_owned(), id.to_owned());
        self.jobs.lock().unwrap().get(&place).cloned().ok_or_else(|| Failed::Wrong(format!("no job {id}")))
    }

    async fn hold(&self, op: &Op) -> Told {
        let job = self.job(op, op.text("job_id")?)?;
        let reason = op.maybe_text("reason").unwrap_or_default();
        match op.text("op")? {
            "touch" => {
                let until = job.touch(op.seconds("ttr")?.unwrap_or(Duration::from_secs(30))).await?;
                Ok(json!({ "until": until.as_millisecond() }))
            }
            "release" => {
                let spend = op.0["spend"].as_bool().unwrap_or(true);
                let delay = op.seconds("delay")?.unwrap_or_default();
                Ok(show::released(job.release(delay, spend, reason).await?))
            }
            "bury" => {
                job.bury(reason).await?;
                Ok(json!({ "dead": true }))
            }
            _ => {
                job.ack().await?;
                Ok(json!({}))
            }
        }
    }

    fn make_worker(&self, op: &Op) -> Told {
        let name = op.text("worker")?.to_owned();
        let (queues, weights) = op.queues()?;
        let mut worker = Worker::new(self.client(op)?);
        for queue in queues {
            let (handlers, name) = (self.handlers.clone(), name.clone());
            worker = worker.queue(queue, move |job| {
                let (handlers, name) = (handlers.clone(), name.clone());
                async move { handlers.handle(&name, job).await }
            });
        }
        if let Some(weights) = weights {
            worker = worker.weights(weights);
        }
        if let Some(concurrency) = op.number("concurrency")? {
            worker = worker.concurrency(concurrency);
        }
        if let Some(ttr) = op.seconds("ttr")? {
            worker = worker.ttr(ttr);
        }
        if let Some(poll) = op.seconds("poll")? {
            worker = worker.poll(poll);
        }
        if let Some(backoff) = op.0["backoff"].as_array() {
            worker = worker.backoff(backoff.iter().filter_map(duration).collect::<Vec<_>>());
        }
        if let Some(limit) = op.seconds("time_limit")? {
            worker = worker.time_limit(limit);
        }
        if let Some(drain) = op.seconds("drain")? {
            worker = worker.drain(drain);
        }
        if let Some(grace) = op.seconds("grace")? {
            worker = worker.grace(grace);
        }
        if let Some(window) = op.seconds("ack_window")? {
            worker = worker.ack_window(window);
        }
        let (of, told) = (name.clone(), name.clone());
        worker = worker
            .middleware(move |job, next| middleware(of.clone(), job, next))
            .hook(move |happened| hook(&told, happened));
        worker.check()?;
        self.workers.lock().unwrap().insert(name, worker);
        Ok(json!({}))
    }

    fn start(self: &Arc<Self>, op: &Op) -> Told {
        let name = op.text("worker")?.to_owned();
        let worker = self.workers.lock().unwrap().get(&name).cloned();
        let Some(worker) = worker else {
            return wrong(format!("no worker {name}"));
        };
        let stopper = worker.stopper();
        let (of, program) = (name.clone(), self.clone());
        let (tell, end) = watch::channel(None);
        tokio::spawn(async move {
            let ended = worker.run().await;
            let clean = !matches!(ended, Err(WorkerError::Unfinished(_)));
            program.unclean.fetch_or(!clean, Ordering::SeqCst);
            let error = match ended {
                Err(WorkerError::Ended(error)) => show::error(&error),
                Err(other) => show::plain("unclean", &other.to_string()),
                Ok(()) => Value::Null,
            };
            event(json!({ "event": "stopped", "worker": of, "clean": clean, "error": error }));
            tell.send_replace(Some(clean));
        });
        self.running.lock().unwrap().insert(name, Run { stopper, ended: end });
        Ok(json!({}))
    }

    async fn stop(&self, op: &Op) -> Told {
        let name = op.text("worker")?;
        let run = self.running.lock().unwrap().get(name).cloned();
        let Some(run) = run else {
            return wrong(format!("the worker {name} was not started"));
        };
        // A worker that has just been started may not listen yet.
        while !run.stopper.is_running() && run.ended.borrow().is_none() {
            tokio::task::yield_now().await;
        }
        if run.ended.borrow().is_none() {
            run.stopper.stop();
        }
        Ok(json!({ "clean": run.clean().await }))
    }
}

async fn respawn(op: &Op, client: &Client) -> Told {
    let mut respawn = client.respawn(op.text("queue")?);
    if let Some(tries) = op.number("tries")? {
        respawn = respawn.tries(tries);
    }
    if let Some(delay) = op.seconds("delay")? {
        respawn = respawn.delay(delay);
    }
    if let Some(ttl) = op.seconds("ttl")? {
        respawn = respawn.ttl(ttl);
    }
    if let Some(oldest) = op.number("oldest")? {
        return Ok(json!({ "respawned": respawn.oldest(oldest).await?, "missing": [] }));
    }
    let respawned = respawn.jobs(&op.texts("job_ids")?).await?;
    Ok(json!({ "respawned": respawned.respawned, "missing": respawned.missing }))
}

async fn middleware(worker: String, job: Job, next: Next) -> Result<(), dormouse_client::Outcome> {
    let say = |id: &str, phase: &str, error: Option<String>| {
        event(
            json!({ "event": "middleware", "worker": worker, "job_id": id, "phase": phase, "error": error }),
        );
    };
    let id = job.id.clone();
    say(&id, "before", None);
    let result = next.run(job).await;
    let error = result.as_ref().err().map(|outcome| outcome.text().unwrap_or("snooze").to_owned());
    say(&id, "after", error);
    result
}

fn hook(worker: &str, happened: &Event<'_>) {
    let mut told = match happened {
        Event::Poll { jobs, took, error } => {
            json!({ "name": "poll", "jobs": jobs, "seconds": took.as_secs_f64(), "error": error.map(ToString::to_string) })
        }
        Event::Start { job } => json!({ "name": "start", "job_id": job.id }),
        Event::Finish { job, outcome, took, elapsed } => json!({
            "name": "finish", "job_id": job.id, "outcome": outcome.as_str(),
            "seconds": took.as_secs_f64(), "elapsed": elapsed.as_secs_f64(),
        }),
        Event::Touch { job, error } => {
            json!({ "name": "touch", "job_id": job.id, "error": error.map(ToString::to_string) })
        }
        Event::Away { error } => json!({ "name": "away", "error": error.to_string() }),
        Event::Back { after } => json!({ "name": "back", "seconds": after.as_secs_f64() }),
        Event::Drain { running } => json!({ "name": "drain", "running": running }),
        _ => return,
    };
    told["event"] = "hook".into();
    told["worker"] = worker.into();
    event(told);
}

fn verify(op: &Op) -> Told {
    let secrets = match &op.0["secrets"] {
        Value::String(secret) => vec![secret.clone()],
        _ => op.texts("secrets")?,
    };
    let Some(headers) = op.0["headers"].as_object() else {
        return wrong("headers should be an object");
    };
    let headers = headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
    let now = instant_of(&op.0["now"]).unwrap_or_else(SystemTime::now);
    verify_at(secrets, headers, &op.data()?.unwrap_or_default(), now).map_err(Failed::Signature)?;
    Ok(json!({}))
}
