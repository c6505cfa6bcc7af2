//! Notifies of jobs that others made ready: other servers of this kind, and lmstfy, which tells nobody.
//!
//! One connection, used for nothing else, has the Redis track the ready lists that consumers wait for (RESP3
//! CLIENT TRACKING). An EXISTS of a list *arms* it: it says whether the list has jobs, and the Redis pushes one
//! message at the next change. A list that changed and is still waited for is armed again, and that EXISTS decides
//! whether to notify: a job that this server published is mostly handed out by then, and costs no second fetch. So
//! the work is in proportion to the changes, not to the queues waited for. A slow sweep stands behind that. Where
//! tracking is refused, a fast sweep does the work alone.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::Shared;
use super::connection::connector::Link;
use super::connection::fault::{Fault, Outcome};
use super::connection::outage::{Kind, Pause, Place};
use super::connection::worker::Home;
use super::layout::keys;
use crate::name::Queue;

/// How often all lists that are waited for are armed although tracking works.
const SWEEP: Duration = Duration::from_secs(1);
/// How often they are asked for when it does not.
const POLL: Duration = Duration::from_millis(50);
/// The least time between two armings: a list that changes all the time is armed a thousand times a
/// second at most. A quiet one is armed at once.
const ARM_PAUSE: Duration = Duration::from_millis(1);
/// How many keys one EXISTS takes.
const CHUNK: usize = 1000;

/// Queues that are to be armed. Holds at most those that are waited for and those that have just changed.
#[derive(Debug, Default)]
pub struct Watch {
    arm: Mutex<HashSet<Queue>>,
    changed: Notify,
}

impl Watch {
    /// Arms these soon.
    pub fn arm(&self, queues: impl IntoIterator<Item = Queue>) {
        self.arm.lock().extend(queues);
        self.changed.notify_one();
    }

    fn take(&self) -> Vec<Queue> {
        std::mem::take(&mut *self.arm.lock()).into_iter().collect()
    }
}

/// The task. Its connection is counted from the call on, not from the first poll.
pub fn run(shared: Arc<Shared>, home: Home) -> impl Future<Output = ()> + Send {
    let place = Place::new(home.outage.clone(), Kind::default());
    keep(shared, home, place)
}

async fn keep(shared: Arc<Shared>, home: Home, mut place: Place) {
    let mut pause = Pause::new(&home.outage);
    loop {
        let served = tokio::select! {
            () = home.closing.cancelled() => return,
            served = async {
                pause.pass().await;
                serve(&shared, &home, &mut place).await
            } => served,
        };
        let Err(fault) = served;
        if place.is_up() {
            pause = Pause::new(&home.outage);
        }
        place.down();
        home.outage.begins(&fault);
        pause.lengthen();
    }
}

/// One connection's life.
async fn serve(shared: &Arc<Shared>, home: &Home, place: &mut Place) -> Outcome<Infallible> {
    let weak = Arc::downgrade(shared);
    let mut link = home
        .connector
        .connect_with(Arc::new(move |push: PushInfo| {
            if let Some(shared) = weak.upgrade() {
                on_push(&shared, &push);
            }
        }))
        .await?;
    let tracking = match track(&mut link).await {
        Ok(()) => true,
        Err(fault) if fault.reconnect => return Err(fault.at(home.connector.label())),
        Err(fault) => {
            tracing::warn!(
                pool = &*home.pool,
                "the Redis refuses tracking, so jobs of other servers are seen up to {POLL:?} late: {}",
                fault.text()
            );
            false
        }
    };
    place.up();
    // Changes may have been missed while there was no connection.
    shared.watch.arm(shared.notifiers.waited_for());
    shared.notifiers.notify_all();
    let period = if tracking { SWEEP } else { POLL };
    let mut sweep = interval_at(Instant::now() + period, period);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rested = Instant::now();
    loop {
        let queues = tokio::select! {
            () = link.lost.cancelled() => return Err(Fault::away("the connection was lost").at(home.connector.label())),
            // In this order, since a notification that was taken must not be dropped by another branch.
            () = async { sleep_until(rested).await; shared.watch.changed.notified().await } => {
                rested = Instant::now() + ARM_PAUSE;
                let mut queues = shared.watch.take();
                queues.retain(|queue| shared.notifiers.waits_for(queue));
                queues
            }
            _ = sweep.tick() => shared.notifiers.waited_for(),
        };
        arm(shared, &mut link, &queues).await.map_err(|fault| fault.at(home.connector.label()))?;
    }
}

async fn track(link: &mut Link) -> Outcome<()> {
    Ok(redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut link.conn).await?)
}

/// A list has changed, or the Redis has forgotten what it tracked.
fn on_push(shared: &Shared, push: &PushInfo) {
    if push.kind != PushKind::Invalidate {
        return;
    }
    match push.data.first() {
        Some(Value::Array(changed)) => {
            let queues = changed.iter().filter_map(|key| match key {
                Value::BulkString(key) => keys::queue_of_ready(key),
                _ => None,
            });
            shared.watch.arm(queues);
        }
        // The database was flushed.
        _ => {
            shared.watch.arm(shared.notifiers.waited_for());
            shared.notifiers.notify_all();
        }
    }
}

/// Arms these queues' lists, and notifies of those that have jobs.
async fn arm(shared: &Shared, link: &mut Link, queues: &[Queue]) -> Outcome<()> {
    for chunk in queues.chunks(CHUNK) {
        let mut cmd = redis::cmd("EXISTS");
        for queue in chunk {
            cmd.arg(keys::ready(queue));
        }
        let with_jobs: usize = cmd.query_async(&mut link.conn).await?;
        if with_jobs == chunk.len() {
            chunk.iter().for_each(|queue| shared.notifiers.notify(queue));
        } else if with_jobs > 0 {
            let mut each = redis::pipe();
            for queue in chunk {
                each.cmd("EXISTS").arg(keys::ready(queue));
            }
            let each: Vec<bool> = each.query_async(&mut link.conn).await?;
            chunk
                .iter()
                .zip(each)
                .filter(|(_, has)| *has)
                .for_each(|(queue, _)| shared.notifiers.notify(queue));
        }
    }
    Ok(())
}
