//! Content of jobs, tokens and endpoints is shown as text on every page.

use super::page::{Element, Page};
use super::{browse, dead_job, submit};
use crate::support::client::send;
use crate::support::servers::TestServer;

/// Attempts to end a text node, run scripts, redirect, or reverse the reading direction.
const HOSTILE: [&str; 8] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "'></a><a href='javascript:alert(1)'>x",
    "</title></textarea></style></script><svg onload=alert(1)>",
    "javascript:alert(1)//",
    "&lt;b&gt;&#60;i&#62; {{7*7}} ${7*7} <!-- -->",
    "\u{202e}txt.exe\u{202c} \u{200b}\u{feff} \u{2066}x",
    "<form action=//evil.example><input name=sure value=yes>",
];

/// Starts a server on which every text chosen by users is this one.
async fn server_of(text: &str) -> (TestServer, Vec<String>) {
    let server = TestServer::on_disk().await;
    let encoded: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    let created = send(server.admin("POST", &format!("/token/shop?description={encoded}"))).await.expect(201);
    let token = created.json["token"].as_str().expect("a token").to_owned();
    let publish = async |key: &str| {
        let request = server.api("POST", &format!("/api/shop/q/jobs{key}"), &token);
        let request = request.header("Enable-Job-Version", "yes").header("Job-Attr-kind", text);
        send(request.body(text.to_owned())).await
    };
    // Not every text is a valid key.
    let mut answer = publish(&format!("?key={encoded}")).await;
    if answer.status == 400 {
        answer = publish("?key=k").await;
    }
    let id = answer.expect(201).job_id();
    let json = serde_json::json!({ text: [text, 1] }).to_string();
    let of_json = server.put(&token, "/api/shop/q", &json).await.expect(201).job_id();
    let dead = dead_job(&server, &token, "dies", text, text).await;
    let schedule = serde_json::json!({ "queue": "q", "every": 3600, "text": text });
    send(server.api("PUT", "/api/shop/_schedules/s", &token).body(schedule.to_string())).await.expect(201);
    let push = serde_json::json!({ "url": format!("https://hooks.example/?{encoded}") });
    send(server.admin("PUT", "/push/shop/dies").body(push.to_string())).await.expect(200);
    send(server.admin("POST", "/push/shop/dies/pause")).await.expect(200);
    server.sampled().await;
    let pages = [
        String::new(),
        "queues".into(),
        format!("queues?q={encoded}"),
        "queues/default/shop/q".into(),
        format!("queues/default/shop/q?contains={encoded}&reason={encoded}&range=day"),
        "queues/default/shop/dies?state=dead".into(),
        format!("queues/default/shop/dies?state=dead&ask=cancel&job={encoded}"),
        format!("queues/default/shop/q?done={encoded}&cursor={encoded}"),
        format!("jobs/default/shop/q/{id}"),
        format!("jobs/default/shop/q/{id}?as=json"),
        format!("jobs/default/shop/q/{id}?as=hex"),
        format!("jobs/default/shop/q/{of_json}"),
        format!("jobs/default/shop/dies/{dead}"),
        format!("jobs/default/shop/dies/{encoded}"),
        "namespaces/default/shop".into(),
        format!("publish/default/shop?queue={encoded}"),
        "push/default/shop/dies".into(),
        "schedules?namespace=shop".into(),
        format!("schedules?namespace=shop&queue={encoded}"),
        format!("schedules?ask=delete&namespace={encoded}&name={encoded}&pool={encoded}"),
        "dead".into(),
        format!("dead?namespace={encoded}&cursor={encoded}"),
        "bulk".into(),
        "server".into(),
        format!("queues/default/shop/dies?state=dead&ask=respawn-all&reason={encoded}&contains={encoded}"),
        "queues/default/shop/dies?ask=destroy".into(),
        "tokens/default/shop".into(),
        format!("tokens/default/{encoded}"),
        format!("search?q={encoded}"),
        format!("search?q=shop/q/{encoded}"),
        format!("search?q=x&in={encoded}"),
        format!("?tz={encoded}"),
    ];
    (server, pages.into())
}

