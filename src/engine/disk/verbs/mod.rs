//! The verbs of the engine: the reads and writes of each step, in files named as in the Redis engine. They use
//! [`step`](super::step), the [`state`](super::state) and the [`store`](super::store); [`list_jobs`] and [`quotas`]
//! also call the writer thread. They know nothing of scheduling and threads.

pub mod ack;
pub mod consume;
pub mod dead_age;
pub mod dead_letter;
pub mod delays;
pub mod destroy;
pub mod give_back;
pub mod held;
pub mod inspect;
pub mod keys;
pub mod list_jobs;
pub mod list_queues;
pub mod peek;
pub mod promote;
pub mod publish;
pub mod pump;
pub mod quotas;
pub mod respawn_jobs;
pub mod settings;
pub mod stats;
