//! Encoding of schedules in the settings store: one record each, compared and replaced as a whole.
//!
//! The value of a record is three lines of JSON and the body of the jobs: fields that every version reads ([`Head`]),
//! setting, progress. A server that cannot decode the setting or the progress still reads the head.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::engine::{How, Placed, Publication, Published};
use crate::job::JobId;
use crate::name::{Namespace, Queue, QueueName, ScheduleName};
use crate::settings::{Record, SettingVersion};

/// Names a schedule within a pool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleId {
    pub namespace: Namespace,
    pub name: ScheduleName,
}

impl fmt::Display for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// State of a schedule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleState {
    On,
    Paused,
    /// No occurrence is left.
    Ended,
    /// The zone database does not have its zone.
    Broken,
}

impl ScheduleState {
    pub const ALL: [ScheduleState; 4] =
        [ScheduleState::On, ScheduleState::Paused, ScheduleState::Ended, ScheduleState::Broken];

    pub fn as_str(self) -> &'static str {
        match self {
            ScheduleState::On => "on",
            ScheduleState::Paused => "paused",
            ScheduleState::Ended => "ended",
            ScheduleState::Broken => "broken",
        }
    }

    pub fn parse(s: &str) -> Option<ScheduleState> {
        ScheduleState::ALL.into_iter().find(|state| state.as_str() == s)
    }
}

/// Version of a record that a step expects. Each step creates a new version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleVersion {
    /// Grows with each change of the setting, and is never reused for a name.
    pub revision: u64,
    pub record: SettingVersion,
}

/// Setting of a schedule, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSetting {
    /// Queue of its jobs.
    pub queue: QueueName,
    pub text: Bytes,
    /// Body of its jobs.
    pub body: Bytes,
}

/// The result of placing a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// By the pool's time of day.
    pub at: Millis,
    pub placed: Placed,
}

/// A stored schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSchedule {
    pub id: ScheduleId,
    pub version: ScheduleVersion,
    pub state: ScheduleState,
    /// Time of the next check; `None`: never.
    pub next: Option<Millis>,
    pub setting: ScheduleSetting,
    pub progress: Bytes,
    /// Result of the step that wrote `progress`.
    pub landed: Option<Landed>,
}

/// Fields of every record, in this and all newer versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub revision: u64,
    pub state: ScheduleState,
    pub next: Option<Millis>,
    /// The server that wrote the record. It tries first when the schedule is due.
    pub server: Box<str>,
    /// Version of the zone database that `next` was computed with.
    pub zones: Box<str>,
    queue: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    landed: Option<LandedText>,
}

/// A [`Landed`], as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LandedText {
    at: Millis,
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_at: Option<Millis>,
    /// The job that it replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced: Option<String>,
    /// No job was stored, because this job holds the key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
}

impl LandedText {
    fn of(Landed { at, placed }: Landed) -> LandedText {
        let replaced = if let How::Replaced(id) = placed.how { Some(id.to_string()) } else { None };
        let duplicate = placed.how == How::Duplicate;
        LandedText { at, id: placed.id.to_string(), due_at: placed.due_at, replaced, duplicate }
    }

    fn read(self) -> Option<Landed> {
        let how = match self.replaced {
            Some(id) => How::Replaced(JobId::parse(&id)?),
            None if self.duplicate => How::Duplicate,
            None => How::New,
        };
        Some(Landed { at: self.at, placed: Placed { id: JobId::parse(&self.id)?, due_at: self.due_at, how } })
    }
}

impl Head {
    /// Reads the head of a record. `None` if it is damaged.
    pub fn read(value: &[u8]) -> Option<Head> {
        serde_json::from_slice(value.split(|byte| *byte == b'\n').next()?).ok()
    }

    /// Returns the head of a record, and the size of its setting with the body. `None` if it is damaged.
    pub fn read_with_size(value: &[u8]) -> Option<(Head, u64)> {
        let mut lines = value.splitn(4, |byte| *byte == b'\n').skip(1);
        let (text, _, body) = (lines.next()?, lines.next()?, lines.next()?);
        Some((Head::read(value)?, (text.len() + body.len()) as u64))
    }
}

impl ScheduleSetting {
    /// Returns its size in a record.
    pub fn bytes(&self) -> u64 {
        (self.text.len() + self.body.len()) as u64
    }
}

impl StoredSchedule {
    /// Returns the queue of its jobs.
    pub fn queue(&self) -> Queue {
        Queue { namespace: self.id.namespace.clone(), name: self.setting.queue.clone() }
    }

    /// Decodes a record, but not its setting and progress. A damaged record is returned without both, as a broken
    /// schedule that is never due, so that it is shown and can be deleted.
    pub fn read(id: ScheduleId, record: &Record) -> StoredSchedule {
        let damaged = || StoredSchedule {
            id: id.clone(),
            version: ScheduleVersion { revision: 0, record: record.version },
            state: ScheduleState::Broken,
            next: None,
            setting: ScheduleSetting { queue: QueueName::first(), text: Bytes::new(), body: Bytes::new() },
            progress: Bytes::new(),
            landed: None,
        };
        StoredSchedule::whole(&id, record).unwrap_or_else(damaged)
    }

