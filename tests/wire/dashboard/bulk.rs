//! Bulk actions on jobs in a state, and read-only access.

use serde_json::json;

use super::{browse, dead_job, submit};
use crate::support::client::{Response, send};
use crate::support::servers::{Store, TestServer, on_each_store};
use crate::support::wait::until;

/// Waits until no bulk action runs.
async fn done(server: &TestServer) {
    until("the action ends", async || {
        !send(server.admin("GET", "/bulk")).await.expect(200).text.contains("\"running\"")
    })
    .await;
}

async fn three_clicks_bring_dead_jobs_back(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    for n in 0..5 {
        dead_job(
            &server,
            &token,
            "mail",
            "x",
            if n < 3 { "the mail <server> is away" } else { "no such address" },
        )
        .await;
    }
    server.sampled().await;
    let overview = browse(&server, "").await.expect(200);
    overview.says("5 died in ten minutes");
    let dead = overview.link("5");
    assert_eq!(dead, "queues/default/shop/mail?state=dead");
    let page = browse(&server, &dead).await.expect(200);
    page.says("3 the mail <server> is away").says("2 no such address");
    let ask = page.link("Respawn all");
    let queue = "queues/default/shop/mail";
    let asks = browse(&server, &format!("{queue}{ask}")).await.expect(200);
    asks.says("All 5 dead jobs will be ready again")
        .says("Back")
        .says("As curl")
        .says("\"action\":\"respawn\"");
    let one = "?state=dead&reason=no%20such%20address&ask=respawn-all";
    browse(&server, &format!("{queue}{one}"))
        .await
        .expect(200)
        .says("Of 5 dead jobs those with the reason no such address");
    let of_one = [("do", "respawn-all"), ("sure", "yes"), ("reason", "no such address"), ("tries", "2")];
    submit(&server, &dead, &of_one).await.expect(200).says("The action has started");
    done(&server).await;
    assert_eq!((server.size("/api/shop/mail").await, server.size("/api/shop/mail/deadletter").await), (2, 3));
    server.sampled().await;
    submit(&server, &dead, &[("do", "respawn-all")]).await.expect(400);
    let all = [("do", "respawn-all"), ("sure", "yes"), ("ask", "respawn-all"), ("tries", "none")];
    submit(&server, &dead, &all)
        .await
        .expect(400)
        .says("Not done: Tries must be a whole number")
        .says("All 3 dead jobs");
    let all = [("do", "respawn-all"), ("sure", "yes"), ("tries", "1")];
    submit(&server, &dead, &all).await.expect(200);
    done(&server).await;
    assert_eq!(server.size("/api/shop/mail").await, 5);
    browse(&server, &dead).await.expect(200).says("Respawn dead jobs: 3 of 3, done");
    browse(&server, "bulk")
        .await
        .expect(200)
        .says("with the reason no such address")
        .says("2 of ")
        .says("127.0.0.1");
    let ended = send(server.admin("GET", "/bulk")).await.expect(200).json["actions"][0]["id"].clone();
    let ended = ended.as_str().expect("an id");
    for (back, title) in
        [("queues/default/shop/mail?state=dead", "Queue shop/mail"), ("//evil.example", "Overview")]
    {
        let page =
            submit(&server, "bulk", &[("do", "stop"), ("id", ended), ("back", back)]).await.expect(200);
        page.says("The action stops after its current step.").says(title);
    }
    submit(&server, "bulk", &[("do", "stop"), ("id", "nope")])
        .await
        .expect(404)
        .says("Not done: no such bulk action");
}

async fn destroying_wants_the_name(store: Store) {
    let knows_states = matches!(store, Store::Disk(_));
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    for path in ["/api/shop/q", "/api/shop/q", "/api/shop/q?delay=600"] {
        server.put(&token, path, "x").await.expect(201);
    }
    dead_job(&server, &token, "r", "x", "why").await;
    server.sampled().await;
    let queue = "queues/default/shop/q";
    let asks = browse(&server, &format!("{queue}?ask=destroy")).await.expect(200);
    asks.says("Ready: 2").says("Type the queue's name").says("Running jobs stay");
    // A second bulk action on the queue would be refused while the first runs.
    asks.says("/api/shop/q/deadletter?pool=default&limit=1000");
    assert_eq!(asks.main.matches("/bulk'").count(), 1, "{}", asks.main);
    let form =
        |name| [("do", "destroy"), ("ask", "destroy"), ("sure", "yes"), ("which", "ready"), ("name", name)];
    let page = submit(&server, queue, &form("other")).await.expect(400);
    page.says("Not done: the queue's name is shop/q: nothing was done");
    assert_eq!(page.field("name"), "other");
    assert_eq!(server.size("/api/shop/q").await, 2, "nothing happened");
    submit(&server, queue, &[("do", "destroy"), ("sure", "yes"), ("name", "q")])
        .await
        .expect(400)
        .says("no state was chosen");
    submit(&server, queue, &form("q")).await.expect(200).says("The jobs are destroyed.");
    assert_eq!(server.size("/api/shop/q").await, 0);
    let delayed = [("do", "destroy"), ("sure", "yes"), ("which", "delayed"), ("name", "shop/q")];
    submit(&server, queue, &delayed).await.expect(200);
    done(&server).await;
    if knows_states {
        server.sampled().await;
        browse(&server, queue).await.expect(200).says("Delayed 0");
    }
    let dead = "queues/default/shop/r?state=dead";
    browse(&server, &format!("{dead}&ask=delete-dead")).await.expect(200).says("All 1 dead jobs");
    let delete = |name| [("do", "delete-dead"), ("ask", "delete-dead"), ("sure", "yes"), ("name", name)];
    submit(&server, dead, &delete("q")).await.expect(400);
    assert_eq!(server.size("/api/shop/r/deadletter").await, 1);
    submit(&server, dead, &delete("r")).await.expect(200).says("The action has started");
    done(&server).await;
    until("they are deleted", async || server.size("/api/shop/r/deadletter").await == 0).await;
}

