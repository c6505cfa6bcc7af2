//! Laws under load: concurrently, each job is delivered to one consumer at a time, and none is lost. Every loop ends
//! when the producers are done and the queue is empty.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse::engine::Engine;
use dormouse::job::{Job, NewJob};
use dormouse::name::Queue;
use tokio::task::JoinSet;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

const PRODUCERS: usize = 32;
const CONSUMERS: usize = 32;
const EACH: usize = 9;

/// Starts `PRODUCERS` tasks that publish `EACH` jobs each, one at a time and in batches, and return them.
fn producers(s: &dyn Stage, q: &Queue) -> JoinSet<Vec<NewJob>> {
    let mut tasks = JoinSet::new();
    for producer in 0..PRODUCERS {
        let draft = |i| job(q, format!("{producer}/{i}")).tries(3).make(s);
        let mut jobs: Vec<NewJob> = (0..EACH).map(draft).collect();
        let (engine, renames) = (s.engine(), s.differences().renames);
        tasks.spawn(async move {
            for batch in jobs.chunks_mut(1 + producer % 4) {
                publish(&*engine, batch, renames).await;
            }
            jobs
        });
    }
    tasks
}

/// Consumes until the producers are done and nothing is ready. Returns its first `leaves` deliveries to the queue, like a
/// client that disconnects, acks the rest, and returns those.
async fn consumer(
    engine: Arc<dyn Engine>,
    q: Queue,
    count: u16,
    mut leaves: usize,
    done: Arc<AtomicBool>,
) -> Vec<Job> {
    let (queues, mut finished) = (q.into(), Vec::new());
    loop {
        let last = done.load(Ordering::SeqCst);
        let jobs = ok("consume", consume(&*engine, &queues, &vec![LONG; count.into()]).await);
        if jobs.is_empty() {
            if last {
                return finished;
            }
            tokio::task::yield_now().await;
        } else if leaves > 0 {
            leaves -= 1;
            assert!(jobs.iter().all(|job| job.tries_left == 2), "give_back restores the try: {jobs:?}");
            ok("give_back", engine.give_back(jobs).await);
        } else {
            for job in &jobs {
                ok("ack", engine.ack_job(job.name()).await);
            }
            finished.extend(jobs);
        }
    }
}

/// Waits for the producers, then for the consumers. Returns the producers' results and the finished jobs.
async fn finish<P: 'static>(
    mut from: JoinSet<P>,
    mut to: JoinSet<Vec<Job>>,
    done: Arc<AtomicBool>,
) -> (Vec<P>, Vec<Job>) {
    let mut produced = Vec::new();
    while let Some(end) = from.join_next().await {
        produced.push(end.expect("a producer does not panic"));
    }
    done.store(true, Ordering::SeqCst);
    let mut finished = Vec::new();
    while let Some(end) = to.join_next().await {
        finished.extend(end.expect("a consumer does not panic"));
    }
    (produced, finished)
}

fn each_exactly_once(published: &[NewJob], finished: &[Job]) {
    let mut seen: BTreeMap<_, usize> = published.iter().map(|job| (job.id, 0)).collect();
    for job in finished {
        *seen.entry(job.id).or_default() += 1;
    }
    let lost: Vec<_> = seen.iter().filter(|(_, n)| **n == 0).collect();
    let doubled: Vec<_> = seen.iter().filter(|(_, n)| **n > 1).collect();
    assert!(lost.is_empty() && doubled.is_empty(), "lost {lost:?}, handed out more than once {doubled:?}");
}

/// Guards against jobs lost or duplicated between tasks that publish, consume and ack at the same time.
pub async fn every_job_is_handed_out_exactly_once(s: &dyn Stage) {
    let q = queue("q");
    let done = Arc::new(AtomicBool::new(false));
    let from = producers(s, &q);
    let mut to = JoinSet::new();
    for i in 0..CONSUMERS {
        to.spawn(consumer(s.engine(), q.clone(), 1 + i as u16 % 3, 0, done.clone()));
    }
    let (published, finished) = finish(from, to, done).await;
    each_exactly_once(&published.concat(), &finished);
    s.pump().await;
    assert_eq!(s.drain(&q).await, [""; 0], "all are acked");
    let timers = ok("stats", s.engine().stats().await).timers;
    assert!(timers == 0 || !s.differences().exact_sizes, "{timers} timers are left of acked jobs");
}

/// Guards against two calls that read the same head.
pub async fn consumers_of_one_call_each_share_without_overlap(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put_all((0..64).map(|i| job(&q, i.to_string()))).await;
    let mut calls = JoinSet::new();
    for _ in 0..80 {
        let (engine, queues) = (s.engine(), q.clone().into());
        calls.spawn(async move { ok("consume", consume(&*engine, &queues, &[LONG]).await) });
    }
    let mut got = Vec::new();
    while let Some(jobs) = calls.join_next().await {
        got.extend(jobs.expect("consume does not panic"));
    }
    each_exactly_once(&new, &got);
}

/// Guards against jobs lost or duplicated when consumers disconnect while others connect.
pub async fn jobs_given_back_under_load_are_not_lost(s: &dyn Stage) {
    let q = queue("q");
    let done = Arc::new(AtomicBool::new(false));
    let from = producers(s, &q);
    let mut to = JoinSet::new();
    for i in 0..CONSUMERS {
        to.spawn(consumer(s.engine(), q.clone(), 1 + i as u16 % 3, i, done.clone()));
    }
    let (published, mut finished) = finish(from, to, done).await;
    let published = published.concat();
    // Jobs returned just after the last consumers saw an empty queue are still there.
    for _ in 0..published.len() {
        finished.extend(s.take(&q, 100, LONG).await);
    }
    each_exactly_once(&published, &finished);
}

/// Guards against jobs lost or duplicated while pumps of several servers move them.
pub async fn a_pump_under_load_loses_nothing(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put_all((0..300).map(|i| job(&q, i.to_string()).delay(SHORT))).await;
    s.advance(SHORT).await;
    let done = Arc::new(AtomicBool::new(false));
    let (mut pumps, mut to) = (JoinSet::new(), JoinSet::new());
    for _ in 0..4 {
        let engine = s.engine();
        pumps.spawn(async move {
            for _ in 0..50 {
                ok("pump", engine.pump().await);
            }
        });
    }
    for i in 0..8 {
        to.spawn(consumer(s.engine(), q.clone(), 1 + i % 5, 0, done.clone()));
    }
    let (_, mut finished) = finish(pumps, to, done).await;
    s.pump().await;
    finished.extend(s.take(&q, 100, LONG).await);
    each_exactly_once(&new, &finished);
}
