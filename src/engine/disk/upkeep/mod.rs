//! The background threads of the engine: one syncs and measures free disk space, one flushes memory, one sweeps and
//! compacts, and one merges. They end when stopped or when the store is poisoned.

pub mod quarantine;
pub mod rebuild;
pub mod repair;
pub mod space;
pub mod sweep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::space::FreeSpace;
use self::sweep::{Forget, Scan, SweepPlan, UpkeepReport};
use crate::clock::Micros;
use crate::engine::disk::state::garbage::Upkeep;
use crate::engine::disk::store::merge::{Merged, Shape};
use crate::engine::disk::store::tend::Tended;
use crate::engine::disk::store::{Fatal, Space, Store};
use crate::engine::disk::writer::handle::Handle;
use crate::engine::disk::writer::heartbeat::Heartbeat;
use crate::engine::disk::writer::poison::Poison;
use crate::engine::disk::writer::threads::Stop;
use crate::engine::observer::Observer;
use crate::error::Error;

/// Interval of syncs, for a store that does not sync before each reply, and of measuring free disk space.
const SECOND: Duration = Duration::from_secs(1);
/// Pause between reading two parts of a ready list during a sweep.
const PART_PAUSE: Duration = Duration::from_millis(5);
/// Pause before the first step, and after a step refused because the store is overloaded.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Interval of checking whether there are enough tables to merge.
const MERGE_PAUSE: Duration = Duration::from_millis(100);
/// Pause after a merge or compaction that found the disk full.
const FULL_PAUSE: Duration = Duration::from_secs(60);
/// Pause after a flush that found the disk full.
const FULL_TRY: Duration = Duration::from_secs(5);
/// Maximum time for flushing memory before a compaction.
const WRITE_OUT: Duration = Duration::from_secs(3);
/// A compaction with live entries is followed by a pause of this many times its duration: so compactions use at most a
/// twentieth of the time, however wrong the estimate of the space they free.
const COMPACTION_REST: u32 = 19;

/// Once a second: syncs, if requested; records the last synced group in an idle log; measures free disk space.
pub fn each_second(
    store: &Store,
    sync: bool,
    (room, observer): (&FreeSpace, &dyn Observer),
    heartbeat: &Heartbeat,
    stop: &Stop,
    poison: &Poison,
) {
    let (mut pause, mut last) = (SECOND, 0);
    while !stop.stopped_within(pause) {
        let began = Instant::now();
        let work = heartbeat.work();
        let now = store.last_group();
        let groups = now.abs_diff(std::mem::replace(&mut last, now));
        let rests = groups == 0;
        let done = if sync { store.sync() } else { Ok(()) };
        if sync && !rests {
            observer.synced(began.elapsed(), groups as usize);
        }
        let done = if rests { done.and_then(|()| store.attest()) } else { done };
        drop(work);
        if let Err(Fatal(reason)) = done {
            poison.set(reason);
            return;
        }
        room.measure();
        // Measured between starts, so that a power cut loses at most the writes since the start of the last sync.
        pause = SECOND.saturating_sub(began.elapsed());
    }
}

/// Flushes memory and preallocates log files.
pub fn tend(store: &Store, stop: &Stop, poison: &Poison) {
    let tender = store.tender();
    while !stop.is_stopped() {
        match store.tend() {
            Ok(Tended::Done) => tender.wait(SECOND),
            // The disk is full. Retry often enough that a commit waiting for a flush is not mistaken for a hanging
            // disk.
            Ok(Tended::NotDone) => drop(stop.stopped_within(FULL_TRY)),
            Err(Fatal(reason)) => {
                poison.set(reason);
                return;
            }
        }
    }
}

/// Advice for an unreadable table.
const GIVE_UP: &str = "stop the server and run `dormouse repair` to see the damage";

/// Keyspaces with an unreadable table, with the error; they are no longer merged or compacted.
#[derive(Debug, Default)]
struct Unreadable(Vec<(Space, String)>);

impl Unreadable {
    fn of(&self, space: Space) -> Option<&str> {
        self.0.iter().find(|(of, _)| *of == space).map(|(_, what)| what.as_str())
    }

