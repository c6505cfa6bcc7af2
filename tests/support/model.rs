//! The reference engine: all jobs in one map, and every result computed by a full scan. Slow, and simple enough to be
//! checked against the contract in engine/mod.rs. It proves that the laws are consistent, and random operations on a
//! real engine are compared with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use dormouse::clock::{Clock, Millis};
use dormouse::engine::delays::{DelayCount, DelayedOf, Delays};
use dormouse::engine::notifier::{Notifier, Notifiers};
use dormouse::engine::observer::Observer;
use dormouse::engine::{
    By, Consumed, Cursor, Detail, Engine, Estimated, Fingerprint, Held, How, JobList, JobPage, Listing,
    OnConflict, Once, Placed, Placing, Promoted, Publication, Published, Pumped, QueuePage, QueueSize,
    QueueView, Quotas, Release, Released, Respawn, Respawned, Revived, Size, SizeOf, Stats, Touched, Tries,
    Usage,
};
use dormouse::error::{Error, Result};
use dormouse::job::{Attributes, Job, JobId, JobRef, JobState, JobView, NewJob, Reason, Receipt};
use dormouse::name::{IdempotencyKey, JobKey, Namespace, Queue, QueueList, QueueName};
use parking_lot::{Mutex, MutexGuard};

/// The name of a published or consumed job.
pub trait Named {
    fn name(&self) -> JobRef;
}

impl Named for NewJob {
    fn name(&self) -> JobRef {
        JobRef { queue: self.queue.clone(), id: self.id }
    }
}

impl Named for JobRef {
    fn name(&self) -> JobRef {
        self.clone()
    }
}

impl Named for Job {
    fn name(&self) -> JobRef {
        JobRef { queue: self.queue.clone(), id: self.id }
    }
}

