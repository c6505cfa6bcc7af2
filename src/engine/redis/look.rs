//! Whether a Redis can be used: for a look before a start. Changes nothing there.

use super::compact::CompactLayout;
use super::connection::connector::{Connector, RedisAddress};
use super::safety::{Unsafe, check_safety, info};
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
    let connector = Connector::new(address).map_err(Error::from)?;
    let connection = &mut connector.connect().await.map_err(Error::from)?;
    if let Some(layout) = layout {
        let kept = connection.query::<Option<u16>>(redis::cmd("GET").arg(layout.pool_key())).await;
        layout.fits(kept.map_err(Error::from)?.unwrap_or(layout.partitions)).map_err(Error::from)?;
    }
    Ok(info(connection, "server", "redis_version").await.unwrap_or_else(|| "of an unknown version".into()))
}
