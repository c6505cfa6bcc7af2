//! The reference engine: every job in one map, every answer found by going through all of them. Slow, and simple enough
//! to be read against the contract in engine/mod.rs. It proves that the laws can be kept, and random
//! operations on a real engine are compared with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use dormouse::clock::{Clock, Millis};
use dormouse::engine::notifier::{Notifier, Notifiers};
use dormouse::engine::{
    Consumed, Cursor, DeadLetter, Engine, Held, JobList, JobPage, Pause, Publication, Published, Pumped,
    QueuePage, QueueSize, Release, Released, Revival, Revived, Stats, Touched,
};
use dormouse::error::{Error, Result};
use dormouse::job::{Attributes, Job, JobId, JobRef, JobView, NewJob, Reason, Receipt};
use dormouse::name::{JobKey, Namespace, Queue, QueueList};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::jobs::{Named, ms};

/// An engine in memory.
#[derive(Debug)]
pub struct ModelEngine {
    clock: Arc<dyn Clock>,
    state: Mutex<Jobs>,
    notifiers: Notifiers,
    /// Told whenever a timer was armed.
    armed: Notify,
    /// Timers of expired jobs stay until they are due, and are pumped.
    expired_timers_stay: bool,
}

#[derive(Debug, Default)]
struct Jobs {
    jobs: BTreeMap<(Queue, JobId), Stored>,
    /// Queues that were ever published to.
    queues: BTreeMap<Queue, ()>,
    /// The last order number given at the tail of any queue or dead letter; `head` is the last given at a head.
    tail: i64,
    head: i64,
    /// The last hand-over.
    receipt: u64,
    /// How many timers were armed.
    armed: u64,
    /// When the last pump said that the next job is due; `None` is never.
    announced: Option<Millis>,
    closed: bool,
}

#[derive(Clone, Debug)]
struct Stored {
    job: NewJob,
    tries: u16,
    expires: Option<Millis>,
    state: JobState,
    /// When its last timer was armed, by count.
    armed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobState {
    Delayed { due: Millis },
    Ready { order: i64 },
    Running { due: Millis, receipt: u64 },
    Dead { order: i64 },
}

impl JobState {
    fn due(self) -> Option<Millis> {
        match self {
            JobState::Delayed { due } | JobState::Running { due, .. } => Some(due),
            JobState::Ready { .. } | JobState::Dead { .. } => None,
        }
    }
}

impl Stored {
    fn expired(&self, now: Millis) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }

    fn read(&self, now: Millis, tries_left: u16, receipt: u64) -> Job {
        let kept = self.job.id.is_versioned();
        Job {
            queue: self.job.queue.clone(),
            id: self.job.id,
            body: self.job.body.clone(),
            attributes: if kept { self.job.attributes.clone() } else { Attributes::new() },
            ttl: self.expires.map(|at| Duration::from_millis(at.saturating_sub(now))),
            elapsed: Duration::from_millis(now.saturating_sub(self.job.id.published_at())),
            tries_left,
            receipt,
        }
    }
}

impl Jobs {
    fn next_tail(&mut self) -> i64 {
        self.tail += 1;
        self.tail
    }

    /// Forgets what has expired: nobody can tell whether that happened at its instant or just now.
    fn expire(&mut self, now: Millis, timers_stay: bool) {
        self.jobs.retain(|_, stored| !stored.expired(now) || (timers_stay && stored.state.due().is_some()));
    }

    fn insert(&mut self, job: NewJob, now: Millis) {
        let state = match ms(job.delay) {
            0 => JobState::Ready { order: self.next_tail() },
            delay => JobState::Delayed { due: now + delay },
        };
        self.queues.insert(job.queue.clone(), ());
        let expires = job.ttl.map(|ttl| now + ms(ttl));
        self.armed += 1;
        let stored = Stored { tries: job.tries.get(), expires, state, armed: self.armed, job };
        self.jobs.insert((stored.job.queue.clone(), stored.job.id), stored);
    }

    /// The job by name, unless it has expired.
    fn find(&self, job: &JobRef, now: Millis) -> Option<&Stored> {
        self.jobs.get(&(job.queue.clone(), job.id)).filter(|stored| !stored.expired(now))
    }

    fn has(&self, job: &NewJob, now: Millis) -> bool {
        self.find(&job.name(), now).is_some()
    }

