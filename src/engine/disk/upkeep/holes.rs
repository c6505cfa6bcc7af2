//! Gives up blocks that do not read of the keyspaces that are no lists and no settings, those of the jobs above all: what
//! reads is written anew, and the tables are set aside. For a store that nobody has open.

use std::path::Path;

use super::rebuild::{LISTS, entry};
use crate::engine::disk::codec;
use crate::engine::disk::store::aside::Aside;
use crate::engine::disk::store::holes::Holed;
use crate::engine::disk::store::mark::{Mark, OpenError};
use crate::engine::disk::store::repair::{RepairReport, raise_numbers};
use crate::engine::disk::store::txn::Txn;
use crate::engine::disk::store::{Fatal, Found, Space, Store, StoreLimits, open, tables, trees};

/// The keyspaces that no rebuild makes anew.
const OTHERS: [Space; 6] =
    [Space::Jobs, Space::Meta, Space::Queues, Space::Quarantine, Space::Tokens, Space::Limits];

/// An entry that leads to a job: its keyspace and key, and the key of the job.
type Leads = (Space, Vec<u8>, Vec<u8>);

/// Tables with holes, and of which keyspaces.
#[derive(Debug, Default)]
pub struct Holes(Vec<(Space, Vec<Holed>)>);

impl Holes {
    /// Looks for them. An error says nothing of what is stored.
    pub fn find(store: &Store) -> std::io::Result<Holes> {
        let mut holes = Vec::new();
        for space in OTHERS {
            let holed = store.holed(space)?;
            if !holed.is_empty() {
                holes.push((space, holed));
            }
        }
        Ok(Holes(holes))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tables of a keyspace that have some.
    pub fn of(&self, space: Space) -> &[Holed] {
        self.0.iter().find(|(of, _)| *of == space).map_or(&[], |(_, holed)| holed)
    }

    /// Each in a line.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|(space, holed)| {
            let line = |of: &Holed| {
                format!("keyspace {}: table {} has blocks that cannot be read", space.name(), of.table)
            };
            holed.iter().map(line)
        })
    }

    /// Gives them up, and says what is lost. `damaged` are the lists that are to be rebuilt. A mark says meanwhile that a
    /// repair was begun: one that was killed is done again, and finds the same tables, or one of them missing.
    pub fn give_up(
        &self,
        path: &Path,
        (store, mut mark): (Store, Mark),
        damaged: &[Space],
        report: &mut RepairReport,
    ) -> Result<(Store, Mark), OpenError> {
        let io = |e| OpenError::Io(path.to_owned(), e);
        let fatal = |Fatal(reason)| OpenError::Damaged(path.to_owned(), reason);
        // Afterwards nothing tells their entries from those of jobs that were acked.
        let gone = self.entries_of_unreadable(&store, damaged).map_err(fatal)?;
        store.write_logged(&self.0).map_err(fatal)?;
        for (space, holed) in &self.0 {
            store.rewrite(*space, holed).map_err(fatal)?;
        }
        drop(store);
        let mut aside = Aside::new(path).map_err(io)?;
        for (space, holed) in &self.0 {
            let dir = path.join(trees::DIR).join(space.name());
            tables::give_up(&dir, holed.iter().map(|of| of.table), &mut aside).map_err(io)?;
        }
        report.aside.extend(aside.moved().map(|(from, to)| (from.to_owned(), to.to_owned())));
        mark.forget_close();
        let (store, mark) = open::open_locked(path, StoreLimits::OF_A_TOOL, mark)?;
        self.tidy(&store, gone, report).map_err(fatal)?;
        if !self.of(Space::Meta).is_empty() {
            raise_numbers(&store).map_err(fatal)?;
        }
        let others = self.0.iter().filter(|(space, _)| *space != Space::Jobs);
        let lost = |(space, _): &(Space, _)| {
            format!("what could not be read of the keyspace {} is lost", Space::name(*space))
        };
        report.notes.extend(others.map(lost));
        Ok((store, mark))
    }

    /// The entries of lists whose jobs lie in a hole.
    fn entries_of_unreadable(&self, store: &Store, damaged: &[Space]) -> Result<Vec<Leads>, Fatal> {
        let mut found = Vec::new();
        if self.of(Space::Jobs).is_empty() {
            return Ok(found);
        }
        for list in LISTS.into_iter().filter(|list| !damaged.contains(list)) {
            for item in store.all(list) {
                let (key, value) = item?;
                let (prefix, entry) = entry(list, &key, &value)?;
                let job = codec::job_key(prefix, entry.id);
                let may_lie_there = self.of(Space::Jobs).iter().any(|holed| holed.may_have(&job));
                if may_lie_there && matches!(store.job(&job)?, Found::Corrupt(_)) {
                    found.push((list, key.to_vec(), job));
                }
            }
        }
        Ok(found)
    }

    /// Takes out of the lists and of the quarantine what is lost, and names it. A job of the quarantine that reads now
    /// leaves it.
    fn tidy(&self, store: &Store, mut gone: Vec<Leads>, report: &mut RepairReport) -> Result<(), Fatal> {
        if self.of(Space::Jobs).is_empty() {
            return Ok(());
        }
        for row in store.all(Space::Quarantine) {
            let key = row?.0.to_vec();
            gone.push((Space::Quarantine, key.clone(), key));
        }
        let (mut txn, mut lost) = (Txn::new(store.clone()), 0u64);
        for (space, key, job) in gone {
            let found = store.job(&job)?;
            if matches!(found, Found::Nothing) {
                let (id, queue) = codec::read_job_key(&job)?;
                report.notes.push(format!("job {id} of {queue} is lost: its record could not be read"));
                lost += 1;
                txn.delete(space, key);
            } else if space == Space::Quarantine && matches!(found, Found::Record(_)) {
                txn.delete(space, key);
            }
            txn.relieve()?;
        }
        txn.settle(true)?;
        report.notes.push(format!("{lost} jobs are lost, whose records could not be read"));
        Ok(())
    }
}
