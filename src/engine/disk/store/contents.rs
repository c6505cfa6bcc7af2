//! The contents of a directory that is not open, as far as they are readable. Changes nothing, unlike opening it:
//! lsm-tree deletes the tables that no list names. A value is intact if nothing newer may have been in an unreadable
//! part.

use std::collections::btree_map::{BTreeMap, Range};
use std::io::{Error, ErrorKind, Result};
use std::iter::Peekable;
use std::ops::{Bound, RangeBounds};
use std::path::Path;

use lsm_tree::{InternalValue, SeqNo, Slice, Table};

use super::holes::is_holed;
use super::log::group::{self, FileHead};
use super::log::judge::judge_each;
use super::log::manifest::Manifest;
use super::log::{self, slots};
use super::open::{self, Judged};
use super::tables::Opener;
use super::trees::{self, group_of, seqno};
use super::{Space, StoreLimits, describe, is_unreadable};

/// Number of consecutive unreadable blocks after which the rest of a table is given up: its index may fail forever.
const BAD_BLOCKS: usize = 4096;

/// Readable tables and log of a directory.
pub struct Contents {
    /// Corruption, one line each.
    pub damage: Vec<String>,
    /// Whether the log ends in groups that were never acknowledged.
    pub is_torn: bool,
    keyspaces: Vec<Keyspace>,
}

/// What is known of a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Stored {
    Value(Slice),
    Nothing,
    /// The newest value may be in an unreadable part.
    Lost,
}

#[derive(Default)]
struct Keyspace {
    /// Runs of tables that do not overlap, in the order of a lookup: the first that has a key has its newest value.
    runs: Vec<Vec<Table>>,
    /// Whether a table has unreadable blocks.
    is_holed: bool,
    /// Whether a table is missing.
    lacks: bool,
    /// The log's newest entry of each key. In memory: a log has some twelve files of 8 MiB.
    log: BTreeMap<Slice, Logged>,
}

/// An entry of the log.
struct Logged {
    seqno: SeqNo,
    value: Option<Slice>,
    /// Whether tables do not have it. An entry that they have had may be obsolete without a trace in them.
    is_needed: bool,
}

impl Contents {
    /// Reads the log and opens the tables of a completely created store. `closed` is the last group, if the shutdown
    /// was clean.
    pub fn read(pool: &Path, closed: Option<u64>) -> Result<Contents> {
        let mut judged = open::judge(pool, closed)?;
        let StoreLimits { open_tables, cache } = StoreLimits::OF_A_TOOL;
        let (opener, mut keyspaces) = (Opener::new(open_tables, cache), Vec::new());
        for (space, name, _) in Space::ALL {
            let runs = opener.readable(&pool.join(trees::DIR).join(name), space as u64)?;
            let lacks = judged.trees.contains(&space);
            keyspaces.push(Keyspace { runs, lacks, ..Keyspace::default() });
        }
        let mut contents = Contents { damage: Vec::new(), is_torn: false, keyspaces };
        if let Some((_, findings)) = &mut judged.log
            && findings.damage.is_empty()
            && let Some(damage) = open::behind(contents.newest(), findings)
        {
            judged.damage.push(damage.clone());
            findings.damage.push(damage);
        }
        contents.is_torn = judged.log.as_ref().is_some_and(|(_, findings)| findings.is_torn);
        contents.read_log(&pool.join(log::DIR), &judged)?;
        contents.damage = judged.damage;
        contents.find_holes()?;
        Ok(contents)
    }

    /// Returns the newest group with an entry in a table.
    fn newest(&self) -> u64 {
        self.keyspaces.iter().map(|of| group_of(of.persisted())).max().unwrap_or(0)
    }

    /// Reads all tables to find unreadable blocks.
    fn find_holes(&mut self) -> Result<()> {
        for (of, (_, name, _)) in self.keyspaces.iter_mut().zip(Space::ALL) {
            for table in of.runs.iter().flatten() {
                if is_holed(table)? {
                    of.is_holed = true;
                    let table = table.id();
                    self.damage
                        .push(format!("keyspace {name}: table {table} has blocks that cannot be read"));
                }
            }
        }
        Ok(())
    }

