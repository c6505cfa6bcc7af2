//! A queue's page: the state shown first, why its jobs died, and actions on its delayed jobs, schedules and old jobs.

use super::{browse, dead_job, submit};
use crate::support::client::send;
use crate::support::servers::TestServer;
use crate::support::wait::until;

/// Guards against a page that opens with an empty list while jobs are dead or delayed.
#[tokio::test]
async fn a_queue_page_opens_on_the_state_that_matters() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    let queue = "queues/default/shop/q";
    let shown = async || {
        server.sampled().await;
        let page = browse(&server, queue).await.expect(200);
        let tabs = page.all("a").filter(|a| a.get("href").is_some_and(|href| href.contains("state=")));
        let current = tabs.filter(|a| a.get("aria-current") == Some("page")).map(|a| a.text.clone()).next();
        current.unwrap_or_else(|| panic!("no list is shown: {}", page.main))
    };
    server.put(&token, "/api/shop/q?delay=600", "later").await.expect(201);
    assert_eq!(shown().await, "Delayed 1");
    server.put(&token, "/api/shop/q", "now").await.expect(201);
    assert_eq!(shown().await, "Ready 1");
    server.get(&token, "/api/shop/q?ttr=600").await.expect(200);
    dead_job(&server, &token, "q", "x", "why").await;
    assert_eq!(shown().await, "Dead 1", "a job has died");
    // A state without jobs has no link.
    let page = browse(&server, queue).await.expect(200);
    assert!(page.all("a").all(|a| a.text.trim() != "0" && a.text != "Ready 0"), "{}", page.main);
}

/// Guards against jobs that died because their workers were too slow, and that no reason links to.
#[tokio::test]
async fn a_timeout_is_a_reason_like_any_other() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/mail?tries=1", "slow").await.expect(201);
    server.get(&token, "/api/shop/mail?ttr=1").await.expect(200);
    until("it is dead", async || server.size("/api/shop/mail/deadletter").await == 1).await;
    dead_job(&server, &token, "mail", "other", "no such address").await;
    server.sampled().await;
    let dead = "queues/default/shop/mail?state=dead";
    let page = browse(&server, dead).await.expect(200);
    page.says("ttr expired").says("no such address");
    let only = page.link("ttr expired");
    assert!(only.ends_with("state=dead&reason="), "{only}");
    let page = browse(&server, &format!("{dead}&reason=")).await.expect(200);
    page.says("Only jobs with the reason ttr expired").says("slow").says_not("no such address");
    browse(&server, "dead").await.expect(200).says("ttr expired");
    let asks = browse(&server, &format!("{dead}&reason=&ask=respawn-all")).await.expect(200);
    asks.says("with the reason ttr expired");
    assert_eq!(asks.field("reason"), "", "the form keeps it");
    let sure = [("do", "respawn-all"), ("sure", "yes"), ("reason", ""), ("tries", "3")];
    submit(&server, dead, &sure).await.expect(200).says("The action has started");
    until("it lives again", async || server.size("/api/shop/mail").await == 1).await;
    assert_eq!(server.size("/api/shop/mail/deadletter").await, 1, "the other stays");
}

#[tokio::test]
async fn delayed_jobs_are_made_due() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    let mut jobs = Vec::new();
    for n in 0..3 {
        let path = format!("/api/shop/q?delay={}", 600 + n);
        jobs.push(server.put(&token, &path, "later").await.expect(201).job_id());
    }
    let queue = "queues/default/shop/q?state=delayed";
    assert!(browse(&server, queue).await.expect(200).has_button("Make due now"));
    submit(&server, queue, &[("do", "promote")]).await.expect(200).says("No job was selected");
    let one = [("do", "promote"), ("job", &*jobs[0])];
    submit(&server, queue, &one).await.expect(200).says("1 job is due now.");
    assert_eq!(server.size("/api/shop/q").await, 1);
    submit(&server, queue, &one).await.expect(200).says("0 jobs are due now.");
    let job = format!("jobs/default/shop/q/{}", jobs[1]);
    submit(&server, &job, &[("do", "promote")]).await.expect(200).says("1 job is due now.").says("ready");
    server.sampled().await;
    let page = browse(&server, queue).await.expect(200);
    let ask = page.link("Make all due now");
    browse(&server, &format!("queues/default/shop/q{ask}"))
        .await
        .expect(200)
        .says("All 1 delayed jobs will be ready now");
    submit(&server, queue, &[("do", "promote-all")]).await.expect(400);
    submit(&server, queue, &[("do", "promote-all"), ("sure", "yes")])
        .await
        .expect(200)
        .says("The action has started");
    until("all are ready", async || server.size("/api/shop/q").await == 3).await;
}

