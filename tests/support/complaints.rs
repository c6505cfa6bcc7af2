//! Warnings and errors in a server's log.

/// Returns the lines with level warning or error, which is the second word. The same letters may occur in an id.
pub fn complaints(said: &str) -> Vec<&str> {
    let level =
        |line: &&str| line.split_whitespace().nth(1).is_some_and(|word| matches!(word, "WARN" | "ERROR"));
    said.lines().filter(level).collect()
}