    /// Reads every valid group of the log, even after a gap. Groups behind the end of an undamaged log were not synced
    /// and are not part of it.
    fn read_log(&mut self, dir: &Path, judged: &Judged) -> Result<()> {
        let (manifest, end) = match &judged.log {
            Some((manifest, findings)) if findings.damage.is_empty() => {
                (manifest.clone(), findings.last.number)
            }
            Some((manifest, _)) => (manifest.clone(), u64::MAX),
            None => match manifest_of_heads(dir)? {
                Some(manifest) => (manifest, u64::MAX),
                None => return Ok(()),
            },
        };
        let had: Vec<SeqNo> = self.keyspaces.iter().map(Keyspace::persisted).collect();
        judge_each(dir, &manifest, |number, group| {
            if number > end {
                return Ok(());
            }
            for item in group::items(group) {
                let (space, key, value) = item.ok_or_else(|| {
                    Error::new(ErrorKind::InvalidData, format!("group {number} cannot be read"))
                })?;
                let (of, seqno) = (&mut self.keyspaces[space as usize], seqno(number));
                let is_needed = of.lacks || (number >= manifest.first && seqno > had[space as usize]);
                let value = value.map(Slice::from);
                of.log.insert(Slice::from(key), Logged { seqno, value, is_needed });
            }
            Ok(())
        })
        .map(drop)
    }

    /// Returns whether a keyspace has unreadable blocks.
    pub fn is_holed(&self, space: Space) -> bool {
        self.keyspaces[space as usize].is_holed
    }

    /// Reads one key.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Stored> {
        let key = Slice::from(key);
        Walk::new(&self.keyspaces[space as usize], key.clone()..=key.clone())?.read(&key)
    }

    /// Iterates over the keys with intact values.
    pub fn entries(&self, space: Space) -> Result<impl Iterator<Item = Result<(Slice, Slice)>>> {
        let mut walk = Walk::new(&self.keyspaces[space as usize], ..)?;
        Ok(std::iter::from_fn(move || {
            while let Some(key) = walk.next_key() {
                match walk.read(&key) {
                    Ok(Stored::Value(value)) => return Some(Ok((key, value))),
                    Ok(_) => {}
                    Err(e) => return Some(Err(e)),
                }
            }
            None
        }))
    }
}

impl Keyspace {
    /// Returns the highest sequence number in a table.
    fn persisted(&self) -> SeqNo {
        self.runs.iter().flatten().map(Table::get_highest_seqno).max().unwrap_or(0)
    }
}

/// A pass over a range of keys, in order.
struct Walk<'a> {
    cursors: Vec<RunCursor<'a>>,
    log: Peekable<Range<'a, Slice, Logged>>,
}

/// A position in a run.
struct RunCursor<'a> {
    items: Box<dyn Iterator<Item = (&'a Table, lsm_tree::Result<InternalValue>)> + 'a>,
    next: Option<InternalValue>,
    /// Tables with unreadable blocks before the next entry.
    holes: Vec<&'a Table>,
}

