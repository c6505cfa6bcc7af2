//! The lines of trouble in what a server logged.

/// The lines whose level is a warning or an error: it is their second word, in a column of its own. The same letters
/// may be in an id.
pub fn complaints(said: &str) -> Vec<&str> {
    let level =
        |line: &&str| line.split_whitespace().nth(1).is_some_and(|word| matches!(word, "WARN" | "ERROR"));
    said.lines().filter(level).collect()
}
