//! The engine on local disk: one directory, one writer thread, nothing else to install. Knows no HTTP, no tokens
//! and no other engine; only [`store`] beneath it knows the database.
//!
//! - A call is a [`step::Step`], one per verb, each in a file that is named as in the Redis engine. It travels
//!   as an [`op`] through the [`handle`] to the [`writer`] thread.
//! - The writer takes calls in groups. Each step changes the [`state`] in memory and a transaction of the
//!   [`store`] together; the group is committed and synced once, and then answered.
//! - What is in memory is a window on what is on disk: the first ready jobs of each queue ([`state::queues`]),
//!   the earliest delayed jobs and all running ones ([`state::timers`]). [`state::load`] rebuilds it.
//! - What the bytes look like is known to [`store::codec`]; docs/disk-format.md draws them and says why.
//! - [`upkeep`] sweeps, compacts and syncs beside the writer. [`threads`] watches all of these threads.

mod ack;
mod consume;
mod dead_letter;
mod destroy;
mod give_back;
mod handle;
mod op;
mod peek;
mod poison;
mod publish;
mod pump;
mod records;
mod state;
mod stats;
mod step;
mod store;
mod sweep;
mod threads;
mod upkeep;
mod writer;

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use self::ack::Ack;
use self::consume::Consume;
use self::dead_letter::{DeleteDead, ReadDeadLetter, Respawn, Taken};
use self::destroy::Destroy;
use self::give_back::GiveBack;
use self::handle::Handle;
use self::op::Op;
use self::peek::{Peek, PeekJob};
use self::publish::{Publish, Republish};
use self::pump::Pump;
use self::state::tables::Tables;
use self::state::{Windows, load};
use self::stats::{ListQueues, ReadStats, Size};
use self::step::{Progress, Step};
use self::store::open;
use self::store::open::Mark;
pub use self::store::open::OpenError;
pub use self::store::repair::{Report as RepairReport, repair};
use self::sweep::{Position, Report, Sweep};
use self::threads::Stop;
use self::writer::Writer;
use super::batch::{self, BatchLimit};
use super::next_due::NextDue;
use super::notifier::{Notifier, Notifiers};
use super::{Consumed, DeadLetter, Engine, Pumped, Stats};
use crate::clock::{Clock, Millis};
use crate::error::Result;
use crate::job::{Job, JobRef, NewJob};
use crate::name::{Queue, QueueList};

pub(crate) use self::records::{Change, Records, Table};

/// When what was written reaches the disk itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Before it is answered: what was answered survives the machine.
    #[default]
    Always,
    /// Each second: it survives the process, and a failing machine loses a second at most.
    EverySecond,
}

/// How to open a [`DiskEngine`].
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The directory; made if it is not there. Only one process may have it open.
    pub path: PathBuf,
    pub sync: Sync,
    /// The machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// How many calls may wait for the writer; the next gets [`Error::Overloaded`](crate::error::Error::Overloaded).
    pub waiting: usize,
    /// How many ready jobs of each queue are kept in memory (64 bytes each); up to twice as many after jobs were
    /// given back.
    pub ready_window: usize,
    /// How many delayed jobs are kept in memory (about 150 bytes each).
    pub delayed_window: usize,
    /// How many files of tables may stay open; at least 10. Those beyond it are opened when they are read.
    pub open_tables: usize,
    /// How long an empty queue's name is remembered.
    pub forget_queues_after: Duration,
    /// Whether to sweep and compact in the background. Tests that count sweep by hand.
    pub upkeep: bool,
    /// How long upkeep rests between two sweeps.
    pub upkeep_every: Duration,
}

