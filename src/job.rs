//! Jobs, their ids, and the data stored with them. Plain values.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ulid::Ulid;

use crate::clock::Millis;
use crate::name::{JobKey, Queue};
use crate::random;

/// Headers stored with a job: lower-case name to value.
pub type Attributes = BTreeMap<String, String>;

/// Whether a header can have this name behind its prefix: push sends attributes as headers.
pub fn is_attribute_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

/// Whether a header can have this value.
pub fn is_attribute_value(value: &str) -> bool {
    value.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control())
}

/// The digit before the ULID of a job whose stored form carries attributes.
const VERSION_WITH_ATTRIBUTES: u8 = b'1';

/// A job's id in lmstfy's format: a ULID whose 16 bytes are 6 of milliseconds since the epoch (big-endian), 6 that
/// distinguish ids of one millisecond, and 4 of the delay in seconds (little-endian). A versioned id has a `1` before
/// the 26 characters; its stored job has attributes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    ulid: u128,
    versioned: bool,
}

impl JobId {
    /// Creates an id from its parts. `unique` and `at` are truncated to 48 bits (until the year 10889).
    pub fn from_parts(at: Millis, unique: u64, delay_seconds: u32, versioned: bool) -> JobId {
        const LOW_48: u64 = (1 << 48) - 1;
        let ulid = (u128::from(at & LOW_48) << 80)
            | (u128::from(unique & LOW_48) << 32)
            | u128::from(delay_seconds.swap_bytes());
        JobId { ulid, versioned }
    }

    /// Parses 26 characters of canonical ULID, or 27 with the version digit in front. Neither Dormouse nor lmstfy has
    /// issued other ids.
    pub fn parse(s: &str) -> Option<JobId> {
        let (versioned, text) = match s.len() {
            26 => (false, s),
            27 if s.as_bytes()[0] == VERSION_WITH_ATTRIBUTES => (true, s.get(1..)?),
            _ => return None,
        };
        let ulid = Ulid::from_string(text).ok()?;
        // The decoder accepts lower case; stored ids are upper case.
        (ulid.to_string() == text).then_some(JobId { ulid: ulid.0, versioned })
    }

    /// Returns the 16 bytes, without the version.
    pub fn to_bytes(self) -> [u8; 16] {
        self.ulid.to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; 16], versioned: bool) -> JobId {
        JobId { ulid: u128::from_be_bytes(bytes), versioned }
    }

    /// Returns when the job was published, by the clock of its pool. [`JobView::published_at`] is the time of day.
    pub fn published_at(self) -> Millis {
        (self.ulid >> 80) as Millis
    }

    /// Returns the delay of the publish in whole seconds.
    pub fn delay_seconds(self) -> u32 {
        (self.ulid as u32).swap_bytes()
    }

    /// Returns the end of the delay.
    pub fn first_due(self) -> Millis {
        self.published_at() + 1000 * Millis::from(self.delay_seconds())
    }

    /// Returns whether the stored form has attributes.
    pub fn is_versioned(self) -> bool {
        self.versioned
    }
}

impl JobId {
    pub fn text(self, buffer: &mut [u8; 27]) -> &str {
        buffer[0] = VERSION_WITH_ATTRIBUTES;
        // A ULID has 26 characters, so this cannot fail.
        Ulid(self.ulid).array_to_str((&mut buffer[1..]).try_into().expect("26 bytes"));
        let from = usize::from(!self.versioned);
        std::str::from_utf8(&buffer[from..]).expect("base 32 is ASCII")
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(&mut [0; 27]))
    }
}

/// Serializes as text.
impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.text(&mut [0; 27]))
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<JobId, D::Error> {
        let text = String::deserialize(d)?;
        JobId::parse(&text).ok_or_else(|| serde::de::Error::custom("no id of a job"))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({self})")
    }
}

/// How far the clock may be behind the newest id, in milliseconds, before ids follow it back. Until then the time in
/// new ids, and thus the age of jobs, stands still. The clocks of two Redis servers usually differ by less at a
/// failover.
const MOST_BEHIND: Millis = 1000;

/// Creates increasing ids, also within one millisecond and when the clock is set back by up to a second. If the clock
/// is set back further, ids start again from the smaller time. (The clock of a disk pool never decreases.) One per
/// pool, since the time in an id is the pool's.
#[derive(Debug)]
pub struct JobIds {
    last: Mutex<(Millis, u64)>,
}

impl Default for JobIds {
    fn default() -> JobIds {
        JobIds { last: Mutex::new((0, 0)) }
    }
}

