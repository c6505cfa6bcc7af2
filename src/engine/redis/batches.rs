//! What shares script calls: how large such calls grow, how many wait, who takes them, and how each is
//! answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Mutex;

use super::connection::fault::Fault;
use super::in_time::SEND_WITHIN;
use crate::engine::batch::{BatchLimit, BatchSize, Call, Calls, Reply};
use crate::engine::{MAX_PUBLISH, Publication};
use crate::error::Result;
use crate::job::{JobRef, NewJob};
use crate::process::tasks::Tasks;

/// How many calls of one kind may wait to be gathered into a batch.
pub const MAX_WAITING: usize = 16_384;

/// How large a batch of publishes grows, so that one script call keeps the Redis busy for a few milliseconds. A call
/// with more bytes goes alone.
pub const PUBLISHES: BatchLimit = BatchLimit { items: MAX_PUBLISH, bytes: 1 << 20 };

/// A publication that shares a script call with others.
#[derive(Debug)]
pub struct Plain {
    pub publication: Publication,
    pub taken: Taken,
}

impl Plain {
    pub fn new(publication: Publication, taken: Taken) -> Plain {
        Plain { publication, taken }
    }
}

/// Whether a publication is on its way, or has gone to another partition: the first one to take it has it.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<AtomicBool>);

impl Taken {
    /// Takes it, unless it was.
    pub fn take(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }
}

impl BatchSize for Plain {
    fn items(&self) -> usize {
        self.publication.jobs.len()
    }

    fn bytes(&self) -> usize {
        self.publication.jobs.iter().map(|placing| bytes_of(&placing.job)).sum()
    }
}

/// What a job counts in a batch.
pub fn bytes_of(job: &NewJob) -> usize {
    job.body.len() + 256
}

/// How many acks go together.
pub const ACKS: BatchLimit = BatchLimit { items: 64, bytes: usize::MAX };

impl BatchSize for JobRef {
    fn items(&self) -> usize {
        1
    }
}

/// Says why a call that waits for it cannot be sent any more.
pub trait RefusesLate {
    fn too_late(&self) -> Fault;
}

/// Starts `count` tasks that take batches, each one after the other, and have `carry` answer each call of them, with this
/// core; it is told which task it works for. Calls that have waited for [`SEND_WITHIN`] are answered with an error instead.
/// Once `tasks` are told to end no more calls are taken; these end when those that waited are answered.
pub fn serve<Req, Rep, Core, Carried>(
    calls: Calls<Req, Rep>,
    tasks: &Tasks,
    (name, count): (&str, usize),
    core: &Arc<Core>,
    carry: impl Fn(Arc<Core>, usize, Vec<Call<Req, Rep>>) -> Carried + Copy + Send + 'static,
) where
    Req: BatchSize + Send + 'static,
    Rep: Send + 'static,
    Core: RefusesLate + Send + Sync + 'static,
    Carried: Future<Output = ()> + Send,
{
    let calls = Arc::new(Mutex::new(calls));
    for own in 0..count {
        let (calls, core, closing) = (calls.clone(), core.clone(), tasks.stopping().clone());
        tasks.spawn_essential(name, async move {
            let mut closed = false;
            loop {
                // Cancel-safe, as both awaits are.
                let next = async { calls.lock().await.next().await };
                let batch = tokio::select! {
                    biased;
                    () = closing.cancelled(), if !closed => {
                        calls.lock().await.close();
                        closed = true;
                        continue;
                    }
                    batch = next => batch,
                };
                let Some(batch) = batch else { return };
                let batch = refuse_late(batch, &*core);
                if !batch.is_empty() {
                    carry(core.clone(), own, batch).await;
                }
            }
        });
    }
}

/// Answers calls that have waited too long to be sent, and returns the others.
fn refuse_late<Req, Rep>(batch: Vec<Call<Req, Rep>>, core: &impl RefusesLate) -> Vec<Call<Req, Rep>> {
    let (late, in_time): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|call| call.arrived.elapsed() >= SEND_WITHIN);
    if !late.is_empty() {
        let replies = late.into_iter().map(|call| call.split().1).collect();
        answer_each(replies, Err(core.too_late().into()));
    }
    in_time
}

/// Arrival of a batch: that of its oldest call, so that no call begins after its caller was answered.
pub fn arrival_of<Req, Rep>(batch: &[Call<Req, Rep>]) -> Instant {
    batch.iter().map(|call| call.arrived).min().unwrap_or_else(Instant::now)
}

/// Gives each caller its answer, or all of them the error.
pub fn answer_each<Rep>(replies: Vec<Reply<Rep>>, answers: Result<Vec<Result<Rep>>>) {
    // A caller that has left needs no answer.
    match answers {
        Ok(answers) => replies.into_iter().zip(answers).for_each(|(reply, answer)| _ = reply.send(answer)),
        Err(error) => replies.into_iter().for_each(|reply| _ = reply.send(Err(error.clone()))),
    }
}
