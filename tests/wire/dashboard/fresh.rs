//! Pages show a change at once, before the next sample, regardless of its origin.

use super::page::Page;
use super::{browse, browse_until, dead_job, submit};
use crate::support::client::send;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};

async fn a_queue_page_is_right_after_a_change(store: Store) {
    let knows_states = matches!(store, Store::Disk(_));
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    server.sampled().await;
    let queue = "queues/default/shop/q";
    assert!(browse(&server, queue).await.expect(200).has_button("Pause queue"));

    // By the page itself.
    let says = |text: &'static str| move |page: &Page| page.main.contains(text);
    let is_paused = |page: &Page| page.has_button("Resume queue") && !page.has_button("Pause queue");
    let goes_on = |page: &Page| page.has_button("Pause queue") && !page.has_button("Resume queue");
    submit(&server, queue, &[("do", "pause"), ("for", "600")]).await.expect(200);
    browse_until(&server, queue, is_paused).await.says("The queue is paused until");
    browse_until(&server, "", says("paused")).await;
    submit(&server, queue, &[("do", "resume")]).await.expect(200);
    browse_until(&server, queue, goes_on).await;

    // By the public port.
    send(server.api("POST", "/api/shop/q/pause", &token)).await.expect(200);
    browse_until(&server, queue, is_paused).await;
    browse_until(&server, "queues", says("paused")).await;
    send(server.api("POST", "/api/shop/q/resume", &token)).await.expect(200);
    browse_until(&server, queue, goes_on).await;
    server.put(&token, "/api/shop/q?delay=600", "later").await.expect(201);
    if knows_states {
        browse_until(&server, queue, says("Delayed 1")).await.says("Ready 1");
        server.get(&token, "/api/shop/q?ttr=600").await.expect(200);
        browse_until(&server, queue, says("Running 1")).await.says("Ready 0");
    }
}

async fn the_dead_page_is_right_after_a_change(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    server.sampled().await;
    browse(&server, "dead").await.expect(200).says("No queue has dead jobs");
    let job = dead_job(&server, &token, "mail", "x", "no such address").await;
    let dead = browse_until(&server, "dead", |page| page.main.contains("shop/mail")).await;
    dead.says("no such address");
    dead_job(&server, &token, "mail", "y", "no such address").await;
    let respawn = format!("/api/shop/mail/job/{job}/respawn");
    send(server.api("POST", &respawn, &token)).await.expect(200);
    // One of two is left.
    let is_left = |page: &Page| page.all("tr").any(|row| row.text.starts_with("shop/mail 1 "));
    browse_until(&server, "dead", is_left).await;
    send(server.api("DELETE", "/api/shop/mail/deadletter?limit=10", &token)).await.expect(204);
    let none = browse_until(&server, "dead", |page| page.main.contains("No queue has dead jobs")).await;
    none.says_not("shop/mail");
}

on_each_store!(a_queue_page_is_right_after_a_change, the_dead_page_is_right_after_a_change);

/// Guards against a change that is forgotten because the store hung while the first page after it was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_made_while_the_store_hangs_forgets_no_change() {
    let redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("shop").await;
    dead_job(&server, &token, "mail", "x", "no such address").await;
    server.sampled().await;
    send(server.api("DELETE", "/api/shop/mail/deadletter?limit=10", &token)).await.expect(204);
    let stalled = redis.stall();
    browse(&server, "dead").await.expect(200).says("shop/mail");
    drop(stalled);
    browse_until(&server, "dead", |page| page.main.contains("No queue has dead jobs")).await;
}
