//! A call on its way through the writer thread: the step that it asks for, then the answer that waits for the
//! commit. The verbs of the hot path travel as they are, all others in a box.

use tokio::sync::oneshot;

use super::ack::Ack;
use super::consume::Consume;
use super::poison::Poison;
use super::publish::Publish;
use super::state::WriterState;
use super::step::{Failure, Step};
use super::store::Fatal;
use crate::engine::batch::BatchSize;
use crate::error::{Error, Result};

/// One call of any verb.
pub enum Op {
    Publish(Call<Publish>),
    Consume(Call<Consume>),
    Ack(Call<Ack>),
    Other(Box<dyn Pending>),
}

impl Op {
    fn pending(&self) -> &dyn Pending {
        match self {
            Op::Publish(call) => call,
            Op::Consume(call) => call,
            Op::Ack(call) => call,
            Op::Other(call) => &**call,
        }
    }

    fn pending_mut(&mut self) -> &mut dyn Pending {
        match self {
            Op::Publish(call) => call,
            Op::Consume(call) => call,
            Op::Ack(call) => call,
            Op::Other(call) => &mut **call,
        }
    }

    /// See [`Step::MUST_LAST`].
    pub fn must_last(&self) -> bool {
        self.pending().must_last()
    }

    /// Runs the step and keeps its answer.
    pub fn run(&mut self, state: &mut WriterState) -> Result<(), Fatal> {
        self.pending_mut().run(state)
    }

    /// Sends the answer, or the poison's error if the store is poisoned by now.
    pub fn answer(&mut self, poison: &Poison) {
        self.pending_mut().answer(poison);
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Op(..)")
    }
}

impl BatchSize for Op {
    fn items(&self) -> usize {
        self.pending().items()
    }

    fn bytes(&self) -> usize {
        self.pending().bytes()
    }
}

/// What the writer does with a call, whatever its verb.
pub trait Pending: Send {
    fn items(&self) -> usize;
    fn bytes(&self) -> usize;
    fn must_last(&self) -> bool;
    fn run(&mut self, state: &mut WriterState) -> Result<(), Fatal>;
    fn answer(&mut self, poison: &Poison);
}

/// Where the answer goes.
type Reply<S> = oneshot::Sender<Result<<S as Step>::Reply>>;

/// One call of one verb.
pub enum Call<S: Step> {
    /// The step is taken out while it runs. The reply stays, so that a panic of the step drops it with the group,
    /// after the store was poisoned.
    Asked(Option<S>, Reply<S>),
    /// The step was run, and is not committed yet.
    Run(Result<S::Reply>, Reply<S>),
    Answered,
}

impl<S: Step> Call<S> {
    /// A call, and where its answer will be.
    pub fn new(step: S) -> (Call<S>, oneshot::Receiver<Result<S::Reply>>) {
        let (reply, answer) = oneshot::channel();
        (Call::Asked(Some(step), reply), answer)
    }
}

impl<S: Step> Pending for Call<S> {
    fn items(&self) -> usize {
        if let Call::Asked(Some(step), _) = self { step.items() } else { 0 }
    }

    fn bytes(&self) -> usize {
        if let Call::Asked(Some(step), _) = self { step.bytes() } else { 0 }
    }

    fn must_last(&self) -> bool {
        S::MUST_LAST
    }

    fn run(&mut self, state: &mut WriterState) -> Result<(), Fatal> {
        let Call::Asked(step, _) = self else { return Ok(()) };
        let Some(step) = step.take() else { return Ok(()) };
        let outcome = state.begin_step().map_err(Failure::Fatal).and_then(|now| step.run(state, now));
        let (answer, result) = match outcome {
            Ok(answer) => (Ok(answer), Ok(())),
            Err(Failure::Refused(e)) => (Err(e), Ok(())),
            Err(Failure::Fatal(fatal)) => (Err(Error::Poisoned(fatal.0.clone())), Err(fatal)),
        };
        if let Call::Asked(_, reply) = std::mem::replace(self, Call::Answered) {
            *self = Call::Run(answer, reply);
        }
        result
    }

    fn answer(&mut self, poison: &Poison) {
        let (answer, reply) = match std::mem::replace(self, Call::Answered) {
            Call::Run(answer, reply) => (answer, reply),
            // Not run, because the store was poisoned already.
            Call::Asked(_, reply) => (Err(Error::Closed), reply),
            Call::Answered => return,
        };
        // The caller may have left.
        let _ = reply.send(poison.error().map_or(answer, Err));
    }
}
