//! Errors of settings and parameters, and how they quote values. Knows no field.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::cron::{CronError, Part};
use crate::name::ScheduleName;

/// Error of a setting or a parameter: the JSON of a 400.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    pub error: String,
    /// `None` if it concerns no single field.
    pub field: Option<String>,
    /// Field of the expression.
    pub part: Option<&'static str>,
}

impl Refusal {
    pub fn of(field: &str, error: impl fmt::Display) -> Refusal {
        Refusal { error: error.to_string(), field: Some(field.to_owned()), part: None }
    }

    /// Returns the error text for an invalid name.
    pub fn bad_name(name: &str) -> String {
        let (most, shown) = (ScheduleName::MOST, &name[..name.floor_char_boundary(ScheduleName::MOST + 1)]);
        format!(
            "{shown:?} is not a valid schedule name: write 1 to {most} of -_.A-Za-z0-9, the first neither _ nor ."
        )
    }
}

impl From<CronError> for Refusal {
    fn from(CronError { part, error }: CronError) -> Refusal {
        Refusal { error, field: Some("cron".to_owned()), part: part.map(Part::as_str) }
    }
}

/// A result with [`Refusal`].
pub type Result<T> = std::result::Result<T, Refusal>;

pub fn shorten(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

/// Quotes a text for an error.
pub fn quoted(text: &str) -> String {
    let short = shorten(text);
    if short.len() < text.len() { format!("{short:?}..") } else { format!("{short:?}") }
}

/// Formats a value for an error: texts and numbers as they are, others by their type.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        value => value.to_string(),
    }
}
