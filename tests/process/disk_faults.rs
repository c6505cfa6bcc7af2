//! A server whose disk is full, fails or hangs. tests/disk/faults.rs tests the store itself.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::client::{request, send};
use crate::support::faults::{EIO, HANGS, fail, heal, shim};
use crate::support::process::Process;
use crate::support::wait::until;

/// Timeout for anything that a healthy store does within a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// The timeout of a stop also covers the disk, regardless of the number of threads.
#[test]
fn a_stop_does_not_wait_for_a_disk_that_hangs() {
    let library = match shim() {
        Ok(library) => library,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    // Concurrently, since each takes the maximum time of a stop.
    let stopping = ["1", "2"].map(|threads| {
        let dir = tempfile::tempdir().expect("a directory");
        let faults = dir.path().join("faults");
        let [library, faults] = [&library, &faults].map(|path| path.to_str().expect("it is text"));
        let env = [("LD_PRELOAD", library), ("FAULTS", faults), ("TOKIO_WORKER_THREADS", threads)];
        let mut server = Process::start(dir.path(), &[], &env);
        server.line_with("curl");
        fail(dir.path(), "sync", HANGS, "dormouse-data", None);
        server.signal("TERM");
        (threads, server, dir)
    });
    for (threads, server, _dir) in stopping {
        // It panics if the process does not end.
        let crate::support::process::Ended { said, status, .. } = server.ended();
        assert!(
            said.contains("did not close in time"),
            "with {threads} threads the close should hang: {status}\n{said}"
        );
    }
}

#[tokio::test]
async fn on_a_full_disk_a_publish_gets_507_and_consumers_are_still_sent_here() {
    let dir = tempfile::tempdir().expect("a directory");
    // More than the size of any disk.
    let env = [("DORMOUSE_POOL_DEFAULT_MIN_FREE_DISK", "1000000000000")];
    let mut server = Process::start(dir.path(), &["-sv"], &env);
    let (api, admin) = (server.address("api"), server.address("admin"));
    let put = request("PUT", &format!("http://{api}/api/ns/q"), "any").body("a job");
    let refused = send(put).await.expect(507);
    assert!(refused.text.contains("the disk is almost full"), "it should say why: {}", refused.text);
    for route in ["jobs?key=k", "jobs/batch"] {
        let post =
            request("POST", &format!("http://{api}/api/ns/q/{route}"), "any").body(r#"[{"text":"a job"}]"#);
        send(post).await.expect(507);
    }
    for (method, route, body, status) in [
        ("POST", "token/ns?description=d&token=a-token-of-an-operator", "", 201),
        ("POST", "token/ns/a-token-of-an-operator/limit", r#"{"read":1,"write":1,"interval":1}"#, 201),
        ("DELETE", "token/ns/a-token-of-an-operator", "", 204),
        ("PUT", "quota/ns", r#"{"jobs":1}"#, 200),
        ("POST", "api/ns/q/pause", "", 200),
    ] {
        send(request(method, &format!("http://{admin}/{route}"), "").body(body)).await.expect(status);
    }
    let get = request("GET", &format!("http://{api}/api/ns/q"), "any");
    send(get).await.expect(404);
    until("it is ready", async || {
        send(request("GET", &format!("http://{admin}/ready"), "")).await.status == 200
    })
    .await;
    let metrics = send(request("GET", &format!("http://{admin}/metrics"), "")).await.expect(200).text;
    let full = metrics.lines().find(|line| line.contains("disk_full{")).unwrap_or("none");
    assert!(full.ends_with(" 1"), "the metric that an alert would watch: {full}");
    server.line_with("the disk is almost full");
}

/// A pool whose disk fails, and one whose disk works; the tokens are in the former.
#[tokio::test]
async fn a_pool_that_failed_says_why_and_the_others_go_on() {
    let library = match shim() {
        Ok(library) => library,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let faults = dir.path().join("faults");
    let env = [
        ("DORMOUSE_POOL_DEFAULT_PATH", "first"),
        ("DORMOUSE_POOL_OTHER_PATH", "second"),
        ("LD_PRELOAD", library.to_str().expect("UTF-8")),
        ("FAULTS", faults.to_str().expect("UTF-8")),
    ];
    let mut server = Process::start(dir.path(), &[], &env);
    let (api, admin) = (server.address("api"), server.address("admin"));
    let token = async |pool: &str| {
        let made =
            send(request("POST", &format!("http://{admin}/token/ns?description=d&pool={pool}"), "")).await;
        made.expect(201).json["token"].as_str().expect("a token").to_owned()
    };
    let (first, second, unused) = (token("default").await, token("other").await, token("other").await);
    let put = async |token: &str| {
        send(request("PUT", &format!("http://{api}/api/ns/q"), token).body("a job")).await
    };
    let ready = async || send(request("GET", &format!("http://{admin}/ready"), "")).await;
    put(&first).await.expect(201);
    put(&second).await.expect(201);
    until("it is ready", async || ready().await.status == 200).await;

    let parked =
        tokio::spawn(send(request("GET", &format!("http://{api}/api/ns/empty?timeout=600"), &first)));
    let waits = async || {
        let metrics = send(request("GET", &format!("http://{admin}/metrics"), "")).await.expect(200).text;
        metrics.lines().any(|line| line == "dormouse_parked_polls 1")
    };
    until("a consumer waits", waits).await;
    // Only the file with the groups, so that the publish meets the fault first: the store may rewrite the manifest at
    // any time.
    fail(dir.path(), "sync", EIO, "first/log/0$", None);
    // This publish may have been stored.
    put(&first).await.expect(500);
    heal(dir.path());
    put(&first).await.expect(503);
    let answer = tokio::time::timeout(PATIENCE, parked).await.expect("a consumer that waits is answered");
    answer.expect("the request does not panic").expect(503);
    let why = ready().await.expect(503).text;
    assert!(why.contains("pool default") && why.contains("a sync failed"), "/ready says what and why: {why}");
    put(&second).await.expect(201);
    let got = send(request("GET", &format!("http://{api}/api/ns/q"), &unused)).await.expect(200);
    assert_eq!(
        got.data(),
        b"a job",
        "the other pool hands out its jobs, though the tokens are on the disk that failed"
    );

    fail(dir.path(), "sync", EIO, "second/log/0$", None);
    put(&second).await.expect(500);
    let ended = server.ended();
    assert_eq!(ended.status.code(), Some(1), "without a pool the server ends; it said:\n{}", ended.said);
    assert!(ended.said.contains("the last store failed"), "it said:\n{}", ended.said);
}

/// Runs `dormouse repair` on the directory `jobs` below `dir`.
fn repair(dir: &Path, args: &[&str], env: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.arg("repair").args(args).arg("jobs").current_dir(dir).env_clear().envs(env.iter().copied());
    command.output().expect("it runs")
}

/// Guards against a kill that leaves no directory, an incomplete one or one that no repair completes. It kills before
/// each sync of the fresh directory (of two keyspaces: all are written alike) and of its parent, where names change.
#[tokio::test]
async fn a_repair_that_is_killed_at_any_step_leaves_the_damaged_or_the_whole_directory() {
    let library = match shim() {
        Ok(library) => library,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let config = [("DORMOUSE_POOL_DEFAULT_PATH", "jobs")];
    let mut server = Process::start(dir.path(), &["-sv"], &config);
    let api = server.address("api");
    for n in 0..10 {
        let put = request("PUT", &format!("http://{api}/api/ns/q"), "any").body(format!("job {n}"));
        send(put).await.expect(201);
    }
    server.kill();
    std::fs::remove_file(dir.path().join("jobs/trees/ready/current")).expect("it is there");
    let parts = ["trees/meta", "trees/ready/tables", "trees$", "log", "dormouse"];
    let parts = parts.map(|part| format!("jobs.repairing/{part}"));
    let (mut killed, mut whole) = (0, 0);
    for part in parts.iter().map(String::as_str).chain(["jobs.repairing$", "parent$"]) {
        for step in 1.. {
            let home = tempfile::tempdir().expect("a directory");
            let of = home.path().join("parent");
            std::fs::create_dir(&of).expect("created");
            let copied =
                Command::new("cp").arg("-a").args([dir.path().join("jobs"), of.join("jobs")]).status();
            assert!(copied.is_ok_and(|status| status.success()), "copied");
            let faults = home.path().join("faults");
            std::fs::write(&faults, format!("kill {step} {part}\n")).expect("written");
            let run = repair(&of, &["--accept-loss"], &[("LD_PRELOAD", &library), ("FAULTS", &faults)]);
            if run.status.signal().is_none() {
                assert_eq!(run.status.code(), Some(0), "{part}: the last run is complete: {run:?}");
                assert!(step > 1, "{part} is never synced");
                break;
            }
            killed += 1;
            let what = format!("killed before sync {step} of {part}");
            let judged = repair(&of, &[], &[]);
            let said = String::from_utf8_lossy(&judged.stdout).into_owned();
            let is_whole = judged.status.code() == Some(0);
            let expected =
                if is_whole { "nothing is damaged" } else { "keyspace ready: the file current is missing" };
            assert!(said.contains(expected), "{what}: {judged:?}");
            let again = repair(&of, &["--accept-loss"], &[]);
            assert_eq!(again.status.code(), Some(0), "{what}: a repair is repeated: {again:?}");
            let names = std::fs::read_dir(&of).expect("listed").flatten();
            let left: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            assert!(!left.iter().any(|name| name.ends_with(".repairing")), "{what}: {left:?}");
            assert!(left.iter().any(|name| name.contains(".damaged-")), "{what}: it is kept: {left:?}");
            whole += usize::from(is_whole);
            if !is_whole && step > 1 {
                continue;
            }
            let mut server = Process::start(&of, &["-sv"], &config);
            let queue = format!("http://{}/api/ns/q", server.address("api"));
            for n in 0..10 {
                let got = send(request("GET", &queue, "any")).await.expect(200);
                assert_eq!(got.data(), format!("job {n}").as_bytes(), "{what}: jobs in their order");
            }
            server.kill();
        }
    }
    println!("killed at {killed} steps, and at {whole} of them the whole directory was in place");
    assert!(killed > 10 && whole > 0, "killed at {killed} steps, {whole} of them behind the exchange");
}
