//! Reading and printing of values by type. Independent of keys.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use toml::Value;

use crate::readable::{is_hidden, shortened, visible};

/// An error in one line that says what to change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Where a value was given, for messages: the key or variable as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The table, such as `[Pool.default]`, empty at the top level; and the key.
    Key(String, String),
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Key(table, key) if table.is_empty() => f.write_str(key),
            Place::Key(table, key) => write!(f, "{table} {key}"),
            Place::Variable(name) => f.write_str(name),
        }
    }
}

/// Spelling of each given key, by its table and declared spelling: `[Pool.default] CA`. Not printed, so that equal
/// configurations print equally, however they were written.
#[derive(Clone, Default)]
pub struct Spelt(pub BTreeMap<String, String>);

impl fmt::Debug for Spelt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spelt(..)")
    }
}

/// A value as given. Variables give strings.
#[derive(Clone, Debug)]
pub struct Given {
    pub value: Value,
    pub place: Place,
}

impl Given {
    /// Formats the place and the value. Only for values that are not secret.
    pub fn shown(&self) -> String {
        match (&self.place, &self.value) {
            (Place::Variable(name), Value::String(text)) => format!("{name}={}", one_line(text)),
            (place, value) => format!("{place} = {}", in_toml(value)),
        }
    }

    /// Returns an error about a value that may be shown.
    pub fn wrong(&self, wanted: impl fmt::Display) -> ConfigError {
        ConfigError(format!("{}: {wanted}", self.shown()))
    }

    /// Returns an error about a value that may be secret.
    pub fn wrong_and_hidden(&self, wanted: impl fmt::Display) -> ConfigError {
        ConfigError(format!("{}: {wanted}", self.place))
    }

    /// Returns an error about a value, shown if `shown` and not a table or list, which may contain a password.
    pub fn refused(&self, shown: bool, wanted: impl fmt::Display) -> ConfigError {
        match self.value {
            Value::Table(_) | Value::Array(_) => self.wrong_and_hidden(wanted),
            _ if shown => self.wrong(wanted),
            _ => self.wrong_and_hidden(wanted),
        }
    }

    /// Returns whether it is the empty string, which counts as not set, as in lmstfy.
    pub fn is_empty(&self) -> bool {
        self.value.as_str() == Some("")
    }

