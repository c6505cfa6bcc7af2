//! System calls on files that fail or hang, in a child process: by faults.c, a library that is loaded before the C
//! library.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::shim::Shim;

/// The numbers of errors, as Linux has them.
pub const EIO: i32 = 5;
/// The call never returns.
pub const HANGS: i32 = -1;

/// Returns the compiled shim, or why there is none.
pub fn shim() -> Result<PathBuf, String> {
    static SHIM: OnceLock<Result<Shim, String>> = OnceLock::new();
    let built = SHIM.get_or_init(|| Shim::compile("tests/support/faults.c"));
    built.as_ref().map(Shim::library).map_err(String::clone)
}

/// From now on `call` fails on files whose path has `part` in it. `EIO` of a read only where it reads `offset`.
pub fn fail(dir: &Path, call: &str, errno: i32, part: &str, offset: Option<u64>) {
    let offset = offset.map_or(String::new(), |offset| offset.to_string());
    std::fs::write(dir.join("faults"), format!("{call} {errno} {part} {offset}\n")).expect("written");
}

/// Ends all faults.
pub fn heal(dir: &Path) {
    std::fs::remove_file(dir.join("faults")).expect("it was there");
}
