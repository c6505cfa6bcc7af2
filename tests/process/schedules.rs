//! Schedules whose servers and stores die repeatedly: each occurrence is placed exactly once.
//!
//! By default a short form runs. `SCHEDULE_MINUTES=60` makes the ignored tests that long:
//!
//! ```text
//! SCHEDULE_MINUTES=60 cargo test --test process schedules::two_servers -- --ignored --nocapture
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sentinels::Sentinels;
use crate::support::client::{create_token, send, try_send};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, on_each_store};
use crate::support::wait::until;
use reqwest::Client;
use tempfile::TempDir;

/// Schedules due per second in the long forms.
const SCHEDULES: usize = 10;
/// Longer than any fault of the long forms: no occurrence may be missed.
const DEADLINE: u64 = 300;

/// Consumes all jobs of the queue `q`. Returns their due times in milliseconds since 1970, by the name of their
/// schedule.
async fn due_times(url: &str, token: &str) -> BTreeMap<String, Vec<i64>> {
    let client = Client::new();
    let mut all: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    loop {
        let get = client.get(format!("{url}/q?count=100&ttr=600")).header("X-Token", token);
        let answer = send(get).await;
        let Some(jobs) = answer.json.as_array() else { break };
        for job in jobs {
            let told =
                |name: &str| job["attributes"][name].as_str().expect("a schedule's attribute").to_owned();
            let due: jiff::Timestamp = told("scheduled-at").parse().expect("an instant");
            all.entry(told("schedule")).or_default().push(due.as_millisecond());
        }
    }
    all
}

/// Guards against an occurrence that is placed twice or never when the server placing it dies.
async fn occurrences_come_once_through_kill_9(store: Store) {
    const SCHEDULES: usize = 30;
    // In milliseconds.
    let every = |n: usize| 1000 + n as i64;
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), store.toml()).expect("a file");
    let mut token = String::new();
    // The first due time of each, in milliseconds since 1970.
    let mut first = Vec::new();
    for life in 0..6 {
        let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
        let (api, admin) = (process.address("api"), process.address("admin"));
        let base = format!("http://{api}/api/ns");
        if life == 0 {
            token = create_token(admin, "ns").await;
            for n in 0..SCHEDULES {
                // Each is due at another moment of a second.
                let setting = format!(r#"{{"queue":"q","every":1.0{n:02},"overlap":"allow","ttl":0}}"#);
                let put = Client::new().put(format!("{base}/_schedules/s{n}")).header("X-Token", &token);
                let answer = send(put.body(setting)).await.expect(201);
                first.push(instant(&answer.json["anchor"]).expect("an anchor") + every(n));
            }
        }
        if life < 5 {
            let lives = Duration::from_millis(500 + life * 130);
            tokio::time::sleep(lives).await;
            process.kill();
            continue;
        }
        // Occurrences due while no server runs are placed late.
        let (serving, mut seen) = (now(), BTreeMap::<String, Vec<i64>>::new());
        until("each has placed one that is due after the last start", async || {
            for (name, dues) in due_times(&base, &token).await {
                seen.entry(name).or_default().extend(dues);
            }
            let last = seen.values().map(|dues| dues.iter().max().copied().unwrap_or_default());
            seen.len() == SCHEDULES && last.min() >= Some(serving)
        })
        .await;
        for (n, first) in first.iter().enumerate() {
            let dues = seen.get_mut(&format!("s{n}")).expect("it has placed some");
            dues.sort_unstable();
            assert_eq!(dues[0], *first, "the first of s{n}, of {dues:?}");
            let gaps: Vec<i64> = dues.windows(2).map(|two| two[1] - two[0]).collect();
            assert!(
                gaps.iter().all(|gap| *gap == every(n)),
                "s{n}, every {} ms, after {gaps:?} ms",
                every(n)
            );
        }
    }
}

on_each_store!(occurrences_come_once_through_kill_9);

