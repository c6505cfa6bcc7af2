//! A whole server in this process, on free ports, with its own store.

use std::net::SocketAddr;
use std::path::Path;

use dormouse::config::Config;
use dormouse::server::{Options, Server};
use tempfile::TempDir;

/// A server that runs, and what it stands on.
pub struct House {
    pub api: SocketAddr,
    pub admin: SocketAddr,
    server: Option<Server>,
    /// Goes after the server.
    _keep: Vec<Box<dyn std::any::Any + Send + Sync>>,
}

impl House {
    /// From a configuration, which may leave ports out: free ones are taken.
    pub async fn from_toml(toml: &str, keep: Vec<Box<dyn std::any::Any + Send + Sync>>) -> House {
        House::with(toml, Options::default(), keep).await
    }

    /// The same, with command line options.
    pub async fn with(
        toml: &str,
        options: Options,
        keep: Vec<Box<dyn std::any::Any + Send + Sync>>,
    ) -> House {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let ports = ["DORMOUSE_PORT", "DORMOUSE_ADMIN_PORT"].map(|k| (k.to_owned(), "0".to_owned()));
        let config = Config::load(Some(file.path()), ports).expect("a valid configuration");
        let server = Server::start(config, options).await.expect("the server starts");
        House { api: server.api, admin: server.admin, server: Some(server), _keep: keep }
    }

    /// On a directory of its own.
    pub async fn disk() -> House {
        let dir = TempDir::new().expect("a temporary directory");
        let toml = House::disk_toml(dir.path());
        House::from_toml(&toml, vec![Box::new(dir)]).await
    }

    /// A configuration with the default pool in this directory.
    pub fn disk_toml(dir: &Path) -> String {
        format!("[Pool.default]\nPath = {:?}\n", dir.join("jobs"))
    }

    /// Where a public path is.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.api)
    }

    /// Where an admin path is.
    pub fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    /// A token for a namespace of the default pool.
    pub async fn token(&self, namespace: &str) -> String {
        let url = self.admin_url(&format!("/token/{namespace}?description=compat"));
        let answer = reqwest::Client::new().post(url).send().await.expect("the admin port answers");
        let text = answer.text().await.expect("a body");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json["token"].as_str().unwrap_or_else(|| panic!("a token, not {text}")).to_owned()
    }

    /// Stops it in order.
    pub async fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }
}
