//! Laws of quotas: a publish that exceeds a quota is refused as a whole, and nothing else is.

use std::fmt::Debug;
use std::num::NonZeroU16;
use std::time::Duration;

use dormouse::engine::{
    How, Listing, OnConflict, Once, Placing, Publication, Published, Quota, Quotas, Release, Revival, Tries,
    Usage,
};
use dormouse::error::{Error, Result};
use dormouse::job::{JobRef, NewJob};
use dormouse::name::IdempotencyKey;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

const NONE: Quota = Quota { jobs: 0, bytes: 0, queues: 0 };

/// Sets the quota of namespace `ns`, and of no other.
async fn set(s: &dyn Stage, quota: Quota) {
    let quotas = Quotas::from([(queue("q").namespace, quota)]);
    ok("set_quotas", s.engine().set_quotas(&quotas).await);
}

async fn publish(s: &dyn Stage, drafts: impl IntoIterator<Item = Draft>) -> Result<Vec<NewJob>> {
    let jobs: Vec<NewJob> = drafts.into_iter().map(|draft| draft.make(s)).collect();
    s.engine().publish(jobs.clone().into()).await.map(|_| jobs)
}

async fn place(s: &dyn Stage, drafts: Vec<Draft>, replaces: Option<JobRef>) -> Result<Published> {
    let jobs: Vec<Placing> = drafts.into_iter().map(|draft| draft.placing(s)).collect();
    s.engine().publish(Publication { jobs, replaces, once: None }).await
}

#[track_caller]
fn refused<T: Debug>(result: Result<T>, what: &str, when: &str) {
    assert!(
        matches!(&result, Err(Error::OverQuota(w)) if *w == what),
        "{when}: {result:?}, not refused for {what}"
    );
}

/// Guards against a quota that stores part of a batch, is off by one, applies to other namespaces, or outlives an ack.
pub async fn what_would_be_more_jobs_is_refused_as_a_whole(s: &dyn Stage) {
    let (q, other) = (queue("q"), queue_in("other", "q"));
    set(s, Quota { jobs: 3, ..NONE }).await;
    let first = ok("two of three", publish(s, ["a", "b"].map(|body| job(&q, body))).await);
    refused(publish(s, ["c", "d"].map(|body| job(&q, body))).await, "jobs", "four of three");
    assert_eq!(s.size(&q).await, 2, "nothing of a batch that was refused is stored");
    ok("the third", publish(s, [job(&queue("another"), "c").delay(LONG)]).await);
    refused(publish(s, [job(&q, "d")]).await, "jobs", "a fourth");
    refused(place(s, vec![job(&q, "d").key("key")], None).await, "jobs", "a fourth with a key");
    ok("in another namespace", publish(s, (0..9).map(|n| job(&other, n.to_string()))).await);
    ok("ack", s.engine().ack_job(first[0].name()).await);
    ok("after an ack", publish(s, [job(&q, "d")]).await);
    refused(publish(s, [job(&q, "e")]).await, "jobs", "a fourth again");
    assert_eq!(s.drain(&q).await, ["b", "d"]);
}

/// Guards against bytes that count twice, or remain counted after a delete.
pub async fn what_would_be_more_bytes_is_refused(s: &dyn Stage) {
    let q = queue("q");
    set(s, Quota { bytes: 100, ..NONE }).await;
    ok("60 of 100", publish(s, [job(&q, [7; 60])]).await);
    refused(publish(s, [job(&q, [7; 41])]).await, "bytes", "101 of 100");
    ok("100 of 100", publish(s, [job(&q, [7; 40])]).await);
    ok("an empty body", publish(s, [job(&q, "")]).await);
    refused(publish(s, [job(&q, "x")]).await, "bytes", "one byte more");
    for job in s.take(&q, 1, LONG).await {
        ok("ack of a running job", s.engine().ack_job(JobRef { queue: job.queue, id: job.id }).await);
    }
    ok("after an ack", publish(s, [job(&q, [7; 60])]).await);
    refused(publish(s, [job(&q, "x")]).await, "bytes", "one byte more again");
}

