//! Replaces all schedules of a namespace, or of a prefix: checks all, then changes each in one step.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::one::{job_defaults, not_json};
use super::query;
use crate::admin::Direction;
use crate::engine::together;
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::jobs::admission::admitted;
use crate::http::request::batch::reading;
use crate::http::request::body::read_body;
use crate::http::request::bounded::Elements;
use crate::http::request::extract::AuthorizedSet;
use crate::http::request::params::Query;
use crate::http::state::App;
use crate::name::{Namespace, ScheduleName};
use crate::schedule::{Given, JobDefaults, MAX_SETTING, Refusal, Zones, quoted, shorten};
use crate::scheduler::{Changed, Condition, NotChanged, Run, ScheduleId, Scheduler};

/// Maximum size of a set.
const MAX_SET: usize = 16 << 20;
const MOST: usize = 10_000;
/// Maximum concurrent changes.
const AT_A_TIME: usize = 64;
const TOO_LARGE: &str = "the set is too large";

#[derive(Debug, Default, Serialize)]
struct Done {
    created: Vec<ScheduleName>,
    changed: Vec<ScheduleName>,
    unchanged: Vec<ScheduleName>,
    removed: Vec<ScheduleName>,
    dry_run: bool,
}

/// `PUT /api/:namespace/_schedules?prune&prefix&dry_run`
pub async fn set(State(state): App, auth: AuthorizedSet, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, auth.record, Direction::Write).await?;
    let (head, body) = request.into_parts();
    let query = Query(head.uri.query().unwrap_or_default());
    let (dry, prune) = (query::flag(query, "dry_run")?, query::flag(query, "prune")?);
    let prefix = query.get("prefix").unwrap_or_default().into_owned();
    let mut room = state.bounds.body_room.for_request(&auth.namespace);
    let body = read_body(body, MAX_SET, TOO_LARGE, Some(&mut room)).await?;
    let scheduler = &auth.pool.scheduler;
    let (zones, defaults, of) = (scheduler.zones.clone(), job_defaults(&state.defaults), prefix.clone());
    let all = reading(body.len(), move || read_set(&body, &of, &zones, &defaults)).await?;

    // Checks all conditions, and the space for new schedules, before any change.
    let there = scheduler.names(&auth.namespace).await?;
    let in_prefix = |name: &ScheduleName| name.as_str().starts_with(&prefix);
    let named: BTreeSet<&ScheduleName> = all.iter().map(|(name, _)| name).collect();
    check_revisions(&all, &there)?;
    let goes: Vec<&ScheduleName> =
        there.keys().filter(|name| prune && in_prefix(name) && !named.contains(name)).collect();
    let new = all.iter().filter(|(name, _)| !there.contains_key(name)).count();
    if new > 0 && scheduler.bounds.of_namespace == 0 {
        return Err(NotChanged::Forbidden.into());
    }
    let room = scheduler.bounds.of_namespace.saturating_sub(there.len() as u64).min(scheduler.room().await?);
    if new as u64 > room + goes.len() as u64 {
        return Err(NotChanged::TooMany.into());
    }
    let mut done = Done { dry_run: dry, ..Done::default() };
    let of = (&**scheduler, &auth.namespace);
    // Removed schedules make space for new ones.
    let removed_first = new as u64 > room;
    if removed_first {
        done.removed = remove(of, &goes, dry).await?;
    }
    for (n, some) in all.chunks(AT_A_TIME).enumerate() {
        change(of, (n * AT_A_TIME, some), &mut done).await?;
    }
    if !removed_first {
        done.removed = remove(of, &goes, dry).await?;
    }
    if !dry {
        counted.commit();
    }
    Ok(reply::json(StatusCode::OK, &done))
}

/// Checks that each schedule with an expected revision has it.
fn check_revisions(
    all: &[(ScheduleName, Given)],
    there: &BTreeMap<ScheduleName, u64>,
) -> Result<(), ApiError> {
    for (index, (name, given)) in all.iter().enumerate() {
        let revision = there.get(name).copied();
        if given.revision.is_some() && given.revision != revision {
            return Err(at(index, name, NotChanged::Condition(revision)));
        }
    }
    Ok(())
}

/// Sets some of a namespace's schedules, and records the results in `done`. `from` is the index of the first in the
/// set.
async fn change(
    (scheduler, namespace): (&Scheduler, &Namespace),
    (from, some): (usize, &[(ScheduleName, Given)]),
    done: &mut Done,
) -> Result<(), ApiError> {
    let run = if done.dry_run { Run::Unasked } else { Run::Real };
    let changes = some.iter().map(async |(name, given)| {
        let condition = Condition { revision: given.revision, ..Condition::default() };
        let id = ScheduleId { namespace: namespace.clone(), name: name.clone() };
        scheduler.set(&id, given, &condition, run).await
    });
    for ((index, (name, _)), changed) in some.iter().enumerate().zip(together::all(changes).await) {
        let (what, ..) = changed.map_err(|why| at(from + index, name, why))?;
        let names = match what {
            Changed::Created => &mut done.created,
            Changed::Changed => &mut done.changed,
            Changed::Unchanged => &mut done.unchanged,
        };
        names.push(name.clone());
    }
    Ok(())
}

