//! Schedules as requests see them. An unreadable one is shown too, and can be deleted or set again.

use std::collections::BTreeMap;

use super::condition::NotChanged;
use super::core::Scheduler;
use super::record::Schedule;
use super::store::SchedulePage;
use super::stored::{ScheduleId, ScheduleVersion, StoredSchedule};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::name::{Namespace, QueueName, ScheduleName};
use crate::settings::MAX_SCAN;

/// A stored schedule.
#[derive(Clone, Debug)]
pub enum FoundSchedule {
    Whole(Schedule),
    /// It is damaged, or a newer server wrote it.
    Unreadable {
        stored: StoredSchedule,
        why: Error,
    },
}

/// A page of a namespace's schedules.
#[derive(Debug)]
pub struct FoundPage {
    /// The pool's time of day.
    pub now: Millis,
    pub schedules: Vec<FoundSchedule>,
    /// The name after which the next page begins.
    pub next: Option<ScheduleName>,
}

impl FoundSchedule {
    fn read(stored: StoredSchedule) -> FoundSchedule {
        match Schedule::read(stored.clone()) {
            Ok(schedule) => FoundSchedule::Whole(schedule),
            Err(why) => FoundSchedule::Unreadable { stored, why },
        }
    }

    pub fn version(&self) -> ScheduleVersion {
        match self {
            FoundSchedule::Whole(schedule) => schedule.version,
            FoundSchedule::Unreadable { stored, .. } => stored.version,
        }
    }

    pub fn revision(&self) -> u64 {
        self.version().revision
    }

    pub fn name(&self) -> &ScheduleName {
        match self {
            FoundSchedule::Whole(schedule) => &schedule.id.name,
            FoundSchedule::Unreadable { stored, .. } => &stored.id.name,
        }
    }

    pub fn queue(&self) -> &QueueName {
        match self {
            FoundSchedule::Whole(schedule) => &schedule.setting.queue,
            FoundSchedule::Unreadable { stored, .. } => &stored.setting.queue,
        }
    }

    fn whole(self) -> Result<Schedule> {
        match self {
            FoundSchedule::Whole(schedule) => Ok(schedule),
            FoundSchedule::Unreadable { why, .. } => Err(why),
        }
    }
}

impl Scheduler {
    /// Reads a stored schedule, corrected if a clock ran ahead.
    fn read(&self, stored: StoredSchedule, now: Millis) -> FoundSchedule {
        let mut found = FoundSchedule::read(stored);
        if let FoundSchedule::Whole(schedule) = &mut found {
            self.set_right(schedule, now);
        }
        found
    }

    /// Returns a schedule, and the pool's time of day.
    pub async fn get(&self, id: &ScheduleId) -> Result<(Schedule, Millis), NotChanged> {
        let (found, now) = self.find(id).await?;
        Ok((found.ok_or(NotChanged::NotFound)?.whole()?, now))
    }

    /// Returns schedules of a namespace whose names begin with `prefix`, after `after`, in the order of their names.
    pub async fn page(
        &self,
        namespace: &Namespace,
        prefix: &str,
        after: Option<ScheduleName>,
        limit: usize,
        bodies: bool,
    ) -> Result<FoundPage> {
        let SchedulePage { now, schedules, next } =
            self.store.page(namespace, prefix, after.as_ref(), limit, bodies).await?;
        let schedules = schedules.into_iter().map(|stored| self.read(stored, now)).collect();
        Ok(FoundPage { now, schedules, next })
    }

    /// Returns how many more schedules the pool accepts.
    pub async fn room(&self) -> Result<u64> {
        Ok(self.bounds.of_pool.saturating_sub(self.store.count().await?))
    }

    /// Returns the names of a namespace's schedules, and their revisions.
    pub async fn names(&self, namespace: &Namespace) -> Result<BTreeMap<ScheduleName, u64>> {
        let (mut all, mut after) = (BTreeMap::new(), None);
        loop {
            let page = self.store.page(namespace, "", after.as_ref(), MAX_SCAN, false).await?;
            all.extend(page.schedules.into_iter().map(|stored| (stored.id.name, stored.version.revision)));
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// Returns a schedule if it exists, and the pool's time of day.
    pub async fn find(&self, id: &ScheduleId) -> Result<(Option<FoundSchedule>, Millis), NotChanged> {
        let (found, now) = (self.store.get(id).await?, self.store.now());
        Ok((found.map(|stored| self.read(stored, now)), now))
    }
}
