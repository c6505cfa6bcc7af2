//! A call on its way through the writer thread: first its step, then the reply that waits for the commit. Boxed.

use tokio::sync::oneshot;

use super::poison::Poison;
use crate::engine::batch::BatchSize;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepError};
use crate::engine::disk::store::Fatal;
use crate::error::{Error, Result};

/// A call of any verb.
pub type Op = Box<dyn Pending>;

/// Operations of the writer on a call of any verb.
pub trait Pending: Send {
    /// Returns the number of jobs in the call.
    fn items(&self) -> usize;
    /// Returns the number of bytes of jobs in the call.
    fn bytes(&self) -> usize;
    /// See [`Step::MUST_LAST`].
    fn must_last(&self) -> bool;
    /// Runs the step and keeps its result.
    fn run(&mut self, state: &mut WriterState) -> Result<(), Fatal>;
    /// Sends the result, or the poison's error if the store has been poisoned meanwhile.
    fn answer(&mut self, poison: &Poison);
}

impl std::fmt::Debug for dyn Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Op(..)")
    }
}

impl BatchSize for Op {
    fn items(&self) -> usize {
        (**self).items()
    }

    fn bytes(&self) -> usize {
        (**self).bytes()
    }
}

/// Channel for the result.
type Reply<S> = oneshot::Sender<Result<<S as Step>::Reply>>;

/// A call of one verb.
pub enum StepCall<S: Step> {
    /// The step is taken out while it runs. The channel stays, so that if the step panics, it is dropped with the group
    /// after the store was poisoned.
    Asked(Option<S>, Reply<S>),
    /// The step has run and is not committed yet.
    Run(Result<S::Reply>, Reply<S>),
    Answered,
}

impl<S: Step> StepCall<S> {
    /// Creates a call, and the receiver of its result.
    pub fn new(step: S) -> (StepCall<S>, oneshot::Receiver<Result<S::Reply>>) {
        let (reply, answer) = oneshot::channel();
        (StepCall::Asked(Some(step), reply), answer)
    }
}

impl<S: Step> Pending for StepCall<S> {
    fn items(&self) -> usize {
        if let StepCall::Asked(Some(step), _) = self { step.items() } else { 0 }
    }

    fn bytes(&self) -> usize {
        if let StepCall::Asked(Some(step), _) = self { step.bytes() } else { 0 }
    }

    fn must_last(&self) -> bool {
        S::MUST_LAST
    }

    fn run(&mut self, state: &mut WriterState) -> Result<(), Fatal> {
        let StepCall::Asked(step, _) = self else { return Ok(()) };
        let Some(step) = step.take() else { return Ok(()) };
        let outcome = state.begin_step().map_err(StepError::Fatal).and_then(|now| step.run(state, now));
        let (answer, result) = match outcome {
            Ok(answer) => (Ok(answer), Ok(())),
            Err(StepError::Refused(e)) => (Err(e), Ok(())),
            Err(StepError::Fatal(fatal)) => (Err(Error::Poisoned(fatal.0.clone())), Err(fatal)),
        };
        if let StepCall::Asked(_, reply) = std::mem::replace(self, StepCall::Answered) {
            *self = StepCall::Run(answer, reply);
        }
        result
    }

    fn answer(&mut self, poison: &Poison) {
        let (answer, reply) = match std::mem::replace(self, StepCall::Answered) {
            StepCall::Run(answer, reply) => (answer, reply),
            // Not run, because the store was already poisoned.
            StepCall::Asked(_, reply) => (Err(Error::Closed), reply),
            StepCall::Answered => return,
        };
        // The caller may have gone.
        let _ = reply.send(poison.error().map_or(answer, Err));
    }
}
