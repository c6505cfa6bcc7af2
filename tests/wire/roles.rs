//! Access by role on the admin port: every route of its table, by every role.

use std::collections::{BTreeMap, BTreeSet};

use dormouse::http::{Route, all_routes};
use serde_json::{Value, json};

use crate::support::client::send;
use crate::support::servers::{Store, TestServer, on_each_store};

/// A viewer's permissions on a route: none, or reading.
#[derive(Clone, Copy, Debug, PartialEq)]
enum May {
    Nothing,
    Get,
    /// All methods: roles differ only in the content of replies.
    Both,
    /// The route requires no account.
    All,
}

/// Routes of the admin port. A new route is added here with its roles, and in `operators/roles.rs`.
const ROUTES: &[(&str, May)] = &[
    ("/token/{namespace}", May::Nothing),
    ("/token/{namespace}/revoke", May::Nothing),
    ("/token/{namespace}/{token}", May::Nothing),
    ("/server", May::Get),
    ("/servers", May::Get),
    ("/token/{namespace}/{token}/limit", May::Nothing),
    ("/quota/{namespace}", May::Get),
    ("/limits", May::Nothing),
    ("/push/{namespace}/{queue}", May::Get),
    ("/push/{namespace}/{queue}/pause", May::Nothing),
    ("/push/{namespace}/{queue}/resume", May::Nothing),
    ("/push/{namespace}/{queue}/secret", May::Nothing),
    ("/push/{namespace}/{queue}/test", May::Nothing),
    ("/cluster", May::Get),
    ("/info/delays", May::Get),
    ("/backup", May::Nothing),
    ("/queues", May::Get),
    ("/queues/history", May::Get),
    ("/bulk", May::Get),
    ("/bulk/{id}", May::Get),
    ("/dead", May::Get),
    ("/dead/reasons", May::Get),
    ("/api/{namespace}", May::Get),
    ("/api/{namespace}/{queue}", May::Nothing),
    ("/api/{namespace}/{queue}/job/{job_id}", May::Get),
    ("/api/{namespace}/{queue}/peek", May::Get),
    ("/api/{namespace}/{queue}/size", May::Get),
    ("/api/{namespace}/{queue}/jobs", May::Get),
    ("/api/{namespace}/{queue}/key/{key}", May::Get),
    ("/api/{namespace}/{queue}/key/{key}/promote", May::Nothing),
    ("/api/{namespace}/{queue}/job/{job_id}/promote", May::Nothing),
    ("/api/{namespace}/{queue}/job/{job_id}/respawn", May::Nothing),
    ("/api/{namespace}/{queue}/deadletter", May::Get),
    ("/api/{namespace}/{queue}/deadletter/respawn", May::Nothing),
    ("/api/{namespace}/{queue}/pause", May::Nothing),
    ("/api/{namespace}/{queue}/resume", May::Nothing),
    ("/api/{namespace}/_schedules", May::Get),
    ("/api/{namespace}/_schedules/_preview", May::Get),
    ("/api/{namespace}/_schedules/{name}", May::Get),
    ("/api/{namespace}/_schedules/{name}/pause", May::Nothing),
    ("/api/{namespace}/_schedules/{name}/resume", May::Nothing),
    ("/api/{namespace}/_schedules/{name}/run", May::Nothing),
    ("/ui", May::Get),
    ("/ui/", May::Get),
    ("/ui/assets/{name}", May::Get),
    ("/ui/zone", May::Both),
    ("/ui/queues", May::Get),
    ("/ui/queues/{pool}/{namespace}/{queue}", May::Get),
    ("/ui/namespaces/{pool}/{namespace}", May::Get),
    ("/ui/publish/{pool}/{namespace}", May::Get),
    ("/ui/push/{pool}/{namespace}/{queue}", May::Get),
    ("/ui/schedules", May::Get),
    ("/ui/schedules/edit", May::Get),
    ("/ui/bulk", May::Get),
    ("/ui/dead", May::Get),
    ("/ui/server", May::Get),
    ("/ui/search", May::Get),
    ("/ui/{*unknown}", May::Get),
    ("/ui/tokens/{pool}/{namespace}", May::Nothing),
    ("/ui/jobs/{pool}/{namespace}/{queue}/{id}", May::Get),
    ("/", May::All),
    ("/pools", May::All),
    ("/info", May::All),
    ("/version", May::All),
    ("/metrics", May::All),
    ("/openapi.json", May::All),
    ("/ping", May::All),
    ("/ready", May::All),
];

/// The methods of each route of the admin port.
fn routed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    // Its GET is open and its POST is not, so it is checked separately.
    let own = |route: &Route| route.port == "admin" && route.pattern != "/accesslog";
    for route in all_routes().into_iter().filter(own) {
        found.entry(route.pattern).or_default().insert(route.method);
    }
    found
}

