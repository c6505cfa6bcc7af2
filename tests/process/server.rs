//! The binary as seen by an operator: its output, exit codes, and what survives its death.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::complaints::complaints;
use crate::support::process::Process;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::free_port;
use reqwest::{Client, Method, StatusCode};
use tempfile::TempDir;

fn dir() -> TempDir {
    TempDir::new().expect("a temporary directory")
}

/// Sends a request with a token.
async fn call(method: Method, url: &str, token: &str, body: &str) -> (StatusCode, serde_json::Value) {
    let request = Client::new().request(method, url).header("X-Token", token).body(body.to_owned());
    let answer = request.send().await.unwrap_or_else(|e| panic!("{url}: {e}"));
    let status = answer.status();
    let text = answer.text().await.expect("a body");
    (status, serde_json::from_str(&text).unwrap_or_default())
}

/// Returns the token and the URL of the `hello` queue from the printed curl lines.
fn shown(process: &mut Process) -> (String, String) {
    let line = process.line_with("curl -X PUT");
    let parts: Vec<&str> = line.split('\'').collect();
    let token = parts[1].trim_start_matches("X-Token: ").to_owned();
    let url = parts[3].split('?').next().unwrap_or_default().to_owned();
    (token, url)
}

#[tokio::test]
async fn the_printed_curl_lines_do_what_they_say() {
    let dir = dir();
    let mut process = Process::start(dir.path(), &[], &[]);
    let (token, url) = shown(&mut process);
    let (status, published) =
        call(Method::PUT, &format!("{url}?delay=1&tries=3"), &token, "good morning").await;
    assert_eq!(status, StatusCode::CREATED, "{published}");
    // In a queue of its own, since a stall of a second would make the first job due.
    let later = format!("{url}-later");
    let (status, published_later) =
        call(Method::PUT, &format!("{later}?delay=3600&tries=3"), &token, "good morning").await;
    assert_eq!(status, StatusCode::CREATED, "{published_later}");
    let (status, none) = call(Method::GET, &later, &token, "").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "not due yet: {none}");
    let (status, job) = call(Method::GET, &format!("{url}?timeout=5&ttr=30"), &token, "").await;
    assert_eq!((status, &job["job_id"]), (StatusCode::OK, &published["job_id"]), "{job}");
    assert!(job["elapsed_ms"].as_u64() >= Some(1000), "early: {job}");
    let ack = format!("{url}/job/{}", job["job_id"].as_str().expect("an id"));
    let (status, _) = call(Method::DELETE, &ack, &token, "").await;
    assert_eq!(status, StatusCode::NO_CONTENT, "acked");
    let (status, _) = call(Method::GET, &url, &token, "").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "nothing is left");
}

/// Guards against commands of a first start that need a part of an earlier reply filled in by hand.
#[tokio::test]
async fn the_printed_commands_work_when_they_are_pasted_together() {
    let dir = dir();
    let mut process = Process::start(dir.path(), &[], &[]);
    process.line_with("/token/my-team");
    let printed = process.seen.iter().skip_while(|line| !line.starts_with("Try it"));
    // Lines of the log may be among them.
    let script: String =
        printed.filter(|line| line.starts_with("  ")).map(|line| format!("{line}\n")).collect();
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &script]).stdin(std::process::Stdio::null());
    let output = tokio::task::spawn_blocking(move || shell.output()).await.expect("no panic");
    let out = String::from_utf8(output.expect("bash is there").stdout).expect("UTF-8");
    let mut rest = &*out;
    for part in ["\"job_id\":\"", "\"data\":\"", " 204 No Content", "no job available", "\"token\":"] {
        let (_, after) =
            rest.split_once(part).unwrap_or_else(|| panic!("{part} is not next in\n{out}of\n{script}"));
        rest = after;
    }
}

