//! Cursors of lists of jobs.
//!
//! A cursor remains valid while other calls change the list:
//!
//! - among timers it is a position in the order of scores and members, and needs no member at that position;
//! - in a list it contains the number of elements passed, the last passed element, and the next few. Removals shift the
//!   others, so the page starts behind the last passed element or at one of the next, at whichever is found first. If
//!   none is found, consumes (or a respawn of the oldest) have passed the cursor, and the page starts at the head. A
//!   job that was delivered and is ready again has fewer tries, so it is another element; a dead job that is further
//!   from the head than before has died again.

use std::cmp::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::engine::Cursor;
use crate::job::{JobId, JobState};

/// Number of elements after its position that a cursor contains.
pub const NEXT: usize = 8;

/// The position of a cursor.
#[derive(Debug, PartialEq, Eq)]
pub enum ListPlace {
    InTimers(InTimers),
    InList(InList),
}

/// A position among all timers, in the form of lua/scan_timers.lua.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InTimers {
    pub score: String,
    pub side: String,
    pub end: Vec<u8>,
}

impl InTimers {
    /// Returns the position of a timer of the queue.
    pub fn of_timer(score: String, end: Vec<u8>) -> InTimers {
        InTimers { score, side: "m".into(), end }
    }

    /// Returns the position before the queue's timers with this score.
    pub fn before(score: &str) -> InTimers {
        InTimers { score: score.into(), side: "b".into(), end: Vec::new() }
    }

    /// Returns the score as a number; negative at the start.
    pub fn at(&self) -> f64 {
        self.score.parse().unwrap_or(-1.0)
    }

    pub fn compare(&self, other: &InTimers) -> Ordering {
        let side = |place: &InTimers| ["b", "m", "a"].iter().position(|side| *side == place.side);
        let of_score = self.at().total_cmp(&other.at());
        of_score.then_with(|| side(self).cmp(&side(other))).then_with(|| self.end.cmp(&other.end))
    }

    pub fn write(&self, state: JobState) -> Cursor {
        let mut bytes = tag_of(state).to_vec();
        bytes.push(self.score.len() as u8);
        bytes.extend(self.score.as_bytes());
        bytes.extend(self.side.as_bytes());
        bytes.extend(&self.end);
        cursor_of(&bytes)
    }
}

/// A position in a list of elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InList {
    /// Number of elements before the position.
    pub passed: u64,
    /// The last element before the position.
    pub last: Option<Element>,
    /// The next elements.
    pub next: Vec<Element>,
}

/// The content of an element: a job's id, and the tries with which it became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    pub id: JobId,
    pub tries: u16,
}

/// First byte of a cursor; the second is the state.
const MARK: u8 = b'r';

/// Returns the first bytes of a cursor for a state.
fn tag_of(state: JobState) -> [u8; 2] {
    [MARK, JobState::ALL.iter().position(|other| *other == state).unwrap_or_default() as u8]
}

/// Encodes a cursor.
fn cursor_of(bytes: &[u8]) -> Cursor {
    Cursor(URL_SAFE_NO_PAD.encode(bytes))
}

/// Returns the bytes after the tag of a cursor, if it is for this state.
fn bytes_of(cursor: &str, state: JobState) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    bytes.strip_prefix(&tag_of(state)).map(<[u8]>::to_vec)
}

/// Size of an element in a cursor: its kind (none, or the format of the id), the id's 16 bytes, and the tries.
const ELEMENT_BYTES: usize = 19;

fn write_element(bytes: &mut Vec<u8>, element: Option<&Element>) {
    bytes.push(element.map_or(0, |element| 1 + u8::from(element.id.is_versioned())));
    bytes.extend(element.map_or([0; 16], |element| element.id.to_bytes()));
    bytes.extend(element.map_or(0, |element| element.tries).to_be_bytes());
}

fn read_element(bytes: &[u8]) -> Option<Option<Element>> {
    let (kind, rest) = bytes.split_first()?;
    let (id, tries) = rest.split_first_chunk()?;
    let tries = u16::from_be_bytes(tries.try_into().ok()?);
    match kind {
        0 => Some(None),
        1 | 2 => Some(Some(Element { id: JobId::from_bytes(*id, *kind == 2), tries })),
        _ => None,
    }
}

