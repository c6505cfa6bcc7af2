//! What callers ask of the writer thread, and what it answers. Each [`Op`] is one atomic step of bounded
//! work; where a method of the engine may need more, the caller asks again.

use std::time::Duration;

use bytes::Bytes;

use super::store::Space;
use crate::admin::{Limit, TokenKey};
use crate::engine::batch::BatchSize;
use crate::engine::{DeadLetter, Pumped, Stats, Want};
use crate::job::{Job, JobRef, NewJob};
use crate::name::{Queue, QueueList};

/// The most entries that one op touches beyond what it hands out, so that others interleave.
pub const STEP: usize = 1000;
/// The most bytes of records that one op rewrites.
pub const STEP_BYTES: usize = 8 << 20;

/// One step.
#[derive(Debug)]
pub enum Op {
    Publish(Vec<NewJob>),
    Republish(JobRef, Box<NewJob>),
    Consume(QueueList, Vec<Want>),
    /// Jobs with their receipts.
    GiveBack(Vec<(JobRef, u64)>),
    Ack(JobRef),
    Peek(Queue),
    PeekJob(JobRef),
    Size(Queue),
    Destroy(Queue, Option<Destroying>),
    DeadLetter(Queue),
    Respawn(Queue, u64, Option<Duration>),
    DeleteDead(Queue, u64),
    Pump(usize),
    Queues,
    Stats,
    /// Does nothing; answers when the writer is alive.
    Check,
    /// One step of the sweep; hands in what became of what the last one asked for.
    Sweep(Report),
    Admin(AdminOp),
    Close,
}

impl Op {
    /// Whether a power cut must not take back what was answered. A hand-over or a move that is taken back is
    /// done again: the job comes once more, as it may at any time.
    pub fn must_last(&self) -> bool {
        match self {
            Op::Publish(_) | Op::Republish(..) | Op::Ack(_) | Op::Destroy(..) => true,
            Op::Respawn(..) | Op::DeleteDead(..) | Op::Admin(_) | Op::Close => true,
            Op::Consume(..) | Op::GiveBack(_) | Op::Pump(_) | Op::Sweep(_) => false,
            Op::Peek(_) | Op::PeekJob(_) | Op::Size(_) | Op::DeadLetter(_) => false,
            Op::Queues | Op::Stats | Op::Check => false,
        }
    }
}

/// How far a destroy has come.
#[derive(Clone, Copy, Debug)]
pub struct Destroying {
    /// Everything up to this number is done with.
    pub after: u64,
    /// Jobs that became ready later have larger numbers.
    pub last: u64,
}

/// A change of tokens or limits.
#[derive(Debug)]
pub enum AdminOp {
    AddToken(TokenKey, String),
    RemoveToken(TokenKey),
    AddLimit(TokenKey, Limit),
    SetLimit(TokenKey, Limit),
    RemoveLimit(TokenKey),
}

/// What a step did.
#[derive(Debug)]
pub enum Answer {
    Done,
    Jobs(Vec<Vec<Job>>),
    Job(Option<Job>),
    Count(u64),
    /// How many, and whether there may be more.
    Some(u64, bool),
    /// Nothing to show yet: ask again.
    Again,
    Destroying(Option<Destroying>),
    DeadLetter(DeadLetter),
    Pumped(Pumped),
    Queues(Vec<Queue>),
    Stats(Box<Stats>),
    Swept(Swept),
    /// Whether anything changed.
    Changed(bool),
}

/// What a step of the sweep did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Whether it came to the end; the next one begins anew.
    pub done: bool,
    /// How many entries and queues it took out.
    pub removed: usize,
    /// What the caller should do now.
    pub upkeep: Upkeep,
}

/// Work on the files, beside the writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Whether to write out what is in memory: before a compaction, and to be rid of journals at rest.
    pub write_out: bool,
    /// Keyspaces whose garbage outweighs what lives in them. They are asked for again until they are reported.
    pub compact: Vec<Space>,
    /// Whether the store rests: then nobody but upkeep has replaced files deleted.
    pub rests: bool,
}

/// What became of the work on the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Keyspaces that were compacted.
    pub compacted: Vec<Space>,
    /// Whether it is too soon after the last compaction for one that has live entries to rewrite.
    pub too_soon: bool,
}

impl BatchSize for Op {
    fn items(&self) -> usize {
        match self {
            Op::Publish(jobs) => jobs.len(),
            Op::Consume(_, wants) => wants.iter().map(|want| usize::from(want.count)).sum(),
            Op::GiveBack(jobs) => jobs.len(),
            Op::Pump(limit) => (*limit).min(STEP),
            Op::Destroy(..) | Op::Respawn(..) | Op::DeleteDead(..) => STEP,
            _ => 1,
        }
    }

    fn bytes(&self) -> usize {
        let body = |job: &NewJob| job.body.len();
        match self {
            Op::Publish(jobs) => jobs.iter().map(body).sum(),
            Op::Republish(_, job) => body(job),
            _ => 0,
        }
    }
}

/// Where a walk over keys goes on.
pub type Cursor = Option<Bytes>;
