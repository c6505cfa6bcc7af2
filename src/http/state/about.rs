//! What the configuration says of this server, for whoever looks at it: no secrets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::PoolName;

/// What is told of a server.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub config_file: Option<String>,
    /// The address of the admin port as people type it, without a slash at its end.
    pub admin_url: Option<String>,
    /// Whether there are pages.
    pub dashboard: bool,
    /// Whether the public port and this one speak TLS.
    pub api_tls: bool,
    pub admin_tls: bool,
    /// In which the pages show times.
    pub zone: String,
    pub pools: BTreeMap<PoolName, AboutPool>,
    /// Connections of the public port, waiting polls, and bytes of bodies: what there may be at most.
    pub most: Most,
}

/// What may be at most.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Most {
    pub connections: usize,
    pub waiting: usize,
    pub body_bytes: usize,
}

/// What is told of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AboutPool {
    /// `disk`, `redis`, `sentinels` or `cluster`.
    pub kind: String,
    /// A directory, or hosts and ports.
    pub address: String,
    /// Bytes below which a disk pool refuses publishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_free_disk: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrates_to: Option<String>,
}
