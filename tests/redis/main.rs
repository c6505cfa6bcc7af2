//! What only the Redis engine has: bytes, outages, stalls, Sentinels, several servers on one Redis.

mod common;
mod fake_sentinel;
mod faults;
mod kill;
mod ledger;
mod proxy;
mod sentinel;
mod sentinel_failover;
mod sentinels;
mod stall;
mod storage;
mod stumbles;
mod verbs;

#[path = "../support"]
mod support {
    pub mod client;
    pub mod jobs;
    pub mod notified;
    pub mod process;
    pub mod redis_server;
    pub mod servers;
    pub mod stage;
    pub mod stores;
    pub mod timeout;
}
