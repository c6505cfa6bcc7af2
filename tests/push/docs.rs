//! Receivers and procedures in the documents, as printed: each receiver is run, if its language is installed, and
//! must verify signatures.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::pushed::Pushed;
use crate::receiver::nobody;
use crate::support::client::{request, send};
use crate::support::redis_server::free_port;
use crate::support::servers::Store;
use crate::support::wait::TIMEOUT;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tempfile::TempDir;

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Reads a document of this repository.
fn read(document: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{document}: {e}"))
}

/// Returns the code blocks of a language, in document order.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let (text, begin) = (read(document), format!("\n```{language}\n"));
    let blocks = text.split(&begin).skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.map(|block| format!("{block}\n")).collect()
}

/// A running receiver of the documents. Stops on drop.
struct Running {
    child: Child,
    addr: SocketAddr,
    _dir: TempDir,
}

impl Running {
    /// Starts the first block of its language. Returns `None`, and prints a line, if this machine cannot run it.
    fn start(language: &str, secret: &str) -> Option<Running> {
        let all = blocks("docs/push.md", language);
        let code = all.first().unwrap_or_else(|| panic!("docs/push.md has a receiver in {language}"));
        let (dir, addr) =
            (TempDir::new().expect("a temporary directory"), SocketAddr::from(([127, 0, 0, 1], free_port())));
        let at = addr.to_string();
        let (name, program, args): (_, _, Vec<&str>) = match language {
            "python" => ("receiver.py", "python3", vec!["receiver.py"]),
            "js" => ("receiver.js", "node", vec!["receiver.js"]),
            "php" => ("receiver.php", "php", vec!["-S", &at, "receiver.php"]),
            "go" => ("receiver.go", "./receiver", vec![]),
            other => panic!("no way to run {other}"),
        };
        std::fs::write(dir.path().join(name), code).expect("it can be written");
        if language == "go" {
            let mut build = Command::new("go");
            build.args(["build", "-o", "receiver", name]).current_dir(dir.path());
            match build.output() {
                Err(why) => return skipped(language, &why),
                Ok(ended) => {
                    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
                }
            }
        }
        let mut command = Command::new(program);
        command.args(args).current_dir(dir.path()).stdin(Stdio::null());
        command.env("SECRET", secret).env("PORT", addr.port().to_string());
        let child = match command.spawn() {
            Ok(child) => child,
            Err(why) => return skipped(language, &why),
        };
        let mut running = Running { child, addr, _dir: dir };
        let began = Instant::now();
        while std::net::TcpStream::connect(addr).is_err() {
            let ended = running.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "the receiver in {language} ended: {ended:?}");
            assert!(began.elapsed() < TIMEOUT, "the receiver in {language} does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Some(running)
    }

    /// Returns its status for a request signed with this secret, at this offset from now.
    async fn answers(&self, secret: &str, seconds: i64, signed: &str, body: &str) -> u16 {
        let stamp = jiff::Timestamp::now().as_second() + seconds;
        let webhook = Webhook::new(secret).expect("a secret");
        let signature = webhook.sign("01JOB", stamp, signed.as_bytes()).expect("text");
        self.answers_to(
            &[
                ("webhook-id", "01JOB"),
                ("webhook-timestamp", &stamp.to_string()),
                ("webhook-signature", &signature),
            ],
            body,
        )
        .await
    }

    async fn answers_to(&self, headers: &[(&str, &str)], body: &str) -> u16 {
        let post = request("POST", &format!("http://{}/jobs", self.addr), "").body(body.to_owned());
        let post = headers.iter().fold(post, |post, (name, value)| post.header(*name, *value));
        send(post).await.status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn skipped(language: &str, why: &std::io::Error) -> Option<Running> {
    eprintln!("skipped: {language} is not on this machine: {why}");
    None
}

/// Checks that it accepts only signed requests, including a server's.
async fn verifies_what_it_should(language: &str) {
    let Some(receiver) = Running::start(language, SECRET) else { return };
    let other = format!("whsec_{}=", "A".repeat(43));
    let body = "{\"to\": \"änn\"}";
    assert_eq!(receiver.answers(SECRET, 0, body, body).await, 200, "what is signed");
    assert_eq!(receiver.answers(SECRET, 0, "", "").await, 200, "no body");
    assert_eq!(receiver.answers(&other, 0, body, body).await, 401, "another secret");
    assert_eq!(receiver.answers(SECRET, 0, body, "{}").await, 401, "another body");
    assert_eq!(receiver.answers(SECRET, -3600, body, body).await, 401, "an hour old");
    assert_eq!(receiver.answers(SECRET, 3600, body, body).await, 401, "of the future");
    assert_eq!(receiver.answers_to(&[], body).await, 401, "not signed");
    let stamp = jiff::Timestamp::now().as_second();
    let sign = |secret: &str, at| {
        Webhook::new(secret).and_then(|w| w.sign("01JOB", at, body.as_bytes())).expect("text")
    };
    for (what, stamp_sent, signature, status) in [
        (
            "two signatures",
            stamp.to_string(),
            format!("{} {}", sign(&other, stamp), sign(SECRET, stamp)),
            200,
        ),
        ("two bad ones", stamp.to_string(), format!("{} v1,x", sign(&other, stamp)), 401),
        ("another version", stamp.to_string(), sign(SECRET, stamp).replace("v1,", "v2,"), 401),
        ("another time", (stamp - 1).to_string(), sign(SECRET, stamp), 401),
        ("no time", String::new(), sign(SECRET, stamp), 401),
        ("no signature", stamp.to_string(), String::new(), 401),
    ] {
        let headers = [
            ("webhook-id", "01JOB"),
            ("webhook-timestamp", &stamp_sent[..]),
            ("webhook-signature", &signature),
        ];
        assert_eq!(receiver.answers_to(&headers, body).await, status, "{what}");
    }
    drop(receiver);

    let pushed = Pushed::on(Store::disk()).await;
    let url = |addr: SocketAddr| json!({"url": format!("http://{addr}/jobs"), "retry": [0]});
    let set = pushed.set("q", url(nobody())).await;
    let secret = set["secret"].as_str().unwrap_or_else(|| panic!("a secret was expected: {set}"));
    let Some(receiver) = Running::start(language, secret) else { return };
    pushed.set("q", url(receiver.addr)).await;
    // A body that is not text, an empty one, and a plain one.
    for body in [vec![0, 255, 13, 10, 128], Vec::new(), b"plain".to_vec()] {
        let id = pushed.api("PUT", "/api/ns/q?tries=1", body).await.expect(201).job_id();
        pushed.until_gone("q", &id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_python_verifies() {
    verifies_what_it_should("python").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_go_verifies() {
    verifies_what_it_should("go").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_node_verifies() {
    verifies_what_it_should("js").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_php_verifies() {
    verifies_what_it_should("php").await;
}

/// The setting in the document is accepted as printed, and the defaults in its table are correct.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_says_the_defaults() {
    let pushed = Pushed::on(Store::disk()).await;
    for block in blocks("docs/push.md", "json") {
        let setting: Value = serde_json::from_str(&block).unwrap_or_else(|e| panic!("{e}: {block}"));
        pushed.set("shown", setting).await;
    }
    let set = pushed.set("q", json!({"url": "https://shop.example/jobs"})).await;
    let (text, mut seen) = (read("docs/push.md"), 0);
    for field in ["method", "timeout", "concurrency", "rate", "per", "retry", "format"] {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{field}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/push.md has no row of {field}"));
        let shown = row.split('|').nth(2).unwrap_or_default().trim().trim_matches('`');
        let default: Value = serde_json::from_str(shown).unwrap_or_else(|_| json!(shown));
        assert_eq!(set[field], default, "the default of {field}; left: the server, right: {row}");
        seen += 1;
    }
    assert_eq!(seen, 7, "every field with a default");
}