/// Guards against a new route that lets a viewer change something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_says_who_may_use_it() {
    let store = Store::disk();
    let accounts = "[Accounts]\noperator = \"secret\"\n[ReadOnlyAccounts]\nviewer = \"look\"\n";
    let server = TestServer::start(&format!("{}{accounts}", store.toml()), store).await;
    let routed = routed();
    let gone = ROUTES.iter().find(|(route, _)| !routed.contains_key(route));
    assert_eq!(gone, None, "ROUTES names an unknown route");
    let mut asked = 0;
    for (pattern, methods) in &routed {
        let may = ROUTES.iter().find(|(route, _)| route == pattern).map(|(_, may)| *may);
        let may = may.unwrap_or_else(|| panic!("{pattern} has no roles: see ROUTES"));
        assert!(!methods.is_empty(), "{pattern} has methods");
        let path = pattern.replace("{namespace}", "ns").replace("{queue}", "q").replace("{key}", "k");
        let path = path
            .replace("{job_id}", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
            .replace("{name}", "s")
            .replace("{pool}", "default")
            .replace("{id}", "x");
        let path = path.replace("{token}", "01ARZ3NDEKTSV4RRFFQ69G5FAV");
        for method in methods {
            let request = |user: Option<(&str, &str)>| {
                let request = server.admin(method, &path);
                user.map_or(request.try_clone(), |(user, pw)| Some(request.basic_auth(user, Some(pw))))
                    .expect("a request without a body")
            };
            let expected = [May::All, May::Both].contains(&may) || may == May::Get && *method == "GET";
            let viewer = send(request(Some(("viewer", "look")))).await;
            assert_eq!(viewer.status != 403, expected, "{method} {path} by a viewer: {viewer:?}");
            let nobody = send(request(None)).await;
            assert_eq!(
                nobody.status == 401,
                may != May::All,
                "{method} {path} without an account: {nobody:?}"
            );
            // Once per route: after 100 failures an address may fail once a second.
            if Some(method) == methods.first() {
                let wrong = send(request(Some(("viewer", "secret")))).await;
                assert_eq!(wrong.status == 401, may != May::All, "{method} {path} with a wrong password");
            }
            let operator = send(request(Some(("operator", "secret")))).await;
            assert!(![401, 403].contains(&operator.status), "{method} {path} by an operator: {operator:?}");
            asked += 1;
        }
    }
    assert!(asked > 45, "{asked} methods");
    let viewer = |method: &str, path: &str| server.admin(method, path).basic_auth("viewer", Some("look"));
    send(viewer("POST", "/accesslog?status=enable")).await.expect(403);
    send(viewer("GET", "/accesslog")).await.expect(200);
    send(viewer("HEAD", "/queues")).await.expect(403);
}

/// Guards against documents that contradict the table.
#[test]
fn the_documents_say_who_may_use_each_route() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let text = std::fs::read_to_string(path).expect("the page");
    for (may, first) in [
        (May::All, "anybody"),
        (May::Get, "`[ReadOnlyAccounts]`, a GET; `[Accounts]`, all"),
        (May::Both, "`[ReadOnlyAccounts]`, all"),
        (May::Nothing, "`[Accounts]` alone"),
    ] {
        let begin = format!("| {first} | ");
        let row = text.lines().find_map(|line| line.strip_prefix(&*begin));
        let row = row.unwrap_or_else(|| panic!("a row {first}"));
        let told: BTreeSet<&str> = row.split('`').skip(1).step_by(2).collect();
        let of = ROUTES.iter().filter(|(_, of)| *of == may).map(|(route, _)| *route);
        assert_eq!(told, of.collect(), "{first}");
    }
}

/// Guards against a support employee who can read customers' data.
async fn bodies_are_shown_to_whom_they_may_be(store: Store) {
    let accounts = "[Accounts]\noperator = \"secret\"\n[ReadOnlyAccounts]\nviewer = \"look\"\n";
    let toml = store.toml();
    let server = TestServer::start(&format!("ShowBodies = \"operators\"\n{toml}{accounts}"), store).await;
    let by = |user: &str, method: &str, path: &str| {
        let password = if user == "viewer" { "look" } else { "secret" };
        server.admin(method, path).basic_auth(user, Some(password))
    };
    let publish = by("operator", "POST", "/api/ns/q/jobs?key=k").body("private");
    let id = send(publish.header("Enable-Job-Version", "yes").header("Job-Attr-Who", "zoe-7"))
        .await
        .expect(201)
        .json["job_id"]
        .clone();
    let job = format!("/api/ns/q/job/{}", id.as_str().expect("an id"));
    let schedule = r#"{"queue":"q","every":3600,"text":"private","attributes":{"who":"zoe-7"}}"#;
    send(by("operator", "PUT", "/api/ns/_schedules/s").body(schedule)).await.expect(201);
    let paths = [
        &*job,
        &format!("{job}?verbose=1"),
        "/api/ns/q/key/k",
        "/api/ns/q/key/k?verbose=1",
        "/api/ns/q/peek",
        "/api/ns/q/jobs?data=1",
        "/api/ns/_schedules/s",
        "/api/ns/_schedules?data=1",
    ];
    for path in paths {
        let has_body = |shown: &serde_json::Value| {
            let text = shown.to_string();
            text.contains("cHJpdmF0ZQ==") || text.contains("private")
        };
        let seen = send(by("operator", "GET", path)).await.expect(200).json;
        assert!(has_body(&seen), "an operator sees it: {path}: {seen}");
        let hidden = send(by("viewer", "GET", path)).await.expect(200).json;
        assert!(!has_body(&hidden) && !hidden.to_string().contains("zoe-7"), "{path}: {hidden}");
        if !path.contains("_schedules") {
            let one = hidden["jobs"].get(0).unwrap_or(&hidden);
            assert_eq!(
                (&one["size"], &one["data"], &one["job_id"]),
                (&json!(7), &Value::Null, &id),
                "{path}"
            );
        }
    }
}

on_each_store!(bodies_are_shown_to_whom_they_may_be);
