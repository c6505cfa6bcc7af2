//! Queues that the configuration spreads over all partitions of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dormouse::engine::redis::{RedisEngine, RedisOptions, SpreadRules};
use dormouse::engine::{
    By, Detail, Engine, How, JobList, Listing, OnConflict, Once, Placed, Placing, Publication, Published,
    Respawn, SizeOf,
};
use dormouse::error::{Error, Result, Unreachable};
use dormouse::job::{Attributes, Job, JobId, JobIds, JobRef, JobState, NewJob};
use dormouse::name::{IdempotencyKey, JobKey, PoolName, Queue};

use crate::common::{TTR, calls_of_nodes, queue, within};
use crate::support::engine_ext::EngineExt;
use crate::support::notified::Notified;
use crate::support::redis_cluster::RedisCluster;
use crate::support::wait::until;

const PARTITIONS: u16 = 8;

async fn open(cluster: &RedisCluster, spread: &[&str]) -> Arc<RedisEngine> {
    let spread = SpreadRules(spread.iter().map(|pattern| (*pattern).to_owned()).collect());
    let options =
        RedisOptions { prefix: "p".into(), partitions: PARTITIONS, spread, ..RedisOptions::default() };
    let engine = RedisEngine::connect_with(cluster.address(), &PoolName::default_pool(), &options).await;
    engine.expect("the cluster is there")
}

fn new_job(engine: &RedisEngine, queue: &Queue, body: &str) -> NewJob {
    NewJob {
        queue: queue.clone(),
        id: engine.make_id(&JobIds::default(), queue, Duration::ZERO, false),
        body: body.to_owned().into(),
        attributes: Attributes::new(),
        ttl: None,
        delay: Duration::ZERO,
        tries: NonZeroU16::new(2).expect("not 0"),
    }
}

async fn put(engine: &RedisEngine, queue: &Queue, body: &str) -> Result<JobId> {
    placed(engine.publish(vec![new_job(engine, queue, body)].into()).await?)
        .pop()
        .map(|of| of.id)
        .ok_or(Error::Closed)
}

#[track_caller]
fn placed(published: Published) -> Vec<Placed> {
    match published {
        Published::Done(placed) | Published::Replay(placed) => placed,
        other => panic!("it should be stored: {other:?}"),
    }
}

fn keyed(engine: &RedisEngine, queue: &Queue, key: &str, conflict: OnConflict) -> Placing {
    let key = JobKey::parse(key).expect("a key");
    Placing { job: new_job(engine, queue, key.as_str()), at: None, key: Some((key, conflict)) }
}

async fn place(engine: &RedisEngine, jobs: Vec<Placing>) -> Result<Vec<Placed>> {
    Ok(placed(engine.publish(Publication { jobs, replaces: None, once: None }).await?))
}

/// Consumes until there are jobs, or nothing is left open.
async fn take(engine: &RedisEngine, queue: &Queue, count: usize) -> Result<Vec<Job>> {
    loop {
        let consumed = engine.consume(&queue.clone().into(), &vec![TTR; count]).await?;
        if !consumed.jobs.is_empty() || !consumed.more {
            return Ok(consumed.jobs);
        }
    }
}

/// Consumes and acks all ready jobs, and returns their bodies.
async fn drain(engine: &RedisEngine, queue: &Queue) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let jobs = take(engine, queue, 64).await.expect("every partition is there");
        if jobs.is_empty() {
            return bodies;
        }
        for job in jobs {
            bodies.push(text(&job));
            engine.ack_job(JobRef { queue: job.queue, id: job.id }).await.expect("acked");
        }
    }
}

fn text(job: &Job) -> String {
    String::from_utf8_lossy(&job.body).into_owned()
}

/// Returns the partition in an id: the middle ones of the 48 bits that distinguish ids of the same millisecond.
fn partition_of(id: &JobId) -> u16 {
    let bytes = id.to_bytes();
    (u16::from_be_bytes([bytes[9], bytes[10]]) >> 4) % PARTITIONS
}

