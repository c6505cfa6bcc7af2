//! Pages of queues: of one queue its statistics, jobs, actions and push setting; of all queues the dead jobs and the
//! bulk actions.

pub mod asks;
pub mod bulk;
pub mod change;
pub mod dead;
pub mod due;
pub mod job;
pub mod jobs;
pub mod push;
pub mod show;
pub mod statistics;
