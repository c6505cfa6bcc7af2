//! Tests of the log as a whole: recovery after a kill, reuse of files, torn tails and corruption.

use super::start::{clear_torn, replay};
use super::*;
use crate::engine::disk::store::Space;

/// Creates a log in a temporary directory.
fn new() -> (tempfile::TempDir, Log) {
    let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
    Log::create(dir.path(), 1).unwrap(); // nothing is wrong with the disk
    let log = opened(dir.path());
    (dir, log)
}

fn judged(dir: &Path) -> (Manifest, Findings) {
    let manifest = Manifest::read(dir).unwrap(); // it was written
    let findings = judge::judge(dir, &manifest).unwrap(); // nothing is wrong with the disk
    (manifest, findings)
}

/// Opens a log as a store does.
fn opened(dir: &Path) -> Log {
    let (manifest, findings) = judged(dir);
    assert_eq!(findings.damage, [""; 0], "nothing is damaged");
    if findings.is_torn {
        clear_torn(dir, &manifest, &findings, |_, _| Ok(())).unwrap(); // nothing is wrong with the disk
    }
    replay(dir, &manifest, &findings, true, |_, _| Ok(())).unwrap(); // as above
    Log::open(dir, &manifest, &findings).unwrap() // as above
}

/// Appends a group of about `bytes` bytes that contains its number.
fn append(log: &Log, bytes: usize) -> u64 {
    let mut draft = Draft::default();
    let number = log.last() + 1;
    draft.add(Space::Ready, &number.to_be_bytes(), Some(&vec![number as u8; bytes]));
    let appended = log.append(&mut draft).unwrap(); // nothing is wrong with the disk
    assert_eq!(appended, number, "groups are numbered without a gap");
    number
}

/// Returns the numbers of the groups that a start would replay, checked against their contents.
fn replayed(dir: &Path) -> Vec<u64> {
    let (manifest, findings) = judged(dir);
    let mut numbers = Vec::new();
    let each = |number: u64, group: &[u8]| {
        for item in group::items(group) {
            let (_, key, value) = item.expect("all written groups");
            assert_eq!(key, number.to_be_bytes(), "the group with this number");
            assert!(value.is_some_and(|value| value.iter().all(|byte| *byte == number as u8)), "its value");
        }
        numbers.extend(Some(number).filter(|number| *number >= manifest.first));
        Ok(())
    };
    replay(dir, &manifest, &findings, false, each).unwrap(); // nothing is wrong with the disk
    numbers
}

fn flip(dir: &Path, slot: u32, at: u64) {
    let file = slots::open(dir, slot).unwrap(); // it is there
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap(); // as above
    file.write_all_at(&[byte[0] ^ 0x55], at).unwrap(); // as above
}

const MIB: usize = 1 << 20;

#[test]
fn what_was_appended_is_there_after_a_kill_over_many_files() {
    let (dir, log) = new();
    for n in 0..40 {
        append(&log, if n % 5 == 0 { MIB } else { 10 });
        if n % 3 == 0 {
            log.sync().unwrap(); // nothing is wrong with the disk
        }
    }
    // A group larger than a file has a file of its own.
    append(&log, FILE as usize + 5);
    append(&log, 5);
    assert!(log.used() >= 3, "{} files hold 9 MiB and more", log.used());
    drop(log);
    assert_eq!(replayed(dir.path()), (1..=42).collect::<Vec<_>>(), "all, in order");
    let log = opened(dir.path());
    append(&log, 10);
    drop(log);
    assert_eq!(
        replayed(dir.path()),
        (1..=43).collect::<Vec<_>>(),
        "numbering continues after the last group"
    );
}

#[test]
fn files_that_are_needed_no_more_are_used_again() {
    let (dir, log) = new();
    for _ in 0..300 {
        let last = append(&log, MIB / 2);
        // The last ten groups are needed.
        log.tend(last.saturating_sub(10)).unwrap(); // nothing is wrong with the disk
    }
    let (used, bytes) = (log.used(), log.disk_bytes());
    assert!(used <= 3, "{used} files for 5 MiB that are needed");
    assert!(bytes <= 6 * FILE, "{bytes} bytes for 5 MiB that are needed");
    drop(log);
    let there = replayed(dir.path());
    assert!(there[0] <= 290 && *there.last().unwrap() == 300, "there are {there:?}"); // not empty
    let files = fs::read_dir(dir.path()).unwrap().count(); // it is there
    assert!(files <= 7, "{files} names for 150 MiB that were written");
    drop(opened(dir.path()));
    assert_eq!(replayed(dir.path()), there, "an open changes nothing");
}

