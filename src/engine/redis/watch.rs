//! Rings bells for jobs that others made ready: other servers of this kind, and lmstfy, which tells nobody.
//!
//! One connection, used for nothing else, has the server track the ready lists that consumers wait for (RESP3
//! CLIENT TRACKING). An EXISTS over a list arms it; the next change of the list is pushed, once, and rings. What
//! was pushed and is still watched is armed again. So the work is in proportion to the changes, not to the
//! queues watched. A slow sweep stands behind that; where tracking is refused a fast one does the work alone.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::RedisCore;
use super::connection::connector::Connection;
use super::connection::fault::{Fault, Outcome};
use super::connection::status::{Backoff, ConnectionStatus, Connections, Group};
use super::layout::keys;
use crate::engine::notifier::Bell;
use crate::name::Queue;

/// How often all watched queues are looked at although tracking works.
const SWEEP: Duration = Duration::from_secs(1);
/// How often they are looked at when it does not.
const POLL: Duration = Duration::from_millis(50);
/// How long after one arming the next may come: a list that changes all the time is armed a thousand times a
/// second at most. A quiet one is armed at once.
const BREATH: Duration = Duration::from_millis(1);
/// How many keys one EXISTS takes.
const CHUNK: usize = 1000;

/// Queues that are to be armed. Holds at most the watched ones and those that just rang.
#[derive(Debug, Default)]
pub struct Watch {
    arm: Mutex<HashSet<Queue>>,
    changed: Notify,
}

impl Watch {
    fn arm(&self, queues: impl IntoIterator<Item = Queue>) {
        self.arm.lock().extend(queues);
        self.changed.notify_one();
    }

    fn take(&self) -> Vec<Queue> {
        std::mem::take(&mut *self.arm.lock()).into_iter().collect()
    }
}

/// Rings this bell too from now on.
pub fn attach(shared: &Arc<RedisCore>, bell: Arc<Bell>) {
    shared.bells.attach(bell.clone());
    let core = shared.clone();
    let forward = async move {
        loop {
            tokio::select! {
                fresh = bell.newly_watched() => core.watch.arm(fresh),
                () = core.connections.closing.cancelled() => return,
            }
        }
    };
    shared.tasks.spawn_lasting("the watch of a dispatcher's queues", forward);
}

/// The task. Its connection is counted from the call on, not from the first poll.
pub fn run(shared: Arc<RedisCore>) -> impl Future<Output = ()> + Send {
    let home = shared.connections.clone();
    let place = ConnectionStatus::new(home.clone(), Group::default());
    listen(shared, home, place)
}

async fn listen(shared: Arc<RedisCore>, home: Arc<Connections>, mut place: ConnectionStatus) {
    let mut pause = Backoff::new(&home);
    loop {
        let served = tokio::select! {
            () = home.closing.cancelled() => return,
            served = async {
                pause.wait().await;
                serve(&shared, &home, &mut place).await
            } => served,
        };
        let Err(fault) = served;
        if place.is_up() {
            pause = Backoff::new(&home);
        }
        place.down();
        home.outage.failed(&fault);
        pause.lengthen();
    }
}

/// One connection's life.
async fn serve(
    shared: &Arc<RedisCore>,
    home: &Connections,
    place: &mut ConnectionStatus,
) -> Outcome<Infallible> {
    let ears = Arc::downgrade(shared);
    let mut link = home
        .connector
        .connect_with(Arc::new(move |push: PushInfo| {
            if let Some(shared) = ears.upgrade() {
                heard(&shared, &push);
            }
        }))
        .await?;
    let tracking = match track(&mut link).await {
        Ok(()) => true,
        Err(fault) if fault.reconnect => return Err(fault.at(home.connector.label())),
        Err(fault) => {
            tracing::warn!(
                pool = &*home.pool,
                "the Redis refuses tracking, so wake-ups from other servers take up to {POLL:?}: {}",
                fault
            );
            false
        }
    };
    place.up();
    // Whatever happened while nobody listened.
    shared.watch.arm(watched(shared));
    for bell in shared.bells.all() {
        bell.ring_all();
    }
    let period = if tracking { SWEEP } else { POLL };
    let mut sweep = interval_at(Instant::now() + period, period);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rested = Instant::now();
    loop {
        let look_at = tokio::select! {
            () = link.lost.cancelled() => return Err(Fault::away("the connection was lost").at(home.connector.label())),
            // In this order, since a notification that was taken must not be dropped by another branch.
            () = async { sleep_until(rested).await; shared.watch.changed.notified().await } => {
                rested = Instant::now() + BREATH;
                let bells = shared.bells.all();
                let mut queues = shared.watch.take();
                queues.retain(|queue| bells.iter().any(|bell| bell.watches(queue)));
                queues
            }
            _ = sweep.tick() => watched(shared),
        };
        look(shared, &mut link, &look_at).await.map_err(|fault| fault.at(home.connector.label()))?;
    }
}

async fn track(link: &mut Connection) -> Outcome<()> {
    Ok(redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut link.redis).await?)
}

/// A list has changed, or the server has forgotten what it tracked.
fn heard(shared: &RedisCore, push: &PushInfo) {
    if push.kind != PushKind::Invalidate {
        return;
    }
    match push.data.first() {
        Some(Value::Array(changed)) => {
            let queues = changed.iter().filter_map(|key| match key {
                Value::BulkString(key) => keys::queue_of_ready(key),
                _ => None,
            });
            shared.watch.arm(queues.inspect(|queue| shared.bells.ring(queue)));
        }
        // The database was flushed.
        _ => {
            shared.watch.arm(watched(shared));
            shared.bells.all().iter().for_each(|bell| bell.ring_all());
        }
    }
}

/// Every watched queue, once.
fn watched(shared: &RedisCore) -> Vec<Queue> {
    let mut queues: Vec<Queue> = shared.bells.all().iter().flat_map(|bell| bell.watched()).collect();
    queues.sort_unstable();
    queues.dedup();
    queues
}

/// Rings the queues that have jobs, and arms them all.
async fn look(shared: &RedisCore, link: &mut Connection, queues: &[Queue]) -> Outcome<()> {
    for chunk in queues.chunks(CHUNK) {
        let mut cmd = redis::cmd("EXISTS");
        for queue in chunk {
            cmd.arg(keys::ready(queue));
        }
        let with_jobs: usize = cmd.query_async(&mut link.redis).await?;
        if with_jobs == chunk.len() {
            chunk.iter().for_each(|queue| shared.bells.ring(queue));
        } else if with_jobs > 0 {
            let mut each = redis::pipe();
            for queue in chunk {
                each.cmd("EXISTS").arg(keys::ready(queue));
            }
            let each: Vec<bool> = each.query_async(&mut link.redis).await?;
            chunk.iter().zip(each).filter(|(_, has)| *has).for_each(|(queue, _)| shared.bells.ring(queue));
        }
    }
    Ok(())
}
