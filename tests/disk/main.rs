//! What only the disk engine has: files, crashes, damage, faults of the disk, power cuts.

mod common;
mod crash;
mod damage;
mod faults;
mod model;
mod open;
mod power_cut;
mod upkeep;
mod verbs;

#[path = "../support"]
mod support {
    pub mod client;
    pub mod jobs;
    pub mod model;
    pub mod process;
    pub mod shim;
    pub mod stage;
    pub mod timeout;
}
