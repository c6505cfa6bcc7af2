//! Files that stand in the way are set aside, and never deleted.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::Result;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::durable::{self, sync};

/// What was set aside, in the pool's directory.
pub const ASIDE: &str = "aside";

/// Files that are set aside, in a directory of their own for each time.
#[derive(Debug)]
pub struct Aside {
    dir: PathBuf,
    moved: BTreeMap<PathBuf, PathBuf>,
}

impl Aside {
    /// Makes the directory when it is needed.
    pub fn new(pool: &Path) -> Result<Aside> {
        let all = pool.join(ASIDE);
        let mut n = 1;
        while all.join(n.to_string()).exists() {
            n += 1;
        }
        Ok(Aside { dir: all.join(n.to_string()), moved: BTreeMap::new() })
    }

    /// A free name there for what has this name now.
    fn place(&self, from: &Path) -> Result<PathBuf> {
        if !self.dir.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            // The directory's own name, and that of the one that holds it.
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

    /// Moves a file or a directory there.
    pub fn take(&mut self, from: &Path) -> Result<()> {
        let to = self.place(from)?;
        fs::rename(from, &to)?;
        sync(&self.dir)?;
        if let Some(parent) = from.parent() {
            sync(parent)?;
        }
        self.moved.insert(from.to_owned(), to);
        Ok(())
    }

    /// Writes bytes there that were a part of a file.
    pub fn copy(&mut self, from: &Path, bytes: &[u8]) -> Result<()> {
        let to = self.place(from)?;
        if let Err(e) = durable::write(&to, bytes) {
            // A part of it is of no use.
            let _ = fs::remove_file(&to);
            return Err(e);
        }
        sync(&self.dir)?;
        self.moved.insert(from.to_owned(), to);
        Ok(())
    }

    /// What was set aside, and where it is.
    pub fn moved(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.moved.iter().map(|(from, to)| (from.as_path(), to.as_path()))
    }
}