/// Guards against a usage that leaves out jobs, or that is another namespace's.
pub async fn the_usage_of_bounded_namespaces_is_returned(s: &dyn Stage) {
    let (q, other) = (queue("q"), queue_in("other", "q"));
    ok("before the quota", publish(s, [job(&q, [7; 10]), job(&other, "x")]).await);
    let quotas = Quotas::from([
        (q.namespace.clone(), Quota { bytes: 100, ..NONE }),
        (other.namespace.clone(), Quota { queues: 9, ..NONE }),
    ]);
    ok("set_quotas", s.engine().set_quotas(&quotas).await);
    ok("after it", publish(s, [job(&q, [7; 20]).delay(LONG)]).await);
    let usage = ok("set_quotas", s.engine().set_quotas(&quotas).await);
    assert_eq!(usage, [(q.namespace.clone(), Usage { jobs: 2, bytes: 30 })].into());
}

/// Guards against creating a queue beyond the quota, and against refusing jobs for an existing one.
pub async fn what_would_be_more_queues_is_refused(s: &dyn Stage) {
    set(s, Quota { queues: 2, ..NONE }).await;
    ok("two of two", publish(s, ["a", "b"].map(|name| job(&queue(name), name))).await);
    ok("an existing queue", publish(s, [job(&queue("a"), "a")]).await);
    refused(publish(s, [job(&queue("c"), "c")]).await, "queues", "a third");
    refused(place(s, vec![job(&queue("c"), "c").key("key")], None).await, "queues", "a third");
    ok("of another namespace", publish(s, [job(&queue_in("other", "c"), "c")]).await);
    assert_eq!(s.drain(&queue("c")).await, [""; 0], "refused jobs");
}

/// Guards against jobs that stop counting when they are delivered or die, and against refusing anything but a publish.
pub async fn jobs_count_in_every_state_and_everything_else_goes_on(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["dead", "running", "ready"].map(|body| job(&q, body))).await;
    s.put(job(&q, "delayed").delay(LONG)).await;
    set(s, Quota { jobs: 4, ..NONE }).await;
    let taken = s.take(&q, 2, LONG).await;
    let [dead, running] = &taken[..] else { panic!("two jobs were handed out: {taken:?}") };
    let name = |job: &dormouse::job::Job| JobRef { queue: job.queue.clone(), id: job.id };
    ok("bury", s.engine().bury(&name(dead), dead.proof(), None).await);
    refused(publish(s, [job(&q, "x")]).await, "jobs", "beside a dead, a running, a ready and a delayed job");
    ok(
        "release",
        s.engine()
            .release(&name(running), running.proof(), Release { tries: Tries::Restore, ..Release::default() })
            .await,
    );
    let again = s.take_one(&q, LONG).await;
    s.give_back(&[again]).await;
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    ok("respawn by id", s.engine().respawn_jobs(&q, &[dead.id], revival).await);
    refused(publish(s, [job(&q, "x")]).await, "jobs", "after a respawn");
    ok("destroy", s.engine().destroy(&q, Listing::Keep).await);
    ok("three fit after a destroy", publish(s, ["a", "b", "c"].map(|body| job(&q, body))).await);
    refused(publish(s, [job(&q, "x")]).await, "jobs", "beside the delayed one");
}

/// Guards against counting as if the replaced job still existed.
pub async fn what_replaces_a_job_counts_by_the_difference(s: &dyn Stage) {
    let q = queue("q");
    set(s, Quota { jobs: 2, bytes: 100, ..NONE }).await;
    let old = ok("publish", publish(s, [job(&q, [1; 50])]).await).remove(0);
    ok("with a key", place(s, vec![job(&q, [2; 50]).key("key")], None).await);
    let new = job(&q, [3; 50]).make(s);
    ok("republish of the same size", s.engine().republish(old.name(), new.clone()).await);
    let larger = job(&q, [4; 51]).make(s);
    refused(s.engine().republish(new.name(), larger).await, "bytes", "republish of a byte more");
    assert!(s.find(&new).await.is_some(), "the old job of a refused republish still exists");
    refused(
        s.engine().republish(old.name(), job(&q, "").make(s)).await,
        "jobs",
        "republish of a deleted job",
    );
    ok("the same with a key", place(s, vec![job(&q, [5; 50])], Some(new.name())).await);
    let keep = ok("a duplicate", place(s, vec![job(&q, [6; 99]).key("key")], None).await);
    assert!(matches!(&keep, Published::Done(placed) if placed[0].how == How::Duplicate), "{keep:?}");
    ok("replace", place(s, vec![job(&q, [7; 50]).key_or("key", OnConflict::Replace)], None).await);
    refused(
        place(s, vec![job(&q, [8; 51]).key_or("key", OnConflict::Replace)], None).await,
        "bytes",
        "replace by a byte more",
    );
    let fail = ok("conflict", place(s, vec![job(&q, [9; 99]).key_or("key", OnConflict::Fail)], None).await);
    assert!(matches!(fail, Published::Conflict { .. }), "{fail:?}");
}

