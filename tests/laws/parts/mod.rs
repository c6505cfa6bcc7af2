//! What the parts that stand on a store keep: the dispatcher, a pool that moves, the counters,
//! push, tokens, limits, quotas. In virtual time, without a server.

mod dispatch;
mod late;
mod metered;
mod migration;
mod push;
mod push_stage;
mod quotas;
mod scheduler;
mod settings;
mod throttle;
mod tokens;
