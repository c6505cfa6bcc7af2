//! Commands whose output cannot be written: on a full device they fail with exit code 1 and a message; a closed pipe
//! (`| head -1`) ends them silently. No command panics.

use std::process::{Command, Output, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::support::client::{create_token, request, send};
use crate::support::process::Process;
use crate::support::wait::until;

/// A server with a job in each state shown by commands.
struct Stand {
    dir: TempDir,
    api: String,
    admin: String,
    token: String,
    _process: Process,
}

impl Stand {
    async fn start() -> Stand {
        let dir = TempDir::new().expect("a temporary directory");
        let env = [("DORMOUSE_POOL_DEFAULT_PATH", "jobs")];
        let mut process = Process::start(dir.path(), &[], &env);
        let (api, admin) = (process.address("api"), process.address("admin"));
        let token = create_token(&admin, "ns").await;
        until_ready(&admin).await;
        let stand = Stand { dir, api, admin, token, _process: process };
        stand.publish("q", "x").await;
        let schedule = json!({"queue": "q", "every": 3600, "text": "x"}).to_string();
        let put = request("PUT", &format!("http://{}/api/ns/_schedules/s", stand.api), &stand.token);
        send(put.body(schedule)).await.expect(201);
        stand
    }

    async fn publish(&self, queue: &str, body: &str) -> String {
        let put = request("PUT", &format!("http://{}/api/ns/{queue}", self.api), &self.token);
        send(put.body(body.to_owned())).await.expect(201).job_id()
    }

    /// Returns a command of a binary, with the server's address in its environment.
    fn command(&self, line: &str) -> Command {
        let mut words = line.split(' ');
        let binary = match words.next() {
            Some("token-cli") => env!("CARGO_BIN_EXE_token-cli"),
            _ => env!("CARGO_BIN_EXE_dormouse"),
        };
        let mut command = Command::new(binary);
        let words = words.map(|word| word.replace("ADMIN", &self.admin));
        command.args(words).current_dir(self.dir.path()).env_clear().stdin(Stdio::null());
        command
            .env("DORMOUSE_URL", format!("http://{}", self.api))
            .env("DORMOUSE_ADMIN", format!("http://{}", self.admin))
            .env("DORMOUSE_TOKEN", &self.token)
            .env("DORMOUSE_NAMESPACE", "ns");
        command
    }
}

/// Waits until the server with this admin port is ready.
async fn until_ready(admin: &str) {
    let ready = format!("http://{admin}/ready");
    until("it is ready", async || send(request("GET", &ready, "")).await.status == 200).await;
}

/// Every command that prints. `c.toml` configures a directory that no server has open.
const COMMANDS: [&str; 28] = [
    "dormouse --help",
    "dormouse -v",
    "dormouse help queue",
    "dormouse completions bash",
    "dormouse check -c c.toml",
    "dormouse check -c c.toml --stores",
    "dormouse repair other",
    "dormouse health",
    "dormouse queue --help",
    "dormouse queue list",
    "dormouse queue list -o json",
    "dormouse queue list --need any",
    "dormouse queue peek q",
    "dormouse queue peek q --state delayed",
    "dormouse queue publish q x",
    "dormouse queue pause q --for 60",
    "dormouse queue resume q",
    "dormouse queue respawn q --oldest 1",
    "dormouse queue purge q --yes",
    "dormouse queue history q",
    "dormouse queue dead",
    "dormouse queue dead q",
    "dormouse queue bulk",
    "dormouse queue schedules list",
    "dormouse queue schedules show s",
    "dormouse queue schedules preview --every 60",
    "token-cli ADMIN -l -n ns",
    "token-cli --help",
];

fn ended(mut command: Command, stdout: Stdio) -> (Option<i32>, String) {
    let Output { status, stderr, .. } =
        command.stdout(stdout).stderr(Stdio::piped()).output().expect("the binary runs");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Guards against a panic in `dormouse completions bash | head -1`, and against a truncated report on a full disk with
/// exit code 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_cannot_be_written_is_an_error_and_a_closed_pipe_is_not() {
    let stand = Stand::start().await;
    let config = "[Pool.default]\nPath = 'other'\n";
    std::fs::write(stand.dir.path().join("c.toml"), config).expect("a file");
    let mut wrong = Vec::new();
    for line in COMMANDS {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full is there");
        let (code, said) = ended(stand.command(line), full.into());
        // `repair` of a missing directory fails, and prints nothing.
        let fails = said.contains("standard output: No space left on device") || line.contains("repair");
        if code != Some(1) || !fails || said.lines().count() != 1 {
            wrong.push(format!("{line} > /dev/full: {code:?}: {said}"));
        }
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let (code, said) = ended(stand.command(line), writer.into());
        if !line.contains("repair") && (code, said.as_str()) != (Some(0), "") {
            wrong.push(format!("{line} | true: {code:?}: {said}"));
        }
    }
    // If standard error is full, only the exit code reports a failure.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full is there");
    let mut command = stand.command("dormouse check -c missing.toml");
    let status = command.stdout(Stdio::null()).stderr(full).status().expect("the binary runs");
    if status.code() != Some(2) {
        wrong.push(format!("check 2> /dev/full: {status}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Guards against a server that dies because its startup banner cannot be written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_serves_also_when_its_banner_cannot_be_written() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" > /dev/full", env!("CARGO_BIN_EXE_dormouse")]);
    let mut process = Process::run(command, dir.path(), &[]);
    let admin = process.address("admin");
    until_ready(&admin).await;
    process.signal("TERM");
    let ended = process.ended();
    assert!(ended.status.success(), "{}", ended.said);
    assert!(!ended.said.contains("panicked"), "{}", ended.said);
}

/// Guards against a job whose text is displayed wrongly, or controls the terminal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_characters_of_jobs_are_visible() {
    let stand = Stand::start().await;
    let hostile = "invoice\u{202e}fdp.exe\u{1b}[2J\u{9b}31m\u{200b}";
    let id = stand.publish("odd", hostile).await;
    for (line, shows) in [
        ("dormouse queue peek odd --data".to_owned(), "‹U+202E›"),
        (format!("dormouse queue peek odd --job {id}"), "‹U+202E›"),
    ] {
        let output = stand.command(&line).output().expect("the binary runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(shows) && text.contains("‹U+200B›"), "{line}: {text:?}");
        assert!(!text.contains(['\u{202e}', '\u{1b}', '\u{9b}', '\u{200b}']), "{line}: {text:?}");
    }
    // JSON keeps the meaning: the same characters, escaped.
    let create = format!("http://{}/token/ns?description=a%E2%80%AEb", stand.admin);
    send(request("POST", &create, "")).await.expect(201);
    for line in ["token-cli ADMIN -l -n ns", "dormouse queue peek odd --data -o json"] {
        let output = stand.command(line).output().expect("the binary runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!text.contains('\u{202e}'), "{line}: {text:?}");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        if line.starts_with("token-cli") {
            assert!(json.to_string().contains("a\u{202e}b"), "{line}: {json}");
        }
    }
}
