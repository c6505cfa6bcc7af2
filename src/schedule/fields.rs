//! Parses JSON fields of a setting and query parameters: texts, numbers, instants and zones. Knows no setting and no
//! store.

use std::ops::RangeInclusive;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use super::refusal::{Refusal, Result, quoted, shorten, shown};
use super::zones::{NoZone, Zones};
use crate::clock::Millis;
use crate::time;

const FIELDS: &str = "queue cron every zone start end text data attributes tries ttl overlap key deadline catch_up \
                      jitter paused";
/// Fields of replies besides the setting. A PUT may contain them, so that a reply can be edited and sent back.
const SHOWN: &str = "name state revision created_at changed_at mode anchor zones paused_until next counts occurrences \
                     last result why";

const YEAR: Millis = 31_536_000_000;

/// The fields of a setting. Null means absent.
pub struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub fn new(given: &'a Value) -> Result<Fields<'a>> {
        let Value::Object(fields) = given else {
            let error = format!("{} is not a setting: write a JSON object", shown(given));
            return Err(Refusal { error, field: None, part: None });
        };
        let known = |key: &&String| FIELDS.split(' ').chain(SHOWN.split(' ')).any(|field| field == *key);
        match fields.keys().find(|key| !known(key)) {
            Some(unknown) => {
                let error = format!("unknown field {}: remove it, or write one of {FIELDS}", quoted(unknown));
                Err(Refusal::of(shorten(unknown), error))
            }
            None => Ok(Fields(fields)),
        }
    }

    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    pub fn wrong(&self, field: &str, value: &Value, instead: &str) -> Refusal {
        Refusal::of(field, format!("{field} cannot be {}: {instead}", shown(value)))
    }

    pub fn text(&self, field: &str) -> Result<Option<&'a str>> {
        let text =
            |value: &'a Value| value.as_str().ok_or_else(|| self.wrong(field, value, "write a string"));
        self.get(field).map(text).transpose()
    }

    pub fn word<T>(&self, field: &str, words: [(&str, T); 3]) -> Result<T> {
        let known = words.each_ref().map(|(word, _)| *word).join(", ");
        let given = self.get(field).map_or(Some(words[0].0), Value::as_str);
        let found = words.into_iter().find(|(word, _)| Some(*word) == given);
        found.map(|(_, value)| value).ok_or_else(|| {
            self.wrong(field, self.get(field).unwrap_or(&Value::Null), &format!("write one of {known}"))
        })
    }

    /// Parses seconds with up to three decimals, and returns milliseconds.
    pub fn seconds(&self, field: &str, range: RangeInclusive<Millis>) -> Result<Option<Millis>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let found = number(value).and_then(|text| time::duration(&text));
        let found = found.map(|time| time.as_millis() as Millis).filter(|time| range.contains(time));
        let (least, most) = (range.start() / 1000, range.end() / 1000);
        let instead = format!("write seconds from {least} to {most}, with three decimals at most");
        found.map(Some).ok_or_else(|| self.wrong(field, value, &instead))
    }

    pub fn instant(&self, field: &str) -> Result<Option<Millis>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let found = value.as_str().map(str::to_owned).or_else(|| number(value));
        let found = found.and_then(|text| time::instant(&text));
        found.map(Some).ok_or_else(|| wrong_instant(field, &shown(value)))
    }
}

/// Returns the exact text of a JSON number.
pub fn number(value: &Value) -> Option<String> {
    value.is_number().then(|| value.to_string())
}

/// Looks up a zone. The error corrects its case, if only that is wrong.
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
        Refusal::of("zone", format!("{} is not a time zone of database {version}: {hint}", quoted(name)))
    })
}

/// Parses an `every` of a query, in seconds.
pub fn every(text: &str) -> Result<Millis> {
    let every = time::duration(text).map(|every| every.as_millis() as Millis);
    every.filter(|every| (1000..=YEAR).contains(every)).ok_or_else(|| wrong_every(&quoted(text)))
}

pub fn wrong_every(given: &str) -> Refusal {
    let error = format!(
        "{given} is not a valid interval: write seconds from 1 to 31536000, with three decimals at most"
    );
    Refusal::of("every", error)
}

/// Parses an instant of a query or a setting.
pub fn instant(field: &str, text: &str) -> Result<Millis> {
    time::instant(text).ok_or_else(|| wrong_instant(field, &quoted(text)))
}

fn wrong_instant(field: &str, given: &str) -> Refusal {
    let error = format!(
        "{given} is not a valid instant: write one such as \"2026-11-21T12:00:00Z\" or \"2026-11-21T14:00:00+02:00\", \
         or Unix seconds"
    );
    Refusal::of(field, error)
}

/// Checks that the end is not before the start.
pub fn ordered(start: Option<Millis>, end: Option<Millis>) -> Result<()> {
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
