//! The nginx configuration of docs/operations.md, unchanged, in front of two servers on one Redis: both are restarted
//! in turn under load with long polls, and one disconnects during a publish.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use crate::support::certificates::Authority;
use crate::support::client::create_token;
use crate::support::nginx::Nginx;
use crate::support::process::Process;
use crate::support::redis_server::{RedisServer, free_port};
use crate::support::wait::until;

/// Returns the nginx configuration of the page, its only block in that language.
fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let text = std::fs::read_to_string(path).expect("the page");
    let mut blocks = text.split("\n```nginx\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let block = blocks.next().expect("a block of nginx").to_owned();
    assert!(blocks.next().is_none(), "one block");
    block
}

/// Starts nginx with the page's configuration in front of these two addresses; with TLS if there is an authority.
fn nginx(servers: [&str; 2], authority: Option<&Authority>) -> Nginx {
    let dir = TempDir::new().expect("a temporary directory");
    let (certificate, key) = (dir.path().join("dormouse.pem"), dir.path().join("dormouse.key"));
    let change = |text: &mut String, from: &str, to: &str| {
        assert!(text.contains(from), "{from:?} in the block of the page");
        *text = text.replace(from, to);
    };
    let mut block = page();
    change(&mut block, "10.0.0.1:7777", servers[0]);
    change(&mut block, "10.0.0.2:7777", servers[1]);
    match authority {
        Some(authority) => {
            authority.issue("IP:127.0.0.1", &certificate, &key);
            change(&mut block, "/etc/nginx/dormouse.pem", &certificate.display().to_string());
            change(&mut block, "/etc/nginx/dormouse.key", &key.display().to_string());
        }
        None => block = block.lines().filter(|line| !line.contains("ssl_")).collect::<Vec<_>>().join("\n"),
    }
    let tls = if authority.is_some() { " ssl" } else { "" };
    assert!(block.contains("listen 443 ssl;"), "the port of the page");
    Nginx::start(dir, |addr| block.replace("listen 443 ssl;", &format!("listen {addr}{tls};")))
        .unwrap_or_else(|why| panic!("{why}"))
}

/// A client with one connection to nginx, reopened when nginx has closed it.
struct Caller {
    addr: SocketAddr,
    tls: Option<TlsConnector>,
    token: String,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Caller {
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(self.addr).await.map_err(|e| format!("connect: {e}"))?;
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return handshake(stream).await };
        let name = ServerName::from(self.addr.ip());
        handshake(tls.connect(name, stream).await.map_err(|e| format!("TLS: {e}"))?).await
    }

    /// Returns the status and the body, or an error.
    async fn call(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Bytes), String> {
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("Host", self.addr.to_string())
            .header("X-Token", &self.token)
            .body(Full::new(Bytes::from(body.to_owned())))
            .expect("a request");
        let mut kept = self.sender.take();
        if let Some(sender) = &mut kept
            && sender.ready().await.is_err()
        {
            kept = None;
        }
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let answer = sender.send_request(request).await.map_err(|e| format!("{method} {path}: {e}"))?;
        let status = answer.status().as_u16();
        let closes = answer.headers().get("connection").is_some_and(|value| value == "close");
        let body = answer.into_body().collect().await.map_err(|e| format!("{method} {path}: {e}"))?;
        self.sender = (!closes).then_some(sender);
        Ok((status, body.to_bytes()))
    }
}

async fn handshake<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Results of the load.
#[derive(Default)]
struct Met {
    requests: AtomicUsize,
    polls: AtomicUsize,
    failed: Mutex<Vec<String>>,
    /// The body of each publish that got 201.
    published: Mutex<BTreeSet<String>>,
    /// Number of deliveries of each body, by id.
    handed: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

impl Met {
    /// Returns the response if it has one of these statuses; otherwise the request has failed.
    fn good(&self, answer: Result<(u16, Bytes), String>, good: &[u16]) -> Option<(u16, Bytes)> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match answer {
            Ok((status, body)) if good.contains(&status) => Some((status, body)),
            Ok((status, body)) => {
                self.failed.lock().push(format!("{status} {}", String::from_utf8_lossy(&body)));
                None
            }
            Err(why) => {
                self.failed.lock().push(why);
                None
            }
        }
    }
}

