//! What a request can be refused with. The only table from our errors to statuses. What is our own fault
//! travels with the answer to where it is reported, once.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::reply;
use crate::dispatch::ConsumeError;
use crate::error::Error;

/// Travels with an answer that a store's failure caused, to where it is reported.
#[derive(Clone, Debug)]
pub struct StoreFailure(pub Error);

/// An answer that is not what was asked for.
#[derive(Debug)]
pub enum ApiError {
    /// The caller's fault: `{"error": ..}`.
    Refused(StatusCode, &'static str),
    /// Over the token's limit: `{"msg": ..}`.
    Limited(String),
    /// Our own fault, and what it was where nobody has reported it yet.
    Ours(StatusCode, &'static str, Option<Error>),
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

    /// A failure that was reported where it happened.
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
            Error::Overloaded => {
                ApiError::Ours(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait for the store", None)
            }
            Error::Closed => {
                ApiError::Ours(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down", None)
            }
            Error::Away(_) | Error::Refused(_) | Error::Corrupt(_) | Error::Poisoned(_) => {
                ApiError::Ours(StatusCode::INTERNAL_SERVER_ERROR, "internal error", Some(error))
            }
        }
    }
}

impl From<ConsumeError> for ApiError {
    fn from(error: ConsumeError) -> ApiError {
        match error {
            ConsumeError::Crowded(_) => ApiError::Ours(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many consumers are waiting, please retry later",
                None,
            ),
            ConsumeError::Store(error) => error.into(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            ApiError::Refused(status, text) => reply::error(status, text),
            ApiError::Ours(status, text, failure) => {
                let mut response = reply::error(status, text);
                if let Some(error) = failure {
                    response.extensions_mut().insert(StoreFailure(error));
                }
                response
            }
            ApiError::Limited(text) => reply::message(StatusCode::TOO_MANY_REQUESTS, &text),
        }
    }
}
