//! Basic authentication for the guarded routes of the admin port.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

use super::audit::{self, Account};
use super::roles::Role;
use crate::http::answer::error::ApiError;
use crate::http::answer::reply;
use crate::http::request::extract::Labels;
use crate::http::request::peer::ClientIp;
use crate::http::state::{App, AppState};

/// Rejects requests without a valid account, if accounts are configured. An address with too many failures must wait.
pub async fn basic_auth(State(state): App, mut request: Request, next: Next) -> Response {
    if state.accounts.operators.is_empty() {
        let_in(&state, &mut request, Role::Operator);
        return next.run(request).await;
    }
    if let Some(given) = request.headers().get(header::AUTHORIZATION) {
        let address = request.extensions().get::<ClientIp>().map(|client| client.0);
        // Without an address there is no connection, and so no request.
        let address = address.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
        let allowed = state.accounts.failed_logins.begin(address);
        if allowed.is_ok()
            && let Some((account, role)) = account(&state, given)
        {
            state.accounts.failed_logins.succeeded(address);
            let route = request.extensions().get::<MatchedPath>();
            if !route.is_some_and(|route| role.may(request.method(), route.as_str())) {
                return FORBIDDEN.into_response();
            }
            if let Some(labels) = request.extensions().get::<Arc<Labels>>() {
                labels.asked_by(|| account.0.clone());
            }
            request.extensions_mut().insert(account);
            let_in(&state, &mut request, role);
            return next.run(request).await;
        }
        if let Some(failed) = state.accounts.failed_logins.failed(address) {
            audit::logins_failed(address, failed);
        }
        if let Err(wait) = allowed {
            let text = "too many failed logins, please retry later";
            return reply::retry_after(reply::error(StatusCode::TOO_MANY_REQUESTS, text), wait);
        }
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    let ask = HeaderValue::from_static("Basic realm=\"Authorization Required\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
    response
}

/// Records the role, and whether bodies are shown, for handlers.
fn let_in(state: &AppState, request: &mut Request, role: Role) {
    if let Some(labels) = request.extensions().get::<Arc<Labels>>()
        && !role.sees_bodies(state.accounts.show_bodies)
    {
        labels.hide_bodies();
    }
    request.extensions_mut().insert(role);
}

const FORBIDDEN: ApiError =
    ApiError::Refused(StatusCode::FORBIDDEN, "this account is read-only, and may not see tokens");

/// Returns the account with these credentials, and its role.
fn account(state: &AppState, given: &HeaderValue) -> Option<(Account, Role)> {
    let (scheme, given) = given.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let given = STANDARD.decode(given.trim()).ok()?;
    // Every account is compared, in constant time, so that the time taken does not show how close a guess was.
    let operators = state.accounts.operators.iter().map(|account| (account, Role::Operator));
    let viewers = state.accounts.viewers.iter().map(|account| (account, Role::Viewer));
    operators.chain(viewers).fold(None, |found, ((user, password), role)| {
        let account = format!("{user}:{}", password.reveal());
        let same = bool::from(account.as_bytes().ct_eq(&given));
        if same { Some((Account(user.clone()), role)) } else { found }
    })
}
