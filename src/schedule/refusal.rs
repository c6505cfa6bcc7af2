//! Why a setting or a parameter is refused, and how errors show what was given. Knows no field.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::cron::{CronError, Part};
use crate::name::ScheduleName;

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
        Refusal { error, field: Some("cron".to_owned()), part: part.map(Part::as_str) }
    }
}

/// Refused, or not.
pub type Result<T> = std::result::Result<T, Refusal>;

pub fn shorten(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

/// As errors show it.
pub fn quoted(text: &str) -> String {
    let short = shorten(text);
    if short.len() < text.len() { format!("{short:?}..") } else { format!("{short:?}") }
}

/// A value as errors show it: a text or a number as it is, of what has parts what it is.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        value => value.to_string(),
    }
}
