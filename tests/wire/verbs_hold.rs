//! Conversations of workers that hold a job: touch, release, bury and ack.

use crate::cluster::on_a_cluster;
use crate::support::client::{Response, job_id, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store};
use crate::support::wait::until;
use serde_json::{Value, json};

/// Posts a body to a path.
async fn post(server: &TestServer, token: &str, path: &str, body: impl ToString) -> Response {
    send(server.api("POST", path, token).body(body.to_string())).await
}

/// A delivered job with its receipt.
struct Hold {
    path: String,
    receipt: String,
}

impl Hold {
    /// Reads a job in the reply of a consume.
    #[track_caller]
    fn of(job: &Value) -> Hold {
        let receipt = job["receipt"].as_str().unwrap_or_else(|| panic!("a receipt was expected in {job}"));
        let safe = receipt.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        assert!(safe && (1..=64).contains(&receipt.len()), "64 URL-safe characters, not {receipt:?}");
        Hold { path: format!("/api/ns/q/job/{}", job_id(job)), receipt: receipt.to_owned() }
    }

    /// Returns the path of a verb.
    fn to(&self, verb: &str) -> String {
        format!("{}/{verb}?receipt={}", self.path, self.receipt)
    }

    /// Returns the path of an ack, and of a read.
    fn ack(&self) -> String {
        format!("{}?receipt={}", self.path, self.receipt)
    }
}

/// Publishes a job with `tries`, and consumes it.
async fn held(server: &TestServer, token: &str, tries: u16) -> Hold {
    server.put(token, &format!("/api/ns/q?tries={tries}"), "x").await.expect(201);
    next(server, token).await
}

/// Consumes the next job of the queue.
async fn next(server: &TestServer, token: &str) -> Hold {
    let job = server.get(token, "/api/ns/q?receipt=1&ttr=600&timeout=20").await.expect(200);
    Hold::of(&job.json)
}

/// Returns the fields that `verbose=1` shows of a job.
async fn shown(server: &TestServer, token: &str, path: &str) -> Value {
    server.get(token, &format!("{path}?verbose=1")).await.expect(200).json
}

/// Checks that the receipt is no longer valid for any verb.
async fn not_yours(server: &TestServer, token: &str, hold: &Hold) {
    for verb in ["touch", "release", "bury"] {
        let refused = post(server, token, &hold.to(verb), "").await;
        assert_eq!((refused.status, refused.says()), (409, "the job is not yours any more"), "{verb}");
    }
    let refused = send(server.api("DELETE", &hold.ack(), token)).await.expect(409);
    assert_eq!(refused.says(), "the job is not yours any more");
}

async fn a_consume_shows_receipts_when_it_is_asked_to(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q/bulk", "[1,2,3,4]").await.expect(201);
    for query in ["", "?receipt=0"] {
        let job = server.get(&token, &format!("/api/ns/q{query}")).await.expect(200);
        assert!(job.json.get("receipt").is_none(), "{query}: {}", job.text);
    }
    server.get(&token, "/api/ns/q?receipt=yes").await.expect(400);
    let two = server.get(&token, "/api/ns/q?receipt=1&count=2").await.expect(200);
    let holds: Vec<Hold> = two.json.as_array().into_iter().flatten().map(Hold::of).collect();
    assert_eq!(holds.len(), 2, "{}", two.text);
    // A large reply is produced while it is sent.
    server.put(&token, "/api/ns/q", &"x".repeat(1 << 20)).await.expect(201);
    let large = server.get(&token, "/api/ns/q?receipt=1&count=2").await.expect(200);
    Hold::of(&large.json[0]);
}

async fn whoever_lost_the_answer_to_a_touch_asks_for_the_receipt(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q?tries=2", "x").await.expect(201);
    let hold = Hold::of(&server.get(&token, "/api/ns/q?receipt=1&ttr=60").await.expect(200).json);
    let lost = post(&server, &token, &hold.to("touch"), "").await.expect(200).json["receipt"].clone();
    post(&server, &token, &hold.to("release"), "").await.expect(409);
    let shown = server.get(&token, &format!("{}&verbose=1", hold.ack())).await.expect(200);
    assert_eq!(shown.json["receipt"], lost, "{}", shown.text);
    let without = server.get(&token, &format!("{}?verbose=1", hold.path)).await.expect(200);
    assert!(without.json.get("receipt").is_none(), "not asked for: {}", without.text);
    let bad = server.get(&token, &format!("{}?verbose=1&receipt=x", hold.path)).await.expect(400);
    assert_eq!(bad.says(), "invalid receipt");
    let found = Hold { receipt: lost.as_str().expect("a receipt").to_owned(), path: hold.path.clone() };
    post(&server, &token, &found.to("release"), "").await.expect(200);
    let shown = server.get(&token, &format!("{}&verbose=1", found.ack())).await.expect(200);
    assert_eq!(
        (&shown.json["state"], &shown.json["receipt"]),
        (&json!("ready"), &json!(null)),
        "{}",
        shown.text
    );
}

