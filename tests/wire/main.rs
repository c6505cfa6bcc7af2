//! HTTP conversations with whole servers. `on_each_store!` makes two tests of one: on disk and on Redis.

mod admin;
mod body_memory;
mod bulk;
mod cluster;
mod common;
mod connections;
mod dashboard;
mod delays;
mod fuzz;
mod http;
mod metrics;
mod moving;
mod openapi;
mod outage;
mod player;
mod polls;
mod preview;
mod queues;
mod quotas;
mod recorded;
mod requests;
mod roles;
mod schedules;
mod servers;
mod slow_admin;
mod slow_proxy;
mod statuses;
mod strangers;
mod verbs_hold;
mod verbs_lists;
mod verbs_pause;
mod verbs_publish;

#[path = "../support"]
mod support {
    pub mod client;
    pub mod complaints;
    #[path = "../wire/held.rs"]
    pub mod held;
    pub mod process;
    #[allow(dead_code)] // a killed master is not replaced here
    pub mod redis_cluster;
    #[allow(dead_code)]
    pub mod redis_cluster_faults;
    pub mod redis_connection;
    pub mod redis_restart;
    pub mod redis_server;
    pub mod redis_stall;
    pub mod servers;
    pub mod wait;
}
