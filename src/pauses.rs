//! Pauses of queues: a record `pauses/<pool>/<namespace>/<queue>` of the settings for each paused queue, shared by all
//! servers of a pool. Each server passes them to its dispatcher, which does not fetch from paused queues. Independent
//! of HTTP and of the kinds of stores.
//!
//! Once [`Pauses::pause`] has returned, the pause is in effect on this server: no fetch that began before is in flight,
//! unless the store hangs. Other servers read changes every [`STEP`]. Any server deletes the record of a pause that has
//! ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Notify};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::Millis;
use crate::dispatch::{Dispatcher, Pause};
use crate::engine::{Engine, QueuePage, QueueView};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Queue, QueueName};
use crate::outage::Outage;
use crate::settings::follow::{RecordChange, follow};
use crate::settings::{Put, SettingVersion, SettingsStore};

/// Upper bound on the paused queues of a namespace: every server remembers them.
pub const MAX_PAUSED: usize = 1000;
/// Interval of reading what other servers have changed.
const STEP: Duration = Duration::from_millis(250);
/// Timeout of one reading.
const PATIENCE: Duration = Duration::from_secs(4);
/// Maximum number of attempts of a change that conflicts with others.
const TRIES: usize = 16;
/// How long the record of an ended pause is kept: other servers' clocks may be behind.
const KEPT: Millis = 1000;

/// The value of a record.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Millis>,
}

/// Known records, and the version up to which they were read.
#[derive(Debug, Default)]
struct Known {
    since: SettingVersion,
    records: BTreeMap<Queue, (SettingVersion, Pause)>,
}

/// The pauses of one pool.
#[derive(Debug)]
pub struct Pauses {
    /// Prefix of its records' keys.
    prefix: String,
    store: Arc<dyn SettingsStore>,
    /// Receives the results of using `store`.
    outage: Arc<Outage>,
    engine: Arc<dyn Engine>,
    dispatcher: Arc<Dispatcher>,
    /// Locked while records are read or changed, so that no record is applied after a newer one.
    known: Mutex<Known>,
    /// Notified when the next end of a pause may be earlier.
    changed: Notify,
}

impl Pauses {
    /// Creates the pauses of a pool. None is known before the first [`read`](Pauses::read).
    pub fn new(
        pool: &PoolName,
        (store, outage): (Arc<dyn SettingsStore>, Arc<Outage>),
        (engine, dispatcher): (Arc<dyn Engine>, Arc<Dispatcher>),
    ) -> Pauses {
        let prefix = format!("pauses/{pool}/");
        Pauses { prefix, store, outage, engine, dispatcher, known: Mutex::default(), changed: Notify::new() }
    }

    /// Pauses a queue, for `time` or until it is resumed, replacing an earlier pause. The pause is in effect on this
    /// server when this returns; the returned end is in the time of day. Fails with
    /// [`TooManyPaused`](Error::TooManyPaused) beyond [`MAX_PAUSED`] queues of the namespace; servers that pause at the
    /// same moment may exceed that by one each.
    pub async fn pause(&self, queue: &Queue, time: Option<Duration>) -> Result<Pause> {
        let pause = self.put(queue, |now| {
            let until =
                |time: Duration| now.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            Some(Pause { until: time.map(until) })
        });
        let pause = pause.await?.unwrap_or(Pause { until: None });
        self.changed.notify_one();
        self.dispatcher.fetches_ended(queue).await;
        Ok(self.dispatcher.in_day(pause))
    }

    /// Ends the pause of a queue, if there is one.
    pub async fn resume(&self, queue: &Queue) -> Result<()> {
        self.put(queue, |_| None).await.map(drop)
    }

    /// Replaces a record by the result of `pause` for the pool's clock; `None` deletes it.
    async fn put(
        &self,
        queue: &Queue,
        pause: impl Fn(Millis) -> Option<Pause> + Send,
    ) -> Result<Option<Pause>> {
        let mut known = self.known.lock().await;
        for _ in 0..TRIES {
            self.catch_up(&mut known).await?;
            let pause = pause(self.engine.now());
            let before = known.records.get(queue).map(|(version, _)| *version);
            let value = match pause {
                None if before.is_none() => return Ok(None),
                None => None,
                Some(_) if before.is_none() && self.paused_of(&known, &queue.namespace) >= MAX_PAUSED => {
                    return Err(Error::TooManyPaused(MAX_PAUSED));
                }
                // A number always encodes as JSON.
                Some(Pause { until }) => {
                    Some(serde_json::to_vec(&Stored { until }).unwrap_or_default().into())
                }
            };
            if let Put::Done(version) = self.store.put(&self.key(queue), value, before).await? {
                self.see(&mut known.records, queue, pause.map(|pause| (version, pause)));
                return Ok(pause);
            }
        }
        Err(Error::Overloaded)
    }

    /// Returns the number of paused queues of a namespace.
    fn paused_of(&self, known: &Known, namespace: &Namespace) -> usize {
        let (now, first) = (self.engine.now(), first_of(namespace));
        let of_namespace =
            known.records.range(first..).take_while(|(queue, _)| queue.namespace == *namespace);
        of_namespace.filter(|(_, (_, pause))| pause.lasts(now)).count()
    }

