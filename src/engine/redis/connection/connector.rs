//! Where a Redis is and how connections to it are made, directly or through Sentinels. Knows no key.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::fault::{Fault, Outcome};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an answer may take.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a Redis is. `Debug` shows no password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisAddress {
    /// `host:port`: the Redis, or with `master_name` its Sentinels.
    pub addrs: Vec<String>,
    pub password: Option<String>,
    pub db: i64,
    /// The name that the Sentinels know the Redis by.
    pub master_name: Option<String>,
    pub sentinel_password: Option<String>,
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "..");
        f.debug_struct("RedisAddress")
            .field("addrs", &self.addrs)
            .field("password", &hidden(&self.password))
            .field("db", &self.db)
            .field("master_name", &self.master_name)
            .field("sentinel_password", &hidden(&self.sentinel_password))
            .finish()
    }
}

/// One connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Connection {
    pub redis: MultiplexedConnection,
    /// Cancelled when the connection breaks, also while nobody uses it (on servers that speak RESP3), or is
    /// given up.
    pub lost: CancellationToken,
}

impl Connection {
    /// One command.
    pub async fn query<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Outcome<T> {
        Ok(cmd.query_async(&mut self.redis).await?)
    }
}

/// What to do with a push from the server.
pub type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// How the server is found.
enum Route {
    /// It is where the address says.
    Direct(ConnectionInfo),
    /// Sentinels say where it is. They are asked for every connection, since the master may have changed.
    Sentinel(Mutex<SentinelClient>),
}

/// Makes connections.
pub struct Connector {
    route: Route,
    /// For messages: the addresses, and the master's name when there is one.
    label: String,
    /// The server is older than RESP3.
    resp2: AtomicBool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("label", &self.label).finish_non_exhaustive()
    }
}

impl Connector {
    /// Checks the address; connects to nothing.
    pub fn new(address: &RedisAddress) -> Outcome<Connector> {
        let addrs: Vec<ConnectionAddr> = address.addrs.iter().map(|a| parse(a)).collect::<Outcome<_>>()?;
        let label = match &address.master_name {
            Some(master) => format!("{master} of sentinels {}", address.addrs.join(",")),
            None => address.addrs.join(","),
        };
        let route = match &address.master_name {
            Some(master) => {
                let mut builder = SentinelClientBuilder::new(addrs, master, SentinelServerType::Master)?
                    .set_client_to_redis_db(address.db)
                    .set_client_to_redis_protocol(ProtocolVersion::RESP3);
                if let Some(password) = &address.password {
                    builder = builder.set_client_to_redis_password(password);
                }
                if let Some(password) = &address.sentinel_password {
                    builder = builder.set_client_to_sentinel_password(password);
                }
                Route::Sentinel(Mutex::new(builder.build()?))
            }
            None => {
                let Ok([addr]) = <[ConnectionAddr; 1]>::try_from(addrs) else {
                    return Err(Fault::refused("a Redis without a master name has exactly one address"));
                };
                let mut login = RedisConnectionInfo::default()
                    .set_db(address.db)
                    .set_protocol(ProtocolVersion::RESP3)
                    .set_lib_name("dormouse", env!("CARGO_PKG_VERSION"));
                if let Some(password) = &address.password {
                    login = login.set_password(password);
                }
                Route::Direct(addr.into_connection_info()?.set_redis_settings(login))
            }
        };
        Ok(Connector { route, label, resp2: AtomicBool::new(false) })
    }

    /// For messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// A new connection.
    pub async fn connect(&self) -> Outcome<Connection> {
        self.connect_with(Arc::new(|_| ())).await
    }

    /// A new connection whose pushes go to `on_push`, which must not block.
    pub async fn connect_with(&self, on_push: OnPush) -> Outcome<Connection> {
        // Sentinels are asked one after another, so this bounds the whole search.
        let limit = 2 * CONNECT_TIMEOUT + Duration::from_secs(1);
        // Boxed: what it takes to connect is large, rare, and would be part of every caller's future.
        match tokio::time::timeout(limit, Box::pin(self.attempt(on_push))).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(fault)) => Err(fault.at(&self.label)),
            Err(_) => Err(Fault::away("no answer while connecting").at(&self.label)),
        }
    }

    async fn attempt(&self, on_push: OnPush) -> Outcome<Connection> {
        let info = match &self.route {
            Route::Direct(info) => info.clone(),
            Route::Sentinel(client) => {
                Box::pin(client.lock().await.async_get_client()).await?.get_connection_info().clone()
            }
        };
        if !self.resp2.load(Ordering::Relaxed) {
            let lost = CancellationToken::new();
            let breaks = lost.clone();
            let config = config().set_push_sender(move |push: PushInfo| {
                match push.kind {
                    PushKind::Disconnection => breaks.cancel(),
                    _ => on_push(push),
                }
                Ok::<(), ()>(())
            });
            match Client::open(info.clone())?.get_multiplexed_async_connection_with_config(&config).await {
                Err(e) if e.kind() == ErrorKind::RESP3NotSupported => {
                    self.resp2.store(true, Ordering::Relaxed)
                }
                conn => return Ok(Connection { redis: conn?, lost }),
            }
        }
        let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        let client = Client::open(info.set_redis_settings(login))?;
        let conn = client.get_multiplexed_async_connection_with_config(&config()).await?;
        Ok(Connection { redis: conn, lost: CancellationToken::new() })
    }
}

fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
}

fn parse(addr: &str) -> Outcome<ConnectionAddr> {
    let bad = || Fault::refused(format!("{addr:?} is not an address: host:port is"));
    let (host, port) = addr.rsplit_once(':').ok_or_else(bad)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match port.parse() {
        Ok(port) if !host.is_empty() => Ok(ConnectionAddr::Tcp(host.to_owned(), port)),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_password() {
        let address = RedisAddress {
            addrs: vec!["127.0.0.1:1".into()],
            password: Some("hunter2".into()),
            db: 0,
            master_name: Some("m".into()),
            sentinel_password: Some("hunter3".into()),
        };
        let connector = Connector::new(&address).expect("a good address");
        let shown = format!("{address:?} {connector:?}");
        assert!(!shown.contains("hunter"), "a password is shown: {shown}");
    }

    #[test]
    fn addresses_are_host_and_port() {
        for bad in ["", "localhost", ":6379", "h:", "h:65536", "h:x"] {
            assert!(parse(bad).is_err(), "{bad:?} should be refused");
        }
        assert_eq!(
            parse("[::1]:6379").ok(),
            Some(ConnectionAddr::Tcp("::1".into(), 6379)),
            "IPv6 in brackets"
        );
    }
}
