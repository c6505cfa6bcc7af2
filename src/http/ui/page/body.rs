//! The body of a job as text, JSON or bytes. JSON is indented and otherwise unchanged: order, numbers and escapes.

use std::fmt::Write as _;

use maud::{Markup, html};
use serde::de::IgnoredAny;

use super::text::{size, visible_lines};

/// Maximum bytes shown.
const SHOWN: usize = 64 << 10;
/// Bytes per line of the hex view.
const LINE: usize = 16;

/// View of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    Text,
    Json,
    Hex,
}

pub const ALL: [(&str, &str, As); 3] =
    [("text", "Text", As::Text), ("json", "JSON", As::Json), ("hex", "Bytes", As::Hex)];

impl As {
    /// Returns a suitable view.
    pub fn guess(bytes: &[u8]) -> As {
        match std::str::from_utf8(bytes) {
            Err(_) => As::Hex,
            Ok(text) if text.trim_start().starts_with(['{', '[']) && is_json(text) => As::Json,
            Ok(_) => As::Text,
        }
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Shows the body, or its beginning.
pub fn shown(bytes: &[u8], how: As) -> Markup {
    let total = bytes.len();
    let mut is_cut = total > SHOWN;
    let (text, note) = match how {
        As::Hex => (hex(&bytes[..total.min(SHOWN)]), None),
        As::Text => {
            let text = String::from_utf8_lossy(&bytes[..total.min(SHOWN)]).into_owned();
            let broken = std::str::from_utf8(bytes).is_err();
            (text, broken.then_some("These bytes are not valid UTF-8: invalid ones are shown as \u{fffd}."))
        }
        As::Json => match std::str::from_utf8(bytes).ok().filter(|text| is_json(text)) {
            Some(text) => {
                let (text, is_whole) = indented(text, SHOWN);
                is_cut = !is_whole;
                (text, None)
            }
            None => return html! { p { "The body is not JSON." } (shown(bytes, As::guess(bytes))) },
        },
    };
    html! {
        @if let Some(note) = note { p.note { (note) } }
        @if is_cut { p.note { "The first " (size(SHOWN as u64)) " of " (size(total as u64)) @if how == As::Json { ", indented" } ". Download body has all." } }
        pre #body tabindex="0" dir="auto" { code { bdi { (visible_lines(&text)) } } }
    }
}

/// Formats bytes with offset and ASCII characters.
fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 5);
    for (n, line) in bytes.chunks(LINE).enumerate() {
        let _ = write!(out, "{:06x}  ", n * LINE);
        for at in 0..LINE {
            match line.get(at) {
                Some(byte) => _ = write!(out, "{byte:02x} "),
                None => out.push_str("   "),
            }
        }
        out.push(' ');
        out.extend(line.iter().map(|byte| if (0x20..0x7f).contains(byte) { *byte as char } else { '.' }));
        out.push('\n');
    }
    out
}

/// Indents JSON, with a line per value and at most `most` bytes. Returns whether that is all. Strings and numbers are
/// unchanged.
fn indented(json: &str, most: usize) -> (String, bool) {
    let mut out = String::with_capacity(json.len().min(most) * 2);
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    let mut chars = json.chars().peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    while let Some(c) = chars.next() {
        if out.len() >= most {
            return (out, false);
        }
        if in_text {
            out.push(c);
            in_text = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '"' => {
                in_text = true;
                out.push(c);
            }
            '{' | '[' => {
                out.push(c);
                while chars.peek().is_some_and(|c| c.is_ascii_whitespace()) {
                    chars.next();
                }
                if let Some(end) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    (out, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against changed numbers, as JavaScript and `f64` produce them.
    #[test]
    fn json_is_indented_and_otherwise_as_it_was() {
        let json = r#"{"z":12345678901234567890.10,"a":[ ],"b":{},"t":"x, \"y\" {\u00e9:\\","n":[1e400,-0,{"q":null}]}"#;
        let expected = "{\n  \"z\": 12345678901234567890.10,\n  \"a\": [],\n  \"b\": {},\n  \"t\": \"x, \\\"y\\\" {\\u00e9:\\\\\",\n  \"n\": [\n    1e400,\n    -0,\n    {\n      \"q\": null\n    }\n  ]\n}";
        assert_eq!(indented(json, 1 << 20), (expected.to_owned(), true));
        let (begin, is_whole) = indented(json, 20);
        assert!(begin.len() < 40 && !is_whole, "{begin}");
    }

    /// Guards against a truncated body that looks complete.
    #[test]
    fn what_is_cut_is_said_to_be() {
        let small = format!("[{}1]", "1,".repeat(SHOWN / 3));
        assert!(small.len() < SHOWN);
        let cut = "Download body has all";
        assert!(shown(small.as_bytes(), As::Json).0.contains(cut), "indented it is longer");
        assert!(!shown(small.as_bytes(), As::Text).0.contains(cut));
        assert!(shown("x".repeat(SHOWN + 1).as_bytes(), As::Text).0.contains(cut));
        assert!(!shown(br#"{"a":1}"#, As::Json).0.contains(cut));
    }

    #[test]
    fn a_body_is_guessed() {
        for (body, how) in [
            (&b"{\"a\":1}"[..], As::Json),
            (b" [1]", As::Json),
            (b"{not json", As::Text),
            (b"12", As::Text),
            (b"", As::Text),
            (b"\xff\xfe", As::Hex),
        ] {
            assert_eq!(As::guess(body), how, "{body:?}");
        }
        assert_eq!(
            hex(b"AB\xff"),
            format!("000000  41 42 ff {}  AB.\n", "   ".repeat(13)).replace("   AB", "  AB")
        );
    }

    #[test]
    fn a_script_stays_text() {
        let shown = shown(b"<script>alert(1)</script>\x01\x1b[31m", As::Text).0;
        assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script"), "{shown}");
        assert!(shown.contains('␛') && !shown.contains('\x1b'), "{shown}");
    }
}
