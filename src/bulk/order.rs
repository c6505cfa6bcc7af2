//! Description of a bulk action.

use crate::engine::Revival;
use crate::job::JobState;
use crate::name::{PoolName, Queue};
use crate::search::Filter;

/// What to do with the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Respawn dead jobs.
    Respawn(Revival),
    /// Delete dead jobs.
    Delete,
    /// Make delayed jobs due now.
    Promote,
    /// Delete jobs in this state.
    Cancel(JobState),
}

impl Action {
    /// Returns the state of the jobs that it applies to.
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

/// A requested bulk action.
#[derive(Clone, Debug)]
pub struct Order {
    pub pool: PoolName,
    pub queue: Queue,
    pub action: Action,
    pub filter: Filter,
    /// Name of the operator.
    pub by: String,
}
