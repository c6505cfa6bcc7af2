//! Batches of calls that share a script call: their bounds, the tasks that execute them, and the replies.

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

/// Maximum number of calls of one kind that wait to join a batch.
pub const MAX_WAITING: usize = 16_384;

/// Maximum size of a batch of publishes, which bounds the time that one script call blocks Redis to a few milliseconds.
/// A larger publish runs alone.
pub const PUBLISHES: BatchLimit = BatchLimit { items: MAX_PUBLISH, bytes: 1 << 20 };

/// A publish that shares a script call with others.
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

/// Whether a publish has been sent, or moved to another partition: the first taker gets it.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<AtomicBool>);

impl Taken {
    /// Takes the publish; false if it is already taken.
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

/// Returns the size of a job in a batch.
pub fn bytes_of(job: &NewJob) -> usize {
    job.body.len() + 256
}

/// Maximum size of a batch of acks.
pub const ACKS: BatchLimit = BatchLimit { items: 64, bytes: usize::MAX };

impl BatchSize for JobRef {
    fn items(&self) -> usize {
        1
    }
}

/// Returns the error of a call that has waited too long to be sent.
pub trait RefusesLate {
    fn too_late(&self) -> Fault;
}

/// Starts `count` tasks that execute batches, each one batch at a time, with `carry`, which gets this core and the
/// task's number. Calls that have waited for [`SEND_WITHIN`] get an error instead. When `tasks` are stopped, they
/// accept no more calls and end once all waiting calls have a reply.
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

/// Replies with an error to calls that have waited too long to be sent, and returns the others.
fn refuse_late<Req, Rep>(batch: Vec<Call<Req, Rep>>, core: &impl RefusesLate) -> Vec<Call<Req, Rep>> {
    let (late, in_time): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|call| call.arrived.elapsed() >= SEND_WITHIN);
    if !late.is_empty() {
        let replies = late.into_iter().map(|call| call.split().1).collect();
        answer_each(replies, Err(core.too_late().into()));
    }
    in_time
}

/// Returns the arrival of a batch's oldest call, so that no call begins after its caller got an error.
pub fn arrival_of<Req, Rep>(batch: &[Call<Req, Rep>]) -> Instant {
    batch.iter().map(|call| call.arrived).min().unwrap_or_else(Instant::now)
}

/// Sends each caller its result, or all of them the error.
pub fn answer_each<Rep>(replies: Vec<Reply<Rep>>, answers: Result<Vec<Result<Rep>>>) {
    // A caller may have dropped its receiver.
    match answers {
        Ok(answers) => replies.into_iter().zip(answers).for_each(|(reply, answer)| _ = reply.send(answer)),
        Err(error) => replies.into_iter().for_each(|reply| _ = reply.send(Err(error.clone()))),
    }
}
