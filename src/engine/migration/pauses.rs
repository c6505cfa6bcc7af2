//! Pauses of both stores: a queue that is paused in one, by any server, is paused in the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::RwLock;
use tokio::time::{Instant, sleep, timeout};

use super::patience::MOST_PATIENCE;
use crate::engine::{Engine, Pause, Pausing};
use crate::error::{Error, Result};
use crate::name::Queue;
use crate::process::tasks::Tasks;

/// Interval between reads of both stores' pauses. Two intervals and two replies together are shorter than a second, the
/// time until a pause takes effect on all servers.
const LOOK_FOR_PAUSES: Duration = Duration::from_millis(400);
/// Maximum difference between the ends of two pauses that count as equal: clocks are known to the millisecond.
const ALIKE: Duration = Duration::from_millis(250);
/// Number of pauses copied concurrently.
const AT_A_TIME: usize = 64;

/// Pauses of the source and of the target when both were last read.
type Seen = [BTreeMap<Queue, Pause>; 2];

/// Keeps the pauses of two stores equal.
#[derive(Debug)]
pub struct PauseCopier {
    stores: [Arc<dyn Engine>; 2],
    /// Read-locked by pauses and resumes, write-locked while pauses are copied.
    seen: RwLock<Seen>,
}

impl PauseCopier {
    /// Copies pauses between the stores, now and repeatedly until `tasks` are stopped.
    pub async fn start(stores: [Arc<dyn Engine>; 2], tasks: &Tasks) -> Result<Arc<PauseCopier>> {
        let mut seen = Seen::default();
        make_alike(tasks, &stores, &mut seen).await?;
        let pauses = Arc::new(PauseCopier { stores, seen: RwLock::new(seen) });
        let (watched, stopped) = (pauses.clone(), tasks.clone());
        tasks.spawn(async move {
            stopped.stopping().run_until_cancelled(watched.watch(&stopped)).await;
        });
        Ok(pauses)
    }

    /// Copies changed pauses repeatedly.
    async fn watch(&self, tasks: &Tasks) {
        loop {
            sleep(LOOK_FOR_PAUSES).await;
            let look = async { make_alike(tasks, &self.stores, &mut *self.seen.write().await).await };
            // An unavailable or late store is tried again.
            if let Ok(Err(Error::Closed)) = timeout(MOST_PATIENCE, look).await {
                return;
            }
        }
    }

    /// Pauses or resumes a queue in both stores. If one store rejects a pause, it is undone in the other.
    pub async fn pause(&self, queue: &Queue, pausing: Pausing) -> Result<Option<Pause>> {
        let seen = self.seen.read().await;
        let (old, new) =
            tokio::join!(self.stores[0].pause(queue, pausing), self.stores[1].pause(queue, pausing));
        // A rejected pause takes effect in neither store, unless one of them had a pause before.
        let refused_by_other = match (&old, &new) {
            (Ok(_), Err(Error::TooManyPaused(_))) => Some((&self.stores[0], &seen[0])),
            (Err(Error::TooManyPaused(_)), Ok(_)) => Some((&self.stores[1], &seen[1])),
            _ => None,
        };
        if let Some((store, seen)) = refused_by_other
            && left(&**store, seen.get(queue)).is_zero()
        {
            store.pause(queue, Pausing::Resumed).await?;
        }
        Ok(old?.zip(new?).map(|(old, new)| longer(old, new)))
    }

    /// Returns the paused queues of both stores.
    pub async fn all(&self) -> Result<BTreeMap<Queue, Pause>> {
        let (mut all, new) = tokio::try_join!(self.stores[0].pauses(), self.stores[1].pauses())?;
        for (queue, pause) in new {
            let both = all.get(&queue).map_or(pause, |old| longer(*old, pause));
            all.insert(queue, both);
        }
        Ok(all)
    }
}

/// Returns the pause that ends later.
pub fn longer(a: Pause, b: Pause) -> Pause {
    Pause { until: a.until.zip(b.until).map(|(a, b)| a.max(b)) }
}

/// Returns the remaining time of a pause; zero if there is none.
fn left(store: &dyn Engine, pause: Option<&Pause>) -> Duration {
    let Some(Pause { until }) = pause else { return Duration::ZERO };
    until.map_or(Duration::MAX, |until| Duration::from_millis(until.saturating_sub(store.now())))
}

/// Copies each pause or resume made in one store since the last call to the other store: servers that know only one of
/// the stores pause and resume there. Older differences stay, and so do pauses that a store rejects because too
/// many queues are paused there.
async fn make_alike(tasks: &Tasks, stores: &[Arc<dyn Engine>; 2], seen: &mut Seen) -> Result<()> {
    let (old, new) = tokio::try_join!(stores[0].pauses(), stores[1].pauses())?;
    let (mut now, looked) = ([old, new], Instant::now());
    let names: BTreeSet<Queue> = seen.iter().chain(&now).flat_map(BTreeMap::keys).cloned().collect();
    let mut copies = Vec::new();
    for queue in names {
        let left = [0, 1].map(|n| left(&*stores[n], now[n].get(&queue)));
        let changed = |n: usize| seen[n].get(&queue) != now[n].get(&queue);
        if left[0].abs_diff(left[1]) <= ALIKE {
            continue;
        }
        if let Some(from) = [0, 1].into_iter().find(|n| changed(*n)) {
            copies.push((1 - from, queue, left[from]));
        }
    }
    let mut no_room = 0;
    for copies in copies.chunks(AT_A_TIME) {
        let under_way = copies.iter().cloned().map(|(to, queue, left)| {
            let store = stores[to].clone();
            tasks.spawn(async move {
                let left = if left == Duration::MAX { left } else { left.saturating_sub(looked.elapsed()) };
                let pausing = match left {
                    Duration::ZERO => Pausing::Resumed,
                    Duration::MAX => Pausing::UntilResumed,
                    time => Pausing::For(time),
                };
                let pause = store.pause(&queue, pausing).await?;
                Ok::<_, Error>((to, queue, pause))
            })
        });
        for copied in under_way.collect::<Vec<_>>() {
            match copied.await.map_err(Error::away)? {
                Ok((to, queue, Some(pause))) => drop(now[to].insert(queue, pause)),
                Ok((to, queue, None)) => drop(now[to].remove(&queue)),
                Err(Error::TooManyPaused(_)) => no_room += 1,
                Err(error) => return Err(error),
            }
        }
    }
    if no_room > 0 {
        tracing::warn!(
            count = no_room,
            "queues are paused in one store of a pool that moves alone: too many are"
        );
    }
    *seen = now;
    Ok(())
}
