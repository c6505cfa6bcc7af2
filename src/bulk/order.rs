//! What somebody wants done to the jobs of a queue.

use crate::engine::Revival;
use crate::job::JobState;
use crate::name::{PoolName, Queue};
use crate::search::Filter;

/// What is done to the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Dead ones live again.
    Respawn(Revival),
    /// Dead ones are forgotten.
    Delete,
    /// Delayed ones are due now.
    Promote,
    /// Those in this state are forgotten.
    Cancel(JobState),
}

impl Action {
    /// In which state the jobs are that it is for.
    pub fn state(self) -> JobState {
        match self {
            Action::Respawn(_) | Action::Delete => JobState::Dead,
            Action::Promote => JobState::Delayed,
            Action::Cancel(state) => state,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Action::Respawn(_) => "respawn",
            Action::Delete => "delete",
            Action::Promote => "promote",
            Action::Cancel(_) => "cancel",
        }
    }
}

/// What somebody wants done.
#[derive(Clone, Debug)]
pub struct Order {
    pub pool: PoolName,
    pub queue: Queue,
    pub action: Action,
    pub filter: Filter,
    /// Who wants it.
    pub by: String,
}
