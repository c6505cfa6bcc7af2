//! Conditions of a change: `If-Match` and `If-None-Match`, with the revisions that replies carry as `ETag`.

use axum::http::HeaderMap;
use axum::http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};

use crate::http::answer::error::ApiError;
use crate::schedule::{Refusal, quoted};
use crate::scheduler::{Condition, Matches};

/// Names in error messages.
const MATCH: &str = "If-Match";
const NONE_MATCH: &str = "If-None-Match";

/// Parses the headers.
pub fn of(headers: &HeaderMap) -> Result<Condition, ApiError> {
    let matches = all(headers, IF_MATCH, MATCH)?.map(|text| tags(&text)).transpose()?;
    let is_new = match all(headers, IF_NONE_MATCH, NONE_MATCH)?.as_deref() {
        None => false,
        Some("*") => true,
        Some(given) => return Err(wrong(NONE_MATCH, given, "*")),
    };
    Ok(Condition { matches, revision: None, is_new })
}

/// Returns the values of a header, joined to one list.
fn all(headers: &HeaderMap, name: HeaderName, field: &str) -> Result<Option<String>, ApiError> {
    let texts: Result<Vec<&str>, _> = headers.get_all(&name).iter().map(|value| value.to_str()).collect();
    let texts = texts.map_err(|_| wrong(field, "bytes", "text"))?;
    Ok((!texts.is_empty()).then(|| texts.join(",").trim().to_owned()))
}

fn wrong(field: &str, given: &str, instead: &str) -> ApiError {
    let error = format!("{field} cannot be {}: write {instead}", quoted(given));
    Refusal::of(field, error).into()
}

/// Parses `*`, or quoted tags. A tag that is not a number matches no revision, and neither does a weak tag.
fn tags(text: &str) -> Result<Matches, ApiError> {
    if text == "*" {
        return Ok(Matches::Any);
    }
    let mut revisions = Vec::new();
    for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
        let (weak, tag) = tag.strip_prefix("W/").map_or((false, tag), |tag| (true, tag));
        let tag = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
        let tag = tag.ok_or_else(|| wrong(MATCH, text, "revisions in quotes, as an ETag has them, or *"))?;
        revisions.extend(tag.parse::<u64>().ok().filter(|_| !weak));
    }
    Ok(Matches::These(revisions))
}
