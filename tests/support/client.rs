//! An HTTP client for tests: requests and whole responses.

use std::fmt::Display;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;

use super::held;
use super::wait::TIMEOUT;

/// Returns a request with this token; without one if it is empty.
pub fn request(method: &str, url: &str, token: &str) -> RequestBuilder {
    let method: Method = method.parse().expect("a method");
    let request = reqwest::Client::new().request(method, url).timeout(TIMEOUT);
    if token.is_empty() { request } else { request.header("X-Token", token) }
}

/// A whole response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// The body as JSON; null if it is not JSON.
    pub json: Value,
}

impl Response {
    /// Returns the text of `error`, or of `msg`.
    pub fn says(&self) -> &str {
        self.json["error"].as_str().or(self.json["msg"].as_str()).unwrap_or_default()
    }

    /// Returns the id of the published or delivered job.
    #[track_caller]
    pub fn job_id(&self) -> String {
        job_id(&self.json)
    }

    /// Returns the body of the delivered job.
    #[track_caller]
    pub fn data(&self) -> Vec<u8> {
        data(&self.json)
    }

    /// Panics if the status differs.
    #[track_caller]
    pub fn expect(self, status: u16) -> Response {
        assert_eq!(
            self.status,
            status,
            "another status was expected of {:?} {:?} {:?}",
            self.headers,
            self.text,
            self.says()
        );
        self
    }
}

/// Returns the id of a consumed job.
#[track_caller]
pub fn job_id(job: &Value) -> String {
    job["job_id"].as_str().unwrap_or_else(|| panic!("a job_id was expected, not {job}")).to_owned()
}

/// Returns the body of a consumed job.
#[track_caller]
pub fn data(job: &Value) -> Vec<u8> {
    decoded(job["data"].as_str().unwrap_or_else(|| panic!("a job with data was expected, not {job}")))
}

/// Decodes base64.
#[track_caller]
pub fn decoded(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap_or_else(|e| panic!("base64 was expected ({e}), not {text:?}"))
}

/// Sends a request and reads the whole response.
pub async fn send(request: RequestBuilder) -> Response {
    try_send(request).await.unwrap_or_else(|e| panic!("a whole response was expected, but: {e:?}"))
}

/// Like `send`, for a server that may be stopped.
pub async fn try_send(request: RequestBuilder) -> reqwest::Result<Response> {
    let (client, request) = request.build_split();
    let request = request?;
    let (method, url) = (request.method().clone(), request.url().clone());
    let response = client.execute(request).await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await?;
    let json = serde_json::from_str(&text).unwrap_or_default();
    let response = Response { status, headers, text, json };
    held::hold(&method, &url, &response);
    Ok(response)
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
