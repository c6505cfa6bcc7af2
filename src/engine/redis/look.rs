//! Whether a Redis can be used: for a look before a start. Changes nothing there.

use super::cluster::first_found;
use super::compact::{CompactLayout, OLDEST};
use super::connection::connector::{Connector, RedisAddress};
use super::connection::fault::Outcome;
use super::safety::{Unsafe, check_nodes, check_safety, info};
use crate::error::Error;

/// Asks a Redis whether a server could use it, with those settings if they count, and answers its version.
pub async fn look(
    address: &RedisAddress,
    layout: Option<&CompactLayout>,
    safe: bool,
) -> Result<String, Unsafe> {
    if safe {
        check_safety(address).await?;
    }
    if address.cluster {
        return Ok(look_at_cluster(address, layout).await.map_err(Error::from)?);
    }
    let connector = Connector::new(address).map_err(Error::from)?;
    let connection = &mut connector.connect().await.map_err(Error::from)?;
    if let Some(layout) = layout {
        let kept = connection.query::<Option<u16>>(redis::cmd("GET").arg(layout.pool_key())).await;
        layout.fits(kept.map_err(Error::from)?.unwrap_or(layout.partitions)).map_err(Error::from)?;
    }
    Ok(info(connection, "server", "redis_version").await.unwrap_or_else(|| "of an unknown version".into()))
}

/// The same of a cluster. Says of what kind it is.
async fn look_at_cluster(address: &RedisAddress, layout: Option<&CompactLayout>) -> Outcome<String> {
    let version = check_nodes(address, "", OLDEST).await?;
    if let Some(layout) = layout {
        let kept = layout.pool_keys().into_iter().map(|(slot, key)| (slot, redis::Cmd::get(key)));
        layout.fits(first_found(address, kept).await?.unwrap_or(layout.partitions))?;
    }
    Ok(version.unwrap_or_else(|| "of an unknown version".into()))
}
