//! A load whose jobs are all recorded: publishers and consumers that continue through faults, and afterwards the jobs
//! lost, the jobs redelivered after their ack, and the longest time without a successful publish. Runs on its own
//! thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Outcome;
use super::client::{Answer, Client, Consumed, Target};

/// Number per queue, over all servers.
const PUBLISHERS: usize = 4;
const CONSUMERS: usize = 4;
/// Pause between two publishes of a publisher, and after a failed connection.
const PAUSE: Duration = Duration::from_millis(50);
/// ttr of each delivery, and the time within which all redeliveries have happened.
const TTR: Duration = Duration::from_secs(4);
const AGAIN: Duration = Duration::from_secs(6);
/// Maximum time for draining.
const DRAIN: Duration = Duration::from_secs(30);

/// The load.
pub struct Known {
    shared: Arc<Shared>,
    thread: JoinHandle<Outcome>,
    began: Instant,
}

struct Shared {
    targets: Mutex<Vec<Target>>,
    next: AtomicUsize,
    publishes: AtomicBool,
    consumes: AtomicBool,
    lines: Vec<(String, Mutex<Line>)>,
    /// Failed requests by status; 0: the connection failed.
    failed: Mutex<BTreeMap<u16, usize>>,
    requests: AtomicUsize,
}

/// Results of a queue, as recorded.
#[derive(Default)]
struct Line {
    /// Times of publishes answered with 201.
    good: Vec<Instant>,
    published: BTreeSet<usize>,
    seen: BTreeSet<usize>,
    acked: BTreeSet<usize>,
    again: usize,
}

/// Summary of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    pub published: usize,
    pub lost: usize,
    /// Deliveries after the ack.
    pub again: usize,
    /// The longest time without a 201, in seconds.
    pub without: f64,
}

impl Known {
    /// Starts to publish to these queues and to consume from them.
    pub fn start(targets: Vec<Target>, queues: &[&str]) -> Known {
        let line = |queue: &&str| ((*queue).to_owned(), Mutex::default());
        let shared = Arc::new(Shared {
            targets: Mutex::new(targets),
            next: AtomicUsize::new(0),
            publishes: AtomicBool::new(true),
            consumes: AtomicBool::new(true),
            lines: queues.iter().map(line).collect(),
            failed: Mutex::default(),
            requests: AtomicUsize::new(0),
        });
        let thread = spawn({
            let shared = shared.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(shared.run())
            }
        });
        Known { shared, thread, began: Instant::now() }
    }

    /// Sends further requests to these servers.
    pub fn go_to(&self, targets: Vec<Target>) {
        *self.shared.targets.lock() = targets;
    }

    /// Stops publishing, and waits until everything was delivered, including redeliveries.
    pub fn end(self) -> Outcome<(Vec<Came>, String)> {
        self.shared.publishes.store(false, Ordering::SeqCst);
        let stopped = Instant::now();
        sleep(AGAIN);
        let is_left = |(_, line): &(String, Mutex<Line>)| {
            let line = line.lock();
            line.published.iter().any(|n| !line.seen.contains(n))
        };
        while self.shared.lines.iter().any(is_left) && stopped.elapsed() < DRAIN {
            sleep(Duration::from_millis(50));
        }
        self.shared.consumes.store(false, Ordering::SeqCst);
        self.thread.join().map_err(|_| "the load has panicked")??;
        let came = self.shared.lines.iter().map(|(_, line)| line.lock().came(self.began, stopped));
        let failed = self.shared.failed.lock();
        let failed: Vec<String> = failed.iter().map(|(status, n)| format!("{n} with {status}")).collect();
        let requests = self.shared.requests.load(Ordering::SeqCst);
        Ok((came.collect(), format!("{requests} requests; failed: [{}]", failed.join(", "))))
    }
}

impl Line {
    fn came(&self, began: Instant, stopped: Instant) -> Came {
        let mut times = self.good.clone();
        times.extend([began, stopped]);
        times.sort();
        let gaps = times.windows(2).map(|two| (two[1] - two[0]).as_secs_f64());
        Came {
            published: self.published.len(),
            lost: self.published.iter().filter(|n| !self.seen.contains(n)).count(),
            again: self.again,
            without: gaps.fold(0.0, f64::max),
        }
    }
}

impl Shared {
    async fn run(self: Arc<Self>) -> Outcome {
        let mut tasks = tokio::task::JoinSet::new();
        for line in 0..self.lines.len() {
            (0..PUBLISHERS).for_each(|n| _ = tasks.spawn(self.clone().publish(line, n)));
            (0..CONSUMERS).for_each(|n| _ = tasks.spawn(self.clone().consume(line, n)));
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    }

    async fn publish(self: Arc<Self>, line: usize, worker: usize) -> Outcome {
        let (queue, line) = &self.lines[line];
        let mut client = None;
        while self.publishes.load(Ordering::SeqCst) {
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            let path = format!("/api/bench/{queue}?tries=100");
            let request = |target: &Target| target.put(&path, n.to_string().as_bytes());
            if self.call(&mut client, worker, request, &[201]).await.is_some() {
                let mut line = line.lock();
                line.good.push(Instant::now());
                line.published.insert(n);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn consume(self: Arc<Self>, line: usize, worker: usize) -> Outcome {
        let (queue, line) = &self.lines[line];
        let mut client = None;
        let get = format!("/api/bench/{queue}?timeout=1&ttr={}", TTR.as_secs());
        while self.consumes.load(Ordering::SeqCst) {
            let request = |target: &Target| target.bare("GET", &get);
            let Some(answer) = self.call(&mut client, worker, request, &[200, 404]).await else { continue };
            if answer.status == 404 {
                continue;
            }
            let job: Consumed = serde_json::from_slice(&answer.body)?;
            let n = job.number()?;
            {
                let mut line = line.lock();
                line.seen.insert(n);
                line.again += usize::from(line.acked.contains(&n));
            }
            let path = format!("/api/bench/{queue}/job/{}", job.job_id);
            let request = |target: &Target| target.bare("DELETE", &path);
            if self.call(&mut client, worker, request, &[204]).await.is_some() {
                line.lock().acked.insert(n);
            }
        }
        Ok(())
    }

    /// Returns a reply with one of these statuses. Counts others as failed.
    async fn call(
        &self,
        client: &mut Option<Client>,
        worker: usize,
        request: impl Fn(&Target) -> Vec<u8>,
        good: &[u16],
    ) -> Option<Answer> {
        let target = {
            let targets = self.targets.lock();
            targets[worker % targets.len()].clone()
        };
        if client.as_ref().is_none_or(|client| client.target.addr != target.addr) {
            *client = target.connect().await.ok();
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        let answer = match client {
            Some(client) => client.call(&request(&target)).await.ok(),
            None => None,
        };
        if answer.is_none() {
            *client = None;
        }
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        if good.contains(&status) {
            return answer;
        }
        *self.failed.lock().entry(status).or_default() += 1;
        tokio::time::sleep(PAUSE).await;
        None
    }
}
