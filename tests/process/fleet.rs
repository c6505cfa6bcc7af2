//! Several servers on one store: two of ours and lmstfy on one Redis, and one that is killed repeatedly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::client::{create_token, data, job_id, send, try_send};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::{TIMEOUT, until};
use reqwest::Client;
use tempfile::TempDir;

/// An lmstfy server: the commands that lmstfy sends, one by one, with times in whole seconds.
struct Lmstfy {
    conn: redis::Connection,
    made: u64,
}

impl Lmstfy {
    const NS: &str = "shop";

    fn new(redis: &RedisServer) -> Lmstfy {
        Lmstfy { conn: redis.connection(), made: 0 }
    }

    fn now() -> u64 {
        std::time::UNIX_EPOCH.elapsed().expect("it is later than 1970").as_secs()
    }

    fn element(tries: u16, id: &str) -> Vec<u8> {
        [&tries.to_le_bytes()[..], &(id.len() as u16).to_le_bytes(), id.as_bytes()].concat()
    }

    fn member(queue: &str, tries: u16, id: &str) -> Vec<u8> {
        let names = [Lmstfy::NS, queue];
        let mut member: Vec<u8> =
            names.iter().flat_map(|n| [&(n.len() as u16).to_le_bytes()[..], n.as_bytes()].concat()).collect();
        member.extend(Lmstfy::element(tries, id));
        member
    }

    fn run(&mut self, command: &mut redis::Cmd) -> redis::Value {
        command.query(&mut self.conn).expect("the Redis answers")
    }

    fn publish(&mut self, queue: &str, delay: u32, tries: u16, body: &str) -> String {
        self.made += 1;
        let at = std::time::UNIX_EPOCH.elapsed().expect("it is later than 1970").as_millis() as u64;
        // Bit 47 is set in its ids, and clear in the ids of the servers under test.
        let id = dormouse::job::JobId::from_parts(at, (1 << 47) | self.made, delay, false).to_string();
        let (ns, job) = (Lmstfy::NS, format!("j/{}/{queue}/{id}", Lmstfy::NS));
        self.run(redis::cmd("HSET").arg("m/ns").arg(ns).arg(1));
        self.run(redis::cmd("HSET").arg(format!("m/ns/{ns}")).arg(queue).arg(1));
        self.run(redis::cmd("SET").arg(job).arg(body).arg("EX").arg(600).arg("NX"));
        if delay == 0 {
            self.run(redis::cmd("LPUSH").arg(format!("q/{ns}/{queue}")).arg(Lmstfy::element(tries, &id)));
        } else {
            let due = Lmstfy::now() + u64::from(delay);
            self.run(redis::cmd("ZADD").arg("timer_set").arg(due).arg(Lmstfy::member(queue, tries, &id)));
        }
        id
    }

    /// Consumes a job of the queue, and returns its body too.
    fn consume(&mut self, queue: &str, ttr: u64) -> Option<(String, String)> {
        loop {
            let list = format!("q/{}/{queue}", Lmstfy::NS);
            let element: Option<Vec<u8>> =
                redis::cmd("RPOP").arg(list).query(&mut self.conn).expect("a list");
            let element = element?;
            let tries = u16::from_le_bytes([element[0], element[1]]);
            let id = String::from_utf8(element[4..].to_vec()).expect("an id");
            assert!(tries > 0, "a ready job without tries: {id}");
            let due = Lmstfy::now() + ttr;
            self.run(redis::cmd("ZADD").arg("timer_set").arg(due).arg(Lmstfy::member(queue, tries - 1, &id)));
            let job = format!("j/{}/{queue}/{id}", Lmstfy::NS);
            let body: Option<String> = redis::cmd("GET").arg(job).query(&mut self.conn).expect("a string");
            if let Some(body) = body {
                return Some((id, body));
            }
        }
    }

    fn ack(&mut self, queue: &str, id: &str) {
        self.run(redis::cmd("DEL").arg(format!("j/{}/{queue}/{id}", Lmstfy::NS)));
    }

