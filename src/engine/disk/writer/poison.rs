//! The state of a store that has failed: after a failed write or sync, a disk that hangs, or the death of a thread, the
//! store answers nothing but [`Error::Poisoned`], since nobody can say what is on the disk. Shared by the engine's
//! threads and every caller.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::error::{Error, Result};

/// Why the store is poisoned, once it is.
#[derive(Debug, Default)]
pub struct Poison {
    reason: OnceLock<String>,
    poisoned: Notify,
}

impl Poison {
    /// Poisons the store. Only the first reason is kept, and logged.
    pub fn set(&self, reason: impl Into<String>) {
        let reason = reason.into();
        if self.reason.set(reason.clone()).is_ok() {
            tracing::error!(%reason, "the disk store has failed and takes no more requests");
            self.poisoned.notify_waiters();
        }
    }

    /// The error that every call gets now, if the store is poisoned.
    pub fn error(&self) -> Option<Error> {
        self.reason.get().map(|reason| Error::Poisoned(reason.clone()))
    }

    /// `Err` once the store is poisoned.
    pub fn check(&self) -> Result<()> {
        self.error().map_or(Ok(()), Err)
    }

    /// Waits until the store is poisoned, and says why.
    pub async fn poisoned(&self) -> String {
        loop {
            // Registered before the reason is read: one in between is not missed.
            let poisoned = self.poisoned.notified();
            if let Some(reason) = self.reason.get() {
                return reason.clone();
            }
            poisoned.await;
        }
    }
}
