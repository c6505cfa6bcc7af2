//! The one-way switch that a failed write or sync throws: from then on the store answers nothing but
//! [`Error::Poisoned`], since nobody can say what is on the disk. Shared by the writer, its threads and every
//! caller.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::error::{Error, Result};

/// Why the store no longer answers, once it does not.
#[derive(Debug, Default)]
pub struct Poison {
    reason: OnceLock<String>,
    thrown: Notify,
}

impl Poison {
    /// Throws it. Only the first reason is kept, and logged.
    pub fn throw(&self, reason: impl Into<String>) {
        let reason = reason.into();
        if self.reason.set(reason.clone()).is_ok() {
            tracing::error!(%reason, "the disk store has failed and takes no more requests");
            self.thrown.notify_waiters();
        }
    }

    /// The error that every call gets now, if it was thrown.
    pub fn error(&self) -> Option<Error> {
        self.reason.get().map(|reason| Error::Poisoned(reason.clone()))
    }

    /// `Err` once it was thrown.
    pub fn check(&self) -> Result<()> {
        self.error().map_or(Ok(()), Err)
    }

    /// Waits until it is thrown, and says why.
    pub async fn thrown(&self) -> String {
        loop {
            // Registers before it looks: a throw in between is not missed.
            let thrown = self.thrown.notified();
            if let Some(reason) = self.reason.get() {
                return reason.clone();
            }
            thrown.await;
        }
    }
}
