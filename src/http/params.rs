//! Query parameters, as lmstfy reads them: the first of a repeated key counts, unknown keys are ignored, an
//! empty value is a value. Numbers are digits only; leading zeros are fine.

use std::borrow::Cow;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use super::Defaults;
use super::error::ApiError;
use crate::dispatch;
use crate::name::QueueList;

/// A request's query.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a>(pub &'a str);

impl<'a> Query<'a> {
    /// The first value of `key`.
    pub fn get(self, key: &str) -> Option<Cow<'a, str>> {
        let found = |pair: &'a str| {
            let name = pair.split('=').next().unwrap_or_default();
            // Decoding makes no name longer, so most are not decoded for each key that is looked for.
            if name.len() < key.len() {
                return None;
            }
            form_urlencoded::parse(pair.as_bytes()).find(|(k, _)| k == key).map(|(_, value)| value)
        };
        self.0.split('&').find_map(found)
    }

    fn number<T: FromStr>(self, key: &str, or: T, error: &'static str) -> Result<T, ApiError> {
        match self.get(key) {
            None => Ok(or),
            Some(text) => number(&text).ok_or(ApiError::bad(error)),
        }
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// When a new job is ready, how long it lives and how many tries it has.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    pub delay_seconds: u32,
    /// `None` is forever.
    pub ttl: Option<Duration>,
    pub tries: NonZeroU16,
}

/// `delay`, `ttl`, `tries`, checked in lmstfy's order.
pub fn life(query: Query<'_>, defaults: &Defaults) -> Result<Life, ApiError> {
    let delay: u32 = query.number("delay", defaults.delay, "invalid delay")?;
    let ttl: u32 = query.number("ttl", defaults.ttl, "invalid ttl")?;
    if ttl > 0 && ttl < delay {
        return Err(ApiError::bad("ttl is shorter than delay"));
    }
    let tries: u16 = query.number("tries", defaults.tries, "invalid tries")?;
    let tries = NonZeroU16::new(tries).ok_or(ApiError::bad("tries shouldn't be zero"))?;
    Ok(Life { delay_seconds: delay, ttl: seconds(u64::from(ttl)), tries })
}

/// `ttr`, `timeout`, `count`.
pub fn consume(
    query: Query<'_>,
    queues: QueueList,
    defaults: &Defaults,
) -> Result<dispatch::Request, ApiError> {
    let ttr: u32 = query.number("ttr", defaults.ttr, "invalid ttr")?;
    let timeout: u32 = query.number("timeout", defaults.timeout, "invalid timeout")?;
    let count: u16 = query.number("count", 1, "invalid count")?;
    if !(1..=100).contains(&count) {
        return Err(ApiError::bad("invalid count"));
    }
    let [ttr, timeout] = [ttr, timeout].map(|seconds| Duration::from_secs(u64::from(seconds)));
    Ok(dispatch::Request { queues, count, ttr, timeout })
}

/// The `limit` of a request to a dead letter: 1 if it is not given. 0 is refused.
pub fn limit(query: Query<'_>) -> Result<u64, ApiError> {
    let limit: i64 = query.number("limit", 1, "invalid limit")?;
    if limit == 0 { Err(ApiError::bad("invalid limit")) } else { Ok(limit.unsigned_abs()) }
}

/// A respawn's `ttl`: `None` is forever.
pub fn respawn_ttl(query: Query<'_>, defaults: &Defaults) -> Result<Option<Duration>, ApiError> {
    let ttl: u32 = query.number("ttl", defaults.ttl, "invalid ttl")?;
    Ok(seconds(u64::from(ttl)))
}

fn seconds(ttl: u64) -> Option<Duration> {
    (ttl > 0).then(|| Duration::from_secs(ttl))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULTS: Defaults = Defaults { ttl: 86400, delay: 0, tries: 1, ttr: 120, timeout: 0 };

    fn queues() -> QueueList {
        let namespace = crate::name::Namespace::parse("ns").expect("a literal");
        let name = crate::name::QueueName::parse("q").expect("a literal");
        crate::name::Queue { namespace, name }.into()
    }

    #[test]
    fn the_first_of_a_repeated_key_counts_and_unknown_ones_do_not() {
        let life = life(Query("freeze_tries=1&delay=007&delay=9&ttl=0"), &DEFAULTS).expect("it is valid");
        assert_eq!((life.delay_seconds, life.ttl), (7, None));
    }

    #[test]
    fn what_is_not_digits_is_no_number() {
        for bad in
            ["delay=", "delay=+1", "delay=-1", "delay=1.0", "delay=0x1", "delay=%201", "delay=4294967296"]
        {
            assert!(life(Query(bad), &DEFAULTS).is_err(), "{bad} should be refused");
        }
        for bad in ["count=0", "count=101", "count=65536", "count="] {
            assert!(consume(Query(bad), queues(), &DEFAULTS).is_err(), "{bad} should be refused");
        }
    }

    proptest! {
        #[test]
        fn the_first_value_is_the_one_that_decoding_everything_finds(query in "[a%=&+26]{0,40}", key in "[a+ &]{0,2}") {
            let all = form_urlencoded::parse(query.as_bytes()).find(|(k, _)| *k == key).map(|(_, v)| v);
            prop_assert_eq!(Query(&query).get(&key), all);
        }

        #[test]
        fn no_query_panics(query in ".*") {
            let _ = (life(Query(&query), &DEFAULTS), limit(Query(&query)));
            let _ = consume(Query(&query), queues(), &DEFAULTS);
        }
    }
}
