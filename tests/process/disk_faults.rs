//! A server whose disk is full, fails or hangs. tests/disk/faults.rs tests the store itself.

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
    let get = request("GET", &format!("http://{api}/api/ns/q"), "any");
    send(get).await.expect(404);
    send(request("GET", &format!("http://{admin}/ready"), "")).await.expect(200);
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
    let (first, second) = (token("default").await, token("other").await);
    let put = async |token: &str| {
        send(request("PUT", &format!("http://{api}/api/ns/q"), token).body("a job")).await
    };
    let ready = async || send(request("GET", &format!("http://{admin}/ready"), "")).await;
    put(&first).await.expect(201);
    put(&second).await.expect(201);
    ready().await.expect(200);

    let parked =
        tokio::spawn(send(request("GET", &format!("http://{api}/api/ns/empty?timeout=600"), &first)));
    let waits = async || {
        let metrics = send(request("GET", &format!("http://{admin}/metrics"), "")).await.expect(200).text;
        metrics.lines().any(|line| line == "dormouse_parked_polls 1")
    };
    until("a consumer waits", waits).await;
    fail(dir.path(), "sync", EIO, "first/log", None);
    // This publish may have been stored.
    put(&first).await.expect(500);
    heal(dir.path());
    put(&first).await.expect(503);
    let answer = tokio::time::timeout(PATIENCE, parked).await.expect("a consumer that waits is answered");
    answer.expect("the request does not panic").expect(503);
    let why = ready().await.expect(503).text;
    assert!(why.contains("pool default") && why.contains("a sync failed"), "/ready says what and why: {why}");
    put(&second).await.expect(201);
    let got = send(request("GET", &format!("http://{api}/api/ns/q"), &second)).await.expect(200);
    assert_eq!(
        got.data(),
        b"a job",
        "the other pool hands out its jobs, though the tokens are on the disk that failed"
    );

    fail(dir.path(), "sync", EIO, "second/log", None);
    put(&second).await.expect(500);
    let ended = server.ended();
    assert_eq!(ended.status.code(), Some(1), "without a pool the server ends; it said:\n{}", ended.said);
    assert!(ended.said.contains("the last store failed"), "it said:\n{}", ended.said);
}
