//! Responses: the mapping of errors, JSON, and body memory. Imports nothing else of `http`.

pub mod delivered;
pub mod error;
pub mod reply;
pub mod room;
