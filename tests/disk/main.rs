//! What only the disk engine has: files, crashes, damage, faults of the disk.

mod common;
mod crash;
mod damage;
mod faults;
mod model;
mod open;
mod upkeep;
mod verbs;

#[path = "../support"]
mod support {
    pub mod consume;
    pub mod engine_ext;
    pub mod faults;
    pub mod model;
    pub mod shim;
    pub mod wait;
}
