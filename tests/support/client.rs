//! An HTTP client for tests: requests, whole responses, raw bytes, and waiting until a server says something.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::timeout::TIMEOUT;

/// A request with this token, or without one when it is empty.
pub fn request(method: &str, url: &str, token: &str) -> RequestBuilder {
    let method: Method = method.parse().expect("a method");
    let request = reqwest::Client::new().request(method, url).timeout(TIMEOUT);
    if token.is_empty() { request } else { request.header("X-Token", token) }
}

/// What a server answered.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// The body as JSON; null when it is not.
    pub json: Value,
}

impl Response {
    /// A header's value, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// The text of `error`, or of `msg`.
    pub fn says(&self) -> &str {
        self.json["error"].as_str().or(self.json["msg"].as_str()).unwrap_or_default()
    }

    /// The id of the job that was published or handed out.
    #[track_caller]
    pub fn job_id(&self) -> String {
        job_id(&self.json)
    }

    /// The body of the job that was handed out.
    #[track_caller]
    pub fn data(&self) -> Vec<u8> {
        data(&self.json)
    }

    /// Panics when it is another status than this.
    #[track_caller]
    pub fn expect(self, status: u16) -> Response {
        assert_eq!(self.status, status, "another status was expected of {self:?}");
        self
    }
}

/// The id of a job, as a consume shows it.
#[track_caller]
pub fn job_id(job: &Value) -> String {
    job["job_id"].as_str().unwrap_or_else(|| panic!("a job_id was expected, not {job}")).to_owned()
}

/// The body of a job, as a consume shows it.
#[track_caller]
pub fn data(job: &Value) -> Vec<u8> {
    decoded(job["data"].as_str().unwrap_or_else(|| panic!("a job with data was expected, not {job}")))
}

/// The bytes of a base64 text.
#[track_caller]
pub fn decoded(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap_or_else(|e| panic!("base64 was expected ({e}), not {text:?}"))
}

/// Sends a request and reads the whole response.
pub async fn send(request: RequestBuilder) -> Response {
    try_send(request).await.unwrap_or_else(|e| panic!("a whole response was expected, but: {e:?}"))
}

/// The same with a server that may be gone.
pub async fn try_send(request: RequestBuilder) -> reqwest::Result<Response> {
    let response = request.send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await?;
    let json = serde_json::from_str(&text).unwrap_or_default();
    Ok(Response { status, headers, text, json })
}

/// Creates a token of the default pool through this admin port. Its description is the one in the recordings.
pub async fn create_token(admin: impl Display, namespace: &str) -> String {
    let url = format!("http://{admin}/token/{namespace}?description=compat");
    let created = send(request("POST", &url, "")).await.expect(201);
    created.json["token"]
        .as_str()
        .unwrap_or_else(|| panic!("a token was expected, not {created:?}"))
        .to_owned()
}

/// Asks again and again until `done`. Nothing tells a client when a server has got there.
pub async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !done().await {
        assert!(began.elapsed() < TIMEOUT, "this should have happened within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Asks again and again until the response has this status.
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
    tokio::time::timeout(TIMEOUT, talk).await.expect("the server ends the connection in time")
}

/// The status of a raw answer.
#[track_caller]
pub fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("an answer with a status was expected, not {answer:?}"))
}

/// Reads until `text` has come, and answers what came.
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
    tokio::time::timeout(TIMEOUT, reading).await.unwrap_or_else(|_| panic!("no {text:?} came in time"));
    String::from_utf8_lossy(&seen).into_owned()
}
