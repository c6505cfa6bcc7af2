//! The modes of the files that the process makes: its user's alone. Jobs, tokens and logs are nobody else's.

use rustix::fs::Mode;
use rustix::process::umask;

/// From now on a file that the process makes is readable for its user alone, whoever makes it: the store does so
/// too, which takes no modes. A file that is there already keeps its mode.
pub fn keep_private() {
    umask(Mode::RWXG | Mode::RWXO);
}
