//! The engine on local disk: one directory, one writer thread, nothing else to install. Knows no HTTP and no
//! other engine; only store.rs and files.rs beneath it know the database.
//!
//! Every call becomes an [`op`] that the [`writer`] takes, in groups: it changes its state in memory
//! ([`core`]) and a transaction ([`store`]) together, commits and syncs once for the group, and then answers.
//! What is in memory is a window on what is on disk: the first ready jobs of each queue ([`queues`]), the
//! earliest delayed jobs and all running ones ([`timers`]); [`load`] rebuilds it. What the bytes look like is
//! [`codec`]'s alone; docs/disk-format.md draws them and says why they are so.

mod consume;
mod dead_letter;
mod handle;
mod op;
mod poison;
mod publish;
mod pump;
mod state;
mod store;
mod sweep;
mod tokens;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use self::op::Report;
use self::store::open::Mark;
pub use self::store::open::OpenError;
use self::store::upkeep::Task;
use self::store::{open, upkeep};
use self::writer::Writer;
use super::batch::{self, BatchLimit};
use super::next_due::NextDue;
use super::notifier::{Bell, Bells};
use super::{DeadLetter, Engine, Pumped, Stats, Want};
use crate::admin::disk::DiskAdmin;
use crate::clock::{Clock, Millis};
use crate::error::{Error, Result};
use crate::job::{Job, JobRef, NewJob};
use crate::name::{Queue, QueueList};

pub(crate) use self::handle::Handle;
pub(crate) use self::op::{AdminOp, Answer, Op};
pub(crate) use self::tokens::Tokens;

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
    /// The pool's clock.
    pub clock: Arc<dyn Clock>,
    /// How many calls may wait for the writer; the next gets [`Error::Overloaded`].
    pub waiting: usize,
    /// How many ready jobs of each queue are kept in memory (48 bytes each).
    pub ready_window: usize,
    /// How many delayed jobs are kept in memory (about 120 bytes each).
    pub delayed_window: usize,
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
            forget_queues_after: Duration::from_secs(600),
            upkeep: true,
            upkeep_every: Duration::from_secs(5),
        }
    }
}

/// One group: large enough that a sync is shared by many, small enough that the first need not wait long.
const GROUP: BatchLimit = BatchLimit { items: 2048, bytes: 8 << 20 };

/// The engine. Dropping it ends its threads; [`close`](Engine::close) does so in order.
#[derive(Debug)]
pub struct DiskEngine {
    handle: Handle,
    bells: Arc<Bells>,
    next_due: Arc<NextDue>,
    tokens: Arc<Mutex<Tokens>>,
    threads: Arc<Mutex<Threads>>,
}

#[derive(Debug)]
struct Threads {
    upkeep: Vec<Task>,
    writer: Option<JoinHandle<Option<u64>>>,
    /// Held until the database is closed.
    mark: Option<Mark>,
}

impl Threads {
    /// Waits for all to end: the writer when its last call is served.
    fn join(&mut self) {
        for task in &mut self.upkeep {
            task.end();
        }
        self.upkeep.clear();
        let Some(writer) = self.writer.take() else { return };
        // It poisoned the store if it died of a panic.
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
        let (store, mark) = open::open(&options.path)?;
        let windows = state::Windows {
            ready: options.ready_window.max(1),
            delayed: options.delayed_window.max(1),
            idle: options.forget_queues_after,
        };
        let core = open::load(store.clone(), options.clock, windows)
            .map_err(|e| OpenError::Damaged(options.path.clone(), e.0))?;
        let (caller, calls) = batch::channel(options.waiting, GROUP);
        let handle = Handle { caller, poison: Arc::default(), clock: core.clock.clone() };
        let (bells, next_due, tokens) = (Arc::default(), core.next_due.clone(), core.tokens.clone());
        let writer = Writer {
            core,
            calls,
            poison: handle.poison.clone(),
            bells: Arc::clone(&bells),
            sync: options.sync == Sync::Always,
        };
        let io = |e| OpenError::Io(options.path.clone(), e);
        let writer = std::thread::Builder::new()
            .name("disk-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(io)?;
        let mut threads = Threads { upkeep: Vec::new(), writer: Some(writer), mark: Some(mark) };
        if options.sync == Sync::EverySecond {
            threads.upkeep.push(upkeep::syncer(store.clone(), handle.poison.clone()).map_err(io)?);
        }
        if options.upkeep {
            threads.upkeep.push(upkeep::sweeper(store, handle.clone(), options.upkeep_every).map_err(io)?);
        }
        let threads = Arc::new(Mutex::new(threads));
        Ok(Arc::new(DiskEngine { handle, bells, next_due, tokens, threads }))
    }

    /// Tokens and limits, in the same directory.
    pub fn admin_store(&self) -> Arc<DiskAdmin> {
        Arc::new(DiskAdmin::new(self.handle.clone(), self.tokens.clone()))
    }

    /// Returns when a write or a sync has failed, and says why. The process should end: what is on the disk
    /// can be told only by opening it anew.
    pub async fn poisoned(&self) -> String {
        self.handle.poison.thrown().await
    }

    /// Sweeps once from where the last sweep ended to the end: takes out jobs whose life has ended and
    /// entries that stand for nothing. The engine does this by itself; this is for tests.
    pub async fn sweep(&self) -> Result<()> {
        while !upkeep::step(&self.handle, Report::default()).await?.done {}
        Ok(())
    }
}

#[async_trait]
impl Engine for DiskEngine {
    fn now(&self) -> Millis {
        self.handle.clock.now()
    }

    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()> {
        self.handle.tell(Op::Publish(jobs)).await
    }

    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        self.handle.tell(Op::Republish(old, Box::new(new))).await
    }

