//! Dormouse: a delayed task queue server. Jobs sleep until they are due, are handed to exactly one worker at a
//! time, and come back if the worker dies. It speaks lmstfy's HTTP API.
//!
//! # The house
//!
//! - [`name`], [`job`], [`error`], [`clock`]: plain values that everybody may use.
//! - [`config`]: every key, once. [`log`]: where lines go. [`limits`]: the process's own. [`version`].
//! - [`engine`]: the trait that every store of jobs implements; [`engine::disk`] and [`engine::redis`]; the
//!   wrappers [`engine::metered`] and [`engine::migration`].
//! - [`dispatch`]: long polls: parks consumers and hands jobs over. [`pump`]: moves due jobs.
//! - [`admin`]: where tokens and limits are kept; [`token`] and [`throttle`]: their rules.
//! - [`metrics`]: every metric family, once.
//! - [`http`]: routes, extractors, handlers, error table, middleware, connections.
//! - [`server`]: puts all of it together.
//!
//! # Who may use whom
//!
//! `main → server → {http, dispatch, pump, concrete engines}`, `http → {dispatch, engine trait, token,
//! throttle, metrics} → {job, name, error}`. Only [`server`] names a concrete engine; only [`http`] knows
//! axum; only `engine::redis` and `admin::redis` know Redis; only [`metrics`] names a metric. A test holds
//! these sentences (tests/house.rs).

pub mod admin;
pub mod clock;
pub mod config;
pub mod dispatch;
pub mod engine;
pub mod error;
pub mod http;
pub mod job;
pub mod limits;
pub mod log;
pub mod metrics;
pub mod name;
pub mod pid;
pub mod pump;
pub mod server;
pub mod throttle;
pub mod token;
pub mod version;
