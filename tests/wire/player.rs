//! Replays recorded conversations with lmstfy against a server. The recordings (tests/recorded/lmstfy.json) are replies
//! of lmstfy 725f59e on Redis 7.0; where `differs` gives a reason, the reply is ours instead.
//!
//! A scenario is a list of steps in a fresh namespace with a fresh token. Compared are the status, the Content-Type,
//! the presence of an X-Request-ID, and the body as a JSON value. Job ids and tokens are compared by order of first
//! appearance, `elapsed_ms` by type, `ttl` within 3 seconds and the time since the scenario began.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::client::send;
use crate::support::servers::TestServer;

/// Steps depend on times, such as a ttr of five seconds. A small machine would be too busy if all scenarios ran at
/// once.
const AT_ONCE: u32 = 8;
/// How much longer than in the recording a reply may take.
const SLOWER: f64 = 4.0;
/// A scenario, a recorded parameter, and what is sent instead in all of its steps: the recorded times leave a busy
/// machine only a second or two for the next steps. The replies are the same, except for a ttl.
const LONGER: [(&str, &str, &str); 12] = [
    ("publish-delay", "delay=2", "delay=6"),
    ("publish-delay", "timeout=4", "timeout=20"),
    ("ttr-redelivery", "ttr=1", "ttr=5"),
    ("ttr-redelivery", "timeout=4", "timeout=20"),
    ("destroy", "delay=2", "delay=6"),
    ("destroy", "timeout=4", "timeout=20"),
    ("bulk-delay-and-tries", "delay=1", "delay=6"),
    ("bulk-delay-and-tries", "timeout=4", "timeout=20"),
    // Consumers that wait for longer than their reply may take.
    ("consume-multi-blocking", "timeout=5", "timeout=20"),
    ("consume-blocking", "timeout=5", "timeout=20"),
    ("consume-batch-blocking", "timeout=5", "timeout=20"),
    ("fire-and-wait", "timeout=5", "timeout=20"),
];

/// Returns every scenario, with longer times.
pub fn scenarios() -> Vec<Value> {
    let text = include_str!("../recorded/lmstfy.json");
    let mut scenarios: Vec<Value> = serde_json::from_str(text).expect("the recordings are a JSON array");
    for (name, recorded, longer) in LONGER {
        let scenario = scenarios.iter_mut().find(|scenario| scenario["name"] == name);
        let steps = scenario.and_then(|scenario| scenario["steps"].as_array_mut());
        let mut found = false;
        for path in steps.into_iter().flatten().filter_map(|step| step.get_mut("req")?.get_mut(1)) {
            let text = path.as_str().expect("a path");
            found |= text.contains(recorded);
            *path = Value::String(text.replace(recorded, longer));
        }
        assert!(found, "{name} is a scenario with {recorded}");
    }
    scenarios
}

/// An expected difference: the scenario, the step, and the body instead of the recorded one, as JSON. The rest of
/// that response is compared as usual.
pub type Expected = (&'static str, usize, &'static str);

/// Plays all scenarios, several at a time. Panics with every response that differs.
pub async fn play_all(server: TestServer) {
    play_all_but(server, &[]).await;
}

/// Like `play_all`, for a server that must differ in these places and no others.
pub async fn play_all_but(server: TestServer, expected: &[Expected]) {
    let server = Arc::new(server);
    let mut playing = JoinSet::new();
    let mut scenarios = scenarios();
    for (name, step, body) in expected {
        let scenario = scenarios.iter_mut().find(|s| s["name"] == *name);
        let step = scenario.and_then(|s| s["steps"].get_mut(*step)).and_then(|s| s.get_mut("answer"));
        let answer = step.unwrap_or_else(|| panic!("{name} is a scenario with such a step"));
        answer["body"] = serde_json::from_str(body).expect("JSON");
    }
    // Parked polls are counted per server, so a scenario with one runs alone; first, so that it waits for no other.
    let is_alone = |scenario: &Value| {
        let mut steps = scenario["steps"].as_array().into_iter().flatten();
        steps.any(|step| !step["bg"].is_null())
    };
    scenarios.sort_by_key(|scenario| !is_alone(scenario));
    let turns = Arc::new(Semaphore::new(AT_ONCE as usize));
    for (i, scenario) in scenarios.into_iter().enumerate() {
        let (server, turns) = (server.clone(), turns.clone());
        let many = if is_alone(&scenario) { AT_ONCE } else { 1 };
        playing.spawn(async move {
            let _turn = turns.acquire_many_owned(many).await.expect("it is never closed");
            play(&server, &scenario, i).await
        });
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    while let Some(played) = playing.join_next().await {
        count += 1;
        wrong.extend(played.expect("a scenario does not panic"));
    }
    wrong.sort();
    assert!(wrong.is_empty(), "of {count} scenarios, these answers differ:\n{}", wrong.join("\n"));
    assert!(count >= 75, "only {count} scenarios were played");
}

struct Player<'a> {
    server: &'a TestServer,
    vars: HashMap<String, String>,
    /// Ids in order of first appearance.
    ids: Vec<String>,
    /// Requests in flight, with the steps that started them.
    background: HashMap<String, (Value, JoinHandle<Raw>)>,
}

