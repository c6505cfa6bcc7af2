//! What the parts that stand on a store keep: the dispatcher, a pool that moves, tokens, limits. In virtual time, without
//! a server.

mod dispatch;
mod migration;
mod throttle;
mod tokens;
