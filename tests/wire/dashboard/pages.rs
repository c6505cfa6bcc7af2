//! Contents of pages.

use std::time::{Duration, Instant};

use super::{browse, browse_until, dead_job, submit, unfollowed};
use crate::support::client::send;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::until;

async fn a_queue_is_found_from_the_overview_on(store: Store) {
    let knows_states = matches!(store, Store::Disk(_));
    let server = TestServer::on(store).await;
    server.sampled().await;
    browse(&server, "").await.expect(200).says("There is no queue yet").says("curl -X PUT");
    browse(&server, "queues").await.expect(200).says("There is no queue yet").says("curl -X PUT");
    browse(&server, "queues?q=mail").await.expect(200).says("No queue matches").says("Show all queues");

    let token = server.token("shop").await;
    for path in ["/api/shop/mail", "/api/shop/mail", "/api/shop/later?delay=600"] {
        server.put(&token, path, r#"{"b":1,"a":[12345678901234567890,{}]}"#).await.expect(201);
    }
    let dead = dead_job(&server, &token, "dies", "x", "the mail server is away").await;
    server.sampled().await;

    let overview = browse(&server, "").await.expect(200);
    overview
        .says("1 died in ten minutes")
        .says("shop/dies")
        .says("shop/mail")
        .says("In/s")
        .says_not("default");
    assert_eq!(overview.link("shop/dies"), "queues/default/shop/dies");
    let lists: Vec<_> =
        overview.all("a").filter_map(|a| a.get("href")).filter(|to| to.contains("sort=")).collect();
    assert!(lists.contains(&"queues?sort=ready"), "a sum leads to its queues: {lists:?}");
    assert!(!lists.contains(&"queues?sort=running"), "a zero is no link: {lists:?}");
    assert!(!knows_states || lists.contains(&"queues?sort=delayed"), "{lists:?}");
    let first = overview.all("tr").nth(1).expect("a row");
    assert!(first.text.contains("shop/dies"), "what dies comes first: {}", first.text);
    let queues = browse(&server, "queues?q=mai").await.expect(200);
    queues.says("shop/mail").says_not("shop/dies");
    assert_eq!(queues.field("q"), "mai");
    browse(&server, "queues?need=dying&sort=dead").await.expect(200).says("shop/dies").says_not("shop/mail");
    browse(&server, "queues?sort=nonsense").await.expect(400).says("invalid sort");
    let namespace = browse(&server, "namespaces/default/shop").await.expect(200);
    namespace.says("shop/later").says("Schedules").says("Queues 3").says("Ready 2").says("Dead 1");
    browse(&server, "namespaces/default/shop?q=mail").await.expect(200).says("Queues 1").says("Dead 0");

    let queue = browse(&server, "queues/default/shop/mail").await.expect(200);
    queue.says("Ready 2").says("Tries left").says(r#"{"b":1,"a":[12345678901234567890,{}]}"#);
    if knows_states {
        browse(&server, "queues/default/shop/later?state=delayed")
            .await
            .expect(200)
            .says("in 9 min")
            .says("Due");
        for by in ["", "?due=hour"] {
            let (path, due) =
                (format!("queues/default/shop/later{by}"), "1 delayed job: 0 overdue, 1 in the steps shown");
            browse_until(&server, &path, |page| page.main.contains(due)).await;
        }
    }
    let of_dead = browse(&server, "queues/default/shop/dies?state=dead").await.expect(200);
    of_dead.says("the mail server is away").says("Dead since").says(&dead);
    browse(&server, "queues/default/shop/mail?state=odd").await.expect(400);
    browse(&server, "queues/nope/shop/mail").await.expect(404);
    browse(&server, "queues/default/shop/_odd").await.expect(400);
    browse(&server, "queues/default/shop/empty").await.expect(200).says("No job is ready");

    let job = of_dead.link(&dead);
    assert_eq!(job, format!("../../../jobs/default/shop/dies/{dead}"));
    browse(&server, job.trim_start_matches("../")).await.expect(200).says("dead").says("Reason");
    let by_text = browse(&server, "queues/default/shop/mail?contains=%22b%22").await.expect(200);
    by_text.says("looked at 2 of 2, found 2");
    browse(&server, "queues/default/shop/mail?contains=nowhere")
        .await
        .expect(200)
        .says("looked at 2 of 2, found 0")
        .says("No job matches");
    browse(&server, "jobs/default/shop/mail/01M80D5J4VCPC2AJTPM8000000")
        .await
        .expect(404)
        .says("job not found");
}

on_each_store!(a_queue_is_found_from_the_overview_on);

#[tokio::test]
async fn a_body_is_shown_as_it_was_published() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    let large = format!("[\"{}\"]", "x".repeat(900 << 10));
    let put = async |body: Vec<u8>| {
        let answer = send(server.api("PUT", "/api/shop/q", &token).body(body)).await.expect(201);
        format!("jobs/default/shop/q/{}", answer.job_id())
    };
    let json = put(br#"{"z":1.10,"a":[1e400,"\u00e9"]}"#.to_vec()).await;
    let page = browse(&server, &json).await.expect(200);
    let shown = page.all("pre").find(|pre| pre.get("id") == Some("body")).expect("a body");
    assert_eq!(shown.text, "{\n  \"z\": 1.10,\n  \"a\": [\n    1e400,\n    \"\\u00e9\"\n  ]\n}");
    browse(&server, &format!("{json}?as=hex")).await.expect(200).says("000000 7b 22 7a");
    browse(&server, &format!("{json}?as=text")).await.expect(200).says(r#"{"z":1.10,"a":[1e400,"\u00e9"]}"#);
    browse(&server, &format!("{json}?as=pdf")).await.expect(400);

    let bytes = put(vec![0xff, 0, 0x1b, b'<']).await;
    browse(&server, &bytes).await.expect(200).says("ff 00 1b 3c").says("...<");
    browse(&server, &format!("{bytes}?as=json")).await.expect(200).says("The body is not JSON").says("ff 00");
    let request = server.admin("GET", &format!("/ui/{bytes}?as=raw"));
    let answer = request.send().await.expect("an answer");
    let header = |name: &str| answer.headers()[name].to_str().expect("text").to_owned();
    assert_eq!(header("content-type"), "application/octet-stream");
    assert!(header("content-disposition").starts_with("attachment; filename="));
    assert!(header("content-security-policy").starts_with("sandbox;"));
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(&answer.bytes().await.expect("bytes")[..], [0xff, 0, 0x1b, b'<']);

    let page = browse(&server, &put(large.clone().into_bytes()).await).await.expect(200);
    page.says("The first 64 KiB of 900 KiB");
    assert!(page.answer.text.len() < 500_000, "{} bytes", page.answer.text.len());
    let empty = put(Vec::new()).await;
    browse(&server, &empty).await.expect(200).says("The body is empty");
    for n in 0..60 {
        put(format!("{n} <b>&\u{202e}{}", "y".repeat(5000)).into_bytes()).await;
    }
    let page = browse(&server, "queues/default/shop/q").await.expect(200);
    assert!(page.answer.text.len() < 500_000, "{} bytes", page.answer.text.len());
    let next = page.link("Next");
    browse(&server, &format!("queues/default/shop/q{next}")).await.expect(200).says("59 <b>&‹U+202E›");
}

/// Guards against pages that browsers cache, frame, or let run foreign scripts.
#[tokio::test]
async fn every_answer_has_its_headers() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    server.sampled().await;
    let page = browse(&server, "queues/default/shop/q").await.expect(200);
    assert_eq!(
        page.header("content-security-policy"),
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    );
    for (name, value) in [
        ("cache-control", "no-store"),
        ("content-type", "text/html; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(page.header(name), value, "{name}");
    }
    // With that header alone browsers send a page's forms with `Origin: null`, and over plain HTTP no other header.
    let referrer = page.all("meta").find(|meta| meta.get("name") == Some("referrer"));
    assert_eq!(referrer.and_then(|meta| meta.get("content")), Some("same-origin"));
    // Behind a proxy that strips a prefix links must lead back through it.
    for (name, attribute) in [("a", "href"), ("link", "href"), ("script", "src"), ("form", "action")] {
        for value in page.all(name).filter_map(|element| element.get(attribute)) {
            assert!(!value.starts_with('/') && !value.contains(':'), "{name} {value} is relative");
        }
    }
    assert_eq!(page.all("h1").count(), 1);
    assert!(page.all("title").next().is_some_and(|title| title.text == "Queue shop/q – Dormouse"));
    for style in page.all("link").chain(page.all("script")) {
        let name = style.get("href").or(style.get("src")).expect("an address").trim_start_matches("../");
        let asset = send(server.admin("GET", &format!("/ui/{name}"))).await.expect(200);
        assert_eq!(asset.headers["cache-control"], "public, max-age=31536000, immutable");
        assert!(asset.text.len() <= 20 << 10, "{name}: {} bytes", asset.text.len());
    }
    send(server.admin("GET", "/ui/assets/style.css")).await.expect(404);
}

#[tokio::test]
async fn a_page_that_has_not_changed_is_not_sent_again() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    server.sampled().await;
    let queue = "queues/default/shop/q";
    let tag = browse(&server, queue).await.expect(200).header("etag").to_owned();
    let again = async || {
        let request = server.admin("GET", &format!("/ui/{queue}")).header("If-None-Match", &tag);
        send(request).await
    };
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let same = again().await.expect(304);
    assert_eq!((same.text.len(), same.headers["etag"].to_str().expect("text")), (0, &*tag));
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    let now = again().await.expect(200);
    assert!(now.text.contains("</html>") && !now.text.contains(['\u{1}', '\u{2}']), "no marks are left");
}

/// Guards against a page of samples that is not updated because its ETag identifies a sample by time and not by its
/// values.
#[tokio::test]
async fn a_page_of_samples_changes_with_them() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    server.sampled().await;
    for (n, page) in ["", "queues", "namespaces/default/shop"].into_iter().enumerate() {
        let tag = browse(&server, page).await.expect(200).header("etag").to_owned();
        server.put(&token, &format!("/api/shop/new-{n}"), "x").await.expect(201);
        server.sampled().await;
        let request = server.admin("GET", &format!("/ui/{page}")).header("If-None-Match", &tag);
        let now = send(request).await.expect(200);
        assert!(now.text.contains(&format!("new-{n}")), "{page}: {}", now.text);
    }
}

/// Guards against a changed reply to clients of lmstfy, and against browsers that are not redirected.
#[tokio::test]
async fn a_browser_is_led_to_the_dashboard_and_a_program_is_not() {
    let server = TestServer::on_disk().await;
    for (path, accept, expected, to) in [
        ("/", "text/html,application/xhtml+xml,*/*;q=0.8", 303, "ui/"),
        ("/ui", "*/*", 303, "ui/"),
        ("/", "*/*", 404, ""),
        ("/", "application/json", 404, ""),
    ] {
        let (status, headers, text) = unfollowed(&server, path, accept).await;
        let location = headers.get("location").map_or("", |to| to.to_str().expect("text"));
        assert_eq!((status, location), (expected, to), "{path} {accept}");
        if status == 404 {
            assert_eq!(text, r#"{"error":"api not found"}"#);
        }
    }
    send(server.admin("PUT", "/ui/")).await.expect(404);
}

#[tokio::test]
async fn one_zone_is_shown_and_kept() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    let queue = "queues/default/shop/q";
    browse(&server, queue).await.expect(200).says(" UTC ");
    let page = browse(&server, &format!("{queue}?tz=Asia/Tokyo")).await.expect(200);
    page.says("Asia/Tokyo").says_not(" UTC ");
    assert!(page.answer.text.contains("+09:00 Asia/Tokyo"), "times have their offset: {}", page.answer.text);
    assert_eq!(page.link("Refresh"), "?tz=Asia%2FTokyo", "the page's own address has its zone");
    let client =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
    let form = format!("tz=Asia%2FTokyo&back={}", "queues%2Fdefault%2Fshop%2Fq%3Fstate%3Dready");
    let request = client.post(format!("http://{}/ui/zone", server.admin_addr)).body(form);
    let answer = send(request).await.expect(303);
    assert_eq!(answer.headers["location"], "./queues/default/shop/q?state=ready");
    let cookie = answer.headers["set-cookie"].to_str().expect("text");
    assert!(cookie.starts_with("dormouse-zone=Asia%2FTokyo;") && !cookie.contains("ath="), "{cookie}");
    let kept =
        server.admin("GET", &format!("/ui/{queue}")).header("Cookie", "a=b; dormouse-zone=Asia%2FTokyo");
    assert!(send(kept).await.expect(200).text.contains("+09:00 Asia/Tokyo"));
    let refused = submit(&server, "zone", &[("tz", "Mars/Base"), ("back", "queues")]).await.expect(400);
    refused.says("invalid zone");
    assert_eq!((refused.field("tz"), refused.field("back")), ("Mars/Base".into(), "queues".into()));
}

/// Guards against "Forbidden" without advice, and against sending a page to programs as an error.
#[tokio::test]
async fn a_refusal_in_a_browser_is_a_page_that_says_what_to_set() {
    let server = TestServer::on_disk().await;
    let refused = async |accept: &str| {
        let request = server.admin("POST", "/ui/queues/default/shop/q").header("Accept", accept);
        send(request.header("Origin", "https://ops.example").body("do=pause")).await.expect(403)
    };
    let page = refused("text/html,*/*;q=0.8").await;
    for part in ["Origin", "https://ops.example", "AdminUrl", "<h1>Not allowed</h1>"] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers["cache-control"], "no-store");
    assert!(
        page.headers["content-security-policy"].to_str().expect("text").starts_with("default-src 'none'")
    );
    assert_eq!(refused("*/*").await.says(), "the request was sent by a web page of another site");
    let other = server.admin("GET", "/ui/").header("Host", "evil.example").header("Accept", "text/html");
    assert!(send(other).await.expect(403).text.contains("evil.example"), "the name that was asked");
    let json = server.admin("GET", "/queues").header("Host", "evil.example").header("Accept", "text/html");
    assert!(send(json).await.expect(403).says().contains("is not this machine"), "no page");
}