    fn whole(id: &ScheduleId, record: &Record) -> Option<StoredSchedule> {
        let value = &record.value;
        let Head { revision, state, next, queue, landed, .. } = Head::read(value)?;
        let queue = QueueName::parse(&queue).ok()?;
        let mut ends = value.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        let (first, second, third) = (ends.next()?, ends.next()?, ends.next()?);
        let landed = match landed {
            Some(landed) => Some(landed.read()?),
            None => None,
        };
        let (text, progress) = (value.slice(first + 1..second), value.slice(second + 1..third));
        let setting = ScheduleSetting { queue, text, body: value.slice(third + 1..) };
        let (id, version) = (id.clone(), ScheduleVersion { revision, record: record.version });
        Some(StoredSchedule { id, version, state, next, setting, progress, landed })
    }
}

/// Maximum number of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleBounds {
    pub of_namespace: u64,
    pub of_pool: u64,
}

/// One step of one schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleStep {
    pub id: ScheduleId,
    /// `None`: the schedule must not exist.
    pub expected: Option<ScheduleVersion>,
    pub put: SchedulePut,
}

/// A record to write, and the job to publish first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulePut {
    pub setting: ScheduleSetting,
    /// Whether the setting changes, and therefore the revision.
    pub is_change: bool,
    pub state: ScheduleState,
    pub next: Option<Millis>,
    pub progress: Bytes,
    /// Result of a job that is stored already.
    pub landed: Option<Landed>,
    /// Checked if the schedule is new.
    pub bounds: ScheduleBounds,
    /// Published before the record is written.
    pub job: Option<Publication>,
    /// Earliest time of day of this step.
    pub not_before: Millis,
    /// Version of the zone database that `next` was computed with.
    pub zones: Box<str>,
    /// Writes nothing, and returns what would happen. Has no job.
    pub dry: bool,
}

impl SchedulePut {
    /// Returns the head of the record.
    pub fn head(&self, revision: u64, server: &str) -> Head {
        Head {
            revision,
            state: self.state,
            next: self.next,
            server: server.into(),
            zones: self.zones.clone(),
            queue: self.setting.queue.to_string(),
            landed: self.landed.map(LandedText::of),
        }
    }

    /// Encodes the record.
    pub fn value(&self, head: &Head) -> Bytes {
        // Names and numbers always encode as JSON.
        let head = serde_json::to_vec(head).unwrap_or_default();
        let ScheduleSetting { text, body, .. } = &self.setting;
        let mut value =
            BytesMut::with_capacity(head.len() + text.len() + self.progress.len() + body.len() + 3);
        for line in [&head[..], text, &self.progress] {
            value.put_slice(line);
            value.put_u8(b'\n');
        }
        value.put_slice(body);
        value.freeze()
    }
}

/// The result of a [`ScheduleStep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stepped {
    Done {
        /// New version of the record.
        version: ScheduleVersion,
        /// Result of the job, if any.
        landed: Option<Landed>,
    },
    /// The job was not stored, because of a [`Mismatch`](Published::Mismatch) or [`Conflict`](Published::Conflict).
    /// Nothing has changed.
    NotPlaced(Published),
    /// The store rejects this job itself, for this reason. Nothing has changed.
    Refused(String),
    /// The record is not the expected one, and has not changed.
    Stale,
    /// The pool's time of day is before `not_before`. Nothing has changed.
    TooEarly,
    /// The maximum number of schedules exists already. Nothing has changed.
    TooMany,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn schedules_survive_and_other_bytes_are_an_error(
            revision: u64, record: u64, state in 0..ScheduleState::ALL.len(), next: Option<u64>, at in 0u64..9,
            job in proptest::array::uniform16(any::<u8>()), text in "[ -~]{0,40}", body: Vec<u8>, other: Vec<u8>,
        ) {
            let id = ScheduleId {
                namespace: Namespace::parse("ns").expect("a literal"),
                name: ScheduleName::parse("s").expect("a literal"),
            };
            let job = JobId::from_bytes(job, true);
            let how = [How::New, How::Duplicate, How::Replaced(job)][at as usize % 3];
            let landed = (at > 0).then_some(Landed { at, placed: Placed { id: job, due_at: Some(at), how } });
            let setting = ScheduleSetting {
                queue: QueueName::parse("q").expect("a literal"),
                text: text.clone().into(),
                body: body.into(),
            };
            let put = SchedulePut {
                setting: setting.clone(), is_change: false, state: ScheduleState::ALL[state], next,
                progress: text.into(), landed, bounds: ScheduleBounds { of_namespace: 1, of_pool: 1 }, job: None,
                not_before: 0, zones: "2026f".into(), dry: false,
            };
            let value = put.value(&put.head(revision, "me"));
            prop_assert_eq!(Head::read_with_size(&value).map(|(_, size)| size), Some(setting.bytes()));
            let read = StoredSchedule::read(id.clone(), &Record { value, version: record });
            let version = ScheduleVersion { revision, record };
            let SchedulePut { state, progress, .. } = put;
            let expected = StoredSchedule { id: id.clone(), version, state, next, setting, progress, landed };
            prop_assert_eq!(read, expected);
            let _ = StoredSchedule::read(id, &Record { value: other.into(), version: 1 });
        }
    }
}
