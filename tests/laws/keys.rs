//! Laws of job keys: a producer's name for a job, held by one job at a time and free when that job ends.

use std::num::NonZeroU16;
use std::time::Duration;

use dormouse::engine::{
    By, Detail, Held, How, Listing, OnConflict, Placed, Publication, Published, Release, Released, Revival,
};
use dormouse::job::{JobId, JobRef, JobState};
use dormouse::name::Queue;

use crate::stage::*;
use crate::support::engine_ext::{EngineExt, tries};

/// Returns the id of the job that holds a key.
async fn holder(s: &dyn Stage, queue: &Queue, key: &str) -> Option<JobId> {
    s.holder(queue, key).await.map(|view| view.id)
}

fn named(queue: &Queue, placed: Placed) -> JobRef {
    JobRef { queue: queue.clone(), id: placed.id }
}

/// Guards against a key that is lost or names another job during its job's life.
pub async fn a_key_names_its_job_in_every_state_but_dead(s: &dyn Stage) {
    let q = queue("q");
    assert_eq!(s.holder(&q, "k").await, None, "nobody has it");
    let placed = s.place(job(&q, "body").tries(1).delay(SHORT).key("k")).await;
    assert_eq!(placed.how, How::New);
    for state in ["delayed", "ready", "running"] {
        let view = s.holder(&q, "k").await.unwrap_or_else(|| panic!("{state}, and nobody has the key"));
        assert_eq!((view.id, view.body.as_deref()), (placed.id, Some(&b"body"[..])), "while it is {state}");
        assert_eq!(view.key, Some(job_key("k")), "while it is {state}");
        let stored = s.engine().inspect(&q, By::Key(&job_key("k")), Detail::Stored).await;
        let stored = ok("inspect", stored).unwrap_or_else(|| panic!("{state}, and nobody has the key"));
        assert_eq!((stored.id, stored.body), (placed.id, view.body), "as it is stored while it is {state}");
        let more = (stored.state, stored.due_at, stored.tries_left, stored.key, stored.reason);
        assert_eq!(more, (None, None, None, None, None), "not asked for while it is {state}");
        match state {
            "delayed" => s.pass(SHORT).await,
            "ready" => drop(s.take_one(&q, SHORT).await),
            _ => s.pass(SHORT).await,
        }
    }
    assert_eq!(s.dead(&q).await, 1, "it had one try");
    assert_eq!(s.holder(&q, "k").await, None, "a dead job has no key");
    assert_eq!(s.view(&named(&q, placed)).await.key, None, "nor does it say so");
}

/// Guards against two jobs with one key, and against a reply that names the wrong job.
pub async fn a_taken_key_keeps_the_first_job(s: &dyn Stage) {
    let q = queue("q");
    let first = s.place(job(&q, "first").delay(LONG).key("k")).await;
    assert!(
        first.due_at.is_some_and(|at| at >= s.engine().now() + ms(LONG) - 1000),
        "due in an hour: {first:?}"
    );
    let second = s.place(job(&q, "second").key("k")).await;
    assert_eq!(second, Placed { how: How::Duplicate, ..first }, "the first one's id and due time");
    assert_eq!(s.size(&q).await, 0, "the second is not stored");
    let other = s.place(job(&q, "other").key("K")).await;
    assert_eq!(other.how, How::New, "another key");
    assert_eq!(s.drain(&q).await, ["other"]);
    assert_eq!(holder(s, &q, "k").await, Some(first.id), "it has it still");
}

/// Guards against executing half of a call, and against a reply that names the wrong job.
pub async fn a_taken_key_fails_the_whole_call(s: &dyn Stage) {
    let q = queue("q");
    let first = s.place(job(&q, "first").delay(LONG).key("k")).await;
    let drafts = [
        job(&q, "a").key("a"),
        job(&q, "b"),
        job(&q, "c").key_or("k", OnConflict::Fail),
        job(&q, "d").key_or("d", OnConflict::Fail),
    ];
    assert_eq!(s.place_all(drafts).await, Published::Conflict { index: 2, id: first.id });
    assert_eq!(s.drain(&q).await, [""; 0], "none of them is stored");
    assert_eq!((holder(s, &q, "a").await, holder(s, &q, "d").await), (None, None), "no key is taken");
    assert_eq!(holder(s, &q, "k").await, Some(first.id), "and none is lost");
    let done = s.place_all([job(&q, "e").key_or("e", OnConflict::Fail)]).await;
    assert!(matches!(&done, Published::Done(placed) if placed[0].how == How::New), "free: {done:?}");
}

