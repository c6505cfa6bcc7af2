//! Sets the time of day of a child process while it runs, using libfaketime. The process's monotonic clock is not
//! affected.

use std::path::Path;

use tempfile::TempDir;

/// Where Debian and other systems install the library.
const LIBRARY: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
];

/// The time of day of one or several child processes.
#[derive(Debug)]
pub struct Faketime {
    dir: TempDir,
    library: &'static str,
}

impl Faketime {
    /// Returns a time of day equal to the machine's.
    pub fn new() -> Faketime {
        let library = LIBRARY.into_iter().find(|path| Path::new(path).exists());
        let library = library.expect("libfaketime is missing: run tests/run, which installs it");
        let clock = Faketime { dir: TempDir::new().expect("a temporary directory"), library };
        clock.set(0);
        clock
    }

    /// Sets it to `seconds` ahead of the machine's clock; behind if negative.
    pub fn set(&self, seconds: i64) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, format!("{seconds:+}")).expect("the file can be written");
        // Renamed, so that no reader sees a partial file.
        std::fs::rename(&new, self.dir.path().join("offset")).expect("the file can be renamed");
    }

    /// Returns the environment of the process.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            // A process with its own malloc, such as redis-server, reads the clock before libfaketime is ready, so libc
            // is loaded before it.
            ("LD_PRELOAD", format!("{} libc.so.6", self.library)),
            ("FAKETIME_TIMESTAMP_FILE", self.dir.path().join("offset").display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}
