//! Common replies of all operations: each operation of both documents is called, by its example, while the server
//! starts, during an outage of its store, without permission, and with bodies that are too large or stall. Each reply
//! is checked against the documents, like all others. Also lists the documented statuses that no test sees.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Url};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::until_status;
use crate::openapi::{Example, Made, example, made, operations};
use crate::support::client::{Response, send};
use crate::support::held::{self, ADMIN, Document, PUBLIC};
use crate::support::process::Process;
use crate::support::redis_server::{RedisServer, free_port};
use crate::support::servers::{Store, TestServer, redis_toml};

/// An operation that is called by its example.
struct Asked {
    document: &'static Document,
    port: SocketAddr,
    operation: &'static Value,
    example: Example,
}

impl Asked {
    fn request(&self, token: &str) -> RequestBuilder {
        self.example.to(self.port, if self.document.name == "public" { token } else { "" })
    }

    fn id(&self) -> &'static str {
        self.operation["operationId"].as_str().expect("an operationId")
    }

    fn has(&self, status: u16) -> bool {
        self.operation["responses"].get(status.to_string()).is_some()
    }

    fn name(&self) -> String {
        format!("{} {} {}", self.document.name, self.example.method, self.example.path)
    }
}

/// Returns all operations of these ports, public and admin.
fn all(ports: [SocketAddr; 2], made: &Made) -> Vec<Asked> {
    let of = |document: &'static Document, port| {
        operations(document).map(move |(path, method, operation)| {
            let example = example(document, (path, method, operation), made);
            Asked { document, port, operation, example }
        })
    };
    of(&PUBLIC, ports[0]).chain(of(&ADMIN, ports[1])).collect()
}

fn ports(server: &TestServer) -> [SocketAddr; 2] {
    [server.api_addr, server.admin_addr]
}

