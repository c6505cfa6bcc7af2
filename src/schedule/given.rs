//! Parses a setting as written by users and as stored. Every error names the field, quotes its value and says what is
//! valid. Knows no store.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::cron::Cron;
use super::fields::{Fields, every, number, ordered, wrong_every, zone};
use super::refusal::{Refusal, Result, quoted, shown};
use super::setting::{
    Body, CAUGHT_UP, CatchUp, JobDefaults, MAX_BODY, Overlap, Rule, SCHEDULE, SCHEDULED_AT, Setting,
};
use super::zones::Zones;
use crate::clock::Millis;
use crate::job::{Attributes, is_attribute_name, is_attribute_value};
use crate::name::{JobKey, QueueName, ScheduleName};
use crate::time;

/// A job has up to 16 attributes, and the server sets three.
const MAX_ATTRIBUTES: usize = 13;
const MAX_ATTRIBUTE_NAME: usize = 32;
const MAX_ATTRIBUTE_VALUE: usize = 128;
const DAY: Millis = 86_400_000;
const HOUR: Millis = 3_600_000;
const DEADLINE: Millis = 60_000;

/// Contents of a PUT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub setting: Setting,
    /// `None`: unchanged, initially not paused.
    pub paused: Option<bool>,
    /// Condition: the revision that must be current.
    pub revision: Option<u64>,
}

impl Given {
    /// Parses the schedule `name` as written by a user.
    pub fn parse(name: &ScheduleName, given: &Value, zones: &Zones, defaults: &JobDefaults) -> Result<Given> {
        let fields = Fields::new(given)?;
        let setting = Setting::read(name, &fields, defaults)?;
        zone(&setting.zone, zones)?;
        carried_by_headers(&setting.attributes)?;
        let paused = fields
            .get("paused")
            .map(|value| value.as_bool().ok_or_else(|| fields.wrong("paused", value, "write true or false")));
        let revision = fields.get("revision").map(|value| {
            value.as_u64().ok_or_else(|| fields.wrong("revision", value, "write the number from a response"))
        });
        Ok(Given { setting, paused: paused.transpose()?, revision: revision.transpose()? })
    }
}

impl Setting {
    /// Parses the result of [`to_json`](Setting::to_json). The zone may no longer exist.
    pub fn stored(name: &ScheduleName, stored: &Value) -> Result<Setting> {
        let defaults = JobDefaults { tries: NonZeroU16::MIN, ttl: None };
        Setting::read(name, &Fields::new(stored)?, &defaults)
    }

    fn read(name: &ScheduleName, fields: &Fields<'_>, defaults: &JobDefaults) -> Result<Setting> {
        let (start, end) = (fields.instant("start")?, fields.instant("end")?);
        ordered(start, end)?;
        let overlap = fields.word(
            "overlap",
            [("allow", Overlap::Allow), ("skip", Overlap::Skip), ("replace", Overlap::Replace)],
        )?;
        Ok(Setting {
            queue: queue(fields)?,
            rule: rule(fields)?,
            zone: fields.text("zone")?.unwrap_or("UTC").to_owned(),
            start,
            end,
            body: body(fields)?,
            attributes: attributes(fields)?,
            tries: tries(fields)?.unwrap_or(defaults.tries),
            ttl: ttl(fields)?.unwrap_or(defaults.ttl),
            key: key(fields, name, overlap)?,
            overlap,
            deadline: fields.seconds("deadline", 1000..=DAY)?.unwrap_or(DEADLINE),
            catch_up: fields.word(
                "catch_up",
                [("last", CatchUp::Last), ("none", CatchUp::None), ("all", CatchUp::All)],
            )?,
            jitter: fields.seconds("jitter", 0..=HOUR)?.unwrap_or(0),
        })
    }
}

fn queue(fields: &Fields<'_>) -> Result<QueueName> {
    let Some(given) = fields.text("queue")? else {
        return Err(Refusal::of("queue", "queue is missing: write the queue where the jobs go"));
    };
    let instead = "write 1 to 255 of letters, digits, - and _, not _ first";
    QueueName::parse(given)
        .map_err(|_| Refusal::of("queue", format!("{} is not a valid queue: {instead}", quoted(given))))
}

fn rule(fields: &Fields<'_>) -> Result<Rule> {
    let cron = |text: &&str| Ok(Cron::parse(text)?);
    let of_number = |value: &&Value| {
        let text = number(value).ok_or_else(|| wrong_every(&shown(value)))?;
        every(&text).map_err(|_| wrong_every(&text))
    };
    one_rule(fields.text("cron")?.as_ref(), fields.get("every").as_ref(), cron, of_number)
}

/// Requires either an expression or an interval, parsed by `cron` and `every`.
pub fn one_rule<C, E>(
    given_cron: Option<&C>,
    given_every: Option<&E>,
    cron: impl Fn(&C) -> Result<Cron>,
    every: impl Fn(&E) -> Result<Millis>,
) -> Result<Rule> {
    match (given_cron, given_every) {
        (Some(text), None) => Ok(Rule::Cron(Arc::new(cron(text)?))),
        (None, Some(value)) => Ok(Rule::Every(every(value)?)),
        (Some(_), Some(_)) => Err(Refusal::of("every", "both cron and every are given: leave one out")),
        (None, None) => {
            let error =
                "cron and every are missing: write one, such as \"30 2 * * *\" for cron or 300 for every";
            Err(Refusal::of("cron", error))
        }
    }
}

