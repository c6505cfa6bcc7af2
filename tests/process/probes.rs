//! Health checks for probes, load balancers and service managers: `/ping`, `/ready`, the drain, the wait for a store,
//! `dormouse health`, and systemd's socket.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use reqwest::{Client, Method};
use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::{RedisServer, free_port};
use crate::support::wait::until;

/// A response: status, `Retry-After`, `Connection`, and the text.
#[derive(Debug)]
struct Said {
    status: u16,
    retry_after: bool,
    closes: bool,
    text: String,
}

async fn ask(method: &str, address: &str, path: &str) -> Said {
    let method: Method = method.parse().expect("a method");
    let sent = Client::new().request(method, format!("http://{address}{path}")).send().await;
    let answer = sent.unwrap_or_else(|e| panic!("{path}: {e}"));
    Said {
        status: answer.status().as_u16(),
        retry_after: answer.headers().contains_key("retry-after"),
        closes: answer.headers().get("connection").is_some_and(|value| value == "close"),
        text: answer.text().await.expect("a body"),
    }
}

/// Asks until the status is 200. A server is not ready while a stall of the machine delays its store.
async fn ask_until_ready(method: &str, address: &str) -> Said {
    let mut said = None;
    until("it is ready", async || {
        said = Some(ask(method, address, "/ready").await).filter(|said| said.status == 200);
        said.is_some()
    })
    .await;
    said.expect("it is ready")
}

/// Returns a server's variables, and the addresses of both ports.
fn ports() -> ([String; 2], [String; 2]) {
    let ports = [(); 2].map(|()| free_port().to_string());
    (ports.clone(), ports.map(|port| format!("127.0.0.1:{port}")))
}

/// An address without a listener.
const NOBODY: &str = "127.0.0.1:1";

fn write(dir: &Path, toml: &str) {
    std::fs::write(dir.join("c.toml"), toml).expect("a file");
}

fn on_redis(addr: &str, more: &str) -> String {
    format!("{more}\n[Pool.default]\nAddr = '{addr}'\n[AdminRedis]\nAddr = '{addr}'\n")
}

