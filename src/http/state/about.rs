//! Configuration of this server for display: no secrets.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::name::PoolName;

/// Displayed configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub config_file: Option<String>,
    /// URL of the admin port as users enter it, without a trailing slash.
    pub admin_url: Option<String>,
    /// Whether the dashboard is enabled.
    pub dashboard: bool,
    /// Whether the public port and the admin port use TLS.
    pub api_tls: bool,
    pub admin_tls: bool,
    /// Default time zone of the pages.
    pub zone: String,
    pub pools: BTreeMap<PoolName, AboutPool>,
    /// Limits of the server.
    pub most: Most,
}

/// Limits on connections of the public port, waiting polls, and bytes of bodies.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Most {
    pub connections: usize,
    pub waiting: usize,
    pub body_bytes: usize,
}

/// Displayed configuration of a pool.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AboutPool {
    /// `disk`, `redis`, `sentinels` or `cluster`.
    pub kind: String,
    /// A directory, or hosts and ports.
    pub address: String,
    /// Free disk space in bytes below which a disk pool refuses publishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_free_disk: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrates_to: Option<String>,
}
