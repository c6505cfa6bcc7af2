//! The engine on local disk: one directory, one writer thread, nothing else to install. Knows no HTTP, no tokens
//! and no other engine; only [`store`] beneath it knows the database.
//!
//! - A call is a [`step::Step`], one per verb, each in a file of [`verbs`].
//! - It travels through the [`writer::handle`] to the [`writer`] thread, which takes calls in groups. Each step changes
//!   the [`state`] in memory and a transaction of the [`store`] together; the group is committed and synced once, and
//!   then answered.
//! - What is in memory is a window on what is on disk: the first ready jobs of each queue ([`state::queues`]),
//!   the earliest delayed jobs and all running ones ([`state::timers`]). [`state::load`] rebuilds it.
//! - [`verbs::list_jobs`] reads what may be long beside the writer, from a snapshot.
//! - What the bytes look like is known to [`codec`]; docs/disk-format.md draws them and says why.
//! - [`upkeep`] sweeps, compacts, merges and syncs beside the writer, refuses what is new while the disk is almost
//!   full, keeps the jobs that cannot be read, and makes lists anew that cannot.
//!
//! Imports point one way: `upkeep → verbs → writer → step → state → store`.

mod codec;
mod options;
mod raw;
mod records;
mod state;
mod step;
mod store;
mod upkeep;
mod verbs;
mod writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::timeout;

pub use self::options::{DiskOptions, Sync};
#[doc(hidden)]
pub use self::raw::RawStore;
use self::state::tables::Tables;
use self::state::{Windows, load};
use self::step::{Progress, Step};
use self::store::open::Mark;
pub use self::store::open::{FORMAT, Look, OpenError, look};
pub use self::store::repair::RepairReport;
use self::store::{StoreLimits, open};
use self::upkeep::Sweeper;
use self::upkeep::quarantine::ListQuarantine;
pub use self::upkeep::quarantine::{Quarantined, quarantined};
pub use self::upkeep::rebuild::rebuild_lists;
pub use self::upkeep::repair::repair;
use self::upkeep::space::Room;
use self::upkeep::sweep::ShareStore;
use self::verbs::ack::Ack;
use self::verbs::consume::Consume;
use self::verbs::dead_letter::{DeleteDead, RespawnOldest, TakenDead};
use self::verbs::delays;
use self::verbs::destroy::{Destroy, Rest};
use self::verbs::give_back::GiveBack;
use self::verbs::hand_over::{GiveUp, Touch};
use self::verbs::inspect::{Inspect, InspectKey};
use self::verbs::keys::{CancelKey, Recall};
use self::verbs::list_jobs::Lists;
use self::verbs::list_queues::ListQueues;
use self::verbs::pause::{Paused, SetPause};
use self::verbs::peek::Peek;
use self::verbs::publish::Publish;
use self::verbs::pump::Pump;
use self::verbs::quotas::SetQuotas;
use self::verbs::respawn_jobs::RespawnJobs;
use self::verbs::schedules::{ListSchedules, ReadDue, StepSchedule};
use self::verbs::stats::{Page, ReadFigures, ReadSize, ReadSizes};
use self::writer::handle::Handle;
use self::writer::heartbeat::Heartbeat;
use self::writer::poison::Poison;
use self::writer::threads::Stop;
use self::writer::{Writer, heartbeat, mailbox, threads};
use super::backup::{Backup, StoreCopy};
use super::batch::BatchLimit;
use super::delays::{DelayCount, Delays};
use super::next_due::NextDue;
use super::notifier::{Notifier, Notifiers};
use super::observer::{Observer, Observers};
use super::{
    By, Consumed, Detail, DueList, DueSchedules, Engine, Held, JobList, JobPage, Once, Pause, Pausing,
    Publication, Published, Pumped, QueuePage, QueueSize, Quotas, Release, Released, Respawn, Respawned,
    ScheduleList, SchedulePage, ScheduleStep, ScheduleThen, Size, SizeOf, Stats, Stepped, Touched, Tries,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList, QueueName};

pub(crate) use self::records::{Change, META_SECRET, QUOTA, Records, Table, put_short, take_short};

