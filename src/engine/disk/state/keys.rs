//! Ownership of job keys. A row names the owner, whose record must confirm it: other rows are stale and harmless.

use super::WriterState;
use crate::engine::disk::codec::{self, Record};
use crate::engine::disk::store::{Fatal, Found, Space};
use crate::job::JobId;
use crate::name::{JobKey, Queue};

impl WriterState {
    /// Returns the job that owns a key; it may have expired.
    pub fn key_holder(&self, queue: &Queue, key: &JobKey) -> Result<Option<(JobId, Record)>, Fatal> {
        let row = self.txn.row(Space::Keys, codec::key_key(&self.prefix(queue), key))?;
        let Some(row) = row else { return Ok(None) };
        let (id, generation) = codec::read_key_value(&row)?;
        Ok(match self.txn.job(&self.job_key(queue, id))? {
            Found::Record(record) if record.generation == generation && record.key.as_ref() == Some(key) => {
                Some((id, record))
            }
            _ => None,
        })
    }

    /// Records that a job owns a key, which must be free.
    pub fn take_key(&mut self, queue: &Queue, key: &JobKey, id: JobId, generation: u64) {
        self.keys += 1;
        let row = codec::key_key(&self.prefix(queue), key);
        self.txn.put_row(Space::Keys, row, codec::key_value(id, generation));
    }

    /// Frees the key of a job. If another job took the key while this record was unreadable, its row stays.
    pub fn free_key(&mut self, queue: &Queue, id: JobId, record: &Record) -> Result<(), Fatal> {
        let Some(key) = &record.key else { return Ok(()) };
        let row = codec::key_key(&self.prefix(queue), key);
        if let Some(holder) = self.txn.row(Space::Keys, row.clone())?
            && codec::read_key_value(&holder)? == (id, record.generation)
        {
            self.keys = self.keys.saturating_sub(1);
            self.txn.delete_row(Space::Keys, row);
        }
        Ok(())
    }

    /// Deletes the record of a job, and frees its key.
    pub fn forget(&mut self, queue: &Queue, id: JobId, record: &Record) -> Result<(), Fatal> {
        self.free_key(queue, id, record)?;
        self.delete_job(queue, self.job_key(queue, id))
    }
}