impl DiskOptions {
    /// The defaults, synced always.
    pub fn new(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> DiskOptions {
        DiskOptions {
            path: path.into(),
            sync: Sync::Always,
            clock,
            waiting: 16384,
            ready_window: 4096,
            delayed_window: 16384,
            open_tables: 900,
            forget_queues_after: Duration::from_secs(600),
            upkeep: true,
            upkeep_every: Duration::from_secs(5),
        }
    }
}

/// One group: large enough that a sync is shared by many, small enough that the first need not wait long.
const GROUP: BatchLimit = BatchLimit { items: 2048, bytes: 8 << 20 };

/// The engine. Dropping it ends its threads; [`close`](Engine::close) does so without blocking the runtime.
#[derive(Debug)]
pub struct DiskEngine {
    handle: Handle,
    notifiers: Arc<Notifiers>,
    next_due: Arc<NextDue>,
    tables: Arc<Mutex<Tables>>,
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

impl Threads {
    /// Waits for all to end: the writer when its last call is served.
    fn join(&mut self) {
        for thread in self.upkeep.drain(..) {
            // A panic was logged, and has poisoned the store.
            let _ = thread.join();
        }
        let Some(writer) = self.writer.take() else { return };
        let last = writer.join().ok().flatten();
        if let (Some(number), Some(mut mark)) = (last, self.mark.take())
            && let Err(e) = mark.close(number)
        {
            tracing::warn!(error = %e, "the disk store is closed, but could not be marked so");
        }
    }
}

impl DiskEngine {
    /// Opens the directory and starts the threads. Reads the keys of every list: a second for some million
    /// jobs. Blocks; the errors say what to do.
    pub fn open(options: DiskOptions) -> Result<Arc<DiskEngine>, OpenError> {
        let (store, mark) = open::open(&options.path, options.open_tables)?;
        let windows = Windows {
            ready: options.ready_window.max(1),
            delayed: options.delayed_window.max(1),
            idle: options.forget_queues_after,
        };
        let state = load::load(store.clone(), options.clock, windows)
            .map_err(|e| OpenError::Damaged(options.path.clone(), e.0))?;
        let (ops, calls) = batch::channel(options.waiting, GROUP);
        let handle = Handle { ops, poison: Arc::default(), clock: state.clock.clone() };
        // From here on whoever returns early drops the engine, and that ends the threads.
        let engine = DiskEngine {
            handle: handle.clone(),
            notifiers: Arc::default(),
            next_due: state.next_due.clone(),
            tables: state.tables.clone(),
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
            sync: options.sync == Sync::Always,
        };
        let (stop, poison) = (engine.stop.clone(), handle.poison.clone());
        let start = || -> std::io::Result<()> {
            let mut threads = engine.threads.lock();
            threads.writer = Some(threads::spawn("disk-writer", &stop, &poison, move || writer.run())?);
            if options.sync == Sync::EverySecond {
                let (store, told, poison) = (store.clone(), stop.clone(), poison.clone());
                let syncer = move || upkeep::sync(&store, &told, &poison);
                threads.upkeep.push(threads::spawn("disk-sync", &stop, &handle.poison, syncer)?);
            }
            if options.upkeep {
                let (told, every) = (stop.clone(), options.upkeep_every);
                let sweeper = move || upkeep::sweep(&store, &handle, &told, every);
                threads.upkeep.push(threads::spawn("disk-sweep", &stop, &poison, sweeper)?);
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

    /// Returns when the store is poisoned, and says why: a write or a sync has failed, or a thread has died. The
    /// process should end: what is on the disk can be told only by opening it anew.
    pub async fn poisoned(&self) -> String {
        self.handle.poison.poisoned().await
    }

    /// Sweeps once: takes out jobs whose ttl has ended and entries that stand for nothing. The engine does this
    /// by itself; this is for tests.
    pub async fn sweep(&self) -> Result<()> {
        let mut from = Position::default();
        loop {
            let swept = self.handle.ask(Sweep { from, report: Report::default() }).await?;
            if swept.done {
                return Ok(());
            }
            from = swept.next;
        }
    }

    /// Asks for one step after the other until `limit` is reached or there is no more to do. Answers how many.
    async fn in_steps<S: Step<Reply = Taken>>(&self, limit: u64, step: impl Fn(u64) -> S) -> Result<u64> {
        let mut done = 0;
        while done < limit {
            let taken = self.handle.ask(step(limit - done)).await?;
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
impl Engine for DiskEngine {
    fn now(&self) -> Millis {
        self.handle.clock.now()
    }

    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()> {
        self.handle.ask_as(Op::Publish, Publish(jobs)).await
    }

    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        self.handle.ask(Republish { old, new }).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let step = Consume { queues: queues.clone(), ttrs: ttrs.to_vec() };
        self.handle.ask_as(Op::Consume, step).await
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let jobs = jobs.into_iter().map(|job| (JobRef { queue: job.queue, id: job.id }, job.receipt));
        self.handle.ask(GiveBack(jobs.collect())).await
    }

    async fn ack(&self, job: JobRef) -> Result<()> {
        self.handle.ask_as(Op::Ack, Ack(job)).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        loop {
            if let Progress::Done(job) = self.handle.ask(Peek(queue.clone())).await? {
                return Ok(job);
            }
        }
    }

    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        self.handle.ask(PeekJob(job.clone())).await
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        self.handle.ask(Size(queue.clone())).await
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        let mut from = None;
        loop {
            from = self.handle.ask(Destroy { queue: queue.clone(), from }).await?;
            if from.is_none() {
                return Ok(());
            }
        }
    }

    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        self.handle.ask(ReadDeadLetter(queue.clone())).await
    }

    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        self.in_steps(limit, |limit| Respawn { queue: queue.clone(), limit, ttl }).await
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.in_steps(limit, |limit| DeleteDead { queue: queue.clone(), limit }).await
    }

    async fn pump(&self, limit: usize) -> Result<Pumped> {
        self.handle.ask(Pump(limit)).await
    }

    async fn due_earlier(&self) {
        self.next_due.earlier().await;
    }

    async fn queues(&self) -> Result<Vec<Queue>> {
        self.handle.ask(ListQueues).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.handle.ask(ReadStats).await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.notifiers.attach(notifier);
    }

    /// Nobody else writes to this store: whoever makes a job ready here notifies.
    fn watch(&self, _: &Queue) {}

    async fn check(&self) -> Result<()> {
        self.handle.check().await
    }

    async fn close(&self) {
        self.end();
        let threads = Arc::clone(&self.threads);
        // Blocks for the last sync, and for a compaction that has begun.
        let _ = tokio::task::spawn_blocking(move || threads.lock().join()).await;
    }
}

impl Drop for DiskEngine {
    /// Closes as [`close`](Engine::close) does, without the runtime. Whoever reads and changes
    /// [`Records`] may live on, so the writer would not end by itself.
    fn drop(&mut self) {
        self.end();
        self.threads.lock().join();
    }
}