/// Guards against delivering a job that was replaced.
pub async fn a_delayed_or_ready_job_is_replaced(s: &dyn Stage) {
    for (name, delay) in [("delayed", SHORT), ("ready", Duration::ZERO)] {
        let q = queue(name);
        let old = s.place(job(&q, "old").delay(delay).key("k")).await;
        let new = s.place(job(&q, "new").tries(2).key_or("k", OnConflict::Replace)).await;
        assert_eq!(new.how, How::Replaced(old.id), "{name}");
        assert_eq!(s.find(&named(&q, old)).await, None, "the {name} job is deleted");
        assert_eq!(holder(s, &q, "k").await, Some(new.id), "the new one has the key");
        s.pass(SHORT).await;
        assert_eq!(s.drain(&q).await, ["new"], "{name}");
    }
}

/// Guards against taking a job from its worker, and against its key returning with it.
pub async fn a_running_job_runs_on_without_its_key(s: &dyn Stage) {
    for end in ["ack", "die", "bury", "come back"] {
        let q = queue(&end.replace(' ', "-"));
        let tries = if end == "come back" { 2 } else { 1 };
        let old = s.place(job(&q, "old").tries(tries).key("k")).await;
        let ttr = if matches!(end, "ack" | "bury") { LONG } else { SHORT };
        let running = s.take_one(&q, ttr).await;
        let new = s.place(job(&q, "new").delay(LONG).key_or("k", OnConflict::Replace)).await;
        assert_eq!(new.how, How::New, "a running job is not replaced");
        assert_eq!(s.view(&named(&q, old)).await.key, None, "it has no key any more");
        match end {
            "ack" => s.ack(&running).await,
            "bury" => assert_eq!(s.bury(&running, running.proof(), None).await, Held::Done(())),
            _ => s.pass(SHORT).await,
        }
        if end == "come back" {
            assert_eq!(s.drain(&q).await, ["old"], "it runs again");
            s.ack(&named(&q, old)).await;
        }
        assert_eq!(holder(s, &q, "k").await, Some(new.id), "{end}: the key is the new one's");
        assert_eq!(s.place(job(&q, "x").key("k")).await.how, How::Duplicate, "{end}: and taken");
    }
}

/// Guards against a key that stays taken after its job was deleted.
pub async fn a_key_is_free_with_the_end_of_its_job(s: &dyn Stage) {
    let ends = [
        "ack delayed",
        "ack ready",
        "ack running",
        "ack returned",
        "ack many",
        "cancel",
        "destroy",
        "republish",
        "replace",
    ];
    for end in ends {
        let q = queue(&end.replace(' ', "-"));
        let delay = if end == "ack delayed" { LONG } else { Duration::ZERO };
        let old = named(&q, s.place(job(&q, "old").tries(2).delay(delay).key("k")).await);
        match end {
            "ack running" => drop(s.take_one(&q, LONG).await),
            "ack returned" => {
                s.take_one(&q, SHORT).await;
                s.pass(SHORT).await;
            }
            _ => {}
        }
        match end {
            "ack many" => {
                let held = s.take_one(&q, LONG).await;
                assert!(s.ack_held(&held, held.proof()).await, "it is held");
            }
            "cancel" => assert!(ok("cancel_key", s.engine().cancel_key(&q, &job_key("k")).await)),
            "destroy" => ok("destroy", s.engine().destroy(&q, Listing::Keep).await),
            "republish" => ok("republish", s.engine().republish(old.clone(), job(&q, "x").make(s)).await),
            "replace" => {
                let jobs = vec![job(&q, "x").key_or("k", OnConflict::Fail).placing(s)];
                let publication = Publication { jobs, replaces: Some(old.clone()), once: None };
                let done = s.publication(publication).await;
                assert!(matches!(done, Published::Done(_)), "its key is free in the same step: {done:?}");
                s.ack(&s.take_one(&q, LONG).await).await;
            }
            _ => s.ack(&old).await,
        }
        assert_eq!(s.find(&old).await, None, "{end}: it is deleted");
        assert_eq!(s.holder(&q, "k").await, None, "{end}: nobody has the key");
        assert_eq!(s.place(job(&q, "new").key("k")).await.how, How::New, "{end}: so it is free");
    }
}

