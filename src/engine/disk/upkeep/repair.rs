//! `dormouse repair`: reports corruption in a pool's directory, and on request writes everything intact to a fresh one.
//! The directory must not be open in a server, and is never changed.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use super::quarantine;
use super::rebuild::{LISTS, entry, raise_numbers, rebuild, tidy};
use crate::engine::disk::codec;
use crate::engine::disk::state::summary;
use crate::engine::disk::store::contents::{Contents, Stored};
pub use crate::engine::disk::store::fresh::RepairTo;
use crate::engine::disk::store::fresh::{self, Finished, Fresh};
use crate::engine::disk::store::mark::{FORMAT, OpenError, lock_unchanged};
use crate::engine::disk::store::{Fatal, Found, Space, Store};

/// Damage found in a directory, and the actions taken.
#[derive(Debug, Default)]
pub struct RepairReport {
    /// Corruption, one line each.
    pub damage: Vec<String>,
    /// Remarks that are not errors.
    pub notes: Vec<String>,
    /// The directories with the intact and the damaged data, if the corruption was accepted.
    pub written: Option<Finished>,
    /// Whether the store is empty because its creation was interrupted.
    pub is_new: bool,
}

impl RepairReport {
    /// Returns whether a server can open the directory, or the one written.
    pub fn opens(&self) -> bool {
        self.damage.is_empty() || self.written.is_some()
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "format {}", FORMAT)?;
        for line in &self.damage {
            writeln!(f, "damaged: {line}")?;
        }
        for line in &self.notes {
            writeln!(f, "note: {line}")?;
        }
        match (self.damage.is_empty(), &self.written) {
            (true, _) => writeln!(f, "nothing is damaged"),
            (false, Some(Finished { path, damaged, .. })) => writeln!(
                f,
                "the undamaged part opens now: {}; the damaged directory, unchanged: {}",
                path.display(),
                damaged.display()
            ),
            (false, None) => writeln!(
                f,
                "nothing was changed. Restore a backup; or give up the damaged parts with --accept-loss, which \
                 writes the rest to a fresh directory"
            ),
        }
    }
}

/// Checks the directory: every file, table and list. If anything is damaged and the loss is accepted, writes the rest
/// to a fresh directory at `place`.
pub fn repair(path: &Path, place: Option<RepairTo<'_>>) -> Result<RepairReport, OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let (_lock, said) = lock_unchanged(path)?;
    let mut report = RepairReport::default();
    if let Some(RepairTo::Beside) = place {
        let left = fresh::clear(path).map_err(|e| OpenError::NotRepaired(path.to_owned(), e.to_string()))?;
        report.notes.extend(left.map(|(from, to)| {
            format!("{}, which an interrupted repair has left, is {} now", from.display(), to.display())
        }));
    }
    if !said.made {
        report.is_new = true;
        report.notes.push("it is empty: its creation was interrupted".to_owned());
        return Ok(report);
    }
    let contents = Contents::read(path, said.closed).map_err(io)?;
    report.damage.clone_from(&contents.damage);
    for list in LISTS {
        if has_malformed(&contents, list).map_err(io)? {
            report.damage.push(format!("the list {list:?} has malformed entries"));
        }
    }
    if contents.is_torn {
        report.notes.push("the log ends in torn groups, which were never acknowledged".to_owned());
    }
    match place.filter(|_| !report.damage.is_empty()) {
        Some(place) => {
            let failed = |Fatal(e)| OpenError::NotRepaired(path.to_owned(), e);
            report.written = Some(write(path, place, &contents, &mut report.notes).map_err(failed)?);
        }
        None => {
            for row in contents.entries(Space::Quarantine).map_err(io)? {
                let (key, value) = row.map_err(io)?;
                report.notes.extend(quarantined(&key, &value));
            }
        }
    }
    Ok(report)
}

/// Describes a job in quarantine. A malformed row is not one.
fn quarantined(key: &[u8], value: &[u8]) -> Option<String> {
    let (job, reason) = quarantine::read(key, value).ok()?;
    Some(format!("job {} of {} is in quarantine: {reason}", job.id, job.queue))
}

