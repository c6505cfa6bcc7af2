//! Counts consumes and publishes against the limits of their tokens.

use crate::admin::limits::{Admission, Pass};
use crate::admin::{Direction, TokenKey, TokenRecord};
use crate::http::answer::error::ApiError;
use crate::http::state::AppState;
use crate::process::tasks::Tasks;

/// Counts the request against its token's limit, and returns 429 beyond it. `record` is the token's record, if the
/// token was checked.
pub async fn admitted(
    state: &AppState,
    key: &TokenKey,
    record: Option<TokenRecord>,
    direction: Direction,
) -> Result<CountedRequest, ApiError> {
    let admission = match record {
        Some(record) => state.access.throttle.admit_within(record.limit, key, direction).await,
        None => state.access.throttle.admit(key, direction).await,
    };
    let wait = match admission.map_err(ApiError::reported)? {
        Admission::Admitted(pass) if pass.counts() => {
            return Ok(CountedRequest(Some((pass, state.server.tasks.clone()))));
        }
        Admission::Admitted(_) => return Ok(CountedRequest(None)),
        Admission::OverLimit(wait) => wait,
    };
    let action = match direction {
        Direction::Read => "consume",
        Direction::Write => "produce",
    };
    state.traffic.metrics.limited(&key.scope.pool, &key.scope.namespace, &key.token, action);
    let token = key.token.reveal();
    let text = format!("token({token}) {action} reach the limit rate, please retry later");
    Err(ApiError::Limited(text, wait))
}

/// A request that may count against its token's limit. If dropped without [`commit`](CountedRequest::commit), it is
/// taken out of the count again: it did not end in 200 or 201, or its client disconnected.
pub struct CountedRequest(Option<(Pass, Tasks)>);

impl CountedRequest {
    /// Keeps the request counted.
    pub fn commit(mut self) {
        self.0 = None;
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        let Some((pass, tasks)) = self.0.take() else { return };
        tasks.spawn(async move {
            if let Err(error) = pass.give_back().await {
                tracing::debug!(%error, "a failed request could not be removed from its token's rate limit");
            }
        });
    }
}
