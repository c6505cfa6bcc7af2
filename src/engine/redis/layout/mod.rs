//! lmstfy's layout: keys, values, the scripts of lua/, and their arguments. Opens no connection.

pub mod fields;
pub mod keys;
pub mod packed;
pub mod script_call;
pub mod scripts;
pub mod times;
pub mod value;
