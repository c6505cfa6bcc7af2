//! What must hold for a change, and why one was not done.

use crate::error::Error;

/// How often a change is tried again that met another one.
pub const TRIES: usize = 16;
/// What must hold for a change to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub matches: Option<Matches>,
    /// This is in force.
    pub revision: Option<u64>,
    /// There is no such schedule.
    pub is_new: bool,
}

/// Which revision must be in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matches {
    Any,
    /// One of these.
    These(Vec<u64>),
}

/// Why a change was not done.
#[derive(Debug)]
pub enum NotChanged {
    /// The condition does not hold: the revision that is in force.
    Condition(Option<u64>),
    NotFound,
    TooMany,
    /// None may be made at all.
    Forbidden,
    Store(Error),
}

impl From<Error> for NotChanged {
    fn from(error: Error) -> NotChanged {
        NotChanged::Store(error)
    }
}

impl Condition {
    /// Whether it holds of what is in force.
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
