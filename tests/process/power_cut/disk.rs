//! A disk that may lose power: the state that it must have afterwards, and the states that it may have.
//!
//! # Guarantees
//!
//! `fsync(file)` and `fdatasync(file)`: when the call returns, all writes and size changes of that file that had
//! completed before it began are readable from disk. Not the file's name.
//!
//! `fsync(directory)`: when it returns, all changes of names in that directory (creations, removals, renames) that had
//! completed before it began are on disk. Not the name of the directory itself in its parent, nor the contents of
//! files, nor those of subdirectories.
//!
//! That is [`Promise::Posix`]. [`Promise::Ext4`] adds the behavior of ext4 and xfs: names are kept in one journal, so
//! that every `fsync`, of anything, persists all earlier changes of names, and a power cut loses only the newest
//! changes of names, in order.
//!
//! `sync_file_range` guarantees nothing, as its manual says.
//!
//! # Possible states of everything else
//!
//! - **Writes.** Each page of 4096 bytes may have any version since the last sync: the previous, the newest, or one
//!   between two writes. A page may be torn in sectors of 512 bytes, each with another version. Pages are independent:
//!   a later write may be present without an earlier one.
//! - **Size.** A file that grew since the last sync has its old size, the size after any of the changes, or has grown
//!   partially up to a page within one write. Grown parts without their pages are zeros.
//! - **Shrinking** frees the pages beyond the new size: later writes to them are present only if the shrinking is.
//! - **Names.** Any subset of the changes since the last sync of the directory has happened, each completely (a rename
//!   is atomic), those of one name in order. A file whose name is present without its data has the contents described
//!   above: often none.
//! - **Directories** whose own name is missing are lost with all their contents, synced or not.

use std::collections::{BTreeMap, HashMap};
use std::fs::File as OsFile;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::recording::{Node, Op, Recording, SyncKind};
use super::rng::Rng;

/// Guarantees of the file system beyond the manuals of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    Posix,
    Ext4,
}

const PAGE: usize = 4096;
const SECTOR: usize = 512;
type Page = [u8; PAGE];

/// A file's size and bytes. A missing page is all zeros.
#[derive(Clone, Debug, Default)]
pub struct Content {
    pub size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    fn page(&self, n: u64) -> Page {
        self.pages.get(&n).map_or([0; PAGE], |page| **page)
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        for (n, from, bytes) in split(at, data) {
            let page = Arc::make_mut(self.pages.entry(n).or_insert_with(|| Arc::new([0; PAGE])));
            page[from..from + bytes.len()].copy_from_slice(bytes);
        }
        self.size = self.size.max(at + data.len() as u64);
    }

    fn resize(&mut self, size: u64) {
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE as u64));
            if let Some(last) = self.pages.get_mut(&(size / PAGE as u64)) {
                Arc::make_mut(last)[size as usize % PAGE..].fill(0);
            }
        }
        self.size = size;
    }

    fn apply(&mut self, change: &Change) {
        match &change.op {
            Op::Write { at, data, .. } => self.write(*at, data),
            Op::Resize { size, .. } => self.resize(*size),
            Op::Names(_) | Op::Sync { .. } => {}
        }
    }

    /// Writes the file to disk. Zeros stay holes.
    fn store(&self, path: &Path) -> std::io::Result<()> {
        let file = OsFile::create(path)?;
        file.set_len(self.size)?;
        for (n, page) in &self.pages {
            let at = n * PAGE as u64;
            let len = self.size.saturating_sub(at).min(PAGE as u64) as usize;
            file.write_all_at(&page[..len], at)?;
        }
        Ok(())
    }

    /// Returns the offset at which these bytes differ, if they do.
    pub fn differs(&self, bytes: &[u8]) -> Option<u64> {
        if self.size != bytes.len() as u64 {
            return Some(self.size.min(bytes.len() as u64));
        }
        for (n, chunk) in bytes.chunks(PAGE).enumerate() {
            let page = self.page(n as u64);
            if let Some(at) = chunk.iter().zip(&page).position(|(a, b)| a != b) {
                return Some((n * PAGE + at) as u64);
            }
        }
        None
    }
}

