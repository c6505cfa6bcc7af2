//! What is set of a schedule, as its owner writes it and as it is stored. Every mistake is named by its field, quotes
//! what was given and says what would do. Knows no store.

use std::fmt;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::cron::{Cron, CronError};
use super::when::{Mode, When};
use super::zones::{NoZone, Zones};
use crate::clock::Millis;
use crate::job::Attributes;
use crate::name::{JobKey, QueueName, ScheduleName};
use crate::time;

/// The largest body of a schedule's jobs, in bytes.
pub const MAX_BODY: usize = 64 << 10;
/// The largest setting, in bytes of JSON: the body in base64 or with escapes, and what is beside it.
pub const MAX_SETTING: usize = 6 * MAX_BODY + (64 << 10);
/// A job has up to 16 attributes, and three of them are ours.
const MAX_ATTRIBUTES: usize = 13;
const MAX_ATTRIBUTE_NAME: usize = 32;
const MAX_ATTRIBUTE_VALUE: usize = 128;
/// Attributes that the server sets.
pub const SCHEDULE: &str = "schedule";
pub const SCHEDULED_AT: &str = "scheduled-at";
pub const CAUGHT_UP: &str = "caught-up";

const YEAR: Millis = 31_536_000_000;
const DAY: Millis = 86_400_000;
const HOUR: Millis = 3_600_000;
const DEADLINE: Millis = 60_000;
const FIELDS: &str = "queue cron every zone start end text data attributes tries ttl overlap key deadline catch_up \
                      jitter paused";
/// What answers show beside the setting. It may stand in a PUT, so that an answer can be edited and put back.
const SHOWN: &str = "name state revision created_at changed_at mode anchor zones paused_until next counts occurrences \
                     last";

/// Why a setting or a parameter is refused: the JSON of a 400.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    pub error: String,
    /// `None` when it is no field's.
    pub field: Option<String>,
    /// The part of the expression.
    pub part: Option<&'static str>,
}

impl Refusal {
    pub fn of(field: &str, error: impl fmt::Display) -> Refusal {
        Refusal { error: error.to_string(), field: Some(field.to_owned()), part: None }
    }

    /// What is said of a name that is none.
    pub fn bad_name(name: &str) -> String {
        let (most, shown) = (ScheduleName::MOST, &name[..name.floor_char_boundary(ScheduleName::MOST + 1)]);
        format!(
            "{shown:?} is no name of a schedule: write 1 to {most} of -_.A-Za-z0-9, the first neither _ nor ."
        )
    }
}

impl From<CronError> for Refusal {
    fn from(CronError { part, error }: CronError) -> Refusal {
        Refusal { error, field: Some("cron".to_owned()), part: part.map(super::Part::as_str) }
    }
}

type Result<T> = std::result::Result<T, Refusal>;

/// When there are occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    Cron(Arc<Cron>),
    /// Milliseconds from each to the next.
    Every(Millis),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Text(String),
    Data(Bytes),
}

impl Body {
    pub fn bytes(&self) -> Bytes {
        match self {
            Body::Text(text) => Bytes::copy_from_slice(text.as_bytes()),
            Body::Data(data) => data.clone(),
        }
    }
}

/// What happens when the job of an earlier occurrence still lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    Allow,
    Skip,
    Replace,
}

/// What becomes of missed occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUp {
    None,
    Last,
    All,
}

/// The configured ones, for what is not given.
#[derive(Clone, Copy, Debug)]
pub struct JobDefaults {
    pub tries: NonZeroU16,
    /// `None` is forever.
    pub ttl: Option<Duration>,
}

/// A schedule's setting, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub queue: QueueName,
    pub rule: Rule,
    pub zone: String,
    pub start: Option<Millis>,
    pub end: Option<Millis>,
    pub body: Body,
    pub attributes: Attributes,
    pub tries: NonZeroU16,
    /// Counted from the placing; `None` is forever.
    pub ttl: Option<Duration>,
    pub overlap: Overlap,
    /// Of its jobs. `None` with [`Overlap::Allow`].
    pub key: Option<JobKey>,
    pub deadline: Millis,
    pub catch_up: CatchUp,
    pub jitter: Millis,
}

