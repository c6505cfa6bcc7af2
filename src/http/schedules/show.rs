//! A schedule as JSON, the same in every reply.

use axum::http::header::ETAG;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::clock::Millis;
use crate::http::answer::reply;
use crate::schedule::{Became, Entry, When};
use crate::scheduler::{FoundSchedule, Schedule, ScheduleState, Scheduler};
use crate::time::Instant;

/// Which fields of a schedule to show.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub body: bool,
    /// Include attributes.
    pub inside: bool,
    /// Number of upcoming occurrences.
    pub next: usize,
    pub past: Past,
}

/// Which past occurrences to show.
#[derive(Clone, Copy, Debug)]
pub enum Past {
    None,
    Last,
    All,
}

impl Shown {
    /// For GET.
    pub const WHOLE: Shown = Shown { body: true, inside: true, next: 5, past: Past::All };
    /// For PUT.
    pub const SET: Shown = Shown { past: Past::None, ..Shown::WHOLE };
}

/// Shows a schedule at `now`; of one that cannot be read, the fields that can.
pub fn found(scheduler: &Scheduler, of: &FoundSchedule, now: Millis, shown: Shown) -> Map<String, Value> {
    let (stored, why) = match of {
        FoundSchedule::Whole(of) => return schedule(scheduler, of, now, shown),
        FoundSchedule::Unreadable { stored, why } => (stored, why),
    };
    let all = json!({
        "name": stored.id.name.as_str(),
        "queue": stored.setting.queue.as_str(),
        "state": ScheduleState::Broken.as_str(),
        "revision": stored.version.revision,
        "why": why.to_string(),
    });
    if let Value::Object(all) = all { all } else { Map::new() }
}

/// Shows a schedule at `now`.
pub fn schedule(scheduler: &Scheduler, of: &Schedule, now: Millis, shown: Shown) -> Map<String, Value> {
    let (progress, history) = (&of.state.progress, &of.state.history);
    let when = of.when(&scheduler.zones);
    let state = of.state_at(when.as_ref(), now);
    let is_paused = progress.is_paused(now);
    let mut all = of.setting.to_json(shown.body && shown.inside);
    if !shown.inside {
        all.insert("attributes".to_owned(), Value::Null);
    }
    let mut put = |name: &str, value: Value| drop(all.insert(name.to_owned(), value));
    put("name", json!(of.id.name.as_str()));
    put("state", json!(state.as_str()));
    put("revision", json!(of.version.revision));
    put("created_at", json!(Instant(of.created_at)));
    put("changed_at", json!(Instant(of.changed_at)));
    put("mode", json!(of.setting.mode()));
    if let Some(anchor) = of.setting.anchor(progress.every_set_at) {
        put("anchor", json!(Instant(anchor)));
    }
    put("zones", json!(scheduler.zones.version()));
    put("paused", json!(is_paused));
    let until = progress.paused.filter(|_| is_paused).and_then(|paused| paused.until);
    put("paused_until", json!(until.map(Instant)));
    let to_come = |when: &When| -> Vec<Value> {
        let all = when.from(progress.awake(now).cursor).take(shown.next);
        all.map(|next| instant(when, next.due)).collect()
    };
    put("next", json!(when.as_ref().filter(|_| !is_paused).map(to_come).unwrap_or_default()));
    put("counts", json!(history.counts));
    match shown.past {
        Past::None => {}
        Past::Last => put("last", json!(history.entries.front().map(occurrence))),
        Past::All => put("occurrences", json!(history.entries.iter().map(occurrence).collect::<Vec<_>>())),
    }
    all
}

/// Shows an instant, with the local time in the schedule's zone.
pub fn instant(when: &When, due: Millis) -> Value {
    json!({ "due": Instant(due), "local": when.local(due) })
}

fn occurrence(entry: &Entry) -> Value {
    let Entry { due, last_due, at, outcome, job_id, why, count } = entry;
    let is_placed = matches!(outcome, Became::Placed | Became::CaughtUp | Became::Run);
    let mut shown = json!({
        "due": Instant(*due),
        "placed_at": is_placed.then_some(Instant(*at)),
        "job_id": job_id,
        "outcome": outcome,
        "why": why,
    });
    if *outcome == Became::Missed {
        shown["last_due"] = json!(Instant(last_due.unwrap_or(*due)));
        shown["count"] = json!(count);
    }
    shown
}

/// Creates a reply with a schedule's revision as `ETag`.
pub fn tagged(status: StatusCode, revision: u64, shown: &Map<String, Value>) -> Response {
    let mut response = reply::json(status, shown);
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}