async fn still_working(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q?tries=2", "x").await.expect(201);
    let job = server.get(&token, "/api/ns/q?receipt=1&ttr=600").await.expect(200);
    let mut hold = Hold::of(&job.json);
    for ttr in ["&ttr=60.75", "&ttr=600.5", ""] {
        let before = Hold { path: hold.path.clone(), receipt: hold.receipt.clone() };
        let touched = post(&server, &token, &format!("{}{ttr}", hold.to("touch")), "").await.expect(200);
        assert_eq!(touched.says(), "touched");
        hold.receipt = touched.json["receipt"].as_str().expect("a new receipt").to_owned();
        assert_ne!(hold.receipt, before.receipt, "the receipt is a new one");
        let job = shown(&server, &token, &hold.path).await;
        assert_eq!((&job["state"], &job["due_at"]), (&json!("running"), &touched.json["until"]), "{ttr}");
        not_yours(&server, &token, &before).await;
    }
    send(server.api("DELETE", &hold.ack(), &token)).await.expect(204);
    server.get(&token, &hold.path).await.expect(404);
    assert_eq!(post(&server, &token, &hold.to("touch"), "").await.expect(404).says(), "job not found");
    send(server.api("DELETE", &hold.ack(), &token)).await.expect(204);
}

async fn not_now(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let hold = held(&server, &token, 3).await;
    server.put(&token, "/api/ns/q", "behind").await.expect(201);
    let back = post(&server, &token, &hold.to("release"), "the printer is out of paper").await.expect(200);
    assert_eq!((back.says(), &back.json["remain_tries"]), ("released", &json!(2)), "{}", back.text);
    let job = shown(&server, &token, &hold.path).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("ready"), &json!("the printer is out of paper")));
    not_yours(&server, &token, &hold).await;

    let again = next(&server, &token).await;
    assert_eq!(again.path, hold.path, "at the head of its queue");
    let kept = post(&server, &token, &format!("{}&spend=0", again.to("release")), "").await.expect(200);
    assert_eq!(kept.json["remain_tries"], json!(2), "the try was given back: {}", kept.text);

    let again = next(&server, &token).await;
    let later = post(&server, &token, &format!("{}&delay=600.5", again.to("release")), "").await.expect(200);
    let job = shown(&server, &token, &hold.path).await;
    assert_eq!((&job["state"], &job["due_at"]), (&json!("delayed"), &later.json["due_at"]), "{}", later.text);
    assert_eq!(job["reason"], json!("the printer is out of paper"), "without a reason the last one is kept");
}

async fn a_release_without_tries_left_is_dead_unless_it_gives_its_try_back(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let hold = held(&server, &token, 1).await;
    let kept = post(&server, &token, &format!("{}&spend=0", hold.to("release")), "").await.expect(200);
    assert_eq!(kept.json["remain_tries"], json!(1), "{}", kept.text);
    let hold = next(&server, &token).await;
    let dead = post(&server, &token, &hold.to("release"), "no use").await.expect(200);
    assert_eq!(dead.json, json!({"msg": "dead"}));
    assert_eq!(server.size("/api/ns/q/deadletter").await, 1);
    let job = shown(&server, &token, &hold.path).await;
    assert_eq!((&job["state"], &job["remain_tries"]), (&json!("dead"), &json!(0)), "{job}");
    assert_eq!((&job["reason"], &job["key"]), (&json!("no use"), &Value::Null), "{job}");
    not_yours(&server, &token, &hold).await;
}

async fn never_again(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let hold = held(&server, &token, 9).await;
    let dead = post(&server, &token, &hold.to("bury"), "this is no address").await.expect(200);
    assert_eq!(dead.json, json!({"msg": "dead"}));
    let job = shown(&server, &token, &hold.path).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("dead"), &json!("this is no address")));
    server.get(&token, "/api/ns/q").await.expect(404);
}

