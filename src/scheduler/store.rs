//! The schedules of a pool in the settings store, one record `schedules/<pool>/<namespace>/<name>` each, and the step
//! that advances one: it publishes the job under an idempotency key derived from schedule and occurrence, and then
//! replaces the record if it is unchanged. If a server dies in between, or another server replaces the record first,
//! the repeated publish returns the same job. Does not interpret settings and progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::index::{Creating, Due, GRACE, Index};
use super::recent::Recent;
use super::stored::{
    Head, Landed, ScheduleId, SchedulePut, ScheduleState, ScheduleStep, ScheduleVersion, Stepped,
    StoredSchedule,
};
use crate::admin::Scope;
use crate::clock::Millis;
use crate::engine::{Engine, Published, together};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, ScheduleName};
use crate::outage::Outage;
use crate::quotas::QuotaManager;
use crate::settings::follow::{RecordChange, follow};
use crate::settings::{MAX_SCAN, Page, Put, Record, SettingVersion, SettingsStore};

/// Interval of reading what other servers have changed.
pub const FOLLOW: Duration = Duration::from_millis(GRACE);
/// Timeout of one such reading.
const PATIENCE: Duration = Duration::from_secs(4);
/// Number of attempts to raise the floor of revisions.
const TRIES: usize = 16;

/// A page of schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulePage {
    /// The pool's time of day.
    pub now: Millis,
    /// May be fewer than requested although there are more.
    pub schedules: Vec<StoredSchedule>,
    /// The name after which the list continues. `None` at the end.
    pub next: Option<ScheduleName>,
}

/// Which due schedules to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueList {
    /// The earliest ones, up to this many.
    Now(usize),
    /// The earliest that became due within this time, up to this many.
    Within(usize, Duration),
}

/// Due schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueSchedules {
    /// The pool's time of day.
    pub now: Millis,
    /// With their due times, earliest first.
    pub schedules: Vec<(Millis, ScheduleId)>,
    /// Time until the next schedule is due, at most [`FOLLOW`]: zero if one is due already.
    pub next: Duration,
    /// Number of all schedules by state, in the order of [`ScheduleState::ALL`].
    pub counts: [u64; ScheduleState::ALL.len()],
    /// Number of records seen, by the zone database that computed them.
    pub by_zones: BTreeMap<Box<str>, u64>,
}

/// A page of all schedules of the pool.
#[derive(Debug)]
pub struct Part {
    pub now: Millis,
    pub schedules: Vec<StoredSchedule>,
    /// Position of the next page. `None` at the end.
    pub more: Option<String>,
}

/// The schedules of one pool.
#[derive(Debug)]
pub struct ScheduleStore {
    settings: Arc<dyn SettingsStore>,
    /// Receives the results of using `settings`.
    outage: Arc<Outage>,
    engine: Arc<dyn Engine>,
    /// Prefix of the records' keys.
    prefix: String,
    /// Key of an upper bound on the revisions of deleted schedules.
    floor: String,
    /// Name of this server in records.
    server: Box<str>,
    pool: PoolName,
    /// Counts the sizes of settings toward quotas.
    quotas: Arc<QuotaManager>,
    index: Mutex<Index>,
    /// Version that the index has reached, and when it was read.
    followed: AsyncMutex<(SettingVersion, Option<Instant>)>,
    /// The latest known upper bound on the revisions of deleted schedules.
    known_floor: AtomicU64,
    pub recent: Recent,
}

impl ScheduleStore {
    /// Creates the store of a pool's schedules, whose jobs are published to `engine`. `server` is unique among servers.
    pub fn new(
        pool: &PoolName,
        (settings, outage): (Arc<dyn SettingsStore>, Arc<Outage>),
        (engine, quotas): (Arc<dyn Engine>, Arc<QuotaManager>),
        server: &str,
    ) -> ScheduleStore {
        ScheduleStore {
            settings,
            outage,
            engine,
            prefix: format!("schedules/{pool}/"),
            floor: format!("schedule-revisions/{pool}"),
            server: server.into(),
            pool: pool.clone(),
            quotas,
            index: Mutex::new(Index::new(server.into())),
            followed: AsyncMutex::default(),
            known_floor: AtomicU64::new(0),
            recent: Recent::default(),
        }
    }

