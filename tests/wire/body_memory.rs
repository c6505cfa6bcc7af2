//! `MaxBodyMemory`: unfinished requests and unread replies of one namespace use at most its share, and others are
//! served.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::status;
use crate::support::client::send;
use crate::support::servers::{Store, TestServer};
use crate::support::wait::TIMEOUT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

const MIB: usize = 1 << 20;
/// Maximum time that requests and replies may wait while others are stalled.
const SOON: Duration = Duration::from_secs(8);
/// A sender is stuck if its kernel accepts nothing more for this long.
const STUCK: Duration = Duration::from_millis(500);

/// Starts a server with 16 MiB of body memory for requests and for replies: 8 MiB per namespace.
async fn server(store: Store) -> TestServer {
    TestServer::start(&format!("MaxBodyMemory = 16\n{}", store.toml()), store).await
}

/// Connects with a small receive buffer.
async fn connect(addr: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 * 1024).expect("a size");
    socket.connect(addr).await.expect("the port takes connections")
}

/// Sends requests over separate connections, and reads only the statuses of their responses.
async fn idle_readers(server: &TestServer, paths: &[&str], token: &str) -> Vec<(u16, TcpStream)> {
    let reader = |path: &&str| tokio::spawn(idle_reader(server.api_addr, path.to_string(), token.to_owned()));
    let readers: Vec<_> = paths.iter().map(reader).collect();
    let mut answered = Vec::new();
    for reader in readers {
        answered.push(reader.await.expect("no panic"));
    }
    answered
}

async fn idle_reader(server: SocketAddr, path: String, token: String) -> (u16, TcpStream) {
    let mut stream = connect(server).await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut line = [0; 12];
    timeout(TIMEOUT, stream.read_exact(&mut line)).await.expect("an answer in time").expect("an answer");
    (status(&String::from_utf8_lossy(&line)), stream)
}

/// Publishes large jobs.
async fn fill(server: &TestServer, token: &str, queue: &str, jobs: usize) {
    let body = "x".repeat(MIB);
    for _ in 0..jobs {
        server.put(token, queue, &body).await.expect(201);
    }
}

/// Checks that another tenant's large bodies are served soon.
async fn goes_on(server: &TestServer, token: &str) {
    let job = format!("\"{}\"", "x".repeat(MIB / 2));
    let bulk = format!("[{}]", [job.as_str(); 8].join(","));
    let all = async {
        send(server.api("PUT", "/api/modest/q/bulk", token).body(bulk)).await.expect(201);
        let list = server.get(token, "/api/modest/q/jobs?data=1").await.expect(200);
        assert_eq!(list.json["jobs"].as_array().map(Vec::len), Some(8), "what was published is listed");
        let jobs = server.get(token, "/api/modest/q?count=8").await.expect(200);
        assert_eq!(jobs.json.as_array().map(Vec::len), Some(8), "and handed out");
    };
    timeout(SOON, all).await.expect("another tenant waits for one that stands still");
}

/// Guards against replies that count only until they are in the connection's buffer, and against lists that are read
/// before they count.
#[tokio::test]
async fn idle_readers_take_their_share_and_no_more() {
    let server = server(Store::disk()).await;
    let [greedy, modest] = [server.token("greedy").await, server.token("modest").await];
    fill(&server, &greedy, "/api/greedy/q", 8).await;
    let readers = idle_readers(&server, &["/api/greedy/q/jobs?data=1&limit=100"; 10], &greedy).await;
    let served = readers.iter().filter(|(status, _)| *status == 200).count();
    let refused = readers.iter().filter(|(status, _)| *status == 503).count();
    assert_eq!(
        (served, refused),
        (1, 9),
        "lists of 11 MiB that were served, in a share of 8 MiB, and refused"
    );
    goes_on(&server, &modest).await;
    drop(readers);
    // Their memory is freed once the server has noticed that they disconnected.
    let again =
        async { while server.get(&greedy, "/api/greedy/q/jobs?data=1&limit=1").await.status != 200 {} };
    timeout(SOON, again).await.expect("the memory of disconnected readers is free again");
}

/// Guards against one namespace's replies that use all body memory.
#[tokio::test]
async fn consumers_that_do_not_read_take_their_share_and_no_more() {
    let server = server(Store::disk()).await;
    let [greedy, modest] = [server.token("greedy").await, server.token("modest").await];
    fill(&server, &greedy, "/api/greedy/q", 24).await;
    let readers = idle_readers(&server, &["/api/greedy/q?count=8&ttr=600"; 3], &greedy).await;
    let mut statuses: Vec<u16> = readers.iter().map(|(status, _)| *status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503, 503], "consumes of 8 MiB in a share of 8 MiB");
    goes_on(&server, &modest).await;
    let back = async { while server.size("/api/greedy/q").await != 16 {} };
    timeout(SOON, back).await.expect("the jobs of refused answers are ready again");
}

/// Guards against one namespace's unfinished bodies that use all body memory.
#[tokio::test]
async fn bulks_that_do_not_end_take_their_share_and_no_more() {
    let server = server(Store::disk()).await;
    let [greedy, modest] = [server.token("greedy").await, server.token("modest").await];
    let piece = vec![b' '; MIB];
    let mut bulks = Vec::new();
    for _ in 0..3 {
        let mut bulk = connect(server.api_addr).await;
        let head = format!(
            "PUT /api/greedy/q/bulk HTTP/1.1\r\nHost: x\r\nX-Token: {greedy}\r\nContent-Length: {}\r\n\r\n[",
            60 * MIB
        );
        bulk.write_all(head.as_bytes()).await.expect("sent");
        for _ in 0..20 {
            if timeout(STUCK, bulk.write_all(&piece)).await.is_err() {
                break;
            }
        }
        bulks.push(bulk);
    }
    goes_on(&server, &modest).await;
}
