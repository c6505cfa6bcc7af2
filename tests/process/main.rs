//! The binaries as operators use them: flags, files, signals, exit codes, clocks, fleets, failovers, faults and power
//! cuts. Also checks the form of the source.

mod access_list;
mod architecture;
mod backup;
mod balancer;
mod cli_output;
mod clock;
mod commands;
mod config_files;
mod containers;
mod dashboard_proxied;
mod disk_faults;
mod documents;
mod faketime;
mod fleet;
mod logs;
mod monitoring;
mod power_cut;
mod probes;
mod queue_cli;
mod redis_stall;
mod schedules;
mod sentinel_failover;
mod sentinels;
mod server;
mod tls;
mod token_cli;
mod wrong_configurations;

#[path = "../support"]
mod support {
    pub mod certificates;
    pub mod client;
    pub mod complaints;
    pub mod faults;
    #[path = "unheld.rs"]
    pub mod held;
    pub mod nginx;
    pub mod process;
    pub mod redis_cluster;
    pub mod redis_connection;
    pub mod redis_server;
    pub mod redis_stall;
    pub mod servers;
    pub mod shim;
    pub mod wait;
}
