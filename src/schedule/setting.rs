//! The setting of a schedule, with all defaults filled in. Knows no store.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};

use super::cron::Cron;
use super::when::{Mode, When};
use super::zones::Zones;
use crate::clock::Millis;
use crate::job::Attributes;
use crate::name::{JobKey, QueueName, ScheduleName};
use crate::time;

/// Maximum body of a schedule's jobs in bytes.
pub const MAX_BODY: usize = 64 << 10;
/// Maximum size of a setting in bytes of JSON: the body in base64 or with escapes, and the other fields.
pub const MAX_SETTING: usize = 6 * MAX_BODY + (64 << 10);
/// Attributes that the server sets.
pub const SCHEDULE: &str = "schedule";
pub const SCHEDULED_AT: &str = "scheduled-at";
pub const CAUGHT_UP: &str = "caught-up";

/// When a schedule is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    Cron(Arc<Cron>),
    /// Milliseconds between occurrences.
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

/// What to do if the job of an earlier occurrence still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    Allow,
    Skip,
    Replace,
}

/// Which missed occurrences are caught up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUp {
    None,
    Last,
    All,
}

/// Configured defaults of jobs.
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
    /// Counted from publishing; `None` is forever.
    pub ttl: Option<Duration>,
    pub overlap: Overlap,
    /// Key of its jobs. `None` with [`Overlap::Allow`].
    pub key: Option<JobKey>,
    pub deadline: Millis,
    pub catch_up: CatchUp,
    pub jitter: Millis,
}

impl Setting {
    /// Returns all fields except `paused`, with or without the body.
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

    /// Returns the attributes of an occurrence's job.
    pub fn job_attributes(&self, name: &ScheduleName, due: Millis, caught_up: bool) -> Attributes {
        let mut all = self.attributes.clone();
        all.insert(SCHEDULE.to_owned(), name.to_string());
        all.insert(SCHEDULED_AT.to_owned(), time::Instant(due).to_string());
        if caught_up {
            all.insert(CAUGHT_UP.to_owned(), "1".to_owned());
        }
        all
    }

    /// Whether a change to this setting takes effect from its own time on, since the occurrences differ.
    pub fn moves(&self, old: &Setting) -> bool {
        let of = |setting: &Setting| {
            let Setting { rule, zone, start, end, jitter, .. } = setting;
            (rule.clone(), zone.clone(), *start, *end, *jitter)
        };
        of(self) != of(old)
    }

    /// Returns its instants; `every_set_at` is when `every` was set. `None` if its zone no longer exists.
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

    /// Returns the anchor of `every`.
    pub fn anchor(&self, every_set_at: Millis) -> Option<Millis> {
        matches!(self.rule, Rule::Every(_)).then(|| self.start.unwrap_or(every_set_at))
    }
}

/// Formats seconds, as an integer if possible.
pub fn seconds(millis: Millis) -> Value {
    if millis.is_multiple_of(1000) { json!(millis / 1000) } else { json!(millis as f64 / 1000.0) }
}
