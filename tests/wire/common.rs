//! Helpers of the conversations besides tests/support: servers on a store, raw bytes, long polls.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::client::{Response, send};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, redis_toml};
use crate::support::wait::{TIMEOUT, until};

impl TestServer {
    /// Starts a server with everything on one store.
    pub async fn on(store: Store) -> TestServer {
        TestServer::start(&store.toml(), store).await
    }

    /// Starts a server on its own directory.
    pub async fn on_disk() -> TestServer {
        TestServer::on(Store::disk()).await
    }

    /// Starts two servers on one Redis, which the test keeps.
    pub async fn two_on(redis: &RedisServer) -> [TestServer; 2] {
        let toml = redis_toml(redis);
        [TestServer::start(&toml, ()).await, TestServer::start(&toml, ()).await]
    }

    /// Sets the limit of a token of the namespace `ns`.
    pub async fn limit(&self, token: &str, limit: &str) {
        let path = format!("/token/ns/{token}/limit");
        send(self.admin("PUT", &path).body(limit.to_owned())).await.expect(200);
    }

    /// Waits until this server knows that another one has paused a queue of the namespace `ns`.
    pub async fn until_paused(&self, token: &str, queue: &str) {
        until("the queue is listed as paused", async || {
            let list = self.get(token, "/api/ns").await.json;
            let mut queues = list["queues"].as_array().into_iter().flatten();
            queues.any(|of| of["queue"] == queue && of["paused"] == true)
        })
        .await;
    }

    /// Waits until exactly `polls` consumers wait in long polls.
    pub async fn until_parked(&self, polls: usize) {
        let gauge = format!("\ndormouse_parked_polls {polls}\n");
        let began = Instant::now();
        while !send(self.admin("GET", "/metrics")).await.expect(200).text.contains(&gauge) {
            assert!(began.elapsed() < TIMEOUT, "there should be {polls} parked polls within {TIMEOUT:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Process {
    /// Starts the server without arguments, and with a limit of open files that it cannot raise.
    pub fn start_with_open_files(dir: &Path, most: usize) -> Process {
        let mut command = Command::new("/bin/sh");
        let binary = env!("CARGO_BIN_EXE_dormouse");
        command.args(["-c", &format!("ulimit -n {most} && exec '{binary}'")]);
        Process::run(command, dir, &[])
    }
}

impl Response {
    /// Returns a header's value; empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }
}

/// Repeats a request until the response has this status.
pub async fn until_status(status: u16, ask: impl AsyncFn() -> Response) -> Response {
    let began = Instant::now();
    loop {
        let response = ask().await;
        if response.status == status {
            return response;
        }
        assert!(
            began.elapsed() < TIMEOUT,
            "{status} was expected within {TIMEOUT:?}; last came {response:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sends these bytes on a new connection, and reads until the server closes it. The last request should contain
/// `Connection: close`.
pub async fn raw(addr: SocketAddr, bytes: &[u8]) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(addr).await.expect("the port takes connections");
        stream.write_all(bytes).await.expect("the server reads");
        let mut answer = Vec::new();
        // A server may reset the connection after its response, if the client is still sending.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(TIMEOUT, talk).await.expect("the server ends the connection in time")
}

/// Returns the status of a raw response.
#[track_caller]
pub fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("an answer with a status was expected, not {answer:?}"))
}

/// Reads until `text` has arrived, and returns everything read.
pub async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&seen).contains(text) {
            let mut piece = [0; 4096];
            let n = stream.read(&mut piece).await.unwrap_or(0);
            assert!(n > 0, "the connection ended before {text:?}: {:?}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..n]);
        }
    };
    tokio::time::timeout(TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| panic!("{text:?} did not arrive in time"));
    String::from_utf8_lossy(&seen).into_owned()
}

/// Starts a long poll.
pub fn poll(server: &TestServer, token: &str, path: &str) -> JoinHandle<Response> {
    tokio::spawn(send(server.api("GET", path, token)))
}

/// Returns the response to a poll.
pub async fn ended(poll: JoinHandle<Response>) -> Response {
    tokio::time::timeout(TIMEOUT, poll).await.expect("the poll ends in time").expect("no panic")
}
