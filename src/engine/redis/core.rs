//! What the engine in lmstfy's layout, its verbs and its tasks have in common: the link to the Redis, and what this
//! process remembers.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::Mutex;

use super::batches::Plain;
use super::cache::RecordedQueues;
use super::copies::Copies;
use super::counting::Counting;
use super::layout::scripts::Scripts;
use super::link::Link;
use super::pauses::Pauses;
use super::timer_counts::TimerCounts;
use crate::engine::batch::Caller;
use crate::engine::next_due::NextDue;
use crate::engine::{Published, ScheduleStep, Stepped};

/// What the engine and its tasks have in common.
#[derive(Debug)]
pub(crate) struct RedisCore {
    pub(super) link: Arc<Link>,
    /// Publications that share script calls.
    pub(super) publishes: Caller<Plain, Published>,
    /// Steps of schedules that share script calls. `None`: something must be deleted first.
    pub(super) steps: Caller<ScheduleStep, Option<Stepped>>,
    pub(super) scripts: Scripts,
    pub(super) next_due: NextDue,
    pub(super) recorded_queues: RecordedQueues,
    pub(super) pauses: Pauses,
    pub(super) copies: Copies,
    /// Held by who finishes destroys of others.
    pub(super) finishing: Mutex<()>,
    /// Held by who looks for a job in a long dead letter, and when the next such look may begin.
    pub(super) far_looks: Mutex<Option<tokio::time::Instant>>,
    /// When a pump has begun that last, in microseconds.
    pub(super) looked_for_dropped: AtomicU64,
    pub(super) quotas: Counting,
    /// How many jobs are delayed and running, as far as it is not written down yet.
    pub(super) timer_counts: TimerCounts,
}

impl Deref for RedisCore {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}
