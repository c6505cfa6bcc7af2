//! Checks that a Redis is configured to keep jobs: it must write an append-only file, and must not evict. lmstfy checks
//! the same.

use std::collections::HashMap;

use redis::InfoDict;

use super::cluster::masters;
use super::connection::connector::{Connection, Connector, RedisAddress};
use super::connection::fault::{Fault, Outcome};
use super::layout::packed::LISTPACK_VALUE;
use super::verbs::check::usable;
use crate::error::Error;

/// Why a Redis would lose jobs, or why this is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Unsafe {
    #[error("the Redis has `appendonly {0}`, so a restart loses jobs: set it to yes")]
    NotAppendOnly(String),
    #[error("the Redis has `maxmemory-policy {0}`, so it drops jobs when it is full: set it to noeviction")]
    Evicts(String),
    /// Which node of a cluster.
    #[error("node {0}: {1}")]
    Node(String, Box<Unsafe>),
    #[error(transparent)]
    Unknown(#[from] Error),
}

/// Checks Redis's configuration, or INFO if CONFIG is forbidden; if neither is available it is accepted with a warning.
pub async fn check_safety(address: &RedisAddress) -> Result<(), Unsafe> {
    if address.cluster {
        for node in masters(address).await.map_err(Error::from)? {
            let of_node = Box::pin(check_safety(&node)).await;
            of_node.map_err(|why| match why {
                why @ (Unsafe::NotAppendOnly(_) | Unsafe::Evicts(_)) => {
                    Unsafe::Node(node.addrs.join(","), Box::new(why))
                }
                why => why,
            })?;
        }
        return Ok(());
    }
    let connector = Connector::new(address).map_err(Error::from)?;
    let connection = &mut connector.connect().await.map_err(Error::from)?;
    let appendonly = match setting(connection, "appendonly").await.map_err(Error::from)? {
        Some(value) => Some(value),
        None => info(connection, "persistence", "aof_enabled")
            .await
            .map(|v| (if v == "1" { "yes" } else { "no" }).into()),
    };
    let policy = match setting(connection, "maxmemory-policy").await.map_err(Error::from)? {
        Some(value) => Some(value),
        None => info(connection, "memory", "maxmemory_policy").await,
    };
    let untold =
        |what| tracing::warn!("redis {} does not report {what}, so it is not checked", connector.label());
    match appendonly {
        Some(value) if value != "yes" => return Err(Unsafe::NotAppendOnly(value)),
        Some(_) => (),
        None => untold("appendonly"),
    }
    match policy {
        Some(value) if value != "noeviction" => return Err(Unsafe::Evicts(value)),
        Some(_) => (),
        None => untold("maxmemory-policy"),
    }
    Ok(())
}

/// Checks the reachable nodes of a cluster, and returns the version of one. Warns if one lost slot would stop the whole
/// cluster, and if packed jobs would need too much memory.
pub async fn check_nodes(
    address: &RedisAddress,
    pool: &str,
    (oldest, packs): ((u32, u32), bool),
) -> Outcome<Option<String>> {
    let (mut stops_as_a_whole, mut version) = (false, None);
    for node in &masters(address).await? {
        let connector = Connector::new(node)?;
        let connection = &mut connector.connect().await?;
        version = version.or(usable(connection, oldest, true).await?);
        let full = setting(connection, "cluster-require-full-coverage").await?;
        if packs {
            check_listpacks(connection, pool).await?;
        }
        stops_as_a_whole |= full.as_deref() == Some("yes");
    }
    if stops_as_a_whole {
        tracing::warn!(
            pool,
            "the cluster has `cluster-require-full-coverage yes`, so one lost slot stops the whole cluster: set it to no"
        );
    }
    Ok(version)
}

/// Warns if the Redis stores buckets of packed jobs as hash tables instead of listpacks.
pub async fn check_listpacks(connection: &mut Connection, pool: &str) -> Outcome<()> {
    let value = setting(connection, "hash-max-listpack-value").await?;
    if let Some(value) = value.and_then(|value| value.parse::<u64>().ok())
        && value < LISTPACK_VALUE
    {
        tracing::warn!(
            pool,
            "the Redis has `hash-max-listpack-value {value}`, so packed jobs need more memory: set it to {LISTPACK_VALUE}"
        );
    }
    Ok(())
}

/// Returns a setting; `None` if the server does not reveal it.
async fn setting(connection: &mut Connection, name: &str) -> Outcome<Option<String>> {
    let answer: Outcome<HashMap<String, String>> =
        connection.query(redis::cmd("CONFIG").arg("GET").arg(name)).await;
    match answer {
        Ok(mut settings) => Ok(settings.remove(name)),
        Err(fault) if fault.is_refusal() && !fault.reconnect => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Returns a field of INFO; `None` if the server does not reveal it.
pub async fn info(connection: &mut Connection, section: &str, field: &str) -> Option<String> {
    let answer: Result<InfoDict, Fault> = connection.query(redis::cmd("INFO").arg(section)).await;
    answer.ok()?.get(field)
}
