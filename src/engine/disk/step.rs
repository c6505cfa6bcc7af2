//! What a verb is to the writer thread: one atomic step of bounded work, with a reply of its own type. Each
//! verb stands in a file of its own and implements [`Step`]. Knows no thread and no channel.

use super::state::WriterState;
use super::store::Fatal;
use crate::clock::Micros;
use crate::error::Error;

/// The most entries that one step reads or changes beyond what it hands out, so that other calls get their
/// turn. Where a method of the engine may need more, the caller asks again.
pub const STEP_ENTRIES: usize = 1000;
/// The most bytes of records that one step rewrites.
pub const STEP_BYTES: usize = 8 << 20;

/// Why a step did nothing.
#[derive(Debug)]
pub enum StepError {
    /// This call is refused. The others of its group are not concerned.
    Refused(Error),
    /// The store must be poisoned.
    Fatal(Fatal),
}

impl From<Error> for StepError {
    fn from(e: Error) -> StepError {
        StepError::Refused(e)
    }
}

impl From<Fatal> for StepError {
    fn from(e: Fatal) -> StepError {
        StepError::Fatal(e)
    }
}

/// What a step answers.
pub type StepResult<T> = Result<T, StepError>;

/// What a step of bounded work answers that may not have come to an end.
#[derive(Debug)]
pub enum Progress<T> {
    Done(T),
    /// There is nothing to show yet: ask again.
    Again,
}

/// One verb.
pub trait Step: Send + 'static {
    type Reply: Send + 'static;

    /// Whether a power cut must not take back what was answered, so that a store with
    /// [`Sync::Always`](super::Sync) syncs first. A hand-over or a move that is taken back is done again: the
    /// job comes once more, as it may at any time.
    const MUST_LAST: bool;

    /// How many jobs it counts for in the bound of a group.
    fn items(&self) -> usize {
        1
    }

    /// How many bytes of bodies it brings along.
    fn bytes(&self) -> usize {
        0
    }

    /// Does it. A step that is refused has changed nothing.
    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Self::Reply>;
}