async fn without_a_receipt_or_with_a_bad_reason_nothing_happens(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let hold = held(&server, &token, 2).await;
    for verb in ["touch", "release", "bury"] {
        for receipt in ["", "?receipt=", "?receipt=x", "?receipt=AAAAAAAAAAAAAAA"] {
            let refused = post(&server, &token, &format!("{}/{verb}{receipt}", hold.path), "").await;
            assert_eq!((refused.status, refused.says()), (400, "invalid receipt"), "{verb}{receipt}");
        }
        let nothing = post(&server, &token, &hold.to(verb).replace("/q/job/", "/other/job/"), "").await;
        assert_eq!((nothing.status, nothing.says()), (404, "job not found"), "{verb} in another queue");
        let nothing =
            post(&server, &token, &format!("/api/ns/q/job/x/{verb}?receipt={}", hold.receipt), "").await;
        assert_eq!((nothing.status, nothing.says()), (404, "job not found"), "{verb} of no id");
        post(&server, "", &hold.to(verb), "").await.expect(401);
    }
    for bad in ["ttr=0", "ttr=x", "ttr=1.2345", "ttr=4294967296"] {
        post(&server, &token, &format!("{}&{bad}", hold.to("touch")), "").await.expect(400);
    }
    for bad in ["delay=x", "spend=2", "spend="] {
        post(&server, &token, &format!("{}&{bad}", hold.to("release")), "").await.expect(400);
    }
    for verb in ["release", "bury"] {
        let large = post(&server, &token, &hold.to(verb), "x".repeat(4097)).await.expect(413);
        assert_eq!(large.says(), "reason too large");
        let odd = send(server.api("POST", &hold.to(verb), &token).body(vec![0xff])).await.expect(400);
        assert_eq!(odd.says(), "the reason should be UTF-8");
    }
    send(server.api("DELETE", &format!("{}?receipt=x", hold.path), &token)).await.expect(400);
    assert_eq!(shown(&server, &token, &hold.path).await["state"], json!("running"), "a refusal changed it");
    post(&server, &token, &hold.to("bury"), "é".repeat(2048)).await.expect(200);
}

/// Guards against a slow worker that takes the job from the next one.
async fn a_hand_over_whose_ttr_is_over_is_nobodys(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q?tries=3", "x").await.expect(201);
    let late = server.get(&token, "/api/ns/q?receipt=1&ttr=1").await.expect(200);
    let late = Hold::of(&late.json);
    let next = next(&server, &token).await;
    assert_eq!(next.path, late.path, "it was redelivered");
    not_yours(&server, &token, &late).await;
    send(server.api("DELETE", &next.ack(), &token)).await.expect(204);
}

