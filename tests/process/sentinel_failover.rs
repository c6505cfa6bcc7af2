//! Cost of a failover of a Redis behind Sentinels: jobs lost after a 201, jobs redelivered after their ack was
//! acknowledged, and the time without responses.
//!
//! By default a short form of three cases runs. The figures in docs/operations.md were measured with
//!
//! ```text
//! DORMOUSE_FAILOVERS=3 cargo test --test process sentinel_failover -- --test-threads 1 --nocapture
//! ```
//!
//! which runs every case three times, with the durations in its name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sentinels::Sentinels;
use crate::support::client::data;
use crate::support::servers::TestServer;
use parking_lot::Mutex;
use reqwest::{Client, Method, StatusCode};
use tokio::task::JoinSet;

/// Interval of publishing a job that is due at the end, and, every second time, one that is due soon. The former show
/// jobs lost by the store, the latter lost acks.
const EACH: Duration = Duration::from_millis(10);
/// Number of waiting consumers.
const CONSUMERS: usize = 16;
/// Longer than any response of a healthy server.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(8);
/// Time after which the Sentinels consider a Redis down while there is no fault, so that no stall of the machine makes
/// a failover.
const STEADY: Duration = Duration::from_secs(60);
/// Maximum time until the Sentinels name another master. They may need several attempts.
const FAILOVER: Duration = Duration::from_secs(60);
/// Maximum time for draining after the load, exceeded only by a broken server.
const DRAIN: Duration = Duration::from_secs(120);

/// Fault of the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// kill -9.
    Kill,
    /// SENTINEL FAILOVER of a healthy master.
    Planned,
    /// It hangs, and continues after this many seconds, or later once another master is named.
    Hang(u64),
}

/// Prior fault of the first Sentinel of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Well,
    Dead,
    Hung,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    fault: Fault,
    first: First,
    /// `min-replicas-to-write 1`.
    min_replicas: bool,
    /// Time after which the Sentinels consider the master down.
    down_after: Duration,
    /// Duration of the load before the fault, and after requests work again and the end of a hang.
    before: Duration,
    after: Duration,
    /// Maximum time without a 201, and without a job for consumers, once another master is named.
    resumed: Duration,
    /// Delay of jobs due soon, and ttr of the consumers, in seconds.
    soon: u64,
    ttr: u64,
}

impl Case {
    /// Returns a case of the long form: recommended Sentinel settings, and seventeen or more seconds of load.
    fn long(fault: Fault, first: First) -> Case {
        Case {
            fault,
            first,
            min_replicas: false,
            down_after: Duration::from_secs(1),
            before: Duration::from_secs(3),
            // An old master keeps accepting writes for about ten seconds.
            after: Duration::from_secs(14),
            resumed: Duration::from_secs(7),
            soon: 4,
            ttr: 8,
        }
    }

    fn short(fault: Fault) -> Case {
        Case {
            down_after: Duration::from_millis(500),
            before: Duration::from_millis(500),
            after: Duration::from_secs(5),
            // Other tests run beside it.
            resumed: Duration::from_secs(20),
            soon: 1,
            ttr: 2,
            ..Case::long(fault, First::Well)
        }
    }
}

/// Events of one job. The number of the job is its body.
#[derive(Default)]
struct Entry {
    stored: bool,
    delivered: bool,
    /// When its ack was acknowledged for the first time.
    acked: Option<Instant>,
    /// Delivered to a poll that was sent after that.
    again: bool,
}

/// Replies that the clients received.
#[derive(Default)]
struct Ledger {
    jobs: BTreeMap<u32, Entry>,
    /// Times of publishes answered with 201, and of deliveries.
    stored: Vec<Instant>,
    delivered: Vec<Instant>,
    refused: usize,
}

/// Cost of a failover.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Publishes answered with 201, and others.
    stored: usize,
    refused: usize,
    lost: usize,
    again: usize,
    /// The longest time without a 201, and without a job for consumers, from the fault on.
    publish_gap: Duration,
    consume_gap: Duration,
    /// The same once the Sentinels have named another master.
    publish_resumed: Duration,
    consume_resumed: Duration,
}

/// Returns the longest time between two of these instants.
fn gap(times: &[Instant], from: Instant, end: Instant) -> Duration {
    let mut times: Vec<Instant> = times.iter().copied().filter(|t| *t > from && *t < end).collect();
    times.extend([from, end]);
    times.sort_unstable();
    times.windows(2).map(|two| two[1] - two[0]).max().unwrap_or_default()
}

struct Callers {
    client: Client,
    url: String,
    token: String,
    ttr: u64,
    ledger: Mutex<Ledger>,
    /// Tells consumers to stop.
    done: AtomicBool,
}

impl Callers {
    async fn send(&self, method: Method, path: String, body: String) -> Option<(StatusCode, String)> {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let response = request.header("X-Token", &self.token).body(body).send().await.ok()?;
        let status = response.status();
        Some((status, response.text().await.ok()?))
    }

