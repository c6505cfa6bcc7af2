//! Libraries of our own that are loaded before the C library of a child process. A test compiles them when it needs
//! them.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A compiled library. Its file is deleted on drop.
pub struct Shim {
    dir: TempDir,
}

impl Shim {
    /// Compiles a file of this repository. Fails with the reason if there is no compiler.
    pub fn compile(source: &str) -> Result<Shim, String> {
        let shim = Shim { dir: TempDir::new().expect("a temporary directory") };
        let source = format!("{}/{source}", env!("CARGO_MANIFEST_DIR"));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(shim.library()).arg(&source).arg("-ldl");
        let ended = cc.output().map_err(|e| format!("there is no C compiler: {e}"))?;
        assert!(ended.status.success(), "{source}: {}", String::from_utf8_lossy(&ended.stderr));
        Ok(shim)
    }

    /// Returns the path for `LD_PRELOAD`.
    pub fn library(&self) -> PathBuf {
        self.dir.path().join("shim.so")
    }
}
