//! The handlers of the admin port, their authorization, and the audit log. Within `http`, they import `answer`,
//! `state` and `request`.

pub mod audit;
pub mod backup;
pub mod bulk;
pub mod cluster;
pub mod dead;
pub mod delays;
pub mod logins;
pub mod names;
pub mod openapi;
pub mod operations;
pub mod push;
pub mod queues;
pub mod quotas;
pub mod roles;
pub mod servers;
pub mod sums;
pub mod tokens;
