//! Reads the batches of journals in their order, and notes what is wrong with it. Decides nothing: whether it is damage
//! is for who judges the directory.

use std::io::Result;
use std::ops::Range;
use std::path::Path;

use super::groups::{GroupRecord, GroupState};
use super::journal::{self, JournalBatch};

/// Something that is wrong with the order of the batches.
pub struct Problem {
    pub journal: usize,
    /// The bytes that cannot be read; none if all read and batches are missing.
    pub bytes: Range<usize>,
    /// The batches that were lost by it. The end is the largest number where nothing follows.
    pub groups: Range<u64>,
    /// The newest batch before it.
    pub before: Option<GroupRecord>,
}

/// Reads journals in their order.
pub struct Reader<'a> {
    state: &'a GroupState,
    /// That of the batch that was read last.
    seqno: Option<u64>,
    /// The newest batch with a number.
    pub last: Option<GroupRecord>,
    /// Whether the next one must be the one after it.
    follows: bool,
    /// All up to this were synced: the file says so, or a batch.
    pub synced: u64,
    /// No batch up to this is in the journals.
    low: u64,
    pub problems: Vec<Problem>,
}

impl Reader<'_> {
    /// Nothing was read yet.
    pub fn new(state: &GroupState) -> Reader<'_> {
        Reader {
            state,
            seqno: None,
            last: None,
            follows: false,
            synced: state.synced,
            low: state.first.max(state.base).saturating_sub(1),
            problems: Vec::new(),
        }
    }

    /// Reads the journal in `path`, the next of the directory's.
    pub fn read(&mut self, journal: usize, path: &Path) -> Result<()> {
        let bytes = journal::read(path)?;
        let mut at = 0;
        loop {
            if let Some(batch) = journal::batch(&bytes, at).filter(|batch| self.is_ours(batch)) {
                self.take(journal, at, &batch);
                at = batch.end;
                continue;
            }
            let Some(end) = journal::used(&bytes, at) else { return Ok(()) };
            let next = journal::find(&bytes, at + 1, |batch| batch.record.is_some() && self.is_ours(batch));
            let start = self.last.map_or(self.low, |last| last.number) + 1;
            self.problems.push(Problem {
                journal,
                bytes: at..next.map_or(end, |(at, _)| at),
                groups: start..u64::MAX,
                before: self.last,
            });
            self.follows = false;
            match next {
                Some((next, _)) => at = next,
                None => return Ok(()),
            }
        }
    }

    /// Whether a batch that is whole was written by this pool, behind those that were read.
    fn is_ours(&self, batch: &JournalBatch) -> bool {
        let state = self.state;
        let is_behind = self.seqno.is_none_or(|seqno| batch.seqno > seqno);
        match batch.record.map(|record| GroupRecord::read(&record)) {
            Some(record) if record.number < state.base => is_behind,
            Some(record) => {
                // fjall's checksum does not cover the seqno.
                let is_possible = record.number > state.synced || batch.seqno < state.seqno;
                // After a repair seqnos may begin anew.
                record.is_of(state.pool, batch.items, batch.bytes)
                    && is_possible
                    && (is_behind || (self.last.is_none() && state.base > 1))
            }
            // Nobody wrote numbers before the base, if it is not the first batch of all.
            None => is_behind && (batch.is_upkeep || (self.last.is_none() && state.base > 1)),
        }
    }

    fn take(&mut self, journal: usize, at: usize, batch: &JournalBatch) {
        self.seqno = Some(batch.seqno);
        let Some(record) = batch.record.map(|record| GroupRecord::read(&record)) else { return };
        if record.number < self.state.base {
            return;
        }
        self.synced = self.synced.max(record.synced);
        if let Some(last) = self.last
            && self.follows
            && (record.number != last.number + 1 || record.previous != last.check)
        {
            let groups = last.number + 1..record.number.max(last.number + 1);
            self.problems.push(Problem { journal, bytes: at..at, groups, before: self.last });
        }
        if let Some(problem) = self.problems.last_mut()
            && problem.groups.end == u64::MAX
        {
            problem.groups.end = record.number.max(problem.groups.start);
        }
        (self.last, self.follows) = (Some(record), true);
    }

    /// Where the newest journal is torn, if that is all that is wrong. What was synced is whole, and so is what
    /// stands before it; the rest may be torn, at several places.
    pub fn torn(&self, newest: usize) -> Option<&Problem> {
        let first = self.problems.first()?;
        let is_torn = first.journal == newest && !first.bytes.is_empty() && first.groups.start > self.synced;
        is_torn.then_some(first)
    }
}