    /// Returns the pool's time of day.
    pub fn now(&self) -> Millis {
        self.engine.time_of_day()
    }

    fn key(&self, id: &ScheduleId) -> String {
        format!("{}{}/{}", self.prefix, id.namespace, id.name)
    }

    /// Parses a key. `None` for keys of a newer version.
    fn id(&self, key: &str) -> Option<ScheduleId> {
        let (namespace, name) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        Some(ScheduleId { namespace: Namespace::parse(namespace).ok()?, name: ScheduleName::parse(name)? })
    }

    fn see(&self, id: &ScheduleId, version: SettingVersion, record: Option<&Record>) {
        if !self.index.lock().knows(id, version) {
            let head = record.and_then(|record| Head::read_with_size(&record.value));
            self.see_head(id, version, head.as_ref().map(|(head, bytes)| (head, *bytes)));
        }
    }

    fn see_head(&self, id: &ScheduleId, version: SettingVersion, head: Option<(&Head, u64)>) {
        let mut index = self.index.lock();
        // Under the lock, so that totals are recorded in order.
        if let Some(bytes) = index.see(id, version, head) {
            self.quotas.set_schedule_bytes(self.scope(id), bytes);
        }
    }

    fn scope(&self, id: &ScheduleId) -> Scope {
        Scope { pool: self.pool.clone(), namespace: id.namespace.clone() }
    }

    /// Checks that the namespace has room for this setting.
    async fn admit(&self, id: &ScheduleId, put: &SchedulePut, is_new: bool) -> Result<()> {
        let before = self.index.lock().bytes(id);
        let more = put.setting.bytes().saturating_sub(before);
        self.quotas.admit_schedule(&self.scope(id), more, is_new).await
    }

    /// Fills the index, if that was not done yet.
    pub async fn begin(&self) -> Result<()> {
        self.follow(Duration::MAX).await
    }

    /// Reads other servers' changes into the index, unless that was done within `age`.
    async fn follow(&self, age: Duration) -> Result<()> {
        let mut followed = self.followed.lock().await;
        if followed.1.is_some_and(|at| at.elapsed() < age) {
            return Ok(());
        }
        // Most changes were made by this server.
        let is_known =
            |key: &str, version| self.id(key).is_some_and(|id| self.index.lock().knows(&id, version));
        let following =
            follow(&*self.settings, &self.prefix, &mut followed.0, is_known, |change| match change {
                RecordChange::Begin => self.index.lock().begin(),
                RecordChange::End => {
                    let gone = self.index.lock().end();
                    gone.iter().for_each(|id| self.see(id, SettingVersion::MAX, None));
                }
                RecordChange::Put(key, record) => {
                    if let Some(id) = self.id(&key) {
                        self.see(&id, record.version, Some(&record));
                    }
                }
                RecordChange::Gone(key, version) => {
                    if let Some(id) = self.id(&key) {
                        self.see(&id, version, None);
                    }
                }
            });
        let done = timeout(PATIENCE, following).await.unwrap_or_else(|_| Err(Error::away("no response")));
        self.outage.report(&done);
        done?;
        followed.1 = Some(Instant::now());
        Ok(())
    }

    /// Returns a schedule.
    pub async fn get(&self, id: &ScheduleId) -> Result<Option<StoredSchedule>> {
        let record = self.settings.get(&self.key(id)).await?;
        if let Some(record) = &record {
            self.see(id, record.version, Some(record));
        }
        Ok(record.map(|record| StoredSchedule::read(id.clone(), &record)))
    }