    fn key(&self, queue: &Queue) -> String {
        format!("{}{}/{}", self.prefix, queue.namespace, queue.name)
    }

    /// Parses a key. `None` for keys of a newer version.
    fn queue(&self, key: &str) -> Option<Queue> {
        let (namespace, name) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        let (namespace, name) = (Namespace::parse(namespace).ok()?, QueueName::parse_for_consume(name).ok()?);
        Some(Queue { namespace, name })
    }

    /// Records a queue's pause or its absence, in `records` and in the dispatcher.
    fn see(
        &self,
        records: &mut BTreeMap<Queue, (SettingVersion, Pause)>,
        queue: &Queue,
        record: Option<(SettingVersion, Pause)>,
    ) {
        match record {
            Some((version, pause)) => {
                records.insert(queue.clone(), (version, pause));
                self.dispatcher.pause(queue, pause);
            }
            None => {
                records.remove(queue);
                self.dispatcher.resume(queue);
            }
        }
    }

    /// Reads changes into `known` and the dispatcher.
    async fn catch_up(&self, known: &mut Known) -> Result<()> {
        let Known { since, records } = known;
        // While all records are read: the queues not read again yet.
        let mut unmet: Option<BTreeMap<Queue, (SettingVersion, Pause)>> = None;
        follow(
            &*self.store,
            &self.prefix,
            since,
            |_, _| false,
            |change| match change {
                RecordChange::Begin => unmet = Some(records.clone()),
                RecordChange::Put(key, record) => {
                    let stored = serde_json::from_slice::<Stored>(&record.value);
                    let (Some(queue), Ok(Stored { until })) = (self.queue(&key), stored) else { return };
                    if let Some(unmet) = &mut unmet {
                        unmet.remove(&queue);
                    }
                    self.see(records, &queue, Some((record.version, Pause { until })));
                }
                RecordChange::Gone(key, _) => {
                    if let Some(queue) = self.queue(&key) {
                        self.see(records, &queue, None);
                    }
                }
                RecordChange::End => {
                    for queue in unmet.take().unwrap_or_default().keys() {
                        self.see(records, queue, None);
                    }
                }
            },
        )
        .await
    }

    /// Deletes the records of pauses that have ended.
    async fn clean(&self) -> Result<()> {
        let mut known = self.known.lock().await;
        let now = self.engine.now();
        let ended = known.records.iter().filter(|(_, (_, pause))| !pause.lasts(now.saturating_sub(KEPT)));
        let ended: Vec<(Queue, SettingVersion)> =
            ended.map(|(queue, (version, _))| (queue.clone(), *version)).collect();
        for (queue, version) in ended {
            // Another server may have been faster.
            if let Put::Done(_) = self.store.put(&self.key(&queue), None, Some(version)).await? {
                self.see(&mut known.records, &queue, None);
            }
        }
        Ok(())
    }

    /// Reads changes, within [`PATIENCE`]. Returns whether that succeeded.
    pub async fn read(&self) -> bool {
        let read = async { self.catch_up(&mut *self.known.lock().await).await };
        self.in_time(read).await
    }

    /// Runs a call of the settings within [`PATIENCE`], and reports its result. Returns whether it succeeded.
    async fn in_time(&self, call: impl Future<Output = Result<()>>) -> bool {
        let done = timeout(PATIENCE, call).await.unwrap_or_else(|_| Err(Error::away("no response")));
        self.outage.report(&done);
        done.is_ok()
    }

    /// Keeps the dispatcher up to date until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            tokio::join!(
                async {
                    loop {
                        if self.read().await {
                            self.in_time(self.clean()).await;
                        }
                        sleep(STEP).await;
                    }
                },
                // Separate, so that a pause ends even while the settings are unavailable.
                async {
                    loop {
                        let next = self.dispatcher.end_pauses().unwrap_or(STEP);
                        let _ = timeout(next.min(STEP), self.changed.notified()).await;
                    }
                },
            )
        })
        .await;
    }

    /// Like [`Engine::list_queues`], including paused queues that the store does not know.
    pub async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let QueuePage { queues, next } = self.engine.list_queues(namespace, after, limit).await?;
        let mut all: BTreeMap<QueueName, QueueView> =
            queues.into_iter().map(|view| (view.queue.name.clone(), view)).collect();
        let is_of_page = |name: &QueueName| {
            after.is_none_or(|after| name > after) && next.as_ref().is_none_or(|next| name <= next)
        };
        for Queue { name, .. } in self.dispatcher.paused_queues(namespace) {
            if is_of_page(&name) && !all.contains_key(&name) {
                let queue = Queue { namespace: namespace.clone(), name: name.clone() };
                all.insert(name, QueueView::empty(queue));
            }
        }
        let next = match all.keys().nth(limit) {
            Some(_) => all.keys().nth(limit.saturating_sub(1)).cloned(),
            None => next,
        };
        Ok(QueuePage { queues: all.into_values().take(limit).collect(), next })
    }
}

/// Returns the first possible queue of a namespace, in the order of names.
fn first_of(namespace: &Namespace) -> Queue {
    Queue { namespace: namespace.clone(), name: QueueName::first() }
}
