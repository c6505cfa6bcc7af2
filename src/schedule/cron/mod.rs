//! Expressions of five or six fields. `fields`: one that was read, and which local times it names; `parse`: reads its
//! text. They know no zone.

mod fields;
mod parse;

pub use self::fields::Cron;
pub use self::parse::{CronError, Part};
