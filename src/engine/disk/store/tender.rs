//! The handle of the background thread: whether there is one, and how to wake it.

use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;

/// The background thread, if there is one.
#[derive(Debug, Default)]
pub struct Tending(Mutex<Option<Thread>>);

/// Registration of the calling thread; ends on drop.
#[derive(Debug)]
pub struct Tender<'a>(&'a Tending);

impl Drop for Tender<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}

impl Tender<'_> {
    /// Waits for a wake-up or for `time`. Returns at once if there was a wake-up since the last wait.
    pub fn wait(&self, time: Duration) {
        thread::park_timeout(time);
    }
}

impl Tending {
    /// Registers the calling thread as the background thread.
    pub fn tender(&self) -> Tender<'_> {
        *self.0.lock() = Some(thread::current());
        Tender(self)
    }

    /// Wakes the background thread.
    pub fn call(&self) {
        if let Some(thread) = &*self.0.lock() {
            thread.unpark();
        }
    }

    /// Returns whether a background thread is registered.
    pub fn is_tended(&self) -> bool {
        self.0.lock().is_some()
    }
}
