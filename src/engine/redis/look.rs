//! Checks whether a Redis can be used, before a start. Changes nothing there.

use super::cluster::first_found;
use super::connection::connector::{Connector, RedisAddress};
use super::connection::fault::Outcome;
use super::open::{OLDEST_IN_CLUSTER, RedisOptions};
use super::partitions::Partitions;
use super::safety::{Unsafe, check_nodes, check_safety, info};
use crate::error::Error;

/// Checks whether a server can use a Redis, with these options if given, and returns its version.
pub async fn look(
    address: &RedisAddress,
    options: Option<&RedisOptions>,
    safe: bool,
) -> Result<String, Unsafe> {
    if safe {
        check_safety(address).await?;
    }
    if address.cluster {
        return Ok(look_at_cluster(address, options).await.map_err(Error::from)?);
    }
    let connector = Connector::new(address).map_err(Error::from)?;
    let connection = &mut connector.connect().await.map_err(Error::from)?;
    Ok(info(connection, "server", "redis_version").await.unwrap_or_else(|| "of an unknown version".into()))
}

/// Like `look`, for a cluster.
async fn look_at_cluster(address: &RedisAddress, options: Option<&RedisOptions>) -> Outcome<String> {
    let version = check_nodes(address, "", (OLDEST_IN_CLUSTER, false)).await?;
    if let Some(options) = options {
        let keys = Partitions::new(&options.prefix, options.partitions).count_keys();
        let stored = keys.iter().map(|at| (at.slot, redis::Cmd::get(&at.key)));
        match first_found(address, stored).await? {
            Some(stored) => options.fits(stored)?,
            None => {
                let compact = keys.iter().map(|at| (at.slot, redis::Cmd::get(&at.compact)));
                if first_found::<u16>(address, compact).await?.is_some() {
                    return Err(options.compact());
                }
            }
        }
    }
    Ok(version.unwrap_or_else(|| "of an unknown version".into()))
}
