//! `GET /info/delays`: the number of delayed jobs by due time.

use std::time::Duration;

use crate::support::client::send;
use crate::support::servers::{Store, TestServer, on_each_store};
use serde_json::json;

async fn delays_are_told_by_the_step(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    for path in [
        "/api/ns/q?delay=90000&ttl=0",
        "/api/ns/q?delay=90000&ttl=0",
        "/api/ns/r?delay=300000&ttl=0",
        "/api/ns/r",
    ] {
        server.put(&token, path, "x").await.expect(201);
    }
    let ask = async |query: &str| send(server.admin("GET", &format!("/info/delays{query}"))).await;
    let all = ask("?by=day").await.expect(200).json;
    let keys: Vec<&String> = all.as_object().expect("an object").keys().collect();
    let mut expected = ["pool", "by", "now", "delayed", "overdue", "buckets", "later"];
    expected.sort_unstable();
    assert_eq!(keys, expected, "{all}");
    assert_eq!((&all["pool"], &all["by"]), (&json!("default"), &json!("day")));
    assert_eq!((&all["delayed"], &all["overdue"], &all["later"]), (&json!(3), &json!(0), &json!(0)), "{all}");
    let buckets = all["buckets"].as_array().expect("a list");
    assert_eq!(buckets.len(), 2, "two days have some: {all}");
    assert_eq!((&buckets[0]["count"], &buckets[1]["count"]), (&json!(2), &json!(1)), "{all}");
    for bucket in buckets {
        let from = bucket["from"].as_str().expect("an instant");
        assert!(from.ends_with("T00:00:00.000Z"), "a whole day in UTC: {from}");
    }
    let first = ask("?by=day&limit=1").await.expect(200).json;
    assert_eq!((first["buckets"].as_array().map(Vec::len), &first["later"]), (Some(1), &json!(1)), "{first}");
    let of_r = ask("?namespace=ns&queue=r&pool=default").await.expect(200).json;
    assert_eq!((&of_r["by"], &of_r["delayed"]), (&json!("minute"), &json!(1)), "{of_r}");
    // An equal request soon after gets the same reply.
    server.put(&token, "/api/ns/q?delay=90000&ttl=0", "x").await.expect(201);
    assert_eq!(ask("?by=day").await.expect(200).json, all, "the cached counts");
    let other = ask("?by=hour").await.expect(200).json;
    assert_eq!(other["delayed"], json!(4), "another question is counted anew: {other}");
}

on_each_store!(delays_are_told_by_the_step);

#[tokio::test]
async fn what_cannot_be_counted_is_named() {
    let server = TestServer::on_disk().await;
    for (query, names) in [
        ("?pool=nobody", "pool"),
        ("?namespace=a%20b", "namespace"),
        ("?namespace=", "namespace"),
        ("?queue=q", "namespace"),
        ("?namespace=ns&queue=a%20b", "queue"),
        ("?by=week", "by"),
        ("?by=", "by"),
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?limit=-1", "limit"),
        ("?limit=ten", "limit"),
        ("?limit=", "limit"),
    ] {
        let answer = send(server.admin("GET", &format!("/info/delays{query}"))).await.expect(400);
        assert!(answer.says().contains(names), "{query} is about {names}: {answer:?}");
    }
    let empty = send(server.admin("GET", "/info/delays?limit=1000")).await.expect(200).json;
    assert_eq!((&empty["delayed"], &empty["buckets"]), (&json!(0), &json!([])), "{empty}");
}

#[tokio::test]
async fn with_accounts_it_asks_for_one() {
    let store = Store::disk();
    let server =
        TestServer::start(&format!("{}[Accounts]\noperator = \"secret\"\n", store.toml()), store).await;
    send(server.admin("GET", "/info/delays")).await.expect(401);
    let logged_in = server.admin("GET", "/info/delays").basic_auth("operator", Some("secret"));
    send(logged_in.timeout(Duration::from_secs(10))).await.expect(200);
}
