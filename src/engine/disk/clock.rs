//! The pool's clock: the one it was given, moved ahead if the store has seen a later time already. Knows no
//! database.

use std::sync::Arc;

use crate::clock::{Clock, Millis};

/// Tells the pool's time. It never falls back, neither while the store is open nor over a restart on a
/// machine whose clock was set back. In the latter case it goes on from the latest time that was stored: a
/// delay takes as long as it was asked to, and nobody waits for a wrong clock to be caught up with.
#[derive(Clone, Debug)]
pub struct PoolClock {
    clock: Arc<dyn Clock>,
    ahead: Millis,
}

impl PoolClock {
    /// A clock that tells `seen` or later.
    pub fn new(clock: Arc<dyn Clock>, seen: Millis) -> PoolClock {
        let ahead = seen.saturating_sub(clock.now());
        PoolClock { clock, ahead }
    }

    /// Now.
    pub fn now(&self) -> Millis {
        self.clock.now().saturating_add(self.ahead)
    }

    /// Now, rounded up: what delays and ttrs are counted from.
    pub fn now_up(&self) -> Millis {
        self.clock.now_up().saturating_add(self.ahead)
    }

    /// How far ahead it is of the clock it was given, in milliseconds.
    pub fn ahead(&self) -> Millis {
        self.ahead
    }
}
