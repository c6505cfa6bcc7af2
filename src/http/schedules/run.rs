//! Runs a schedule once on request, in addition to its occurrences.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::query::named;
use crate::admin::Direction;
use crate::http::answer::error::{ApiError, Details, HandlerResult};
use crate::http::answer::reply;
use crate::http::jobs::admission::admitted;
use crate::http::request::extract::AuthorizedSchedule;
use crate::http::request::params::Query;
use crate::http::state::App;
use crate::job::JobId;
use crate::schedule::{self, Refusal};
use crate::scheduler::{Ran, Runs};
use crate::time::Instant;

/// `POST /api/:namespace/_schedules/:name/run?at`
pub async fn run(State(state): App, auth: AuthorizedSchedule, request: Request) -> HandlerResult {
    #[derive(Serialize)]
    struct Placed {
        msg: &'static str,
        job_id: JobId,
        due_at: Option<Instant>,
    }
    let counted = admitted(&state, &auth.key, auth.record, Direction::Write).await?;
    let (head, _) = request.into_parts();
    let query = Query(head.uri.query().unwrap_or_default());
    let at = query.get("at").map(|text| schedule::instant("at", &text)).transpose()?;
    let scheduler = &auth.pool.scheduler;
    let (of, now) = scheduler.get(&auth.id).await?;
    if at.is_some_and(|at| at > now) {
        let given = schedule::quoted(&query.get("at").unwrap_or_default());
        let error = format!("{given} is in the future: write a past instant, or leave it out");
        return Err(Refusal::of("at", error).into());
    }
    let repeatable = state.bounds.under_way.begin(&auth.pool.name, &of.queue(), &head);
    let repeatable = repeatable.map_err(named("Idempotency-Key"))?;
    let once = repeatable.as_ref().map(|repeatable| repeatable.once(&[]));
    match scheduler.run(&auth.id, Runs { ids: &auth.pool.ids, at, once }).await? {
        Ran::Placed { id, due_at, replayed } => {
            let placed = Placed { msg: "placed", job_id: id, due_at: due_at.map(Instant) };
            let mut response = reply::json(StatusCode::CREATED, &placed);
            if replayed {
                response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
            }
            counted.commit();
            Ok(response)
        }
        Ran::Lives(id) => {
            let error = "a job of the schedule still exists".into();
            let details = Details { error, index: None, job_id: Some(id) };
            Err(ApiError::Detailed(StatusCode::CONFLICT, Box::new(details)))
        }
        Ran::Mismatch => Err(ApiError::OTHER_REQUEST),
    }
}
