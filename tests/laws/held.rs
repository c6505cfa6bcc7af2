//! Laws of receipts: the holder of a current receipt can touch, release, bury and ack, and others cannot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dormouse::engine::{Engine, Held, Listing, Release, Released, Touched, Tries};
use dormouse::job::{Job, JobState, Reason, Receipt};
use parking_lot::Mutex;

use crate::stage::*;
use crate::support::engine_ext::{EngineExt, tries};

/// Returns the result of a call that must be done.
fn done<T: std::fmt::Debug>(what: &str, held: Held<T>) -> T {
    match held {
        Held::Done(done) => done,
        other => panic!("{what} with a good receipt should be done, but the answer is {other:?}"),
    }
}

async fn touched(s: &dyn Stage, job: &Job, receipt: Receipt, ttr: Duration) -> Touched {
    done("touch", s.touch(job, receipt, ttr).await)
}

fn later(delay: Duration) -> Release {
    Release { delay, ..Release::default() }
}

fn reason(text: &str) -> Option<Reason> {
    Some(Reason::new(text).expect("a short reason"))
}

/// Checks that none of these verbs accepts the receipt.
async fn is_not_mine(s: &dyn Stage, job: &Job, receipt: Receipt, why: &str) {
    assert_eq!(s.touch(job, receipt, LONG).await, Held::NotYours, "touch: {why}");
    assert_eq!(s.release(job, receipt, Release::default()).await, Held::NotYours, "release: {why}");
    assert_eq!(s.bury(job, receipt, reason("no")).await, Held::NotYours, "bury: {why}");
    assert!(!s.ack_held(job, receipt).await, "ack: {why}");
}

/// Guards against redelivering a job while its worker extends it.
pub async fn a_touched_job_runs_on(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(3)).await;
    let held = s.take_one(&q, s.life()).await;
    let before = s.engine().now();
    let now = touched(s, &held, held.proof(), LONG).await;
    let slack = ms(s.differences().slack);
    let expected = before + ms(LONG);
    assert!(now.until + slack >= expected, "it is mine until {}, not until {expected}", now.until);
    assert!(now.until <= s.engine().now() + ms(LONG) + slack, "and not for longer");
    s.pass(s.life()).await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "its first ttr has ended, and it runs on");
    let view = s.view(&held).await;
    assert_eq!((view.state, view.due_at), (Some(JobState::Running), Some(now.until)));
    assert!(s.ack_held(&held, now.receipt).await, "it is still mine");
    assert_eq!(s.find(&held).await, None);
}

/// Guards against a touch that can only lengthen, and against a pump that sleeps over it.
pub async fn a_touch_can_shorten_the_ttr(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(2)).await;
    let held = s.take_one(&q, LONG).await;
    s.pump().await;
    touched(s, &held, held.proof(), SHORT).await;
    s.pass(SHORT).await;
    let again = s.take_one(&q, LONG).await;
    assert_eq!(again.tries_left, 0, "the touch has cost no try");
}

/// Guards against a receipt that stays valid after a touch, in the hands of another worker.
pub async fn a_touch_replaces_the_receipt(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job")).await;
    let held = s.take_one(&q, LONG).await;
    let mut receipts = vec![held.proof()];
    for _ in 0..5 {
        // The same ttr each time, and in virtual time at the same instant.
        let next = touched(s, &held, receipts[receipts.len() - 1], LONG).await.receipt;
        assert!(!receipts.contains(&next), "a new receipt each time: {receipts:?}, {next:?}");
        receipts.push(next);
    }
    for old in &receipts[..5] {
        is_not_mine(s, &held, *old, "touched since").await;
    }
    s.give_back(std::slice::from_ref(&held)).await;
    assert_eq!(s.take(&q, 1, LONG).await, [], "nor can the first delivery be returned");
    assert_eq!(s.bury(&held, receipts[5], None).await, Held::Done(()), "the last receipt is valid");
}