    /// Moves due jobs; a job without tries dies.
    fn pump(&mut self) {
        const PUMP: &str = r"
            local due = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, 100)
            for _, m in ipairs(due) do
                local ns, queue, tries, id = struct.unpack('Hc0Hc0HHc0', m)
                local job = table.concat({'j', ns, queue, id}, '/')
                if redis.call('EXISTS', job) == 1 then
                    local list, left = 'q', tries
                    if tries == 0 then
                        list, left = 'd', 1
                        redis.call('PERSIST', job)
                    end
                    redis.call('LPUSH', table.concat({list, ns, queue}, '/'), struct.pack('<HHc0', left, #id, id))
                end
                redis.call('ZREM', KEYS[1], m)
            end
            return #due";
        while self.run(redis::cmd("EVAL").arg(PUMP).arg(1).arg("timer_set").arg(Lmstfy::now()))
            == redis::Value::Int(100)
        {}
    }
}

/// Deliveries: each job's body with its consumers.
type Seen = Arc<Mutex<BTreeMap<String, Vec<&'static str>>>>;

fn note(seen: &Seen, body: &str, by: &'static str) {
    seen.lock().expect("no panic").entry(body.to_owned()).or_default().push(by);
}

fn count(seen: &Seen) -> usize {
    seen.lock().expect("no panic").len()
}

/// Serves as lmstfy does until `stop`: pumps, consumes, acks.
fn serve_as_lmstfy(redis: &RedisServer, seen: &Seen, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (mut server, seen, stop) = (Lmstfy::new(redis), seen.clone(), stop.clone());
    std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            server.pump();
            while let Some((id, body)) = server.consume("q", 600) {
                note(&seen, &body, "lmstfy");
                server.ack("q", &id);
            }
            std::thread::sleep(Duration::from_millis(3)); // lmstfy's own interval would be too long
        }
    })
}

/// Consumes and acks over HTTP until `stop`.
async fn consume_over_http(url: String, token: String, seen: Seen, stop: Arc<AtomicBool>, by: &'static str) {
    let client = Client::new();
    while !stop.load(Ordering::SeqCst) {
        let poll = client.get(format!("{url}?timeout=1&ttr=600&count=3")).header("X-Token", &token);
        let response = send(poll).await;
        for job in response.json.as_array().into_iter().flatten() {
            note(&seen, &text(data(job)), by);
            let ack = format!("{url}/job/{}", job_id(job));
            send(client.delete(ack).header("X-Token", &token)).await.expect(204);
        }
    }
}

fn text(data: Vec<u8>) -> String {
    String::from_utf8(data).expect("the test's bodies are text")
}

