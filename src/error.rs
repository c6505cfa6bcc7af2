//! Errors of stores. http/answer/error.rs maps them to status codes. Bad input is rejected at the edge and not
//! represented here.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::name::Queue;

/// Source of an error. Shared, since one failed batch fails many calls.
pub type Source = Arc<dyn StdError + Send + Sync>;

/// Text of [`Error::Locked`].
pub const LOCKED: &str = "the secret and the values of headers are encrypted with a key that this server does not \
                          have: see SecretKeyFile";

/// Why a part of a store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub enum Unreachable {
    /// Its node does not respond, and no other node has taken over yet.
    Away,
    /// It is being moved to another node.
    Moving,
    /// Two nodes have jobs of it: a node died during a move.
    Split,
    /// Fewer of its node's replicas are in sync than the settings require.
    FewReplicas,
}

impl Unreachable {
    /// Returns the message for clients.
    pub const fn text(self) -> &'static str {
        match self {
            Unreachable::Away => "this part of the pool cannot be reached",
            Unreachable::Moving => "this part of the pool is being moved",
            Unreachable::Split => "this part of the pool is on two nodes",
            Unreachable::FewReplicas => "too few replicas",
        }
    }
}

/// Why a store call failed. Cheap to clone. Its text is one line without secrets.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store did not respond in time. The call may or may not have taken effect.
    #[error("the store is unavailable: {0}")]
    Away(#[source] Source),
    /// The store refused the call: out of memory, read-only, wrong version. No effect.
    #[error("the store refused: {0}")]
    Refused(#[source] Source),
    /// Stored data is corrupt, or not readable by this version.
    #[error("stored data is unreadable: {0}")]
    Corrupt(#[source] Source),
    /// A write or sync failed earlier, so the store fails every call. No effect.
    #[error("the store has failed and accepts no more requests: {0}")]
    Poisoned(String),
    /// The disk is almost full, so the store accepts no new data. No effect. Stored jobs can still be consumed and
    /// acked, which frees space.
    #[error("the disk is almost full: {free} bytes are free, and {least} are required")]
    Full { free: u64, least: u64 },
    /// Stored data is encrypted with a key that this server does not have. No effect.
    #[error("{LOCKED}")]
    Locked,
    /// The write would exceed the namespace's quota of jobs, bytes or queues. No effect.
    #[error("the quota of the namespace is used up: {0}")]
    OverQuota(&'static str),
    /// The limit on paused queues of the namespace is reached. No effect.
    #[error("too many queues of the namespace are paused (at most {0})")]
    TooManyPaused(usize),
    /// The part of the store needed by the call is unavailable. No effect.
    #[error("{0}")]
    Unreachable(Unreachable),
    /// A batch must be stored as a whole or not at all, and its keys belong to several partitions of a spread queue. No
    /// effect.
    #[error("the keys of the jobs are in several partitions of the queue")]
    SeveralPartitions,
    /// A consume found no job in the available parts of its queues, and others are unavailable, so it is unknown
    /// whether they are empty. No effect.
    #[error("{0}")]
    Unseen(Unreachable, Vec<Queue>),
    /// Too many requests are waiting for the store. No effect.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// The store was closed for shutdown. No effect.
    #[error("the store is closed")]
    Closed,
    /// A call with several steps failed after processing `done` jobs.
    #[error("after {done} jobs: {why}")]
    Partly { done: u64, why: Arc<Error> },
}

/// Source of an [`Error::Refused`] of a store that is out of memory.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct OutOfMemory(Box<dyn StdError + Send + Sync>);

impl Error {
    /// Creates [`Error::Away`] from `source`.
    pub fn away(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Away(source.into().into())
    }

    /// Adds that the call had processed `done` jobs before.
    pub fn after(self, done: u64) -> Error {
        match self {
            why if done == 0 => why,
            Error::Partly { done: before, why } => Error::Partly { done: before + done, why },
            why => Error::Partly { done, why: Arc::new(why) },
        }
    }

    /// Creates [`Error::Refused`] from `source`.
    pub fn refused(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Refused(source.into().into())
    }

    /// Creates an [`Error::Refused`] of a store that is out of memory.
    pub fn out_of_memory(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::refused(OutOfMemory(source.into()))
    }

    /// Returns whether the store is out of memory. No effect; stored jobs can still be consumed and acked.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::Refused(source) if source.is::<OutOfMemory>())
    }

    /// Creates [`Error::Corrupt`] from `source`.
    pub fn corrupt(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Corrupt(source.into().into())
    }
}

/// Result of engines and admin stores.
pub type Result<T, E = Error> = std::result::Result<T, E>;
