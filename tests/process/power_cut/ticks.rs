//! Time that passes only while this machine works: a thread counts it at each of its wake-ups. While the machine stalls,
//! both this thread and the recorded server wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::load::nanoseconds;

/// Pause between two ticks.
pub const TICK: Duration = Duration::from_millis(10);
/// Longest time between two ticks that counts. A longer one is a stall.
const MOST: Duration = Duration::from_millis(100);

/// A wake-up.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// In nanoseconds since 1970.
    pub at: u64,
    /// Time since the previous one, without stalls.
    pub passed: Duration,
}

/// Records ticks until stopped.
pub struct Ticker {
    thread: JoinHandle<Vec<Tick>>,
    stopped: Arc<AtomicBool>,
}

impl Ticker {
    pub fn start() -> Ticker {
        let stopped = Arc::<AtomicBool>::default();
        let stop = stopped.clone();
        let thread = std::thread::spawn(move || {
            let (mut ticks, mut last) = (Vec::new(), Instant::now());
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                let now = Instant::now();
                let passed = (now - std::mem::replace(&mut last, now)).min(MOST);
                ticks.push(Tick { at: nanoseconds(), passed });
            }
            ticks
        });
        Ticker { thread, stopped }
    }

    /// Returns all ticks.
    pub fn stop(self) -> Vec<Tick> {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.join().expect("it ticks without a panic")
    }
}