/// One group: large enough that a sync is shared by many, small enough that the first need not wait long.
const GROUP: BatchLimit = BatchLimit { items: 2048, bytes: 8 << 20 };

/// The engine. Dropping it ends its threads; [`close`](Engine::close) does so without blocking the runtime.
#[derive(Debug)]
pub struct DiskEngine {
    handle: Handle,
    notifiers: Arc<Notifiers>,
    observers: Arc<Observers>,
    next_due: Arc<NextDue>,
    tables: Arc<Mutex<Tables>>,
    lists: Lists,
    /// A count may take long, and takes no list's turn.
    counts: Lists,
    room: Arc<Room>,
    pump: usize,
    stop: Arc<Stop>,
    threads: Arc<Mutex<Threads>>,
}

#[derive(Debug)]
struct Threads {
    upkeep: Vec<JoinHandle<()>>,
    writer: Option<JoinHandle<Option<u64>>>,
    /// Held until the database is closed.
    mark: Option<Mark>,
}

/// How long a new quota waits for the count of what is stored.
const COUNTED: Duration = Duration::from_millis(800);
/// How long a close waits for a thread of a store that has failed: it may hang in the disk for ever.
const FAILED_PATIENCE: Duration = Duration::from_secs(1);

impl Threads {
    /// Waits for all to end: first for the writer, when its last call is served. What the others do changes nothing of
    /// what is stored, so the store is marked as closed before they have ended.
    fn join(&mut self, poison: &Poison) {
        if let Some(writer) = self.writer.take() {
            let last = ended(writer, poison).flatten();
            if let (Some(number), Some(mark)) = (last, &mut self.mark)
                && let Err(e) = mark.close(number)
            {
                tracing::warn!(error = %e, "the disk store is closed, but could not be marked so");
            }
        }
        for thread in self.upkeep.drain(..) {
            ended(thread, poison);
        }
        // The directory is free.
        self.mark = None;
    }
}