/// Guards against a file that keeps the size of its largest group because the process was killed before truncating it.
#[test]
fn a_large_file_is_cut_by_the_next_start() {
    let (dir, log) = new();
    append(&log, 3 * FILE as usize);
    let last = append(&log, 5);
    log.sync().unwrap(); // nothing is wrong with the disk
    assert_eq!(log.rewrite_manifest(last).unwrap().len(), 1, "a file that is needed no more"); // as above
    drop(log);
    drop(opened(dir.path()));
    for slot in slots::list(dir.path()).unwrap() {
        let len = fs::metadata(dir.path().join(slot.to_string())).unwrap().len(); // it was listed
        assert!(len <= FILE, "{} has {len} bytes", slots::name(slot));
    }
    assert_eq!(replayed(dir.path()), [last], "only needed groups are left");
}

/// Guards against a start that silently skips groups or overwrites them with zeros.
#[test]
fn what_the_judge_has_read_and_a_start_does_not_is_an_error() {
    let (dir, log) = new();
    for _ in 0..20 {
        append(&log, MIB);
    }
    drop(log);
    let (manifest, findings) = judged(dir.path());
    let slots: Vec<u32> = manifest.files[..=findings.end.0].iter().map(|(slot, _)| *slot).collect();
    assert!(slots.len() >= 3, "20 MiB take {slots:?}");
    for slot in slots {
        // Corrupts a sector of the first group: a disk with a sector that reads only sometimes.
        flip(dir.path(), slot, 2 * FILE_HEAD as u64);
        let there = slots::read(dir.path(), slot).unwrap(); // as it was written
        let repeated = replay(dir.path(), &manifest, &findings, true, |_, _| Ok(()));
        let why = repeated.expect_err("a group is missing").to_string();
        assert!(why.contains(&slots::name(slot)), "the error names the file: {why}");
        assert!(slots::read(dir.path(), slot).unwrap() == there, "the file is as it was"); // as above
        flip(dir.path(), slot, 2 * FILE_HEAD as u64);
    }
    assert_eq!(replayed(dir.path()), (1..=20).collect::<Vec<_>>(), "nothing was lost");
}

#[test]
fn what_was_forgotten_is_not_repeated() {
    let (dir, log) = new();
    for _ in 0..9 {
        append(&log, 100);
    }
    log.forget(6).unwrap(); // nothing is wrong with the disk
    drop(log);
    assert_eq!(replayed(dir.path()), [6, 7, 8, 9], "from the sixth on");
}

#[test]
fn what_was_not_synced_may_be_torn_and_what_was_synced_is_damaged() {
    for (synced, expected) in [(0, Ok(2)), (2, Ok(2)), (3, Err(())), (4, Err(()))] {
        let (dir, log) = new();
        let mut ends = Vec::new();
        for n in 1..=6 {
            append(&log, 3000);
            ends.push(log.at.load(Ordering::Relaxed));
            if n == synced {
                log.sync().unwrap(); // nothing is wrong with the disk
            }
        }
        drop(log);
        // Corrupts the third.
        flip(dir.path(), 0, ends[1] + 1000);
        let (_, findings) = judged(dir.path());
        let found = if findings.damage.is_empty() { Ok(findings.last.number) } else { Err(()) };
        assert_eq!(found, expected, "{synced} synced, the third damaged: {findings:?}");
        if expected.is_err() {
            let lost = "cannot be read; it contains group 3, which was synced";
            let lost = format!("log/0: data from byte {} on {lost}", ends[1]);
            assert_eq!(findings.damage, [lost], "the damage");
            continue;
        }
        assert!(findings.is_torn, "the groups after the tear count as torn");
        assert_eq!(findings.end, (0, ends[1] as usize), "where it is torn");
        // Groups behind the tear never return, even if something is written there.
        let log = opened(dir.path());
        append(&log, 2000);
        drop(log);
        assert_eq!(replayed(dir.path()), [1, 2, 3], "cut, and gone on");
        drop(opened(dir.path()));
    }
}

#[test]
fn a_synced_end_is_told_from_a_torn_one_once_it_is_attested() {
    for attested in [false, true] {
        let (dir, log) = new();
        for _ in 0..4 {
            append(&log, 1000);
        }
        let before = log.at.load(Ordering::Relaxed);
        append(&log, 1000);
        log.sync().unwrap(); // nothing is wrong with the disk
        if attested {
            log.attest().unwrap(); // as above
            let at = log.at.load(Ordering::Relaxed);
            log.attest().unwrap(); // as above
            assert_eq!(log.at.load(Ordering::Relaxed), at, "once is enough");
        }
        drop(log);
        flip(dir.path(), 0, before + 500);
        let damage = judged(dir.path()).1.damage;
        assert_eq!(damage.is_empty(), !attested, "the last group that was synced is damaged: {damage:?}");
    }
}