/// Returns the parts of a write: page, offset in the page, bytes.
fn split(at: u64, data: &[u8]) -> impl Iterator<Item = (u64, usize, &[u8])> {
    let (mut at, mut data) = (at, data);
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let (n, from) = (at / PAGE as u64, at as usize % PAGE);
        let (head, rest) = data.split_at(data.len().min(PAGE - from));
        (at, data) = (at + head.len() as u64, rest);
        Some((n, from, head))
    })
}

/// A change that no sync covers yet.
#[derive(Clone, Debug)]
struct Change {
    op: Op,
    began: usize,
    ended: usize,
}

#[derive(Clone, Debug, Default)]
struct File {
    synced: Content,
    since: Vec<Change>,
}

/// The disk at one moment of a recording.
#[derive(Debug)]
pub struct Disk<'a> {
    recording: &'a Recording,
    promise: Promise,
    /// Pretends that syncs of this kind do nothing.
    forget: Option<SyncKind>,
    at: usize,
    files: HashMap<Node, File>,
    names: HashMap<Node, BTreeMap<String, Node>>,
    names_since: Vec<Change>,
}

/// A directory after a power cut.
#[derive(Debug)]
pub enum Image {
    File(Content),
    Directory(BTreeMap<String, Image>),
}

impl Image {
    /// Writes the image out. The directory may already exist.
    pub fn store(&self, path: &Path) -> std::io::Result<()> {
        match self {
            Image::File(content) => content.store(path),
            Image::Directory(entries) => {
                std::fs::create_dir_all(path)?;
                entries.iter().try_for_each(|(name, entry)| entry.store(&path.join(name)))
            }
        }
    }

    /// Checks that the directory equals the image, byte for byte. Returns the first difference.
    pub fn is_same(&self, path: &Path) -> Result<(), String> {
        match self {
            Image::File(content) => {
                let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
                content.differs(&bytes).map_or(Ok(()), |at| {
                    Err(format!("{} is not as it was recorded, from byte {at} on", path.display()))
                })
            }
            Image::Directory(entries) => {
                let listed = std::fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                let mut there: Vec<String> = listed
                    .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
                    .collect();
                there.sort();
                let recorded: Vec<&String> = entries.keys().collect();
                if there.iter().collect::<Vec<_>>() != recorded {
                    return Err(format!("names in {}: {there:?} in place of {recorded:?}", path.display()));
                }
                entries.iter().try_for_each(|(name, entry)| entry.is_same(&path.join(name)))
            }
        }
    }
}

/// Fate of unsynced changes.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Nothing,
    All,
    /// Each change survives independently with this percentage.
    Some(usize),
}

impl Fate {
    fn draw(rng: &mut Rng) -> Fate {
        match rng.below(8) {
            0 => Fate::Nothing,
            1 => Fate::All,
            // A single missing page and many missing pages are detected in different ways.
            other => Fate::Some([3, 15, 50, 85, 95, 99][other - 2]),
        }
    }

    fn keeps(self, rng: &mut Rng) -> bool {
        match self {
            Fate::Nothing => false,
            Fate::All => true,
            Fate::Some(percent) => rng.percent(percent),
        }
    }
}

