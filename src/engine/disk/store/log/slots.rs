//! Files of a log: their names, and how they are created, read and deleted. Independent of groups.

use std::fs::{self, File, OpenOptions};
use std::io::Result;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::manifest::DIR;
use crate::engine::disk::store::durable::is_unreadable_io;

/// Size of a log file. A larger group has a file of its own.
pub const FILE: u64 = 8 << 20;
/// Unit of preallocation, and size of a new file.
pub const AHEAD: u64 = 256 << 10;
/// Unit of unreadable data.
const SECTOR: usize = 4096;

/// An open file, preallocated up to `ready`.
#[derive(Clone, Debug)]
pub struct Spare {
    pub slot: u32,
    pub file: Arc<File>,
    pub ready: u64,
}

/// Returns the name of a log file in messages.
pub fn name(slot: u32) -> String {
    format!("{DIR}/{slot}")
}

/// Returns the slots with a file. Other names are ignored.
pub fn list(dir: &Path) -> Result<Vec<u32>> {
    let mut slots = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let slot = name.to_str().and_then(|name| name.parse::<u32>().ok());
        slots.extend(slot.filter(|slot| *slot < u32::MAX && *name == *slot.to_string()));
    }
    Ok(slots)
}

/// Opens a file in `dir`, creating it if missing.
pub fn open(dir: &Path, slot: u32) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(dir.join(slot.to_string()))
}

/// Opens an existing file.
pub fn open_spare(dir: &Path, slot: u32) -> Result<Spare> {
    let file = open(dir, slot)?;
    let ready = file.metadata()?.len();
    Ok(Spare { slot, file: Arc::new(file), ready })
}

/// Opens a file for reuse, truncating a file that a large group has extended.
pub fn open_again(dir: &Path, slot: u32) -> Result<Spare> {
    let mut spare = open_spare(dir, slot)?;
    if spare.ready > FILE {
        spare.file.set_len(FILE)?;
        spare.ready = FILE;
    }
    Ok(spare)
}

/// Creates a preallocated file. Its name is not synced.
pub fn create(dir: &Path, slot: u32) -> Result<Spare> {
    let file = open(dir, slot)?;
    file.set_len(0)?;
    file.write_all_at(&[0; AHEAD as usize], 0)?;
    file.sync_all()?;
    Ok(Spare { slot, file: Arc::new(file), ready: AHEAD })
}

/// Reads a file, with zeros for unreadable sectors: groups in them are invalid, and checking the log reports the
/// loss.
pub fn read(dir: &Path, slot: u32) -> Result<Vec<u8>> {
    let file = File::open(dir.join(slot.to_string()))?;
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Err(e) if is_unreadable_io(&e) => {}
        done => return done.map(|()| bytes),
    }
    for (n, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        let at = n * SECTOR;
        match file.read_exact_at(sector, at as u64) {
            Err(error) if is_unreadable_io(&error) => {
                sector.fill(0);
                tracing::error!(file = name(slot), at, %error, "a part of the log is unreadable");
            }
            done => done?,
        }
    }
    Ok(bytes)
}

/// Writes bytes to a file, creating it if missing, and syncs them. Its name is not synced.
pub fn write(dir: &Path, slot: u32, at: u64, bytes: &[u8]) -> Result<()> {
    let file = open(dir, slot)?;
    file.write_all_at(bytes, at)?;
    file.sync_data()
}

/// Deletes a file in steps: a file system mounted with `discard` informs the disk of each freed block, which takes long
/// for many, and syncs would wait for it.
pub fn remove(dir: &Path, file: &File, slot: u32) -> Result<()> {
    const PART: u64 = 4 << 20;
    const PAUSE: Duration = Duration::from_millis(2);
    let mut len = file.metadata()?.len();
    while len > PART {
        len -= PART;
        file.set_len(len)?;
        std::thread::sleep(PAUSE);
    }
    fs::remove_file(dir.join(slot.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_slots_are_listed() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        for name in ["0", "17", "007", "+5", "manifest", "manifest.new", "4294967295", "4294967296"] {
            fs::write(dir.path().join(name), "x").unwrap(); // as above
        }
        let mut slots = list(dir.path()).unwrap(); // as above
        slots.sort_unstable();
        assert_eq!(slots, [0, 17], "other names are not files of the log");
    }
}
