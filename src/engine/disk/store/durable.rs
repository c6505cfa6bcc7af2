//! Writes files and makes names so that they survive the machine, and tells what its errors mean. Knows nothing of
//! what is in them.

use std::fs::File;
use std::io::{ErrorKind, Result, Write};
use std::path::Path;

use rustix::io::Errno;

/// Syncs a directory: the names in it survive the machine.
pub fn sync(dir: &Path) -> Result<()> {
    File::open(dir)?.sync_all()
}

/// Writes a file, in the place of one that is there, and syncs it. Its name is not synced.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Whether there was no room for what was to be written.
pub fn is_full(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Whether what is on the disk cannot be read, as against a disk that cannot be asked.
pub fn is_unreadable_io(e: &std::io::Error) -> bool {
    const UNREADABLE: [Errno; 5] = [Errno::IO, Errno::BADMSG, Errno::UCLEAN, Errno::NODATA, Errno::ILSEQ];
    e.kind() == ErrorKind::UnexpectedEof || Errno::from_io_error(e).is_some_and(|e| UNREADABLE.contains(&e))
}