    fn add(&mut self, store: &Store, space: Space, reason: &str, stop: &Stop) {
        if self.of(space).is_none() {
            let what = store.which_is_holed(space, reason, || stop.is_stopped());
            tracing::error!(
                what,
                "a table is unreadable, so its keyspace is no longer merged, and the store fails when too many \
                 tables are unmerged: {GIVE_UP}"
            );
            self.0.push((space, what));
        }
    }
}

/// Merges tables in the background.
pub fn merge(store: &Store, room: &FreeSpace, stop: &Stop, poison: &Poison) {
    let mut done: [Option<Shape>; Space::ALL.len()] = Default::default();
    let mut unreadable = Unreadable::default();
    let mut pause = MERGE_PAUSE;
    while !stop.stopped_within(pause) {
        pause = MERGE_PAUSE;
        for (space, ..) in Space::ALL {
            let shape = store.shape(space);
            if stop.is_stopped() || done[space as usize] == Some(shape) {
                continue;
            }
            let merged = match unreadable.of(space).is_some() {
                true => None,
                false => Some(store.merge(space, |bytes| room.compact(bytes))),
            };
            match merged {
                None => {}
                Some(Ok(Merged::Some)) => {
                    pause = if pause < SECOND { Duration::ZERO } else { pause };
                    continue;
                }
                Some(Ok(Merged::Nothing)) => {
                    done[space as usize] = Some(shape);
                    continue;
                }
                // Tried again after a pause.
                Some(Ok(Merged::NoRoom)) => pause = pause.max(SECOND),
                Some(Ok(Merged::DiskFull)) => pause = FULL_PAUSE,
                Some(Ok(Merged::Unreadable(reason))) => unreadable.add(store, space, &reason, stop),
                Some(Err(Fatal(reason))) => {
                    poison.set(format!("a merge failed: {reason}"));
                    return;
                }
            }
            // The merge failed.
            if store.too_many_unmerged(space) {
                let why =
                    unreadable.of(space).map(|what| format!(" ({what}: {GIVE_UP})")).unwrap_or_default();
                poison.set(format!("the tables of {space:?} could not be merged for too long{why}"));
                return;
            }
        }
    }
}

/// State of the sweeper thread.
pub struct Sweeper {
    pub store: Store,
    pub handle: Handle,
    pub room: Arc<FreeSpace>,
    /// Interval between sweeps, and between rounds of file maintenance.
    pub every: Duration,
}

impl Sweeper {
    /// Sweeps, and maintains the files as the writer requests.
    pub fn run(&self, stop: &Stop) {
        let (mut pause, mut scan) = (BUSY_PAUSE, None);
        let (mut report, mut next_upkeep, mut next_compaction) =
            (UpkeepReport::default(), Instant::now(), Instant::now());
        let mut unreadable = Unreadable::default();
        while !stop.stopped_within(pause.min(self.every)) {
            let upkeep = Instant::now() >= next_upkeep;
            if scan.is_none() || upkeep {
                report.too_soon = Instant::now() < next_compaction;
                report.is_low = self.room.is_low();
                let asked = SweepPlan { queue: scan.is_none(), upkeep: upkeep.then(|| report.clone()) };
                let work = match self.handle.ask_blocking(asked) {
                    Ok(work) => work,
                    // Overloaded, so upkeep can wait.
                    Err(Error::Overloaded) => {
                        pause = BUSY_PAUSE;
                        continue;
                    }
                    // The store is closed or poisoned.
                    Err(_) => return,
                };
                if upkeep {
                    let began = Instant::now();
                    next_upkeep = began + self.every;
                    report = UpkeepReport::default();
                    match self.work(&work.upkeep, &mut unreadable, stop) {
                        Ok(Some(compacted)) => report.compacted = compacted,
                        Ok(None) => next_upkeep += FULL_PAUSE,
                        Err(Fatal(e)) => {
                            self.handle.poison.set(format!("maintenance of the files failed: {e}"));
                            return;
                        }
                    }
                    // Also if the flush took too long: the retry must not keep the disk busy itself.
                    if !work.upkeep.compact.is_empty() {
                        next_compaction = Instant::now() + COMPACTION_REST * began.elapsed();
                    }
                }
                let more = match self.forget(work.requests) {
                    Ok(more) => more || work.more,
                    Err(Error::Overloaded) => true,
                    Err(_) => return,
                };
                scan = scan.or(work.sweep);
                pause = if more { PART_PAUSE } else { self.every };
            }
            if let Some(one) = scan.take() {
                match self.part(one.clone()) {
                    Ok(rest) => (scan, pause) = (rest, PART_PAUSE),
                    // Retry the same part, since no other sweep would visit it.
                    Err(Error::Overloaded) => (scan, pause) = (Some(one), BUSY_PAUSE),
                    Err(_) => return,
                }
            }
        }
    }