/// What a PUT says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub setting: Setting,
    /// `None`: as it was, and at first not.
    pub paused: Option<bool>,
    /// It is done only while this revision is in force.
    pub revision: Option<u64>,
}

impl Given {
    /// Reads what was written of the schedule `name`.
    pub fn parse(name: &ScheduleName, given: &Value, zones: &Zones, defaults: &JobDefaults) -> Result<Given> {
        let fields = Fields::new(given)?;
        let setting = Setting::read(name, &fields, defaults)?;
        zone(&setting.zone, zones)?;
        let paused = fields
            .get("paused")
            .map(|value| value.as_bool().ok_or_else(|| fields.wrong("paused", value, "write true or false")));
        let revision = fields.get("revision").map(|value| {
            value.as_u64().ok_or_else(|| fields.wrong("revision", value, "write the number of an answer"))
        });
        Ok(Given { setting, paused: paused.transpose()?, revision: revision.transpose()? })
    }
}

impl Setting {
    /// Reads what [`to_json`](Setting::to_json) wrote. Its zone may be in no database any more.
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

    /// All fields with defaults, but `paused`; with the body or without.
    pub fn to_json(&self, with_body: bool) -> Map<String, Value> {
        let (cron, every) = match &self.rule {
            Rule::Cron(cron) => (json!(cron.text()), Value::Null),
            Rule::Every(every) => (Value::Null, seconds(*every)),
        };
        let all = json!({
            "queue": self.queue.as_str(),
            "cron": cron,
            "every": every,
            "zone": self.zone,
            "start": self.start.map(time::Instant),
            "end": self.end.map(time::Instant),
            "attributes": self.attributes,
            "tries": self.tries,
            "ttl": seconds(self.ttl.map_or(0, |ttl| ttl.as_millis() as Millis)),
            "overlap": match self.overlap {
                Overlap::Allow => "allow",
                Overlap::Skip => "skip",
                Overlap::Replace => "replace",
            },
            "key": self.key.as_ref().map(JobKey::as_str),
            "deadline": seconds(self.deadline),
            "catch_up": match self.catch_up {
                CatchUp::None => "none",
                CatchUp::Last => "last",
                CatchUp::All => "all",
            },
            "jitter": seconds(self.jitter),
        });
        let Value::Object(mut all) = all else { return Map::new() };
        if with_body {
            match &self.body {
                Body::Text(text) => all.insert("text".to_owned(), json!(text)),
                Body::Data(data) => all.insert("data".to_owned(), json!(STANDARD.encode(data))),
            };
        }
        all
    }

    /// The attributes of the job of an occurrence.
    pub fn job_attributes(&self, name: &ScheduleName, due: Millis, caught_up: bool) -> Attributes {
        let mut all = self.attributes.clone();
        all.insert(SCHEDULE.to_owned(), name.to_string());
        all.insert(SCHEDULED_AT.to_owned(), time::Instant(due).to_string());
        if caught_up {
            all.insert(CAUGHT_UP.to_owned(), "1".to_owned());
        }
        all
    }

    /// Whether a change to this setting counts from its own instant: it has other occurrences than the old one.
    pub fn moves(&self, old: &Setting) -> bool {
        let of = |setting: &Setting| {
            let Setting { rule, zone, start, end, jitter, .. } = setting;
            (rule.clone(), zone.clone(), *start, *end, *jitter)
        };
        of(self) != of(old)
    }

    /// Its instants; `every_set_at` is when `every` was set. `None`: no database has its zone any more.
    pub fn when(&self, zones: &Zones, every_set_at: Millis) -> Option<When> {
        let zone = zones.get(&self.zone).ok()?;
        Some(self.when_in(zone, every_set_at))
    }

    fn when_in(&self, zone: TimeZone, every_set_at: Millis) -> When {
        let when = match &self.rule {
            Rule::Cron(cron) => When::cron(cron.clone(), zone),
            Rule::Every(every) => When::every(*every, every_set_at, self.start, zone),
        };
        when.between(self.start, self.end)
    }

