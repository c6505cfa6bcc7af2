//! Cron expressions of five or six fields. `fields`: a parsed expression and its local times; `parse`: the parser.
//! They know no time zone.

mod fields;
mod parse;

pub use self::fields::Cron;
pub use self::parse::{CronError, Part};