    /// Whether publishes and consumes have worked since then.
    fn work_since(&self, since: Instant) -> bool {
        let ledger = self.ledger.lock();
        [&ledger.stored, &ledger.delivered].iter().all(|times| times.last().is_some_and(|last| *last > since))
    }

    /// Publishes one job, once. `delay` is in seconds.
    async fn publish(self: Arc<Self>, number: u32, delay: u64) {
        let path = format!("?tries=50&delay={delay}");
        let answer = self.send(Method::PUT, path, number.to_string()).await;
        let mut ledger = self.ledger.lock();
        if answer.is_some_and(|(status, _)| status == StatusCode::CREATED) {
            ledger.jobs.entry(number).or_default().stored = true;
            ledger.stored.push(Instant::now());
        } else {
            ledger.refused += 1;
        }
    }

    /// Consumes and acks.
    async fn work(self: Arc<Self>) {
        while !self.done.load(Ordering::Relaxed) {
            let path = format!("?timeout=1&ttr={}", self.ttr);
            let asked = Instant::now();
            let job = match self.send(Method::GET, path, String::new()).await {
                Some((StatusCode::OK, text)) => {
                    serde_json::from_str::<serde_json::Value>(&text).expect("a job is JSON")
                }
                Some((StatusCode::NOT_FOUND, _)) => continue,
                _ => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let number: u32 =
                String::from_utf8(data(&job)).expect("text").parse().expect("the number of a job");
            {
                let mut ledger = self.ledger.lock();
                ledger.delivered.push(Instant::now());
                let entry = ledger.jobs.entry(number).or_default();
                entry.delivered = true;
                entry.again |= entry.acked.is_some_and(|acked| acked < asked);
            }
            let id = job["job_id"].as_str().expect("a job has an id");
            let acked = self.send(Method::DELETE, format!("/job/{id}"), String::new()).await;
            if acked.is_some_and(|(status, _)| status == StatusCode::NO_CONTENT) {
                self.ledger.lock().jobs.entry(number).or_default().acked.get_or_insert_with(Instant::now);
            }
        }
    }
}

/// The publishers.
struct Load {
    callers: Arc<Callers>,
    number: u32,
    soon: u64,
    /// End of the load; an estimate until the fault is over.
    end: Instant,
    publishing: JoinSet<()>,
}

impl Load {
    /// Publishes until `done`, or until the deadline.
    async fn run(&mut self, deadline: Instant, done: impl Fn() -> bool) {
        let mut each = tokio::time::interval(EACH);
        let mut both = false;
        while Instant::now() < deadline && !done() {
            each.tick().await;
            self.publish(self.end.saturating_duration_since(Instant::now()).as_secs() + 1);
            if both {
                self.publish(self.soon);
            }
            both = !both;
        }
    }

