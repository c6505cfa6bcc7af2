//! Moves due jobs. One task per store: it sleeps until the next job is due, or until this process stores one
//! that is due earlier. While more jobs are due it does not pause. It sleeps by the monotonic clock, and looks each
//! second whether the store's clock was set ahead meanwhile. Knows no queue and no consumer.

pub mod timer;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use self::timer::Timer;
use crate::clock::Millis;
use crate::engine::Engine;
use crate::outage::Outage;

/// The shortest time from one pump to the next, unless more is due already. It bounds the calls per second when
/// jobs come due one by one, and makes them late by at most this much.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// After a failure the pump waits this long, and twice as long after each further one, up to `LONGEST_RETRY`.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// How often a long sleep looks at the store's clock.
const LOOK: Duration = Duration::from_secs(1);

/// Pumps until `stop`. Tells `outage` whether each step worked. Fails only with its timer.
pub async fn run(engine: Arc<dyn Engine>, outage: Arc<Outage>, stop: CancellationToken) -> io::Result<()> {
    let mut timer = Timer::new()?;
    let mut retry = None;
    while !stop.is_cancelled() {
        // The store's clock before the pump: it may be set ahead while the pump is under way.
        let (began, clock) = (Instant::now(), engine.now());
        let pumped = engine.pump().await;
        outage.report(&pumped);
        let wait = match pumped {
            Ok(pumped) => {
                retry = None;
                if pumped.next.is_zero() && pumped.moved > 0 {
                    // More is due: pump again, after other tasks had their turn.
                    tokio::task::yield_now().await;
                    continue;
                }
                pumped.next
            }
            Err(_) => *retry.insert(retry.map_or(FIRST_RETRY, |last: Duration| LONGEST_RETRY.min(last * 2))),
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            // While the store is away nothing can be stored either, so only the retry wakes the pump.
            () = engine.due_earlier(), if retry.is_none() => {}
            slept = sleep(&*engine, clock, wait, &mut timer) => slept?,
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            slept = timer.sleep(SHORTEST_PAUSE.saturating_sub(began.elapsed())) => slept?,
        }
    }
    Ok(())
}

/// Returns after `wait`, or when so much time has passed by the store's clock since it said `clock`: it is set ahead, or
/// the machine sleeps, and jobs are due that were not.
async fn sleep(engine: &dyn Engine, clock: Millis, wait: Duration, timer: &mut Timer) -> io::Result<()> {
    let due = Instant::now() + wait;
    let due_there = clock.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    loop {
        let left = due.saturating_duration_since(Instant::now());
        timer.sleep(left.min(LOOK)).await?;
        if left <= LOOK || engine.now() >= due_there {
            return Ok(());
        }
    }
}
