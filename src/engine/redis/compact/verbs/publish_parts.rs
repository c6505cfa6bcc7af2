//! A publish over several partitions, all of it or nothing: each part is kept where nobody sees it, the first one decides,
//! and then the others are shown. Who finds a part that waits for too long asks the first one what was decided: it is shown,
//! or dropped, as that one was.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::super::core::{CompactCore, Lane};
use super::super::partitions::Partition;
use super::super::steps::Usage;
use super::publish_call::{Answer, Stored, Tried, encode, outcome_bytes, read_answer};
use crate::clock::Micros;
use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::reply::{id_taken, read};
use crate::engine::redis::verbs::publish::unreadable;
use crate::engine::redis::verbs::schedules::split;
use crate::engine::{How, Placed, Publication, Published, together};
use crate::error::{Error, Result};
use crate::job::JobRef;
use crate::name::{Namespace, Queue};
use crate::random;

/// After how long others look what became of a part.
const WAITS: Duration = Duration::from_secs(5);
/// More than a publish adds: what it needs is told, and nothing is refused.
const ANY: Usage = [1 << 40; 3];

/// What goes to one partition.
#[derive(Debug)]
pub struct Part {
    pub partition: Partition,
    /// The first queue of the publish: what is safe to repeat is remembered for it.
    pub queue: Queue,
    /// The places of its jobs in the publish.
    pub of: Vec<usize>,
    pub publication: Publication,
    /// Jobs whose keys are taken over by jobs in other partitions. Those that do not run go.
    pub gone: Vec<JobRef>,
}

/// A part that is kept.
struct Kept {
    placed: Vec<Placed>,
    dues: Vec<Option<Micros>>,
    now: Micros,
    needs: Usage,
}

impl Part {
    pub fn new(partition: Partition, queue: Queue) -> Part {
        let publication = Publication { jobs: Vec::new(), replaces: None, once: None };
        Part { partition, queue, of: Vec::new(), publication, gone: Vec::new() }
    }
}

impl CompactCore {
    /// One attempt.
    pub async fn publish_in_parts(self: &Arc<Self>, mut parts: Vec<Part>) -> Result<Tried> {
        if let [one] = &mut parts[..]
            && one.gone.is_empty()
        {
            let publication = std::mem::replace(&mut one.publication, Publication::from(Vec::new()));
            return self.publish_here(one.partition, publication, true).await;
        }
        let jobs: usize = parts.iter().map(|part| part.of.len()).sum();
        self.common.observers.tell(|observer| observer.published_together(jobs));
        let id: [u8; 16] = random::bytes();
        // In a task, so that a caller that leaves does not leave parts that others have to look after.
        let core = self.clone();
        let task = self.tasks.spawn(async move { core.carry_parts(&id, parts).await });
        task.await.map_err(Error::away)?
    }

