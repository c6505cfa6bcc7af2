//! What several test binaries share. Each binary uses a part of it.
#![allow(dead_code, unused_imports, unused_macros)] // every test binary compiles all of this and uses some of it

pub mod admin;
pub mod client;
pub mod fake_names;
pub mod fake_sentinel;
pub mod faketime;
pub mod fuzz;
pub mod gated;
pub mod jobs;
pub mod model;
pub mod nginx;
pub mod notified;
pub mod process;
pub mod proxy;
pub mod push;
pub mod pushed;
pub mod receiver;
pub mod recorded;
pub mod redis_server;
pub mod sentinels;
pub mod servers;
pub mod shim;
pub mod slow_proxy;
pub mod stage;
pub mod stores;
pub mod tinyproxy;
pub mod tls;

pub use process::TIMEOUT;