/// Guards against a worker that cannot continue because the reply to its touch was lost, and against revealing a
/// receipt to a worker whose delivery has ended.
pub async fn the_receipt_that_is_valid_is_told_to_whoever_had_one(s: &dyn Stage) {
    let q = queue("q");
    for most in [1, 3, 40, 1200, 65_000] {
        let name = format!("job-{most}");
        s.put(job(&q, &name).tries(most)).await;
        let held = s.take_one(&q, LONG).await;
        let had = held.proof();
        assert_eq!(
            s.receipt(&held, had.tries_left).await,
            Some(had),
            "of {most} tries, as it was handed out"
        );
        // The worker does not receive the reply to its touch.
        let lost = touched(s, &held, had, LONG).await.receipt;
        assert_eq!(s.receipt(&held, had.tries_left).await, Some(lost), "of {most} tries, after a touch");
        assert_eq!(s.view(&held).await.receipt, None, "it was not asked for");
        for tries in [had.tries_left + 1, had.tries_left.wrapping_sub(1)] {
            assert_eq!(s.receipt(&held, tries).await, None, "{tries} tries are of another hand-over");
        }
        let released = s.release(&held, lost, Release { tries: Tries::Restore, ..later(SHORT) }).await;
        assert!(matches!(released, Held::Done(_)), "it is good: {released:?}");
        for tries in [had.tries_left, had.tries_left + 1] {
            assert_eq!(s.receipt(&held, tries).await, None, "it is delayed, so there is no receipt");
        }
        s.pass(SHORT).await;
        assert_eq!(s.receipt(&held, had.tries_left + 1).await, None, "it is ready, so there is no receipt");
        let held = s.take_one(&q, SHORT).await;
        s.advance(SHORT).await;
        assert_eq!(s.receipt(&held, held.tries_left).await, None, "its ttr has ended, before any pump");
        s.pump().await;
        s.engine().destroy(&q, Listing::Keep).await.expect("a clean queue");
    }
}

/// Guards against a worker that continues with another's job because the pump is late.
pub async fn a_receipt_ends_with_its_ttr(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(2)).await;
    let held = s.take_one(&q, SHORT).await;
    s.advance(SHORT).await;
    is_not_mine(s, &held, held.proof(), "its ttr has ended, before any pump").await;
    s.pump().await;
    is_not_mine(s, &held, held.proof(), "it is ready again").await;
    assert_eq!(s.take_one(&q, SHORT).await.tries_left, 0, "nothing has changed");
    s.pass(SHORT).await;
    is_not_mine(s, &held, held.proof(), "it is dead").await;
    assert_eq!(s.dead(&q).await, 1);
}

/// Guards against a slow worker that takes the job from its current holder.
pub async fn an_old_receipt_does_nothing_to_the_next_hand_over(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(9)).await;
    let mut old = Vec::new();
    let first = s.take_one(&q, SHORT).await;
    old.push(first.proof());
    s.pass(SHORT).await;
    let second = s.take_one(&q, LONG).await;
    old.push(second.proof());
    // With its try restored, the next delivery has the same number of tries left.
    let free = Release { tries: Tries::Restore, ..Release::default() };
    done("release", s.release(&second, second.proof(), free).await);
    let third = s.take_one(&q, LONG).await;
    assert_eq!(third.tries_left, second.tries_left);
    old.push(third.proof());
    s.give_back(std::slice::from_ref(&third)).await;
    let mine = s.take_one(&q, LONG).await;
    for receipt in old {
        is_not_mine(s, &mine, receipt, "of an earlier hand-over").await;
    }
    assert!(s.ack_held(&mine, mine.proof()).await, "mine is good");
}

/// Guards against a reply that makes a worker retry for a job that does not exist.
pub async fn what_is_gone_is_not_found(s: &dyn Stage) {
    let q = queue("q");
    for end in ["acked", "expired", "never there"] {
        let draft = job(&q, end).tries(2);
        let draft = if end == "expired" { draft.ttl(s.life()) } else { draft };
        let held = if end == "never there" {
            let new = draft.make(s);
            s.put(job(&q, "other")).await;
            Job { id: new.id, ..s.take_one(&q, LONG).await }
        } else {
            s.put(draft).await;
            s.take_one(&q, LONG).await
        };
        match end {
            "acked" => s.ack(&held).await,
            "expired" => s.advance(s.life() + Duration::from_millis(1)).await,
            _ => {}
        }
        let receipt = held.proof();
        assert_eq!(s.touch(&held, receipt, LONG).await, Held::NotFound, "touch: {end}");
        assert_eq!(s.release(&held, receipt, Release::default()).await, Held::NotFound, "release: {end}");
        assert_eq!(s.bury(&held, receipt, None).await, Held::NotFound, "bury: {end}");
        assert!(s.ack_held(&held, receipt).await, "an ack of a deleted job succeeds: {end}");
    }
}

