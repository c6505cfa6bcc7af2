//! JSON bodies that publish several jobs: an array of 1 to [`MAX_PUBLISH`] elements. In lmstfy's bulk the text of each
//! element is a job; in a batch each is an object with the job and its parameters.

use std::borrow::Cow;
use std::collections::HashSet;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::attributes;
use super::bounded::{Elements, Texts};
use super::params::{GivenJob, Placement};
use crate::clock::Millis;
use crate::engine::MAX_PUBLISH;
use crate::http::answer::error::ApiError;
use crate::http::state::{Defaults, MAX_JOB};
use crate::job::Attributes;
use crate::process::tasks::beside_the_runtime;

/// Maximum size of a bulk: the maximum number of jobs of maximum size, plus space for the JSON around them.
pub const MAX_BULK: usize = MAX_PUBLISH * MAX_JOB + (1 << 20);
/// Maximum size of a batch: the same with the jobs in base64.
pub const MAX_BATCH: usize = MAX_PUBLISH * (MAX_JOB.div_ceil(3) * 4) + (1 << 20);
/// Larger bodies are parsed on a separate thread, since that takes up to a tenth of a second.
const LARGE: usize = 256 << 10;
/// Maximum number of attributes read per job, including those without a value and duplicates in another case.
const MOST_GIVEN: usize = 1000;
/// Maximum length in bytes of a complaint about an invalid element, since a name in it may be a megabyte long.
const MAX_COMPLAINT: usize = 200;

const TOO_LARGE: ApiError = ApiError::too_large("job too large");

/// Runs `read`, which parses a body of `len` bytes, here or on a separate thread.
pub async fn reading<T: Send + 'static>(len: usize, read: impl FnOnce() -> T + Send + 'static) -> T {
    if len <= LARGE { read() } else { beside_the_runtime(read).await }
}

/// Returns the jobs of a bulk, each as its raw JSON text. As in lmstfy, its strings need not be UTF-8.
pub fn split_bulk(body: &Bytes) -> Result<Vec<Bytes>, ApiError> {
    if std::str::from_utf8(body).is_ok() {
        return split(body, body);
    }
    // Bytes beyond ASCII occur only within strings, and have no meaning for the structure.
    split(&body.iter().map(|byte| if byte.is_ascii() { *byte } else { b'?' }).collect::<Vec<u8>>(), body)
}

/// Finds the jobs of a bulk in `text`, and cuts them out of `body`, which has the same length.
fn split(text: &[u8], body: &Bytes) -> Result<Vec<Bytes>, ApiError> {
    let jobs = elements(text)?;
    if jobs.iter().any(|job| job.get().len() > MAX_JOB) {
        return Err(TOO_LARGE);
    }
    // Each is a slice of `text`.
    let begin = |job: &RawValue| job.get().as_ptr() as usize - text.as_ptr() as usize;
    Ok(jobs.iter().map(|job| body.slice(begin(job)..begin(job) + job.get().len())).collect())
}

#[derive(Debug)]
pub struct BatchJob {
    pub body: Bytes,
    pub placement: Placement,
    pub attributes: Option<Attributes>,
}

/// Parses a batch; `now` is the store's time of day. Errors name the element.
pub fn read_batch(body: &Bytes, now: Millis, defaults: &Defaults) -> Result<Vec<BatchJob>, ApiError> {
    let jobs = elements(body)?.into_iter().enumerate();
    let jobs: Vec<BatchJob> = jobs
        .map(|(n, job)| read_job(job, body, now, defaults).map_err(|error| error.at(n)))
        .collect::<Result<_, _>>()?;
    let mut keys = HashSet::new();
    let twice =
        jobs.iter().position(|job| job.placement.key.as_ref().is_some_and(|(key, _)| !keys.insert(key)));
    match twice {
        Some(n) => Err(ApiError::bad("two jobs with one key").at(n)),
        None => Ok(jobs),
    }
}

/// An element of a batch. Numbers are kept as text, since `f64` would not be exact.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Element<'a> {
    #[serde(borrow)]
    data: Option<Text<'a>>,
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    delay: Option<&'a RawValue>,
    #[serde(borrow)]
    at: Option<&'a RawValue>,
    #[serde(borrow)]
    at_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    ttl: Option<&'a RawValue>,
    #[serde(borrow)]
    tries: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(borrow)]
    on_conflict: Option<Text<'a>>,
    attributes: Option<Texts<MOST_GIVEN>>,
}

