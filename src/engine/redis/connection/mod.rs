//! Connections to a Redis: opening them, reopening them, and the errors of calls whose connection breaks. Independent
//! of jobs.

pub mod connector;
pub mod fault;
pub mod master;
pub mod open;
pub mod reconnect;
pub mod sentinel;
pub mod shared;
pub mod status;