/// Guards against a released job that waits behind all others.
pub async fn a_released_job_is_at_the_head(s: &dyn Stage) {
    let q = queue("q");
    s.put_all((1..=3).map(|i| job(&q, i.to_string()).tries(5))).await;
    let held = s.take_one(&q, LONG).await;
    let before = s.engine().now();
    let released = done("release", s.release(&held, held.proof(), Release::default()).await);
    let Released::Back { tries_left, due_at } = released else { panic!("it has tries left: {released:?}") };
    assert_eq!(tries_left, 4, "one was spent");
    assert!(due_at.abs_diff(before) <= 30_000, "due now ({before}), not at {due_at}");
    is_not_mine(s, &held, held.proof(), "it was released").await;
    assert_eq!(s.peek(&q).await.map(|job| job.tries_left), Some(4), "as told");
    assert_eq!(s.drain(&q).await, ["1", "2", "3"], "it stands where it stood");
}

/// Guards against tries spent or restored without being requested.
pub async fn a_release_spends_the_try_unless_told(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(3)).await;
    for (restore_try, expected) in [(true, 3), (false, 2), (true, 2), (false, 1), (true, 1)] {
        let held = s.take_one(&q, LONG).await;
        let release = Release { tries: tries(restore_try), ..Release::default() };
        let released = done("release", s.release(&held, held.proof(), release).await);
        let Released::Back { tries_left, .. } = released else { panic!("it has tries left: {released:?}") };
        assert_eq!(tries_left, expected, "restore_try is {restore_try}");
        assert_eq!(s.view(&held).await.tries_left, Some(expected), "as told");
    }
}

/// Guards against consumers that sleep beside a released job.
pub async fn release_notifies(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(3)).await;
    let held = s.take_one(&q, LONG).await;
    let notified = super::notifier::waiting(s, &q).await;
    done("release", s.release(&held, held.proof(), Release::default()).await);
    super::notifier::is_told(&notified, &q, "release").await;
    let held = s.take_one(&q, LONG).await;
    notified.forget().await;
    done("release", s.release(&held, held.proof(), later(SHORT)).await);
    s.pass(SHORT).await;
    super::notifier::is_told(&notified, &q, "a released job that is due").await;
}

/// Guards against a job that can be released forever, and against one that dies on its last try although the try was
/// restored.
pub async fn a_release_without_tries_left_is_death(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job")).await;
    for (restore_try, delay) in [(true, Duration::ZERO), (true, SHORT), (false, SHORT)] {
        let held = s.take_one(&q, LONG).await;
        let release = Release { tries: tries(restore_try), delay, reason: None };
        let released = done("release", s.release(&held, held.proof(), release).await);
        assert_eq!(released == Released::Dead, !restore_try, "restore_try is {restore_try}: {released:?}");
        s.pass(delay).await;
    }
    assert_eq!((s.dead(&q).await, s.size(&q).await), (1, 0), "dead, and not ready");
}

/// Guards against a released job that is delivered early or never.
pub async fn a_delayed_release_waits(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(2)).await;
    let held = s.take_one(&q, LONG).await;
    let before = s.engine().now();
    let released = done("release", s.release(&held, held.proof(), later(s.life())).await);
    let Released::Back { tries_left: 1, due_at } = released else { panic!("{released:?}") };
    assert!(
        due_at + ms(s.differences().slack) >= before + ms(s.life()),
        "due at {due_at}, released at {before}"
    );
    s.pump().await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "not before its delay has ended");
    let view = s.view(&held).await;
    assert_eq!((view.state, view.due_at, view.tries_left), (Some(JobState::Delayed), Some(due_at), Some(1)));
    s.put(job(&q, "other")).await;
    s.pass(s.life()).await;
    assert_eq!(s.drain(&q).await, ["other", "job"], "it joins at the tail, as delayed jobs do");
    s.pass(SHORT).await;
    assert_eq!(s.size(&q).await, 0, "once");
}

