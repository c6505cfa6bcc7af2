//! State of a failed store. After a failed write or sync, a hanging disk or the death of a thread, the state on disk is
//! unknown, so every call fails with [`Error::Poisoned`]. Shared by the engine's threads and all callers.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::error::{Error, Result};

/// Whether the store is poisoned, and why.
#[derive(Debug, Default)]
pub struct Poison {
    reason: OnceLock<String>,
    poisoned: Notify,
}

impl Poison {
    /// Poisons the store. Only the first reason is kept and logged.
    pub fn set(&self, reason: impl Into<String>) {
        let reason = reason.into();
        if self.reason.set(reason.clone()).is_ok() {
            tracing::error!(%reason, "the disk store has failed and accepts no more requests");
            self.poisoned.notify_waiters();
        }
    }

    /// Returns the error of every call, if the store is poisoned.
    pub fn error(&self) -> Option<Error> {
        self.reason.get().map(|reason| Error::Poisoned(reason.clone()))
    }

    /// Fails if the store is poisoned.
    pub fn check(&self) -> Result<()> {
        self.error().map_or(Ok(()), Err)
    }

    /// Waits until the store is poisoned, and returns the reason.
    pub async fn poisoned(&self) -> String {
        loop {
            // Registered before reading the reason, so that no notification is missed.
            let poisoned = self.poisoned.notified();
            if let Some(reason) = self.reason.get() {
                return reason.clone();
            }
            poisoned.await;
        }
    }
}
