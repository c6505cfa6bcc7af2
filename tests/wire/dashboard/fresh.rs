//! Pages show a change at once, before the next sample, regardless of its origin.

use super::{browse, dead_job, submit};
use crate::support::client::send;
use crate::support::servers::{Store, TestServer, on_each_store};

async fn a_queue_page_is_right_after_a_change(store: Store) {
    let knows_states = matches!(store, Store::Disk(_));
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    server.put(&token, "/api/shop/q", "x").await.expect(201);
    server.sampled().await;
    let queue = "queues/default/shop/q";
    assert!(browse(&server, queue).await.expect(200).has_button("Pause queue"));

    // By the page itself.
    let page = submit(&server, queue, &[("do", "pause"), ("for", "600")]).await.expect(200);
    page.says("The queue is paused until");
    assert!(page.has_button("Resume queue") && !page.has_button("Pause queue"), "{}", page.main);
    browse(&server, "").await.expect(200).says("paused");
    let page = submit(&server, queue, &[("do", "resume")]).await.expect(200);
    assert!(page.has_button("Pause queue") && !page.has_button("Resume queue"), "{}", page.main);

    // By the public port.
    send(server.api("POST", "/api/shop/q/pause", &token)).await.expect(200);
    assert!(browse(&server, queue).await.expect(200).has_button("Resume queue"));
    browse(&server, "queues").await.expect(200).says("paused");
    send(server.api("POST", "/api/shop/q/resume", &token)).await.expect(200);
    assert!(browse(&server, queue).await.expect(200).has_button("Pause queue"));
    server.put(&token, "/api/shop/q?delay=600", "later").await.expect(201);
    if knows_states {
        browse(&server, queue).await.expect(200).says("Ready 1").says("Delayed 1");
        server.get(&token, "/api/shop/q?ttr=600").await.expect(200);
        browse(&server, queue).await.expect(200).says("Ready 0").says("Running 1");
    }
}

async fn the_dead_page_is_right_after_a_change(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("shop").await;
    server.sampled().await;
    browse(&server, "dead").await.expect(200).says("No queue has dead jobs");
    let job = dead_job(&server, &token, "mail", "x", "no such address").await;
    let dead = browse(&server, "dead").await.expect(200);
    dead.says("shop/mail").says("no such address");
    dead_job(&server, &token, "mail", "y", "no such address").await;
    let respawn = format!("/api/shop/mail/job/{job}/respawn");
    send(server.api("POST", &respawn, &token)).await.expect(200);
    let row = browse(&server, "dead").await.expect(200);
    let row = row.all("tr").find(|row| row.text.contains("shop/mail")).expect("its row").text.clone();
    assert!(row.starts_with("shop/mail 1 "), "one of two is left: {row}");
    send(server.api("DELETE", "/api/shop/mail/deadletter?limit=10", &token)).await.expect(204);
    browse(&server, "dead").await.expect(200).says("No queue has dead jobs").says_not("shop/mail");
}

on_each_store!(a_queue_page_is_right_after_a_change, the_dead_page_is_right_after_a_change);
