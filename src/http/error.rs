//! What a request can be refused with. The only table from our errors to statuses; what is our own fault is
//! logged here, once.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::reply;
use crate::dispatch::ConsumeError;
use crate::error::Error;

/// An answer that is not what was asked for.
#[derive(Debug)]
pub enum ApiError {
    /// The caller's fault: `{"error": ..}`.
    Refused(StatusCode, &'static str),
    /// Over the token's limit: `{"msg": ..}`.
    Limited(String),
    /// The store's fault. Already logged.
    Store(StatusCode, &'static str),
}

impl ApiError {
    /// 400.
    pub const fn bad(text: &'static str) -> ApiError {
        ApiError::Refused(StatusCode::BAD_REQUEST, text)
    }

    /// 413.
    pub const fn too_large(text: &'static str) -> ApiError {
        ApiError::Refused(StatusCode::PAYLOAD_TOO_LARGE, text)
    }
}

fn store(error: &Error) -> ApiError {
    match error {
        Error::Overloaded => {
            ApiError::Store(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait for the store")
        }
        Error::Closed => ApiError::Store(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down"),
        Error::Away(_) | Error::Refused(_) | Error::Corrupt(_) | Error::Poisoned(_) => {
            tracing::error!(%error, "a request failed");
            ApiError::Store(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        store(&error)
    }
}

impl From<ConsumeError> for ApiError {
    fn from(error: ConsumeError) -> ApiError {
        match error {
            ConsumeError::Crowded(_) => ApiError::Store(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many consumers are waiting, please retry later",
            ),
            ConsumeError::Store(error) => store(&error),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            ApiError::Refused(status, text) | ApiError::Store(status, text) => reply::error(status, text),
            ApiError::Limited(text) => reply::message(StatusCode::TOO_MANY_REQUESTS, &text),
        }
    }
}