async fn many_are_acked_each_by_itself(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q/bulk?tries=3", "[1,2,3,4]").await.expect(201);
    let four = server.get(&token, "/api/ns/q?receipt=1&count=4&ttr=600").await.expect(200);
    let jobs: Vec<(String, String)> =
        four.json.as_array().into_iter().flatten().map(|job| (job_id(job), Hold::of(job).receipt)).collect();
    let [a, b, c, _] = &jobs[..] else { panic!("four jobs were expected: {}", four.text) };
    // b is touched, so its first receipt is invalid.
    post(&server, &token, &format!("/api/ns/q/job/{}/touch?receipt={}&ttr=600", b.0, b.1), "")
        .await
        .expect(200);
    let body = json!({"jobs": [
        {"id": a.0, "receipt": a.1},
        {"id": b.0, "receipt": b.1},
        c.0,
        "no id",
        {"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "receipt": a.1},
    ]});
    let acked = post(&server, &token, "/api/ns/q/ack", &body).await.expect(200);
    assert_eq!(acked.json, json!({"acked": 4, "stale": [b.0]}));
    for (job, there) in jobs.iter().zip([404, 200, 404, 200]) {
        server.get(&token, &format!("/api/ns/q/job/{}", job.0)).await.expect(there);
    }
    for (body, says) in [
        (json!({"jobs": []}), "no jobs"),
        (json!({"jobs": vec!["x"; 101]}), "too many jobs"),
        (json!({"jobs": [b.0, {"id": b.0, "receipt": "x"}]}), "invalid receipt"),
        (
            json!({"jobs": [{"receipt": "x"}]}),
            "the body should be {\"jobs\":[..]}, each an id or {\"id\",\"receipt\"}",
        ),
        (json!(["x"]), "the body should be {\"jobs\":[..]}, each an id or {\"id\",\"receipt\"}"),
    ] {
        let refused = post(&server, &token, "/api/ns/q/ack", &body).await;
        assert_eq!((refused.status, refused.says()), (400, says), "{body}");
    }
    let hundred = json!({"jobs": vec![json!({"id": "x".repeat(27), "receipt": a.1}); 100]});
    let acked = post(&server, &token, "/api/ns/q/ack", &hundred).await.expect(200);
    assert_eq!(acked.json, json!({"acked": 100, "stale": []}));
    server.get(&token, &format!("/api/ns/q/job/{}", b.0)).await.expect(200);
}

/// Guards against reporting a job as missing without having searched for it.
#[tokio::test]
async fn a_respawn_says_how_far_it_has_looked() {
    let redis = RedisServer::start();
    let mut conn = redis.connection();
    let server = TestServer::on(Store::Redis(redis)).await;
    let token = server.token("ns").await;
    let alive = server.put(&token, "/api/ns/q?ttl=0", "x").await.expect(201).job_id();
    let fill = "for i = 1, 200001 do redis.call('LPUSH', 'd/ns/q', struct.pack('<HH', 1, 5) .. i) end";
    redis::cmd("EVAL").arg(fill).arg(0).exec(&mut conn).expect("EVAL");
    let path = format!("/api/ns/q/job/{alive}/respawn");
    let refused = post(&server, &token, &path, "").await.expect(409);
    assert_eq!(refused.json["error"], "the job is not dead, or not near an end of the dead letter");
    let up =
        post(&server, &token, "/api/ns/q/deadletter/respawn", &json!({"jobs": [&alive]})).await.expect(200);
    assert_eq!(up.json, json!({"respawned": 0, "missing": [&alive]}));
    redis::cmd("RPOP").arg("d/ns/q").exec(&mut conn).expect("RPOP");
    let refused = post(&server, &token, &path, "").await.expect(409);
    assert_eq!(refused.json["error"], "the job is not dead", "it has looked at all");
}

/// Guards against a reply with a ready time for a job that has died.
async fn a_release_beyond_the_ttl_is_dead_with_its_reason(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q?tries=9&ttl=60", "x").await.expect(201);
    let hold = next(&server, &token).await;
    let path = format!("{}&delay=90", hold.to("release"));
    let released = post(&server, &token, &path, "the mail server is away").await.expect(200);
    assert_eq!(released.json, json!({"msg": "dead"}));
    let job = shown(&server, &token, &hold.path).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("dead"), &json!("the mail server is away")), "{job}");
    assert_eq!(server.size("/api/ns/q/deadletter").await, 1);
}

async fn a_delayed_job_is_due_now(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let later = server.put(&token, "/api/ns/q?delay=600&tries=3", "later").await.expect(201).job_id();
    let keyed =
        post(&server, &token, "/api/ns/q/jobs?delay=600&key=a%2Fb", "keyed").await.expect(201).job_id();
    let waits = crate::common::poll(&server, &token, "/api/ns/q?timeout=20&ttr=600");
    server.until_parked(1).await;
    let job = format!("/api/ns/q/job/{later}");
    let promoted = post(&server, &token, &format!("{job}/promote"), "").await.expect(200);
    assert_eq!(promoted.json, json!({"msg": "ready"}));
    let got = crate::common::ended(waits).await.expect(200);
    assert_eq!((got.job_id(), &got.json["remain_tries"]), (later.clone(), &json!(2)), "who waits gets it");
    let again = post(&server, &token, &format!("{job}/promote"), "").await.expect(409);
    assert_eq!(again.json, json!({"error": "the job is not delayed", "state": "running"}));
    // Operators get the same response.
    let again = send(server.admin("POST", &format!("{job}/promote"))).await.expect(409);
    assert_eq!(again.json, json!({"error": "the job is not delayed", "state": "running"}));

    let by_key = "/api/ns/q/key/a%2Fb/promote";
    server.put(&token, "/api/ns/q", "first").await.expect(201);
    assert_eq!(post(&server, &token, by_key, "").await.expect(200).says(), "ready");
    let again = post(&server, &token, by_key, "").await.expect(409);
    assert_eq!(again.json, json!({"error": "the job is not delayed", "state": "ready"}));
    for expected in ["first", "keyed"] {
        let got = server.get(&token, "/api/ns/q?ttr=600").await.expect(200);
        assert_eq!(got.data(), expected.as_bytes(), "behind those that are ready");
    }
    assert_eq!(shown(&server, &token, &format!("/api/ns/q/job/{keyed}")).await["key"], json!("a/b"));

    for (path, says) in [
        ("/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV/promote", "job not found"),
        ("/api/ns/q/job/x/promote", "job not found"),
        ("/api/ns/q/key/nobody/promote", "no job has this key"),
    ] {
        assert_eq!(post(&server, &token, path, "").await.expect(404).says(), says, "{path}");
    }
    post(&server, "", &format!("{job}/promote"), "").await.expect(401);
    post(&server, &token, "/api/ns/q/key/a%20b/promote", "").await.expect(400);
    let other = send(server.api("PUT", &format!("{job}/promote"), &token)).await;
    assert_eq!((other.status, other.says()), (404, "api not found"));
    // On the admin port the account replaces the token.
    let last = server.put(&token, "/api/ns/q?delay=600", "last").await.expect(201).job_id();
    let path = format!("/api/ns/q/job/{last}/promote");
    assert_eq!(send(server.admin("POST", &path)).await.expect(200).says(), "ready");
    assert_eq!(send(server.admin("POST", by_key)).await.expect(409).says(), "the job is not delayed");
}