/// Publishes by PUT and POST alternately, until stopped.
async fn produce(mut caller: Caller, name: usize, stop: Arc<AtomicBool>, met: Arc<Met>) {
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let body = format!("job-{name}-{n}");
        let answer = match n % 2 {
            0 => caller.call("PUT", "/api/ns/q", &body).await,
            _ => caller.call("POST", "/api/ns/q/jobs", &body).await,
        };
        if met.good(answer, &[201]).is_some() {
            met.published.lock().insert(body);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for jobs and acks them, until stopped and the queue is empty.
async fn consume(mut caller: Caller, stop: Arc<AtomicBool>, met: Arc<Met>) {
    loop {
        let last = stop.load(Ordering::Relaxed);
        met.polls.fetch_add(1, Ordering::Relaxed);
        let answer = caller.call("GET", "/api/ns/q?timeout=2&ttr=60", "").await;
        match met.good(answer, &[200, 404]) {
            Some((200, body)) => {
                let job: serde_json::Value = serde_json::from_slice(&body).expect("a job");
                let id = crate::support::client::job_id(&job);
                let data = String::from_utf8(crate::support::client::data(&job)).expect("text");
                met.handed.lock().entry(data).or_default().insert(id.clone());
                met.good(caller.call("DELETE", &format!("/api/ns/q/job/{id}"), "").await, &[204]);
            }
            Some(_) if last => return,
            _ => {}
        }
    }
}

/// Starts one of the two servers, always on the same port.
fn server(dir: &TempDir, port: u16, redis: &RedisServer) -> Process {
    let addr = redis.addr();
    // Longer than nginx keeps an idle connection, as the page recommends.
    let toml = format!("DrainSeconds = 3\n[Pool.default]\nAddr = '{addr}'\n[AdminRedis]\nAddr = '{addr}'\n");
    std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[("DORMOUSE_PORT", &port.to_string())]);
    process.line_with("serving");
    process
}

async fn rolling_restart(authority: Option<Authority>) {
    let tls = authority.as_ref().map(|authority| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.certificate()).expect("PEM")).expect("one");
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    });
    let redis = RedisServer::start();
    let dirs = [(); 2].map(|()| TempDir::new().expect("a temporary directory"));
    let ports = [(); 2].map(|()| free_port());
    let mut servers = [server(&dirs[0], ports[0], &redis), server(&dirs[1], ports[1], &redis)];
    let token = create_token(servers[0].address("admin"), "ns").await;
    let nginx = nginx(
        ports.map(|port| format!("127.0.0.1:{port}")).each_ref().map(String::as_str),
        authority.as_ref(),
    );

    let (met, no_more, drained) =
        (Arc::<Met>::default(), Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let caller = || Caller { addr: nginx.addr(), tls: tls.clone(), token: token.clone(), sender: None };
    let producers: Vec<_> =
        (0..6).map(|n| tokio::spawn(produce(caller(), n, no_more.clone(), met.clone()))).collect();
    // More consumers than jobs, so that most are parked.
    let consumers: Vec<_> =
        (0..40).map(|_| tokio::spawn(consume(caller(), drained.clone(), met.clone()))).collect();
    until("there is load", async || met.published.lock().len() > 100).await;
    for round in 0..2 {
        for (n, server_now) in servers.iter_mut().enumerate() {
            let before = met.published.lock().len();
            let began = Instant::now();
            server_now.signal("TERM");
            let next = tokio::task::block_in_place(|| {
                // Ends within the drain and five seconds.
                let placeholder = Process::run(std::process::Command::new("true"), dirs[n].path(), &[]);
                let ended = std::mem::replace(server_now, placeholder).ended();
                assert_eq!(ended.status.code(), Some(0), "server {n}, round {round}: {}", ended.said);
                assert!(began.elapsed() >= Duration::from_secs(3), "it drains");
                // Time for nginx to run with one server only.
                std::thread::sleep(Duration::from_millis(700));
                server(&dirs[n], ports[n], &redis)
            });
            *server_now = next;
            until("publishes go on", async || met.published.lock().len() > before + 100).await;
        }
    }
    no_more.store(true, Ordering::Relaxed);
    for producer in producers {
        producer.await.expect("no panic");
    }
    drained.store(true, Ordering::Relaxed);
    for consumer in consumers {
        consumer.await.expect("no panic");
    }
    let (published, handed, failed) = (met.published.lock(), met.handed.lock(), met.failed.lock());
    let lost: Vec<_> = published.iter().filter(|body| !handed.contains_key(*body)).collect();
    let twice: Vec<_> = handed.iter().filter(|(_, ids)| ids.len() > 1).collect();
    println!(
        "{} requests, {} of them polls, {} jobs published, failed {}, lost {}, stored twice {}",
        met.requests.load(Ordering::Relaxed),
        met.polls.load(Ordering::Relaxed),
        published.len(),
        failed.len(),
        lost.len(),
        twice.len()
    );
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), &failed[..failed.len().min(5)]);
    assert!(lost.is_empty() && twice.is_empty(), "lost {lost:?}, stored twice {twice:?}");
}

