//! The value of a job's key: the plain body, or for versioned ids a JSON object of the base64 body and the attributes,
//! byte for byte as lmstfy writes it. Independent of keys and connections.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::{Micros, Millis};
use crate::error::{Error, Result};
use crate::job::{Attributes, Job, JobId};
use crate::name::Queue;

/// The JSON form, with the fields in lmstfy's order.
#[derive(Serialize, Deserialize)]
struct Versioned<'a> {
    #[serde(borrow)]
    body: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attributes: Option<Attributes>,
}

/// Returns the value to store. Attributes are stored only for versioned ids.
pub fn encode(id: &JobId, body: &Bytes, attributes: &Attributes) -> Result<Bytes> {
    if !id.is_versioned() {
        return Ok(body.clone());
    }
    let stored = Versioned {
        body: Some(STANDARD.encode(body).into()),
        attributes: (!attributes.is_empty()).then(|| attributes.clone()),
    };
    serde_json::to_vec(&stored).map(Bytes::from).map_err(Error::refused)
}

/// Returns the body and attributes of a stored value. Fails with `Corrupt` if a versioned job's value is not JSON that
/// lmstfy or Dormouse writes.
fn decode(id: &JobId, stored: Bytes) -> Result<(Bytes, Attributes)> {
    if !id.is_versioned() {
        return Ok((stored, Attributes::new()));
    }
    let corrupt = |e: &dyn std::fmt::Display| Error::corrupt(format!("the value of job {id}: {e}"));
    let read: Versioned = serde_json::from_slice(&stored).map_err(|e| corrupt(&e))?;
    // Go writes an empty body as null.
    let body = STANDARD.decode(read.body.as_deref().unwrap_or("")).map_err(|e| corrupt(&e))?;
    Ok((body.into(), read.attributes.unwrap_or_default()))
}

/// Ttl in milliseconds of a job without ttl that has a job key. A live job with a key always has an expiry: scripts
/// distinguish it from a dead job by that. Within Redis's range, and at least twice the longest ttl that a
/// caller can set.
pub const FOREVER: u64 = 2000 * 366 * 86_400_000;

/// Returns a job's ttl, given Redis's PTTL.
pub fn ttl(pttl: i64) -> Option<Duration> {
    u64::try_from(pttl).ok().filter(|ttl| *ttl < FOREVER * 3 / 4).map(Duration::from_millis)
}

/// Returns the time since a job was published.
pub fn elapsed(now: Micros, published_at: Millis) -> Duration {
    Duration::from_millis((now / 1000).saturating_sub(published_at))
}

/// Returns the job with a stored value. `ttl` is Redis's PTTL in milliseconds, `now` Redis's clock in microseconds. The
/// caller that delivers the job sets the tries left and the receipt.
pub fn job(queue: &Queue, id: JobId, stored: Bytes, ttl: i64, now: u64) -> Result<Job> {
    let (body, attributes) = decode(&id, stored)?;
    Ok(Job {
        queue: queue.clone(),
        id,
        body,
        attributes,
        ttl: self::ttl(ttl),
        elapsed: elapsed(now, id.published_at()),
        due: id.first_due(),
        tries_left: 0,
        receipt: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(versioned: bool) -> JobId {
        JobId::from_bytes([7; 16], versioned)
    }

    #[test]
    fn a_versioned_job_is_written_as_lmstfy_writes_it() {
        let body = Bytes::from_static(b"hi?>");
        let none = encode(&id(true), &body, &Attributes::new()).expect("encodes");
        assert_eq!(&none[..], br#"{"body":"aGk/Pg=="}"#, "no attributes field without attributes");
        let one = Attributes::from([("flag".into(), "1".into())]);
        let one = encode(&id(true), &body, &one).expect("encodes");
        assert_eq!(&one[..], br#"{"body":"aGk/Pg==","attributes":{"flag":"1"}}"#);
    }

    #[test]
    fn a_null_body_is_empty_and_garbage_is_corrupt() {
        let (body, _) = decode(&id(true), Bytes::from_static(br#"{"body":null}"#)).expect("Go's empty body");
        assert!(body.is_empty(), "null should be empty, came {body:?}");
        for bad in ["", "{", r#"{"body":"!"}"#, "[]", "\u{0}"] {
            let got = decode(&id(true), Bytes::from(bad));
            assert!(matches!(got, Err(Error::Corrupt(_))), "{bad:?} should be corrupt, came {got:?}");
        }
    }

    proptest! {
        #[test]
        fn a_value_survives(
            body: Vec<u8>, versioned: bool,
            attributes in prop::collection::btree_map("[a-z-]{1,32}", ".{1,20}", 0..16),
        ) {
            let body = Bytes::from(body);
            let stored = encode(&id(versioned), &body, &attributes).expect("encodes");
            let kept = if versioned { attributes } else { Attributes::new() };
            prop_assert_eq!(decode(&id(versioned), stored).expect("decodes"), (body, kept));
        }
    }
}
