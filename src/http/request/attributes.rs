//! Attributes of jobs: from headers, as in lmstfy, and from JSON.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName};

use crate::http::answer::error::ApiError;
use crate::job::{Attributes, is_attribute_name, is_attribute_value};

/// Header that requests versioned jobs.
const VERSIONED: HeaderName = HeaderName::from_static("enable-job-version");
/// Maximum number of attributes of a job; names and values are truncated to these lengths in bytes.
const MAX_ATTRIBUTES: usize = 16;
const MAX_NAME: usize = 32;
const MAX_VALUE: usize = 128;
pub const TOO_MANY: ApiError = ApiError::bad("too many attributes, cannot exceed 16");

/// Reads the `Job-Attr-*` headers, if the client requests versioned jobs.
pub fn from_headers(headers: &HeaderMap) -> Result<Option<Attributes>, ApiError> {
    let versioned = headers.get(VERSIONED).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"yes"));
    if !versioned {
        return Ok(None);
    }
    let mut attributes = Attributes::new();
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix("job-attr-") {
            add(&mut attributes, name, &String::from_utf8_lossy(value.as_bytes()));
        }
    }
    bounded(attributes).map(Some)
}

const NO_NAME: ApiError = ApiError::bad(
    "invalid attribute: a name consists of letters, digits and !#$%&'*+-.^_`|~, like that of a header",
);
const NO_VALUE: ApiError =
    ApiError::bad("invalid attribute: a value contains no control characters, like that of a header");

/// Reads attributes from a JSON object, under the same rules; but rejects values that no header could carry, since push
/// sends attributes as headers. `None` for an empty object.
pub fn from_json(given: &BTreeMap<String, String>) -> Result<Option<Attributes>, ApiError> {
    let mut attributes = Attributes::new();
    for (name, value) in given {
        if !name.is_empty() && !is_attribute_name(name) {
            return Err(NO_NAME);
        }
        if !is_attribute_value(value) {
            return Err(NO_VALUE);
        }
        add(&mut attributes, &name.to_lowercase(), value);
    }
    Ok(Some(bounded(attributes)?).filter(|attributes| !attributes.is_empty()))
}

fn add(attributes: &mut Attributes, name: &str, value: &str) {
    if !name.is_empty() && !value.is_empty() {
        attributes.entry(cut(name, MAX_NAME).to_owned()).or_insert_with(|| cut(value, MAX_VALUE).to_owned());
    }
}

fn bounded(attributes: Attributes) -> Result<Attributes, ApiError> {
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(TOO_MANY);
    }
    Ok(attributes)
}

/// Truncates `text` to at most `most` bytes, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
