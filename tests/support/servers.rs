//! Whole servers in this process on free ports, their stores, and requests of tests.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use dormouse::config::Config;
use dormouse::server::{Options, Server};
use reqwest::RequestBuilder;
use tempfile::TempDir;

use super::client::{Response, create_token, request, send};
use super::held;
use super::redis_server::RedisServer;

/// The store of a server's jobs, tokens and limits. Deleted on drop.
pub enum Store {
    Disk(TempDir),
    Redis(RedisServer),
    #[allow(dead_code)] // not every test binary makes some
    /// Another kind of pool, by its configuration keys. It stores tokens too.
    Other {
        keys: String,
        _keep: Arc<dyn Any + Send + Sync>,
    },
}

impl Store {
    /// Returns an empty directory.
    pub fn disk() -> Store {
        Store::Disk(TempDir::new().expect("a temporary directory"))
    }

    /// Returns an empty Redis.
    pub fn redis() -> Store {
        Store::Redis(RedisServer::start())
    }

    /// Returns the configuration keys of a pool on it.
    pub fn keys(&self) -> String {
        match self {
            Store::Disk(dir) => format!("Path = {:?}\n", dir.path().join("jobs")),
            Store::Redis(redis) => redis.keys(),
            Store::Other { keys, .. } => keys.clone(),
        }
    }

    /// Returns the configuration section that stores tokens here; a default pool on disk or in a cluster needs none.
    pub fn admin(&self) -> String {
        match self {
            Store::Disk(_) | Store::Other { .. } => String::new(),
            Store::Redis(tokens) => format!("[AdminRedis]\n{}", tokens.keys()),
        }
    }

    /// Returns a configuration with everything here.
    pub fn toml(&self) -> String {
        format!("[Pool.default]\n{}{}", self.keys(), self.admin())
    }
}

/// Two tests of each function that takes a [`Store`]: `NAME::on_disk` and `NAME::on_redis`.
macro_rules! on_each_store {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            use $crate::support::servers::Store;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_disk() {
                super::$test(Store::disk()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_redis() {
                super::$test(Store::redis()).await;
            }
        }
    )+};
}

pub(crate) use on_each_store;

impl RedisServer {
    /// Returns the configuration keys of a pool on it.
    pub fn keys(&self) -> String {
        let password = self.password.as_ref().map_or(String::new(), |p| format!("Password = {p:?}\n"));
        format!("Addr = {:?}\n{password}", self.addr())
    }
}

/// Returns a configuration with everything in a Redis that the test keeps.
pub fn redis_toml(redis: &RedisServer) -> String {
    format!("[Pool.default]\n{0}[AdminRedis]\n{0}", redis.keys())
}

/// A running server.
pub struct TestServer {
    pub api_addr: SocketAddr,
    pub admin_addr: SocketAddr,
    server: Option<Server>,
    /// Dropped after the server: its stores.
    _keep: Box<dyn Any + Send + Sync>,
}

impl TestServer {
    /// Starts a server from a configuration, whose ports are replaced by free ones. `keep` is dropped after the server.
    pub async fn start(toml: &str, keep: impl Any + Send + Sync) -> TestServer {
        TestServer::start_with(Options::default(), toml, keep).await
    }

    /// Like `start`, with these options.
    pub async fn start_with(options: Options, toml: &str, keep: impl Any + Send + Sync) -> TestServer {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let ports = ["DORMOUSE_PORT", "DORMOUSE_ADMIN_PORT"].map(|k| (k.to_owned(), "0".to_owned()));
        let config = Config::load(Some(file.path()), ports).expect("a valid configuration");
        let server = Server::start(config, options).await.expect("the server starts");
        let (api_addr, admin_addr) = (server.api, server.admin);
        held::serves(api_addr, admin_addr);
        TestServer { api_addr, admin_addr, server: Some(server), _keep: Box::new(keep) }
    }

    /// Returns the URL of a public path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.api_addr)
    }

    /// Returns a request to the public port with this token, if any.
    pub fn api(&self, method: &str, path: &str, token: &str) -> RequestBuilder {
        request(method, &self.url(path), token)
    }

    /// Returns a request to the admin port.
    pub fn admin(&self, method: &str, path: &str) -> RequestBuilder {
        request(method, &format!("http://{}{path}", self.admin_addr), "")
    }

    /// Puts a body to a public path.
    pub async fn put(&self, token: &str, path: &str, body: &str) -> Response {
        send(self.api("PUT", path, token).body(body.to_owned())).await
    }

    /// Gets a public path.
    pub async fn get(&self, token: &str, path: &str) -> Response {
        send(self.api("GET", path, token)).await
    }

    /// Returns the `size` of a queue or a dead letter, which needs no token.
    pub async fn size(&self, path: &str) -> u64 {
        let response = self.get("", &format!("{path}/size")).await.expect(200);
        response.json["size"].as_u64().unwrap_or_else(|| panic!("a size was expected, not {response:?}"))
    }

    /// Creates a token for a namespace of the default pool.
    pub async fn token(&self, namespace: &str) -> String {
        create_token(self.admin_addr, namespace).await
    }

    #[allow(dead_code)] // not every test binary looks at figures
    /// Makes the server sample its stores now. Lists of queues and scrapes show the last sample.
    pub async fn sampled(&self) {
        self.server.as_ref().expect("it runs").read_stores().await;
    }

    /// Stops the server gracefully.
    pub async fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }
}
