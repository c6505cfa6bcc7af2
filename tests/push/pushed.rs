//! Pushed queues: a server, a token of the namespace `ns`, and helpers for tests of push.

use std::any::Any;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::receiver::{Arrived, Receiver};
use crate::support::client::{Response, create_token, request, send};
use crate::support::process::Process;
use crate::support::servers::{Store, TestServer};
use crate::support::wait::until;

/// Lets push call receivers of this machine.
pub const LOCAL: &str = "PushAllow = [\"127.0.0.0/8\"]\n";

/// A server that may push to this machine.
pub struct Pushed {
    api: String,
    admin: String,
    pub token: String,
    /// Resources that it runs on.
    _keep: Box<dyn Any + Send + Sync>,
}

impl Pushed {
    /// Starts a server in this process with everything on one store.
    pub async fn on(store: Store) -> Pushed {
        Pushed::with(LOCAL, store).await
    }

    /// Starts it with other keys of the configuration.
    pub async fn with(keys: &str, store: Store) -> Pushed {
        let toml = format!("{keys}{}", store.toml());
        Pushed::by(TestServer::start(&toml, store).await).await
    }

    /// Uses this server.
    pub async fn by(server: TestServer) -> Pushed {
        let (api, admin) = (server.api_addr.to_string(), server.admin_addr.to_string());
        let token = create_token(&admin, "ns").await;
        Pushed { api, admin, token, _keep: Box::new(server) }
    }

    /// Uses a server process, which the test keeps.
    pub async fn process(process: &mut Process) -> Pushed {
        let (api, admin) = (process.address("api"), process.address("admin"));
        let token = create_token(&admin, "ns").await;
        Pushed { api, admin, token, _keep: Box::new(()) }
    }

    /// Returns the URL of a public path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.api)
    }

    /// Sends a request to the admin port.
    pub async fn admin(&self, method: &str, path: &str, body: impl ToString) -> Response {
        send(request(method, &format!("http://{}{path}", self.admin), "").body(body.to_string())).await
    }

    /// Sends a request to the public port.
    pub async fn api(&self, method: &str, path: &str, body: impl Into<reqwest::Body>) -> Response {
        send(request(method, &self.url(path), &self.token).body(body)).await
    }

    /// Sets how a queue is pushed, and returns the stored setting.
    pub async fn set(&self, queue: &str, setting: Value) -> Value {
        self.admin("PUT", &format!("/push/ns/{queue}"), setting).await.expect(200).json
    }

    /// Pushes a queue to a receiver, with the queue's name as path, and these fields.
    pub async fn push_to(&self, receiver: &Receiver, queue: &str, fields: Value) -> Value {
        let mut setting = json!({"url": receiver.url(&format!("/{queue}"))});
        let more = fields.as_object().expect("an object of fields").clone();
        setting.as_object_mut().expect("an object").extend(more);
        self.set(queue, setting).await
    }

    /// Returns a queue's push setting with its results.
    pub async fn shown(&self, queue: &str) -> Value {
        self.admin("GET", &format!("/push/ns/{queue}"), "").await.expect(200).json
    }

    /// Returns the displayed state: `on`, `paused`, `open` or `off`.
    pub async fn state(&self, queue: &str) -> String {
        let shown = self.shown(queue).await;
        shown["state"].as_str().unwrap_or_else(|| panic!("a state was expected in {shown}")).to_owned()
    }

    /// Waits until this state is displayed.
    pub async fn until_state(&self, queue: &str, state: &str) {
        until(&format!("{queue} is {state}"), async || self.state(queue).await == state).await;
    }

    /// Publishes a job, and returns its id.
    pub async fn publish(&self, queue: &str, query: &str, body: &str) -> String {
        let path = format!("/api/ns/{queue}?{query}");
        self.api("PUT", &path, body.to_owned()).await.expect(201).job_id()
    }

    /// Returns a job; `None` if it does not exist.
    pub async fn job(&self, queue: &str, id: &str) -> Option<Value> {
        let found = self.api("GET", &format!("/api/ns/{queue}/job/{id}?verbose=1"), "").await;
        if found.status == 404 {
            return None;
        }
        Some(found.expect(200).json)
    }

    /// Waits until a job is acked.
    pub async fn until_gone(&self, queue: &str, id: &str) {
        until(&format!("{id} of {queue} is acked"), async || self.job(queue, id).await.is_none()).await;
    }

    /// Waits until a job is in this state, and returns it.
    pub async fn until_job(&self, queue: &str, id: &str, state: &str) -> Value {
        let mut found = None;
        until(&format!("{id} of {queue} is {state}"), async || {
            found = self.job(queue, id).await;
            found.as_ref().is_some_and(|job| job["state"] == state)
        })
        .await;
        found.unwrap_or_default()
    }

    /// Returns the number of ready jobs of a queue, or of dead ones (`q/deadletter`).
    pub async fn size(&self, queue: &str) -> u64 {
        let response = self.api("GET", &format!("/api/ns/{queue}/size"), "").await.expect(200);
        response.json["size"].as_u64().unwrap_or_else(|| panic!("a size was expected, not {response:?}"))
    }

    /// Returns the metrics.
    pub async fn metrics(&self) -> String {
        self.admin("GET", "/metrics", "").await.expect(200).text
    }
}

/// Returns the number of seconds until this instant.
#[track_caller]
pub fn seconds_until(instant: &Value) -> f64 {
    let text = instant.as_str().unwrap_or_else(|| panic!("an instant was expected, not {instant}"));
    let at: jiff::Timestamp = text.parse().unwrap_or_else(|e| panic!("RFC 3339 was expected ({e}): {text}"));
    at.duration_since(jiff::Timestamp::now()).as_secs_f64()
}

/// Formats the instant in `seconds` seconds for an HTTP header.
pub fn http_date(seconds: u64) -> String {
    let at = SystemTime::now() + Duration::from_secs(seconds);
    let since = at.duration_since(UNIX_EPOCH).expect("it is later than 1970").as_secs();
    let at = jiff::Timestamp::from_second(since as i64).expect("a time of this century");
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Verifies a request against this secret with the reference library of Standard Webhooks. Its body must be text.
pub fn verifies(secret: &str, request: &Arrived) -> Result<(), String> {
    let webhook = Webhook::new(secret).map_err(|e| format!("the secret {secret:?}: {e}"))?;
    webhook.verify(&request.body, &request.headers).map_err(|e| format!("{e}: {request:?}"))
}
