//! Schedules: a row for the setting, and one for the progress, which changes with each step.

use bytes::{BufMut, Bytes};

use super::parts::{Malformed, Reader, Result, put_placed, put_short};
use crate::clock::Millis;
use crate::engine::{Landed, ScheduleId, ScheduleSetting, ScheduleState, ScheduleVersion};
use crate::name::{Namespace, QueueName, ScheduleName};

/// Key in `meta` of an upper bound on the revisions of deleted schedules.
pub const META_REVISION: &[u8] = b"revision";
/// Prefix of the keys of progress.
const PROGRESS: u8 = b'p';
/// Prefix of the keys of settings.
const SETTING: u8 = b's';
/// Encodes the absence of a next time.
const NEVER: Millis = Millis::MAX;

/// The part of a schedule that changes with each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub version: ScheduleVersion,
    pub state: ScheduleState,
    pub next: Option<Millis>,
    pub landed: Option<Landed>,
    pub text: Bytes,
}

fn key(kind: u8, id: &ScheduleId) -> Vec<u8> {
    let mut out = vec![kind];
    put_short(&mut out, id.namespace.as_str());
    out.put_slice(id.name.as_str().as_bytes());
    out
}

/// `schedules`: key of a schedule's progress.
pub fn progress_key(id: &ScheduleId) -> Vec<u8> {
    key(PROGRESS, id)
}

/// `schedules`: key of a schedule's setting.
pub fn setting_key(id: &ScheduleId) -> Vec<u8> {
    key(SETTING, id)
}

/// Returns the range of all keys of progress.
pub fn progress_keys() -> std::ops::Range<Vec<u8>> {
    vec![PROGRESS]..vec![PROGRESS + 1]
}

/// Reads [`progress_key`].
pub fn read_progress_key(key: &[u8]) -> Result<ScheduleId> {
    let mut r = Reader(key);
    if r.u8()? != PROGRESS {
        return Err(Malformed("no progress of a schedule"));
    }
    let namespace = Namespace::parse(r.short()?).map_err(|_| Malformed("bad namespace"))?;
    let name = std::str::from_utf8(r.0).ok().and_then(ScheduleName::parse);
    Ok(ScheduleId { namespace, name: name.ok_or(Malformed("bad name of a schedule"))? })
}

/// The value of a [`progress_key`].
pub fn progress(it: &Progress) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + it.text.len());
    out.put_u64(it.version.revision);
    out.put_u64(it.version.step);
    out.put_u8(it.state as u8);
    out.put_u64(it.next.unwrap_or(NEVER));
    out.put_u64(it.landed.map_or(0, |landed| landed.at.max(1)));
    if let Some(Landed { placed, .. }) = &it.landed {
        put_placed(&mut out, placed);
    }
    out.put_slice(&it.text);
    out
}

/// Reads [`progress`].
pub fn read_progress(value: &[u8]) -> Result<Progress> {
    let mut r = Reader(value);
    let version = ScheduleVersion { revision: r.u64()?, step: r.u64()? };
    let state = *ScheduleState::ALL.get(usize::from(r.u8()?)).ok_or(Malformed("no such state"))?;
    let next = Some(r.u64()?).filter(|next| *next != NEVER);
    let landed = match r.u64()? {
        0 => None,
        at => Some(Landed { at, placed: r.placed()? }),
    };
    Ok(Progress { version, state, next, landed, text: Bytes::copy_from_slice(r.0) })
}

/// The value of a [`setting_key`].
pub fn setting(it: &ScheduleSetting) -> Vec<u8> {
    let mut out = Vec::with_capacity(260 + it.text.len() + it.body.len());
    put_short(&mut out, it.queue.as_str());
    out.put_u32(it.text.len() as u32);
    out.put_slice(&it.text);
    out.put_slice(&it.body);
    out
}

/// Reads [`setting`], with its body only if `body`.
pub fn read_setting(value: &[u8], body: bool) -> Result<ScheduleSetting> {
    let mut r = Reader(value);
    let queue = QueueName::parse(r.short()?).map_err(|_| Malformed("bad queue name"))?;
    let length = r.u32()?;
    let text = Bytes::copy_from_slice(r.take(length as usize)?);
    let body = if body { Bytes::copy_from_slice(r.0) } else { Bytes::new() };
    Ok(ScheduleSetting { queue, text, body })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::{How, Placed};
    use crate::job::JobId;

    proptest! {
        #[test]
        fn schedules_survive_and_other_bytes_are_an_error(
            namespace in "[-_A-Za-z0-9]{1,255}", name in "[-A-Za-z0-9][-_.A-Za-z0-9]{0,99}", revision: u64, step: u64,
            state in 0..ScheduleState::ALL.len(), next in proptest::option::of(0..NEVER), at in 0u64..9, id: [u8; 16],
            text: Vec<u8>, body: Vec<u8>,
        ) {
            let namespace = Namespace::parse(&namespace).expect("the pattern makes names");
            let id_of = ScheduleId { namespace, name: ScheduleName::parse(&name).expect("likewise") };
            prop_assert_eq!(read_progress_key(&progress_key(&id_of)), Ok(id_of.clone()));
            prop_assert!(progress_keys().contains(&progress_key(&id_of)) && !progress_keys().contains(&setting_key(&id_of)));
            let (id, text) = (JobId::from_bytes(id, true), Bytes::from(text));
            let how = [How::New, How::Duplicate, How::Replaced(id)][at as usize % 3];
            let landed = (at > 0).then_some(Landed { at, placed: Placed { id, due_at: Some(at), how } });
            let (version, state) = (ScheduleVersion { revision, step }, ScheduleState::ALL[state]);
            let it = Progress { version, state, next, landed, text: text.clone() };
            prop_assert_eq!(read_progress(&progress(&it)), Ok(it));
            let queue = QueueName::parse("q").expect("a literal");
            let it = ScheduleSetting { queue, text: text.clone(), body: body.into() };
            prop_assert_eq!(read_setting(&setting(&it), true), Ok(it.clone()));
            prop_assert_eq!(read_setting(&setting(&it), false), Ok(ScheduleSetting { body: Bytes::new(), ..it }));
            let (_, _) = (read_progress(&text), read_setting(&text, true));
            let _ = read_progress_key(&text);
        }
    }
}
