//! The commands that documents for operators show: a shell takes them, and `dormouse` knows what they ask of it.

use std::process::{Command, Stdio};

/// Code blocks of a document that have no language.
fn blocks(document: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{document}: {e}"));
    // Every second piece is between two fences.
    let inside = text.split("\n```").skip(1).step_by(2);
    inside.filter_map(|block| block.strip_prefix('\n')).map(str::to_owned).collect()
}

/// What stands between backticks in the text, and begins with this program.
fn inline(document: &str, program: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{document}: {e}"));
    let pieces = text.split('\n').flat_map(|line| line.split('`').skip(1).step_by(2));
    pieces.filter(|piece| piece.starts_with(program)).map(str::to_owned).collect()
}

/// Panics unless a shell can read it.
fn shell_reads(document: &str, script: &str) {
    let shell = Command::new("bash").args(["-n", "-c", script]).output().expect("bash is there");
    let why = String::from_utf8_lossy(&shell.stderr);
    assert!(shell.status.success(), "{document}: bash does not read\n{script}\n{why}");
}

/// Panics unless `dormouse` has this command with these options: it is asked for its help behind them.
fn dormouse_knows(document: &str, command: &str) {
    // Names in capitals stand for what the reader fills in.
    let words: Vec<&str> =
        command.split_whitespace().skip(1).take_while(|word| !"|>&".contains(word)).collect();
    let mut dormouse = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    let output = dormouse.args(&words).arg("--help").env_clear().stdin(Stdio::null()).output();
    let output = output.expect("the binary runs");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{document}: dormouse does not know `{command}`:\n{why}");
}

/// Guards against commands that somebody types at night, and that are not there any more.
#[test]
fn the_commands_of_the_runbook_are_there() {
    let (runbook, mut seen) = ("docs/runbook.md", 0);
    for block in blocks(runbook) {
        shell_reads(runbook, &block);
        for line in block.lines().filter(|line| line.starts_with("dormouse ")) {
            dormouse_knows(runbook, line);
            seen += 1;
        }
    }
    for command in inline(runbook, "dormouse queue ") {
        dormouse_knows(runbook, &command);
        seen += 1;
    }
    assert!(seen > 15, "only {seen} commands: this test looks for the wrong words");
}

#[test]
fn the_commands_of_the_manual_are_there() {
    let (manual, mut seen) = ("docs/operations.md", 0);
    for block in blocks(manual) {
        for line in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
            shell_reads(manual, line);
            if line.starts_with("dormouse ") {
                dormouse_knows(manual, line);
                seen += 1;
            }
        }
    }
    assert!(seen > 3, "only {seen} commands: this test looks for the wrong words");
}
