//! A copy of a store while it is open, for stores whose files are this server's own.

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::error::Result;

/// A store that copies itself while it is open.
#[async_trait]
pub trait Backup: Send + Sync + fmt::Debug + 'static {
    /// Copies the store as it is at an instant after the call: all that was answered before is in the copy. One at a
    /// time; others go on meanwhile.
    async fn copy(&self) -> Result<StoreCopy>;
}

/// A copy. Its directory goes when this is dropped, which blocks.
#[derive(Debug)]
pub struct StoreCopy {
    dir: PathBuf,
    /// The file that says that it is whole: whoever copies the copy, copies it last.
    pub mark: &'static str,
}

impl StoreCopy {
    /// The copy in this directory.
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