    /// Sweeps one part of a queue. Returns the remaining scan.
    fn part(&self, mut scan: Scan) -> Result<Option<Scan>, Error> {
        let part = match scan.read(&self.store, self.handle.clock.now_micros()) {
            Ok(part) => part,
            Err(Fatal(reason)) => {
                // Consumers of the queue get the same error.
                tracing::error!(reason, "a ready list is unreadable, so its expired jobs are not deleted");
                return Ok(None);
            }
        };
        if !part.remove.is_empty() {
            self.handle.ask_blocking(part.remove)?;
        }
        if !part.done {
            return Ok(Some(scan));
        }
        self.handle.ask_blocking(scan.done())?;
        Ok(None)
    }

    /// Deletes some expired idempotency keys, from the time `from` on. Returns whether there may be more.
    fn forget(&self, from: Option<Micros>) -> Result<bool, Error> {
        let Some(from) = from else { return Ok(false) };
        match Forget::read(&self.store, from, self.handle.clock.now_micros()) {
            Ok(ended) => {
                let more = ended.more();
                self.handle.ask_blocking(ended)?;
                Ok(more)
            }
            Err(Fatal(reason)) => {
                tracing::error!(
                    reason,
                    "the idempotency keys are unreadable, so expired ones are not deleted"
                );
                Ok(false)
            }
        }
    }

    /// Sweeps everything due now without pauses.
    pub fn all(&self) -> Result<(), Error> {
        loop {
            let work = self.handle.ask_blocking(SweepPlan { queue: true, upkeep: None })?;
            let more = self.forget(work.requests)? || work.more;
            let mut scan = work.sweep;
            let none = scan.is_none();
            while let Some(one) = scan {
                scan = self.part(one)?;
            }
            if none && !more {
                return Ok(());
            }
        }
    }

    /// Does the requested file maintenance. Returns the compacted keyspaces, or `None` if the disk was full.
    fn work(
        &self,
        upkeep: &Upkeep,
        unreadable: &mut Unreadable,
        stop: &Stop,
    ) -> Result<Option<Vec<Space>>, Fatal> {
        let store = &self.store;
        // Compaction needs a flush first; if the disk is slow, try again later.
        if upkeep.write_out && store.write_out(WRITE_OUT)? == Tended::NotDone {
            return Ok(Some(Vec::new()));
        }
        let mut compacted = Vec::new();
        for (space, live) in &upkeep.compact {
            // A keyspace without live entries needs no space: its tables are deleted, not rewritten.
            if unreadable.of(*space).is_some() || (*live > 0 && !self.room.compact(*live)) {
                continue;
            }
            match store.compact(*space)? {
                Merged::Some | Merged::Nothing => compacted.push(*space),
                Merged::NoRoom => {}
                Merged::DiskFull => return Ok(None),
                Merged::Unreadable(reason) => unreadable.add(store, *space, &reason, stop),
            }
        }
        Ok(Some(compacted))
    }
}

#[cfg(test)]
mod tests {
    use super::sweep::ShareStore;
    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::batch::BatchLimit;
    use crate::engine::disk::state::clock::PoolClock;
    use crate::engine::disk::state::{Windows, load};
    use crate::engine::disk::step::Step;
    use crate::engine::disk::store::{StoreLimits, open};
    use crate::engine::disk::verbs::publish::Publish;
    use crate::engine::disk::writer::mailbox;
    use crate::engine::disk::writer::op::{Op, StepCall};
    use crate::engine::disk::writer::threads;
    use crate::job::{JobId, NewJob};
    use crate::name::{Namespace, Queue, QueueName};

