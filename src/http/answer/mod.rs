//! How requests are answered: the table of errors, the JSON, and the memory that large bodies may take. Imports nothing
//! else of `http`.

pub mod delivered;
pub mod error;
pub mod reply;
pub mod room;