/// Guards against the timer of an ended delivery, which would duplicate the job.
pub async fn a_released_job_does_not_come_back_after_its_old_ttr(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["a", "b", "c"].map(|body| job(&q, body).tries(5))).await;
    let held = s.take(&q, 3, s.life()).await;
    done("release", s.release(&held[0], held[0].proof(), Release::default()).await);
    done("release", s.release(&held[1], held[1].proof(), later(SHORT)).await);
    done("bury", s.bury(&held[2], held[2].proof(), None).await);
    s.pass(s.life()).await;
    assert_eq!(s.drain(&q).await, ["a", "b"], "each once");
    assert_eq!((s.take(&q, 9, LONG).await, s.dead(&q).await), (vec![], 1), "nothing is left");
}

/// Guards against a job that vanishes unreported because its ttl ends before it is due again.
pub async fn a_release_beyond_the_ttl_is_death(s: &dyn Stage) {
    let q = queue("q");
    for restore_try in [false, true] {
        for (name, delay, dies) in [("beyond", LONG, true), ("within", SHORT, false)] {
            let stored = s.put(job(&q, name).tries(9).ttl(LONG)).await;
            let held = s.take_one(&q, LONG).await;
            let release = Release { delay, tries: tries(restore_try), reason: reason("not now") };
            let released = done("release", s.release(&held, held.proof(), release).await);
            assert_eq!(
                released == Released::Dead,
                dies,
                "{name}, restore_try is {restore_try}: {released:?}"
            );
            let view = s.view(&stored).await;
            let state = if dies { JobState::Dead } else { JobState::Delayed };
            assert_eq!(view.state, Some(state), "{name}: {view:?}");
            assert_eq!(view.reason, reason("not now"), "{name}: {view:?}");
            is_not_mine(s, &held, held.proof(), "it was released").await;
            s.ack(&stored).await;
        }
    }
    // A job without ttl can wait for any delay, and a job released without delay need not wait.
    s.put(job(&q, "forever").tries(9)).await;
    let held = s.take_one(&q, LONG).await;
    let released = done("release", s.release(&held, held.proof(), later(LONG * 1000)).await);
    assert!(matches!(released, Released::Back { tries_left: 8, .. }), "{released:?}");
    s.put(job(&q, "now").tries(9).ttl(LONG)).await;
    let held = s.take_one(&q, LONG).await;
    let released = done("release", s.release(&held, held.proof(), Release::default()).await);
    assert!(matches!(released, Released::Back { tries_left: 8, .. }), "{released:?}");
    let r = queue("r");
    s.place(job(&r, "keyed").tries(9).ttl(LONG).key("k")).await;
    let held = s.take_one(&r, LONG).await;
    let released = done("release", s.release(&held, held.proof(), later(LONG)).await);
    assert_eq!(released, Released::Dead);
    assert_eq!(s.holder(&r, "k").await, None, "a dead job has no key");
    assert_eq!(ok("respawn", s.engine().respawn_oldest(&r, 9, None).await), 1, "and can be respawned");
}

/// Guards against a released job that cannot be acked any more, or is delivered after its ack.
pub async fn a_released_job_is_found_in_every_state(s: &dyn Stage) {
    for state in ["ready", "delayed", "due", "dead"] {
        let q = queue(state);
        s.put(job(&q, "job").tries(if state == "dead" { 1 } else { 2 })).await;
        let held = s.take_one(&q, LONG).await;
        let delay = if matches!(state, "delayed" | "due") { SHORT } else { Duration::ZERO };
        done("release", s.release(&held, held.proof(), later(delay)).await);
        if state == "due" {
            s.pass(SHORT).await;
        }
        assert!(s.find(&held).await.is_some(), "the {state} job exists");
        s.ack(&held).await;
        assert_eq!(s.find(&held).await, None, "the {state} one was acked");
        s.pass(SHORT).await;
        assert_eq!(s.drain(&q).await, [""; 0], "the {state} one does not come");
        assert_eq!(ok("respawn", s.engine().respawn_oldest(&q, 9, None).await), 0, "nor from the dead");
    }
}

