//! What is stored under a job's key: the body as it is, or for versioned ids a JSON object of the body in base64
//! and the attributes, byte for byte as lmstfy writes it. Knows no key and no connection.

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

/// The versioned form, field by field in lmstfy's order.
#[derive(Serialize, Deserialize)]
struct Versioned<'a> {
    #[serde(borrow)]
    body: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attributes: Option<Attributes>,
}

/// The bytes to store. Attributes are kept only when the id is versioned.
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

/// Body and attributes of what is stored. `Corrupt` when a versioned job's value is not what lmstfy or we write.
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

/// The ttl in milliseconds of a job that lives forever and has a key: while such a job lives it has an expiry, by which
/// scripts tell it from a dead one. Redis can count so far, and no ttl that somebody gave is half as long.
pub const FOREVER: u64 = 2000 * 366 * 86_400_000;

/// A ttl from what PTTL says of a job.
pub fn ttl(pttl: i64) -> Option<Duration> {
    u64::try_from(pttl).ok().filter(|ttl| *ttl < FOREVER * 3 / 4).map(Duration::from_millis)
}

/// How long ago a job was published.
pub fn elapsed(now: Micros, published_at: Millis) -> Duration {
    Duration::from_millis((now / 1000).saturating_sub(published_at))
}

/// A job from what is stored: `ttl` is what PTTL says of it, in milliseconds, and `now` the Redis's clock, in
/// microseconds. How many tries it has left, and its receipt, are for who hands it out to say.
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
