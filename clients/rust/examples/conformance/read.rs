//! Parses the suite's requests.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dormouse_client::{At, NewJob, OnConflict};
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Failed, wrong};

/// A request; its fields by name.
pub struct Op(pub Value);

impl Op {
    pub fn text(&self, name: &str) -> Result<&str, Failed> {
        self.maybe_text(name).ok_or_else(|| Failed::Wrong(format!("{name} is missing")))
    }

    pub fn maybe_text(&self, name: &str) -> Option<&str> {
        self.0[name].as_str()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }

    pub fn number<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Failed> {
        serde_json::from_value(self.0[name].clone()).map_err(|e| Failed::Wrong(format!("{name}: {e}")))
    }

    pub fn numbers(&self, name: &str) -> Result<Option<Vec<u32>>, Failed> {
        self.number(name)
    }

    pub fn seconds(&self, name: &str) -> Result<Option<Duration>, Failed> {
        match &self.0[name] {
            Value::Null => Ok(None),
            value => match duration(value) {
                Some(duration) => Ok(Some(duration)),
                None => wrong(format!("{name} should be seconds")),
            },
        }
    }

    pub fn list(&self, name: &str) -> Result<Vec<Value>, Failed> {
        self.0[name].as_array().cloned().ok_or_else(|| Failed::Wrong(format!("{name} is missing")))
    }

    pub fn texts(&self, name: &str) -> Result<Vec<String>, Failed> {
        Ok(self.list(name)?.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect())
    }

    pub fn data(&self) -> Result<Option<Vec<u8>>, Failed> {
        let data = self.maybe_text("data").map(|data| STANDARD.decode(data)).transpose();
        data.map_err(|e| Failed::Wrong(format!("data: {e}")))
    }

    /// Returns the queues of a worker, and their weights if it is an object.
    pub fn queues(&self) -> Result<(Vec<String>, Option<Vec<u32>>), Failed> {
        match &self.0["queues"] {
            Value::Object(weights) => {
                let weight = |weight: &Value| weight.as_u64().and_then(|weight| weight.try_into().ok());
                let weights_of = weights.values().map(|value| weight(value).unwrap_or(1)).collect();
                Ok((weights.keys().cloned().collect(), Some(weights_of)))
            }
            _ => Ok((self.texts("queues")?, None)),
        }
    }
}

pub fn duration(seconds: &Value) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.as_f64()?).ok()
}

/// Converts Unix milliseconds.
pub fn instant_of(millis: &Value) -> Option<SystemTime> {
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(millis.as_f64()? / 1000.0))
}

/// Returns the job of a publish.
pub fn job(op: &Op) -> Result<NewJob, Failed> {
    let mut job = match op.data()? {
        Some(data) => NewJob::new(data),
        None if op.0["json"].is_null() && op.0.get("json").is_none() => NewJob::new(Vec::new()),
        None => NewJob::json(&op.0["json"])?,
    };
    if let Some(delay) = op.seconds("delay")? {
        job = job.delay(delay);
    }
    if !op.0["at"].is_null() {
        job = job.at(at(&op.0["at"])?);
    }
    if let Some(ttl) = op.seconds("ttl")? {
        job = job.ttl(ttl);
    }
    if let Some(tries) = op.number("tries")? {
        job = job.tries(tries);
    }
    if let Some(key) = op.maybe_text("key") {
        job = job.key(key);
    }
    job = match op.maybe_text("on_conflict") {
        None => job,
        Some("keep") => job.on_conflict(OnConflict::Keep),
        Some("replace") => job.on_conflict(OnConflict::Replace),
        Some("fail") => job.on_conflict(OnConflict::Fail),
        Some(other) => return wrong(format!("no on_conflict {other}")),
    };
    for (name, value) in op.0["attributes"].as_object().into_iter().flatten() {
        job = job.attribute(name, value.as_str().unwrap_or_default());
    }
    if let Some(trace) = op.maybe_text("traceparent") {
        job = job.traceparent(trace);
    }
    Ok(job)
}

fn at(given: &Value) -> Result<At, Failed> {
    let unreadable = || Failed::Wrong(format!("at cannot be read: {given}"));
    match given["as"].as_str() {
        Some("time") => {
            let at = given["ms"].as_i64().and_then(|ms| Timestamp::from_millisecond(ms).ok());
            let minutes = given["offset"].as_i64().unwrap_or(0);
            let offset =
                i32::try_from(minutes * 60).ok().and_then(|seconds| Offset::from_seconds(seconds).ok());
            let zone = TimeZone::fixed(offset.ok_or_else(unreadable)?);
            Ok(At::from(at.ok_or_else(unreadable)?.to_zoned(zone)))
        }
        Some("text") => Ok(At::from(given["value"].as_str().ok_or_else(unreadable)?)),
        Some("number") => {
            let seconds = given["seconds"].as_f64().ok_or_else(unreadable)?;
            let since = Duration::try_from_secs_f64(seconds).map_err(|_| unreadable())?;
            // Seconds as a float may not be whole milliseconds: rounds to the nearest.
            let millis = (since.as_secs_f64() * 1000.0).round();
            Ok(At::from(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(millis / 1000.0)))
        }
        _ => Err(unreadable()),
    }
}
