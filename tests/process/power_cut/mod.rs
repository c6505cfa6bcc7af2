//! Power cuts. A real server is recorded while it gets all kinds of requests that change its store; the recording is
//! cut at some moment, and the directory is rebuilt in a state that the cut may have left. The store must open it, with
//! everything that was acknowledged.
//!
//! [`trace`] records each system call, [`recording`] reads them as changes of files and names, [`disk`] defines what a
//! cut may leave of them, [`load`] sends requests, [`judge`] opens the result and checks it.
//!
//! `POWER_CUTS=5000` tries that many cuts of each recording instead of a few; `POWER_CUTS_SEED=7` changes the random
//! seed; `POWER_CUTS_KEEP=dir` keeps the first directories that were refused or judged wrong. Needs `strace`.

mod disk;
mod judge;
mod load;
mod recording;
mod rng;
mod ticks;
mod trace;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disk::{Disk, Promise};
use judge::{Account, Kind, PowerCut, Verdict};
use load::{Driver, Server};
use recording::{Node, Op, Recording, SyncKind};
use rng::Rng;
use tempfile::TempDir;
use ticks::{TICK, Tick, Ticker};

/// The recording, and the acts of the clients.
struct Recorded {
    recording: Recording,
    account: Account,
    /// The ticks of a [`Ticker`] during the recording.
    ticks: Vec<Tick>,
}

/// Which requests are recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    /// Everything except a log of many files.
    Small,
    /// Enough that log files are reused.
    Large,
}

