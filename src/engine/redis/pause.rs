//! Pauses. They stand in one hash of the Redis; each server remembers what is in it, and asks several times a second
//! whether it has changed. A consume leaves out the queues that are paused, so that it costs the Redis nothing. What is
//! remembered is believed for [`BELIEVED`]: when it is older, since the Redis hangs or the task is late, a consume asks
//! first. Both ask on the connection of consumes, so that what holds up others holds up no consume.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::RedisCore;
use super::layout::keys;
use super::publish::micros;
use crate::clock::Millis;
use crate::engine::Pause;
use crate::error::{Error, Result};
use crate::name::{Namespace, Queue};

/// How often a server asks for changes.
const ASK: Duration = Duration::from_millis(400);
/// How old what is remembered may be. Others see a pause within a second: this, and what an answer takes.
const BELIEVED: Duration = Duration::from_millis(800);
/// How many fields one step of a scan is asked for.
const SCAN: usize = 500;

/// What this server knows of the paused queues.
#[derive(Debug, Default)]
pub struct Pauses {
    known: RwLock<Known>,
    changed: Notify,
    /// One reading at a time.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// The field without a name, when the rest was read. `None`: it must be read again, since this process has changed
    /// something.
    version: Option<Option<Vec<u8>>>,
    paused: BTreeMap<Queue, Pause>,
    /// When the version was last seen to be the newest; never at first.
    read_at: Option<Instant>,
    /// Counts the pauses and resumes of this process: a reading that began before one of them says nothing.
    own_changes: u64,
}

impl Pauses {
    /// The queue's pause, if it has one.
    pub fn of(&self, queue: &Queue, now: Millis) -> Option<Pause> {
        let known = self.known.read();
        known.paused.get(queue).copied().filter(|pause| pause.until.is_none_or(|until| until > now))
    }

    /// Every paused queue of a namespace whose name comes after `after`, in the order of their names.
    pub fn in_namespace(&self, namespace: &Namespace, after: Option<&str>) -> Vec<Queue> {
        let known = self.known.read();
        let of = known.paused.keys().filter(|queue| queue.namespace == *namespace);
        of.filter(|queue| after.is_none_or(|after| queue.name.as_str() > after)).cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Queue, Pause>)) {
        let mut known = self.known.write();
        known.own_changes += 1;
        known.version = None;
        change(&mut known.paused);
        drop(known);
        self.changed.notify_one();
    }

    fn believed(&self) -> bool {
        self.known.read().read_at.is_some_and(|at| at.elapsed() < BELIEVED)
    }
}

impl RedisCore {
    /// Pauses a queue; its earlier pause is forgotten.
    pub async fn pause(&self, queue: &Queue, time: Option<Duration>) -> Result<Pause> {
        let mut cmd = self.scripts.pause.call(1);
        cmd.arg(keys::PAUSED).arg(keys::group(queue));
        match time {
            Some(time) => cmd.arg(micros(time)),
            None => cmd.arg(""),
        };
        let sent = self.clock.mark();
        let (now, until): (u64, Millis) = self.run(&self.shared, &self.scripts.pause, cmd).await?;
        self.clock.learn(sent, now);
        let pause = Pause { until: (until > 0).then_some(until) };
        self.pauses.change(|paused| {
            paused.insert(queue.clone(), pause);
        });
        Ok(pause)
    }

    /// Ends a pause, if there is one.
    pub async fn resume(&self, queue: &Queue) -> Result<()> {
        let _: u8 = self.end_pause(queue, false).await?;
        self.pauses.change(|paused| {
            paused.remove(queue);
        });
        self.notifiers.notify(queue);
        Ok(())
    }

    async fn end_pause(&self, queue: &Queue, only_if_over: bool) -> Result<u8> {
        let mut cmd = self.scripts.resume.call(1);
        cmd.arg(keys::PAUSED).arg(keys::group(queue)).arg(u8::from(only_if_over));
        Ok(self.run(&self.shared, &self.scripts.resume, cmd).await?)
    }

    /// Every queue that is paused now. Asks the Redis.
    pub async fn all_paused(&self) -> Result<BTreeMap<Queue, Pause>> {
        let _one = self.pauses.reading.lock().await;
        self.read_pauses().await?;
        let now = self.clock.now();
        let mut paused = self.pauses.known.read().paused.clone();
        paused.retain(|_, pause| pause.until.is_none_or(|until| until > now));
        Ok(paused)
    }

