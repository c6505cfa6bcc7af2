//! `WaitReplicas`: a successful reply means that replicas have the write; and calls while replicas lag.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse::engine::redis::{RedisAddress, RedisEngine, RedisOptions, SpreadRules};
use dormouse::engine::{Engine, JobList, Once, Publication, Published};
use dormouse::error::{Error, Result, Unreachable};
use dormouse::job::{Attributes, Job, JobIds, JobRef, JobState, NewJob};
use dormouse::name::{IdempotencyKey, JobKey, PoolName, Queue};

use crate::common::{TTR, queue};
use crate::support::engine_ext::EngineExt;
use crate::support::redis_cluster::{NODE_TIMEOUT, RedisCluster, STEADY_TIMEOUT};
use crate::support::redis_cluster_bus::PartedCluster;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;

async fn open(address: RedisAddress, prefix: &str, wait_replicas: u16) -> Arc<RedisEngine> {
    open_with(address, prefix, wait_replicas, SpreadRules::default()).await
}

async fn open_with(
    address: RedisAddress,
    prefix: &str,
    wait_replicas: u16,
    spread: SpreadRules,
) -> Arc<RedisEngine> {
    let options = RedisOptions {
        prefix: prefix.into(),
        partitions: 8,
        wait_replicas,
        spread,
        ..RedisOptions::default()
    };
    RedisEngine::connect_with(address, &PoolName::default_pool(), &options).await.expect("it is there")
}

fn job(engine: &RedisEngine, queue: &Queue, body: &str) -> NewJob {
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

async fn put(engine: &RedisEngine, queue: &Queue, body: &str) -> Result<()> {
    engine.publish(vec![job(engine, queue, body)].into()).await.map(drop)
}

async fn take(engine: &RedisEngine, queue: &Queue) -> Result<Vec<Job>> {
    Ok(engine.consume(&queue.clone().into(), &[TTR; 64]).await?.jobs)
}

async fn ack(engine: &RedisEngine, job: &Job) -> Result<()> {
    engine.ack_job(JobRef { queue: job.queue.clone(), id: job.id }).await
}

fn bodies(jobs: &[Job]) -> Vec<String> {
    jobs.iter().map(|job| String::from_utf8_lossy(&job.body).into_owned()).collect()
}

fn too_few<T: std::fmt::Debug>(answer: Result<T>) {
    assert!(matches!(answer, Err(Error::Unreachable(Unreachable::FewReplicas))), "{answer:?}");
}

/// Guards against a hanging replica that makes every call wait, and against a stopped replica that goes unnoticed.
#[tokio::test]
async fn while_replicas_lag_nothing_is_answered_that_they_do_not_have() {
    let master = RedisServer::start_with(None, &["--repl-diskless-sync-delay", "0"]);
    let (safe, queue) = (open(master.address(), "p", 1).await, queue("q"));
    too_few(put(&safe, &queue, "nobody has it").await);
    assert_eq!(take(&safe, &queue).await.expect("hand-overs do not wait").len(), 0, "nothing was done");

    let replica = RedisServer::start_with(None, &["--replicaof", "127.0.0.1", &master.port.to_string()]);
    until("the replica is in step", async || put(&safe, &queue, "first").await.is_ok()).await;
    let jobs = take(&safe, &queue).await.expect("they are there");
    let mut fastest = Duration::MAX;
    for job in jobs.iter().cycle().take(5) {
        let began = Instant::now();
        ack(&safe, job).await.expect("it is in step");
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_millis(900), "it answers when the replica has it: {fastest:?}");

    let stalled = replica.stall();
    let began = Instant::now();
    let unsure = put(&safe, &queue, "second").await;
    assert!(matches!(unsure, Err(Error::Away(_))), "it may be lost: {unsure:?}");
    assert!(began.elapsed() >= Duration::from_millis(900), "it was waited for");
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let began = Instant::now();
        too_few(put(&safe, &queue, "third").await);
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_millis(900), "it is known to hang: {fastest:?}");
    let jobs = take(&safe, &queue).await.expect("hand-overs do not wait");
    assert_eq!(bodies(&jobs), ["second"], "it was stored, and the third was not");
    too_few(ack(&safe, &jobs[0]).await);
    drop(stalled);
    until("the replica has caught up", async || ack(&safe, &jobs[0]).await.is_ok()).await;
    put(&safe, &queue, "fourth").await.expect("it is in step");
}