/// A group that only records deliveries is not synced. If a power cut takes it, nothing else would show that the group
/// before it was synced.
#[test]
fn what_is_synced_is_attested_although_a_later_group_is_not() {
    let (dir, log) = new();
    append(&log, 1000);
    let at = log.at.load(Ordering::Relaxed);
    append(&log, 1000);
    log.sync().unwrap(); // nothing is wrong with the disk
    let end = log.at.load(Ordering::Relaxed);
    append(&log, 1000);
    log.attest().unwrap(); // as above
    drop(log);
    slots::write(dir.path(), 0, end, &[0; 2000]).unwrap(); // as above
    assert_eq!(judged(dir.path()).1.damage, [""; 0], "unsynced groups may be lost");
    flip(dir.path(), 0, at + 500);
    let damage = judged(dir.path()).1.damage;
    assert!(!damage.is_empty(), "synced groups may not be lost");
}

#[test]
fn a_file_that_is_missing_is_damage_and_each_byte_of_the_manifest_counts() {
    let (dir, log) = new();
    for _ in 0..20 {
        append(&log, MIB);
    }
    log.sync().unwrap(); // nothing is wrong with the disk
    drop(log);
    let (manifest, _) = judged(dir.path());
    assert!(manifest.files.len() >= 3, "20 MiB take {:?}", manifest.files);
    for (slot, _) in &manifest.files {
        let (path, kept) = (dir.path().join(slot.to_string()), dir.path().join("kept"));
        fs::rename(&path, &kept).unwrap(); // it is there
        let damage = judged(dir.path()).1.damage;
        assert!(damage.contains(&format!("log/{slot} is missing")), "{slot} is missing: {damage:?}");
        fs::rename(&kept, &path).unwrap(); // as above
    }
    assert_eq!(judged(dir.path()).1.damage, [""; 0], "all are back");
}

#[test]
fn a_begin_that_was_torn_is_begun_again() {
    let (dir, log) = new();
    append(&log, 100);
    // All of it is in tables.
    log.forget(2).unwrap(); // nothing is wrong with the disk
    drop(log);
    slots::open(dir.path(), 0).unwrap().write_all_at(&[0; 4096], 0).unwrap(); // it is there
    // The manifest does not say that the header was synced.
    let log = opened(dir.path());
    assert_eq!(log.last(), 1, "numbers go on");
    append(&log, 100);
    drop(log);
    assert_eq!(replayed(dir.path()), [2], "the group appended later");
}

#[test]
fn a_writer_that_is_faster_than_who_makes_files_ready_loses_nothing() {
    for (bytes, most) in [(20_000, 3000), (MIB, 150), (FILE as usize / 2, 40)] {
        let (dir, log) = new();
        std::thread::scope(|scope| {
            let tended = scope.spawn(|| {
                while log.last() == 0 {
                    std::thread::yield_now();
                }
                for _ in 0..100 {
                    // The last twenty groups are needed.
                    log.tend(log.last().saturating_sub(20)).unwrap(); // nothing is wrong with the disk
                }
            });
            while !tended.is_finished() && log.last() < most {
                append(&log, bytes);
            }
        });
        let last = log.last();
        drop(log);
        let there = replayed(dir.path());
        let first = there.first().copied().unwrap_or(0);
        assert!(first <= last.saturating_sub(19).max(1), "groups of {bytes} bytes, from {first} of {last}");
        assert_eq!(there, (first..=last).collect::<Vec<_>>(), "groups of {bytes} bytes, in order");
    }
}

#[test]
fn a_disk_without_room_leaves_no_files_behind() {
    let (dir, log) = new();
    // A directory in place of the next file, so that it cannot be created.
    let next = dir.path().join("9");
    log.files.lock().next = None;
    log.files.lock().free = 9;
    fs::create_dir(&next).unwrap(); // the name is free
    for _ in 0..5 {
        assert!(log.tend(0).is_err(), "the next file cannot be made");
    }
    fs::remove_dir(&next).unwrap(); // it is empty
    log.tend(0).unwrap(); // nothing is wrong with the disk
    assert!(next.exists() && !dir.path().join("10").exists(), "one name was tried again");
}

#[test]
fn a_sync_that_runs_beside_the_writer_covers_what_was_appended_before() {
    let (dir, log) = new();
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| {
            for _ in 0..50 {
                let before = log.last();
                log.sync().unwrap(); // nothing is wrong with the disk
                assert!(log.synced.load(Ordering::Acquire) >= before, "a sync covers all earlier groups");
            }
        });
        while !synced.is_finished() {
            append(&log, 50_000);
        }
    });
    assert!(log.dirty.lock().len() <= 1 + log.used(), "files that are synced are let go");
    drop(log);
    drop(opened(dir.path()));
}