    /// Asks the Redis, unless what is remembered is new enough.
    pub async fn know_pauses(&self) -> Result<()> {
        if self.pauses.believed() {
            return Ok(());
        }
        let _one = self.pauses.reading.lock().await;
        if self.pauses.believed() { Ok(()) } else { self.read_pauses().await }
    }

    /// Reads what has changed, and notifies of queues that were resumed elsewhere.
    async fn read_pauses(&self) -> Result<()> {
        loop {
            let asked = Instant::now();
            let own_changes = self.pauses.known.read().own_changes;
            let version: Option<Vec<u8>> =
                self.consumes.query(redis::cmd("HGET").arg(keys::PAUSED).arg("")).await?;
            let same = self.pauses.known.read().version.as_ref() == Some(&version);
            let paused = if same { None } else { Some(self.all_pauses().await?) };
            let mut known = self.pauses.known.write();
            if known.own_changes != own_changes {
                continue;
            }
            known.read_at = Some(asked);
            let Some(paused) = paused else { return Ok(()) };
            known.version = Some(version);
            let before = std::mem::replace(&mut known.paused, paused);
            let resumed: Vec<Queue> =
                before.into_keys().filter(|queue| !known.paused.contains_key(queue)).collect();
            drop(known);
            resumed.iter().for_each(|queue| self.notifiers.notify(queue));
            return Ok(());
        }
    }

    async fn all_pauses(&self) -> Result<BTreeMap<Queue, Pause>> {
        let (mut cursor, mut paused) = ("0".to_owned(), BTreeMap::new());
        loop {
            let mut cmd = redis::cmd("HSCAN");
            cmd.arg(keys::PAUSED).arg(&cursor).arg("COUNT").arg(SCAN);
            let (next, step): (String, Vec<Vec<u8>>) = self.consumes.query(&cmd).await?;
            for field in step.chunks_exact(2) {
                let until =
                    std::str::from_utf8(&field[1]).ok().and_then(|until| until.parse::<Millis>().ok());
                if let (Some(queue), Some(until)) = (keys::queue_of_group(&field[0]), until) {
                    paused.insert(queue, Pause { until: (until > 0).then_some(until) });
                }
            }
            cursor = next;
            if cursor == "0" {
                return Ok(paused);
            }
        }
    }

    /// Ends the pauses whose time is over: notifies of their queues, and forgets them, here and in the Redis.
    async fn end_pauses(&self) -> Result<()> {
        let now = self.clock.now();
        let over = |pause: &Pause| pause.until.is_some_and(|until| until <= now);
        let ended: Vec<Queue> = {
            let known = self.pauses.known.read();
            known.paused.iter().filter(|(_, pause)| over(pause)).map(|(queue, _)| queue.clone()).collect()
        };
        for queue in &ended {
            self.notifiers.notify(queue);
            // It is the Redis's clock that says so. Otherwise the next round asks again.
            if self.end_pause(queue, true).await? == 1 {
                self.pauses.change(|paused| {
                    paused.remove(queue);
                });
            }
        }
        Ok(())
    }
}

/// The task that learns of pauses.
pub async fn run(core: Arc<RedisCore>) {
    let closing = core.connections.closing.clone();
    let watch = async {
        loop {
            let now = core.clock.now();
            let first_end = core.pauses.known.read().paused.values().filter_map(|pause| pause.until).min();
            let end = first_end.map_or(ASK, |until| Duration::from_millis(until.saturating_sub(now)));
            // The least pause bounds what a clock costs that is behind the Redis's.
            let pause = end.clamp(Duration::from_millis(1), ASK);
            tokio::select! {
                () = sleep(pause) => {}
                () = core.pauses.changed.notified() => {}
            }
            let _one = core.pauses.reading.lock().await;
            // A Redis that is away is told of by all others that use it.
            match core.end_pauses().await {
                Ok(()) => drop(core.read_pauses().await),
                Err(Error::Closed) => return,
                Err(_) => sleep(ASK).await,
            }
        }
    };
    closing.run_until_cancelled(watch).await;
}
