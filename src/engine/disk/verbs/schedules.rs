//! Schedules: a step, with its job; pages of a namespace's schedules; due schedules.

use std::time::Duration;

use super::publish::Publish;
use crate::clock::{Micros, Millis};
use crate::engine::disk::codec::{self, META_REVISION, Progress};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::schedules::Known;
use crate::engine::disk::step::{STEP_BYTES, Step, StepError, StepResult};
use crate::engine::disk::store::{Fatal, Space};
use crate::engine::{
    Cursor, DueList, DueSchedules, Landed, Published, ScheduleId, ScheduleList, SchedulePage, SchedulePut,
    ScheduleStep, ScheduleThen, ScheduleVersion, Stepped, StoredSchedule,
};
use crate::error::Error;
use crate::name::{Namespace, ScheduleName};

/// Maximum sleep of the scheduler if there is no schedule.
const LONG: Duration = Duration::from_secs(3600);
/// Maximum sleep of the scheduler otherwise: the time of day may be set.
const LOOK: Duration = Duration::from_secs(1);

/// Takes a step.
pub struct StepSchedule(pub ScheduleStep);

impl Step for StepSchedule {
    type Reply = Stepped;
    const MUST_LAST: bool = true;

    fn bytes(&self) -> usize {
        self.0.carried()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Stepped> {
        let ScheduleStep { id, expected, then } = self.0;
        let known = state.schedules.get(&id);
        if known.map(|known| known.version) != expected {
            return Ok(Stepped::Stale);
        }
        match (then, known) {
            (ScheduleThen::Put(put), known) => state.put_schedule(id, known, *put, now),
            (ScheduleThen::Delete, Some(known)) => {
                state.delete_schedule(id, known);
                Ok(Stepped::Done { version: known.version, landed: None })
            }
            (ScheduleThen::Delete, None) => Ok(Stepped::Stale),
        }
    }
}

/// Returns a page of a namespace's schedules.
pub struct ListSchedules {
    pub namespace: Namespace,
    pub list: ScheduleList,
}

impl Step for ListSchedules {
    type Reply = SchedulePage;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<SchedulePage> {
        let ListSchedules { namespace, list } = self;
        let now = state.clock.time_of_day();
        let (prefix, after, limit, bodies) = match list {
            ScheduleList::One(name) => {
                let id = ScheduleId { namespace, name };
                let found = state.schedules.get(&id).map(|_| state.read_schedule(id, true)).transpose()?;
                return Ok(SchedulePage { now, schedules: found.into_iter().collect(), next: None });
            }
            ScheduleList::Page { prefix, after, limit, bodies } => (prefix, after, limit, bodies),
        };
        let from = if prefix.is_empty() { Some(ScheduleName::first()) } else { ScheduleName::parse(&prefix) };
        let Some(from) = from else { return Ok(SchedulePage { now, schedules: Vec::new(), next: None }) };
        let named = state.schedules.of(&namespace, from, after);
        let mut ids: Vec<ScheduleId> =
            named.take_while(|id| id.name.as_str().starts_with(&prefix)).take(limit + 1).cloned().collect();
        let mut more = ids.len() > limit;
        ids.truncate(limit);
        let (mut schedules, mut bytes) = (Vec::new(), 0);
        for id in ids {
            if bytes >= STEP_BYTES {
                more = true;
                break;
            }
            let found = state.read_schedule(id, bodies)?;
            bytes += found.setting.body.len();
            schedules.push(found);
        }
        let next = schedules.last().filter(|_| more).map(|last| last.id.name.clone());
        Ok(SchedulePage { now, schedules, next })
    }
}

/// Returns the due schedules.
pub struct ReadDue(pub DueList);

impl Step for ReadDue {
    type Reply = DueSchedules;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<DueSchedules> {
        let now = state.clock.time_of_day();
        let (from, until) = match self.0 {
            DueList::Now(_) => (0, now),
            DueList::Within(_, time) => (now.saturating_sub(time.as_millis() as Millis), now),
            DueList::Ever { from, limit } => return read_all(state, from, limit, now),
        };
        let due = state.schedules.due(from).take_while(|(due, _)| *due <= until);
        let ids: Vec<ScheduleId> = due.take(self.0.limit()).map(|(_, id)| id.clone()).collect();
        let (mut schedules, mut bytes) = (Vec::new(), 0);
        for id in ids {
            if bytes >= STEP_BYTES {
                break;
            }
            let found = state.read_schedule(id, true)?;
            bytes += found.setting.body.len();
            schedules.push(found);
        }
        let next = match state.schedules.due(from).nth(schedules.len()).map(|(due, _)| due) {
            Some(due) => Duration::from_millis(due.saturating_sub(now)).min(LOOK),
            // Schedules that have been overdue for longer are placed by another task, and then become due again.
            None if state.schedules.due(0).next().is_none() => LONG,
            None => LOOK,
        };
        let (counts, by) = (state.schedules.counts(), state.schedules.by.clone());
        Ok(DueSchedules { now, schedules, more: None, next, counts, by })
    }
}

/// Returns a page of all schedules, by name. The cursor is the last schedule of the previous page.
fn read_all(
    state: &mut WriterState,
    from: Option<Cursor>,
    limit: usize,
    now: Millis,
) -> StepResult<DueSchedules> {
    let after = from.map(|Cursor(text)| read_id(&text)).transpose()?;
    let ids: Vec<ScheduleId> = state.schedules.here(after).take(limit).cloned().collect();
    let more = ids.last().filter(|_| ids.len() == limit).map(|last| Cursor(last.to_string()));
    let schedules = ids.into_iter().map(|id| state.read_schedule(id, false)).collect::<Result<_, _>>()?;
    let (counts, by) = (state.schedules.counts(), state.schedules.by.clone());
    Ok(DueSchedules { now, schedules, more, next: LOOK, counts, by })
}

fn read_id(text: &str) -> Result<ScheduleId, StepError> {
    let read = || {
        let (namespace, name) = text.split_once('/')?;
        Some(ScheduleId { namespace: Namespace::parse(namespace).ok()?, name: ScheduleName::parse(name)? })
    };
    read().ok_or_else(|| StepError::Refused(Error::refused("this is no cursor of schedules")))
}

impl WriterState {
    /// Writes a schedule, and stores its job. Writes nothing if the job is rejected.
    fn put_schedule(
        &mut self,
        id: ScheduleId,
        known: Option<Known>,
        put: SchedulePut,
        now: Micros,
    ) -> StepResult<Stepped> {
        let time = self.clock.time_of_day();
        if time < put.not_before {
            return Ok(Stepped::TooEarly);
        }
        let Some(version) = next_version(known, &put, self.schedules.gone) else { return Ok(Stepped::Stale) };
        let of_namespace = self.schedules.of_namespace(&id.namespace);
        if known.is_none()
            && (of_namespace >= put.bounds.of_namespace || self.schedules.len() >= put.bounds.of_pool)
        {
            return Ok(Stepped::TooMany);
        }
        let bytes_before = known.map_or(0, |known| known.bytes);
        let bytes = put.setting.as_ref().map_or(bytes_before, |setting| setting.bytes() as u64);
        self.admit_beside(&id.namespace, bytes.saturating_sub(bytes_before), known.is_none())?;
        if put.dry {
            return Ok(Stepped::Done { version, landed: None });
        }
        let published = match put.job.map(|job| Publish(job).run(self, now)).transpose() {
            Err(StepError::Refused(Error::Refused(why))) => return Ok(Stepped::Refused(why.to_string())),
            published => published?,
        };
        let landed = match published {
            None => put.landed,
            Some(Published::Done(placed)) => {
                placed.first().map(|placed| Landed { at: time, placed: *placed })
            }
            Some(other) => return Ok(Stepped::NotPlaced(other)),
        };
        if let Some(setting) = &put.setting {
            self.txn.put_row(Space::Schedules, codec::setting_key(&id), codec::setting(setting));
        }
        let (state, next, text) = (put.state, put.next, put.progress);
        let row = codec::progress(&Progress { version, state, next, landed, text });
        self.txn.put_row(Space::Schedules, codec::progress_key(&id), row);
        self.schedules.set(id, Some(Known { version, state, next, bytes }));
        if !put.by.is_empty() {
            *self.schedules.by.entry(put.by).or_default() += 1;
        }
        Ok(Stepped::Done { version, landed })
    }

