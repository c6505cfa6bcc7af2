//! Notifies of jobs that others made ready: other Dormouse servers, and lmstfy, which publishes no messages.
//!
//! One connection, used for nothing else, has Redis track the ready lists of waiters (RESP3 CLIENT TRACKING). An EXISTS
//! of a list *arms* it: it returns whether the list has jobs, and Redis pushes one message at the next change. A
//! changed list with waiters is armed again, and that EXISTS decides whether to notify: a job published by this server
//! is usually delivered by then, and costs no second fetch. So the work is proportional to the changes, not to the
//! queues with waiters. A slow sweep is the fallback. Where tracking is refused, a fast sweep does the work alone.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, RedisResult, Value};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::arming::ToArm;
use super::connection::connector::Connection;
use super::connection::fault::{Fault, Outcome};
use super::connection::reconnect::{Reconnect, stay_connected};
use super::connection::status::{ConnectionStatus, Connections};
use super::link::Link;
use super::verbs::check::empty_write;
use crate::name::Queue;

/// Interval of the sweep that arms all lists with waiters while tracking works.
const SWEEP: Duration = Duration::from_secs(1);
/// Interval of the sweep when tracking does not work.
const POLL: Duration = Duration::from_millis(50);
/// Minimum time between two armings: a constantly changing list is armed at most a thousand times a second. A quiet one
/// is armed at once.
const ARM_PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of keys in one EXISTS.
const CHUNK: usize = 1000;

/// Returns the watch's task. Its connection counts as down from this call on, not from the first poll.
pub fn run(link: Arc<Link>) -> impl Future<Output = ()> + Send {
    let mut status = ConnectionStatus::new(link.connections.clone());
    async move {
        let (connections, lists) = (link.connections.clone(), WatchedLists(link));
        let connected = stay_connected(&lists, connections.answered(), |up| status.set(up));
        connections.closing.run_until_cancelled(connected).await;
    }
}

/// The connection that is used for nothing else.
struct WatchedLists(Arc<Link>);

impl Reconnect for WatchedLists {
    /// A connection, and whether Redis tracks for it.
    type Connection = (Connection, bool);

    async fn connect(&self) -> Outcome<(Connection, bool)> {
        let weak = Arc::downgrade(&self.0);
        let on_push = move |push: PushInfo| {
            if let Some(link) = weak.upgrade() {
                on_push(&link, &push);
            }
        };
        let connections = &self.0.connections;
        let mut connection = connections.connect_with(Arc::new(on_push)).await?;
        match track(&mut connection).await {
            Ok(()) => Ok((connection, true)),
            Err(fault) if fault.reconnect => Err(fault.at(connections.connector.label())),
            Err(fault) => {
                tracing::warn!(
                    pool = &*connections.pool,
                    "the Redis refuses CLIENT TRACKING, so jobs that other servers publish are noticed up to {POLL:?} \
                     late: {fault}"
                );
                Ok((connection, false))
            }
        }
    }

    async fn serve(&self, (connection, tracking): (Connection, bool)) {
        let Err(fault) = watch(&self.0, connection, tracking).await;
        // No notifications arrive now.
        self.0.ready_lists.may_have(None);
        if !fault.not_master {
            self.failed(fault.at(self.0.connections.connector.label()));
        }
    }

    fn failed(&self, fault: Fault) {
        self.0.connections.failed(&fault);
    }
}

/// Watches on one connection until it fails.
async fn watch(link: &Link, mut connection: Connection, tracking: bool) -> Outcome<Infallible> {
    // Changes may have been missed without a connection.
    link.watch.arm(link.common.notifiers.waited_for());
    link.ready_lists.may_have(None);
    link.common.notifiers.notify_all();
    let period = if tracking { SWEEP } else { POLL };
    let mut sweep = interval_at(Instant::now() + period, period);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rested = Instant::now();
    loop {
        let lists = tokio::select! {
            () = connection.lost.cancelled() => return Err(Fault::away("the connection was lost")),
            // In this order, since no other branch may drop a notification already taken.
            () = async { sleep_until(rested).await; link.watch.changed.notified().await } => {
                rested = Instant::now() + ARM_PAUSE;
                to_arm(link)
            }
            _ = sweep.tick() => {
                look_for_master(&link.connections, &mut connection).await?;
                lists_of(link, link.common.notifiers.waited_for())
            }
        };
        arm(link, &mut connection, &lists).await?;
    }
}