/// Guards against a key held by a dead job, which may stay for long.
pub async fn a_key_is_free_when_its_job_dies(s: &dyn Stage) {
    for end in ["pump", "bury", "release"] {
        let q = queue(end);
        s.place(job(&q, "old").key("k")).await;
        let held = s.take_one(&q, if end == "pump" { SHORT } else { LONG }).await;
        match end {
            "pump" => s.pass(SHORT).await,
            "bury" => assert_eq!(s.bury(&held, held.proof(), None).await, Held::Done(())),
            _ => assert_eq!(
                s.release(&held, held.proof(), Release::default()).await,
                Held::Done(Released::Dead)
            ),
        }
        assert_eq!(s.dead(&q).await, 1, "{end}: it is dead");
        assert_eq!(s.place(job(&q, "new").tries(2).key("k")).await.how, How::New, "{end}: the key is free");
        // The dead job is respawned without its key.
        assert_eq!(ok("respawn", s.engine().respawn_oldest(&q, 1, None).await), 1);
        assert_eq!(s.view(&held).await.key, None, "{end}: another job had the key meanwhile");
        s.ack(&held).await;
        assert_eq!(
            s.place(job(&q, "x").key("k")).await.how,
            How::Duplicate,
            "{end}: the new one has it still"
        );
    }
}

/// Guards against a publish reported as a duplicate of a job that its producer does not know, and against deleting a
/// respawned job by key: a job loses its key when it dies, even if it is respawned.
pub async fn a_respawned_job_has_no_key(s: &dyn Stage) {
    for (n, ttl) in [Some(LONG), None, Some(LONG), None].into_iter().enumerate() {
        let q = queue(&format!("q{n}"));
        let keys = ["keep", "fail", "replace", "cancel"];
        let mut old = Vec::new();
        for key in keys {
            old.push(named(&q, s.place(job(&q, key).key(key)).await));
        }
        for held in s.take(&q, 4, LONG).await {
            assert_eq!(s.bury(&held, held.proof(), None).await, Held::Done(()));
        }
        if n < 2 {
            assert_eq!(ok("respawn", s.engine().respawn_oldest(&q, 9, ttl).await), 4);
        } else {
            let revival = Revival { tries: NonZeroU16::MIN, delay: SHORT, ttl };
            let old_ids: Vec<JobId> = old.iter().map(|job| job.id).collect();
            ok("respawn_jobs", s.engine().respawn_jobs(&q, &old_ids, revival).await);
        }
        for (key, old) in keys.into_iter().zip(&old) {
            assert_eq!(s.holder(&q, key).await, None, "{key}, ttl {ttl:?}: it died");
            assert_eq!(s.view(old).await.key, None, "{key}, ttl {ttl:?}: nor does it say so");
        }
        assert!(
            !ok("cancel_key", s.engine().cancel_key(&q, &job_key("cancel")).await),
            "ttl {ttl:?}: no job has the key"
        );
        let conflicts = [OnConflict::Keep, OnConflict::Fail, OnConflict::Replace];
        for (key, conflict) in keys.into_iter().zip(conflicts) {
            let new = s.place_all([job(&q, "new").delay(LONG).key_or(key, conflict)]).await;
            let Published::Done(new) = new else { panic!("{key}, ttl {ttl:?}: it is free: {new:?}") };
            assert_eq!(new[0].how, How::New, "{key}, ttl {ttl:?}: it is free");
            assert_eq!(holder(s, &q, key).await, Some(new[0].id), "{key}, ttl {ttl:?}");
        }
        s.pass(SHORT).await;
        assert_eq!(s.drain(&q).await, keys, "ttl {ttl:?}: the respawned jobs exist");
        for key in &keys[..3] {
            assert!(s.holder(&q, key).await.is_some(), "{key}, ttl {ttl:?}: the new one has it still");
        }
    }
}

