//! The limit of open files. Each connection uses one, and so does each open file of a store; a store that cannot open
//! its files fails permanently. So connections are limited to what remains after the stores' share.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Reserved for the process itself: logs, listeners, the runtime, directory reads.
const PROCESS: u64 = 32;
/// Reserved for a Redis pool, or the Redis of tokens and limits: its connections, including those to Sentinels, and
/// some being replaced.
const REDIS: u64 = 32;
/// Reserved for a disk pool, besides the tables it keeps open: log files, and the tables read and written by a
/// compaction.
const DISK: u64 = 64;
/// Tables that a disk pool keeps open; at most a quarter of the limit for all pools together.
const TABLES: u64 = 900;
const FEWEST_TABLES: u64 = 10;
/// Minimum number of connections for a useful server.
const FEWEST: u64 = 16;

/// Division of the open-file limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// Files needed by the stores and the process itself.
    pub reserved: u64,
    /// Maximum number of tables that each disk pool keeps open.
    pub tables: usize,
    /// Maximum number of connections of the public port.
    pub connections: usize,
    /// Maximum number of connections of the admin port.
    pub admin_connections: usize,
    /// Maximum number of connections used by push.
    pub push_connections: usize,
}

impl OpenFiles {
    /// Raises the process's limit to the hard limit, divides it and logs the result. The error says how high the limit
    /// must be.
    pub fn divide(
        disks: usize,
        redises: usize,
        most: usize,
        most_admin: usize,
        most_push: usize,
    ) -> Result<OpenFiles, String> {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = current != maximum && {
            let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
            if let Err(error) = &raised {
                tracing::warn!(%error, "the open-file limit could not be raised");
            }
            raised.is_ok()
        };
        let limit = if raised { maximum } else { current };
        let files = OpenFiles::of(limit, (disks, redises), (most, most_admin, most_push))?;
        let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |l| l.to_string());
        tracing::info!(
            open_files = shown(limit),
            was = raised.then(|| shown(current)),
            reserved = files.reserved,
            connections = files.connections,
            admin_connections = files.admin_connections,
            push_connections = files.push_connections,
            "open-file limit"
        );
        Ok(files)
    }

    /// Divides `limit` between the stores and the connections of both ports and push, whose maximum numbers are given.
    fn of(
        limit: Option<u64>,
        (disks, redises): (usize, usize),
        (most, most_admin, most_push): (usize, usize, usize),
    ) -> Result<OpenFiles, String> {
        let (disks, redises) = (disks as u64, redises as u64);
        let tables = limit.map_or(TABLES, |limit| (limit / 4 / disks.max(1)).clamp(FEWEST_TABLES, TABLES));
        let reserved = PROCESS + redises * REDIS + disks * (DISK + tables);
        let tables = tables as usize;
        let Some(limit) = limit else {
            return Ok(OpenFiles {
                reserved,
                tables,
                connections: most,
                admin_connections: most_admin,
                push_connections: most_push,
            });
        };
        let left = limit.saturating_sub(reserved);
        if left < FEWEST {
            let needed = PROCESS + redises * REDIS + disks * (DISK + FEWEST_TABLES) + FEWEST;
            // With this limit, a quarter of it exceeds the minimum number of tables.
            let needed = if disks > 0 { needed + needed / 2 } else { needed };
            return Err(format!(
                "the open-file limit is {limit}, and the stores need {reserved} of them: raise it (`ulimit -n`) to {needed} or more"
            ));
        }
        let admin = (left / 8).min(most_admin as u64);
        let push = (left / 8).min(most_push as u64);
        let connections = (left - admin - push).min(most as u64) as usize;
        let (admin_connections, push_connections) = (admin as usize, push as usize);
        Ok(OpenFiles { reserved, tables, connections, admin_connections, push_connections })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_and_connections_stay_within_the_limit() {
        for limit in [200, 256, 1024, 4096, 20_000, 1 << 20] {
            for stores in [(1, 0), (0, 2), (1, 1), (2, 2)] {
                let Ok(files) = OpenFiles::of(Some(limit), stores, (200_000, 1024, 4096)) else {
                    assert!(limit < 400, "{limit} open files are enough for {stores:?}");
                    continue;
                };
                let connections = files.connections + files.admin_connections + files.push_connections;
                let used = files.reserved + connections as u64;
                assert!(used <= limit, "{files:?} of {limit}");
                assert!(files.admin_connections.min(files.push_connections) >= 2, "{files:?} of {limit}");
                assert!(
                    used == limit || files.connections == 200_000,
                    "{files:?} of {limit} leaves some unused"
                );
            }
        }
        let files = OpenFiles::of(None, (1, 1), (200_000, 1024, 4096)).expect("there is no limit");
        assert_eq!((files.connections, files.admin_connections, files.tables), (200_000, 1024, 900));
        assert_eq!(files.push_connections, 4096);
    }

    #[test]
    fn a_limit_that_is_too_low_is_said_and_the_one_that_is_named_is_enough() {
        for stores in [(1, 0), (0, 2), (3, 3)] {
            let error = OpenFiles::of(Some(64), stores, (100, 100, 100)).expect_err("64 are not enough");
            let needed = error.split(" to ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
            let files = OpenFiles::of(needed, stores, (100, 100, 100));
            assert!(needed.is_some() && files.is_ok(), "{stores:?}: {error}, and then {files:?}");
        }
    }
}
