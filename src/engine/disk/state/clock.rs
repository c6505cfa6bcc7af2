//! The pool's clock: the one it was given, moved ahead if the store has seen a later time already. Knows no
//! database.

use std::sync::Arc;

use crate::clock::{Clock, Micros, Millis};

/// Tells the pool's time. It never falls back, neither while the store is open nor over a restart on a
/// machine whose clock was set back. In the latter case it goes on from the latest time that was stored: a
/// delay takes as long as it was asked to, and nobody waits for a wrong clock to be caught up with.
#[derive(Clone, Debug)]
pub struct PoolClock {
    clock: Arc<dyn Clock>,
    ahead: Micros,
}

impl PoolClock {
    /// A clock that tells `seen` or later.
    pub fn new(clock: Arc<dyn Clock>, seen: Micros) -> PoolClock {
        let ahead = seen.saturating_sub(clock.now_micros());
        PoolClock { clock, ahead }
    }

    /// Now, as timers count.
    pub fn now_micros(&self) -> Micros {
        self.clock.now_micros().saturating_add(self.ahead)
    }

    /// Now.
    pub fn now(&self) -> Millis {
        self.now_micros() / 1000
    }

    /// How far ahead it is of the clock it was given.
    pub fn ahead(&self) -> Micros {
        self.ahead
    }
}