#[tokio::test]
async fn a_job_that_was_answered_for_survives_kill_9() {
    let dir = dir();
    let mut process = Process::start(dir.path(), &[], &[]);
    let (token, url) = shown(&mut process);
    let (_, taken) = call(Method::PUT, &format!("{url}?tries=3"), &token, "taken").await;
    let (_, job) = call(Method::GET, &format!("{url}?ttr=1"), &token, "").await;
    assert_eq!(job["job_id"], taken["job_id"]);
    let (_, acked) = call(Method::PUT, &url, &token, "acked").await;
    let (_, ready) = call(Method::PUT, &url, &token, "ready").await;
    let ack = format!("{url}/job/{}", acked["job_id"].as_str().expect("an id"));
    call(Method::DELETE, &ack, &token, "").await;
    process.kill();

    let mut process = Process::start(dir.path(), &[], &[]);
    let (again, url) = shown(&mut process);
    assert_eq!(again, token, "the token survives too");
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (status, job) = call(Method::GET, &format!("{url}?timeout=5"), &token, "").await;
        assert_eq!(status, StatusCode::OK, "a job is missing after {ids:?}");
        ids.push(job["job_id"].clone());
    }
    ids.sort_by_key(|id| *id != taken["job_id"]);
    assert_eq!(
        ids,
        [taken["job_id"].clone(), ready["job_id"].clone()],
        "the consumed job is redelivered, the acked one is not"
    );
    let (status, _) = call(Method::GET, &url, &token, "").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "there are no other jobs");
}

#[tokio::test]
async fn sigterm_answers_parked_polls_and_ends_well() {
    for signal in ["TERM", "INT", "HUP"] {
        let dir = dir();
        let mut process = Process::start(dir.path(), &[], &[]);
        let (token, url) = shown(&mut process);
        let polls: Vec<_> = (0..50)
            .map(|_| {
                let (token, url) = (token.clone(), format!("{url}?timeout=60"));
                tokio::spawn(async move { call(Method::GET, &url, &token, "").await })
            })
            .collect();
        let metrics = format!("http://{}/metrics", process.address("admin"));
        let parked = async {
            while !Client::new()
                .get(&metrics)
                .send()
                .await
                .unwrap()
                .text()
                .await
                .unwrap()
                .contains("parked_polls 50")
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), parked).await.expect("fifty polls are parked");
        process.signal(signal);
        for poll in polls {
            let (status, body) = poll.await.unwrap();
            assert_eq!(
                (status, &body["msg"]),
                (StatusCode::NOT_FOUND, &"no job available".into()),
                "after {signal}"
            );
        }
        let began = Instant::now();
        let ended = tokio::task::spawn_blocking(|| process.ended()).await.unwrap();
        let took = began.elapsed();
        assert_eq!(ended.status.code(), Some(0), "exit code after {signal}; it said:\n{}", ended.said);
        assert!(took < Duration::from_secs(5), "it took {took:?}");
    }
}

#[test]
fn what_is_wrong_is_one_line_and_an_exit_code() {
    let dir = dir();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(dir.path().join("foreign")).unwrap();
    std::fs::write(dir.path().join("foreign/letter.txt"), "not a store").unwrap();
    std::fs::create_dir_all(dir.path().join("taken/error.log")).unwrap();
    for (name, toml, code, says) in [
        ("unknown-key", "Prot = 1\n[Pool.default]\nPath = 'x'", 2, "Prot"),
        ("both", "[Pool.default]\nPath = 'x'\nAddr = 'y:1'", 2, "both Addr and Path"),
        ("not-toml", "not valid", 2, "not-toml"),
        ("level", "LogLevel = 'loud'\n[Pool.default]\nPath = 'x'", 2, "loud"),
        (
            "layout",
            "[Pool.default]\nAddr = 'y:1'\nLayout = 'compact'",
            2,
            "the compact layout is no longer supported",
        ),
        ("partitions", "[Pool.default]\nCluster = ['y:1']\nPartitions = 3", 2, "Partitions"),
        ("foreign", "[Pool.default]\nPath = 'foreign'", 1, "foreign"),
        ("logs", "LogDir = 'foreign/letter.txt/logs'\n[Pool.default]\nPath = 'x'", 2, "LogDir"),
        ("no-logs", "LogDir = 'foreign/letter.txt/logs'\n[Pool.default]\nPath = 'x'", 2, "letter.txt/logs"),
        ("log-file", "LogDir = 'taken'\n[Pool.default]\nPath = 'x'", 2, "LogDir"),
        ("log-file-path", "LogDir = 'taken'\n[Pool.default]\nPath = 'x'", 2, "taken/error.log"),
        (
            "away",
            "[Pool.default]\nAddr = '127.0.0.1:1'\n[AdminRedis]\nAddr = '127.0.0.1:1'",
            1,
            "127.0.0.1:1",
        ),
    ] {
        let file = path(&format!("{name}.toml"));
        std::fs::write(&file, toml).unwrap();
        let ended = Process::start(dir.path(), &["-c", &file], &[]).ended();
        assert_eq!(ended.status.code(), Some(code), "{name}; it said:\n{}", ended.said);
        let complaint: Vec<&str> = ended.said.lines().filter(|l| l.starts_with("dormouse: ")).collect();
        assert_eq!(complaint.len(), 1, "{name}: one line, not\n{}", ended.said);
        assert!(complaint[0].contains(says), "{name}: should name {says}: {}", complaint[0]);
        assert!(
            !ended.said.contains("panicked") && !ended.said.contains("backtrace"),
            "{name}:\n{}",
            ended.said
        );
    }
    let ended = Process::start(dir.path(), &["-c", "nowhere.toml"], &[]).ended();
    assert_eq!(ended.status.code(), Some(2), "a missing file:\n{}", ended.said);
    assert!(ended.said.contains("nowhere.toml"), "{}", ended.said);
}