    /// The jobs of a queue whose state `rank` gives a rank, lowest rank first.
    fn ranked(&self, queue: &Queue, rank: impl Fn(JobState) -> Option<i64>) -> Vec<JobId> {
        let mut found: Vec<(i64, JobId)> = self
            .jobs
            .iter()
            .filter(|((of, _), _)| of == queue)
            .filter_map(|((_, id), stored)| Some((rank(stored.state)?, *id)))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    fn ready(&self, queue: &Queue) -> Vec<JobId> {
        self.ranked(queue, |state| if let JobState::Ready { order } = state { Some(order) } else { None })
    }

    fn dead(&self, queue: &Queue) -> Vec<JobId> {
        self.ranked(queue, |state| if let JobState::Dead { order } = state { Some(order) } else { None })
    }

    fn earliest(&self) -> Option<Millis> {
        self.jobs.values().filter_map(|stored| stored.state.due()).min()
    }

    fn get(&mut self, queue: &Queue, id: JobId) -> &mut Stored {
        self.jobs.get_mut(&(queue.clone(), id)).expect("the id was listed under this lock")
    }
}

impl ModelEngine {
    /// An empty store that counts by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> ModelEngine {
        ModelEngine {
            clock,
            state: Mutex::default(),
            notifiers: Notifiers::default(),
            armed: Notify::new(),
            expired_timers_stay: false,
        }
    }

    /// A model of stores that find out only when a timer is due that its job has expired: until then the timer
    /// counts in `stats`, and a pump that ends it counts it as moved.
    pub fn with_expired_timers(self) -> ModelEngine {
        ModelEngine { expired_timers_stay: true, ..self }
    }

    /// The state as of now, with the expired gone.
    fn open(&self) -> Result<(MutexGuard<'_, Jobs>, Millis)> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        let now = self.clock.now();
        state.expire(now, self.expired_timers_stay);
        Ok((state, now))
    }
}

fn taken() -> Error {
    Error::refused("a job with this id is stored already")
}

