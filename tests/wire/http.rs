//! Raw HTTP conversations: requests of old clients and SDKs, invalid ones, and unusual ones that must be answered.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

use crate::common::{raw, read_until, status};
use crate::support::client::send;
use crate::support::servers::{Store, TestServer, on_each_store};
use crate::support::wait::TIMEOUT;
use dormouse::http::all_routes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns a raw request that ends its connection.
fn request(line: &str, token: &str, more: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nConnection: close\r\n{more}").into_bytes()
}

#[tokio::test]
async fn get_and_delete_with_a_stale_body_and_a_form_type_work_as_php_sends_them() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let stale = format!("{form}Content-Length: 12\r\n\r\ntoken=a&tt=b");
    // A PUT with the content type of forms is a job like any other: its body is not parsed as a form.
    let published = raw(server.api_addr, &request("PUT /api/ns/q?tries=2", &token, &stale)).await;
    assert_eq!(status(&published), 201, "{published}");
    let got = raw(server.api_addr, &request("GET /api/ns/q", &token, &stale)).await;
    assert_eq!(status(&got), 200, "{got}");
    assert!(got.contains("dG9rZW49YSZ0dD1i"), "the body came back as it was sent: {got}");
    let id = got.split("\"job_id\":\"").nth(1).and_then(|rest| rest.get(..26)).expect("an id");
    let ack = raw(server.api_addr, &request(&format!("DELETE /api/ns/q/job/{id}"), &token, &stale)).await;
    assert_eq!(status(&ack), 204, "{ack}");
    // An unread body must not be parsed as the next request.
    let two = format!(
        "GET /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nContent-Length: 34\r\n\r\nDELETE /api/ns/q HTTP/1.1\r\nEvil: 1\r\nGET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    );
    let both = raw(server.api_addr, two.as_bytes()).await;
    assert_eq!(both.matches("HTTP/1.1 ").count(), 2, "two answers to two requests: {both}");
    assert!(both.contains("pong"), "the second request was understood: {both}");
}

#[tokio::test]
async fn expect_100_continue_is_answered_before_the_body_is_sent() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let head = request("PUT /api/ns/q", &token, "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let mut stream = TcpStream::connect(server.api_addr).await.expect("the port takes connections");
    stream.write_all(&head).await.expect("sent");
    let go_on = read_until(&mut stream, "\r\n\r\n").await;
    assert_eq!(status(&go_on), 100, "{go_on}");
    stream.write_all(b"hello").await.expect("sent");
    let answer = read_until(&mut stream, "published").await;
    assert_eq!(status(&answer), 201, "{answer}");
}

#[tokio::test]
async fn who_expects_100_continue_and_is_refused_is_not_asked_for_the_body() {
    let server = TestServer::on_disk().await;
    for (token, length) in [("wrong", 5u64), ("wrong", 1 << 40)] {
        let head = format!(
            "PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        let mut stream = TcpStream::connect(server.api_addr).await.expect("the port takes connections");
        stream.write_all(head.as_bytes()).await.expect("sent");
        let answer = read_until(&mut stream, "\r\n\r\n").await;
        assert_eq!(status(&answer), 401, "the refusal comes first, not a call for the body: {answer}");
    }
}

#[tokio::test]
async fn chunked_bodies_and_http_1_0_work() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let chunks = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n";
    let answer = raw(server.api_addr, &request("PUT /api/ns/q", &token, chunks)).await;
    assert_eq!(status(&answer), 201, "{answer}");
    let old = format!("GET /api/ns/q?token={token} HTTP/1.0\r\n\r\n");
    let got = raw(server.api_addr, old.as_bytes()).await;
    assert_eq!(status(&got), 200, "{got}");
    assert!(got.contains("YWJjZGVmZw=="), "abcdefg, in one piece: {got}");
    assert!(!got.to_lowercase().contains("transfer-encoding"), "HTTP/1.0 knows no chunks: {got}");
    let broken = "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n";
    let answer = raw(server.api_addr, &request("PUT /api/ns/q", &token, broken)).await;
    assert_eq!(status(&answer), 400, "{answer}");
    // An incomplete body is not stored as a job.
    let mut stream = TcpStream::connect(server.api_addr).await.expect("the port takes connections");
    stream
        .write_all(&request("PUT /api/ns/q", &token, "Content-Length: 10\r\n\r\nhalf"))
        .await
        .expect("sent");
    stream.shutdown().await.expect("shut");
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.expect("an end in time");
    assert_eq!(server.size("/api/ns/q").await, 0, "half a body was published");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let mut all = String::new();
    for i in 0..20 {
        all += &format!(
            "PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nContent-Length: 2\r\n\r\n{i:02}"
        );
    }
    for _ in 0..20 {
        all += &format!("GET /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\n\r\n");
    }
    all += "GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answers = raw(server.api_addr, all.as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 201").count(), 20, "{answers}");
    let data: Vec<&str> =
        answers.split("\"data\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let want: Vec<String> = (0..20)
        .map(|i| {
            base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("{i:02}").as_bytes())
        })
        .collect();
    assert_eq!(data, want, "twenty jobs in the order of their publish");
}

