//! A verb as executed by the writer thread: one atomic step of bounded work, with its own type of reply. Each verb
//! implements [`Step`] in its own file. Knows no thread and no channel.

use super::state::WriterState;
use super::store::Fatal;
use crate::clock::Micros;
use crate::error::Error;

/// Maximum entries read or changed per step besides those it delivers, so that other calls get their turn. For more
/// work the caller runs further steps.
pub const STEP_ENTRIES: usize = 1000;
/// Maximum bytes of records rewritten per step.
pub const STEP_BYTES: usize = 8 << 20;

/// Why a step did nothing.
#[derive(Debug)]
pub enum StepError {
    /// The call is refused. Other calls of its group are not affected.
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

/// Result of a step.
pub type StepResult<T> = Result<T, StepError>;

/// Result of a step that may need to continue.
#[derive(Debug)]
pub enum Progress<T> {
    Done(T),
    /// No result yet: run the step again.
    Again,
}

/// One verb.
pub trait Step: Send + 'static {
    type Reply: Send + 'static;

    /// Whether a power cut must not undo the step after its reply, so that a store with [`Sync::Always`](super::Sync)
    /// syncs before the reply. An undone delivery or move is repeated: the job is delivered once more, as it may be
    /// at any time.
    const MUST_LAST: bool;

    /// Returns the number of jobs that it counts for in the bound of a group.
    fn items(&self) -> usize {
        1
    }

    /// Returns the bytes of bodies that it contains.
    fn bytes(&self) -> usize {
        0
    }

    /// Executes the step. A refused step has changed nothing.
    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Self::Reply>;
}
