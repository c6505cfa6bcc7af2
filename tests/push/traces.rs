//! A trace continues through a job: docs/traces.md has a producer and a consumer in each of two languages, which are
//! run as printed.

use std::process::Stdio;
use std::time::Duration;

use crate::pushed::Pushed;
use crate::receiver::Receiver;
use crate::support::client::{request, send};
use crate::support::servers::{Store, TestServer, on_each_store};
use serde_json::{Value, json};
use tokio::process::Command;

/// Returns the programs of a language: the producer, and the consumer.
fn programs(language: &str) -> [String; 2] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/traces.md");
    let (text, begin) =
        (std::fs::read_to_string(path).expect("docs/traces.md"), format!("\n```{language}\n"));
    let blocks: Vec<String> =
        text.split(&begin).skip(1).filter_map(|rest| Some(rest.split("\n```").next()?.to_owned())).collect();
    blocks.try_into().unwrap_or_else(|found| panic!("a producer and a consumer in {language}, not {found:?}"))
}

/// Returns the output of a program. `None` if its language is not installed.
async fn run(language: &str, code: &str, pushed: &Pushed, queue: &str) -> Option<String> {
    let (interpreter, flag) = if language == "python" { ("python3", "-c") } else { ("node", "-e") };
    let mut command = Command::new(interpreter);
    command.arg(flag).arg(code);
    // Arguments after the code of `node -e` begin at 1.
    if language == "js" {
        command.args(["--", "x"]);
    }
    command.arg(queue).stdin(Stdio::null()).kill_on_drop(true);
    command.env("DORMOUSE_URL", pushed.url("")).env("DORMOUSE_NAMESPACE", "ns");
    command.env("DORMOUSE_TOKEN", &pushed.token);
    let output = match tokio::time::timeout(Duration::from_secs(30), command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(why)) => {
            eprintln!("skipped: {language} is not on this machine: {why}");
            return None;
        }
        Err(_) => panic!("the program in {language} does not end:\n{code}"),
    };
    assert!(output.status.success(), "{language}:\n{code}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Guards against programs in the documentation that do not run, and against a trace that is lost between languages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_from_each_producer_to_each_consumer_and_to_push() {
    let pushed = Pushed::on(Store::disk()).await;
    let (receiver, languages) = (Receiver::start().await, ["python", "js"]);
    pushed.push_to(&receiver, "pushed", json!({})).await;
    for (from, to) in [("python", "js"), ("js", "python")] {
        let ([producer, _], [_, consumer]) = (programs(from), programs(to));
        let Some(trace) = run(from, &producer, &pushed, "q").await else { continue };
        assert_eq!(trace.len(), 32, "the producer prints its trace: {trace:?}");
        let Some(seen) = run(to, &consumer, &pushed, "q").await else { continue };
        assert_eq!(seen, trace, "from {from} to {to}");
    }
    for language in languages {
        let [producer, _] = programs(language);
        let Some(trace) = run(language, &producer, &pushed, "pushed").await else { continue };
        let has_come =
            || receiver.arrived().iter().any(|request| request.header("traceparent").contains(&trace));
        crate::support::wait::until("the endpoint is told the trace", async || has_come()).await;
    }
}

/// Guards against attributes that are lost when a job is delayed, redelivered or republished.
async fn a_trace_survives_the_sleep_of_its_job(store: Store) {
    let server = TestServer::start(&store.toml(), store).await;
    let token = server.token("ns").await;
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let publish = request("PUT", &server.url("/api/ns/q?delay=1&tries=3"), &token).body("x");
    let publish = publish.header("Enable-Job-Version", "yes").header("Job-Attr-traceparent", traceparent);
    send(publish).await.expect(201);
    let take = async |ttr: u32, what: &str| {
        let path = format!("/api/ns/q?timeout=20&ttr={ttr}&receipt=1");
        let job = server.get(&token, &path).await.expect(200).json;
        assert_eq!(job["attributes"], json!({"traceparent": traceparent}), "{what}: {job}");
        job
    };
    take(1, "after its delay").await;
    let again: Value = take(60, "after its ttr").await;
    let text = |field: &str| again[field].as_str().unwrap_or_else(|| panic!("{field} in {again}"));
    let (id, receipt) = (text("job_id"), text("receipt"));
    let release = format!("/api/ns/q/job/{id}/release?receipt={receipt}&delay=0.1&spend=0");
    send(server.api("POST", &release, &token)).await.expect(200);
    take(60, "after its release").await;
}

on_each_store!(a_trace_survives_the_sleep_of_its_job);
