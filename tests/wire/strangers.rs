//! Attacks: web pages that use a user's browser, and guesses of passwords.

use std::net::{Ipv4Addr, SocketAddr};

use crate::common::{raw, status};
use crate::support::client::{Response, send};
use crate::support::process::Process;
use crate::support::servers::{Store, TestServer};

/// Headers that a browser adds to a request made by a page of another site.
const OTHER_SITES: [(&str, &str); 6] = [
    ("Sec-Fetch-Site", "cross-site"),
    ("Sec-Fetch-Site", "same-site"),
    ("Origin", "http://evil.example"),
    ("Origin", "https://evil.example:7778"),
    ("Origin", "http://localhost:3000"),
    ("Origin", "null"),
];

/// Guards against any web page that creates, deletes or reads tokens, by an address of its own name.
#[tokio::test]
async fn a_web_page_cannot_drive_the_admin_port() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let requests = [
        ("POST", "/token/ns?description=evil"),
        ("GET", "/token/ns"),
        ("DELETE", &format!("/token/ns/{token}")),
        ("PUT", &format!("/token/ns/{token}/limit")),
        ("POST", "/accesslog?status=enable"),
        ("GET", "/limits"),
        ("GET", "/info"),
        ("GET", "/metrics"),
    ];
    for (name, value) in OTHER_SITES {
        for (method, path) in requests {
            let body = r#"{"read":1,"write":1,"interval":1}"#;
            let answer = send(server.admin(method, path).header(name, value).body(body)).await;
            assert_eq!(answer.status, 403, "{method} {path} with {name}: {value}: {answer:?}");
            assert!(answer.says().contains("another site"), "it says why: {answer:?}");
        }
    }
    for host in ["evil.example", "evil.example:7778", "localhost.evil.example", "0.0.0.0:7778", "10.0.0.1"] {
        for request in [
            format!("GET /token/ns HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{host}/token/ns HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        ] {
            let answer = raw(server.admin_addr, request.as_bytes()).await;
            assert_eq!(status(&answer), 403, "{request:?}: {answer}");
            assert!(answer.contains("localhost") && !answer.contains(&token), "it says why: {answer}");
        }
    }
    let list = send(server.admin("GET", "/token/ns")).await.expect(200);
    assert_eq!(list.json, serde_json::json!({"tokens": {&token: "compat"}}), "nothing was changed");
    assert_eq!(send(server.admin("GET", "/accesslog")).await.json["status"], "disabled", "nor this");
}

