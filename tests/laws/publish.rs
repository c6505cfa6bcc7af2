//! Laws of publish: every published job is delivered, in order, and batches are atomic.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse::engine::MAX_PUBLISH;
use dormouse::error::Error;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

/// Guards against a job whose body, id, ttl, tries or age changes.
pub async fn a_published_job_comes_out_as_it_went_in(s: &dyn Stage) {
    let q = queue("q");
    let before = s.engine().now();
    let new = s.put(job(&q, "hello").ttl(LONG).tries(3)).await;
    s.advance(Duration::from_millis(5)).await;
    let job = s.take_one(&q, LONG).await;
    let after = s.engine().now();
    let slack = s.differences().slack;
    assert_eq!((&job.queue, job.id), (&q, new.id), "the job's name");
    assert_eq!(job.body, new.body, "the body");
    assert_eq!(job.tries_left, 2, "three tries, one is in use");
    assert!(job.attributes.is_empty(), "no attributes were given: {:?}", job.attributes);
    let ttl = job.ttl.expect("a ttl was given");
    let spent = Duration::from_millis(after - before) + slack;
    assert!(ttl <= LONG + slack && ttl + spent >= LONG, "ttl {ttl:?} of {LONG:?}, {spent:?} spent at most");
    let (elapsed, least) = (job.elapsed + slack, Duration::from_millis(5));
    assert!(elapsed >= least && job.elapsed <= spent, "elapsed {elapsed:?}, not in {least:?}..={spent:?}");
}

/// Guards against bodies treated as text, treated as absent, or truncated.
pub async fn an_empty_a_binary_and_a_large_body_stay_as_they_are(s: &dyn Stage) {
    let q = queue("q");
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..1 << 20).map(|i: u32| ((i * 31) >> 5) as u8).collect();
    for body in [&b""[..], &every_byte, b"\0\0", b"{\"body\":\"\"}", &large] {
        for draft in [job(&q, body), job(&q, body).versioned(), job(&q, body).delay(LONG)] {
            let new = s.put(draft).await;
            let read = s.find(&new).await.expect("the job is stored");
            assert!(read.body == body, "a body of {} bytes is read as {}", body.len(), read.body.len());
        }
    }
    let jobs = s.take(&q, 100, LONG).await;
    assert_eq!(jobs.len(), 10, "five bodies, ready with a plain and with a versioned id");
    for job in jobs {
        let read = s.find(&job).await.expect("the job runs");
        assert!(read.body == job.body, "consume and peek differ in a body of {} bytes", job.body.len());
    }
}

/// Guards against attributes lost, mixed up, or shown where the stored form has none.
pub async fn attributes_stay_with_versioned_ids_only(s: &dyn Stage) {
    // A queue for each, since a spread queue does not keep the order of its jobs.
    let [q, r, t] = ["q", "r", "t"].map(queue);
    let pairs = [("a", "1"), ("flag", "a \"quoted\" value"), ("language", "日本語")];
    let body = b"\xff\x00 not text";
    let with = s.put(job(&q, body).attributes(&pairs).versioned()).await;
    let none = s.put(job(&r, "none").versioned()).await;
    let plain = s.put(job(&t, "plain").attributes(&pairs)).await;
    assert!(with.id.is_versioned(), "the id should be of the versioned form");
    for (new, expected) in [(&with, &with.attributes), (&none, &none.attributes), (&plain, &none.attributes)]
    {
        let read = s.find(new).await.expect("the job is stored");
        assert_eq!(&read.attributes, expected, "attributes of {:?} by peek", new.id);
        assert_eq!(read.body, new.body, "body of {:?} by peek", new.id);
        let taken = s.take_one(&new.queue, LONG).await;
        assert_eq!((taken.id, &taken.attributes), (new.id, expected), "attributes by consume");
        assert_eq!(taken.body, new.body, "body of {:?} by consume", new.id);
    }
}

/// Guards against a batch that is stored in another order than it was given.
pub async fn a_batch_comes_out_in_order(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["1", "2", "3"].map(|body| job(&q, body))).await;
    assert_eq!(s.drain(&q).await, ["1", "2", "3"], "the order of the batch");
}

/// Guards against a bound lower than the trait's, for ready and delayed jobs.
pub async fn a_full_batch_is_taken(s: &dyn Stage) {
    for delay in [Duration::ZERO, SHORT] {
        let q = queue("q");
        let batch: Vec<_> = (0..MAX_PUBLISH).map(|i| job(&q, i.to_string()).delay(delay).make(s)).collect();
        ok("publish of a full batch", s.engine().publish(batch.into()).await);
        s.pass(delay).await;
        let expected: Vec<_> = (0..MAX_PUBLISH).map(|i| i.to_string()).collect();
        assert_eq!(s.drain(&q).await, expected, "a full batch with delay {delay:?}");
    }
}

/// Guards against order that holds within a batch only.
pub async fn queues_are_first_in_first_out_over_batches(s: &dyn Stage) {
    let (q, other) = (queue("q"), queue("other"));
    s.put_all(["1", "2"].map(|body| job(&q, body))).await;
    s.put(job(&other, "x")).await;
    s.put(job(&q, "3").tries(9)).await;
    assert_eq!(s.take_one(&q, LONG).await.body, "1", "the oldest first");
    s.put_all(["4", "5"].map(|body| job(&q, body))).await;
    assert_eq!(s.drain(&q).await, ["2", "3", "4", "5"], "first in, first out");
    assert_eq!(s.drain(&other).await, ["x"], "the other queue has its own order");
}

