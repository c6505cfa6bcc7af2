//! The record of a pushed queue, which is what is stored of it: setting, secret and state. Knows no store.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::encrypted;
use super::setting::Setting;
use super::sign::{Secret, Signer};
use super::store::PushKey;
use crate::clock::Millis;
use crate::error::Error;
use crate::name::QueueName;

/// How long the secret before still signs.
pub const BOTH_SIGN: Duration = Duration::from_secs(24 * 3600);

/// Whether a queue is pushed now, as far as it is said and stored. (A breaker is each server's own.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    On,
    /// By an operator.
    Paused,
    /// The endpoint said 410.
    Off,
}

/// Everything that is stored of a pushed queue.
#[derive(Clone, Debug, PartialEq)]
pub struct PushRecord {
    pub setting: Setting,
    pub secret: Secret,
    /// The secret before, and until when it signs too.
    pub old_secret: Option<(Secret, Millis)>,
    pub switch: Switch,
    pub since: Millis,
    pub why: String,
    /// Grows with every change. The first is the time of day at which it was set, in microseconds.
    pub revision: u64,
}

/// The stored form of a [`PushRecord`].
#[derive(Serialize, Deserialize)]
struct Stored {
    setting: Value,
    secret: Secret,
    #[serde(default)]
    old_secret: Option<(Secret, Millis)>,
    state: Switch,
    since: Millis,
    why: String,
    revision: u64,
}

impl PushRecord {
    /// The bytes that are stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        let stored = Stored {
            setting: self.setting.to_json(true),
            secret: self.secret.clone(),
            old_secret: self.old_secret.clone(),
            state: self.switch,
            since: self.since,
            why: self.why.clone(),
            revision: self.revision,
        };
        // Texts and numbers become JSON without fail.
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    /// Reads them. The error shows no value: there are secrets among them.
    pub fn parse(bytes: &[u8], queue: &QueueName) -> Result<PushRecord, String> {
        let stored: Stored =
            serde_json::from_slice(bytes).map_err(|_| "the record is not as it was written".to_owned())?;
        let record = PushRecord {
            setting: Setting::parse(&stored.setting, queue)?,
            secret: stored.secret,
            old_secret: stored.old_secret,
            switch: stored.state,
            since: stored.since,
            why: stored.why,
            revision: stored.revision,
        };
        record.signer(0).ok_or("the secret is not as it was written")?;
        Ok(record)
    }

    /// The same in another state.
    pub fn switched(self, switch: Switch, since: Millis, why: &str) -> PushRecord {
        PushRecord { switch, since, why: why.into(), revision: self.revision + 1, ..self }
    }

    /// What signs now.
    pub fn signer(&self, now: Millis) -> Option<Signer> {
        let old = self.old_secret.as_ref().filter(|(_, until)| now < *until).map(|(secret, _)| secret);
        Signer::new([&self.secret].into_iter().chain(old))
    }
}

/// Reads a record of the store. The error says whose it is, and shows no value; [`Error::Locked`] where no key of this
/// server has opened it.
pub fn read(key: &PushKey, bytes: &[u8]) -> crate::error::Result<PushRecord> {
    if encrypted::locked(bytes).is_some() {
        return Err(Error::Locked);
    }
    PushRecord::parse(bytes, &key.queue.name).map_err(|why| Error::corrupt(format!("{key}: {why}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_survives_its_text() {
        let queue = QueueName::parse("mail").expect("a literal");
        let setting =
            Setting::parse(&json!({"url": "http://a/", "headers": {"a": "b"}}), &queue).expect("a setting");
        let secret = Secret::random().expect("random");
        let record = PushRecord {
            setting,
            old_secret: Some((Secret::random().expect("random"), 9)),
            secret,
            switch: Switch::Off,
            since: 7,
            why: "410".into(),
            revision: 3,
        };
        assert_eq!(PushRecord::parse(&record.to_bytes(), &queue), Ok(record.clone()));
        let signatures = |now| {
            let signer = record.signer(now).expect("secrets");
            signer.sign("id", 1, b"").split(' ').count()
        };
        assert_eq!((signatures(8), signatures(9)), (2, 1), "the old secret signs until its end");
    }
}
