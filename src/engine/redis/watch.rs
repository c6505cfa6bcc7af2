//! Notifies of jobs that others made ready: other servers of this kind, and lmstfy, which tells nobody.
//!
//! One connection, used for nothing else, has the Redis track the ready lists that consumers wait for (RESP3
//! CLIENT TRACKING). An EXISTS of a list *arms* it: it says whether the list has jobs, and the Redis pushes one
//! message at the next change. A list that changed and is still waited for is armed again, and that EXISTS decides
//! whether to notify: a job that this server published is mostly handed out by then, and costs no second fetch. So
//! the work is in proportion to the changes, not to the queues waited for. A slow sweep stands behind that. Where
//! tracking is refused, a fast sweep does the work alone.

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

/// How often all lists that are waited for are armed although tracking works.
const SWEEP: Duration = Duration::from_secs(1);
/// How often they are asked for when it does not.
const POLL: Duration = Duration::from_millis(50);
/// The least time between two armings: a list that changes all the time is armed a thousand times a
/// second at most. A quiet one is armed at once.
const ARM_PAUSE: Duration = Duration::from_millis(1);
/// How many keys one EXISTS takes.
const CHUNK: usize = 1000;

/// The task. Its connection counts as down from the call on, not from the first poll.
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
    /// And whether the Redis tracks for it.
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
                    "the Redis refuses tracking, so jobs of other servers are seen up to {POLL:?} late: {fault}"
                );
                Ok((connection, false))
            }
        }
    }

    async fn serve(&self, (connection, tracking): (Connection, bool)) {
        let Err(fault) = watch(&self.0, connection, tracking).await;
        // Nobody hears of jobs there now.
        self.0.ready_lists.may_have(None);
        if !fault.not_master {
            self.failed(fault.at(self.0.connections.connector.label()));
        }
    }

    fn failed(&self, fault: Fault) {
        self.0.connections.failed(&fault);
    }
}

/// One connection's life.
async fn watch(link: &Link, mut connection: Connection, tracking: bool) -> Outcome<Infallible> {
    // Changes may have been missed while there was no connection.
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
            // In this order, since a notification that was taken must not be dropped by another branch.
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

/// A server that was a master and is a replica now answers reads as before, and nobody would notice while nobody
/// writes. So an empty write is tried, which leaves nothing behind. Other refusals are for those who write to tell.
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

/// A list has changed, or the Redis has forgotten what it tracked.
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

/// What is to be armed now, of what is still waited for.
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

/// There are jobs in this list.
fn notify(link: &Link, (queue, key): &List) {
    link.ready_lists.may_have(Some((queue, key)));
    link.common.notifiers.notify(queue);
}

/// Arms these lists, and notifies of those that have jobs.
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
        // A list that has moved to another node may have jobs: a fetch finds its way there.
        let may_have = chunk.iter().zip(each).filter(|(_, has)| *has.as_ref().unwrap_or(&true));
        may_have.for_each(|(list, _)| notify(link, list));
    }
    Ok(())
}