/// Waits for the end of a thread, and answers with it. `None` after a panic, which was logged and has poisoned the
/// store, and for a thread of a store that has failed and does not end.
fn ended<T>(thread: JoinHandle<T>, poison: &Poison) -> Option<T> {
    let mut failed: Option<Instant> = None;
    while !thread.is_finished() {
        if poison.error().is_some() && failed.get_or_insert_with(Instant::now).elapsed() > FAILED_PATIENCE {
            tracing::error!(thread = thread.thread().name(), "a thread hangs in the disk and is left behind");
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    thread.join().ok()
}

impl DiskEngine {
    /// Opens the directory and starts the threads. Reads the running jobs, and after an unclean end the keys of
    /// every list: some seconds for ten million jobs. Blocks; the errors say what to do.
    pub fn open(options: DiskOptions) -> Result<Arc<DiskEngine>, OpenError> {
        let limits = StoreLimits { open_tables: options.open_tables, cache: options.cache };
        let (store, mark) = open::open(&options.path, limits)?;
        let closed = mark.was_closed();
        let windows = Windows {
            ready: options.ready_window.max(1),
            ready_budget: options.ready_budget,
            delayed: options.delayed_window.max(1),
            idle: options.forget_queues_after,
        };
        let state = load::load(store.clone(), options.clock, windows, closed)
            .map_err(|e| OpenError::Damaged(options.path.clone(), e.0))?;
        let (ops, calls) = mailbox::mailbox(options.waiting, GROUP);
        let handle = Handle { ops, poison: Arc::default(), clock: state.clock.clone() };
        // From here on whoever returns early drops the engine, and that ends the threads.
        let engine = DiskEngine {
            handle: handle.clone(),
            notifiers: Arc::default(),
            observers: state.observers.clone(),
            next_due: state.next_due.clone(),
            tables: state.tables.clone(),
            lists: Lists::default(),
            counts: Lists::default(),
            room: Room::new(&options.path, options.min_free),
            pump: options.pump.max(1),
            stop: Arc::default(),
            threads: Arc::new(Mutex::new(Threads { upkeep: Vec::new(), writer: None, mark: Some(mark) })),
        };
        let mut writer = Writer {
            state,
            calls,
            group: Vec::new(),
            stop: engine.stop.clone(),
            poison: handle.poison.clone(),
            notifiers: engine.notifiers.clone(),
            heartbeat: Arc::default(),
            sync: options.sync == Sync::Always,
        };
        let (stop, poison, room) = (engine.stop.clone(), handle.poison.clone(), engine.room.clone());
        let start = || -> std::io::Result<()> {
            let mut threads = engine.threads.lock();
            let (serving, syncing) = (writer.heartbeat.clone(), Arc::<Heartbeat>::default());
            threads.writer = Some(threads::spawn("disk-writer", &stop, &poison, move || writer.run())?);
            let heartbeats = [("a group of calls", serving), ("a sync", syncing.clone())];
            let (limit, told, fails) = (options.disk_timeout, stop.clone(), poison.clone());
            let notifiers = engine.notifiers.clone();
            // Consumers that wait are answered, instead of waiting for jobs that will not come.
            let watch =
                move || heartbeat::watch(&heartbeats, limit, &told, &fails, || notifiers.notify_all());
            threads.upkeep.push(threads::spawn("disk-watch", &stop, &poison, watch)?);
            let (of, on, told, fails) = (store.clone(), room.clone(), stop.clone(), poison.clone());
            let (sync, hears) = (options.sync == Sync::EverySecond, engine.observers.clone());
            let second = move || upkeep::each_second(&of, sync, (&on, &hears), &syncing, &told, &fails);
            threads.upkeep.push(threads::spawn("disk-second", &stop, &poison, second)?);
            let (of, told, fails) = (store.clone(), stop.clone(), poison.clone());
            let tend = move || upkeep::tend(&of, &told, &fails);
            threads.upkeep.push(threads::spawn("disk-tend", &stop, &poison, tend)?);
            let (of, on, told, fails) = (store.clone(), room.clone(), stop.clone(), poison.clone());
            let merge = move || upkeep::merge(&of, &on, &told, &fails);
            threads.upkeep.push(threads::spawn("disk-merge", &stop, &poison, merge)?);
            if options.upkeep {
                let (told, sweeper) =
                    (stop.clone(), Sweeper { store, handle, room, every: options.upkeep_every });
                let sweep = move || sweeper.run(&told);
                threads.upkeep.push(threads::spawn("disk-sweep", &stop, &poison, sweep)?);
            }
            Ok(())
        };
        start().map_err(|e| OpenError::Io(options.path, e))?;
        Ok(Arc::new(engine))
    }

    /// Tables in the same directory, for tokens and limits.
    pub(crate) fn records(&self) -> Records {
        Records { handle: self.handle.clone(), tables: self.tables.clone() }
    }

    /// Returns when the store is poisoned, and says why: a write or a sync has failed, or a thread has died. What is on
    /// the disk can be told only by opening it anew.
    pub async fn poisoned(&self) -> String {
        self.handle.poison.poisoned().await
    }

    /// Sweeps once: takes out jobs whose ttl has ended and entries that stand for nothing. The engine does this
    /// by itself; this is for tests.
    pub async fn sweep(&self) -> Result<()> {
        let store = self.handle.ask(ShareStore).await?;
        let (handle, room) = (self.handle.clone(), self.room.clone());
        let sweeper = Sweeper { store, handle, room, every: Duration::ZERO };
        // Dropped with the task, so that the store can close.
        tokio::task::spawn_blocking(move || sweeper.all()).await.map_err(Error::away)?
    }

    /// The jobs that cannot be read and are handed out to nobody.
    pub async fn quarantined(&self) -> Result<Vec<Quarantined>> {
        self.handle.ask(ListQuarantine).await
    }

    /// Every queue with its sizes, sorted.
    async fn sizes(&self) -> Result<Vec<QueueSize>> {
        let mut all: Vec<QueueSize> = Vec::new();
        loop {
            let after = all.last().map(|last| last.queue.clone());
            let Page { queues, more } = self.handle.ask(ReadSizes { after }).await?;
            all.extend(queues);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Asks for one step after the other until `limit` is reached or there is no more to do. Answers how many.
    async fn in_steps<S: Step<Reply = TakenDead>>(&self, limit: u64, step: impl Fn(u64) -> S) -> Result<u64> {
        let mut done = 0;
        while done < limit {
            let taken = self.handle.ask(step(limit - done)).await.map_err(|e| e.after(done))?;
            done += taken.jobs;
            if !taken.more {
                break;
            }
        }
        Ok(done)
    }

    /// Tells all threads to end; the writer serves first what waits already.
    fn end(&self) {
        self.stop.tell();
        self.handle.wake();
    }
}

#[async_trait]
impl Backup for DiskEngine {
    async fn copy(&self) -> Result<StoreCopy> {
        // The writer answers when all is committed that was answered before.
        let store = self.handle.ask(ShareStore).await?;
        let copy = move || {
            let dir = store.copy_inside()?;
            Ok(StoreCopy::new(dir, open::MARK))
        };
        let copied = tokio::task::spawn_blocking(copy).await.map_err(Error::away)?;
        copied.map_err(|error: std::io::Error| Error::refused(error))
    }
}

#[async_trait]
impl Engine for DiskEngine {
    fn now(&self) -> Millis {
        self.handle.clock.now()
    }

    async fn publish(&self, publication: Publication) -> Result<Published> {
        if publication.replaces.is_some() {
            self.room.rewrite(publication.bytes())?;
        } else {
            self.room.publish(publication.jobs.len(), publication.bytes())?;
        }
        self.observers.tell(|observer| observer.published_together(publication.jobs.len()));
        self.handle.ask(Publish(publication)).await
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.handle.ask(Recall { queue: queue.clone(), once: once.clone() }).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        self.handle.ask(CancelKey { queue: queue.clone(), key: key.clone() }).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let step = Consume { queues: queues.clone(), ttrs: ttrs.to_vec() };
        self.handle.ask(step).await
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let jobs =
            jobs.into_iter().map(|job| (JobRef { queue: job.queue, id: job.id }, job.receipt, job.ttl));
        self.handle.ask(GiveBack(jobs.collect())).await
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        let queue = queue.clone();
        self.observers.tell(|observer| observer.acked_together(jobs.len()));
        match jobs {
            [one] => self.handle.ask(Ack { queue, jobs: [*one] }).await,
            jobs => self.handle.ask(Ack { queue, jobs: jobs.to_vec() }).await,
        }
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        self.handle.ask(Touch { job: job.clone(), receipt, ttr }).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        // Back to the head of its queue it takes no more than a consume, and else its body is stored again.
        if let Some(reason) = &release.reason {
            self.room.rewrite(reason.as_str().len())?;
        } else if !release.delay.is_zero() || release.tries == Tries::Forfeit {
            self.room.rewrite(0)?;
        }
        self.handle.ask(GiveUp { job: job.clone(), receipt, release }).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        loop {
            if let Progress::Done(job) = self.handle.ask(Peek(queue.clone())).await? {
                return Ok(job);
            }
        }
    }

    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        let queue = queue.clone();
        match by {
            By::Id(id) => self.handle.ask(Inspect { job: JobRef { queue, id }, detail }).await,
            By::Key(key) => self.handle.ask(InspectKey { queue, key: key.clone(), detail }).await,
        }
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        self.lists.jobs(&self.handle, queue, list).await
    }

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        self.handle.ask(ReadSize { queue: queue.clone(), of }).await
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        let mut from: Option<Rest> = None;
        loop {
            let done = from.map_or(0, |rest| rest.done);
            from =
                self.handle.ask(Destroy { queue: queue.clone(), from }).await.map_err(|e| e.after(done))?;
            if from.is_none() {
                return Ok(());
            }
        }
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        self.room.rewrite(0)?;
        let (jobs, revival) = match which {
            Respawn::Oldest { limit, ttl } => {
                let step = |limit| RespawnOldest { queue: queue.clone(), limit, ttl };
                let count = self.in_steps(limit, step).await?;
                return Ok(Respawned { count, each: Vec::new() });
            }
            Respawn::Jobs(jobs, revival) => (jobs, revival),
        };
        let mut each = Vec::with_capacity(jobs.len());
        while let rest @ [_, ..] = &jobs[each.len()..] {
            let step = RespawnJobs { queue: queue.clone(), jobs: rest.to_vec(), revival };
            let some = self.handle.ask(step).await.map_err(|e| e.after(each.len() as u64))?;
            each.extend(some);
        }
        Ok(Respawned::of(each))
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.in_steps(limit, |limit| DeleteDead { queue: queue.clone(), limit }).await
    }

    async fn pause(&self, queue: &Queue, pausing: Pausing) -> Result<Option<Pause>> {
        self.handle.ask(SetPause { queue: queue.clone(), pausing }).await
    }

    async fn pauses(&self) -> Result<BTreeMap<Queue, Pause>> {
        self.handle.ask(Paused).await
    }

    async fn pump(&self) -> Result<Pumped> {
        self.handle.ask(Pump(self.pump)).await
    }

    async fn due_earlier(&self) {
        self.next_due.earlier().await;
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let (namespace, after) = (namespace.clone(), after.cloned());
        self.handle.ask(ListQueues { namespace, after, limit }).await
    }

    async fn stats(&self) -> Result<Stats> {
        let (figures, queues) = (self.handle.ask(ReadFigures).await?, self.sizes().await?);
        let mut gauges = figures.gauges;
        gauges.push(("disk_free_bytes", self.room.free() as f64));
        gauges.push(("disk_full", f64::from(u8::from(self.room.is_low()))));
        Ok(Stats { timers: figures.timers, overdue: figures.overdue, queues, gauges })
    }

    async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        let store = self.handle.ask(ShareStore).await?;
        let (count, now, stop) = (count.clone(), self.handle.clock.now_micros(), self.stop.clone());
        let counted = self.counts.beside(&self.handle, move || delays::count(&store, &count, now, &stop));
        counted.await?.ok_or(Error::Closed)
    }

    async fn set_quotas(&self, quotas: &Quotas) -> Result<()> {
        let Some(count) = self.handle.ask(SetQuotas { quotas: quotas.clone() }).await? else { return Ok(()) };
        let (handle, stop) = (self.handle.clone(), self.stop.clone());
        // A thread that blocks goes on when nobody waits for it; a count that has no thread yet is asked for again.
        let counted = self.counts.beside(&self.handle, move || count.run(&handle, &stop));
        timeout(COUNTED, counted).await.unwrap_or(Err(Error::Overloaded))
    }

    async fn step_schedule(&self, step: ScheduleStep) -> Result<Stepped> {
        if let ScheduleThen::Put(put) = &step.then {
            let job = put.job.as_ref().map(|job| (job.jobs.len(), job.bytes()));
            let new = put.setting.as_ref().map(|setting| (0, setting.text.len() + setting.body.len()));
            if let Some((jobs, bytes)) = job.or(new) {
                self.room.publish(jobs, bytes)?;
            }
        }
        self.handle.ask(StepSchedule(step)).await
    }

    async fn list_schedules(&self, namespace: &Namespace, list: ScheduleList) -> Result<SchedulePage> {
        self.handle.ask(ListSchedules { namespace: namespace.clone(), list }).await
    }

    async fn due_schedules(&self, list: DueList) -> Result<DueSchedules> {
        self.handle.ask(ReadDue(list)).await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.notifiers.attach(notifier);
    }

    /// Nobody else writes to this store: whoever makes a job ready here notifies.
    fn watch(&self, _: &Queue) {}

    fn observe(&self, observer: Arc<dyn Observer>) {
        self.observers.attach(observer);
    }

    async fn check(&self) -> Result<()> {
        self.handle.check().await
    }

    async fn close(&self) {
        self.end();
        let (threads, poison) = (self.threads.clone(), self.handle.poison.clone());
        // A list that hangs in the disk is left behind.
        let failed = async {
            poison.poisoned().await;
            tokio::time::sleep(FAILED_PATIENCE).await;
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(self.lists.ended(), self.counts.ended()) } => {}
            () = failed => {}
        }
        // Blocks for the last sync, and for a compaction that has begun.
        let _ = tokio::task::spawn_blocking(move || threads.lock().join(&poison)).await;
    }
}

impl Drop for DiskEngine {
    /// Closes as [`close`](Engine::close) does, without the runtime. Whoever reads and changes
    /// [`Records`] may live on, so the writer would not end by itself.
    fn drop(&mut self) {
        self.end();
        self.threads.lock().join(&self.handle.poison);
    }
}
