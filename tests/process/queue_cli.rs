//! `dormouse queue` against a real server process: its requests, output and exit codes.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::support::client::create_token;
use crate::support::process::Process;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A server process, and its addresses.
struct Stand {
    process: Process,
    url: String,
    admin: String,
    token: String,
    _dir: TempDir,
}

impl Stand {
    async fn start() -> Stand {
        let dir = TempDir::new().expect("a temporary directory");
        let env = [("DORMOUSE_POOL_DEFAULT_PATH", "jobs"), ("DORMOUSE_PUSH_ALLOW", "127.0.0.0/8")];
        let mut process = Process::start(dir.path(), &[], &env);
        let (api, admin) = (process.address("api"), process.address("admin"));
        let token = create_token(&admin, "ns").await;
        let (url, admin) = (format!("http://{api}"), format!("http://{admin}"));
        Stand { process, url, admin, token, _dir: dir }
    }

    /// Runs `dormouse queue` with these arguments, in the namespace `ns`.
    fn queue(&self, args: &[&str]) -> Ended {
        self.queue_with(args, "")
    }

    /// Like `queue`, with standard input.
    fn queue_with(&self, args: &[&str], input: &str) -> Ended {
        let mut command = dormouse(args);
        command
            .env("DORMOUSE_URL", &self.url)
            .env("DORMOUSE_ADMIN_URL", &self.admin)
            .env("DORMOUSE_TOKEN", &self.token)
            .env("DORMOUSE_NAMESPACE", "ns");
        run(command, input)
    }

    /// Like `queue`, and returns the output as JSON.
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

/// Starts an endpoint. Returns its address, and the head and the body of each request, to which it replies 200.
async fn endpoint() -> (String, UnboundedReceiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/jobs", listener.local_addr().expect("it is bound"));
    let (tell, arrived) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            let (mut head, mut length) = (String::new(), 0);
            while stream.read_line(&mut head).await.is_ok_and(|read| read > 2) {
                let line = head.lines().last().unwrap_or_default().to_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.expect("the whole body");
            let _ = tell.send((head, String::from_utf8_lossy(&body).into_owned())); // the test may have ended
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(answer).await.expect("the caller reads");
        }
    });
    (url, arrived)
}

