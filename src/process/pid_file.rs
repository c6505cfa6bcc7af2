//! The pid file. It is written when the server serves, so a server that fails to start does not overwrite the file
//! of one that runs.

use std::io;
use std::path::{Path, PathBuf};

/// A file that contains this process's id. Dropping this removes the file.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes it. The error names the file.
    pub fn write(path: &Path) -> io::Result<PidFile> {
        std::fs::write(path, std::process::id().to_string())
            .map_err(|e| io::Error::new(e.kind(), format!("the pid file {}: {e}", path.display())))?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server may have taken the name meanwhile.
        let ours = std::fs::read_to_string(&self.0).is_ok_and(|pid| pid == std::process::id().to_string());
        if ours && let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(%error, "the pid file could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
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
}
