//! Conversations about push: whole servers, and endpoints that they push to.

mod addresses;
mod answers;
mod conversations;
mod docs;
mod outages;
mod pushed;
mod receiver;
mod secrets;
mod settings;
mod tinyproxy;
mod tls;
mod traces;

#[path = "../support"]
mod support {
    pub mod certificates;
    pub mod client;
    pub mod fake_names;
    #[path = "unheld.rs"]
    pub mod held;
    pub mod nginx;
    pub mod process;
    pub mod redis_connection;
    pub mod redis_restart;
    pub mod redis_server;
    pub mod servers;
    pub mod shim;
    pub mod wait;
}
