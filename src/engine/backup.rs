//! Copies of an open store, for stores whose files are this server's own.

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::error::Result;

/// A store that can be copied while it is open.
#[async_trait]
pub trait Backup: Send + Sync + fmt::Debug + 'static {
    /// Copies the store as it is at an instant after the call: everything acknowledged before is in the copy. One
    /// copy at a time; other calls continue meanwhile.
    async fn copy(&self) -> Result<StoreCopy>;
}

/// A copy. Dropping it deletes its directory, which blocks.
#[derive(Debug)]
pub struct StoreCopy {
    dir: PathBuf,
    /// The file that marks it as complete: it must be copied last.
    pub mark: &'static str,
}

impl StoreCopy {
    /// Returns the copy in this directory.
    pub fn new(dir: PathBuf, mark: &'static str) -> StoreCopy {
        StoreCopy { dir, mark }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for StoreCopy {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            let dir = self.dir.display().to_string();
            tracing::warn!(dir, %error, "a copy of the store could not be removed; the next start removes it");
        }
    }
}
