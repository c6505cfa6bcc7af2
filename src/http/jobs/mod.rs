//! The handlers of the public port. Within `http`, they import `answer`, `state` and `request`.

pub mod admission;
pub mod consume;
pub mod dead_letter;
pub mod hold;
pub mod lists;
pub mod pause;
pub mod promote;
pub mod publish;
