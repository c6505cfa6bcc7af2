//! Drops tables with unreadable blocks, after rewriting their readable entries. The store must not be open in a server.

use std::collections::BTreeSet;
use std::path::Path;

use super::rebuild::{LISTS, entry};
use crate::engine::disk::codec;
use crate::engine::disk::store::aside::Aside;
use crate::engine::disk::store::holes::Holed;
use crate::engine::disk::store::mark::{Mark, OpenError};
use crate::engine::disk::store::repair::{RepairReport, raise_numbers};
use crate::engine::disk::store::txn::Txn;
use crate::engine::disk::store::{Fatal, Found, Space, Store, StoreLimits, open, tables, trees};

/// Tables with holes, by keyspace.
#[derive(Debug, Default)]
pub struct Holes(Vec<(Space, Vec<Holed>)>);

impl Holes {
    /// Reads all tables to find holes. An error means that this could not be determined.
    pub fn find(store: &Store) -> std::io::Result<Holes> {
        let mut holes = Vec::new();
        for (space, ..) in Space::ALL {
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

    /// Returns the tables of a keyspace that have holes.
    pub fn of(&self, space: Space) -> &[Holed] {
        self.0.iter().find(|(of, _)| *of == space).map_or(&[], |(_, holed)| holed)
    }

    /// Describes each table in one line.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|(space, holed)| {
            let line = |of: &Holed| {
                format!("keyspace {}: table {} has blocks that cannot be read", space.name(), of.table)
            };
            holed.iter().map(line)
        })
    }

    /// Drops the tables. Meanwhile the mark says that a repair is in progress: after a kill the repair is run again,
    /// and finds the same tables, or one of them missing.
    pub fn give_up(
        &self,
        path: &Path,
        (store, mut mark): (Store, Mark),
        report: &mut RepairReport,
    ) -> Result<(Store, Mark), OpenError> {
        let io = |e| OpenError::Io(path.to_owned(), e);
        let fatal = |Fatal(reason)| OpenError::Damaged(path.to_owned(), reason);
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
        let (store, mark) = open::open_locked(path, StoreLimits::OF_A_TOOL, mark, false)?;
        if !self.of(Space::Meta).is_empty() {
            raise_numbers(&store).map_err(fatal)?;
        }
        // Lost jobs are reported one by one, and lists are rebuilt.
        let is_rebuilt = |space: Space| LISTS.contains(&space) || matches!(space, Space::Jobs | Space::Keys);
        let lost = self
            .0
            .iter()
            .filter(|(space, _)| !is_rebuilt(*space))
            .map(|(space, _)| format!("the unreadable part of keyspace {} is lost", space.name()));
        report.notes.extend(lost);
        Ok((store, mark))
    }

    /// Returns the lists without holes that have malformed entries.
    pub fn malformed(&self, store: &Store) -> Result<Vec<Space>, Fatal> {
        let mut found = Vec::new();
        for list in self.lists() {
            for item in store.all(list) {
                let (key, value) = item?;
                if entry(list, &key, &value).is_err() {
                    found.push(list);
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Returns the lists without holes.
    fn lists(&self) -> impl Iterator<Item = Space> {
        LISTS.into_iter().filter(|list| self.of(*list).is_empty())
    }

    /// Returns the keys of listed jobs whose records are in a hole. After the tables are dropped, the entries of these
    /// jobs look like entries of acked jobs.
    pub fn jobs(&self, store: &Store) -> Result<BTreeSet<Vec<u8>>, Fatal> {
        let mut found = BTreeSet::new();
        if self.of(Space::Jobs).is_empty() {
            return Ok(found);
        }
        for list in self.lists() {
            for item in store.all(list) {
                let (key, value) = item?;
                let Ok((prefix, entry)) = entry(list, &key, &value) else { continue };
                let job = codec::job_key(prefix, entry.id);
                let may_lie_there = self.of(Space::Jobs).iter().any(|holed| holed.may_have(&job));
                if may_lie_there && matches!(store.job(&job)?, Found::Corrupt(_)) {
                    found.insert(job);
                }
            }
        }
        Ok(found)
    }
}

/// Reports which of these jobs and of the jobs in quarantine are lost, and removes the lost and the readable ones
/// from quarantine.
pub fn tidy(store: &Store, mut jobs: BTreeSet<Vec<u8>>, report: &mut RepairReport) -> Result<(), Fatal> {
    for row in store.all(Space::Quarantine) {
        jobs.insert(row?.0.to_vec());
    }
    let (mut txn, mut lost) = (Txn::new(store.clone()), 0u64);
    for job in jobs {
        match store.job(&job)? {
            Found::Corrupt(_) => continue,
            Found::Record(_) => {}
            Found::Nothing => {
                let (id, queue) = codec::read_job_key(&job)?;
                report.notes.push(format!("job {id} of {queue} is lost: its record could not be read"));
                lost += 1;
            }
        }
        txn.delete(Space::Quarantine, job);
        txn.relieve()?;
    }
    txn.settle(true)?;
    report.notes.push(format!("{lost} jobs are lost: their records could not be read"));
    Ok(())
}
