//! The steps of a store in the compact layout, as methods of [`CompactCore`](super::core::CompactCore): each is one script
//! call, or several where its file says so.

mod ack;
mod consume;
mod consume_spread;
mod dead_letter;
mod delays;
mod hand_over;
mod inspect;
mod list_jobs;
mod list_spread;
mod pause;
mod publish;
mod publish_call;
mod publish_parts;
mod publish_spread;
mod pump;
mod queues;
pub mod quotas;
mod read_schedules;
mod schedule_keys;
pub mod schedules;
mod spread;
