//! The introduction of docs/schedules.md, executed as printed.

use std::process::{Command, Stdio};

use crate::support::client::create_token;
use crate::support::process::Process;
use tempfile::TempDir;

/// Returns the code blocks of a document that have no language.
pub(super) fn blocks(document: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{document}: {e}"));
    // Every second piece is inside a block.
    let inside = text.split("\n```").skip(1).step_by(2);
    inside.filter_map(|block| block.strip_prefix('\n')).map(str::to_owned).collect()
}

/// Panics unless a shell can parse it.
pub(super) fn shell_reads(document: &str, script: &str) {
    let shell = Command::new("bash").args(["-n", "-c", script]).output().expect("bash is there");
    let why = String::from_utf8_lossy(&shell.stderr);
    assert!(shell.status.success(), "{document}: bash does not read\n{script}\n{why}");
}

/// Splits a command into words; text in single quotes is one word.
fn words(command: &str) -> Vec<String> {
    let pieces = command.split('\'').enumerate();
    let words = pieces.flat_map(|(n, piece)| match n % 2 {
        0 => piece.split_whitespace().map(str::to_owned).collect(),
        _ => vec![piece.to_owned()],
    });
    words.collect()
}

/// Panics unless `dormouse` has this command with these options. Runs it with `--help` appended.
pub(super) fn dormouse_knows(document: &str, command: &str) {
    // Names in capitals are placeholders.
    let words: Vec<String> =
        words(command).into_iter().skip(1).take_while(|word| !"|>&".contains(&**word)).collect();
    let mut dormouse = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    let output = dormouse.args(&words).arg("--help").env_clear().stdin(Stdio::null()).output();
    let output = output.expect("the binary runs");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{document}: dormouse does not know `{command}`:\n{why}");
}

/// Returns the JSON keys in a line, which may be complete JSON or shortened by `..`.
fn shown_keys(line: &str) -> Vec<&str> {
    let pieces = line.split("\":");
    let keys = pieces.filter_map(|piece| piece.rsplit_once('"').map(|(_, key)| key));
    keys.filter(|key| !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')).collect()
}

/// Guards against an introduction that does not work, or whose replies differ from those shown: the blocks are run as
/// printed, with the addresses of the test's server.
#[tokio::test(flavor = "multi_thread")]
async fn the_walk_through_schedules_works_as_it_stands() {
    let document = "docs/schedules.md";
    let dir = TempDir::new().expect("a temporary directory");
    let mut process = Process::start(dir.path(), &[], &[("DORMOUSE_POOL_DEFAULT_PATH", "jobs")]);
    let (api, token) = (process.address("api"), create_token(process.address("admin"), "demo").await);
    let text = std::fs::read_to_string(document).expect(document);
    let set = text.split("\n```json\n").nth(1).and_then(|rest| rest.split("\n```").next());
    std::fs::write(dir.path().join("schedules.json"), set.expect("a set")).expect("a file");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_dormouse")).parent().expect("a directory");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let (mut script, mut expected) = (String::new(), Vec::new());
    let all = blocks(document);
    for line in all.iter().filter(|block| block.starts_with("$ ")).flat_map(|block| block.lines()) {
        let Some(command) = line.strip_prefix("$ ") else {
            if let Some((_, shown)) = expected.last_mut() {
                *shown = format!("{shown}{line}\n");
            }
            continue;
        };
        shell_reads(document, command);
        if command.starts_with("dormouse ") {
            dormouse_knows(document, command);
        }
        // The rest is for another machine, or needs the network.
        if ["curl -", "dormouse ", "BASE=", "export DORMOUSE_URL"].iter().any(|own| command.starts_with(own))
        {
            let command = command.replace("127.0.0.1:7777", &api).replace("\"every\":5", "\"every\":1");
            script +=
                &format!("{}\ncode=$?; echo; echo \"== $code\"\n", command.replace("curl -", "curl -sS -"));
            expected.push((command, String::new()));
        }
    }
    assert!(expected.len() > 14, "only {} commands: this test looks for the wrong words", expected.len());
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).env_clear().env("PATH", path).env("TOKEN", &token).current_dir(dir.path());
    let output = tokio::task::spawn_blocking(move || shell.stdin(Stdio::null()).output());
    let output = output.await.expect("no panic").expect("bash is there");
    let out = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<&str> = out.split("\n== ").collect();
    assert_eq!(answers.len(), expected.len() + 1, "one answer each: {out}");
    for (n, (command, shown)) in expected.iter().enumerate() {
        // The first line is the exit code of the previous command.
        let answer = answers[n].split_once('\n').map_or(answers[n], |(_, answer)| answer);
        let code = answers[n + 1].split('\n').next().unwrap_or_default();
        let differs = command.contains("--dry-run");
        assert_eq!(code, if differs { "1" } else { "0" }, "{command} answers {answer}");
        for key in shown_keys(shown) {
            assert!(answer.contains(&format!("\"{key}\":")), "{command} shows {key}, and answers {answer}");
        }
        let is_refused = answer.contains("\"error\"");
        assert_eq!(is_refused, shown.contains("\"error\""), "{command} answers {answer}");
        if !shown.contains('{') && !shown.is_empty() {
            assert_eq!(answer.trim(), shown.trim(), "{command}");
        }
    }
}