#[tokio::test]
async fn other_methods_and_routes_are_unknown_and_do_nothing() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    for method in ["HEAD", "OPTIONS", "POST", "PATCH", "TRACE", "BREW"] {
        for path in ["/api/ns/q", "/api/ns/q/peek", "/api/ns/q/size", "/api/ns/q/deadletter", "/ping", "/"] {
            if (method, path) == ("HEAD", "/ping") {
                continue; // a probe
            }
            let answer = send(server.api(method, path, &token)).await;
            assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
            if method != "HEAD" {
                assert_eq!(answer.text, r#"{"error":"api not found"}"#, "{method} {path}");
            }
        }
    }
    for path in [
        "/api",
        "/api/",
        "/api/ns/q/",
        "/api/ns//q",
        "/api/ns/q/nope",
        "/API/ns/q",
        "//",
        "/token/ns",
        "/metrics",
    ] {
        let answer = send(server.api("GET", path, &token)).await;
        assert_eq!((answer.status, answer.says()), (404, "api not found"), "GET {path}");
    }
    for method in ["HEAD", "DELETE", "PUT", "OPTIONS"] {
        for path in
            ["/token/ns", "/pools", "/info", "/version", "/accesslog", "/metrics", "/ready", "/limits"]
        {
            // Load balancers probe with HEAD.
            let expected = if (method, path) == ("HEAD", "/ready") { 200 } else { 404 };
            let answer = send(server.admin(method, path)).await;
            assert_eq!(answer.status, expected, "{method} {path} on the admin port: {answer:?}");
        }
    }
    let job = server.get(&token, "/api/ns/q").await.expect(200);
    assert_eq!(job.data(), b"x", "the job was still there");
}

/// Guards against an `Allow` that contains a rejected method, or omits methods of the fast path.
#[tokio::test]
async fn a_wrong_method_is_told_which_ones_there_are() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    for port in ["public", "admin"] {
        let mut routes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for route in all_routes().into_iter().filter(|route| route.port == port) {
            routes.entry(route.pattern).or_default().insert(route.method);
        }
        assert!(routes.len() > 20, "the {port} port has routes");
        for (pattern, methods) in routes {
            let path = pattern.replace("{namespace}", "ns").replace("{queue}", "q").replace("{name}", "s");
            let path = path.replace(['{', '}'], "");
            let expected = methods.into_iter().collect::<Vec<_>>().join(", ");
            for method in ["PATCH", "OPTIONS"] {
                let request = match port {
                    "public" => server.api(method, &path, &token),
                    _ => server.admin(method, &path),
                };
                let answer = send(request).await;
                assert_eq!(answer.status, 404, "{method} {path} on the {port} port: {answer:?}");
                assert_eq!(answer.header("allow"), expected, "{method} {path} on the {port} port");
            }
        }
    }
    let answer = send(server.api("POST", "/api/ns/q", &token)).await;
    assert_eq!(answer.header("allow"), "DELETE, GET, PUT", "what the fast path answers is named: {answer:?}");
}

