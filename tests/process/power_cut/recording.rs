//! History of a directory: the system calls of one or more processes, read as changes of files and names. Refuses calls
//! that it does not understand, and any that would make it miss a change.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::trace::{Arg, Call, Trace};

/// A file or a directory, independent of its name. 0 is the recorded directory.
pub type Node = usize;

/// One change, or one sync.
#[derive(Clone, Debug)]
pub enum Op {
    Write {
        file: Node,
        at: u64,
        data: Arc<Vec<u8>>,
    },
    Resize {
        file: Node,
        size: u64,
    },
    /// These names in directories now refer to these nodes, or to nothing, all atomically.
    Names(Vec<(Node, String, Option<Node>)>),
    /// `fsync` or `fdatasync` of a file, or `fsync` of a directory.
    Sync {
        node: Node,
        kind: SyncKind,
    },
}

/// Kind of a sync call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    File,
    FileData,
    Directory,
}

/// A change with its position among the moments.
#[derive(Clone, Debug)]
pub struct Event {
    pub op: Op,
    pub began: usize,
    pub ended: usize,
}

/// The start or end of an event.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub event: usize,
    pub ends: bool,
    /// Nanoseconds since 1970.
    pub at: u64,
}

/// The recorded history.
#[derive(Debug, Default)]
pub struct Recording {
    pub events: Vec<Event>,
    pub moments: Vec<Moment>,
    /// Which nodes are directories.
    pub is_dir: Vec<bool>,
    /// The first path of each node, for reports.
    pub first_path: Vec<String>,
    /// The current names.
    names: HashMap<Node, BTreeMap<String, Node>>,
    /// The current sizes.
    sizes: HashMap<Node, u64>,
}

/// An open file. Copies of a descriptor share it.
#[derive(Debug)]
struct Open {
    node: Node,
    at: u64,
    appends: bool,
}

impl Recording {
    /// Returns the history of an empty directory.
    pub fn new() -> Recording {
        Recording {
            is_dir: vec![true],
            first_path: vec!["/".to_owned()],
            names: HashMap::from([(0, BTreeMap::new())]),
            ..Recording::default()
        }
    }

    /// Adds the calls of one process, from its start to its end. Fails if it ended within a call with an unknown
    /// outcome, or if the machine's clock went backwards.
    pub fn add(&mut self, root: &Path, trace: &Trace) -> Result<(), String> {
        // For an interrupted write the file shows its progress; an interrupted sync guarantees nothing.
        let is_told =
            ["write", "pwrite64", "unlink", "fsync", "fdatasync", "close", "read", "readv", "fcntl", "lseek"];
        let only_reads = |call: &Call| {
            call.name == "openat" && !flags(call).contains("O_CREAT") && !flags(call).contains("O_TRUNC")
        };
        let is_open = |call: &&Call| {
            call.answer.is_none() && !is_told.contains(&call.name.as_str()) && !only_reads(call)
        };
        if let Some(call) = trace.calls.iter().find(is_open) {
            return Err(format!("the process ended within {}", show(call)));
        }
        let mut fds: HashMap<i64, Rc<RefCell<Open>>> = HashMap::new();
        // By call: the events that it caused.
        let mut made: HashMap<usize, Vec<usize>> = HashMap::new();
        for moment in &trace.moments {
            let call = &trace.calls[moment.call];
            if moment.ends {
                self.end(root, call, &mut fds);
                for event in made.remove(&moment.call).unwrap_or_default() {
                    self.events[event].ended = self.moments.len();
                    self.moments.push(Moment { event, ends: true, at: moment.at });
                }
                continue;
            }
            let ops = self.begin(root, call, &mut fds);
            let events: Vec<usize> = ops
                .into_iter()
                .map(|op| {
                    let event = self.events.len();
                    self.events.push(Event { op, began: self.moments.len(), ended: usize::MAX });
                    self.moments.push(Moment { event, ends: false, at: moment.at });
                    event
                })
                .collect();
            made.insert(moment.call, events);
        }
        // The process has ended, and with it every call in progress.
        let at = trace.moments.last().map_or(0, |moment| moment.at);
        for event in made.into_values().flatten() {
            self.events[event].ended = self.moments.len();
            self.moments.push(Moment { event, ends: true, at });
        }
        let ordered = self.moments.is_sorted_by_key(|moment| moment.at);
        if ordered { Ok(()) } else { Err("the machine's clock went backwards".to_owned()) }
    }

