//! The engine itself: opens a directory, starts and ends its threads. Knows only the verbs that it needs for itself.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::options::{DiskOptions, Sync};
use super::readers::Readers;
use super::records::Records;
use super::state::{Windows, load};
use super::step::Step;
use super::store::mark::{Mark, OpenError};
use super::store::{StoreLimits, open};
use super::upkeep::space::FreeSpace;
use super::upkeep::sweep::ShareStore;
use super::upkeep::{self, Sweeper};
use super::verbs::dead_letter::TakenDead;
use super::verbs::stats::{Page, ReadSizes};
use super::writer::handle::Handle;
use super::writer::heartbeat::Heartbeat;
use super::writer::poison::Poison;
use super::writer::threads::Stop;
use super::writer::{Writer, heartbeat, mailbox, threads};
use crate::engine::QueueSize;
use crate::engine::batch::BatchLimit;
use crate::engine::notifier::Notifiers;
use crate::engine::observer::Observer;
use crate::error::{Error, Result};

/// Bound of a group: large enough that many calls share a sync, small enough that the first does not wait long.
const GROUP: BatchLimit = BatchLimit { items: 2048, bytes: 8 << 20 };

/// The engine. Dropping it ends its threads; [`close`](crate::engine::Engine::close) does so without blocking the
/// runtime.
#[derive(Debug)]
pub struct DiskEngine {
    pub(super) handle: Handle,
    pub(super) notifiers: Arc<Notifiers>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) readers: Readers,
    pub(super) room: Arc<FreeSpace>,
    pub(super) pump: usize,
    pub(super) stop: Arc<Stop>,
    pub(super) threads: Arc<Mutex<Threads>>,
}

#[derive(Debug)]
pub(super) struct Threads {
    upkeep: Vec<JoinHandle<()>>,
    writer: Option<JoinHandle<Option<u64>>>,
    /// Held until the database is closed.
    mark: Option<Mark>,
}

/// How long a close waits for a thread of a failed store, which may hang in the disk forever.
pub(super) const FAILED_PATIENCE: Duration = Duration::from_secs(1);

impl Threads {
    /// Waits for all threads to end: first for the writer, which serves its last call. The others do not change
    /// stored data, so the store is marked as closed before they have ended.
    pub(super) fn join(&mut self, poison: &Poison) {
        let mut all_ended = true;
        if let Some(writer) = self.writer.take() {
            let last = ended(writer, poison);
            all_ended &= last.is_some();
            if let (Some(Ok(Some(number))), Some(mark)) = (last, &mut self.mark)
                && let Err(e) = mark.close(number)
            {
                tracing::warn!(error = %e, "the disk store is closed, but could not be marked as closed");
            }
        }
        for thread in self.upkeep.drain(..) {
            all_ended &= ended(thread, poison).is_some();
        }
        match self.mark.take() {
            // A write that hangs in the disk may still happen, so the directory stays locked until this process has
            // ended.
            Some(mark) if !all_ended => std::mem::forget(mark),
            // The directory is free.
            mark => drop(mark),
        }
    }
}

/// Waits for the end of a thread, and returns its result: an error after a panic, which was logged and has poisoned
/// the store. `None` for a thread of a failed store that does not end.
fn ended<T>(thread: JoinHandle<T>, poison: &Poison) -> Option<std::thread::Result<T>> {
    let mut failed: Option<Instant> = None;
    while !thread.is_finished() {
        if poison.error().is_some() && failed.get_or_insert_with(Instant::now).elapsed() > FAILED_PATIENCE {
            tracing::error!(
                thread = thread.thread().name(),
                "a thread is blocked by the disk; the store closes without it"
            );
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(thread.join())
}

impl DiskEngine {
    /// Opens the directory and starts the threads. Reads the running jobs, and after an unclean shutdown the keys of
    /// every list: some seconds for ten million jobs. Blocks; errors say what to do.
    pub fn open(options: DiskOptions) -> Result<Arc<DiskEngine>, OpenError> {
        let limits = StoreLimits { open_tables: options.open_tables, cache: options.cache };
        let (store, mark) = open::open(&options.path, limits)?;
        if let Some(damage) = store.merge_overdue() {
            return Err(OpenError::Damaged(options.path, damage));
        }
        let closed = mark.was_closed();
        let windows = Windows {
            ready: options.ready_window.max(1),
            ready_budget: options.ready_budget,
            delayed: options.delayed_window.max(1),
            idle: options.forget_queues_after,
            dead: options.dead_ttl,
        };
        let mut state = load::load(store.clone(), options.clock, windows, closed)
            .map_err(|e| OpenError::Damaged(options.path.clone(), e.0))?;
        state.observer = options.observer.clone();
        let (ops, calls) = mailbox::mailbox(options.waiting, GROUP);
        let handle = Handle { ops, poison: Arc::default(), clock: state.clock.clone() };
        // From here on an early return drops the engine, which ends the threads.
        let engine = DiskEngine {
            handle: handle.clone(),
            notifiers: state.notifiers.clone(),
            observer: options.observer.clone(),
            readers: Readers::default(),
            room: FreeSpace::new(&options.path, options.min_free),
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
            // Wakes waiting consumers with an error, since no jobs will come.
            let watch =
                move || heartbeat::watch(&heartbeats, limit, &told, &fails, || notifiers.notify_all());
            threads.upkeep.push(threads::spawn("disk-watch", &stop, &poison, watch)?);
            let (of, on, told, fails) = (store.clone(), room.clone(), stop.clone(), poison.clone());
            let (sync, hears) = (options.sync == Sync::EverySecond, engine.observer.clone());
            let second = move || upkeep::each_second(&of, sync, (&on, &*hears), &syncing, &told, &fails);
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

    /// Returns the settings in the same directory.
    pub(crate) fn records(&self) -> Records {
        Records { handle: self.handle.clone(), room: self.room.clone() }
    }

    /// Waits until the store is poisoned, and returns the reason: a write or a sync has failed, or a thread has died.
    /// The state of the disk is then unknown until it is opened again.
    pub async fn poisoned(&self) -> String {
        self.handle.poison.poisoned().await
    }

    /// Sweeps once: deletes expired jobs and stale entries. For tests; the engine sweeps by itself.
    pub async fn sweep(&self) -> Result<()> {
        let store = self.handle.ask(ShareStore).await?;
        let (handle, room) = (self.handle.clone(), self.room.clone());
        let sweeper = Sweeper { store, handle, room, every: Duration::ZERO };
        // Dropped with the task, so that the store can close.
        tokio::task::spawn_blocking(move || sweeper.all()).await.map_err(Error::away)?
    }

    /// Returns every queue with its sizes, sorted.
    pub(super) async fn sizes(&self) -> Result<Vec<QueueSize>> {
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

    /// Runs steps until `limit` is reached or nothing is left. Returns the number of jobs.
    pub(super) async fn in_steps<S: Step<Reply = TakenDead>>(
        &self,
        limit: u64,
        step: impl Fn(u64) -> S,
    ) -> Result<u64> {
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

    /// Tells all threads to end; the writer first serves the waiting calls.
    pub(super) fn end(&self) {
        self.stop.signal();
        self.handle.wake();
    }
}

impl Drop for DiskEngine {
    /// Closes like [`close`](crate::engine::Engine::close), without the runtime. [`Records`] may outlive the engine,
    /// so the writer would not end by itself.
    fn drop(&mut self) {
        self.end();
        self.threads.lock().join(&self.handle.poison);
    }
}
