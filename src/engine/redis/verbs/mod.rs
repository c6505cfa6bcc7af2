//! One file for each verb of the engine: the call that is sent, and what its answer means. Makes no connection, and no
//! key that layout/ does not make.

pub mod ack;
pub mod check;
pub mod consume;
pub mod dead_letter;
pub mod delays;
pub mod destroy;
pub mod give_back;
pub mod hand_over;
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
pub mod stats;