fn slot_of(partition: u16) -> u16 {
    let part = 16_384 / PARTITIONS;
    partition * part + part / 2
}

/// Guards against jobs that some calls find and others do not.
#[tokio::test]
async fn a_spread_queue_uses_every_partition_and_every_call_finds_its_jobs() {
    let cluster = RedisCluster::start();
    let (engine, q) = (open(&cluster, &["*/*"]).await, queue("q"));
    let mut by_partition: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    let mut ids = Vec::new();
    for n in 0..40 {
        let id = put(&engine, &q, &n.to_string()).await.expect("published");
        by_partition.entry(partition_of(&id)).or_default().push(n.to_string());
        ids.push(id);
    }
    assert_eq!(by_partition.len(), usize::from(PARTITIONS), "partitions with jobs: {by_partition:?}");
    assert_eq!(engine.size(&q, SizeOf::Ready).await.expect("sized").jobs, 40);
    for id in &ids {
        let found = engine.inspect(&q, By::Id(*id), Detail::All).await.expect("inspected");
        assert_eq!(found.and_then(|job| job.state), Some(JobState::Ready), "{id}");
    }
    let (mut listed, mut cursor) = (BTreeSet::new(), None);
    loop {
        let list = JobList { state: JobState::Ready, limit: 7, cursor, bodies: false };
        let page = engine.list_jobs(&q, list).await.expect("listed").expect("its own cursor");
        for job in page.jobs {
            assert!(listed.insert(job.id), "{} is listed twice", job.id);
        }
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(listed, ids.iter().copied().collect(), "a list is complete");
    engine.ack_job(JobRef { queue: q.clone(), id: ids[0] }).await.expect("acked");

    let mut came: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for _ in 0..39 {
        let job = take(&engine, &q, 1).await.expect("consumed").pop().expect("there is one");
        came.entry(partition_of(&job.id)).or_default().push(text(&job));
        let most = came.values().map(Vec::len).max().unwrap_or(0);
        let least = by_partition.keys().map(|of| came.get(of).map_or(0, Vec::len)).min().unwrap_or(0);
        assert!(most - least <= 2, "backlogs drain evenly: {came:?}");
    }
    by_partition.values_mut().for_each(|of| of.retain(|body| body != "0"));
    assert_eq!(came, by_partition, "each partition is first in, first out");
    assert!(take(&engine, &q, 1).await.expect("consumed").is_empty(), "nothing is left");
    let stats = engine.stats().await.expect("stats");
    assert_eq!(stats.queues.iter().filter(|of| of.queue == q).count(), 1, "one queue: {:?}", stats.queues);
}

/// Guards against two jobs with the same job key, and against a request executed twice, through two servers.
#[tokio::test]
async fn what_is_to_be_compared_shares_a_partition() {
    let cluster = RedisCluster::start();
    let (a, b, q) = (open(&cluster, &["*/*"]).await, open(&cluster, &["*/*"]).await, queue("q"));
    for n in 0..8 {
        let key = format!("k{n}");
        let first = place(&a, vec![keyed(&a, &q, &key, OnConflict::Keep)]).await.expect("published");
        let again = place(&b, vec![keyed(&b, &q, &key, OnConflict::Keep)]).await.expect("published");
        assert_eq!((again[0].id, again[0].how), (first[0].id, How::Duplicate), "{key}");
        let replaced = place(&b, vec![keyed(&b, &q, &key, OnConflict::Replace)]).await.expect("published");
        assert_eq!(replaced[0].how, How::Replaced(first[0].id), "{key}");
        let found = a.inspect(&q, By::Key(&JobKey::parse(&key).expect("a key")), Detail::All).await;
        assert_eq!(found.expect("inspected").map(|job| job.id), Some(replaced[0].id), "{key}");
    }
    for n in 0..8_u8 {
        let once = Once::request(IdempotencyKey::new(&[b'r', n]).expect("a key"), [n; 16]);
        let publish = |engine: Arc<RedisEngine>, fingerprint| {
            let once = Some(Once { fingerprint, ..once.clone() });
            let jobs = vec![new_job(&engine, &q, "once").into()];
            async move { engine.publish(Publication { jobs, replaces: None, once }).await.expect("answered") }
        };
        let Published::Done(first) = publish(a.clone(), [n; 16]).await else { panic!("it is the first one") };
        assert_eq!(publish(b.clone(), [n; 16]).await, Published::Replay(first), "request {n}");
        assert_eq!(publish(b.clone(), [n + 1; 16]).await, Published::Mismatch, "another body");
    }
    let old = put(&a, &q, "old").await.expect("published");
    let jobs = vec![new_job(&b, &q, "new").into()];
    let replaces = Some(JobRef { queue: q.clone(), id: old });
    let new = placed(b.publish(Publication { jobs, replaces, once: None }).await.expect("published"));
    assert_eq!(partition_of(&new[0].id), partition_of(&old), "a republish goes where the old job is");
    let mut bodies = drain(&a, &q).await;
    bodies.sort_unstable();
    assert_eq!(bodies.iter().filter(|body| *body == "once").count(), 8);
    assert!(bodies.contains(&"new".to_owned()) && !bodies.contains(&"old".to_owned()), "{bodies:?}");
    assert_eq!(bodies.len(), 17, "eight keys, eight requests and one more: {bodies:?}");
}

#[tokio::test]
async fn a_batch_goes_to_one_partition_and_one_with_several_keys_part_by_part() {
    let cluster = RedisCluster::start();
    let (engine, q) = (open(&cluster, &["*/*"]).await, queue("q"));
    let jobs: Vec<NewJob> = (0..16).map(|n| new_job(&engine, &q, &n.to_string())).collect();
    let all = placed(engine.publish(jobs.into()).await.expect("published"));
    let partitions: BTreeSet<u16> = all.iter().map(|of| partition_of(&of.id)).collect();
    assert_eq!(partitions.len(), 1, "a batch without keys is in one partition");
    let in_order: Vec<String> = (0..16).map(|n| n.to_string()).collect();
    assert_eq!(drain(&engine, &q).await, in_order);

    let keys = |conflict| (0..16).map(|n| keyed(&engine, &q, &format!("k{n}"), conflict)).collect::<Vec<_>>();
    let refused = place(&engine, keys(OnConflict::Fail)).await;
    assert!(matches!(refused, Err(Error::SeveralPartitions)), "it cannot be all or nothing: {refused:?}");
    assert!(drain(&engine, &q).await.is_empty(), "nothing was stored");
    let all = place(&engine, keys(OnConflict::Keep)).await.expect("published");
    let partitions: BTreeSet<u16> = all.iter().map(|of| partition_of(&of.id)).collect();
    assert!(all.len() == 16 && partitions.len() > 1, "{partitions:?}");
    assert!(
        place(&engine, keys(OnConflict::Keep))
            .await
            .expect("again")
            .iter()
            .all(|of| of.how == How::Duplicate)
    );
}

/// Guards against acks without an effect while servers are restarted with a configuration that spreads a queue no longer.
#[tokio::test]
async fn jobs_of_a_server_that_still_spreads_are_found_by_one_that_does_not() {
    let cluster = RedisCluster::start();
    let q = queue("q");
    let (spread, home) = (open(&cluster, &["*/*"]).await, open(&cluster, &[]).await);
    let job = |id: JobId| JobRef { queue: q.clone(), id };
    for n in 0..32 {
        put(&spread, &q, &format!("{n}")).await.expect("published");
    }
    let mut taken = take(&spread, &q, 32).await.expect("every partition is there");
    assert_eq!(taken.len(), 32, "jobs consumed");
    let many: Vec<_> = taken.drain(..8).map(|job| (job.id, None)).collect();
    assert_eq!(home.ack(&q, &many).await.expect("acked"), [], "stale receipts");
    let mut gone: Vec<JobId> = many.iter().map(|(id, _)| *id).collect();
    for of in taken.drain(..8) {
        home.ack_job(job(of.id)).await.expect("acked");
        gone.push(of.id);
    }
    for of in taken.drain(..8) {
        let replaces = Some(job(of.id));
        let jobs = vec![new_job(&home, &q, "replaces").into()];
        placed(home.publish(Publication { jobs, replaces, once: None }).await.expect("published"));
        gone.push(of.id);
    }
    for id in gone {
        let left = spread.inspect(&q, By::Id(id), Detail::Stored).await.expect("inspected");
        assert_eq!(left.map(|job| job.id), None, "a job that was acked or replaced");
    }
    for of in taken {
        let found = home.inspect(&q, By::Id(of.id), Detail::Stored).await.expect("inspected");
        assert_eq!(found.map(|job| job.id), Some(of.id), "a running job");
    }
    spread.close().await;
    home.close().await;
}

/// Guards against stranded jobs when the configuration starts or stops spreading a queue between two starts.
#[tokio::test]
async fn a_queue_that_the_configuration_starts_or_stops_spreading_keeps_its_jobs() {
    let cluster = RedisCluster::start();
    let q = queue("q");
    let (mut all, mut ids) = (BTreeSet::new(), Vec::new());
    let home = open(&cluster, &[]).await;
    for n in 0..8 {
        ids.push(put(&home, &q, &format!("home {n}")).await.expect("published"));
        all.insert(format!("home {n}"));
    }
    home.close().await;
    let spread = open(&cluster, &["*/*"]).await;
    for n in 0..24 {
        put(&spread, &q, &format!("spread {n}")).await.expect("published");
        all.insert(format!("spread {n}"));
    }
    let job = NewJob { delay: Duration::from_millis(50), ..new_job(&spread, &q, "delayed") };
    spread.publish(vec![job].into()).await.expect("published");
    all.insert("delayed".into());
    spread.ack_job(JobRef { queue: q.clone(), id: ids[0] }).await.expect("acked");
    all.remove("home 0");
    spread.close().await;

    let home = open(&cluster, &[]).await;
    put(&home, &q, "at home again").await.expect("published");
    all.insert("at home again".into());
    assert_eq!(
        home.size(&q, SizeOf::Ready).await.expect("sized").jobs as usize,
        all.len(),
        "all are counted but the delayed one; the acked one is until a consume passes it"
    );
    let mut came = BTreeSet::new();
    until("the delayed one has come", async || {
        home.pump().await.expect("pumped");
        came.extend(drain(&home, &q).await);
        came.contains("delayed")
    })
    .await;
    assert_eq!(came, all, "what was published in any configuration");
    home.close().await;
    // The lists in the other partitions are empty by now, so the queue is no longer scattered.
    let home = open(&cluster, &[]).await;
    put(&home, &q, "last").await.expect("published");
    assert_eq!(drain(&home, &q).await, ["last"]);
}

/// Guards against a lost wake-up when another server publishes a job to any partition.
#[tokio::test]
async fn a_consumer_is_told_of_a_job_in_any_partition() {
    let cluster = RedisCluster::start();
    let (a, b, q) = (open(&cluster, &["*/*"]).await, open(&cluster, &["*/*"]).await, queue("q"));
    let waits = Notified::attach(&*b, std::slice::from_ref(&q));
    let mut partitions = BTreeSet::new();
    for n in 0..24 {
        assert!(take(&b, &q, 1).await.expect("consumed").is_empty(), "nothing before job {n}");
        partitions.insert(partition_of(&put(&a, &q, &n.to_string()).await.expect("published")));
        let mut jobs = Vec::new();
        within("it is told", async {
            while jobs.is_empty() {
                waits.next().await;
                jobs = take(&b, &q, 1).await.expect("consumed");
            }
        })
        .await;
        b.ack_job(JobRef { queue: q.clone(), id: jobs[0].id }).await.expect("acked");
    }
    assert_eq!(partitions.len(), usize::from(PARTITIONS), "partitions with a job");
}

/// Guards against a read of all partitions after each job.
#[tokio::test]
async fn a_consume_of_a_watched_queue_reads_only_partitions_that_may_have_jobs() {
    let cluster = RedisCluster::start();
    let (engine, q) = (open(&cluster, &["*/*"]).await, queue("q"));
    let _waits = Notified::attach(&*engine, std::slice::from_ref(&q));
    assert!(take(&engine, &q, 4).await.expect("consumed").is_empty(), "nothing yet");
    let list = q.clone().into();
    for n in 0..24 {
        put(&engine, &q, &n.to_string()).await.expect("published");
        let consumed = engine.consume(&list, &[TTR; 4]).await.expect("consumed");
        let open = (consumed.jobs.len(), consumed.more, consumed.notifies);
        assert_eq!(open, (1, true, true), "jobs, more, and notifies, of job {n}");
    }
    // The dispatcher consumes again for notices that came during the last consume, which has followed them.
    calls_of_nodes(&cluster, "exists");
    let consumed = engine.consume(&list, &[TTR; 4]).await.expect("consumed");
    let open = (consumed.jobs.len(), consumed.more, consumed.notifies);
    assert_eq!(open, (0, true, true), "jobs, more, and notifies, without a notice");
    assert_eq!(calls_of_nodes(&cluster, "exists"), 0, "partitions read by it");
    let consumed = engine.consume(&list, &[TTR; 4]).await.expect("consumed");
    assert_eq!((consumed.jobs.len(), consumed.more), (0, false), "the next one reads all partitions");
    assert!(take(&engine, &q, 4).await.expect("consumed").is_empty(), "all partitions are empty");
}

/// Guards against a batch that is smaller than it could be, because other servers' jobs are not noticed.
#[tokio::test]
async fn a_consume_of_a_queue_that_is_not_watched_reads_all_partitions() {
    let cluster = RedisCluster::start();
    let (a, b, q) = (open(&cluster, &["*/*"]).await, open(&cluster, &["*/*"]).await, queue("q"));
    assert!(take(&b, &q, 4).await.expect("consumed").is_empty(), "nothing yet");
    for n in 0..16 {
        put(&a, &q, &n.to_string()).await.expect("published");
    }
    put(&b, &q, "16").await.expect("published");
    let consumed = b.consume(&q.clone().into(), &[TTR; 32]).await.expect("consumed");
    assert_eq!((consumed.jobs.len(), consumed.more), (17, false), "the jobs of both servers");
}

/// Guards against a publish that waits for one partition although another could take it, and against a blocked
/// partition that delays the jobs of the others.
#[tokio::test]
async fn while_a_slot_migrates_publishes_go_elsewhere_and_the_others_are_consumed() {
    let cluster = RedisCluster::start();
    let (engine, q) = (open(&cluster, &["*/*"]).await, queue("q"));
    let stuck = put(&engine, &q, "stuck").await.expect("published");
    let slot = slot_of(partition_of(&stuck));
    let to = (cluster.master_of(slot).0 + 1) % 3;
    cluster.begin_move(slot, to);
    let mut stored = BTreeSet::new();
    within("publishes do not wait", async {
        for n in 0..24 {
            let id = put(&engine, &q, &n.to_string()).await.expect("another partition takes it");
            assert_ne!(partition_of(&id), partition_of(&stuck), "job {n}");
            stored.insert(n.to_string());
        }
    })
    .await;
    let mut came = BTreeSet::new();
    while came.len() < stored.len() {
        for job in take(&engine, &q, 64).await.expect("the others have jobs") {
            came.insert(text(&job));
            engine.ack_job(JobRef { queue: q.clone(), id: job.id }).await.expect("acked");
        }
    }
    assert_eq!(came, stored);
    let nothing = take(&engine, &q, 1).await;
    let unseen = matches!(&nothing, Err(Error::Unseen(Unreachable::Moving, of)) if *of == [q.clone()]);
    assert!(unseen, "nobody can say that there is nothing: {nothing:?}");
    cluster.move_keys(slot, to, 1);
    cluster.end_move(slot, to);
    until("the slot has moved", async || take(&engine, &q, 1).await.is_ok_and(|jobs| !jobs.is_empty())).await;
}

/// Guards against publishers that all wait for one hung node, although others could take their jobs; and against jobs of
/// publishes that have failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_learn_within_a_second_that_a_node_hangs() {
    // Without replicas, so that no failover ends the outage.
    let cluster = RedisCluster::start_of(3, 0).quick();
    let (engine, q) = (open(&cluster, &["*/*"]).await, queue("q"));
    put(&engine, &q, "before").await.expect("published");
    let stalled = cluster.servers[1].stall();
    let failures = Arc::new(AtomicUsize::new(0));
    let publishers: Vec<_> = (0..8)
        .map(|n| {
            let (engine, q, failures) = (engine.clone(), q.clone(), failures.clone());
            tokio::spawn(async move {
                let (mut stored, mut longest) = (Vec::new(), Duration::ZERO);
                // Until one has met the hung node, and this one publishes again.
                for i in 0.. {
                    let (body, began, failed_before) =
                        (format!("{n} {i}"), Instant::now(), failures.load(Ordering::SeqCst));
                    let published = put(&engine, &q, &body).await;
                    longest = longest.max(began.elapsed());
                    match published {
                        Ok(_) if failed_before > 0 => {
                            stored.push(body);
                            break;
                        }
                        Ok(_) => stored.push(body),
                        Err(Error::Away(_)) => _ = failures.fetch_add(1, Ordering::SeqCst),
                        Err(error) => panic!("{error:?}, after {:?}", began.elapsed()),
                    }
                }
                (stored, longest)
            })
        })
        .collect();
    let mut stored = vec!["before".to_owned()];
    for publisher in publishers {
        let (of, longest) = publisher.await.expect("no panic");
        stored.extend(of);
        // The bound for other calls is five seconds.
        assert!(longest < Duration::from_secs(3), "a publish took {longest:?}");
    }
    drop(stalled);
    cluster.agree();
    until("every partition is there", async || take(&engine, &queue("none"), 1).await.is_ok()).await;
    let mut came = drain(&engine, &q).await;
    came.sort_unstable();
    stored.sort_unstable();
    assert_eq!(came, stored, "left: what is delivered, right: what was answered as stored");
}

