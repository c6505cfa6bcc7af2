//! TLS on both ports, tested with curl, and TLS to a Redis and its Sentinels.

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::certificates::Authority;
use crate::support::process::Process;
use crate::support::redis_server::{RedisServer, free_port};
use crate::support::wait::until;

const NAMES: &str = "DNS:localhost,IP:127.0.0.1";

fn curl(authority: &Authority, args: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-m", "20", "--cacert"]).arg(authority.certificate()).args(args);
    curl.output().expect("curl runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the serial number of the presented certificate.
fn serial(address: &str) -> String {
    let shown = Command::new("openssl")
        .args(["s_client", "-connect", address])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .expect("openssl runs");
    let mut read = Command::new("openssl")
        .args(["x509", "-noout", "-serial"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl runs");
    let mut input = read.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, &shown.stdout).expect("it reads");
    drop(input);
    String::from_utf8_lossy(&read.wait_with_output().expect("it ends").stdout).into_owned()
}

/// Starts a server with TLS on both ports.
fn server(dir: &Path, authority: &Authority) -> Process {
    authority.issue(NAMES, &dir.join("cert.pem"), &dir.join("key.pem"));
    let toml = "TLSCert = 'cert.pem'\nTLSKey = 'key.pem'\nAdminTLSCert = 'cert.pem'\nAdminTLSKey = 'key.pem'\n\
                [Pool.default]\nPath = 'jobs'\n";
    std::fs::write(dir.join("c.toml"), toml).expect("a file");
    Process::start(dir, &["-c", "c.toml", "-sv"], &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ports_speak_tls_and_nothing_else() {
    let (dir, authority) = (TempDir::new().expect("a temporary directory"), Authority::new());
    let mut process = server(dir.path(), &authority);
    let (api, admin) = (process.address("api"), process.address("admin"));
    let [url, ready] = [format!("https://{api}/api/ns/q"), format!("https://{admin}/ready")];
    for version in [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3", "--tls-max", "1.3"]] {
        let put = curl(&authority, &[&version[..], &["-T", "c.toml", &url]].concat());
        // curl reads the file in the test's directory.
        assert!(!put.status.success() || text(&put).contains("published"), "{}", text(&put));
        let put = curl(&authority, &[&version[..], &["-X", "PUT", "-d", "a job", &url]].concat());
        assert!(text(&put).contains("published"), "{version:?}: {}", text(&put));
        let got = curl(&authority, &[&version[..], &[&format!("{url}?timeout=5")]].concat());
        assert!(text(&got).contains("\"data\":\"YSBqb2I=\""), "{version:?}: {}", text(&got));
        until("it is ready", async || {
            text(&curl(&authority, &[&version[..], &[&ready]].concat())).contains("\"ready\":true")
        })
        .await;
    }
    let old = curl(&authority, &["--tlsv1.0", "--tls-max", "1.1", &url]);
    assert!(!old.status.success(), "TLS 1.1: {}", text(&old));
    let plain = Command::new("curl").args(["-sS", "-m", "20", &format!("http://{api}/ping")]).output();
    assert!(!plain.expect("curl runs").status.success(), "no HTTP without TLS");
    // Large bodies in both directions, which need many TLS records.
    let body = "x".repeat(900_000);
    std::fs::write(dir.path().join("body"), &body).expect("a file");
    let at = format!("@{}", dir.path().join("body").display());
    let put = curl(&authority, &["-X", "PUT", "--data-binary", &at, &url]);
    assert!(text(&put).contains("published"), "{}", text(&put));
    let got = curl(&authority, &[&url]);
    assert!(got.stdout.len() > body.len() * 4 / 3, "{} bytes came", got.stdout.len());
    let mut health = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    health.arg("health").env_clear().env("DORMOUSE_ADMIN", format!("https://{admin}"));
    assert_eq!(health.output().expect("it runs").status.code(), Some(1), "an authority that nobody trusts");
    health.env("SSL_CERT_FILE", authority.certificate());
    until("it is ready", async || health.output().expect("it runs").status.code() == Some(0)).await;
}

/// Guards against polls that stay when their consumer disconnects or the server stops: both must be noticed below TLS.
#[tokio::test(flavor = "multi_thread")]
async fn polls_wait_over_tls_as_without() {
    let (dir, authority) = (TempDir::new().expect("a temporary directory"), Authority::new());
    let mut process = server(dir.path(), &authority);
    let (api, admin) = (process.address("api"), process.address("admin"));
    let url = format!("https://{api}/api/ns/q");
    let metrics = format!("https://{admin}/metrics");
    let parked = |polls: usize| {
        let (authority, metrics) = (&authority, &metrics);
        async move || {
            text(&curl(authority, &[metrics])).contains(&format!("\ndormouse_parked_polls {polls}\n"))
        }
    };
    let poll = || {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-m", "60", "--cacert"])
            .arg(authority.certificate())
            .arg(format!("{url}?timeout=60"));
        curl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("curl runs")
    };
    let mut leaves = poll();
    until("the first waits", parked(1)).await;
    let stays = poll();
    until("both wait", parked(2)).await;
    leaves.kill().expect("it runs");
    leaves.wait().expect("it ends");
    until("one has left", parked(1)).await;
    let put = curl(&authority, &["-X", "PUT", "-d", "a job", &url]);
    assert!(text(&put).contains("published"), "{}", text(&put));
    let got = stays.wait_with_output().expect("it ends");
    assert!(text(&got).contains("\"data\":\"YSBqb2I=\""), "the one that stayed: {}", text(&got));
    let last = poll();
    until("another waits", parked(1)).await;
    process.signal("TERM");
    assert!(text(&last.wait_with_output().expect("it ends")).contains("no job available"), "it is answered");
    assert_eq!(
        tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic").status.code(),
        Some(0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_anew_and_a_bad_one_leaves_the_old() {
    let (dir, authority) = (TempDir::new().expect("a temporary directory"), Authority::new());
    let mut process = server(dir.path(), &authority);
    let (api, admin) = (process.address("api"), process.address("admin"));
    let first = serial(&api);
    assert!(first.starts_with("serial=") && first == serial(&admin), "one for both: {first}");
    authority.issue(NAMES, &dir.path().join("cert.pem"), &dir.path().join("key.pem"));
    process.signal("USR1");
    until("the new one is shown", async || serial(&api) != first && serial(&admin) != first).await;
    let second = serial(&api);
    assert!(second.starts_with("serial="), "{second}");
    std::fs::write(dir.path().join("cert.pem"), "no certificate").expect("written");
    process.signal("USR1");
    let line = process.line_with("cannot be reloaded");
    assert!(line.contains("TLSCert") && line.contains("cert.pem"), "{line}");
    assert_eq!(serial(&api), second, "the old one stays");
    // A certificate with the key of another.
    let other = dir.path().join("other.pem");
    authority.issue(NAMES, &dir.path().join("cert.pem"), &other);
    process.signal("TERM");
    tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    let ended = Process::start(dir.path(), &["-c", "c.toml"], &[]).ended();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.said);
    assert!(ended.said.contains("key.pem: not the key of cert.pem"), "{}", ended.said);
}

/// Guards against connections that start no handshake and use up a port's connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_does_not_come_is_given_up() {
    let (dir, authority) = (TempDir::new().expect("a temporary directory"), Authority::new());
    let mut process = server(dir.path(), &authority);
    let address = process.address("api");
    let began = std::time::Instant::now();
    let mut silent = TcpStream::connect(address).expect("it listens");
    silent.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    let read = tokio::task::spawn_blocking(move || silent.read(&mut [0; 16])).await.expect("no panic");
    let took = began.elapsed();
    assert!(matches!(read, Ok(0) | Err(_)) && took < Duration::from_secs(15), "{read:?} after {took:?}");
    assert!(took > Duration::from_secs(9), "a slow peer has its time: {took:?}");
}

/// A Redis, or a Sentinel, with TLS on its second port and client certificates.
struct SecureRedis {
    dir: TempDir,
    authority: Authority,
    redis: RedisServer,
    port: u16,
}

impl SecureRedis {
    fn start() -> SecureRedis {
        let (dir, authority) = (TempDir::new().expect("a temporary directory"), Authority::new());
        let at = |name: &str| dir.path().join(name).display().to_string();
        authority.issue(NAMES, &dir.path().join("cert.pem"), &dir.path().join("key.pem"));
        let ca = authority.certificate().display().to_string();
        let port = free_port();
        let tls = port.to_string();
        let (cert, key) = (at("cert.pem"), at("key.pem"));
        let args =
            ["--tls-port", &tls, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let redis = RedisServer::start_with(None, &args);
        SecureRedis { dir, authority, redis, port }
    }

    fn keys(&self) -> String {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        format!(
            "TLS = true\nCA = '{}'\nCert = '{}'\nKey = '{}'\n",
            self.authority.certificate().display(),
            at("cert.pem"),
            at("key.pem")
        )
    }
}

/// Publishes and consumes once.
async fn works(process: &mut Process) {
    let url = format!("http://{}/api/ns/q", process.address("api"));
    let client = reqwest::Client::new();
    let put = client.put(&url).body("a job").send().await.expect("it answers");
    assert_eq!(put.status(), 201, "a publish");
    let got = client.get(format!("{url}?timeout=5")).send().await.expect("it answers");
    assert_eq!(got.status(), 200, "a consume");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_is_spoken_to_over_tls() {
    let secure = SecureRedis::start();
    let dir = TempDir::new().expect("a temporary directory");
    let configuration = |keys: &str| {
        let store = format!("Addr = 'localhost:{}'\n{keys}", secure.port);
        let toml = format!("[Pool.default]\n{store}[AdminRedis]\n{store}");
        std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    };
    configuration(&secure.keys());
    let mut process = Process::start(dir.path(), &["-c", "c.toml", "-sv"], &[]);
    works(&mut process).await;
    drop(process);
    // The server does not retry with a wrong setting.
    let other = Authority::new();
    let ca = secure.authority.certificate().display().to_string();
    let not_trusted = secure.keys().replace(&ca, &other.certificate().display().to_string());
    for (keys, says) in [
        (not_trusted.as_str(), "TLS: invalid peer certificate"),
        ("TLS = true\n", "TLS: invalid peer certificate"),
    ] {
        configuration(keys);
        let env = [("DORMOUSE_WAIT_FOR_STORE", "300")];
        let ended = Process::start(dir.path(), &["-c", "c.toml"], &env).ended();
        assert_eq!(ended.status.code(), Some(1), "{keys}: {}", ended.said);
        assert!(ended.said.contains(says), "{keys}: {}", ended.said);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_asked_over_tls_and_name_a_port_that_speaks_it() {
    let secure = SecureRedis::start();
    let at = |name: &str| secure.dir.path().join(name).display().to_string();
    let port = free_port();
    let conf = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = format!(
        "tls-port {port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-replication yes\n\
         user default off\nuser watcher on >hush ~* &* +@all\nsentinel monitor m 127.0.0.1 {} 1\n",
        at("cert.pem"),
        at("key.pem"),
        secure.authority.certificate().display(),
        secure.port,
    );
    std::fs::write(conf.path(), text).expect("written");
    let _sentinel = RedisServer::start_kind(None, &[], conf.path().to_str(), Vec::new());
    let dir = TempDir::new().expect("a temporary directory");
    let store = format!(
        "Addr = '127.0.0.1:{port}'\nMasterName = 'm'\nSentinelUsername = 'watcher'\nSentinelPassword = 'hush'\n{}",
        secure.keys()
    );
    let toml = format!("[Pool.default]\n{store}[AdminRedis]\n{store}");
    std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml", "-sv"], &[]);
    works(&mut process).await;
    assert!(secure.redis.child.is_some(), "it runs");
}
