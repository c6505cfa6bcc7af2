//! The servers that share settings. Each writes a line of itself there every five seconds, which is gone after
//! fifteen, and reads those of the others. Nobody leads, and nothing is decided by it: it is for people who look.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::{Millis, system_now};
use crate::error::{Error, Result};
use crate::random;
use crate::settings::{self, MAX_SCAN, SettingsStore};

/// How often a server writes its line, and how long it stays.
const STEP: Duration = Duration::from_secs(5);
const LIVES: Duration = Duration::from_secs(15);
/// What the keys of the lines begin with.
const PREFIX: &str = "servers/";
/// How long the store may take.
const PATIENCE: Duration = Duration::from_secs(4);

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetLine {
    pub name: String,
    pub version: String,
    pub commit: String,
    /// Milliseconds since 1970.
    pub started: Millis,
    /// The address of its admin port as people type it.
    pub admin_url: Option<String>,
    pub ready: bool,
    /// Published, handed out, acked, and died: jobs a second over the last minute.
    pub rates: [f64; 4],
    /// Consumers that wait.
    pub waiting: u64,
}

/// The servers that are there.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// When the store was asked; `None` while it never was.
    pub at: Option<Millis>,
    /// By name. This server is one of them.
    pub lines: Vec<FleetLine>,
    /// Why the store did not answer the last time.
    pub trouble: Option<String>,
}

/// The lines of all servers.
#[derive(Debug)]
pub struct Fleet {
    store: Arc<dyn SettingsStore>,
    /// Two servers may have the same name.
    id: String,
    seen: RwLock<Arc<Seen>>,
}

impl Fleet {
    /// Asks nothing yet.
    pub fn new(store: Arc<dyn SettingsStore>) -> Arc<Fleet> {
        Arc::new(Fleet { store, id: random::ulid().to_string(), seen: RwLock::default() })
    }

    /// Who was there lately.
    pub fn seen(&self) -> Arc<Seen> {
        self.seen.read().clone()
    }

    /// Says every five seconds what `line` answers, until it is stopped.
    pub async fn run(self: Arc<Self>, line: impl Fn() -> FleetLine + Send, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            loop {
                self.meet(&line()).await;
                sleep(STEP).await;
            }
        })
        .await;
    }

    /// Writes this server's line, and returns those of all.
    async fn exchange(&self, line: Vec<u8>) -> Result<Vec<settings::Record>> {
        self.store.keep(&format!("{PREFIX}{}", self.id), line.into(), LIVES).await?;
        let (mut lines, mut after): (Vec<settings::Record>, Option<String>) = (Vec::new(), None);
        loop {
            let page = self.store.scan(PREFIX, after.as_deref(), MAX_SCAN).await?;
            after = page.records.last().map(|(key, _)| key.clone()).or(after);
            lines.extend(page.records.into_iter().map(|(_, line)| line));
            if !page.more {
                return Ok(lines);
            }
        }
    }

    async fn meet(&self, own: &FleetLine) {
        // Texts and numbers: there is nothing in it that JSON cannot say.
        let line = serde_json::to_vec(own).unwrap_or_default();
        let asked = timeout(PATIENCE, self.exchange(line)).await;
        let answer = asked.unwrap_or_else(|_| Err(Error::away("it does not answer")));
        let before = self.seen();
        *self.seen.write() = Arc::new(match answer {
            Ok(lines) => {
                // A line of a newer server may be another one.
                let mut lines: Vec<FleetLine> =
                    lines.iter().filter_map(|line| serde_json::from_slice(&line.value).ok()).collect();
                lines.sort_by(|a, b| a.name.cmp(&b.name).then(a.started.cmp(&b.started)));
                Seen { at: Some(system_now()), lines, trouble: None }
            }
            Err(error) => Seen { trouble: Some(error.to_string()), ..Seen::clone(&before) },
        });
    }
}
