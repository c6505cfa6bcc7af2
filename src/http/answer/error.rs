//! Error responses. This is the only mapping from our errors to status codes and texts. Internal errors travel with the
//! response to the middleware, which reports them once.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use super::reply;
use super::room::NoRoom;
use crate::dispatch::ConsumeError;
use crate::error::{Error, LOCKED, Unreachable};
use crate::job::JobId;
use crate::name::NameError;
use crate::push::PushError;

/// Result of a handler.
pub type HandlerResult = Result<Response, ApiError>;

/// Response extension with the store failure that caused it, for reporting.
#[derive(Clone, Debug)]
pub struct StoreFailure(pub Error);

/// Response extension of a 5xx; the middleware adds the request's id to its body.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OwnFault {
    error: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

impl OwnFault {
    /// Adds the request's id to the body of an internal error.
    pub fn name_request(response: &mut Response, request_id: &str) {
        if let Some(fault) = response.extensions_mut().remove::<OwnFault>() {
            let fault = OwnFault { request_id: Some(request_id.to_owned()), ..fault };
            // It has string keys and no failing serializers.
            *response.body_mut() = Body::from(serde_json::to_vec(&fault).unwrap_or_default());
        }
    }

    fn response(self, status: StatusCode) -> Response {
        let mut response = reply::json(status, &self);
        response.extensions_mut().insert(self);
        response
    }
}

