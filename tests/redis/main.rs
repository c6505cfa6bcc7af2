//! Tests of the Redis engine beyond the laws: stored bytes, outages, Sentinels, several engines on one Redis.

mod cluster;
mod common;
mod fake_sentinel;
mod faults;
mod kill;
mod ledger;
mod packed;
mod proxy;
mod pumpers;
mod replicas;
mod sentinel;
mod spread;
mod storage;
mod stumbles;
mod timer_counts;
mod verbs;

#[path = "../support"]
mod support {
    pub mod consume;
    pub mod engine_ext;
    pub mod notified;
    pub mod redis_admin;
    pub mod redis_cluster;
    pub mod redis_cluster_bus;
    pub mod redis_cluster_faults;
    pub mod redis_connection;
    pub mod redis_restart;
    pub mod redis_server;
    pub mod redis_stall;
    pub mod wait;
}