impl JobIds {
    /// Returns a new id for a job published at `now`.
    pub fn make(&self, now: Millis, delay_seconds: u32, versioned: bool) -> JobId {
        let mut last = self.last.lock();
        if now > last.0 || last.0 - now > MOST_BEHIND {
            // 47 random bits: the top bit stays free, so that counting cannot overflow within a millisecond.
            let random = u64::from_le_bytes(random::bytes()) & ((1 << 47) - 1);
            *last = (now, random);
        } else {
            last.1 += 1;
        }
        JobId::from_parts(last.0, last.1, delay_seconds, versioned)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    pub queue: Queue,
    pub id: JobId,
    pub body: Bytes,
    /// Stored only if the id is versioned.
    pub attributes: Attributes,
    /// Time to live from the publish; `None` is forever.
    pub ttl: Option<Duration>,
    /// Time until it is ready. Shorter than `ttl`.
    pub delay: Duration,
    /// Maximum number of deliveries.
    pub tries: NonZeroU16,
}

/// A job that was read or delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub queue: Queue,
    pub id: JobId,
    pub body: Bytes,
    /// Empty unless the id is versioned.
    pub attributes: Attributes,
    /// Remaining time to live; `None` is forever.
    pub ttl: Option<Duration>,
    /// Time since the publish; 0 if clocks disagree.
    pub elapsed: Duration,
    /// When it became ready, as far as the store knows: the end of its delay, ttr, or release.
    pub due: Millis,
    /// Deliveries left after the current one (consume), or in total (peek at a queue's head).
    pub tries_left: u16,
    /// Identifies this delivery to the engine; 0 if the job was only read. Needed by [`give_back`]. Engines never use
    /// the highest bit: see [`Job::FROM_NEW`].
    ///
    /// [`give_back`]: crate::engine::Engine::give_back
    pub receipt: u64,
}

impl Job {
    /// Flag in `receipt`: the target store of a migrating pool delivered the job. Not part of the receipt given to
    /// clients, which stays valid for that store before and after the migration.
    pub const FROM_NEW: u64 = 1 << 63;

    /// Returns the receipt for clients.
    pub fn proof(&self) -> Receipt {
        Receipt { delivery: self.receipt & !Job::FROM_NEW, tries_left: self.tries_left }
    }
}

/// Proves ownership of a delivery. Opaque outside the engines; clients see it as text.
///
/// It is free to create. `delivery` distinguishes the deliveries of one job, in at most 63 bits with engine-specific
/// meaning. `tries_left` is the number of further deliveries; on Redis it is part of the name of the job's timer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Receipt {
    pub delivery: u64,
    pub tries_left: u16,
}

/// Bytes of a receipt: `delivery`, then the tries.
const RECEIPT_BYTES: usize = 10;

impl Receipt {
    /// Parses exactly what `Display` writes.
    pub fn parse(s: &str) -> Option<Receipt> {
        let bytes: [u8; RECEIPT_BYTES] = URL_SAFE_NO_PAD.decode(s).ok()?.try_into().ok()?;
        let (delivery, tries) = bytes.split_first_chunk()?;
        let tries_left = u16::from_be_bytes(tries.try_into().ok()?);
        Some(Receipt { delivery: u64::from_be_bytes(*delivery), tries_left })
    }
}

impl fmt::Display for Receipt {
    /// Writes 14 URL-safe characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; RECEIPT_BYTES];
        bytes[..8].copy_from_slice(&self.delivery.to_be_bytes());
        bytes[8..].copy_from_slice(&self.tries_left.to_be_bytes());
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// Serializes as text.
impl Serialize for Receipt {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// State of a job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JobState {
    Delayed,
    Ready,
    Running,
    Dead,
}

impl JobState {
    pub const ALL: [JobState; 4] = [JobState::Delayed, JobState::Ready, JobState::Running, JobState::Dead];

    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Delayed => "delayed",
            JobState::Ready => "ready",
            JobState::Running => "running",
            JobState::Dead => "dead",
        }
    }

    pub fn parse(s: &str) -> Option<JobState> {
        JobState::ALL.into_iter().find(|state| state.as_str() == s)
    }
}

/// A worker's text saying why it released or buried a job: 1 to [`Reason::MOST`] bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reason(Box<str>);

impl Reason {
    /// Maximum length in bytes.
    pub const MOST: usize = 4096;

