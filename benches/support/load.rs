//! Publishers at a constant rate, consumers that record deliveries, and a light load beside a heavy one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Outcome;
use super::client::Target;
use super::ledger::{Ledger, Spread};

/// How to publish the jobs of a ledger.
#[derive(Clone)]
pub struct Plan {
    pub ledger: Arc<Ledger>,
    pub jobs: usize,
    /// Rate over all connections.
    pub per_second: f64,
    /// Number of connections, spread over the targets.
    pub connections: usize,
    /// The queue, delay in seconds, and further parameters of a job.
    pub job: fn(usize) -> (String, u64, &'static str),
}

/// Publishes jobs 0, 1, 2, … at an even rate.
pub async fn publish(targets: &[&Target], plan: Plan) -> Outcome {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for first in 0..plan.connections {
        let mut client = targets[first % targets.len()].connect().await?;
        let plan = plan.clone();
        tasks.spawn(async move {
            for number in (first..plan.jobs).step_by(plan.connections) {
                let at = began + Duration::from_secs_f64(number as f64 / plan.per_second);
                tokio::time::sleep_until(at.into()).await;
                let (queue, delay, more) = (plan.job)(number);
                plan.ledger.sent(number, Duration::from_secs(delay));
                client
                    .publish(&queue, &format!("delay={delay}{more}"), number.to_string().as_bytes())
                    .await?;
                plan.ledger.answered(number);
            }
            Outcome::Ok(())
        });
    }
    all(tasks).await
}

/// Starts consumers that poll `queue`, record each job in the ledger, and ack it on its `acked`th delivery. They end
/// with the returned set.
pub async fn consumers(
    target: &Target,
    how_many: usize,
    queue: &'static str,
    ttr: u32,
    ledger: &Arc<Ledger>,
    acked: usize,
) -> Outcome<JoinSet<Outcome>> {
    let mut tasks = JoinSet::new();
    for _ in 0..how_many {
        let mut client = target.connect().await?;
        let ledger = ledger.clone();
        tasks.spawn(async move {
            let query = format!("timeout=60&ttr={ttr}");
            loop {
                if let Some(job) = client.consume(queue, &query).await?
                    && ledger.received(job.number()?) + 1 == acked
                {
                    client.ack(queue, &job.job_id).await?;
                }
            }
        });
    }
    Ok(tasks)
}

/// Stops consumers. One that has ended by itself returns its error.
pub async fn end(mut tasks: JoinSet<Outcome>) -> Outcome {
    tasks.abort_all();
    while let Some(ended) = tasks.join_next().await {
        if let Ok(outcome) = ended {
            outcome?;
        }
    }
    Ok(())
}

/// Sends `count` requests over some connections; `request` makes the n-th, whose reply must have this status.
pub async fn send(
    target: &Target,
    connections: usize,
    count: usize,
    status: u16,
    request: impl Fn(&Target, usize) -> Vec<u8> + Copy + Send + 'static,
) -> Outcome {
    let (next, mut tasks) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for _ in 0..connections {
        let (mut client, next) = (target.connect().await?, next.clone());
        tasks.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return Outcome::Ok(());
                }
                client.expect(status, &request(&client.target, n)).await?;
            }
        });
    }
    all(tasks).await
}

/// Waits for all tasks; the first error ends the rest.
pub async fn all(mut tasks: JoinSet<Outcome>) -> Outcome {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Latencies of a light load.
#[derive(Default)]
pub struct Light {
    pub publish: Spread,
    pub consume: Spread,
}

/// Publishes, consumes and acks on separate queues until `stop`. The latency of a publish is counted from when it
/// should have begun, so that a stall affects every request that it delays.
pub async fn light(target: Target, per_second: f64, stop: CancellationToken) -> Outcome<Light> {
    const CONNECTIONS: usize = 8;
    let mut tasks = JoinSet::new();
    for worker in 0..CONNECTIONS {
        let mut client = target.connect().await?;
        let stop = stop.clone();
        tasks.spawn(async move {
            let (queue, mut met) = (format!("light-{worker}"), Light::default());
            let mut due = tokio::time::interval(Duration::from_secs_f64(CONNECTIONS as f64 / per_second));
            loop {
                let at = tokio::select! {
                    () = stop.cancelled() => return Outcome::Ok(met),
                    at = due.tick() => at,
                };
                client.publish(&queue, "", b"0").await?;
                met.publish.add(at.elapsed());
                let asked = Instant::now();
                let job = client.consume(&queue, "timeout=10").await?.ok_or("a published job is gone")?;
                met.consume.add(asked.elapsed());
                client.ack(&queue, &job.job_id).await?;
            }
        });
    }
    let mut sum = Light::default();
    while let Some(ended) = tasks.join_next().await {
        let met = ended??;
        sum.publish.merge(&met.publish);
        sum.consume.merge(&met.consume);
    }
    Ok(sum)
}
