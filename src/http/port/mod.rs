//! The path of a request from its connection to a handler. Of `http` it imports `answer`, `state` and `request`; the
//! fast path knows three handlers of `jobs`.

pub mod accept;
pub mod connection;
pub mod fast_path;
pub mod head_timer;
pub mod middleware;
pub mod opening;
pub mod stream;
