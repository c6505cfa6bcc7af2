//! Sends a call to the node of its partition, and resends it while no node has started it.
//!
//! A call is resent only if it was refused before it started, or if there was no connection to send it on. If the
//! connection broke, the call may have been executed, so it is never sent again. ASKING is never sent: calls to a
//! partition wait while its slot migrates.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::known::Known;
use super::map::Partition;
use super::node::Node;
use crate::engine::redis::connection::fault::{Fault, NotBegun, Outcome};
use crate::engine::redis::link::{Lane, Link};
use crate::error::Unreachable;
use crate::process::tasks::Tasks;

/// How long calls wait for an unavailable node or for its replacement, counted from the first call that found the node
/// unavailable: later calls do not start over.
const AWAY: Duration = Duration::from_secs(1);
/// How long a call waits while its slot migrates. Its caller waits the same time.
const MOVING: Duration = Duration::from_secs(4);
/// First and longest pause before a call is resent. The pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(50);
/// A slot is no longer considered migrating when no call was refused for this long.
const AT_REST: Duration = Duration::from_millis(100);
/// An outage of a node ends when no call found it unavailable for this long.
const FORGOTTEN: Duration = Duration::from_secs(2);

/// The nodes of a pool and the partition map.
#[derive(Debug)]
pub struct Cluster {
    pub parts: RwLock<Vec<Part>>,
    troubles: Vec<Mutex<Trouble>>,
    /// Makes the task that maintains the map update it at once.
    pub look: Notify,
    /// Address in the last MOVED reply: the next node to ask for the map.
    pub named: Mutex<Option<String>>,
    /// Facts for operators.
    pub known: Known,
    /// The tasks that maintain the map.
    pub tasks: Tasks,
}

/// The node of a partition.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The connection to its master, once the map has one. It may be down.
    pub node: Option<Arc<Node>>,
    pub state: PartState,
}

/// Whether a partition can be used on its current master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartState {
    /// Other masters have not been checked for keys of the partition yet.
    #[default]
    Unchecked,
    Whole,
    Split,
}

/// Recent failures of calls to a partition.
#[derive(Debug, Default)]
struct Trouble {
    /// Start of the current outage of the node, and the last time a call met it.
    away: Option<(Instant, Instant)>,
    /// Last time a call was refused because the slot is migrating.
    moving: Option<Instant>,
}

impl Cluster {
    /// Returns a cluster of `count` partitions whose nodes are unknown.
    pub fn new(count: usize, tasks: Tasks) -> Cluster {
        Cluster {
            parts: RwLock::new(vec![Part::default(); count]),
            troubles: (0..count).map(|_| Mutex::default()).collect(),
            look: Notify::new(),
            named: Mutex::default(),
            known: Known::new(),
            tasks,
        }
    }

    /// Returns the last known node of a partition. Its clock applies to the partition's timers.
    pub fn link(&self, partition: Partition) -> Option<Arc<Link>> {
        let parts = self.parts.read();
        Some(parts[usize::from(partition)].node.as_ref()?.link.clone())
    }

    /// Returns the node of the first partition with a known node.
    pub fn any_link(&self) -> Option<Arc<Link>> {
        self.parts.read().iter().find_map(|part| Some(part.node.as_ref()?.link.clone()))
    }

    /// Returns each node that owns partitions, with its first partition.
    pub fn nodes(&self) -> Vec<(Arc<Link>, Partition)> {
        let mut nodes: Vec<(Arc<Node>, Partition)> = Vec::new();
        for (part, n) in self.parts.read().iter().zip(0..) {
            if let Some(node) = &part.node
                && !nodes.iter().any(|(known, _)| known.id == node.id)
            {
                nodes.push((node.clone(), n));
            }
        }
        nodes.into_iter().map(|(node, n)| (node.link.clone(), n)).collect()
    }

    /// Stops the tasks that maintain the map, and closes every node.
    pub async fn close(&self) {
        self.tasks.stop();
        self.tasks.ended().await;
        for (link, _) in self.nodes() {
            link.close().await;
        }
    }

    /// Returns the node of a partition if a call could be sent to it now, otherwise why not.
    fn find(&self, partition: Partition, lane: Lane) -> Result<Arc<Node>, Unreachable> {
        let part = self.parts.read()[usize::from(partition)].clone();
        match part {
            Part { state: PartState::Split, .. } => Err(Unreachable::Split),
            Part { state: PartState::Whole, node: Some(node) } if node.link.is_up(lane) => Ok(node),
            _ => Err(Unreachable::Away),
        }
    }

    /// Returns the link to a partition's node if a call could be sent to it now. Does not wait.
    pub fn try_link(&self, partition: Partition, lane: Lane) -> Result<Arc<Link>, Unreachable> {
        if self.is_moving(partition) {
            return Err(Unreachable::Moving);
        }
        self.find(partition, lane).map(|node| node.link.clone())
    }

    /// Waits until a call could be sent, for tasks that batch calls. While a slot migrates, calls in flight keep
    /// retrying and detect the end. Without any, the slot counts as settled after `AT_REST`, and the next call tests
    /// it.
    pub async fn ready(&self, partition: Partition, lane: Lane) -> Outcome<()> {
        let mut patience = Patience::new();
        loop {
            let why = match self.find(partition, lane) {
                Ok(_) if self.is_moving(partition) => Unreachable::Moving,
                Ok(_) => return Ok(()),
                Err(why) => why,
            };
            self.wait(partition, why, &mut patience).await?;
        }
    }

