//! What concerns the process and not its work: its log, its pid file, its open files, its tasks, its version.

pub mod log;
pub mod open_files;
pub mod pid_file;
pub mod tasks;
pub mod version;
