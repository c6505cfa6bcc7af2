//! Whether a thread tends the store, and how it is called. Knows nothing of what it does.

use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;

/// The thread that tends the store, if there is one.
#[derive(Debug, Default)]
pub struct Tending(Mutex<Option<Thread>>);

/// A thread tends the store as long as this lives.
#[derive(Debug)]
pub struct Tender<'a>(&'a Tending);

impl Drop for Tender<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}

impl Tender<'_> {
    /// Waits until it is called, or for this long. At once if it was called since it last waited.
    pub fn wait(&self, time: Duration) {
        thread::park_timeout(time);
    }
}

impl Tending {
    /// From now on the caller's thread tends the store.
    pub fn tender(&self) -> Tender<'_> {
        *self.0.lock() = Some(thread::current());
        Tender(self)
    }

    /// Calls that thread.
    pub fn call(&self) {
        if let Some(thread) = &*self.0.lock() {
            thread.unpark();
        }
    }

    /// Whether there is such a thread.
    pub fn is_tended(&self) -> bool {
        self.0.lock().is_some()
    }
}
