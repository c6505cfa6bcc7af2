//! `/bulk`: actions on all jobs of a queue that a filter finds.

use crate::support::client::{Response, send};
use crate::support::servers::{Store, TestServer, on_each_store};
use crate::support::wait::until;
use serde_json::{Value, json};

/// Buries `count` jobs with this reason.
async fn bury(server: &TestServer, token: &str, count: usize, reason: &str) {
    for n in 0..count {
        server.put(token, "/api/ns/q?tries=1", &format!("body {n} of {reason}")).await.expect(201);
        let job = server.get(token, "/api/ns/q?ttr=60&receipt=1").await.expect(200);
        let receipt = job.json["receipt"].as_str().expect("a receipt");
        let path = format!("/api/ns/q/job/{}/bury?receipt={receipt}", job.job_id());
        send(server.api("POST", &path, token).body(reason.to_owned())).await.expect(200);
    }
}

async fn order(server: &TestServer, order: Value) -> Response {
    let mut all = json!({"namespace": "ns", "queue": "q"});
    all.as_object_mut().expect("an object").extend(order.as_object().expect("an object").clone());
    send(server.admin("POST", "/bulk").body(all.to_string())).await
}

/// What an action did, once it has ended.
async fn ended(server: &TestServer, begun: &Response) -> Value {
    let path = format!("/bulk/{}", begun.json["id"].as_str().expect("an id"));
    let show = async || send(server.admin("GET", &path)).await.expect(200).json;
    until("the action has ended", async || show().await["ended"].is_string()).await;
    show().await
}

async fn what_a_filter_finds_is_respawned_deleted_and_cancelled(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    bury(&server, &token, 5, "full").await;
    bury(&server, &token, 4, "gone").await;
    let begun = order(&server, json!({"action": "respawn", "reason": "full", "tries": 3})).await.expect(202);
    assert_eq!(begun.json["total"], json!(9), "all that were there: {begun:?}");
    let done = ended(&server, &begun).await;
    assert_eq!((&done["status"], &done["done"], &done["looked_at"]), (&json!("done"), &json!(5), &json!(9)));
    assert_eq!(
        (&done["action"], &done["reason"], &done["state"]),
        (&json!("respawn"), &json!("full"), &json!("dead"))
    );
    assert_eq!((server.size("/api/ns/q").await, server.size("/api/ns/q/deadletter").await), (5, 4));
    assert_eq!(server.get(&token, "/api/ns/q?ttr=60").await.expect(200).json["remain_tries"], json!(2));

    let begun = order(&server, json!({"action": "delete", "contains": "body 1 of"})).await.expect(202);
    assert_eq!(ended(&server, &begun).await["done"], json!(1), "one body has it");
    // A Redis counts one that is forgotten until it is met in the list.
    let left = send(server.admin("GET", "/api/ns/q/jobs?state=dead")).await.expect(200).json;
    assert_eq!(left["jobs"].as_array().map(Vec::len), Some(3), "{left}");
    let begun = order(&server, json!({"action": "respawn"})).await.expect(202);
    assert_eq!(ended(&server, &begun).await["done"], json!(3));
    assert_eq!((server.size("/api/ns/q").await, server.size("/api/ns/q/deadletter").await), (7, 0));
    let begun = order(&server, json!({"action": "cancel", "state": "ready"})).await.expect(202);
    assert_eq!(ended(&server, &begun).await["done"], json!(7));
    server.get(&token, "/api/ns/q").await.expect(404);
    bury(&server, &token, 2, "x").await;
    let begun = order(&server, json!({"action": "delete"})).await.expect(202);
    assert_eq!(ended(&server, &begun).await["done"], json!(2));
    assert_eq!(server.size("/api/ns/q/deadletter").await, 0);
    let all = send(server.admin("GET", "/bulk")).await.expect(200).json;
    let actions = all["actions"].as_array().expect("a list");
    assert_eq!((actions.len(), &actions[0]["id"]), (5, &begun.json["id"]), "the newest first: {all}");
}

on_each_store!(what_a_filter_finds_is_respawned_deleted_and_cancelled);

async fn delayed_jobs_that_a_filter_finds_are_made_ready(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    for n in 0..120 {
        let kind = if n % 3 == 0 { "mail" } else { "report" };
        server.put(&token, "/api/ns/q?delay=600", &format!("{kind} {n}")).await.expect(201);
    }
    let begun = order(&server, json!({"action": "promote", "contains": "mail"})).await.expect(202);
    let done = ended(&server, &begun).await;
    assert_eq!(
        (&done["status"], &done["done"], &done["looked_at"]),
        (&json!("done"), &json!(40), &json!(120))
    );
    assert_eq!((&done["action"], &done["state"]), (&json!("promote"), &json!("delayed")), "{done}");
    assert_eq!(server.size("/api/ns/q").await, 40);
    let first = server.get(&token, "/api/ns/q?ttr=60").await.expect(200);
    assert_eq!(first.data(), b"mail 0", "in the order in which they would have come");
    let begun = order(&server, json!({"action": "promote", "state": "delayed"})).await.expect(202);
    assert_eq!(ended(&server, &begun).await["done"], json!(80), "the others");
    assert_eq!(server.size("/api/ns/q").await, 119, "and one runs");
}