    /// Guards against expired jobs that stay forever because the writer's mailbox was full when they were swept.
    #[test]
    fn a_sweep_that_the_writer_was_too_busy_for_is_done_later() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let clock = Arc::new(ManualClock::new(1_000_000));
        let windows = Windows {
            ready: 9,
            ready_budget: 9,
            delayed: 9,
            idle: Duration::from_secs(600),
            dead: Duration::ZERO,
        };
        let mut state = load::load(store.clone(), clock.clone(), windows, None).unwrap(); // it is whole
        let queue =
            Queue { namespace: Namespace::parse("ns").unwrap(), name: QueueName::parse("q").unwrap() }; // names
        let job = NewJob {
            queue: queue.clone(),
            id: JobId::from_parts(1_000_000, 1, 0, false),
            body: Default::default(),
            attributes: Default::default(),
            ttl: Some(Duration::from_secs(1)),
            delay: Duration::ZERO,
            tries: std::num::NonZeroU16::MIN,
        };
        let now = state.begin_step().unwrap(); // here and below nothing is wrong with the disk
        assert!(Publish(vec![job].into()).run(&mut state, now).is_ok(), "it is published");
        state.txn.settle(false).unwrap();
        clock.advance(Duration::from_secs(2));
        let (ops, mut calls) = mailbox::mailbox::<Op>(1, BatchLimit { items: 1, bytes: 1 });
        let handle = Handle { ops, poison: Arc::default(), clock: state.clock.clone() };
        let (stop, poison) = (Arc::<Stop>::default(), handle.poison.clone());
        let (told, asked, every) = (stop.clone(), handle.clone(), Duration::from_millis(1));
        let sweeper = Sweeper { store, handle, room: FreeSpace::new(dir.path(), 0), every };
        let body = move || sweeper.run(&told);
        let thread = threads::spawn("disk-sweep", &stop, &poison, body).unwrap(); // there is room for a thread
        let mut group = Vec::new();
        for served in 0..30 {
            calls.next(&mut group);
            // Before the plan is answered, another call takes the only slot of the mailbox, so the sweep finds it full.
            let other = (served == 0).then(|| StepCall::new(ShareStore));
            let _answer = other.map(|(call, answer)| (asked.ops.send(Box::new(call)), answer));
            for mut op in group.drain(..) {
                op.run(&mut state).unwrap();
                state.txn.settle(false).unwrap();
                op.answer(&poison);
            }
            if served == 0 {
                // There is no event for that. If the thread has not got there yet, this test passes without checking
                // anything.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        assert_eq!(state.queues.get(&queue).map(|queue| queue.ready), Some(0), "it has expired");
        stop.signal();
        drop(calls);
        assert!(thread.join().is_ok(), "the sweeper stops without a panic");
    }

    #[test]
    fn a_sweep_that_ends_while_the_store_is_open_poisons_it() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let (ops, calls) = mailbox::mailbox::<Op>(1, BatchLimit { items: 1, bytes: 1 });
        let clock = PoolClock::new(Arc::new(ManualClock::new(0)), 0);
        let handle = Handle { ops, poison: Arc::default(), clock };
        let (stop, poison) = (Arc::<Stop>::default(), handle.poison.clone());
        let told = stop.clone();
        // The mailbox has no receiver.
        drop(calls);
        let sweeper = Sweeper { store, handle, room: FreeSpace::new(dir.path(), 0), every: Duration::ZERO };
        let body = move || sweeper.run(&told);
        let thread = threads::spawn("disk-sweep", &stop, &poison, body).unwrap(); // there is room for a thread
        assert!(thread.join().is_ok(), "it should end, not panic");
        let reason = poison.check().map_err(|e| e.to_string());
        let expected = "the store has failed and accepts no more requests: the thread disk-sweep ended before it was asked to";
        assert_eq!(reason, Err(expected.to_owned()));
    }
}