#[tokio::test]
async fn a_head_that_is_too_large_or_not_http_gets_4xx_and_no_hang() {
    let server = TestServer::on_disk().await;
    let long = "a".repeat(1 << 20);
    let cases = [
        format!("GET /{long} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        format!("GET /api/ns/q?token={long} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        format!("GET /ping HTTP/1.1\r\nHost: x\r\nBig: {long}\r\nConnection: close\r\n\r\n"),
        format!("GET /ping HTTP/1.1\r\nHost: x\r\n{}Connection: close\r\n\r\n", "A: b\r\n".repeat(5000)),
        "nonsense\r\n\r\n".to_owned(),
        "GET  HTTP/1.1\r\n\r\n".to_owned(),
        "GET /ping HTTP/9.9\r\n\r\n".to_owned(),
        "PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n".to_owned(),
        "PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx".to_owned(),
        "GET /ping HTTP/1.1\r\nHost: x\r\nBad Name: x\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\r\n\r\n".to_owned(),
    ];
    for bytes in cases {
        let answer = raw(server.api_addr, bytes.as_bytes()).await;
        let begin = bytes.get(..40.min(bytes.len())).unwrap_or_default();
        assert!((400..500).contains(&status(&answer)), "{begin:?} got {answer:?}");
    }
    // 60 KB of query are valid HTTP, but not a valid token.
    let fits = "a".repeat(60_000);
    let path = format!("/api/ns/q?token={fits}");
    send(server.api("GET", &path, "")).await.expect(401);
    send(server.api("GET", "/ping", "")).await.expect(200);
}

/// Sends a head and then `bytes` of body from a thread, while reading the response.
fn flood(server: &TestServer, head: String, bytes: usize) -> String {
    let mut writer = std::net::TcpStream::connect(server.api_addr).expect("the port takes connections");
    writer.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    writer.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    let mut reader = writer.try_clone().expect("a second handle");
    let sending = std::thread::spawn(move || {
        let _ = writer.write_all(head.as_bytes());
        let piece = [b'x'; 65536];
        let mut left = bytes;
        while left > 0 {
            let n = left.min(piece.len());
            if writer.write_all(&piece[..n]).is_err() {
                return; // the server reads no more
            }
            left -= n;
        }
    });
    // Only a client that sends everything before reading can tell whether the response survives.
    sending.join().expect("the writer ends");
    let mut answer = Vec::new();
    let _ = reader.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_a_client_that_still_sends_its_body() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let cases = [
        ("/api/ns/q", "wrong", 30 << 20, 401),
        ("/api/ns/q", token.as_str(), 30 << 20, 413),
        ("/api/ns/q/bulk", token.as_str(), (65 << 20) + 1, 413),
        ("/nothing", "", 30 << 20, 404),
    ];
    for (path, token, bytes, want) in cases {
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n"
        );
        let answer = tokio::task::block_in_place(|| flood(&server, head, bytes));
        assert!(!answer.is_empty(), "{path} with {bytes} bytes: no answer, only a reset");
        assert_eq!(status(&answer), want, "{path} with {bytes} bytes");
    }
}

#[tokio::test]
async fn a_refusal_comes_although_the_announced_body_never_does() {
    let server = TestServer::on_disk().await;
    let head = request("PUT /api/ns/q", "wrong", "Content-Length: 5\r\n\r\n");
    let answer = raw(server.api_addr, &head).await;
    assert_eq!(status(&answer), 401, "{answer}");
}

async fn a_bulk_of_64_jobs_of_a_mebibyte_works(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let job = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let body = format!("[{}]", vec![job.as_str(); 64].join(","));
    let answer = send(server.api("PUT", "/api/ns/q/bulk", &token).body(body)).await.expect(201);
    assert_eq!(answer.json["job_ids"].as_array().map(Vec::len), Some(64));
    assert_eq!(server.size("/api/ns/q").await, 64);
    let first = server.get(&token, "/api/ns/q").await.expect(200);
    assert_eq!(Some(first.job_id().as_str()), answer.json["job_ids"][0].as_str(), "the first of them");
    assert_eq!(first.data().len(), 1 << 20, "a whole job");
}

on_each_store!(a_bulk_of_64_jobs_of_a_mebibyte_works);
