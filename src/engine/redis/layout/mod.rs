//! lmstfy's layout: the keys, the values and the scripts of lua/. Opens no connection.

pub mod keys;
pub mod scripts;
pub mod times;
pub mod value;