/// Guards against searching for jobs in the wrong partition.
#[test]
fn a_pool_in_a_cluster_keeps_its_number_of_partitions() {
    let (dir, cluster) = (dir(), RedisCluster::start_of(3, 0));
    let nodes = cluster.address().addrs;
    let start = |partitions: u16| {
        let pool = format!("Cluster = {nodes:?}\nPartitions = {partitions}\nPrefix = 'jobs'");
        let toml = format!("Port = 0\nAdminPort = 0\n[Pool.default]\n{pool}\n");
        std::fs::write(dir.path().join("dormouse.toml"), toml).unwrap();
        Process::start(dir.path(), &["-c", "dormouse.toml"], &[])
    };
    start(4).line_with("serving");
    let other = start(8).ended();
    assert_eq!(other.status.code(), Some(1), "{}", other.said);
    let complaint: Vec<&str> = other.said.lines().filter(|line| line.starts_with("dormouse: ")).collect();
    assert!(complaint.len() == 1 && complaint[0].contains("set it to 4"), "{}", other.said);
    start(4).line_with("serving");
}

#[test]
fn a_second_server_on_the_same_data_is_refused() {
    let dir = dir();
    let mut first = Process::start(dir.path(), &["-p", "server.pid"], &[]);
    first.line_with("serving");
    let second = Process::start(dir.path(), &["-p", "server.pid"], &[]).ended();
    assert_eq!(second.status.code(), Some(1), "{}", second.said);
    assert!(second.said.contains("dormouse-data"), "the line names the directory:\n{}", second.said);
    let pid = std::fs::read_to_string(dir.path().join("server.pid")).unwrap_or_default();
    assert_eq!(pid, first.pid().to_string(), "the pid file is the first one's");
}