    /// Applies the start of a call. A descriptor closed by it is free at once.
    fn begin(&mut self, root: &Path, call: &Call, fds: &mut HashMap<i64, Rc<RefCell<Open>>>) -> Vec<Op> {
        let name = call.name.as_str();
        if name == "close" {
            if let Some(Arg::Fd(fd, _)) = call.args.first() {
                fds.remove(fd);
            }
            return Vec::new();
        }
        let Some(answer) = call.answer.or_else(|| self.cut_off(root, call, fds)) else { return Vec::new() };
        if answer < 0 {
            return Vec::new();
        }
        let refuse = || -> ! { panic!("the recording does not understand this call: {}", show(call)) };
        match name {
            "open" | "openat" | "creat" => self.opened(root, call),
            "mkdir" | "mkdirat" => {
                let (dir, name) = self.place(root, call, 0);
                let node = self.add_node(root, call, true);
                self.name(dir, &name, Some(node))
            }
            "unlink" | "unlinkat" | "rmdir" => {
                let (dir, name) = self.place(root, call, 0);
                self.name(dir, &name, None)
            }
            "rename" | "renameat" | "renameat2" => {
                if call.args.iter().any(|a| matches!(a, Arg::Other(flags) if flags.contains("EXCHANGE"))) {
                    refuse();
                }
                let (from, to) = (self.place(root, call, 0), self.place(root, call, 1));
                let node = self.names[&from.0].get(&from.1).copied();
                let node = node.unwrap_or_else(|| panic!("an unknown name is renamed: {}", show(call)));
                let mut ops = self.name(from.0, &from.1, None);
                ops.extend(self.name(to.0, &to.1, Some(node)));
                // Both names change atomically.
                let names = ops.into_iter().flat_map(|op| match op {
                    Op::Names(names) => names,
                    _ => Vec::new(),
                });
                vec![Op::Names(names.collect())]
            }
            "link" | "linkat" => {
                let (from, to) = (self.place(root, call, 0), self.place(root, call, 1));
                let node = self.names[&from.0].get(&from.1).copied();
                self.name(to.0, &to.1, node)
            }
            "write" | "writev" | "pwrite64" => {
                let (open, Some(Arg::Text(data))) = (self.known(root, call, fds), call.args.get(1)) else {
                    refuse()
                };
                let mut open = open.borrow_mut();
                let len = answer as usize;
                let at = match (name, call.args.get(3)) {
                    ("pwrite64", Some(Arg::Other(at))) => at.parse().expect("an offset is a number"),
                    ("pwrite64", _) => refuse(),
                    _ if open.appends => self.sizes[&open.node],
                    _ => open.at,
                };
                if name != "pwrite64" {
                    open.at = at + len as u64;
                }
                let size = self.sizes.entry(open.node).or_default();
                *size = (*size).max(at + len as u64);
                vec![Op::Write { file: open.node, at, data: Arc::new(data[..len].to_vec()) }]
            }
            "ftruncate" => {
                let open = self.known(root, call, fds);
                let Some(Arg::Other(size)) = call.args.get(1) else { refuse() };
                let node = open.borrow().node;
                self.resize(node, size.parse().expect("a size is a number"))
            }
            "truncate" => {
                let (dir, name) = self.place(root, call, 0);
                let Some(Arg::Other(size)) = call.args.get(1) else { refuse() };
                let node = self.names[&dir][&name];
                self.resize(node, size.parse().expect("a size is a number"))
            }
            "fsync" | "fdatasync" => {
                let node = self.known(root, call, fds).borrow().node;
                let kind = match (self.is_dir[node], name) {
                    (true, _) => SyncKind::Directory,
                    (false, "fsync") => SyncKind::File,
                    (false, _) => SyncKind::FileData,
                };
                vec![Op::Sync { node, kind }]
            }
            "mmap" => {
                let has =
                    |word: &str| call.args.iter().any(|a| matches!(a, Arg::Other(s) if s.contains(word)));
                if has("MAP_SHARED") && has("PROT_WRITE") {
                    refuse();
                }
                Vec::new()
            }
            "fcntl" => {
                let known = ["F_GETFD", "F_SETFD", "F_GETFL", "F_DUPFD", "F_DUPFD_CLOEXEC"];
                if !matches!(call.args.get(1), Some(Arg::Other(what)) if known.contains(&what.as_str())) {
                    refuse();
                }
                Vec::new()
            }
            // These take effect when they end. `sync_file_range` guarantees nothing.
            "read" | "readv" | "lseek" | "dup" | "dup2" | "dup3" | "sync_file_range" => Vec::new(),
            _ => refuse(),
        }
    }

