//! lmstfy's layout: the keys, the values, and the scripts of lua/ and what they take. Opens no connection.

pub mod fields;
pub mod keys;
pub mod script_call;
pub mod scripts;
pub mod times;
pub mod value;