impl InList {
    pub fn write(&self, state: JobState) -> Cursor {
        let mut bytes = tag_of(state).to_vec();
        bytes.extend(self.passed.to_be_bytes());
        write_element(&mut bytes, self.last.as_ref());
        self.next.iter().for_each(|element| write_element(&mut bytes, Some(element)));
        cursor_of(&bytes)
    }

    /// Returns the index of the element where the list continues. `from` is the number of the first element.
    pub fn find(&self, elements: &[Option<Element>], from: u64, state: JobState) -> Option<usize> {
        if self.passed == 0 {
            return Some(0);
        }
        let find = |wanted: &Element, stood: u64| {
            let at = elements.iter().position(|other| other.as_ref() == Some(wanted))?;
            (state == JobState::Ready || from + at as u64 <= stood).then_some(at)
        };
        let behind_last = self.last.iter().filter_map(|last| find(last, self.passed - 1)).map(|at| at + 1);
        let next = (self.passed..).zip(&self.next).filter_map(|(stood, next)| find(next, stood));
        behind_last.chain(next).min()
    }
}

impl ListPlace {
    /// Parses a position that was written for this state.
    pub fn read(cursor: &str, state: JobState) -> Option<ListPlace> {
        let bytes = &bytes_of(cursor, state)?[..];
        if matches!(state, JobState::Delayed | JobState::Running) {
            let (length, bytes) = bytes.split_first()?;
            let (score, bytes) = bytes.split_at_checked(usize::from(*length))?;
            let (side, end) = bytes.split_first()?;
            let score =
                std::str::from_utf8(score).ok().filter(|score| score.parse().is_ok_and(f64::is_finite))?;
            let side = matches!(side, b'a' | b'b' | b'm').then(|| char::from(*side).to_string())?;
            return Some(ListPlace::InTimers(InTimers { score: score.to_owned(), side, end: end.to_vec() }));
        }
        let (passed, elements) = bytes.split_first_chunk()?;
        let passed = u64::from_be_bytes(*passed);
        let most = ELEMENT_BYTES * (1 + NEXT);
        if elements.len() % ELEMENT_BYTES != 0 || elements.len() > most || passed > i64::MAX as u64 / 2 {
            return None;
        }
        let mut elements = elements.chunks(ELEMENT_BYTES).map(read_element);
        let last = elements.next()??;
        let next = elements.map(Option::flatten).collect::<Option<Vec<_>>>()?;
        Some(ListPlace::InList(InList { passed, last, next }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn element() -> impl Strategy<Value = Element> {
        let id = |(bytes, versioned)| JobId::from_bytes(bytes, versioned);
        (any::<([u8; 16], bool)>().prop_map(id), any::<u16>()).prop_map(|(id, tries)| Element { id, tries })
    }

    proptest! {
        #[test]
        fn a_place_survives_its_cursor(
            passed in 0..u64::MAX / 4,
            last in prop::option::of(element()),
            next in prop::collection::vec(element(), 0..=NEXT),
            score in 0f64..1e10, end: [u8; 31],
        ) {
            let place = InList { passed, last, next };
            for state in [JobState::Ready, JobState::Dead] {
                let cursor = place.write(state);
                prop_assert!(cursor.0.len() <= 600, "{} characters", cursor.0.len());
                prop_assert_eq!(ListPlace::read(&cursor.0, state), Some(ListPlace::InList(place.clone())));
                prop_assert_eq!(ListPlace::read(&cursor.0, JobState::Running), None);
            }
            let place = InTimers { score: score.to_string(), side: "m".into(), end: end.to_vec() };
            let cursor = place.write(JobState::Delayed);
            prop_assert_eq!(ListPlace::read(&cursor.0, JobState::Delayed), Some(ListPlace::InTimers(place)));
            prop_assert_eq!(ListPlace::read(&cursor.0, JobState::Running), None, "of another state");
        }

        #[test]
        fn other_text_is_no_place(bytes: Vec<u8>, cut in 0usize..60) {
            let place = InList { passed: 7, last: None, next: Vec::new() }.write(JobState::Dead).0;
            let short = &place[..cut.min(place.len() - 1)];
            prop_assert_eq!(ListPlace::read(short, JobState::Dead), None);
            // Nothing panics.
            let mut all = tag_of(JobState::Delayed).to_vec();
            all.extend(bytes);
            ListPlace::read(&cursor_of(&all).0, JobState::Delayed);
        }
    }
}