on_each_store!(three_clicks_bring_dead_jobs_back, destroying_wants_the_name);

/// Guards against one request that deletes any number of dead jobs besides the bulk action on delayed ones.
#[tokio::test]
async fn many_dead_jobs_go_apart_from_the_delayed_ones() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    for some in vec!["x"; 1001].chunks(50) {
        let publish = server.api("PUT", "/api/shop/q/bulk?tries=1", &token).body(json!(some).to_string());
        send(publish).await.expect(201);
    }
    for _ in 0..11 {
        server.get(&token, "/api/shop/q?count=100&ttr=1").await.expect(200);
    }
    server.put(&token, "/api/shop/q?delay=600", "x").await.expect(201);
    until("all are dead", async || server.size("/api/shop/q/deadletter").await == 1001).await;
    let queue = "queues/default/shop/q";
    let of = |which: &'static [&str]| {
        let fixed = [("do", "destroy"), ("ask", "destroy"), ("sure", "yes"), ("name", "q")];
        fixed.into_iter().chain(which.iter().map(|which| ("which", *which))).collect::<Vec<_>>()
    };
    let page = submit(&server, queue, &of(&["delayed", "dead"])).await.expect(400);
    page.says("Not done: 1,001 dead jobs are too many").says("Nothing was done");
    assert_eq!(page.field("name"), "q", "the input is kept");
    let checked = page.all("input").filter(|field| field.get("checked").is_some());
    assert_eq!(checked.filter_map(|field| field.get("value")).collect::<Vec<_>>(), ["delayed", "dead"]);
    assert_eq!(server.size("/api/shop/q/deadletter").await, 1001);
    for which in [&["dead"], &["delayed"]] {
        submit(&server, queue, &of(which)).await.expect(200).says("The jobs are destroyed.");
        done(&server).await;
    }
    assert_eq!(server.size("/api/shop/q/deadletter").await, 0);
}

#[tokio::test]
async fn dead_jobs_are_found_by_queue_and_by_what_is_in_them() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    browse(&server, "dead").await.expect(200).says("No queue has dead jobs");
    let id = dead_job(&server, &token, "mail", "order 4711", "away").await;
    dead_job(&server, &token, "mail", "order 1", "other").await;
    server.sampled().await;
    let page = browse(&server, "dead").await.expect(200);
    page.says("shop/mail").says("1 away").says("1 other");
    let dead = "queues/default/shop/mail?state=dead";
    browse(&server, &format!("{dead}&contains=4711")).await.expect(200).says(&id).says_not("order 1 ");
    browse(&server, &format!("{dead}&reason=other"))
        .await
        .expect(200)
        .says("Only jobs with the reason other")
        .says_not(&id);
    browse(&server, &format!("{dead}&contains=nothing")).await.expect(200).says("No job matches");
}

#[tokio::test]
async fn the_server_tells_of_itself() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    submit(&server, "queues/default/shop/q", &[("do", "pause")]).await.expect(200);
    let page = browse(&server, "server").await.expect(200);
    page.says("Pool default")
        .says("disk")
        .says("Outages since the start 0")
        .says("a queue was paused")
        .says("Open files")
        .says("Connections of the public port")
        .says("Syncs p50")
        .says("Lateness")
        .says("none are configured")
        .says("/api/shop/q/pause");
    submit(&server, "server", &[("do", "log-on")]).await.expect(200).says("The access log is on.");
    assert!(send(server.admin("GET", "/accesslog")).await.text.contains("enabled"));
    submit(&server, "server", &[("do", "log-off")]).await.expect(200).says("The access log is off.");
    submit(&server, "server", &[("do", "explode")]).await.expect(400);
}

