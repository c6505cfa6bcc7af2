//! token-cli against a fake admin port: its requests, output and exit codes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long either side waits for the other before the test fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server for one request: replies with `response`, and returns the request including its head.
fn server(response: &str) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let response = response.to_string();
    let served = std::thread::spawn(move || {
        listener.set_nonblocking(true).expect("a socket");
        let end = Instant::now() + PATIENCE;
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => panic!("accept: {e}"),
                Err(_) if Instant::now() > end => return "nobody came".to_string(),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        stream.set_nonblocking(false).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let (mut head, mut byte) = (Vec::new(), [0u8]);
        while !head.ends_with(b"\r\n\r\n") && head.len() < 1 << 16 {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                other => panic!("the head ended early: {other:?} after {:?}", String::from_utf8_lossy(&head)),
            }
        }
        stream.write_all(response.as_bytes()).expect("the client reads");
        String::from_utf8(head).expect("a head is ASCII")
    });
    (address, served)
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn token_cli(args: &[&str], auth: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_token-cli"));
    command.args(args).env_remove("DORMOUSE_ADMIN_AUTH");
    command.env("http_proxy", "http://127.0.0.1:1").env("ALL_PROXY", "http://127.0.0.1:1");
    if let Some(auth) = auth {
        command.env("DORMOUSE_ADMIN_AUTH", auth);
    }
    command.output().expect("token-cli runs")
}

