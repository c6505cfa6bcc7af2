//! The keyspaces of the store and their properties.

/// A keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    Meta,
    Jobs,
    Delayed,
    Running,
    Ready,
    Dead,
    Queues,
    Quotas,
    Quarantine,
    Keys,
    Once,
    Settings,
}

/// Number of keyspaces.
pub const SPACES: usize = 12;
/// One number per keyspace.
pub type PerSpace = [u64; SPACES];

impl Space {
    /// All keyspaces, with their names on disk and the memtable size that triggers a flush. Small enough that a busy
    /// server stays near two hundred megabytes; large enough that most short-lived entries are deleted before a flush,
    /// and flushes are rare. With quotas, every group writes to `quotas`; a flush keeps one entry per quota.
    pub const ALL: [(Space, &'static str, u64); SPACES] = [
        (Space::Meta, "meta", 4 * MIB),
        (Space::Jobs, "jobs", 32 * MIB),
        (Space::Delayed, "delayed", 32 * MIB),
        (Space::Running, "running", 16 * MIB),
        (Space::Ready, "ready", 32 * MIB),
        (Space::Dead, "dead", 4 * MIB),
        (Space::Queues, "queues", 4 * MIB),
        (Space::Quotas, "quotas", 16 * MIB),
        (Space::Quarantine, "quarantine", MIB),
        (Space::Keys, "keys", 8 * MIB),
        (Space::Once, "once", 8 * MIB),
        (Space::Settings, "settings", 16 * MIB),
    ];

    /// Returns the name on disk.
    pub fn name(self) -> &'static str {
        Space::ALL[self as usize].1
    }

    /// Returns whether its keys are list entries: each key is written once and then deleted.
    pub fn is_list(self) -> bool {
        matches!(self, Space::Delayed | Space::Running | Space::Ready | Space::Dead)
    }

    /// Returns the size of its memtable that triggers a flush.
    pub fn memtable(self) -> u64 {
        Space::ALL[self as usize].2
    }
}

const MIB: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keyspace_is_found_by_its_place_in_the_list() {
        for (at, (space, name, _)) in Space::ALL.into_iter().enumerate() {
            assert_eq!(space as usize, at, "the place of keyspace {name}");
        }
    }
}
