//! The pid file. It is written once the server serves, so that a server that fails to start does not overwrite the file
//! of a running one.
//!
//! Its directory may be writable by others, so it is never written through a link. A new file, which must not exist, is
//! created beside it and renamed. Readers see either the complete number or the old file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A file with this process's id; removed on drop.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. Fails if its name belongs to anything but a regular file; the error contains the name.
    pub fn write(path: &Path) -> io::Result<PidFile> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("the pid file {}: {e}", path.display()));
        replace(path, &std::process::id().to_string()).map_err(named)?;
        Ok(PidFile(path.to_owned()))
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(there) if !there.is_file() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is not a regular file"));
        }
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    // Left by a killed process with the same id. If it is a link, only the link is removed.
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // Fails if the name exists again, even as a link.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&new, path));
    written.inspect_err(|_| drop(std::fs::remove_file(&new)))
}

/// Reads a regular file without following links or blocking on pipes.
fn read(path: &Path) -> io::Result<String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file: File = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let mut text = String::new();
    file.take(64).read_to_string(&mut text)?;
    Ok(text)
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server may have replaced the file meanwhile.
        let ours = read(&self.0).is_ok_and(|pid| pid == std::process::id().to_string());
        if ours && let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(%error, "the pid file could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn it_is_removed_unless_another_server_has_overwritten_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("pid");
        let file = PidFile::write(&path).expect("it can be written");
        drop(file);
        assert!(!path.exists(), "the file stays behind");
        let file = PidFile::write(&path).expect("it can be written");
        std::fs::write(&path, "1").expect("another server's");
        drop(file);
        assert!(path.exists(), "another server's file was removed");
    }

    #[test]
    fn an_old_file_is_replaced_by_one_for_us_alone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("pid");
        std::fs::write(&path, "1234567890").expect("a killed server's");
        let _file = PidFile::write(&path).expect("it can be written");
        assert_eq!(
            read(&path).expect("it is there"),
            std::process::id().to_string(),
            "nothing of the old one"
        );
        let mode = path.metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "its mode, not {mode:o}");
        let names = std::fs::read_dir(dir.path()).expect("the directory").count();
        assert_eq!(names, 1, "nothing is left beside it");
    }

    /// Guards against a server run by root that overwrites the target of a link made by another user.
    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [path, victim] = ["pid", "victim"].map(|name| dir.path().join(name));
        std::fs::write(&victim, "precious").expect("a file");
        symlink(&victim, &path).expect("a link");
        let error = PidFile::write(&path).expect_err("a link is in its place");
        assert!(error.to_string().contains("not a regular file"), "the error says why: {error}");
        std::fs::remove_file(&path).expect("it is there");
        // The name of the new file is predictable too.
        symlink(&victim, dir.path().join(format!("pid.{}", std::process::id()))).expect("a link");
        let file = PidFile::write(&path).expect("the link goes");
        std::fs::remove_file(&path).expect("it is there");
        std::fs::write(&victim, std::process::id().to_string()).expect("a file");
        symlink(&victim, &path).expect("a link");
        drop(file);
        assert!(path.is_symlink() && victim.exists(), "a foreign file stays");
    }

    #[test]
    fn a_hard_link_is_cut_and_not_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [path, victim] = ["pid", "victim"].map(|name| dir.path().join(name));
        std::fs::write(&victim, "precious").expect("a file");
        std::fs::hard_link(&victim, &path).expect("a hard link");
        let _file = PidFile::write(&path).expect("it can be written");
        assert_eq!(
            std::fs::read_to_string(&victim).expect("it is there"),
            "precious",
            "the other name's file"
        );
    }
}
