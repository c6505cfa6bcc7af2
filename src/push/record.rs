//! The stored record of a pushed queue: setting, secret and state. Knows no store.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::encrypted;
use super::key::PushKey;
use super::setting::Setting;
use super::sign::{Signer, SigningSecret};
use crate::clock::Millis;
use crate::error::Error;
use crate::name::QueueName;

/// How long the previous secret still signs.
pub const BOTH_SIGN: Duration = Duration::from_secs(24 * 3600);

/// Whether a queue is pushed, as stored. (Breakers belong to single servers.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    On,
    /// An operator paused it.
    Paused,
    /// The endpoint returned 410.
    Off,
}

/// The record of a pushed queue. The stored form has the setting as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushRecord<S = Setting> {
    pub setting: S,
    pub secret: SigningSecret,
    /// The previous secret, and until when it signs too.
    #[serde(default)]
    pub old_secret: Option<(SigningSecret, Millis)>,
    #[serde(rename = "state")]
    pub switch: Switch,
    pub since: Millis,
    pub why: String,
    /// Grows with every change. The first revision is the time of day in microseconds.
    pub revision: u64,
}

impl<S> PushRecord<S> {
    fn with_setting<T>(self, setting: T) -> PushRecord<T> {
        let PushRecord { setting: _, secret, old_secret, switch, since, why, revision } = self;
        PushRecord { setting, secret, old_secret, switch, since, why, revision }
    }
}

impl PushRecord {
    pub fn to_bytes(&self) -> Vec<u8> {
        let stored = self.clone().with_setting(self.setting.to_json(true));
        // Texts and numbers always serialize.
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    /// Parses the stored form. The error shows no value, since some are secret.
    pub fn parse(bytes: &[u8], queue: &QueueName) -> Result<PushRecord, String> {
        let stored: PushRecord<Value> =
            serde_json::from_slice(bytes).map_err(|_| "the record is malformed".to_owned())?;
        let setting = Setting::parse(&stored.setting, queue)?;
        let record = stored.with_setting(setting);
        record.signer().ok_or("the secret is malformed")?;
        Ok(record)
    }

    /// Returns the record in another state.
    pub fn switched(self, switch: Switch, since: Millis, why: &str) -> PushRecord {
        PushRecord { switch, since, why: why.into(), revision: self.revision + 1, ..self }
    }

    /// Returns the signer. `None` if a secret is invalid.
    pub fn signer(&self) -> Option<Signer> {
        let old = self.old_secret.iter().map(|(secret, until)| (secret, *until));
        Signer::new(std::iter::once((&self.secret, Millis::MAX)).chain(old))
    }
}

/// Parses a record of the store. The error names the queue, and shows no value; [`Error::Locked`] if no key of this
/// server opened it.
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
        let secret = SigningSecret::random();
        let record = PushRecord {
            setting,
            old_secret: Some((SigningSecret::random(), 9)),
            secret,
            switch: Switch::Off,
            since: 7,
            why: "410".into(),
            revision: 3,
        };
        assert_eq!(PushRecord::parse(&record.to_bytes(), &queue), Ok(record.clone()));
        let signer = record.signer().expect("secrets");
        let signatures = |now| signer.sign("id", now, b"").split(' ').count();
        assert_eq!((signatures(8), signatures(9)), (2, 1), "the old secret signs until its end");
    }
}
