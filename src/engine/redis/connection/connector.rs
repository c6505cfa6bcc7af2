//! The address of a Redis, and how connections to it are opened, directly or through Sentinels. Independent of keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisConnectionInfo, Value};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::DropGuard;

use super::fault::{Fault, Outcome};
pub use super::open::{Connection, OnPush};
use super::open::{Ends, HostPort, Login, Opener};
use super::sentinel::{Master, Sentinels};
use crate::process::tasks::{Failure, Tasks};
use crate::tls::ClientTls;

/// Timeout of opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a reply.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of a Redis and its login. `Debug` shows no password.
#[derive(Clone, Default)]
pub struct RedisAddress {
    /// `host:port` of the Redis, of its Sentinels if `master_name` is set, or of some nodes if `cluster` is set.
    pub addrs: Vec<String>,
    /// Whether `addrs` are nodes of a cluster. The other nodes are discovered from them.
    pub cluster: bool,
    /// ACL user.
    pub username: Option<String>,
    pub password: Option<String>,
    pub db: i64,
    /// The Redis's name in the Sentinels' configuration.
    pub master_name: Option<String>,
    pub sentinel_username: Option<String>,
    pub sentinel_password: Option<String>,
    /// TLS settings for the Redis and its Sentinels. `None`: no TLS.
    pub tls: Option<ClientTls>,
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "..");
        f.debug_struct("RedisAddress")
            .field("addrs", &self.addrs)
            .field("cluster", &self.cluster)
            .field("username", &self.username)
            .field("password", &hidden(&self.password))
            .field("db", &self.db)
            .field("master_name", &self.master_name)
            .field("sentinel_username", &self.sentinel_username)
            .field("sentinel_password", &hidden(&self.sentinel_password))
            .field("tls", &self.tls)
            .finish()
    }
}

/// How the server is found.
#[derive(Debug)]
enum Route {
    /// At a fixed address, until the node is replaced.
    Direct(HostPort, Ends),
    /// Sentinels name its address.
    Sentinel(Sentinels),
}

#[derive(Debug)]
pub struct Connector {
    route: Route,
    opener: Opener,
    /// For messages: the addresses, and the master's name if set.
    label: String,
    retry: watch::Sender<()>,
    /// Tasks of the connections, and tasks that follow Sentinels.
    tasks: Tasks,
    /// Stops the tasks that follow Sentinels on drop.
    _stop: DropGuard,
}

impl Connector {
    /// Validates the address, and starts to follow the master if there are Sentinels. Must be called in a runtime.
    pub fn new(address: &RedisAddress) -> Outcome<Connector> {
        let addrs: Vec<HostPort> =
            address.addrs.iter().map(|a| HostPort::parse(a)).collect::<Outcome<_>>()?;
        let label = match &address.master_name {
            Some(master) => format!("{master} of sentinels {}", address.addrs.join(",")),
            None => address.addrs.join(","),
        };
        let (retry, tasks) = (watch::Sender::default(), Tasks::new(Failure::default()));
        let route = match &address.master_name {
            Some(_) if addrs.is_empty() => {
                return Err(Fault::refused("no address of a Sentinel is configured"));
            }
            Some(master) => {
                let login = login(&address.sentinel_username, &address.sentinel_password);
                let login = Login { login, tls: address.tls.clone() };
                Route::Sentinel(Sentinels::follow(master, addrs, login, retry.clone(), &tasks))
            }
            None => {
                let Ok([addr]) = <[HostPort; 1]>::try_from(addrs) else {
                    return Err(Fault::refused("a Redis without a master name has exactly one address"));
                };
                Route::Direct(addr, Ends::default())
            }
        };
        let login = login(&address.username, &address.password).set_db(address.db);
        let login = Login { login, tls: address.tls.clone() };
        let opener = Opener::new(login, CONNECT_TIMEOUT, RESPONSE_TIMEOUT, tasks.clone());
        let stop = tasks.stopping().clone().drop_guard();
        Ok(Connector { route, opener, label, retry, tasks, _stop: stop })
    }

