//! Rejected settings with their messages, which must be clear without the documentation: they quote the value and say
//! what is valid.

use serde_json::{Value, json};

use super::*;

/// Expressions: the field, and the error.
const EXPRESSIONS: &[(&str, &str, &str)] = &[
    (
        "",
        "",
        "the expression is empty: write five (minute hour day month weekday), or six with the second first",
    ),
    (
        "* * * *",
        "",
        r#""* * * *" has 4 fields: write five (minute hour day month weekday), or six with the second first"#,
    ),
    (
        "30",
        "",
        r#""30" has 1 field: write five (minute hour day month weekday), or six with the second first"#,
    ),
    (
        "0 0 12 * * * 2026",
        "",
        r#""0 0 12 * * * 2026" has 7 fields: write five (minute hour day month weekday), or six with the second first; for years give the fields "start" and "end""#,
    ),
    ("60 * * * *", "minute", r#"minute: "60" is out of range: write 0 to 59"#),
    ("* 24 * * *", "hour", r#"hour: "24" is out of range: write 0 to 23; midnight is 0"#),
    ("* * 0 * *", "day", r#"day: "0" is out of range: write 1 to 31"#),
    ("* * 32 * *", "day", r#"day: "32" is out of range: write 1 to 31"#),
    ("* * * 13 *", "month", r#"month: "13" is out of range: write 1 to 12"#),
    ("* * * * 8", "weekday", r#"weekday: "8" is out of range: write 0 to 7"#),
    ("30-10 * * * *", "minute", r#"minute: the range "30-10" is reversed: write 30-59,0-10"#),
    ("* 22-2 * * *", "hour", r#"hour: the range "22-2" is reversed: write 22-23,0-2"#),
    ("* * * NOV-FEB *", "month", r#"month: the range "NOV-FEB" is reversed: write NOV-DEC,JAN-FEB"#),
    ("* * * * FRI-MON", "weekday", r#"weekday: the range "FRI-MON" is reversed: write FRI-SUN,MON"#),
    ("* * * * SAT-0", "weekday", r#"weekday: the range "SAT-0" is reversed: write SAT-SUN"#),
    ("* * * * 6-0", "weekday", r#"weekday: the range "6-0" is reversed: write 6-SUN"#),
    (
        "*/90 * * * *",
        "minute",
        r#"minute: the step of "*/90" is larger than 59: write 1 to 59, or, for one each 5400 seconds, give "every": 5400 in place of "cron""#,
    ),
    ("*/0 * * * *", "minute", r#"minute: the step of "*/0" is 0: write 1 to 59"#),
    (
        "* */24 * * *",
        "hour",
        r#"hour: the step of "*/24" is larger than 23: write 1 to 23, or, for one each 86400 seconds, give "every": 86400 in place of "cron""#,
    ),
    ("* * * */13 *", "month", r#"month: the step of "*/13" is larger than 12: write 1 to 12"#),
    ("*/x * * * *", "minute", r#"minute: the step of "*/x" is not a number: write 1 to 59"#),
    (
        "0 0 */2 * MON",
        "day",
        r#"day: crons disagree about "*/2" while weekday is "MON": write 1-31/2 for days that match either, or * for one of the two"#,
    ),
    (
        "0 0 15 * */2",
        "weekday",
        r#"weekday: crons disagree about "*/2" while day is "15": write 0-6/2 for days that match either, or * for one of the two"#,
    ),
    (
        "0 0 */2 * */3",
        "day",
        r#"day: crons disagree about "*/2" while weekday is "*/3": write 1-31/2 for days that match either, or * for one of the two"#,
    ),
    (
        "@reboot",
        "",
        r#""@reboot" is not known: a schedule does not start: publish a job where your program starts"#,
    ),
    (
        "@every 5m",
        "",
        r#""@every 5m" is not known: give the seconds as the field "every", such as "every": 300"#,
    ),
    (
        "@fortnightly",
        "",
        r#""@fortnightly" is not known: write @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly or five fields"#,
    ),
    (
        "TZ=Europe/Berlin 0 0 * * *",
        "",
        r#""TZ=Europe/Berlin 0 0 * * *" sets a zone: give it as the field "zone": "Europe/Berlin""#,
    ),
    (
        "CRON_TZ=UTC * * * * *",
        "",
        r#""CRON_TZ=UTC * * * * *" sets a zone: give it as the field "zone": "UTC""#,
    ),
    ("30 2 31 2 *", "day", r#"day: "31" of month "2" never comes: write 1 to 29, or L for the last day"#),
    (
        "30 2 30,31 FEB *",
        "day",
        r#"day: "30,31" of month "FEB" never comes: write 1 to 29, or L for the last day"#,
    ),
    (
        "0 0 31 4,6,9,11 ?",
        "day",
        r#"day: "31" of month "4,6,9,11" never comes: write 1 to 30, or L for the last day"#,
    ),
    ("0 0 * MON *", "month", r#"month: "MON" is a weekday: write 1 to 12, or JAN to DEC"#),
    (
        "0 0 * * JAN",
        "weekday",
        r#"weekday: "JAN" is a month: write 0 to 7 (0 and 7 are Sunday), SUN to SAT, FRIL or MON#2"#,
    ),
    ("0 0 * * MONDAY", "weekday", r#"weekday: "MONDAY" is too long: write MON"#),
    ("0 0 * JANUARY *", "month", r#"month: "JANUARY" is too long: write JAN"#),
    ("? * * * *", "minute", r#"minute: "?": ? is for day and weekday alone: write *"#),
    ("0 0 ?/2 * *", "day", r#"day: "?/2": ? stands alone in its field: write it alone, or *"#),
    (
        "H * * * *",
        "minute",
        r#"minute: "H" is not known: write 0 to 59, and spread jobs with the field "jitter""#,
    ),
    (
        "0~30 * * * *",
        "minute",
        r#"minute: "0~30" is not known: write 0 to 59, and spread jobs with the field "jitter""#,
    ),
    ("0 0 L-3 * *", "day", r#"day: "L-3" is not known: write L for the last day, or 28 to 31"#),
    (
        "0 0 L/2 * *",
        "day",
        r#"day: "L/2": L, LW and 15W stand alone or in lists: write them without range and step"#,
    ),
    (
        "0 0 1-15W * *",
        "day",
        r#"day: "1-15W": L, LW and 15W stand alone or in lists: write them without range and step"#,
    ),
    (
        "0 0 * * L",
        "weekday",
        r#"weekday: "L" names no weekday: write FRIL for the last Friday, or SAT for each Saturday"#,
    ),
    ("0 0 * * MON#6", "weekday", r##"weekday: "MON#6": after # write which one of the month: 1 to 5"##),
    ("0 0 * * MON#+2", "weekday", r##"weekday: "MON#+2": after # write which one of the month: 1 to 5"##),
    ("*/+5 * * * *", "minute", r#"minute: the step of "*/+5" is not a number: write 1 to 59"#),
    ("0 0 * * MON#", "weekday", r##"weekday: "MON#": after # write which one of the month: 1 to 5"##),
    (
        "0 0 * * #2",
        "weekday",
        r##"weekday: "#2" cannot be read: write 0 to 7 (0 and 7 are Sunday), SUN to SAT, FRIL or MON#2"##,
    ),
    ("0 0 2#1 * *", "day", r##"day: "2#1": "#" is for weekdays: write it in the last field"##),
    ("1,,2 * * * *", "minute", r#"minute: "1,,2" has an empty element: remove the comma"#),
    (",1 * * * *", "minute", r#"minute: ",1" has an empty element: remove the comma"#),
    ("5- * * * *", "minute", r#"minute: "5-" cannot be read: write 0 to 59"#),
    ("-5 * * * *", "minute", r#"minute: "-5" cannot be read: write 0 to 59"#),
    ("1-2-3 * * * *", "minute", r#"minute: "1-2-3" cannot be read: write 0 to 59"#),
    ("1/2/3 * * * *", "minute", r#"minute: the step of "1/2/3" is not a number: write 1 to 59"#),
    ("/5 * * * *", "minute", r#"minute: "/5" cannot be read: write 0 to 59"#),
    ("+5 * * * *", "minute", r#"minute: "+5" cannot be read: write 0 to 59"#),
    ("5/+5 * * * *", "minute", r#"minute: the step of "5/+5" is not a number: write 1 to 59"#),
    ("1.5 * * * *", "minute", r#"minute: "1.5" cannot be read: write 0 to 59"#),
    ("٣ * * * *", "minute", r#"minute: "٣" cannot be read: write 0 to 59"#),
    ("a b c d e", "minute", r#"minute: "a" cannot be read: write 0 to 59"#),
    ("0 0 32W * *", "day", r#"day: "32" is out of range: write 1 to 31"#),
    ("0 0 0W * *", "day", r#"day: "0" is out of range: write 1 to 31"#),
    (
        "0 0 W * *",
        "day",
        r#"day: "W": L, LW and 15W stand alone or in lists: write them without range and step"#,
    ),
    ("99999999999 * * * *", "minute", r#"minute: "99999999999" is out of range: write 0 to 59"#),
    ("0 0 * * FRI#L", "weekday", r##"weekday: "FRI#L": after # write which one of the month: 1 to 5"##),
    (
        "0 0 29 2 MON,*/2",
        "weekday",
        r#"weekday: crons disagree about "*/2" while day is "29": write 0-6/2 for days that match either, or * for one of the two"#,
    ),
    (
        "0 0 1 1 *,1",
        "weekday",
        r#"weekday: crons disagree about "*" while day is "1": write 0-6 for days that match either, or * for one of the two"#,
    ),
    (
        "0 0 * * 1L/2",
        "weekday",
        r#"weekday: "1L/2" cannot be read: write 0 to 7 (0 and 7 are Sunday), SUN to SAT, FRIL or MON#2"#,
    ),
    ("0 0 * * 7-1", "weekday", r#"weekday: the range "7-1" is reversed: write 7,1"#),
    ("0 0 * FEB-JAN *", "month", r#"month: the range "FEB-JAN" is reversed: write FEB-DEC,JAN"#),
    ("5-1/2 * * * *", "minute", r#"minute: the range "5-1/2" is reversed: write 5-59/2,0-1/2"#),
    ("0 0 * * 9L", "weekday", r#"weekday: "9" is out of range: write 0 to 7"#),
];

/// Fields in addition to `"queue": "q", "every": 60`, and the error.
const FIELDS: &[(&str, &str, &str)] = &[
    (
        "queue",
        r#""_x""#,
        r#""_x" is not a valid queue: write 1 to 255 of letters, digits, - and _, not _ first"#,
    ),
    (
        "queue",
        r#""a/b""#,
        r#""a/b" is not a valid queue: write 1 to 255 of letters, digits, - and _, not _ first"#,
    ),
    ("queue", "5", "queue cannot be 5: write a string"),
    ("queue", r#""""#, r#""" is not a valid queue: write 1 to 255 of letters, digits, - and _, not _ first"#),
    (
        "every",
        "0",
        "0 is not a valid interval: write seconds from 1 to 31536000, with three decimals at most",
    ),
    (
        "every",
        "0.5",
        "0.5 is not a valid interval: write seconds from 1 to 31536000, with three decimals at most",
    ),
    (
        "every",
        "1.0005",
        "1.0005 is not a valid interval: write seconds from 1 to 31536000, with three decimals at most",
    ),
    (
        "every",
        r#""5m""#,
        r#""5m" is not a valid interval: write seconds from 1 to 31536000, with three decimals at most"#,
    ),
    (
        "every",
        "31536001",
        "31536001 is not a valid interval: write seconds from 1 to 31536000, with three decimals at most",
    ),
    (
        "every",
        "-5",
        "-5 is not a valid interval: write seconds from 1 to 31536000, with three decimals at most",
    ),
    ("cron", r#""* * * * *""#, "both cron and every are given: leave one out"),
    ("cron", "5", "cron cannot be 5: write a string"),
    (
        "zone",
        r#""europe/berlin""#,
        r#""europe/berlin" is not a time zone of database 2026f: write "Europe/Berlin""#,
    ),
    (
        "zone",
        r#""+02:00""#,
        r#""+02:00" is not a time zone of database 2026f: write a zone such as "Europe/Berlin", not an offset"#,
    ),
    (
        "zone",
        r#""PST""#,
        r#""PST" is not a time zone of database 2026f: write an IANA name such as "Europe/Berlin" or "UTC""#,
    ),
    (
        "zone",
        r#""""#,
        r#""" is not a time zone of database 2026f: write an IANA name such as "Europe/Berlin" or "UTC""#,
    ),
    (
        "zone",
        r#""../etc/passwd""#,
        r#""../etc/passwd" is not a time zone of database 2026f: write an IANA name such as "Europe/Berlin" or "UTC""#,
    ),
    ("zone", "2", "zone cannot be 2: write a string"),
    (
        "start",
        r#""tomorrow""#,
        r#""tomorrow" is not a valid instant: write one such as "2026-11-21T12:00:00Z" or "2026-11-21T14:00:00+02:00", or Unix seconds"#,
    ),
    (
        "start",
        r#""2026-01-01T00:00:00""#,
        r#""2026-01-01T00:00:00" is not a valid instant: write one such as "2026-11-21T12:00:00Z" or "2026-11-21T14:00:00+02:00", or Unix seconds"#,
    ),
    (
        "start",
        "-1",
        r#"-1 is not a valid instant: write one such as "2026-11-21T12:00:00Z" or "2026-11-21T14:00:00+02:00", or Unix seconds"#,
    ),
    (
        "end",
        "[]",
        r#"a list is not a valid instant: write one such as "2026-11-21T12:00:00Z" or "2026-11-21T14:00:00+02:00", or Unix seconds"#,
    ),
    ("text", r#"{"a":1}"#, "text cannot be an object: write a string"),
    ("data", r##""%%%""##, r##""%%%" is not base64: write it with its padding, or write text"##),
    ("attributes", "[]", "attributes cannot be a list: write an object of strings"),
    ("attributes", r#"{"Schedule":"x"}"#, r#"the server sets "Schedule" itself: leave it out"#),
    ("attributes", r#"{"a":1}"#, r#"1 is not a valid value of "a": write a string of 1 to 128 bytes"#),
    (
        "attributes",
        r#"{"a b":"x"}"#,
        r#""a b" is not a valid attribute name: write letters, digits and !#$%&'*+-.^_`|~"#,
    ),
    ("attributes", "{\"a\":\"x\\ny\"}", r#"the value of "a" has control characters: leave them out"#),
    ("attributes", r#"{"":"x"}"#, r#""" is not a valid attribute name: write 1 to 32 bytes"#),
    ("attributes", r#"{"a":""}"#, r#""" is not a valid value of "a": write a string of 1 to 128 bytes"#),
    ("attributes", r#"{"A":"2","a":"1"}"#, r#""a" is given twice, in another case: leave one out"#),
    ("tries", "0", "tries cannot be 0: write a whole number from 1 to 65535"),
    ("tries", "70000", "tries cannot be 70000: write a whole number from 1 to 65535"),
    ("tries", r#""3""#, r#"tries cannot be "3": write a whole number from 1 to 65535"#),
    ("ttl", "-1", "ttl cannot be -1: write seconds from 0 to 4294967295, with three decimals at most"),
    (
        "ttl",
        "5000000000",
        "ttl cannot be 5000000000: write seconds from 0 to 4294967295, with three decimals at most",
    ),
    ("overlap", r#""queue""#, r#"overlap cannot be "queue": write one of allow, skip, replace"#),
    ("overlap", "true", "overlap cannot be true: write one of allow, skip, replace"),
    ("key", r#""k""#, r#"a key "k" needs "overlap": "skip" or "replace": write one"#),
    ("deadline", "0", "deadline cannot be 0: write seconds from 1 to 86400, with three decimals at most"),
    (
        "deadline",
        "86401",
        "deadline cannot be 86401: write seconds from 1 to 86400, with three decimals at most",
    ),
    ("catch_up", r#""yes""#, r#"catch_up cannot be "yes": write one of last, none, all"#),
    ("jitter", "3601", "jitter cannot be 3601: write seconds from 0 to 3600, with three decimals at most"),
    (
        "jitter",
        r#""1m""#,
        r#"jitter cannot be "1m": write seconds from 0 to 3600, with three decimals at most"#,
    ),
    ("paused", r#""no""#, r#"paused cannot be "no": write true or false"#),
    ("revision", r#""7""#, r#"revision cannot be "7": write the number from a response"#),
    (
        "colour",
        "1",
        r#"unknown field "colour": remove it, or write one of queue cron every zone start end text data attributes tries ttl overlap key deadline catch_up jitter paused"#,
    ),
    (
        "timezone",
        r#""UTC""#,
        r#"unknown field "timezone": remove it, or write one of queue cron every zone start end text data attributes tries ttl overlap key deadline catch_up jitter paused"#,
    ),
];

/// Whole settings: the field, and the error.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("[]", "", "a list is not a setting: write a JSON object"),
    (r#""x""#, "", r#""x" is not a setting: write a JSON object"#),
    ("{}", "queue", "queue is missing: write the queue where the jobs go"),
    (
        r#"{"queue": "q"}"#,
        "cron",
        r#"cron and every are missing: write one, such as "30 2 * * *" for cron or 300 for every"#,
    ),
    (
        r#"{"queue": "q", "every": 5, "cron": null, "start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}"#,
        "end",
        "the end 2026-01-01T00:00:00.000Z is before the start 2026-01-02T00:00:00.000Z: write a later one, or leave one out",
    ),
    (
        r#"{"queue": "q", "every": 5, "text": "x", "data": "eA=="}"#,
        "data",
        "both text and data are given: leave one out",
    ),
    (
        r#"{"queue": "q", "every": 5, "overlap": "skip", "key": "a b"}"#,
        "key",
        r#""a b" is not a valid key: write 1 to 255 printable characters without blanks"#,
    ),
    (
        r#"{"queue": "q", "every": 5, "overlap": "replace", "key": ""}"#,
        "key",
        r#""" is not a valid key: write 1 to 255 printable characters without blanks"#,
    ),
];

fn refused(given: &Value) -> Refusal {
    parse(given).expect_err(&given.to_string())
}

#[test]
fn a_wrong_expression_is_refused_by_its_part() {
    for (cron, part, error) in EXPRESSIONS {
        let part = (!part.is_empty()).then_some(*part);
        let expected = Refusal { error: (*error).to_owned(), field: Some("cron".to_owned()), part };
        assert_eq!(refused(&json!({"queue": "q", "cron": cron})), expected, "{cron:?}");
    }
    let long = format!("{} * * * *", "1,".repeat(128));
    let error = refused(&json!({"queue": "q", "cron": long})).error;
    assert!(error.ends_with("is 264 bytes long: at most 256"), "{error}");
}

#[test]
fn a_wrong_setting_is_refused_by_its_field() {
    let of = |error: &str, field: &str| Refusal {
        error: error.to_owned(),
        field: (!field.is_empty()).then(|| field.to_owned()),
        part: None,
    };
    let json = |text: &str| serde_json::from_str::<Value>(text).expect(text);
    for (field, value, error) in FIELDS {
        let mut given = json!({"queue": "q", "every": 60});
        given[*field] = json(value);
        let field = if *field == "cron" && error.starts_with("both") { "every" } else { field };
        assert_eq!(refused(&given), of(error, field), "{field}: {value}");
    }
    for (given, field, error) in SETTINGS {
        assert_eq!(refused(&json(given)), of(error, field), "{given}");
    }
    let error = refused(&json!({"queue": "q", "every": 5, "text": "x".repeat(65_537)})).error;
    assert_eq!(error, "text is 65537 bytes long: at most 65536; keep the rest elsewhere and name it");
    let many: serde_json::Map<String, Value> = (0..14).map(|n| (n.to_string(), json!("x"))).collect();
    let error = refused(&json!({"queue": "q", "every": 5, "attributes": many})).error;
    assert_eq!(error, "14 attributes are too many: at most 13");
}

proptest::proptest! {
    #[test]
    fn no_expression_panics(text in "[-*/,#?LWlw0-9A-Z@ ]{0,24}", any in ".{0,40}") {
        let _ = (Cron::parse(&text), Cron::parse(&any));
        let _ = Cron::parse(&format!("{text} * * * *"));
        let _ = Cron::parse(&format!("0 0 {text} * *"));
        let _ = Cron::parse(&format!("0 0 * * {text}"));
    }
}