    pub fn text(&self) -> Option<String> {
        match &self.value {
            Value::String(text) => Some(text.clone()),
            // An unquoted password of digits.
            Value::Integer(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// Returns a text on one line, with hidden characters made visible, and cut if it is long.
fn one_line(text: &str) -> String {
    visible(shortened(text, 200).0).into_owned()
}

/// Quotes a text for TOML.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            // Writing to a string does not fail.
            c if is_hidden(c) && u32::from(c) > 0xffff => _ = write!(quoted, "\\U{:08X}", u32::from(c)),
            c if is_hidden(c) => _ = write!(quoted, "\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn in_toml(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(is) => is.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(_) => "[..]".into(),
        Value::Table(_) => "{..}".into(),
    }
}

/// Type of a key.
pub trait Setting: Sized {
    /// Reads a value; numbers must be in `range`. The error states the expected form.
    fn read(given: &Given, range: Option<RangeInclusive<u64>>) -> Result<Self, ConfigError>;

    /// Formats the value as TOML; `None` if not set.
    fn show(&self) -> Option<String>;
}

macro_rules! whole_numbers {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            fn read(given: &Given, range: Option<RangeInclusive<u64>>) -> Result<$type, ConfigError> {
                // TOML has no integers above i64.
                let most = u64::try_from(<$type>::MAX).unwrap_or(u64::MAX).min(i64::MAX as u64);
                let range = range.unwrap_or(0..=most);
                let number = match &given.value {
                    Value::Integer(number) => Some(i128::from(*number)),
                    Value::String(text) => text.trim().parse().ok(),
                    _ => None,
                };
                let fits = number.and_then(|number| u64::try_from(number).ok()).filter(|n| range.contains(n));
                fits.and_then(|number| number.try_into().ok()).ok_or_else(|| {
                    let (least, most) = (range.start(), range.end());
                    let end = if *most < i64::MAX as u64 { format!("to {most}") } else { "up".into() };
                    given.refused(true, format!("expected a whole number from {least} {end}"))
                })
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}

whole_numbers!(u16, u32, u64, usize);

/// Number of a Redis database. A string in its place is not shown, since it might be the password.
impl Setting for i64 {
    fn read(given: &Given, range: Option<RangeInclusive<u64>>) -> Result<i64, ConfigError> {
        match u32::read(given, range) {
            Ok(number) => Ok(number.into()),
            Err(error) if matches!(given.value, Value::Integer(_) | Value::Float(_)) => Err(error),
            Err(_) => Err(given.wrong_and_hidden("expected a whole number from 0 up")),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for bool {
    fn read(given: &Given, _: Option<RangeInclusive<u64>>) -> Result<bool, ConfigError> {
        let said = match &given.value {
            Value::Boolean(is) => Some(*is),
            Value::Integer(0) => Some(false),
            Value::Integer(1) => Some(true),
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "on" | "yes" => Some(true),
                "false" | "0" | "off" | "no" => Some(false),
                _ => None,
            },
            _ => None,
        };
        said.ok_or_else(|| given.refused(true, "expected true or false"))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for String {
    fn read(given: &Given, _: Option<RangeInclusive<u64>>) -> Result<String, ConfigError> {
        given.text().ok_or_else(|| given.refused(true, "expected a string"))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Setting for PathBuf {
    fn read(given: &Given, range: Option<RangeInclusive<u64>>) -> Result<PathBuf, ConfigError> {
        let path = String::read(given, range)?;
        // Only shells expand it: here it would become a directory called `~`.
        if path.starts_with('~') {
            return Err(
                given.wrong("~ is not expanded: write the whole path, or ./~ for a file of that name")
            );
        }
        Ok(PathBuf::from(path))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.display().to_string()))
    }
}

impl<T: Setting> Setting for Option<T> {
    fn read(given: &Given, range: Option<RangeInclusive<u64>>) -> Result<Option<T>, ConfigError> {
        if given.is_empty() { Ok(None) } else { T::read(given, range).map(Some) }
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(Setting::show)
    }
}

/// List of strings, or one string separated by commas.
impl Setting for Vec<String> {
    fn read(given: &Given, _: Option<RangeInclusive<u64>>) -> Result<Vec<String>, ConfigError> {
        let wrong = || given.refused(true, "expected a list of strings");
        match &given.value {
            Value::String(text) => Ok(text
                .split(',')
                .map(str::trim)
                .filter(|entry| !entry.is_empty())
                .map(str::to_owned)
                .collect()),
            Value::Array(list) => list
                .iter()
                .map(|entry| entry.as_str().map(str::to_owned))
                .collect::<Option<_>>()
                .ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }

    fn show(&self) -> Option<String> {
        let entries: Vec<String> = self.iter().map(|entry| quoted(entry)).collect();
        Some(format!("[{}]", entries.join(", ")))
    }
}

/// Reads one of several words, in any case.
pub fn one_of<T: Copy>(given: &Given, words: &[(&str, T)]) -> Result<T, ConfigError> {
    let said = given.value.as_str().unwrap_or("\n");
    match words.iter().find(|(word, _)| word.eq_ignore_ascii_case(said)) {
        Some((_, value)) => Ok(*value),
        None => {
            let words: Vec<String> =
                words.iter().filter(|(word, _)| !word.is_empty()).map(|(word, _)| quoted(word)).collect();
            let (last, others) = words.split_last().expect("an enum has values");
            Err(given.refused(true, format!("expected {} or {last}", others.join(", "))))
        }
    }
}

/// Reads a table; its keys are read by [`super::source`].
pub fn table_of<'a>(given: &'a Given, example: &str) -> Result<&'a toml::Table, ConfigError> {
    given
        .value
        .as_table()
        .ok_or_else(|| given.wrong_and_hidden(format!("expected a table, such as {example}")))
}

/// Appends a section of the effective configuration.
pub fn section(text: &mut String, name: &str, keys: impl IntoIterator<Item = (String, Option<String>)>) {
    if !name.is_empty() {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(text, "\n[{name}]");
    }
    for (key, value) in keys {
        if let Some(value) = value {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
}

/// Formats a part of a dotted key.
pub fn bare(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { quoted(name) }
}