/// Guards against taking a job from its worker because it had many tries.
pub async fn a_running_job_of_many_tries_runs_on_without_its_key(s: &dyn Stage) {
    let q = queue("q");
    for most in [u16::MAX, 1500] {
        let old = named(&q, s.place(job(&q, "old").tries(most).key("k")).await);
        for n in 0..600 {
            let held = s.take_one(&q, LONG).await;
            let release = Release { tries: tries(n % 50 == 0), ..Release::default() };
            let released = s.release(&held, held.proof(), release).await;
            assert!(matches!(released, Held::Done(Released::Back { .. })), "{released:?}");
        }
        let running = s.take_one(&q, LONG).await;
        let new = s.place(job(&q, "new").delay(LONG).key_or("k", OnConflict::Replace)).await;
        assert_eq!(new.how, How::New, "a running job of {most} tries is not replaced");
        assert!(s.find(&old).await.is_some(), "it is there");
        assert!(s.ack_held(&running, running.proof()).await, "and held");
        assert!(ok("cancel_key", s.engine().cancel_key(&q, &job_key("k")).await), "the new one has the key");
        // The same job, ready: it is replaced.
        let old = named(&q, s.place(job(&q, "old").tries(most).key("k")).await);
        for _ in 0..600 {
            let held = s.take_one(&q, LONG).await;
            s.release(&held, held.proof(), Release::default()).await;
        }
        let new = s.place(job(&q, "new").delay(LONG).key_or("k", OnConflict::Replace)).await;
        assert_eq!((new.how, s.find(&old).await), (How::Replaced(old.id), None), "{most} tries, ready");
        assert!(ok("cancel_key", s.engine().cancel_key(&q, &job_key("k")).await), "the new one has the key");
    }
}

/// Guards against a key that stays taken until a sweep.
pub async fn a_key_is_free_when_its_job_expires(s: &dyn Stage) {
    let states = ["delayed", "ready", "running"];
    for state in states {
        let delay = if state == "delayed" { s.life() } else { Duration::ZERO };
        s.place(job(&queue(state), "old").ttl(s.life()).delay(delay).key("k")).await;
        if state == "running" {
            s.take_one(&queue(state), LONG).await;
        }
    }
    s.advance(s.life() + Duration::from_millis(1)).await;
    for state in states {
        let q = queue(state);
        assert_eq!(s.holder(&q, "k").await, None, "the {state} one has expired");
        assert!(
            !ok("cancel_key", s.engine().cancel_key(&q, &job_key("k")).await),
            "{state}: nothing to cancel"
        );
        let new = s.place(job(&q, "new").key_or("k", OnConflict::Replace)).await;
        assert_eq!(new.how, How::New, "{state}: nothing is replaced");
        s.pump().await;
        assert_eq!(holder(s, &q, "k").await, Some(new.id), "{state}: what the old one leaves harms nobody");
        assert_eq!(s.drain(&q).await, ["new"], "{state}");
    }
}

/// Guards against a key that is lost while its job is delivered and returned.
pub async fn a_key_stays_while_its_job_comes_and_goes(s: &dyn Stage) {
    let q = queue("q");
    let placed = s.place(job(&q, "job").tries(9).key("k")).await;
    let held = s.take_one(&q, SHORT).await;
    s.pass(SHORT).await;
    assert_eq!(holder(s, &q, "k").await, Some(held.id), "its ttr ended");
    s.give_back(&s.take(&q, 1, LONG).await).await;
    assert_eq!(holder(s, &q, "k").await, Some(placed.id), "it was given back");
    let held = s.take_one(&q, LONG).await;
    let Held::Done(touched) = s.touch(&held, held.proof(), LONG).await else { panic!("it is held") };
    assert_eq!(holder(s, &q, "k").await, Some(placed.id), "it was touched");
    let released = s.release(&held, touched.receipt, Release::default()).await;
    assert!(matches!(released, Held::Done(_)), "it is held: {released:?}");
    assert_eq!(holder(s, &q, "k").await, Some(placed.id), "it was released");
    let held = s.take_one(&q, LONG).await;
    let released = s.release(&held, held.proof(), Release { delay: SHORT, ..Release::default() }).await;
    assert!(matches!(released, Held::Done(_)), "it is held: {released:?}");
    assert_eq!(holder(s, &q, "k").await, Some(placed.id), "it was released for later");
    s.pass(SHORT).await;
    assert_eq!(holder(s, &q, "k").await, Some(placed.id), "its delay ended");
}