/// Returns whole milliseconds.
pub fn ms(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// An engine in memory.
#[derive(Debug)]
pub struct ModelEngine {
    clock: Arc<dyn Clock>,
    state: Mutex<Jobs>,
    notifiers: Notifiers,
    /// Receives internal events of the store.
    pub observer: Arc<dyn Observer>,
    /// Like stores that detect an expired job only when its timer is due: until then the timer counts in `stats`, and
    /// the pump that removes it counts it as moved.
    pub expired_timers_stay: bool,
    /// Maximum number of due jobs moved by one pump.
    pub pump: usize,
    /// How long dead jobs are kept; `None`: forever.
    pub dead_ttl: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
struct Jobs {
    jobs: BTreeMap<(Queue, JobId), Stored>,
    /// Queues that were ever published to.
    queues: BTreeMap<Queue, ()>,
    /// The last order number given at the tail of any queue or dead letter; `head` is the last given at a head.
    tail: i64,
    head: i64,
    /// Number of the last delivery.
    receipt: u64,
    /// Number of timers set so far.
    armed: u64,
    /// Due time of the next job according to the last pump; `None`: never.
    announced: Option<Millis>,
    /// Results of requests with idempotency keys, and their expiry.
    done: BTreeMap<(Queue, IdempotencyKey), (Millis, Fingerprint, Vec<Placed>)>,
    quotas: Quotas,
    closed: bool,
}

#[derive(Clone, Debug)]
struct Stored {
    job: NewJob,
    tries: u16,
    expires: Option<Millis>,
    state: State,
    /// Value of the timer count when its last timer was set.
    armed: u64,
    /// When its state last changed.
    since: Millis,
    key: Option<JobKey>,
    reason: Option<Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Delayed { due: Millis },
    Ready { order: i64 },
    Running { due: Millis, receipt: u64 },
    Dead { order: i64 },
}

impl State {
    fn due(self) -> Option<Millis> {
        match self {
            State::Delayed { due } | State::Running { due, .. } => Some(due),
            State::Ready { .. } | State::Dead { .. } => None,
        }
    }

    fn name(self) -> JobState {
        match self {
            State::Delayed { .. } => JobState::Delayed,
            State::Ready { .. } => JobState::Ready,
            State::Running { .. } => JobState::Running,
            State::Dead { .. } => JobState::Dead,
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
            due: self.since,
            tries_left,
            receipt,
        }
    }

    fn view(&self, now: Millis, with_body: bool) -> JobView {
        let job = self.read(now, 0, 0);
        let dead = matches!(self.state, State::Dead { .. });
        JobView {
            id: job.id,
            state: Some(self.state.name()),
            due_at: Some(self.state.due().unwrap_or(self.since)),
            tries_left: Some(if dead { 0 } else { self.tries }),
            receipt: None,
            ttl: job.ttl,
            elapsed: job.elapsed,
            published_at: job.id.published_at(),
            key: self.key.clone(),
            reason: self.reason.clone(),
            size: job.body.len() as u64,
            body: with_body.then_some(job.body),
            attributes: if with_body { job.attributes } else { Attributes::new() },
        }
    }

    fn die(&mut self, order: i64, now: Millis, dead_ttl: Option<Duration>) {
        self.state = State::Dead { order };
        self.since = now;
        self.expires = dead_ttl.map(|ttl| now + ms(ttl));
        self.key = None;
    }

    /// Returns whether the delivery of this receipt is current.
    fn is_held(&self, receipt: Receipt, now: Millis) -> bool {
        matches!(self.state, State::Running { due, receipt: of } if of == receipt.delivery && due > now)
    }
}

impl Jobs {
    /// Executes a publication. Returns the result, and the queues that have new jobs.
    fn publish(&mut self, publication: Publication, now: Millis) -> Result<(Published, Vec<Queue>)> {
        let Publication { jobs, replaces, once } = publication;
        let done =
            once.as_ref().zip(jobs.first()).map(|(once, first)| (first.job.queue.clone(), once.key.clone()));
        if let (Some(once), Some(done)) = (&once, &done)
            && let Some((_, fingerprint, placed)) = self.done.get(done).filter(|(until, ..)| *until > now)
        {
            let same = *fingerprint == once.fingerprint;
            let done = if same { Published::Replay(placed.clone()) } else { Published::Mismatch };
            return Ok((done, Vec::new()));
        }
        let twice = |i: usize| {
            jobs[..i].iter().any(|other| {
                let key = |placing: &Placing| placing.key.as_ref().map(|(key, _)| key.clone());
                let one_key = key(other).is_some() && key(other) == key(&jobs[i]);
                other.job.queue == jobs[i].job.queue && (one_key || other.job.id == jobs[i].job.id)
            })
        };
        let goes = |job: &JobRef| replaces.as_ref() == Some(job);
        let taken_id = |i: usize| self.has(&jobs[i].job, now) && !goes(&jobs[i].job.name());
        if (0..jobs.len()).any(|i| twice(i) || taken_id(i)) {
            return Err(taken());
        }
        let holder = |placing: &Placing| {
            let stored = self.holder(&placing.job.queue, &placing.key.as_ref()?.0, now)?;
            (!goes(&stored.job.name())).then_some(stored)
        };
        for (index, placing) in jobs.iter().enumerate() {
            if let (Some((_, OnConflict::Fail)), Some(stored)) = (&placing.key, holder(placing)) {
                return Ok((Published::Conflict { index, id: stored.job.id }, Vec::new()));
            }
        }
        let before = self.before();
        if let Some(old) = replaces {
            self.jobs.remove(&(old.queue, old.id));
        }
        // Also if the new job turns out to be a duplicate.
        for Placing { job, .. } in &jobs {
            if self.jobs.get(&(job.queue.clone(), job.id)).is_some_and(|stored| stored.expired(now)) {
                self.jobs.remove(&(job.queue.clone(), job.id));
            }
        }
        let (mut placed, mut queues) = (Vec::new(), Vec::new());
        for Placing { job, at, key } in jobs {
            let mut how = How::New;
            if let Some((_, OnConflict::Elsewhere(other))) = &key {
                if other.how == How::Duplicate {
                    placed.push(*other);
                    continue;
                }
                how = other.how;
            }
            if let Some((key, on_conflict)) = &key
                && let Some(stored) = self.holder(&job.queue, key, now)
            {
                let (name, running) = (stored.job.name(), matches!(stored.state, State::Running { .. }));
                if *on_conflict == OnConflict::Keep {
                    let due_at = stored.view(now, false).due_at;
                    placed.push(Placed { id: name.id, due_at, how: How::Duplicate });
                    continue;
                } else if running {
                    self.get(&name.queue, name.id).key = None;
                } else {
                    self.jobs.remove(&(name.queue, name.id));
                    how = How::Replaced(name.id);
                }
            }
            if let Some((key, _)) = &key {
                let expired =
                    |stored: &Stored| stored.job.queue == job.queue && stored.key.as_ref() == Some(key);
                self.jobs.retain(|_, stored| !expired(stored));
            }
            let (id, due) = (job.id, at.unwrap_or_else(|| now + ms(job.delay)));
            queues.push(job.queue.clone());
            let due_at = Some(self.place(job, due, key.map(|(key, _)| key), now));
            placed.push(Placed { id, due_at, how });
        }
        self.keep_to_quotas(before)?;
        if placed.iter().all(|placed| placed.how == How::Duplicate)
            && let Some((queue, _)) = &done
        {
            self.admit_record(&queue.namespace)?;
        }
        if let (Some(once), Some(done)) = (once, done) {
            let ends = now + ms(once.kind.remembered());
            self.done.insert(done, (ends, once.fingerprint, placed.clone()));
        }
        Ok((Published::Done(placed), queues))
    }

    /// Returns a copy of the state, if there are quotas.
    fn before(&self) -> Option<Jobs> {
        (!self.quotas.is_empty()).then(|| self.clone())
    }

    /// Restores the previous state if a namespace now exceeds its quota and uses more than before.
    fn keep_to_quotas(&mut self, before: Option<Jobs>) -> Result<()> {
        let Some(before) = before else { return Ok(()) };
        let used = Jobs::used;
        for (namespace, quota) in &self.quotas {
            let bounds = [("jobs", quota.jobs), ("bytes", quota.bytes), ("queues", quota.queues)];
            let now = used(self, namespace).into_iter().zip(used(&before, namespace));
            let mut over = bounds
                .into_iter()
                .zip(now)
                .filter(|((_, bound), (now, before))| *bound > 0 && now > before && *now as u64 > *bound);
            if let Some(((what, _), _)) = over.next() {
                drop(over);
                *self = before;
                return Err(Error::OverQuota(what));
            }
        }
        Ok(())
    }

    /// Returns the jobs, bytes and queues that a namespace uses.
    fn used(&self, namespace: &Namespace) -> [usize; 3] {
        let of = || self.jobs.values().filter(|stored| stored.job.queue.namespace == *namespace);
        let queues = self.queues.keys().filter(|queue| queue.namespace == *namespace).count();
        [of().count(), of().map(|stored| stored.job.body.len()).sum::<usize>(), queues]
    }

    /// Whether the record of a call that stores no job may be kept.
    fn admit_record(&self, namespace: &Namespace) -> Result<()> {
        let Some(quota) = self.quotas.get(namespace) else { return Ok(()) };
        let [jobs, used, _] = self.used(namespace).map(|used| used as u64);
        if quota.jobs > 0 && jobs >= quota.jobs {
            Err(Error::OverQuota("jobs"))
        } else if quota.bytes > 0 && used >= quota.bytes {
            Err(Error::OverQuota("bytes"))
        } else {
            Ok(())
        }
    }

    fn next_tail(&mut self) -> i64 {
        self.tail += 1;
        self.tail
    }

    /// Deletes expired jobs. Deleting them now or when they expired makes no difference.
    fn expire(&mut self, now: Millis, timers_stay: bool) {
        self.jobs.retain(|_, stored| !stored.expired(now) || (timers_stay && stored.state.due().is_some()));
    }

    /// Stores a job. Returns when it is due.
    fn place(&mut self, job: NewJob, due: Millis, key: Option<JobKey>, now: Millis) -> Millis {
        let due = due.max(now);
        let state =
            if due == now { State::Ready { order: self.next_tail() } } else { State::Delayed { due } };
        self.queues.insert(job.queue.clone(), ());
        let expires = job.ttl.map(|ttl| now + ms(ttl));
        self.armed += 1;
        let (tries, armed) = (job.tries.get(), self.armed);
        let stored = Stored { tries, expires, state, armed, since: now, key, reason: None, job };
        self.jobs.insert((stored.job.queue.clone(), stored.job.id), stored);
        due
    }

    /// Returns the job that holds a key.
    fn holder(&self, queue: &Queue, key: &JobKey, now: Millis) -> Option<&Stored> {
        self.jobs.values().find(|stored| {
            stored.job.queue == *queue && stored.key.as_ref() == Some(key) && !stored.expired(now)
        })
    }

    /// Returns the job with this delivery.
    fn held(&mut self, job: &JobRef, receipt: Receipt, now: Millis) -> Held<&mut Stored> {
        match self.jobs.get_mut(&(job.queue.clone(), job.id)).filter(|stored| !stored.expired(now)) {
            None => Held::NotFound,
            Some(stored) if stored.is_held(receipt, now) => Held::Done(stored),
            Some(_) => Held::NotYours,
        }
    }

    /// The job by name, unless it has expired.
    fn find(&self, job: &JobRef, now: Millis) -> Option<&Stored> {
        self.jobs.get(&(job.queue.clone(), job.id)).filter(|stored| !stored.expired(now))
    }

    fn has(&self, job: &NewJob, now: Millis) -> bool {
        self.find(&job.name(), now).is_some()
    }

    /// Returns the jobs of a queue whose state has a rank, lowest first.
    fn ranked(&self, queue: &Queue, rank: impl Fn(State) -> Option<i64>) -> Vec<JobId> {
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
        self.ranked(queue, |state| if let State::Ready { order } = state { Some(order) } else { None })
    }

    fn dead(&self, queue: &Queue) -> Vec<JobId> {
        self.ranked(queue, |state| if let State::Dead { order } = state { Some(order) } else { None })
    }

    fn earliest(&self) -> Option<Millis> {
        self.jobs.values().filter_map(|stored| stored.state.due()).min()
    }

    fn get(&mut self, queue: &Queue, id: JobId) -> &mut Stored {
        self.jobs.get_mut(&(queue.clone(), id)).expect("the id was listed under this lock")
    }
}

impl ModelEngine {
    /// Returns an empty store that uses `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> ModelEngine {
        ModelEngine {
            clock,
            state: Mutex::default(),
            notifiers: Notifiers::default(),
            observer: Arc::new(()),
            expired_timers_stay: false,
            pump: 500,
            dead_ttl: None,
        }
    }

    /// Notifies of a timer that ends before the last pump's `next`.
    fn armed(&self) {
        let state = self.state.lock();
        let is_earlier = |announced| state.earliest().is_some_and(|at| at < announced);
        // Without an announced time nothing is searched, since tests without a pump publish much.
        let is_earlier = state.announced.is_none_or(is_earlier);
        drop(state);
        if is_earlier {
            self.notifiers.due_earlier();
        }
    }

    /// Notifies that these queues have new jobs.
    fn placed(&self, queues: &[Queue]) {
        self.armed();
        queues.iter().for_each(|queue| self.notifiers.notify(queue));
    }

    /// Returns the state without expired jobs, and the time.
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

/// Parses the cursor of a list of jobs in this state.
fn read_cursor(cursor: &Cursor, state: JobState) -> Option<(Millis, i64)> {
    let (due, order) = cursor.0.strip_prefix(state.as_str())?.strip_prefix('-')?.split_once('-')?;
    Some((due.parse().ok()?, order.parse().ok()?))
}

fn taken() -> Error {
    Error::refused("a job with this id is stored already")
}

#[async_trait]
impl Engine for ModelEngine {
    fn now(&self) -> Millis {
        self.clock.now()
    }

    fn time_of_day(&self) -> Millis {
        self.clock.wall_micros() / 1000
    }

    async fn publish(&self, publication: Publication) -> Result<Published> {
        let (mut state, now) = self.open()?;
        let (published, queues) = state.publish(publication, now)?;
        drop(state);
        self.placed(&queues);
        Ok(published)
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        let (state, now) = self.open()?;
        let done = state.done.get(&(queue.clone(), once.key.clone())).filter(|(until, ..)| *until > now);
        Ok(done.map(|(_, fingerprint, placed)| {
            let same = *fingerprint == once.fingerprint;
            if same { Published::Replay(placed.clone()) } else { Published::Mismatch }
        }))
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        let (mut state, now) = self.open()?;
        let Some(name) = state.holder(queue, key, now).map(|stored| stored.job.name()) else {
            return Ok(false);
        };
        state.jobs.remove(&(name.queue, name.id));
        Ok(true)
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
            stored.state = State::Running { due: now + ms(*ttr), receipt };
            jobs.push(stored.read(now, stored.tries, receipt));
            (stored.armed, stored.since) = (armed, now);
        }
        drop(state);
        self.armed();
        Ok(Consumed { jobs, ..Consumed::default() })
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let (mut state, now) = self.open()?;
        for job in jobs.iter().rev() {
            state.head -= 1;
            let head = state.head;
            if let Some(stored) = state.jobs.get_mut(&(job.queue.clone(), job.id))
                && matches!(stored.state, State::Running { receipt, .. } if receipt == job.receipt)
            {
                stored.tries += 1;
                (stored.state, stored.since) = (State::Ready { order: head }, now);
            }
        }
        drop(state);
        jobs.iter().for_each(|job| self.notifiers.notify(&job.queue));
        Ok(())
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        let (mut state, now) = self.open()?;
        let mut stale = Vec::new();
        for (id, receipt) in jobs {
            let job = JobRef { queue: queue.clone(), id: *id };
            if receipt.is_some_and(|receipt| matches!(state.held(&job, receipt, now), Held::NotYours)) {
                stale.push(*id);
            } else {
                state.jobs.remove(&(job.queue, job.id));
            }
        }
        Ok(stale)
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        let (mut state, now) = self.open()?;
        state.receipt += 1;
        state.armed += 1;
        let (delivery, armed) = (state.receipt, state.armed);
        let stored = match state.held(job, receipt, now) {
            Held::Done(stored) => stored,
            Held::NotYours => return Ok(Held::NotYours),
            Held::NotFound => return Ok(Held::NotFound),
        };
        let until = now + ms(ttr);
        stored.state = State::Running { due: until, receipt: delivery };
        stored.armed = armed;
        let receipt = Receipt { delivery, ..receipt };
        drop(state);
        self.armed();
        Ok(Held::Done(Touched { receipt, until }))
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        let (mut state, now) = self.open()?;
        state.head -= 1;
        state.armed += 1;
        let (head, tail, armed) = (state.head, state.next_tail(), state.armed);
        let stored = match state.held(job, receipt, now) {
            Held::Done(stored) => stored,
            Held::NotYours => return Ok(Held::NotYours),
            Held::NotFound => return Ok(Held::NotFound),
        };
        if let Some(reason) = release.reason {
            stored.reason = Some(reason);
        }
        stored.tries += u16::from(release.tries == Tries::Restore);
        let due_at = now + ms(release.delay);
        if stored.tries == 0 || release.tries == Tries::Forfeit || stored.expired(due_at) {
            stored.die(tail, now, self.dead_ttl);
            return Ok(Held::Done(Released::Dead));
        }
        (stored.armed, stored.since) = (armed, now);
        stored.state =
            if due_at == now { State::Ready { order: head } } else { State::Delayed { due: due_at } };
        let released = Released::Back { tries_left: stored.tries, due_at };
        drop(state);
        self.armed();
        self.notifiers.notify(&job.queue);
        Ok(Held::Done(released))
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        let (mut state, now) = self.open()?;
        let head = state.ready(queue).first().copied();
        Ok(head.map(|id| {
            let stored = state.get(queue, id);
            stored.read(now, stored.tries, 0)
        }))
    }

    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        let (state, now) = self.open()?;
        let found = match by {
            By::Id(id) => state.find(&JobRef { queue: queue.clone(), id }, now),
            By::Key(key) => state.holder(queue, key, now),
        };
        Ok(found.map(|stored| {
            let receipt = match stored.state {
                State::Running { due, receipt } if due > now && detail.held_with() == Some(stored.tries) => {
                    Some(Receipt { delivery: receipt, tries_left: stored.tries })
                }
                _ => None,
            };
            JobView { receipt, ..detail.of(stored.view(now, true)) }
        }))
    }

    async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted> {
        let (mut state, now) = self.open()?;
        let order = state.next_tail();
        let found = match by {
            By::Id(id) => state.find(&JobRef { queue: queue.clone(), id }, now),
            By::Key(key) => state.holder(queue, key, now),
        };
        let Some(id) = found.map(|stored| stored.job.id) else { return Ok(Promoted::NotFound) };
        let stored = state.get(queue, id);
        if !matches!(stored.state, State::Delayed { .. }) {
            return Ok(Promoted::NotDelayed(Some(stored.state.name())));
        }
        (stored.state, stored.since) = (State::Ready { order }, now);
        drop(state);
        self.notifiers.notify(queue);
        Ok(Promoted::Done)
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        let (state, now) = self.open()?;
        let after = match &list.cursor {
            None => None,
            Some(cursor) => match read_cursor(cursor, list.state) {
                None => return Ok(None),
                after => after,
            },
        };
        let place = |stored: &Stored| match stored.state {
            State::Ready { order } | State::Dead { order } => (0, order),
            State::Delayed { due } | State::Running { due, .. } => (due, stored.armed as i64),
        };
        let mut found: Vec<((Millis, i64), &Stored)> = state
            .jobs
            .values()
            .filter(|stored| stored.job.queue == *queue && stored.state.name() == list.state)
            .filter(|stored| !stored.expired(now))
            .map(|stored| (place(stored), stored))
            .filter(|(place, _)| after.is_none_or(|after| *place > after))
            .collect();
        found.sort_unstable_by_key(|(place, _)| *place);
        let more = found.len() > list.limit;
        found.truncate(list.limit);
        let last = found.last().filter(|_| more).map(|(place, _)| *place);
        let cursor = last.map(|(due, order)| Cursor(format!("{}-{due}-{order}", list.state.as_str())));
        let jobs: Vec<JobView> = found.iter().map(|(_, stored)| stored.view(now, list.bodies)).collect();
        let scanned = jobs.len() as u64;
        Ok(Some(JobPage { jobs, cursor, scanned }))
    }

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        let state = self.open()?.0;
        Ok(match of {
            SizeOf::Ready => Size { jobs: state.ready(queue).len() as u64, head: None },
            SizeOf::Dead => {
                let dead = state.dead(queue);
                Size { jobs: dead.len() as u64, head: dead.first().copied() }
            }
        })
    }

    async fn destroy(&self, queue: &Queue, listing: Listing) -> Result<()> {
        let (mut state, _) = self.open()?;
        for id in state.ready(queue) {
            state.jobs.remove(&(queue.clone(), id));
        }
        let holds =
            |stored: &Stored| stored.job.queue == *queue && !matches!(stored.state, State::Running { .. });
        if listing == Listing::Delete && !state.jobs.values().any(holds) {
            state.queues.remove(queue);
        }
        Ok(())
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        let (mut state, now) = self.open()?;
        let (ids, delay, tries, ttl) = match which {
            Respawn::Oldest { limit, ttl } => {
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                (state.dead(queue).into_iter().take(limit).collect(), Duration::ZERO, 1, ttl)
            }
            Respawn::Jobs(ids, revival) => (ids.to_vec(), revival.delay, revival.tries.get(), revival.ttl),
        };
        let mut each = Vec::new();
        for id in ids {
            state.armed += 1;
            let (armed, order) = (state.armed, state.next_tail());
            let due_at = now + ms(delay);
            let answer = match state.jobs.get_mut(&(queue.clone(), id)).filter(|stored| !stored.expired(now))
            {
                None => Revived::NotFound,
                Some(stored) if !matches!(stored.state, State::Dead { .. }) => Revived::NotDead,
                Some(stored) => {
                    stored.tries = tries;
                    stored.expires = ttl.map(|ttl| now + ms(ttl));
                    (stored.armed, stored.since) = (armed, now);
                    stored.state =
                        if due_at == now { State::Ready { order } } else { State::Delayed { due: due_at } };
                    Revived::Done { due_at }
                }
            };
            each.push(answer);
        }
        drop(state);
        self.armed();
        self.notifiers.notify(queue);
        let all = Respawned::of(each);
        Ok(if let Respawn::Oldest { .. } = which { Respawned { each: Vec::new(), ..all } } else { all })
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

    async fn pump(&self) -> Result<Pumped> {
        let (mut state, now) = self.open()?;
        let mut due: Vec<(Millis, u64, JobId, Queue)> = state
            .jobs
            .iter()
            .filter_map(|((queue, id), stored)| Some((stored.state.due()?, stored.armed, *id, queue.clone())))
            .filter(|(due, ..)| *due <= now)
            .collect();
        due.sort_unstable();
        due.truncate(self.pump);
        for (_, _, id, queue) in &due {
            let order = state.next_tail();
            let stored = state.get(queue, *id);
            let was_delayed = matches!(stored.state, State::Delayed { .. });
            if stored.tries > 0 {
                // It became ready when it was due, regardless of when the pump ran.
                stored.since = stored.state.due().unwrap_or(now);
                stored.state = State::Ready { order };
                if !was_delayed {
                    self.observer.redelivered(queue, 1);
                }
            } else if stored.expired(now) {
                state.jobs.remove(&(queue.clone(), *id));
                self.observer.expired(1);
            } else {
                stored.die(order, now, self.dead_ttl);
                self.observer.died(queue, 1);
            }
        }
        state.announced = state.earliest();
        let next = state.announced.map_or(Duration::MAX, |at| Duration::from_millis(at.saturating_sub(now)));
        drop(state);
        due.iter().for_each(|(_, _, _, queue)| self.notifiers.notify(queue));
        Ok(Pumped { moved: due.len(), next })
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let (state, now) = self.open()?;
        let mut names: Vec<Queue> = state.queues.keys().cloned().collect();
        names.retain(|queue| queue.namespace == *namespace && after.is_none_or(|after| queue.name > *after));
        names.sort_unstable();
        names.dedup();
        let more = names.len() > limit;
        names.truncate(limit);
        let next = names.last().filter(|_| more).map(|last| last.name.clone());
        let view = |queue: &Queue| {
            let of: Vec<&Stored> = state.jobs.values().filter(|stored| stored.job.queue == *queue).collect();
            let count = |name| Some(of.iter().filter(|stored| stored.state.name() == name).count() as u64);
            let head = state.ready(queue).first().and_then(|id| state.jobs.get(&(queue.clone(), *id)));
            QueueView {
                queue: queue.clone(),
                ready: count(JobState::Ready),
                delayed: count(JobState::Delayed),
                running: count(JobState::Running),
                dead: count(JobState::Dead),
                oldest_ready_age: head.map(|head| Duration::from_millis(now - head.since)),
                estimated: Estimated::default(),
            }
        };
        Ok(QueuePage { queues: names.iter().map(view).collect(), next })
    }

    async fn stats(&self) -> Result<Stats> {
        let (state, now) = self.open()?;
        let timers = state.jobs.values().filter(|stored| stored.state.due().is_some()).count() as u64;
        let count = |queue: &Queue, name| {
            let is = |stored: &&Stored| stored.job.queue == *queue && stored.state.name() == name;
            Some(state.jobs.values().filter(is).count() as u64)
        };
        let size = |queue: &Queue| QueueSize {
            queue: queue.clone(),
            ready: state.ready(queue).len() as u64,
            dead: state.dead(queue).len() as u64,
            delayed: count(queue, JobState::Delayed),
            running: count(queue, JobState::Running),
            oldest_ready: state.ready(queue).first().map(|id| {
                let head = &state.jobs[&(queue.clone(), *id)];
                Duration::from_millis(now.saturating_sub(head.since))
            }),
            estimated: Estimated::default(),
            head: state.ready(queue).first().map(|id| {
                let head = &state.jobs[&(queue.clone(), *id)];
                let place = format!("{id} {} {}", head.since, head.job.tries);
                xxhash_rust::xxh3::xxh3_64(place.as_bytes())
            }),
        };
        let overdue = state.earliest().and_then(|due| now.checked_sub(due)).filter(|late| *late > 0);
        Ok(Stats {
            timers,
            overdue: overdue.map(Duration::from_millis),
            queues: state.queues.keys().map(size).collect(),
            gauges: Vec::new(),
        })
    }

    async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        let (state, now) = self.open()?;
        let mut delays = Delays::new(now);
        for stored in state.jobs.values() {
            let counts = match &count.of {
                DelayedOf::All => true,
                DelayedOf::Namespace(namespace) => stored.job.queue.namespace == *namespace,
                DelayedOf::Queue(queue) => stored.job.queue == *queue,
            };
            if let State::Delayed { due } = stored.state
                && counts
            {
                delays.add(due, count);
            }
        }
        Ok(delays)
    }

    async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>> {
        let mut jobs = self.open()?.0;
        jobs.quotas = quotas.clone();
        let usage = |namespace: &Namespace| {
            let [jobs, bytes, _] = jobs.used(namespace).map(|used| used as u64);
            Usage { jobs, bytes }
        };
        let counted = quotas.iter().filter(|(_, quota)| quota.counts_jobs());
        Ok(counted.map(|(namespace, _)| (namespace.clone(), usage(namespace))).collect())
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
