//! The pages of queues: of one its figures, its jobs, what can be done with them and what it is pushed to; of all of them
//! the dead jobs and the bulk actions.

pub mod asks;
pub mod bulk;
pub mod change;
pub mod dead;
pub mod due;
pub mod figures;
pub mod job;
pub mod jobs;
pub mod push;
pub mod show;
