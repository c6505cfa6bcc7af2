//! Publish to queues that are spread. What has neither key nor anything else that decides where it lies goes where it is
//! whose turn it is, with what others publish meanwhile; a partition that cannot take it is passed over. Of everything else
//! it is decided here which part of it goes where (`publish_parts` carries it there).

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use tokio::time::{Instant, sleep, timeout};

use super::super::callers::{Movable, Taken};
use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::publish_call::{BUSY, LOOK, Tried};
use super::publish_parts::Part;
use super::spread::SLOW;
use crate::engine::redis::reply::id_taken;
use crate::engine::redis::verbs::publish::{check, is_plain};
use crate::engine::{Beside, How, NewId, OnConflict, Placed, Placing, Publication, Published};
use crate::error::{Error, Result, Unreachable};
use crate::job::{JobId, JobRef, JobState, JobView, NewJob};
use crate::name::{JobKey, Queue};

/// What a publish comes to.
enum Plan {
    Answered(Published),
    Parts(Vec<Part>),
}

impl CompactCore {
    /// Whether any queue of a publication is spread. Those that are to be are spread before.
    pub async fn is_of_spread(&self, publication: &Publication) -> Result<bool> {
        let queues = publication.jobs.iter().map(|placing| &placing.job.queue);
        let queues = queues.chain(publication.replaces.as_ref().map(|old| &old.queue));
        let (mut last, mut any): (Option<&Queue>, bool) = (None, false);
        for queue in queues {
            if last.replace(queue) == Some(queue) {
                continue;
            }
            if self.spreading.wants(queue) {
                self.spread(queue).await?;
            }
            any |= self.spreading.get(queue).is_some();
        }
        if let Some(old) = &publication.replaces
            && !any
        {
            // It may lie elsewhere: another server has spread the queue then.
            any = self.partition_named(&old.queue, &old.id).await? != self.partition_of(&old.queue);
        }
        Ok(any)
    }

    /// Stores what a publication has, all of it or nothing.
    pub async fn publish_spread(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        let Publication { jobs, replaces, once } = &publication;
        if replaces.is_none()
            && once.is_none()
            && jobs.iter().all(|of| of.key.is_none())
            && let Some(partition) = self.same_partition(&publication)
        {
            return self.publish_by_turns(partition, publication).await;
        }
        Box::pin(self.publish_with_parts(publication)).await
    }

    /// The partition that all ids of a publication name, if its queues are spread.
    fn same_partition(&self, publication: &Publication) -> Option<Partition> {
        let mut all = publication.jobs.iter().map(|Placing { job, .. }| {
            let is_spread = self.spreading.get(&job.queue).is_some();
            is_spread.then(|| self.partitions.of_id(&job.id))
        });
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }

    /// To this partition; to another one when it cannot take it. The last one is waited for.
    async fn publish_by_turns(
        self: &Arc<Self>,
        partition: Partition,
        mut publication: Publication,
    ) -> Result<Published> {
        let counted = publication.jobs.iter().any(|of| self.is_counted(&of.job.queue.namespace));
        let shares = is_plain(&publication) && !counted;
        let mut partition = partition;
        let mut left = self.partitions.count();
        loop {
            left -= 1;
            // Boxed: they would be part of the future of every plain one.
            if left == 0 && shares {
                return Box::pin(self.publish_plain(partition, publication)).await;
            }
            if left == 0 || self.can_take(partition) {
                let tried = match shares {
                    true => match self.publish_movable(partition, publication.clone()).await {
                        Err(Error::Unreachable(why)) => Tried::Elsewhere(why),
                        published => Tried::Published(published?),
                    },
                    false => Box::pin(self.publish_free(partition, publication.clone(), left == 0)).await?,
                };
                match tried {
                    Tried::Published(published) => return Ok(published),
                    Tried::Busy => return Err(Error::Overloaded),
                    Tried::Elsewhere(_) => {}
                }
            }
            let Some(next) = self.spreading.pass(|partition| self.can_take(partition)) else {
                // None can take it now: this one is waited for.
                left = 1;
                continue;
            };
            partition = next;
            for Placing { job, .. } in &mut publication.jobs {
                job.id = self.new_id(partition, job);
            }
        }
    }

