//! A whole server in this process, on free ports, with its own store; and requests to it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use dormouse::config::Config;
use dormouse::server::{Options, Server};
use reqwest::{Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::redis_server::RedisServer;

/// How long a test waits for an answer that a healthy server gives at once.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a server needs while it runs, such as a directory or a Redis. Dropped after it.
pub type Keep = Vec<Box<dyn std::any::Any + Send + Sync>>;

/// A server that runs, and what it needs.
pub struct TestServer {
    pub api: SocketAddr,
    pub admin: SocketAddr,
    server: Option<Server>,
    /// Dropped after the server.
    _keep: Keep,
}

impl TestServer {
    /// From a configuration, which may leave ports out: free ones are taken.
    pub async fn from_toml(toml: &str, keep: Keep) -> TestServer {
        TestServer::with(toml, Options::default(), keep).await
    }

    /// The same, with command line options.
    pub async fn with(toml: &str, options: Options, keep: Keep) -> TestServer {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let ports = ["DORMOUSE_PORT", "DORMOUSE_ADMIN_PORT"].map(|k| (k.to_owned(), "0".to_owned()));
        let config = Config::load(Some(file.path()), ports).expect("a valid configuration");
        let server = Server::start(config, options).await.expect("the server starts");
        TestServer { api: server.api, admin: server.admin, server: Some(server), _keep: keep }
    }

    /// On a directory of its own.
    pub async fn disk() -> TestServer {
        let dir = TempDir::new().expect("a temporary directory");
        let toml = TestServer::disk_toml(dir.path());
        TestServer::from_toml(&toml, vec![Box::new(dir)]).await
    }

    /// On a Redis of its own.
    pub async fn redis() -> TestServer {
        let redis = RedisServer::start();
        TestServer::from_toml(&TestServer::redis_toml(&redis), vec![Box::new(redis)]).await
    }

    /// Two on one Redis, which the test keeps.
    pub async fn two_on(redis: &RedisServer) -> [TestServer; 2] {
        let toml = TestServer::redis_toml(redis);
        [TestServer::from_toml(&toml, vec![]).await, TestServer::from_toml(&toml, vec![]).await]
    }

    /// A configuration with everything in this Redis.
    pub fn redis_toml(redis: &RedisServer) -> String {
        format!("[Pool.default]\nAddr = {0:?}\n[AdminRedis]\nAddr = {0:?}\n", redis.addr())
    }

    /// A configuration with the default pool in this directory.
    pub fn disk_toml(dir: &Path) -> String {
        format!("[Pool.default]\nPath = {:?}\n", dir.join("jobs"))
    }

    /// Where a public path is.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.api)
    }

    /// Where an admin path is.
    pub fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    /// A token for a namespace of the default pool.
    pub async fn token(&self, namespace: &str) -> String {
        let url = self.admin_url(&format!("/token/{namespace}?description=compat"));
        let answer = reqwest::Client::new().post(url).send().await.expect("the admin port answers");
        let text = answer.text().await.expect("a body");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json["token"].as_str().unwrap_or_else(|| panic!("a token, not {text}")).to_owned()
    }

    /// A request to the public port with this token, if any.
    pub fn api(&self, method: &str, path: &str, token: &str) -> RequestBuilder {
        ask(method, &self.url(path), token)
    }

    /// A request to the admin port.
    pub fn operate(&self, method: &str, path: &str) -> RequestBuilder {
        ask(method, &self.admin_url(path), "")
    }

    /// Stops it in order.
    pub async fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }
}

fn ask(method: &str, url: &str, token: &str) -> RequestBuilder {
    let method: Method = method.parse().expect("a method");
    let request = reqwest::Client::new().request(method, url).timeout(PATIENCE);
    if token.is_empty() { request } else { request.header("X-Token", token) }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// The body as JSON; null when it is not.
    pub json: Value,
}

impl Answer {
    /// A header's value, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// The text of `error`, or of `msg`.
    pub fn says(&self) -> &str {
        self.json["error"].as_str().or(self.json["msg"].as_str()).unwrap_or_default()
    }

    /// The id of the job that was published or handed out.
    pub fn job_id(&self) -> String {
        self.json["job_id"].as_str().unwrap_or_else(|| panic!("a job_id, not {self:?}")).to_owned()
    }

    /// The body of the job that was handed out.
    pub fn data(&self) -> Vec<u8> {
        let text = self.json["data"].as_str().unwrap_or_else(|| panic!("data, not {self:?}"));
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).expect("base64")
    }

    /// Panics when it is another status than this.
    #[track_caller]
    pub fn expect(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "another status was expected of {self:?}");
        self
    }
}

/// Sends a request and reads the whole answer.
pub async fn send(request: RequestBuilder) -> Answer {
    let answer = request.send().await.unwrap_or_else(|e| panic!("the server answers, but: {e:?}"));
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let text = answer.text().await.unwrap_or_else(|e| panic!("the body comes, but: {e:?}"));
    let json = serde_json::from_str(&text).unwrap_or_default();
    Answer { status, headers, text, json }
}

/// Sends these bytes on a connection of their own, and reads until the server closes it. The last request
/// should say `Connection: close`.
pub async fn raw(addr: SocketAddr, bytes: &[u8]) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(addr).await.expect("the port takes connections");
        stream.write_all(bytes).await.expect("the server reads");
        let mut answer = Vec::new();
        // A reset after the answer is how a server may end a connection that is still sent on.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(PATIENCE, talk).await.expect("the server ends the connection in time")
}

/// The status of a raw answer.
#[track_caller]
pub fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("an answer with a status, not {answer:?}"))
}