/// Guards against a key shared by several queues or namespaces.
pub async fn keys_of_other_queues_do_not_mix(s: &dyn Stage) {
    let queues = [queue_in("a", "q"), queue_in("a", "q-"), queue_in("b", "q"), queue_in("aq", "-")];
    for q in &queues {
        assert_eq!(s.place(job(q, q.to_string()).key("k")).await.how, How::New, "free in {q}");
    }
    assert!(ok("cancel_key", s.engine().cancel_key(&queues[0], &job_key("k")).await), "the one of a/q");
    for (i, q) in queues.iter().enumerate() {
        assert_eq!(s.holder(q, "k").await.is_some(), i > 0, "{q}: only that of a/q was cancelled");
    }
}

/// Guards against a cancel that leaves a running job to its worker.
pub async fn cancel_forgets_the_job_of_a_key(s: &dyn Stage) {
    for state in ["delayed", "ready", "running"] {
        let q = queue(state);
        let delay = if state == "delayed" { SHORT } else { Duration::ZERO };
        let placed = s.place(job(&q, "job").tries(2).delay(delay).key("k")).await;
        if state == "running" {
            s.take_one(&q, SHORT).await;
        }
        let cancel = async |key: &str| ok("cancel_key", s.engine().cancel_key(&q, &job_key(key)).await);
        assert!(!cancel("other").await, "no job has the key");
        assert!(cancel("k").await, "a {state} job is cancelled");
        assert!(!cancel("k").await, "once");
        assert_eq!(s.find(&named(&q, placed)).await, None, "the {state} job is deleted");
        s.pass(SHORT).await;
        assert_eq!(s.drain(&q).await, [""; 0], "and does not come: {state}");
    }
}

/// Guards against a call whose jobs take the key from each other.
pub async fn a_call_with_one_key_twice_changes_nothing(s: &dyn Stage) {
    let q = queue("q");
    let jobs = ["a", "b"].map(|body| job(&q, body).key("k").placing(s));
    let publication = Publication { jobs: jobs.into(), replaces: None, once: None };
    let answer = s.engine().publish(publication).await;
    assert!(answer.is_err(), "two jobs with one key: {answer:?}");
    assert_eq!((s.size(&q).await, s.holder(&q, "k").await), (0, None), "nothing has changed");
}

/// Guards against a job that overwrites another with the same id.
pub async fn a_keyed_call_with_a_taken_id_changes_nothing(s: &dyn Stage) {
    let q = queue("q");
    let stored = s.put(job(&q, "stored").delay(LONG)).await;
    let mut twin = job(&q, "twin").key("k").placing(s);
    twin.job.id = stored.id;
    let jobs = vec![job(&q, "first").key("first").placing(s), twin];
    let answer = s.engine().publish(Publication { jobs, replaces: None, once: None }).await;
    assert!(answer.is_err(), "its id is taken: {answer:?}");
    assert_eq!((s.size(&q).await, s.holder(&q, "first").await), (0, None), "nothing has changed");
    assert_eq!(s.find(&stored).await.map(|job| job.body), Some("stored".into()));
}

/// Guards against truncated keys, and against bytes that a store misinterprets.
pub async fn the_longest_key_works(s: &dyn Stage) {
    let q = queue("q");
    let all: String = (b'!'..=b'~').map(char::from).collect();
    let longest = format!("{}{}", all, "k".repeat(255 - all.len()));
    for (i, key) in [longest.clone(), format!("{}x", &longest[..254]), all, "*".into()].iter().enumerate() {
        assert_eq!(s.place(job(&q, i.to_string()).key(key)).await.how, How::New, "{key}");
        let view = s.holder(&q, key).await.expect("it has the key");
        assert_eq!((view.key, view.body), (Some(job_key(key)), Some(i.to_string().into())));
    }
}

/// Guards against an instant by another clock than the store's, and against a past one.
pub async fn a_job_due_at_an_instant_is_not_early(s: &dyn Stage) {
    let q = queue("q");
    let at = s.engine().now() + ms(s.life());
    let placed = s.place(job(&q, "later").delay(s.life()).at(at)).await;
    assert_eq!(placed.due_at, Some(at), "told as it was asked for");
    let past = s.place(job(&q, "past").at(at - 2 * ms(s.life()))).await;
    let now = s.engine().now();
    let due = past.due_at.expect("a new job's due time is known");
    assert!(due <= now + ms(s.differences().slack), "due at {due}, and it is {now}: now, not later");
    assert!(due + 30_000 > now, "due at {due}, and it is {now}: now, not in the past");
    assert_eq!(s.take(&q, 9, LONG).await.iter().map(|job| job.id).collect::<Vec<_>>(), [past.id]);
    // The engine's clock is an estimate, and a later reply may have set it back.
    s.pass(Duration::from_millis(at.saturating_sub(s.engine().now()))).await;
    assert_eq!(s.drain(&q).await, ["later"]);
}

