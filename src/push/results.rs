//! Results of deliveries, over all servers: a record `push/results/<pool>/<namespace>/<queue>` of the settings, which
//! exists as long as the queue is pushed.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::key::PushKey;
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::settings::{Put, SettingVersion, SettingsStore};

/// Number of attempts kept per queue, over all servers.
const ATTEMPTS_KEPT: usize = 20;
/// Maximum number of attempts of a change that conflicts with others.
const TRIES: usize = 16;

/// One attempt, as shown to operators. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub job_id: String,
    /// When it ended, by the server's clock.
    pub time: Millis,
    /// `None` if no response arrived.
    pub status: Option<u16>,
    pub milliseconds: u64,
    /// The beginning of the response, or why no response arrived.
    pub answer: String,
}

/// Results of deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PushReport {
    pub delivered: u64,
    pub failed: u64,
    /// Jobs that died after a failed attempt.
    pub dead: u64,
    /// Latest last; at most [`ATTEMPTS_KEPT`].
    pub attempts: Vec<Attempt>,
}

impl PushReport {
    /// Adds a later report.
    pub fn add(&mut self, more: PushReport) {
        self.delivered += more.delivered;
        self.failed += more.failed;
        self.dead += more.dead;
        self.attempts.extend(more.attempts);
        let extra = self.attempts.len().saturating_sub(ATTEMPTS_KEPT);
        self.attempts.drain(..extra);
    }
}

fn key_of(key: &PushKey) -> String {
    format!("push/results/{key}")
}

async fn read(settings: &dyn SettingsStore, key: &str) -> Result<Option<(PushReport, SettingVersion)>> {
    let record = settings.get(key).await?;
    // A malformed record is replaced: results are not worth an error.
    Ok(record.map(|record| (serde_json::from_slice(&record.value).unwrap_or_default(), record.version)))
}

/// Replaces a record by the result of `change`, which receives `None` if there is none. An unchanged record is not
/// written.
async fn replace(
    settings: &dyn SettingsStore,
    key: &PushKey,
    change: impl Fn(Option<PushReport>) -> Option<PushReport> + Send,
) -> Result<()> {
    let key = key_of(key);
    for _ in 0..TRIES {
        let there = read(settings, &key).await?;
        let version = there.as_ref().map(|(_, version)| *version);
        let new = change(there.as_ref().map(|(report, _)| report.clone()));
        if new == there.map(|(report, _)| report) {
            return Ok(());
        }
        let value = new.map(|new| serde_json::to_vec(&new)).transpose().map_err(Error::refused)?;
        if let Put::Done(_) = settings.put(&key, value.map(Bytes::from), version).await? {
            return Ok(());
        }
    }
    Err(Error::Overloaded)
}

/// Returns the results of a queue.
pub async fn get(settings: &dyn SettingsStore, key: &PushKey) -> Result<PushReport> {
    Ok(read(settings, &key_of(key)).await?.map(|(report, _)| report).unwrap_or_default())
}

/// Begins the results of a queue that is not pushed yet.
pub async fn begin(settings: &dyn SettingsStore, key: &PushKey) -> Result<()> {
    replace(settings, key, |_| Some(PushReport::default())).await
}

/// Deletes the results of a queue.
pub async fn delete(settings: &dyn SettingsStore, key: &PushKey) -> Result<()> {
    replace(settings, key, |_| None).await
}

/// Adds a report to the results of a queue, unless it is no longer pushed.
pub async fn add(settings: &dyn SettingsStore, key: &PushKey, report: &PushReport) -> Result<()> {
    replace(settings, key, |there| {
        there.map(|mut all| {
            all.add(report.clone());
            all
        })
    })
    .await
}
