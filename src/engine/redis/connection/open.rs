//! Opens one connection to one address, and drives it until it breaks or is closed. Independent of the purpose of the
//! connection and of how the address was found.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, RedisError, RedisResult,
};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};
use tokio_util::either::Either;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::fault::{Fault, Outcome};
use crate::dial;
use crate::process::tasks::Tasks;
use crate::tls::{ClientTls, is_refusal};

/// How long calls in flight may take after [`Ends::leave`]. A script takes a few milliseconds at most. A Sentinel
/// announces the promotion of a replica at least 50 ms ahead.
const LAST_ANSWERS: Duration = Duration::from_millis(30);

/// The two parts of `host:port`. An IPv6 host has no brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl HostPort {
    /// Parses `host:port`, with an IPv6 address in brackets.
    pub fn parse(addr: &str) -> Outcome<HostPort> {
        let bad = || Fault::refused(format!("{addr:?} is not an address: write host:port"));
        let (host, port) = addr.rsplit_once(':').ok_or_else(bad)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse() {
            Ok(port) if !host.is_empty() => Ok(HostPort { host: host.to_owned(), port }),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostPort { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// One connection, shared by its clones and closed when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    pub redis: MultiplexedConnection,
    /// Cancelled when the connection breaks, even while idle, and when [`Ends::leave`] is.
    pub lost: CancellationToken,
    _open: Arc<DropGuard>,
}

/// Handles a push message from the server.
pub type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// Closes all connections to one server.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Cancelled when no new call may be sent to the server. Calls in flight have [`LAST_ANSWERS`] to finish.
    pub leave: CancellationToken,
    /// Cancelled when replies of the server are no longer valid: calls in flight fail at once.
    pub cut: CancellationToken,
}

/// Credentials and TLS settings for a server.
#[derive(Clone, Debug, Default)]
pub struct Login {
    pub login: RedisConnectionInfo,
    pub tls: Option<ClientTls>,
}

/// Opens connections with the same login.
#[derive(Debug)]
pub struct Opener {
    login: Login,
    /// Timeout of a reply.
    response_timeout: Duration,
    /// Timeout of opening a connection.
    connect_timeout: Duration,
    /// The server does not support RESP3.
    resp2: AtomicBool,
    tasks: Tasks,
}

impl Connection {
    pub async fn query<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Outcome<T> {
        Ok(cmd.query_async(&mut self.redis).await?)
    }
}

impl Opener {
    /// Returns an opener without connections. Each connection's task is spawned on `tasks`.
    pub fn new(login: Login, connect_timeout: Duration, response_timeout: Duration, tasks: Tasks) -> Opener {
        Opener { login, response_timeout, connect_timeout, resp2: AtomicBool::new(false), tasks }
    }

    /// Opens a connection. Push messages go to `on_push`, which must not block. A server without RESP3 sends none.
    pub async fn open(&self, to: &HostPort, on_push: OnPush, ends: &Ends) -> Outcome<Connection> {
        let late = |_| Fault::away("no answer while connecting");
        if !self.resp2.load(Ordering::Relaxed) {
            let opened =
                timeout(self.connect_timeout, self.attempt(to, Some(on_push), ends)).await.map_err(late)?;
            match opened {
                Err(e) if speaks_no_resp3(&e) => self.resp2.store(true, Ordering::Relaxed),
                opened => return Ok(opened?),
            }
        }
        Ok(timeout(self.connect_timeout, self.attempt(to, None, ends)).await.map_err(late)??)
    }

    /// Whether the server sends push messages, as far as is known.
    pub fn has_pushes(&self) -> bool {
        !self.resp2.load(Ordering::Relaxed)
    }

    /// Uses RESP3 if `on_push` is given.
    async fn attempt(&self, to: &HostPort, on_push: Option<OnPush>, ends: &Ends) -> RedisResult<Connection> {
        let mut config = AsyncConnectionConfig::new().set_response_timeout(Some(self.response_timeout));
        let mut protocol = ProtocolVersion::RESP2;
        if let Some(on_push) = on_push {
            protocol = ProtocolVersion::RESP3;
            config = config.set_push_sender(move |push: PushInfo| {
                // The connection's task detects a disconnection itself.
                if push.kind != PushKind::Disconnection {
                    on_push(push);
                }
                Ok::<(), ()>(())
            });
        }
        let login = self.login.login.clone().set_protocol(protocol);
        let stream = self.reach(to).await?;
        let (redis, driver) = match &self.login.tls {
            None => {
                let (redis, driver) = MultiplexedConnection::new_with_config(&login, stream, config).await?;
                (redis, Either::Left(driver))
            }
            Some(tls) => {
                let stream = tls.connect(&to.host, stream).await.map_err(not_trusted)?;
                let (redis, driver) = MultiplexedConnection::new_with_config(&login, stream, config).await?;
                (redis, Either::Right(driver))
            }
        };
        let (lost, closed) = (ends.leave.child_token(), CancellationToken::new());
        let open = Arc::new(closed.clone().drop_guard());
        let (ends, breaks) = (ends.clone(), lost.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = ends.cut.cancelled() => {}
                () = closed.cancelled() => {}
                () = async { ends.leave.cancelled().await; sleep(LAST_ANSWERS).await } => {}
                () = driver => {}
            }
            breaks.cancel();
        });
        Ok(Connection { redis, lost, _open: open })
    }

    async fn reach(&self, to: &HostPort) -> RedisResult<TcpStream> {
        let addresses: Vec<_> = lookup_host((to.host.as_str(), to.port)).await?.collect();
        dial::connect(&addresses, self.connect_timeout).await.map_err(|e| RedisError::from(e.error))
    }
}

/// Converts a TLS handshake error. A wrong certificate or a server without TLS is permanent, so it becomes a refusal.
fn not_trusted(error: io::Error) -> RedisError {
    if is_refusal(&error) {
        return RedisError::from((ErrorKind::InvalidClientConfig, "TLS", error.to_string()));
    }
    error.into()
}

/// Whether the server has no HELLO: it is too old, or an administrator has disabled the command. The client recognises
/// only one of the two ways in which servers quote the command's name.
fn speaks_no_resp3(e: &RedisError) -> bool {
    let says = |text: &str| e.detail().is_some_and(|detail| detail.to_lowercase().starts_with(text));
    e.kind() == ErrorKind::RESP3NotSupported
        || e.code() == Some("NOPROTO")
        || says("unknown command 'hello'")
        || says("unknown command `hello`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        for bad in ["", "localhost", ":6379", "h:", "h:65536", "h:x"] {
            assert!(HostPort::parse(bad).is_err(), "{bad:?} should be refused");
        }
        let six = HostPort::parse("[::1]:6379").expect("IPv6 in brackets");
        assert_eq!((six.host.as_str(), six.port), ("::1", 6379), "without the brackets");
        assert_eq!(six.to_string(), "[::1]:6379", "as it was written");
    }
}