fn health(admin: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.arg("health").env_clear().env("DORMOUSE_ADMIN", admin);
    command.output().expect("the binary runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ports_answer_probes_and_the_public_one_shows_no_address() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut redis = RedisServer::start();
    write(dir.path(), &on_redis(&redis.addr(), ""));
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let (api, admin) = (process.address("api"), process.address("admin"));
    for address in [&api, &admin] {
        let got = [ask("GET", address, "/ping").await, ask_until_ready("GET", address).await];
        let head = [ask("HEAD", address, "/ping").await, ask_until_ready("HEAD", address).await];
        for said in got {
            assert_eq!((said.status, said.text.is_empty()), (200, false), "{said:?}");
        }
        for said in head {
            assert_eq!((said.status, said.text.as_str()), (200, ""), "HEAD: {said:?}");
        }
        for path in ["/ping", "/ready"] {
            assert_eq!(ask("POST", address, path).await.status, 404, "POST {path}");
        }
    }
    until("dormouse health says that it is ready", async || {
        let healthy = health(&format!("http://{admin}"));
        (healthy.status.code(), &healthy.stdout[..]) == (Some(0), &b"ready\n"[..])
    })
    .await;

    redis.kill();
    until("the server notices", async || ask("GET", &api, "/ready").await.status == 503).await;
    let (for_all, for_operators) = (ask("GET", &api, "/ready").await, ask("GET", &admin, "/ready").await);
    assert_eq!(for_all.text, r#"{"ready":false,"reason":"pool default cannot be used now"}"#);
    assert!(for_operators.text.contains(&redis.addr()), "the admin port says more: {for_operators:?}");
    assert!(for_all.retry_after && for_operators.retry_after, "{for_all:?} {for_operators:?}");
    let head = ask("HEAD", &api, "/ready").await;
    assert_eq!((head.status, head.text.as_str(), head.retry_after), (503, "", true));
    assert_eq!(ask("GET", &api, "/ping").await.status, 200, "the process answers");
    let ill = health(&format!("http://{admin}"));
    assert_eq!(ill.status.code(), Some(1), "{ill:?}");
    let said = String::from_utf8_lossy(&ill.stderr).into_owned();
    assert!(said.starts_with("dormouse: not ready: pool default") && said.lines().count() == 1, "{said}");
    for wrong in ["http://127.0.0.1:1", "nonsense"] {
        assert_eq!(health(wrong).status.code(), Some(1), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_goes_on_with_everything_and_says_so() {
    let dir = TempDir::new().expect("a temporary directory");
    write(dir.path(), "DrainSeconds = 300\n[Pool.default]\nPath = 'jobs'\n");
    let mut process = Process::start(dir.path(), &["-c", "c.toml", "-sv"], &[]);
    let (api, admin) = (process.address("api"), process.address("admin"));
    let poll = {
        let api = api.clone();
        tokio::spawn(async move { ask("GET", &api, "/api/ns/q?timeout=60").await })
    };
    until("the poll is parked", async || {
        ask("GET", &admin, "/metrics").await.text.contains("parked_polls 1")
    })
    .await;
    process.signal("TERM");
    until("it is not ready", async || ask("GET", &api, "/ready").await.status == 503).await;
    for address in [&api, &admin] {
        let said = ask("GET", address, "/ready").await;
        assert_eq!((said.status, said.retry_after, said.closes), (503, true, true), "{said:?}");
        assert!(said.text.contains("shutting down"), "{said:?}");
    }
    assert!(!poll.is_finished(), "polls stay parked");
    let published = ask("PUT", &api, "/api/ns/q").await;
    assert_eq!((published.status, published.closes), (201, true), "{published:?}");
    let job = poll.await.expect("no panic");
    assert_eq!((job.status, job.closes), (200, true), "the poll gets the job: {job:?}");
    let began = Instant::now();
    process.signal("TERM");
    let ended = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.said);
    assert!(
        began.elapsed() < Duration::from_secs(6),
        "a second signal ends the drain: {:?}",
        began.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_by_itself() {
    let dir = TempDir::new().expect("a temporary directory");
    write(dir.path(), "DrainSeconds = 1\n[Pool.default]\nPath = 'jobs'\n");
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    process.line_with("serving");
    let began = Instant::now();
    process.signal("INT");
    let ended = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.said);
    assert!(began.elapsed() >= Duration::from_secs(1), "it drains for a second: {:?}", began.elapsed());
}

/// Guards against a service manager that gives up because Redis starts a little later than the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_a_store_and_both_ports_answer_meanwhile() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut redis = RedisServer::start();
    redis.kill();
    write(dir.path(), &on_redis(&redis.addr(), "WaitForStore = 60"));
    let ([api_port, admin_port], [api, admin]) = ports();
    let env = [("DORMOUSE_PORT", api_port.as_str()), ("DORMOUSE_ADMIN_PORT", admin_port.as_str())];
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &env);
    let line = process.line_with("waiting for a store");
    assert!(
        line.contains("[Pool.default]") && line.contains(&redis.addr()),
        "the log names the store: {line}"
    );
    for address in [&api, &admin] {
        assert_eq!(ask("GET", address, "/ping").await.status, 200, "/ping");
        for (method, path) in
            [("GET", "/ready"), ("PUT", "/api/ns/q"), ("GET", "/metrics"), ("GET", "/nothing")]
        {
            let said = ask(method, address, path).await;
            assert_eq!((said.status, said.retry_after), (503, true), "{method} {path}: {said:?}");
            assert!(said.text.contains("the server is starting"), "{method} {path}: {said:?}");
        }
    }
    let asked = Client::new().get(format!("http://{api}/nothing")).header("X-Request-ID", "mine.1");
    let answer = asked.send().await.expect("it answers");
    assert_eq!(answer.headers().get("x-request-id").map(|id| id.as_bytes()), Some(&b"mine.1"[..]));
    let text = answer.text().await.expect("a body");
    assert_eq!(text, r#"{"error":"the server is starting","request_id":"mine.1"}"#);
    // A publish larger than the buffers of a connection.
    let large = Client::new().put(format!("http://{api}/api/ns/q")).body(vec![b'x'; 4 << 20]);
    assert_eq!(large.send().await.expect("no reset connection").status().as_u16(), 503);
    assert!(redis.launch(), "the Redis starts on its port");
    process.line_with("serving");
    ask_until_ready("GET", &api).await;
    process.signal("TERM");
    let said = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic").said;
    assert_eq!(said.matches("waiting for a store").count(), 1, "one line:\n{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_no_longer_than_it_is_told_and_not_for_a_wrong_password() {
    let redis = RedisServer::start_with(Some("right"), &[]);
    // It accepts connections, and never responds.
    let hangs = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let hangs = hangs.local_addr().expect("it is bound").to_string();
    for (addr, wait, least, most) in [
        (NOBODY, "1", 1, 12),
        (hangs.as_str(), "3", 3, 12),
        (&redis.addr(), "300", 0, 10),
        (NOBODY, "0", 0, 12),
    ] {
        let dir = TempDir::new().expect("a temporary directory");
        write(dir.path(), &on_redis(addr, ""));
        let began = Instant::now();
        let process = Process::start(dir.path(), &["-c", "c.toml"], &[("DORMOUSE_WAIT_FOR_STORE", wait)]);
        let ended = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
        let took = began.elapsed();
        assert_eq!(ended.status.code(), Some(1), "{addr} {wait}:\n{}", ended.said);
        assert!(
            took >= Duration::from_secs(least) && took < Duration::from_secs(most),
            "{addr} {wait}: {took:?}\n{}",
            ended.said
        );
        assert!(ended.said.contains("[Pool.default]"), "which store:\n{}", ended.said);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_wait_for_a_store() {
    let dir = TempDir::new().expect("a temporary directory");
    write(dir.path(), &on_redis(NOBODY, "WaitForStore = 300"));
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    process.line_with("waiting for a store");
    process.signal("TERM");
    let ended = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.said);
}

#[test]
fn the_service_manager_is_told() {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a new file");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
    let hear = || {
        let mut text = [0; 256];
        let n = socket.recv(&mut text).expect("the server tells");
        String::from_utf8_lossy(&text[..n]).into_owned()
    };
    let env = [("NOTIFY_SOCKET", path.to_str().expect("UTF-8"))];
    let process = Process::start(dir.path(), &["-sv"], &env);
    assert_eq!(hear(), "READY=1");
    process.signal("TERM");
    assert!(hear().lines().any(|line| line == "STOPPING=1"), "it stops");
    assert_eq!(process.ended().status.code(), Some(0));
}

/// Guards against a check before the start that creates or changes something.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_asks_stores_and_makes_nothing() {
    let check = |dir: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(["check", "-c", "c.toml", "--stores"]).current_dir(dir).env_clear();
        command.output().expect("the binary runs")
    };
    let dir = TempDir::new().expect("a temporary directory");
    let redis = RedisServer::start_with(Some("hush"), &[]);
    let toml = format!(
        "[Accounts]\nann = 'hush'\n[Pool.default]\nPath = 'jobs'\n[Pool.far]\nAddr = '{}'\nPassword = 'hush'\n",
        redis.addr()
    );
    write(dir.path(), &toml);
    let good = check(dir.path());
    let said = String::from_utf8_lossy(&good.stdout).into_owned();
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    for part in ["Port = 7777", "ann = \"(secret)\"", "[Pool.far]", "the first start creates", "a Redis 7."] {
        assert!(said.contains(part), "{part} in:\n{said}");
    }
    assert!(!said.contains("hush"), "a secret is shown:\n{said}");
    assert!(!dir.path().join("jobs").exists(), "a check makes nothing");
    // The output is a configuration.
    let printed: toml::Table = said.parse().expect("it is TOML");
    assert_eq!(printed["Pool"]["default"]["Path"].as_str(), Some("jobs"), "{said}");

    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    process.line_with("serving");
    let said = String::from_utf8_lossy(&check(dir.path()).stdout).into_owned();
    assert!(said.contains("a running server uses"), "{said}");
    process.signal("TERM");
    tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    let before = std::fs::read(dir.path().join("jobs/dormouse")).expect("the mark");
    let said = String::from_utf8_lossy(&check(dir.path()).stdout).into_owned();
    assert!(said.contains("an intact directory"), "{said}");
    assert_eq!(
        std::fs::read(dir.path().join("jobs/dormouse")).expect("the mark"),
        before,
        "it was read only"
    );

    let equal = "TTLSecond = 5\nDelaySecond = 5\n";
    write(dir.path(), &format!("{equal}{toml}"));
    let warned = check(dir.path());
    let said = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert_eq!(warned.status.code(), Some(0), "a warning is no error: {warned:?}");
    assert!(said.contains("warning: TTLSecond = 5 is not longer than DelaySecond = 5"), "{said}");
    assert_eq!(String::from_utf8_lossy(&good.stderr), "", "and else it says nothing");

    drop(redis);
    let cluster = RedisCluster::start_of(3, 0);
    let of = |partitions: u16| {
        format!("[Pool.default]\nCluster = {:?}\nPartitions = {partitions}\n", cluster.address().addrs)
    };
    write(dir.path(), &of(8));
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    process.line_with("serving");
    process.signal("TERM");
    tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    write(dir.path(), &of(4));
    let wrong = check(dir.path());
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("[Pool.default]") && said.contains("Partitions is 4"), "{said}");
}
