//! Steps that depend on both stores: a publish with keys, an ack.

use tokio::time::timeout;

use super::patience::late;
use super::stores::TwoStores;
use crate::engine::{By, Detail, How, OnConflict, Once, OnceKind, Placed, Placing, Publication, Published};
use crate::error::Result;
use crate::job::{JobId, JobRef, JobState, Receipt};
use crate::name::Queue;

/// Returns whether something was stored. Then the publish succeeds even if the rest fails: after an error the caller
/// would publish again.
fn is_done(published: &Published) -> bool {
    matches!(published, Published::Done(_))
}

/// Result of looking up a publish in the source.
pub enum Before {
    /// It was executed before, or a job has its key.
    Answered(Published),
    /// It may be stored. These jobs are deleted afterwards.
    Goes(Vec<JobRef>),
}

impl TwoStores {
    /// Publishes to the target. Jobs in the source with the call's keys are looked up before, and deleted afterwards.
    pub async fn publish(&self, mut publication: Publication) -> Result<Published> {
        let go = match self.before_publish(&mut publication).await? {
            Before::Answered(published) => return Ok(published),
            Before::Goes(go) => go,
        };
        if go.is_empty() {
            return self.new.publish(publication).await;
        }
        // The target deletes the replaced job, if it has it, in the step that publishes. Both continue if the caller
        // leaves.
        let new = self.new.clone();
        self.then_ack_old(go, async move { new.publish(publication).await }, is_done).await
    }

    /// Looks up a publish in the source: whether it was executed before, and which jobs have its keys.
    pub async fn before_publish(&self, publication: &mut Publication) -> Result<Before> {
        let Publication { jobs, replaces, once } = publication;
        if let (Some(once), Some(first)) = (&*once, jobs.first())
            && let Some(done) = self.recall(&first.job.queue, once).await?
        {
            return Ok(Before::Answered(done));
        }
        let mut go: Vec<JobRef> = replaces.iter().cloned().collect();
        for (index, Placing { job, key, .. }) in jobs.iter_mut().enumerate() {
            let Some((key, on_conflict)) = key else { continue };
            let in_old = self.old.inspect(&job.queue, By::Key(key), Detail::All);
            let Some(holder) = self.ask_old(in_old).await? else { continue };
            let (id, due_at, state) = (holder.id, holder.due_at, holder.state);
            let holder = JobRef { queue: job.queue.clone(), id };
            if go.contains(&holder) || self.new_has(&job.queue, By::Key(key)).await? {
                continue;
            }
            let how = match on_conflict {
                OnConflict::Fail => return Ok(Before::Answered(Published::Conflict { index, id })),
                OnConflict::Keep => How::Duplicate,
                // A running job continues.
                OnConflict::Replace if state == Some(JobState::Running) => continue,
                OnConflict::Replace => How::Replaced(id),
                OnConflict::Elsewhere(_) => continue,
            };
            if how != How::Duplicate {
                go.push(holder);
            }
            *on_conflict = OnConflict::Elsewhere(Placed { id, due_at, how });
        }
        Ok(Before::Goes(go))
    }

    /// Returns the result of an earlier execution in either store. A source that is unavailable does not stop an
    /// occurrence of a schedule: it counts as not executed there.
    pub async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        if let Some(done) = self.new.recall(queue, once).await? {
            return Ok(Some(done));
        }
        match (self.ask_old(self.old.recall(queue, once)).await, once.kind) {
            (Err(_), OnceKind::Occurrence) => Ok(None),
            (done, _) => done,
        }
    }

    /// Acks in both stores: a job is in one of them.
    pub async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        // Either may have the job: an unavailable store must not keep the other from deleting it.
        let mut in_old = self.old.ack(queue, jobs);
        let of_old = timeout(self.state.patience(), &mut in_old).await;
        let all_are_new = !matches!(of_old, Ok(Ok(_))) && self.new_has_all(queue, jobs).await?;
        let of_new = self.new.ack(queue, jobs).await?;
        let of_old = match of_old {
            Ok(Ok(stale)) => stale,
            // A job is in one of the stores.
            _ if all_are_new => Vec::new(),
            Ok(Err(error)) => return Err(error),
            Err(_) if matches!(jobs, [(_, None)]) => in_old.await?,
            Err(_) => return Err(late()),
        };
        Ok(jobs.iter().map(|(id, _)| *id).filter(|id| of_old.contains(id) || of_new.contains(id)).collect())
    }
}