    /// Returns `None` if the text is empty or too long.
    pub fn new(s: &str) -> Option<Reason> {
        (1..=Reason::MOST).contains(&s.len()).then(|| Reason(s.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Description of a job; fields that were not requested are `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobView {
    pub id: JobId,
    /// `None` if the store cannot determine it with bounded work, or it was not requested.
    pub state: Option<JobState>,
    /// Delayed: when it becomes ready. Running: when its ttr ends. Ready or dead: when it became so, or `None` if
    /// unknown.
    pub due_at: Option<Millis>,
    /// Deliveries left; 0 if dead, `None` if unknown.
    pub tries_left: Option<u16>,
    /// The current receipt, if requested.
    pub receipt: Option<Receipt>,
    /// Remaining time to live; `None` is forever.
    pub ttl: Option<Duration>,
    /// Time since the publish; 0 if clocks disagree.
    pub elapsed: Duration,
    /// When it was published, by the store's time of day.
    pub published_at: Millis,
    pub key: Option<JobKey>,
    /// The last reason given.
    pub reason: Option<Reason>,
    pub size: u64,
    /// `None` if not requested.
    pub body: Option<Bytes>,
    /// Empty unless the id is versioned and the body was requested.
    pub attributes: Attributes,
}

/// Takes the stored fields.
impl From<Job> for JobView {
    fn from(job: Job) -> JobView {
        JobView {
            id: job.id,
            state: None,
            due_at: None,
            tries_left: None,
            receipt: None,
            ttl: job.ttl,
            elapsed: job.elapsed,
            published_at: job.id.published_at(),
            key: None,
            reason: None,
            size: job.body.len() as u64,
            body: Some(job.body),
            attributes: job.attributes,
        }
    }
}

/// Identifies a stored job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobRef {
    pub queue: Queue,
    pub id: JobId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_id_is_laid_out_as_lmstfy_lays_it_out() {
        let id = JobId::from_parts(0x0102_0304_0506, 0x0a0b_0c0d_0e0f, 0x1122_3344, false);
        assert_eq!(
            id.to_bytes(),
            [1, 2, 3, 4, 5, 6, 0xa, 0xb, 0xc, 0xd, 0xe, 0xf, 0x44, 0x33, 0x22, 0x11],
            "6 bytes of time, 6 of uniqueness, 4 of delay in little-endian"
        );
    }

    #[test]
    fn only_canonical_text_is_an_id() {
        for bad in [
            "",
            "x",
            "01aaaaaaaaaaaaaaaaaaaaaaaa",
            "201AAAAAAAAAAAAAAAAAAAAAAAA",
            "01AAAAAAAAAAAAAAAAAAAAAAAU",
        ] {
            assert_eq!(JobId::parse(bad), None, "{bad:?} is not an id");
        }
        assert!(JobId::parse("01AAAAAAAAAAAAAAAAAAAAAAAA").is_some(), "a plain ULID is an id");
    }

    #[test]
    fn ids_grow_within_a_millisecond_and_when_the_clock_is_set_back() {
        let ids = JobIds::default();
        let made: Vec<JobId> = [5, 5, 5, 3, 9, 9].map(|now| ids.make(now, 0, false)).into();
        assert!(made.is_sorted_by(|a, b| a < b), "ids should grow: {made:?}");
    }

    #[test]
    fn ids_follow_a_clock_that_was_set_back_for_long() {
        const HOUR: Millis = 3_600_000;
        let (ids, start) = (JobIds::default(), 500 * HOUR);
        ids.make(start, 0, false);
        for now in [start - MOST_BEHIND, start - HOUR, start - HOUR + 1, 0, HOUR] {
            let at = ids.make(now, 0, false).published_at();
            assert!(at.abs_diff(now) <= MOST_BEHIND, "an id of {now} says that it was made at {at}");
        }
    }

    #[test]
    fn a_receipt_is_short_and_read_strictly() {
        let receipt = Receipt { delivery: u64::MAX, tries_left: u16::MAX };
        assert_eq!(receipt.to_string(), "_____________w", "80 bits in 14 characters");
        for bad in ["", "0", "_____________x", "______________", "AAAAAAAAAAAAAA==", "AAAAAAAAAAAAA+"] {
            assert_eq!(Receipt::parse(bad), None, "{bad:?} is not a receipt");
        }
    }

    #[test]
    fn a_reason_is_short_and_not_empty() {
        for (bytes, fits) in [(0, false), (1, true), (4096, true), (4097, false)] {
            assert_eq!(Reason::new(&"x".repeat(bytes)).is_some(), fits, "{bytes} bytes");
        }
    }

    #[test]
    fn a_state_survives_its_name() {
        for state in JobState::ALL {
            assert_eq!(JobState::parse(state.as_str()), Some(state));
        }
        assert_eq!(JobState::parse("gone"), None);
    }

    proptest! {
        #[test]
        fn a_receipt_survives_its_text(delivery: u64, tries_left: u16) {
            let receipt = Receipt { delivery, tries_left };
            prop_assert_eq!(Receipt::parse(&receipt.to_string()), Some(receipt));
        }

        #[test]
        fn an_id_survives_its_text(at in 0u64..1 << 48, unique in 0u64..1 << 48, delay: u32, versioned: bool) {
            let id = JobId::from_parts(at, unique, delay, versioned);
            prop_assert_eq!(id.published_at(), at);
            prop_assert_eq!(id.delay_seconds(), delay);
            prop_assert_eq!(JobId::parse(&id.to_string()), Some(id));
            prop_assert_eq!(JobId::from_bytes(id.to_bytes(), versioned), id);
        }
    }
}
