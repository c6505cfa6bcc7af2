//! This server's state for quotas and recounts. Uses no connection.

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::name::Namespace;
use crate::random;

/// This server's state for quotas.
#[derive(Debug)]
pub struct Counting {
    /// The namespaces whose jobs must be counted.
    pub namespaces: Mutex<Vec<Namespace>>,
    pub changed: Notify,
    /// Number of requested recounts, and number of finished ones.
    pub asked: watch::Sender<u64>,
    pub done: watch::Sender<u64>,
    /// One change at a time.
    pub setting: tokio::sync::Mutex<()>,
    /// Identifies this process as the holder of a recount's turn.
    pub server: String,
}

impl Default for Counting {
    fn default() -> Counting {
        Counting {
            namespaces: Mutex::default(),
            changed: Notify::new(),
            asked: watch::channel(0).0,
            done: watch::channel(0).0,
            setting: tokio::sync::Mutex::default(),
            server: random::ulid().to_string(),
        }
    }
}
