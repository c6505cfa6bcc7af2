//! Makes system calls on files fail or hang in a child process: by faults.c, a library that is loaded before the C
//! library.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::shim::Shim;

/// Error numbers of Linux.
pub const EIO: i32 = 5;
/// Makes the call hang.
pub const HANGS: i32 = -1;

/// Returns the compiled shim, or the reason why it cannot be compiled.
pub fn shim() -> Result<PathBuf, String> {
    static SHIM: OnceLock<Result<Shim, String>> = OnceLock::new();
    let built = SHIM.get_or_init(|| Shim::compile("tests/support/faults.c"));
    built.as_ref().map(Shim::library).map_err(String::clone)
}

/// Makes `call` fail on files whose path contains `part`. `EIO` of a read only at `offset`.
pub fn fail(dir: &Path, call: &str, errno: i32, part: &str, offset: Option<u64>) {
    let offset = offset.map_or(String::new(), |offset| offset.to_string());
    std::fs::write(dir.join("faults"), format!("{call} {errno} {part} {offset}\n")).expect("written");
}

/// Removes all faults.
pub fn heal(dir: &Path) {
    std::fs::remove_file(dir.join("faults")).expect("it was there");
}
