//! Settings: records that are read, compared and replaced. The steps do not interpret values.

use bytes::Bytes;

use crate::clock::Micros;
use crate::engine::disk::codec;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::settings::{SettingChange, SettingKey};
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Space};

/// A version and a value.
pub type Row = (u64, Bytes);

/// Reads a record.
pub struct GetSetting(pub Bytes);

/// Puts or deletes a record, if its version is as expected.
pub struct PutSetting {
    pub key: Bytes,
    pub value: Option<Bytes>,
    pub expected: Option<u64>,
}

/// Reads records by key.
pub struct ScanSettings {
    pub prefix: Bytes,
    pub after: Option<Bytes>,
    pub limit: usize,
    /// Stops after this number of bytes of values.
    pub bytes: usize,
}

/// Returns changes since a version.
pub struct ReadChanges {
    pub since: u64,
    pub most: usize,
}

impl Step for GetSetting {
    type Reply = Option<Row>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Option<Row>> {
        Ok(state.read_setting(&self.0)?)
    }
}

impl Step for PutSetting {
    /// The new version, or the current record if its version differs.
    type Reply = Result<u64, Option<Row>>;
    const MUST_LAST: bool = true;

    fn bytes(&self) -> usize {
        self.value.as_ref().map_or(0, Bytes::len)
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Result<u64, Option<Row>>> {
        let PutSetting { key, value, expected } = self;
        if state.settings.version_of(&key) != expected {
            return Ok(Err(state.read_setting(&key)?));
        }
        let version = state.settings.change(&key, value.is_some(), now);
        match value {
            Some(value) => state.txn.put_row(Space::Settings, key.to_vec(), codec::setting(version, &value)),
            None => state.txn.delete_row(Space::Settings, key.to_vec()),
        }
        // Synced in either mode.
        state.must_sync = true;
        Ok(Ok(version))
    }
}

impl Step for ScanSettings {
    /// The records, and whether there may be more.
    type Reply = (Vec<(SettingKey, Row)>, bool);
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Self::Reply> {
        let ScanSettings { prefix, after, limit, bytes: most } = self;
        let keys = state.settings.keys(&prefix, after.as_deref()).take(limit + 1);
        let keys: Vec<SettingKey> = keys.cloned().collect();
        let (mut found, mut bytes) = (Vec::new(), 0);
        for key in &keys[..keys.len().min(limit)] {
            if bytes >= most {
                return Ok((found, true));
            }
            if let Some(row) = state.read_setting(key)? {
                bytes += row.1.len();
                found.push((key.clone(), row));
            }
        }
        Ok((found, keys.len() > limit))
    }
}

impl Step for ReadChanges {
    /// As [`Settings::changes`](crate::engine::disk::state::settings::Settings::changes) returns them.
    type Reply = (u64, Option<Vec<SettingChange>>);
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Self::Reply> {
        Ok(state.settings.changes(self.since, self.most))
    }
}

impl WriterState {
    fn read_setting(&self, key: &[u8]) -> Result<Option<Row>, Fatal> {
        if self.settings.version_of(key).is_none() {
            return Ok(None);
        }
        let row = self.txn.row(Space::Settings, key.to_vec())?;
        let row = row.ok_or_else(|| Fatal("a settings record is missing".to_owned()))?;
        let (version, value) = codec::read_setting(&row)?;
        Ok(Some((version, Bytes::copy_from_slice(value))))
    }
}
