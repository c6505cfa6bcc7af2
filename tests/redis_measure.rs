//! Figures, not laws: what calls cost the Redis, by number of lanes, and what waiting costs while nothing
//! happens. Run by hand: `cargo test --release --test redis_measure -- --ignored --nocapture`.

#[path = "support/redis_server.rs"]
mod redis_server;

use std::future::Future;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dormouse::engine::bell::Bell;
use dormouse::engine::redis::{Lanes, RedisAddress, RedisEngine};
use dormouse::engine::{Engine, Want};
use dormouse::job::{Attributes, JobIds, JobRef, NewJob};
use dormouse::name::{Namespace, PoolName, Queue, QueueName};
use hdrhistogram::Histogram;
use redis_server::RedisServer;

const JOBS: usize = 64_000;

fn queue(name: &str) -> Queue {
    Queue {
        namespace: Namespace::parse("shop").expect("a name"),
        name: QueueName::parse(name).expect("a name"),
    }
}

async fn engine(server: &RedisServer, lanes: Lanes) -> Arc<RedisEngine> {
    let address = RedisAddress {
        addrs: vec![server.addr()],
        password: None,
        db: 0,
        pool_size: 16,
        master_name: None,
        sentinel_password: None,
    };
    RedisEngine::connect_with(address, &PoolName::default_pool(), lanes).await.expect("the server is there")
}

/// CPU that the server has used, in microseconds.
fn cpu(server: &RedisServer) -> f64 {
    let info: redis::InfoDict = redis::cmd("INFO").arg("cpu").query(&mut server.connection()).expect("INFO");
    let read = |field| info.get::<f64>(field).unwrap_or(0.0);
    (read("used_cpu_user") + read("used_cpu_sys")) * 1e6
}

/// Runs `JOBS` calls from so many callers and prints what they took.
async fn phase<F, Fut>(what: &str, server: &RedisServer, callers: usize, call: F)
where
    F: Fn(usize) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let (begun, before) = (Instant::now(), cpu(server));
    let jobs = if callers == 1 { JOBS / 16 } else { JOBS };
    let each = jobs / callers;
    let tasks: Vec<_> = (0..callers)
        .map(|c| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut times = Histogram::<u64>::new(3).expect("3 digits");
                for i in 0..each {
                    let sent = Instant::now();
                    call(c * each + i).await;
                    times.saturating_record(sent.elapsed().as_micros() as u64);
                }
                times
            })
        })
        .collect();
    let mut times = Histogram::<u64>::new(3).expect("3 digits");
    for task in tasks {
        times.add(task.await.expect("the caller ends")).expect("of one kind");
    }
    let (took, used) = (begun.elapsed(), cpu(server) - before);
    println!(
        "{what:8} {callers:3} callers: {:7.0}/s  {:5.1} us of Redis each  p50 {:5} us  p99 {:6} us",
        jobs as f64 / took.as_secs_f64(),
        used / jobs as f64,
        times.value_at_quantile(0.5),
        times.value_at_quantile(0.99),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures; needs a quiet machine and a release build"]
async fn what_a_call_costs() {
    for n in [1, 2, 4, 1, 2, 4] {
        let lanes = Lanes { publish: n, consume: n, ack: n.min(3) };
        println!("{n} lanes");
        for callers in [1, 64] {
            let server = RedisServer::start();
            let (engine, q) = (engine(&server, lanes).await, queue("orders"));
            let ids = Arc::new(JobIds::default());
            let body = Bytes::from(vec![b'x'; 100]);
            let jobs = if callers == 1 { JOBS / 16 } else { JOBS };
            let made: Arc<Vec<_>> = Arc::new((0..jobs).map(|_| ids.make(engine.now(), 0, false)).collect());
            let (e, all, queue) = (engine.clone(), made.clone(), q.clone());
            phase("publish", &server, callers, move |i| {
                let (e, queue, id, body) = (e.clone(), queue.clone(), all[i], body.clone());
                async move {
                    let job = NewJob {
                        queue,
                        id,
                        body,
                        attributes: Attributes::new(),
                        ttl: Some(Duration::from_secs(86_400)),
                        delay: Duration::ZERO,
                        tries: NonZeroU16::MIN,
                    };
                    e.publish(vec![job]).await.expect("published");
                }
            })
            .await;
            let (e, queue) = (engine.clone(), q.clone());
            phase("consume", &server, callers, move |_| {
                let (e, list) = (e.clone(), queue.clone().into());
                async move {
                    let want = Want { count: 1, ttr: Duration::from_secs(120) };
                    let got = e.consume(&list, &[want]).await.expect("consumed");
                    assert_eq!(got[0].len(), 1, "there is one for everybody");
                }
            })
            .await;
            let (e, queue) = (engine.clone(), q.clone());
            phase("ack", &server, callers, move |i| {
                let (e, job) = (e.clone(), JobRef { queue: queue.clone(), id: made[i] });
                async move { e.ack(job).await.expect("acked") }
            })
            .await;
            engine.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures; takes ten seconds"]
async fn what_waiting_costs() {
    for watched in [0, 10_000] {
        let server = RedisServer::start();
        let engine = engine(&server, Lanes::default()).await;
        let bell = Arc::new(Bell::default());
        engine.attach(bell.clone());
        for n in 0..watched {
            bell.watch(&queue(&format!("q{n}")));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let commands = || {
            let info: redis::InfoDict =
                redis::cmd("INFO").arg("stats").query(&mut server.connection()).expect("INFO");
            info.get::<u64>("total_commands_processed").unwrap_or(0)
        };
        let (before, used) = (commands(), cpu(&server));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let own = 4; // the questions themselves: each connection says HELLO or CLIENT SETINFO, and INFO
        println!(
            "{watched} watched: {:.1} commands/s (of which {own} or so in all are this question's), {:.0} us of Redis/s",
            (commands() - before) as f64 / 4.0,
            (cpu(&server) - used) / 4.0
        );
        engine.close().await;
    }
}