/// Guards against retrying a job that its worker has buried.
pub async fn a_buried_job_is_dead(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["a", "b"].map(|body| job(&q, body).tries(9).ttl(s.life()))).await;
    for _ in 0..2 {
        let held = s.take_one(&q, LONG).await;
        done("bury", s.bury(&held, held.proof(), None).await);
        is_not_mine(s, &held, held.proof(), "it was buried").await;
        let view = s.view(&held).await;
        assert_eq!((view.state, view.tries_left, view.ttl), (Some(JobState::Dead), Some(0), None));
    }
    s.pass(s.life()).await;
    assert_eq!((s.dead(&q).await, s.size(&q).await), (2, 0), "dead jobs do not expire");
    assert_eq!(ok("respawn", s.engine().respawn_oldest(&q, 9, None).await), 2);
    let again = s.take(&q, 9, LONG).await;
    assert_eq!((bodies(&again), again[0].tries_left), (vec!["a".into(), "b".into()], 0), "with one try each");
}

/// Guards against dead jobs without an explanation.
pub async fn a_reason_is_shown_until_the_job_is_gone(s: &dyn Stage) {
    let q = queue("q");
    let stored = s.put(job(&q, "job").tries(9).attributes(&[("a", "b")]).versioned()).await;
    let shown = async || s.view(&stored).await.reason.map(|reason| reason.as_str().to_owned());
    assert_eq!(shown().await, None);
    let longest = "ü".repeat(Reason::MOST / 2);
    for (given, delay, expected) in [
        (None, Duration::ZERO, None),
        (Some("not now"), Duration::ZERO, Some("not now")),
        (None, SHORT, Some("not now")),
        (Some(longest.as_str()), SHORT, Some(longest.as_str())),
    ] {
        let held = s.take_one(&q, LONG).await;
        let release = Release { delay, reason: given.and_then(Reason::new), ..Release::default() };
        done("release", s.release(&held, held.proof(), release).await);
        assert_eq!(shown().await.as_deref(), expected, "given {given:?}");
        s.pass(delay).await;
    }
    let held = s.take_one(&q, LONG).await;
    assert_eq!((&held.body[..], held.attributes.len()), (&b"job"[..], 1), "the job itself is as it was");
    done("bury", s.bury(&held, held.proof(), reason("never")).await);
    assert_eq!(shown().await.as_deref(), Some("never"));
    assert_eq!(s.list(&q, JobState::Dead, 9).await[0].reason, reason("never"), "in the list too");
    assert_eq!(ok("respawn", s.engine().respawn_oldest(&q, 1, None).await), 1);
    assert_eq!(shown().await.as_deref(), Some("never"), "until it is deleted");
    s.ack(&stored).await;
    assert_eq!(s.inspect(&stored).await, None);
}

/// Guards against an ack that deletes a job run by another worker, and against a reply that names the wrong jobs.
pub async fn ack_with_a_receipt_acks_only_what_is_held(s: &dyn Stage) {
    let q = queue("q");
    s.put_all((0..6).map(|i| job(&q, i.to_string()).tries(3))).await;
    let slow = s.take(&q, 2, SHORT).await;
    s.pass(SHORT).await;
    let held = s.take(&q, 6, LONG).await;
    assert_eq!(bodies(&held), ["2", "3", "4", "5", "0", "1"]);
    let unknown = job(&q, "unknown").make(s);
    let jobs = [
        (slow[1].id, Some(slow[1].proof())),
        (held[0].id, Some(held[0].proof())),
        (unknown.id, Some(held[0].proof())),
        (unknown.id, None),
        (held[1].id, None),
        (slow[0].id, Some(slow[0].proof())),
        (held[2].id, Some(held[3].proof())),
    ];
    let stale = ok("ack", s.engine().ack(&q, &jobs).await);
    assert_eq!(stale, [slow[1].id, slow[0].id, held[2].id], "existing jobs whose receipt is stale, in order");
    for (i, there) in [(0, false), (1, false), (2, true), (3, true), (4, true), (5, true)] {
        assert_eq!(s.find(&held[i]).await.is_some(), there, "job {}", bodies(&held)[i]);
    }
    let all: Vec<_> = held.iter().map(|job| (job.id, Some(job.proof()))).collect();
    assert_eq!(ok("ack", s.engine().ack(&q, &all).await), [], "each by its own receipt");
    let full: Vec<_> = s.put_all((0..100).map(|i| job(&q, i.to_string()))).await;
    let full: Vec<_> = full.iter().map(|job| (job.id, None)).collect();
    assert_eq!(ok("ack", s.engine().ack(&q, &full).await), [], "as many as a call may name");
    assert_eq!(s.drain(&q).await, [""; 0]);
}

