//! Dormouse: a delayed task queue server. Jobs sleep until they are due, are handed to exactly one worker at a
//! time, and come back if the worker dies.
//!
//! # The house
//!
//! - [`name`], [`job`], [`error`], [`clock`]: plain values that everybody may use.
//! - [`engine`]: the trait that every store of jobs implements, and the stores.
//! - [`admin`]: where tokens and limits are kept; [`token`] and [`throttle`]: the rules about them.

pub mod admin;
pub mod clock;
pub mod engine;
pub mod error;
pub mod job;
pub mod name;
pub mod throttle;
pub mod token;
