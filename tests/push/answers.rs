//! Requests of a pushed queue, and what happens to the job after each response. docs/push.md has the table of
//! responses; each of its rows is a row of a table here.

use std::time::Duration;

use crate::pushed::{Pushed, http_date, seconds_until, verifies};
use crate::receiver::{Answer, Receiver, nobody};
use crate::support::client::{data, send};
use crate::support::servers::{Store, on_each_store};
use crate::support::wait::until;
use serde_json::{Value, json};

async fn a_delivery_says_what_it_delivers(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    let set = pushed.push_to(&receiver, "q", json!({"headers": {"Authorization": "Bearer abc"}})).await;
    let secret =
        set["secret"].as_str().unwrap_or_else(|| panic!("a secret was expected in {set}")).to_owned();
    let request = crate::support::client::request("PUT", &pushed.url("/api/ns/q?tries=3"), &pushed.token);
    let attributes = [
        ("Enable-Job-Version", "yes"),
        ("Job-Attr-Tenant", "blue"),
        ("Job-Attr-Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("Job-Attr-Content-Type", "application/json"),
    ];
    let request = attributes.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let id = send(request.body(r#"{"to":"ann"}"#)).await.expect(201).job_id();
    pushed.until_gone("q", &id).await;
    let plain = pushed.publish("q", "", "plain").await;
    pushed.until_gone("q", &plain).await;

    let arrived = receiver.arrived();
    let [first, second] = &arrived[..] else { panic!("two requests were expected: {arrived:?}") };
    assert_eq!((first.method.as_str(), first.target.as_str()), ("POST", "/q"));
    assert_eq!(first.text(), r#"{"to":"ann"}"#);
    for (name, value) in [
        ("webhook-id", id.as_str()),
        ("dormouse-namespace", "ns"),
        ("dormouse-queue", "q"),
        ("dormouse-attempt", "1"),
        ("dormouse-remaining-tries", "2"),
        ("job-attr-tenant", "blue"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("content-type", "application/json"),
        ("authorization", "Bearer abc"),
        ("user-agent", concat!("Dormouse/", env!("CARGO_PKG_VERSION"))),
        ("host", receiver.addr().to_string().as_str()),
    ] {
        assert_eq!(first.header(name), value, "the header {name} of {first:?}");
    }
    let due = -seconds_until(&json!(first.header("dormouse-due")));
    assert!((0.0..60.0).contains(&due), "it was due a moment ago, not {due} s: {first:?}");
    assert_eq!(second.header("content-type"), "application/octet-stream", "{second:?}");
    assert_eq!(second.header("dormouse-remaining-tries"), "0", "{second:?}");
    for request in &arrived {
        verifies(&secret, request).unwrap_or_else(|e| panic!("the reference library verifies it: {e}"));
        let wrong = format!("whsec_{}", "A".repeat(43) + "=");
        verifies(&wrong, request).expect_err("another secret does not");
    }
}

/// The id is the same for each attempt, so that a receiver can deduplicate; the rest of the signature is not.
async fn each_attempt_is_counted_and_waits_for_its_delay(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    let set = pushed.push_to(&receiver, "q", json!({"retry": [1, 2]})).await;
    receiver.answer_in_turn([500, 500, 500, 200].map(Answer::status));
    let id = pushed.publish("q", "tries=5", "again").await;
    pushed.until_gone("q", &id).await;
    let arrived = receiver.arrived();
    let attempts: Vec<(u32, &str)> =
        arrived.iter().map(|one| (one.attempt(), one.header("dormouse-remaining-tries"))).collect();
    assert_eq!(attempts, [(1, "4"), (2, "3"), (3, "2"), (4, "1")]);
    for (i, least) in [0.9, 1.8, 1.8].into_iter().enumerate() {
        let pause = (arrived[i + 1].at - arrived[i].at).as_secs_f64();
        assert!(pause >= least, "attempt {} came {pause} s after the one before, not {least}", i + 2);
    }
    let secret = set["secret"].as_str().expect("a secret");
    for request in &arrived {
        assert_eq!(request.job_id(), id);
        verifies(secret, request).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Expected state of a job with two tries.
#[derive(Debug)]
enum Becomes {
    Acked,
    /// Delayed by a number of seconds in this range; one try is used.
    Released(f64, f64),
    Dead,
}

/// A row: its name, the response, the setting besides the URL, and the expected state.
type Row = (&'static str, Answer, Value, Becomes);

/// Publishes a job with two tries to each row's queue, and checks its state. Each row has a receiver of its own: a
/// request on a connection kept from another row would be sent once more when the receiver closes it.
async fn play(pushed: &Pushed, rows: Vec<Row>) {
    let mut played = Vec::new();
    for (i, (_, answer, fields, _)) in rows.iter().enumerate() {
        let queue = format!("row{i}");
        let receiver = Receiver::start().await;
        let scripted = answer.clone();
        receiver.answer(move |_| scripted.clone());
        let timeout = if matches!(answer, Answer::Hang | Answer::Part(_)) { 1 } else { 30 };
        let mut with_retry = json!({"retry": [600], "timeout": timeout});
        with_retry.as_object_mut().expect("an object").extend(fields.as_object().expect("fields").clone());
        pushed.push_to(&receiver, &queue, with_retry).await;
        played.push((pushed.publish(&queue, "tries=2&ttl=0", "body").await, receiver));
    }
    for (i, (name, _, _, becomes)) in rows.iter().enumerate() {
        let (queue, (id, receiver)) = (format!("row{i}"), &played[i]);
        match becomes {
            Becomes::Acked => pushed.until_gone(&queue, id).await,
            Becomes::Released(from, to) => {
                let job = pushed.until_job(&queue, id, "delayed").await;
                let seconds = seconds_until(&job["due_at"]);
                assert!(
                    *from - 60.0 <= seconds && seconds <= *to,
                    "{name}: due in {from} to {to} s, not {seconds}: {job}"
                );
                assert_eq!(job["remain_tries"], json!(1), "{name}: a try is spent: {job}");
                assert!(job["reason"].is_string(), "{name}: it says why: {job}");
            }
            Becomes::Dead => {
                let job = pushed.until_job(&queue, id, "dead").await;
                assert!(job["reason"].is_string(), "{name}: it says why: {job}");
            }
        }
        assert_eq!(receiver.count(), 1, "{name}: it was called once");
    }
}

/// Six hundred seconds, plus or minus a tenth.
const RETRY: Becomes = Becomes::Released(540.0, 660.0);

async fn a_2xx_acks(store: Store) {
    let pushed = Pushed::on(store).await;
    let zero = json!({"ok_when": {"pointer": "/code", "equals": 0}});
    let deep = json!({"ok_when": {"pointer": "/data/0/state", "equals": "done"}});
    let whole = json!({"ok_when": {"pointer": "", "equals": {"ok": true}}});
    let rows = vec![
        ("200", Answer::status(200), json!({}), Becomes::Acked),
        ("201", Answer::status(201), json!({}), Becomes::Acked),
        ("202 with a body", Answer::with(202, &[], "queued"), json!({}), Becomes::Acked),
        ("204", Answer::Bytes(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()), json!({}), Becomes::Acked),
        ("299", Answer::status(299), json!({}), Becomes::Acked),
        (
            "200 with a body over 1 MiB",
            Answer::with(200, &[], vec![b'x'; 3 << 20]),
            json!({}),
            Becomes::Acked,
        ),
        ("200 whose body never ends", Answer::part("half"), json!({}), Becomes::Acked),
        ("200 with Retry-After", Answer::with(200, &[("Retry-After", "60")], ""), json!({}), Becomes::Acked),
        (
            "200 with Dormouse-Retry: no",
            Answer::with(200, &[("Dormouse-Retry", "no")], ""),
            json!({}),
            Becomes::Acked,
        ),
        ("ok_when holds", Answer::with(200, &[], r#"{"code":0,"msg":"ok"}"#), zero.clone(), Becomes::Acked),
        (
            "ok_when holds deep",
            Answer::with(200, &[], r#"{"data":[{"state":"done"}]}"#),
            deep,
            Becomes::Acked,
        ),
        ("ok_when holds of the whole", Answer::with(200, &[], r#"{"ok":true}"#), whole, Becomes::Acked),
    ];
    play(&pushed, rows).await;
}

async fn a_failure_releases_with_the_next_delay_and_spends_a_try(store: Store) {
    let pushed = Pushed::on(store).await;
    let elsewhere = Receiver::start().await;
    let ok = json!({"ok_when": {"pointer": "/code", "equals": 0}});
    let (none, location) = (json!({}), elsewhere.url("/"));
    let moved = |status| Answer::with(status, &[("Location", location.as_str())], "");
    let large = format!(r#"{{"code":0,"more":"{}"}}"#, "x".repeat(1 << 20));
    let mut rows = vec![
        ("ok_when: another value", Answer::with(200, &[], r#"{"code":1}"#), ok.clone(), RETRY),
        ("ok_when: another type", Answer::with(200, &[], r#"{"code":"0"}"#), ok.clone(), RETRY),
        ("ok_when: not there", Answer::with(200, &[], r#"{"state":0}"#), ok.clone(), RETRY),
        ("ok_when: no JSON", Answer::with(200, &[], "ok"), ok.clone(), RETRY),
        ("ok_when: no body", Answer::status(204), ok.clone(), RETRY),
        ("ok_when: JSON and more", Answer::with(200, &[], r#"{"code":0} x"#), ok.clone(), RETRY),
        ("ok_when: over 1 MiB", Answer::with(200, &[], large), ok.clone(), RETRY),
        ("ok_when: the body never ends", Answer::part(r#"{"code":0}"#), ok.clone(), RETRY),
        ("ok_when: a 500 that holds", Answer::with(500, &[], r#"{"code":0}"#), ok, RETRY),
        ("time-out", Answer::Hang, none.clone(), RETRY),
        ("time-out within the head", Answer::Part(b"HTTP/1.1 200 OK\r\nX: ".to_vec()), none.clone(), RETRY),
        ("reset", Answer::Reset, none.clone(), RETRY),
        ("closed without an answer", Answer::Close, none.clone(), RETRY),
        ("no HTTP", Answer::Bytes(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec()), none.clone(), RETRY),
        ("Dormouse-Retry: yes", Answer::with(500, &[("Dormouse-Retry", "yes")], ""), none.clone(), RETRY),
    ];
    for status in [301, 302, 303, 307, 308] {
        rows.push(("a redirect", moved(status), none.clone(), RETRY));
    }
    for status in [300, 304, 400, 401, 403, 404, 405, 408, 409, 413, 422, 429, 499] {
        rows.push(("3xx and 4xx", Answer::status(status), none.clone(), RETRY));
    }
    for status in [500, 501, 502, 503, 504, 599] {
        rows.push(("5xx", Answer::status(status), none.clone(), RETRY));
    }
    play(&pushed, rows).await;
    assert_eq!(elsewhere.count(), 0, "no redirect is followed");
}

/// Attempts that reach no endpoint.
async fn an_endpoint_that_cannot_be_reached_is_a_failed_attempt(store: Store) {
    let pushed = Pushed::on(store).await;
    let plain = Receiver::start().await;
    let urls = [
        ("refused", format!("http://{}/", nobody())),
        ("unknown host", "http://no-such-host.invalid/".to_owned()),
        ("TLS to a port without", format!("https://{}/", plain.addr())),
        ("a name that is forbidden", "http://localhost:1/".to_owned()),
    ];
    let mut jobs = Vec::new();
    for (i, (_, url)) in urls.iter().enumerate() {
        pushed.set(&format!("q{i}"), json!({"url": url, "retry": [600], "timeout": 5})).await;
        jobs.push(pushed.publish(&format!("q{i}"), "tries=2", "x").await);
    }
    for (i, (name, _)) in urls.iter().enumerate() {
        let job = pushed.until_job(&format!("q{i}"), &jobs[i], "delayed").await;
        assert_eq!(job["remain_tries"], json!(1), "{name}: a try is spent: {job}");
        assert!(job["reason"].as_str().is_some_and(|why| !why.is_empty()), "{name}: it says why: {job}");
    }
    assert_eq!(plain.count(), 0, "no request without TLS");
}

async fn retry_after_goes_before_retry(store: Store) {
    let pushed = Pushed::on(store).await;
    let after = |status, value: &str| Answer::with(status, &[("Retry-After", value)], "");
    let exactly = |seconds: f64| Becomes::Released(seconds, seconds);
    let day = 24.0 * 3600.0;
    let rows = vec![
        ("seconds", after(503, "300"), json!({}), exactly(300.0)),
        ("seconds of a 400", after(400, "300"), json!({}), exactly(300.0)),
        ("seconds of a 429", after(429, "4000"), json!({}), exactly(4000.0)),
        ("seconds of a redirect", after(302, "300"), json!({}), exactly(300.0)),
        ("a date", after(500, &http_date(5000)), json!({}), exactly(5001.0)),
        ("more than a day", after(500, "9999999"), json!({}), exactly(day)),
        ("a date in a week", after(500, &http_date(7 * 86400)), json!({}), exactly(day)),
        ("seconds without end", after(500, &"9".repeat(40)), json!({}), exactly(day)),
        ("no number and no date", after(500, "soon"), json!({}), RETRY),
        ("negative", after(500, "-5"), json!({}), RETRY),
    ];
    play(&pushed, rows).await;
}

/// A past date and zero seconds mean at once.
async fn a_retry_after_of_nothing_is_at_once(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    receiver.answer_in_turn([
        Answer::with(500, &[("Retry-After", "0")], ""),
        Answer::with(500, &[("Retry-After", past)], ""),
        Answer::status(200),
    ]);
    pushed.push_to(&receiver, "q", json!({"retry": [600]})).await;
    let id = pushed.publish("q", "tries=3", "x").await;
    pushed.until_gone("q", &id).await;
    assert_eq!(receiver.count(), 3);
}

async fn dormouse_retry_no_is_dead_at_once(store: Store) {
    let pushed = Pushed::on(store).await;
    let no = |status, value: &str| Answer::with(status, &[("Dormouse-Retry", value)], "no use");
    let both = Answer::with(503, &[("Dormouse-Retry", "no"), ("Retry-After", "60")], "");
    let ok = json!({"ok_when": {"pointer": "/code", "equals": 0}});
    let rows = vec![
        ("400", no(400, "no"), json!({}), Becomes::Dead),
        ("500", no(500, "No"), json!({}), Becomes::Dead),
        ("302", no(302, "no"), json!({}), Becomes::Dead),
        ("with Retry-After", both, json!({}), Becomes::Dead),
        ("ok_when not held", no(200, "no"), ok, Becomes::Dead),
    ];
    play(&pushed, rows).await;
}

async fn without_tries_left_it_is_dead_and_on_dead_is_told(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::with(500, &[], "the printer is on fire"));
    pushed.push_to(&receiver, "q", json!({"retry": [0], "on_dead": "failed"})).await;
    let id = pushed.publish("q", "tries=3&ttl=0", "print this").await;
    let job = pushed.until_job("q", &id, "dead").await;
    assert_eq!(receiver.count(), 3, "as often as it has tries");
    assert!(
        job["reason"].as_str().is_some_and(|why| why.contains("500")),
        "the reason names the status: {job}"
    );
    let told = pushed.api("GET", "/api/ns/failed?timeout=20", "").await.expect(200);
    let told: Value = serde_json::from_slice(&told.data()).expect("JSON");
    assert_eq!((&told["job_id"], &told["queue"]), (&json!(id), &json!("q")), "{told}");
    assert_eq!((&told["attempts"], &told["last_status"]), (&json!(3), &json!(500)), "{told}");
    assert_eq!(told["reason"], json!("status 500"), "{told}");
    assert_eq!(data(&told), b"print this", "{told}");
    assert_eq!(told.as_object().map(|all| all.len()), Some(6), "no other field: {told}");

    // One queue without any response, and one whose job died at once.
    pushed.set("gone", json!({"url": format!("http://{}/", nobody()), "on_dead": "failed"})).await;
    pushed.publish("gone", "", "x").await;
    let told = pushed.api("GET", "/api/ns/failed?timeout=20", "").await.expect(200);
    let told: Value = serde_json::from_slice(&told.data()).expect("JSON");
    assert_eq!((&told["last_status"], &told["attempts"]), (&Value::Null, &json!(1)), "{told}");
    receiver.answer(|_| Answer::with(422, &[("Dormouse-Retry", "no")], ""));
    pushed.publish("q", "tries=9", "x").await;
    let told = pushed.api("GET", "/api/ns/failed?timeout=20", "").await.expect(200);
    let told: Value = serde_json::from_slice(&told.data()).expect("JSON");
    assert_eq!((&told["last_status"], &told["attempts"]), (&json!(422), &json!(1)), "{told}");
}

async fn a_410_turns_push_off_and_gives_the_try_back(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::status(410));
    pushed.push_to(&receiver, "q", json!({"concurrency": 1, "retry": [600]})).await;
    let ids = [pushed.publish("q", "tries=2", "a").await, pushed.publish("q", "tries=2", "b").await];
    pushed.until_state("q", "off").await;
    for id in &ids {
        let job = pushed.until_job("q", id, "ready").await;
        assert_eq!(job["remain_tries"], json!(2), "its tries are as they were: {job}");
    }
    assert_eq!(receiver.count(), 1, "nothing is sent after a 410");
    receiver.answer(|_| Answer::status(200));
    pushed.admin("POST", "/push/ns/q/resume", "").await.expect(200);
    for id in &ids {
        pushed.until_gone("q", id).await;
    }
    assert_eq!(pushed.state("q").await, "on");
    let bodies: Vec<String> = receiver.arrived().iter().map(|request| request.text()).collect();
    assert_eq!(bodies, ["a", "a", "b"], "the job that was given back stayed at the head");

    // A PUT turns it on too.
    receiver.answer(|_| Answer::status(410));
    let id = pushed.publish("q", "", "c").await;
    pushed.until_state("q", "off").await;
    receiver.answer(|_| Answer::status(200));
    pushed.push_to(&receiver, "q", json!({})).await;
    pushed.until_gone("q", &id).await;
}

async fn a_status_that_is_no_2xx_decides_also_when_its_body_never_comes(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::Part(b"HTTP/1.1 410 Gone\r\nContent-Length: 9\r\n\r\nx".to_vec()));
    let ok_when = json!({"pointer": "/code", "equals": 0});
    pushed.push_to(&receiver, "q", json!({"ok_when": ok_when, "timeout": 4})).await;
    let id = pushed.publish("q", "tries=2", "a").await;
    pushed.until_state("q", "off").await;
    let job = pushed.until_job("q", &id, "ready").await;
    assert_eq!(job["remain_tries"], json!(2), "a 410 gives the try back: {job}");
}

async fn a_cloudevent_is_the_same_body_with_its_headers(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    let set = pushed.push_to(&receiver, "q", json!({"format": "cloudevents", "method": "PUT"})).await;
    let id = pushed.publish("q", "", "body").await;
    pushed.until_gone("q", &id).await;
    let arrived = receiver.arrived();
    let request = &arrived[0];
    assert_eq!((request.method.as_str(), request.text().as_str()), ("PUT", "body"));
    assert_eq!(
        (request.header("ce-specversion"), request.header("ce-id")),
        ("1.0", id.as_str()),
        "{request:?}"
    );
    assert!(!request.header("ce-source").is_empty() && !request.header("ce-type").is_empty(), "{request:?}");
    verifies(set["secret"].as_str().expect("a secret"), request).unwrap_or_else(|e| panic!("{e}"));
}

/// Guards against a push that takes jobs without a free slot, as lmstfy's did.
async fn nothing_is_taken_that_cannot_be_sent_now(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::status(200).held());
    pushed.push_to(&receiver, "q", json!({"concurrency": 2, "timeout": 300})).await;
    let mut ids = Vec::new();
    for body in ["a", "b", "c", "d", "e"] {
        ids.push(pushed.publish("q", "", body).await);
    }
    receiver.until(2).await;
    assert_eq!(pushed.size("q").await, 3, "the others are ready");
    // Consumers can still get ready jobs.
    let by_hand = pushed.api("GET", "/api/ns/q", "").await.expect(200);
    assert_eq!(by_hand.data(), b"c", "the next one");
    until("two in flight are shown", async || pushed.shown("q").await["counts"]["in_flight"] == 2).await;
    let running = pushed.job("q", &ids[0]).await.unwrap_or_default();
    let ttr = seconds_until(&running["due_at"]);
    assert!((250.0..=310.0).contains(&ttr), "its ttr is the timeout and ten seconds: {running}");
    receiver.release(4);
    for id in [&ids[0], &ids[1], &ids[3], &ids[4]] {
        pushed.until_gone("q", id).await;
    }
    assert_eq!(receiver.most_in_flight(), 2);
    assert_eq!(receiver.count(), 4);
}

async fn one_at_a_time_is_strictly_in_order(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|request| {
        Answer::status(if request.text() == "3" && request.attempt() == 1 { 500 } else { 200 })
    });
    pushed.push_to(&receiver, "q", json!({"concurrency": 1, "retry": [1]})).await;
    pushed.admin("POST", "/push/ns/q/pause", "").await.expect(200);
    let mut last = String::new();
    for body in 1..=20 {
        last = pushed.publish("q", "tries=2", &body.to_string()).await;
    }
    pushed.admin("POST", "/push/ns/q/resume", "").await.expect(200);
    pushed.until_gone("q", &last).await;
    let arrived = receiver.until(21).await;
    let bodies: Vec<String> = arrived.iter().map(|request| request.text()).collect();
    let before: Vec<&String> =
        bodies.iter().enumerate().filter(|(i, b)| *b != "3" || *i == 2).map(|(_, b)| b).collect();
    assert_eq!(before, (1..=20).map(|n| n.to_string()).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    assert_eq!(receiver.most_in_flight(), 1);
}

/// At most `rate` requests in any `per` seconds.
async fn a_rate_holds_in_any_interval(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    pushed.push_to(&receiver, "q", json!({"rate": 5, "per": 4, "concurrency": 50})).await;
    for _ in 0..11 {
        pushed.publish("q", "", "x").await;
    }
    let arrived = receiver.until(11).await;
    for six in arrived.windows(6) {
        let took = six[5].at - six[0].at;
        // At most five begin in four seconds; they may arrive closer together.
        assert!(took > Duration::from_secs(3), "six requests came within {took:?}");
    }
}

/// 429 and similar responses halve the requests in flight; each success adds one.
async fn an_endpoint_that_is_overloaded_gets_fewer_at_a_time(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    let answered = |request: &crate::receiver::Arrived| {
        let busy = request.text() == "busy";
        Answer::status(if busy { 429 } else { 200 }).held()
    };
    receiver.answer(answered);
    pushed.push_to(&receiver, "q", json!({"concurrency": 8, "retry": [600], "timeout": 60})).await;
    for _ in 0..8 {
        pushed.publish("q", "tries=2", "busy").await;
    }
    receiver.until(8).await;
    for _ in 0..60 {
        pushed.publish("q", "", "fine").await;
    }
    receiver.release(8);
    // Half the previous number, plus one per success, up to eight.
    for limit in [4, 5, 6, 7, 8, 8, 8] {
        let what = format!("{limit} in flight");
        receiver.until_so(&what, |receiver| receiver.count() > 8 && receiver.in_flight() == limit).await;
        receiver.release(1);
    }
    let arrived = receiver.arrived();
    let (busy, fine) = arrived.split_at(8);
    assert!(busy.iter().all(|request| request.text() == "busy"), "the busy ones came first");
    for request in fine {
        let (refusals, successes) = (8 - request.answered.min(8), request.answered.saturating_sub(8));
        // While the refusals arrive, the others are still in flight.
        let most = (4 + successes + refusals).min(8);
        assert!(request.in_flight <= most, "{} in flight after {successes} successes", request.in_flight);
    }
    receiver.release(100);
}

async fn a_pause_holds_pushes_and_lets_consumers_consume(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    pushed.push_to(&receiver, "q", json!({})).await;
    pushed.admin("POST", "/push/ns/q/pause", "").await.expect(200);
    assert_eq!(pushed.state("q").await, "paused");
    tokio::time::sleep(Duration::from_secs(1)).await; // the contract: within a second
    let id = pushed.publish("q", "", "x").await;
    let by_hand = pushed.api("GET", "/api/ns/q?timeout=20&receipt=1&ttr=60", "").await.expect(200);
    let receipt = by_hand.json["receipt"].as_str().expect("a receipt").to_owned();
    assert_eq!(by_hand.job_id(), id);
    pushed
        .api("POST", &format!("/api/ns/q/job/{id}/release?receipt={receipt}&spend=0"), "")
        .await
        .expect(200);
    assert_eq!(receiver.count(), 0, "nothing is sent while it is paused");
    pushed.admin("POST", "/push/ns/q/resume", "").await.expect(200);
    pushed.until_gone("q", &id).await;
    assert_eq!(receiver.count(), 1);
}

async fn jobs_stay_when_push_is_deleted(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::status(200).held());
    pushed.push_to(&receiver, "q", json!({"concurrency": 1})).await;
    let under_way = pushed.publish("q", "", "under way").await;
    receiver.until(1).await;
    let waits = pushed.publish("q", "", "waits").await;
    pushed.admin("DELETE", "/push/ns/q", "").await.expect(204);
    tokio::time::sleep(Duration::from_secs(1)).await; // the contract: within a second
    receiver.release(1);
    // Its response counts.
    pushed.until_gone("q", &under_way).await;
    let job = pushed.until_job("q", &waits, "ready").await;
    assert_eq!(job["remain_tries"], json!(1), "{job}");
    pushed.admin("GET", "/push/ns/q", "").await.expect(404);
    let by_hand = pushed.api("GET", "/api/ns/q?timeout=20", "").await.expect(200);
    assert_eq!((by_hand.job_id(), receiver.count()), (waits, 1));
}

/// The queue's own pause stops its pushes too.
async fn a_paused_queue_is_not_pushed(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    pushed.api("POST", "/api/ns/q/pause", "").await.expect(200);
    pushed.push_to(&receiver, "q", json!({})).await;
    let id = pushed.publish("q", "", "x").await;
    let other = Receiver::start().await;
    pushed.push_to(&other, "other", json!({})).await;
    let later = pushed.publish("other", "", "x").await;
    pushed.until_gone("other", &later).await;
    assert_eq!(receiver.count(), 0, "the queue is paused");
    pushed.api("POST", "/api/ns/q/resume", "").await.expect(200);
    pushed.until_gone("q", &id).await;
}

async fn the_last_attempts_and_the_counts_are_shown(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    let long = "y".repeat(5000);
    receiver.answer(move |request| match request.text().as_str() {
        "bad" => Answer::with(500, &[], &long),
        _ => Answer::with(200, &[], "fine"),
    });
    pushed.push_to(&receiver, "q", json!({"concurrency": 1})).await;
    for _ in 0..24 {
        pushed.publish("q", "", "good").await;
    }
    let bad = pushed.publish("q", "", "bad").await;
    pushed.until_job("q", &bad, "dead").await;
    let mut shown = json!({});
    until("the counts are 24 and 1", async || {
        shown = pushed.shown("q").await;
        let counts = &shown["counts"];
        counts["delivered"] == 24 && counts["failed"] == 1 && counts["dead"] == 1 && counts["in_flight"] == 0
    })
    .await;
    let attempts = shown["attempts"].as_array().unwrap_or_else(|| panic!("attempts were expected: {shown}"));
    assert_eq!(attempts.len(), 20, "the last twenty: {shown}");
    let last =
        attempts.iter().find(|one| one["job_id"] == json!(bad)).unwrap_or_else(|| panic!("{bad}: {shown}"));
    assert_eq!(last["status"], json!(500), "{last}");
    assert_eq!(last["answer"].as_str().map(str::len), Some(1024), "the first KiB of the answer: {last}");
    let at = -seconds_until(&last["time"]);
    assert!((0.0..60.0).contains(&at) && last["milliseconds"].is_number(), "{last}");
}

on_each_store!(
    a_delivery_says_what_it_delivers,
    each_attempt_is_counted_and_waits_for_its_delay,
    a_2xx_acks,
    a_failure_releases_with_the_next_delay_and_spends_a_try,
    an_endpoint_that_cannot_be_reached_is_a_failed_attempt,
    retry_after_goes_before_retry,
    a_retry_after_of_nothing_is_at_once,
    dormouse_retry_no_is_dead_at_once,
    without_tries_left_it_is_dead_and_on_dead_is_told,
    a_410_turns_push_off_and_gives_the_try_back,
    a_status_that_is_no_2xx_decides_also_when_its_body_never_comes,
    a_cloudevent_is_the_same_body_with_its_headers,
    nothing_is_taken_that_cannot_be_sent_now,
    one_at_a_time_is_strictly_in_order,
    a_rate_holds_in_any_interval,
    an_endpoint_that_is_overloaded_gets_fewer_at_a_time,
    a_pause_holds_pushes_and_lets_consumers_consume,
    jobs_stay_when_push_is_deleted,
    a_paused_queue_is_not_pushed,
    the_last_attempts_and_the_counts_are_shown,
);