    async fn carry_parts(self: &Arc<Self>, id: &[u8; 16], parts: Vec<Part>) -> Result<Tried> {
        let Some((first, others)) = parts.split_first() else { return Err(unreadable().into()) };
        let counted = self.counted_in(&parts);
        let admit = counted.is_some().then_some(ANY);
        // The first one first: a part without it is dropped.
        let mut told = vec![self.prepare(id, first.partition, first, admit).await];
        if let Some(Ok(Ok(_))) = told.first() {
            let prepares = others.iter().map(|part| self.prepare(id, first.partition, part, admit));
            told.extend(together::all(prepares).await);
        }
        let mut kept = Vec::new();
        for (part, told) in parts.iter().zip(told) {
            match told {
                Ok(Ok(one)) => kept.push(one),
                refused => {
                    self.drop_parts(id, &parts).await;
                    return match refused? {
                        Err(answer) => self.answered(part, answer).await,
                        Ok(_) => Err(unreadable().into()), // taken above
                    };
                }
            }
        }
        let mut needs: Usage = [0; 3];
        kept.iter().for_each(|one| needs = std::array::from_fn(|n| needs[n] + one.needs[n]));
        if let Some(namespace) = &counted
            && let Err(error) = self.take_room(namespace, needs).await
        {
            self.drop_parts(id, &parts).await;
            return Err(error);
        }
        let mut all: Vec<Option<(Placed, Option<Micros>)>> =
            vec![None; parts.iter().map(|part| part.of.len()).sum()];
        for (part, one) in parts.iter().zip(&kept) {
            for ((n, placed), due) in part.of.iter().zip(&one.placed).zip(&one.dues) {
                all[*n] = Some((*placed, *due));
            }
        }
        let told = outcome_bytes(all.iter().flatten().copied());
        let decided = self.settle(id, first, "decide", &told).await;
        let is_done = matches!(decided, Ok(Answer::Done(..)));
        if let Some(namespace) = &counted
            && matches!(&decided, Ok(answer) if !matches!(answer, Answer::Done(..)))
        {
            self.give_room(namespace, needs).await;
        }
        if !is_done {
            return match decided {
                Ok(Answer::Gone) => {
                    self.drop_parts(id, others).await;
                    Err(Error::Overloaded)
                }
                Ok(answer) => {
                    self.drop_parts(id, others).await;
                    self.answered(first, answer).await
                }
                // It may have been decided: whoever pumps the others asks.
                Err(fault) => Err(fault.into()),
            };
        }
        let shown = together::all(others.iter().map(|part| self.settle(id, part, "show", &[]))).await;
        for (part, one) in parts.iter().zip(&kept) {
            for ((placing, placed), due) in part.publication.jobs.iter().zip(&one.placed).zip(&one.dues) {
                if placed.how != How::Duplicate {
                    self.tell_of(part.partition, &placing.job.queue, due.unwrap_or(0), one.now);
                }
            }
        }
        for told in &shown {
            match told {
                Ok(_) => {}
                // It is shown within some seconds.
                Err(fault) => {
                    tracing::debug!(pool = &*self.common.pool, "a part of a publish waits: {fault}")
                }
            }
        }
        if shown.iter().all(|told| matches!(told, Ok(Answer::Done(..) | Answer::Gone))) {
            self.forget_decision(id, first.partition);
        }
        let all: Vec<Placed> = all.into_iter().flatten().map(|(placed, _)| placed).collect();
        Ok(Tried::Published(Published::Done(all)))
    }

    /// The namespace with a quota that these are of.
    fn counted_in(&self, parts: &[Part]) -> Option<Namespace> {
        let queues = parts.iter().flat_map(|part| {
            let jobs = part.publication.jobs.iter().map(|of| &of.job.queue);
            jobs.chain(part.gone.iter().map(|job| &job.queue))
        });
        let mut namespaces = queues.map(|queue| &queue.namespace);
        namespaces.find(|namespace| self.is_counted(namespace)).cloned()
    }

    /// Keeps a part where nobody sees it.
    async fn prepare(
        self: &Arc<Self>,
        id: &[u8; 16],
        first: Partition,
        part: &Part,
        admit: Option<Usage>,
    ) -> Result<std::result::Result<Kept, Answer>> {
        let Part { partition, queue, publication, gone, .. } = part;
        let values: Vec<Stored> = encode(publication)?;
        let reply: Outcome<Value> = ask!(self.attempts(*partition, Lane::Other), |link| async {
            let connection = link.connection(Lane::Other).await?;
            self.stage(*partition, &link, &connection, publication, &values).await?;
            let args = split(&self.special_step(*partition, (publication, queue), gone, &values, admit)).1;
            let mut cmd = self.call(&self.scripts.prepare, *partition);
            cmd.arg(id).arg(first).arg(WAITS.as_millis() as u64).arg(args);
            link.run(link.lane(Lane::Other), &self.scripts.prepare, cmd).await
        });
        let (now, answer, dues) = read_answer(*partition, publication.jobs.len(), reply?)?;
        if !matches!(answer, Answer::Would(..)) {
            self.unstage(*partition, publication, &values).await;
        }
        Ok(match answer {
            Answer::Would(placed, needs) => Ok(Kept { placed, dues, now, needs }),
            answer => Err(answer),
        })
    }

