//! Runs the server under `strace` and parses its output: each system call that names something below the recorded
//! directory, with its data, its start and its end.
//!
//! A preloaded library would miss some: the store's libraries rename through `rustix`, which makes system calls
//! directly without libc. strace misses nothing, and recording.rs verifies it: replaying a complete recording must give
//! the actual directory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// Every call that can change a file, a name or a file's offset, or sync; and calls that a recording cannot
/// represent, so that it can reject them.
const CALLS: &str = "open,openat,openat2,creat,close,close_range,dup,dup2,dup3,fcntl,read,readv,lseek,write,\
writev,pwrite64,pwritev,pwritev2,truncate,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,rmdir,\
mkdir,mkdirat,link,linkat,symlink,symlinkat,mknod,mknodat,fsync,fdatasync,sync,syncfs,sync_file_range,mmap,\
msync,copy_file_range,sendfile,splice,vmsplice,io_uring_setup,io_setup,clone,clone3,fork,vfork,chdir,fchdir";

/// One argument of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg {
    /// A file descriptor and the path that the kernel shows for it.
    Fd(i64, PathBuf),
    /// A string or a buffer.
    Text(Vec<u8>),
    /// A number, flags, or a structure, as strace prints it.
    Other(String),
}

/// One system call.
#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    pub args: Vec<Arg>,
    /// Its result; `None` if the process ended first.
    pub answer: Option<i64>,
}

/// The start or end of a call, in the order of events.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub call: usize,
    pub ends: bool,
    /// Nanoseconds since 1970, by the machine's clock.
    pub at: u64,
}

/// The calls of one process.
#[derive(Debug, Default)]
pub struct Trace {
    pub calls: Vec<Call>,
    pub moments: Vec<Moment>,
}

/// Reads a trace while it is written.
pub struct Reader {
    thread: JoinHandle<Trace>,
}

impl Reader {
    /// Waits for the end of the traced process.
    pub fn trace(self) -> Trace {
        self.thread.join().expect("the trace can be read")
    }
}

/// Returns a command prefix that runs a program under `strace`, and the reader of its output. Only calls that name
/// something below `root` are kept. `pipe` is a path for a named pipe.
pub fn strace(root: &Path, pipe: &Path) -> (Vec<String>, Reader) {
    let made = Command::new("mkfifo").arg(pipe).stdin(Stdio::null()).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo {} works", pipe.display());
    let strace = ["/usr/bin/strace", "/usr/local/bin/strace", "/bin/strace"];
    let strace = strace.into_iter().find(|path| Path::new(path).exists());
    let strace = strace.expect("strace is installed: tests/run installs it, or `apt-get install strace`");
    let words = [
        strace,
        "-f",
        "--seccomp-bpf",
        "-y",
        "--absolute-timestamps=format:unix,precision:ns",
        "-xx",
        // The largest buffer of one call is far smaller.
        "-s",
        "268435456",
        "-e",
        "signal=none",
        "-e",
        &format!("trace={CALLS}"),
        "-o",
        &pipe.display().to_string(),
    ]
    .map(str::to_owned);
    let (root, pipe) = (root.to_owned(), pipe.to_owned());
    let thread = std::thread::spawn(move || {
        let file = std::fs::File::open(&pipe).expect("the pipe can be opened");
        read(BufReader::with_capacity(1 << 20, file), &root)
    });
    (words.to_vec(), Reader { thread })
}

/// Parses all lines.
fn read(mut lines: impl BufRead, root: &Path) -> Trace {
    let needle: Vec<u8> =
        root.as_os_str().as_bytes().iter().flat_map(|b| format!("\\x{b:02x}").into_bytes()).collect();
    let mut trace = Trace::default();
    // By thread: the call in progress, and whether it is kept.
    let mut open: HashMap<Vec<u8>, Option<usize>> = HashMap::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line).expect("the pipe can be read") == 0 {
            return trace;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let (pid, rest) = word(text);
        let (time, rest) = word(rest);
        if rest.starts_with(b"+++") || rest.starts_with(b"---") || rest.is_empty() {
            continue;
        }
        let at = nanoseconds(time);
        if rest.starts_with(b"<... ") {
            if let Some(call) = open.remove(pid).flatten() {
                trace.calls[call].answer = answer(rest);
                trace.moments.push(Moment { call, ends: true, at });
            }
            continue;
        }
        let unfinished = rest.ends_with(b"<unfinished ...>");
        let kept = is_kept(rest, &needle).then(|| {
            let call = trace.calls.len();
            trace.calls.push(parse(rest, unfinished));
            trace.moments.push(Moment { call, ends: false, at });
            call
        });
        if unfinished {
            open.insert(pid.to_owned(), kept);
        } else if let Some(call) = kept {
            trace.moments.push(Moment { call, ends: true, at });
        }
    }
}

/// Returns the text up to the next space, and the text after the spaces.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|b| *b == b' ').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    (word, rest.trim_ascii_start())
}

fn nanoseconds(time: &[u8]) -> u64 {
    let text = std::str::from_utf8(time).expect("a time is ASCII");
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let parse = |s: &str| s.parse::<u64>().unwrap_or_else(|_| panic!("a time, not {text:?}"));
    assert_eq!(fraction.len(), 9, "nanoseconds were asked for, not {text:?}");
    parse(seconds) * 1_000_000_000 + parse(fraction)
}

