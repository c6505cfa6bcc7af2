//! Pauses. They are in one hash of the Redis; each server keeps a view of it, and checks the hash's version several
//! times a second. A consume leaves paused queues out, so they cost the Redis nothing. The view is trusted for
//! [`BELIEVED`](crate::engine::redis::pauses::BELIEVED): if it is older, because the Redis hangs or the task is late, a
//! consume reads the pauses of its own queues. Both use the connection of consumes, so that other calls do not delay
//! consumes.
//!
//! Changes by this process are applied to the view at once. The reply to a change has the hash's version before and
//! after it. While these versions are consecutive, nothing is read again; after a change by another server the whole
//! hash is read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::Millis;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::times::micros;
use crate::engine::redis::link::Lane;
use crate::engine::redis::pauses::{REMEMBERED, Versions};
use crate::engine::{MAX_PAUSED, Pause, Pausing};
use crate::error::{Error, Result};
use crate::name::{Queue, QueueList};

/// Interval between checks for changes.
const ASK: Duration = Duration::from_millis(400);
/// Maximum number of pauses ended by one call.
const MOST_ENDED: usize = 500;
impl PartitionCore {
    /// Pauses a queue, or ends its pause. Replaces an earlier pause.
    pub async fn pause(&self, queue: &Queue, pausing: Pausing) -> Result<Option<Pause>> {
        let time = match pausing {
            Pausing::For(time) => Some(time),
            Pausing::UntilResumed => None,
            Pausing::Resumed => {
                let (versions, _) = self.end(std::slice::from_ref(queue), false).await?;
                self.pauses.change(queue, None, versions);
                self.common.notifiers.notify(queue);
                return Ok(None);
            }
        };
        let mut cmd = self.call(&self.scripts.pause);
        cmd.key(&self.keys.paused).arg(keys::group(queue)).arg(MAX_PAUSED);
        if let Some(time) = time {
            cmd.arg(micros(time));
        }
        let sent = std::time::Instant::now();
        let (now, until, before, after): (u64, i64, u64, u64) = self.run(Lane::Other, &cmd).await?;
        self.learn(sent, now);
        let Ok(until) = Millis::try_from(until) else { return Err(Error::TooManyPaused(MAX_PAUSED)) };
        let pause = Pause { until: (until > 0).then_some(until) };
        self.pauses.change(queue, Some(pause), Versions { now, before, after });
        Ok(Some(pause))
    }

    /// Ends pauses; with `only_if_over`, only expired ones. Returns for each queue whether it is not paused now.
    async fn end(&self, queues: &[Queue], only_if_over: bool) -> Result<(Versions, Vec<bool>)> {
        let mut cmd = self.call(&self.scripts.resume);
        cmd.key(&self.keys.paused).arg(u8::from(only_if_over));
        for queue in queues {
            cmd.arg(keys::group(queue));
        }
        let sent = std::time::Instant::now();
        let (now, before, after, ended): (u64, u64, u64, Vec<bool>) = self.run(Lane::Other, &cmd).await?;
        self.learn(sent, now);
        Ok((Versions { now, before, after }, ended))
    }

    /// Returns all paused queues. Calls the Redis.
    pub async fn all_paused(&self) -> Result<BTreeMap<Queue, Pause>> {
        self.ask_for_pauses().await?;
        let now = self.now();
        let mut paused = self.pauses.known.read().paused.clone();
        paused.retain(|_, pause| pause.lasts(now));
        Ok(paused)
    }

    /// Returns the queues of the list that are not paused.
    pub async fn not_paused(&self, queues: &QueueList) -> Result<Vec<Queue>> {
        let queues = queues.queues();
        if self.pauses.believed() {
            let now = self.now();
            return Ok(queues.filter(|queue| self.pauses.of(queue, now).is_none()).collect());
        }
        let queues: Vec<Queue> = queues.collect();
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(&self.keys.paused).arg(queues.iter().map(keys::group).collect::<Vec<_>>());
        let paused: Outcome<Vec<Option<Vec<u8>>>> = self.query_on(Lane::Consume, &cmd).await;
        if paused.as_ref().is_err_and(Fault::is_of_part) {
            // The partition of the hash is unavailable. Queues of other partitions are served by the last view.
            let now = self.now();
            return Ok(queues.into_iter().filter(|queue| self.pauses.of(queue, now).is_none()).collect());
        }
        let paused = paused?;
        let now = self.now();
        let lasts = |until: Vec<u8>| read_pause(&until).is_some_and(|pause| pause.lasts(now));
        let found = queues.into_iter().zip(paused);
        Ok(found.filter(|(_, until)| !until.clone().is_some_and(lasts)).map(|(queue, _)| queue).collect())
    }

