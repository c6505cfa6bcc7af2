//! Dormouse: a delayed task queue server. Jobs sleep until they are due, are delivered to exactly one worker at a
//! time, and come back if the worker dies. It speaks lmstfy's HTTP API.
//!
//! docs/design.md has the glossary, the map of the folders and their allowed imports, which
//! tests/process/architecture.rs enforces. src/engine/mod.rs is the contract of a store.

pub mod admin;
pub mod bulk;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dial;
pub mod dispatch;
pub mod engine;
pub mod error;
pub mod fleet;
pub mod history;
pub mod http;
pub mod job;
pub mod metrics;
pub mod name;
pub mod outage;
pub mod pauses;
pub mod process;
pub mod pump;
pub mod push;
pub mod quotas;
pub mod random;
pub mod readable;
pub mod sampler;
pub mod schedule;
pub mod scheduler;
pub mod search;
pub mod server;
pub mod settings;
pub mod time;
pub mod tls;