/// Paths are near the front of a line, followed only by data.
const FRONT: usize = 8192;

/// Whether a call is kept: it names something below the root, or the recording must refuse it.
fn is_kept(text: &[u8], needle: &[u8]) -> bool {
    let name = text.split(|b| *b == b'(').next().unwrap_or_default();
    match name {
        b"sync" | b"io_uring_setup" | b"io_setup" | b"fork" | b"vfork" | b"chdir" | b"fchdir" => true,
        // Threads share their descriptors; a child process would have its own, which are not traced.
        b"clone" | b"clone3" => !text.windows(11).any(|w| w == b"CLONE_FILES"),
        // The server's log lines may contain a path.
        b"write" if text.starts_with(b"write(1<") || text.starts_with(b"write(2<") => false,
        _ => text[..text.len().min(FRONT)].windows(needle.len()).any(|w| w == needle),
    }
}

/// Parses the result after the last `) = `.
fn answer(text: &[u8]) -> Option<i64> {
    let tail = &text[text.len().saturating_sub(FRONT)..];
    let at = tail.windows(4).rposition(|w| w == b") = ")?;
    let digits = String::from_utf8_lossy(&tail[at + 4..]);
    let digits = digits.split([' ', '<']).next().unwrap_or_default();
    match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn parse(text: &[u8], unfinished: bool) -> Call {
    let open = text.iter().position(|b| *b == b'(').expect("a call has arguments");
    let name = String::from_utf8_lossy(&text[..open]).into_owned();
    let mut rest = &text[open + 1..];
    let mut args = Vec::new();
    while !rest.is_empty() && !rest.starts_with(b")") && !rest.starts_with(b"<unfinished") {
        let (arg, tail) = parse_arg(rest);
        args.push(arg);
        rest = tail.strip_prefix(b",").unwrap_or(tail).trim_ascii_start();
        if tail.starts_with(b" <unfinished") {
            break;
        }
    }
    Call { name, args, answer: if unfinished { None } else { answer(text) } }
}

/// Parses one argument. Returns it and the rest.
fn parse_arg(text: &[u8]) -> (Arg, &[u8]) {
    if text.starts_with(b"\"") {
        let (bytes, rest) = quoted(text);
        return (Arg::Text(bytes), rest);
    }
    if text.starts_with(b"[") || text.starts_with(b"{") {
        return parse_structure(text);
    }
    let end = text.iter().position(|b| matches!(b, b',' | b')' | b'<' | b' ')).unwrap_or(text.len());
    let (head, rest) = text.split_at(end);
    let plain = String::from_utf8_lossy(head).into_owned();
    if rest.starts_with(b"<") && !rest.starts_with(b"<unfinished") {
        let close = rest.iter().position(|b| *b == b'>').expect("a path has an end");
        let number = if plain == "AT_FDCWD" { -100 } else { plain.parse().unwrap_or(-1) };
        let path = PathBuf::from(OsStr::from_bytes(&hex(&rest[1..close])));
        // A file without a name is shown as `<path>(deleted)`.
        let rest = rest[close + 1..].strip_prefix(b"(deleted)").unwrap_or(&rest[close + 1..]);
        return (Arg::Fd(number, path), rest);
    }
    (Arg::Other(plain), rest)
}

/// Parses a list or a structure. For `writev`, concatenates the buffers.
fn parse_structure(text: &[u8]) -> (Arg, &[u8]) {
    let (mut depth, mut at, mut buffers, mut has_buffers) = (0, 0, Vec::new(), false);
    while at < text.len() {
        match text[at] {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b'"' => {
                let (bytes, rest) = quoted(&text[at..]);
                buffers.extend(bytes);
                has_buffers = true;
                at = text.len() - rest.len();
                continue;
            }
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    let (head, rest) = text.split_at(at);
    let arg = if has_buffers {
        Arg::Text(buffers)
    } else {
        Arg::Other(String::from_utf8_lossy(&head[..head.len().min(200)]).into_owned())
    };
    (arg, rest)
}

/// Parses a quoted string. Returns it and the rest.
fn quoted(text: &[u8]) -> (Vec<u8>, &[u8]) {
    // All bytes are written as `\x..`, so the next quote is the end.
    let end = 1 + text[1..].iter().position(|b| *b == b'"').expect("a string has an end");
    let rest = &text[end + 1..];
    assert!(!rest.starts_with(b"..."), "strace was told to print all, not {} bytes", end / 4);
    (hex(&text[1..end]), rest)
}

/// Decodes repeated `\x..`. Other characters represent themselves.
fn hex(text: &[u8]) -> Vec<u8> {
    const NONE: u8 = 255;
    const DIGIT: [u8; 256] = {
        let mut table = [NONE; 256];
        let mut n = 0;
        while n < 16 {
            table[b"0123456789abcdef"[n] as usize] = n as u8;
            n += 1;
        }
        table
    };
    if text.len() >= 4 && text.len().is_multiple_of(4) && text.starts_with(b"\\x") {
        let byte = |four: &[u8]| DIGIT[four[2] as usize] << 4 | DIGIT[four[3] as usize];
        return text.chunks_exact(4).map(byte).collect();
    }
    assert!(!text.contains(&b'\\'), "an escape that is not understood: {:?}", String::from_utf8_lossy(text));
    text.to_vec()
}
