//! `dormouse backup`: copies a pool through a server's admin port, as a directory or as a tar.

use std::fs::{self, DirBuilder, File};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::client::{ApiClient, HttpCall};
use super::program::{CommandError, Result, admin_url, print_line};
use super::push;

/// The file that marks a directory as a complete pool. It comes last.
const MARK: &str = "dormouse";

/// Copy a pool on disk while its server runs, through the admin port
///
/// The copy contains every change that was acknowledged before this command, including tokens. The admin port is at
/// DORMOUSE_ADMIN [default: http://127.0.0.1:7778]; if it has accounts, set DORMOUSE_ADMIN_AUTH=user:password.
#[derive(Args)]
pub struct BackupArgs {
    /// The pool [default: default]
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// The directory to create, or - for a tar on standard output
    #[arg(value_name = "DIR|-")]
    to: PathBuf,
}

/// Runs the command.
pub fn backup(BackupArgs { pool, to }: BackupArgs) -> Result<()> {
    // Removes a trailing slash, after which `.part` would be another name.
    let to: PathBuf = to.components().collect();
    let is_tar = to == Path::new("-");
    if is_tar && io::stdout().is_terminal() {
        return Err(CommandError::Usage(
            "a tar archive cannot be written to a terminal: redirect it to a file".to_owned(),
        ));
    }
    let part = part_of(&to);
    for path in [&to, &part].into_iter().filter(|_| !is_tar) {
        if path.symlink_metadata().is_ok() {
            return Err(CommandError::Usage(format!("{} already exists", path.display())));
        }
    }
    let client = ApiClient::new(&admin_url(None)?, push::login()?)?;
    let mut tar = client.read(HttpCall::get().to("backup").with([("pool", pool)]))?;
    let failed = |error: io::Error| CommandError::NotDone(format!("the backup is incomplete: {error}"));
    if is_tar {
        let mut out = io::stdout().lock();
        // Flushes here: the rest may not fit on the disk either, and an error at exit would be lost.
        return io::copy(&mut tar, &mut out).and_then(|_| out.flush()).map_err(failed);
    }
    let done = unpack(&mut tar, &part).and_then(|found| {
        fs::rename(&part, &to)?;
        sync(to.parent().unwrap_or(Path::new("")))?;
        Ok(found)
    });
    if done.is_err() {
        // Leaves nothing behind.
        let _ = fs::remove_dir_all(&part);
    }
    let (files, bytes) = done.map_err(failed)?;
    print_line(&format!("wrote {files} files with {bytes} bytes to {}", to.display()))
}

/// Returns the name of the directory until it is complete.
fn part_of(to: &Path) -> PathBuf {
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

/// Unpacks a tar into a new directory, and syncs it. Returns the number of files and bytes.
fn unpack(tar: &mut impl Read, to: &Path) -> io::Result<(u64, u64)> {
    DirBuilder::new().mode(0o700).create(to)?;
    let (mut files, mut bytes, mut whole, mut dirs) = (0, 0, false, vec![to.to_owned()]);
    let mut archive = tar::Archive::new(&mut *tar);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let is_dir = entry.header().entry_type().is_dir();
        if !is_dir && !entry.header().entry_type().is_file() || !entry.unpack_in(to)? {
            return Err(io::Error::other(format!("unexpected entry {}", path.display())));
        }
        if is_dir {
            dirs.push(to.join(path));
            continue;
        }
        File::open(to.join(&path))?.sync_all()?;
        (files, bytes, whole) = (files + 1, bytes + entry.size(), path == Path::new(MARK));
    }
    // Reads to the end, to detect an aborted transfer.
    io::copy(tar, &mut io::sink())?;
    if !whole {
        return Err(io::Error::other("the archive is truncated"));
    }
    dirs.iter().rev().try_for_each(|dir| sync(dir))?;
    Ok((files, bytes))
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?.sync_all()
}
