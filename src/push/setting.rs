//! The setting of a pushed queue, as operators write it and as it is stored. Every error names its field. Knows no
//! store.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use url::{Host, Url};

use super::address::AddressGuard;
use super::ok_when::{MAX_PARTS, OkWhen};
use crate::name::QueueName;

/// Maximum size of a setting in bytes.
pub const MAX_SETTING: usize = 64 << 10;
const MAX_URL: usize = 2048;
const MAX_HEADERS: usize = 32;
const MAX_RETRIES: usize = 256;
/// Longest pause between two attempts, in seconds.
const MAX_RETRY: f64 = 30.0 * 86_400.0;
const MAX_RATE: u64 = 100_000;
const MAX_PER: u64 = 3600;
const DEFAULT_RETRY: [f64; 5] = [5.0, 30.0, 300.0, 1800.0, 7200.0];
const FIELDS: &str = "url method headers timeout concurrency rate per retry ok_when format on_dead";

/// How a pushed queue is delivered. Its `Debug` shows no value of a header.
#[derive(Clone, PartialEq)]
pub struct Setting {
    pub url: Url,
    pub method: Method,
    /// As given. The values are secrets.
    pub headers: BTreeMap<String, String>,
    pub timeout: Duration,
    pub concurrency: u32,
    /// 0 means no limit.
    pub rate: u32,
    pub per: Duration,
    /// Seconds before the second attempt, the third, and so on; the last value repeats. Not empty.
    pub retry: Vec<f64>,
    pub ok_when: Option<OkWhen>,
    pub cloud_events: bool,
    pub on_dead: Option<QueueName>,
}

/// Whether push sets this header itself.
fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str();
    ["webhook-", "dormouse-", "job-attr-"].iter().any(|prefix| name.starts_with(prefix))
        || ["host", "content-length", "transfer-encoding", "connection"].contains(&name)
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({})", self.to_json(false))
    }
}

impl Setting {
    /// Parses a setting as an operator wrote it, or as [`to_json`](Setting::to_json) stored it. The error names the
    /// field.
    pub fn parse(given: &Value, queue: &QueueName) -> Result<Setting, String> {
        let Value::Object(given) = given else { return Err("the setting should be a JSON object".into()) };
        if let Some(unknown) = given.keys().find(|key| !FIELDS.split(' ').any(|field| field == *key)) {
            return Err(format!("unknown field {:?}", shorten(unknown)));
        }
        let per = integer(given, "per", 1, 1..=MAX_PER)?;
        let on_dead = on_dead(given)?;
        if on_dead.as_ref() == Some(queue) {
            return Err("on_dead should name another queue".into());
        }
        Ok(Setting {
            url: url(given)?,
            method: match text(given, "method")? {
                None | Some("POST") => Method::POST,
                Some("PUT") => Method::PUT,
                Some(_) => return Err("method should be POST or PUT".into()),
            },
            headers: headers(given)?,
            timeout: Duration::from_secs(integer(given, "timeout", 15, 1..=300)?),
            concurrency: integer(given, "concurrency", 10, 1..=1000)? as u32,
            rate: integer(given, "rate", 0, 0..=MAX_RATE)? as u32,
            per: Duration::from_secs(per),
            retry: retry(given)?,
            ok_when: ok_when(given)?,
            cloud_events: match text(given, "format")? {
                None | Some("raw") => false,
                Some("cloudevents") => true,
                Some(_) => return Err("format should be raw or cloudevents".into()),
            },
            on_dead,
        })
    }

    /// Returns why this server would never call the URL; `None` if it would, or if the host is a name, which is
    /// checked later.
    pub fn refused(&self, guard: &AddressGuard) -> Option<String> {
        if guard.https_only && self.url.scheme() != "https" {
            return Some("url should be https, as PushHttps requires".into());
        }
        let address = match self.url.host()? {
            Host::Ipv4(address) => address.into(),
            Host::Ipv6(address) => address.into(),
            Host::Domain(_) => return None,
        };
        let why = guard.refuses(address)?;
        Some(format!("url: {address} is {why}: push calls only public addresses, and PushAllow"))
    }

    /// Returns all fields, with the values of headers, or with null in their place.
    pub fn to_json(&self, with_values: bool) -> Value {
        let headers: Map<String, Value> = self
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), if with_values { json!(value) } else { Value::Null }))
            .collect();
        let mut all = json!({
            "url": self.url.as_str(),
            "method": self.method.as_str(),
            "timeout": self.timeout.as_secs(),
            "concurrency": self.concurrency,
            "rate": self.rate,
            "per": self.per.as_secs(),
            "retry": self.retry.iter().copied().map(number).collect::<Vec<_>>(),
            "format": if self.cloud_events { "cloudevents" } else { "raw" },
        });
        if !headers.is_empty() {
            all["headers"] = headers.into();
        }
        if let Some(OkWhen { pointer, equals }) = &self.ok_when {
            all["ok_when"] = json!({"pointer": pointer, "equals": equals});
        }
        if let Some(queue) = &self.on_dead {
            all["on_dead"] = json!(queue.as_str());
        }
        all
    }

    /// Returns the pause after the `n`-th attempt, without jitter.
    pub fn pause_after(&self, n: u64) -> Duration {
        let at = usize::try_from(n.saturating_sub(1)).unwrap_or(usize::MAX).min(self.retry.len() - 1);
        Duration::from_secs_f64(self.retry[at])
    }
}