    fn settle_call(&self, partition: Partition, id: &[u8], what: &str) -> Cmd {
        let mut cmd = self.call(&self.scripts.settle, partition);
        cmd.arg(id).arg(what);
        cmd
    }

    /// Shows a part that is kept.
    async fn settle(&self, id: &[u8; 16], part: &Part, what: &str, told: &[u8]) -> Outcome<Answer> {
        let mut cmd = self.settle_call(part.partition, id, what);
        cmd.arg(told);
        let reply: Value = self.ask(part.partition, Lane::Other, &self.scripts.settle, cmd).await?;
        Ok(read_answer(part.partition, part.publication.jobs.len(), reply)?.1)
    }

    /// Drops what is kept. What cannot be dropped now goes later.
    async fn drop_parts(&self, id: &[u8; 16], parts: &[Part]) {
        let drops = parts.iter().map(async |part| {
            let cmd = self.settle_call(part.partition, id, "drop");
            let _: Outcome<Value> = self.ask(part.partition, Lane::Other, &self.scripts.settle, cmd).await;
        });
        together::all(drops).await;
    }

    /// All parts are shown: nobody will ask any more.
    fn forget_decision(self: &Arc<Self>, id: &[u8; 16], first: Partition) {
        let (core, id) = (self.clone(), *id);
        self.tasks.spawn(async move {
            let cmd = core.settle_call(first, &id, "forget");
            let _: Outcome<Value> = core.ask(first, Lane::Other, &core.scripts.settle, cmd).await;
        });
    }

    /// A part waits there for too long: it is shown or dropped, as the first one was.
    pub fn settle_later(self: &Arc<Self>, partition: Partition, id: Vec<u8>) {
        let core = self.clone();
        self.tasks.spawn(async move {
            if let Err(fault) = core.settle_as_decided(partition, &id).await {
                tracing::debug!(pool = &*core.common.pool, "a part of a publish waits: {fault}");
            }
        });
    }

    async fn settle_as_decided(&self, partition: Partition, id: &[u8]) -> Outcome<()> {
        let ask = async |partition, what| -> Outcome<Vec<Value>> {
            let cmd = self.settle_call(partition, id, what);
            self.ask(partition, Lane::Other, &self.scripts.settle, cmd).await
        };
        let whose = ask(partition, "whose").await?;
        let [_, _, first] = &whose[..] else { return Ok(()) };
        let first: Partition = read::<String>(first)?.parse().map_err(|_| unreadable())?;
        if first == partition {
            // Nobody has decided in time, and nobody can any more.
            return ask(partition, "drop").await.map(drop);
        }
        let decided = ask(first, "ask").await?;
        match &*read::<String>(decided.get(1).ok_or_else(unreadable)?)? {
            "shown" => ask(partition, "show").await.map(drop),
            "gone" => ask(partition, "drop").await.map(drop),
            _ => Ok(()),
        }
    }

    /// What the refusal of a part says of the whole.
    async fn answered(&self, part: &Part, answer: Answer) -> Result<Tried> {
        match answer {
            Answer::Unchanged(Published::Conflict { index, id }) => {
                let index = part.of.get(index).copied().unwrap_or(index);
                Ok(Tried::Published(Published::Conflict { index, id }))
            }
            Answer::Unchanged(published) => Ok(Tried::Published(published)),
            Answer::Busy => Ok(Tried::Busy),
            Answer::Spread => {
                // Which of its queues is known from then on.
                for of in &part.publication.jobs {
                    self.is_spread(&of.job.queue).await?;
                }
                Ok(Tried::Busy)
            }
            Answer::Taken => Err(id_taken()),
            Answer::Ended => Err(Error::away("the values were stored too slowly")),
            _ => Err(unreadable().into()),
        }
    }
}
