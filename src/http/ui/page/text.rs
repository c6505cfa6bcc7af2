//! Texts of pages: text from jobs, stores and endpoints stays text, with hidden characters made visible.

use maud::{Markup, html};

pub use crate::readable::{count, duration, number, rate, shortened, size, visible, visible_lines};

/// How much of a text a table shows.
pub const CUT: usize = 200;
/// Stand around what changes with every second, so that the tag of a page can leave it out. No text has them:
/// [`visible`] takes them away.
pub const VOLATILE: (char, char) = ('\u{1}', '\u{2}');

/// A text from elsewhere: its direction is its own.
pub fn text(from: &str) -> Markup {
    html! { bdi { (visible(from)) } }
}

/// At most [`CUT`] characters of it.
pub fn cut(from: &str) -> Markup {
    let (short, more) = shortened(from, CUT);
    html! { bdi { (visible(short)) } @if more { "…" } }
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

/// A number, or why it is not known.
pub fn known(n: Option<u64>, why: &str) -> Markup {
    match n {
        Some(n) => html! { (number(n)) },
        None => unknown(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_by_characters() {
        assert_eq!(shortened("日本語", 2), ("日本", true));
        assert_eq!(shortened("日本語", 3), ("日本語", false));
        assert!(cut(&"é".repeat(201)).0.ends_with("</bdi>…"));
        assert_eq!(cut("<b>").0, "<bdi>&lt;b&gt;</bdi>");
        assert_eq!(typed("\u{1}x\u{2}\u{202e}"), "x\u{202e}", "a field keeps what was typed");
    }
}
