//! Moves unexpected files aside instead of deleting them.

use std::fs::{self, DirBuilder};
use std::io::Result;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::durable::{self, sync};

/// Directory in the pool for files moved aside.
pub const ASIDE: &str = "aside";

/// Files moved aside by one run, in a directory of their own.
#[derive(Debug)]
pub struct Aside {
    dir: PathBuf,
}

impl Aside {
    /// Chooses an unused directory name; the directory is created on first use.
    pub fn new(pool: &Path) -> Result<Aside> {
        let all = pool.join(ASIDE);
        let mut n = 1;
        while all.join(n.to_string()).exists() {
            n += 1;
        }
        Ok(Aside { dir: all.join(n.to_string()) })
    }

    /// Returns an unused path in the directory for a file called like `from`.
    fn place(&self, from: &Path) -> Result<PathBuf> {
        if !self.dir.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            // The new directory's name, and that of its parent.
            for dir in self.dir.ancestors().skip(1).take(2) {
                sync(dir)?;
            }
        }
        let name = from.file_name().unwrap_or_default();
        let mut to = self.dir.join(name);
        let mut n = 1;
        while to.exists() {
            to = self.dir.join(format!("{}.{n}", Path::new(name).display()));
            n += 1;
        }
        Ok(to)
    }

    /// Moves a file or directory aside.
    pub fn take(&self, from: &Path) -> Result<()> {
        let to = self.place(from)?;
        fs::rename(from, &to)?;
        sync(&self.dir)?;
        from.parent().map_or(Ok(()), sync)
    }

    /// Stores bytes that were part of the file `from`.
    pub fn copy(&self, from: &Path, bytes: &[u8]) -> Result<()> {
        let to = self.place(from)?;
        if let Err(e) = durable::write(&to, bytes) {
            // A partial copy is useless.
            let _ = fs::remove_file(&to);
            return Err(e);
        }
        sync(&self.dir)
    }
}