/// A response as received.
struct Raw {
    status: u16,
    content_type: Option<String>,
    request_id: bool,
    body: Vec<u8>,
    took: Duration,
}

async fn play(server: &TestServer, scenario: &Value, number: usize) -> Vec<String> {
    let name = scenario["name"].as_str().unwrap_or_default();
    let tag = format!("{number}x{:x}", dormouse::random::ulid().random() as u32);
    let mut player = Player { server, vars: HashMap::new(), ids: Vec::new(), background: HashMap::new() };
    for (key, value) in [("ns", format!("ns{tag}")), ("q", format!("q{tag}")), ("tag", tag)] {
        player.vars.insert(key.into(), value);
    }
    if scenario["token"] != Value::Bool(false) {
        let token = server.token(&player.vars["ns"]).await;
        player.ids.push(token.clone());
        player.vars.insert("token".into(), token);
    }
    let (mut wrong, began) = (Vec::new(), Instant::now());
    for (i, step) in scenario["steps"].as_array().into_iter().flatten().enumerate() {
        let Some((begun_by, raw)) = player.step(step).await else { continue };
        let got = player.seen(&begun_by, raw);
        let want = &step["answer"];
        if !want.is_null() && !same(want, &got, "", began.elapsed()) {
            wrong.push(format!("{name}, step {i}: {}\n  want {want}\n  got  {got}", step["req"]));
        }
    }
    wrong
}

