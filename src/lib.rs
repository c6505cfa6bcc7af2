//! Dormouse: a delayed task queue server. Jobs sleep until they are due, are handed to exactly one worker at a
//! time, and come back if the worker dies. It speaks lmstfy's HTTP API.
//!
//! # Modules
//!
//! - [`name`], [`job`], [`error`], [`clock`], [`outage`]: plain values that everybody may use.
//! - [`config`]: every key, once. [`process`]: its log, pid file, open files, tasks and version.
//! - [`engine`]: the trait that every store of jobs implements; [`engine::disk`] and [`engine::redis`]; the
//!   wrappers [`engine::metered`] and [`engine::migration`].
//! - [`dispatch`]: long polls: consumers wait here until they get jobs. [`pump`]: moves due jobs.
//! - [`admin`]: tokens, limits and quotas: their rules, and where they are kept.
//! - [`push`]: sends the jobs of a queue to a URL; [`push::store`] is what all servers share of it.
//! - [`metrics`]: every metric family, once.
//! - [`http`]: routes, extractors, handlers, error table, middleware, connections.
//! - [`server`]: puts all of it together. [`cli`]: `dormouse queue` and `token-cli`, clients.
//!
//! # Who may use whom
//!
//! `main → server → {http, push, dispatch, pump, concrete engines}`, `http → {push, dispatch, engine trait, admin,
//! metrics} → {job, name, error}`, `push → {dispatch, engine trait, metrics}`. Only [`server`] names a concrete
//! engine; only [`http`] knows axum; only [`http`], [`push`] and [`cli`] know hyper; only `engine::redis`, `admin::redis` and
//! `push::store::redis` know Redis; only [`metrics`] names a metric.
//! tests/architecture.rs lists what each module may import, and checks it.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dispatch;
pub mod engine;
pub mod error;
pub mod http;
pub mod job;
pub mod metrics;
pub mod name;
pub mod outage;
pub mod process;
pub mod pump;
pub mod push;
pub mod server;
