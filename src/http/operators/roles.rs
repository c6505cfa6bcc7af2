//! Who may do what on the admin port: the one place that says it, asked before every route that asks for an account. What
//! is not named here only operators may.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;

use crate::config::ShowBodies;

/// What an account may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Operator,
    /// Look at what shows no token.
    Viewer,
}

/// What viewers may GET. Tokens, limits and backups are not here: they show tokens.
pub const VIEWED: &[&str] = &[
    "/api/{namespace}",
    "/api/{namespace}/_schedules",
    "/api/{namespace}/_schedules/_preview",
    "/api/{namespace}/_schedules/{name}",
    "/api/{namespace}/{queue}/deadletter",
    "/api/{namespace}/{queue}/job/{job_id}",
    "/api/{namespace}/{queue}/jobs",
    "/api/{namespace}/{queue}/key/{key}",
    "/api/{namespace}/{queue}/peek",
    "/api/{namespace}/{queue}/size",
    "/bulk",
    "/bulk/{id}",
    "/cluster",
    "/dead",
    "/dead/reasons",
    "/info/delays",
    "/push/{namespace}/{queue}",
    "/queues",
    "/queues/history",
    "/quota/{namespace}",
    "/server",
    "/servers",
];

/// Their readers' own choice, which changes nothing but what they see.
const ZONE: &str = "/ui/zone";
/// The pages that stand on routes which show tokens.
const TOKENS: &str = "/ui/tokens/";
/// The pages begin so. Their GET changes nothing, and shows no token.
const PAGES: &str = "/ui";

impl Role {
    /// Whether it may send such a request to the route with this pattern.
    pub fn may(self, method: &Method, pattern: &str) -> bool {
        let is_viewed = || {
            VIEWED.contains(&pattern)
                || pattern == PAGES
                || pattern.starts_with("/ui/") && !pattern.starts_with(TOKENS)
        };
        self == Role::Operator || pattern == ZONE || method == Method::GET && is_viewed()
    }

    /// Whether it sees bodies, attributes, and what endpoints answered.
    pub fn sees_bodies(self, show: ShowBodies) -> bool {
        match show {
            ShowBodies::All => true,
            ShowBodies::Operators => self == Role::Operator,
            ShowBodies::None => false,
        }
    }
}

/// Of the request. Nobody is let in without one; who comes otherwise may look.
impl<S: Sync> FromRequestParts<S> for Role {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Role, Infallible> {
        Ok(parts.extensions.get::<Role>().copied().unwrap_or(Role::Viewer))
    }
}
