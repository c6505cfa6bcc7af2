//! Shared by the benchmarks. They are real clients of the real binary: nothing here accesses a server's internals.
#![allow(dead_code)] // every benchmark compiles all of this and calls some of it

pub mod client;
pub mod faults;
pub mod known;
pub mod ledger;
pub mod load;
pub mod nginx;
pub mod park;
pub mod proc;
pub mod receiver;
pub mod report;
pub mod setup;

#[path = "../../tests/support/fake_names.rs"]
pub mod fake_names;
#[path = "../../tests/support/shim.rs"]
mod shim;

#[path = "../../tests/support/process.rs"]
mod process;
#[path = "../../tests/support/redis_cluster.rs"]
pub mod redis_cluster;
#[path = "../../tests/support/redis_cluster_bus.rs"]
pub mod redis_cluster_bus;
#[path = "../../tests/support/redis_cluster_faults.rs"]
mod redis_cluster_faults;
#[path = "../../tests/support/redis_connection.rs"]
mod redis_connection;
#[path = "../../tests/support/redis_restart.rs"]
mod redis_restart;
#[path = "../../tests/support/redis_server.rs"]
pub mod redis_server;
#[path = "../../tests/support/redis_stall.rs"]
mod redis_stall;
#[path = "../../tests/support/wait.rs"]
mod wait;

/// A benchmark that cannot continue returns the reason, and counts as failed.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
