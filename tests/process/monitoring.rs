//! The dashboard and the alerts: the names in them must exist, and so must the documentation that they refer to.
//! Prometheus's own tool checks them if installed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::client::send;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// One rule of alerts.yml, which has one key per line.
struct Alert {
    name: String,
    expr: String,
    text: String,
}

fn alerts() -> Vec<Alert> {
    let text = read("deploy/monitoring/alerts.yml");
    let rules = text.split("      - alert: ").skip(1).map(|rule| {
        let (name, rest) = rule.split_once('\n').expect("a rule has more than a name");
        let expr = rest.split("labels:").next().unwrap_or_default();
        Alert { name: name.to_owned(), expr: expr.to_owned(), text: rest.to_owned() }
    });
    rules.collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("deploy/monitoring/grafana.json")).expect("the dashboard is JSON")
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().expect("panels").iter().filter(|panel| panel["type"] != "row")
}

/// Returns the metrics in an expression.
fn metrics_of(expr: &str) -> BTreeSet<String> {
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| ["dormouse_", "infra_lmstfy_", "process_"].iter().any(|of| word.starts_with(of));
    words.filter(ours).map(str::to_owned).collect()
}

/// Returns the metrics of a server with pools of each kind, after every event that has its own series.
pub(super) async fn everything() -> String {
    let redis = RedisServer::start();
    let disk = Store::disk();
    let toml = format!(
        "PushAllow = [\"127.0.0.0/8\"]\n[Pool.default]\n{}[Pool.shared]\n{}",
        disk.keys(),
        redis.keys()
    );
    let server = TestServer::start(&toml, (redis, disk)).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    let job = server.get(&token, "/api/ns/q").await.expect(200).job_id();
    send(server.api("DELETE", &format!("/api/ns/q/job/{job}"), &token)).await.expect(204);
    server.put(&token, "/api/ns/paused", "x").await.expect(201);
    send(server.api("POST", "/api/ns/paused/pause", &token)).await.expect(200);
    let limit = json!({"read": 1, "write": 1, "interval": 600}).to_string();
    send(server.admin("POST", &format!("/token/ns/{token}/limit")).body(limit)).await.expect(201);
    while server.put(&token, "/api/ns/q", "x").await.status == 201 {}
    let push = json!({"url": "http://127.0.0.1:9/"}).to_string();
    let set = send(server.admin("PUT", "/push/ns/pushed").body(push)).await;
    assert!(set.status < 300, "a queue is pushed: {set:?}");
    let began = std::time::Instant::now();
    loop {
        let text = send(server.admin("GET", "/metrics")).await.expect(200).text;
        if text.contains("dormouse_push_breaker_open{") || began.elapsed().as_secs() > 10 {
            return text;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Guards against a graph that stays empty, or an alert that never fires, because a metric was renamed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_that_dashboard_and_alerts_name_exists() {
    let text = everything().await;
    let shown = |name: &str| {
        text.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
    };
    let dashboard = dashboard();
    let targets = panels(&dashboard).flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let exprs = targets.map(|target| target["expr"].as_str().expect("an expression").to_owned());
    let exprs: Vec<String> = exprs.chain(alerts().into_iter().map(|alert| alert.expr)).collect();
    let named: BTreeSet<String> = exprs.iter().flat_map(|expr| metrics_of(expr)).collect();
    assert!(named.len() > 40, "only {} metrics are named: the test looks for the wrong words", named.len());
    let missing: Vec<_> = named.iter().filter(|name| !shown(name)).collect();
    assert!(missing.is_empty(), "{missing:?} are named, and not in\n{text}");
    // All exposed metrics are used somewhere.
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let unseen: Vec<&str> = families
        .filter(|family| family.starts_with("dormouse_"))
        .filter(|family| !named.iter().any(|name| name.starts_with(family)))
        .collect();
    assert!(unseen.is_empty(), "{unseen:?} are on no graph and in no alert");
}

/// Guards against an alert without a chapter in the runbook.
#[test]
fn every_alert_has_its_chapter_and_its_test() {
    let (runbook, tests) = (read("docs/runbook.md"), read("deploy/monitoring/alerts_test.yml"));
    let alerts = alerts();
    let mut wrong = String::new();
    for Alert { name, text, .. } in &alerts {
        let chapter = runbook.split("\n## ").find(|chapter| chapter.starts_with(&format!("{name}\n")));
        let parts = ["**Meaning.**", "**First look.**", "**What to do.**"];
        if !chapter.is_some_and(|chapter| parts.iter().all(|part| chapter.contains(part))) {
            let _ = writeln!(wrong, "{name} has no chapter with {parts:?}");
        }
        let link = format!("runbook_url: docs/runbook.md#{}\n", name.to_lowercase());
        for part in ["severity: ", "summary: ", &link] {
            if !text.contains(part) {
                let _ = writeln!(wrong, "{name} has no {part}");
            }
        }
        let cases = tests.split("alertname: ").filter(|case| case.starts_with(&format!("{name}\n")));
        let (fire, quiet): (Vec<_>, Vec<_>) = cases.partition(|case| case.contains("exp_alerts:"));
        if fire.is_empty() || quiet.is_empty() {
            let _ =
                writeln!(wrong, "{name} is not tested: it fires {}, is quiet {}", fire.len(), quiet.len());
        }
    }
    let chapters: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    for chapter in chapters.iter().filter(|chapter| !alerts.iter().any(|alert| alert.name == **chapter)) {
        let _ = writeln!(wrong, "the chapter {chapter} is of no alert");
    }
    assert_eq!(wrong, "", "of {} alerts", alerts.len());
    assert_eq!(alerts.len(), 25, "alerts");
}

#[test]
fn every_panel_says_what_it_shows_and_in_what() {
    let dashboard = dashboard();
    for panel in panels(&dashboard) {
        let title = &panel["title"];
        let described = panel["description"].as_str().is_some_and(|text| !text.is_empty());
        assert!(described, "{title} has no description");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
    assert_eq!(names, ["datasource", "pool", "namespace", "queue"]);
}

/// Runs promtool. Returns its output; `None` if it is not installed (tests/run installs it).
fn promtool(args: &[&str], input: Option<&str>) -> Option<Output> {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(root().join("deploy/monitoring"));
    let file = input.map(|text| {
        let mut file = tempfile::tempfile().expect("a temporary file");
        std::io::Write::write_all(&mut file, text.as_bytes()).expect("it can be written");
        std::io::Seek::rewind(&mut file).expect("it can be read again");
        file
    });
    if let Some(file) = file {
        command.stdin(file);
    }
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("promtool is not installed: nothing was checked");
            None
        }
        Err(error) => panic!("promtool: {error}"),
    }
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

#[test]
fn prometheus_takes_the_rules_and_they_do_what_their_tests_say() {
    for args in [
        &["check", "config", "prometheus.yml"][..],
        &["check", "rules", "alerts.yml"],
        &["test", "rules", "alerts_test.yml"],
    ] {
        let Some(output) = promtool(args, None) else { return };
        assert!(output.status.success(), "promtool {args:?}:\n{}", said(&output));
    }
}

/// Guards against metric names that violate Prometheus conventions, except lmstfy's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_has_no_word_on_the_names_of_our_metrics() {
    let text = everything().await;
    let Some(output) = promtool(&["check", "metrics"], Some(&text)) else { return };
    let said = said(&output);
    let ours: Vec<&str> = said.lines().filter(|line| !line.starts_with("infra_lmstfy_")).collect();
    assert!(ours.is_empty(), "promtool check metrics:\n{}", ours.join("\n"));
}
