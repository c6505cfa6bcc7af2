//! `dormouse backup` and `GET /backup`: a copy while the server runs, and refused requests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse::engine::disk::FORMAT;
use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::wait::{TIMEOUT, until};

fn backup(dir: &Path, admin: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command
        .current_dir(dir)
        .env_clear()
        .env("DORMOUSE_ADMIN", format!("http://{admin}"))
        .arg("backup")
        .args(args);
    command.output().expect("the binary runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn start(dir: &Path, path: &str, more: &str) -> Process {
    std::fs::write(dir.join("c.toml"), format!("{more}\n[Pool.default]\nPath = '{path}'\n")).expect("a file");
    Process::start(dir, &["-c", "c.toml"], &[])
}

async fn token(admin: &str) -> String {
    let made = Client::new()
        .post(format!("http://{admin}/token/ns?description=d"))
        .send()
        .await
        .expect("it answers");
    let made: Value = serde_json::from_str(&made.text().await.expect("a body")).expect("JSON");
    made["token"].as_str().expect("a token").to_owned()
}

/// Publishes until stopped. Adds the ids to `ids`.
async fn publish(
    api: String,
    token: String,
    stop: Arc<AtomicBool>,
    ids: Arc<parking_lot::Mutex<Vec<String>>>,
) {
    let client = Client::new();
    while !stop.load(Ordering::Relaxed) {
        let put =
            client.put(format!("http://{api}/api/ns/q")).header("X-Token", &token).body("x".repeat(500));
        let answer = put.send().await.expect("it answers");
        assert_eq!(answer.status(), 201, "a publish while a backup is made");
        let answer: Value = serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON");
        ids.lock().push(answer["job_id"].as_str().expect("an id").to_owned());
    }
}

/// Consumes all jobs of a queue, and returns their ids.
async fn drain(api: &str, token: &str) -> BTreeSet<String> {
    let (client, mut ids) = (Client::new(), BTreeSet::new());
    loop {
        let got = client
            .get(format!("http://{api}/api/ns/q?count=100&ttr=600"))
            .header("X-Token", token)
            .send()
            .await;
        let got = got.expect("it answers");
        if got.status() == 404 {
            return ids;
        }
        let jobs: Value = serde_json::from_str(&got.text().await.expect("a body")).expect("JSON");
        ids.extend(
            jobs.as_array().expect("jobs").iter().filter_map(|job| job["job_id"].as_str().map(str::to_owned)),
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_answered_before_is_missing_from_a_backup() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut process = start(dir.path(), "jobs", "");
    let (api, admin) = (process.address("api"), process.address("admin"));
    let token = token(&admin).await;
    let (stop, ids) = (Arc::new(AtomicBool::new(false)), Arc::<parking_lot::Mutex<Vec<String>>>::default());
    let load: Vec<_> = (0..4)
        .map(|_| tokio::spawn(publish(api.clone(), token.clone(), stop.clone(), ids.clone())))
        .collect();
    until("there are jobs", async || ids.lock().len() > 300).await;
    let mut backups = Vec::new();
    for (name, given) in [("one", "one"), ("two", "./two/")] {
        let before = ids.lock().clone();
        let (at, admin) = (dir.path().to_owned(), admin.clone());
        let done =
            tokio::task::spawn_blocking(move || backup(&at, &admin, &[given])).await.expect("no panic");
        assert_eq!(done.status.code(), Some(0), "{}", said(&done));
        backups.push((name, before));
    }
    stop.store(true, Ordering::Relaxed);
    for publisher in load {
        publisher.await.expect("no panic");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path().join("jobs"))
        .expect("the pool")
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert!(!left.iter().any(|name| name == "copy"), "nothing is left of it: {left:?}");
    process.kill();
    for (name, before) in backups {
        let mut repair = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        let whole = repair.arg("repair").arg(dir.path().join(name)).output().expect("it runs");
        assert_eq!(
            String::from_utf8_lossy(&whole.stdout),
            format!("format {FORMAT}\nnothing is damaged\n"),
            "{name}"
        );
        let mut restored = start(dir.path(), name, "");
        // The copy contains the token.
        let found = drain(&restored.address("api"), &token).await;
        let missing: Vec<_> = before.iter().filter(|id| !found.contains(*id)).collect();
        assert!(missing.is_empty(), "{name}: {} of {} are missing", missing.len(), before.len());
        restored.signal("TERM");
        tokio::task::spawn_blocking(|| restored.ended()).await.expect("no panic");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tar_on_standard_output_is_one_that_any_tool_reads() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut process = start(dir.path(), "jobs", "");
    let admin = process.address("admin");
    let token = token(&admin).await;
    let done = backup(dir.path(), &admin, &["-"]);
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    std::fs::write(dir.path().join("b.tar"), &done.stdout).expect("a file");
    std::fs::create_dir(dir.path().join("by-tar")).expect("a directory");
    let tar = Command::new("tar").args(["xf", "b.tar", "-C", "by-tar"]).current_dir(dir.path()).status();
    assert!(tar.expect("tar runs").success(), "tar reads it");
    process.kill();
    let mut restored = start(dir.path(), "by-tar", "");
    let list =
        reqwest::get(format!("http://{}/token/ns", restored.address("admin"))).await.expect("it answers");
    assert!(list.text().await.expect("a body").contains(&token), "the token is in it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_backup_is_refused_and_leaves_nothing() {
    let dir = TempDir::new().expect("a temporary directory");
    let redis = RedisServer::start();
    let more = format!("Accounts = {{ann = 'right'}}\n[Pool.far]\nAddr = '{}'", redis.addr());
    let mut process = start(dir.path(), "jobs", &more);
    let admin = process.address("admin");
    std::fs::create_dir(dir.path().join("there")).expect("a directory");
    for (args, code, says) in [(&["there"][..], 2, "there already exists"), (&["new"][..], 1, "401")] {
        let done = backup(dir.path(), &admin, args);
        assert_eq!(
            (done.status.code(), said(&done).contains(says)),
            (Some(code), true),
            "{args:?}: {}",
            said(&done)
        );
    }
    let with_account = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.current_dir(dir.path()).env_clear().env("DORMOUSE_ADMIN", format!("http://{admin}"));
        command.env("DORMOUSE_ADMIN_AUTH", "ann:right").arg("backup").args(args).output().expect("it runs")
    };
    for (pool, says) in [("far", "back up that Redis"), ("none", "the pool was not exists")] {
        let done = with_account(&["--pool", pool, "new"]);
        assert_eq!(done.status.code(), Some(1), "{}", said(&done));
        assert!(said(&done).contains(says) && said(&done).lines().count() == 1, "{}", said(&done));
    }
    assert!(!dir.path().join("new").exists() && !dir.path().join("new.part").exists(), "nothing is left");
    let done = with_account(&["--pool", "default", "new"]);
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    let nobody = backup(dir.path(), "127.0.0.1:1", &["other"]);
    assert_eq!(nobody.status.code(), Some(1), "{}", said(&nobody));

    let dir = TempDir::new().expect("a temporary directory");
    let mut open = start(dir.path(), "jobs", "AdminHost = '0.0.0.0'");
    let port = open.address("admin").rsplit_once(':').expect("a port").1.to_owned();
    let refused = reqwest::get(format!("http://127.0.0.1:{port}/backup")).await.expect("it answers");
    assert_eq!(refused.status(), 403, "without accounts any client could read all tokens");
}

/// Guards against a copy that remains when its client disconnects, or its server is killed; and against publishes that
/// wait for the end of a backup.
#[tokio::test(flavor = "multi_thread")]
async fn one_at_a_time_and_a_copy_does_not_outlive_its_asker() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut process = start(dir.path(), "jobs", "MaxBodyMemory = 64");
    let (api, admin) = (process.address("api"), process.address("admin"));
    let token = token(&admin).await;
    let put = async |size: usize| {
        let put = Client::new().put(format!("http://{api}/api/ns/q")).header("X-Token", &token);
        let answer = put.body(vec![7; size]).timeout(TIMEOUT).send().await.expect("it answers");
        assert_eq!(answer.status(), 201);
    };
    // More than the socket buffers of both ends hold.
    for _ in 0..40 {
        put(1 << 20).await;
    }
    let copy: PathBuf = dir.path().join("jobs/copy");
    let url = format!("http://{admin}/backup");
    let slow = reqwest::get(&url).await.expect("it answers");
    assert_eq!(slow.headers()["content-type"], "application/x-tar");
    put(500).await;
    assert!(copy.exists(), "the copy is not read yet, and a publish was answered");
    let second = reqwest::get(&url).await.expect("it answers");
    assert_eq!(
        (second.status().as_u16(), second.text().await.expect("a body").contains("already running")),
        (409, true)
    );
    drop(slow);
    let again = loop {
        // The next backup may start once the copy is deleted.
        let again = reqwest::get(&url).await.expect("it answers");
        if again.status() != 409 {
            break again;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(again.status(), 200, "the next backup may start");
    assert!(copy.exists(), "the copy is not read yet");
    process.kill();
    assert!(copy.exists(), "a killed process cannot delete it");
    let mut process = start(dir.path(), "jobs", "");
    process.line_with("serving");
    assert!(!copy.exists(), "the start has");
}

/// Guards against a version that cannot read the present format: tests/golden has a directory in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_this_format_opens() {
    let dir = TempDir::new().expect("a temporary directory");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{FORMAT}.tar"));
    std::fs::create_dir(dir.path().join("jobs")).expect("a directory");
    let tar = Command::new("tar").arg("xf").arg(golden).args(["-C", "jobs"]).current_dir(dir.path()).status();
    assert!(tar.expect("tar runs").success(), "tar reads it");
    let mut process = start(dir.path(), "jobs", "");
    let (api, admin) = (process.address("api"), process.address("admin"));
    let token = "01GOLDENGOLDENGOLDENGOLDEN";
    let ask = async |port: &str, path: &str| -> Value {
        let got = Client::new().get(format!("http://{port}{path}")).header("X-Token", token).send().await;
        let text = got.expect("it answers").text().await.expect("a body");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e} in {text}"))
    };
    let figures = |queue: &Value| {
        let of = |name: &str| queue[name].as_u64().unwrap_or(0);
        let name = queue["queue"].as_str().unwrap_or_default().to_owned();
        (name, [of("ready"), of("delayed"), of("running"), of("dead")], queue["paused"] == true)
    };
    let queues = ask(&api, "/api/ns").await;
    let found: Vec<_> = queues["queues"].as_array().expect("queues").iter().map(figures).collect();
    let want = [
        ("attributed", [1, 0, 0, 0], false),
        ("dead", [0, 0, 0, 3], false),
        ("delayed", [0, 6, 0, 0], false),
        ("paused", [0; 4], true),
        ("ready", [29, 0, 1, 0], false),
    ];
    assert_eq!(found, want.map(|(name, jobs, paused)| (name.to_owned(), jobs, paused)), "{queues}");
    let job = ask(&api, "/api/ns/attributed/peek").await;
    assert_eq!(job["attributes"]["origin"], "golden", "{job}");
    let list = ask(&api, "/api/ns/_schedules").await;
    let named: Vec<_> =
        list["schedules"].as_array().expect("schedules").iter().map(|one| &one["name"]).collect();
    assert_eq!(named, ["daily", "pulse"], "{list}");
    let daily = ask(&api, "/api/ns/_schedules/daily").await;
    assert_eq!((&daily["data"], &daily["cron"]), (&json!("Z29sZGVu"), &json!("0 8 * * *")), "{daily}");
    let job = ask(&api, "/api/ns/ready").await;
    assert_eq!(job["data"], "am9iIDE=", "{job}");
    let dead = ask(&api, "/api/ns/dead/jobs?state=dead&limit=1").await;
    assert_eq!(dead["jobs"][0]["reason"], "broken", "{dead}");
    assert_eq!(ask(&api, "/api/ns/delayed/key/golden").await["data"], "a2V5ZWQ=");
    let tokens = ask(&admin, "/token/ns").await.to_string();
    assert!(tokens.contains(token) && tokens.contains("golden"), "the token and its description: {tokens}");
    assert_eq!(ask(&admin, "/quota/ns").await["jobs"], 1000);
    assert_eq!(ask(&admin, "/push/ns/pushed").await["state"], "paused");
    let limit = ask(&admin, &format!("/token/ns/{token}/limit")).await.to_string();
    assert!(limit.contains("100000"), "the token's limit: {limit}");
}
