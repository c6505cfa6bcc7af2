//! Push: in virtual time, and as conversations of whole servers with endpoints.

mod addresses;
mod answers;
mod conversations;
mod docs;
mod outages;
mod pushed;
mod secrets;
mod settings;
mod stage;
mod tinyproxy;
mod tls;
mod virtual_time;

#[path = "../support"]
mod support {
    pub mod client;
    pub mod fake_names;
    pub mod gated;
    pub mod jobs;
    pub mod model;
    pub mod nginx;
    pub mod process;
    pub mod receiver;
    pub mod redis_server;
    pub mod servers;
    pub mod shim;
    pub mod stage;
    pub mod stores;
    pub mod timeout;
}
