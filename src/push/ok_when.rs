//! `ok_when`: whether a 2xx counts as a success, by one value of its JSON body. Takes the body as the endpoint sent
//! it: the rest of it may hold numbers, escapes and nesting that none of our types can represent. Knows no request.

use serde_json::value::RawValue;
use serde_json::{Number, Value};

/// Maximum number of parts of a pointer.
pub const MAX_PARTS: usize = 100;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// A condition that a JSON body must meet.
#[derive(Clone, Debug, PartialEq)]
pub struct OkWhen {
    /// A JSON pointer (RFC 6901) of [`MAX_PARTS`] parts at most.
    pub pointer: String,
    pub equals: Value,
}

impl OkWhen {
    /// Returns why `body` does not meet the condition; `None` if it does.
    pub fn unmet(&self, body: &[u8]) -> Option<String> {
        let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
        // Checks the syntax and builds no value, so that no number is too large and nothing is nested too deeply.
        let Ok(json) = serde_json::from_slice::<&RawValue>(body) else {
            return Some("but the body is not JSON".into());
        };
        match Walk::new(json).find(&parts(&self.pointer)) {
            // A value that our types cannot represent cannot be in a setting either.
            Some(found) if serde_json::from_str(found).is_ok_and(|found| same(&found, &self.equals)) => None,
            Some(_) => Some(format!("but {:?} in the body has another value", self.pointer)),
            None => Some(format!("but there is no {:?} in the body", self.pointer)),
        }
    }
}

/// Returns the unescaped parts of a pointer.
fn parts(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
}

/// Whether two JSON values are equal. Numbers are compared by value: 0 and 0.0 are equal, and integers of 64 bits are
/// compared exactly. All others are doubles, as most readers of JSON take them.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => same_number(a, b),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

fn same_number(a: &Number, b: &Number) -> bool {
    // A conversion to f64 would make neighbours of large integers equal.
    let is_integer = |float: &Number, integer: i128| {
        float.as_f64().is_some_and(|float| float.fract() == 0.0 && float as i128 == integer)
    };
    match (a.as_i128(), b.as_i128()) {
        (Some(a), Some(b)) => a == b,
        (Some(integer), None) => is_integer(b, integer),
        (None, Some(integer)) => is_integer(a, integer),
        (None, None) => a.as_f64() == b.as_f64(),
    }
}

/// A position in the text of a JSON value whose syntax was checked.
struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walk<'a> {
    fn new(json: &'a RawValue) -> Walk<'a> {
        Walk { text: json.get(), at: 0 }
    }

    /// Skips white space, and returns the byte behind it. `None` at the end.
    fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.text.as_bytes().get(self.at) {
            if !byte.is_ascii_whitespace() {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Reads the value here, and returns the text of the one that `parts` lead to in it. Recurses as deeply as there are
    /// parts, however deeply the text is nested.
    fn find(&mut self, parts: &[String]) -> Option<&'a str> {
        let first = self.peek();
        let Some((part, rest)) = parts.split_first() else {
            let begin = self.at;
            self.skip();
            return self.text.get(begin..self.at);
        };
        match first {
            Some(b'{') => self.find_member(part, rest),
            Some(b'[') => self.find_element(index(part), rest),
            _ => {
                self.skip();
                None
            }
        }
    }

    /// Finds a member of the object here. If its name occurs twice, the last occurrence counts, as in JavaScript and
    /// serde_json.
    fn find_member(&mut self, name: &str, rest: &[String]) -> Option<&'a str> {
        let mut found = None;
        self.at += 1;
        loop {
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => break,
                _ => {
                    let begin = self.at;
                    self.skip_string();
                    let is_it = is_name(self.text.get(begin..self.at)?, name);
                    self.peek()?; // the colon
                    self.at += 1;
                    match is_it {
                        true => found = self.find(rest),
                        false => self.skip(),
                    }
                }
            }
        }
        self.at += 1;
        found
    }

    fn find_element(&mut self, index: Option<usize>, rest: &[String]) -> Option<&'a str> {
        let (mut found, mut next) = (None, 0);
        self.at += 1;
        loop {
            match self.peek()? {
                b',' => self.at += 1,
                b']' => break,
                _ => {
                    match index == Some(next) {
                        true => found = self.find(rest),
                        false => self.skip(),
                    }
                    next += 1;
                }
            }
        }
        self.at += 1;
        found
    }

    /// Skips the value here. Does not recurse.
    fn skip(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            match byte {
                b'"' => self.skip_string(),
                b'{' | b'[' | b'}' | b']' | b',' | b':' => self.at += 1,
                _ => self.skip_word(),
            }
            if depth == 0 {
                break;
            }
        }
    }

    /// Skips the string here, with both quotes.
    fn skip_string(&mut self) {
        let mut escaped = true; // the first quote ends nothing
        for (n, byte) in self.text.as_bytes().iter().enumerate().skip(self.at) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    self.at = n + 1;
                    return;
                }
                _ => {}
            }
        }
        self.at = self.text.len();
    }

    /// Skips a number, or `true`, `false`, `null`.
    fn skip_word(&mut self) {
        let rest = self.text.as_bytes().iter().skip(self.at);
        self.at +=
            rest.take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)).count().max(1);
    }
}

