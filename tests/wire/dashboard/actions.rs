//! Changes made by forms.

use serde_json::json;

use super::{browse, browse_whole, dead_job, submit};
use crate::support::client::send;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};

async fn a_queue_is_paused_and_resumed(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    server.sampled().await;
    let queue = "queues/default/shop/q?state=ready";
    let page = browse(&server, queue).await.expect(200);
    assert!(page.has_button("Pause queue") && !page.has_button("Resume queue"));
    let page = submit(&server, queue, &[("do", "pause"), ("for", "600")]).await.expect(200);
    page.says("The queue is paused.");
    assert_eq!(server.get(&token, "/api/shop/q").await.status, 404, "nobody gets a job");
    server.sampled().await;
    let page = browse(&server, queue).await.expect(200);
    page.says("The queue is paused until").says("paused, with ready jobs").says_not("The queue is paused.");
    assert!(page.has_button("Resume queue"));
    submit(&server, queue, &[("do", "resume")]).await.expect(200).says("The queue is resumed.");
    server.get(&token, "/api/shop/q").await.expect(200);
    submit(&server, queue, &[("do", "pause"), ("for", "soon")])
        .await
        .expect(400)
        .says("Not done: invalid for");
    submit(&server, queue, &[("do", "explode")]).await.expect(400);
    // No link can make a page show arbitrary text.
    browse(&server, &format!("{queue}&done=<b>all%20is%20well</b>")).await.says_not("all is well");
}

async fn dead_jobs_are_respawned_and_cancelled(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    let mut jobs = Vec::new();
    for n in 0..3 {
        jobs.push(dead_job(&server, &token, "q", &n.to_string(), "why").await);
    }
    let dead = "queues/default/shop/q?state=dead";
    let page = browse(&server, dead).await.expect(200);
    assert_eq!(page.all("input").filter(|box_| box_.get("name") == Some("job")).count(), 3);
    submit(&server, dead, &[("do", "respawn"), ("job", &jobs[0])])
        .await
        .expect(200)
        .says("1 job was respawned.");
    assert_eq!(server.size("/api/shop/q").await, 1);
    submit(&server, dead, &[("do", "respawn")]).await.expect(200).says("No job was selected");
    // Requires a confirmation.
    submit(&server, dead, &[("do", "cancel"), ("job", &jobs[1])]).await.expect(400);
    assert_eq!(server.size("/api/shop/q/deadletter").await, 2);
    let asks =
        browse(&server, &format!("{dead}&ask=cancel&job={}&job={}", jobs[1], jobs[2])).await.expect(200);
    asks.says("Delete 2 jobs of shop/q").says(&jobs[1]);
    assert_eq!(asks.link("Back"), "?state=dead");
    let sure = [("do", "cancel"), ("sure", "yes"), ("job", &*jobs[1]), ("job", &*jobs[2])];
    submit(&server, dead, &sure).await.expect(200).says("2 jobs were deleted.");
    for job in &jobs[1..] {
        browse(&server, &format!("jobs/default/shop/q/{job}")).await.expect(404);
    }

    // A job's own page.
    let id = dead_job(&server, &token, "r", "x", "why").await;
    let job = format!("jobs/default/shop/r/{id}");
    submit(&server, &job, &[("do", "respawn")]).await.expect(200).says("1 job was respawned.").says("ready");
    submit(&server, &job, &[("do", "respawn")]).await.expect(409).says("Not done: the job is not dead");
    browse(&server, &format!("{job}?ask=cancel")).await.expect(200).says("cannot be brought back");
    submit(&server, &job, &[("do", "cancel"), ("sure", "yes")])
        .await
        .expect(200)
        .says("1 job was cancelled.");
    browse(&server, &job).await.expect(404);
}

