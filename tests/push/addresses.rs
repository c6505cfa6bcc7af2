//! Which endpoints push may call: forbidden addresses in every notation and behind every name, certificates, and a
//! proxy. nginx serves TLS, tinyproxy is the proxy.

use std::time::Duration;

use crate::pushed::{LOCAL, Pushed, verifies};
use crate::receiver::{Answer, Receiver};
use crate::support::certificates::Authority;
use crate::support::fake_names::FakeNames;
use crate::support::process::Process;
use crate::support::redis_server::free_port;
use crate::support::servers::Store;
use crate::support::wait::until;
use crate::tinyproxy::Tinyproxy;
use crate::tls::nginx_before;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// Hosts that a URL may contain and that are not on the public network. A PUT rejects each with 400.
const WRITTEN: [&str; 48] = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "127.255.255.254",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0x7f.1",
    "0x7f.0x0.0x0.0x1",
    "0177.0.0.1",
    "0177.0x0.0.01",
    "127.000.000.001",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "１２７.0.0.1",
    "127。0。0。1",
    "①②⑦.0.0.1",
    "0",
    "0.0.0.0",
    "0x0",
    "10.1.2.3",
    "167838211",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "0300.0250.0.1",
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:7f00:1::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[ff02::1]",
];

/// An address of this machine that push may call.
const ALLOWED: &str = "PushAllow = [\"127.0.0.2/32\"]\n";

/// A server process with faked name resolution.
struct Faked {
    pushed: Pushed,
    process: Process,
    _names: FakeNames,
    _dir: TempDir,
}

impl Faked {
    /// Starts a server with these keys. Fails with the reason if this machine does not support it.
    async fn start(names: &[(&str, &[&str])], keys: &str) -> Result<Faked, String> {
        let names = FakeNames::new(names)?;
        let (dir, env) = (TempDir::new().expect("a temporary directory"), names.env());
        let config = format!("{keys}[Pool.default]\nPath = \"jobs\"\n");
        std::fs::write(dir.path().join("c.toml"), config).expect("a file");
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut process = Process::start(dir.path(), &["-c", "c.toml"], &env);
        let pushed = Pushed::process(&mut process).await;
        Ok(Faked { pushed, process, _names: names, _dir: dir })
    }
}

/// No notation of a URL and no name reaches a forbidden address of this machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forbidden_address_is_never_called() {
    let forbidden = Receiver::start_at("[::]:0").await; // every address of this machine, of both families
    let port = forbidden.addr().port();
    let (four, six) = ("127.0.0.1", "::1");
    let answers: Vec<(&str, &[&str])> = vec![
        ("loopback.test", &["127.0.0.1"]),
        ("six.test", &["::1"]),
        ("mapped.test", &["::ffff:127.0.0.1"]),
        ("nothing.test", &["0.0.0.0"]),
        ("nothing-six.test", &["::"]),
        ("short.test", &["127.8.8.8"]),
        ("nat64.test", &["64:ff9b::7f00:1"]),
        ("both.test", &["127.0.0.1,::1"]),
        ("private.test", &["10.0.0.1"]),
        ("metadata.test", &["169.254.169.254"]),
        ("unique-local.test", &["fd00::2"]),
    ];
    let faked = match Faked::start(&answers, "").await {
        Ok(faked) => faked,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let pushed = &faked.pushed;

    let mut urls: Vec<String> = WRITTEN.iter().map(|host| format!("http://{host}:{port}/")).collect();
    urls.extend([
        format!("http:{four}:{port}/"),
        format!("http:\\\\{four}:{port}\\"),
        format!("http://{four}:{port}#@shop.example/"),
        format!("http://{four}:{port}\\@shop.example/"),
        format!("http://\t{four}:{port}/"),
        format!("https://{four}:{port}/"),
        format!("HTTP://[{six}]:{port}/"),
    ]);
    for url in &urls {
        let refused = pushed.admin("PUT", "/push/ns/q", json!({"url": url})).await;
        assert_eq!(refused.status, 400, "{url} should be refused: {refused:?}");
    }
    // User info in the URL makes no difference.
    for url in [format!("http://shop.example@{four}:{port}/"), format!("http://a:b@{four}:{port}/")] {
        let refused = pushed.admin("PUT", "/push/ns/q", json!({"url": url})).await;
        assert_eq!(refused.status, 400, "{url} should be refused: {refused:?}");
    }
    pushed.admin("GET", "/push/ns/q", "").await.expect(404);

    // Names are checked when they are called.
    let mut named: Vec<String> = answers.iter().map(|(name, _)| (*name).to_owned()).collect();
    named.extend(["localhost", "LOCALHOST", "localhost.", "Loopback.TEST"].map(str::to_owned));
    let mut jobs = Vec::new();
    for (i, name) in named.iter().enumerate() {
        let (queue, url) = (format!("q{i}"), format!("http://{name}:{port}/"));
        let put = pushed.admin("PUT", &format!("/push/ns/{queue}"), json!({"url": url, "timeout": 20})).await;
        // Some names are rejected at once.
        if put.status == 400 {
            continue;
        }
        put.expect(200);
        let told = pushed.admin("POST", &format!("/push/ns/{queue}/test"), "").await.expect(200);
        assert!(told.json["status"].is_null(), "a test is no way around it: {name}: {}", told.text);
        jobs.push((name, queue.clone(), pushed.publish(&queue, "", "x").await));
    }
    assert!(jobs.len() >= 11, "names are judged at each connection");
    for (name, queue, id) in &jobs {
        let job = pushed.until_job(queue, id, "dead").await;
        let why = job["reason"].as_str().unwrap_or_default();
        // Some systems do not know `localhost.`.
        let unknown = name.ends_with('.') && why.contains("unknown host");
        assert!(why.contains("PushAllow") || unknown, "{name}: the attempt says why: {job}");
    }
    assert_eq!((forbidden.count(), forbidden.connections()), (0, 0), "called, or connected to");
}