/// Returns exit code, stdout and stderr.
fn ended(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Runs the tool against one canned response. Returns its exit code and output, and the request's head.
fn talk(response: &str, args: &[&str], auth: Option<&str>) -> ((i32, String, String), String) {
    let (address, served) = server(response);
    let address = address.to_string();
    let output = token_cli(&[&[address.as_str()], args].concat(), auth);
    (ended(&output), served.join().expect("the server does not panic"))
}

fn first_line(head: &str) -> &str {
    head.lines().next().unwrap_or_default()
}

#[test]
fn create_sends_all_it_was_given_and_prints_the_answer() {
    let body = "{\n    \"token\": \"01NEW\"\n}";
    let created = answer("201 Created", body);
    let (end, head) = talk(&created, &["-c", "-n", "ns", "-D", "für a&b=c + d"], None);
    assert_eq!(end, (0, format!("{body}\n"), String::new()), "the answer as it came");
    let line = "POST /token/ns?description=f%C3%BCr%20a%26b%3Dc%20%2B%20d HTTP/1.1";
    assert_eq!(first_line(&head), line, "percent-encoded");
    assert!(!head.to_lowercase().contains("authorization"), "no account was given:\n{head}");

    let all = ["-n=ns", "-p", "fast", "-D", "d", "-t", "p:a/b", "-c"];
    let (end, head) = talk(&created, &all, None);
    assert_eq!(end.0, 0, "created: {end:?}");
    let line = "POST /token/ns?description=d&pool=fast&token=p%3Aa%2Fb HTTP/1.1";
    assert_eq!(first_line(&head), line, "pool and chosen token");
}

#[test]
fn delete_prints_ok() {
    let gone = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
    for (args, line) in [
        (&["-d", "-n", "ns", "-t", "01T"][..], "DELETE /token/ns/01T HTTP/1.1"),
        (&["-d", "-n", "ns", "-t", "a/b", "-p", "fast"], "DELETE /token/ns/fast%3Aa%2Fb HTTP/1.1"),
        (&["-d", "-n", "ns", "-t", "fast:01T", "-p", "other"], "DELETE /token/ns/fast%3A01T HTTP/1.1"),
    ] {
        let (end, head) = talk(gone, args, None);
        assert_eq!(end, (0, "ok\n".to_string(), String::new()), "{args:?}");
        assert_eq!(first_line(&head), line, "{args:?}");
    }
}

#[test]
fn lists_print_the_answer() {
    for (args, line) in [
        (&["-l", "-n", "ns"][..], "GET /token/ns HTTP/1.1"),
        (&["-l", "-n", "ns", "-p", "fast"], "GET /token/ns?pool=fast HTTP/1.1"),
        (&["-P"], "GET /pools HTTP/1.1"),
    ] {
        let (end, head) = talk(&answer("200 OK", "{}\n"), args, None);
        assert_eq!(end, (0, "{}\n".to_string(), String::new()), "{args:?}");
        assert_eq!(first_line(&head), line, "{args:?}");
    }
}

#[test]
fn the_account_is_sent_from_the_flag_or_else_the_environment() {
    let ok = answer("200 OK", "[]");
    for (flag, env, expected) in [
        (Some("user:pass:word"), None, "dXNlcjpwYXNzOndvcmQ="),
        (None, Some("env:secret"), "ZW52OnNlY3JldA=="),
        (Some("user:pass:word"), Some("env:secret"), "dXNlcjpwYXNzOndvcmQ="),
    ] {
        let args = flag.map_or(vec!["-P"], |flag| vec!["-P", "-u", flag]);
        let (end, head) = talk(&ok, &args, env);
        assert_eq!(end.0, 0, "{end:?}");
        let sent = head.lines().find(|line| line.to_lowercase().starts_with("authorization:"));
        let sent = sent.and_then(|line| line.split_once(' ')).map(|(_, value)| value);
        assert_eq!(sent, Some(format!("Basic {expected}").as_str()), "flag {flag:?}, environment {env:?}");
    }
}

#[test]
fn what_is_missing_is_said_in_one_line() {
    let host = "127.0.0.1:1";
    for (args, missing) in [
        (&["-P"][..], "HOST:PORT"),
        (&[host], "-c"),
        (&[host, "-c", "-D", "d"], "-n"),
        (&[host, "-c", "-n", "ns"], "-D"),
        (&[host, "-c", "-n", "ns", "-D", ""], "-D"),
        (&[host, "-d", "-n", "ns"], "-t"),
        (&[host, "-d", "-t", "01T"], "-n"),
        (&[host, "-l"], "-n"),
        (&["localhost", "-P"], "HOST:PORT"),
        (&["localhost:http", "-P"], "HOST:PORT"),
        (&["user@host:1", "-P"], "HOST:PORT"),
        (&[host, "-P", "-u", "nopassword"], "user:password"),
    ] {
        let (code, out, err) = ended(&token_cli(args, None));
        assert_eq!((code, out.as_str()), (2, ""), "{args:?} ended with {err:?}");
        assert!(
            err.lines().count() == 1 && err.contains(missing),
            "{args:?} should ask for {missing}: {err:?}"
        );
    }
}

#[test]
fn two_actions_at_once_are_refused() {
    let (code, out, err) = ended(&token_cli(&["127.0.0.1:1", "-c", "-d"], None));
    assert_eq!((code, out.as_str()), (2, ""), "create and delete: {err:?}");
}

#[test]
fn a_refusal_is_printed_and_ends_with_1() {
    let refused = answer("400 Bad Request", r#"{"error":"invalid description"}"#);
    let (end, _) = talk(&refused, &["-c", "-n", "ns", "-D", "d"], None);
    assert_eq!((end.0, end.1.as_str()), (1, "{\"error\":\"invalid description\"}\n"), "stderr: {:?}", end.2);
    assert!(end.2.contains("400"), "the status is named: {:?}", end.2);
    let (end, _) = talk(&answer("401 Unauthorized", ""), &["-d", "-n", "ns", "-t", "SECRET"], Some("u:PASS"));
    assert_eq!((end.0, end.1.as_str()), (1, ""), "no body, so no line, and no ok");
    assert!(end.2.contains("401") && !end.2.contains("PASS") && !end.2.contains("SECRET"), "{:?}", end.2);
}

#[test]
fn a_redirect_is_not_followed() {
    let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n";
    let (end, _) = talk(moved, &["-P"], Some("user:password"));
    assert!(end.0 == 1 && end.2.contains("302"), "the answer is a refusal: {end:?}");
}

#[test]
fn no_server_and_no_http_are_one_line_and_1() {
    let nobody = "127.0.0.1:1";
    let (code, out, err) = ended(&token_cli(&[nobody, "-P"], None));
    assert_eq!((code, out.as_str(), err.lines().count()), (1, "", 1), "no server listens: {err:?}");
    assert!(err.contains(nobody) && err.to_lowercase().contains("refused"), "says where and why: {err:?}");
    let (end, _) = talk("SSH-2.0-OpenSSH_9.9\r\n\r\n", &["-P"], None);
    assert_eq!((end.0, end.1.as_str(), end.2.lines().count()), (1, "", 1), "not HTTP: {:?}", end.2);
}

#[test]
fn help_shows_every_flag_and_an_example() {
    let (code, out, err) = ended(&token_cli(&["--help"], None));
    assert_eq!((code, err.as_str()), (0, ""), "help is no error");
    for wanted in ["-c", "-d", "-l", "-P", "-n", "-p", "-D", "-t", "-u", "DORMOUSE_ADMIN_AUTH", "Examples:"] {
        assert!(out.contains(wanted), "--help does not mention {wanted}:\n{out}");
    }
}

/// A link to dormouse is the tool too, as packages may install it.
#[test]
fn a_link_to_dormouse_named_token_cli_is_the_tool() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let link = dir.path().join("token-cli");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_dormouse"), &link).expect("a link");
    let end = ended(&Command::new(&link).arg("--help").output().expect("it runs"));
    assert_eq!(end, ended(&token_cli(&["--help"], None)), "the help through a link and through the program");
}

/// Guards against a silent failure where somebody has copied only this file.
#[test]
fn without_dormouse_beside_it_the_error_names_the_missing_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let alone = dir.path().join("token-cli");
    std::fs::copy(env!("CARGO_BIN_EXE_token-cli"), &alone).expect("a copy");
    let (code, out, err) = ended(&Command::new(&alone).arg("--help").output().expect("it runs"));
    assert_eq!((code, out.as_str(), err.lines().count()), (1, "", 1), "stderr: {err:?}");
    let missing = dir.path().join("dormouse").display().to_string();
    assert!(err.contains(&missing), "the error does not name {missing}: {err:?}");
}

/// Guards against a panic on an argument that is not UTF-8.
#[test]
fn an_argument_that_is_not_utf8_is_refused() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    for before in [&[][..], &["-n"], &["127.0.0.1:1", "-c", "-D"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_token-cli"));
        let end = ended(&command.args(before).arg(OsStr::from_bytes(b"caf\xe9")).output().expect("it runs"));
        assert!(end.0 == 2 && !end.2.contains("panicked"), "after {before:?}: {end:?}");
    }
}