#[tokio::test]
async fn a_damaged_directory_is_refused_named_and_repaired() {
    let dir = dir();
    let mut process = Process::start(dir.path(), &[], &[]);
    shown(&mut process);
    let data = dir.path().join("dormouse-data");
    let repair = |flags: &[&str]| {
        let run = Command::new(env!("CARGO_BIN_EXE_dormouse")).arg("repair").args(flags).arg(&data).output();
        let run = run.expect("it runs");
        let told = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        (run.status.code(), told)
    };
    let (code, told) = repair(&[]);
    assert!(
        code == Some(1) && told.contains("in use by another process"),
        "while it serves: {code:?}, {told}"
    );
    process.kill();
    assert_eq!(repair(&[]), (Some(0), "format 10\nnothing is damaged\n".to_owned()));
    std::fs::remove_file(data.join("trees/jobs/current")).expect("it is there");
    let run = Command::new(env!("CARGO_BIN_EXE_dormouse"))
        .current_dir(dir.path())
        .env_clear()
        .envs([("DORMOUSE_PORT", "0"), ("DORMOUSE_ADMIN_PORT", "0")])
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&run.stderr);
    let says = ["keyspace jobs: the file current is missing", "dormouse repair --accept-loss"];
    assert!(
        run.status.code() == Some(1) && says.iter().all(|says| told.contains(says)),
        "a start says: {told}"
    );
    let (code, told) = repair(&[]);
    assert!(
        code == Some(1) && told.contains(says[0]) && told.contains("nothing was changed"),
        "{code:?}: {told}"
    );
    let (code, told) = repair(&["--into", "elsewhere"]);
    assert!(code == Some(2) && told.contains("--accept-loss"), "--into alone: {code:?}: {told}");
    let other = dir.path().join("other");
    let (code, told) = repair(&["--accept-loss", "--into", &other.to_string_lossy()]);
    let says_where = format!("opens now: {}; ", other.display());
    assert!(code == Some(0) && told.contains(&says_where) && other.is_dir(), "{code:?}: {told}");
    let (code, told) = repair(&["--accept-loss"]);
    assert!(code == Some(0) && told.contains("the undamaged part opens now"), "{code:?}: {told}");
    let kept = dir.path().join("dormouse-data.damaged-1");
    assert!(told.contains(&kept.display().to_string()) && kept.is_dir(), "the damaged directory: {told}");
    let mut process = Process::start(dir.path(), &[], &[]);
    process.line_with("serving");
}

#[test]
fn flags_are_lmstfys() {
    let dir = dir();
    let run = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_dormouse")).args(args).current_dir(dir.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = run(&["-v"]);
    assert_eq!(code, Some(0));
    assert!(said.starts_with(&format!("version: {}\n", env!("CARGO_PKG_VERSION"))), "{said}");
    let (code, said) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for flag in ["-c", "-v", "-sv", "-p", "-bt"] {
        assert!(said.contains(flag), "--help should explain {flag}:\n{said}");
    }
    let (code, _) = run(&["-bt", "loud"]);
    assert_eq!(code, Some(2), "an unknown level");
}

/// Guards against a panic on an argument or a variable that is not UTF-8.
#[test]
fn what_is_not_utf8_is_refused_or_taken_as_a_path() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let dir = dir();
    let odd = OsStr::from_bytes(b"caf\xe9");
    let file = dir.path().join(odd);
    std::fs::write(&file, "Prot = 1").unwrap();
    let run = |args: &[&OsStr], variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(args).env(variable, odd).current_dir(dir.path());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let path = file.as_os_str();
    for (args, variable, says) in [
        (&[odd][..], "OTHER", "unrecognized subcommand"),
        (&["-bt".as_ref(), odd], "OTHER", "invalid"),
        (&["queue".as_ref(), "peek".as_ref(), odd], "OTHER", "invalid UTF-8"),
        (&["queue".as_ref(), odd], "OTHER", "unrecognized subcommand"),
        (&["-c".as_ref(), path], "OTHER", "Prot"),
        (&[], "DORMOUSE_HOST", "DORMOUSE_HOST is not UTF-8"),
    ] {
        let (code, said) = run(args, variable);
        assert_eq!(code, Some(2), "{args:?} with {variable}; it said:\n{said}");
        assert!(said.contains(says) && !said.contains("panicked"), "{args:?} should say {says}:\n{said}");
    }
}

#[tokio::test]
async fn sv_accepts_every_token_and_p_writes_the_pid() {
    let dir = dir();
    std::fs::create_dir(dir.path().join("conf")).unwrap();
    std::fs::write(dir.path().join("conf/config.toml"), "[Pool.default]\nPath = 'jobs'\n").unwrap();
    // Without -c the server reads conf/config.toml, like lmstfy.
    let mut process = Process::start(dir.path(), &["-sv", "-p", "server.pid", "-bt=error"], &[]);
    let api = process.address("api");
    let url = format!("http://{api}/api/any/queue");
    for token in ["whatever", ""] {
        let (status, body) = call(Method::PUT, &url, token, "x").await;
        assert_eq!(status, StatusCode::CREATED, "token {token:?}: {body}");
    }
    let pid = std::fs::read_to_string(dir.path().join("server.pid")).expect("a pid file");
    assert!(pid.trim().parse::<u32>().is_ok(), "{pid:?}");
    process.signal("TERM");
    let ended = tokio::task::spawn_blocking(|| process.ended()).await.unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.said);
    assert!(!dir.path().join("server.pid").exists(), "the pid file is gone");
    assert!(
        dir.path().join("jobs").exists() && !dir.path().join("dormouse-data").exists(),
        "the file was read"
    );
}