on_each_store!(delayed_jobs_that_a_filter_finds_are_made_ready);

#[tokio::test]
async fn an_order_that_makes_no_sense_is_refused() {
    let server = TestServer::on_disk().await;
    for (bad, names) in [
        (json!({"action": "explode"}), "action"),
        (json!({"action": "respawn", "state": "ready"}), "state"),
        (json!({"action": "promote", "state": "ready"}), "state"),
        (json!({"action": "promote", "delay": 1}), "delay"),
        (json!({"action": "cancel"}), "state"),
        (json!({"action": "cancel", "state": "asleep"}), "state"),
        (json!({"action": "delete", "tries": 3}), "tries"),
        (json!({"action": "respawn", "tries": 0}), "tries"),
        (json!({"action": "respawn", "delay": -1}), "delay"),
        (json!({"action": "respawn", "pool": "nobody"}), "pool"),
        (json!({"action": "respawn", "queue": "a b"}), "queue"),
        (json!({"action": "respawn", "raeson": "x"}), "raeson"),
    ] {
        let refused = order(&server, bad.clone()).await.expect(400);
        assert!(refused.says().contains(names), "{bad}: {refused:?}");
    }
    send(server.admin("POST", "/bulk").body("x")).await.expect(400);
    send(server.admin("GET", "/bulk/x")).await.expect(404);
    send(server.admin("DELETE", "/bulk/x")).await.expect(404);
    let all = send(server.admin("GET", "/bulk")).await.expect(200).json;
    assert_eq!(all["actions"], json!([]), "nothing was begun");
}

/// Guards against two equal actions on one queue, an action that cannot be stopped, and a stop that loses jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_is_alone_on_its_queue_and_can_be_stopped() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    const JOBS: u64 = 12_800;
    let batch = serde_json::to_string(&vec!["x"; 64]).expect("text");
    for _ in 0..JOBS / 64 {
        server.put(&token, "/api/ns/q/bulk?delay=9000", &batch).await.expect(201);
    }
    server.sampled().await;
    let first = order(&server, json!({"action": "cancel", "state": "delayed"})).await.expect(202);
    assert_eq!(first.json["total"], json!(JOBS), "{first:?}");
    let second = order(&server, json!({"action": "respawn"})).await.expect(409);
    assert_eq!(second.json["id"], first.json["id"], "it says which one runs: {second:?}");
    let path = format!("/bulk/{}", first.json["id"].as_str().expect("an id"));
    let show = async || send(server.admin("GET", &path)).await.expect(200).json;
    until("it has begun", async || show().await["done"].as_u64() > Some(0)).await;
    send(server.admin("DELETE", &path)).await.expect(200);
    let stopped = ended(&server, &first).await;
    assert_eq!(stopped["status"], json!("stopped"), "{stopped}");
    let done = stopped["done"].as_u64().expect("a number");
    assert!(done < JOBS, "{done} were done before anybody could stop it");
    server.sampled().await;
    let left = send(server.admin("GET", "/queues")).await.expect(200).json["queues"][0]["delayed"].clone();
    assert_eq!(
        left.as_u64(),
        Some(JOBS - done),
        "nothing is lost, and nothing was cancelled that is not counted"
    );
    order(&server, json!({"action": "respawn"})).await.expect(202);
}

/// Guards against a stop that leaves a job in two places or in none.
async fn a_stop_ends_an_action_in_order(store: Store) {
    let toml = store.toml();
    let server = TestServer::start(&toml, ()).await;
    let token = server.token("ns").await;
    const JOBS: u64 = 12_800;
    let batch = serde_json::to_string(&vec!["x"; 64]).expect("text");
    for _ in 0..JOBS / 64 {
        server.put(&token, "/api/ns/q/bulk?delay=9000", &batch).await.expect(201);
    }
    let begun =
        order(&server, json!({"action": "cancel", "state": "delayed", "contains": "x"})).await.expect(202);
    let path = format!("/bulk/{}", begun.json["id"].as_str().expect("an id"));
    let show = async || send(server.admin("GET", &path)).await.expect(200).json;
    until("it has begun", async || show().await["done"].as_u64() > Some(0)).await;
    let done = show().await;
    assert_eq!(done["status"], json!("running"), "{done}");
    server.stop().await;
    let server = TestServer::start(&toml, store).await;
    let delays = send(server.admin("GET", "/info/delays?namespace=ns&queue=q")).await.expect(200).json;
    let left = delays["delayed"].as_u64().expect("a number");
    assert!(left < JOBS && left > 0, "{left} are left of {JOBS}");
    let mut shown = 0;
    let mut cursor = String::new();
    loop {
        let path = format!("/api/ns/q/jobs?state=delayed&limit=100&data=1{cursor}");
        let page = send(server.admin("GET", &path)).await.expect(200).json;
        let jobs = page["jobs"].as_array().expect("a list");
        shown += jobs.iter().filter(|job| job["data"].is_string()).count() as u64;
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(shown, left, "each that is left is whole");
    let again = send(server.admin("GET", "/bulk")).await.expect(200).json;
    assert_eq!(again["actions"], json!([]), "what ran is not begun again");
}

on_each_store!(a_stop_ends_an_action_in_order);