/// Returns the names of a page's elements and attributes, without texts and without the sampling interval, which only
/// slow machines show.
fn skeleton(page: &Page) -> Vec<(String, Vec<String>)> {
    let of = |element: &Element| {
        let names = element.attributes.iter().map(|(name, _)| name.clone()).collect();
        (element.name.clone(), names)
    };
    page.elements.iter().filter(|element| element.get("class") != Some("each")).map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_from_a_job_is_markup() {
    let (harmless, plain) = server_of("harmless").await;
    let mut skeletons = Vec::new();
    for path in &plain {
        let page = browse(&harmless, path).await;
        skeletons.push((page.answer.status, skeleton(&page)));
    }
    let mut shown = 0;
    for text in HOSTILE {
        let (server, pages) = server_of(text).await;
        for (n, path) in pages.iter().enumerate() {
            let page = browse(&server, path).await;
            assert!(page.answer.status < 500, "{path}: {}", page.main);
            for element in &page.elements {
                let Element { name, attributes, .. } = element;
                assert!(
                    name != "img" && name != "iframe" && name != "base" && name != "style",
                    "{path}: <{name}>"
                );
                for (attribute, value) in attributes {
                    assert!(
                        !attribute.starts_with("on") && attribute != "style",
                        "{path}: {name} {attribute}"
                    );
                    if ["href", "src", "action", "formaction"].contains(&&**attribute) {
                        let to = value.trim_start();
                        assert!(
                            !to.starts_with("//") && !to.contains("javascript:"),
                            "{path}: {name} {value}"
                        );
                        assert!(
                            !to.split(['/', '?']).next().unwrap_or_default().contains(':'),
                            "{path}: {value}"
                        );
                    }
                }
            }
            // If the text is part of the page's address, another text may be refused differently.
            let (status, expected) = &skeletons[n];
            if plain[n] == *path
                && page.answer.status == *status
                && !path.contains("as=json")
                && !path.contains("jobs/")
            {
                assert_eq!(&skeleton(&page), expected, "{path} with {text:?}");
            }
            assert_eq!(page.all("script").count(), 1, "{path}");
            assert!(
                !page.answer.text.contains(['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}'])
                    || path.contains("%E2")
                    || path.contains("push/"),
                "{path}: what turns text is shown"
            );
            shown += usize::from(page.answer.text.contains("&lt;script&gt;alert(1)"));
        }
        for (path, form) in [
            (
                "publish/default/shop",
                vec![("queue", text), ("body", text), ("key", text), ("attributes", text)],
            ),
            ("push/default/shop/q", vec![("do", "save"), ("url", text), ("setting", text)]),
            ("queues/default/shop/q", vec![("do", text), ("ask", text), ("job", text)]),
            ("tokens/default/shop", vec![("do", "limit"), ("hash", text), ("read", text)]),
            ("bulk", vec![("do", "stop"), ("id", text)]),
            ("server", vec![("do", text)]),
            (
                "queues/default/shop/q",
                vec![("do", "destroy"), ("sure", "yes"), ("ask", "destroy"), ("name", text)],
            ),
            ("zone", vec![("tz", text), ("back", text)]),
        ] {
            let page = submit(&server, path, &form).await;
            assert!((400..500).contains(&page.answer.status), "{path}: {}", page.main);
            assert_eq!(page.all("script").count(), 1, "{path}");
            assert!(page.all("img").next().is_none() && page.all("iframe").next().is_none(), "{path}");
            let acts = page.all("form").filter_map(|form| form.get("action"));
            assert!(acts.into_iter().all(|to| !to.contains("evil")), "{path}");
        }
    }
    assert!(shown > 12, "the text is shown on many pages, not left out: {shown}");
}