#[tokio::test]
async fn a_schedule_is_created_and_edited() {
    let server = TestServer::on_disk().await;
    server.token("shop").await;
    let form = "schedules/edit?pool=default&namespace=shop";
    let page = browse(&server, form).await.expect(200);
    page.says("New schedule");
    assert_eq!(page.field("namespace"), "shop");
    let mut fields = vec![
        ("pool", "default"),
        ("namespace", "shop"),
        ("name", "evening"),
        ("queue", "reports"),
        ("cron", "30 2 * * *"),
        ("zone", "Europe/Berlin"),
        ("body", "sales"),
        ("others", r#"{"tries": 3}"#),
    ];
    let with =
        |fields: &[(&'static str, &'static str)], what: &'static str| [fields, &[("do", what)]].concat();
    let preview = submit(&server, form, &with(&fields, "preview")).await.expect(200);
    preview.says("Next occurrences").says("T02:30:00.000+0");
    assert_eq!((preview.field("name"), preview.field("cron")), ("evening".into(), "30 2 * * *".into()));
    browse(&server, "schedules?namespace=shop").await.expect(200).says_not("evening");
    let saved = submit(&server, form, &with(&fields, "save")).await.expect(200);
    saved.says("The schedule is saved.").says("evening");
    // A schedule with the same name does not replace it unnoticed.
    let again = submit(&server, form, &with(&fields, "save")).await;
    assert!(again.answer.status >= 400, "{}", again.main);

    let edit = browse(&server, &format!("{form}&name=evening")).await.expect(200);
    edit.says("Edit schedule evening").says("Next occurrences");
    assert_eq!(
        (edit.field("zone"), edit.field("body").trim().to_owned()),
        ("Europe/Berlin".into(), "sales".into())
    );
    assert!(edit.field("others").contains("\"tries\": 3"), "{}", edit.field("others"));
    let revision = edit.field("revision");
    fields[4] = ("cron", "nonsense");
    let mut changed: Vec<(&str, &str)> = with(&fields, "save");
    changed.push(("revision", &revision));
    let wrong = submit(&server, form, &changed).await.expect(400);
    assert_eq!(wrong.field("cron"), "nonsense", "what was typed comes back");
    changed[4] = ("cron", "0 8 * * MON");
    submit(&server, form, &changed).await.expect(200).says("The schedule is saved.").says("0 8 * * MON");
}

#[tokio::test]
async fn a_job_is_published_again_with_changes() {
    let server = TestServer::on_disk().await;
    let publish = server.admin("POST", "/api/shop/q/jobs?delay=600&key=k");
    let publish = publish.header("Enable-Job-Version", "yes").header("Job-Attr-kind", "test");
    let id = send(publish.body("to: <ann>\nand bob")).await.expect(201).job_id();
    let job = browse(&server, &format!("jobs/default/shop/q/{id}")).await.expect(200);
    let again = job.link("Publish again");
    let form = browse(&server, again.trim_start_matches("../")).await.expect(200);
    assert_eq!(form.field("body").trim_start(), "to: <ann>\nand bob");
    assert_eq!((form.field("queue"), form.field("key")), ("q".into(), String::new()), "its key is taken");
    assert!(form.field("attributes").contains("kind: test"), "{}", form.field("attributes"));
    let bytes = send(server.admin("POST", "/api/shop/q/jobs").body(vec![0xff, 0])).await.expect(201).job_id();
    browse(&server, &format!("publish/default/shop?queue=q&from={bytes}"))
        .await
        .expect(400)
        .says("does not fit a form");
}

/// Guards against a chart that moves the list of jobs that are not delayed when one is published.
#[tokio::test]
async fn due_jobs_are_charted_above_the_list_of_delayed_jobs() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q?delay=600", "later").await.expect(201);
    server.put(&token, "/api/shop/q", "now").await.expect(201);
    server.sampled().await;
    let queue = "queues/default/shop/q";
    browse(&server, queue).await.expect(200).says("Ready 1").says_not("When jobs fall due");
    for asked in ["?state=delayed", "?state=ready&due=minute"] {
        browse(&server, &format!("{queue}{asked}")).await.expect(200).says("When jobs fall due");
    }
    let none = browse(&server, "queues/default/shop/none?state=delayed").await.expect(200);
    none.says("No job is delayed").says_not("Due jobs");
}

/// Guards against a form that asks for the only namespace there is.
#[tokio::test]
async fn a_new_schedule_is_of_the_only_namespace() {
    let server = TestServer::on_disk().await;
    for (namespace, expected) in [("shop", "shop"), ("other", "")] {
        let token = server.token(namespace).await;
        server.put(&token, &format!("/api/{namespace}/q"), "x").await.expect(201);
        server.sampled().await;
        let form = browse(&server, "schedules").await.expect(200).link("New schedule");
        let form = browse(&server, &form).await.expect(200);
        assert_eq!(form.field("namespace"), expected, "with a queue of {namespace}");
    }
}

/// Guards against a search that finds queues only.
#[tokio::test]
async fn search_finds_keys_and_texts() {
    let server = TestServer::on_disk().await;
    let token = server.token("shop").await;
    let publish = server.api("POST", "/api/shop/mail/jobs?key=order-7", &token).body("x");
    let id = send(publish).await.expect(201).job_id();
    server.put(&token, "/api/shop/mail?delay=600", "a needle in delayed hay").await.expect(201);
    dead_job(&server, &token, "other", "another needle", "why").await;
    server.sampled().await;
    let page = browse(&server, "search?q=order-7").await.expect(200);
    assert!(page.all("h1").any(|h1| h1.text == format!("Job {id}")), "straight there: {}", page.main);
    let page = browse(&server, "search?q=needle").await.expect(200);
    page.says("a needle in delayed hay").says("another needle").says("shop/mail").says("shop/other");
    page.says("of 2 queues").says("These are all.");
    let none = browse(&server, "search?q=pitchfork").await.expect(404);
    none.says("No queue has").says("No job matches.");
}
