//! `dormouse check`: reports the errors of a start without starting. Creates nothing.

use super::error::ServerError;
use super::prepare::{Tls, prepare};
use super::stores::{redis_address, redis_options};
use crate::config::{Config, PoolConfig};
use crate::engine::disk::{Look, look as look_at_disk};
use crate::engine::redis::look as look_at_redis;
use crate::tls::ClientTls;

/// Reads the files named in the configuration, as a start does.
pub fn check(config: &Config) -> Result<(), ServerError> {
    prepare(config).map(drop)
}

/// Calls each store, and returns its description, or why it cannot be used.
pub async fn check_stores(config: &Config) -> Vec<(String, Result<String, String>)> {
    let tls = match Tls::read(config) {
        Ok(tls) => tls,
        Err(error) => return vec![("TLS".to_owned(), Err(error))],
    };
    let pools = config.pool.iter().map(|(name, pool)| (format!("[Pool.{name}]"), name.as_str(), pool));
    let admin = config.admin_redis.iter().map(|admin| ("[AdminRedis]".to_owned(), "", admin));
    let mut asked = Vec::new();
    for (section, name, pool) in pools.chain(admin) {
        let tls = tls.of_redis.get(&section);
        let answer = ask(config, tls, name, pool).await;
        asked.push((section, answer));
    }
    asked
}

async fn ask(
    config: &Config,
    tls: Option<&ClientTls>,
    name: &str,
    pool: &PoolConfig,
) -> Result<String, String> {
    let Some(path) = pool.path.clone() else {
        let options = (!name.is_empty()).then(|| redis_options(name, pool));
        let asked =
            look_at_redis(&redis_address(pool, tls), options.as_ref(), !config.allow_unsafe_redis).await;
        let kind = if pool.cluster.is_empty() { "a Redis" } else { "a Redis Cluster" };
        return asked.map(|version| format!("{kind} {version}")).map_err(|error| error.to_string());
    };
    let found = tokio::task::spawn_blocking(move || look_at_disk(&path)).await.map_err(|e| e.to_string())?;
    let says = match found.map_err(|error| error.to_string())? {
        Look::New => "a directory that the first start creates",
        Look::InUse => "a directory that a running server uses",
        Look::Whole => "an intact directory",
    };
    Ok(says.to_owned())
}