/// Guards against dead jobs in partitions that are not read.
#[tokio::test]
async fn the_dead_letter_of_a_spread_queue_is_that_of_all_partitions() {
    let cluster = RedisCluster::start();
    let (engine, q) = (open(&cluster, &["*/*"]).await, queue("q"));
    for n in 0..16 {
        put(&engine, &q, &n.to_string()).await.expect("published");
    }
    let mut dead = 0;
    while dead < 16 {
        for job in take(&engine, &q, 16).await.expect("consumed") {
            let of = JobRef { queue: q.clone(), id: job.id };
            engine.bury(&of, job.proof(), None).await.expect("buried");
            dead += 1;
        }
    }
    assert_eq!(engine.size(&q, SizeOf::Dead).await.expect("sized").jobs, 16);
    let respawned = engine.respawn(&q, Respawn::Oldest { limit: 10, ttl: None }).await.expect("respawned");
    assert_eq!(respawned.count, 10);
    assert_eq!(engine.delete_dead(&q, 4).await.expect("deleted"), 4);
    assert_eq!(engine.size(&q, SizeOf::Dead).await.expect("sized").jobs, 2);
    assert_eq!(engine.size(&q, SizeOf::Ready).await.expect("sized").jobs, 10);
    engine.destroy(&q, Listing::Keep).await.expect("destroyed");
    assert_eq!(engine.size(&q, SizeOf::Ready).await.expect("sized").jobs, 0);
}
