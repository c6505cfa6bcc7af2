//! Query parameters, read as in lmstfy: the first of a repeated key counts, unknown keys are ignored, an empty value is
//! a value. Numbers are digits only, with leading zeros allowed. Routes that lmstfy does not have accept decimals in
//! durations.

use std::borrow::Cow;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::Millis;
use crate::dispatch::{self, Weights};
use crate::engine::{Cursor, MAX_LISTED, MAX_NAMED, OnConflict, Revival};
use crate::http::answer::error::ApiError;
use crate::http::state::Defaults;
use crate::job::{Reason, Receipt};
use crate::name::{JobKey, QueueList};
use crate::search::{Filter, LONGEST};
use crate::time;

#[derive(Debug, Clone, Copy)]
pub struct Query<'a>(pub &'a str);

impl<'a> Query<'a> {
    /// Returns the first value of `key`.
    pub fn get(self, key: &str) -> Option<Cow<'a, str>> {
        // Most queries need no decoding, which takes 1,300 more instructions for the three parameters of a publish, and
        // 2,500 for the five of a consume: 3 and 6 % of a request.
        if self.0.bytes().any(|byte| byte == b'%' || byte == b'+') {
            return form_urlencoded::parse(self.0.as_bytes()).find(|(k, _)| k == key).map(|(_, value)| value);
        }
        let mut pairs = self.0.split('&').filter(|pair| !pair.is_empty());
        let value = pairs.find_map(|pair| {
            let rest = pair.strip_prefix(key)?;
            if rest.is_empty() { Some(rest) } else { rest.strip_prefix('=') }
        });
        value.map(Cow::Borrowed)
    }

    fn number<T: FromStr>(self, key: &str, or: T, error: &'static str) -> Result<T, ApiError> {
        match self.get(key) {
            None => Ok(or),
            Some(text) => time::digits(&text).ok_or(ApiError::bad(error)),
        }
    }
}

/// Delay, time to live and tries of a new job.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    pub delay: Duration,
    /// `None` is forever.
    pub ttl: Option<Duration>,
    pub tries: NonZeroU16,
}

/// Extra lifetime of a job of lmstfy's routes whose ttl equals its delay. lmstfy delivers such a job, because its pump
/// runs up to a second early.
const GRACE: Duration = Duration::from_secs(60);

/// Reads `delay`, `ttl` and `tries` of lmstfy's routes, in lmstfy's order of checks.
pub fn life(query: Query<'_>, defaults: &Defaults) -> Result<Life, ApiError> {
    let delay: u32 = query.number("delay", defaults.delay, "invalid delay")?;
    let ttl: u32 = query.number("ttl", defaults.ttl, "invalid ttl")?;
    if ttl > 0 && ttl < delay {
        return Err(SHORT_TTL);
    }
    let tries = tries(query.get("tries").as_deref(), defaults.tries)?;
    let grace = if ttl == delay { GRACE } else { Duration::ZERO };
    let ttl = seconds(u64::from(ttl)).map(|ttl| ttl + grace);
    Ok(Life { delay: Duration::from_secs(u64::from(delay)), ttl, tries })
}

const SHORT_TTL: ApiError = ApiError::bad("ttl is shorter than delay");
const NO_TIME: ApiError = ApiError::bad("ttl equals delay: the job would expire when it is due");

fn tries(given: Option<&str>, or: u16) -> Result<NonZeroU16, ApiError> {
    let tries: u16 = given.map_or(Some(or), time::digits).ok_or(ApiError::bad("invalid tries"))?;
    NonZeroU16::new(tries).ok_or(ApiError::bad("tries shouldn't be zero"))
}

/// Parses a `ttl` with decimals. The default is the configured one, counted from when the job is due.
fn ttl(given: Option<&str>, delay: Duration, defaults: &Defaults) -> Result<Option<Duration>, ApiError> {
    let Some(given) = given else {
        return Ok(seconds(u64::from(defaults.ttl)).map(|ttl| ttl + delay));
    };
    let ttl = time::duration(given).ok_or(ApiError::bad("invalid ttl"))?;
    match ttl {
        Duration::ZERO => Ok(None),
        ttl if ttl < delay => Err(SHORT_TTL),
        ttl if ttl == delay => Err(NO_TIME),
        ttl => Ok(Some(ttl)),
    }
}