/// Whether a quoted JSON string equals `name`.
fn is_name(string: &str, name: &str) -> bool {
    match string.contains('\\') {
        // A string with an unpaired surrogate cannot be part of a pointer.
        true => serde_json::from_str::<String>(string).is_ok_and(|string| string == name),
        false => string.get(1..string.len() - 1) == Some(name),
    }
}

/// Reads the index of an element: digits without leading zeros.
fn index(part: &str) -> Option<usize> {
    let is_index = part == "0" || !part.starts_with('0') && part.bytes().all(|byte| byte.is_ascii_digit());
    part.parse().ok().filter(|_| is_index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn unmet(pointer: &str, equals: Value, body: &str) -> Option<String> {
        OkWhen { pointer: pointer.into(), equals }.unmet(body.as_bytes())
    }

    /// Guards against jobs that the endpoint has accepted and that die of other values in its response.
    #[test]
    fn what_stands_elsewhere_in_the_body_is_of_no_interest() {
        let deep = |depth| format!("{}1{}", "[{\"a\":".repeat(depth), "}]".repeat(depth));
        let elsewhere = [
            "1e999".to_owned(),
            "-1E+999999999999".to_owned(),
            "123456789012345678901234567890".to_owned(),
            r#""\ud800""#.to_owned(),
            r#"{"\udfff\"}": "\\"}"#.to_owned(),
            r#""}]\"""#.to_owned(),
            deep(100),
            deep(100_000),
        ];
        for other in &elsewhere {
            for body in [
                format!("{{\"x\":{other},\"code\":0}}"),
                format!(" {{ \"code\" : 0 , \"x\" : {other} }} "),
                format!("\u{feff}{{\"code\":7,\"x\":[{other}],\"code\":0}}"),
            ] {
                assert_eq!(unmet("/code", json!(0), &body), None, "{:.200}", body);
                let why = unmet("/code", json!(1), &body).expect("another value");
                assert!(why.contains("another"), "{why}: {body:.200}");
                let why = unmet("/code/a", json!(1), &body).expect("no such value");
                assert!(why.contains("there is no"), "{why}: {body:.200}");
            }
            let why = unmet("/code", json!(0), &format!("{{\"code\":{other}}}")).expect("another value");
            assert!(why.contains("another"), "{why}: {other:.200}");
        }
        for body in [
            "",
            "\u{feff}",
            "ok",
            "{\"code\":0",
            "{\"code\":0}}",
            "{\"code\":0,}",
            "{code:0}",
            "\u{feff}\u{feff}0",
        ] {
            let why = unmet("/code", json!(0), body).expect("no JSON");
            assert!(why.contains("not JSON"), "{why}: {body:?}");
        }
        assert!(
            OkWhen { pointer: "/a".into(), equals: json!(0) }.unmet(b"{\"a\":0,\"b\":\"\xFF\"}").is_some()
        );
    }

    /// Guards against large numbers that equal their neighbours, and small ones that do not equal themselves.
    #[test]
    fn numbers_are_compared_by_value() {
        for (equals, body, met) in [
            ("0", "0.0", true),
            ("0", "-0", true),
            ("0", "0e7", true),
            ("0.1", "1e-1", true),
            ("9007199254740993", "9007199254740993", true),
            ("9007199254740993", "9007199254740992", false),
            ("9007199254740993", "9007199254740992.0", false),
            ("9007199254740992", "9007199254740992.0", true),
            ("18446744073709551615", "18446744073709551615", true),
            ("18446744073709551615", "18446744073709551616", false),
            ("-9223372036854775808", "-9223372036854775808", true),
            ("123456789012345678901", "123456789012345678901", true),
            ("1e300", "1e999", false),
            ("[0, {\"a\": 1.0}]", "[0.0, {\"a\": 1}]", true),
            ("9007199254740993", "\"9007199254740993\"", false),
        ] {
            let equals: Value = serde_json::from_str(equals).expect("JSON");
            let why = unmet("/n", equals.clone(), &format!("{{\"n\":{body}}}"));
            assert_eq!(why.is_none(), met, "{equals} and {body}: {why:?}");
        }
    }

    #[test]
    fn pointers_lead_where_the_rfc_says() {
        let body = r#"{"":{"":1},"a/b":2,"m~n":3,"é":[4,[5]],"\u0061":{"0":6},"~1":7,"01":8}"#;
        for (pointer, found) in [
            ("//", Some(1)),
            ("/a~1b", Some(2)),
            ("/m~0n", Some(3)),
            ("/é/0", Some(4)),
            ("/é/1/0", Some(5)),
            ("/a/0", Some(6)),
            ("/~01", Some(7)),
            ("/01", Some(8)),
            ("/é/00", None),
            ("/é/+0", None),
            ("/é/2", None),
            ("/é/-", None),
            ("/a/0/x", None),
            ("/b", None),
        ] {
            let met = found.map(|found| unmet(pointer, json!(found), body));
            assert!(met.is_none_or(|why| why.is_none()), "{pointer:?} leads to {found:?}");
            let why = unmet(pointer, json!("none"), body).expect("no text is in there");
            assert_eq!(why.contains("there is no"), found.is_none(), "{pointer:?}: {why}");
        }
        assert_eq!(unmet("", json!([1]), " [ 1 ] "), None, "the whole body");
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let name = || prop_oneof!["[a-c]", "[0-2]", "\\PC{0,3}", Just("~/\"\\\n".to_owned())];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            name().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(name(), inner, 0..5)
                    .prop_map(|all| Value::Object(all.into_iter().collect())),
            ]
        })
    }

    /// Collects all pointers into a value, and some that lead nowhere.
    fn pointers(value: &Value, at: String, all: &mut Vec<String>) {
        all.push(format!("{at}/none"));
        match value {
            Value::Array(elements) => {
                for (n, element) in elements.iter().enumerate() {
                    pointers(element, format!("{at}/{n}"), all);
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    pointers(member, format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), all);
                }
            }
            _ => {}
        }
        all.push(at);
    }

    /// Writes a value with white space, and adds members and elements that no `Value` can hold.
    fn write(value: &Value, noise: &str, to: &mut String) {
        match value {
            Value::Object(members) => {
                to.push_str("{ ");
                for (name, member) in members {
                    to.push_str(&format!("\"\\ud800\" :{noise},\n{}:\t", Value::from(&**name)));
                    write(member, noise, to);
                    to.push(',');
                }
                to.push_str(&format!("\"\\udfff\":{noise} }}"));
            }
            Value::Array(elements) => {
                to.push_str("[ ");
                for element in elements {
                    write(element, noise, to);
                    to.push_str(" ,");
                }
                to.push_str(noise);
                to.push(']');
            }
            leaf => to.push_str(&leaf.to_string()),
        }
    }

    proptest! {
        /// The walk finds what `Value::pointer` finds, also among members and elements that no `Value` can hold.
        #[test]
        fn the_walk_finds_what_a_tree_finds(
            value in json_value(),
            noise in prop_oneof![Just("1e999"), Just("\"\\ud800\\\"\""), Just("[[[[{\"a\":[]}]]]]")],
        ) {
            let (plain, mut noisy, mut all) = (value.to_string(), String::new(), Vec::new());
            write(&value, noise, &mut noisy);
            pointers(&value, String::new(), &mut all);
            for pointer in all {
                let expected = value.pointer(&pointer);
                let found = |text: &str| {
                    let json: &RawValue = serde_json::from_str(text).expect("JSON");
                    Walk::new(json).find(&parts(&pointer)).map(str::to_owned)
                };
                let read = found(&plain).map(|text| serde_json::from_str(&text).expect("a value"));
                prop_assert_eq!(read.as_ref(), expected, "{} of {}", pointer, plain);
                let in_noise = found(&noisy);
                prop_assert_eq!(in_noise.is_some(), expected.is_some(), "{} of {}", pointer, noisy);
                if let Some(leaf) = expected.filter(|value| !value.is_object() && !value.is_array()) {
                    prop_assert_eq!(in_noise, Some(leaf.to_string()), "{} of {}", pointer, noisy);
                }
            }
        }

        /// No body causes a panic, and every body that is accepted as JSON is JSON.
        #[test]
        fn any_body_is_judged(
            body in prop_oneof![prop::collection::vec(any::<u8>(), 0..60), "[\\[\\]{}\",:\\\\ua01e.-]{0,40}".prop_map(String::into_bytes)],
            pointer in "(/[a01]{0,2}){0,3}",
        ) {
            let why = OkWhen { pointer, equals: json!(1) }.unmet(&body);
            let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
            prop_assert!(is_json || why.is_some_and(|why| why.contains("not JSON")), "{:?}", body);
        }
    }
}