/// Runs servers and their clients, one after the other on the same directory, and checks that the recording is
/// complete. Fails if the state of the last write is ambiguous after a kill.
async fn record(sync: &str, size: Size) -> Result<Recorded, String> {
    let dir = TempDir::new().expect("a temporary directory");
    // strace prints canonical paths.
    let home = dir.path().canonicalize().expect("it is there");
    let (root, work) = (home.join("root"), home.join("work"));
    std::fs::create_dir(&root).expect("a directory");
    std::fs::create_dir(&work).expect("a directory");
    let acts = Arc::new(Mutex::new(Vec::new()));
    let mut recording = Recording::new();

    // The first run: all requests, and enough that the close writes tables.
    let server = Server::start(&root, &work, sync);
    let mut driver = Driver::new(&server, acts.clone(), 1).await;
    if sync == "everysec" {
        // Before there are schedules, which sync what they record.
        let began = Instant::now();
        while began.elapsed() < TRICKLE {
            driver.publish("trickle", 100, 1, Duration::ZERO).await;
            tokio::time::sleep(TICK).await;
        }
    }
    for n in 0..3 {
        driver.schedule(&format!("s{n}"), 1.0 + f64::from(n) * 0.05).await;
    }
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..4 {
        tasks.spawn(driver.other(n).everyday(60));
    }
    tasks.spawn(driver.other(10).dead_letters());
    tasks.spawn(driver.other(11).destroyed());
    tasks.spawn(driver.other(12).burst());
    tasks.join_all().await;
    let mut mass = driver.mass(if size == Size::Large { 90 } else { 5 }).await;
    driver.other(20).everyday(40).await;
    if size == Size::Large {
        // There is no event for the moment when tables contain the records of the log files.
        let began = Instant::now();
        while log_files(&root) > 6 && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // By now some log files are no longer needed.
        mass.extend(driver.mass(28).await);
    }
    recording.add(&root, &server.stop().await)?;

    // The second run empties the queue that has most jobs in tables, and is killed.
    let server = Server::start(&root, &work, sync);
    let driver = Driver::new(&server, acts.clone(), 2).await;
    let everyday = tokio::spawn(driver.other(30).everyday(40));
    driver.empty(&mass, 60).await;
    everyday.await.expect("the client is answered");
    let killed = load::nanoseconds();
    recording.add(&root, &server.kill().await)?;

    // The third server replays the log, finds garbage, and compacts while it has little load, such as an occasional
    // job.
    let before = tables(&root);
    let server = Server::start(&root, &work, sync);
    let down = killed..load::nanoseconds();
    let mut driver = Driver::new(&server, acts.clone(), 3).await;
    driver.make_token("other").await;
    let began = Instant::now();
    while before.iter().all(|table| table.exists()) && began.elapsed() < PATIENCE {
        driver.publish("trickle", 100, 1, Duration::ZERO).await;
        // There is no event for finished upkeep.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    driver.other(40).everyday(60).await;
    recording.add(&root, &server.stop().await)?;

    let mut last = Disk::new(&recording, Promise::Posix, None);
    last.advance(recording.moments.len());
    // The effect of a call interrupted by the end of its process may be unknown.
    last.living().is_same(&root)?;
    let acts = std::mem::take(&mut *acts.lock().expect("no client died"));
    let account = Account::new(acts, sync == "always", down);
    Ok(Recorded { recording, account, ticks: Vec::new() })
}

/// How long a server that syncs every second gets one small job after the other: a store that syncs less often is found
/// out by [`Recorded::longest_wait`].
const TRICKLE: Duration = Duration::from_secs(4);

/// How long a recording waits for a compaction.
const PATIENCE: Duration = Duration::from_secs(12);

/// Returns the number of log files.
fn log_files(root: &Path) -> usize {
    std::fs::read_dir(root.join("pool/log")).expect("a store has a log").count()
}

/// Whether this is a table.
fn is_table(path: &Path) -> bool {
    path.to_string_lossy().contains("/tables/")
}

/// Whether this is a file of the log.
fn is_log(path: &str) -> bool {
    path.rsplit_once("/log/").is_some_and(|(_, name)| name.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns the tables below a directory.
fn tables(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let found = entries.flat_map(|path| match path.is_dir() {
        true => tables(&path),
        false => vec![path],
    });
    found.filter(|path| is_table(path)).collect()
}

impl Recorded {
    /// Checks that the recording contains everything needed. Fails with the missing part.
    fn has_all(&self, size: Size) -> Result<(), String> {
        // Tables created and removed.
        let (mut tables, mut heads, mut syncs) = ([0; 2], BTreeMap::new(), [0; 3]);
        for event in &self.recording.events {
            match &event.op {
                Op::Names(names) => {
                    for (dir, name, node) in names {
                        let path = format!("{}/{name}", self.recording.first_path[*dir]);
                        let removed = usize::from(node.is_none());
                        tables[removed] += usize::from(is_table(Path::new(&path)));
                    }
                }
                Op::Sync { kind, .. } => syncs[*kind as usize] += 1,
                Op::Write { file, at: 0, data } if data.starts_with(b"dormlog1") => {
                    heads.entry(*file).or_insert_with(BTreeSet::new).insert(data.get(..24));
                }
                Op::Write { .. } | Op::Resize { .. } => {}
            }
        }
        let again = heads.values().filter(|turns| turns.len() > 1).count();
        println!(
            "recorded: {} events, {} jobs; tables made and removed {tables:?}, files of the log used again {again}; syncs of \
             files, data, directories {syncs:?}",
            self.recording.events.len(),
            self.account.jobs()
        );
        let checks = [
            (tables[0] >= 4, "memory was not written out as tables"),
            (tables[1] >= 1, "no compaction replaced tables"),
            (syncs.iter().all(|n| *n > 3), "a kind of sync is not there"),
            (size == Size::Small || again > 0, "the log did not use its files again"),
        ];
        checks.into_iter().try_for_each(|(is, not)| if is { Ok(()) } else { Err(not.to_owned()) })
    }

    /// Draws cuts: anywhere, just before the end of a sync, around changes of names, after large writes, and before the
    /// first acknowledgement.
    fn draw(&self, count: usize, seed: u64) -> Vec<Cut> {
        let mut rng = Rng::new(seed);
        let moments = &self.recording.moments;
        let where_is = |is: &dyn Fn(&Op) -> bool| -> Vec<usize> {
            let at =
                |(n, m): (usize, &recording::Moment)| is(&self.recording.events[m.event].op).then_some(n);
            moments.iter().enumerate().filter_map(at).collect()
        };
        let syncs = where_is(&|op| matches!(op, Op::Sync { .. }));
        let names = where_is(&|op| matches!(op, Op::Names(_)));
        let large = where_is(&|op| matches!(op, Op::Write { data, .. } if data.len() > 4096));
        let answered = self.account.first_answer();
        let first = moments.iter().position(|moment| moment.at > answered).unwrap_or(moments.len());
        let mut cuts: Vec<Cut> = (0..count)
            .map(|_| {
                let at = match rng.below(6) {
                    0 => syncs[rng.below(syncs.len())],
                    1 => names[rng.below(names.len())] + rng.below(4),
                    2 => large[rng.below(large.len())] + 1 + rng.below(4),
                    3 => rng.below(first),
                    _ => rng.below(moments.len() + 1),
                };
                Cut { at: at.min(moments.len()), seed: rng.next() }
            })
            .collect();
        cuts.sort_by_key(|cut| cut.at);
        cuts
    }

    /// Returns the time of the moment after the cut.
    fn time(&self, cut: Cut) -> u64 {
        let moments = &self.recording.moments;
        moments
            .get(cut.at)
            .or(moments.last())
            .map_or(0, |moment| moment.at + u64::from(cut.at == moments.len()))
    }

    /// Judges each cut, until `enough` returns true.
    fn judge(
        &self,
        cuts: &[Cut],
        promise: Promise,
        forget: Option<SyncKind>,
        enough: &dyn Fn(&Report) -> bool,
    ) -> Report {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut disk = Disk::new(&self.recording, promise, forget);
        let mut report = Report::default();
        for cut in cuts {
            disk.advance(cut.at);
            let image = disk.cut(&mut Rng::new(cut.seed));
            let dir = TempDir::new().expect("a temporary directory");
            image.store(dir.path()).expect("it can be rebuilt");
            let time = self.time(*cut);
            let unsynced = disk.unsynced_writes(|node| is_log(&self.recording.first_path[node]));
            let unsynced = unsynced.map(|moment| self.recording.moments[moment].at).collect();
            let power_cut = PowerCut { at: time, unsynced };
            let verdict = runtime.block_on(self.account.judge(&dir.path().join("pool"), &power_cut));
            let is_promised = self.account.first_answer() < time;
            if report.add(*cut, is_promised, verdict)
                && let Some(keep) = std::env::var_os("POWER_CUTS_KEEP")
            {
                let kept = PathBuf::from(keep).join(format!("{promise:?}-{}-{:x}", cut.at, cut.seed));
                image.store(&kept).expect("it can be kept");
                self.explain(*cut, &kept.join("why"));
            }
            if enough(&report) {
                break;
            }
        }
        report
    }

    /// Returns the longest time from a write to the log until a sync of its file began, measured by the ticks. While a
    /// recorded call is in progress no time passes, since the sync may have to wait for it.
    fn longest_wait(&self) -> Duration {
        let mut ticks = self.ticks.iter().peekable();
        let (mut longest, mut calls) = (Duration::ZERO, 0);
        // Of each file with writes since its last sync.
        let mut waits: HashMap<Node, Duration> = HashMap::new();
        for moment in &self.recording.moments {
            while let Some(tick) = ticks.next_if(|tick| tick.at < moment.at) {
                if self.account.is_down(tick.at) {
                    waits.clear();
                } else if calls == 0 {
                    waits.values_mut().for_each(|wait| *wait += tick.passed);
                }
            }
            let is_log = |node: &Node| is_log(&self.recording.first_path[*node]);
            match &self.recording.events[moment.event].op {
                Op::Write { file, .. } if moment.ends && is_log(file) => {
                    waits.entry(*file).or_default();
                }
                Op::Sync { node, .. } if !moment.ends && is_log(node) => {
                    longest = longest.max(waits.remove(node).unwrap_or_default());
                }
                _ => {}
            }
            if moment.ends {
                calls -= 1;
            } else {
                calls += 1;
            }
        }
        longest
    }

    /// Writes the last events before a cut to a file.
    fn explain(&self, cut: Cut, path: &Path) {
        let mut text = String::new();
        for (n, moment) in self.recording.moments[..cut.at].iter().enumerate().rev().take(60) {
            let what = if moment.ends { "ended" } else { "began" };
            let _ = writeln!(text, "{n} {what} {}", self.show(&self.recording.events[moment.event].op));
        }
        std::fs::write(path, text).expect("it can be written");
    }

    fn show(&self, op: &Op) -> String {
        let path = |node: &usize| self.recording.first_path[*node].as_str();
        match op {
            Op::Write { file, at, data } => format!("write {} at {at} of {}", path(file), data.len()),
            Op::Resize { file, size } => format!("resize {} to {size}", path(file)),
            Op::Names(names) => {
                let names = names.iter().map(|(dir, name, node)| {
                    format!("{}/{name} = {}", path(dir), node.as_ref().map_or("nothing", path))
                });
                names.collect::<Vec<_>>().join(", ")
            }
            Op::Sync { node, kind } => format!("sync {kind:?} {}", path(node)),
        }
    }
}

/// A moment to cut at, and a seed for what survives.
#[derive(Clone, Copy, Debug)]
struct Cut {
    at: usize,
    seed: u64,
}

/// Results of some cuts.
#[derive(Debug, Default)]
struct Report {
    cuts: usize,
    opened: usize,
    /// By reason: all cuts, and the cuts after an acknowledgement.
    refused: BTreeMap<String, (usize, usize)>,
    /// Number of cuts and of violations of each kind.
    wrong: BTreeMap<Kind, (usize, usize)>,
    examples: Vec<String>,
}

impl Report {
    /// Adds a verdict. Returns whether it is wrong.
    fn add(&mut self, cut: Cut, is_promised: bool, verdict: Verdict) -> bool {
        self.cuts += 1;
        let findings = match verdict {
            Verdict::Refused(reason) | Verdict::Broke(reason) => {
                let count = self.refused.entry(reason.clone()).or_default();
                count.0 += 1;
                count.1 += usize::from(is_promised);
                if count.0 <= 2 {
                    self.examples.push(format!("{cut:?} refused: {reason}"));
                }
                return true;
            }
            Verdict::Opened(findings) => findings,
        };
        self.opened += 1;
        let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
        findings.iter().for_each(|(kind, _)| *kinds.entry(*kind).or_default() += 1);
        for (kind, count) in &kinds {
            let all = self.wrong.entry(*kind).or_default();
            all.0 += 1;
            all.1 += count;
            if all.0 <= 3
                && let Some((_, text)) = findings.iter().find(|(of, _)| of == kind)
            {
                self.examples.push(format!("{cut:?} {kind:?} ({count}): {text}"));
            }
        }
        !findings.is_empty()
    }

    /// Panics if a store was refused or had a violation.
    #[track_caller]
    fn expect_sound(&self) {
        assert!(self.cuts > 0, "no cut was tried");
        assert!(
            self.wrong.is_empty() && self.refused.is_empty(),
            "every store should open with everything acknowledged, but of\n{}",
            self.show("these")
        );
    }

    fn refusals(&self) -> usize {
        self.refused.values().map(|(all, _)| all).sum()
    }

    fn show(&self, what: &str) -> String {
        let mut text =
            format!("{what}: {} cuts, {} opened, {} refused\n", self.cuts, self.opened, self.refusals());
        for (reason, (all, promised)) in &self.refused {
            let _ = writeln!(text, "  refused {all} times ({promised} after an answer): {reason}");
        }
        for (kind, (cuts, findings)) in &self.wrong {
            let _ = writeln!(text, "  {kind:?}: {cuts} cuts, {findings} findings");
        }
        self.examples.iter().for_each(|example| {
            let _ = writeln!(text, "    {example}");
        });
        text
    }
}

/// Returns a number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Returns the number of cuts: `short`, or that of the long form.
fn count(short: usize) -> usize {
    number("POWER_CUTS").map_or(short, |n| n as usize)
}

fn seed() -> u64 {
    number("POWER_CUTS_SEED").unwrap_or(1)
}

/// Interval of syncs with `"everysec"`.
const A_SECOND: Duration = Duration::from_secs(1);
/// Number of attempts to record a server.
const TRIES: usize = 4;

/// Records a server, and checks that everything of interest is in the recording.
fn recorded(sync: &str, size: Size) -> Recorded {
    let began = Instant::now();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for _ in 0..TRIES {
        let ticker = Ticker::start();
        let recorded = runtime.block_on(record(sync, size));
        let ticks = ticker.stop();
        println!("recording took {:?}", began.elapsed());
        // On a busy machine a server may stop before its tables are written.
        match recorded.and_then(|recorded| recorded.has_all(size).map(|()| Recorded { ticks, ..recorded })) {
            Ok(recorded) => return recorded,
            Err(reason) => println!("recorded once more: {reason}"),
        }
    }
    panic!("no recording in {TRIES} tries");
}

/// Makes the cuts and judges them.
fn try_cuts(recorded: &Recorded, promise: Promise, short: usize) {
    let began = Instant::now();
    let report = recorded.judge(&recorded.draw(count(short), seed()), promise, None, &|_| false);
    println!("{}  took {:?}", report.show(&format!("{promise:?}")), began.elapsed());
    report.expect_sound();
}

#[test]
fn a_power_cut_loses_nothing_that_was_answered() {
    let recorded = recorded("always", Size::Small);
    try_cuts(&recorded, Promise::Posix, 40);
    try_cuts(&recorded, Promise::Ext4, 10);
}

#[test]
fn a_power_cut_loses_a_second_at_most_with_everysec() {
    let recorded = recorded("everysec", Size::Small);
    let wait = recorded.longest_wait();
    println!("no write waited longer than {wait:?} for a sync");
    assert!(wait < 2 * A_SECOND, "a sync begins each second, and a write waited for {wait:?}");
    // The cuts show that only writes without a sync are lost.
    try_cuts(&recorded, Promise::Posix, 25);
}

#[test]
fn a_power_cut_around_a_long_log_loses_nothing() {
    try_cuts(&recorded("always", Size::Large), Promise::Posix, 6);
}

/// The judge must be able to detect a fault: without any one kind of sync, it finds a violation.
#[test]
fn a_store_that_does_not_sync_is_found_out() {
    let recorded = recorded("always", Size::Small);
    for (kind, signs) in [
        // The log uses this sync. Synced groups that cannot be read are refused.
        (SyncKind::FileData, &[][..]),
        // The pool itself may be missing.
        (SyncKind::Directory, &[Kind::Lost]),
        // Tables and their lists: an empty one does not open.
        (SyncKind::File, &[]),
    ] {
        let is_found = |report: &Report| match signs {
            [] => report.refusals() > 0,
            _ => signs.iter().all(|sign| report.wrong.contains_key(sign)),
        };
        let mut cuts = recorded.draw(200, seed());
        // Cuts after a reply: before it nothing can be lost.
        let answered = recorded.account.first_answer();
        cuts.retain(|cut| recorded.time(*cut) > answered);
        let long_form = number("POWER_CUTS").is_some();
        let report =
            recorded.judge(&cuts, Promise::Posix, Some(kind), &|report| !long_form && is_found(report));
        println!("{}", report.show(&format!("as if no sync of {kind:?} were made")));
        assert!(is_found(&report), "{signs:?} were expected:\n{}", report.show("but of these"));
    }
}