    /// Returns schedules of a namespace whose names begin with `prefix`, after `after`, in the order of their names.
    /// Without `bodies` their bodies are empty.
    pub async fn page(
        &self,
        namespace: &Namespace,
        prefix: &str,
        after: Option<&ScheduleName>,
        limit: usize,
        bodies: bool,
    ) -> Result<SchedulePage> {
        let of_namespace = format!("{}{namespace}/", self.prefix);
        let after = after.map(|name| format!("{of_namespace}{name}"));
        let prefix = format!("{of_namespace}{prefix}");
        let page = self.settings.scan(&prefix, after.as_deref(), limit.min(MAX_SCAN)).await?;
        let next = page.records.last().filter(|_| page.more).and_then(|(key, _)| Some(self.id(key)?.name));
        let mut schedules = self.read(page);
        if !bodies {
            schedules.iter_mut().for_each(|of| of.setting.body.clear());
        }
        Ok(SchedulePage { now: self.now(), schedules, next })
    }

    fn read(&self, page: Page) -> Vec<StoredSchedule> {
        let read = |(key, record): (String, Record)| Some(StoredSchedule::read(self.id(&key)?, &record));
        page.records.into_iter().filter_map(read).collect()
    }

    /// Returns a page of all schedules; `from` is the end of the previous page.
    pub async fn part(&self, from: Option<&str>, limit: usize) -> Result<Part> {
        let page = self.settings.scan(&self.prefix, from, limit).await?;
        let more = page.records.last().filter(|_| page.more).map(|(key, _)| key.clone());
        Ok(Part { now: self.now(), schedules: self.read(page), more })
    }

    /// Returns the number of schedules of the pool.
    pub async fn count(&self) -> Result<u64> {
        self.follow(FOLLOW).await?;
        Ok(self.index.lock().len())
    }

    /// Returns schedules that are due by the pool's time of day, as the index knows them.
    pub async fn due(&self, list: DueList) -> Result<DueSchedules> {
        self.follow(FOLLOW).await?;
        let now = self.now();
        let (from, limit) = match list {
            DueList::Now(limit) => (0, limit),
            DueList::Within(limit, time) => (now.saturating_sub(time.as_millis() as Millis), limit),
        };
        let index = self.index.lock();
        let Due { schedules, next } = index.due(from, now, limit);
        let wait = next.map_or(FOLLOW, |next| Duration::from_millis(next.saturating_sub(now)));
        let (counts, by_zones) = (index.counts(), index.by_zones());
        Ok(DueSchedules { now, schedules, next: wait.min(FOLLOW), counts, by_zones })
    }

    /// Reads the records of schedules, so that those deleted or paused before this call are not included.
    pub async fn read_due(&self, due: &[(Millis, ScheduleId)], now: Millis) -> Result<Vec<StoredSchedule>> {
        let mut schedules = Vec::with_capacity(due.len());
        let found = together::try_all(due.iter().map(|(_, id)| self.get(id))).await?;
        for ((_, id), found) in due.iter().zip(found) {
            match found {
                Some(found) if found.next.is_some_and(|next| next <= now) => schedules.push(found),
                Some(_) => {}
                None => self.see(id, SettingVersion::MAX, None),
            }
        }
        Ok(schedules)
    }

    /// Takes a step: publishes its job, if it has one, and replaces the record.
    pub async fn step(&self, step: ScheduleStep) -> Result<Stepped> {
        let ScheduleStep { id, expected, mut put } = step;
        if self.now() < put.not_before {
            return Ok(Stepped::TooEarly);
        }
        let (is_change, is_dry) = (put.is_change, put.dry);
        let Some(expected) = expected else {
            let created = self.create(&id, put).await?;
            if !is_dry {
                self.quotas.apply_schedule_bytes(&self.scope(&id)).await;
            }
            return Ok(created);
        };
        if is_change {
            self.admit(&id, &put, false).await?;
        }
        let revision = expected.revision + u64::from(put.is_change);
        if put.dry {
            let is_there = self.get(&id).await?.is_some_and(|there| there.version == expected);
            let version = ScheduleVersion { revision, ..expected };
            return Ok(if is_there { Stepped::Done { version, landed: None } } else { Stepped::Stale });
        }
        if let Some(job) = put.job.take() {
            match self.engine.publish(job.clone()).await {
                Ok(Published::Done(placed) | Published::Replay(placed)) => {
                    self.recent.add(job);
                    put.landed = placed.first().map(|placed| Landed { at: self.now(), placed: *placed });
                }
                Ok(other) => return Ok(Stepped::NotPlaced(other)),
                Err(error) if error.is_out_of_memory() => return Err(error),
                Err(Error::Refused(why)) => return Ok(Stepped::Refused(why.to_string())),
                Err(error) => return Err(error),
            }
        }
        let stepped = self.write(&id, revision, Some(expected.record), &put).await?;
        if is_change {
            self.quotas.apply_schedule_bytes(&self.scope(&id)).await;
        }
        Ok(stepped)
    }

