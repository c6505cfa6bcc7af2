//! `Idempotency-Key`: makes a publish safe to repeat. The store replays completed requests. This module knows the
//! rest: which requests are in flight in this process, and whether two requests are equal.

use std::borrow::Cow;
use std::sync::Arc;

use ahash::HashSet;
use axum::http::HeaderName;
use axum::http::request::Parts;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::engine::Once;
use crate::http::answer::error::ApiError;
use crate::name::{IdempotencyKey, PoolName, Queue};

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// Keys are separate per pool, namespace and queue.
type RequestKey = (PoolName, Queue, IdempotencyKey);

/// Keys of the requests in flight in this process. A connection has one request at a time, so there are at most as
/// many keys as connections.
#[derive(Debug, Default)]
pub struct KeysUnderWay(Mutex<HashSet<RequestKey>>);

/// A request with a key. Until it is dropped, other requests with this key are rejected.
#[derive(Debug)]
pub struct Repeatable {
    under_way: Arc<KeysUnderWay>,
    entry: RequestKey,
    /// Hash of everything except the body.
    head: u128,
}

impl KeysUnderWay {
    /// Returns the request's key, if it has one. 400 if it is invalid; 409 while another request with this key is in
    /// flight.
    pub fn begin(
        self: &Arc<Self>,
        pool: &PoolName,
        queue: &Queue,
        request: &Parts,
    ) -> Result<Option<Box<Repeatable>>, ApiError> {
        let Some(key) = request.headers.get(HEADER) else { return Ok(None) };
        let key = IdempotencyKey::new(key.as_bytes())
            .ok_or(ApiError::bad("the idempotency key has 1 to 255 bytes"))?;
        let entry = (pool.clone(), queue.clone(), key);
        if !self.0.lock().insert(entry.clone()) {
            return Err(ApiError::UNDER_WAY);
        }
        Ok(Some(Box::new(Repeatable { under_way: self.clone(), entry, head: hash_of_head(request) })))
    }
}

impl Repeatable {
    /// Returns the request's key.
    pub fn key(&self) -> &IdempotencyKey {
        &self.entry.2
    }

    /// Returns the key and fingerprint by which the store recognizes a repeat.
    pub fn once(&self, body: &[u8]) -> Once {
        let both = [self.head.to_be_bytes(), xxh3_128(body).to_be_bytes()].concat();
        Once::request(self.entry.2.clone(), xxh3_128(&both).to_be_bytes())
    }
}

impl Drop for Repeatable {
    fn drop(&mut self) {
        self.under_way.0.lock().remove(&self.entry);
    }
}

/// Characters that stay escaped in values and names of hashed parameters.
const IN_VALUE: &AsciiSet = &CONTROLS.add(b'%').add(b'&').add(b'+');
const IN_NAME: &AsciiSet = &IN_VALUE.add(b'=');

/// Normalizes a query: removes the token, and unifies escapes. Parts without escapes are unchanged, because earlier
/// versions of the server hashed them so, and their requests may be repeated.
fn asked(query: &str) -> String {
    let parts = query.split('&').filter_map(|part| {
        let parsed = form_urlencoded::parse(part.as_bytes()).next();
        let Some((name, value)) = parsed.filter(|_| part.contains(['%', '+']) || !part.is_ascii()) else {
            let is_token = part == "token" || part.starts_with("token=");
            return (!is_token).then_some(Cow::Borrowed(part));
        };
        // Parsing `at` accepts this too: the plus of its UTC offset may arrive unescaped.
        let value = if name == "at" { value.replace(' ', "+").into() } else { value };
        let equals = if part.contains('=') { "=" } else { "" };
        let escaped = || {
            let (name, value) =
                (percent_encode(name.as_bytes(), IN_NAME), percent_encode(value.as_bytes(), IN_VALUE));
            format!("{name}{equals}{value}").into()
        };
        (name != "token").then(escaped)
    });
    parts.collect::<Vec<_>>().join("&")
}

