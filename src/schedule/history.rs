//! What became of occurrences: the last ones, and how many by outcome. Missed ones in a row are one entry.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::when::MOST_COUNTED;
use crate::clock::Millis;

/// How many are kept, the newest.
pub const MOST_KEPT: usize = 20;
/// The most bytes that are kept of a reason.
const MAX_WHY: usize = 200;

/// What became of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    Placed,
    CaughtUp,
    /// A job of an earlier one lives.
    Skipped,
    /// It came too late.
    Missed,
    /// The store refuses this job alone.
    Failed,
    /// Somebody asked for it.
    Run,
}

impl Became {
    pub const ALL: [Became; 6] =
        [Became::Placed, Became::CaughtUp, Became::Skipped, Became::Missed, Became::Failed, Became::Run];

    pub fn as_str(self) -> &'static str {
        match self {
            Became::Placed => "placed",
            Became::CaughtUp => "caught_up",
            Became::Skipped => "skipped",
            Became::Missed => "missed",
            Became::Failed => "failed",
            Became::Run => "run",
        }
    }
}

/// An entry of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub due: Millis,
    /// Of missed ones in a row the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_due: Option<Millis>,
    /// When it was decided.
    pub at: Millis,
    pub outcome: Became,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How many; `None` above [`MOST_COUNTED`].
    pub count: Option<u32>,
}

/// The last occurrences, newest first, and how many there were by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub entries: VecDeque<Entry>,
    pub counts: BTreeMap<Became, u64>,
}

impl History {
    /// Whether the job of the occurrence that is due then was stored.
    pub fn has_placed(&self, due: Millis) -> bool {
        let placed = |entry: &Entry| matches!(entry.outcome, Became::Placed | Became::CaughtUp);
        self.entries.iter().any(|entry| entry.due == due && placed(entry))
    }

    /// Adds one. Missed ones become one entry with those just before, with the last reason. Those of an entry that is not
    /// counted add [`MOST_COUNTED`] to the counts: so many there were at least.
    pub fn add(&mut self, mut entry: Entry) {
        *self.counts.entry(entry.outcome).or_default() += u64::from(entry.count.unwrap_or(MOST_COUNTED));
        if let Some(why) = &mut entry.why {
            why.truncate(why.floor_char_boundary(MAX_WHY));
        }
        match self.entries.front_mut() {
            Some(last) if last.outcome == Became::Missed && entry.outcome == Became::Missed => {
                last.last_due = entry.last_due.or(Some(entry.due));
                last.count =
                    last.count.zip(entry.count).map(|(a, b)| a + b).filter(|sum| *sum <= MOST_COUNTED);
                (last.at, last.why) = (entry.at, entry.why.or(last.why.take()));
            }
            _ => self.entries.push_front(entry),
        }
        self.entries.truncate(MOST_KEPT);
    }
}