impl Player<'_> {
    /// Runs a step. Returns the reply, and the step that had sent the request.
    async fn step(&mut self, step: &Value) -> Option<(Value, Raw)> {
        if let Some(seconds) = step["sleep"].as_f64() {
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            return None;
        }
        if let Some(name) = step["join"].as_str() {
            let (begun_by, task) = self.background.remove(name).expect("joined after it began");
            return Some((begun_by, task.await.expect("a request does not panic")));
        }
        let request = self.request(step);
        if let Some(name) = step["bg"].as_str() {
            self.background.insert(name.into(), (step.clone(), tokio::spawn(request)));
            // In the recording the poll was parked before it was woken.
            self.server.until_parked(self.background.len()).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            return None;
        }
        let raw = request.await;
        for (var, path) in step["save"].as_object().into_iter().flatten() {
            let body: Value = serde_json::from_slice(&raw.body).unwrap_or_default();
            let pointer = format!("/{}", path.as_str().unwrap_or_default());
            let value = body.pointer(&pointer).and_then(Value::as_str).unwrap_or_default();
            self.vars.insert(var.clone(), value.into());
        }
        Some((step.clone(), raw))
    }

    fn request(&self, step: &Value) -> impl Future<Output = Raw> + Send + 'static {
        let parts = step["req"].as_array().expect("a step has a request");
        let admin = step["admin"] == Value::Bool(true);
        let path = self.fill(parts[1].as_str().expect("a path"));
        let method = parts[0].as_str().expect("a method");
        let mut request =
            if admin { self.server.admin(method, &path) } else { self.server.api(method, &path, "") };
        for (name, value) in step["headers"].as_object().into_iter().flatten() {
            request = request.header(self.fill(name), self.fill(value.as_str().unwrap_or_default()));
        }
        let own_token = step["headers"].as_object().is_some_and(|h| h.contains_key("X-Token"));
        if !admin
            && !own_token
            && step["no_token"] != Value::Bool(true)
            && let Some(token) = self.vars.get("token")
        {
            request = request.header("X-Token", token);
        }
        if let Some(body) = parts.get(2) {
            request = request.body(self.body(body));
        }
        async move {
            let began = Instant::now();
            let answer = send(request).await;
            let header = |name: &str| {
                answer.headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
            };
            let (status, content_type) = (answer.status, header("content-type"));
            let request_id = header("x-request-id").is_some_and(|id| !id.is_empty());
            let body = answer.text.into_bytes();
            Raw { status, content_type, request_id, body, took: began.elapsed() }
        }
    }

    fn body(&self, body: &Value) -> Vec<u8> {
        match body {
            Value::String(text) => self.fill(text).into_bytes(),
            Value::Object(o) if o.contains_key("repeat") => {
                let times = o["times"].as_u64().unwrap_or_default() as usize;
                o["repeat"].as_str().unwrap_or_default().repeat(times).into_bytes()
            }
            Value::Object(o) if o.contains_key("b64") => {
                STANDARD.decode(o["b64"].as_str().unwrap_or_default()).expect("base64")
            }
            other => self.fill(&spaced(other)).into_bytes(),
        }
    }

    fn fill(&self, text: &str) -> String {
        self.vars.iter().fold(text.to_owned(), |text, (k, v)| text.replace(&format!("{{{k}}}"), v))
    }

    /// Converts a response to the format of a recording.
    fn seen(&mut self, step: &Value, raw: Raw) -> Value {
        let mut body = if raw.body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&raw.body)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&raw.body).into_owned()))
        };
        if step["keys_only"] == Value::Bool(true)
            && let Value::Object(o) = &body
        {
            let mut keys: Vec<&String> = o.keys().collect();
            keys.sort();
            body = json!(keys);
        }
        let mut seen = json!({"status": raw.status, "type": raw.content_type, "request_id": raw.request_id});
        if step["no_body"] != Value::Bool(true) {
            seen["body"] = self.normal(&body, "");
        }
        if let Some([least, most]) = step["waited"].as_array().map(Vec::as_slice) {
            let took = raw.took.as_secs_f64();
            let most = most.as_f64().map(|most| most * SLOWER);
            seen["waited"] = json!(least.as_f64() <= Some(took) && Some(took) <= most);
        }
        seen
    }

    fn normal(&mut self, value: &Value, key: &str) -> Value {
        match value {
            Value::Object(o) => {
                // In the order of the names, so that ids get the same numbers as in the recording.
                let mut entries: Vec<_> = o.iter().collect();
                entries.sort_by_key(|(name, _)| *name);
                let entries = entries.into_iter().map(|(k, v)| {
                    let name = self.normal(&Value::String(k.clone()), "key");
                    (name.as_str().unwrap_or_default().to_owned(), self.normal(v, k))
                });
                Value::Object(entries.collect::<Map<_, _>>())
            }
            Value::Array(a) => a.iter().map(|v| self.normal(v, key)).collect(),
            Value::Number(n) if key == "elapsed_ms" && n.is_u64() => json!("<int>"),
            Value::String(text) => {
                let mut text = text.clone();
                for var in ["ns", "q", "tag"] {
                    text = text.replace(&self.vars[var], &format!("<{var}>"));
                }
                Value::String(self.numbered(&text))
            }
            other => other.clone(),
        }
    }

    /// Replaces ids and tokens by `<token>`, `<id2>`, …
    fn numbered(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
            let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let is_id = dormouse::job::JobId::parse(word).is_some();
            if !is_id {
                out.push_str(piece);
                continue;
            }
            let at = self.ids.iter().position(|id| id == word).unwrap_or_else(|| {
                self.ids.push(word.into());
                self.ids.len() - 1
            });
            let token = self.vars.get("token").is_some_and(|token| token == word);
            out.push_str(&if token { "<token>".into() } else { format!("<id{}>", at + 1) });
            out.push_str(&piece[word.len()..]);
        }
        out
    }
}

/// Formats JSON with a space after each comma and colon, like the recordings.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(a) => format!("[{}]", a.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(o) => {
            let fields: Vec<String> = o.iter().map(|(k, v)| format!("{}: {}", json!(k), spaced(v))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// Whether a reply is the recorded one. `passed` is the time since its scenario began, in which a ttl becomes shorter.
fn same(want: &Value, got: &Value, key: &str, passed: Duration) -> bool {
    match (want, got) {
        (Value::Number(a), Value::Number(b)) if key == "ttl" => {
            let less = a.as_f64().unwrap_or(f64::MAX) - b.as_f64().unwrap_or(f64::MIN);
            (-3.0..=3.0 + passed.as_secs_f64()).contains(&less)
        }
        (Value::Object(a), Value::Object(b)) => {
            let is_same = |(k, v): (&String, &Value)| b.get(k).is_some_and(|other| same(v, other, k, passed));
            a.len() == b.len() && a.iter().all(is_same)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b, key, passed))
        }
        (a, b) => a == b,
    }
}
