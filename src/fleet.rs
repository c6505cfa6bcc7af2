//! The fleet: the servers that share a settings store. Each writes its line every five seconds, which expires after
//! fifteen, and reads the others' lines. There is no leader, and nothing depends on the lines: they are for
//! operators.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::{Millis, system_now};
use crate::error::{Error, Result};
use crate::random;
use crate::settings::{self, SettingsStore, scan_all};

/// Interval between writes of a line, and its lifetime.
const STEP: Duration = Duration::from_secs(5);
const LIVES: Duration = Duration::from_secs(15);
/// Prefix of the keys of lines.
const PREFIX: &str = "servers/";
/// Timeout for the store.
const PATIENCE: Duration = Duration::from_secs(4);

/// The state that a server publishes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetLine {
    pub name: String,
    pub version: String,
    pub commit: String,
    /// Milliseconds since 1970.
    pub started: Millis,
    /// URL of its admin port as users enter it.
    pub admin_url: Option<String>,
    pub ready: bool,
    /// Published, delivered, acked, and died: jobs per second over the last minute.
    pub rates: [f64; 4],
    /// Waiting consumers.
    pub waiting: u64,
}

/// The servers of the fleet.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// When the store was last read; `None` before the first time.
    pub at: Option<Millis>,
    /// By name, including this server.
    pub lines: Vec<FleetLine>,
    /// Error of the last read, if it failed.
    pub trouble: Option<String>,
}

/// Exchanges lines with the other servers.
#[derive(Debug)]
pub struct Fleet {
    store: Arc<dyn SettingsStore>,
    /// Unique, since two servers may have the same name.
    id: String,
    seen: RwLock<Arc<Seen>>,
}

impl Fleet {
    /// Creates the fleet, without a call to the store.
    pub fn new(store: Arc<dyn SettingsStore>) -> Arc<Fleet> {
        Arc::new(Fleet { store, id: random::ulid().to_string(), seen: RwLock::default() })
    }

    /// Returns the servers seen by the last read.
    pub fn seen(&self) -> Arc<Seen> {
        self.seen.read().clone()
    }

    /// Publishes the result of `line` every five seconds, until it is stopped.
    pub async fn run(self: Arc<Self>, line: impl Fn() -> FleetLine + Send, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            loop {
                self.meet(&line()).await;
                sleep(STEP).await;
            }
        })
        .await;
    }

    /// Writes this server's line, and returns those of all servers.
    async fn exchange(&self, line: Vec<u8>) -> Result<Vec<settings::Record>> {
        self.store.keep(&format!("{PREFIX}{}", self.id), line.into(), LIVES).await?;
        let mut lines = Vec::new();
        scan_all(&*self.store, PREFIX, |_, line| lines.push(line)).await?;
        Ok(lines)
    }

    async fn meet(&self, own: &FleetLine) {
        // Texts and numbers always serialize.
        let line = serde_json::to_vec(own).unwrap_or_default();
        let asked = timeout(PATIENCE, self.exchange(line)).await;
        let answer = asked.unwrap_or_else(|_| Err(Error::away("no response")));
        let before = self.seen();
        *self.seen.write() = Arc::new(match answer {
            Ok(lines) => {
                // Lines of newer servers may have another format.
                let mut lines: Vec<FleetLine> =
                    lines.iter().filter_map(|line| serde_json::from_slice(&line.value).ok()).collect();
                lines.sort_by(|a, b| a.name.cmp(&b.name).then(a.started.cmp(&b.started)));
                Seen { at: Some(system_now()), lines, trouble: None }
            }
            Err(error) => Seen { trouble: Some(error.to_string()), ..Seen::clone(&before) },
        });
    }
}
