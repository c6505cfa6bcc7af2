//! What this server knows of quotas, and of the counts that go on. Asks nobody.

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::name::Namespace;
use crate::random;

/// What this server knows of quotas.
#[derive(Debug)]
pub struct Counting {
    /// The namespaces whose jobs are to be counted.
    pub namespaces: Mutex<Vec<Namespace>>,
    pub changed: Notify,
    /// How many counts were asked for, and how many of these are done.
    pub asked: watch::Sender<u64>,
    pub done: watch::Sender<u64>,
    /// One change at a time.
    pub setting: tokio::sync::Mutex<()>,
    /// The name of this process, of which it has one turn.
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
