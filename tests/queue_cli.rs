//! `dormouse queue` against a real server process: what it asks for, what it prints, how it ends.

mod support;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use support::client::create_token;
use support::process::Process;
use tempfile::TempDir;

/// A server process, and how to reach it.
struct Stand {
    process: Process,
    url: String,
    token: String,
    _dir: TempDir,
}

impl Stand {
    async fn start() -> Stand {
        let dir = TempDir::new().expect("a temporary directory");
        let mut process = Process::start(dir.path(), &[], &[("DORMOUSE_POOL_DEFAULT_PATH", "jobs")]);
        let (api, admin) = (process.address("api"), process.address("admin"));
        let token = create_token(admin, "ns").await;
        Stand { process, url: format!("http://{api}"), token, _dir: dir }
    }

    /// Runs `dormouse queue` with these arguments, in the namespace `ns`.
    fn queue(&self, args: &[&str]) -> Ended {
        self.queue_with(args, "")
    }

    /// The same with something on standard input.
    fn queue_with(&self, args: &[&str], input: &str) -> Ended {
        let mut command = dormouse(args);
        command
            .env("DORMOUSE_URL", &self.url)
            .env("DORMOUSE_TOKEN", &self.token)
            .env("DORMOUSE_NAMESPACE", "ns");
        run(command, input)
    }

    /// The same as JSON.
    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        let ended = self.queue(&[args, &["-o", "json"]].concat());
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{args:?}");
        serde_json::from_str(&ended.out)
            .unwrap_or_else(|e| panic!("{args:?} printed no JSON ({e}): {}", ended.out))
    }
}

/// Exit code, stdout and stderr.
#[derive(Debug)]
struct Ended {
    code: i32,
    out: String,
    err: String,
}

fn dormouse(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.arg("queue").args(args).env_clear();
    command.env("http_proxy", "http://127.0.0.1:1").env("ALL_PROXY", "http://127.0.0.1:1");
    command
}

fn run(mut command: Command, input: &str) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    // A command that reads nothing may have ended already.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