async fn the_dead_are_respawned_by_id(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let mut dead = Vec::new();
    for _ in 0..3 {
        let hold = held(&server, &token, 1).await;
        post(&server, &token, &hold.to("bury"), "for a reason").await.expect(200);
        dead.push(hold.path);
    }
    let id = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
    let alive = server.put(&token, "/api/ns/q?delay=600", "x").await.expect(201).job_id();

    let up = post(&server, &token, &format!("{}/respawn?tries=2&delay=600.5&ttl=700", dead[0]), "")
        .await
        .expect(200);
    assert_eq!(up.says(), "respawned");
    let job = shown(&server, &token, &dead[0]).await;
    assert_eq!((&job["state"], &job["due_at"]), (&json!("delayed"), &up.json["due_at"]), "{job}");
    assert_eq!((&job["remain_tries"], &job["reason"]), (&json!(2), &json!("for a reason")), "{job}");
    let again = post(&server, &token, &format!("{}/respawn", dead[0]), "").await.expect(409);
    assert_eq!(again.says(), "the job is not dead");
    for path in ["/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV/respawn", "/api/ns/q/job/x/respawn"] {
        assert_eq!(post(&server, &token, path, "").await.expect(404).says(), "job not found");
    }
    for bad in ["tries=0", "tries=x", "delay=x", "ttl=x", "delay=2&ttl=1", "delay=2&ttl=2"] {
        post(&server, &token, &format!("{}/respawn?{bad}", dead[1]), "").await.expect(400);
    }

    let body = json!({"jobs": ["x", id(&dead[1]), alive, id(&dead[2]), "01ARZ3NDEKTSV4RRFFQ69G5FAV"]});
    let up = post(&server, &token, "/api/ns/q/deadletter/respawn", &body).await.expect(200);
    assert_eq!(up.json, json!({"respawned": 2, "missing": ["x", alive, "01ARZ3NDEKTSV4RRFFQ69G5FAV"]}));
    assert_eq!(server.size("/api/ns/q/deadletter").await, 0);
    until("both are ready", async || server.size("/api/ns/q").await == 2).await;
    for bad in [json!({"jobs": []}), json!({"jobs": vec!["x"; 101]}), json!({"jobs": [1]}), json!([])] {
        post(&server, &token, "/api/ns/q/deadletter/respawn", &bad).await.expect(400);
    }
}

on_each_store!(
    a_consume_shows_receipts_when_it_is_asked_to,
    whoever_lost_the_answer_to_a_touch_asks_for_the_receipt,
    still_working,
    not_now,
    a_release_without_tries_left_is_dead_unless_it_gives_its_try_back,
    never_again,
    without_a_receipt_or_with_a_bad_reason_nothing_happens,
    a_hand_over_whose_ttr_is_over_is_nobodys,
    many_are_acked_each_by_itself,
    a_release_beyond_the_ttl_is_dead_with_its_reason,
    a_delayed_job_is_due_now,
    the_dead_are_respawned_by_id,
);

on_a_cluster!(
    a_consume_shows_receipts_when_it_is_asked_to,
    still_working,
    not_now,
    a_release_without_tries_left_is_dead_unless_it_gives_its_try_back,
    never_again,
    without_a_receipt_or_with_a_bad_reason_nothing_happens,
    a_hand_over_whose_ttr_is_over_is_nobodys,
    many_are_acked_each_by_itself,
    the_dead_are_respawned_by_id,
);
