//! The binaries as their operators meet them: flags, files, signals, clocks, exit codes, fleets. And the form of the
//! source.

mod architecture;
mod clock;
mod config_files;
mod faketime;
mod fleet;
mod queue_cli;
mod server;
mod token_cli;

#[path = "../support"]
mod support {
    pub mod client;
    pub mod process;
    pub mod receiver;
    pub mod redis_server;
    pub mod servers;
    pub mod timeout;
}