/// Returns the end of job `n`, and the number of releases with a restored try before it.
fn fate(n: usize) -> (&'static str, usize) {
    (["ack", "touch and ack", "bury", "spend all"][n % 4], n / 4 % 3)
}

/// Guards against jobs and tries lost or duplicated when many workers use all verbs at once.
pub async fn workers_leave_each_job_where_they_were_told(s: &dyn Stage) {
    const JOBS: usize = 240;
    const TRIES: u16 = 3;
    let q = queue("q");
    let stored = s.put_all((0..JOBS).map(|n| job(&q, n.to_string()).tries(TRIES))).await;
    // Number of deliveries per job.
    let ledger = Arc::new(Mutex::new(BTreeMap::<usize, usize>::new()));
    let work = |engine: Arc<dyn Engine>,
                q: dormouse::name::Queue,
                ledger: Arc<Mutex<BTreeMap<usize, usize>>>| async move {
        let mut idle = 0;
        while idle < 20 {
            let taken = ok("consume", consume(&*engine, &q.clone().into(), &[LONG; 3]).await);
            idle = if taken.is_empty() { idle + 1 } else { 0 };
            if taken.is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            for held in taken {
                let n: usize = String::from_utf8_lossy(&held.body).parse().expect("its number");
                let seen = {
                    let mut ledger = ledger.lock();
                    let seen = ledger.entry(n).or_default();
                    *seen += 1;
                    *seen - 1
                };
                let (end, restores) = fate(n);
                let name = held.name();
                let restore_try = seen < restores;
                if restore_try || end == "spend all" {
                    let release = Release { tries: tries(restore_try), ..Release::default() };
                    done("release", ok("release", engine.release(&name, held.proof(), release).await));
                } else if end == "bury" {
                    done("bury", ok("bury", engine.bury(&name, held.proof(), None).await));
                } else {
                    let mut receipt = held.proof();
                    if end == "touch and ack" {
                        receipt =
                            done("touch", ok("touch", engine.touch(&name, receipt, LONG).await)).receipt;
                    }
                    let stale = engine.ack(&q, &[(held.id, Some(receipt))]).await;
                    assert_eq!(ok("ack", stale), [], "it is held");
                }
            }
        }
    };
    let workers: Vec<_> = (0..8).map(|_| tokio::spawn(work(s.engine(), q.clone(), ledger.clone()))).collect();
    for worker in workers {
        worker.await.expect("a worker does not panic");
    }
    let ledger = ledger.lock().clone();
    let mut dead = 0;
    for (n, stored) in stored.iter().enumerate() {
        let (end, restores) = fate(n);
        let expected = restores + if end == "spend all" { usize::from(TRIES) } else { 1 };
        assert_eq!(ledger.get(&n), Some(&expected), "hand-overs of job {n}, which is to {end}");
        let view = s.inspect(stored).await;
        if end == "bury" || end == "spend all" {
            dead += 1;
            assert_eq!(view.and_then(|view| view.state), Some(JobState::Dead), "job {n}: {end}");
        } else {
            assert_eq!(view, None, "job {n}: {end}");
        }
    }
    assert_eq!(s.dead(&q).await, dead, "each is dead once");
}