    /// Applies the end of a call: descriptors and offsets.
    fn end(&mut self, root: &Path, call: &Call, fds: &mut HashMap<i64, Rc<RefCell<Open>>>) {
        let Some(answer) = call.answer.filter(|answer| *answer >= 0) else { return };
        let fd = match call.args.first() {
            Some(Arg::Fd(fd, _)) => *fd,
            _ => -1,
        };
        match call.name.as_str() {
            "open" | "openat" | "creat" => {
                let (dir, name) = match self.try_place(root, call, 0) {
                    Some(place) => place,
                    // The recorded directory itself, or its parents.
                    None => return,
                };
                let node = if name == "." { dir } else { self.names[&dir][&name] };
                let appends = flags(call).contains("O_APPEND");
                fds.insert(answer, Rc::new(RefCell::new(Open { node, at: 0, appends })));
            }
            "dup" | "dup2" | "dup3" => {
                if let Some(open) = fds.get(&fd).cloned() {
                    fds.insert(answer, open);
                }
            }
            "fcntl" if matches!(call.args.get(1), Some(Arg::Other(w)) if w.starts_with("F_DUPFD")) => {
                if let Some(open) = fds.get(&fd).cloned() {
                    fds.insert(answer, open);
                }
            }
            "lseek" => {
                if let Some(open) = fds.get(&fd) {
                    open.borrow_mut().at = answer as u64;
                }
            }
            "read" | "readv" => {
                if let Some(open) = fds.get(&fd) {
                    open.borrow_mut().at += answer as u64;
                }
            }
            _ => {}
        }
    }

    /// Returns the result of a call interrupted by the end of its process: the number of bytes written, or that a name
    /// is removed. `None` if it had no effect.
    fn cut_off(&self, root: &Path, call: &Call, fds: &HashMap<i64, Rc<RefCell<Open>>>) -> Option<i64> {
        if call.name == "unlink" {
            return (!path(call, 0)?.exists()).then_some(0);
        }
        if let ("pwrite64", Some(Arg::Fd(_, path)), Some(Arg::Text(data)), Some(Arg::Other(at))) =
            (call.name.as_str(), call.args.first(), call.args.get(1), call.args.last())
        {
            // Bytes that equal the previous contents may count as written.
            let mut now = vec![0; data.len()];
            let file = std::fs::File::open(path).ok()?;
            let read = file.read_at(&mut now, at.parse().ok()?).ok()?;
            return Some(now[..read].iter().zip(data).take_while(|(now, data)| now == data).count() as i64);
        }
        let ("write", Some(Arg::Fd(_, path)), Some(Arg::Text(data))) =
            (call.name.as_str(), call.args.first(), call.args.get(1))
        else {
            return None;
        };
        let open = self.known(root, call, fds);
        let open = open.borrow();
        let (at, size) =
            (if open.appends { self.sizes[&open.node] } else { open.at }, self.sizes[&open.node]);
        assert!(at >= size, "a write over old bytes was interrupted, at an unknown position: {}", show(call));
        let now = std::fs::metadata(path).map_or(size, |file| file.len());
        Some(now.saturating_sub(at).min(data.len() as u64) as i64)
    }

    fn opened(&mut self, root: &Path, call: &Call) -> Vec<Op> {
        let flags = flags(call);
        for word in ["O_TMPFILE", "O_SYNC", "O_DSYNC", "O_DIRECT|", "__O_"] {
            assert!(!flags.contains(word), "the recording does not understand {word}: {}", show(call));
        }
        let Some((dir, name)) = self.try_place(root, call, 0) else { return Vec::new() };
        if name == "." {
            return Vec::new();
        }
        match self.names[&dir].get(&name).copied() {
            Some(node) if flags.contains("O_TRUNC") => self.resize(node, 0),
            Some(_) => Vec::new(),
            None => {
                assert!(
                    flags.contains("O_CREAT") || call.name == "creat",
                    "a file that the recording does not know was opened: {}",
                    show(call)
                );
                let node = self.add_node(root, call, false);
                self.name(dir, &name, Some(node))
            }
        }
    }

