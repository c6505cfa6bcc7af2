//! Preview of a cron expression or an interval. Stores nothing.

use axum::extract::RawQuery;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;

use super::show;
use crate::clock::system_now;
use crate::http::answer::error::HandlerResult;
use crate::http::answer::reply;
use crate::http::request::extract::AuthorizedNamespace;
use crate::http::request::params::Query;
use crate::schedule::{Mode, Preview};

/// `GET /api/:namespace/_schedules/_preview?cron&every&zone&start&end&from&n`
pub async fn preview(auth: AuthorizedNamespace, RawQuery(query): RawQuery) -> HandlerResult {
    #[derive(Serialize)]
    struct Shown<'a> {
        mode: Mode,
        zones: &'a str,
        next: Vec<Value>,
    }
    let query = Query(query.as_deref().unwrap_or_default());
    let zones = &auth.pool.scheduler.zones;
    let preview = Preview::parse(|field| query.get(field), zones, system_now())?;
    let next = preview.next().map(|next| show::instant(&preview.when, next.due)).collect();
    Ok(reply::json(StatusCode::OK, &Shown { mode: preview.when.mode(), zones: zones.version(), next }))
}