/// Returns the words of each line.
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
    assert_eq!(crate::support::client::data(&ready["jobs"][0]), b"from standard input");
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
        let got = crate::support::client::request("GET", &format!("{url}?receipt=1&ttr=600"), &stand.token);
        let got = crate::support::client::send(got).await.expect(200);
        let bury =
            format!("{url}/job/{}/bury?receipt={}", got.job_id(), got.json["receipt"].as_str().unwrap_or(""));
        crate::support::client::send(
            crate::support::client::request("POST", &bury, &stand.token).body("broken"),
        )
        .await
        .expect(200);
    }
    let dead = stand.queue(&["peek", "q", "--state", "dead"]);
    assert_eq!(dead.out.matches("broken").count(), 3, "{dead:?}");
    assert_eq!(stand.json(&["respawn", "q", "--oldest", "1"])["count"], 1);
    let some = stand.queue(&["respawn", "q", &ids[1], &ids[0], "--tries", "3", "-o", "json"]);
    assert_eq!(some.code, 1, "one of them is not dead: {some:?}");
    assert!(some.err.contains("1 of 2 jobs are not dead or do not exist"), "{some:?}");
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
async fn delayed_jobs_are_made_ready_by_id_or_by_key() {
    let stand = Stand::start().await;
    let mut ids = Vec::new();
    for args in [&["--delay", "600"][..], &["--delay", "600", "--key", "7/a"], &[]] {
        let args = [&["publish", "q", "x"][..], args].concat();
        ids.push(stand.json(&args)["job_id"].as_str().expect("an id").to_owned());
    }
    assert_eq!(stand.json(&["promote", "q", &ids[0]]), json!({"promoted": 1, "refused": []}));
    assert_eq!(stand.json(&["promote", "q", "--key", "7/a"]), json!({"msg": "ready"}));
    let shown = stand.json(&["peek", "q", "--job", &ids[1]]);
    assert_eq!((&shown["state"], &shown["key"]), (&json!("ready"), &json!("7/a")), "{shown}");
    let some = stand.queue(&["promote", "q", &ids[2], "nonsense", "-o", "json"]);
    assert_eq!(some.code, 1, "neither is delayed: {some:?}");
    assert!(some.err.contains("2 of 2 jobs are not delayed or do not exist"), "{some:?}");
    let said: Value = serde_json::from_str(&some.out).expect("JSON");
    assert_eq!(said, json!({"promoted": 0, "refused": [ids[2], "nonsense"]}));
    let none = stand.queue(&["promote", "q", "--key", "nobody"]);
    assert_eq!((none.code, none.err.contains("no job has this key")), (1, true), "{none:?}");
    assert_eq!(stand.queue(&["promote", "q"]).code, 2, "which jobs?");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_forgotten() {
    let stand = Stand::start().await;
    stand.json(&["publish", "q", "x", "--delay", "600"]);
    let unsure = stand.queue(&["forget", "q"]);
    assert!(unsure.code == 2 && unsure.err.contains("--yes"), "{unsure:?}");
    assert_eq!(stand.json(&["forget", "q", "--yes"]), json!({"msg": "forgotten"}));
    assert_eq!(stand.json(&["list"])["queues"], json!([]), "it is in no list");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_goes_on_over_the_pages() {
    let stand = Stand::start().await;
    let url = format!("{}/api/ns/q/bulk", stand.url);
    for _ in 0..5 {
        let bulk = format!("[{}]", vec!["1"; 50].join(","));
        crate::support::client::send(crate::support::client::request("PUT", &url, &stand.token).body(bulk))
            .await
            .expect(201);
    }
    for (limit, shown) in [("1", 1), ("100", 100), ("101", 101), ("1000", 250)] {
        let jobs = stand.json(&["peek", "q", "--limit", limit]);
        assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(shown), "--limit {limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_pushed() {
    let stand = Stand::start().await;
    let (url, mut arrived) = endpoint().await;
    let all = [
        "push",
        "set",
        "mail",
        &url,
        "--method",
        "PUT",
        "--header",
        "X-Key: a secret",
        "--timeout",
        "30",
        "--concurrency",
        "4",
        "--rate",
        "100",
        "--per",
        "2",
        "--retry",
        "0.5,60",
        "--ok-when",
        "/code=0",
        "--format",
        "cloudevents",
        "--on-dead",
        "graves",
    ];
    let set = stand.json(&all);
    assert!(set["secret"].as_str().is_some_and(|secret| secret.starts_with("whsec_")), "{set}");
    for (field, value) in [
        ("url", json!(url)),
        ("method", json!("PUT")),
        ("timeout", json!(30)),
        ("concurrency", json!(4)),
        ("rate", json!(100)),
        ("per", json!(2)),
        ("retry", json!([0.5, 60])),
        ("ok_when", json!({"pointer": "/code", "equals": 0})),
        ("format", json!("cloudevents")),
        ("on_dead", json!("graves")),
        ("headers", json!({"X-Key": null})),
    ] {
        assert_eq!(set[field], value, "{field} of {set}");
    }
    // The endpoint responds with 200, but not with JSON.
    let test = stand.queue(&["push", "test", "mail"]);
    assert_eq!(test.code, 1, "the endpoint does not take it: {test:?}");
    let (head, _) = arrived.recv().await.expect("it came");
    assert!(head.to_lowercase().contains("x-key: a secret"), "{head}");
    let piped = stand.queue_with(&["push", "set", "mail", "-o", "json"], &format!(r#"{{"url":"{url}"}}"#));
    assert_eq!((piped.code, piped.err.as_str()), (0, ""), "the setting from standard input: {piped:?}");
    assert!(!piped.out.contains("whsec_"), "the secret is shown once: {piped:?}");
    let test = stand.queue(&["push", "test", "mail"]);
    assert_eq!((test.code, test.err.as_str()), (0, ""), "{test:?}");
    assert_eq!(stand.json(&["push", "pause", "mail"])["state"], "paused");
    assert_eq!(stand.json(&["push", "show", "mail"])["state"], "paused");
    assert_eq!(stand.json(&["push", "resume", "mail"])["state"], "on");
    stand.json(&["publish", "mail", "to ann"]);
    arrived.recv().await.expect("the second test");
    let (_, body) = arrived.recv().await.expect("it came");
    assert_eq!(body, "to ann");
    let shown = stand.queue(&["push", "show", "mail"]);
    assert!(shown.code == 0 && shown.out.contains("on") && shown.out.contains(&url), "{shown:?}");
    let secret = stand.json(&["push", "secret", "mail"]);
    assert_ne!(secret["secret"], set["secret"], "a new one");
    assert_eq!(stand.queue(&["push", "delete", "mail"]).code, 0);
    let gone = stand.queue(&["push", "show", "mail"]);
    assert_eq!((gone.code, gone.out.as_str()), (1, ""), "{gone:?}");
    assert!(gone.err.contains("404 Not Found: the queue is not pushed"), "{gone:?}");
    for (args, code, says) in [
        (&["push", "set", "mail", "http://10.0.0.1/"][..], 1, "PushAllow"),
        (&["push", "set", "mail", &url, "--timeout", "soon"], 2, "--timeout"),
        (&["push", "set", "mail", &url, "--ok-when", "code"], 2, "--ok-when"),
        (&["push", "set", "mail", &url, "--header", "x"], 2, "header"),
        (&["push", "set", "mail", &url, "--pool", "nowhere"], 1, "pool"),
        (&["push"], 2, "push"),
    ] {
        let ended = stand.queue(args);
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
        assert!(ended.err.contains(says), "{args:?} should say {says:?}: {ended:?}");
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
        (&["-n", "ns", "--token", &stand.token, "publish", "q", "x", "--delay", "soon"], 2, "--delay"),
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
    for url in ["localhost:7777", "http://", "http://h/path", "ftp://h", "http://h:77777", "http://h:7x"] {
        let ended = with(&["--url", url, "-n", "ns", "list"], &[]);
        assert_eq!(
            (ended.code, ended.out.as_str(), ended.err.lines().count()),
            (2, "", 1),
            "{url}: {ended:?}"
        );
    }
    let ended = with(&["-n", "ns", "list"], &[("DORMOUSE_URL", "http://127.0.0.1:1")]);
    assert_eq!((ended.code, ended.err.lines().count()), (1, 1), "no server listens: {ended:?}");
    assert!(ended.err.contains("cannot reach"), "{ended:?}");
    for args in [&["-n", "ns"][..], &["peek"], &["respawn", "q"], &["respawn", "q", "id", "--oldest", "1"]] {
        let ended = with(args, &[]);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{args:?}: {ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_from_a_repository() {
    let stand = Stand::start().await;
    let set = json!({"schedules": [
        {"name": "app.nightly", "queue": "mail", "cron": "30 2 * * *", "zone": "Europe/Berlin", "text": "report"},
        {"name": "app.tick", "queue": "mail", "every": 86400, "data": "AAE="},
    ]});
    let file = stand._dir.path().join("schedules.json");
    let write = |set: &Value| std::fs::write(&file, set.to_string()).expect("a file");
    let file_name = file.to_str().expect("text").to_owned();
    let sync = |more: &[&str]| stand.queue(&[&["schedules", "sync", &file_name], more].concat());
    write(&set);
    // Continuous integration runs this first.
    let asked = sync(&["--dry-run", "--prune", "--prefix", "app."]);
    assert_eq!(
        (asked.code, asked.out.as_str(), asked.err.as_str()),
        (
            1,
            "created app.nightly\ncreated app.tick\nunchanged 0\n",
            "dormouse: 2 schedules of the server differ from the file\n"
        ),
        "a dry run of a missing schedule"
    );
    assert_eq!(sync(&["--prune", "--prefix", "app."]).code, 0);
    let done = sync(&["--dry-run"]);
    assert_eq!((done.code, done.out.as_str()), (0, "unchanged 2\n"), "{done:?}");
    // The JSON of a list is such a file.
    let mut listed = stand.json(&["schedules", "list", "--prefix", "app."]);
    write(&listed);
    let same = sync(&["--dry-run", "--prune"]);
    assert_eq!((same.code, same.out.as_str()), (0, "unchanged 2\n"), "{same:?}");
    // One is edited, one omitted, and another user has added one.
    let other = stand.queue(&["schedules", "set", "other", "mail", "--every", "3600.5"]);
    assert_eq!((other.code, other.err.as_str()), (0, ""), "{other:?}");
    listed["schedules"][0]["cron"] = json!("0 3 * * *");
    listed["schedules"].as_array_mut().expect("a list").truncate(1);
    write(&listed);
    let differs = sync(&["--prune", "--prefix", "app.", "-o", "json"]);
    let answer: Value = serde_json::from_str(&differs.out).expect(&differs.out);
    assert_eq!(
        answer,
        json!({"created": [], "changed": ["app.nightly"], "unchanged": [], "removed": ["app.tick"], "dry_run": false})
    );
    let wrong = stand.queue_with(
        &["schedules", "sync", "-"],
        r#"{"schedules": [{"name": "x", "queue": "q", "cron": "0 25 * * *"}]}"#,
    );
    assert_eq!((wrong.code, wrong.out.as_str()), (1, ""), "{wrong:?}");
    assert!(wrong.err.contains("x: hour: \"25\" is out of range"), "{wrong:?}");
    assert_eq!(stand.queue(&["schedules", "sync", "/nowhere"]).code, 2, "no such file");
    let table = stand.queue(&["schedules", "list"]);
    let rows = words(&table.out);
    assert_eq!(rows[0], ["SCHEDULE", "QUEUE", "WHEN", "ZONE", "STATE", "NEXT", "LAST"], "{table:?}");
    assert_eq!(rows[1][..7], ["app.nightly", "mail", "0", "3", "*", "*", "*"], "{table:?}");
    assert_eq!(rows[2][..7], ["other", "mail", "every", "1", "h", "UTC", "on"], "{table:?}");
    assert_eq!(rows.len(), 3, "{table:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_by_hand() {
    let stand = Stand::start().await;
    let preview = stand.queue(&[
        "schedules",
        "preview",
        "--cron",
        "30 2 * * *",
        "--zone",
        "Europe/Berlin",
        "--from",
        "2026-03-28T12:00:00Z",
        "-n",
        "2",
    ]);
    assert_eq!(
        preview.out,
        "NEXT                      LOCAL\n\
         2026-03-29T01:00:00.000Z  2026-03-29T03:00:00.000+02:00\n\
         2026-03-30T00:30:00.000Z  2026-03-30T02:30:00.000+02:00\n",
        "{preview:?}"
    );
    // The namespace before the command with its short option, and after it with its long one.
    let next =
        stand.json(&["-n", "ns", "schedules", "preview", "--every", "60", "--namespace", "ns", "-n", "7"]);
    assert_eq!((&next["mode"], next["next"].as_array().map(Vec::len)), (&json!("every"), Some(7)), "{next}");
    let set = ["schedules", "set", "nightly", "mail", "report", "--cron", "@daily", "--zone", "Asia/Tokyo"];
    let more =
        ["--overlap", "skip", "--attribute", "team=a=b", "--tries", "3", "--ttl", "0", "--deadline", "90.5"];
    let dry = stand.json(&[&set[..], &more, &["--dry-run"]].concat());
    assert_eq!((&dry["result"], &dry["attributes"]), (&json!("created"), &json!({"team": "a=b"})), "{dry}");
    assert_eq!(stand.queue(&["schedules", "show", "nightly"]).code, 1, "a dry run stores nothing");
    let made = stand.json(&[&set[..], &more].concat());
    assert_eq!(
        ["cron", "zone", "text", "overlap", "tries", "ttl", "deadline", "revision"].map(|field| &made[field]),
        [
            &json!("@daily"),
            &json!("Asia/Tokyo"),
            &json!("report"),
            &json!("skip"),
            &json!(3),
            &json!(0),
            &json!(90.5),
            &json!(1)
        ],
        "{made}"
    );
    // The setting as JSON on standard input: the output of `show`, edited.
    let mut shown = stand.json(&["schedules", "show", "nightly"]);
    shown["cron"] = json!("0 12 * * *");
    let edited = stand.queue_with(&["schedules", "set", "nightly", "-o", "json"], &shown.to_string());
    assert!(edited.code == 0 && edited.out.contains("\"changed\""), "{edited:?}");
    let stale = stand.queue_with(&["schedules", "set", "nightly"], &shown.to_string());
    assert_eq!(stale.code, 1, "its revision is in force no more: {stale:?}");
    assert!(stale.err.contains("the schedule has changed"), "{stale:?}");

    let paused = stand.json(&["schedules", "pause", "nightly", "--for", "600"]);
    assert!(paused["until"].is_string(), "{paused}");
    let ran = stand.json(&["schedules", "run", "nightly", "--at", "2026-01-01T00:00:00Z"]);
    let job = stand.json(&["peek", "mail", "--job", ran["job_id"].as_str().expect("an id")]);
    assert_eq!(
        job["attributes"],
        json!({"schedule": "nightly", "scheduled-at": "2026-01-01T00:00:00.000Z", "team": "a=b"}),
        "{job}"
    );
    let living = stand.queue(&["schedules", "run", "nightly"]);
    assert!(living.code == 1 && living.err.contains(ran["job_id"].as_str().expect("an id")), "{living:?}");
    let table = stand.queue(&["schedules", "show", "nightly"]);
    assert!(table.out.contains("\nstate ") && table.out.contains(" run "), "{table:?}");
    assert_eq!(stand.json(&["schedules", "resume", "nightly"]), json!({"msg": "resumed"}));
    assert_eq!(stand.json(&["schedules", "delete", "nightly"]), json!({"msg": "deleted"}));
    for (args, code) in [
        (&["delete", "nightly"][..], 1),
        (&["set", "x", "--cron", "@daily"], 2),
        (&["set", "x", "q", "--cron", "@daily", "--every", "5"], 2),
        (&["set", "x", "q", "--cron", "@daily", "--attribute", "a"], 2),
        (&["set", "x", "q", "--every", "soon"], 2),
        (&["preview"], 1),
        (&["preview", "-n", "ns", "--every", "5"], 1),
    ] {
        let ended = stand.queue(&[&["schedules"], args].concat());
        assert_eq!((ended.code, ended.out.as_str()), (code, ""), "{args:?}: {ended:?}");
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
        "promote",
        "purge",
        "forget",
        "push",
        "schedules",
        "history",
        "dead",
        "destroy",
        "bulk",
        "--url",
        "--token",
        "--namespace",
        "--output",
        "DORMOUSE_TOKEN",
        "Examples:",
    ];
    for wanted in wanted {
        assert!(help.out.contains(wanted), "--help does not mention {wanted}:\n{}", help.out);
    }
}

/// Guards against needing a token for each namespace, and against affecting jobs with another reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_night_on_call_over_all_namespaces() {
    let stand = Stand::start().await;
    let other = create_token(stand.admin.trim_start_matches("http://"), "other").await;
    let client = reqwest::Client::new();
    for (token, namespace, reason) in [
        (&stand.token, "ns", "full"),
        (&stand.token, "ns", "full"),
        (&stand.token, "ns", "gone"),
        (&other, "other", "x"),
    ] {
        let url = |path: &str| format!("{}/api/{namespace}/mail{path}", stand.url);
        let send = async |request: reqwest::RequestBuilder| {
            let answer = request.header("X-Token", token).send().await.expect("an answer");
            assert!(answer.status().is_success(), "{answer:?}");
            serde_json::from_str::<Value>(&answer.text().await.expect("a text")).unwrap_or_default()
        };
        send(client.put(url("?tries=1")).body("x")).await;
        let job = send(client.get(url("?receipt=1&ttr=60"))).await;
        let (id, receipt) =
            (job["job_id"].as_str().expect("an id"), job["receipt"].as_str().expect("a receipt"));
        send(client.post(url(&format!("/job/{id}/bury?receipt={receipt}"))).body(reason)).await;
    }
    // A scrape samples the store.
    client.get(format!("{}/metrics", stand.admin)).send().await.expect("a scrape");
    let operator = |args: &[&str]| {
        let mut command = dormouse(&[&["--admin", &stand.admin], args].concat());
        command.env("DORMOUSE_URL", &stand.url);
        run(command, "")
    };
    let listed = operator(&["list", "--need", "any"]);
    assert!(listed.code == 0 && listed.out.contains("dying  ns/mail"), "{listed:?}");
    assert!(listed.out.contains("dying  other/mail"), "of every namespace: {listed:?}");
    assert_eq!(operator(&["list", "--need"]).out, listed.out, "any is meant");
    let all = operator(&["list", "-o", "json"]);
    assert!(all.code == 0 && all.out.contains("\"namespace\":\"other\""), "{all:?}");
    let dead = operator(&["dead"]);
    assert!(dead.code == 0 && dead.out.lines().count() == 3, "two queues: {dead:?}");
    let reasons = operator(&["-n", "ns", "dead", "mail"]);
    let first: Vec<_> = reasons.out.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!((reasons.code, first.as_slice()), (0, ["2", "full"].as_slice()), "{reasons:?}");
    let history = operator(&["-n", "ns", "history", "mail", "--limit", "5"]);
    assert!(history.code == 0 && history.out.lines().count() == 7, "{history:?}");
    let respawned =
        operator(&["-n", "ns", "respawn", "mail", "--all", "--reason", "full", "--tries", "3", "-o", "json"]);
    let shown: Value = serde_json::from_str(&respawned.out).unwrap_or_default();
    assert_eq!((&shown["done"], &shown["status"]), (&json!(2), &json!("done")), "{respawned:?}");
    let unsure = operator(&["-n", "ns", "destroy", "mail", "--state", "ready"]);
    assert!(unsure.code == 2 && unsure.err.contains("--yes"), "{unsure:?}");
    let destroyed =
        operator(&["-n", "ns", "destroy", "mail", "--state", "ready", "--state", "dead", "--yes"]);
    assert!(destroyed.code == 0 && destroyed.out.lines().count() == 3, "{destroyed:?}");
    let bulk = operator(&["bulk"]);
    assert!(bulk.code == 0 && bulk.out.lines().count() == 4, "three actions: {bulk:?}");
    let id = shown["id"].as_str().expect("an id");
    assert!(operator(&["bulk", id]).out.contains("full"), "one of them, with its reason");
    for (args, code) in [
        (&["bulk", "nobody"][..], 1),
        (&["destroy", "mail", "--state", "ready", "--yes"], 2),
        (&["-n", "ns", "destroy", "mail", "--yes"], 2),
        (&["-n", "ns", "respawn", "mail", "--reason", "full"], 2),
        (&["-n", "ns", "respawn", "mail", "--all", "--tries", "many"], 2),
        (&["-n", "ns", "respawn", "mail", "--all", "--oldest", "3"], 2),
        (&["list", "--need", "sleep"], 1),
        (&["peek", "mail"], 2),
    ] {
        let ended = operator(args);
        assert_eq!((ended.code, ended.out.as_str()), (code, ""), "{args:?}: {ended:?}");
    }
}

/// Commands of a worker, and commands of an operator on one job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_consumed_acked_and_cancelled() {
    let stand = Stand::start().await;
    let none = stand.queue(&["consume", "work"]);
    assert_eq!((none.code, none.out.as_str()), (1, ""), "{none:?}");
    assert!(none.err.contains("no job of ns/work is ready"), "{none:?}");
    stand.json(&["publish", "work", "first", "--tries", "3"]);
    let job = stand.json(&["consume", "work", "--ttr", "5m", "--timeout", "5s"]);
    let (id, receipt) = (job["job_id"].as_str().expect("an id"), job["receipt"].as_str().expect("a receipt"));
    let stale = stand.queue(&["ack", "work", id, "--receipt", "AAEAAAAAAAMAAg"]);
    assert_eq!(stale.code, 1, "{stale:?}");
    let acked = stand.json(&["ack", "work", id, "--receipt", receipt]);
    assert_eq!(acked, json!({"acked": 1, "stale": []}));
    assert_eq!(stand.queue(&["peek", "work", "--job", id]).code, 1, "it is gone");

    // A table shows the body, and durations in readable form.
    stand.json(&["publish", "work", "to ann", "--ttl", "2h"]);
    let shown = stand.queue(&["consume", "work"]);
    let ttl = ["2 h", "1 h 59 min"].iter().any(|ttl| shown.out.contains(ttl));
    assert!(shown.out.contains("to ann") && ttl, "{shown:?}");

    for (args, publish) in [
        (vec!["cancel", "later"], vec!["publish", "later", "x", "--delay", "1d"]),
        (
            vec!["cancel", "later", "--key", "order-7"],
            vec!["publish", "later", "x", "--delay", "2h", "--key", "order-7"],
        ),
    ] {
        let published = stand.json(&publish);
        let id = published["job_id"].as_str().expect("an id");
        let args: Vec<&str> = if args.len() == 2 { [&args[..], &[id]].concat() } else { args };
        assert_eq!(stand.json(&args), json!({"cancelled": 1}), "{args:?}");
        assert_eq!(stand.queue(&["peek", "later", "--job", id]).code, 1, "{args:?}: it is gone");
    }
    let wrong = stand.queue(&["publish", "work", "x", "--delay", "5 minutes"]);
    assert!(wrong.code == 2 && wrong.err.contains("use seconds, or 5m, 2h, 1d"), "{wrong:?}");
}

/// Guards against a first start that needs another tool, or curl, to create a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_created_listed_and_deleted() {
    let stand = Stand::start().await;
    let token = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.arg("token").args(args).env_clear().env("DORMOUSE_ADMIN", &stand.admin);
        run(command, "")
    };
    let made = token(&["new", "-n", "shop", "-D", "the mailer"]);
    let secret = made.out.trim().to_owned();
    assert!(made.code == 0 && made.err.is_empty() && secret.len() >= 20, "the token alone: {made:?}");
    let mut publish = dormouse(&["publish", "mail", "to ann"]);
    publish.env("DORMOUSE_URL", &stand.url).env("DORMOUSE_TOKEN", &secret).env("DORMOUSE_NAMESPACE", "shop");
    assert_eq!(run(publish, "").code, 0, "it opens the namespace");
    let listed = token(&["list", "-n", "shop"]);
    assert!(listed.out.contains(&secret) && listed.out.contains("the mailer"), "{listed:?}");
    assert_eq!(token(&["delete", "-n", "shop", &secret]).code, 0);
    assert!(!token(&["list", "-n", "shop"]).out.contains(&secret), "it is gone");
    let missing = token(&["new"]);
    assert!(missing.code == 2 && missing.err.contains("--namespace"), "{missing:?}");
}