/// Parameters of a job on the routes that lmstfy does not have, as strings from a query or a JSON object.
#[derive(Debug, Default)]
pub struct GivenJob<'a> {
    pub delay: Option<Cow<'a, str>>,
    pub at: Option<Cow<'a, str>>,
    pub at_ms: Option<Cow<'a, str>>,
    pub ttl: Option<Cow<'a, str>>,
    pub tries: Option<Cow<'a, str>>,
    pub key: Option<Cow<'a, str>>,
    pub on_conflict: Option<Cow<'a, str>>,
}

/// Placement of a job.
#[derive(Debug)]
pub struct Placement {
    pub life: Life,
    /// Due time, if given instead of a delay.
    pub at: Option<Millis>,
    pub key: Option<(JobKey, OnConflict)>,
}

impl<'a> GivenJob<'a> {
    pub fn from_query(query: Query<'a>) -> GivenJob<'a> {
        GivenJob {
            delay: query.get("delay"),
            at: query.get("at"),
            at_ms: query.get("at_ms"),
            ttl: query.get("ttl"),
            tries: query.get("tries"),
            key: query.get("key"),
            on_conflict: query.get("on_conflict"),
        }
    }

    /// Validates the parameters; `now` is by the store's clock.
    pub fn placement(&self, now: Millis, defaults: &Defaults) -> Result<Placement, ApiError> {
        let (delay, at) = self.due(now, defaults)?;
        let ttl = ttl(self.ttl.as_deref(), delay, defaults)?;
        let tries = tries(self.tries.as_deref(), defaults.tries)?;
        let key = match self.key.as_deref() {
            Some(key) => Some(JobKey::parse(key).ok_or(ApiError::bad("invalid key"))?),
            None => None,
        };
        let on_conflict = match self.on_conflict.as_deref() {
            None | Some("keep") => OnConflict::Keep,
            Some("replace") => OnConflict::Replace,
            Some("fail") => OnConflict::Fail,
            Some(_) => return Err(ApiError::bad("invalid on_conflict")),
        };
        Ok(Placement { life: Life { delay, ttl, tries }, at, key: key.map(|key| (key, on_conflict)) })
    }

    /// Returns the delay, and the due time if given.
    fn due(&self, now: Millis, defaults: &Defaults) -> Result<(Duration, Option<Millis>), ApiError> {
        let at = match (&self.delay, &self.at, &self.at_ms) {
            (None, None, None) => return Ok((Duration::from_secs(u64::from(defaults.delay)), None)),
            (Some(delay), None, None) => {
                return Ok((time::duration(delay).ok_or(ApiError::bad("invalid delay"))?, None));
            }
            (None, Some(at), None) => time::instant(at).ok_or(ApiError::bad("invalid at"))?,
            (None, None, Some(at)) => time::instant_in_millis(at).ok_or(ApiError::bad("invalid at_ms"))?,
            _ => return Err(ApiError::bad("only one of delay, at and at_ms can be given")),
        };
        let delay = Duration::from_millis(at.saturating_sub(now));
        if delay > time::LONGEST {
            return Err(ApiError::bad("at is too far away"));
        }
        Ok((delay, Some(at)))
    }
}

/// Reads the `tries`, `delay` and `ttl` of a respawn by id.
pub fn revival(query: Query<'_>, defaults: &Defaults) -> Result<Revival, ApiError> {
    let delay = duration(query, "delay", 0, "invalid delay")?;
    let ttl = ttl(query.get("ttl").as_deref(), delay, defaults)?;
    Ok(Revival { tries: tries(query.get("tries").as_deref(), 1)?, delay, ttl })
}

/// Reads seconds with decimals; default `or`.
pub fn duration(query: Query<'_>, key: &str, or: u32, error: &'static str) -> Result<Duration, ApiError> {
    match query.get(key) {
        None => Ok(Duration::from_secs(u64::from(or))),
        Some(text) => time::duration(&text).ok_or(ApiError::bad(error)),
    }
}

/// Reads `1` or `0`.
pub fn flag(query: Query<'_>, key: &str, or: bool, error: &'static str) -> Result<bool, ApiError> {
    match query.get(key).as_deref() {
        None => Ok(or),
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) => Err(ApiError::bad(error)),
    }
}