/// Hashes the method, the path and the query without the token, independent of their escapes, and the `Job-Attr-`
/// headers, independent of their order.
fn hash_of_head(request: &Parts) -> u128 {
    let mut attributes: Vec<(&str, &[u8])> = request
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .filter(|(name, _)| name.starts_with("job-attr-"))
        .collect();
    attributes.sort_unstable();
    let uri = &request.uri;
    let mut hash = Xxh3::new();
    // Each part follows its length, so that no part can pass for the end of another.
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(request.method.as_str().as_bytes());
    part(&Cow::from(percent_decode_str(uri.path())));
    part(asked(uri.query().unwrap_or_default()).as_bytes());
    for (name, value) in attributes {
        part(name.as_bytes());
        part(value);
    }
    hash.digest128()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;
    use crate::name::{Namespace, QueueName};

    fn queue(name: &str) -> Queue {
        Queue {
            namespace: Namespace::parse("ns").expect("a literal"),
            name: QueueName::parse(name).expect("a literal"),
        }
    }

    fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(target).header("Idempotency-Key", "k");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn a_key_is_taken_until_its_request_ends() {
        let under_way = Arc::new(KeysUnderWay::default());
        let pool = PoolName::default_pool();
        let request = request("PUT", "/api/ns/q", &[]);
        let begin = |name: &str| under_way.begin(&pool, &queue(name), &request);
        let first = begin("q").expect("the key is free").expect("a key was given");
        assert!(matches!(begin("q"), Err(ApiError::Busy(_))), "the first is under way");
        assert!(begin("other").is_ok(), "another queue's key");
        drop(first);
        assert!(begin("q").is_ok(), "the first has ended");
        assert!(under_way.0.lock().is_empty(), "a key was left behind");
    }

    /// Guards against a repeat that is rejected because its plus or colon is escaped differently, or because an
    /// earlier version executed the first request.
    #[test]
    fn a_query_without_escapes_is_hashed_as_it_came_and_others_like_it() {
        for plain in
            ["", "ttl=1", "key=order:17", "key=a=b&delay=1.5", "flag&&ttl=", "at=2026-01-01T00:00:00Z"]
        {
            assert_eq!(asked(plain), plain, "{plain}");
            let escaped: String = plain
                .chars()
                .map(|c| if "&=".contains(c) { c.to_string() } else { format!("%{:02X}", u32::from(c)) })
                .collect();
            assert_eq!(asked(&escaped), plain, "{escaped}");
            assert_eq!(asked(&format!("token=a%20b&{plain}&tok%65n=c")), plain, "{plain} with tokens");
        }
        let same = [
            "at=2026-01-01T00:00:00+02:00",
            "at=2026-01-01T00:00:00%2B02:00",
            "a%74=2026-01-01T00%3A00:00%2b02:00",
        ];
        assert_eq!(same.map(asked), [same[1]; 3], "an offset, with any escapes");
        assert_eq!(asked("key=caf%C3%A9"), asked("key=café"), "beyond ASCII");
        assert_eq!(asked("key=a+b"), asked("key=a%20b"), "a space, with any escape");
        for (one, other) in
            [("key=a+b", "key=a%2Bb"), ("a%26b=c", "a&b=c"), ("a%3Db=c", "a=b=c"), ("a=%252B", "a=%2B")]
        {
            assert_ne!(asked(one), asked(other), "{one} is not {other}");
        }
    }

    #[test]
    fn equal_requests_have_equal_fingerprints_and_others_have_not() {
        let fingerprint = |method: &str, target: &str, headers: &[(&str, &str)], body: &str| {
            let under_way = Arc::new(KeysUnderWay::default());
            let request = request(method, target, headers);
            let begun = under_way.begin(&PoolName::default_pool(), &queue("q"), &request);
            begun.expect("the key is free").expect("a key was given").once(body.as_bytes()).fingerprint
        };
        let (a, b) = (("Job-Attr-A", "1"), ("Job-Attr-B", "2"));
        let first = fingerprint("PUT", "/api/ns/q?ttl=1", &[a, b], "x");
        let same = fingerprint("PUT", "/api/ns/q?ttl=1", &[b, a, ("X-Request-Id", "7")], "x");
        assert_eq!(first, same, "the order of headers, and other headers, make no difference");
        for target in [
            "/api/ns/%71?ttl=1",
            "/%61pi/n%73/q?ttl=1&token=abc",
            "/api/ns/q?t%74l=%31",
            "/api/ns/q?token=x&ttl=1",
        ] {
            let same = fingerprint("PUT", target, &[a, b], "x");
            assert_eq!(first, same, "{target}: escapes and the token make no difference");
        }
        let others = [
            fingerprint("POST", "/api/ns/q?ttl=1", &[a, b], "x"),
            fingerprint("PUT", "/api/ns/q/jobs?ttl=1", &[a, b], "x"),
            fingerprint("PUT", "/api/ns/q?ttl=2", &[a, b], "x"),
            fingerprint("PUT", "/api/ns/%72?ttl=1", &[a, b], "x"),
            fingerprint("PUT", "/api/ns/q?ttl=1%26key%3Dk", &[a, b], "x"),
            fingerprint("PUT", "/api/ns/q?ttl=1&key=k", &[a, b], "x"),
            fingerprint("PUT", "/api/ns/q", &[a, b], "x"),
            fingerprint("PUT", "/api/ns/q?ttl=1", &[a], "x"),
            fingerprint("PUT", "/api/ns/q?ttl=1", &[a, ("Job-Attr-B", "3")], "x"),
            fingerprint("PUT", "/api/ns/q?ttl=1", &[a, b], "y"),
            fingerprint("PUT", "/api/ns/q?ttl=1", &[a, b], ""),
        ];
        for (n, other) in others.into_iter().enumerate() {
            assert_ne!(first, other, "request {n} is different");
        }
    }
}