impl<'a> Disk<'a> {
    /// Before the first moment: an empty directory.
    pub fn new(recording: &'a Recording, promise: Promise, forget: Option<SyncKind>) -> Disk<'a> {
        Disk {
            recording,
            promise,
            forget,
            at: 0,
            files: HashMap::new(),
            names: HashMap::new(),
            names_since: Vec::new(),
        }
    }

    /// Replays up to moment `to`.
    pub fn advance(&mut self, to: usize) {
        while self.at < to {
            let moment = self.recording.moments[self.at];
            let event = &self.recording.events[moment.event];
            self.at += 1;
            let change = || Change { op: event.op.clone(), began: event.began, ended: event.ended };
            match (&event.op, moment.ends) {
                (Op::Write { file, .. } | Op::Resize { file, .. }, false) => {
                    self.files.entry(*file).or_default().since.push(change());
                }
                (Op::Names(_), false) => self.names_since.push(change()),
                (Op::Sync { node, kind }, true) if self.forget != Some(*kind) => {
                    self.sync(*node, *kind, event.began);
                }
                _ => {}
            }
        }
    }

    fn sync(&mut self, node: Node, kind: SyncKind, began: usize) {
        if kind != SyncKind::Directory {
            let file = self.files.entry(node).or_default();
            for change in file.since.extract_if(.., |change| change.ended < began) {
                file.synced.apply(&change);
            }
        }
        let covers = |change: &Change| match &change.op {
            Op::Names(_) if self.promise == Promise::Ext4 => true,
            Op::Names(names) => {
                let mut dirs = names.iter().map(|(dir, ..)| *dir);
                let all = dirs.all(|dir| dir == node);
                assert!(
                    all || !names.iter().any(|(dir, ..)| *dir == node),
                    "a rename between directories is not modelled"
                );
                all
            }
            _ => false,
        };
        for change in self.names_since.extract_if(.., |c| c.ended < began && covers(c)) {
            set_names(&mut self.names, &change.op);
        }
    }

    /// Returns the moments at which the unsynced changes of these files began.
    pub fn unsynced_writes(&self, of: impl Fn(Node) -> bool) -> impl Iterator<Item = usize> {
        let files = self.files.iter().filter(move |(node, _)| of(**node));
        files.flat_map(|(_, file)| file.since.iter().map(|change| change.began))
    }

    /// Returns the directory with all writes applied, as the running system shows it.
    pub fn living(&self) -> Image {
        let mut names = self.names.clone();
        self.names_since.iter().for_each(|change| set_names(&mut names, &change.op));
        self.image(&names, 0, &mut |file| {
            let mut content = file.synced.clone();
            file.since.iter().for_each(|change| content.apply(change));
            content
        })
    }

    /// Returns a state that a power cut at this moment may leave.
    pub fn cut(&self, rng: &mut Rng) -> Image {
        let mut names = self.names.clone();
        let fate = Fate::draw(rng);
        if self.promise == Promise::Ext4 {
            let kept = match fate {
                Fate::Nothing => 0,
                Fate::All => self.names_since.len(),
                Fate::Some(_) => rng.below(self.names_since.len() + 1),
            };
            self.names_since[..kept].iter().for_each(|change| set_names(&mut names, &change.op));
        } else {
            for change in &self.names_since {
                if fate.keeps(rng) {
                    set_names(&mut names, &change.op);
                }
            }
        }
        self.image(&names, 0, &mut |file| cut_file(file, rng))
    }

    fn image(
        &self,
        names: &HashMap<Node, BTreeMap<String, Node>>,
        node: Node,
        content: &mut dyn FnMut(&File) -> Content,
    ) -> Image {
        if !self.recording.is_dir[node] {
            return Image::File(self.files.get(&node).map(content).unwrap_or_default());
        }
        let entries = names.get(&node).into_iter().flatten();
        Image::Directory(
            entries.map(|(name, entry)| (name.clone(), self.image(names, *entry, content))).collect(),
        )
    }
}

fn set_names(all: &mut HashMap<Node, BTreeMap<String, Node>>, op: &Op) {
    let Op::Names(names) = op else { return };
    for (dir, name, node) in names {
        let names = all.entry(*dir).or_default();
        match node {
            Some(node) => names.insert(name.clone(), *node),
            None => names.remove(name),
        };
    }
}

/// Returns the remaining content of a file.
fn cut_file(file: &File, rng: &mut Rng) -> Content {
    if file.since.is_empty() {
        return file.synced.clone();
    }
    let fate = Fate::draw(rng);
    let tears = rng.percent(40);
    // Number of the file's size changes that are on disk: a prefix of them.
    let sized = match rng.below(4) {
        0 => 0,
        1 | 2 => file.since.len(),
        _ => rng.below(file.since.len() + 1),
    };
    let (mut size, mut live, mut last_grown) = (file.synced.size, file.synced.size, None);
    let mut versions: BTreeMap<u64, Vec<Page>> = BTreeMap::new();
    for (n, change) in file.since.iter().enumerate() {
        match &change.op {
            Op::Write { at, data, .. } => {
                for (page, from, bytes) in split(*at, data) {
                    let known = versions.entry(page).or_insert_with(|| vec![file.synced.page(page)]);
                    let mut next = *known.last().expect("there is a first version");
                    next[from..from + bytes.len()].copy_from_slice(bytes);
                    known.push(next);
                }
                let end = at + data.len() as u64;
                if n < sized && end > size {
                    last_grown = Some((size, end));
                    size = end;
                }
                live = live.max(end);
            }
            Op::Resize { size: to, .. } => {
                if *to < live {
                    if n >= sized {
                        break;
                    }
                    // No version of a page beyond the new size is left.
                    let first = to / PAGE as u64;
                    let last = live.div_ceil(PAGE as u64);
                    let known: Vec<u64> =
                        file.synced.pages.range(first..=last).map(|(page, _)| *page).collect();
                    for page in known {
                        versions.entry(page).or_insert_with(|| vec![file.synced.page(page)]);
                    }
                    for (page, known) in versions.range_mut(first..) {
                        let keep = to.saturating_sub(page * PAGE as u64).min(PAGE as u64) as usize;
                        for version in known.iter_mut() {
                            version[keep..].fill(0);
                        }
                        if keep == 0 {
                            known.truncate(1);
                        }
                    }
                }
                live = *to;
                if n < sized {
                    (size, last_grown) = (*to, None);
                }
            }
            Op::Names(_) | Op::Sync { .. } => {}
        }
    }
    if let Some((from, to)) = last_grown
        && rng.percent(25)
    {
        // It has grown partially up to a page within the last write.
        let (first, last) = (from / PAGE as u64 + 1, to / PAGE as u64);
        if last > first {
            size = (first + rng.below((last - first) as usize) as u64) * PAGE as u64;
        }
    }
    let mut left = file.synced.clone();
    left.pages
        .extend(versions.into_iter().map(|(page, known)| (page, Arc::new(pick(&known, fate, tears, rng)))));
    left.size = left.size.max(size);
    left.resize(size);
    left
}

/// Returns the version of a page that is on disk.
fn pick(known: &[Page], fate: Fate, tears: bool, rng: &mut Rng) -> Page {
    let last = known.len() - 1;
    let version = |rng: &mut Rng| match fate.keeps(rng) {
        true => last,
        false if last > 1 && matches!(fate, Fate::Some(_)) => rng.below(last),
        false => 0,
    };
    let mut page = known[version(rng)];
    if tears && rng.percent(50) {
        let other = known[version(rng)];
        for (sector, bytes) in page.chunks_mut(SECTOR).enumerate() {
            if rng.percent(50) {
                bytes.copy_from_slice(&other[sector * SECTOR..(sector + 1) * SECTOR]);
            }
        }
    }
    page
}

/// The model must guarantee neither more nor less than the system calls.
#[cfg(test)]
mod tests {
    use super::super::recording::{Event, Moment};
    use super::*;