/// Guards against a chart that disappears while a new one is computed, which takes seconds with many delayed jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_falls_due_is_shown_while_it_is_counted_anew() {
    let redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("shop").await;
    let put = async || server.put(&token, "/api/shop/q?delay=600", "x").await.expect(201);
    let due = async |more: &str| {
        browse(&server, &format!("queues/default/shop/q?state=ready{more}")).await.expect(200).main
    };
    put().await;
    until("it is counted", async || due("&due=minute").await.contains("1 delayed job: 0 overdue")).await;
    put().await;
    let stalled = redis.stall();
    // After some seconds the connection counts as broken, and the count fails.
    let behind = ["A new count is in progress", "The count could not be repeated: the store does not answer"];
    let is_old = |page: &str| behind.iter().any(|text| page.contains(text));
    until("the count is old", async || is_old(&due("&due=minute").await)).await;
    let old = due("&due=minute").await;
    assert!(old.contains("1 delayed job: 0 overdue") && old.contains("Counted"), "{old}");
    let of_hours = due("&due=hour").await;
    let unknown = [
        "The delayed jobs are being counted. ",
        "The delayed jobs could not be counted: the store does not answer",
    ];
    assert!(unknown.iter().any(|text| of_hours.contains(text)), "nothing is known of it: {of_hours}");
    drop(stalled);
    until("it is counted anew", async || due("&due=minute").await.contains("2 delayed jobs")).await;
}

