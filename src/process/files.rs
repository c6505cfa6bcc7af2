//! File modes: files created by the process are accessible to its user only, since jobs, tokens and logs are
//! confidential.

use rustix::fs::Mode;
use rustix::process::umask;

/// From now on, makes every file that the process creates accessible to its user only. Done by umask, since lsm-tree
/// takes no modes. Existing files keep their mode.
pub fn keep_private() {
    umask(Mode::RWXG | Mode::RWXO);
}
