//! Text and figures for people, the same on the pages of the dashboard and on the command line: hidden characters made
//! visible; numbers, sizes and durations.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns whether a character is invisible, or changes how its neighbours are displayed.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
        )
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the text with hidden characters made visible: control characters as their pictures (`␛`), others by code
/// point (`‹U+202E›`).
pub fn visible(text: &str) -> Cow<'_, str> {
    shown(text, |_| false)
}

/// Like [`visible`], but keeps line ends and tabs.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    shown(text, |c| c == '\n' || c == '\t')
}

fn shown(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| is_hidden(c) && !stays(c)) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_hidden(c) || stays(c) => out.push(c),
            '\u{7f}' => out.push('\u{2421}'),
            // The pictures of control characters are in the same order.
            c if (c as u32) < 0x20 => out.extend(char::from_u32(0x2400 + c as u32)),
            c => _ = write!(out, "‹U+{:04X}›", c as u32),
        }
    }
    out.into()
}

/// Returns JSON with hidden characters escaped (`\u202e`), which does not change its meaning: they occur only in
/// strings. Line ends and tabs stay.
pub fn visible_json(json: &str) -> Cow<'_, str> {
    let hides = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t' | '\r');
    if !json.chars().any(hides) {
        return json.into();
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if !hides(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out.into()
}

/// Returns the first `most` characters of a text, and whether there are more.
pub fn shortened(from: &str, most: usize) -> (&str, bool) {
    match from.char_indices().nth(most) {
        Some((at, _)) => (&from[..at], true),
        None => (from, false),
    }
}

/// Returns a number with its thousands separated.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a number with its noun.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(n), if n == 1 { one } else { many })
}

/// Returns a rate, in jobs per second.
pub fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        rate if rate < 0.1 => format!("{rate:.2}"),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => number(rate.round() as u64),
    }
}

/// Returns a size in bytes, KiB and so on.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return count(bytes, "byte", "bytes");
    }
    let mut of = bytes as f64 / 1024.0;
    for unit in UNITS {
        if of < 1023.5 {
            return if of < 9.95 { format!("{of:.1} {unit}") } else { format!("{of:.0} {unit}") };
        }
        of /= 1024.0;
    }
    format!("{of:.0} EiB")
}

/// Returns a duration in its two largest units that are not zero.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0 if seconds > 0.0 => format!("{:.0} ms", (seconds * 1000.0).max(1.0)),
        0..60 => format!("{whole} s"),
        60..3600 => two((whole / 60, "min"), (whole % 60, "s"), whole < 600),
        3600..86_400 => two((whole / 3600, "h"), (whole / 60 % 60, "min"), true),
        _ => {
            let (hours, minutes) = (whole / 3600 % 24, whole / 60 % 60);
            let second = if hours > 0 { (hours, "h") } else { (minutes, "min") };
            two((whole / 86_400, "d"), second, whole < 864_000)
        }
    }
}

fn two(first: (u64, &str), second: (u64, &str), both: bool) -> String {
    let (n, unit) = first;
    if both && second.0 > 0 { format!("{n} {unit} {} {}", second.0, second.1) } else { format!("{n} {unit}") }
}

/// Seconds in each unit that [`seconds`] accepts.
const DURATION_UNITS: [(&str, f64); 5] =
    [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// How a duration may be written, for messages.
pub const DURATION_FORMS: &str = "use seconds, or 5m, 2h, 1d";

/// Parses a duration: a number of seconds, or a number with `ms`, `s`, `m`, `h` or `d`. Returns the seconds as decimal
/// text, as the HTTP API takes them.
pub fn seconds(text: &str) -> Option<String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    if !is_number || unit.is_empty() {
        // The server checks plain numbers.
        return (is_number && number.parse::<f64>().is_ok()).then(|| number.to_owned());
    }
    let (_, of) = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?;
    let seconds = number.parse::<f64>().ok()? * of;
    // To the millisecond, which is as fine as the API is.
    let text = format!("{seconds:.3}");
    Some(text.trim_end_matches('0').trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_is_shown() {
        for (from, to) in [
            ("plain – ünï 日本", "plain – ünï 日本"),
            ("a\u{202e}b", "a‹U+202E›b"),
            ("a\u{0}b\nc\u{7f}", "a␀b␊c␡"),
            ("\u{1}x\u{2}", "␁x␂"),
            ("\u{85}\u{200d}\u{e0041}", "‹U+0085›‹U+200D›‹U+E0041›"),
        ] {
            assert_eq!(visible(from), to);
        }
        assert_eq!(visible_lines("a\n\tb\r\n\u{1}"), "a\n\tb␍\n␁");
    }

    #[test]
    fn hidden_characters_are_escaped_in_json() {
        let json = serde_json::json!({"a": "x\u{202e}y\u{e0041}\u{9b}", "b": [1, "ü\n"]});
        let shown = visible_json(&json.to_string()).into_owned();
        assert!(shown.is_ascii() || !shown.chars().any(is_hidden), "{shown}");
        assert!(shown.contains("\\u202e") && shown.contains("\\udb40\\udc41"), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), json, "the same JSON");
        assert_eq!(visible_json("{\n\t\"a\": 1}"), "{\n\t\"a\": 1}");
    }

    #[test]
    fn durations_are_parsed() {
        for (text, expected) in [
            ("90", Some("90")),
            ("1.5", Some("1.5")),
            ("90s", Some("90")),
            ("250ms", Some("0.25")),
            ("5m", Some("300")),
            ("2h", Some("7200")),
            ("1d", Some("86400")),
            ("1.5h", Some("5400")),
            (" 5m ", Some("300")),
            ("0", Some("0")),
            ("", None),
            ("5 minutes", None),
            ("m", None),
            ("-5m", None),
            ("1.2.3h", None),
            ("5M", None),
        ] {
            assert_eq!(seconds(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn figures_are_read_at_a_glance() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 0.04, 0.25, 9.94, 10.4, 12_345.6].map(rate),
            ["0", "0.04", "0.2", "9.9", "10", "12,346"]
        );
        assert_eq!(
            [0, 1, 1023, 1024, 10 << 10, 1 << 20, 3 << 30].map(size),
            ["0 bytes", "1 byte", "1,023 bytes", "1.0 KiB", "10 KiB", "1.0 MiB", "3.0 GiB"]
        );
        assert_eq!(
            [0.0, 0.02, 59.9, 60.0, 90.0, 700.0, 7260.0, 90_000.0, 88_800.0, 2_000_000.0].map(duration),
            [
                "0 s",
                "20 ms",
                "59 s",
                "1 min",
                "1 min 30 s",
                "11 min",
                "2 h 1 min",
                "1 d 1 h",
                "1 d 40 min",
                "23 d"
            ]
        );
    }
}
