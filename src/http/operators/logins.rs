//! Basic auth, for the guarded half of the admin port.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

use super::audit::{self, Account};
use crate::http::answer::reply;
use crate::http::request::extract::Labels;
use crate::http::request::peer::Client;
use crate::http::state::{App, AppState};

/// Refuses a request without a valid account, if accounts are configured. An address that has failed too often
/// waits.
pub async fn basic_auth(State(state): App, mut request: Request, next: Next) -> Response {
    if state.accounts.is_empty() {
        return next.run(request).await;
    }
    if let Some(given) = request.headers().get(header::AUTHORIZATION) {
        let address = request.extensions().get::<Client>().map(|client| client.0);
        // Without an address there is no connection, and so no request.
        let address = address.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
        let allowed = state.failed_logins.begin(address);
        if allowed.is_ok()
            && let Some(account) = account(&state, given)
        {
            state.failed_logins.succeeded(address);
            if let Some(labels) = request.extensions().get::<std::sync::Arc<Labels>>() {
                labels.asked_by(|| account.0.clone());
            }
            request.extensions_mut().insert(account);
            return next.run(request).await;
        }
        if let Some(failed) = state.failed_logins.failed(address) {
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

/// The account whose user and password these are.
fn account(state: &AppState, given: &HeaderValue) -> Option<Account> {
    let (scheme, given) = given.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let given = STANDARD.decode(given.trim()).ok()?;
    // Every account is compared, in constant time, so that the time taken does not show how close a guess was.
    state.accounts.iter().fold(None, |found, (user, password)| {
        let account = format!("{user}:{}", password.reveal());
        let same = bool::from(account.as_bytes().ct_eq(&given));
        if same { Some(Account(user.clone())) } else { found }
    })
}
