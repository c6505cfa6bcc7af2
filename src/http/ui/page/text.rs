//! Texts of pages: text from jobs, stores and endpoints is never markup, and its hidden characters are made visible.

use maud::{Markup, html};

use crate::engine::Estimated;
pub use crate::readable::{count, duration, number, rate, shortened, size, visible, visible_lines};

/// Maximum characters of a text in a table.
pub const CUT: usize = 200;
/// Marks around volatile parts, which the tag of a page ignores. No text contains them: [`visible`] removes them.
pub const VOLATILE: (char, char) = ('\u{1}', '\u{2}');

/// Shows a foreign text, with its own direction.
pub fn text(from: &str) -> Markup {
    html! { bdi { (visible(from)) } }
}

/// Shows at most [`CUT`] characters of it.
pub fn cut(from: &str) -> Markup {
    let (short, more) = shortened(from, CUT);
    html! { bdi { (visible(short)) } @if more { "…" } }
}

/// Returns user input for the value of a field: unchanged, but without the marks, which no field can contain.
pub fn typed(value: &str) -> String {
    value.replace([VOLATILE.0, VOLATILE.1], "")
}

/// Marks a part that changes every second.
pub fn volatile(markup: &Markup) -> Markup {
    maud::PreEscaped(format!("{}{}{}", VOLATILE.0, markup.0, VOLATILE.1))
}

/// Shows that a value is unknown, and why.
pub fn unknown(why: &str) -> Markup {
    html! { span.unknown title=(why) { "–" } }
}

/// Shows a number, or why it is unknown.
pub fn known(n: Option<u64>, why: &str) -> Markup {
    match n {
        Some(n) => html! { (number(n)) },
        None => unknown(why),
    }
}

/// Shows the number of a queue's delayed or running jobs, marked if it is an estimate.
pub fn timers(n: Option<u64>, estimated: Estimated, why: &str) -> Markup {
    const ESTIMATED: &str = "an estimate, corrected every ten minutes";
    html! { @if estimated.timers && n.is_some() { span title=(ESTIMATED) { "≈ " } } (known(n, why)) }
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
        assert_eq!(typed("\u{1}x\u{2}\u{202e}"), "x\u{202e}", "a field keeps its input");
    }
}