/// A name that resolves to an allowed address first, and to a forbidden one for the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_changes_its_mind_reaches_no_forbidden_address() {
    // Allowed: 127.0.0.2. Forbidden: 127.0.0.1, at the same port.
    let port = free_port();
    let mut allowed = Receiver::start_at(&format!("127.0.0.2:{port}")).await;
    let forbidden = Receiver::start_at(&format!("127.0.0.1:{port}")).await;
    // The connection is closed after each response, so that the name is resolved again.
    allowed.answer(|_| Answer::with(200, &[("Connection", "close")], ""));
    let names: [(&str, &[&str]); 4] = [
        ("rebind.test", &["127.0.0.2", "127.0.0.1"]),
        ("rebind-late.test", &["127.0.0.2", "127.0.0.2", "127.0.0.1"]),
        ("first-bad.test", &["127.0.0.1,127.0.0.2"]),
        ("last-bad.test", &["127.0.0.2,127.0.0.1"]),
    ];
    let faked = match Faked::start(&names, ALLOWED).await {
        Ok(faked) => faked,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let pushed = &faked.pushed;
    for (i, (name, _)) in names.iter().enumerate() {
        let queue = format!("q{i}");
        let url = format!("http://{name}:{port}/");
        pushed.set(&queue, json!({"url": url, "concurrency": 1, "timeout": 5, "retry": [0]})).await;
        for _ in 0..6 {
            let id = pushed.publish(&queue, "tries=1", "x").await;
            let done = async || pushed.job(&queue, &id).await.is_none_or(|job| job["state"] == "dead");
            until(&format!("a job to {name} is done"), done).await;
        }
    }
    assert!(allowed.count() >= 6, "the allowed address is called: {}", allowed.count());
    assert_eq!((forbidden.count(), forbidden.connections()), (0, 0), "called, or connected to");

    // If the allowed address does not respond, the forbidden one is not tried instead.
    allowed.down().await;
    for i in 0..names.len() {
        let queue = format!("q{i}");
        let id = pushed.publish(&queue, "tries=1", "x").await;
        pushed.until_job(&queue, &id, "dead").await;
    }
    assert_eq!((forbidden.count(), forbidden.connections()), (0, 0), "called, or connected to");
}

/// Guards against names that hang and occupy the threads of the stores, one per request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_hang_take_few_threads_and_hold_up_nobody_else() {
    let receiver = Receiver::start_at("127.0.0.2:0").await;
    let names: [(&str, &[&str]); 2] = [("hangs.test", &["hangs"]), ("good.test", &["127.0.0.2"])];
    let faked = match Faked::start(&names, ALLOWED).await {
        Ok(faked) => faked,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let pushed = &faked.pushed;
    let setting = json!({"url": "http://hangs.test/", "concurrency": 600, "timeout": 60});
    pushed.set("hangs", setting).await;
    let jobs = json!((0..60).collect::<Vec<_>>());
    for _ in 0..10 {
        pushed.api("PUT", "/api/ns/hangs/bulk", jobs.to_string()).await.expect(201);
    }
    until("600 requests are under way", async || {
        pushed.metrics().await.contains(r#"push_in_flight{namespace="ns",pool="default",queue="hangs"} 600"#)
    })
    .await;
    let threads = std::fs::read_dir(format!("/proc/{}/task", faked.process.pid())).expect("it lives").count();
    assert!(threads < 100, "the server has {threads} threads, of which names have a few");
    let port = receiver.addr().port();
    pushed.set("good", json!({"url": format!("http://good.test:{port}/")})).await;
    let job = pushed.publish("good", "", "x").await;
    pushed.until_gone("good", &job).await;
}

/// Listens without accepting further connections: packets are dropped.
async fn drops_packets(at: &str) -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(at.parse().expect("an address")).unwrap_or_else(|e| panic!("{at} can be bound: {e}"));
    let (listener, mut full) = (socket.listen(1).expect("it listens"), Vec::new());
    let to = listener.local_addr().expect("it is bound");
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(300), TcpStream::connect(to)).await {
        full.push(stream);
        assert!(full.len() < 100, "its backlog is full at last");
    }
    (listener, full)
}