/// Creates a filter. An empty `contains` is ignored. Callers without permission to see bodies cannot search them.
pub fn filter(contains: Option<String>, reason: Option<String>, shows: bool) -> Result<Filter, ApiError> {
    let contains = contains.filter(|text| !text.is_empty());
    if contains.as_ref().is_some_and(|text| text.len() > LONGEST) {
        return Err(ApiError::bad("invalid contains: 1024 bytes at most"));
    }
    if reason.as_ref().is_some_and(|text| text.len() > Reason::MOST) {
        return Err(ApiError::bad("invalid reason: 4096 bytes at most"));
    }
    if contains.is_some() && !shows {
        return Err(ApiError::NO_BODIES);
    }
    Ok(Filter { contains, reason })
}

/// Reads the receipt of a delivery, if given.
pub fn receipt(query: Query<'_>) -> Result<Option<Receipt>, ApiError> {
    match query.get("receipt") {
        None => Ok(None),
        Some(text) => Receipt::parse(&text).map(Some).ok_or(ApiError::bad("invalid receipt")),
    }
}

/// Reads `limit` and `cursor` of a list.
pub fn page(query: Query<'_>, limit: usize) -> Result<(usize, Option<Cursor>), ApiError> {
    let limit = query.number("limit", limit, "invalid limit")?;
    if !(1..=MAX_LISTED).contains(&limit) {
        return Err(ApiError::bad("invalid limit"));
    }
    let cursor = query.get("cursor").map(|text| {
        let fits = (1..=MAX_CURSOR).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b));
        if fits { Ok(Cursor(text.into_owned())) } else { Err(ApiError::BAD_CURSOR) }
    });
    Ok((limit, cursor.transpose()?))
}

/// Maximum length of a cursor: a position among all queues, with the longest pool, namespace and queue names. The
/// cursor of a migrating store, 640 sealed bytes, is shorter.
const MAX_CURSOR: usize = 1200;
/// Maximum body of an ack or respawn of many jobs: the longest ids and receipts, plus space around them.
pub const MAX_NAMES: usize = 64 << 10;
/// Maximum weight of a queue.
const MAX_WEIGHT: u16 = 1000;

/// Reads the `weights` of a consume, one per queue. A single queue needs none.
fn weights(query: Query<'_>, queues: &QueueList) -> Result<Option<Weights>, ApiError> {
    let Some(text) = query.get("weights") else { return Ok(None) };
    let count = queues.names().len();
    let weights = text.split(',').take(count + 1).map(time::digits::<u16>);
    let weights: Option<Vec<u16>> =
        weights.map(|weight| weight.filter(|weight| (1..=MAX_WEIGHT).contains(weight))).collect();
    match weights {
        Some(weights) if weights.len() == count => Ok((count > 1).then(|| Weights::new(weights))),
        _ => Err(ApiError::bad("invalid weights")),
    }
}

/// Reads `ttr`, `timeout`, `count`, `weights`, and whether to include receipts. `head` is the size of the request's
/// head in bytes.
pub fn consume(
    query: Query<'_>,
    queues: QueueList,
    head: usize,
    defaults: &Defaults,
) -> Result<(dispatch::Request, bool), ApiError> {
    let ttr: u32 = query.number("ttr", defaults.ttr, "invalid ttr")?;
    let timeout: u32 = query.number("timeout", defaults.timeout, "invalid timeout")?;
    let count: u16 = query.number("count", 1, "invalid count")?;
    if !(1..=100).contains(&count) {
        return Err(ApiError::bad("invalid count"));
    }
    let [ttr, timeout] = [ttr, timeout].map(|seconds| Duration::from_secs(u64::from(seconds)));
    let receipts = flag(query, "receipt", false, "invalid receipt")?;
    let weights = weights(query, &queues)?;
    Ok((dispatch::Request { queues, weights, count, ttr, timeout, head }, receipts))
}

