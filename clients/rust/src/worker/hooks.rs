//! Events for hooks.

use std::time::Duration;

use crate::error::Error;
use crate::job::Job;

/// An event of a worker.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A poll has ended, or failed.
    Poll {
        /// Number of jobs received.
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
    /// A job is finished.
    Finish {
        /// The job.
        job: &'a Job,
        /// Its result.
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
        /// Why it failed.
        error: Option<&'a Error>,
    },
    /// Polls begin to fail; reported once per outage.
    Away {
        /// The error.
        error: &'a Error,
    },
    /// Polls work again.
    Back {
        /// Duration of the outage.
        after: Duration,
    },
    /// The worker consumes no more jobs.
    Drain {
        /// Number of running handlers.
        running: usize,
    },
}

/// Result of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// It was acked.
    Acked,
    /// It will be retried, or has died.
    Released,
    /// It was moved to the dead letter.
    Buried,
    /// It was postponed; the try is restored.
    Snoozed,
    /// It was returned because the worker stopped.
    Returned,
    /// It is no longer ours.
    Lost,
}

impl Ended {
    /// Returns the result as a word.
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
