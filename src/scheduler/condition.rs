//! Preconditions of a change, and the reasons for rejecting it.

use crate::error::Error;

/// Maximum number of attempts of a change that conflicts with others.
pub const TRIES: usize = 16;

/// Preconditions of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub matches: Option<Matches>,
    /// Required current revision.
    pub revision: Option<u64>,
    /// The schedule must not exist.
    pub is_new: bool,
}

/// Accepted current revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matches {
    Any,
    /// Any of these.
    These(Vec<u64>),
}

/// Reason for rejecting a change.
#[derive(Debug)]
pub enum NotChanged {
    /// A precondition failed. Contains the current revision.
    Condition(Option<u64>),
    NotFound,
    TooMany,
    /// The configuration permits no schedules.
    Forbidden,
    Store(Error),
}

impl From<Error> for NotChanged {
    fn from(error: Error) -> NotChanged {
        NotChanged::Store(error)
    }
}

impl Condition {
    /// Checks the preconditions against the current revision.
    pub fn check(&self, revision: Option<u64>) -> Result<(), NotChanged> {
        let matches = match &self.matches {
            None => true,
            Some(Matches::Any) => revision.is_some(),
            Some(Matches::These(told)) => revision.is_some_and(|revision| told.contains(&revision)),
        };
        let matches = matches && (self.revision.is_none() || self.revision == revision);
        if matches && !(self.is_new && revision.is_some()) {
            Ok(())
        } else {
            Err(NotChanged::Condition(revision))
        }
    }
}