    /// Returns the attempts to send a call to a partition.
    pub fn attempts(&self, partition: Partition, lane: Lane) -> Attempts<'_> {
        Attempts {
            cluster: self,
            partition,
            lane,
            patience: Patience::new(),
            at: None,
            why: None,
            paused_for: None,
        }
    }

    /// Like `attempts`, for a call that can go to another partition instead: never waits.
    pub fn attempt_now(&self, partition: Partition, lane: Lane) -> Attempts<'_> {
        Attempts { patience: Patience::none(), ..self.attempts(partition, lane) }
    }

    /// Handles a call that `node` did not start. Returns why the partition could not be used.
    fn not_begun(&self, why: NotBegun, node: &Node) -> Unreachable {
        self.known.refused(&why);
        match why {
            NotBegun::Moved(to) => {
                let to = match to.strip_prefix(':') {
                    Some(port) => format!("{}:{port}", node.address.host),
                    None => to,
                };
                *self.named.lock() = Some(to);
                self.look.notify_one();
                Unreachable::Moving
            }
            NotBegun::Moving => Unreachable::Moving,
            NotBegun::NotSent | NotBegun::NotServed | NotBegun::TooLate => Unreachable::Away,
        }
    }

    /// Pauses before the next attempt. Fails if there must be no further attempt.
    async fn wait(&self, partition: Partition, why: Unreachable, patience: &mut Patience) -> Outcome<()> {
        let now = Instant::now();
        let end = match why {
            Unreachable::Split | Unreachable::FewReplicas => now,
            Unreachable::Moving => patience.began + MOVING,
            Unreachable::Away => {
                let mut trouble = self.trouble(partition).lock();
                let fresh = trouble.away.filter(|(_, last)| last.elapsed() < FORGOTTEN);
                let since = fresh.map_or(now, |(since, _)| since);
                trouble.away = Some((since, now));
                if fresh.is_none() {
                    self.look.notify_one();
                }
                since + AWAY
            }
        };
        if now >= end || patience.is_over {
            return Err(Fault::part(why));
        }
        sleep(patience.pause).await;
        patience.pause = (patience.pause * 2).min(LAST_PAUSE);
        Ok(())
    }

    fn trouble(&self, partition: Partition) -> &Mutex<Trouble> {
        &self.troubles[usize::from(partition)]
    }

    /// Whether calls were refused recently because the slot is migrating.
    pub fn is_moving(&self, partition: Partition) -> bool {
        let moving = self.trouble(partition).lock().moving;
        moving.is_some_and(|last| last.elapsed() < AT_REST)
    }

    /// Returns the error for a call that was not executed because it waited too long for a partition.
    pub fn too_late(&self, partition: Partition) -> Fault {
        Fault::part(if self.is_moving(partition) { Unreachable::Moving } else { Unreachable::Away })
    }

    fn went_well(&self, partition: Partition) {
        *self.trouble(partition).lock() = Trouble::default();
    }
}

/// Attempts to execute one call: repeated while no node has started it, until its caller would wait too long.
pub struct Attempts<'a> {
    cluster: &'a Cluster,
    partition: Partition,
    lane: Lane,
    patience: Patience,
    /// Node of the last attempt, and why it did not start the call.
    at: Option<Arc<Node>>,
    why: Option<Unreachable>,
    /// Why the attempt before the last pause did not start the call.
    paused_for: Option<Unreachable>,
}

impl Attempts<'_> {
    /// Returns the node for the next attempt, after a pause if an attempt failed.
    pub async fn next(&mut self) -> Outcome<Arc<Link>> {
        loop {
            if let Some(why) = self.why.take() {
                self.paused_for = Some(why);
                self.cluster.wait(self.partition, why, &mut self.patience).await?;
            }
            match self.cluster.find(self.partition, self.lane) {
                Ok(node) => return Ok(self.at.insert(node).link.clone()),
                Err(why) => self.why = Some(why),
            }
        }
    }

    /// Returns the result of the call, or `None` if another attempt follows.
    pub fn outcome<T>(&mut self, answer: Outcome<T>) -> Option<Outcome<T>> {
        match (answer, &self.at) {
            (Err(Fault { not_begun: Some(NotBegun::TooLate), .. }), _) => {
                // A long pause must not turn a refusal into another.
                let too_late = || self.cluster.too_late(self.partition);
                Some(Err(self.paused_for.map_or_else(too_late, Fault::part)))
            }
            (Err(Fault { not_begun: Some(why), .. }), Some(node)) => {
                let why = self.cluster.not_begun(why, node);
                if why == Unreachable::Moving {
                    self.cluster.trouble(self.partition).lock().moving = Some(Instant::now());
                }
                self.why = Some(why);
                None
            }
            (answer, _) => {
                if answer.is_ok() {
                    self.cluster.went_well(self.partition);
                }
                Some(answer)
            }
        }
    }
}

/// Evaluates `$ask` for each attempt, with the link to use as `$redis`. A macro because futures of async closures that
/// borrow are not `Send`.
macro_rules! ask {
    ($attempts:expr, |$redis:pat_param| $ask:expr) => {{
        let mut attempts = $attempts;
        loop {
            let $redis = attempts.next().await?;
            let answer = $ask.await;
            if let Some(outcome) = attempts.outcome(answer) {
                break outcome;
            }
        }
    }};
}
pub(crate) use ask;

/// Time budget of a call.
struct Patience {
    began: Instant,
    pause: Duration,
    /// No second attempt is allowed.
    is_over: bool,
}

impl Patience {
    fn new() -> Patience {
        Patience { began: Instant::now(), pause: FIRST_PAUSE, is_over: false }
    }

    fn none() -> Patience {
        Patience { is_over: true, ..Patience::new() }
    }
}