/// Returns names of objects that need not exist.
fn somewhat() -> Made {
    Made {
        job_id: "01M80D5J4VCPC2AJTPM8000000".to_owned(),
        receipt: "AAEAAAAAAAMAAg".to_owned(),
        token: "01M80D5J4VCPC2AJTPM8000000".to_owned(),
        namespace: "ns".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_says_so_to_every_operation() {
    let (dir, mut redis) = (TempDir::new().expect("a temporary directory"), RedisServer::start());
    redis.kill();
    let toml = format!("WaitForStore = 60\n{}", redis_toml(&redis));
    std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    let ports = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let [public, admin] = ports.map(|port| port.port().to_string());
    let env = [("DORMOUSE_PORT", &*public), ("DORMOUSE_ADMIN_PORT", &*admin)];
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &env);
    process.line_with("waiting for a store");
    held::serves(ports[0], ports[1]);
    for asked in all(ports, &somewhat()) {
        let answer = send(asked.request("t")).await;
        let expected = if asked.example.path == "/ping" { 200 } else { 503 };
        assert_eq!(answer.status, expected, "{}: {answer:?}", asked.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_by_every_operation_that_asks_who_they_are() {
    let store = Store::disk();
    let server =
        TestServer::start(&format!("{}[Accounts]\noperator = 'secret'\n", store.toml()), store).await;
    let mut tried = 0;
    for asked in all(ports(&server), &somewhat()).iter().filter(|asked| asked.has(401)) {
        let answer = send(asked.request("nobody-knows-this-token")).await;
        assert_eq!(answer.status, 401, "{}: {answer:?}", asked.name());
        tried += 1;
    }
    assert!(tried > 90, "only {tried} operations ask");
    // Wrong passwords, until the address is delayed.
    let guess = |asked: &Asked| asked.request("").basic_auth("operator", Some("guess"));
    let admin: Vec<_> = all(ports(&server), &somewhat())
        .into_iter()
        .filter(|asked| asked.document.name == "admin" && asked.has(429))
        .collect();
    for _ in 0..100 {
        if send(guess(&admin[0])).await.status == 429 {
            break;
        }
    }
    for asked in &admin {
        // One more guess is checked per second.
        until_status(429, async || send(guess(asked)).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_page_of_another_site_sends_is_refused_by_every_operation() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut process = Process::start(dir.path(), &["-sv"], &[]);
    let ports = ["api", "admin"].map(|port| process.address(port).parse().expect("an address"));
    held::serves(ports[0], ports[1]);
    for asked in all(ports, &somewhat()) {
        // A DNS name that resolves to this server. All ports are on loopback.
        let answer = send(asked.request("").header("Host", "evil.example")).await;
        assert_eq!(answer.status, 403, "{}: {answer:?}", asked.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_away_every_operation_that_needs_it_says_500() {
    let mut redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let made = Made { token: server.token("ns").await, ..somewhat() };
    redis.kill();
    let all = all(ports(&server), &made);
    for asked in &all {
        let answer = send(asked.request(&made.token)).await;
        let without =
            WITHOUT_STORE.iter().find(|(_, port, id)| (*port, *id) == (asked.document.name, asked.id()));
        let expected = without.map_or(500, |(status, ..)| *status);
        assert_eq!(answer.status, expected, "{}: {answer:?}", asked.name());
    }
}

/// Replies of operations that call no store, or not before validation, during an outage of the store.
const WITHOUT_STORE: [(u16, &str, &str); 28] = [
    (200, "admin", "accessLog"),
    (200, "admin", "setAccessLog"),
    (200, "admin", "previewSchedule"),
    (200, "admin", "bulkActions"),
    (200, "admin", "deadQueues"),
    (200, "admin", "history"),
    (200, "admin", "metrics"),
    (200, "admin", "openapi"),
    (200, "admin", "openapiHead"),
    (200, "admin", "ping"),
    (200, "admin", "pingHead"),
    (200, "admin", "pools"),
    (200, "admin", "queues"),
    (200, "admin", "server"),
    (200, "admin", "servers"),
    (200, "admin", "version"),
    (400, "admin", "backup"),
    (400, "admin", "cluster"),
    (404, "admin", "bulkAction"),
    (404, "admin", "stopBulk"),
    (503, "admin", "ready"),
    (503, "admin", "readyHead"),
    (200, "public", "openapi"),
    (200, "public", "openapiHead"),
    (200, "public", "ping"),
    (200, "public", "pingHead"),
    (503, "public", "ready"),
    (503, "public", "readyHead"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_pools_that_cannot_be_are_refused_by_every_operation() {
    let server = TestServer::on_disk().await;
    let made = Made { namespace: "%ff".to_owned(), ..somewhat() };
    let mut tried = 0;
    for mut asked in all(ports(&server), &made) {
        let path = &mut asked.example.path;
        *path = path.replace("/bulk/01M7Z03E2K3DBHA8XJV8MX3ZSQ", "/bulk/%ff");
        if path.contains("%ff") && asked.has(400) {
            let answer = send(asked.request("t")).await;
            assert_eq!(answer.status, 400, "{}: {answer:?}", asked.name());
            tried += 1;
        }
    }
    assert!(tried > 80, "only {tried} operations have names in their paths");
    for mut asked in all(ports(&server), &somewhat()) {
        if asked.example.path.starts_with("/api/") && asked.has(404) {
            if asked.document.name == "admin" {
                let and = if asked.example.path.contains('?') { '&' } else { '?' };
                asked.example.path += &format!("{and}pool=nowhere");
            }
            let answer = send(asked.request("nowhere:t")).await;
            assert_eq!(answer.status, 404, "{}: {answer:?}", asked.name());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_token_may_no_more_and_keys_and_conditions_are_looked_at_by_every_operation() {
    let server = TestServer::on_disk().await;
    let mut wrong = String::new();
    for (place, asked) in all(ports(&server), &somewhat()).iter().enumerate() {
        let (port, id) = (asked.document.name, asked.id());
        let mut operate = async |status: u16, change: &dyn Fn(RequestBuilder) -> RequestBuilder| {
            let made = made(&server, port, &format!("{id}{status}"), id).await;
            let mut again = all(ports(&server), &made).swap_remove(place);
            if (status, id) == (412, "setSchedules") {
                // The condition is in the body.
                let set = r#"{"schedules":[{"name":"s","queue":"q","every":60,"text":"x","revision":9}]}"#;
                again.example.body = Some(("application/json".to_owned(), set.to_owned()));
            }
            let api = |method: &str, path: &str| {
                server.api(method, &format!("/api/{}/{path}", made.namespace), &made.token)
            };
            if status == 429 {
                let path = format!("/token/{}/{}/limit", made.namespace, made.token);
                let limit = r#"{"read":1,"write":1,"interval":600}"#;
                send(server.admin("PUT", &path).body(limit)).await.expect(200);
                // The limit applies a moment later. A consume without a job is not counted.
                until_status(429, async || send(api("PUT", "other").body("x")).await).await;
                until_status(429, async || send(api("GET", "other")).await).await;
            }
            if (status, id) == (429, "republish") {
                // Counts only if there is no such job.
                again.example.path = again.example.path.replace(&made.job_id, &somewhat().job_id);
            }
            if status == 422 {
                let first = api("POST", "mail/jobs").header("Idempotency-Key", "k").body("other");
                send(first).await.expect(201);
            }
            let answer = send(change(again.request(&made.token))).await;
            if answer.status != status {
                wrong += &format!("{status} was expected of {}: {answer:?}\n", again.name());
            }
        };
        if port == "public" && asked.has(429) {
            operate(429, &|request| request).await;
        }
        if asked.has(422) {
            operate(422, &|request| request.header("Idempotency-Key", "k")).await;
        }
        if asked.has(412) {
            operate(412, &|request| request.header("If-Match", "\"999\"")).await;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The conversations of the public port, authorized by an account.
#[tokio::test]
async fn an_operator_is_told_what_is_in_the_way() {
    let server = TestServer::on_disk().await;
    let jobs = "/api/ns/q/jobs?key=k&on_conflict=fail";
    let job = send(server.admin("POST", jobs).body("x")).await.expect(201).job_id();
    send(server.admin("POST", jobs).body("x")).await.expect(409);
    let job = format!("/api/ns/q/job/{job}");
    send(server.admin("POST", &format!("{job}/respawn"))).await.expect(409);
    // A receipt that was never issued.
    send(server.admin("DELETE", &format!("{job}?receipt={}", somewhat().receipt))).await.expect(409);
    let schedule = r#"{"queue":"q","every":60,"text":"x"}"#;
    for status in [201, 200] {
        send(server.admin("PUT", "/api/ns/_schedules/s").body(schedule)).await.expect(status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_disk_is_almost_full_every_operation_that_stores_says_507() {
    let dir = TempDir::new().expect("a temporary directory");
    let toml = format!("[Pool.default]\nPath = {:?}\n", dir.path().join("jobs"));
    let before = TestServer::start(&toml, ()).await;
    let mut all_made = Vec::new();
    for (place, asked) in all(ports(&before), &somewhat()).iter().enumerate() {
        if asked.has(507) {
            all_made.push((place, made(&before, asked.document.name, asked.id(), asked.id()).await));
        }
    }
    before.stop().await;
    let server = TestServer::start(&format!("{toml}MinFreeDisk = 1000000000\n"), dir).await;
    assert!(all_made.len() > 20, "only {} operations store", all_made.len());
    let mut wrong = String::new();
    for (place, made) in all_made {
        let asked = all(ports(&server), &made).swap_remove(place);
        let answer = send(asked.request(&made.token)).await;
        if answer.status != 507 {
            wrong += &format!("507 was expected of {}: {answer:?}\n", asked.name());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Sends a head, and `body` of the `length` that it announces, and checks the response against the document.
async fn begin(asked: &Asked, token: &str, length: usize, body: &str) -> Response {
    let Example { method, path, .. } = &asked.example;
    let of_type = asked.example.body.as_ref().map_or("text/plain", |(of_type, _)| of_type);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nX-Token: {token}\r\nContent-Type: {of_type}\r\nContent-Length: {length}\r\n\r\n{body}",
        asked.port
    );
    let mut stream = TcpStream::connect(asked.port).await.expect("the port takes connections");
    stream.write_all(head.as_bytes()).await.expect("the server reads");
    let mut text = Vec::new();
    // The rest of the body never arrives, so the server closes the connection after its reply.
    let _ = stream.read_to_end(&mut text).await;
    let text = String::from_utf8(text).expect("an answer is text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let headers: HeaderMap = lines
        .filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let name: HeaderName = name.parse().ok()?;
            Some((name, HeaderValue::from_str(value).ok()?))
        })
        .collect();
    let json = serde_json::from_str(body).unwrap_or_default();
    let response = Response { status: status.unwrap_or_default(), headers, text: body.to_owned(), json };
    let method: Method = method.parse().expect("a method");
    let url: Url = format!("http://{}{path}", asked.port).parse().expect("a URL");
    held::hold(&method, &url, &response);
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_too_large_or_stop_coming_are_refused_by_every_operation() {
    let server = TestServer::on_disk().await;
    let made = Made { token: server.token("ns").await, ..somewhat() };
    let all: Vec<_> = all(ports(&server), &made).into_iter().map(Arc::new).collect();
    // A stalled body is reported after half a minute, here on all connections at once.
    for (status, length, body) in [(413, 1 << 30, ""), (408, 10, "1")] {
        let begun: Vec<_> = all
            .iter()
            .filter(|asked| asked.has(status))
            .map(|asked| {
                let (asked, token) = (asked.clone(), made.token.clone());
                tokio::spawn(async move {
                    let answer = begin(&asked, &token, length, body).await;
                    assert_eq!(answer.status, status, "{}: {answer:?}", asked.name());
                })
            })
            .collect();
        assert!(begun.len() > 20, "only {} operations have {status}", begun.len());
        for asked in begun {
            asked.await.expect("no panic");
        }
    }
}

/// Statuses that no test sees, with the reason.
const UNSEEN: &[(&str, u16, &[&str])] = &[
    (
        "another request with its key has to be under way: the tests of publishes wait for that",
        409,
        &["public put /api/{namespace}/{queue}/bulk", "public put /api/{namespace}/{queue}/job/{job_id}"],
    ),
    (
        "there have to be 10,000 schedules, or a job of the schedule has to live: seen on the public port",
        409,
        &[
            "admin put /api/{namespace}/_schedules",
            "admin put /api/{namespace}/_schedules/{name}",
            "admin post /api/{namespace}/_schedules/{name}/run",
        ],
    ),
    (
        "too many queues of the namespace have to be paused: seen on the public port",
        409,
        &["admin post /api/{namespace}/{queue}/pause"],
    ),
    ("two tokens of a namespace would have to have one hash", 409, &["admin post /token/{namespace}/revoke"]),
    (
        "push settings encrypted with an unknown key: tests/push/secrets.rs calls all five",
        409,
        &[
            "admin put /push/{namespace}/{queue}",
            "admin post /push/{namespace}/{queue}/pause",
            "admin post /push/{namespace}/{queue}/resume",
            "admin post /push/{namespace}/{queue}/secret",
            "admin post /push/{namespace}/{queue}/test",
        ],
    ),
    ("another backup has to be under way", 409, &["admin get /backup"]),
    (
        "it asks no store, or none that fails so: only a fault of the server itself says it",
        500,
        &[
            "admin get /bulk",
            "admin get /bulk/{id}",
            "admin delete /bulk/{id}",
            "admin get /servers",
            "admin get /server",
            "admin get /api/{namespace}/_schedules/_preview",
            "admin get /cluster",
            "admin get /backup",
        ],
    ),
];

/// Returns the documented statuses, by operation, that are not in `seen`.
fn unseen(seen: &BTreeSet<&str>) -> BTreeMap<String, Vec<u16>> {
    let mut unseen: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    for document in [&PUBLIC, &ADMIN] {
        for (path, method, operation) in operations(document) {
            let name = format!("{} {method} {path}", document.name);
            let statuses = operation["responses"].as_object().into_iter().flat_map(|all| all.keys());
            for status in statuses.filter(|status| !seen.contains(&*format!("{name} {status}"))) {
                let status = status.parse().expect("a status is a number");
                unseen.entry(name.clone()).or_default().push(status);
            }
        }
    }
    unseen
}

/// `tests/run` runs this test after all others. Manually: run all tests with `TESTS_SEEN=<file>`, then this test.
#[test]
#[ignore = "it reads what all other tests have seen, from the file that TESTS_SEEN names"]
fn each_documented_status_is_seen_or_listed_with_its_reason() {
    let file = std::env::var(held::SEEN).expect("the file that tests have written");
    let lines = std::fs::read_to_string(file).expect("it can be read");
    let seen: BTreeSet<&str> = lines.lines().collect();
    assert!(seen.len() > 300, "only {} different answers: did all tests write?", seen.len());
    let mut unlisted = String::new();
    for (operation, statuses) in unseen(&seen) {
        for status in statuses {
            if !UNSEEN.iter().any(|(_, of, names)| *of == status && names.contains(&&*operation)) {
                unlisted += &format!("{operation} {status}\n");
            }
        }
    }
    assert!(unlisted.is_empty(), "no test sees these, and UNSEEN does not say why:\n{unlisted}");
    // A listed status may still be seen, on a machine that stalls.
    let all: BTreeSet<_> = unseen(&BTreeSet::new())
        .into_iter()
        .flat_map(|(operation, statuses)| statuses.into_iter().map(move |status| (operation.clone(), status)))
        .collect();
    let known = UNSEEN
        .iter()
        .flat_map(|(_, status, names)| names.iter().map(move |name| (name.to_string(), *status)));
    let gone: Vec<_> = known.filter(|known| !all.contains(known)).collect();
    assert!(gone.is_empty(), "UNSEEN lists what no document has: {gone:?}");
}
