//! The limit of open files. Each connection is one, so thousands of waiting consumers need a high limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the open-file limit to the hard limit, and logs what it is now: one file per connection.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |l| l.to_string());
    if current == maximum {
        tracing::info!(open_files = shown(current), "open-file limit");
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::info!(open_files = shown(maximum), was = shown(current), "open-file limit raised"),
        Err(error) => {
            tracing::warn!(%error, open_files = shown(current), "the open-file limit could not be raised");
        }
    }
}
