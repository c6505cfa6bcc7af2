//! A small HTTP/1.1 client: one kept-alive connection, one request at a time. Fifteen thousand of them must
//! cost the machine little, so an idle one owns a socket and nothing else.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Outcome;

/// Longer than any reply takes, long polls included.
const PATIENCE: Duration = Duration::from_secs(200);
/// Larger than any of our replies: the longest are the statistics of 100,000 queues.
const MAX_ANSWER: usize = 256 << 20;

/// Destination and credentials of requests.
#[derive(Clone, Debug)]
pub struct Target {
    pub addr: SocketAddr,
    /// The headers of every request, and the end of its first line.
    head: String,
}

impl Target {
    /// Creates a target, with or without a token.
    pub fn new(addr: SocketAddr, token: Option<&str>) -> Target {
        let token = token.map_or(String::new(), |token| format!("X-Token: {token}\r\n"));
        Target { addr, head: format!(" HTTP/1.1\r\nHost: {addr}\r\n{token}") }
    }

    /// Returns a request without a body.
    pub fn bare(&self, method: &str, path: &str) -> Vec<u8> {
        format!("{method} {path}{}\r\n", self.head).into_bytes()
    }

    /// Returns a PUT.
    pub fn put(&self, path: &str, body: &[u8]) -> Vec<u8> {
        self.with_body("PUT", path, body)
    }

    pub fn with_body(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let mut request =
            format!("{method} {path}{}Content-Length: {}\r\n\r\n", self.head, body.len()).into_bytes();
        request.extend_from_slice(body);
        request
    }

    /// Opens a connection.
    pub async fn connect(&self) -> io::Result<Client> {
        let stream = TcpStream::connect(self.addr).await?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, target: self.clone(), rest: Vec::new() })
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    pub target: Target,
    /// Bytes read that are not part of a reply yet.
    rest: Vec<u8>,
}

/// A reply.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// A delivered job.
#[derive(Debug, Deserialize)]
pub struct Consumed {
    pub job_id: String,
    data: String,
}

impl Consumed {
    /// Returns the number in the job's body, as written by the benchmarks.
    pub fn number(&self) -> Outcome<usize> {
        Ok(String::from_utf8(STANDARD.decode(&self.data)?)?.parse()?)
    }
}

impl Client {
    /// Sends a request and waits for its reply.
    pub async fn call(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.stream.write_all(request).await?;
        timeout(PATIENCE, self.receive()).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// Like [`call`](Client::call), and requires this status.
    pub async fn expect(&mut self, status: u16, request: &[u8]) -> Outcome<Answer> {
        let answer = self.call(request).await?;
        if answer.status == status {
            return Ok(answer);
        }
        let what = String::from_utf8_lossy(request);
        let line = what.lines().next().unwrap_or_default();
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        Err(format!("{line} should answer {status}, and answered {}: {body}", answer.status).into())
    }

    /// Publishes. Fails unless the status is 201.
    pub async fn publish(&mut self, queue: &str, query: &str, body: &[u8]) -> Outcome<Answer> {
        let request = self.target.put(&format!("/api/bench/{queue}?{query}"), body);
        self.expect(201, &request).await
    }

    /// Consumes one job; `None` if the queue is empty.
    pub async fn consume(&mut self, queue: &str, query: &str) -> Outcome<Option<Consumed>> {
        let request = self.target.bare("GET", &format!("/api/bench/{queue}?{query}"));
        let answer = self.call(&request).await?;
        match answer.status {
            200 => Ok(Some(serde_json::from_slice(&answer.body)?)),
            404 => Ok(None),
            other => {
                Err(format!("consume answered {other}: {}", String::from_utf8_lossy(&answer.body)).into())
            }
        }
    }

    /// Consumes up to `count` jobs, as given in the query.
    pub async fn consume_many(&mut self, queue: &str, query: &str) -> Outcome<Vec<Consumed>> {
        let request = self.target.bare("GET", &format!("/api/bench/{queue}?{query}"));
        Ok(serde_json::from_slice(&self.expect(200, &request).await?.body)?)
    }

    /// Acks a job.
    pub async fn ack(&mut self, queue: &str, job_id: &str) -> Outcome {
        let request = self.target.bare("DELETE", &format!("/api/bench/{queue}/job/{job_id}"));
        self.expect(204, &request).await.map(drop)
    }

    /// Returns the number of ready jobs.
    pub async fn ready(&mut self, queue: &str) -> Outcome<usize> {
        #[derive(Deserialize)]
        struct Size {
            size: usize,
        }
        let request = self.target.bare("GET", &format!("/api/bench/{queue}/size"));
        let answer = self.expect(200, &request).await?;
        Ok(serde_json::from_slice::<Size>(&answer.body)?.size)
    }

    /// Makes the connection end with a reset, as when a process is killed with unsent data.
    pub fn reset_when_closed(&self) -> io::Result<()> {
        self.stream.set_zero_linger()
    }

    async fn receive(&mut self) -> io::Result<Answer> {
        // The buffer is dropped with the reply: waiting connections have none.
        let mut read = std::mem::take(&mut self.rest);
        loop {
            if let Some((answer, used)) = parse(&read)? {
                if used < read.len() {
                    self.rest = read.split_off(used);
                }
                return Ok(answer);
            }
            self.stream.readable().await?;
            read.reserve(1024);
            match self.stream.try_read_buf(&mut read) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if read.len() > MAX_ANSWER => return Err(io::ErrorKind::InvalidData.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Parses the first reply in `read`, and returns its length; `None` if it is incomplete.
fn parse(read: &[u8]) -> io::Result<Option<(Answer, usize)>> {
    let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let head = std::str::from_utf8(&read[..end]).map_err(|_| bad())?;
    let status = head.get(9..12).and_then(|code| code.parse().ok()).ok_or_else(bad)?;
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(Ok(0), |(_, value)| value.trim().parse::<usize>().map_err(|_| bad()))?;
    let (start, all) = (end + 4, end + 4 + length);
    if read.len() < all {
        return Ok(None);
    }
    Ok(Some((Answer { status, head: head.to_owned(), body: read[start..all].to_vec() }, all)))
}
