//! Durations as arguments of scripts. Independent of keys and connections.

use std::time::Duration;

use crate::clock::{self, Micros};

/// Longest delay and ttr: the maximum that lmstfy's API accepts. Lua's numbers are exact far beyond.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Returns a delay or ttr in microseconds, for a script.
pub fn micros(time: Duration) -> Micros {
    clock::micros(time.min(LONGEST))
}

/// Returns a ttl in milliseconds, for a script; never 0, which would mean forever.
pub fn ttl_millis(ttl: Duration) -> u64 {
    // Redis refuses a ttl that overflows when added to the current time; a thousand years do not overflow.
    ttl.min(Duration::from_secs(1000 * 366 * 86_400)).as_nanos().div_ceil(1_000_000).max(1) as u64
}
