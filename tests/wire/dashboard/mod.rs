//! A browser's conversations with the dashboard, without scripts.

mod actions;
mod bulk;
mod fresh;
mod hostile;
mod page;
mod pages;
mod states;

use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;

use self::page::Page;
use crate::support::client::{Response, send};
use crate::support::servers::TestServer;
use crate::support::wait::TIMEOUT;

/// Requests a page with a browser's headers.
async fn browse(server: &TestServer, path: &str) -> Page {
    let answer =
        send(server.admin("GET", &format!("/ui/{path}")).header("Accept", "text/html,*/*;q=0.8")).await;
    Page::of(answer)
}

/// Requests a page until it is as expected.
async fn browse_within(
    time: Duration,
    server: &TestServer,
    path: &str,
    expected: impl Fn(&Page) -> bool,
) -> Page {
    let began = Instant::now();
    loop {
        let page = browse(server, path).await.expect(200);
        if expected(&page) {
            return page;
        }
        assert!(began.elapsed() < time, "{path:?} should be another within {time:?}: {}", page.main);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Requests a page until it shows a change. A page does not wait for a store that takes longer than 300 ms, and shows
/// older statistics. Panics long before the next sample, which would show the change too.
async fn browse_until(server: &TestServer, path: &str, shows: impl Fn(&Page) -> bool) -> Page {
    browse_within(Duration::from_secs(4), server, path, shows).await
}

/// Requests a page until it is complete: it waits at most about a second for its list.
async fn browse_whole(server: &TestServer, path: &str) -> Page {
    let is_whole = |page: &Page| !page.main.contains("no response within a second");
    browse_within(TIMEOUT, server, path, is_whole).await
}

/// Submits a form. Returns the page that it redirects to.
async fn submit(server: &TestServer, path: &str, fields: &[(&str, &str)]) -> Page {
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let request = server
        .admin("POST", &format!("/ui/{path}"))
        .header("Content-Type", "application/x-www-form-urlencoded")
        .header("Origin", format!("http://{}", server.admin_addr))
        .body(body);
    Page::of(send(request).await)
}

/// Returns the response itself, without following redirects.
async fn unfollowed(server: &TestServer, path: &str, accept: &str) -> (u16, HeaderMap, String) {
    let client =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
    let request = client.get(format!("http://{}{path}", server.admin_addr)).header("Accept", accept);
    let Response { status, headers, text, .. } = send(request).await;
    (status, headers, text)
}

/// Creates a dead job with this reason.
async fn dead_job(server: &TestServer, token: &str, queue: &str, body: &str, reason: &str) -> String {
    server.put(token, &format!("/api/shop/{queue}?tries=1"), body).await.expect(201);
    let job = server.get(token, &format!("/api/shop/{queue}?ttr=60&receipt=1")).await.expect(200);
    let receipt = job.json["receipt"].as_str().expect("a receipt");
    let bury = format!("/api/shop/{queue}/job/{}/bury?receipt={receipt}", job.job_id());
    send(server.api("POST", &bury, token).body(reason.to_owned())).await.expect(200);
    job.job_id()
}