/// Guards against an overview that shows nothing while a store refuses each publish.
#[tokio::test]
async fn a_full_store_is_told() {
    let store = Store::disk();
    let toml = store.toml().replace("[Pool.default]\n", "[Pool.default]\nMinFreeDisk = 1000000000\n");
    let server = TestServer::start(&toml, store).await;
    server.sampled().await;
    for path in ["", "queues", "namespaces/default/shop", "queues/default/shop/q"] {
        browse(&server, path).await.expect(200).says("The store of pool default is full, since");
    }
    browse(&server, "server").await.expect(200).says("Its store is full").says("below MinFreeDisk");
}

/// Guards against a page that hangs with its store, is blank, or hides the last known statistics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_leaves_the_last_figures() {
    let mut redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    server.sampled().await;
    redis.kill();
    until("the sampler notices", async || {
        server.sampled().await;
        browse(&server, "").await.main.contains("does not answer")
    })
    .await;
    for path in ["", "queues", "queues/default/shop/q", "namespaces/default/shop"] {
        let began = Instant::now();
        let page = browse(&server, path).await.expect(200);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(4), "{path}: {took:?}");
        page.says("The store of pool default does not answer").says("since").says("Its statistics are from");
    }
    let queue = browse(&server, "queues/default/shop/q").await;
    queue.says("Ready 1").says("The list is not available (50");
    submit(&server, "queues/default/shop/q", &[("do", "resume")]).await.says("Not done:");
}

