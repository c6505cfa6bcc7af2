//! The Redis users in docs/operations.md and docs/cluster.md, each with the fewest rights that Dormouse needs. All
//! verbs must work with them, without any refusal by Redis.

use std::time::{Duration, Instant};

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;
use crate::support::wait::TIMEOUT;

/// Returns the lines `ACL SETUSER ..` of a document.
fn lines(document: &str) -> Vec<String> {
    let docs = std::fs::read_to_string(document).expect("a document");
    docs.lines().filter(|line| line.starts_with("ACL SETUSER ")).map(str::to_owned).collect()
}

/// Returns the text of all scripts, since tests do not reach every branch.
fn scripts() -> String {
    let files = std::fs::read_dir("lua").expect("scripts").flatten().map(|entry| entry.path());
    let texts =
        files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).expect("a script"));
    texts.collect()
}

/// A server's ports.
struct Ports<'a> {
    redises: Vec<&'a RedisServer>,
    is_cluster: bool,
    api: String,
    admin: String,
    client: Client,
}

impl Ports<'_> {
    /// Sends a request, and returns status and JSON. A 5xx shows a missing right; a cluster may also be slow, so there it
    /// is sent again unless a right is missing.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: &str,
        headers: &[(&'static str, &str)],
    ) -> (u16, Value) {
        let port = if path.starts_with("/api/") { &self.api } else { &self.admin };
        let method: Method = method.parse().expect("a method");
        let began = Instant::now();
        loop {
            let mut request =
                self.client.request(method.clone(), format!("http://{port}{path}")).body(body.to_owned());
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let answer = request.send().await.unwrap_or_else(|e| panic!("{method} {path}: {e}"));
            let status = answer.status().as_u16();
            let text = answer.text().await.expect("a body");
            if status < 500 {
                return (status, serde_json::from_str(&text).unwrap_or_default());
            }
            let refused = self.refused();
            let may_be_slow = self.is_cluster && refused.is_empty() && began.elapsed() < TIMEOUT;
            assert!(may_be_slow, "{method} {path}: {status} {text}; refused: {refused:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns the commands and keys that the Redis servers have refused.
    fn refused(&self) -> Vec<String> {
        let log = |of: &&RedisServer| {
            as_operator::<Vec<std::collections::HashMap<String, redis::Value>>>(of, &["ACL", "LOG"])
        };
        let entries = self.redises.iter().flat_map(log);
        entries.map(|entry| format!("{:?} {:?}", entry.get("reason"), entry.get("object"))).collect()
    }

    async fn ok(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, json) = self.ask(method, path, body, &[]).await;
        assert!(status < 300, "{method} {path}: {status} {json}");
        json
    }

    async fn publish(&self, query: &str) -> String {
        let json = self.ok("PUT", &format!("/api/ns/q?{query}"), "a job").await;
        json["job_id"].as_str().expect("an id").to_owned()
    }

    /// Consumes a job. Returns its path and its receipt.
    async fn consume(&self) -> (String, String) {
        let job = self.ok("GET", "/api/ns/q?timeout=5&ttr=30&receipt=1", "").await;
        let path = format!("/api/ns/q/job/{}", job["job_id"].as_str().expect("an id"));
        (path, job["receipt"].as_str().unwrap_or_default().to_owned())
    }

    async fn all_verbs(&self) {
        self.ok("POST", "/token/ns?description=d", "").await;
        let token = self.ok("POST", "/token/ns?description=other", "").await;
        let token = token["token"].as_str().expect("a token").to_owned();
        self.ok("GET", "/token/ns", "").await;
        let limit = format!("/token/ns/{token}/limit");
        for method in ["POST", "PUT", "GET"] {
            self.ok(method, &limit, r#"{"read":100,"write":100,"interval":60}"#).await;
        }
        self.ok("GET", "/limits", "").await;
        for (method, path) in [("PUT", "/api/ns/q"), ("GET", "/api/ns/q"), ("GET", "/api/ns/none?timeout=0")]
        {
            self.ask(method, path, "limited", &[("X-Token", &token)]).await;
        }
        // Publishes of each kind.
        self.publish("delay=1000").await;
        self.publish("delay=0&ttl=100&tries=3").await;
        self.ok("PUT", "/api/ns/q/bulk?delay=0", "[\"a\",\"b\",{\"c\":1}]").await;
        let many: Vec<Value> = (0..64).map(|n| json!({"text": format!("job {n}"), "delay": n % 2})).collect();
        self.ok("POST", "/api/ns/many/jobs/batch", &Value::from(many).to_string()).await;
        self.ask("PUT", "/api/ns/q", "with attributes", &[("Job-Attr-traceparent", "x")]).await;
        for (key, conflict) in [("k", "keep"), ("k", "replace"), ("k", "fail")] {
            self.ask("POST", &format!("/api/ns/q/jobs?key={key}&on_conflict={conflict}&delay=500"), "x", &[])
                .await;
        }
        for _ in 0..2 {
            self.ask("POST", "/api/ns/q/jobs", "x", &[("Idempotency-Key", "once")]).await;
        }
        self.ok("GET", "/api/ns/q/key/k", "").await;
        self.ask("DELETE", "/api/ns/q/key/k", "", &[]).await;
        // Calls that end a delivery.
        for _ in 0..12 {
            self.publish("tries=1").await;
        }
        let (job, receipt) = self.consume().await;
        let touched = self.ok("POST", &format!("{job}/touch?receipt={receipt}"), "").await;
        let receipt = touched["receipt"].as_str().expect("a receipt");
        self.ok("DELETE", &format!("{job}?receipt={receipt}"), "").await;
        let (job, receipt) = self.consume().await;
        self.ask("POST", &format!("{job}/release?receipt={receipt}&delay=1"), "later", &[]).await;
        let (job, receipt) = self.consume().await;
        self.ask("POST", &format!("{job}/release?receipt={receipt}"), "", &[]).await;
        for _ in 0..3 {
            let (job, receipt) = self.consume().await;
            self.ask("POST", &format!("{job}/bury?receipt={receipt}"), "broken", &[]).await;
        }
        let (job, _) = self.consume().await;
        self.ok("DELETE", &job, "").await;
        let (job, _) = self.consume().await;
        self.ask("PUT", &format!("{job}?delay=1&tries=2"), "republished", &[]).await;
        let jobs = self.ok("GET", "/api/ns/q?count=3&ttr=1&timeout=1&receipt=1", "").await;
        let acks: Vec<Value> = jobs
            .as_array()
            .into_iter()
            .flatten()
            .map(|job| json!({"id": job["job_id"], "receipt": job["receipt"]}))
            .collect();
        self.ask("POST", "/api/ns/q/ack", &json!({"jobs": acks}).to_string(), &[]).await;
        self.ask("GET", "/api/ns/q,many?timeout=1&ttr=1&tries=1", "", &[]).await;
        self.ask("GET", "/api/ns/many,q?timeout=1&count=100&ttr=1", "", &[]).await;
        // A disconnecting consumer, whose popped jobs are returned.
        for _ in 0..3 {
            let poll = self.client.get(format!("http://{}/api/ns/empty?timeout=30", self.api));
            let _ = poll.timeout(std::time::Duration::from_millis(50)).send().await;
            self.ok("PUT", "/api/ns/empty", "x").await;
        }
        // Reads.
        for path in [
            "/api/ns",
            "/api/ns/q/peek",
            "/api/ns/q/size",
            "/api/ns/q/deadletter",
            "/api/ns/q/deadletter/size",
        ] {
            self.ask("GET", path, "", &[]).await;
        }
        for state in ["ready", "delayed", "running", "dead"] {
            let page = self.ok("GET", &format!("/api/ns/q/jobs?state={state}&limit=1&data=1"), "").await;
            if let Some(cursor) = page["cursor"].as_str() {
                self.ok("GET", &format!("/api/ns/q/jobs?state={state}&cursor={cursor}"), "").await;
            }
            if let Some(id) = page["jobs"][0]["job_id"].as_str() {
                self.ok("GET", &format!("/api/ns/q/job/{id}?verbose=1"), "").await;
                self.ok("GET", &format!("/api/ns/q/job/{id}"), "").await;
            }
        }
        // Many ttrs end: some jobs die, others are redelivered.
        tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
        let dead = self.ok("GET", "/api/ns/q/jobs?state=dead&limit=1", "").await;
        if let Some(id) = dead["jobs"][0]["job_id"].as_str() {
            self.ok("POST", &format!("/api/ns/q/job/{id}/respawn?delay=1"), "").await;
        }
        let dead = self.ok("GET", "/api/ns/q/jobs?state=dead&limit=1", "").await;
        let ids = json!({"jobs": [dead["jobs"][0]["job_id"], "01AAAAAAAAAAAAAAAAAAAAAAAA"]});
        self.ask("POST", "/api/ns/q/deadletter/respawn?tries=2&ttl=100", &ids.to_string(), &[]).await;
        self.ask("PUT", "/api/ns/q/deadletter?limit=1&ttl=5", "", &[]).await;
        self.ask("DELETE", "/api/ns/q/deadletter?limit=10", "", &[]).await;
        self.ok("POST", "/api/ns/q/pause?for=5", "").await;
        self.ask("GET", "/api/ns/q?timeout=0", "", &[]).await;
        self.ok("GET", "/api/ns", "").await;
        self.ok("POST", "/api/ns/q/resume", "").await;
        // Quotas, and the counting for them.
        self.ok("PUT", "/quota/ns", r#"{"jobs":100000,"bytes":10000000,"queues":100}"#).await;
        self.ok("GET", "/quota/ns", "").await;
        self.publish("tries=2").await;
        self.publish("delay=1").await;
        let (job, _) = self.consume().await;
        self.ok("DELETE", &job, "").await;
        self.ok("PUT", "/api/ns/q/bulk", "[\"a\",\"b\"]").await;
        self.ask("DELETE", "/api/ns/q/deadletter?limit=10", "", &[]).await;
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
        self.ok("DELETE", "/api/ns/many", "").await;
        self.ok("DELETE", "/quota/ns", "").await;
        // Push, and the rest of the admin port.
        let setting = r#"{"url":"http://127.0.0.1:1/jobs"}"#;
        self.ok("PUT", "/push/ns/pushed", setting).await;
        self.ok("PUT", "/api/ns/pushed", "x").await;
        for (method, path) in
            [("GET", ""), ("POST", "/test"), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/secret")]
        {
            self.ok(method, &format!("/push/ns/pushed{path}"), "").await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
        self.ask("DELETE", "/push/ns/pushed", "", &[]).await;
        for path in ["/info", "/metrics", "/ready", "/pools"] {
            self.ask("GET", path, "", &[]).await;
        }
        self.ok("DELETE", &limit, "").await;
        self.ask("DELETE", &format!("/token/ns/{token}"), "", &[]).await;
        self.ok("DELETE", "/api/ns/q", "").await;
    }
}

/// Runs a command as Redis's default user.
fn as_operator<T: redis::FromRedisValue>(redis: &RedisServer, command: &[&str]) -> T {
    let client = redis::Client::open(format!("redis://{}", redis.addr())).expect("an address");
    let mut connection = client.get_connection().expect("it answers");
    let mut call = redis::cmd(command[0]);
    call.arg(&command[1..]).query(&mut connection).expect("it may do all")
}

const LOGIN: &str = "Username = 'dormouse'\nPassword = 'PASSWORD'\n";

#[tokio::test(flavor = "multi_thread")]
async fn the_least_rights_suffice_for_all_verbs() {
    let lines = lines("docs/operations.md");
    let [line] = &lines[..] else { panic!("a line in docs/operations.md: {lines:?}") };
    let (redis, admin) = (RedisServer::start(), RedisServer::start());
    let words: Vec<&str> = line.split_whitespace().collect();
    as_operator::<()>(&redis, &words);
    as_operator::<()>(&admin, &words);
    let toml = format!(
        "PushAllow = ['127.0.0.1']\n[Pool.default]\nAddr = '{}'\nPackAfter = 600\n{LOGIN}[AdminRedis]\nAddr = '{}'\n{LOGIN}",
        redis.addr(),
        admin.addr()
    );
    suffice("a Redis", &toml, vec![&redis, &admin], false, &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_rights_suffice_in_a_cluster() {
    let lines = lines("docs/cluster.md");
    let [line] = &lines[..] else { panic!("a line in docs/cluster.md: {lines:?}") };
    let (cluster, words) = (RedisCluster::start_of(3, 0), line.split_whitespace().collect::<Vec<_>>());
    cluster.servers.iter().for_each(|server| as_operator(server, &words));
    let nodes = cluster.address().addrs;
    let toml = format!(
        "PushAllow = ['127.0.0.1']\n[Pool.default]\nCluster = {nodes:?}\nSpread = ['ns/many']\n{LOGIN}"
    );
    suffice("a cluster", &toml, cluster.servers.iter().collect(), true, &words).await;
}

/// Checks that a server with this configuration can do everything, and that the user has no right that it does not
/// need.
async fn suffice(place: &str, toml: &str, redises: Vec<&RedisServer>, is_cluster: bool, words: &[&str]) {
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml", "-sv"], &[]);
    let (api, admin) = (process.address("api"), process.address("admin"));
    let ports = Ports { redises, is_cluster, api, admin, client: Client::new() };
    ports.all_verbs().await;
    process.signal("TERM");
    let said = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic").said;
    assert_eq!(ports.refused(), [""; 0], "{place}: refused commands\n{said}");
    assert!(!said.contains("NOPERM"), "{place}:\n{said}");
    // The list is minimal: commands that the server never sends are not in it.
    let stats = ports.redises.iter().map(|of| as_operator::<String>(of, &["INFO", "commandstats"]));
    let stats: Vec<String> = stats.collect();
    let used = |command: &str| stats.iter().any(|stats| stats.contains(&format!("cmdstat_{command}:")));
    let unused = words.iter().filter_map(|word| word.strip_prefix('+')).filter(|word| !used(word));
    let scripts = scripts();
    let by_nobody: Vec<&str> =
        unused.filter(|word| !scripts.contains(&format!("'{}'", word.to_uppercase()))).collect();
    assert!(by_nobody.is_empty(), "{place}: rights that nothing uses: {by_nobody:?}");
}