#[tokio::test]
async fn logs_go_to_their_files_and_are_opened_anew_after_rotation() {
    let dir = dir();
    let toml = "LogDir = 'logs'\nLogFormat = 'json'\nEnableAccessLog = true\n[Pool.default]\nPath = 'jobs'\n";
    std::fs::write(dir.path().join("c.toml"), toml).unwrap();
    let process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let read = |name: &str| std::fs::read_to_string(dir.path().join("logs").join(name)).unwrap_or_default();
    let until = async |name: &str, text: &str| {
        for _ in 0..2000 {
            if let Some(line) = read(name).lines().find(|l| l.contains(text)) {
                return line.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no {text:?} in {name}: {}", read(name));
    };
    let serving = until("error.log", "serving").await;
    let line: serde_json::Value = serde_json::from_str(&serving).expect("a JSON line");
    let api = line["api"].as_str().expect("an address").to_owned();
    let url = format!("http://{api}/api/ns/queue?token=01HUSHHUSHHUSHHUSH");
    call(Method::PUT, &url, "01HUSHHUSHHUSHHUSH", "x").await;
    let access = until("access.log", "/api/ns/queue").await;
    assert!(!access.contains("HUSH"), "a token is in the access log: {access}");
    let logs = dir.path().join("logs");
    // The old file receives lines until the new one is open.
    let reopened = async || {
        process.signal("USR1");
        for _ in 0..2000 {
            call(Method::PUT, &url, "x", "x").await;
            if read("access.log").contains("/api/ns/queue") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no new access.log");
    };
    std::fs::rename(logs.join("access.log"), logs.join("access.1")).expect("it can be renamed");
    reopened().await;
    // The log directory is deleted.
    std::fs::remove_dir_all(&logs).expect("it can be removed");
    reopened().await;
}

/// Guards against a container that is configured by its environment and still prints a valid token.
#[tokio::test]
async fn a_configured_server_makes_no_demo_token() {
    for (file, env) in [(false, vec![("DORMOUSE_HOST", "127.0.0.1")]), (true, vec![])] {
        let dir = dir();
        std::fs::write(dir.path().join("c.toml"), "[Pool.default]\nPath = 'jobs'\n").expect("a file");
        let args: &[&str] = if file { &["-c", "c.toml"] } else { &[] };
        let mut process = Process::start(dir.path(), args, &env);
        let admin = process.address("admin");
        let (_, list) = call(Method::GET, &format!("http://{admin}/token/demo"), "", "").await;
        assert_eq!(list, serde_json::json!({"tokens": {}}), "with a file: {file}, variables: {env:?}");
        process.signal("TERM");
        let said = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic").said;
        assert!(!said.contains("X-Token"), "it printed a token:\n{said}");
    }
}

/// Guards against a start that fails, or an account that appears, because of a Service called dormouse.
#[tokio::test]
async fn the_service_links_of_kubernetes_are_ignored_and_mistakes_are_not() {
    let links = [
        ("DORMOUSE_SERVICE_HOST", "10.96.0.7"),
        ("DORMOUSE_SERVICE_PORT", "7777"),
        ("DORMOUSE_SERVICE_PORT_HTTP", "7777"),
        ("DORMOUSE_PORT", "tcp://10.96.0.7:7777"),
        ("DORMOUSE_PORT_7777_TCP", "tcp://10.96.0.7:7777"),
        ("DORMOUSE_PORT_7777_TCP_PROTO", "tcp"),
        ("DORMOUSE_PORT_7777_TCP_PORT", "7777"),
        ("DORMOUSE_PORT_7777_TCP_ADDR", "10.96.0.7"),
        ("DORMOUSE_ADMIN_PORT", "tcp://10.96.0.8:7778"),
        ("DORMOUSE_ADMIN_SERVICE_HOST", "10.96.0.8"),
        ("DORMOUSE_ACCOUNTS_SERVICE_HOST", "10.96.0.9"),
    ];
    let dir = dir();
    let toml = "Port = 0\nAdminPort = 0\n[Pool.default]\nPath = 'jobs'\n";
    std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &links);
    let admin = process.address("admin");
    let (status, _) = call(Method::GET, &format!("http://{admin}/token/ns"), "", "").await;
    assert_eq!(status, StatusCode::OK, "no account has appeared");
    process.signal("TERM");
    let ended = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    let lines: Vec<&str> = ended.said.lines().filter(|line| line.contains("service links")).collect();
    assert!(lines.len() == 1 && lines[0].contains("DORMOUSE_SERVICE_PORT_HTTP"), "one line:\n{}", ended.said);
    for (name, value) in
        [("DORMOUSE_PROT", "tcp://10.96.0.7:7777"), ("DORMOUSE_SERVICE_HOST", "queue.example")]
    {
        let ended = Process::start(dir.path(), &["-c", "c.toml"], &[(name, value)]).ended();
        assert_eq!(ended.status.code(), Some(2), "{name}={value} is a mistake:\n{}", ended.said);
        assert!(ended.said.contains(name), "it names {name}:\n{}", ended.said);
    }
}

/// Guards against jobs and tokens that every user of the machine can read.
#[tokio::test]
async fn what_the_server_makes_is_for_its_user_alone() {
    fn walk(path: &Path, wrong: &mut Vec<String>) {
        let meta = match path.symlink_metadata() {
            // Such as a new manifest of the log, which was renamed since it was listed.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
            meta => meta.expect("it can be examined"),
        };
        let (mode, want) = (meta.permissions().mode() & 0o777, if meta.is_dir() { 0o700 } else { 0o600 });
        if mode & 0o077 != 0 || mode & want != want {
            wrong.push(format!("{} has {mode:o}, not {want:o}", path.display()));
        }
        if meta.is_dir() {
            for entry in std::fs::read_dir(path).expect("a directory") {
                walk(&entry.expect("its entry").path(), wrong);
            }
        }
    }
    let dir = dir();
    let toml = "LogDir = 'logs/here'\nEnableAccessLog = true\n[Pool.default]\nPath = 'data/jobs'\n";
    std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    let process = Process::start(dir.path(), &["-c", "c.toml", "-sv", "-p", "pid"], &[]);
    let api = logged_address(&dir, "logs/here/error.log").await;
    let (status, _) = call(Method::PUT, &format!("http://{api}/api/ns/q"), "any", "x").await;
    assert_eq!(status, StatusCode::CREATED, "it works");
    let mut wrong = Vec::new();
    for path in ["data", "logs", "pid"] {
        walk(&dir.path().join(path), &mut wrong);
    }
    assert!(wrong.is_empty(), "others may read:\n{}", wrong.join("\n"));
    drop(process);
}

#[tokio::test]
async fn a_pid_file_is_not_written_through_a_link() {
    let dir = dir();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "precious").expect("a file");
    std::os::unix::fs::symlink(&victim, dir.path().join("pid")).expect("a link");
    let ended = Process::start(dir.path(), &["-p", "pid"], &[]).ended();
    assert_eq!(ended.status.code(), Some(1), "a link is in its place:\n{}", ended.said);
    assert!(ended.said.contains("the pid file pid"), "it says which file:\n{}", ended.said);
    assert_eq!(std::fs::read_to_string(&victim).expect("it is there"), "precious", "the target of the link");
}

/// Returns the public port's address from a log file.
async fn logged_address(dir: &TempDir, log: &str) -> String {
    logged(dir, log, "api=")
        .await
        .split("api=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .unwrap_or_default()
        .to_owned()
}

/// Returns the first line of a log file with this text, once it exists.
async fn logged(dir: &TempDir, log: &str, text: &str) -> String {
    let read = || std::fs::read_to_string(dir.path().join(log)).unwrap_or_default();
    for _ in 0..2000 {
        if let Some(line) = read().lines().find(|line| line.contains(text)) {
            return line.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no {text:?} in {log}: {}", read());
}

/// Guards against untraceable changes of permissions, and against logs that contain tokens.
#[tokio::test]
async fn the_log_tells_who_made_or_deleted_what_and_shows_no_token() {
    let dir = dir();
    let toml = "LogDir = 'logs'\nLogLevel = 'error'\nEnableAccessLog = true\nAccounts = {Ann = 'pw'}\nPort = 0\nAdminPort = 0\n[Pool.default]\nPath = 'jobs'\n";
    std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    // At the level `error` the addresses are not logged, so the ports are chosen here.
    let (api, admin) = (free_port().to_string(), free_port().to_string());
    let env = [("DORMOUSE_PORT", api.as_str()), ("DORMOUSE_ADMIN_PORT", admin.as_str())];
    let process = Process::start(dir.path(), &["-c", "c.toml"], &env);
    let send = async |method: &str, port: &str, path: &str, body: &str| {
        let method: Method = method.parse().expect("a method");
        let request = Client::new().request(method, format!("http://127.0.0.1:{port}{path}"));
        let request = request.header("Authorization", "Basic QW5uOnB3").body(body.to_owned());
        request.send().await
    };
    let secret = "01SECRETSECRETSECRETSECRET";
    let create = format!("/token/ns?description=d&token={secret}");
    for _ in 0..2000 {
        if send("GET", &admin, "/ready", "").await.is_ok_and(|answer| answer.status() == 200) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let limit = r#"{"read":1,"write":1,"interval":60}"#;
    let path = format!("/token/ns/{secret}/limit");
    let steps = [
        ("POST", create.as_str(), "", 201),
        ("POST", create.as_str(), "", 400),
        ("POST", &path, limit, 201),
        ("PUT", &path, limit, 200),
        ("DELETE", &path, "", 200),
        ("DELETE", &format!("/token/ns/{secret}"), "", 204),
        ("POST", "/quota/ns", r#"{"jobs":1}"#, 201),
        ("POST", "/quota/ns", r#"{"jobs":1}"#, 409),
        ("PUT", "/quota/ns", r#"{"jobs":-1}"#, 400),
        ("PUT", "/quota/ns", r#"{"jobs":2}"#, 200),
        ("DELETE", "/quota/ns", "", 200),
        // An unknown route, and other spellings of a known one.
        ("GET", &format!("//token/ns/{secret}"), "", 404),
        ("DELETE", &format!("/%74oken/ns/{secret}"), "", 404),
        ("GET", &format!("/token/ns/{secret}/limits"), "", 404),
        ("GET", &format!("/token/ns/{secret}/limit/"), "", 404),
    ];
    for (method, path, body, status) in steps {
        let answer = send(method, &admin, path, body).await.expect("it answers");
        assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        // A request to the wrong port.
        send(method, &api, path, body).await.expect("it answers");
    }
    logged(&dir, "logs/access.log", "/token/:namespace/:token/limit").await;
    let read = |log: &str| std::fs::read_to_string(dir.path().join(log)).expect("a log");
    let (errors, access) = (read("logs/error.log"), read("logs/access.log"));
    let audit: Vec<&str> = errors.lines().filter(|line| line.contains("audit")).collect();
    let want = [
        "a token was made",
        "a limit was made",
        "a limit was made or changed",
        "a limit was deleted",
        "a token was deleted",
        "a quota was made",
        "a quota was made or changed",
        "a quota was deleted",
    ];
    assert_eq!(audit.len(), want.len(), "one line for each change, in:\n{errors}");
    for (line, want) in audit.iter().zip(want) {
        let token = if want.contains("quota") { "" } else { "token=\"" };
        let all = [want, "by=\"Ann\"", "namespace=\"ns\"", "pool=\"default\"", token];
        assert!(all.iter().all(|part| line.contains(part)), "{all:?} in {line}");
    }
    for (name, log) in [("error.log", &errors), ("access.log", &access)] {
        assert!(!log.contains("SECRET"), "a token is in {name}:\n{log}");
    }
    assert!(access.contains("path=\"/token/:namespace\""), "the routes are logged:\n{access}");
    drop(process);
}

/// Guards against unnoticed guesses of passwords, and against a flood of them that fills the log.
#[tokio::test]
async fn failed_logins_are_audited_in_bounded_number() {
    let dir = dir();
    std::fs::write(dir.path().join("c.toml"), "Accounts = {ann = 'right'}\n[Pool.default]\nPath = 'jobs'\n")
        .expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let admin = process.address("admin");
    let log_in = async |user: &str, password: &str| {
        let request = Client::new().get(format!("http://{admin}/token/ns")).basic_auth(user, Some(password));
        request.send().await.expect("it answers").status().as_u16()
    };
    Client::new().get(format!("http://{admin}/token/ns")).send().await.expect("it answers");
    assert_eq!(log_in("ann", "right").await, 200, "the right password");
    for n in 0..150 {
        let status = log_in("mallory\nforged line", "guessed-password").await;
        assert!([401, 429].contains(&status), "guess {n}: {status}");
    }
    process.signal("TERM");
    let said = tokio::task::spawn_blocking(|| process.ended()).await.expect("it ends").said;
    let audit: Vec<&str> = said.lines().filter(|line| line.contains("audit")).collect();
    assert_eq!(audit.len(), 1, "one line for 150 guesses of one address, in:\n{said}");
    for part in ["logins failed", "by=\"127.0.0.1\"", "failed=1"] {
        assert!(audit[0].contains(part), "{part} in {}", audit[0]);
    }
    for secret in ["mallory", "forged", "guessed", "Basic"] {
        assert!(!said.contains(secret), "{secret:?} is in the log:\n{said}");
    }
}

/// Guards against a silent start with an admin port open to a network, or with checks disabled.
#[tokio::test]
async fn open_doors_are_said_at_the_start() {
    for (args, toml, says) in [
        (vec!["-c", "c.toml", "-sv"], "", vec!["-sv"]),
        (vec!["-c", "c.toml"], "AdminHost = '0.0.0.0'", vec!["[Accounts]"]),
        (vec!["-c", "c.toml"], "AdminHost = '0.0.0.0'\nAccounts = {ann = 'pw'}", vec![]),
        (vec!["-c", "c.toml"], "", vec![]),
    ] {
        let dir = dir();
        std::fs::write(dir.path().join("c.toml"), format!("{toml}\n[Pool.default]\nPath = 'jobs'\n"))
            .expect("a file");
        let mut process = Process::start(dir.path(), &args, &[]);
        process.line_with("serving");
        process.signal("TERM");
        let said = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic").said;
        let warned = complaints(&said);
        assert_eq!(warned.len(), says.len(), "{args:?} {toml:?}: as many warnings, in:\n{said}");
        assert!(warned.iter().zip(&says).all(|(line, says)| line.contains(says)), "{says:?} in {warned:?}");
    }
}

/// Guards against a first try that needs a configuration file to use another port or directory.
#[tokio::test]
async fn flags_name_the_ports_and_the_directory_of_a_first_try() {
    let dir = dir();
    // Flags replace variables: the variable alone would be refused.
    let env = [("DORMOUSE_ADMIN_PORT", "nonsense")];
    let args = ["--port", "0", "--admin-port=0", "--data", "mine"];
    let mut process = Process::start(dir.path(), &args, &env);
    let admin = process.address("admin");
    process.line_with(&format!("dashboard       http://{admin}/ui/"));
    assert!(dir.path().join("mine").is_dir() && !dir.path().join("dormouse-data").exists());
    let (_, list) = call(Method::GET, &format!("http://{admin}/token/demo"), "", "").await;
    assert_eq!(list["tokens"].as_object().map(serde_json::Map::len), Some(1), "a token for demo: {list}");
    for (args, says) in [(["--port", "70000"], "--port"), (["--data", "~/jobs"], "~ is not expanded")] {
        let ended = Process::start(dir.path(), &args, &[]).ended();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.said);
        assert!(ended.said.contains(says), "{args:?}: {}", ended.said);
    }
}