/// Guards against bare JSON without the headers of pages for an outdated link.
#[tokio::test]
async fn an_unknown_address_is_a_page() {
    let server = TestServer::on_disk().await;
    for path in ["nothing", "queues/default/shop", "queues/default/shop/q/more/and/more", "assets/old.css"] {
        let page = browse(&server, path).await.expect(404);
        page.says("Not found").says("there is no such page");
        let policy = page.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy:?}");
        assert_eq!(page.header("x-content-type-options"), "nosniff", "{path}");
        if !path.starts_with("assets") {
            let overview = page.link("Dormouse");
            let ups = path.matches('/').count();
            assert_eq!(overview, if ups == 0 { "./".into() } else { "../".repeat(ups) }, "{path}");
        }
    }
    // Also for programs, and for methods that a page does not have.
    for (method, path) in [("GET", "/ui/nothing"), ("POST", "/ui/queues"), ("DELETE", "/ui/nothing")] {
        let answer = send(server.admin(method, path)).await.expect(404);
        let kind = answer.headers.get("content-type").and_then(|kind| kind.to_str().ok());
        assert_eq!(kind, Some("text/html; charset=utf-8"), "{method} {path}: {}", answer.text);
        assert!(answer.headers.contains_key("content-security-policy"), "{method} {path}");
    }
    // At the root of the port the reply stays lmstfy's.
    let answer = send(server.admin("GET", "/nothing").header("Accept", "text/html")).await.expect(404);
    assert!(answer.text.starts_with('{'), "{}", answer.text);
}