/// Guards against a name whose first address drops packets: the attempt would end before the second address is tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_drops_packets_holds_up_none_that_answers() {
    let port = free_port();
    let _receiver = Receiver::start_at(&format!("127.0.0.2:{port}")).await;
    let _full = drops_packets(&format!("127.0.0.3:{port}")).await;
    let names: [(&str, &[&str]); 2] =
        [("two.test", &["127.0.0.3,127.0.0.2"]), ("forbidden.test", &["127.0.0.3,127.0.0.1"])];
    let faked = match Faked::start(&names, "PushAllow = [\"127.0.0.2/31\"]\n").await {
        Ok(faked) => faked,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let pushed = &faked.pushed;
    pushed.set("q", json!({"url": format!("http://two.test:{port}/"), "timeout": 5})).await;
    let id = pushed.publish("q", "tries=1", "x").await;
    pushed.until_gone("q", &id).await;
    // Every address is checked before one of them is called.
    let forbidden = Receiver::start_at(&format!("127.0.0.1:{port}")).await;
    pushed.set("forbidden", json!({"url": format!("http://forbidden.test:{port}/"), "timeout": 2})).await;
    let id = pushed.publish("forbidden", "tries=1", "x").await;
    pushed.until_job("forbidden", &id, "dead").await;
    assert_eq!((forbidden.count(), forbidden.connections()), (0, 0), "called, or connected to");
}

/// An allowed endpoint redirects push to a forbidden one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_leads_nowhere() {
    let pushed = Pushed::with("PushAllow = [\"127.0.0.2/32\"]\n", Store::disk()).await;
    let (allowed, forbidden) = (Receiver::start_at("127.0.0.2:0").await, Receiver::start().await);
    let (there, back) = (forbidden.url("/there"), allowed.url("/back"));
    let statuses = [301, 302, 303, 307, 308];
    allowed.answer(move |request| {
        let (status, target) = (request.text().parse().expect("a status"), request.target.as_str());
        Answer::with(status, &[("Location", if target == "/far" { &there } else { &back })], "")
    });
    let mut jobs = Vec::new();
    for queue in ["far", "near"] {
        pushed.push_to(&allowed, queue, json!({})).await;
        for status in statuses {
            jobs.push((queue, pushed.publish(queue, "", &status.to_string()).await));
        }
    }
    for (queue, id) in &jobs {
        pushed.until_job(queue, id, "dead").await;
    }
    assert_eq!((forbidden.count(), forbidden.connections()), (0, 0), "a redirect was followed");
    let targets: Vec<String> = allowed.arrived().into_iter().map(|request| request.target).collect();
    assert!(!targets.contains(&"/back".to_owned()), "not even to where it may call: {targets:?}");
}

/// A name in `PushAllow` allows itself, not its neighbours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allowed_name_is_called_and_no_other() {
    let pushed = Pushed::with("PushAllow = [\"localhost\"]\n", Store::disk()).await;
    let receiver = Receiver::start().await;
    let port = receiver.addr().port();
    pushed.admin("PUT", "/push/ns/q", json!({"url": receiver.url("/")})).await.expect(400);
    pushed.set("q", json!({"url": format!("http://LocalHost:{port}/")})).await;
    let id = pushed.publish("q", "", "x").await;
    pushed.until_gone("q", &id).await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_only_refuses_http() {
    let pushed = Pushed::with(&format!("{LOCAL}PushHttps = \"only\"\n"), Store::disk()).await;
    let receiver = Receiver::start().await;
    let refused = pushed.admin("PUT", "/push/ns/q", json!({"url": receiver.url("/")})).await.expect(400);
    assert!(refused.says().contains("https"), "{refused:?}");
    pushed.set("q", json!({"url": "https://shop.example/"})).await;
}

