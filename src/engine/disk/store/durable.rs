//! Durable writes of files and names, and the meaning of their errors. Independent of file contents.

use std::fs::File;
use std::io::{ErrorKind, Result, Write};
use std::path::Path;

use rustix::io::Errno;

/// Syncs a directory, so that the names in it survive a power cut.
pub fn sync(dir: &Path) -> Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates or replaces a file and syncs its contents. Its name is not synced.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns whether the file system had no space for a write.
pub fn is_full(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Returns whether stored data is unreadable, as opposed to a disk that does not respond.
pub fn is_unreadable_io(e: &std::io::Error) -> bool {
    const UNREADABLE: [Errno; 5] = [Errno::IO, Errno::BADMSG, Errno::UCLEAN, Errno::NODATA, Errno::ILSEQ];
    e.kind() == ErrorKind::UnexpectedEof || Errno::from_io_error(e).is_some_and(|e| UNREADABLE.contains(&e))
}