/// Guards against a change by a viewer, and against bodies shown without permission.
#[tokio::test]
async fn who_may_look_finds_no_forms_and_no_bodies() {
    let store = Store::disk();
    let accounts = "ShowBodies = \"operators\"\n[Accounts]\nann = \"long-password\"\n[ReadOnlyAccounts]\nvic = \"look\"\n";
    let (top, tables) = accounts.split_once('\n').expect("two parts");
    let server = TestServer::start(&format!("{top}\n{}{tables}", store.toml()), store).await;
    let as_user = |method: &str, path: &str, user: &'static str, password: &'static str| {
        server.admin(method, path).basic_auth(user, Some(password))
    };
    let operator = |method: &str, path: &str| as_user(method, path, "ann", "long-password");
    let viewer = |method: &str, path: &str| as_user(method, path, "vic", "look");
    let id = send(operator("POST", "/api/shop/q/jobs").body("the secret body")).await.expect(201).job_id();
    server.sampled().await;
    let page = async |request| -> super::page::Page { super::page::Page::of(send(request).await) };
    let job = format!("/ui/jobs/default/shop/q/{id}");
    let own = page(operator("GET", &job)).await.expect(200);
    own.says("the secret body").says("Cancel job");
    for path in [
        "/ui/",
        "/ui/queues",
        "/ui/queues/default/shop/q",
        &job,
        "/ui/server",
        "/ui/dead",
        "/ui/bulk",
        "/ui/schedules",
        "/ui/push/default/shop/q",
    ] {
        let seen = page(viewer("GET", path)).await.expect(200);
        assert!(!seen.answer.text.contains("the secret body"), "{path}");
        let posts = seen.all("form").filter(|form| form.get("method") == Some("post"));
        assert!(
            posts.into_iter().all(|form| form.get("class") == Some("zone")),
            "{path}: {}",
            seen.answer.text
        );
        assert!(seen.answer.text.contains(", read-only."), "{path}");
    }
    for ask in [
        "queues/default/shop/q?ask=destroy",
        "queues/default/shop/q?ask=respawn-all",
        &format!("queues/default/shop/q?ask=cancel&job={id}"),
        &format!("jobs/default/shop/q/{id}?ask=cancel"),
        "push/default/shop/q?ask=secret",
        "schedules?ask=delete&namespace=shop&name=s",
        "publish/default/shop",
    ] {
        let seen = page(viewer("GET", &format!("/ui/{ask}"))).await.expect(200);
        seen.says("This account is read-only.");
        let mut posts = seen.all("form").filter(|form| form.get("method") == Some("post"));
        assert!(posts.all(|form| form.get("class") == Some("zone")), "{ask}: {}", seen.answer.text);
    }
    let tokens = viewer("GET", "/ui/tokens/default/shop").header("Accept", "text/html");
    page(tokens).await.expect(403).says("this account is read-only, and may not see tokens");
    page(viewer("GET", &job)).await.says("not shown to this account");
    let raw: Response = send(viewer("GET", &format!("{job}?as=raw"))).await;
    assert_eq!((raw.status, raw.text.contains("the secret body")), (403, false));
    send(viewer("POST", "/ui/queues/default/shop/q").body("do=pause")).await.expect(403);
    send(viewer("GET", "/ui/tokens/default/shop")).await.expect(403);
}

#[tokio::test]
async fn the_dashboard_can_be_turned_off() {
    let store = Store::disk();
    let server = TestServer::start(&format!("Dashboard = false\n{}", store.toml()), store).await;
    for path in ["/", "/ui", "/ui/", "/ui/queues", "/ui/server"] {
        let request = server.admin("GET", path).header("Accept", "text/html");
        assert_eq!(send(request).await.expect(404).says(), "api not found", "{path}");
    }
    send(server.admin("GET", "/queues")).await.expect(200);
}

/// Guards against rejecting forms behind a proxy, and commands that bypass it.
#[tokio::test]
async fn the_outer_address_is_ours_and_the_zone_is_set() {
    let store = Store::disk();
    let toml = format!(
        "AdminUrl = \"https://ops.example/dormouse\"\nDashboardZone = \"Asia/Tokyo\"\n{}",
        store.toml()
    );
    let server = TestServer::start(&toml, store).await;
    let outer = |method: &str, path: &str| {
        let request = server.admin(method, path).header("Host", "ops.example");
        request.header("Origin", "https://ops.example")
    };
    let body = "do=pause&for=60";
    let page = send(outer("POST", "/dormouse/ui/queues/default/shop/q").body(body)).await;
    assert_eq!(page.status, 200, "{}", page.text);
    let page = send(outer("GET", "/dormouse/ui/queues/default/shop/q")).await.expect(200);
    assert!(page.text.contains("https://ops.example/dormouse/api/shop/q/"), "{}", page.text);
    for (path, to) in [("/dormouse", "dormouse/ui/"), ("/dormouse/", "ui/"), ("/dormouse/ui", "ui/")] {
        let (status, headers, _) = super::unfollowed(&server, path, "text/html").await;
        assert_eq!((status, headers["location"].to_str().expect("text")), (303, to), "{path}");
    }
    browse(&server, "queues/default/shop/q").await.expect(200);
    let page = send(server.admin("GET", "/ui/")).await.expect(200);
    assert!(page.text.contains("Asia/Tokyo"), "{}", page.text);
}