async fn a_job_is_published_once(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    let form = "publish/default/shop?queue=q";
    let page = browse(&server, form).await.expect(200);
    page.says("A real worker will get it");
    assert_eq!(page.field("queue"), "q");
    let mark = page.field("mark");
    let job = [
        ("queue", "q"),
        ("mark", &*mark),
        ("body", "one\r\ntwo ü <b>"),
        ("tries", "3"),
        ("ttl", ""),
        ("key", "order-7"),
        ("attributes", "kind: test\r\n"),
    ];
    for _ in 0..2 {
        submit(&server, form, &job)
            .await
            .expect(200)
            .says("The job is published.")
            .says("order-7")
            .says("kind");
    }
    assert_eq!(server.size("/api/shop/q").await, 1, "a form that is sent twice publishes once");
    let got = server.get(&token, "/api/shop/q").await.expect(200);
    assert_eq!((got.data(), &got.json["remain_tries"]), ("one\ntwo ü <b>".into(), &json!(2)));
    for (field, value, says) in [
        ("delay", "soon", "invalid delay"),
        ("tries", "0", "tries shouldn't be zero"),
        ("at", "never", "invalid at"),
        ("attributes", "novalue", "invalid attribute: write each on a line"),
        ("queue", "", "the queue needs a name"),
        ("queue", "a b", "queue name contains forbidden characters"),
    ] {
        let mut given = vec![("queue", "q"), ("mark", "m"), ("body", "<kept>"), (field, value)];
        given.retain(|(name, of)| *name != field || *of == value);
        let page = submit(&server, form, &given).await.expect(400);
        page.says(&format!("Not done: {says}"));
        assert_eq!(page.field("body").trim_start(), "<kept>", "the input is kept");
        assert_eq!(page.field(field).trim_start(), value);
    }
    let large = "x".repeat((64 << 10) + 1);
    let page = submit(&server, form, &[("queue", "q"), ("body", &large)]).await.expect(400);
    page.says("Not done: a body in this form can have at most 64 KiB");
    assert_eq!(page.field("body").trim_start(), large);
    assert_eq!(server.size("/api/shop/q").await, 0, "nothing more was published");
}

on_each_store!(a_queue_is_paused_and_resumed, dead_jobs_are_respawned_and_cancelled, a_job_is_published_once);

#[tokio::test]
async fn a_token_is_shown_once() {
    let server = TestServer::on_disk().await;
    let tokens = "tokens/default/shop";
    let page = browse(&server, tokens).await.expect(200);
    page.says("The namespace has no token");
    let mark = page.field("mark");
    let form = [("do", "create"), ("mark", &*mark), ("description", "the \"mailer\"")];
    let page = submit(&server, tokens, &form).await.expect(200);
    page.says("It is shown this once");
    let token = page.all("pre").next().expect("a token").text.clone();
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    submit(&server, tokens, &form).await.expect(200).says("This form was sent before");
    let list = browse(&server, tokens).await.expect(200);
    list.says("the \"mailer\"").says("none");
    let secret = token.rsplit(':').next().expect("a secret");
    assert!(!list.answer.text.contains(secret), "not shown again");
    let hash = list.field("hash");
    let limit = [("do", "limit"), ("hash", &*hash), ("read", "0"), ("write", "1"), ("interval", "600")];
    submit(&server, tokens, &limit)
        .await
        .expect(200)
        .says("The limit is set.")
        .says("1 publishes, any consumes in 600 s");
    let bad = [("do", "limit"), ("hash", &*hash), ("read", "0"), ("write", "0"), ("interval", "77")];
    let page = submit(&server, tokens, &bad).await.expect(400);
    page.says("Not done:").says("/limit").says("$TOKEN");
    assert_eq!(page.field("interval"), "77", "the input is kept");
    submit(&server, tokens, &[("do", "unlimit"), ("hash", &hash)])
        .await
        .expect(200)
        .says("The limit is removed.");
    browse(&server, &format!("{tokens}?ask=revoke&hash={hash}"))
        .await
        .expect(200)
        .says("will be refused from now on")
        .says(&format!("-d '{{\"hash\":\"{hash}\",\"pool\":\"default\"}}'"));
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    let revoke = [("do", "revoke"), ("hash", &*hash), ("sure", "yes")];
    submit(&server, tokens, &revoke).await.expect(200).says("The token is revoked.").says("has no token");
    server.put(&token, "/api/shop/q", "x").await.expect(401);
    submit(&server, tokens, &revoke).await.expect(404);
    submit(&server, tokens, &[("do", "create"), ("mark", "m2"), ("description", " ")]).await.expect(400);
}

