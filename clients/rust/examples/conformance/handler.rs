//! The handler of all queues: follows the steps in the body of its job.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dormouse_client::{Cause, Job, NewJob, Outcome};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::read::duration;
use crate::{event, show};

/// State shared by handlers.
#[derive(Clone)]
pub struct Handlers(Arc<Inner>);

struct Inner {
    /// Open gates.
    open: watch::Sender<HashSet<String>>,
    /// Number of running handlers, by worker.
    running: Mutex<HashMap<String, usize>>,
    /// How often an end was used for a job: by its id and its position among the steps.
    taken: Mutex<HashMap<(String, usize), u64>>,
}

impl Default for Handlers {
    fn default() -> Handlers {
        let open = watch::Sender::new(HashSet::new());
        Handlers(Arc::new(Inner { open, running: Mutex::default(), taken: Mutex::default() }))
    }
}

/// Counts a running handler, until dropped.
struct Counted(Handlers, String);

impl Counted {
    /// Returns the guard, and the count including this handler.
    fn new(handlers: &Handlers, worker: &str) -> (Counted, usize) {
        let mut running = handlers.0.running.lock().unwrap();
        let count = running.entry(worker.to_owned()).or_default();
        *count += 1;
        (Counted(handlers.clone(), worker.to_owned()), *count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(count) = self.0.0.running.lock().unwrap().get_mut(&self.1) {
            *count -= 1;
        }
    }
}

/// How a handler ends.
enum End {
    Ok,
    Cancelled(Cause),
    Outcome(Outcome),
    Panic(String),
}

impl Handlers {
    pub fn open(&self, gate: &str) {
        self.0.open.send_modify(|open| {
            open.insert(gate.to_owned());
        });
    }

    pub async fn handle(&self, worker: &str, job: Job) -> Result<(), Outcome> {
        let (counted, running) = Counted::new(self, worker);
        event(json!({ "event": "start", "worker": worker, "job": show::job(&job), "running": running }));
        let (id, name) = (job.id.clone(), worker.to_owned());
        let watched = job.clone();
        let told = Arc::new(AtomicBool::new(false));
        let seen = told.clone();
        let watcher = tokio::spawn(async move {
            let cause = watched.cancelled().await;
            if !seen.swap(true, Ordering::SeqCst) {
                say_cancelled(&name, &watched.id, cause);
            }
        });
        let end = self.follow(worker, &job).await;
        watcher.abort();
        if let Some(cause) = job.cause() {
            if !told.swap(true, Ordering::SeqCst) {
                say_cancelled(worker, &id, cause);
            }
        }
        let result = match &end {
            End::Ok => "ok",
            End::Cancelled(_) => "cancelled",
            End::Outcome(_) => "error",
            End::Panic(_) => "panic",
        };
        drop(counted);
        event(json!({ "event": "end", "worker": worker, "job_id": id, "result": result }));
        match end {
            End::Ok => Ok(()),
            End::Cancelled(cause) => Err(Outcome::Failed(format!("cancelled: {}", cause.as_str()))),
            End::Outcome(outcome) => Err(outcome),
            End::Panic(text) => panic!("{text}"),
        }
    }

    async fn follow(&self, worker: &str, job: &Job) -> End {
        if job.data.starts_with(b"json:") {
            return match job.json::<Value>() {
                Ok(_) => End::Ok,
                Err(e) => End::Outcome(e.into()),
            };
        }
        let body: Value = serde_json::from_slice(&job.data).unwrap_or_default();
        let steps = body["do"].as_array().cloned().unwrap_or_default();
        let mut swallow = false;
        for (place, step) in steps.iter().enumerate() {
            if step["swallow"] == true {
                swallow = true;
                continue;
            }
            match self.step(worker, job, place, step).await {
                None => {}
                Some(End::Cancelled(_)) if swallow => return End::Ok,
                Some(end) => return end,
            }
        }
        End::Ok
    }

    /// Runs a step. `None` continues with the next one.
    async fn step(&self, worker: &str, job: &Job, place: usize, step: &Value) -> Option<End> {
        let call = |result: Result<(), dormouse_client::Error>| result.err().map(|e| End::Outcome(e.into()));
        if let Some(time) = duration(&step["sleep"]) {
            return tokio::select! {
                biased;
                cause = job.cancelled() => Some(End::Cancelled(cause)),
                () = sleep(time) => None,
            };
        }
        if let Some(gate) = step["wait"].as_str() {
            let mut open = self.0.open.subscribe();
            return tokio::select! {
                biased;
                cause = job.cancelled() => Some(End::Cancelled(cause)),
                _ = open.wait_for(|open| open.contains(gate)) => None,
            };
        }
        if let Some(time) = duration(&step["ignore"]) {
            sleep(time).await;
            return None;
        }
        if let Some(time) = duration(&step["block"]) {
            std::thread::sleep(time);
            return None;
        }
        if let Some(publish) = step["publish"].as_object() {
            let text = |name: &str| publish.get(name).and_then(Value::as_str).unwrap_or_default();
            let data = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text("data"));
            let published = job.client().publish(text("queue"), NewJob::new(data.unwrap_or_default())).await;
            return call(published.map(drop));
        }
        if let Some(ttr) = duration(&step["touch"]) {
            return call(job.touch(ttr).await.map(drop));
        }
        if step["ack"] == true {
            return call(job.ack().await);
        }
        if step["attempt"] == true {
            return match job.attempt().await {
                Ok(attempt) => {
                    event(
                        json!({ "event": "attempt", "worker": worker, "job_id": job.id, "attempt": attempt }),
                    );
                    None
                }
                Err(e) => Some(End::Outcome(e.into())),
            };
        }
        if let Some(times) = step["times"].as_u64() {
            let mut taken = self.0.taken.lock().unwrap();
            let so_far = taken.entry((job.id.clone(), place)).or_default();
            if *so_far >= times {
                return None;
            }
            *so_far += 1;
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if let Some(text) = text(&step["fail"]) {
            return Some(End::Outcome(Outcome::Failed(text)));
        }
        if let Some(text) = text(&step["permanent"]) {
            return Some(End::Outcome(Outcome::Permanent(text)));
        }
        if step["retry"].is_object() {
            let after = duration(&step["retry"]["after"]).unwrap_or(Duration::ZERO);
            let text = text(&step["retry"]["text"]).unwrap_or_default();
            return Some(End::Outcome(Outcome::RetryAfter(after, text)));
        }
        if let Some(time) = duration(&step["snooze"]) {
            return Some(End::Outcome(Outcome::Snooze(time)));
        }
        if let Some(text) = text(&step["panic"]) {
            return Some(End::Panic(text));
        }
        Some(End::Outcome(Outcome::Permanent(format!("no such step: {step}"))))
    }
}

fn say_cancelled(worker: &str, id: &str, cause: Cause) {
    event(json!({ "event": "cancelled", "worker": worker, "job_id": id, "cause": cause.as_str() }));
}
