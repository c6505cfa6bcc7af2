//! Throughput over HTTP, and its cost: operations a second and processor time per operation of each process, with 64
//! kept-alive connections. docs/benchmarks.md says how to run it.

mod support;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use support::client::Client;
use support::ledger::Spread;
use support::proc::Meter;
use support::report::Bench;
use support::setup::{Setup, Store};
use support::{Outcome, report};
use tokio::task::JoinSet;

const CONNECTIONS: usize = 64;
/// Long enough that no job is redelivered during the measurement.
const TTR: &str = "ttr=3600";

fn main() -> ExitCode {
    report::run(async |bench| {
        for store in [Store::Disk, Store::DiskEverySec, Store::Redis] {
            bench
                .section(&format!("throughput {store}: {CONNECTIONS} connections"), measure(bench, store))
                .await;
        }
    })
}

/// The operation that a connection repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Publish,
    Consume,
    Ack,
    Cycle,
}

async fn measure(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(setup.first().api.connect().await?);
    }
    let taken = Arc::new(Mutex::new(VecDeque::new()));
    for step in [Step::Publish, Step::Consume, Step::Ack, Step::Cycle] {
        clients = phase(bench, &setup, clients, step, &taken).await?;
    }
    Ok(())
}

/// Repeats one step on every connection, for some seconds or until nothing is left to do.
async fn phase(
    bench: &Bench,
    setup: &Setup,
    clients: Vec<Client>,
    step: Step,
    taken: &Arc<Mutex<VecDeque<String>>>,
) -> Outcome<Vec<Client>> {
    let meter = Meter::start(setup.processes())?;
    let (began, time, done) = (Instant::now(), bench.seconds(5.0, 0.5), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let (done, taken) = (done.clone(), taken.clone());
        tasks.spawn(async move {
            let mut spread = Spread::default();
            while began.elapsed() < time {
                let at = Instant::now();
                if !once(&mut client, step, &taken).await? {
                    break;
                }
                spread.add(at.elapsed());
                done.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Ok((client, spread))
        });
    }
    let (mut clients, mut spread) = (Vec::new(), Spread::default());
    while let Some(ended) = tasks.join_next().await {
        let (client, met) = ended??;
        spread.merge(&met);
        clients.push(client);
    }
    let (took, done) = (began.elapsed(), done.load(Ordering::Relaxed));
    let name = format!("{step:?}").to_lowercase();
    let rate = done as f64 / took.as_secs_f64().max(Duration::from_millis(1).as_secs_f64());
    bench.figure(&name, rate, "/s");
    bench.figure(&format!("{name} p50"), spread.ms(0.5), "ms");
    bench.figure(&format!("{name} p99"), spread.ms(0.99), "ms");
    for (process, used) in meter.used()? {
        bench.figure(
            &format!("{name}: processor, {process}"),
            used.as_micros() as f64 / done.max(1) as f64,
            "us/op",
        );
    }
    Ok(clients)
}

async fn once(client: &mut Client, step: Step, taken: &Mutex<VecDeque<String>>) -> Outcome<bool> {
    const BODY: &[u8] =
        b"a job of about a hundred bytes, as many are: an id, a kind, and a few numbers {1,2,3,4,5,6,7}";
    match step {
        Step::Publish => client.publish("queue", "tries=3", BODY).await.map(|_| true),
        Step::Consume => {
            let job = client.consume("queue", TTR).await?;
            let found = job.is_some();
            taken.lock().extend(job.map(|job| job.job_id));
            Ok(found)
        }
        Step::Ack => {
            let id = taken.lock().pop_front();
            match id {
                Some(id) => client.ack("queue", &id).await.map(|()| true),
                None => Ok(false),
            }
        }
        Step::Cycle => {
            // A separate queue, so that the remains of other steps do not count.
            client.publish("cycle", "tries=3", BODY).await?;
            // Each connection consumes one job per publish, so there is one for each.
            let job = client.consume("cycle", TTR).await?.ok_or("a published job is gone")?;
            client.ack("cycle", &job.job_id).await.map(|()| true)
        }
    }
}
