//! What concerns the process and not its work: its log, its pid file, its open files and the modes of new ones, its
//! tasks, its version.

pub mod files;
pub mod log;
pub mod notify;
pub mod open_files;
pub mod pid_file;
pub mod tasks;
pub mod version;
