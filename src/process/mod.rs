//! Concerns of the process rather than its work: log, pid file, open files and modes of new ones, tasks, version.

pub mod files;
pub mod log;
pub mod notify;
pub mod open_files;
pub mod pid_file;
pub mod tasks;
pub mod version;