    /// Together with what others publish there. One that waits behind batches to which a node owes an answer for long goes
    /// elsewhere: nothing was done.
    async fn publish_movable(
        self: &Arc<Self>,
        partition: Partition,
        publication: Publication,
    ) -> Result<Published> {
        self.try_link(partition, Lane::Publish(0)).map_err(Error::Unreachable)?;
        let begin = || self.publisher(partition, true, Movable::take_all);
        let taken = Taken::default();
        let movable = Movable::new(publication, taken.clone());
        let mut call = pin!(self.spread_publishes.call(partition, movable, begin));
        loop {
            match timeout(SLOW, &mut call).await {
                Ok(published) => return published,
                Err(_) if self.can_take(partition) => {}
                Err(_) if taken.take() => return Err(Error::Unreachable(Unreachable::Away)),
                // It is on its way.
                Err(_) => return call.await,
            }
        }
    }

    /// As a call by itself, if the partition can be used now, or once it can be.
    async fn publish_free(
        self: &Arc<Self>,
        partition: Partition,
        publication: Publication,
        waits: bool,
    ) -> Result<Tried> {
        let _under_way = self.takes(partition, publication.jobs.len());
        self.publish_here(partition, publication, waits).await
    }

    /// An id for a job that goes to another partition than it was made for.
    fn new_id(&self, partition: Partition, job: &NewJob) -> JobId {
        let of = NewId {
            queue: &job.queue,
            delay: job.delay,
            bytes: job.body.len(),
            versioned: job.id.is_versioned(),
            beside: Beside::Nobody,
        };
        self.buckets.make_id(self.now_in(partition), partition, &of)
    }

    async fn publish_with_parts(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        if let Err(error) = check(&publication) {
            // What was done already is answered first.
            let once = publication.once.as_ref().zip(publication.jobs.first());
            let Some((once, first)) = once else { return Err(error) };
            return self.recall(&first.job.queue, once).await?.ok_or(error);
        }
        // Jobs without a key go to the partition whose turn it is.
        let free = publication.jobs.iter().filter(|of| of.key.is_none());
        let _under_way: Vec<_> =
            free.map(|placing| self.takes(self.partitions.of_id(&placing.job.id), 1)).collect();
        let end = Instant::now() + BUSY;
        loop {
            let parts = match self.plan(&publication).await? {
                Plan::Answered(published) => return Ok(published),
                Plan::Parts(parts) => parts,
            };
            match self.publish_in_parts(parts).await? {
                Tried::Published(published) => return Ok(published),
                Tried::Elsewhere(why) => return Err(Error::Unreachable(why)),
                Tried::Busy if Instant::now() >= end => return Err(Error::Overloaded),
                Tried::Busy => sleep(LOOK).await,
            }
        }
    }

