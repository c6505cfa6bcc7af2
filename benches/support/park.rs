//! Parks thousands of consumers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Outcome;
use super::client::Target;
use super::ledger::Ledger;
use super::setup::Server;

/// Maximum concurrent connects, below the length of a listen queue.
const CONNECTING: usize = 256;

/// Parks `polls` polls on `queues` queues named `park-0`, `park-1`, …, and waits until the server reports them. A poll
/// that gets a job records it and parks again. With `reset`, every second connection ends with a reset. The polls end
/// with the returned set.
pub async fn park(
    server: &Server,
    polls: usize,
    queues: usize,
    ledger: &Arc<Ledger>,
    reset: bool,
) -> Outcome<JoinSet<Outcome>> {
    let before = server.parked().await?;
    let (mut tasks, door) = (JoinSet::new(), Arc::new(Semaphore::new(CONNECTING)));
    for poll in 0..polls {
        let reset = reset && poll % 2 == 0;
        tasks.spawn(one(
            server.api.clone(),
            format!("park-{}", poll % queues),
            ledger.clone(),
            door.clone(),
            reset,
        ));
    }
    tokio::select! {
        parked = server.wait_parked(before + polls) => parked?,
        // A poll ends by itself only after an error.
        Some(ended) = tasks.join_next() => ended??,
    }
    // The servers finish the work of the arrivals: memory and processor time are measured from here.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(tasks)
}

async fn one(
    target: Target,
    queue: String,
    ledger: Arc<Ledger>,
    door: Arc<Semaphore>,
    reset: bool,
) -> Outcome {
    let mut client = {
        let _turn = door.acquire().await?;
        target.connect().await?
    };
    drop(target);
    if reset {
        client.reset_when_closed()?;
    }
    loop {
        if let Some(job) = client.consume(&queue, "timeout=180&ttr=600").await? {
            ledger.received(job.number()?);
        }
    }
}
