//! What the engine's threads beside the writer do: one syncs and looks at the room on the disk, one writes out what is in
//! memory, one sweeps and compacts, and one merges. They end when they are told to, or when the store is poisoned.

pub mod holes;
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
use crate::engine::observer::Observers;
use crate::error::Error;

/// How often a store is synced that need not be synced before each answer, and how often the room on the disk is looked
/// at.
const SECOND: Duration = Duration::from_secs(1);
/// Between two parts of a ready list that are read to sweep them.
const PART_PAUSE: Duration = Duration::from_millis(5);
/// Before the first step, and after one that could not be done, since the store has too much to do.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// How often the tables are looked at whether there are enough to merge.
const MERGE_PAUSE: Duration = Duration::from_millis(100);
/// After a merge or a compaction that found the disk full.
const FULL_PAUSE: Duration = Duration::from_secs(60);
/// After a memtable that found the disk full.
const FULL_TRY: Duration = Duration::from_secs(5);
/// How long to wait for memory to be written out before a compaction.
const WRITE_OUT: Duration = Duration::from_secs(3);
/// A compaction that has live entries to rewrite waits after the last one for so many times as long as that
/// took: compactions take a twentieth of the time at most, however wrong the guess of what they give back.
const COMPACTION_REST: u32 = 19;

/// Each second: syncs, if that is asked for; has the log say that what it holds is synced, when it rests; and looks at
/// the room on the disk.
pub fn each_second(
    store: &Store,
    sync: bool,
    (room, observers): (&FreeSpace, &Observers),
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
            observers.tell(|observer| observer.synced(began.elapsed(), groups as usize));
        }
        let done = if rests { done.and_then(|()| store.attest()) } else { done };
        drop(work);
        if let Err(Fatal(reason)) = done {
            poison.set(reason);
            return;
        }
        room.measure();
        // From begin to begin: what a power cut takes is what came since the begin of the last sync.
        pause = SECOND.saturating_sub(began.elapsed());
    }
}

/// Writes out what is in memory, and makes the files of the log ready.
pub fn tend(store: &Store, stop: &Stop, poison: &Poison) {
    let tender = store.tender();
    while !stop.is_stopped() {
        match store.tend() {
            Ok(Tended::Done) => tender.wait(SECOND),
            // The disk is full. A commit that waits for room may not wait as long as a disk may hang.
            Ok(Tended::NotDone) => drop(stop.stopped_within(FULL_TRY)),
            Err(Fatal(reason)) => {
                poison.set(reason);
                return;
            }
        }
    }
}

/// What to do about a table that cannot be read.
const GIVE_UP: &str = "stop the server, and let `dormouse repair` say what is damaged";

/// Keyspaces with a table that cannot be read, each with what is wrong: what is in it is left as it is.
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
                "a keyspace is merged no more, and the store fails when too much of it waits to be merged: {GIVE_UP}"
            );
            self.0.push((space, what));
        }
    }
}

/// Merges tables.
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
                // Looked at again, after a while.
                Some(Ok(Merged::NoRoom)) => pause = pause.max(SECOND),
                Some(Ok(Merged::DiskFull)) => pause = FULL_PAUSE,
                Some(Ok(Merged::Unreadable(reason))) => unreadable.add(store, space, &reason, stop),
                Some(Err(Fatal(reason))) => {
                    poison.set(format!("a merge failed: {reason}"));
                    return;
                }
            }
            // It could not be merged.
            if store.too_many_unmerged(space) {
                let why =
                    unreadable.of(space).map(|what| format!(" ({what}: {GIVE_UP})")).unwrap_or_default();
                poison.set(format!("the tables of {space:?} could not be merged for too long{why}"));
                return;
            }
        }
    }
}

/// What the thread that sweeps works with.
pub struct Sweeper {
    pub store: Store,
    pub handle: Handle,
    pub room: Arc<FreeSpace>,
    /// How long it rests between two looks, and how often it does what is to be done about the files.
    pub every: Duration,
}

impl Sweeper {
    /// Sweeps, and does to the files what the writer asks for.
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
                    // So busy that upkeep can wait.
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
                            self.handle.poison.set(format!("upkeep of the files failed: {e}"));
                            return;
                        }
                    }
                    // Also when writing out was too slow: the next try must not be what keeps the disk busy.
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
                    // The same part again: nobody else would come to it.
                    Err(Error::Overloaded) => (scan, pause) = (Some(one), BUSY_PAUSE),
                    Err(_) => return,
                }
            }
        }
    }

    /// Sweeps one part of a queue. Answers what is left of it.
    fn part(&self, mut scan: Scan) -> Result<Option<Scan>, Error> {
        let part = match scan.read(&self.store, self.handle.clock.now_micros()) {
            Ok(part) => part,
            Err(Fatal(reason)) => {
                // Whoever consumes from it meets the same.
                tracing::error!(reason, "a ready list cannot be read, and is not swept");
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

    /// Has some requests forgotten that have ended, `from` a time on. Answers whether there may be more.
    fn forget(&self, from: Option<Micros>) -> Result<bool, Error> {
        let Some(from) = from else { return Ok(false) };
        match Forget::read(&self.store, from, self.handle.clock.now_micros()) {
            Ok(ended) => {
                let more = ended.more();
                self.handle.ask_blocking(ended)?;
                Ok(more)
            }
            Err(Fatal(reason)) => {
                tracing::error!(reason, "the remembered requests cannot be read, and are not forgotten");
                Ok(false)
            }
        }
    }

    /// Sweeps all that is to be swept now, without a pause.
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

    /// Does what the writer asks for. Answers what was compacted, and `None` when the disk was full.
    fn work(
        &self,
        upkeep: &Upkeep,
        unreadable: &mut Unreadable,
        stop: &Stop,
    ) -> Result<Option<Vec<Space>>, Fatal> {
        let store = &self.store;
        // What is not in tables is not compacted: if the disk is slow, another time.
        if upkeep.write_out && store.write_out(WRITE_OUT)? == Tended::NotDone {
            return Ok(Some(Vec::new()));
        }
        let mut compacted = Vec::new();
        for (space, live) in &upkeep.compact {
            // What has nothing that lives is deleted, not written.
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

    /// Guards against expired jobs that stay for ever, since the writer had no room for a call when they were swept.
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
            // Before the plan is answered another call takes the only place: the sweep finds none.
            let other = (served == 0).then(|| StepCall::new(ShareStore));
            let _answer = other.map(|(call, answer)| (asked.ops.send(Box::new(call)), answer));
            for mut op in group.drain(..) {
                op.run(&mut state).unwrap();
                state.txn.settle(false).unwrap();
                op.answer(&poison);
            }
            if served == 0 {
                // Nothing tells that it found none. If it has not come so far, this test finds nothing, and fails nobody.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        assert_eq!(state.queues.get(&queue).map(|queue| queue.ready), Some(0), "it has expired");
        stop.tell();
        drop(calls);
        assert!(thread.join().is_ok(), "it ends as it is told to");
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
        // Nobody serves its calls.
        drop(calls);
        let sweeper = Sweeper { store, handle, room: FreeSpace::new(dir.path(), 0), every: Duration::ZERO };
        let body = move || sweeper.run(&told);
        let thread = threads::spawn("disk-sweep", &stop, &poison, body).unwrap(); // there is room for a thread
        assert!(thread.join().is_ok(), "it should end, not panic");
        let reason = poison.check().map_err(|e| e.to_string());
        let expected = "the store has failed and takes no more requests: the thread disk-sweep ended before it was told to";
        assert_eq!(reason, Err(expected.to_owned()));
    }
}
