//! Durations on the command line: seconds, or a number with a unit.

use crate::readable::{self, DURATION_FORMS};
use crate::time::LONGEST;

/// Parses a duration as a parameter of the HTTP API: a decimal number of seconds.
pub fn seconds(text: &str) -> Result<String, String> {
    let seconds = readable::seconds(text).ok_or_else(|| DURATION_FORMS.to_owned())?;
    match seconds.parse::<f64>() {
        Ok(number) if number <= LONGEST.as_secs_f64() => Ok(seconds),
        _ => Err(format!("{DURATION_FORMS}; at most {} seconds, 136 years", LONGEST.as_secs())),
    }
}

/// Parses a duration of whole seconds.
pub fn whole_seconds(text: &str) -> Result<u64, String> {
    let whole = readable::seconds(text).and_then(|seconds| seconds.parse().ok());
    whole.ok_or_else(|| format!("{DURATION_FORMS}; whole seconds only"))
}

/// Parses a duration as a number of seconds.
pub fn fractional_seconds(text: &str) -> Result<f64, String> {
    seconds(text)?.parse().map_err(|_| DURATION_FORMS.to_owned())
}