/// Requests of programs and users keep working.
#[tokio::test]
async fn programs_people_and_our_own_origin_are_let_in() {
    let server = TestServer::on_disk().await;
    let own = format!("http://{}", server.admin_addr);
    let same = [("Sec-Fetch-Site", "none"), ("Sec-Fetch-Site", "same-origin"), ("Origin", own.as_str())];
    for (name, value) in same {
        send(server.admin("POST", "/token/ns?description=x").header(name, value)).await.expect(201);
    }
    let port = server.admin_addr.port();
    for host in ["localhost", "LocalHost.", "127.0.0.1", "[::1]", "app.localhost"] {
        for host in [host.to_owned(), format!("{host}:{port}")] {
            let request = format!("GET /token/ns HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            assert_eq!(status(&raw(server.admin_addr, request.as_bytes()).await), 200, "Host: {host}");
        }
    }
    let answer = raw(server.admin_addr, b"GET /ready HTTP/1.0\r\n\r\n").await;
    assert_eq!(status(&answer), 200, "a health check without a Host: {answer}");
}

/// Starts a server whose admin port can be reached from other machines, with the accounts of `keys`. The test uses
/// 127.0.0.1.
async fn beyond_this_machine(keys: &str) -> (TestServer, SocketAddr) {
    let store = Store::disk();
    let server = TestServer::start(&format!("AdminHost = '0.0.0.0'\n{keys}{}", store.toml()), store).await;
    let addr = (Ipv4Addr::LOCALHOST, server.admin_addr.port()).into();
    (server, addr)
}

/// Guards against DNS rebinding of an admin port beyond loopback, as in a container: a page makes its own name resolve
/// to the server, and sends it as Host and Origin.
#[tokio::test]
async fn a_page_that_gives_its_name_our_address_makes_no_token() {
    let (_server, admin) = beyond_this_machine("").await;
    let ask = async |method: &str, target: &str, hosts: &str| {
        let request = format!("{method} {target} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        raw(admin, request.as_bytes()).await
    };
    let page = "Host: evil.example:7778\r\nOrigin: http://evil.example:7778\r\n";
    let answer = ask("POST", "/token/ns?description=evil", page).await;
    assert_eq!(status(&answer), 403, "a page's own name makes no token: {answer}");
    assert!(answer.contains("[Accounts]") && answer.contains("AdminHost"), "it says what to do: {answer}");
    for path in ["/token/ns", "/limits", "/info", "/pools", "/version", "/accesslog", "/push/ns/q"] {
        let answer = ask("GET", path, page).await;
        assert_eq!(status(&answer), 403, "GET {path} by a page's own name: {answer}");
    }
    let several = "Host: 10.0.0.1\r\nHost: evil.example\r\n";
    assert_eq!(status(&ask("GET", "/token/ns", several).await), 403, "each Host counts");
    let absolute = ask("GET", "http://evil.example/token/ns", "Host: localhost\r\n").await;
    assert_eq!(status(&absolute), 403, "the target counts: {absolute}");
    for host in ["10.0.0.1", "10.0.0.1:7778", "[fd00::1]:7778", "0.0.0.0", "LOCALHOST:7778", "localhost."] {
        let answer = ask("GET", "/token/ns", &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&answer), 200, "an address or localhost, {host}: {answer}");
    }
    let answer =
        ask("POST", "/token/ns?description=x", "Host: 10.0.0.1\r\nOrigin: http://evil.example\r\n").await;
    assert_eq!(status(&answer), 403, "a page of another origin: {answer}");
    // Prometheus and load balancers use any name.
    for path in ["/ping", "/ready", "/metrics"] {
        let answer = ask("GET", path, "Host: queue-1.internal:7778\r\n").await;
        assert_eq!(status(&answer), 200, "GET {path} by a name: {answer}");
        let answer = ask("GET", path, "Host: queue-1:7778\r\nOrigin: http://evil.example\r\n").await;
        assert_eq!(status(&answer), 403, "GET {path} by a page of another origin: {answer}");
    }
    let answer = raw(admin, b"GET /token/ns HTTP/1.0\r\n\r\n").await;
    assert_eq!(status(&answer), 200, "a program without a Host: {answer}");
    assert!(!answer.contains("evil"), "nothing was made: {answer}");
}

/// A page knows no password, so with accounts any name may resolve to a port beyond loopback. On loopback the Host is
/// checked anyway.
#[tokio::test]
async fn with_accounts_an_admin_port_beyond_loopback_takes_any_name() {
    let accounts = "Accounts = { ann = 'secret' }\n";
    let request =
        b"GET /token/ns HTTP/1.1\r\nHost: queue.example\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n\
                    Connection: close\r\n\r\n";
    let (_server, admin) = beyond_this_machine(accounts).await;
    let answer = raw(admin, request).await;
    assert_eq!(status(&answer), 200, "{answer}");
    let store = Store::disk();
    let loopback = TestServer::start(&format!("{accounts}{}", store.toml()), store).await;
    let answer = raw(loopback.admin_addr, request).await;
    assert_eq!(status(&answer), 403, "{answer}");
    for path in ["/ping", "/ready", "/metrics"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: queue.example\r\nConnection: close\r\n\r\n");
        let answer = raw(loopback.admin_addr, request.as_bytes()).await;
        assert_eq!(status(&answer), 403, "GET {path} on loopback: {answer}");
    }
}

/// Guards against an `<img>` that consumes a job, and a form that publishes one.
#[tokio::test]
async fn a_web_page_cannot_consume_or_change_jobs() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let id = server.put(&token, "/api/ns/q", "x").await.expect(201).job_id();
    let changes = [
        ("GET", "/api/ns/q".to_owned()),
        ("GET", "/api/ns/q,other".to_owned()),
        ("PUT", "/api/ns/q".to_owned()),
        ("PUT", "/api/ns/q/bulk".to_owned()),
        ("PUT", format!("/api/ns/q/job/{id}")),
        ("DELETE", format!("/api/ns/q/job/{id}")),
        ("DELETE", "/api/ns/q".to_owned()),
        ("PUT", "/api/ns/q/deadletter".to_owned()),
        ("DELETE", "/api/ns/q/deadletter".to_owned()),
    ];
    for (name, value) in OTHER_SITES {
        for (method, path) in &changes {
            let path = format!("{path}?token={token}");
            let answer = send(server.api(method, &path, "").header(name, value).body("[1]")).await;
            assert_eq!(answer.status, 403, "{method} {path} with {name}: {value}: {answer:?}");
        }
        // A request that changes nothing is answered, and the page cannot read the reply.
        let look = async |path: String| send(server.api("GET", &path, &token).header(name, value)).await;
        for path in ["/api/ns/q/size".to_owned(), "/api/ns/q/peek".to_owned(), format!("/api/ns/q/job/{id}")]
        {
            look(path).await.expect(200);
        }
    }
    let behind_balancer =
        format!("GET /api/ns/q?token={token} HTTP/1.1\r\nHost: queue.example\r\nConnection: close\r\n\r\n");
    let answer = raw(server.api_addr, behind_balancer.as_bytes()).await;
    assert!(status(&answer) == 200 && answer.contains(&id), "the job is untouched, under any Host: {answer}");
}