    pub fn mode(&self) -> Mode {
        match &self.rule {
            Rule::Cron(cron) if cron.is_by_clock() => Mode::Clock,
            Rule::Cron(_) => Mode::Interval,
            Rule::Every(_) => Mode::Every,
        }
    }

    /// From where `every` counts.
    pub fn anchor(&self, every_set_at: Millis) -> Option<Millis> {
        matches!(self.rule, Rule::Every(_)).then(|| self.start.unwrap_or(every_set_at))
    }
}

/// A zone of the database. The error says how it is written, if it is written otherwise.
pub fn zone(name: &str, zones: &Zones) -> Result<TimeZone> {
    zones.get(name).map_err(|why| {
        let hint = match why {
            NoZone::Case(own) => format!("write {own:?}"),
            NoZone::Unknown if name.contains(':') || name.starts_with(['+', '-']) => {
                "write a zone such as \"Europe/Berlin\", not an offset".to_owned()
            }
            NoZone::Unknown => "write an IANA name such as \"Europe/Berlin\" or \"UTC\"".to_owned(),
        };
        let version = zones.version();
        Refusal::of("zone", format!("{} is no time zone of database {version}: {hint}", quoted(name)))
    })
}

/// An `every` of a query, in seconds.
pub fn every(text: &str) -> Result<Millis> {
    let every = time::duration(text).map(|every| every.as_millis() as Millis);
    every.filter(|every| (1000..=YEAR).contains(every)).ok_or_else(|| wrong_every(&quoted(text)))
}

fn wrong_every(given: &str) -> Refusal {
    let error =
        format!("{given} is no interval: write seconds from 1 to 31536000, with three decimals at most");
    Refusal::of("every", error)
}

/// An instant of a query, or of a setting.
pub fn instant(field: &str, text: &str) -> Result<Millis> {
    time::instant(text).ok_or_else(|| wrong_instant(field, &quoted(text)))
}

fn wrong_instant(field: &str, given: &str) -> Refusal {
    let error = format!(
        "{given} is no instant: write one such as \"2026-11-21T12:00:00Z\" or \"2026-11-21T14:00:00+02:00\", \
         or Unix seconds"
    );
    Refusal::of(field, error)
}

/// The fields of a setting. Null is the same as absent.
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn new(given: &'a Value) -> Result<Fields<'a>> {
        let Value::Object(fields) = given else {
            let error = format!("{} is no setting: write a JSON object", shown(given));
            return Err(Refusal { error, field: None, part: None });
        };
        let known = |key: &&String| FIELDS.split(' ').chain(SHOWN.split(' ')).any(|field| field == *key);
        match fields.keys().find(|key| !known(key)) {
            Some(unknown) => {
                let error =
                    format!("there is no field {}: leave it out, or write one of {FIELDS}", quoted(unknown));
                Err(Refusal::of(shorten(unknown), error))
            }
            None => Ok(Fields(fields)),
        }
    }

    fn get(&self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn wrong(&self, field: &str, value: &Value, instead: &str) -> Refusal {
        Refusal::of(field, format!("{field} cannot be {}: {instead}", shown(value)))
    }

    fn text(&self, field: &str) -> Result<Option<&'a str>> {
        let text = |value: &'a Value| value.as_str().ok_or_else(|| self.wrong(field, value, "write a text"));
        self.get(field).map(text).transpose()
    }

    fn word<T>(&self, field: &str, words: [(&str, T); 3]) -> Result<T> {
        let known = words.each_ref().map(|(word, _)| *word).join(", ");
        let given = self.get(field).map_or(Some(words[0].0), Value::as_str);
        let found = words.into_iter().find(|(word, _)| Some(*word) == given);
        found.map(|(_, value)| value).ok_or_else(|| {
            self.wrong(field, self.get(field).unwrap_or(&Value::Null), &format!("write one of {known}"))
        })
    }

    /// Seconds with up to three decimals, as milliseconds.
    fn seconds(&self, field: &str, range: RangeInclusive<Millis>) -> Result<Option<Millis>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let found = number(value).and_then(|text| time::duration(&text));
        let found = found.map(|time| time.as_millis() as Millis).filter(|time| range.contains(time));
        let (least, most) = (range.start() / 1000, range.end() / 1000);
        let instead = format!("write seconds from {least} to {most}, with three decimals at most");
        found.map(Some).ok_or_else(|| self.wrong(field, value, &instead))
    }

    fn instant(&self, field: &str) -> Result<Option<Millis>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let found = value.as_str().map(str::to_owned).or_else(|| number(value));
        let found = found.and_then(|text| time::instant(&text));
        found.map(Some).ok_or_else(|| wrong_instant(field, &shown(value)))
    }
}

