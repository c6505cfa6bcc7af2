//! Pauses of both stores: a queue that is paused in one is paused in the other, whoever has paused it.

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

/// How often both stores are asked for pauses. Two looks and two answers are less than the second within which a pause
/// holds everywhere.
const LOOK_FOR_PAUSES: Duration = Duration::from_millis(400);
/// How far apart the ends of two pauses may be that count as the same: the stores' clocks are known to the millisecond.
const ALIKE: Duration = Duration::from_millis(250);
/// How many pauses are copied at the same time.
const AT_A_TIME: usize = 64;

/// The pauses of the old store and of the new one, as they were when both were last looked at.
type Seen = [BTreeMap<Queue, Pause>; 2];

/// The pauses of the old store, the first one, and of the new one.
#[derive(Debug)]
pub struct PauseCopier {
    stores: [Arc<dyn Engine>; 2],
    /// Shared by pauses and resumes, and taken alone to make the stores alike.
    seen: RwLock<Seen>,
}

impl PauseCopier {
    /// Makes the stores alike, and keeps them so until `tasks` are stopped.
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

    /// Copies what is new again and again.
    async fn watch(&self, tasks: &Tasks) {
        loop {
            sleep(LOOK_FOR_PAUSES).await;
            let look = async { make_alike(tasks, &self.stores, &mut *self.seen.write().await).await };
            // What is away or late is looked at again.
            if let Ok(Err(Error::Closed)) = timeout(MOST_PATIENCE, look).await {
                return;
            }
        }
    }

    /// In both stores. What one of them refuses is undone in the other.
    pub async fn pause(&self, queue: &Queue, pausing: Pausing) -> Result<Option<Pause>> {
        let seen = self.seen.read().await;
        let (old, new) =
            tokio::join!(self.stores[0].pause(queue, pausing), self.stores[1].pause(queue, pausing));
        // A pause that is refused is done in neither, unless one of them had it.
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

    /// Those of both stores.
    pub async fn all(&self) -> Result<BTreeMap<Queue, Pause>> {
        let (mut all, new) = tokio::try_join!(self.stores[0].pauses(), self.stores[1].pauses())?;
        for (queue, pause) in new {
            let both = all.get(&queue).map_or(pause, |old| longer(*old, pause));
            all.insert(queue, both);
        }
        Ok(all)
    }
}

/// The pause that ends later.
pub fn longer(a: Pause, b: Pause) -> Pause {
    Pause { until: a.until.zip(b.until).map(|(a, b)| a.max(b)) }
}

/// How long a queue is paused still: no time when it is not.
fn left(store: &dyn Engine, pause: Option<&Pause>) -> Duration {
    let Some(Pause { until }) = pause else { return Duration::ZERO };
    until.map_or(Duration::MAX, |until| Duration::from_millis(until.saturating_sub(store.now())))
}

/// Makes each pause or resume that one of the stores has seen since the last look hold in the other one too. Servers
/// that know one of the stores alone pause and resume there. What differs for longer stays as it is, and so does what
/// one store refuses since too many queues are paused there.
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
