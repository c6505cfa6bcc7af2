//! One file per verb of the engine, or for a few related ones: sends the call and interprets the reply. Opens no
//! connection, and uses only keys made by layout/.

pub mod ack;
pub mod check;
pub mod consume;
pub mod dead_letter;
pub mod delays;
pub mod destroy;
pub mod give_back;
pub mod held;
pub mod inspect;
pub mod keys;
pub mod list_jobs;
pub mod list_places;
pub mod list_queues;
pub mod list_timers;
pub mod packed;
pub mod peek;
pub mod promote;
pub mod publish;
pub mod pump;
pub mod quotas;
pub mod respawn_jobs;
pub mod stats;
pub mod timer_counts;