/// The text of a JSON number, as exact as it can be.
fn number(value: &Value) -> Option<String> {
    value.is_number().then(|| value.to_string())
}

/// Seconds, as a whole number where they are one.
pub fn seconds(millis: Millis) -> Value {
    if millis.is_multiple_of(1000) { json!(millis / 1000) } else { json!(millis as f64 / 1000.0) }
}

fn shorten(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

/// As errors show it.
pub(super) fn quoted(text: &str) -> String {
    let short = shorten(text);
    if short.len() < text.len() { format!("{short:?}..") } else { format!("{short:?}") }
}

/// A value as errors show it: a text or a number as it is, of what has parts what it is.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        value => value.to_string(),
    }
}

fn queue(fields: &Fields<'_>) -> Result<QueueName> {
    let Some(given) = fields.text("queue")? else {
        return Err(Refusal::of("queue", "queue is missing: write the queue where the jobs go"));
    };
    let instead = "write 1 to 255 of letters, digits, - and _, not _ first";
    QueueName::parse(given)
        .map_err(|_| Refusal::of("queue", format!("{} is no queue: {instead}", quoted(given))))
}

fn rule(fields: &Fields<'_>) -> Result<Rule> {
    let cron = |text: &&str| Ok(Cron::parse(text)?);
    let of_number = |value: &&Value| {
        let text = number(value).ok_or_else(|| wrong_every(&shown(value)))?;
        every(&text).map_err(|_| wrong_every(&text))
    };
    one_rule(fields.text("cron")?.as_ref(), fields.get("every").as_ref(), cron, of_number)
}

/// Either an expression or an interval, as `cron` and `every` read them.
pub(super) fn one_rule<C, E>(
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

/// An end is not before its start.
pub(super) fn ordered(start: Option<Millis>, end: Option<Millis>) -> Result<()> {
    match start.zip(end) {
        Some((start, end)) if start > end => {
            let (start, end) = (time::Instant(start), time::Instant(end));
            let error =
                format!("the end {end} is before the start {start}: write a later one, or leave one out");
            Err(Refusal::of("end", error))
        }
        _ => Ok(()),
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
            let error = || format!("{} is no base64: write it with its padding, or write text", quoted(data));
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

fn attributes(fields: &Fields<'_>) -> Result<Attributes> {
    let refuse = |error: String| Err(Refusal::of("attributes", error));
    let given = match fields.get("attributes") {
        None => return Ok(Attributes::new()),
        Some(Value::Object(given)) => given,
        Some(other) => return Err(fields.wrong("attributes", other, "write an object of texts")),
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
                "{shown_name} is no name of an attribute: write 1 to {MAX_ATTRIBUTE_NAME} bytes"
            ));
        }
        let Some(text) = value.as_str().filter(|text| (1..=MAX_ATTRIBUTE_VALUE).contains(&text.len())) else {
            let value = shown(value);
            return refuse(format!(
                "{value} is no value of {shown_name}: write a text of 1 to {MAX_ATTRIBUTE_VALUE} bytes"
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

/// 0 is forever.
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
    let error = || format!("{} is no key: write 1 to 255 printable characters without blanks", quoted(key));
    JobKey::parse(key).map(Some).ok_or_else(|| Refusal::of("key", error()))
}
