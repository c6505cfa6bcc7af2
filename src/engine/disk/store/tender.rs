//! Whether a thread tends the store, and how it is called. Knows nothing of what it does.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Whether there is something to do, and somebody who does it.
#[derive(Debug, Default)]
pub struct Tending {
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_tended: bool,
    is_called: bool,
}

/// A thread tends the store as long as this lives.
#[derive(Debug)]
pub struct Tender<'a>(&'a Tending);

impl Drop for Tender<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_tended = false;
    }
}

impl Tender<'_> {
    /// Waits until there is something to do, or for this long.
    pub fn wait(&self, time: Duration) {
        let mut state = self.0.state.lock();
        self.0.called.wait_while_for(&mut state, |state| !state.is_called, time);
        state.is_called = false;
    }
}

impl Tending {
    /// From now on the caller's thread tends the store.
    pub fn tender(&self) -> Tender<'_> {
        self.state.lock().is_tended = true;
        Tender(self)
    }

    /// Calls that thread.
    pub fn call(&self) {
        self.state.lock().is_called = true;
        self.called.notify_all();
    }

    /// Whether there is such a thread.
    pub fn is_tended(&self) -> bool {
        self.state.lock().is_tended
    }
}