/// A string that is borrowed unless it has escapes. (Within an `Option`, `Cow` alone is always copied.)
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn read_job(job: &RawValue, all: &Bytes, now: Millis, defaults: &Defaults) -> Result<BatchJob, ApiError> {
    let element: Element<'_> = serde_json::from_str(job.get()).map_err(|error| {
        let text = error.to_string();
        let text = &text[..text.floor_char_boundary(MAX_COMPLAINT)];
        let error = format!("a job should be an object with data or text: {text}");
        ApiError::detailed(StatusCode::BAD_REQUEST, error)
    })?;
    // Text that is not a JSON number is not digits either.
    let number = |raw: Option<&'_ RawValue>| raw.map(|raw| Cow::Owned(raw.get().to_owned()));
    let at = match element.at {
        Some(raw) if raw.get().starts_with('"') => {
            let Text(text) = serde_json::from_str(raw.get()).map_err(|_| ApiError::bad("invalid at"))?;
            Some(text)
        }
        raw => number(raw),
    };
    let given = GivenJob {
        delay: number(element.delay),
        at,
        at_ms: number(element.at_ms),
        ttl: number(element.ttl),
        tries: number(element.tries),
        key: element.key.map(|Text(key)| key),
        on_conflict: element.on_conflict.map(|Text(means)| means),
    };
    let placement = given.placement(now, defaults)?;
    let attributes = match &element.attributes {
        Some(Texts { more: 1.., .. }) => return Err(attributes::TOO_MANY),
        Some(given) => attributes::from_json(&given.first)?,
        None => None,
    };
    let body = match (element.data, element.text) {
        (Some(Text(data)), None) if data.len() > MAX_JOB.div_ceil(3) * 4 => return Err(TOO_LARGE),
        (Some(Text(data)), None) => {
            Bytes::from(STANDARD.decode(data.as_bytes()).map_err(|_| ApiError::bad("invalid data"))?)
        }
        // A string without escapes is a slice of the request.
        (None, Some(Text(Cow::Borrowed(text)))) => all.slice_ref(text.as_bytes()),
        (None, Some(Text(Cow::Owned(text)))) => Bytes::from(text),
        _ => return Err(ApiError::bad("a job should have either data or text")),
    };
    if body.len() > MAX_JOB {
        return Err(TOO_LARGE);
    }
    Ok(BatchJob { body, placement, attributes })
}

fn elements(body: &[u8]) -> Result<Vec<&RawValue>, ApiError> {
    let elements: Option<Elements<'_, MAX_PUBLISH>> = serde_json::from_slice(body)
        .map_err(|_| ApiError::bad("request body should be an array of objects"))?;
    match elements.unwrap_or_default() {
        Elements { more: 1.., .. } => Err(ApiError::bad("too many jobs")),
        Elements { first, .. } if first.is_empty() => Err(ApiError::bad("no jobs")),
        Elements { first, .. } => Ok(first),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Guards against a bulk that is cut at other positions than it was parsed.
    #[test]
    fn a_bulk_need_not_be_utf_8() {
        let split = |body: &'static [u8]| split_bulk(&Bytes::from_static(body));
        let jobs = split(b"[ \"\xff\xfe\", {\"a\": \"x\xe9\"},1 ]").expect("texts may have any bytes");
        assert_eq!(jobs, [&b"\"\xff\xfe\""[..], b"{\"a\": \"x\xe9\"}", b"1"], "byte for byte");
        let jobs = split("[\"\u{e4}\", 2]".as_bytes()).expect("UTF-8");
        assert_eq!(jobs, ["\"\u{e4}\"".as_bytes(), b"2"]);
        for bad in
            [&b"[\xff]"[..], b"\xff[1]", b"[1,\xff 2]", b"[\"\\\xff\"]", b"[\"\xff]", b"[\"\x01\xff\"]"]
        {
            assert!(split_bulk(&Bytes::from_static(bad)).is_err(), "{bad:?} is no JSON");
        }
    }

    #[tokio::test]
    async fn a_large_body_is_read_while_the_runtime_goes_on() {
        let (go, wait) = std::sync::mpsc::channel();
        let read = reading(LARGE + 1, move || wait.recv_timeout(Duration::from_secs(10)));
        // Polled in this order, on one thread.
        let (read, sent) = tokio::join!(read, async { go.send(()) });
        assert_eq!((read, sent), (Ok(()), Ok(())), "what ran beside the reading");
    }
}
