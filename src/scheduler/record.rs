//! A schedule, and its encoding as the two texts of a record: setting and progress. A step writes the intended outcome
//! of its job as `pending`, and the result of the publish beside it; the next reader combines both into a history
//! entry.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::stored::{Landed, ScheduleId, ScheduleSetting, ScheduleState, ScheduleVersion, StoredSchedule};
use crate::clock::Millis;
use crate::engine::How;
use crate::error::{Error, Result};
use crate::name::Queue;
use crate::schedule::{
    self, Became, Body, Entry, Given, GivenUp, History, Progress, Setting, When, Zones, is_ended,
};

/// A decoded schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub id: ScheduleId,
    pub version: ScheduleVersion,
    pub setting: Setting,
    pub created_at: Millis,
    pub changed_at: Millis,
    pub state: PlacerState,
}

/// Progress of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacerState {
    pub progress: Progress,
    pub history: History,
    /// The occurrence whose job was published with this record; its result is stored beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
    /// Whether the last occurrence was missed or failed. Logged once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ailing: bool,
    /// Why the store rejected the job that is due now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Version of the zone database that computed the next check.
    pub zones: String,
}

/// An occurrence whose job was published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    pub due: Millis,
    /// Its outcome once the job is stored.
    pub outcome: Became,
}

#[derive(Serialize, Deserialize)]
struct Text {
    set: Map<String, Value>,
    /// Whether the body was given as bytes instead of text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    data: bool,
    created_at: Millis,
    changed_at: Millis,
}

impl Schedule {
    /// Decodes a record. Fails with [`Corrupt`](Error::Corrupt) if neither this nor an earlier version wrote it.
    pub fn read(stored: StoredSchedule) -> Result<Schedule> {
        let StoredSchedule {
            id, version, setting: ScheduleSetting { text, body, .. }, progress, landed, ..
        } = stored;
        let unreadable = |what: &dyn std::fmt::Display| Error::corrupt(format!("schedule {id}: {what}"));
        let Text { set, data, created_at, changed_at } =
            serde_json::from_slice(&text).map_err(|e| unreadable(&e))?;
        let mut setting =
            Setting::stored(&id.name, &Value::Object(set)).map_err(|refusal| unreadable(&refusal.error))?;
        setting.body = match String::from_utf8(body.to_vec()) {
            Ok(text) if !data => Body::Text(text),
            _ => Body::Data(body),
        };
        let state = PlacerState::read(&progress, landed).map_err(|e| unreadable(&e))?;
        Ok(Schedule { id, version, setting, created_at, changed_at, state })
    }

    /// Returns the schedule after a step that wrote `progress` and stored a job; `None` if no backlog is left.
    pub fn after(
        self,
        version: ScheduleVersion,
        progress: &[u8],
        landed: Landed,
    ) -> Result<Option<Schedule>> {
        let state = PlacerState::read(progress, Some(landed)).map_err(Error::corrupt)?;
        let is_left = !state.progress.backlog.is_empty();
        Ok(is_left.then(|| Schedule { version, state, ..self }))
    }

    /// Creates a schedule that is set now.
    pub fn new(id: ScheduleId, setting: Setting, now: Millis, zones: &Zones) -> Schedule {
        let state = PlacerState {
            progress: Progress::new(now),
            history: History::default(),
            pending: None,
            ailing: false,
            trouble: None,
            zones: zones.version().to_owned(),
        };
        let version = ScheduleVersion::default();
        Schedule { id, version, setting, created_at: now, changed_at: now, state }
    }

    /// Creates a schedule that replaces an unreadable one. Keeps the readable fields: creation time, history, pause.
    /// Nothing before now is owed.
    pub fn anew(stored: StoredSchedule, given: &Given, now: Millis, zones: &Zones) -> Schedule {
        let mut schedule = Schedule::new(stored.id, given.setting.clone(), now, zones);
        schedule.version = stored.version;
        if let Ok(text) = serde_json::from_slice::<Text>(&stored.setting.text) {
            schedule.created_at = text.created_at;
        }
        let mut is_paused = false;
        if let Ok(state) = PlacerState::read(&stored.progress, stored.landed) {
            let after = now.max(state.progress.cursor.after);
            is_paused = state.progress.is_paused(now);
            (schedule.state.history, schedule.state.progress.cursor) =
                (state.history, schedule::Cursor::at(after));
        }
        if given.paused.unwrap_or(is_paused) {
            schedule.state.progress = schedule.state.progress.pause(None);
        }
        schedule
    }

    /// Encodes the setting.
    pub fn to_setting(&self) -> ScheduleSetting {
        let text = Text {
            set: self.setting.to_json(false),
            data: matches!(self.setting.body, Body::Data(_)),
            created_at: self.created_at,
            changed_at: self.changed_at,
        };
        ScheduleSetting {
            queue: self.setting.queue.clone(),
            text: text_of(&text),
            body: self.setting.body.bytes(),
        }
    }

    /// Returns the queue of its jobs.
    pub fn queue(&self) -> Queue {
        Queue { namespace: self.id.namespace.clone(), name: self.setting.queue.clone() }
    }

    /// Returns its instants; `None` if this server's zone database does not have its zone.
    pub fn when(&self, zones: &Zones) -> Option<When> {
        self.setting.when(zones, self.state.progress.every_set_at)
    }

    /// Returns its state, for statistics.
    pub fn state_at(&self, when: Option<&When>, now: Millis) -> ScheduleState {
        match when {
            _ if self.state.progress.is_paused(now) => ScheduleState::Paused,
            None => ScheduleState::Broken,
            Some(when) if is_ended(when, &self.state.progress) => ScheduleState::Ended,
            Some(_) => ScheduleState::On,
        }
    }
}

impl PlacerState {
    /// Decodes the progress, with the result of the last job.
    fn read(progress: &[u8], landed: Option<Landed>) -> serde_json::Result<PlacerState> {
        let mut state: PlacerState = serde_json::from_slice(progress)?;
        if let (Some(Pending { due, outcome }), Some(landed)) = (state.pending.take(), landed) {
            state.history.add(entry_of(due, outcome, landed));
        }
        Ok(state)
    }

    /// Records missed occurrences, with the reason.
    pub fn miss(&mut self, GivenUp { due, last_due, count }: GivenUp, now: Millis) {
        let (last_due, outcome, why) = (Some(last_due), Became::Missed, self.trouble.take());
        self.history.add(Entry { due, last_due, at: now, outcome, job_id: None, why, count });
        self.ailing = true;
    }

    /// Encodes the progress.
    pub fn to_progress(&self) -> Bytes {
        text_of(self)
    }
}

/// Returns the history entry of a job.
pub fn entry_of(due: Millis, outcome: Became, landed: Landed) -> Entry {
    let outcome = if landed.placed.how == How::Duplicate { Became::Skipped } else { outcome };
    let job_id = Some(landed.placed.id.to_string());
    Entry { due, last_due: None, at: landed.at, outcome, job_id, why: None, count: Some(1) }
}

fn text_of(value: &impl Serialize) -> Bytes {
    // Names and numbers always encode as JSON.
    serde_json::to_vec(value).unwrap_or_default().into()
}
