//! Results of occurrences: the latest ones, and counts by outcome. Consecutive missed ones form one entry.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::when::MOST_COUNTED;
use crate::clock::Millis;

/// Maximum number of entries.
pub const MOST_KEPT: usize = 20;
/// Maximum bytes of a reason.
const MAX_WHY: usize = 200;

/// Outcome of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    Placed,
    CaughtUp,
    /// The job of an earlier occurrence still exists.
    Skipped,
    /// The deadline had passed.
    Missed,
    /// The store refuses this job in particular.
    Failed,
    /// Run on request.
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
    /// Due time of the last of several missed occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_due: Option<Millis>,
    /// When it was decided.
    pub at: Millis,
    pub outcome: Became,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Number of occurrences; `None` above [`MOST_COUNTED`].
    pub count: Option<u32>,
}

/// The latest entries, newest first, and the number of occurrences by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub entries: VecDeque<Entry>,
    pub counts: BTreeMap<Became, u64>,
}

impl History {
    /// Whether the job of the occurrence due at `due` was published.
    pub fn has_placed(&self, due: Millis) -> bool {
        let placed = |entry: &Entry| matches!(entry.outcome, Became::Placed | Became::CaughtUp);
        self.entries.iter().any(|entry| entry.due == due && placed(entry))
    }

    /// Adds an entry. Missed occurrences are merged with those directly before, with the latest reason. An entry
    /// without a count adds [`MOST_COUNTED`] to the counts, a lower bound.
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