/// Guards against storing part of a batch, and against overwriting a stored job with the same id.
pub async fn an_id_stored_in_any_state_fails_the_whole_batch(s: &dyn Stage) {
    for (state, stored) in s.one_in_each_state().await {
        let q = stored.queue.clone();
        let before = (s.find(&stored).await.map(|j| j.body), s.size(&q).await, s.dead(&q).await);
        let fresh = [job(&q, "first").make(s), job(&q, "last").delay(LONG).make(s)];
        let twin = dormouse::job::NewJob { id: stored.id, ..job(&q, "twin").make(s) };
        let batch = vec![fresh[0].clone(), twin, fresh[1].clone()];
        let answer = s.engine().publish(batch.into()).await;
        assert!(matches!(answer, Err(Error::Refused(_))), "an id that is {state} already: {answer:?}");
        let after = (s.find(&stored).await.map(|j| j.body), s.size(&q).await, s.dead(&q).await);
        assert_eq!(after, before, "body, size and dead letter after a batch with an id that is {state}");
        for new in &fresh {
            assert_eq!(s.find(new).await, None, "a neighbour in the failed batch, {state}");
        }
        for new in &fresh {
            ok("publish of the same neighbour alone", s.engine().publish(vec![new.clone()].into()).await);
        }
    }
}

/// Guards against a refusal that makes other calls in the same batch fail, or loses them.
pub async fn a_failed_publish_does_not_fail_its_neighbours(s: &dyn Stage) {
    let q = queue("q");
    let stored = s.put(job(&q, "stored").delay(LONG)).await;
    let mut calls = Vec::new();
    for i in 0..30 {
        let mut new = job(&q, i.to_string()).make(s);
        if i % 3 == 0 {
            new.id = stored.id;
        }
        let engine = s.engine();
        calls.push((i, new.clone(), tokio::spawn(async move { engine.publish(vec![new].into()).await })));
    }
    for (i, new, call) in calls {
        let answer = call.await.expect("publish does not panic");
        assert_eq!(answer.is_ok(), i % 3 != 0, "call {i} answered {answer:?}");
        let read = s.find(&new).await.map(|job| job.body);
        let expected = if i % 3 == 0 { &stored.body } else { &new.body };
        assert_eq!(read.as_ref(), Some(expected), "the stored job after call {i}");
    }
    assert_eq!(s.drain(&q).await.len(), 20, "every job that was taken is ready");
}

/// Guards against numbers that overflow: all are the largest that the HTTP API accepts.
pub async fn the_largest_values_work(s: &dyn Stage) {
    let q = queue("q");
    let most = Duration::from_secs(u32::MAX.into());
    let sleeper = s.put(job(&q, "sleeper").delay(most).ttl(most).tries(u16::MAX)).await;
    let ready = s.put(job(&q, "ready").ttl(most).tries(u16::MAX)).await;
    s.pass(Duration::from_millis(1)).await;
    assert_eq!(sleeper.id.delay_seconds(), u32::MAX, "the delay in the id");
    let asleep = s.find(&sleeper).await.expect("the delayed job is stored");
    assert!(asleep.ttl > Some(most / 2), "its ttl is far away: {:?}", asleep.ttl);
    let taken = s.take_one(&q, most).await;
    assert_eq!((taken.id, taken.tries_left), (ready.id, u16::MAX - 1), "all tries but one");
    assert!(taken.ttl > Some(most / 2), "the ttl is far away: {:?}", taken.ttl);
    s.pump().await;
    assert_eq!(s.peek(&q).await, None, "one sleeps and one runs for the next century");
    s.give_back(&[taken]).await;
    assert_eq!(s.peek(&q).await.map(|j| j.tries_left), Some(u16::MAX), "the try is restored");
    let kept = s.kill(&queue("dead"), [job(&queue("dead"), "dead")]).await;
    let count = ok("respawn", s.engine().respawn_oldest(&kept[0].queue, u64::MAX, Some(most)).await);
    assert_eq!(count, 1, "one was dead");
    assert!(s.take_one(&kept[0].queue, most).await.ttl > Some(most / 2), "respawned with the longest ttl");
}

/// Guards against half a step when a caller disconnects, and against an engine that then hangs.
pub async fn a_dropped_publish_happened_or_did_not(s: &dyn Stage) {
    let q = queue("q");
    let engine = s.engine();
    for i in 0..20 {
        let pair = vec![job(&q, i.to_string()).make(s), job(&q, i.to_string()).make(s)];
        let mut call = pin!(engine.publish(pair.into()));
        let _dropped: Poll<_> = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    s.put(job(&q, "end")).await;
    let all = s.drain(&q).await;
    // The callers of these got no reply, so those calls may still take effect, before or after it.
    let end = all.iter().position(|body| body == "end").expect("the last publish was answered");
    let (before, after) = (&all[..end], &all[end + 1..]);
    // In virtual time there is one writer, which takes calls in order; a Redis has two workers for publishes.
    assert!(after.is_empty() || !s.differences().virtual_time, "the last acknowledged job is last: {all:?}");
    for pairs in [before, after] {
        assert_eq!(pairs.len() % 2, 0, "a batch is whole or absent: {all:?}");
        assert!(pairs.chunks(2).all(|pair| pair[0] == pair[1]), "batches do not mix: {all:?}");
    }
}