/// Why a request gets an error response.
#[derive(Debug)]
pub enum ApiError {
    /// The client's error: `{"error": ..}`.
    Refused(StatusCode, &'static str),
    /// The client's error with more fields.
    Detailed(StatusCode, Box<Details>),
    /// The client's error with its own body.
    Said(StatusCode, Box<Value>),
    /// 409: an equal request is in flight; with Retry-After.
    Busy(&'static str),
    /// Rate limited for this long: `{"msg": ..}`.
    Limited(String, Duration),
    /// Internal error, with its cause unless already reported.
    Ours(StatusCode, &'static str, Option<Error>),
    /// Internal error after some jobs were processed: `{"error": .., "done": ..}`.
    Partly(u64, StatusCode, &'static str, Option<Error>),
    /// Internal error after a part of a batch was stored: `{"error": .., "stored": ..}`.
    Stored(u64, Box<ApiError>),
    /// 503: part of the pool is unavailable. With the number of jobs processed, if any.
    Unreachable(Unreachable, Option<u64>),
}

/// An error about one part of the request, or about a conflicting job.
#[derive(Debug, Serialize)]
pub struct Details {
    pub error: Cow<'static, str>,
    /// Index in the request's list, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
}

/// Position of an invalid name. lmstfy's error texts differ by position.
#[derive(Debug, Clone, Copy)]
pub enum NameIn {
    /// The namespace of a queue.
    Namespace,
    Queue,
    /// The namespace of a token, on the admin port.
    TokenPath,
}

impl ApiError {
    /// 409: a request with this idempotency key is in flight.
    pub const UNDER_WAY: ApiError = ApiError::Busy("a request with this idempotency key is under way");
    /// 422.
    pub const OTHER_REQUEST: ApiError = ApiError::Refused(
        StatusCode::UNPROCESSABLE_ENTITY,
        "the idempotency key was used for another request",
    );
    /// The cursor was not issued by this server, or is of another list.
    pub const BAD_CURSOR: ApiError = ApiError::bad("invalid cursor");
    /// 404.
    pub const NO_JOB: ApiError = ApiError::Refused(StatusCode::NOT_FOUND, "job not found");
    /// 403.
    pub const NO_BODIES: ApiError = ApiError::Refused(
        StatusCode::FORBIDDEN,
        "contains: this account may not see job bodies (ShowBodies)",
    );
    /// 503.
    pub const SEARCHES: ApiError =
        ApiError::unavailable("two searches are already running, please retry later");
    /// 409.
    pub const NOT_YOURS: ApiError = ApiError::Refused(StatusCode::CONFLICT, "the job is not yours any more");

    /// Adds the index of an element to an error.
    pub fn at(self, index: usize) -> ApiError {
        match self {
            ApiError::Refused(status, text) => ApiError::detailed(status, text).at(index),
            ApiError::Detailed(status, details) => {
                ApiError::Detailed(status, Box::new(Details { index: Some(index), ..*details }))
            }
            other => other,
        }
    }

    /// Removes the index, for a request with a single element.
    pub fn of_the_only_one(self) -> ApiError {
        match self {
            ApiError::Detailed(status, details) => {
                ApiError::Detailed(status, Box::new(Details { index: None, ..*details }))
            }
            other => other,
        }
    }

    /// Returns the 400 for an invalid name.
    pub const fn bad_name(place: NameIn, error: NameError) -> ApiError {
        ApiError::bad(match (place, error) {
            (NameIn::Namespace | NameIn::Queue, NameError::TooLong) => "namespace or queue name too long",
            (NameIn::TokenPath, NameError::TooLong) => "the namespace name was too long",
            (NameIn::Namespace | NameIn::TokenPath, NameError::Forbidden) => {
                "namespace name contains forbidden characters"
            }
            (NameIn::Queue, NameError::Forbidden) => "queue name contains forbidden characters",
        })
    }

    /// Creates an error with a dynamic text.
    pub fn detailed(status: StatusCode, text: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::Detailed(status, Box::new(Details { error: text.into(), index: None, job_id: None }))
    }

    /// Creates an error with its own body, which has an `error`.
    pub fn said(status: StatusCode, body: &impl Serialize) -> ApiError {
        // It has only strings and numbers, so this cannot fail.
        ApiError::Said(status, Box::new(serde_json::to_value(body).unwrap_or_default()))
    }

    /// Returns the error of a batch, which may be stored in part.
    pub fn of_a_batch(error: Error) -> ApiError {
        match error {
            Error::Partly { done, why } => ApiError::Stored(done, Box::new((*why).clone().into())),
            error => error.into(),
        }
    }

    /// Creates a 503 that is not a failure of the store.
    const fn unavailable(text: &'static str) -> ApiError {
        ApiError::Ours(StatusCode::SERVICE_UNAVAILABLE, text, None)
    }

    /// Creates a 400.
    pub const fn bad(text: &'static str) -> ApiError {
        ApiError::Refused(StatusCode::BAD_REQUEST, text)
    }

    /// Creates a 413.
    pub const fn too_large(text: &'static str) -> ApiError {
        ApiError::Refused(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    /// Returns the error's text.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            ApiError::Refused(_, text)
            | ApiError::Busy(text)
            | ApiError::Ours(_, text, _)
            | ApiError::Partly(_, _, text, _) => Cow::Borrowed(text),
            ApiError::Limited(text, _) => Cow::Borrowed(text),
            ApiError::Detailed(_, details) => Cow::Borrowed(&details.error),
            ApiError::Said(_, body) => Cow::Borrowed(body["error"].as_str().unwrap_or_default()),
            ApiError::Stored(_, why) => why.text(),
            ApiError::Unreachable(why, _) => Cow::Borrowed(why.text()),
        }
    }

    /// Creates an error that has already been reported.
    pub fn reported(error: Error) -> ApiError {
        match ApiError::from(error) {
            ApiError::Ours(status, text, _) => ApiError::Ours(status, text, None),
            other => other,
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        match error {
            Error::Overloaded => ApiError::unavailable("too many requests wait for the store"),
            Error::Closed => ApiError::unavailable("the server is shutting down"),
            Error::Full { .. } => ApiError::Ours(
                StatusCode::INSUFFICIENT_STORAGE,
                "the disk is almost full: nothing new is stored until there is room",
                None,
            ),
            Error::Locked => ApiError::Refused(StatusCode::CONFLICT, LOCKED),
            Error::OverQuota(_) => ApiError::detailed(StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
            Error::TooManyPaused(_) => {
                ApiError::Refused(StatusCode::CONFLICT, "too many queues of this namespace are paused")
            }
            Error::SeveralPartitions => ApiError::bad(
                "on_conflict=fail: the keys are in several partitions of this queue, which is spread: publish these jobs one by one",
            ),
            Error::Unreachable(why) | Error::Unseen(why, _) => ApiError::Unreachable(why, None),
            Error::Poisoned(_) => ApiError::Ours(
                StatusCode::SERVICE_UNAVAILABLE,
                "the store of this pool has failed",
                Some(error),
            ),
            Error::Away(_) | Error::Refused(_) | Error::Corrupt(_) => {
                ApiError::Ours(StatusCode::INTERNAL_SERVER_ERROR, "internal error", Some(error))
            }
            Error::Partly { done, why } => match ApiError::from((*why).clone()) {
                ApiError::Ours(status, text, failure) => ApiError::Partly(done, status, text, failure),
                ApiError::Unreachable(why, _) => ApiError::Unreachable(why, Some(done)),
                other => other,
            },
        }
    }
}

impl From<NoRoom> for ApiError {
    fn from(NoRoom: NoRoom) -> ApiError {
        ApiError::unavailable("too many large bodies are in memory, please retry later")
    }
}

impl From<ConsumeError> for ApiError {
    fn from(error: ConsumeError) -> ApiError {
        match error {
            ConsumeError::TooMany(_) => {
                ApiError::unavailable("too many consumers are waiting, please retry later")
            }
            ConsumeError::TooManyInNamespace(_) => {
                ApiError::unavailable("too many consumers of this namespace are waiting, please retry later")
            }
            ConsumeError::Store(error) => error.into(),
        }
    }
}

impl From<PushError> for ApiError {
    fn from(error: PushError) -> ApiError {
        match error {
            PushError::Bad(text) => ApiError::detailed(StatusCode::BAD_REQUEST, text),
            PushError::NotFound => ApiError::Refused(StatusCode::NOT_FOUND, "the queue is not pushed"),
            PushError::Store(error) => error.into(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            ApiError::Refused(status, text) => reply::error(status, text),
            ApiError::Ours(status, text, failure) => {
                let fault = OwnFault { error: text.into(), ..OwnFault::default() };
                with_failure(fault.response(status), failure)
            }
            ApiError::Partly(done, status, text, failure) => {
                let fault = OwnFault { error: text.into(), done: Some(done), ..OwnFault::default() };
                with_failure(fault.response(status), failure)
            }
            ApiError::Stored(stored, why) => match *why {
                ApiError::Ours(status, text, failure) => {
                    let fault = OwnFault { error: text.into(), stored: Some(stored), ..OwnFault::default() };
                    with_failure(fault.response(status), failure)
                }
                ApiError::Unreachable(why, _) => {
                    let error = why.text().into();
                    let fault = OwnFault { error, stored: Some(stored), ..OwnFault::default() };
                    reply::retry_after(fault.response(StatusCode::SERVICE_UNAVAILABLE), Duration::ZERO)
                }
                other => other.into_response(),
            },
            ApiError::Detailed(status, details) if status.is_server_error() => {
                let Details { error, index, job_id } = *details;
                OwnFault { error, index, job_id, ..OwnFault::default() }.response(status)
            }
            ApiError::Unreachable(why, done) => {
                let fault = OwnFault { error: why.text().into(), done, ..OwnFault::default() };
                reply::retry_after(fault.response(StatusCode::SERVICE_UNAVAILABLE), Duration::ZERO)
            }
            ApiError::Detailed(status, details) => reply::json(status, &details),
            ApiError::Said(status, body) => reply::json(status, &body),
            ApiError::Busy(text) => {
                reply::retry_after(reply::error(StatusCode::CONFLICT, text), Duration::ZERO)
            }
            ApiError::Limited(text, wait) => {
                reply::retry_after(reply::message(StatusCode::TOO_MANY_REQUESTS, &text), wait)
            }
        }
    }
}

fn with_failure(mut response: Response, failure: Option<Error>) -> Response {
    if let Some(error) = failure {
        response.extensions_mut().insert(StoreFailure(error));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a reply that hides that some steps were done.
    #[tokio::test]
    async fn what_was_done_before_an_error_is_told() {
        let away = || Error::away("gone");
        for (error, status, text) in [
            (Error::Overloaded, 503, r#"{"error":"too many requests wait for the store"}"#),
            (Error::Overloaded.after(0), 503, r#"{"error":"too many requests wait for the store"}"#),
            (Error::Closed.after(7).after(250), 503, r#"{"error":"the server is shutting down","done":257}"#),
            (
                Error::Poisoned("x".into()).after(1),
                503,
                r#"{"error":"the store of this pool has failed","done":1}"#,
            ),
            (away().after(2), 500, r#"{"error":"internal error","done":2}"#),
            (
                Error::Unreachable(Unreachable::Split),
                503,
                r#"{"error":"this part of the pool is on two nodes"}"#,
            ),
            (
                Error::Unreachable(Unreachable::Away).after(3),
                503,
                r#"{"error":"this part of the pool cannot be reached","done":3}"#,
            ),
        ] {
            let what = error.to_string();
            let response = ApiError::from(error).into_response();
            let reported = response.extensions().get::<StoreFailure>().is_some();
            assert_eq!(
                reported,
                what.contains("gone") || what.contains("failed"),
                "{what}: is the store to blame?"
            );
            assert_eq!(response.status(), status, "{what}");
            let body = axum::body::to_bytes(response.into_body(), 1000).await.expect("a short body");
            assert_eq!(String::from_utf8_lossy(&body), text, "{what}");
        }
    }
}