/// Returns the outcome of a job with one try: `Ok` if it was acked, or why it died.
async fn outcome(pushed: &Pushed, url: &str) -> Result<(), String> {
    let queue = "tls";
    pushed.set(queue, json!({"url": url, "timeout": 5})).await;
    let id = pushed.publish(queue, "tries=1", "secret things").await;
    let mut why = None;
    until(&format!("a job to {url} is done"), async || match pushed.job(queue, &id).await {
        None => true,
        Some(job) if job["state"] == "dead" => {
            why = Some(job["reason"].as_str().unwrap_or_default().to_owned());
            true
        }
        Some(_) => false,
    })
    .await;
    why.map_or(Ok(()), Err)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_verified() {
    let receiver = Receiver::start().await;
    let (known, unknown) = (Authority::new(), Authority::new());
    let good = nginx_before(&known, receiver.addr(), "DNS:localhost,IP:127.0.0.1");
    let other_name = nginx_before(&known, receiver.addr(), "DNS:other.example");
    let strange = nginx_before(&unknown, receiver.addr(), "DNS:localhost,IP:127.0.0.1");
    let keys = format!("PushAllow = [\"127.0.0.0/8\", \"localhost\"]\nPushCA = {:?}\n", known.certificate());
    let pushed = Pushed::with(&keys, Store::disk()).await;

    let by_name = format!("https://localhost:{}/x?y=1", good.addr().port());
    outcome(&pushed, &by_name).await.unwrap_or_else(|why| panic!("by its name: {why}"));
    outcome(&pushed, &format!("https://{}/", good.addr()))
        .await
        .unwrap_or_else(|why| panic!("by its address: {why}"));
    assert_eq!(receiver.count(), 2);
    assert_eq!(receiver.arrived()[0].target, "/x?y=1");

    for (what, url) in [
        ("another name", format!("https://localhost:{}/", other_name.addr().port())),
        ("an authority that nobody knows", format!("https://localhost:{}/", strange.addr().port())),
        ("TLS to a port without", format!("https://{}/", receiver.addr())),
        ("no TLS to a port with", format!("http://{}/", good.addr())),
    ] {
        let why = outcome(&pushed, &url).await.expect_err(what);
        assert!(!why.is_empty(), "{what}: it says why");
    }
    assert_eq!(receiver.count(), 2, "no job was sent to a server that is another one");

    // Without PushCA, only the system's roots are trusted.
    let plain = Pushed::with("PushAllow = [\"localhost\"]\n", Store::disk()).await;
    outcome(&plain, &by_name).await.expect_err("an authority of a test is not the system's");
    assert_eq!(receiver.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_carries_http_and_tls() {
    let (receiver, proxy, authority) = (Receiver::start().await, Tinyproxy::start(), Authority::new());
    let nginx = nginx_before(&authority, receiver.addr(), "IP:127.0.0.1");
    let keys = format!("{LOCAL}PushProxy = {:?}\nPushCA = {:?}\n", proxy.url(), authority.certificate());
    let pushed = Pushed::with(&keys, Store::disk()).await;
    let set = pushed.push_to(&receiver, "q", json!({})).await;
    let id = pushed.publish("q", "", "by the proxy").await;
    pushed.until_gone("q", &id).await;
    let arrived = receiver.arrived();
    verifies(set["secret"].as_str().expect("a secret"), &arrived[0]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((arrived[0].target.as_str(), arrived[0].text().as_str()), ("/q", "by the proxy"));
    let log = proxy.log();
    assert!(log.contains(&receiver.addr().port().to_string()), "it went through the proxy: {log}");

    outcome(&pushed, &format!("https://{}/", nginx.addr())).await.unwrap_or_else(|why| panic!("TLS: {why}"));
    assert_eq!(receiver.count(), 2);
    let connect = format!("CONNECT {}", nginx.addr());
    assert!(proxy.log().contains(&connect), "TLS goes through a tunnel: {}", proxy.log());

    // Addresses that are forbidden without a proxy are forbidden with it.
    let refused = pushed.admin("PUT", "/push/ns/q", json!({"url": "http://169.254.169.254/"})).await;
    assert_eq!(refused.status, 400, "{refused:?}");

    // Without the proxy, nothing bypasses it.
    drop(proxy);
    outcome(&pushed, &receiver.url("/")).await.expect_err("the proxy is gone");
    assert_eq!(receiver.count(), 2);
}

/// A queue's setting stays if the configuration forbids its address later: each attempt shows why it failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_was_allowed_once_is_judged_again() {
    let store = Store::redis();
    let receiver = Receiver::start().await;
    let toml = store.toml();
    let before = crate::support::servers::TestServer::start(&format!("{LOCAL}{toml}"), ()).await;
    let body: Value = json!({"url": receiver.url("/")});
    let put = before.admin("PUT", "/push/ns/q").body(body.to_string());
    crate::support::client::send(put).await.expect(200);
    before.stop().await;
    let pushed = Pushed::with("", store).await;
    let id = pushed.publish("q", "", "x").await;
    pushed.until_job("q", &id, "dead").await;
    assert_eq!((receiver.count(), receiver.connections()), (0, 0));
}
