//! Contracts of the components above a store: the dispatcher, pauses, schedules, migrating pools, metrics, push,
//! tokens, rate limits, quotas, settings. In virtual time unless they need a Redis, and without a server.

mod dispatch;
mod late;
mod metered;
mod migration;
mod pauses;
mod push;
mod push_fleet;
mod push_stage;
mod quotas;
mod scheduler;
mod settings;
mod throttle;
mod tokens;