    /// Nodes: 0 is the root, 1 a directory in it, 2 a file in that directory.
    const DIR: Node = 1;
    const FILE: Node = 2;

    fn recording(ops: Vec<Op>) -> Recording {
        let mut recording = Recording::new();
        recording.is_dir.extend([true, false]);
        for (event, op) in ops.into_iter().enumerate() {
            recording.events.push(Event { op, began: 2 * event, ended: 2 * event + 1 });
            recording.moments.extend([false, true].map(|ends| Moment { event, ends, at: 0 }));
        }
        recording
    }

    fn make(dir: Node, name: &str, node: Node) -> Op {
        Op::Names(vec![(dir, name.to_owned(), Some(node))])
    }

    fn write(at: u64, byte: u8, len: usize) -> Op {
        Op::Write { file: FILE, at, data: Arc::new(vec![byte; len]) }
    }

    fn sync(node: Node, kind: SyncKind) -> Op {
        Op::Sync { node, kind }
    }

    /// Returns the contents of the file after a hundred cuts at the end; `None` if it is missing.
    fn cuts(ops: Vec<Op>, promise: Promise) -> Vec<Option<Vec<u8>>> {
        let recording = recording(ops);
        let mut disk = Disk::new(&recording, promise, None);
        disk.advance(recording.moments.len());
        let file = |image: Image| {
            let Image::Directory(mut root) = image else { panic!("the root is a directory") };
            let Some(Image::Directory(mut dir)) = root.remove("d") else { return None };
            let Some(Image::File(content)) = dir.remove("f") else { return None };
            let pages = (0..content.size.div_ceil(PAGE as u64)).flat_map(|n| content.page(n));
            Some(pages.take(content.size as usize).collect())
        };
        (0..100).map(|seed| file(disk.cut(&mut Rng::new(seed)))).collect()
    }

