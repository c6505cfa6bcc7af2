//! Steps of schedules on their way to a partition, and what became of them. Sends nothing.

use super::partitions::Partition;
use crate::clock::Millis;
use crate::engine::batch::BatchSize;
use crate::engine::{ScheduleStep, Stepped};

/// What a publication may add to what its namespace has, or has added: jobs, bytes, queues.
pub type Usage = [i64; 3];

/// A step on its way to a partition.
#[derive(Clone, Debug)]
pub struct Addressed {
    pub home: Partition,
    pub step: ScheduleStep,
    /// The partition that it moves to.
    pub to: Option<Partition>,
    /// It moves, or has.
    pub moves_on: bool,
    /// No revision of the name was above it.
    pub floor: u64,
    pub not_after: Option<Millis>,
    /// What its job may add in a namespace with a quota.
    pub admit: Option<Usage>,
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Told {
    /// And what its job has added.
    Stepped(Stepped, Usage),
    /// It is on its way to another partition.
    Moving,
    /// Its job would add so much, and may not.
    Needs(Usage),
}

impl BatchSize for Addressed {
    fn items(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.step.bytes()
    }
}

impl Addressed {
    pub fn plain(home: Partition, step: ScheduleStep) -> Addressed {
        Addressed { home, step, to: None, moves_on: false, floor: 0, not_after: None, admit: None }
    }
}
