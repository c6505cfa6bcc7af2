//! What several test binaries share. Each binary uses a part of it.
#![allow(dead_code)] // every test binary compiles all of this and calls some of it

pub mod admin;
pub mod gated;
pub mod model;
pub mod notified;
pub mod process;
pub mod recorded;
pub mod redis_server;
pub mod server;
pub mod stage;