#[async_trait]
impl Engine for ModelEngine {
    fn now(&self) -> Millis {
        self.clock.now()
    }

    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()> {
        let (mut state, now) = self.open()?;
        let twice = |i: usize| jobs[..i].iter().any(|other| other.name() == jobs[i].name());
        if (0..jobs.len()).any(|i| state.has(&jobs[i], now) || twice(i)) {
            return Err(taken());
        }
        let queues: Vec<Queue> = jobs.iter().map(|job| job.queue.clone()).collect();
        for job in jobs {
            state.insert(job, now);
        }
        drop(state);
        self.armed.notify_waiters();
        queues.iter().for_each(|queue| self.notifiers.notify(queue));
        Ok(())
    }

    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        let (mut state, now) = self.open()?;
        if state.has(&new, now) && old != new.name() {
            return Err(taken());
        }
        let queue = new.queue.clone();
        state.jobs.remove(&(old.queue, old.id));
        state.insert(new, now);
        drop(state);
        self.armed.notify_waiters();
        self.notifiers.notify(&queue);
        Ok(())
    }

    async fn publish_with(&self, _: Publication) -> Result<Published> {
        Err(Error::refused("not built yet"))
    }

    async fn find_key(&self, _: &Queue, _: &JobKey) -> Result<Option<JobView>> {
        Err(Error::refused("not built yet"))
    }

    async fn cancel_key(&self, _: &Queue, _: &JobKey) -> Result<bool> {
        Err(Error::refused("not built yet"))
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let (mut state, now) = self.open()?;
        let mut ready = Vec::new();
        for queue in queues.queues() {
            ready.extend(state.ready(&queue).into_iter().map(|id| (queue.clone(), id)));
        }
        let mut jobs = Vec::new();
        for ((queue, id), ttr) in ready.into_iter().zip(ttrs) {
            state.receipt += 1;
            state.armed += 1;
            let (receipt, armed) = (state.receipt, state.armed);
            let stored = state.get(&queue, id);
            stored.tries -= 1; // a ready job has at least one
            stored.state = JobState::Running { due: now + ms(*ttr), receipt };
            stored.armed = armed;
            jobs.push(stored.read(now, stored.tries, receipt));
        }
        drop(state);
        self.armed.notify_waiters();
        Ok(Consumed { jobs, more: false })
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let (mut state, _) = self.open()?;
        for job in jobs.iter().rev() {
            state.head -= 1;
            let head = state.head;
            if let Some(stored) = state.jobs.get_mut(&(job.queue.clone(), job.id))
                && matches!(stored.state, JobState::Running { receipt, .. } if receipt == job.receipt)
            {
                stored.tries += 1;
                stored.state = JobState::Ready { order: head };
            }
        }
        drop(state);
        jobs.iter().for_each(|job| self.notifiers.notify(&job.queue));
        Ok(())
    }

    async fn ack(&self, job: JobRef) -> Result<()> {
        self.open()?.0.jobs.remove(&(job.queue, job.id));
        Ok(())
    }

    async fn ack_many(&self, _: &Queue, _: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        Err(Error::refused("not built yet"))
    }

    async fn touch(&self, _: &JobRef, _: Receipt, _: Duration) -> Result<Held<Touched>> {
        Err(Error::refused("not built yet"))
    }

    async fn release(&self, _: &JobRef, _: Receipt, _: Release) -> Result<Held<Released>> {
        Err(Error::refused("not built yet"))
    }

    async fn bury(&self, _: &JobRef, _: Receipt, _: Option<Reason>) -> Result<Held<()>> {
        Err(Error::refused("not built yet"))
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        let (mut state, now) = self.open()?;
        let head = state.ready(queue).first().copied();
        Ok(head.map(|id| {
            let stored = state.get(queue, id);
            stored.read(now, stored.tries, 0)
        }))
    }

    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        let (state, now) = self.open()?;
        Ok(state.find(job, now).map(|stored| stored.read(now, 0, 0)))
    }

    async fn inspect(&self, _: &JobRef) -> Result<Option<JobView>> {
        Err(Error::refused("not built yet"))
    }

    async fn list_jobs(&self, _: &Queue, _: JobList) -> Result<Option<JobPage>> {
        Err(Error::refused("not built yet"))
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        Ok(self.open()?.0.ready(queue).len() as u64)
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        let (mut state, _) = self.open()?;
        for id in state.ready(queue) {
            state.jobs.remove(&(queue.clone(), id));
        }
        Ok(())
    }

    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        let dead = self.open()?.0.dead(queue);
        Ok(DeadLetter { size: dead.len() as u64, head: dead.first().copied() })
    }

    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        let (mut state, now) = self.open()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let ids: Vec<JobId> = state.dead(queue).into_iter().take(limit).collect();
        for id in &ids {
            let ready = JobState::Ready { order: state.next_tail() };
            let stored = state.get(queue, *id);
            stored.tries = 1;
            stored.expires = ttl.map(|ttl| now + ms(ttl));
            stored.state = ready;
        }
        drop(state);
        self.notifiers.notify(queue);
        Ok(ids.len() as u64)
    }

    async fn respawn_jobs(&self, _: &Queue, _: &[JobId], _: Revival) -> Result<Vec<Revived>> {
        Err(Error::refused("not built yet"))
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let (mut state, _) = self.open()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let ids: Vec<JobId> = state.dead(queue).into_iter().take(limit).collect();
        for id in &ids {
            state.jobs.remove(&(queue.clone(), *id));
        }
        Ok(ids.len() as u64)
    }

    async fn pause(&self, _: &Queue, _: Option<Duration>) -> Result<Pause> {
        Err(Error::refused("not built yet"))
    }

    async fn resume(&self, _: &Queue) -> Result<()> {
        Err(Error::refused("not built yet"))
    }

    async fn pump(&self, limit: usize) -> Result<Pumped> {
        let (mut state, now) = self.open()?;
        let mut due: Vec<(Millis, u64, JobId, Queue)> = state
            .jobs
            .iter()
            .filter_map(|((queue, id), stored)| Some((stored.state.due()?, stored.armed, *id, queue.clone())))
            .filter(|(due, ..)| *due <= now)
            .collect();
        due.sort_unstable();
        due.truncate(limit);
        for (_, _, id, queue) in &due {
            let order = state.next_tail();
            let stored = state.get(queue, *id);
            if stored.tries > 0 {
                stored.state = JobState::Ready { order };
            } else if stored.expired(now) {
                state.jobs.remove(&(queue.clone(), *id));
            } else {
                stored.state = JobState::Dead { order };
                stored.expires = None;
            }
        }
        state.announced = state.earliest();
        let next = state.announced.map_or(Duration::MAX, |at| Duration::from_millis(at.saturating_sub(now)));
        drop(state);
        due.iter().for_each(|(_, _, _, queue)| self.notifiers.notify(queue));
        Ok(Pumped { moved: due.len(), next })
    }

    async fn due_earlier(&self) {
        loop {
            let armed = self.armed.notified(); // listens from here on, so nothing is missed meanwhile
            let earlier = {
                let state = self.state.lock();
                let announced = state.announced.unwrap_or(Millis::MAX);
                state.earliest().is_some_and(|at| at < announced)
            };
            if earlier {
                return;
            }
            armed.await;
        }
    }

    async fn queues(&self) -> Result<Vec<Queue>> {
        Ok(self.open()?.0.queues.keys().cloned().collect())
    }

    async fn list_queues(&self, _: &Namespace, _: usize, _: Option<Cursor>) -> Result<Option<QueuePage>> {
        Err(Error::refused("not built yet"))
    }

    async fn stats(&self) -> Result<Stats> {
        let (state, _) = self.open()?;
        let timers = state.jobs.values().filter(|stored| stored.state.due().is_some()).count() as u64;
        let size = |queue: &Queue| QueueSize {
            queue: queue.clone(),
            ready: state.ready(queue).len() as u64,
            dead: state.dead(queue).len() as u64,
        };
        Ok(Stats { timers, queues: state.queues.keys().map(size).collect(), gauges: Vec::new() })
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.notifiers.attach(notifier);
    }

    fn watch(&self, _: &Queue) {}

    async fn check(&self) -> Result<()> {
        self.open().map(drop)
    }

    async fn close(&self) {
        self.state.lock().closed = true;
    }
}
