//! Requests to the recorded server over HTTP: every kind that changes the store, with the times of their replies. A
//! request in flight at a cut counts as not acknowledged.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::{Client, Method};
use serde_json::Value;

use super::rng::Rng;
use super::trace::{self, Reader, Trace};
use crate::support::process::Process;

/// The namespace of all jobs.
pub const NAMESPACE: &str = "cut";
/// Queue of the schedules' jobs, which is not consumed.
pub const TICKS: &str = "ticks";
/// Longer than any test runs, shorter than the judge looks ahead.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// A published job.
#[derive(Clone, Debug)]
pub struct Sent {
    pub id: String,
    pub queue: String,
    pub body: Vec<u8>,
    pub tries: u16,
    pub delay: Duration,
}

/// Effect of a request.
#[derive(Clone, Debug)]
pub enum What {
    /// One job, or a bulk.
    Publish(Vec<Sent>),
    Republish {
        old: String,
        new: Sent,
    },
    HandOut(Vec<String>),
    Ack(String),
    /// Destroyed while ready, or deleted while dead.
    Remove(Vec<String>),
    Respawn(Vec<String>),
    /// A schedule is set.
    Schedule(String),
    Token {
        namespace: String,
        token: String,
    },
}

impl What {
    /// Returns whether a power cut must not undo it once acknowledged, according to docs/disk-format.md.
    pub fn must_last(&self) -> bool {
        !matches!(self, What::HandOut(_))
    }
}

/// A request and its reply. Times are nanoseconds since 1970.
#[derive(Clone, Debug)]
pub struct Act {
    pub began: u64,
    pub answered: u64,
    pub what: What,
}

/// Returns the nanoseconds since 1970.
pub fn nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_nanos()).expect("it is before 2554")
}

/// A server whose writes are recorded.
pub struct Server {
    process: Option<Process>,
    reader: Option<Reader>,
    pid_file: PathBuf,
    api: String,
    admin: String,
}

impl Server {
    /// Starts it with its pool in `root/pool`. Its other files are in `work`.
    pub fn start(root: &Path, work: &Path, sync: &str) -> Server {
        let config = work.join("config.toml");
        let pool = root.join("pool");
        let toml = format!("[Pool.default]\nPath = {pool:?}\nSync = {sync:?}\n");
        std::fs::write(&config, toml).expect("a configuration can be written");
        let (pipe, pid_file) = (work.join("trace"), work.join("pid"));
        // Files of an earlier run.
        let _ = std::fs::remove_file(&pipe);
        let (words, reader) = trace::strace(root, &pipe);
        let args =
            ["-c".to_owned(), config.display().to_string(), "-p".into(), pid_file.display().to_string()];
        let mut process = Process::start_under(&words, work, &args.each_ref().map(String::as_str), &[]);
        let (api, admin) = (process.address("api"), process.address("admin"));
        Server { process: Some(process), reader: Some(reader), pid_file, api, admin }
    }

    fn signal(&self, name: &str) {
        let Ok(pid) = std::fs::read_to_string(&self.pid_file) else { return };
        let _ = Command::new("kill").args([&format!("-{name}"), pid.trim()]).status();
    }

    /// Stops it cleanly. Returns its trace.
    pub async fn stop(self) -> Trace {
        self.end("TERM", Some(0)).await
    }

    /// Kills it by kill -9. Returns its trace.
    pub async fn kill(self) -> Trace {
        self.end("KILL", None).await
    }

    async fn end(mut self, signal: &str, code: Option<i32>) -> Trace {
        self.signal(signal);
        let process = self.process.take().expect("it was started");
        let reader = self.reader.take().expect("it was started");
        let wait = move || {
            let ended = process.ended();
            let said = &ended.said;
            assert!(
                code.is_none() || ended.status.code() == code,
                "the recorded server should end with {code:?}, not {:?}; it said:\n{said}",
                ended.status
            );
            reader.trace()
        };
        tokio::task::spawn_blocking(wait).await.expect("the server ends")
    }
}

impl Drop for Server {
    /// strace would leave it running.
    fn drop(&mut self) {
        if self.process.is_some() {
            self.signal("KILL");
        }
    }
}