    /// Replaces a record, if it is still `expected`.
    async fn write(
        &self,
        id: &ScheduleId,
        revision: u64,
        expected: Option<SettingVersion>,
        put: &SchedulePut,
    ) -> Result<Stepped> {
        let head = put.head(revision, &self.server);
        match self.settings.put(&self.key(id), Some(put.value(&head)), expected).await? {
            Put::Done(version) => {
                self.see_head(id, version, Some((&head, put.setting.bytes())));
                let version = ScheduleVersion { revision, record: version };
                Ok(Stepped::Done { version, landed: put.landed })
            }
            Put::Differs(there) => {
                let version = there.as_ref().map_or(SettingVersion::MAX, |there| there.version);
                self.see(id, version, there.as_ref());
                Ok(Stepped::Stale)
            }
        }
    }

    /// Writes a schedule that does not exist. It has no job.
    async fn create(&self, id: &ScheduleId, put: SchedulePut) -> Result<Stepped> {
        self.follow(FOLLOW).await?;
        if self.index.lock().is_near(&id.namespace, put.bounds) {
            // Other servers may have created some since.
            self.follow(Duration::ZERO).await?;
        }
        let Some(_counted) = Creating::begin(&self.index, id, put.bounds) else {
            return Ok(Stepped::TooMany);
        };
        self.admit(id, &put, true).await?;
        if put.dry {
            let version = ScheduleVersion { revision: self.floor().await?.0 + 1, record: 0 };
            return Ok(Stepped::Done { version, landed: None });
        }
        let mut revision = self.known_floor.load(Ordering::Relaxed) + 1;
        let mut stepped = self.write(id, revision, None, &put).await?;
        // The deletion of an earlier schedule of this name has raised the floor before this write.
        while let Stepped::Done { version, .. } = stepped {
            let floor = self.floor().await?.0;
            if floor < revision {
                break;
            }
            revision = floor + 1;
            stepped = self.write(id, revision, Some(version.record), &put).await?;
        }
        Ok(stepped)
    }

    /// Returns an upper bound on the revisions of deleted schedules, and the version of its record.
    async fn floor(&self) -> Result<(u64, Option<SettingVersion>)> {
        let Some(record) = self.settings.get(&self.floor).await? else { return Ok((0, None)) };
        let floor = std::str::from_utf8(&record.value).ok().and_then(|text| text.parse().ok());
        let floor = floor.ok_or_else(|| Error::corrupt("the revision of deleted schedules"))?;
        self.known_floor.store(floor, Ordering::Relaxed);
        Ok((floor, Some(record.version)))
    }

    /// Deletes a schedule if it is still `expected`. Returns whether it was deleted.
    pub async fn delete(&self, id: &ScheduleId, expected: ScheduleVersion) -> Result<bool> {
        // Before the deletion, so that no later schedule of this name gets this revision again.
        self.raise_floor(expected.revision).await?;
        match self.settings.put(&self.key(id), None, Some(expected.record)).await? {
            Put::Done(version) => {
                self.see(id, version, None);
                self.quotas.apply_schedule_bytes(&self.scope(id)).await;
                Ok(true)
            }
            Put::Differs(_) => Ok(false),
        }
    }

    async fn raise_floor(&self, revision: u64) -> Result<()> {
        for _ in 0..TRIES {
            let (floor, expected) = self.floor().await?;
            if floor >= revision {
                return Ok(());
            }
            let value = Some(revision.to_string().into());
            if let Put::Done(_) = self.settings.put(&self.floor, value, expected).await? {
                return Ok(());
            }
        }
        Err(Error::Overloaded)
    }
}
