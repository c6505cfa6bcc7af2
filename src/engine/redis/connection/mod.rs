//! Connections to a Redis: making them, keeping them, and what becomes of calls when they break. Knows no job.

pub mod connector;
pub mod fault;
pub mod master;
pub mod open;
pub mod reconnect;
pub mod sentinel;
pub mod shared;
pub mod status;
