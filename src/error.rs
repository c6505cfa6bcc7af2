//! What can go wrong behind the edge, in the store's own terms. No HTTP here: http/answer/error.rs maps these to
//! statuses. Bad input is not among them: it never gets past the edge.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::name::Queue;

/// The source that an error keeps. Shared, since one failed batch answers many calls.
pub type Source = Arc<dyn StdError + Send + Sync>;

/// The text of [`Error::Locked`].
pub const LOCKED: &str = "the secret and the values of headers are encrypted with a key that this server does not \
                          have: see SecretKeyFile";

/// Why a part of a store cannot be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub enum Unreachable {
    /// Its node does not answer, and no other node has taken its place yet.
    Away,
    /// It is being moved to another node.
    Moving,
    /// Two nodes have jobs of it: a node died while it was moved.
    Split,
    /// Fewer of its node's replicas are in step than must have what is asked.
    FewReplicas,
}

impl Unreachable {
    /// What callers are told.
    pub const fn text(self) -> &'static str {
        match self {
            Unreachable::Away => "this part of the pool cannot be reached",
            Unreachable::Moving => "this part of the pool is being moved",
            Unreachable::Split => "this part of the pool is on two nodes",
            Unreachable::FewReplicas => "too few replicas",
        }
    }
}

/// Why a store did not do what it was asked. Cheap to clone. Its text is one line without secrets.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store did not answer, or not in time. What was asked may or may not have happened.
    #[error("the store is away: {0}")]
    Away(#[source] Source),
    /// The store answered, and refused: out of memory, read-only, wrong version. Nothing happened.
    #[error("the store refused: {0}")]
    Refused(#[source] Source),
    /// What the store holds is not what was written, or not what this version can read.
    #[error("the store holds what cannot be read: {0}")]
    Corrupt(#[source] Source),
    /// A write or a sync failed earlier, so the store no longer answers for anything. Nothing happened.
    #[error("the store has failed and takes no more requests: {0}")]
    Poisoned(String),
    /// The disk is almost full, so the store takes nothing new. Nothing happened. What is stored can be handed out
    /// and acked, which makes room.
    #[error("the disk is almost full: {free} bytes are free, and this needs {least} free bytes")]
    Full { free: u64, least: u64 },
    /// What is stored is encrypted with a key that this server does not have. Nothing happened.
    #[error("{LOCKED}")]
    Locked,
    /// What would be stored is more than the quota of its namespace leaves: of jobs, bytes or queues. Nothing happened.
    #[error("the quota of the namespace is used up: {0}")]
    OverQuota(&'static str),
    /// As many queues of the namespace are paused as may be. Nothing happened.
    #[error("too many queues of the namespace are paused (at most {0})")]
    TooManyPaused(usize),
    /// The part of the store that the call needs cannot be used now, while others go on. Nothing happened.
    #[error("{0}")]
    Unreachable(Unreachable),
    /// A batch must be stored as a whole or not at all, and its keys belong to several partitions of a spread queue. Nothing
    /// happened.
    #[error("the keys of the jobs are in several partitions of the queue")]
    SeveralPartitions,
    /// A consume has found no job in the parts of its queue that can be used, and others cannot: nobody can say that there is
    /// none in these. Nothing happened.
    #[error("{0}")]
    Unseen(Unreachable, Vec<Queue>),
    /// Too many requests wait for the store already. Nothing happened.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// The store was closed: the server is going down. Nothing happened.
    #[error("the store is closed")]
    Closed,
    /// A call of several steps has ended early: so many jobs were dealt with before.
    #[error("after {done} jobs: {why}")]
    Partly { done: u64, why: Arc<Error> },
}

/// The source of an [`Error::Refused`] that says that the store has no memory left.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct OutOfMemory(Box<dyn StdError + Send + Sync>);

impl Error {
    /// The store is away, because of `source`.
    pub fn away(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Away(source.into().into())
    }

    /// The same, of a call that had dealt with so many jobs before.
    pub fn after(self, done: u64) -> Error {
        match self {
            why if done == 0 => why,
            Error::Partly { done: before, why } => Error::Partly { done: before + done, why },
            why => Error::Partly { done, why: Arc::new(why) },
        }
    }

    /// The store refused, because of `source`.
    pub fn refused(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Refused(source.into().into())
    }

    /// The store refused because it has no memory left, as `source` says.
    pub fn out_of_memory(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::refused(OutOfMemory(source.into()))
    }

    /// Whether the store has no memory left. Nothing happened, and what is stored can be handed out and acked.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::Refused(source) if source.is::<OutOfMemory>())
    }

    /// The store holds what cannot be read, because of `source`.
    pub fn corrupt(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Corrupt(source.into().into())
    }
}

/// What engines and the admin store answer.
pub type Result<T, E = Error> = std::result::Result<T, E>;
