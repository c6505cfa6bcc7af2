//! The directory that a repair writes: beside the damaged one, which it then replaces in one step, or anywhere. It has
//! no mark until it is complete, so at any moment a directory without a mark is an unfinished one, and may be deleted.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{Error, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, RenameFlags, StatxAttributes, StatxFlags, renameat_with, statx};

use super::aside::ASIDE;
use super::contents::Contents;
use super::durable::sync;
use super::mark::{self, MARK};
use super::open::{self, COPY};
use super::trees::{self, Trees, Written};
use super::{Fatal, Space, Store, StoreLimits, log};

/// Size of a batch.
const BATCH_BYTES: usize = 1 << 20;
/// The group of all entries: each key is written once.
const GROUP: u64 = 1;
/// Advice if the damaged directory cannot be replaced.
const ELSEWHERE: &str = "choose another directory with --into";

/// Where a repair writes.
#[derive(Clone, Copy, Debug)]
pub enum RepairTo<'a> {
    /// Beside the damaged directory, to replace it.
    Beside,
    /// In this directory, which must not exist.
    Into(&'a Path),
}

/// An unfinished directory.
#[derive(Debug)]
pub struct Fresh {
    /// The damaged directory.
    pool: PathBuf,
    path: PathBuf,
    replaces: bool,
}