/// Duration of the long forms.
fn long() -> Duration {
    let minutes = std::env::var("SCHEDULE_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    Duration::from_secs(60 * minutes)
}

/// A server that is restarted when it ends, as by a supervisor.
struct Server {
    process: Process,
    url: String,
}

impl Server {
    async fn start(dir: &Path) -> Server {
        loop {
            let mut process = Process::start(dir, &["-c", "c.toml"], &[]);
            // Without such a line it has ended because its store is down.
            if process.line_or_end("serving").is_some() {
                let url = format!("http://{}/api/ns", process.address("api"));
                return Server { process, url };
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Ten schedules due each second, and the occurrences seen.
struct Watch {
    client: Client,
    token: String,
    /// The first due time of each schedule.
    first: Vec<i64>,
    /// Lateness of each placement, by schedule and due time.
    late: BTreeMap<(usize, i64), i64>,
}

impl Watch {
    async fn set(server: &mut Server) -> Watch {
        let client = Client::builder().timeout(Duration::from_secs(2)).build().expect("a client");
        let token = create_token(server.process.address("admin"), "ns").await;
        let mut watch = Watch { client, token, first: Vec::new(), late: BTreeMap::new() };
        for n in 0..SCHEDULES {
            let put = watch.client.put(format!("{}/_schedules/s{n}", server.url));
            let setting = format!(r#"{{"queue":"q","every":1,"ttl":0,"deadline":{DEADLINE}}}"#);
            let answer = send(put.header("X-Token", &watch.token).body(setting)).await.expect(201);
            watch.first.push(instant(&answer.json["anchor"]).expect("an anchor") + 1000);
        }
        watch
    }

    /// Reads the last occurrences of each schedule. Skips a server that does not respond.
    async fn look(&mut self, url: &str) {
        for n in 0..SCHEDULES {
            let get = self.client.get(format!("{url}/_schedules/s{n}")).header("X-Token", &self.token);
            let Ok(answer) = try_send(get).await else { return };
            for one in answer.json["occurrences"].as_array().into_iter().flatten() {
                if let (Some(due), Some(placed)) = (instant(&one["due"]), instant(&one["placed_at"])) {
                    self.late.insert((n, due), placed - due);
                }
            }
        }
    }

    /// Consumes all jobs, reports them, and fails if a second is duplicated or missing. `ended` is the time of the last
    /// fault's end.
    async fn judge(&self, url: &str, ended: i64, what: &str) {
        let seen = due_times(url, &self.token).await;
        let (mut jobs, mut seconds, mut wrong) = (0, 0, Vec::new());
        let (mut doubles, mut missing) = (0, 0);
        for (n, first) in self.first.iter().enumerate() {
            let of = seen.get(&format!("s{n}")).map_or(&[][..], Vec::as_slice);
            let last = of.iter().max().copied().unwrap_or_default();
            let there: BTreeSet<i64> = of.iter().copied().collect();
            let due: BTreeSet<i64> = (*first..=last.max(ended)).step_by(1000).collect();
            (jobs, seconds) = (jobs + of.len(), seconds.max(due.len()));
            (doubles, missing) = (doubles + of.len() - there.len(), missing + due.difference(&there).count());
            wrong.extend(there.symmetric_difference(&due).map(|at| format!("s{n} at {at}")));
        }
        let mut late: Vec<i64> = self.late.values().copied().collect();
        late.sort_unstable();
        let at = |part: usize| late[(late.len() - 1) * part / 1000];
        println!(
            "{seconds} seconds, {SCHEDULES} schedules, {jobs} jobs, {doubles} doubles, {missing} missing; {what}; of {} that \
             were seen late by {} (p50), {} (p99), {} ms at most",
            late.len(),
            at(500),
            at(990),
            at(1000)
        );
        assert!(doubles == 0 && wrong.is_empty(), "{doubles} doubles; not as they should be: {wrong:?}");
    }
}

fn instant(value: &serde_json::Value) -> Option<i64> {
    Some(value.as_str()?.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A fault of the Redis master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// kill -9, and an immediate restart.
    Restart,
    /// The master is suspended for half a second.
    Pause,
    /// The master hangs until a replica has taken over, and then continues.
    Hang,
    /// The master is killed by kill -9, and restarted once a replica has taken over.
    Kill,
    /// A regular failover to a replica.
    FailOver,
}

impl Fault {
    const ALL: [Fault; 5] = [Fault::Pause, Fault::FailOver, Fault::Restart, Fault::Kill, Fault::Hang];

    /// Returns once another Redis is the master, if the fault causes a failover.
    async fn happen(self, redises: &mut Sentinels) {
        let Some(master) = redises.current() else { return };
        match self {
            Fault::Restart => {
                redises.redises[master].kill();
                launch_as(&mut redises.redises[master], None);
            }
            Fault::Pause | Fault::Hang => {
                signal(&redises.redises[master], "STOP");
                if self == Fault::Pause {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                } else {
                    another(redises, master).await;
                }
                signal(&redises.redises[master], "CONT");
            }
            Fault::Kill => {
                redises.redises[master].kill();
                another(redises, master).await;
                let of = redises.master().replace(':', " ");
                launch_as(&mut redises.redises[master], Some(&of));
            }
            Fault::FailOver => {
                if redises.try_fail_over() {
                    another(redises, master).await;
                }
            }
        }
    }
}

/// Restarts the Redis as a replica of the server at `host port`, or as a master.
fn launch_as(redis: &mut RedisServer, replica_of: Option<&str>) {
    if let Some(at) = redis.args.iter().position(|arg| arg == "--replicaof") {
        redis.args.drain(at..at + 2);
    }
    redis.args.extend(replica_of.into_iter().flat_map(|of| ["--replicaof".to_owned(), of.to_owned()]));
    assert!(redis.launch(), "the port is free");
}

/// Sends the Redis a signal by name.
fn signal(redis: &RedisServer, name: &str) {
    let Some(child) = &redis.child else { return };
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{name} works");
}

/// Waits until another Redis is the master, at most for the deadline of the schedules.
async fn another(redises: &Sentinels, than: usize) {
    let began = Instant::now();
    while redises.current() == Some(than) && began.elapsed() < Duration::from_secs(DEADLINE / 2) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Injects each fault in turn until `stop`, after recovery from the previous one. Returns how often each was
/// injected.
async fn torment(mut redises: Sentinels, stop: Arc<AtomicBool>) -> (Sentinels, BTreeMap<Fault, usize>) {
    let mut happened: BTreeMap<Fault, usize> = BTreeMap::new();
    for fault in Fault::ALL.into_iter().cycle() {
        let began = Instant::now();
        while !redises.are_well() || began.elapsed() < Duration::from_secs(4) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if stop.load(Ordering::SeqCst) {
            break;
        }
        fault.happen(&mut redises).await;
        *happened.entry(fault).or_default() += 1;
    }
    (redises, happened)
}

/// Two servers on one Redis behind Sentinels. The servers are killed in turn, one every three seconds; meanwhile the
/// Redis is killed, hangs, and fails over. Each second is placed once.
#[ignore = "long: a minute, or as many as SCHEDULE_MINUTES says"]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_that_are_killed_place_each_second_once() {
    let redises = Sentinels::start(Duration::from_secs(1), &[]).await;
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), redises.toml()).expect("a file");
    let mut servers = vec![Server::start(dir.path()).await, Server::start(dir.path()).await];
    let mut watch = Watch::set(&mut servers[0]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let faults = tokio::spawn(torment(redises, stop.clone()));
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < long() {
        tokio::time::sleep(Duration::from_secs(3)).await;
        watch.look(&servers[1].url).await;
        servers.remove(0).process.kill();
        servers.push(Server::start(dir.path()).await);
        kills += 1;
    }
    stop.store(true, Ordering::SeqCst);
    let (_redises, happened) = faults.await.expect("the faults happen");
    // A master that hung accepts writes for some ten seconds, until the Sentinels have reconfigured it.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let ended = now() - 5000;
    let what = format!("{kills} kills of a server, of the Redis {happened:?}");
    watch.judge(&servers[0].url, ended, &what).await;
    assert!(happened.len() == Fault::ALL.len(), "each of {:?} happened: {happened:?}", Fault::ALL);
}

/// A server on disk that is killed repeatedly: each second is placed once.
#[ignore = "long: a minute, or as many as SCHEDULE_MINUTES says"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_disk_that_is_killed_places_each_second_once() {
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), "[Pool.default]\nPath = \"pool\"\n").expect("a file");
    let mut server = Server::start(dir.path()).await;
    let mut watch = Watch::set(&mut server).await;
    let (began, mut kills) = (Instant::now(), 0_u64);
    while began.elapsed() < long() {
        // At another moment of a second each time.
        tokio::time::sleep(Duration::from_millis(300 + kills * 370 % 2900)).await;
        watch.look(&server.url).await;
        server.process.kill();
        server = Server::start(dir.path()).await;
        kills += 1;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    watch.judge(&server.url, now() - 2000, &format!("{kills} kills")).await;
}