/// Shows a whole number without a fraction.
fn number(seconds: f64) -> Value {
    if seconds.fract() == 0.0 { json!(seconds as u64) } else { json!(seconds) }
}

fn shorten(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

fn text<'a>(given: &'a Map<String, Value>, field: &str) -> Result<Option<&'a str>, String> {
    let text = |value: &'a Value| value.as_str().ok_or_else(|| format!("{field} should be a string"));
    given.get(field).map(text).transpose()
}

fn integer(
    given: &Map<String, Value>,
    field: &str,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, String> {
    let Some(value) = given.get(field) else { return Ok(default) };
    value
        .as_u64()
        .filter(|value| range.contains(value))
        .ok_or_else(|| format!("{field} should be a whole number from {} to {}", range.start(), range.end()))
}

fn url(given: &Map<String, Value>) -> Result<Url, String> {
    let text = text(given, "url")?.ok_or("url is missing")?;
    if text.len() > MAX_URL {
        return Err(format!("url should have {MAX_URL} bytes at most"));
    }
    let mut url = Url::parse(text).map_err(|error| format!("url cannot be read: {error}"))?;
    if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
        return Err("url should begin with http:// or https://".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("url should hold no user and password: give a header Authorization".into());
    }
    if url.port() == Some(0) {
        return Err("url should not name port 0".into());
    }
    url.set_fragment(None);
    // Percent-encoding may have made it longer.
    if url.as_str().len() > MAX_URL {
        return Err(format!("url should have {MAX_URL} bytes at most, percent-encoded"));
    }
    Ok(url)
}

fn headers(given: &Map<String, Value>) -> Result<BTreeMap<String, String>, String> {
    let given = match given.get("headers") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(given)) => given,
        Some(_) => return Err("headers should be an object of strings".into()),
    };
    if given.len() > MAX_HEADERS {
        return Err(format!("at most {MAX_HEADERS} headers are allowed"));
    }
    let mut headers = BTreeMap::new();
    for (name, value) in given {
        let shown = shorten(name);
        let parsed =
            HeaderName::try_from(name).map_err(|_| format!("headers: {shown:?} is not a valid name"))?;
        if is_ours(&parsed) {
            return Err(format!("headers may not name {shown:?}: push sets it"));
        }
        let value = value.as_str().filter(|value| HeaderValue::from_str(value).is_ok());
        let value = value.ok_or_else(|| format!("headers: the value of {shown:?} cannot be sent"))?;
        headers.insert(name.clone(), value.to_owned());
    }
    Ok(headers)
}

fn retry(given: &Map<String, Value>) -> Result<Vec<f64>, String> {
    let wrong =
        || format!("retry should be a list of 1 to {MAX_RETRIES} numbers of seconds from 0 to {MAX_RETRY}");
    let Some(value) = given.get("retry") else { return Ok(DEFAULT_RETRY.into()) };
    let list = value.as_array().filter(|list| (1..=MAX_RETRIES).contains(&list.len())).ok_or_else(wrong)?;
    let seconds = |value: &Value| value.as_f64().filter(|seconds| (0.0..=MAX_RETRY).contains(seconds));
    list.iter().map(seconds).collect::<Option<_>>().ok_or_else(wrong)
}

fn ok_when(given: &Map<String, Value>) -> Result<Option<OkWhen>, String> {
    let Some(value) = given.get("ok_when") else { return Ok(None) };
    let wrong = || "ok_when should be {\"pointer\": \"/a/b\", \"equals\": ..}".to_owned();
    let fields = value.as_object().filter(|fields| fields.len() == 2).ok_or_else(wrong)?;
    let pointer = fields.get("pointer").and_then(Value::as_str).ok_or_else(wrong)?;
    let equals = fields.get("equals").ok_or_else(wrong)?;
    if !(pointer.is_empty() || pointer.starts_with('/')) {
        return Err("ok_when: the pointer should be empty or begin with /".into());
    }
    if pointer.matches('/').count() > MAX_PARTS {
        return Err(format!("ok_when: the pointer should have {MAX_PARTS} parts at most"));
    }
    Ok(Some(OkWhen { pointer: pointer.to_owned(), equals: equals.clone() }))
}