/// Contents of replies.
struct Answer {
    began: u64,
    answered: u64,
    status: u16,
    json: Value,
}

/// A client that records its requests.
#[derive(Clone)]
pub struct Driver {
    client: Client,
    api: String,
    admin: String,
    token: String,
    acts: Arc<Mutex<Vec<Act>>>,
    rng: Rng,
    name: String,
    count: u64,
}

impl Driver {
    /// Creates a client with a new token.
    pub async fn new(server: &Server, acts: Arc<Mutex<Vec<Act>>>, seed: u64) -> Driver {
        let client = Client::builder().timeout(Duration::from_secs(60)).build().expect("a client");
        let mut driver = Driver {
            client,
            api: format!("http://{}", server.api),
            admin: format!("http://{}", server.admin),
            token: String::new(),
            acts,
            rng: Rng::new(seed),
            name: format!("s{seed}"),
            count: 0,
        };
        driver.token = driver.make_token(NAMESPACE).await;
        driver
    }

    /// Returns another client, with its own random numbers.
    pub fn other(&self, n: u64) -> Driver {
        let mut other = self.clone();
        other.rng = Rng::new(n.wrapping_mul(0x1234_5678_9abc_def1) ^ self.rng.clone().next());
        other.name = format!("{}c{n}", self.name);
        other
    }

    async fn ask(&self, method: Method, url: String, body: Vec<u8>) -> Answer {
        let request = self.client.request(method, &url).header("X-Token", &self.token).body(body);
        let began = nanoseconds();
        let answer = request.send().await.unwrap_or_else(|e| panic!("{url}: {e}"));
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap_or_else(|e| panic!("{url}: {e}"));
        let answered = nanoseconds();
        Answer { began, answered, status, json: serde_json::from_str(&text).unwrap_or_default() }
    }

    fn note(&self, answer: &Answer, what: What) {
        let act = Act { began: answer.began, answered: answer.answered, what };
        self.acts.lock().expect("no client died").push(act);
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/{NAMESPACE}/{path}", self.api)
    }