/// Guards against order that holds only within one call.
pub async fn jobs_due_at_one_instant_come_in_publish_order_over_calls(s: &dyn Stage) {
    let q = queue("q");
    let at = s.engine().now() + ms(LONG);
    let mut expected = Vec::new();
    for tries in [[1, 3, 2], [2, 1, 1], [1, 1, 300]] {
        match s.place_all(tries.map(|n| job(&q, "x").at(at).tries(n))).await {
            Published::Done(placed) => expected.extend(placed.iter().map(|placed| placed.id)),
            other => panic!("it should be done: {other:?}"),
        }
        // A job of another queue at the same instant.
        s.place(job(&queue("p"), "x").at(at).tries(9)).await;
    }
    let listed = s.list(&q, JobState::Delayed, 100).await;
    assert!(listed.iter().all(|view| view.due_at == Some(at)), "due at {at}: {listed:?}");
    let listed: Vec<JobId> = listed.iter().map(|view| view.id).collect();
    assert_eq!(listed, expected, "publish order");
}

/// Guards against two producers that both believe their job was stored.
pub async fn one_of_many_publishes_with_one_key_wins(s: &dyn Stage) {
    let q = queue("q");
    let mut calls = Vec::new();
    for i in 0..40 {
        let on_conflict = if i % 2 == 0 { OnConflict::Keep } else { OnConflict::Fail };
        let jobs = vec![job(&q, i.to_string()).key_or("k", on_conflict).placing(s)];
        let (engine, publication) = (s.engine(), Publication { jobs, replaces: None, once: None });
        calls.push(tokio::spawn(async move { engine.publish(publication).await }));
    }
    let (mut new, mut others) = (Vec::new(), Vec::new());
    for call in calls {
        match ok("publish", call.await.expect("publish does not panic")) {
            Published::Done(placed) if placed[0].how == How::New => new.push(placed[0].id),
            Published::Done(placed) => others.push(placed[0].id),
            Published::Conflict { id, .. } => others.push(id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(new.len(), 1, "one is stored");
    assert!(others.iter().all(|id| *id == new[0]), "and all others get its id");
    let stored = s.drain(&q).await;
    assert_eq!(stored.len(), 1, "one comes out: {stored:?}");
}

/// Guards against storing a job whose key is held by a job in the other store, and against a different reply to a
/// repeated call.
pub async fn a_key_that_a_job_elsewhere_has_is_answered_as_told(s: &dyn Stage) {
    let q = queue("q");
    let elsewhere = |due_at, how| {
        let id = job(&q, "elsewhere").make(s).id;
        OnConflict::Elsewhere(Placed {
            id,
            due_at,
            how: if how == How::New { How::Replaced(id) } else { how },
        })
    };
    // Also with a body large enough to be staged first.
    let large = "x".repeat(1 << 21);
    for body in ["small", &large] {
        let told = [
            elsewhere(Some(s.engine().now() + 5000), How::Duplicate),
            elsewhere(None, How::Duplicate),
            elsewhere(None, How::New),
        ];
        let drafts = ["a", "b", "c"].into_iter().zip(told);
        let drafts: Vec<Draft> = drafts.map(|(key, told)| job(&q, body).key_or(key, told)).collect();
        let Published::Done(placed) = s.place_all(drafts).await else { panic!("nothing is in its way") };
        for (n, told) in told.into_iter().enumerate() {
            let OnConflict::Elsewhere(told) = told else { unreachable!("made above") };
            match told.how {
                How::Duplicate => assert_eq!(placed[n], told),
                how => assert_eq!((placed[n].how, placed[n].id != told.id), (how, true)),
            }
        }
        let holders = (holder(s, &q, "a").await, holder(s, &q, "b").await, holder(s, &q, "c").await);
        assert_eq!(holders, (None, None, Some(placed[2].id)), "keys of the stored jobs");
        assert_eq!(s.drain(&q).await, [body], "the third job");
    }
}