#[tokio::test]
async fn push_is_set_and_turned_off() {
    let server = TestServer::on_disk().await;
    let push = "push/default/shop/q";
    browse(&server, push).await.expect(200).says("The queue is not pushed");
    let set = [
        ("do", "save"),
        ("url", "https://hooks.example/x?a=1"),
        ("setting", r#"{"timeout":7,"headers":{"X-Key":"hush"}}"#),
    ];
    let page = submit(&server, push, &set).await.expect(200);
    page.says("The secret that requests are signed with");
    let page = browse(&server, push).await.expect(200);
    page.says("https://hooks.example/x?a=1").says("The values of headers are not shown");
    assert!(page.field("setting").contains("\"timeout\": 7") && !page.answer.text.contains("hush"));
    submit(&server, push, &[("do", "pause")]).await.expect(200).says("Push is paused.");
    assert!(browse(&server, push).await.has_button("Resume push"));
    submit(&server, push, &[("do", "resume")]).await.expect(200).says("Push is resumed.");
    let wrong = [("do", "save"), ("url", "nonsense"), ("setting", "{}")];
    let page = submit(&server, push, &wrong).await.expect(400);
    assert_eq!(page.field("url"), "nonsense");
    submit(&server, push, &[("do", "save"), ("url", "https://x.example"), ("setting", "{")])
        .await
        .expect(400);
    browse(&server, &format!("{push}?ask=secret")).await.expect(200).says("for 24 hours");
    submit(&server, push, &[("do", "secret")]).await.expect(400);
    let secret = [("do", "secret"), ("sure", "yes"), ("mark", "once")];
    submit(&server, push, &secret).await.expect(200).says("The new secret");
    submit(&server, push, &secret).await.expect(200).says("This form was sent before");
    browse(&server, "queues/default/shop/q").await.expect(200).says("Push is on");
    let id = send(server.admin("POST", "/api/shop/q/jobs?delay=600").body("x")).await.expect(201).job_id();
    browse(&server, &format!("jobs/default/shop/q/{id}"))
        .await
        .expect(200)
        .says("None of the queue's last 0 attempts to push was of this job.");
    browse(&server, &format!("{push}?ask=off")).await.expect(200).says("-X DELETE").says("/push/shop/q");
    submit(&server, push, &[("do", "off"), ("sure", "yes")])
        .await
        .expect(200)
        .says("Push is off.")
        .says("not pushed");
}

/// Guards against a token that seems to have no limit while limits cannot be read.
#[tokio::test]
async fn a_limit_that_cannot_be_read_is_not_none() {
    let redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    server.token("shop").await;
    browse(&server, "tokens/default/shop").await.expect(200).says("none");
    let _: () = redis::Commands::set(&mut redis.connection(), "__throttler_keys__", "x").expect("SET");
    browse(&server, "tokens/default/shop").await.expect(200).says("–").says_not("none");
}

#[tokio::test]
async fn schedules_are_shown_and_changed() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    browse(&server, "schedules").await.expect(200).says("There is no such schedule");
    let setting = r#"{"queue":"reports","cron":"30 2 * * *","zone":"Europe/Berlin","text":"sales"}"#;
    let put = server.api("PUT", "/api/shop/_schedules/nightly", &token).body(setting);
    send(put).await.expect(201);
    // Its queue exists once it has placed a job.
    server.sampled().await;
    browse(&server, "schedules")
        .await
        .expect(200)
        .says("Enter a namespace without queues to see its schedules");
    let named = browse(&server, "schedules?namespace=shop").await.expect(200);
    named.says("nightly").says_not("Enter a namespace");
    server.put(&token, "/api/shop/reports", "x").await.expect(201);
    server.sampled().await;
    let all = browse(&server, "schedules").await.expect(200);
    all.says("nightly").says("30 2 * * *").says("Europe/Berlin").says("02:30:00.000+0");
    assert_eq!(all.main.matches("T02:30:00.000+0").count(), 3, "the next three: {}", all.main);
    let page = "schedules?pool=default&namespace=shop";
    let of = [("pool", "default"), ("namespace", "shop"), ("name", "nightly")];
    let act = async |what: &str, more: &[(&str, &str)]| {
        let fields: Vec<_> = of.iter().chain(more).copied().chain([("do", what)]).collect();
        submit(&server, page, &fields).await
    };
    act("pause", &[]).await.expect(200).says("The schedule is paused.").says("paused");
    browse(&server, &format!("{page}&state=on")).await.expect(200).says_not(":00.000+0");
    act("resume", &[]).await.expect(200).says("The schedule is resumed.");
    for _ in 0..2 {
        act("run", &[("mark", "m")]).await.expect(200).says("The schedule has published a job.");
    }
    assert_eq!(server.size("/api/shop/reports").await, 2, "a form that is sent twice runs it once");
    browse(&server, page).await.expect(200).says("run ").says("/_schedules/nightly/run");
    browse(&server, "schedules?ask=delete&pool=default&namespace=shop&name=nightly")
        .await
        .says("It publishes no more jobs");
    act("delete", &[]).await.expect(400);
    act("delete", &[("sure", "yes")]).await.expect(200).says("The schedule is deleted.");
    act("pause", &[]).await.expect(404).says("Not done: no such schedule");
}

