//! A call finds the node of its partition, and is sent again as long as no node has begun it.
//!
//! A call is sent again only if it was refused before it began, or if there was no connection to send it on. One whose
//! connection broke may have been carried out: it is never sent twice. ASKING is never sent: a partition waits while its
//! slot moves.

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

/// How long a call waits for a node that is away, or for the one that takes its place, counted from when the first call
/// found it so: those that come later do not wait again.
const AWAY: Duration = Duration::from_secs(1);
/// How long a call waits while its slot is moved: as long as its caller.
const MOVING: Duration = Duration::from_secs(4);
/// The pauses before a call is sent again: they double.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(50);
/// A slot of which no call was refused for so long is taken not to move.
const AT_REST: Duration = Duration::from_millis(100);
/// A node that nobody has found away for so long was back in between.
const FORGOTTEN: Duration = Duration::from_secs(2);

/// The nodes of a pool.
#[derive(Debug)]
pub struct Cluster {
    pub parts: RwLock<Vec<Part>>,
    troubles: Vec<Mutex<Trouble>>,
    /// Who keeps the map looks at once.
    pub look: Notify,
    /// The node that a call was sent on to: it knows best.
    pub named: Mutex<Option<String>>,
    /// For operators.
    pub known: Known,
    /// What keeps the map.
    pub tasks: Tasks,
}

/// Where a partition is.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its master, once that has answered.
    pub node: Option<Arc<Node>>,
    pub state: PartState,
}

/// Whether a partition can be used where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartState {
    /// Nobody has looked yet whether another master has keys of it.
    #[default]
    Unchecked,
    Whole,
    Split,
}

/// What calls have met of late.
#[derive(Debug, Default)]
struct Trouble {
    /// Since when its node is away, and when that was seen last.
    away: Option<(Instant, Instant)>,
    /// When a call was refused last because the slot moves.
    moving: Option<Instant>,
}

impl Cluster {
    /// Nothing is known of so many partitions yet.
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

    /// The node that a partition was at last, if there is one. For its clock.
    pub fn link(&self, partition: Partition) -> Option<Arc<Link>> {
        let parts = self.parts.read();
        Some(parts[usize::from(partition)].node.as_ref()?.link.clone())
    }

    /// The node of the first partition that has one.
    pub fn any_link(&self) -> Option<Arc<Link>> {
        self.parts.read().iter().find_map(|part| Some(part.node.as_ref()?.link.clone()))
    }

    /// Every node that has partitions, and the first of those.
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

    /// Ends what keeps the map, and every node.
    pub async fn close(&self) {
        self.tasks.stop();
        self.tasks.ended().await;
        for (link, _) in self.nodes() {
            link.close().await;
        }
    }

    /// The node of a partition, if a call could be sent to it now; or why none can.
    fn find(&self, partition: Partition, lane: Lane) -> Result<Arc<Node>, Unreachable> {
        let part = self.parts.read()[usize::from(partition)].clone();
        match part {
            Part { state: PartState::Split, .. } => Err(Unreachable::Split),
            Part { state: PartState::Whole, node: Some(node) } if node.link.is_up(lane) => Ok(node),
            _ => Err(Unreachable::Away),
        }
    }

    /// The link to a partition's node if a call could be sent there now, without waiting.
    pub fn try_link(&self, partition: Partition, lane: Lane) -> Result<Arc<Link>, Unreachable> {
        if self.is_moving(partition) {
            return Err(Unreachable::Moving);
        }
        self.find(partition, lane).map(|node| node.link.clone())
    }

    /// Waits until a call could be sent there, for who queues calls up. While a slot moves those that are under way find
    /// out when it has; when there are none, the next one does.
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

    /// A call that is about to be sent to a partition.
    pub fn attempts(&self, partition: Partition, lane: Lane) -> Attempts<'_> {
        Attempts { cluster: self, partition, lane, patience: Patience::new(), at: None, why: None }
    }

    /// The same, of a call that another partition takes when this one cannot: it does not wait.
    pub fn attempt_now(&self, partition: Partition, lane: Lane) -> Attempts<'_> {
        Attempts { patience: Patience::none(), ..self.attempts(partition, lane) }
    }

    /// What it means that a node has not begun a call.
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

    /// A pause before the next attempt; or the fault when there is none.
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

    /// Whether calls were refused just now since the slot moves.
    pub fn is_moving(&self, partition: Partition) -> bool {
        let moving = self.trouble(partition).lock().moving;
        moving.is_some_and(|last| last.elapsed() < AT_REST)
    }

    /// The fault of a call that has waited too long for a partition: nothing was done.
    pub fn too_late(&self, partition: Partition) -> Fault {
        Fault::part(if self.is_moving(partition) { Unreachable::Moving } else { Unreachable::Away })
    }

    fn went_well(&self, partition: Partition) {
        *self.trouble(partition).lock() = Trouble::default();
    }
}

/// The attempts to have one call carried out: it is made again as long as no node has begun it, until its caller would
/// wait for too long.
pub struct Attempts<'a> {
    cluster: &'a Cluster,
    partition: Partition,
    lane: Lane,
    patience: Patience,
    /// The node of the last attempt, and why it has not begun the call.
    at: Option<Arc<Node>>,
    why: Option<Unreachable>,
}

impl Attempts<'_> {
    /// The node for the next attempt.
    pub async fn next(&mut self) -> Outcome<Arc<Link>> {
        loop {
            if let Some(why) = self.why.take() {
                self.cluster.wait(self.partition, why, &mut self.patience).await?;
            }
            match self.cluster.find(self.partition, self.lane) {
                Ok(node) => return Ok(self.at.insert(node).link.clone()),
                Err(why) => self.why = Some(why),
            }
        }
    }

    /// What came of it; `None` when there is to be another attempt.
    pub fn outcome<T>(&mut self, answer: Outcome<T>) -> Option<Outcome<T>> {
        match (answer, &self.at) {
            (Err(Fault { not_begun: Some(NotBegun::TooLate), .. }), _) => {
                Some(Err(self.cluster.too_late(self.partition)))
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

/// Asks in these attempts, each of which brings the Redis to ask. Not a function: what an async closure borrows may not go
/// to another thread.
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

/// How long a call goes on.
struct Patience {
    began: Instant,
    pause: Duration,
    /// There is no second attempt.
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