fn on_dead(given: &Map<String, Value>) -> Result<Option<QueueName>, String> {
    let parse = |queue| QueueName::parse(queue).map_err(|error| format!("on_dead: {error}"));
    text(given, "on_dead")?.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> QueueName {
        QueueName::parse("mail").expect("a literal")
    }

    fn parse(setting: Value) -> Result<Setting, String> {
        Setting::parse(&setting, &queue())
    }

    #[test]
    fn only_the_url_is_required() {
        let setting = parse(json!({"url": "https://shop.example/jobs"})).expect("a setting");
        let expected = json!({
            "url": "https://shop.example/jobs", "method": "POST", "timeout": 15, "concurrency": 10, "rate": 0,
            "per": 1, "retry": [5, 30, 300, 1800, 7200], "format": "raw",
        });
        assert_eq!(setting.to_json(true), expected);
    }

    #[test]
    fn a_setting_survives_its_text() {
        let setting = parse(json!({
            "url": "http://shop.example:8080/jobs?a=b#c", "method": "PUT", "headers": {"Authorization": "Bearer x"},
            "timeout": 300, "concurrency": 1000, "rate": 5, "per": 60, "retry": [0, 0.5, 7],
            "ok_when": {"pointer": "/code", "equals": 0}, "format": "cloudevents", "on_dead": "failed",
        }))
        .expect("a setting");
        assert_eq!(parse(setting.to_json(true)).as_ref(), Ok(&setting), "read as it was written");
        assert!(!setting.to_json(false).to_string().contains("Bearer"), "no value of a header is shown");
        assert!(!format!("{setting:?}").contains("Bearer"), "nor by Debug: {setting:?}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let named = |setting: Value, names: &str| {
            let error = parse(setting.clone()).expect_err(&setting.to_string());
            assert!(error.contains(names), "{setting}: the error should name {names}: {error}");
        };
        let url = "https://shop.example/";
        for (field, values) in [
            ("url", json!([5, "shop.example", "ftp://shop.example", "file:///etc/passwd", "https://"])),
            ("colour", json!([1])),
            ("method", json!(["GET"])),
            ("timeout", json!([0, 301, "15"])),
            ("concurrency", json!([0, 1001])),
            ("rate", json!([-1])),
            ("per", json!([0])),
            ("retry", json!([[], [-1], ["5"]])),
            (
                "ok_when",
                json!([{"pointer": "code", "equals": 0}, {"pointer": "/code"}, {"pointer": "/a".repeat(101), "equals": 0}]),
            ),
            ("format", json!(["xml"])),
            ("on_dead", json!(["a/b", "mail"])),
        ] {
            for value in values.as_array().expect("a list") {
                let mut setting = json!({"url": url});
                setting[field] = value.clone();
                named(setting, field);
            }
        }
        let ours = "Webhook-Id dormouse-queue Job-Attr-X Host content-length Transfer-Encoding Connection";
        for name in ours.split(' ').chain(["a b"]) {
            named(json!({"url": url, "headers": {name: "1"}}), name);
        }
        named(json!({"url": url, "headers": {"a": "1\n2"}}), "\"a\"");
        named(json!({"url": "https://u:p@shop.example/"}), "Authorization");
        named(json!([]), "JSON object");
        named(json!({}), "url");
    }

    #[test]
    fn a_forbidden_address_is_known_however_it_is_written() {
        // Decimal, octal, hexadecimal, short, mixed, encoded, mapped, with a dot at the end.
        let all = "127.0.0.1 2130706433 017700000001 0x7f000001 0x7f.0x0.0x0.0x1 0177.0.0.1 127.1 127.0.1 0x7f.1 0 \
            0.0.0.0 127.0.0.1. %31%32%37.0.0.1 [::1] [::] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::ffff:7f00:1] \
            [::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] 10.0.0.1 0xa.1 167772161 [::ffff:10.0.0.1] \
            172.16.0.1 192.168.0.1 3232235521 169.254.169.254 2852039166 0xa9fea9fe 0251.0376.0251.0376 \
            [::ffff:169.254.169.254] [fd00:ec2::254] [fe80::1] [fc00::1] [ff02::1] 224.0.0.1 100.100.100.200 \
            255.255.255.255 [::ffff:a9fe:a9fe]";
        for host in all.split(' ') {
            let setting = parse(json!({"url": format!("http://{host}:8080/x")}));
            let setting = setting.unwrap_or_else(|error| panic!("{host}: {error}"));
            assert!(setting.refused(&AddressGuard::default()).is_some(), "{host} became {}", setting.url);
        }
        // Digits and dots of other scripts, which some parsers read as ASCII, and names beyond ASCII.
        for host in ["１２７.0.0.1", "①②⑦.0.0.1", "127。0。0。1", "bücher.example"] {
            let refused = parse(json!({"url": format!("http://{host}:8080/x")})).expect_err(host);
            assert!(refused.contains("url cannot be read"), "{host}: {refused}");
        }
        parse(json!({"url": "http://xn--bcher-kva.example/x"}))
            .expect("a name beyond ASCII, as it is written in ASCII");
        let public = parse(json!({"url": "http://1.1.1.1/"})).expect("a setting");
        assert_eq!(public.refused(&AddressGuard::default()), None);
        let https = AddressGuard::new(&[], true).expect("no entries");
        assert!(public.refused(&https).is_some(), "http is refused");
    }

    #[test]
    fn the_last_pause_repeats() {
        let setting = parse(json!({"url": "http://a/", "retry": [1, 2.5]})).expect("a setting");
        let pauses: Vec<f64> = (1..=4).map(|n| setting.pause_after(n).as_secs_f64()).collect();
        assert_eq!(pauses, [1.0, 2.5, 2.5, 2.5]);
    }
}
