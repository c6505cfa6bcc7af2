//! Moves due jobs. One task per store sleeps until the next job is due or until this process stores one that is due
//! earlier. While more jobs are due it does not pause. It sleeps by the monotonic clock, and checks each second whether
//! the store's clock was set ahead meanwhile.

pub mod timer;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::timer::Timer;
use crate::clock::Millis;
use crate::engine::Engine;
use crate::engine::notifier::Notifier;
use crate::outage::Outage;

/// Minimum time between two pumps, unless more jobs are already due. Bounds the calls per second when jobs come due one
/// by one, and delays them by at most this much.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// Pause after the first failure; doubles with each further one, up to `LONGEST_RETRY`.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Interval for rereading the store's clock during a long sleep.
const LOOK: Duration = Duration::from_secs(1);

/// Is notified while the pump sleeps.
#[derive(Debug, Default)]
struct Wake(Notify);

impl Notifier for Wake {
    fn due_earlier(&self) {
        self.0.notify_one();
    }
}

/// Pumps until `stop`, reporting the result of each step to `outage`. Fails only if its timer fails.
pub async fn run(engine: Arc<dyn Engine>, outage: Arc<Outage>, stop: CancellationToken) -> io::Result<()> {
    let mut timer = Timer::new()?;
    let mut retry = None;
    let wake = Arc::new(Wake::default());
    let notifier: Arc<dyn Notifier> = wake.clone();
    engine.attach(Arc::downgrade(&notifier));
    while !stop.is_cancelled() {
        // A pump that has not begun sees the jobs of earlier notifications.
        let _ = wake.0.notified().now_or_never();
        // Read before the pump, since the store's clock may be set ahead during it.
        let (began, clock) = (Instant::now(), engine.now());
        let pumped = engine.pump().await;
        outage.report(&pumped);
        let wait = match pumped {
            Ok(pumped) => {
                retry = None;
                if pumped.next.is_zero() && pumped.moved > 0 {
                    // More is due: pump again after other tasks had their turn.
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
            // During an outage nothing can be stored, so only the retry wakes the pump.
            () = wake.0.notified(), if retry.is_none() => {}
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

/// Returns after `wait`, or earlier once the store's clock has advanced by `wait` since `clock`: it was set ahead, or
/// the machine slept.
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