/// Detects a former master, which answers reads as before: without writes nothing would reveal it. Sends an empty
/// write, which leaves nothing behind. Callers that write report other refusals.
async fn look_for_master(connections: &Connections, connection: &mut Connection) -> Outcome<()> {
    let empty: Outcome<u64> = connection.query(&empty_write()).await;
    match empty {
        Err(fault) if fault.reconnect => {
            connections.report(connection, &fault);
            Err(fault)
        }
        _ => Ok(()),
    }
}

async fn track(connection: &mut Connection) -> Outcome<()> {
    Ok(redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection.redis).await?)
}

/// Handles a changed list, or Redis's report that it has lost its tracking table.
fn on_push(link: &Link, push: &PushInfo) {
    if push.kind != PushKind::Invalidate {
        return;
    }
    match push.data.first() {
        Some(Value::Array(changed)) => {
            for key in changed {
                if let Value::BulkString(key) = key {
                    link.watch.arm_list(key.clone());
                }
            }
        }
        // The database was flushed.
        _ => {
            link.watch.arm(link.common.notifiers.waited_for());
            link.ready_lists.may_have(None);
            link.common.notifiers.notify_all();
        }
    }
}

/// A ready list of a queue.
type List = (Queue, Vec<u8>);

/// Returns the requested lists that still have waiters.
fn to_arm(link: &Link) -> Vec<List> {
    let ToArm { queues, lists } = link.watch.take();
    let all = lists_of(link, queues);
    let single = lists.into_iter().filter_map(|key| Some((link.ready_lists.queue_of(&key)?, key)));
    all.into_iter().chain(single).filter(|(queue, _)| link.common.notifiers.waits_for(queue)).collect()
}

fn lists_of(link: &Link, queues: impl IntoIterator<Item = Queue>) -> Vec<List> {
    let lists = |queue: Queue| {
        let keys = link.ready_lists.keys_of(&queue);
        keys.into_iter().map(move |key| (queue.clone(), key))
    };
    queues.into_iter().flat_map(lists).collect()
}

/// Notifies of jobs in this list.
fn notify(link: &Link, (queue, key): &List) {
    link.ready_lists.may_have(Some((queue, key)));
    link.common.notifiers.notify(queue);
}

/// Arms these lists, and notifies of lists that have jobs.
async fn arm(link: &Link, connection: &mut Connection, lists: &[List]) -> Outcome<()> {
    for chunk in lists.chunks(CHUNK) {
        if link.ready_lists.are_together() {
            let mut cmd = redis::cmd("EXISTS");
            chunk.iter().for_each(|(_, key)| _ = cmd.arg(key));
            let with_jobs: usize = cmd.query_async(&mut connection.redis).await?;
            if with_jobs == 0 {
                continue;
            }
            if with_jobs == chunk.len() {
                chunk.iter().for_each(|list| notify(link, list));
                continue;
            }
        }
        let mut each = redis::pipe();
        chunk.iter().for_each(|(_, key)| _ = each.cmd("EXISTS").arg(key));
        each.ignore_errors();
        let each: Vec<RedisResult<bool>> = each.query_async(&mut connection.redis).await?;
        // An error counts as ready: if the list has moved to another node, a fetch reads it there.
        let may_have = chunk.iter().zip(each).filter(|(_, has)| *has.as_ref().unwrap_or(&true));
        may_have.for_each(|(list, _)| notify(link, list));
    }
    Ok(())
}
