//! What pages read and change, with the account of the page's request: replies of the functions behind the JSON routes,
//! and calls of the routes themselves, whose layers check and log each change.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt;

use crate::http::answer::error::{ApiError, StoreFailure};
use crate::http::operators::audit::Account;
use crate::http::operators::roles::Role;
use crate::http::request::extract::{Labels, ShowsBodies};
use crate::http::request::peer::ClientIp;

/// Maximum size of a reply: a page of jobs with bodies has 8 MiB of them, in base64.
const MOST: usize = 16 << 20;
/// Characters that are not escaped in a part of a path and in a value of a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Escapes a part of a path, or a value of a query.
pub fn part(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Error of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub text: String,
}

impl Refusal {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into() }
    }

    /// Creates a 400.
    pub fn bad(text: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, text)
    }
}

fn late() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no response within a second")
}

/// Result of a route.
pub type Said<T> = Result<T, Refusal>;

/// Client of the JSON routes, for one page.
pub struct Asker {
    routes: Router,
    labels: Option<Arc<Labels>>,
    client: Option<ClientIp>,
    account: Option<Account>,
    pub role: Role,
    authorization: Option<HeaderValue>,
    /// Deadline; later replies are omitted from the page.
    until: Mutex<Instant>,
    /// A store's failure in a route, which the page's response reports.
    failure: Mutex<Option<StoreFailure>>,
}

/// Body of a change.
pub enum Sent {
    Nothing,
    Json(Value),
    /// A job's body, with the headers of its publish.
    Job(Vec<u8>, Vec<(String, Vec<u8>)>),
}

impl Asker {
    /// Creates a client for the request of a page. Reads must end by `until`.
    pub fn of(routes: &Router, parts: &Parts, until: Instant) -> Asker {
        Asker {
            routes: routes.clone(),
            labels: parts.extensions.get::<Arc<Labels>>().cloned(),
            client: parts.extensions.get::<ClientIp>().copied(),
            account: parts.extensions.get::<Account>().cloned(),
            role: parts.extensions.get::<Role>().copied().unwrap_or(Role::Viewer),
            authorization: parts.headers.get(header::AUTHORIZATION).cloned(),
            until: Mutex::new(until),
            failure: Mutex::default(),
        }
    }

    /// Returns the account, if the request has one.
    pub fn account(&self) -> Option<&str> {
        self.account.as_ref().map(|account| &*account.0)
    }

    /// Returns the labels of the page's request.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_deref()
    }

    /// Whether the page may show bodies.
    pub fn shows_bodies(&self) -> ShowsBodies {
        ShowsBodies::of(self.labels.as_deref())
    }

    /// Returns a store's failure, to be reported with the response.
    pub fn failure(&self) -> Option<StoreFailure> {
        self.failure.lock().clone()
    }

    /// Sets another deadline.
    pub fn wait_until(&self, until: Instant) {
        *self.until.lock() = until;
    }

    /// Returns the reply of a function behind a route, if it arrives in time.
    pub async fn read<T>(&self, reply: impl Future<Output = Result<T, ApiError>>) -> Said<T> {
        let until = *self.until.lock();
        self.take(timeout_at(until, reply).await.map_err(|_| late())?)
    }

    /// Returns the reply of a function behind a route that calls no store.
    pub fn take<T>(&self, reply: Result<T, ApiError>) -> Said<T> {
        reply.map_err(|error| {
            let text = error.text().into_owned();
            let response = error.into_response();
            self.record(&response);
            Refusal::new(response.status(), text)
        })
    }

    fn record(&self, response: &Response) {
        if let Some(failure) = response.extensions().get::<StoreFailure>() {
            *self.failure.lock() = Some(failure.clone());
        }
    }

    /// Returns the reply to a GET, if it arrives in time.
    pub async fn get<T: DeserializeOwned>(&self, path: impl AsRef<str>) -> Said<T> {
        let path = path.as_ref();
        let until = *self.until.lock();
        let asked = self.ask(Method::GET, path, Sent::Nothing);
        let bytes = timeout_at(until, asked).await.map_err(|_| late())??;
        serde_json::from_slice(&bytes).map_err(|error| {
            tracing::error!(%error, path, "the dashboard cannot parse the response of a route");
            Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal error: unexpected response (see the server log)",
            )
        })
    }

    /// Calls a route that changes something. Waits for its end, since otherwise the result would be unknown.
    pub async fn change(&self, method: Method, path: &str, sent: Sent) -> Said<Value> {
        let bytes = self.ask(method, path, sent).await?;
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn ask(&self, method: Method, path: &str, sent: Sent) -> Said<axum::body::Bytes> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let body = match sent {
            Sent::Nothing => Body::empty(),
            Sent::Json(value) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(value.to_string())
            }
            Sent::Job(body, headers) => {
                for (name, value) in headers {
                    request = request.header(name, value);
                }
                Body::from(body)
            }
        };
        let mut request = request.body(body).map_err(|_| Refusal::bad("the input cannot be sent"))?;
        let extensions = request.extensions_mut();
        self.labels.clone().map(|labels| extensions.insert(labels));
        self.client.map(|client| extensions.insert(client));
        self.account.clone().map(|account| extensions.insert(account));
        let response = match self.routes.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        self.record(&response);
        let bytes = to_bytes(response.into_body(), MOST).await;
        let bytes =
            bytes.map_err(|_| Refusal::new(StatusCode::INSUFFICIENT_STORAGE, "the response is too large"))?;
        if status.is_success() {
            return Ok(bytes);
        }
        let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = said["error"].as_str().or(said["msg"].as_str());
        let usual = status.canonical_reason().unwrap_or("refused");
        Err(Refusal::new(status, text.unwrap_or(usual)))
    }
}
