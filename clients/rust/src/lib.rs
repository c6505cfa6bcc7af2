//! Client and worker of Dormouse, a delayed task queue server.
//!
//! [`Client`] has every verb of the server. [`Worker`] consumes jobs, extends their deliveries while handlers run,
//! retries failures, and stops gracefully. [`verify`] checks requests of push. [`double`] is an in-process server for
//! tests.
//!
//! `error`, `time`, `connect`, `transport` and `request` know no verb; `client` and `lists` know no worker; `hold` is
//! one delivery of a job, used by both; `worker` is above them.

mod client;
mod connect;
pub mod double;
mod error;
mod hold;
mod job;
mod lists;
mod request;
mod signature;
mod time;
pub mod transport;
mod worker;

pub use client::{Builder, Client, Consume, Publish, Respawn};
pub use error::{Error, ErrorKind, Result};
pub use futures_util::{Stream, StreamExt, TryStreamExt};
pub use hold::Cause;
pub use job::{
    Acked, Attributes, BodyError, DeadLetter, Job, JobInfo, NewJob, OnConflict, Outcome, Published,
    QueueInfo, Released, Respawned, State, TRACEPARENT,
};
pub use lists::{Jobs, Queues};
pub use signature::{SignatureError, verify, verify_at};
pub use time::At;
pub use worker::{Ended, Event, Next, Stopper, Worker, WorkerError};

/// Compiles the blocks of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/clients/rust.md")]
mod documentation {}