/// Guards against a web page whose name resolves to a developer's machine, with a server that checks no token.
#[tokio::test]
async fn without_tokens_a_port_of_this_machine_alone_takes_no_other_name() {
    for (host, other) in [("127.0.0.1", 403), ("0.0.0.0", 404)] {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let mut process = Process::start(dir.path(), &["-sv"], &[("DORMOUSE_HOST", host)]);
        let port =
            process.address("api").rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let addr: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
        for (name, want) in [("evil.example", other), ("localhost", 404), ("127.0.0.1", 404)] {
            let request =
                format!("GET /api/ns/q HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n");
            let answer = raw(addr, request.as_bytes()).await;
            assert_eq!(status(&answer), want, "-sv, Host = {host}, asked as {name}: {answer}");
        }
    }
}

/// Starts a server with the account `ann:secret`.
async fn with_account() -> TestServer {
    let store = Store::disk();
    TestServer::start(&format!("Accounts = {{ ann = 'secret' }}\n{}", store.toml()), store).await
}

async fn log_in(server: &TestServer, authorization: &str) -> Response {
    send(server.admin("GET", "/token/ns").header("Authorization", authorization)).await
}

#[tokio::test]
async fn the_scheme_of_a_login_is_understood_in_any_case() {
    let server = with_account().await;
    for scheme in ["Basic", "basic", "BASIC", "bAsIc"] {
        assert_eq!(log_in(&server, &format!("{scheme} YW5uOnNlY3JldA==")).await.status, 200, "{scheme}");
    }
    for bad in ["Basicx YW5uOnNlY3JldA==", "YW5uOnNlY3JldA==", "basic", "basic YW5uOg=="] {
        assert_eq!(log_in(&server, bad).await.status, 401, "{bad}");
    }
}

/// Guards against guessing passwords as fast as the server can compare them.
#[tokio::test]
async fn failed_logins_are_slowed() {
    let server = with_account().await;
    let mut refused = 0;
    for _ in 0..300 {
        let answer = log_in(&server, "Basic YW5uOndyb25n").await;
        if answer.status == 429 {
            assert!(!answer.header("retry-after").is_empty(), "it says when to come back: {answer:?}");
            refused += 1;
            if refused == 20 {
                break;
            }
        } else {
            assert_eq!(answer.status, 401, "{answer:?}");
        }
    }
    assert_eq!(refused, 20, "refused without a look at the password, of 300 guesses");
    // Neither a correct password nor a missing one counts as a guess.
    let server = with_account().await;
    for _ in 0..300 {
        assert_eq!(log_in(&server, "Basic YW5uOnNlY3JldA==").await.status, 200, "the right password");
        send(server.admin("GET", "/token/ns")).await.expect(401);
    }
}