    async fn consume(&self, queues: &QueueList, wants: &[Want]) -> Result<Vec<Vec<Job>>> {
        loop {
            match self.handle.ask(Op::Consume(queues.clone(), wants.to_vec())).await? {
                Answer::Jobs(lists) => return Ok(lists),
                Answer::Again => {}
                other => return Err(Handle::unexpected(&other)),
            }
        }
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let jobs = jobs.into_iter().map(|job| (JobRef { queue: job.queue, id: job.id }, job.receipt));
        self.handle.tell(Op::GiveBack(jobs.collect())).await
    }

    async fn ack(&self, job: JobRef) -> Result<()> {
        self.handle.tell(Op::Ack(job)).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        loop {
            match self.handle.ask(Op::Peek(queue.clone())).await? {
                Answer::Job(job) => return Ok(job),
                Answer::Again => {}
                other => return Err(Handle::unexpected(&other)),
            }
        }
    }

    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        match self.handle.ask(Op::PeekJob(job.clone())).await? {
            Answer::Job(job) => Ok(job),
            other => Err(Handle::unexpected(&other)),
        }
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        match self.handle.ask(Op::Size(queue.clone())).await? {
            Answer::Count(size) => Ok(size),
            other => Err(Handle::unexpected(&other)),
        }
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        let mut at = None;
        loop {
            match self.handle.ask(Op::Destroy(queue.clone(), at)).await? {
                Answer::Destroying(None) => return Ok(()),
                Answer::Destroying(rest) => at = rest,
                other => return Err(Handle::unexpected(&other)),
            }
        }
    }

    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        match self.handle.ask(Op::DeadLetter(queue.clone())).await? {
            Answer::DeadLetter(dead) => Ok(dead),
            other => Err(Handle::unexpected(&other)),
        }
    }

    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        self.in_steps(limit, |left| Op::Respawn(queue.clone(), left, ttl)).await
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.in_steps(limit, |left| Op::DeleteDead(queue.clone(), left)).await
    }

    async fn pump(&self, limit: usize) -> Result<Pumped> {
        match self.handle.ask(Op::Pump(limit)).await? {
            Answer::Pumped(pumped) => Ok(pumped),
            other => Err(Handle::unexpected(&other)),
        }
    }

    async fn due_earlier(&self) {
        self.next_due.earlier().await;
    }

    async fn queues(&self) -> Result<Vec<Queue>> {
        match self.handle.ask(Op::Queues).await? {
            Answer::Queues(queues) => Ok(queues),
            other => Err(Handle::unexpected(&other)),
        }
    }

    async fn stats(&self) -> Result<Stats> {
        match self.handle.ask(Op::Stats).await? {
            Answer::Stats(stats) => Ok(*stats),
            other => Err(Handle::unexpected(&other)),
        }
    }

    fn attach(&self, bell: Arc<Bell>) {
        self.bells.attach(bell);
    }

    async fn check(&self) -> Result<()> {
        self.handle.tell(Op::Check).await
    }

    async fn close(&self) {
        // An error says that it is closed or poisoned already.
        while let Err(Error::Overloaded) = self.handle.close().await {
            tokio::task::yield_now().await;
        }
        let threads = Arc::clone(&self.threads);
        // Blocks for the last sync, and for a compaction that has begun.
        let _ = tokio::task::spawn_blocking(move || threads.lock().join()).await;
    }
}

impl Drop for DiskEngine {
    /// Closes as [`close`](Engine::close) does, without the runtime: the admin store may live on, so the writer
    /// would not end by itself.
    fn drop(&mut self) {
        let mut idle = Context::from_waker(Waker::noop());
        // The first poll hands the call over; the answer is not waited for, the thread's end is.
        while let Poll::Ready(Err(Error::Overloaded)) = std::pin::pin!(self.handle.close()).poll(&mut idle) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.threads.lock().join();
    }
}

impl DiskEngine {
    /// Asks for a step until `limit` is reached or there is no more to do. Answers how many.
    async fn in_steps(&self, limit: u64, op: impl Fn(u64) -> Op) -> Result<u64> {
        let mut done = 0;
        while done < limit {
            match self.handle.ask(op(limit - done)).await? {
                Answer::Some(count, more) => {
                    done += count;
                    if !more {
                        break;
                    }
                }
                other => return Err(Handle::unexpected(&other)),
            }
        }
        Ok(done)
    }
}