/// Returns a path beside `pool` whose name is longer by `suffix`.
fn beside(pool: &Path, suffix: &str) -> PathBuf {
    let mut name = pool.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns an unused path for the damaged directory `pool`.
fn damaged(pool: &Path) -> PathBuf {
    let unused = (1..).map(|n: u64| beside(pool, &format!(".damaged-{n}"))).find(|path| !is_there(path));
    unused.unwrap_or_else(|| beside(pool, ".damaged"))
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Exchanges two directories in one step: at any moment both names are there.
fn exchange(one: &Path, other: &Path) -> Result<()> {
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

/// Removes what an interrupted repair of `pool` has left beside it. A complete directory, which may be the damaged one,
/// is renamed instead: returns both names.
pub fn clear(pool: &Path) -> Result<Option<(PathBuf, PathBuf)>> {
    let pool = pool.canonicalize()?;
    let left = beside(&pool, ".repairing");
    if !is_there(&left) {
        return Ok(None);
    }
    if is_there(&left.join(MARK)) {
        let to = damaged(&pool);
        rename(&left, &to)?;
        return Ok(Some((left, to)));
    }
    for entry in fs::read_dir(&left)? {
        let name = entry?.file_name();
        if name != trees::DIR && name != log::DIR {
            return Err(Error::other(format!("{} is in the way: move it", left.display())));
        }
    }
    fs::remove_dir_all(&left)?;
    Ok(None)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)?;
    sync_name(to)
}

/// Syncs the directory that has this name.
fn sync_name(path: &Path) -> Result<()> {
    sync(&path.join(".."))
}

impl Fresh {
    /// Creates the directory. Fails if it could not replace the damaged one.
    pub fn create(pool: &Path, place: RepairTo<'_>) -> Result<Fresh> {
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        let pool = pool.canonicalize()?;
        let (path, replaces) = match place {
            RepairTo::Into(path) => (std::path::absolute(path)?, false),
            RepairTo::Beside => {
                check_replaceable(&pool)?;
                (beside(&pool, ".repairing"), true)
            }
        };
        make(&path).map_err(|e| {
            let advice = if replaces { format!(": {ELSEWHERE}") } else { String::new() };
            Error::new(e.kind(), format!("{} cannot be created: {e}{advice}", path.display()))
        })?;
        let fresh = Fresh { pool, path, replaces };
        if replaces && let Err(e) = fresh.try_exchange() {
            fresh.remove();
            return Err(Error::other(format!(
                "its file system cannot exchange directories ({e}): {ELSEWHERE}"
            )));
        }
        Ok(fresh)
    }

    fn try_exchange(&self) -> Result<()> {
        let dirs = [trees::DIR, log::DIR].map(|name| self.path.join(name));
        dirs.iter().try_for_each(fs::create_dir)?;
        exchange(&dirs[0], &dirs[1])?;
        dirs.iter().try_for_each(fs::remove_dir)
    }

    /// Deletes the unfinished directory. If that fails, the next repair does so.
    pub fn remove(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }

    /// Writes the intact entries except those that `is_derived` selects, directly to tables, and opens the store.
    pub fn fill(
        &self,
        contents: &Contents,
        is_derived: impl Fn(Space, &[u8]) -> bool,
    ) -> std::result::Result<Store, Fatal> {
        let trees = Trees::open(&self.path, StoreLimits::OF_A_TOOL)?;
        for (space, ..) in Space::ALL {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            for entry in contents.entries(space)? {
                let (key, value) = entry?;
                if is_derived(space, &key) {
                    continue;
                }
                bytes += key.len() + value.len();
                batch.push(Written { space, key, value: Some(value), is_new: false });
                if bytes > BATCH_BYTES && trees.commit(GROUP, batch.drain(..)) {
                    flush(&trees, space)?;
                }
                bytes = if batch.is_empty() { 0 } else { bytes };
            }
            trees.commit(GROUP, batch);
            flush(&trees, space)?;
        }
        drop(trees);
        open::make_log(&self.path, GROUP + 1)?;
        open::open_whole(&self.path, StoreLimits::OF_A_TOOL, None).map_err(|e| Fatal(e.to_string()))
    }

    /// Completes the directory after a last check of it, and replaces the damaged one. On an error the damaged directory
    /// is unchanged and this one deleted.
    pub fn finish(self) -> Result<Finished> {
        let exchanged = self.complete().and_then(|()| match self.replaces {
            true => exchange(&self.pool, &self.path),
            false => Ok(()),
        });
        if let Err(e) = exchanged {
            self.remove();
            return Err(e);
        }
        if !self.replaces {
            return Ok(Finished { path: self.path, damaged: self.pool, trouble: None });
        }
        // The damaged directory has the other name now.
        let to = damaged(&self.pool);
        let renamed = sync_name(&self.pool).and_then(|()| rename(&self.path, &to));
        let damaged = if is_there(&to) { to } else { self.path };
        Ok(Finished { path: self.pool, damaged, trouble: renamed.err() })
    }

    fn complete(&self) -> Result<()> {
        if let Some(damage) = Contents::read(&self.path, None)?.damage.first() {
            return Err(Error::other(format!("what was written cannot be read: {damage}")));
        }
        let of = self.pool.metadata()?;
        fs::set_permissions(&self.path, Permissions::from_mode(of.mode() & 0o7777))?;
        mark::write_mark_of_copy(&self.path)?;
        let own = self.path.metadata()?;
        if (own.uid(), own.gid()) != (of.uid(), of.gid()) {
            give(&self.path, of.uid(), of.gid())?;
        }
        sync_name(&self.path)
    }
}

/// The result of a repair.
#[derive(Debug)]
pub struct Finished {
    /// The directory that opens.
    pub path: PathBuf,
    /// The damaged directory.
    pub damaged: PathBuf,
    /// Why the damaged directory was not renamed, or names are not synced.
    pub trouble: Option<Error>,
}

/// Makes the user of the damaged directory the owner of everything in `path`.
fn give(path: &Path, user: u32, group: u32) -> Result<()> {
    lchown(path, Some(user), Some(group))?;
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), user, group)?;
        }
    }
    Ok(())
}

/// Flushes a keyspace to a table. There is no log yet.
fn flush(trees: &Trees, space: Space) -> lsm_tree::Result<()> {
    trees.settle();
    trees.flush(space, |_| Ok(()))
}

/// Fails if the directory cannot be replaced, or if that would move something else.
fn check_replaceable(pool: &Path) -> Result<()> {
    let says = statx(CWD, pool, AtFlags::empty(), StatxFlags::empty())?;
    if says.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(Error::other(format!("it is a mount point: {ELSEWHERE}")));
    }
    for entry in fs::read_dir(pool)? {
        let name = entry?.file_name();
        if ![MARK, trees::DIR, log::DIR, ASIDE, COPY].iter().any(|ours| name == *ours) {
            let name = name.to_string_lossy();
            return Err(Error::other(format!("it also contains {name}: move that, or {ELSEWHERE}")));
        }
    }
    Ok(())
}