    fn add_node(&mut self, root: &Path, call: &Call, is_dir: bool) -> Node {
        let node = self.is_dir.len();
        self.is_dir.push(is_dir);
        let path = path(call, 0).and_then(|path| Some(path.strip_prefix(root).ok()?.display().to_string()));
        self.first_path.push(path.unwrap_or_default());
        if is_dir {
            self.names.insert(node, BTreeMap::new());
        } else {
            self.sizes.insert(node, 0);
        }
        node
    }

    fn name(&mut self, dir: Node, name: &str, node: Option<Node>) -> Vec<Op> {
        let names = self.names.get_mut(&dir).expect("a directory has names");
        match node {
            Some(node) => names.insert(name.to_owned(), node),
            None => names.remove(name),
        };
        vec![Op::Names(vec![(dir, name.to_owned(), node)])]
    }

    fn resize(&mut self, file: Node, size: u64) -> Vec<Op> {
        self.sizes.insert(file, size);
        vec![Op::Resize { file, size }]
    }

    /// Returns the open file of a call, and checks that its path is the one that the kernel shows.
    fn known(&self, root: &Path, call: &Call, fds: &HashMap<i64, Rc<RefCell<Open>>>) -> Rc<RefCell<Open>> {
        let Some(Arg::Fd(fd, shown)) = call.args.first() else {
            panic!("a call without a descriptor: {}", show(call))
        };
        let open = fds.get(fd).unwrap_or_else(|| panic!("an unknown descriptor: {}", show(call)));
        // A deleted file has no path any more.
        if let Some(node) = self.find(root, shown) {
            assert_eq!(node, open.borrow().node, "the recording confuses files at {}", show(call));
        }
        Rc::clone(open)
    }

    fn find(&self, root: &Path, path: &Path) -> Option<Node> {
        let mut node = 0;
        for part in path.strip_prefix(root).ok()?.components() {
            let Component::Normal(part) = part else { continue };
            node = *self.names.get(&node)?.get(part.to_str()?)?;
        }
        Some(node)
    }

    /// Returns the directory and the name of path number `n` of a call.
    fn place(&self, root: &Path, call: &Call, n: usize) -> (Node, String) {
        self.try_place(root, call, n).unwrap_or_else(|| panic!("a path outside: {}", show(call)))
    }

    /// Like `place`; `None` outside of the recorded directory, which is itself `.`.
    fn try_place(&self, root: &Path, call: &Call, n: usize) -> Option<(Node, String)> {
        let path = path(call, n)?;
        let below = path.strip_prefix(root).ok()?;
        let (Some(parent), Some(name)) = (below.parent(), below.file_name()) else {
            return Some((0, ".".to_owned()));
        };
        let dir = self.find(root, &root.join(parent));
        let dir = dir.unwrap_or_else(|| panic!("an unknown directory: {}", show(call)));
        Some((dir, name.to_str().expect("names are UTF-8").to_owned()))
    }
}

/// Returns path number `n` of a call, resolved from its directory argument.
fn path(call: &Call, n: usize) -> Option<PathBuf> {
    let mut base = PathBuf::new();
    let mut seen = 0;
    for arg in &call.args {
        match arg {
            Arg::Fd(_, path) => base.clone_from(path),
            Arg::Text(bytes) => {
                if seen == n {
                    return Some(base.join(String::from_utf8_lossy(bytes).as_ref()));
                }
                seen += 1;
            }
            Arg::Other(_) => {}
        }
    }
    None
}

/// Returns the flags of an `open`.
fn flags(call: &Call) -> &str {
    let flags = call.args.iter().find_map(|arg| match arg {
        Arg::Other(word) if word.contains("O_") => Some(word.as_str()),
        _ => None,
    });
    flags.unwrap_or_default()
}

/// Formats a call for a message.
fn show(call: &Call) -> String {
    let args: Vec<String> = call
        .args
        .iter()
        .map(|arg| match arg {
            Arg::Fd(fd, path) => format!("{fd}<{}>", path.display()),
            Arg::Text(bytes) => format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)])),
            Arg::Other(text) => text.clone(),
        })
        .collect();
    format!("{}({}) = {:?}", call.name, args.join(", "), call.answer)
}