impl<'a> RunCursor<'a> {
    fn new(run: &'a [Table], range: (Bound<Slice>, Bound<Slice>)) -> Result<RunCursor<'a>> {
        // A keyspace iterator of lsm-tree ends at the first bad block; a table iterator continues behind it.
        let items = run.iter().flat_map(move |table| {
            let mut bad = 0;
            let is_useful = move |item: &lsm_tree::Result<_>| {
                bad = if item.is_err() { bad + 1 } else { 0 };
                bad <= BAD_BLOCKS
            };
            table.range(range.clone()).take_while(is_useful).map(move |item| (table, item))
        });
        let mut cursor = RunCursor { items: Box::new(items), next: None, holes: Vec::new() };
        cursor.advance().map(|_| cursor)
    }

    /// Returns the next entry and moves behind it.
    fn advance(&mut self) -> Result<Option<InternalValue>> {
        self.holes.clear();
        loop {
            match self.items.next() {
                Some((table, Err(e))) if is_unreadable(&e) => {
                    if self.holes.last().is_none_or(|last| last.id() != table.id()) {
                        self.holes.push(table);
                    }
                }
                Some((_, Err(e))) => return Err(Error::other(describe(&e))),
                Some((_, Ok(item))) => return Ok(self.next.replace(item)),
                None => return Ok(self.next.take()),
            }
        }
    }

    /// Returns whether an unreadable block before the next entry may have had `key`: whether a lookup meets it.
    fn may_have_had(&self, key: &Slice) -> Result<bool> {
        if self.next.as_ref().is_some_and(|next| next.key.user_key < *key) {
            return Ok(false);
        }
        for item in self.holes.iter().flat_map(|table| table.range(key.clone()..=key.clone())) {
            match item {
                Err(e) if is_unreadable(&e) => return Ok(true),
                item => item.map_err(|e| Error::other(describe(&e)))?,
            };
        }
        Ok(false)
    }
}

impl<'a> Walk<'a> {
    fn new(of: &'a Keyspace, range: impl RangeBounds<Slice>) -> Result<Walk<'a>> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let cursors = of.runs.iter().map(|run| RunCursor::new(run, range.clone())).collect::<Result<_>>()?;
        Ok(Walk { cursors, log: of.log.range(range).peekable() })
    }

    /// Returns the next key of any table or the log.
    fn next_key(&mut self) -> Option<Slice> {
        let log = self.log.peek().map(|(key, _)| *key);
        let tables = self.cursors.iter().filter_map(|of| of.next.as_ref().map(|next| &next.key.user_key));
        // Copied, since a table's key keeps its block in memory.
        tables.chain(log).min().map(|key| Slice::from(&key[..]))
    }

    /// Reads `key`, which must not be behind the next one.
    fn read(&mut self, key: &Slice) -> Result<Stored> {
        let (mut newest, mut is_lost) = (None, false);
        for cursor in &mut self.cursors {
            is_lost |= newest.is_none() && cursor.may_have_had(key)?;
            while cursor.next.as_ref().is_some_and(|next| next.key.user_key == *key) {
                let item = cursor.advance()?;
                newest = newest.or(item);
            }
        }
        let is_newer = |seqno: SeqNo| newest.as_ref().is_none_or(|item| item.key.seqno <= seqno);
        let logged = self.log.next_if(|(next, _)| *next == key).map(|(_, logged)| logged);
        let value = match logged {
            Some(of) if (of.is_needed || is_lost) && is_newer(of.seqno) => of.value.clone(),
            _ if is_lost => return Ok(Stored::Lost),
            _ => newest.filter(|item| !item.is_tombstone()).map(|item| item.value),
        };
        Ok(value.map_or(Stored::Nothing, Stored::Value))
    }
}

/// Reconstructs a lost manifest from the headers of the files: the last run of consecutive turns belongs together. Some
/// groups that are in tables are then needed too, which is harmless, since so are all later groups.
fn manifest_of_heads(dir: &Path) -> Result<Option<Manifest>> {
    let mut heads = Vec::new();
    let there = if dir.is_dir() { slots::list(dir)? } else { Vec::new() };
    for slot in there {
        heads.extend(FileHead::read(&slots::read(dir, slot)?).map(|head| (head, slot)));
    }
    heads.sort_by_key(|(head, _)| head.turn);
    let gap = heads.windows(2).rposition(|pair| pair[0].0.turn + 1 != pair[1].0.turn);
    heads.drain(..gap.map_or(0, |gap| gap + 1));
    let Some((head, _)) = heads.first() else { return Ok(None) };
    let files = heads.iter().map(|(head, slot)| (*slot, head.turn)).collect();
    Ok(Some(Manifest { pool: head.pool, first: head.first, synced: 0, files }))
}