    #[test]
    fn what_is_synced_is_there_and_what_is_not_may_be() {
        let synced = || {
            vec![
                make(0, "d", DIR),
                sync(0, SyncKind::Directory),
                make(DIR, "f", FILE),
                sync(DIR, SyncKind::Directory),
                write(0, 1, 3 * PAGE),
                sync(FILE, SyncKind::FileData),
            ]
        };
        assert!(
            cuts(synced(), Promise::Posix).iter().all(|file| *file == Some(vec![1; 3 * PAGE])),
            "all was synced, so that every cut leaves it"
        );
        let mut more = synced();
        more.push(write(PAGE as u64, 2, 3 * PAGE));
        let left = cuts(more, Promise::Posix);
        let (mut old, mut new, mut torn, mut short) = (0, 0, 0, 0);
        for file in left {
            let file = file.expect("its name is synced");
            assert!(file.len() >= 3 * PAGE, "the synced length survives, not {}", file.len());
            assert!(file[..PAGE].iter().all(|b| *b == 1), "the first page was synced and not written since");
            assert!(file[PAGE..].iter().all(|b| [0, 1, 2].contains(b)), "only written bytes, or zeros");
            assert!(file[PAGE..3 * PAGE].iter().all(|b| *b != 0), "no zeros where something was synced");
            old += usize::from(file[PAGE..3 * PAGE].iter().all(|b| *b == 1));
            new += usize::from(file[PAGE..] == [2; 3 * PAGE]);
            torn += usize::from(file[PAGE] != file[2 * PAGE - 1]);
            short += usize::from(file.len() < 4 * PAGE);
        }
        assert!(
            old > 0 && new > 0 && torn > 0 && short > 0,
            "old {old}, new {new}, torn {torn}, short {short}"
        );
    }

    #[test]
    fn a_name_that_is_not_synced_may_be_missing_with_all_that_is_below() {
        // The file and the name in its directory are synced, the directory's own name is not.
        let ops = || {
            vec![
                make(0, "d", DIR),
                make(DIR, "f", FILE),
                write(0, 1, 100),
                sync(FILE, SyncKind::File),
                sync(DIR, SyncKind::Directory),
            ]
        };
        let left = cuts(ops(), Promise::Posix);
        let gone = left.iter().filter(|file| file.is_none()).count();
        assert!(gone > 10 && gone < 90, "of a hundred cuts some lose it, not {gone}");
        assert!(left.iter().flatten().all(|file| *file == [1; 100]), "where it is, it is whole");
        let left = cuts(ops(), Promise::Ext4);
        assert!(left.iter().all(Option::is_some), "a sync of anything keeps earlier names there");
    }

    #[test]
    fn what_is_written_after_a_file_was_cut_shows_nothing_from_before() {
        let ops = vec![
            make(0, "d", DIR),
            sync(0, SyncKind::Directory),
            make(DIR, "f", FILE),
            sync(DIR, SyncKind::Directory),
            write(0, 1, 2 * PAGE),
            sync(FILE, SyncKind::File),
            Op::Resize { file: FILE, size: 0 },
            write(PAGE as u64, 2, PAGE),
        ];
        for file in cuts(ops, Promise::Posix).into_iter().map(|file| file.expect("its name is synced")) {
            let is_old = file == vec![1; 2 * PAGE];
            assert!(is_old || !file.contains(&1), "the old file, or nothing of it: {} bytes", file.len());
        }
    }
}
