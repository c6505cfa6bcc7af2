//! Authorization on the admin port, in one place. Checked before every route that requires an account. Routes not
//! listed here are for operators only.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;

use crate::config::ShowBodies;

/// Role of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// May do everything.
    Operator,
    /// May read everything that shows no token.
    Viewer,
}

/// Routes that viewers may GET. Tokens, limits and backups are not listed: they show tokens.
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

/// A reader's own choice, which changes nothing but their view.
const ZONE: &str = "/ui/zone";
/// Prefix of pages that use routes which show tokens.
const TOKENS: &str = "/ui/tokens/";
/// Prefix of pages. Their GET changes nothing, and shows no token.
const PAGES: &str = "/ui";

impl Role {
    /// Whether the role may send `method` to the route with this pattern.
    pub fn may(self, method: &Method, pattern: &str) -> bool {
        let is_viewed = || {
            VIEWED.contains(&pattern)
                || pattern == PAGES
                || pattern.starts_with("/ui/") && !pattern.starts_with(TOKENS)
        };
        self == Role::Operator || pattern == ZONE || method == Method::GET && is_viewed()
    }

    /// Whether the role sees bodies, attributes, and responses of endpoints.
    pub fn sees_bodies(self, show: ShowBodies) -> bool {
        match show {
            ShowBodies::All => true,
            ShowBodies::Operators => self == Role::Operator,
            ShowBodies::None => false,
        }
    }
}

/// The role of the request. Basic authentication has set it; a missing role means viewer.
impl<S: Sync> FromRequestParts<S> for Role {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Role, Infallible> {
        Ok(parts.extensions.get::<Role>().copied().unwrap_or(Role::Viewer))
    }
}