/// Guards against a list that silently restarts after a truncated link.
#[tokio::test]
async fn a_wrong_cursor_is_refused_on_every_page() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    server.sampled().await;
    for path in [
        "queues?cursor=x",
        "namespaces/default/shop?cursor=x",
        "queues/default/shop/q?cursor=x",
        "dead?cursor=x",
        "schedules?cursor=x",
        "schedules?namespace=shop&cursor=x",
        "schedules?namespace=nobody&cursor=x",
    ] {
        browse(&server, path).await.expect(400).says("cursor");
    }
}

/// Guards against first commands that lead to a name of the machine which nobody can resolve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_an_empty_overview_publish_a_job() {
    let server = TestServer::on_disk().await;
    let page = browse(&server, "").await.expect(200);
    let script = page.all("code").next().expect("commands").text.clone();
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &script]).stdin(std::process::Stdio::null());
    let output = tokio::task::spawn_blocking(move || shell.output()).await.expect("no panic");
    let printed = String::from_utf8(output.expect("bash is there").stdout).expect("UTF-8");
    assert!(printed.contains("\"msg\":\"published\""), "{script}\nprints {printed}");
    assert_eq!(server.size("/api/demo/mail").await, 1);
}

/// Guards against the abbreviation `CST`, which means Shanghai, Chicago, and others.
#[tokio::test]
async fn times_name_their_zone() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    let id = server.put(&token, "/api/shop/q?delay=600", "x").await.expect(201).job_id();
    let job = format!("jobs/default/shop/q/{id}");
    let shanghai = browse(&server, &format!("{job}?tz=Asia/Shanghai")).await.expect(200);
    shanghai.says("+08:00 Asia/Shanghai").says_not("CST");
    let chicago = browse(&server, &format!("{job}?tz=America/Chicago")).await.expect(200);
    chicago.says("America/Chicago").says_not("CST");
    browse(&server, &job).await.expect(200).says(" UTC");
}