/// Deletes schedules of a namespace, ignoring missing ones. Returns the deleted names.
async fn remove(
    (scheduler, namespace): (&Scheduler, &Namespace),
    goes: &[&ScheduleName],
    dry: bool,
) -> Result<Vec<ScheduleName>, ApiError> {
    let mut removed = Vec::new();
    for name in goes {
        let id = ScheduleId { namespace: namespace.clone(), name: (*name).clone() };
        match if dry { Ok(()) } else { scheduler.delete(&id, &Condition::default()).await } {
            Ok(()) | Err(NotChanged::NotFound) => removed.push(id.name),
            Err(why) => return Err(why.into()),
        }
    }
    Ok(removed)
}

/// A set as received.
#[derive(Debug, Default)]
struct Set<'a> {
    schedules: Option<&'a RawValue>,
    /// The first unknown field.
    unknown: Option<String>,
}

impl<'de> Deserialize<'de> for Set<'de> {
    fn deserialize<D: Deserializer<'de>>(set: D) -> Result<Set<'de>, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Set<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Set<'de>, A::Error> {
                let mut set = Set::default();
                while let Some(field) = fields.next_key::<String>()? {
                    if field == "schedules" {
                        set.schedules = Some(fields.next_value()?);
                        continue;
                    }
                    fields.next_value::<IgnoredAny>()?;
                    // A list's reply may be sent back as a set.
                    if field != "cursor" {
                        set.unknown.get_or_insert(field);
                    }
                }
                Ok(set)
            }
        }
        set.deserialize_map(Read)
    }
}

/// Parses and checks the schedules of a set.
fn read_set(
    body: &[u8],
    prefix: &str,
    zones: &Arc<Zones>,
    defaults: &JobDefaults,
) -> Result<Vec<(ScheduleName, Given)>, ApiError> {
    let Set { schedules, unknown } = serde_json::from_slice(body).map_err(|error| not_json(&error))?;
    if let Some(field) = unknown {
        let error = format!("unknown field {}: a set has \"schedules\"", quoted(&field));
        return Err(Refusal::of(shorten(&field), error).into());
    }
    let list = schedules.and_then(|list| serde_json::from_str(list.get()).ok());
    let Some(Elements::<MOST> { first: schedules, more }) = list else {
        let error = "\"schedules\" should be a list: write \"schedules\": [..]";
        return Err(Refusal::of("schedules", error).into());
    };
    if more > 0 {
        let error = format!("{} schedules are too many for one set: {MOST} at most", MOST + more);
        return Err(Refusal::of("schedules", error).into());
    }
    let mut all = Vec::with_capacity(schedules.len());
    let mut names = HashSet::with_capacity(schedules.len());
    for (index, given) in schedules.into_iter().enumerate() {
        let refused = |name: Option<&str>, Refusal { error, field, part }: Refusal| {
            let body = json!({ "error": error, "index": index, "name": name, "field": field, "part": part });
            ApiError::said(StatusCode::BAD_REQUEST, &body)
        };
        let whole = |error: String| refused(None, Refusal { error, field: None, part: None });
        // One at a time: parsed JSON of many elements takes many times the memory of its text.
        let len = given.get().len();
        if len > MAX_SETTING {
            return Err(whole(format!("the schedule is {len} bytes of JSON: at most {MAX_SETTING}")));
        }
        let given: Value = serde_json::from_str(given.get())
            .map_err(|error| whole(format!("the schedule cannot be read: {error}")))?;
        let text = given.get("name").and_then(Value::as_str).map(str::to_owned);
        let name = text.as_deref().and_then(ScheduleName::parse).ok_or_else(|| {
            let of = text.as_deref().map_or_else(|| "the schedule has no name".to_owned(), Refusal::bad_name);
            refused(text.as_deref(), Refusal::of("name", of))
        })?;
        if !name.as_str().starts_with(prefix) {
            let error = format!("{:?} does not begin with the prefix {prefix:?}", name.as_str());
            return Err(refused(Some(name.as_str()), Refusal::of("name", error)));
        }
        if !names.insert(name.clone()) {
            let error = format!("{:?} is in the set twice", name.as_str());
            return Err(refused(Some(name.as_str()), Refusal::of("name", error)));
        }
        let given = Given::parse(&name, &given, zones, defaults)
            .map_err(|refusal| refused(Some(name.as_str()), refusal))?;
        all.push((name, given));
    }
    Ok(all)
}

/// Returns the error of one schedule of the set.
fn at(index: usize, name: &ScheduleName, why: NotChanged) -> ApiError {
    match why {
        NotChanged::Condition(revision) => ApiError::said(
            StatusCode::PRECONDITION_FAILED,
            &BTreeMap::from([
                ("error", json!("the schedule has changed")),
                ("index", json!(index)),
                ("name", json!(name.as_str())),
                ("revision", json!(revision)),
            ]),
        ),
        why => why.into(),
    }
}
