//! Long reads: from a snapshot on blocking threads, so that a scan of a million jobs delays no other call.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::store::Fatal;
use super::writer::handle::Handle;
use crate::error::{Error, Result};

/// Maximum concurrent reads of one kind. Others wait.
const SLOTS: usize = 2;

/// Kinds of long reads. Each has slots of its own, so that a count of all timers keeps no list waiting.
#[derive(Clone, Copy, Debug)]
pub enum LongRead {
    List,
    Count,
    Copy,
}

/// Runs long reads. Each holds a permit, so that a close can wait for it.
#[derive(Debug)]
pub struct Readers([Arc<Semaphore>; 3]);

impl Default for Readers {
    fn default() -> Readers {
        Readers(std::array::from_fn(|_| Arc::new(Semaphore::new(SLOTS))))
    }
}

impl Readers {
    /// Waits for a slot.
    pub async fn slot(&self, kind: LongRead) -> Result<OwnedSemaphorePermit> {
        self.0[kind as usize].clone().acquire_owned().await.map_err(|_| Error::Closed)
    }

    /// Waits for a slot, then reads.
    pub async fn run<T: Send + 'static>(
        &self,
        kind: LongRead,
        handle: &Handle,
        work: impl FnOnce() -> Result<T, Fatal> + Send + 'static,
    ) -> Result<T> {
        let slot = self.slot(kind).await?;
        read(handle, slot, work).await
    }

    /// Waits for all reads to end, and prevents new ones.
    pub async fn ended(&self) {
        for slots in &self.0 {
            let _all = slots.acquire_many(SLOTS as u32).await;
            slots.close();
        }
    }
}

/// Reads on a blocking thread. A failed read is an error of the store that changes nothing in it.
pub async fn read<T: Send + 'static>(
    handle: &Handle,
    slot: OwnedSemaphorePermit,
    work: impl FnOnce() -> Result<T, Fatal> + Send + 'static,
) -> Result<T> {
    let work = move || {
        let done = work();
        drop(slot);
        done
    };
    tokio::select! {
        biased;
        done = tokio::task::spawn_blocking(work) => match done {
            Ok(done) => done.map_err(|Fatal(reason)| Error::corrupt(reason)),
            Err(e) => Err(Error::corrupt(e)),
        },
        // It hangs in the disk, and is abandoned.
        reason = handle.poison.poisoned() => Err(Error::away(Error::Poisoned(reason))),
    }
}