    /// Returns the address for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the channel notified when failed attempts to connect may succeed: another Redis is the master.
    pub fn retry(&self) -> &watch::Sender<()> {
        &self.retry
    }

    /// Returns where the unexpected end of an essential task is reported.
    pub fn failure(&self) -> &Failure {
        self.tasks.failure()
    }

    /// Closes the connections to a replaced node, after a short time for calls in flight. No new call is sent.
    pub fn leave(&self) {
        if let Route::Direct(_, ends) = &self.route {
            ends.leave.cancel();
        }
    }

    /// Stops following the Sentinels. Open connections stay open.
    pub fn close(&self) {
        self.tasks.stop();
    }

    pub async fn connect(&self) -> Outcome<Connection> {
        self.connect_with(Arc::new(|_| ())).await
    }

    /// Opens a connection whose push messages go to `on_push`, which must not block.
    pub async fn connect_with(&self, on_push: OnPush) -> Outcome<Connection> {
        // Longer than a planned failover takes, and longer than one attempt.
        let limit = 2 * CONNECT_TIMEOUT + Duration::from_secs(1);
        // Boxed: the future is large and rarely used, and would be part of every caller's future.
        match timeout(limit, Box::pin(self.attempt(on_push))).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(fault)) => Err(fault.at(&self.label)),
            Err(_) => Err(Fault::away("no answer while connecting").at(&self.label)),
        }
    }

    async fn attempt(&self, on_push: OnPush) -> Outcome<Connection> {
        match &self.route {
            Route::Direct(address, ends) => self.opener.open(address, on_push, ends).await,
            Route::Sentinel(sentinels) => loop {
                let master = sentinels.master().await?;
                let attempt = self.connect_to_master(&master, on_push.clone());
                // If the master changes meanwhile, the new one is tried at once.
                if let Some(outcome) = master.ends.leave.run_until_cancelled(attempt).await {
                    return outcome.map_err(|fault| fault.at(&master.address.to_string()));
                }
            },
        }
    }

    /// Connects, and checks with ROLE that the Redis is the master: Sentinels may lag behind.
    async fn connect_to_master(&self, master: &Master, on_push: OnPush) -> Outcome<Connection> {
        let mut connection = self.opener.open(&master.address, on_push, &master.ends).await?;
        let ask = redis::cmd("ROLE");
        let role = ask.query_async::<Vec<Value>>(&mut connection.redis);
        let late = |_| Fault::away("no answer while connecting");
        match timeout(CONNECT_TIMEOUT, role).await.map_err(late)?.map_err(Fault::from) {
            Ok(role) => match role.first() {
                Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
                _ => Err(Fault::away("it is a replica, although the Sentinels name it as the master")),
            },
            // Some servers forbid the command. Then the Sentinels are trusted.
            Err(fault) if fault.is_refusal() && !fault.reconnect => Ok(connection),
            Err(fault) => Err(fault),
        }
    }
}

fn login(username: &Option<String>, password: &Option<String>) -> RedisConnectionInfo {
    let login = RedisConnectionInfo::default().set_lib_name("dormouse", env!("CARGO_PKG_VERSION"));
    let login = match username {
        Some(username) => login.set_username(username),
        None => login,
    };
    match password {
        Some(password) => login.set_password(password),
        None => login,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn debug_shows_no_password() {
        let address = RedisAddress {
            addrs: vec!["127.0.0.1:1".into()],
            cluster: false,
            password: Some("hunter2".into()),
            master_name: Some("m".into()),
            sentinel_password: Some("hunter3".into()),
            ..RedisAddress::default()
        };
        let connector = Connector::new(&address).expect("a good address");
        let shown = format!("{address:?} {connector:?}");
        assert!(!shown.contains("hunter"), "a password is shown: {shown}");
    }
}
