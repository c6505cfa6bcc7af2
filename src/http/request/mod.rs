//! What a request says: its path, query, headers and body, whose it is, and from where it came; and how a table says
//! which handler it goes to. Of `http` it imports
//! `answer` and `state`.

pub mod attributes;
pub mod batch;
pub mod body;
pub mod bounded;
pub mod extract;
pub mod origin;
pub mod params;
pub mod path;
pub mod peer;
pub mod table;
