//! What hooks are told.

use std::time::Duration;

use crate::error::Error;
use crate::job::Job;

/// Something that happened to a worker.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A poll was answered, or failed.
    Poll {
        /// How many jobs came.
        jobs: usize,
        /// How long it took.
        took: Duration,
        /// Why it failed.
        error: Option<&'a Error>,
    },
    /// A handler begins.
    Start {
        /// Its job.
        job: &'a Job,
    },
    /// What became of a job.
    Finish {
        /// The job.
        job: &'a Job,
        /// What became of it.
        outcome: Ended,
        /// How long its handler ran.
        took: Duration,
        /// How long ago it was published.
        elapsed: Duration,
    },
    /// A job was touched.
    Touch {
        /// The job.
        job: &'a Job,
        /// Why it could not be.
        error: Option<&'a Error>,
    },
    /// Polls fail from now on; told once an outage.
    Away {
        /// Why.
        error: &'a Error,
    },
    /// Polls work again.
    Back {
        /// How long they did not.
        after: Duration,
    },
    /// The worker takes no more jobs.
    Drain {
        /// How many handlers are at work.
        running: usize,
    },
}

/// What became of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// It is done.
    Acked,
    /// It comes again, or has died of it.
    Released,
    /// It is in the dead letter.
    Buried,
    /// It comes again, the try given back.
    Snoozed,
    /// The worker stopped, and gave it back.
    Returned,
    /// It is not ours any more.
    Lost,
}

impl Ended {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Acked => "acked",
            Ended::Released => "released",
            Ended::Buried => "buried",
            Ended::Snoozed => "snoozed",
            Ended::Returned => "returned",
            Ended::Lost => "lost",
        }
    }
}
