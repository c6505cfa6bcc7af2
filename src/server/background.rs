//! Background tasks that run from the opening of the stores until the stop: pumps, schedules, samplers, push, and the
//! upkeep of tokens and quotas.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::stores::{StoreEnd, Stores};
use crate::admin::AdminStore;
use crate::engine::together;
use crate::http::{self, AppState};
use crate::outage::Outage;
use crate::process::tasks::{Failure, Tasks};
use crate::pump;
use crate::scheduler;

/// How long a server whose last pool has failed still replies with the reason.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Upper bound on the wait for the schedules to be read.
const SCHEDULES_READ: Duration = Duration::from_secs(1);
/// Pause before another attempt to read the settings.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Starts all of them. Returns once the pauses are known, and the quotas are in effect or a second has passed.
pub async fn begin(state: &Arc<AppState>, stores: Stores, tasks: &Tasks, failure: &Failure) {
    // No job is delivered before the pauses are known.
    for pool in state.pools.values() {
        while !pool.pauses.read().await {
            sleep(ASK_AGAIN).await;
        }
        let keeps = pool.pauses.clone().run(tasks.stopping().clone());
        tasks.spawn_essential(format!("the pauses of pool {}", pool.name), keeps);
    }
    // Schedules count toward quotas. If there are too many to read in time, or during an outage, the quotas take effect
    // first.
    let begun = state.pools.values().map(|pool| timeout(SCHEDULES_READ, pool.scheduler.store.begin()));
    together::all(begun).await;
    for store in state.access.quotas.stores() {
        let (quotas, stop) = (state.access.quotas.clone(), tasks.stopping().clone());
        tasks.spawn_essential("the quotas of a store", async move {
            stop.run_until_cancelled(quotas.keep_applied(store)).await;
        });
    }
    // Quotas apply to all publishes from now on, unless their store takes longer than a second.
    state.access.quotas.begun().await;
    let (push, stop) = (state.push.clone(), tasks.stopping().clone());
    tasks.spawn_essential("push", async move {
        push.run().await;
        // It is stopped first, so that nothing more is consumed.
        stop.cancelled().await;
    });

    for (name, engine) in &stores.engines {
        let pump = pump::run(engine.clone(), stores.outages[name].clone(), tasks.stopping().clone());
        tasks.spawn_essential(format!("the pump of pool {name}"), async move {
            if let Err(error) = pump.await {
                tracing::error!(%error, "the timer of a pump failed");
            }
        });
    }
    for pool in state.pools.values() {
        let (name, stop) = (&pool.name, tasks.stopping().clone());
        let catches_up = scheduler::catch_up(pool.scheduler.clone(), pool.outage.clone(), stop.clone());
        tasks.spawn_essential(format!("the catch-up of pool {name}"), catches_up);
        let confirms = scheduler::confirm(pool.scheduler.clone(), pool.outage.clone(), stop.clone());
        tasks.spawn_essential(format!("the confirmation of occurrences of pool {name}"), confirms);
        let places = scheduler::run(pool.scheduler.clone(), pool.outage.clone(), stop);
        tasks.spawn_essential(format!("the scheduler of pool {name}"), async move {
            if let Err(error) = places.await {
                tracing::error!(%error, "the timer of a scheduler failed");
            }
        });
    }
    for pool in state.pools.values() {
        let samples = pool.sampler.clone().run(tasks.stopping().clone());
        tasks.spawn_essential(format!("the sampler of pool {}", pool.name), samples);
    }
    let (of_fleet, stop) = (state.clone(), tasks.stopping().clone());
    let line = move || http::own_line(&of_fleet);
    tasks.spawn_essential("the fleet record of this server", state.operations.fleet.clone().run(line, stop));
    let pools_left = Arc::new(AtomicUsize::new(stores.engines.len()));
    for (store, failed) in stores.failures {
        let (failure, stop, pools_left) = (failure.clone(), tasks.stopping().clone(), pools_left.clone());
        tasks.spawn(
            async move { stop.run_until_cancelled(fails(store, failed, &pools_left, &failure)).await },
        );
    }
    let checks =
        http::keep_checked(state.access.parked_tokens.clone(), state.access.tokens.clone(), tasks.clone());
    let stop = tasks.stopping().clone();
    tasks.spawn_essential("the token checks of parked polls", async move {
        stop.run_until_cancelled(checks).await;
    });
}

/// Calls the store of tokens during an outage, until it is available again.
pub fn ask_for_tokens(store: Arc<dyn AdminStore>, outage: Arc<Outage>, tasks: &Tasks) {
    let stop = tasks.stopping().clone();
    tasks.spawn_essential("the check of the token store during an outage", async move {
        let ask = || {
            let store = store.clone();
            async move { store.check().await }
        };
        stop.run_until_cancelled(outage.ask_until_it_works(ask)).await;
    });
}

/// Waits until a store fails permanently. While another pool is left, the server continues. Otherwise it reports the
/// reason for [`LAST_WORDS`], and ends.
async fn fails(store: String, failed: StoreEnd, pools_left: &AtomicUsize, failure: &Failure) {
    let why = match failed {
        StoreEnd::WithServer(failed) => failed.await,
        StoreEnd::Alone(failed) => {
            let why = failed.await;
            if pools_left.fetch_sub(1, Ordering::Relaxed) > 1 {
                tracing::error!(store, why, "the store failed; the other pools continue");
                return;
            }
            tracing::error!(store, why, "the last store failed; the server stops soon");
            sleep(LAST_WORDS).await;
            why
        }
    };
    tracing::error!(store, why, "the store failed; the server stops");
    failure.report(format!("{store}: {why}"));
}