/// Guards against a quota error for a repeated request that has been executed.
pub async fn a_repeat_is_not_refused(s: &dyn Stage) {
    let q = queue("q");
    set(s, Quota { jobs: 1, ..NONE }).await;
    let once =
        |name: &str| Some(Once::request(IdempotencyKey::new(name.as_bytes()).expect("a name"), [1; 16]));
    let call =
        |name: &str| Publication { jobs: vec![job(&q, "a").placing(s)], replaces: None, once: once(name) };
    let first = ok("publish", s.engine().publish(call("one")).await);
    assert!(matches!(first, Published::Done(_)), "{first:?}");
    let again = ok("repeat", s.engine().publish(call("one")).await);
    assert!(matches!(again, Published::Replay(_)), "{again:?}");
    refused(s.engine().publish(call("two")).await, "jobs", "another request");
    let acked = s.take_one(&q, LONG).await;
    ok("ack", s.engine().ack_job(JobRef { queue: q.clone(), id: acked.id }).await);
    let after = ok("a request that was refused", s.engine().publish(call("two")).await);
    assert!(matches!(after, Published::Done(_)), "a refused request was not recorded: {after:?}");
}

/// Guards against a full namespace with thousands of remembered requests that store no job.
pub async fn a_duplicate_that_is_remembered_is_refused_when_the_quota_is_used_up(s: &dyn Stage) {
    let q = queue("q");
    let call = |once: Option<&str>| Publication {
        jobs: vec![job(&q, "a").key_or("k", OnConflict::Keep).placing(s)],
        replaces: None,
        once: once.map(|name| Once::request(IdempotencyKey::new(name.as_bytes()).expect("a name"), [1; 16])),
    };
    for (quota, what) in [(Quota { jobs: 1, ..NONE }, "jobs"), (Quota { bytes: 1, ..NONE }, "bytes")] {
        set(s, Quota { jobs: 2, bytes: 2, queues: 0 }).await;
        ok("publish", s.engine().publish(call(Some("first"))).await);
        let second = format!("second, {what}");
        let room = ok("a duplicate while there is room", s.engine().publish(call(Some(&second))).await);
        assert!(matches!(room, Published::Done(_)), "{room:?}");
        set(s, quota).await;
        refused(s.engine().publish(call(Some("third"))).await, what, "a duplicate that is remembered");
        let free = ok("a duplicate that is not remembered", s.engine().publish(call(None)).await);
        assert!(matches!(free, Published::Done(_)), "{free:?}");
        let again = ok("a repeat", s.engine().publish(call(Some("first"))).await);
        assert!(matches!(again, Published::Replay(_)), "{again:?}");
    }
}

/// Guards against a batch larger than one step of the store, of which a part stays or counts.
pub async fn a_large_batch_is_refused_as_a_whole(s: &dyn Stage) {
    let q = queue("q");
    set(s, Quota { bytes: 3 << 20, ..NONE }).await;
    let large = || (0..4).map(|n| job(&q, vec![n; 1 << 20]));
    refused(publish(s, large()).await, "bytes", "4 MiB of 3");
    refused(place(s, large().collect(), None).await, "bytes", "4 MiB of 3 as placings");
    assert_eq!(s.size(&q).await, 0, "nothing is stored");
    ok("3 MiB of 3", publish(s, large().take(3)).await);
    refused(publish(s, [job(&q, "x")]).await, "bytes", "a byte more");
}

/// Guards against a quota that outlives its removal, and against one that does not replace another.
pub async fn the_last_quotas_count(s: &dyn Stage) {
    let q = queue("q");
    set(s, Quota { jobs: 1, ..NONE }).await;
    ok("the first", publish(s, [job(&q, "a")]).await);
    refused(publish(s, [job(&q, "b")]).await, "jobs", "the second");
    set(s, Quota { jobs: 2, ..NONE }).await;
    ok("the second", publish(s, [job(&q, "b")]).await);
    refused(publish(s, [job(&q, "c")]).await, "jobs", "the third");
    ok("none any more", s.engine().set_quotas(&Quotas::new()).await);
    ok("without a quota", publish(s, (0..9).map(|n| job(&q, n.to_string()))).await);
    set(s, Quota { jobs: 11, ..NONE }).await;
    refused(publish(s, [job(&q, "x")]).await, "jobs", "jobs stored without a quota count");
}