/// The words of each line.
fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_night_on_call() {
    let stand = Stand::start().await;
    let first = stand.json(&["publish", "mail", "to ann", "--delay", "600.5", "--key", "ann", "--ttl", "0"]);
    let id = first["job_id"].as_str().expect("an id").to_owned();
    let piped = stand.queue_with(&["publish", "mail", "-o", "json"], "from standard input");
    assert_eq!((piped.code, piped.err.as_str()), (0, ""), "{piped:?}");
    let taken = stand.queue(&["publish", "mail", "x", "--key", "ann", "--on-conflict", "fail"]);
    assert_eq!((taken.code, taken.out.as_str()), (1, ""), "{taken:?}");
    assert!(taken.err.contains(&format!("409 Conflict: the key is taken (job {id})")), "{taken:?}");
    assert_eq!(taken.err.lines().count(), 1, "one line: {taken:?}");

    let listed = stand.queue(&["list"]);
    assert_eq!((listed.code, listed.err.as_str()), (0, ""), "{listed:?}");
    let lines = words(&listed.out);
    assert_eq!(lines[0][..5], ["QUEUE", "READY", "DELAYED", "RUNNING", "DEAD"], "{}", listed.out);
    assert_eq!((lines[1][0], lines[1][1], lines[1].last()), ("mail", "1", Some(&"no")), "{}", listed.out);
    assert_eq!(stand.json(&["list"])["queues"][0]["queue"], "mail");

    let peeked = stand.queue(&["peek", "mail", "--state", "delayed"]);
    assert!(peeked.out.contains(&id) && peeked.out.contains("ann"), "{peeked:?}");
    let ready = stand.json(&["peek", "mail", "--data", "--limit", "1"]);
    assert_eq!(support::client::data(&ready["jobs"][0]), b"from standard input");
    let one = stand.queue(&["peek", "mail", "--job", &id]);
    assert!(one.out.contains("delayed") && one.out.contains("to ann"), "{one:?}");

    let paused = stand.json(&["pause", "mail", "--for", "600"]);
    assert_eq!((&paused["msg"], paused["until"].is_string()), (&json!("paused"), true));
    let listed = stand.queue(&["list"]);
    assert!(listed.out.contains("until 20"), "{listed:?}");
    assert_eq!(stand.json(&["resume", "mail"]), json!({"msg": "resumed"}));

    let asks = stand.queue(&["purge", "mail"]);
    assert_eq!((asks.code, asks.out.as_str()), (2, ""), "{asks:?}");
    assert!(asks.err.contains("ns/mail, 1 of them now") && asks.err.contains("--yes"), "{asks:?}");
    assert_eq!(stand.json(&["list"])["queues"][0]["ready"], 1, "nothing was forgotten");
    assert_eq!(stand.json(&["purge", "mail", "--yes"]), json!({"msg": "purged"}));
    assert_eq!(stand.json(&["peek", "mail"])["jobs"], json!([]));
    assert_eq!(
        stand.json(&["peek", "mail", "--state", "delayed"])["jobs"][0]["job_id"],
        json!(id),
        "it stays"
    );
    let ended = stand.process;
    ended.signal("TERM");
    assert!(ended.ended().status.success(), "the server stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_jobs_are_respawned_by_id_or_by_age() {
    let stand = Stand::start().await;
    let mut ids = Vec::new();
    for body in ["a", "b", "c"] {
        ids.push(stand.json(&["publish", "q", body])["job_id"].as_str().expect("an id").to_owned());
        let url = format!("{}/api/ns/q", stand.url);
        let got = support::client::request("GET", &format!("{url}?receipt=1&ttr=600"), &stand.token);
        let got = support::client::send(got).await.expect(200);
        let bury =
            format!("{url}/job/{}/bury?receipt={}", got.job_id(), got.json["receipt"].as_str().unwrap_or(""));
        support::client::send(support::client::request("POST", &bury, &stand.token).body("broken"))
            .await
            .expect(200);
    }
    let dead = stand.queue(&["peek", "q", "--state", "dead"]);
    assert_eq!(dead.out.matches("broken").count(), 3, "{dead:?}");
    assert_eq!(stand.json(&["respawn", "q", "--oldest", "1"])["count"], 1);
    let some = stand.queue(&["respawn", "q", &ids[1], &ids[0], "--tries", "3", "-o", "json"]);
    assert_eq!(some.code, 1, "one of them is not dead: {some:?}");
    assert!(some.err.contains("1 of 2 jobs are not dead or not there"), "{some:?}");
    let said: Value = serde_json::from_str(&some.out).expect("JSON");
    assert_eq!(said, json!({"respawned": 1, "missing": [ids[0]]}));
    assert_eq!(
        stand.json(&["respawn", "q", &ids[2], "--delay", "600"]),
        json!({"respawned": 1, "missing": []})
    );
    let shown = stand.json(&["peek", "q", "--job", &ids[1]]);
    assert_eq!((&shown["state"], &shown["remain_tries"]), (&json!("ready"), &json!(3)), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_goes_on_over_the_pages() {
    let stand = Stand::start().await;
    let url = format!("{}/api/ns/q/bulk", stand.url);
    for _ in 0..5 {
        let bulk = format!("[{}]", vec!["1"; 50].join(","));
        support::client::send(support::client::request("PUT", &url, &stand.token).body(bulk))
            .await
            .expect(201);
    }
    for (limit, shown) in [("1", 1), ("100", 100), ("101", 101), ("1000", 250)] {
        let jobs = stand.json(&["peek", "q", "--limit", limit]);
        assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(shown), "--limit {limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_is_one_line_and_an_exit_code() {
    let stand = Stand::start().await;
    let with = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = dormouse(args);
        command.envs(env.iter().copied());
        run(command, "")
    };
    let url = ["--url", stand.url.as_str()];
    for (args, code, says) in [
        (&["list"][..], 2, "namespace"),
        (&["-n", "ns", "list"], 1, "401 Unauthorized: token not found"),
        (&["-n", "ns", "--token", "wrong", "list"], 1, "401 Unauthorized: invalid token"),
        (&["-n", "n.s", "list"], 1, "400 Bad Request: namespace name contains forbidden characters"),
        (&["-n", "ns", "--token", &stand.token, "publish", "q", "x", "--delay", "soon"], 1, "invalid delay"),
        (
            &["-n", "ns", "--token", &stand.token, "peek", "q", "--job", "x"],
            1,
            "404 Not Found: job not found",
        ),
        (&["-n", "ns", "--token", "a\nb", "list"], 2, "token"),
    ] {
        let ended = with(&[&url, args].concat(), &[]);
        assert_eq!((ended.code, ended.out.as_str()), (code, ""), "{args:?}: {ended:?}");
        assert!(
            ended.err.contains(says) && ended.err.lines().count() == 1,
            "{args:?} should say {says:?}: {ended:?}"
        );
        assert!(!ended.err.contains(&stand.token), "the token is shown: {ended:?}");
    }
    for url in ["localhost:7777", "https://localhost", "http://", "http://h/path", "ftp://h"] {
        let ended = with(&["--url", url, "-n", "ns", "list"], &[]);
        assert_eq!(
            (ended.code, ended.out.as_str(), ended.err.lines().count()),
            (2, "", 1),
            "{url}: {ended:?}"
        );
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let ended = with(&["-n", "ns", "list"], &[("DORMOUSE_URL", &format!("http://{free}"))]);
    assert_eq!((ended.code, ended.err.lines().count()), (1, 1), "nobody listens: {ended:?}");
    assert!(ended.err.contains("cannot reach"), "{ended:?}");
    for args in [&["-n", "ns"][..], &["peek"], &["respawn", "q"], &["respawn", "q", "id", "--oldest", "1"]] {
        let ended = with(args, &[]);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{args:?}: {ended:?}");
    }
}

#[test]
fn help_shows_every_command_and_an_example() {
    let help = run(dormouse(&["--help"]), "");
    assert_eq!((help.code, help.err.as_str()), (0, ""), "help is no error");
    let wanted = [
        "list",
        "peek",
        "publish",
        "pause",
        "resume",
        "respawn",
        "purge",
        "--url",
        "--token",
        "--namespace",
        "--output",
        "DORMOUSE_TOKEN",
        "Examples:",
    ];
    for wanted in wanted {
        assert!(help.out.contains(wanted), "--help does not tell of {wanted}:\n{}", help.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pushed_is_set_and_shown_over_the_admin_port() {
    let mut stand = Stand::start().await;
    let admin = format!("http://{}", stand.process.address("admin"));
    let push = |args: &[&str], input: &str| {
        let mut command = dormouse(&["push"]);
        command.args(args).args(["-o", "json"]);
        command.env("DORMOUSE_ADMIN_URL", &admin).env("DORMOUSE_NAMESPACE", "ns");
        let ended = run(command, input);
        (ended.code, serde_json::from_str(&ended.out).unwrap_or(Value::Null), ended.err)
    };
    let (code, _, err) = push(&["show", "mail"], "");
    assert_eq!((code, err.contains("not pushed")), (1, true), "{err}");
    let set = [
        "set",
        "mail",
        "https://push.invalid/jobs",
        "--concurrency",
        "4",
        "--retry",
        "1,2.5",
        "--header",
        "Authorization: Bearer x",
        "--ok-when",
        "/code=0",
        "--on-dead",
        "failed",
        "--timeout",
        "3",
    ];
    let (code, shown, err) = push(&set, "");
    assert_eq!((code, err.as_str()), (0, ""), "set");
    assert!(shown["secret"].as_str().is_some_and(|secret| secret.starts_with("whsec_")), "{shown}");
    let (code, shown, _) = push(&["show", "mail"], "");
    let expected =
        json!([4, [1, 2.5], {"pointer": "/code", "equals": 0}, "failed", {"Authorization": null}, "on"]);
    let fields =
        ["concurrency", "retry", "ok_when", "on_dead", "headers", "state"].map(|field| shown[field].clone());
    assert_eq!((code, json!(fields)), (0, expected));
    assert_eq!(push(&["pause", "mail"], "").1["state"], "paused");
    assert_eq!(push(&["resume", "mail"], "").1["state"], "on");
    assert!(push(&["secret", "mail"], "").1["secret"].is_string());
    let (code, tested, err) = push(&["test", "mail"], "");
    assert_eq!((code, &tested["ok"]), (1, &json!(false)), "nobody has that name: {tested} {err}");
    let (code, shown, _) = push(&["set", "mail"], r#"{"url": "https://push.invalid/", "method": "PUT"}"#);
    assert_eq!((code, &shown["method"]), (0, &json!("PUT")), "from standard input: {shown}");
    let (code, _, err) = push(&["set", "mail", "ftp://push.invalid/"], "");
    assert_eq!((code, err.contains("url")), (1, true), "{err}");
    assert_eq!(push(&["delete", "mail"], "").0, 0);
    assert_eq!(push(&["show", "mail"], "").0, 1, "it is gone");
}
