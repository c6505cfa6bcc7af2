//! lmstfy's layout: the keys, the values and the scripts of lua/. Knows no connection's life.

pub mod keys;
pub mod scripts;
pub mod value;