/// Reads the `limit` of a request to a dead letter list, 1 by default. 0 is rejected.
pub fn limit(query: Query<'_>) -> Result<u64, ApiError> {
    let limit: i64 = query.number("limit", 1, "invalid limit")?;
    if limit == 0 { Err(ApiError::bad("invalid limit")) } else { Ok(limit.unsigned_abs()) }
}

/// Reads the `ttl` of a respawn: `None` is forever.
pub fn respawn_ttl(query: Query<'_>, defaults: &Defaults) -> Result<Option<Duration>, ApiError> {
    let ttl: u32 = query.number("ttl", defaults.ttl, "invalid ttl")?;
    Ok(seconds(u64::from(ttl)))
}

fn seconds(ttl: u64) -> Option<Duration> {
    (ttl > 0).then(|| Duration::from_secs(ttl))
}

/// Checks the number of jobs named in a request.
pub fn check_count(jobs: usize) -> Result<(), ApiError> {
    match jobs {
        0 => Err(ApiError::bad("no jobs")),
        1..=MAX_NAMED => Ok(()),
        _ => Err(ApiError::bad("too many jobs")),
    }
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
        assert_eq!((life.delay, life.ttl), (Duration::from_secs(7), None));
    }

    /// Guards against a delayed job that expires at the instant it is due, and is never delivered.
    #[test]
    fn a_ttl_that_equals_the_delay_leaves_time_to_deliver() {
        let lives = |query: &str, defaults: &Defaults| {
            let life = life(Query(query), defaults).unwrap_or_else(|e| panic!("{query} is valid: {e:?}"));
            life.ttl.map(|ttl| ttl.as_secs())
        };
        for (query, expected) in [
            ("delay=5&ttl=5", Some(65)),
            ("delay=4294967295&ttl=4294967295", Some(4_294_967_355)),
            ("delay=5&ttl=6", Some(6)),
            ("delay=0&ttl=0", None),
            ("delay=5&ttl=0", None),
        ] {
            assert_eq!(lives(query, &DEFAULTS), expected, "{query}");
        }
        let equal = Defaults { ttl: 7, delay: 7, ..DEFAULTS };
        assert_eq!(lives("", &equal), Some(67), "both are the configured ones");
        assert_eq!(lives("delay=3&ttl=3", &equal), Some(63), "neither is");
    }

    #[test]
    fn what_is_not_digits_is_no_number() {
        for bad in
            ["delay=", "delay=+1", "delay=-1", "delay=1.0", "delay=0x1", "delay=%201", "delay=4294967296"]
        {
            assert!(life(Query(bad), &DEFAULTS).is_err(), "{bad} should be refused");
        }
        for bad in ["count=0", "count=101", "count=65536", "count="] {
            assert!(consume(Query(bad), queues(), 0, &DEFAULTS).is_err(), "{bad} should be refused");
        }
    }

    fn placement(query: &str) -> Result<Placement, ApiError> {
        GivenJob::from_query(Query(query)).placement(1_000_000, &DEFAULTS)
    }

    #[test]
    fn a_job_is_due_after_a_delay_or_at_an_instant() {
        let day = Duration::from_secs(86400);
        for (query, delay, at, ttl) in [
            ("", 0, None, day),
            ("delay=1.5", 1500, None, day + Duration::from_millis(1500)),
            ("at_ms=1000250", 250, Some(1_000_250), day + Duration::from_millis(250)),
            ("at=1000.25", 250, Some(1_000_250), day + Duration::from_millis(250)),
            ("at=1970-01-01T00:16:41Z", 1000, Some(1_001_000), day + Duration::from_secs(1)),
            ("at=1970-01-01T01:16:41+01:00&ttl=1.001", 1000, Some(1_001_000), Duration::from_millis(1001)),
            ("at=999&ttl=0.001", 0, Some(999_000), Duration::from_millis(1)),
        ] {
            let placed = placement(query).unwrap_or_else(|e| panic!("{query} should be fine: {e:?}"));
            let due = (placed.life.delay, placed.at, placed.life.ttl);
            assert_eq!(due, (Duration::from_millis(delay), at, Some(ttl)), "{query}");
        }
        assert_eq!(placement("ttl=0&delay=4294967295").expect("it is fine").life.ttl, None, "forever");
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for bad in [
            "delay=1&at=2",
            "at=1&at_ms=1",
            "delay=&at=1",
            "delay=x",
            "at=",
            "at=tomorrow",
            "at=9999-01-01T00:00:00Z",
            "at_ms=1.5",
            "delay=2&ttl=1.999",
            "delay=2&ttl=2",
            "at_ms=1002000&ttl=2",
            "ttl=",
            "tries=0",
            "tries=1.0",
            "key=",
            "key=a+b",
            "on_conflict=",
            "on_conflict=Keep",
        ] {
            assert!(placement(bad).is_err(), "{bad} should be refused");
        }
    }

    #[test]
    fn a_key_says_what_a_taken_one_means() {
        for (query, means) in [
            ("key=k", OnConflict::Keep),
            ("key=k&on_conflict=keep", OnConflict::Keep),
            ("key=k&on_conflict=replace", OnConflict::Replace),
            ("key=k&on_conflict=fail", OnConflict::Fail),
        ] {
            let key = placement(query).expect("it is fine").key.map(|(key, means)| (key.to_string(), means));
            assert_eq!(key, Some(("k".to_owned(), means)), "{query}");
        }
        assert!(placement("on_conflict=fail").expect("it is fine").key.is_none(), "there is no key");
    }

    #[test]
    fn there_is_a_weight_for_each_queue() {
        let namespace = crate::name::Namespace::parse("ns").expect("a literal");
        let names = ["a", "b"].map(|name| crate::name::QueueName::parse(name).expect("a literal"));
        let two = QueueList::new(namespace, names).expect("not empty");
        let of = |queues: &QueueList, query: &str| {
            weights(Query(query), queues).map(|w| w.map(|w| w.as_slice().to_vec()))
        };
        assert_eq!(of(&two, "weights=5,1000").expect("two"), Some(vec![5, 1000]));
        assert_eq!(of(&two, "x=1").expect("none"), None);
        assert_eq!(of(&queues(), "weights=7").expect("one"), None, "one queue gets all");
        for bad in ["", "1", "1,", ",1", "1,2,3", "0,1", "1001,1", "-1,1", "1;2", "1, 2", "a,b", "65537,1"] {
            assert!(of(&two, &format!("weights={bad}")).is_err(), "weights={bad} should be refused");
        }
    }

    #[test]
    fn a_page_has_a_limit_and_perhaps_a_cursor() {
        let of = |query: &str| page(Query(query), 20).map(|(limit, cursor)| (limit, cursor.map(|c| c.0)));
        assert_eq!(of("").expect("it is fine"), (20, None));
        assert_eq!(of("limit=100&cursor=a-_9").expect("it is fine"), (100, Some("a-_9".to_owned())));
        let long = format!("cursor={}", "a".repeat(MAX_CURSOR + 1));
        for bad in ["limit=0", "limit=101", "limit=", "cursor=", "cursor=%20", "cursor=a/b", &long] {
            assert!(of(bad).is_err(), "{bad} should be refused");
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
            let _ = (consume(Query(&query), queues(), 0, &DEFAULTS), revival(Query(&query), &DEFAULTS));
            let _ = (placement(&query), page(Query(&query), 1), receipt(Query(&query)));
        }
    }
}