    /// Which part of a publication goes where. The first part decides.
    async fn plan(&self, publication: &Publication) -> Result<Plan> {
        let Publication { jobs, replaces, once } = publication;
        let Some(first) = jobs.first() else { return Ok(Plan::Answered(Published::Done(Vec::new()))) };
        let queue = &first.job.queue;
        let mut decides = None;
        if let Some(once) = once {
            let home = self.partition_of(queue);
            decides = Some(home);
            if let Some(spread) = self.spreading.get(queue) {
                let partition = self.partitions.of_request(queue, &once.key);
                decides = Some(partition);
                // What was done while it was gathered is remembered at home.
                if partition != home
                    && self.is_fresh(&spread)
                    && let Some(done) = self.recall(queue, once).await?
                {
                    return Ok(Plan::Answered(done));
                }
            }
        }
        let mut parts: BTreeMap<Partition, Part> = BTreeMap::new();
        let mut first_part = decides;
        let part = |partition| Part::new(partition, queue.clone());
        if let Some(partition) = decides {
            let of = parts.entry(partition).or_insert_with(|| part(partition));
            of.publication.once = once.clone();
        }
        for (index, placing) in jobs.iter().enumerate() {
            let Placing { mut job, at, mut key } = placing.clone();
            let home = self.partition_of(&job.queue);
            let mut partition = home;
            if self.spreading.get(&job.queue).is_some() {
                let named = self.partitions.of_id(&job.id);
                partition = match &key {
                    Some((key, _)) => self.partitions.of_key(&job.queue, key),
                    None => decides.unwrap_or(named),
                };
                if partition != named {
                    let stored = JobRef { queue: job.queue.clone(), id: job.id };
                    if self.is_stored(&stored).await? {
                        return Err(id_taken());
                    }
                    job.id = self.new_id(partition, &job);
                }
                if let Some((key, on_conflict)) = &mut key
                    && partition != home
                    && !matches!(on_conflict, OnConflict::Elsewhere(_))
                    && let Some(JobView { id, due_at, state, .. }) =
                        self.holder_at_home(&job.queue, key).await?
                {
                    let holder = JobRef { queue: job.queue.clone(), id };
                    let how = match on_conflict {
                        _ if replaces.as_ref() == Some(&holder) => None,
                        OnConflict::Fail => {
                            let conflict = Published::Conflict { index, id };
                            // What was done already is answered first.
                            let done = match once {
                                Some(once) => self.recall(queue, once).await?,
                                None => None,
                            };
                            return Ok(Plan::Answered(done.unwrap_or(conflict)));
                        }
                        OnConflict::Keep => Some(How::Duplicate),
                        // It goes on without its key.
                        _ if state == Some(JobState::Running) => None,
                        _ => Some(How::Replaced(id)),
                    };
                    if how != Some(How::Duplicate) && replaces.as_ref() != Some(&holder) {
                        parts.entry(home).or_insert_with(|| part(home)).gone.push(holder);
                    }
                    if let Some(how) = how {
                        *on_conflict = OnConflict::Elsewhere(Placed { id, due_at, how });
                    }
                }
            }
            first_part.get_or_insert(partition);
            let of = parts.entry(partition).or_insert_with(|| part(partition));
            of.of.push(index);
            of.publication.jobs.push(Placing { job, at, key });
        }
        if let Some(old) = replaces {
            let partition = self.partition_with(old).await?;
            let of = parts.entry(partition).or_insert_with(|| part(partition));
            of.publication.replaces = Some(old.clone());
        }
        let first = first_part.and_then(|partition| parts.remove(&partition));
        Ok(Plan::Parts(first.into_iter().chain(parts.into_values()).collect()))
    }

    pub async fn is_stored(&self, job: &JobRef) -> Result<bool> {
        Ok(self.partition_of_stored(job).await?.is_some())
    }

    /// Where a job lies, if it is there.
    async fn partition_of_stored(&self, job: &JobRef) -> Result<Option<Partition>> {
        for (partition, place) in self.find(&job.queue, &job.id).await? {
            if self.inspect_in(partition, &job.queue, (&place, ""), None).await?.is_some() {
                return Ok(Some(partition));
            }
        }
        Ok(None)
    }

    /// Where a job would be found that is to be replaced: that of a schedule lies at home, whatever partition its id names.
    async fn partition_with(&self, job: &JobRef) -> Result<Partition> {
        let named = self.partition_named(&job.queue, &job.id).await?;
        if named == self.partition_of(&job.queue) {
            return Ok(named);
        }
        Ok(self.partition_of_stored(job).await?.unwrap_or(named))
    }

    /// The job at home that has a key which belongs to another partition: it was stored while the queue was gathered, or by
    /// a schedule.
    async fn holder_at_home(&self, queue: &Queue, key: &JobKey) -> Result<Option<JobView>> {
        let home = self.partition_of(queue);
        let record = keys::holder(self.partitions.base(home), queue, key);
        let held: Option<Vec<u8>> = self.query(home, redis::cmd("GET").arg(record)).await?;
        match held {
            None => Ok(None),
            Some(_) => self.inspect_in(home, queue, (b"", key.as_str()), None).await,
        }
    }
}