fn keys(redis: &RedisServer, pattern: &str) -> Vec<String> {
    redis::cmd("KEYS").arg(pattern).query(&mut redis.connection()).expect("keys")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_and_lmstfy_hand_each_job_out_once() {
    let redis = RedisServer::start();
    let servers =
        [TestServer::start(&redis_toml(&redis), ()).await, TestServer::start(&redis_toml(&redis), ()).await];
    let token = servers[0].token(Lmstfy::NS).await;
    let (seen, stop) = (Seen::default(), Arc::new(AtomicBool::new(false)));
    let theirs = serve_as_lmstfy(&redis, &seen, &stop);
    let mut ours = Vec::new();
    for (server, by) in servers.iter().zip(["first", "second"]) {
        for _ in 0..2 {
            let url = server.url("/api/shop/q");
            ours.push(tokio::spawn(consume_over_http(url, token.clone(), seen.clone(), stop.clone(), by)));
        }
    }
    let mut lmstfy = Lmstfy::new(&redis);
    for i in 0..300 {
        let delay = u32::from(i % 3 == 0);
        lmstfy.publish("q", delay, 1, &format!("theirs {i}"));
        let path = format!("/api/shop/q?delay={delay}&tries=1");
        servers[i % 2].put(&token, &path, &format!("ours {i}")).await.expect(201);
    }
    until("600 jobs are handed out", async || count(&seen) >= 600).await;
    stop.store(true, Ordering::SeqCst);
    theirs.join().expect("lmstfy does not panic");
    for consumer in ours {
        consumer.await.expect("no panic");
    }
    let seen = seen.lock().expect("no panic");
    let twice: Vec<_> = seen.iter().filter(|(_, by)| by.len() != 1).collect();
    assert!(twice.is_empty(), "handed out more than once: {twice:?}");
    let by: BTreeSet<&str> = seen.values().flatten().copied().collect();
    assert_eq!(by.len(), 3, "all three should have served, not only {by:?}");
    for pattern in ["j/*", "q/*", "d/*"] {
        assert_eq!(keys(&redis, pattern), [""; 0], "left over of {pattern}");
    }
}

/// Bodies of the remaining jobs: one ready, one delayed by a second, one running with a ttr that ends soon.
const STATES: [&str; 3] = ["delayed", "ready", "running"];

#[tokio::test(flavor = "multi_thread")]
async fn lmstfy_takes_over_what_our_server_left() {
    let redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token(Lmstfy::NS).await;
    server.put(&token, "/api/shop/q?tries=2", "running").await.expect(201);
    server.get(&token, "/api/shop/q?ttr=1").await.expect(200);
    server.put(&token, "/api/shop/dying", "dead").await.expect(201);
    server.get(&token, "/api/shop/dying?ttr=1").await.expect(200);
    server.put(&token, "/api/shop/q", "ready").await.expect(201);
    server.put(&token, "/api/shop/q?delay=1", "delayed").await.expect(201);
    server.stop().await;
    let (mut lmstfy, mut got) = (Lmstfy::new(&redis), BTreeSet::new());
    until("lmstfy gets three jobs, and the fourth dies", async || {
        lmstfy.pump();
        while let Some((id, body)) = lmstfy.consume("q", 600) {
            lmstfy.ack("q", &id);
            assert!(got.insert(body.clone()), "{body} came twice");
        }
        got.len() == 3 && keys(&redis, "d/shop/*") == ["d/shop/dying"]
    })
    .await;
    assert_eq!(got.iter().map(String::as_str).collect::<Vec<_>>(), STATES);
}

#[tokio::test(flavor = "multi_thread")]
async fn our_server_takes_over_what_lmstfy_left() {
    let redis = RedisServer::start();
    let mut lmstfy = Lmstfy::new(&redis);
    lmstfy.publish("q", 0, 2, "running");
    lmstfy.consume("q", 1).expect("the running one");
    lmstfy.publish("dying", 0, 1, "dead");
    lmstfy.consume("dying", 1).expect("the dying one");
    lmstfy.publish("q", 0, 1, "ready");
    lmstfy.publish("q", 1, 1, "delayed");
    // An acked job leaves its timer member behind, which must have no effect.
    let acked = lmstfy.publish("q2", 0, 5, "acked");
    lmstfy.consume("q2", 1).expect("the acked one");
    lmstfy.ack("q2", &acked);
    drop(lmstfy);

    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token(Lmstfy::NS).await;
    let mut got = BTreeSet::new();
    for _ in 0..3 {
        let job = server.get(&token, "/api/shop/q2,q?timeout=20&ttr=600").await.expect(200);
        let body = text(job.data());
        send(server.api("DELETE", &format!("/api/shop/q/job/{}", job.job_id()), &token)).await.expect(204);
        assert!(got.insert(body.clone()), "{body} came twice");
    }
    assert_eq!(got.iter().map(String::as_str).collect::<Vec<_>>(), STATES);
    until("the job without tries left dies", async || server.size("/api/shop/dying/deadletter").await == 1)
        .await;
    // The members are due in up to two different seconds.
    until("no member is left behind", async || {
        let timers: u64 = redis::cmd("ZCARD").arg("timer_set").query(&mut redis.connection()).expect("a set");
        timers == 0
    })
    .await;
}

/// lmstfy truncates the fraction of a due time, which is most of a second here.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_lmstfy_is_not_early_at_our_server() {
    let redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token(Lmstfy::NS).await;
    let mut lmstfy = Lmstfy::new(&redis);
    lmstfy.publish("running", 0, 2, "running");
    let into_second = std::time::UNIX_EPOCH.elapsed().expect("it is later than 1970").subsec_millis();
    let wait = (1800 - u64::from(into_second)) % 1000;
    tokio::time::sleep(Duration::from_millis(wait)).await;
    let began = Instant::now();
    lmstfy.publish("delayed", 1, 1, "delayed");
    lmstfy.consume("running", 1).expect("the running one");
    for name in ["delayed", "running"] {
        let path = format!("/api/shop/{name}?timeout=20&ttr=600");
        let job = server.get(&token, &path).await.expect(200);
        assert_eq!(text(job.data()), name, "the job of queue {name}");
        assert!(began.elapsed() >= Duration::from_secs(1), "{name} came after {:?}", began.elapsed());
    }
}