/// Guards against an empty page that covers only part of the schedules.
#[tokio::test]
async fn a_page_without_schedules_leads_to_the_next() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    let put = |n: &u32| {
        let setting = r#"{"queue":"reports","every":3600,"text":"x"}"#;
        send(server.api("PUT", &format!("/api/shop/_schedules/s{n:04}"), &token).body(setting))
    };
    for some in (0..1001).collect::<Vec<_>>().chunks(91) {
        for set in some.iter().map(put).collect::<tokio::task::JoinSet<_>>().join_all().await {
            set.expect(201);
        }
    }
    let path = "schedules?pool=default&namespace=shop&state=paused";
    let page = browse_whole(&server, path).await;
    page.says("Looked at some 1,000 schedules, found none yet.").says_not("There is no such schedule");
    let next = browse_whole(&server, &format!("schedules{}", page.link("Next"))).await;
    next.says("There are no more.").says_not("Looked at some");
    // Schedules of several namespaces.
    for namespace in ["shop", "other"] {
        send(server.admin("POST", &format!("/api/{namespace}/reports/jobs")).body("x")).await.expect(201);
    }
    server.sampled().await;
    let page = browse_whole(&server, "schedules?state=paused").await;
    page.says("Not all are shown: name a namespace.").says_not("There is no such schedule");
}

#[tokio::test]
async fn search_leads_to_the_one_hit() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    let id = send(server.api("POST", "/api/shop/mail/jobs?key=order/7", &token).body("x"))
        .await
        .expect(201)
        .job_id();
    server.put(&token, "/api/shop/mail2", "x").await.expect(201);
    server.sampled().await;
    for (wanted, title) in [
        ("shop/mail", "Queue shop/mail".to_owned()),
        ("mail2", "Queue shop/mail2".into()),
        (&format!("shop/mail/{id}"), format!("Job {id}")),
        ("shop/mail/order%2F7", format!("Job {id}")),
        (&id, format!("Job {id}")),
        (&format!("{id}&in=default/shop/mail"), format!("Job {id}")),
    ] {
        let page = browse(&server, &format!("search?q={wanted}")).await.expect(200);
        assert!(page.all("h1").any(|h1| h1.text == title), "{wanted}: {}", page.main);
    }
    browse(&server, "search?q=mai").await.expect(200).says("shop/mail2");
    browse(&server, "search?q=").await.expect(200).says("A queue by a part of");
    browse(&server, "search?q=nothing").await.expect(404).says("No queue has");
    browse(&server, "search?q=shop/mail/nokey").await.expect(404).says("no job of shop/mail has");
    browse(&server, "search?q=01M80D5J4VCPC2AJTPM8000000").await.expect(404).says("Name its queue");
}

/// Guards against pages that change something before authentication.
#[tokio::test]
async fn accounts_are_asked_for() {
    let store = Store::disk();
    let server =
        TestServer::start(&format!("{}[Accounts]\nann = \"long-password\"\n", store.toml()), store).await;
    for path in ["", "queues", "queues/default/shop/q", "schedules", "assets/style.css"] {
        assert_eq!(browse(&server, path).await.answer.status, 401, "{path}");
    }
    submit(&server, "queues/default/shop/q", &[("do", "pause")]).await.expect(401);
    let page = send(server.admin("GET", "/ui/").basic_auth("ann", Some("long-password"))).await.expect(200);
    assert!(page.text.contains("Account") && page.text.contains("ann"), "the account is shown");
    let request = server.admin("POST", "/ui/queues/default/shop/q").basic_auth("ann", Some("long-password"));
    let request = request.header("Origin", format!("http://{}", server.admin_addr)).body("do=pause");
    assert!(send(request).await.expect(200).text.contains("The queue is paused."));
    let size = server.admin("GET", "/queues?q=q").basic_auth("ann", Some("long-password"));
    send(size).await.expect(200);
}
