//! Checks that Redis is usable: version and mode at start, health later.

use std::time::Duration;

use redis::{Cmd, InfoDict};

use crate::engine::redis::connection::connector::Connection;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Link;
use crate::error::Result;

/// Time that the health check of a reachable server waits for failed connections: longer than the pause before their
/// next attempt, which the check shortens, and shorter than the timeout of a health check.
const CONNECTIONS_WAIT: Duration = Duration::from_millis(500);
/// RPOP and LPOP accept a count since this version.
pub const OLDEST: (u32, u32) = (6, 2);

/// Makes the first calls of an engine, on a separate connection: learns the server's clock, and rejects an unsupported
/// server.
pub async fn first_check(link: &Link, connection: &mut Connection, oldest: (u32, u32)) -> Result<()> {
    let sent = link.clock.begin();
    let (seconds, micros): (u64, u64) = connection.query(&redis::cmd("TIME")).await?;
    link.clock.learn(sent, seconds * 1_000_000 + micros);
    if let Some(version) = usable(connection, oldest, false).await? {
        let _ = link.common.version.set(version); // asked once
    }
    Ok(())
}

impl Link {
    /// Checks that the server accepts writes that need no memory: it is no replica and can save. A full server passes,
    /// since its jobs must still be consumed. Then checks that all connections are up: requests do not use the
    /// connection of this write, and may still fail after Redis has recovered.
    pub async fn check(&self) -> Result<()> {
        let _: u64 = self.shared.query(&empty_write()).await?;
        self.connections.retry_now();
        self.connections.all_up(CONNECTIONS_WAIT).await
    }
}

/// Returns a write that changes nothing. It fails whenever writes are rejected, but not because memory is full.
pub fn empty_write() -> Cmd {
    empty_write_of(keys::CHECK)
}

/// Like `empty_write`, with the caller's key.
pub fn empty_write_of(key: &str) -> Cmd {
    let mut cmd = redis::cmd("DEL");
    cmd.arg(key);
    cmd
}

/// Returns the server's version. Rejects a server that is too old; a cluster node configured as a single Redis, where
/// every script with keys in two slots would fail; and a single Redis configured as a cluster node. Returns `None`, and
/// rejects nothing, if INFO is forbidden.
pub async fn usable(
    connection: &mut Connection,
    oldest: (u32, u32),
    as_node: bool,
) -> Outcome<Option<String>> {
    let Ok(info) = connection.query::<InfoDict>(redis::cmd("INFO").arg("server")).await else {
        return Ok(None);
    };
    let is_node = info.get::<String>("redis_mode").map(|mode| mode == "cluster");
    if is_node.is_some_and(|is_node| is_node != as_node) {
        return Err(Fault::refused(match as_node {
            false => "this Redis is in cluster mode: use Cluster instead of Addr",
            true => "this Redis is not in cluster mode: use Addr instead of Cluster",
        }));
    }
    let Some(version) = info.get::<String>("redis_version") else { return Ok(None) };
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < oldest {
        let (major, minor) = oldest;
        return Err(Fault::refused(format!("Redis {major}.{minor} or later is required, this is {version}")));
    }
    Ok(Some(version))
}