/// Guards against a deployment that clients notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_behind_nginx_fails_nothing() {
    rolling_restart(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_behind_nginx_with_tls_fails_nothing() {
    rolling_restart(Some(Authority::new())).await;
}

/// Accepts requests and closes the connection instead of replying. Counts complete requests.
async fn breaks_off() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (addr, count) = (listener.local_addr().expect("it is bound"), Arc::<AtomicUsize>::default());
    let counter = count.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut read = vec![0; 4096];
            if stream.read(&mut read).await.is_ok_and(|n| n > 0) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    (addr, count)
}

/// Replies to each request with this status, and counts it.
async fn answers(status: u16) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (addr, count) = (listener.local_addr().expect("it is bound"), Arc::<AtomicUsize>::default());
    let counter = count.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counter = counter.clone();
            tokio::spawn(async move {
                let mut read = vec![0; 4096];
                while stream.read(&mut read).await.is_ok_and(|n| n > 0) {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (addr, count)
}

/// Guards against a publish stored by a server that died, which nginx then sends to the next server: its default for a
/// PUT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_sends_no_publish_to_two_servers() {
    let ((broken, taken), (good, answered)) = (breaks_off().await, answers(201).await);
    let nginx = nginx([&broken.to_string(), &good.to_string()], None);
    let mut caller = Caller { addr: nginx.addr(), tls: None, token: "t".to_owned(), sender: None };
    let mut statuses = BTreeMap::<u16, usize>::new();
    for (n, (method, path)) in
        [("PUT", "/api/ns/q"), ("POST", "/api/ns/q/jobs")].into_iter().cycle().take(40).enumerate()
    {
        let answer = caller.call(method, path, &format!("job-{n}")).await.expect("nginx answers");
        *statuses.entry(answer.0).or_default() += 1;
        let (taken, answered) = (taken.load(Ordering::Relaxed), answered.load(Ordering::Relaxed));
        assert_eq!(taken + answered, n + 1, "request {n}, a {method}, went to one server: {statuses:?}");
    }
    let (taken, answered) = (taken.load(Ordering::Relaxed), answered.load(Ordering::Relaxed));
    assert!(taken > 0 && answered > 0, "both servers are asked: {taken}, {answered}");
    assert_eq!(statuses, BTreeMap::from([(201, answered), (502, taken)]), "what broke off is said");
}

/// Guards against failed requests while one server is down for long, or starting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_goes_on_with_the_servers_that_are_left() {
    let away = format!("127.0.0.1:{}", free_port());
    let ((good, answered), (starts, _)) = (answers(201).await, answers(503).await);
    for bad in [&away, &starts.to_string()] {
        for servers in [[bad.clone(), good.to_string()], [good.to_string(), bad.clone()]] {
            let nginx = nginx(servers.each_ref().map(String::as_str), None);
            let mut caller = Caller { addr: nginx.addr(), tls: None, token: "t".to_owned(), sender: None };
            for _ in 0..20 {
                for (method, path) in [("PUT", "/api/ns/q"), ("POST", "/api/ns/q/jobs"), ("GET", "/api/ns/q")]
                {
                    let answer = caller.call(method, path, "x").await.expect("nginx answers");
                    assert_eq!(answer.0, 201, "{servers:?} {method}: {answer:?}");
                }
            }
        }
    }
    assert_eq!(answered.load(Ordering::Relaxed), 240, "each request once");
    for bad in [&away, &starts.to_string()] {
        let nginx = nginx([bad, &format!("127.0.0.1:{}", free_port())], None);
        let mut caller = Caller { addr: nginx.addr(), tls: None, token: "t".to_owned(), sender: None };
        let answer = caller.call("PUT", "/api/ns/q", "x").await.expect("nginx answers");
        assert!(matches!(answer.0, 502 | 503), "no server is up: {answer:?}");
    }
}
