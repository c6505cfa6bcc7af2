//! Parsing of requests: path, query, headers and body, authorization, and origin; also the tables of routes. Of `http`
//! it imports `answer` and `state`.

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
