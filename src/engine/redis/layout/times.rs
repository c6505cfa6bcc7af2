//! Spans of time as scripts take them. Knows no key and no connection.

use std::time::Duration;

use crate::clock::{self, Micros};

/// The longest delay and ttr: what lmstfy's API can ask for. Lua's numbers are exact far beyond.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// A delay or ttr for a script, in microseconds.
pub fn micros(time: Duration) -> Micros {
    clock::micros(time.min(LONGEST))
}

/// A ttl for a script, in milliseconds; never 0, which would mean forever.
pub fn ttl_millis(ttl: Duration) -> u64 {
    // Redis refuses what overflows when the present is added; a thousand years do not.
    ttl.min(Duration::from_secs(1000 * 366 * 86_400)).as_nanos().div_ceil(1_000_000).max(1) as u64
}
