//! Whether the Redis can be used: its version and mode when an engine begins, and its health later.

use std::time::Duration;

use redis::{Cmd, InfoDict};

use crate::engine::redis::connection::connector::Connection;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Link;
use crate::error::Result;

/// How long a check of a server that answers waits for connections that are down: longer than the pause before
/// their next attempt, which the check shortens, and shorter than a health check's own time-out.
const CONNECTIONS_WAIT: Duration = Duration::from_millis(500);
/// RPOP and LPOP take a count since this version.
pub const OLDEST: (u32, u32) = (6, 2);

/// The first calls of an engine, on a connection of their own: learns the server's clock, and refuses a server that
/// the engine cannot use.
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
    /// Whether the server takes writes that need no memory (it is no replica, it can save): one that is full is to be
    /// drained. And whether every connection is up: requests use others than this write, and those may still be down
    /// when the Redis is back.
    pub async fn check(&self) -> Result<()> {
        let _: u64 = self.shared.query(&empty_write()).await?;
        self.connections.retry_now();
        self.connections.all_up(CONNECTIONS_WAIT).await
    }
}

/// A write of nothing: it is refused as every write would be, and leaves nothing behind. A full Redis takes it.
pub fn empty_write() -> Cmd {
    empty_write_of(keys::CHECK)
}

/// The same to a key of the caller's.
pub fn empty_write_of(key: &str) -> Cmd {
    let mut cmd = redis::cmd("DEL");
    cmd.arg(key);
    cmd
}

/// Refuses a server that is too old, one in cluster mode that is to be used alone, since its keys are spread over slots
/// and every script that touches two of them fails, and one of its own that is to be a node. Where INFO is forbidden none
/// of this can be told, and is not worth a refusal. Answers its version.
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