fn body(fields: &Fields<'_>) -> Result<Body> {
    let bounded = |field, len: usize| {
        let error = || {
            format!("{field} is {len} bytes long: at most {MAX_BODY}; keep the rest elsewhere and name it")
        };
        if len > MAX_BODY { Err(Refusal::of(field, error())) } else { Ok(()) }
    };
    match (fields.text("text")?, fields.text("data")?) {
        (Some(_), Some(_)) => Err(Refusal::of("data", "both text and data are given: leave one out")),
        (None, Some(data)) => {
            let decoded = STANDARD.decode(data);
            let error =
                || format!("{} is not base64: write it with its padding, or write text", quoted(data));
            let decoded = decoded.map_err(|_| Refusal::of("data", error()))?;
            bounded("data", decoded.len())?;
            Ok(Body::Data(decoded.into()))
        }
        (text, None) => {
            let text = text.unwrap_or_default();
            bounded("text", text.len())?;
            Ok(Body::Text(text.to_owned()))
        }
    }
}

/// Rejects attributes that no header can carry, since push sends them as headers. Stored schedules keep theirs.
fn carried_by_headers(attributes: &Attributes) -> Result<()> {
    for (name, value) in attributes {
        let name_shown = quoted(name);
        let wrong = if !is_attribute_name(name) {
            format!("{name_shown} is not a valid attribute name: write letters, digits and !#$%&'*+-.^_`|~")
        } else if !is_attribute_value(value) {
            format!("the value of {name_shown} has control characters: leave them out")
        } else {
            continue;
        };
        return Err(Refusal::of("attributes", wrong));
    }
    Ok(())
}

fn attributes(fields: &Fields<'_>) -> Result<Attributes> {
    let refuse = |error: String| Err(Refusal::of("attributes", error));
    let given = match fields.get("attributes") {
        None => return Ok(Attributes::new()),
        Some(Value::Object(given)) => given,
        Some(other) => return Err(fields.wrong("attributes", other, "write an object of strings")),
    };
    if given.len() > MAX_ATTRIBUTES {
        return refuse(format!("{} attributes are too many: at most {MAX_ATTRIBUTES}", given.len()));
    }
    let mut attributes = Attributes::new();
    for (name, value) in given {
        let (lower, shown_name) = (name.to_lowercase(), quoted(name));
        if [SCHEDULE, SCHEDULED_AT, CAUGHT_UP].contains(&lower.as_str()) {
            return refuse(format!("the server sets {shown_name} itself: leave it out"));
        }
        if !(1..=MAX_ATTRIBUTE_NAME).contains(&lower.len()) {
            return refuse(format!(
                "{shown_name} is not a valid attribute name: write 1 to {MAX_ATTRIBUTE_NAME} bytes"
            ));
        }
        let Some(text) = value.as_str().filter(|text| (1..=MAX_ATTRIBUTE_VALUE).contains(&text.len())) else {
            let value = shown(value);
            return refuse(format!(
                "{value} is not a valid value of {shown_name}: write a string of 1 to {MAX_ATTRIBUTE_VALUE} bytes"
            ));
        };
        if attributes.insert(lower, text.to_owned()).is_some() {
            return refuse(format!("{shown_name} is given twice, in another case: leave one out"));
        }
    }
    Ok(attributes)
}

fn tries(fields: &Fields<'_>) -> Result<Option<NonZeroU16>> {
    let Some(value) = fields.get("tries") else { return Ok(None) };
    let tries = value.as_u64().and_then(|tries| u16::try_from(tries).ok()).and_then(NonZeroU16::new);
    tries.map(Some).ok_or_else(|| fields.wrong("tries", value, "write a whole number from 1 to 65535"))
}

/// Parses `ttl`; 0 is forever.
fn ttl(fields: &Fields<'_>) -> Result<Option<Option<Duration>>> {
    let longest = time::LONGEST.as_millis() as Millis;
    let ttl = fields.seconds("ttl", 0..=longest)?.map(Duration::from_millis);
    Ok(ttl.map(|ttl| Some(ttl).filter(|ttl| !ttl.is_zero())))
}

fn key(fields: &Fields<'_>, name: &ScheduleName, overlap: Overlap) -> Result<Option<JobKey>> {
    let given = fields.text("key")?;
    if overlap == Overlap::Allow {
        let error =
            |key| format!("a key {} needs \"overlap\": \"skip\" or \"replace\": write one", quoted(key));
        return given.map_or(Ok(None), |key| Err(Refusal::of("key", error(key))));
    }
    let own = format!("schedule:{name}");
    let key = given.unwrap_or(&own);
    let error =
        || format!("{} is not a valid key: write 1 to 255 printable characters without blanks", quoted(key));
    JobKey::parse(key).map(Some).ok_or_else(|| Refusal::of("key", error()))
}
