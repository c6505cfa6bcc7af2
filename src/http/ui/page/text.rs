//! Texts of pages: what comes from others is made visible and stays text; numbers, sizes and durations as people read
//! them.

use std::borrow::Cow;
use std::fmt::Write as _;

use maud::{Markup, html};

/// How much of a text a table shows.
pub const CUT: usize = 200;
/// Stand around what changes with every second, so that the tag of a page can leave it out. No text has them:
/// [`visible`] takes them away.
pub const VOLATILE: (char, char) = ('\u{1}', '\u{2}');

/// Whether a character would not be seen, or would change how others are seen.
fn hides(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
        )
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text with what hides made visible: control characters as their pictures, others by their number.
pub fn visible(text: &str) -> Cow<'_, str> {
    shown(text, |_| false)
}

/// The same of a text of several lines.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    shown(text, |c| c == '\n' || c == '\t')
}

fn shown(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| hides(c) && !stays(c)) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !hides(c) || stays(c) => out.push(c),
            '\u{7f}' => out.push('\u{2421}'),
            // The pictures of control characters stand in the same order.
            c if (c as u32) < 0x20 => out.extend(char::from_u32(0x2400 + c as u32)),
            c => _ = write!(out, "‹U+{:04X}›", c as u32),
        }
    }
    out.into()
}

/// A text from elsewhere: its direction is its own.
pub fn text(from: &str) -> Markup {
    html! { bdi { (visible(from)) } }
}

/// At most [`CUT`] characters of it.
pub fn cut(from: &str) -> Markup {
    let (short, more) = shortened(from, CUT);
    html! { bdi { (visible(short)) } @if more { "…" } }
}

/// The first characters of a text, and whether there are more.
pub fn shortened(from: &str, most: usize) -> (&str, bool) {
    match from.char_indices().nth(most) {
        Some((at, _)) => (&from[..at], true),
        None => (from, false),
    }
}

/// What was typed, for the value of a field: it goes back as it came, but for what no field has.
pub fn typed(value: &str) -> String {
    value.replace([VOLATILE.0, VOLATILE.1], "")
}

/// What changes with every second.
pub fn volatile(markup: &Markup) -> Markup {
    maud::PreEscaped(format!("{}{}{}", VOLATILE.0, markup.0, VOLATILE.1))
}

/// What is not known, and why.
pub fn unknown(why: &str) -> Markup {
    html! { span.unknown title=(why) { "–" } }
}

/// A number with its thousands apart.
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

/// A number, or why it is not known.
pub fn known(n: Option<u64>, why: &str) -> Markup {
    match n {
        Some(n) => html! { (number(n)) },
        None => unknown(why),
    }
}

/// So many of something.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(n), if n == 1 { one } else { many })
}

/// Jobs a second.
pub fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        rate if rate < 0.1 => format!("{rate:.2}"),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => number(rate.round() as u64),
    }
}

/// Bytes.
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

/// A duration in its two largest units.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0 if seconds > 0.0 => format!("{:.0} ms", (seconds * 1000.0).max(1.0)),
        0..60 => format!("{whole} s"),
        60..3600 => two((whole / 60, "min"), (whole % 60, "s"), whole < 600),
        3600..86_400 => two((whole / 3600, "h"), (whole / 60 % 60, "min"), true),
        _ => two((whole / 86_400, "d"), (whole / 3600 % 24, "h"), whole < 864_000),
    }
}

fn two(first: (u64, &str), second: (u64, &str), both: bool) -> String {
    let (n, unit) = first;
    if both && second.0 > 0 { format!("{n} {unit} {} {}", second.0, second.1) } else { format!("{n} {unit}") }
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
        assert_eq!(typed("\u{1}x\u{2}\u{202e}"), "x\u{202e}");
    }

    #[test]
    fn texts_are_cut_by_characters() {
        assert_eq!(shortened("日本語", 2), ("日本", true));
        assert_eq!(shortened("日本語", 3), ("日本語", false));
        assert!(cut(&"é".repeat(201)).0.ends_with("</bdi>…"));
        assert_eq!(cut("<b>").0, "<bdi>&lt;b&gt;</bdi>");
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
            [0.0, 0.02, 59.9, 60.0, 90.0, 700.0, 7260.0, 90_000.0, 2_000_000.0].map(duration),
            ["0 s", "20 ms", "59 s", "1 min", "1 min 30 s", "11 min", "2 h 1 min", "1 d 1 h", "23 d"]
        );
    }
}