    /// Updates the view if it is too old to be trusted.
    pub async fn know_pauses(&self) -> Result<()> {
        if self.pauses.believed() { Ok(()) } else { self.ask_for_pauses().await }
    }

    /// Updates the view, and notifies queues that were resumed by other servers.
    async fn ask_for_pauses(&self) -> Result<()> {
        let asked = Instant::now();
        let version: Option<Vec<u8>> =
            self.query_on(Lane::Consume, redis::cmd("HGET").arg(&self.keys.paused).arg("")).await?;
        let version = version.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()).unwrap_or(0);
        let same = {
            let mut known = self.pauses.known.write();
            known.own.retain(|_, own| own.at.elapsed() < REMEMBERED);
            let same = known.version == Some(version) && known.links.is_empty();
            if same {
                known.read_at = known.read_at.max(Some(asked));
            }
            same
        };
        if !same {
            let paused = if version == 0 { BTreeMap::new() } else { self.all_pauses().await? };
            let resumed = {
                let mut known = self.pauses.known.write();
                if known.read_at.is_some_and(|at| at > asked) {
                    return Ok(()); // a later read has finished first
                }
                known.read_at = Some(asked);
                known.replace(version, paused, asked)
            };
            self.pauses.earlier.notify_one();
            resumed.iter().for_each(|queue| self.common.notifiers.notify(queue));
        }
        Ok(())
    }

    async fn all_pauses(&self) -> Result<BTreeMap<Queue, Pause>> {
        let mut paused = BTreeMap::new();
        let each = |queue: Vec<u8>, until: Vec<u8>| {
            paused.extend(keys::queue_of_group(&queue).zip(read_pause(&until)));
        };
        self.scan(Lane::Consume, &self.keys.paused, each).await?;
        Ok(paused)
    }

    /// Ends expired pauses: notifies their queues, and deletes the pauses from the view and the hash. The hash's
    /// version stays, since other servers do the same. Returns whether all of them have ended.
    async fn end_pauses(&self) -> Result<bool> {
        let now = self.now();
        let ended: Vec<Queue> = {
            let known = self.pauses.known.read();
            let over = known.ends.iter().take_while(|(until, _)| *until <= now).take(MOST_ENDED);
            over.map(|(_, queue)| queue.clone()).collect()
        };
        if ended.is_empty() {
            return Ok(true);
        }
        ended.iter().for_each(|queue| self.common.notifiers.notify(queue));
        let (versions, over) = self.end(&ended, true).await?;
        let mut known = self.pauses.known.write();
        for (queue, _) in ended.iter().zip(&over).filter(|(_, over)| **over) {
            // This process may have paused it again.
            if known.paused.get(queue).is_some_and(|pause| !pause.lasts(now)) {
                known.set(queue, None);
            }
        }
        if versions.before != versions.after {
            known.links.insert(versions.before, (versions.after, Instant::now()));
            known.follow();
        }
        drop(known);
        // The Redis's clock decides, and another server may have paused the queue again.
        Ok(!over.contains(&false))
    }
}

/// Reads the end of a pause in the hash.
fn read_pause(until: &[u8]) -> Option<Pause> {
    let until: Millis = std::str::from_utf8(until).ok()?.parse().ok()?;
    Some(Pause { until: (until > 0).then_some(until) })
}

/// Runs the task that keeps the view up to date and ends expired pauses.
pub async fn run(core: Arc<PartitionCore>) {
    let (pauses, closing) = (&core.pauses, core.tasks.stopping().clone());
    let ask = async {
        loop {
            let next = Instant::now() + ASK;
            // An error is ignored here: other tasks that use the Redis report it.
            let _ = core.ask_for_pauses().await;
            sleep_until(next).await;
        }
    };
    let end = async {
        loop {
            let first = pauses.known.read().ends.first().map(|(until, _)| *until);
            let rest = first.map_or(ASK, |until| Duration::from_millis(until.saturating_sub(core.now())));
            // At least a millisecond, so that a pause that stays in the view does not cause a busy loop.
            let rest = sleep(rest.clamp(Duration::from_millis(1), ASK));
            let over = tokio::select! {
                () = rest => true,
                () = pauses.earlier.notified() => false,
            };
            // A pause that has not ended was set again by another server; the view will have it soon.
            if over && !core.end_pauses().await.unwrap_or(false) {
                sleep(ASK).await;
            }
        }
    };
    closing.run_until_cancelled(async { tokio::join!(ask, end) }).await;
}