    /// Sets a schedule that places a job each second.
    pub async fn schedule(&self, name: &str, every: f64) {
        let url = self.url(&format!("_schedules/{name}"));
        let setting = format!(r#"{{"queue":"{TICKS}","every":{every},"ttl":0}}"#);
        let answer = self.ask(Method::PUT, url, setting.into_bytes()).await;
        assert!([200, 201].contains(&answer.status), "a schedule: {}", answer.json);
        self.note(&answer, What::Schedule(name.to_owned()));
    }

    pub async fn make_token(&self, namespace: &str) -> String {
        let url = format!("{}/token/{namespace}?description=power", self.admin);
        let answer = self.ask(Method::POST, url, Vec::new()).await;
        let token = answer.json["token"].as_str().unwrap_or_else(|| panic!("a token: {:?}", answer.json));
        self.note(&answer, What::Token { namespace: namespace.to_owned(), token: token.to_owned() });
        token.to_owned()
    }

    /// Returns an incompressible, unique body of this length, which is a JSON string.
    fn body(&mut self, len: usize) -> Vec<u8> {
        self.count += 1;
        let mut body = format!("\"{}-{}-", self.name, self.count).into_bytes();
        while body.len() < len {
            let letters = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
            let mut bits = self.rng.next();
            for _ in 0..10 {
                body.push(letters[bits as usize % 64]);
                bits >>= 6;
            }
        }
        body.push(b'"');
        body
    }

    pub async fn publish(&mut self, queue: &str, len: usize, tries: u16, delay: Duration) -> Sent {
        let body = self.body(len);
        let url = self.url(&format!("{queue}?tries={tries}&delay={}", delay.as_secs()));
        let answer = self.ask(Method::PUT, url, body.clone()).await;
        assert_eq!(answer.status, 201, "a publish: {}", answer.json);
        let id = answer.json["job_id"].as_str().expect("an id").to_owned();
        let sent = Sent { id, queue: queue.to_owned(), body, tries, delay };
        self.note(&answer, What::Publish(vec![sent.clone()]));
        sent
    }

    pub async fn bulk(
        &mut self,
        queue: &str,
        count: usize,
        len: usize,
        tries: u16,
        delay: Duration,
    ) -> Vec<Sent> {
        let bodies: Vec<Vec<u8>> = (0..count).map(|_| self.body(len)).collect();
        let text = [b"[".to_vec(), bodies.join(&b','), b"]".to_vec()].concat();
        let url = self.url(&format!("{queue}/bulk?tries={tries}&delay={}", delay.as_secs()));
        let answer = self.ask(Method::PUT, url, text).await;
        assert_eq!(answer.status, 201, "a bulk: {}", answer.json);
        let ids = answer.json["job_ids"].as_array().expect("ids").iter();
        let sent = ids.zip(bodies).map(|(id, body)| Sent {
            id: id.as_str().expect("an id").to_owned(),
            queue: queue.to_owned(),
            body,
            tries,
            delay,
        });
        let sent: Vec<Sent> = sent.collect();
        self.note(&answer, What::Publish(sent.clone()));
        sent
    }

    pub async fn consume(&mut self, queue: &str, count: usize, ttr: u64) -> Vec<String> {
        let url = self.url(&format!("{queue}?count={count}&ttr={ttr}"));
        let answer = self.ask(Method::GET, url, Vec::new()).await;
        let jobs = match (answer.status, &answer.json) {
            (404, _) => Vec::new(),
            (200, Value::Array(jobs)) => jobs.clone(),
            (200, job) => vec![job.clone()],
            (status, json) => panic!("a consume: {status} {json}"),
        };
        let ids: Vec<String> =
            jobs.iter().map(|job| job["job_id"].as_str().expect("an id").to_owned()).collect();
        self.note(&answer, What::HandOut(ids.clone()));
        ids
    }

    pub async fn ack(&self, queue: &str, id: &str) {
        let answer = self.ask(Method::DELETE, self.url(&format!("{queue}/job/{id}")), Vec::new()).await;
        assert_eq!(answer.status, 204, "an ack: {}", answer.json);
        self.note(&answer, What::Ack(id.to_owned()));
    }

    async fn republish(&mut self, queue: &str, old: &str, delay: Duration) {
        let body = self.body(60);
        let url = self.url(&format!("{queue}/job/{old}?tries=2&delay={}", delay.as_secs()));
        let answer = self.ask(Method::PUT, url, body.clone()).await;
        assert_eq!(answer.status, 201, "a republish: {}", answer.json);
        let id = answer.json["job_id"].as_str().expect("an id").to_owned();
        let new = Sent { id, queue: queue.to_owned(), body, tries: 2, delay };
        self.note(&answer, What::Republish { old: old.to_owned(), new });
    }

    /// Waits until a number reported by the server has this value.
    async fn until(&self, path: &str, field: &str, is: u64) {
        for _ in 0..3000 {
            let answer = self.ask(Method::GET, self.url(path), Vec::new()).await;
            if answer.json[field] == is {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{path}: {field} is not {is} after 15 s");
    }

    /// Sends the random requests of a busy server over a few queues.
    pub async fn everyday(mut self, rounds: usize) {
        let mut waiting: Vec<(String, String)> = Vec::new();
        for _ in 0..rounds {
            let queue = format!("q{}", self.rng.below(3));
            let len = match self.rng.below(8) {
                0 => 8 + self.rng.below(20_000),
                1 => 8 + self.rng.below(5_000),
                _ => 8 + self.rng.below(200),
            };
            let tries = 1 + self.rng.below(3) as u16;
            match self.rng.below(10) {
                0..=2 => {
                    let sent = self.publish(&queue, len, tries, Duration::ZERO).await;
                    waiting.push((queue, sent.id));
                }
                3 => drop(self.publish(&queue, len, tries, Duration::from_secs(1)).await),
                4 => drop(self.publish(&queue, len, tries, AN_HOUR).await),
                5 => {
                    let count = 2 + self.rng.below(14);
                    self.bulk(&queue, count, len.min(2000), tries, Duration::ZERO).await;
                }
                6..=8 => {
                    let (count, ttr) = (1 + self.rng.below(6), [1, 60, 600][self.rng.below(3)]);
                    for id in self.consume(&queue, count, ttr).await {
                        match self.rng.below(10) {
                            0..=5 => self.ack(&queue, &id).await,
                            6 => self.republish(&queue, &id, Duration::ZERO).await,
                            7 => self.republish(&queue, &id, AN_HOUR).await,
                            _ => {}
                        }
                    }
                }
                _ => {
                    // A job that may have been consumed.
                    if !waiting.is_empty() {
                        let (queue, id) = waiting.swap_remove(self.rng.below(waiting.len()));
                        self.ack(&queue, &id).await;
                    }
                }
            }
        }
    }

    /// Publishes jobs that die; some are respawned, some deleted, some stay dead.
    pub async fn dead_letters(mut self) {
        let sent = self.bulk("dying", 8, 50, 1, Duration::ZERO).await;
        let ids: Vec<String> = sent.iter().map(|job| job.id.clone()).collect();
        let taken = self.consume("dying", 8, 1).await;
        assert_eq!(taken, ids, "the queue has these alone, in order");
        self.until("dying/deadletter/size", "size", 8).await;
        let answer = self.ask(Method::PUT, self.url("dying/deadletter?limit=3&ttl=0"), Vec::new()).await;
        assert_eq!(answer.json["count"], 3, "three are respawned: {}", answer.json);
        self.note(&answer, What::Respawn(ids[..3].to_vec()));
        self.ack("dying", &ids[0]).await;
        let answer = self.ask(Method::DELETE, self.url("dying/deadletter?limit=2"), Vec::new()).await;
        assert_eq!(answer.status, 204, "two are deleted: {}", answer.json);
        self.note(&answer, What::Remove(ids[3..5].to_vec()));
        self.ack("dying", &ids[5]).await;
    }

    /// Destroys queues with a delayed job, which stays.
    pub async fn destroyed(mut self) {
        for round in 0..3 {
            self.publish("doomed", 30, 1, AN_HOUR).await;
            let sent = self.bulk("doomed", 5 + 20 * round, 300, 2, Duration::ZERO).await;
            let answer = self.ask(Method::DELETE, self.url("doomed"), Vec::new()).await;
            assert_eq!(answer.status, 204, "destroyed: {}", answer.json);
            self.note(&answer, What::Remove(sent.into_iter().map(|job| job.id).collect()));
        }
    }

    /// Publishes many jobs that are due at once.
    pub async fn burst(mut self) {
        for _ in 0..4 {
            self.bulk("burst", 64, 40, 2, Duration::from_secs(1)).await;
        }
        self.until("burst/size", "size", 256).await;
        for id in self.consume("burst", 50, 600).await.into_iter().step_by(2) {
            self.ack("burst", &id).await;
        }
    }

    /// Publishes megabytes of ready jobs, many small ones and then large ones. Returns them.
    pub async fn mass(&mut self, megabytes: usize) -> Vec<Sent> {
        let mut sent = Vec::new();
        for _ in 0..16 {
            sent.extend(self.bulk("mass", 64, 4 << 10, 3, Duration::ZERO).await);
        }
        for _ in 0..megabytes.saturating_sub(4) * 2 {
            sent.extend(self.bulk("mass", 8, 64 << 10, 3, Duration::ZERO).await);
        }
        sent
    }

    /// Acks some ready jobs, and destroys the others of their queue.
    pub async fn empty(&self, jobs: &[Sent], acks: usize) {
        let (first, others) = jobs.split_at(acks.min(jobs.len()));
        for job in first {
            self.ack(&job.queue, &job.id).await;
        }
        let Some(queue) = others.first().map(|job| &job.queue) else { return };
        let answer = self.ask(Method::DELETE, self.url(queue), Vec::new()).await;
        assert_eq!(answer.status, 204, "destroyed: {}", answer.json);
        self.note(&answer, What::Remove(others.iter().map(|job| job.id.clone()).collect()));
    }
}