    fn publish(&mut self, delay: u64) {
        self.publishing.spawn(self.callers.clone().publish(self.number, delay));
        self.number += 1;
    }
}

async fn run(case: Case) -> Figures {
    let args: &[&str] = if case.min_replicas { &["--min-replicas-to-write", "1"] } else { &[] };
    let mut redises = Sentinels::start(STEADY, args).await;
    let _hung = match case.first {
        First::Well => None,
        First::Dead => {
            redises.sentinels[0].kill();
            None
        }
        First::Hung => Some(redises.sentinels[0].stall()),
    };
    let began = Instant::now();
    let server: TestServer = redises.server().await;
    let start = began.elapsed();
    assert!(
        start < Duration::from_secs(5),
        "a server starts at once whatever the first Sentinel does: {start:?}"
    );
    let callers = Arc::new(Callers {
        client: Client::builder().timeout(CLIENT_TIMEOUT).build().expect("a client"),
        url: server.url("/api/ns/q"),
        token: server.token("ns").await,
        ttr: case.ttr,
        ledger: Mutex::default(),
        done: AtomicBool::new(false),
    });
    let workers: Vec<_> = (0..CONSUMERS).map(|_| tokio::spawn(callers.clone().work())).collect();
    let hang_time = Duration::from_secs(if let Fault::Hang(seconds) = case.fault { seconds } else { 0 });
    let began = Instant::now();
    let end = began + case.before + hang_time + case.after;
    let publishing = JoinSet::new();
    let mut load = Load { callers: callers.clone(), number: 0, soon: case.soon, end, publishing };
    load.run(began + case.before, || false).await;

    assert_eq!(redises.current(), Some(0), "no failover has happened by itself");
    // The first would not answer if it is dead or hangs.
    let working = usize::from(case.first != First::Well);
    let set_down_after = |redises: &Sentinels, down_after: Duration| {
        if case.fault != Fault::Planned {
            Sentinels::set_down_after(&redises.sentinels[working..], down_after);
        }
    };
    set_down_after(&redises, case.down_after);
    let fault = Instant::now();
    let mut hung = None;
    match case.fault {
        Fault::Kill => redises.redises[0].kill(),
        Fault::Planned => redises.fail_over(),
        Fault::Hang(_) => hung = Some(redises.redises[0].stall()),
    }
    load.run(fault + FAILOVER, || redises.current() != Some(0)).await;
    assert_ne!(redises.current(), Some(0), "a failover within {FAILOVER:?}");
    let named = Instant::now();
    set_down_after(&redises, STEADY);
    load.run(named + case.resumed, || callers.work_since(named)).await;
    load.run(fault + hang_time, || false).await;
    drop(hung);
    load.end = Instant::now() + case.after;
    let end = load.end;
    load.run(end, || false).await;

    load.publishing.join_all().await;
    // A delivery lost to its caller is redelivered after its ttr, and so is a job whose ack was lost: both have a
    // timer. A job that is neither ready nor has a timer will not come any more.
    let master = redis::Client::open(format!("redis://{}", redises.master())).expect("an address");
    let conn = &mut master.get_connection().expect("the master is there");
    let mut left = || -> (u64, u64) {
        redis::pipe().llen("q/ns/q").zcard("timer_set").query(conn).expect("LLEN and ZCARD")
    };
    let began = Instant::now();
    while left() != (0, 0) {
        let took = began.elapsed();
        assert!(took < DRAIN, "not drained in {DRAIN:?}, so losses are unknown: {:?} left", left());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    callers.done.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("no panic");
    }
    let ledger = callers.ledger.lock();
    Figures {
        stored: ledger.stored.len(),
        refused: ledger.refused,
        lost: ledger.jobs.values().filter(|job| job.stored && !job.delivered).count(),
        again: ledger.jobs.values().filter(|job| job.again).count(),
        publish_gap: gap(&ledger.stored, fault, end),
        consume_gap: gap(&ledger.delivered, fault, end),
        publish_resumed: gap(&ledger.stored, named, end),
        consume_resumed: gap(&ledger.delivered, named, end),
    }
}

/// Checks the properties that hold in every case.
fn check(case: Case, figures: Figures) {
    let Figures { stored, lost, again, publish_resumed, consume_resumed, .. } = figures;
    assert!(stored > 100, "the load continued: {figures:?}");
    // lmstfy loses 81 of 1,709 jobs in a planned failover, and none otherwise.
    let most = if case.fault == Fault::Planned && !case.min_replicas { stored * 81 / 1709 } else { 0 };
    assert!(lost <= most, "{lost} of {stored} jobs that were answered 201 are lost, {most} may be: {case:?}");
    assert!(again <= most, "{again} jobs came again after their ack, {most} may: {case:?}");
    let bound = case.resumed;
    assert!(publish_resumed < bound, "publishes resume within {bound:?}, not {publish_resumed:?}: {case:?}");
    assert!(
        consume_resumed < bound,
        "consumers get jobs within {bound:?}, not {consume_resumed:?}: {case:?}"
    );
}

/// How many times to run every case of the long form.
fn rounds() -> Option<u32> {
    std::env::var("DORMOUSE_FAILOVERS").ok().map(|n| n.parse().expect("DORMOUSE_FAILOVERS is a number"))
}

/// Runs the long form of this case if requested, with and without `min-replicas-to-write`; otherwise the short one, if
/// there is one.
async fn play(long: Case, short: Option<Case>) {
    let Some(rounds) = rounds() else {
        if let Some(case) = short {
            check(case, run(case).await);
        }
        return;
    };
    for min_replicas in [false, true] {
        let case = Case { min_replicas, ..long };
        for round in 1..=rounds {
            let figures = run(case).await;
            let Figures { stored, refused, lost, again, publish_gap, consume_gap, .. } = figures;
            println!(
                "{:?}, first Sentinel {:?}, min-replicas-to-write {}, round {round}: stored {stored}, \
                 refused {refused}, lost {lost}, again after the ack {again}, no 201 for {publish_gap:.1?}, \
                 no job for {consume_gap:.1?}",
                case.fault,
                case.first,
                u8::from(min_replicas),
            );
            check(case, figures);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed() {
    play(Case::long(Fault::Kill, First::Well), Some(Case::short(Fault::Kill))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_was_planned() {
    play(Case::long(Fault::Planned, First::Well), Some(Case::short(Fault::Planned))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_and_comes_back() {
    play(Case::long(Fault::Hang(8), First::Well), Some(Case::short(Fault::Hang(4)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_for_long_and_comes_back() {
    play(Case::long(Fault::Hang(27), First::Well), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_while_the_first_sentinel_is_dead() {
    play(Case::long(Fault::Kill, First::Dead), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_while_the_first_sentinel_hangs() {
    let short = Case { first: First::Hung, ..Case::short(Fault::Kill) };
    play(Case::long(Fault::Kill, First::Hung), Some(short)).await;
}