/// Guards against replying to a repeated request while no replica has the first request's write: a failover would undo
/// a confirmed publish.
#[tokio::test]
async fn a_replay_is_answered_once_replicas_have_it() {
    let master = RedisServer::start_with(None, &["--repl-diskless-sync-delay", "0"]);
    let replica = RedisServer::start_with(None, &["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let (first, other) = (open(master.address(), "p", 1).await, open(master.address(), "p", 1).await);
    let queue = queue("q");
    until("the replica is in step", async || {
        put(&first, &queue, "x").await.is_ok() && put(&other, &queue, "x").await.is_ok()
    })
    .await;
    let once = Once::request(IdempotencyKey::new(b"once").expect("a key"), [1; 16]);
    let stalled = replica.stall();
    let jobs = vec![job(&first, &queue, "repeated").into()];
    let unsure = first.publish(Publication { jobs, replaces: None, once: Some(once.clone()) }).await;
    assert!(matches!(unsure, Err(Error::Away(_))), "it is stored, and its replica has nothing: {unsure:?}");
    let replay = other.recall(&queue, &once).await;
    assert!(replay.is_err(), "a failover may forget it: {replay:?}");
    drop(stalled);
    until("the replica has caught up", async || {
        matches!(other.recall(&queue, &once).await, Ok(Some(Published::Replay(_))))
    })
    .await;
}

/// Guards against the same on Redis 7.2 or later, where WAIT only covers the last write of its connection: a repeated
/// request finds nothing to write.
#[tokio::test]
async fn what_finds_that_all_is_done_writes_before_it_waits() {
    let master = RedisServer::start_with(None, &["--repl-diskless-sync-delay", "0"]);
    let _replica = RedisServer::start_with(None, &["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let (engine, queue) = (open(master.address(), "p", 1).await, queue("q"));
    until("the replica is in step", async || put(&engine, &queue, "x").await.is_ok()).await;
    let once = Once::request(IdempotencyKey::new(b"once").expect("a key"), [1; 16]);
    let repeat = async || {
        let jobs = vec![job(&engine, &queue, "once").into()];
        engine.publish(Publication { jobs, replaces: None, once: Some(once.clone()) }).await
    };
    repeat().await.expect("published");
    let acked = take(&engine, &queue).await.expect("they are there").remove(0);
    ack(&engine, &acked).await.expect("acked");
    // Steps that find nothing to do still write the mark.
    let mut redis = master.connection();
    let mut wrote = |what: &str| {
        let marks: Vec<Vec<u8>> = redis::cmd("KEYS").arg("dormouse/waited").query(&mut redis).expect("keys");
        assert_eq!(marks.len(), 1, "{what} writes in the partition of the queue");
        let _: u64 = redis::cmd("DEL").arg(&marks).query(&mut redis).expect("deleted");
    };
    wrote("what was done before");
    ack(&engine, &acked).await.expect("it is gone");
    wrote("an ack of what is gone");
    let replay = repeat().await;
    assert!(matches!(replay, Ok(Published::Replay(_))), "{replay:?}");
    wrote("a repeat");
    assert!(engine.recall(&queue, &once).await.expect("it is remembered").is_some());
    wrote("a look at what was done");
    let key = JobKey::parse("nobody").expect("a key");
    assert!(!engine.cancel_key(&queue, &key).await.expect("nobody has it"));
    wrote("the cancel of what is gone");
    assert_eq!(take(&engine, &queue).await.expect("they are there").len(), 0, "all were taken");
    let marks: Vec<Vec<u8>> = redis::cmd("KEYS").arg("dormouse/waited").query(&mut redis).expect("keys");
    assert_eq!(marks.len(), 0, "a hand-over waits for nobody");
}

/// Shows the difference that waiting makes: the replica of a killed master has not received the last publishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_outlives_its_master_if_a_replica_was_waited_for() {
    let cluster = RedisCluster::start();
    let (fast, safe) = (open(cluster.address(), "fast", 0).await, open(cluster.address(), "safe", 1).await);
    // The queue's home partition has the same slot in both pools.
    let queue = queue("q");
    let mut stored = Vec::new();
    for n in 0..20 {
        put(&fast, &queue, &n.to_string()).await.expect("published");
        put(&safe, &queue, &n.to_string()).await.expect("published");
        stored.push(n.to_string());
    }
    let acked = take(&safe, &queue).await.expect("they are there").swap_remove(0);
    ack(&safe, &acked).await.expect("acked");
    stored.retain(|body| body.as_bytes() != &acked.body[..]);
    let (master, replica) = nodes_of(&cluster);
    until("all is copied", async || cluster.is_copied(master)).await;
    let mut cluster = cluster.quick();
    let stalled = cluster.servers[replica].stall();
    cluster.tell::<u64>(master, &["CLIENT", "KILL", "TYPE", "replica"]);
    put(&fast, &queue, "answered, and lost").await.expect("published");
    put(&safe, &queue, "not answered").await.expect_err("no replica has it");
    cluster.servers[master].kill();
    drop(stalled);

    until("the replica has taken its place", async || put(&fast, &queue, "later").await.is_ok()).await;
    let mut left = bodies(&take(&fast, &queue).await.expect("they are there"));
    left.retain(|body| body != "later");
    assert_eq!(left, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "what its replica had read");
    // Calls before the pool knows of the new master may be told that the node is away, and be stored or not.
    let mut unsure = 0;
    until("the pool knows that nobody copies the new master", async || {
        match put(&safe, &queue, "nobody has it").await.expect_err("no replica has it") {
            Error::Unreachable(Unreachable::FewReplicas) => return true,
            Error::Away(_) => unsure += 1,
            _ => {}
        }
        false
    })
    .await;
    // The pool does not wait for replicas after a delivery, so earlier deliveries may be lost or stand until their ttr
    // ends. The jobs exist either way.
    let known = safe.ready(&queue).await.expect("it answers") + running(&safe, &queue).await;
    let all = stored.len() as u64;
    assert!((all..=all + unsure).contains(&known), "all of {all}, and nothing that was acked: {known}");

    assert!(cluster.servers[master].launch(), "it comes back, as a replica");
    until("there is a replica again", async || put(&safe, &queue, "again").await.is_ok()).await;
}

/// Returns the master that stores the queue `q`, and its replica.
fn nodes_of(cluster: &RedisCluster) -> (usize, usize) {
    let lists = |server: usize| {
        let keys: Vec<String> = cluster.tell(server, &["KEYS", "fast{*}q/shop/q"]);
        keys.first().cloned()
    };
    let key = (0..3).find_map(lists).expect("the ready list is on a master");
    let (master, id) = cluster.master_of(cluster.tell::<u16>(0, &["CLUSTER", "KEYSLOT", &key]));
    (master, cluster.replica_of(&id))
}

/// Guards against losing a confirmed job when a partitioned master rejoins the cluster: it accepts writes until it
/// notices the partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_master_took_that_was_cut_off_is_lost_unless_a_replica_was_waited_for() {
    let parted = PartedCluster::start();
    let cluster = &parted.cluster;
    let (fast, safe) = (open(cluster.address(), "fast", 0).await, open(cluster.address(), "safe", 1).await);
    let queue = queue("q");
    for n in 0..20 {
        put(&fast, &queue, &n.to_string()).await.expect("published");
        put(&safe, &queue, &n.to_string()).await.expect("published");
    }
    let (master, replica) = nodes_of(cluster);
    until("all is copied", async || cluster.is_copied(master)).await;
    // A stall of the machine is no failure of a node, until the master has taken some jobs.
    cluster.set_timeout(STEADY_TIMEOUT);
    let cut = Instant::now();
    parted.cut_off(&[master]);
    let unanswered = tokio::spawn({
        let (safe, queue) = (safe.clone(), queue.clone());
        async move { put(&safe, &queue, "not answered").await }
    });
    let (mut thrown_away, mut unsure) = (Vec::new(), None);
    for n in 0.. {
        let body = format!("thrown away {n}");
        let answer = put(&fast, &queue, &body).await;
        // No replica is promoted before this.
        if answer.is_err() || cut.elapsed() >= Duration::from_millis(STEADY_TIMEOUT) {
            unsure = Some(body);
            break;
        }
        thrown_away.push(body);
        if cut.elapsed() >= Duration::from_millis(NODE_TIMEOUT / 2) {
            break;
        }
    }
    cluster.set_timeout(NODE_TIMEOUT);
    unanswered.await.expect("it does not panic").expect_err("no replica has it");
    until("the replica takes its place", async || {
        cluster.tell::<String>(replica, &["INFO", "replication"]).contains("role:master")
    })
    .await;
    until("servers know", async || put(&fast, &queue, "later").await.is_ok()).await;
    parted.join();
    cluster.agree();
    println!("{} jobs were answered and are lost, as is documented", thrown_away.len());
    let mut left = bodies(&take(&fast, &queue).await.expect("they are there"));
    left.retain(|body| body != "later" && Some(body) != unsure.as_ref());
    assert_eq!(left, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "what its replica had read");
    assert!(!thrown_away.is_empty(), "some were lost");
    assert_eq!(safe.ready(&queue).await.expect("it answers"), 20, "nothing that was answered");
    until("it is a replica", async || put(&safe, &queue, "again").await.is_ok()).await;
}

async fn running(engine: &RedisEngine, queue: &Queue) -> u64 {
    let list = JobList { state: JobState::Running, limit: 100, cursor: None, bodies: false };
    let page = engine.list_jobs(queue, list).await.expect("it answers").expect("there is no cursor");
    page.jobs.len() as u64
}

/// Returns the slot of the home partition of a queue.
fn slot_of(engine: &RedisEngine, queue: &Queue) -> u16 {
    let bytes = job(engine, queue, "").id.to_bytes();
    (u16::from_be_bytes([bytes[9], bytes[10]]) >> 4) * 2048 + 1024
}

/// Guards against a hanging replica that stops queues on other masters, and against confirmed jobs that are lost
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_hangs_stops_the_part_of_its_master_alone() {
    let cluster = RedisCluster::start();
    let rules = SpreadRules(vec!["*/all".into()]);
    let engine = open_with(cluster.address(), "p", 1, rules).await;
    let on_first = |queue: &Queue| cluster.master_of(slot_of(&engine, queue)).0 == 0;
    let find = |there: bool| (0..).map(|n| queue(&format!("q{n}"))).find(|queue| on_first(queue) == there);
    let (here, elsewhere) = (find(true).expect("there is one"), find(false).expect("there is one"));
    let queues = [queue("all"), here, elsewhere];
    until("replicas are in step", async || {
        let mut well = true;
        for queue in &queues {
            well &= put(&engine, queue, "before").await.is_ok();
        }
        well
    })
    .await;
    for queue in &queues {
        for job in take(&engine, queue).await.expect("they are there") {
            ack(&engine, &job).await.expect("acked");
        }
    }
    let id: String = cluster.tell(0, &["CLUSTER", "MYID"]);
    let stalled = cluster.servers[cluster.replica_of(&id)].stall();
    let hung = Instant::now();
    // Per queue: confirmed jobs, jobs that may be stored, calls that did nothing, and the longest call.
    let calls = queues.each_ref().map(|queue| {
        let (engine, queue) = (engine.clone(), queue.clone());
        tokio::spawn(async move {
            let (mut stored, mut unsure, mut few) = (Vec::new(), Vec::new(), 0);
            let (mut taken, mut longest) = (Vec::new(), Duration::ZERO);
            for n in 0_u64.. {
                if hung.elapsed() > Duration::from_secs(5) {
                    break;
                }
                let (body, began) = (n.to_string(), Instant::now());
                match put(&engine, &queue, &body).await {
                    Ok(()) => stored.push(body),
                    Err(Error::Away(_)) => unsure.push(body),
                    Err(Error::Unreachable(Unreachable::FewReplicas)) => few += 1,
                    Err(error) => panic!("{queue}: {error}"),
                }
                longest = longest.max(began.elapsed());
                taken.extend(bodies(&take(&engine, &queue).await.expect("hand-overs do not wait")));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            (stored, unsure, few, taken, longest)
        })
    });
    let mut told = Vec::new();
    for call in calls {
        told.push(call.await.expect("it does not panic"));
    }
    drop(stalled);
    for (queue, (stored, unsure, few, taken, longest)) in queues.iter().zip(told) {
        println!("{queue}: {} stored, {} unsure, {few} refused, {longest:?}", stored.len(), unsure.len());
        let lost: Vec<_> = stored.iter().filter(|body| !taken.contains(body)).collect();
        assert!(lost.is_empty(), "{queue}: {lost:?} were answered");
        let refused: Vec<_> =
            taken.iter().filter(|body| !stored.contains(body) && !unsure.contains(body)).collect();
        assert!(refused.is_empty(), "{queue}: {refused:?} were refused, and nothing was done");
        match () {
            () if *queue == queues[0] => {
                assert!(
                    stored.len() > 50 && few == 0,
                    "others take it: {} stored, {few} refused",
                    stored.len()
                );
                assert!(unsure.len() <= 2, "{unsure:?} were on their way when it was not known");
            }
            () if *queue == queues[1] => {
                assert!(few > 50 && !unsure.is_empty(), "{few} refused, {unsure:?} were waited for");
            }
            () => {
                assert_eq!((unsure.len(), few), (0, 0), "nothing changes");
                assert!(longest < Duration::from_secs(1), "nobody waits: {longest:?}");
            }
        }
    }
    until("it has caught up", async || put(&engine, &queues[1], "after").await.is_ok()).await;
}