/// What clients of a crashing server have observed.
#[derive(Default)]
struct Told {
    published: Mutex<BTreeSet<String>>,
    /// Acks that were sent. It is unknown whether those without a reply arrived.
    ack_sent: Mutex<BTreeSet<String>>,
    /// When each ack was acknowledged for the first time.
    acked: Mutex<BTreeMap<String, Instant>>,
    /// Delivered again to a poll that was sent after their ack was acknowledged.
    risen: Mutex<BTreeSet<String>>,
    published_in_this_life: AtomicUsize,
}

impl Told {
    /// Records a delivery. `asked` is when its poll was sent: an earlier poll may have got the job before the ack.
    fn handed_out(&self, id: &str, asked: Instant) {
        if self.acked.lock().expect("no panic").get(id).is_some_and(|acked| *acked < asked) {
            self.risen.lock().expect("no panic").insert(id.to_owned());
        }
    }

    /// Returns published jobs that were not delivered.
    fn missing(&self) -> Vec<String> {
        let (published, ack_sent) = (self.published.lock().expect("no panic"), self.ack_sent.lock());
        published.difference(&*ack_sent.expect("no panic")).cloned().collect()
    }
}

/// Publishes until the server has ended.
async fn publisher(told: Arc<Told>, url: String, token: String) {
    let client = Client::new();
    loop {
        let put = client.put(format!("{url}?tries=1000&ttl=0")).header("X-Token", &token).body("x");
        let Ok(response) = try_send(put).await else { return };
        told.published.lock().expect("no panic").insert(response.expect(201).job_id());
        told.published_in_this_life.fetch_add(1, Ordering::SeqCst);
    }
}

/// Consumes and acks until the server has ended; in the last round, until a poll longer than any ttr finds nothing
/// and no job is missing.
async fn consumer(told: Arc<Told>, url: String, token: String, last_life: bool) {
    let client = Client::new();
    let began = Instant::now();
    loop {
        // Half of the deliveries are acked; the rest is redelivered.
        let get = client.get(format!("{url}?timeout=2&ttr=1&count=2")).header("X-Token", &token);
        let asked = Instant::now();
        let Ok(response) = try_send(get).await else { return };
        let Some(jobs) = response.json.as_array() else {
            if last_life && (told.missing().is_empty() || began.elapsed() > TIMEOUT / 2) {
                return;
            }
            continue;
        };
        for (i, job) in jobs.iter().enumerate() {
            let id = job_id(job);
            told.handed_out(&id, asked);
            if i == 1 && !last_life {
                continue;
            }
            told.ack_sent.lock().expect("no panic").insert(id.clone());
            let ack = client.delete(format!("{url}/job/{id}")).header("X-Token", &token);
            let Ok(response) = try_send(ack).await else { return };
            response.expect(204);
            told.acked.lock().expect("no panic").entry(id).or_insert_with(Instant::now);
        }
    }
}

/// Five times: serves under load and is killed by kill -9. At the end every acknowledged job exists.
async fn what_was_answered_survives_kill_9(store: Store) {
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), store.toml()).expect("a file");
    let told = Arc::new(Told::default());
    let mut token = String::new();
    for life in 0..6 {
        let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
        let (api, admin) = (process.address("api"), process.address("admin"));
        if token.is_empty() {
            token = create_token(admin, "ns").await;
        }
        let url = format!("http://{api}/api/ns/q");
        let last_life = life == 5;
        let mut load = Vec::new();
        for _ in 0..4 {
            load.push(tokio::spawn(consumer(told.clone(), url.clone(), token.clone(), last_life)));
            if !last_life {
                load.push(tokio::spawn(publisher(told.clone(), url.clone(), token.clone())));
            }
        }
        if !last_life {
            told.published_in_this_life.store(0, Ordering::SeqCst);
            let published = async || told.published_in_this_life.load(Ordering::SeqCst) >= 100;
            until("a hundred publishes are answered", published).await;
            process.kill();
        }
        for task in load {
            tokio::time::timeout(TIMEOUT, task).await.expect("a client ends in time").expect("no panic");
        }
    }
    let published = told.published.lock().expect("no panic").len();
    let lost = told.missing();
    assert!(lost.is_empty(), "{} of {published} jobs that were answered 201 are lost: {lost:?}", lost.len());
    let risen = told.risen.lock().expect("no panic");
    assert!(risen.is_empty(), "acked, and handed out again: {risen:?}");
    assert!(published >= 500, "only {published} jobs: no load");
}

on_each_store!(what_was_answered_survives_kill_9);