fn has_malformed(contents: &Contents, list: Space) -> std::io::Result<bool> {
    for item in contents.entries(list)? {
        let (key, value) = item?;
        if entry(list, &key, &value).is_err() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes the intact contents to a fresh directory and completes it.
fn write(
    path: &Path,
    place: RepairTo<'_>,
    contents: &Contents,
    notes: &mut Vec<String>,
) -> Result<Finished, Fatal> {
    let fresh = Fresh::create(path, place)?;
    if let Err(e) = fill(&fresh, contents, notes) {
        fresh.remove();
        return Err(e);
    }
    let finished = fresh.finish()?;
    if let Some(e) = &finished.trouble {
        notes.push(format!("the damaged directory is kept as {}: {e}", finished.damaged.display()));
    }
    Ok(finished)
}

fn fill(fresh: &Fresh, contents: &Contents, notes: &mut Vec<String>) -> Result<(), Fatal> {
    // The summary counts groups of the damaged log; usage is counted anew.
    let is_derived = |space, key: &[u8]| match space {
        Space::Meta => key.starts_with(summary::NAME),
        Space::Quotas => codec::read_used_key(key).is_ok(),
        _ => false,
    };
    let store = fresh.fill(contents, is_derived)?;
    raise_numbers(&store)?;
    // Lost jobs are reported one by one, and lists are rebuilt.
    let is_rebuilt = |space: Space| LISTS.contains(&space) || matches!(space, Space::Jobs | Space::Keys);
    for (space, name, _) in Space::ALL {
        if contents.is_holed(space) && !is_rebuilt(space) {
            notes.push(format!("the unreadable part of keyspace {name} is lost"));
        }
    }
    tidy(&store, lost_jobs(&store, contents)?, notes)?;
    notes.extend(rebuild(&store)?.notes());
    for row in store.all(Space::Quarantine) {
        let (key, value) = row?;
        notes.extend(quarantined(&key, &value));
    }
    Ok(())
}

/// Returns the keys of listed jobs whose records are in an unreadable part. Later the entries of these jobs look like
/// entries of acked jobs.
fn lost_jobs(store: &Store, contents: &Contents) -> Result<BTreeSet<Vec<u8>>, Fatal> {
    let mut found = BTreeSet::new();
    for list in LISTS.into_iter().filter(|_| contents.is_holed(Space::Jobs)) {
        for item in store.all(list) {
            let (key, value) = item?;
            let Ok((prefix, entry)) = entry(list, &key, &value) else { continue };
            let job = codec::job_key(prefix, entry.id);
            if matches!(store.job(&job)?, Found::Nothing) && contents.get(Space::Jobs, &job)? == Stored::Lost
            {
                found.insert(job);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::disk::state::{Windows, load};
    use crate::engine::disk::store::merge::Merged;
    use crate::engine::disk::store::txn::Txn;
    use crate::engine::disk::store::{StoreLimits, open};
    use crate::engine::disk::{DiskEngine, DiskOptions};
    use crate::engine::{Engine, SizeOf};
    use crate::job::{JobId, NewJob};
    use crate::name::{Namespace, Queue, QueueName};

    const ROWS: u64 = 2000;
    const JOBS: u64 = 600;

    fn queue() -> Queue {
        Queue { namespace: Namespace::parse("ns").unwrap(), name: QueueName::parse("q").unwrap() } // names
    }

    fn options(pool: &Path) -> DiskOptions {
        let clock = Arc::new(ManualClock::new(1_000_000));
        DiskOptions { upkeep: false, ..DiskOptions::new(pool, clock) }
    }

    fn job(n: u64) -> NewJob {
        NewJob {
            queue: queue(),
            id: JobId::from_parts(1_000_000, n, 0, false),
            body: Default::default(),
            attributes: Default::default(),
            ttl: None,
            delay: Duration::ZERO,
            tries: std::num::NonZeroU16::MIN,
        }
    }

    /// A pool in a directory of its own, where a repair can write beside it.
    struct Pool {
        _dir: tempfile::TempDir,
        path: PathBuf,
    }

    impl Pool {
        fn new() -> Pool {
            let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
            Pool { path: dir.path().join("pool"), _dir: dir }
        }

        fn path(&self) -> &Path {
            &self.path
        }
    }

    /// Creates a pool with ready jobs.
    async fn pool_with_jobs() -> Pool {
        let dir = Pool::new();
        let engine = DiskEngine::open(options(dir.path())).unwrap(); // new directory
        for from in (0..JOBS).step_by(60) {
            let jobs: Vec<_> = (from..from + 60).map(job).collect();
            engine.publish(jobs.into()).await.unwrap(); // nothing is wrong with the disk
        }
        engine.close().await;
        dir
    }

    /// Repairs a pool, accepting the loss, and opens it.
    fn repaired(pool: &Path) -> Arc<DiskEngine> {
        let told = repair(pool, Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some(), "{told}");
        DiskEngine::open(options(pool)).expect("it was repaired")
    }

    /// Returns the number of ready jobs.
    async fn ready(engine: &DiskEngine) -> u64 {
        engine.size(&queue(), SizeOf::Ready).await.unwrap().jobs // nothing is wrong with the disk
    }

    /// Returns an incompressible row, so that rows fill several blocks.
    fn row(kind: &[u8], n: u64) -> (Vec<u8>, [u8; 16]) {
        let noise = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (format!("{}n{n:05}-{noise:016x}", String::from_utf8_lossy(kind)).into(), codec::used(n, noise))
    }

    /// Writes rows of these kinds to a keyspace and flushes all keyspaces to tables.
    fn fill(pool: &Path, space: Space, kinds: &[&[u8]]) {
        let (store, _mark) = open::open(pool, StoreLimits::OF_A_TOOL).unwrap(); // it is whole
        let mut txn = Txn::new(store.clone());
        for (key, value) in kinds.iter().flat_map(|kind| (0..ROWS).map(|n| row(kind, n))) {
            txn.put(space, key, value);
        }
        txn.settle(true).unwrap(); // nothing is wrong with the disk
        store.write_out(Duration::MAX).unwrap(); // as above
    }

    fn largest(pool: &Path, space: Space) -> PathBuf {
        let tables = pool.join(format!("trees/{}/tables", Space::ALL[space as usize].1));
        let tables = fs::read_dir(tables).unwrap().flatten().map(|entry| entry.path()); // it has tables
        tables.max_by_key(|path| path.metadata().unwrap().len()).unwrap() // as above
    }

    /// Flips ten bytes at a third of a keyspace's largest table, or in one of its sections.
    fn damage(pool: &Path, space: Space, section: Option<&[u8]>) {
        let table = largest(pool, space);
        let mut bytes = fs::read(&table).unwrap(); // it was listed
        let at = match section {
            // The file is a table.
            Some(name) => sfa::Reader::new(&table).unwrap().toc().section(name).unwrap().pos() as usize + 5,
            None => bytes.len() / 3,
        };
        bytes[at..at + 10].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(table, bytes).unwrap(); // as above
    }

    /// Returns the number of settings after a start.
    fn loaded(pool: &Path) -> Result<u64, Fatal> {
        let (store, _mark) = open::open(pool, StoreLimits::OF_A_TOOL).unwrap(); // the log is whole
        let windows =
            Windows { ready: 9, ready_budget: 9, delayed: 9, idle: Duration::ZERO, dead: Duration::ZERO };
        let state = load::load(store, Arc::new(ManualClock::new(0)), windows, None)?;
        assert!(state.quotas.is_empty(), "usage is counted anew");
        Ok(state.settings.len() as u64)
    }

    /// Guards against a pool that no repair can make start, and against a repair that drops readable settings.
    #[tokio::test]
    async fn settings_that_can_be_read_outlive_a_bad_block() {
        for space in [Space::Quotas, Space::Settings] {
            let dir = pool_with_jobs().await;
            fill(dir.path(), space, &[b"u"]);
            forget_log(dir.path());
            damage(dir.path(), space, None);
            assert!(loaded(dir.path()).is_err(), "{space:?}: the pool does not start");
            let told = repair(dir.path(), None).unwrap(); // it can be judged
            assert_eq!(told.damage.len(), 1, "{space:?}: {told}");
            let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
            assert!(told.written.is_some(), "{space:?}: {told}");
            let told = repair(dir.path(), None).unwrap(); // it can be judged
            assert_eq!(told.damage, [""; 0], "{space:?} is whole again: {told}");
            let settings = loaded(dir.path()).unwrap(); // it is whole
            if space == Space::Settings {
                let lost = ROWS - settings;
                assert!((1..ROWS / 4).contains(&lost), "{lost} rows of {ROWS} are lost, not one block");
            }
            let engine = DiskEngine::open(options(dir.path())).unwrap(); // it is whole
            assert_eq!(engine.size(&queue(), SizeOf::Ready).await.unwrap().jobs, JOBS, "jobs stay"); // as above
            engine.close().await;
        }
    }

    /// Guards against dropping rewritten settings, which fill several tables, together with the damaged table.
    #[tokio::test]
    async fn many_settings_outlive_a_bad_block() {
        const LARGE: u64 = 3000;
        let dir = pool_with_jobs().await;
        {
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
            let mut txn = Txn::new(store.clone());
            for n in 0..LARGE {
                let (key, value) = row(b"s", n);
                txn.put(Space::Settings, key, value.repeat(256));
            }
            txn.settle(true).unwrap(); // nothing is wrong with the disk
            store.write_out(Duration::MAX).unwrap(); // as above
        }
        forget_log(dir.path());
        damage(dir.path(), Space::Settings, None);
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some(), "{told}");
        let left = loaded(dir.path()).unwrap(); // it is whole
        assert!((LARGE * 9 / 10..LARGE).contains(&left), "{left} rows of {LARGE} are left");
    }

    /// Guards against a pool that does not open although a repair finds no corruption.
    #[tokio::test]
    async fn a_table_that_cannot_be_opened_is_named_and_set_aside() {
        for section in [&b"meta"[..], b"tli", b"toc"] {
            let part = String::from_utf8_lossy(section);
            let dir = pool_with_jobs().await;
            fill(dir.path(), Space::Settings, &[b"s"]);
            match section {
                // The table of contents is at the end.
                b"toc" => {
                    let table = largest(dir.path(), Space::Ready);
                    let len = table.metadata().unwrap().len(); // it was written
                    fs::OpenOptions::new().write(true).open(table).unwrap().set_len(len - 9).unwrap(); // as above
                }
                section => damage(dir.path(), Space::Ready, Some(section)),
            }
            let table = largest(dir.path(), Space::Ready);
            let named = format!("table {}", table.file_name().unwrap().to_string_lossy()); // it has one
            let refused = DiskEngine::open(options(dir.path())).map(drop).expect_err("a table is damaged");
            assert!(refused.to_string().contains(&named), "{part}: the start says which, and not: {refused}");
            let told = repair(dir.path(), None).unwrap(); // it can be judged
            assert!(
                told.damage.iter().any(|line| line.contains(&named)),
                "{part}: the repair says which: {told}"
            );
            assert!(!told.opens(), "{part}: nothing was changed: {told}");
            let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
            assert!(told.written.is_some(), "{part}: {told}");
            let engine = DiskEngine::open(options(dir.path())).expect("it was repaired");
            let ready = ready(&engine).await;
            assert_eq!(ready, JOBS, "{part}: jobs that are in their list again");
            engine.close().await;
        }
    }

    /// Guards against a repair that loses jobs which the log has completely.
    #[tokio::test]
    async fn jobs_of_a_table_that_is_lost_come_from_the_log() {
        for is_missing in [false, true] {
            let dir = pool_with_jobs().await;
            fill(dir.path(), Space::Settings, &[b"s"]);
            // A newer table is intact, and has none of the jobs of the lost one.
            let engine = DiskEngine::open(options(dir.path())).unwrap(); // it is whole
            engine.publish(vec![job(JOBS)].into()).await.unwrap(); // nothing is wrong with the disk
            engine.close().await;
            fill(dir.path(), Space::Settings, &[b"l"]);
            match is_missing {
                true => fs::remove_file(largest(dir.path(), Space::Jobs)).unwrap(), // it was listed
                false => damage(dir.path(), Space::Jobs, Some(b"tli")),
            }
            let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
            assert!(told.written.is_some() && told.damage[0].contains("keyspace jobs"), "{told}");
            let told = repair(dir.path(), None).unwrap(); // it can be judged
            assert_eq!(told.damage, [""; 0], "it is whole: {told}");
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // as above
            assert_eq!(store.all(Space::Jobs).count() as u64, JOBS + 1, "jobs, missing: {is_missing}");
            assert_eq!(store.all(Space::Settings).count() as u64, 2 * ROWS, "rows of another keyspace");
        }
    }

    /// Guards against storing a job twice: a publish with an id above the newest one does not check whether it exists.
    #[tokio::test]
    async fn the_newest_id_is_known_after_a_repair() {
        let dir = pool_with_jobs().await;
        fill(dir.path(), Space::Settings, &[b"s"]);
        fs::remove_dir_all(dir.path().join("trees/meta")).unwrap(); // it was made
        fs::remove_dir_all(dir.path().join("log")).unwrap(); // as above
        let engine = repaired(dir.path());
        let again = engine.publish(vec![job(JOBS - 1)].into()).await;
        assert!(again.is_err(), "a job of this id is stored: {again:?}");
        engine.close().await;
    }

    /// Guards against a repair that fails at an unreadable job, so that the pool could never open again.
    #[tokio::test]
    async fn a_list_is_rebuilt_although_some_jobs_cannot_be_read() {
        let dir = pool_with_jobs().await;
        forget_log(dir.path());
        damage(dir.path(), Space::Ready, None);
        damage(dir.path(), Space::Jobs, None);
        let engine = repaired(dir.path());
        let ready = ready(&engine).await;
        assert!((JOBS / 2..JOBS).contains(&ready), "{ready} jobs of {JOBS} can be read, and are ready");
        engine.close().await;
    }

    /// Writes enough to another keyspace that every log file with earlier groups is reused.
    fn forget_log(pool: &Path) {
        let (store, _mark) = open::open(pool, StoreLimits::OF_A_TOOL).unwrap(); // it is whole
        let mut txn = Txn::new(store.clone());
        for round in 0..3u8 {
            (0..10u8).for_each(|n| txn.put(Space::Once, [b'k', round, n], vec![n; 1 << 20]));
            txn.settle(true).unwrap(); // nothing is wrong with the disk
            store.write_out(Duration::MAX).unwrap(); // as above
        }
    }

    /// Guards against an unreported bad block among the jobs: its keyspace would not be merged until the store fails,
    /// again after each start, and no tool would drop the block.
    #[tokio::test]
    async fn jobs_that_can_be_read_outlive_a_bad_block() {
        let dir = pool_with_jobs().await;
        forget_log(dir.path());
        damage(dir.path(), Space::Jobs, None);
        let told = repair(dir.path(), None).unwrap(); // it can be judged
        assert!(!told.opens() && told.damage[0].starts_with("keyspace jobs: table "), "{told}");
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        let lost = told.notes.iter().filter(|note| note.contains("is lost: its record")).count() as u64;
        assert!(told.written.is_some() && (1..JOBS / 4).contains(&lost), "one block of jobs is lost: {told}");
        assert!(
            told.notes.contains(&format!("{lost} jobs are lost: their records could not be read")),
            "{told}"
        );
        let kept = &told.written.as_ref().unwrap().damaged; // as above
        let again = repair(kept, None).unwrap(); // it can be judged
        assert_eq!(again.damage, told.damage, "the damaged directory is kept: {again}");
        let told = repair(dir.path(), None).unwrap(); // it can be judged
        assert_eq!(told.damage, [""; 0], "it is whole: {told}");
        {
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
            let left = store.all(Space::Jobs).filter(|job| job.is_ok()).count() as u64;
            assert_eq!(left, JOBS - lost, "jobs that read");
            let compacted = store.compact(Space::Jobs).unwrap(); // as above
            assert!(matches!(compacted, Merged::Some), "it is merged again: {compacted:?}");
        }
        let engine = DiskEngine::open(options(dir.path())).expect("it was repaired");
        let ready = ready(&engine).await;
        assert_eq!(ready, JOBS - lost, "lost jobs are in no list");
        engine.close().await;
    }

    /// Guards against a repair that drops entries which the log still has.
    #[tokio::test]
    async fn jobs_in_a_bad_block_come_from_the_log() {
        let dir = pool_with_jobs().await;
        fill(dir.path(), Space::Settings, &[b"s"]);
        damage(dir.path(), Space::Jobs, None);
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some() && told.to_string().contains("0 jobs are lost"), "{told}");
        let engine = DiskEngine::open(options(dir.path())).expect("it was repaired");
        assert_eq!(engine.size(&queue(), SizeOf::Ready).await.unwrap().jobs, JOBS, "jobs"); // as above
        engine.close().await;
    }

    /// Guards against truncating the log for one keyspace before its entries for the next one are read.
    #[tokio::test]
    async fn what_the_log_has_of_each_of_two_bad_keyspaces_is_kept() {
        let dir = pool_with_jobs().await;
        let rows: Vec<_> = (0..3)
            .map(|n| codec::job_key(&codec::queue_key(&queue()), JobId::from_parts(1, n, 0, false)))
            .collect();
        {
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
            let mut txn = Txn::new(store.clone());
            rows.iter().for_each(|row| txn.put(Space::Quotas, row.clone(), [7; 60]));
            txn.settle(true).unwrap(); // nothing is wrong with the disk
        }
        fill(dir.path(), Space::Settings, &[b"s"]);
        damage(dir.path(), Space::Jobs, None);
        damage(dir.path(), Space::Quotas, Some(b"data"));
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some() && told.to_string().contains("0 jobs are lost"), "{told}");
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it was repaired
        let kept: Vec<_> = store.all(Space::Quotas).map(|row| row.unwrap().0.to_vec()).collect(); // as above
        assert_eq!(kept, rows, "rows that the log had");
    }

    /// Guards against a start that fails over and over without naming the table or what to do.
    #[tokio::test]
    async fn a_start_with_too_many_tables_and_a_bad_one_says_which_and_can_be_mended() {
        let dir = pool_with_jobs().await;
        {
            // Creates the maximum number of unmerged tables, from the existing jobs.
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
            let jobs: Vec<_> = store.all(Space::Jobs).map(|job| job.unwrap()).collect(); // as above
            for n in 0..30 {
                // Tables that do not overlap would count as one run.
                let part = jobs.iter().skip(n).step_by(30);
                let mut txn = Txn::new(store.clone());
                part.for_each(|(key, value)| txn.put(Space::Jobs, key, value));
                txn.settle(true).unwrap(); // nothing is wrong with the disk
                store.write_out(Duration::MAX).unwrap(); // as above
            }
        }
        let whole = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let copied =
            std::process::Command::new("cp").arg("-a").arg(dir.path().join(".")).arg(whole.path()).status();
        assert!(copied.is_ok_and(|status| status.success()), "copied");
        let engine = DiskEngine::open(options(whole.path())).expect("a start merges overdue tables");
        engine.close().await;
        forget_log(dir.path());
        damage(dir.path(), Space::Jobs, Some(b"data"));
        let refused = DiskEngine::open(options(dir.path())).map(drop).expect_err("it would fail at once");
        let says = refused.to_string();
        assert!(
            says.contains("keyspace jobs: table ") && says.contains("dormouse repair --accept-loss"),
            "{says}"
        );
        let engine = repaired(dir.path());
        let ready = ready(&engine).await;
        assert!((JOBS / 2..JOBS).contains(&ready), "{ready} jobs of {JOBS}");
        let got = engine.publish(vec![job(JOBS + 1)].into()).await;
        assert!(got.is_ok(), "it serves: {got:?}");
        engine.close().await;
    }

    /// Guards against reusing sequence numbers, and against a pool that no tool can make start, since each start reads
    /// these keyspaces.
    #[tokio::test]
    async fn a_bad_block_of_what_a_start_reads_is_given_up() {
        for space in [Space::Meta, Space::Queues, Space::Quarantine, Space::Settings] {
            let dir = pool_with_jobs().await;
            {
                let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
                let mut txn = Txn::new(store.clone());
                for n in 0..3 {
                    let key = codec::job_key(&codec::queue_key(&queue()), JobId::from_parts(1, n, 0, false));
                    txn.put(space, key, [7; 60]);
                }
                txn.settle(true).unwrap(); // nothing is wrong with the disk
                store.write_out(Duration::MAX).unwrap(); // as above
            }
            forget_log(dir.path());
            damage(dir.path(), space, Some(b"data"));
            let name = space.name();
            assert!(DiskEngine::open(options(dir.path())).is_err(), "{name}: it does not start");
            let told = repair(dir.path(), None).unwrap(); // it can be judged
            assert!(told.damage.iter().any(|line| line.contains(name)), "{name}: {told}");
            let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
            assert!(
                told.written.is_some() && told.to_string().contains(&format!("keyspace {name} is lost")),
                "{told}"
            );
            let engine = DiskEngine::open(options(dir.path())).unwrap_or_else(|e| panic!("{name}: {e}"));
            let ready = ready(&engine).await;
            assert_eq!(ready, JOBS, "{name}: jobs stay");
            let got = engine.publish(vec![job(JOBS + 1)].into()).await;
            assert!(got.is_ok(), "{name}: it serves: {got:?}");
            engine.close().await;
        }
    }

    /// Guards against a repair that always fails because it reads numbers in a bad block, alone or with other damage.
    #[tokio::test]
    async fn a_bad_block_of_meta_stops_no_repair_of_something_else() {
        for is_alone in [false, true] {
            let dir = pool_with_jobs().await;
            forget_log(dir.path());
            damage(dir.path(), Space::Meta, Some(b"data"));
            if !is_alone {
                damage(dir.path(), Space::Ready, Some(b"tli"));
            }
            let told = repair(dir.path(), Some(RepairTo::Beside)).expect("it can be repaired");
            assert!(told.written.is_some() && told.to_string().contains("keyspace meta is lost"), "{told}");
            let engine = DiskEngine::open(options(dir.path())).expect("it was repaired");
            let again = engine.publish(vec![job(JOBS - 1)].into()).await;
            assert!(again.is_err(), "a job of this id is stored: {again:?}");
            engine.publish(vec![job(JOBS)].into()).await.unwrap(); // nothing is wrong with the disk
            engine.close().await;
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it was repaired
            let ready = store.all(Space::Ready).count() as u64;
            assert_eq!(ready, JOBS + 1, "each job has an entry of its own, alone: {is_alone}");
        }
    }

    /// Guards against a repair that skips groups in the log because the lost table contained them.
    #[tokio::test]
    async fn jobs_of_a_table_that_is_lost_come_also_from_groups_that_were_needed_no_more() {
        let dir = pool_with_jobs().await;
        let gone = job(3);
        {
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
            let mut txn = Txn::new(store.clone());
            // The first file of the log gets full and is not needed afterwards, the second begins before these jobs.
            (0..9u8).for_each(|n| txn.put(Space::Once, [b'k', n], vec![n; 1 << 20]));
            txn.settle(true).unwrap(); // nothing is wrong with the disk
            for job in store.all(Space::Jobs) {
                let (key, value) = job.unwrap(); // it is whole
                txn.put(Space::Jobs, key, value);
            }
            txn.settle(true).unwrap(); // as above
            txn.delete_job(codec::job_key(&codec::queue_key(&queue()), gone.id));
            txn.settle(true).unwrap(); // as above
            store.write_out(Duration::MAX).unwrap(); // as above
        }
        damage(dir.path(), Space::Jobs, Some(b"tli"));
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some() && told.damage[0].contains("keyspace jobs"), "{told}");
        let engine = DiskEngine::open(options(dir.path())).expect("it was repaired");
        let ready = ready(&engine).await;
        assert_eq!(ready, JOBS - 1, "every job that the log has, but for the one that was deleted: {told}");
        engine.close().await;
    }

    /// Guards against jobs reported as ready since 1970, and an alert for each of their queues.
    #[tokio::test]
    async fn a_job_of_a_rebuilt_list_is_no_older_than_itself() {
        let dir = pool_with_jobs().await;
        fill(dir.path(), Space::Settings, &[b"s"]);
        for lost in ["trees/meta", "trees/ready", "log"] {
            fs::remove_dir_all(dir.path().join(lost)).unwrap(); // it was made
        }
        let engine = repaired(dir.path());
        let queues = engine.sizes().await.unwrap(); // nothing is wrong with the disk
        let ages: Vec<_> = queues.iter().map(|of| (of.ready, of.oldest_ready)).collect();
        assert_eq!(ages, [(JOBS, Some(Duration::ZERO))], "jobs, and age of the oldest ready one");
        engine.close().await;
    }

    /// Guards against reusing sequence numbers after two repairs that had to guess them: an entry would overwrite
    /// another job's.
    #[tokio::test]
    async fn numbers_are_new_after_each_repair() {
        let dir = pool_with_jobs().await;
        for round in 1..4 {
            fill(dir.path(), Space::Settings, &[b"s"]);
            fs::remove_dir_all(dir.path().join("trees/meta")).unwrap(); // it was made
            fs::remove_dir_all(dir.path().join("log")).unwrap(); // as above
            let engine = repaired(dir.path());
            let jobs: Vec<_> = (0..60).map(|n| job(round * JOBS + n)).collect();
            engine.publish(jobs.into()).await.unwrap(); // nothing is wrong with the disk
            engine.close().await;
        }
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // as above
        assert_eq!(store.all(Space::Ready).count() as u64, JOBS + 3 * 60, "each job has an entry of its own");
    }

    /// Guards against a repair that empties a list and then fails, so that the next one finds nothing to rebuild.
    #[tokio::test]
    async fn a_list_is_rebuilt_although_the_counts_of_quotas_cannot_be_read() {
        let dir = pool_with_jobs().await;
        fill(dir.path(), Space::Quotas, &[b"u"]);
        damage(dir.path(), Space::Ready, None);
        damage(dir.path(), Space::Quotas, None);
        let told = repair(dir.path(), Some(RepairTo::Beside)).expect("one repair is enough");
        assert!(told.written.is_some(), "{told}");
        let engine = DiskEngine::open(options(dir.path())).expect("it was repaired");
        let ready = ready(&engine).await;
        assert_eq!(ready, JOBS, "every job is ready: {told}");
        engine.close().await;
    }

    /// Guards against entries and quarantine rows of jobs that are lost, which would count forever.
    #[tokio::test]
    async fn what_stands_for_a_job_that_is_lost_goes() {
        let dir = pool_with_jobs().await;
        {
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
            let mut txn = Txn::new(store.clone());
            for n in 0..7 {
                let key = codec::job_key(&codec::queue_key(&queue()), job(n).id);
                let entry = codec::Entry { id: job(n).id, tries: 1, generation: 1, keyed: false };
                txn.put(Space::Quarantine, &key, codec::quarantined(&entry, "a bad sector"));
                txn.delete_job(key);
            }
            txn.settle(true).unwrap(); // nothing is wrong with the disk
        }
        fill(dir.path(), Space::Settings, &[b"s"]);
        damage(dir.path(), Space::Settings, Some(b"tli"));
        let told = repair(dir.path(), None).unwrap(); // it can be judged
        assert!(told.to_string().contains("is in quarantine: a bad sector"), "{told}");
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some() && told.to_string().contains("7 jobs are lost"), "{told}");
        assert!(!told.to_string().contains("is in quarantine"), "{told}");
        let engine = DiskEngine::open(options(dir.path())).expect("it was repaired");
        let ready = ready(&engine).await;
        assert_eq!(ready, JOBS - 7, "jobs left");
        engine.close().await;
    }

    /// Guards against replacing a damaged log before its entries for a bad block are read.
    #[tokio::test]
    async fn what_a_damaged_log_has_of_a_bad_block_is_kept() {
        let dir = pool_with_jobs().await;
        fill(dir.path(), Space::Settings, &[b"s"]);
        damage(dir.path(), Space::Jobs, None);
        let log = dir.path().join("log/0");
        let mut bytes = fs::read(&log).unwrap(); // it was written
        let row = row(b"s", ROWS / 2).0;
        let at =
            bytes.windows(row.len()).position(|at| at == row).expect("the last group is in the first file");
        bytes[at] ^= 0x55;
        fs::write(&log, bytes).unwrap(); // as above
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some() && told.damage.iter().any(|line| line.contains("log/0")), "{told}");
        assert!(told.to_string().contains("0 jobs are lost"), "{told}");
        let engine = DiskEngine::open(options(dir.path())).expect("it was repaired");
        assert_eq!(engine.size(&queue(), SizeOf::Ready).await.unwrap().jobs, JOBS, "jobs"); // as above
        engine.close().await;
    }

    /// Guards against quarantining all jobs of a table because of one bad block that contains none of them, and which a
    /// repair does not report.
    #[tokio::test]
    async fn a_bad_filter_harms_no_job_and_is_mended() {
        let dir = pool_with_jobs().await;
        {
            // A start reads the filters of the first level.
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
            store.write_out(Duration::MAX).unwrap(); // nothing is wrong with the disk
            store.compact(Space::Jobs).unwrap(); // as above
        }
        forget_log(dir.path());
        damage(dir.path(), Space::Jobs, Some(b"filter"));
        let all_read = || {
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // no start reads it
            let key = |n| codec::job_key(&codec::queue_key(&queue()), job(n).id);
            let reads = (0..JOBS).filter(|n| matches!(store.job(&key(*n)), Ok(Found::Record(_))));
            assert_eq!(reads.count() as u64, JOBS, "jobs that read");
            assert!(matches!(store.job(&key(JOBS)), Ok(Found::Nothing)), "a job that is not there");
        };
        all_read();
        let told = repair(dir.path(), None).unwrap(); // it can be judged
        assert!(!told.opens() && told.damage[0].starts_with("keyspace jobs: table "), "{told}");
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some() && told.to_string().contains("0 jobs are lost"), "{told}");
        let told = repair(dir.path(), None).unwrap(); // it can be judged
        assert_eq!(told.damage, [""; 0], "it is whole: {told}");
        all_read();
    }

    /// Guards against a pool's clock that is ahead of the time of day and set back: new timers would be due before ones
    /// already pumped.
    #[tokio::test]
    async fn the_clock_is_not_behind_what_was_pumped() {
        const DELAY: Duration = Duration::from_secs(3600);
        let (dir, clock) = (pool_with_jobs().await, Arc::new(ManualClock::new(1_000_000)));
        let ahead = DiskOptions { upkeep: false, ..DiskOptions::new(dir.path(), clock.clone()) };
        let engine = DiskEngine::open(ahead).unwrap(); // it is whole
        let due = engine.now() + DELAY.as_millis() as u64;
        engine.publish(vec![NewJob { delay: DELAY, ..job(JOBS) }].into()).await.unwrap(); // nothing is wrong with the disk
        clock.advance(2 * DELAY);
        assert_eq!(engine.pump().await.unwrap().moved, 1, "it was due"); // as above
        engine.close().await;
        fill(dir.path(), Space::Settings, &[b"s"]);
        fs::remove_dir_all(dir.path().join("trees/meta")).unwrap(); // it was made
        fs::remove_dir_all(dir.path().join("log")).unwrap(); // as above
        let engine = repaired(dir.path());
        assert!(engine.now() >= due, "it is {}, and a job that was due at {due} is ready", engine.now());
        engine.close().await;
    }

    /// Guards against an older value that comes back because the newer one is in a bad block, and against a deletion
    /// that is forgotten.
    #[tokio::test]
    async fn an_older_value_below_a_bad_block_does_not_come_back() {
        let dir = Pool::new();
        let put = |rounds: std::ops::Range<u64>| {
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it is whole
            for round in rounds {
                let mut txn = Txn::new(store.clone());
                for n in 0..ROWS {
                    let key = format!("s{n:05}");
                    match (round, n % 3) {
                        (1, 0) => txn.delete(Space::Settings, key),
                        _ => txn.put(Space::Settings, key, row(b"", round * ROWS + n).1.repeat(4)),
                    }
                }
                txn.settle(true).unwrap(); // nothing is wrong with the disk
                store.write_out(Duration::MAX).unwrap(); // as above
            }
        };
        put(0..2);
        forget_log(dir.path());
        let tables = dir.path().join("trees/settings/tables");
        let mut tables: Vec<_> = fs::read_dir(tables).unwrap().map(|entry| entry.unwrap().path()).collect(); // two
        tables.sort();
        let newer = tables.pop().unwrap(); // as above
        let mut bytes = fs::read(&newer).unwrap(); // as above
        let middle = bytes.len() / 3;
        bytes[middle..middle + 10].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&newer, bytes).unwrap(); // as above
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some(), "{told}");
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // it was repaired
        let mut left = 0;
        for item in store.all(Space::Settings) {
            let (key, value) = item.unwrap(); // as above
            let n: u64 = String::from_utf8_lossy(&key[1..]).parse().unwrap(); // as it was written
            assert_ne!(n % 3, 0, "row {n} was deleted");
            assert_eq!(*value, *row(b"", ROWS + n).1.repeat(4), "row {n} has its newest value");
            left += 1;
        }
        assert!((ROWS / 2..ROWS * 2 / 3).contains(&left), "{left} rows are left, all but one block");
    }

    /// Guards against deleting or moving a foreign directory.
    #[tokio::test]
    async fn only_what_a_repair_has_left_is_deleted() {
        let dir = pool_with_jobs().await;
        fill(dir.path(), Space::Settings, &[b"s"]);
        damage(dir.path(), Space::Ready, Some(b"tli"));
        let (left, whole) = (dir.path().with_extension("repairing"), pool_with_jobs().await);
        let refused = |says: &str| {
            let refused = repair(dir.path(), Some(RepairTo::Beside)).map(drop).expect_err(says).to_string();
            assert!(refused.contains("is unchanged") && refused.contains(says), "it says: {refused}");
        };
        // A pool inside of this one would move with it.
        fs::create_dir(dir.path().join("other")).unwrap(); // the temporary directory can be written
        refused("it also contains other");
        assert!(!left.exists(), "nothing was written");
        fs::remove_dir(dir.path().join("other")).unwrap(); // as above
        fs::create_dir(&left).unwrap(); // as above
        fs::write(left.join("a file"), "of somebody else").unwrap(); // as above
        refused("is in the way");
        fs::remove_dir_all(&left).unwrap(); // as above
        // Killed after the exchange: the whole directory might be the damaged one.
        fs::rename(whole.path(), &left).unwrap(); // as above
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        let kept = told.written.as_ref().map(|written| written.damaged.clone()).unwrap(); // as above
        assert!(kept.ends_with("pool.damaged-2"), "it says: {told}");
        assert!(told.notes[0].contains("is ") && told.notes[0].contains("pool.damaged-1"), "it says: {told}");
        let engine = DiskEngine::open(options(&dir.path().with_extension("damaged-1"))).expect("it is whole");
        assert_eq!(ready(&engine).await, JOBS, "jobs of a directory that is complete");
        engine.close().await;
        // Killed before: it has no mark.
        damage(dir.path(), Space::Jobs, Some(b"tli"));
        fs::create_dir_all(left.join("trees/jobs")).unwrap(); // as above
        let told = repair(dir.path(), Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some() && !left.exists(), "it says: {told}");
    }
}