    fn delete_schedule(&mut self, id: ScheduleId, known: Known) {
        if known.version.revision > self.schedules.gone {
            self.schedules.gone = known.version.revision;
            self.txn.put(Space::Meta, META_REVISION, known.version.revision.to_be_bytes());
        }
        self.txn.delete_row(Space::Schedules, codec::setting_key(&id));
        self.txn.delete_row(Space::Schedules, codec::progress_key(&id));
        self.schedules.set(id, None);
    }

    /// Reads an existing schedule.
    fn read_schedule(&self, id: ScheduleId, body: bool) -> Result<StoredSchedule, Fatal> {
        let row = |key| {
            let row = self.txn.row(Space::Schedules, key)?;
            row.ok_or_else(|| Fatal(format!("the schedule {id} is not whole")))
        };
        let setting = codec::read_setting(&row(codec::setting_key(&id))?, body)?;
        let read = codec::read_progress(&row(codec::progress_key(&id))?)?;
        let Progress { version, state, next, landed, text: progress } = read;
        Ok(StoredSchedule { id, version, state, next, setting, progress, landed })
    }
}

/// Returns the version after a step; `None` if the schedule would have no setting. `gone` is the highest deleted
/// revision of the pool; it does not matter if the step sets the revision.
fn next_version(known: Option<Known>, put: &SchedulePut, gone: u64) -> Option<ScheduleVersion> {
    match (known, &put.setting, put.revision) {
        (Some(Known { version, .. }), None, None) => {
            Some(ScheduleVersion { step: version.step + 1, ..version })
        }
        (Some(Known { version, .. }), _, Some(revision)) if version.revision == revision => {
            Some(ScheduleVersion { step: version.step + 1, ..version })
        }
        (_, Some(_), Some(revision)) => Some(ScheduleVersion { revision, step: 0 }),
        (Some(Known { version, .. }), Some(_), None) => {
            Some(ScheduleVersion { revision: version.revision + 1, step: 0 })
        }
        (None, Some(_), None) => Some(ScheduleVersion { revision: gone + 1, step: 0 }),
        (None, None, _) | (_, None, Some(_)) => None,
    }
}
