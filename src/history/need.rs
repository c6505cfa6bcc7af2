//! Which queues need attention, and why. A pure function of the last minutes of a queue; time is an argument, in
//! seconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Number of past minutes whose deaths count.
const DYING: usize = 10;
/// Number of past minutes during which ready jobs must have risen each minute.
const GROWING: usize = 5;
/// Minimum time that a job stays at the head of a queue without consumers.
const NOBODY: Duration = Duration::from_secs(300);
/// Age of the oldest ready job beyond which it is late.
const LATE: Duration = Duration::from_secs(60);

/// Why a queue needs attention, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// The breaker of its endpoint is open, or push is off.
    Push,
    /// Jobs died in the last ten minutes.
    Dying,
    /// No consumers.
    Nobody,
    /// The oldest ready job is older than a minute.
    Late,
    /// Ready jobs rose over each of the last five minutes.
    Growing,
    /// Paused, with ready jobs.
    Paused,
    /// It has dead jobs.
    Dead,
}

impl Need {
    pub const ALL: [Need; 7] =
        [Need::Push, Need::Dying, Need::Nobody, Need::Late, Need::Growing, Need::Paused, Need::Dead];

    pub fn as_str(self) -> &'static str {
        match self {
            Need::Push => "push",
            Need::Dying => "dying",
            Need::Nobody => "nobody",
            Need::Late => "late",
            Need::Growing => "growing",
            Need::Paused => "paused",
            Need::Dead => "dead",
        }
    }
}

/// Push state of a queue, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pushed {
    #[default]
    No,
    Yes,
    /// Its breaker is open, push is off, or its record is unreadable.
    InTrouble,
}

/// Current state of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub ready: u64,
    pub dead: u64,
    pub oldest: Option<Duration>,
    pub paused: bool,
    pub pushed: Pushed,
    /// Identifies the job at the head, if the store knows it.
    pub head: Option<u64>,
}

/// The last minutes of a queue. Not kept for an idle queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueWatch {
    /// The job at the head, and the second of its arrival there.
    head: Option<(u64, u64)>,
    /// The last number of ready jobs in each of the last minutes, plus one; 0 if unknown. Saturates at u32, to save
    /// memory over many queues.
    ready: [u32; GROWING + 2],
    /// Number of deaths in each of the last minutes.
    deaths: [u32; DYING + 1],
    /// The minute of the first element of both.
    minute: u64,
}

impl QueueWatch {
    /// Records a reading at `second` and the number of deaths since the previous reading.
    pub fn see(&mut self, second: u64, now: &Now, died: u64) {
        let minute = second / 60;
        let passed = usize::try_from(minute.saturating_sub(self.minute)).unwrap_or(usize::MAX);
        let (of_ready, of_deaths) = (passed.min(self.ready.len()), passed.min(self.deaths.len()));
        self.ready.rotate_right(of_ready % (GROWING + 2));
        self.ready[..of_ready].fill(0);
        self.deaths.rotate_right(of_deaths % (DYING + 1));
        self.deaths[..of_deaths].fill(0);
        self.minute = self.minute.max(minute);
        let counted = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        self.ready[0] = counted(now.ready).saturating_add(1);
        self.deaths[0] = self.deaths[0].saturating_add(counted(died));
        self.head = match (now.head, self.head) {
            (Some(head), Some((before, since))) if head == before => Some((head, since)),
            (head, _) => head.map(|head| (head, second)),
        };
    }

    /// Returns whether this equals a new watch.
    pub fn is_idle(&self) -> bool {
        self.head.is_none()
            && self.deaths.iter().all(|died| *died == 0)
            && self.ready.iter().all(|ready| *ready <= 1)
    }

    /// Returns the number of deaths in the last ten minutes.
    pub fn died(&self) -> u64 {
        self.deaths.iter().map(|died| u64::from(*died)).sum()
    }

    fn grows(&self) -> bool {
        // The current minute is incomplete.
        let whole = &self.ready[1..];
        whole.windows(2).all(|pair| matches!(pair, [later, earlier] if *earlier > 0 && later > earlier))
    }

    /// Returns the most severe need, and its severity relative to queues with the same need.
    pub fn need(&self, second: u64, now: &Now) -> (Option<Need>, u64) {
        let Now { ready, dead, oldest, paused, pushed, .. } = *now;
        let age = oldest.map_or(0, |age| age.as_millis() as u64);
        let stands = self.head.is_some_and(|(_, since)| second >= since + NOBODY.as_secs());
        let died = self.died();
        let need = if pushed == Pushed::InTrouble {
            (Need::Push, ready)
        } else if died > 0 {
            (Need::Dying, died)
        } else if ready > 0 && pushed == Pushed::No && !paused && stands {
            (Need::Nobody, ready)
        } else if oldest.is_some_and(|age| age > LATE) {
            (Need::Late, age)
        } else if self.grows() {
            (Need::Growing, ready)
        } else if paused && ready > 0 {
            (Need::Paused, ready)
        } else if dead > 0 {
            (Need::Dead, dead)
        } else {
            return (None, ready);
        };
        (Some(need.0), need.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(ready: u64, head: Option<u64>) -> Now {
        Now { ready, head, ..Now::default() }
    }

    /// Returns the need after these readings, ten seconds apart.
    fn after(readings: impl IntoIterator<Item = (Now, u64)>) -> Option<Need> {
        let (mut watch, mut second, mut need) = (QueueWatch::default(), 6_000_000, None);
        for (now, died) in readings {
            watch.see(second, &now, died);
            need = watch.need(second, &now).0;
            second += 10;
        }
        need
    }

    #[test]
    fn a_queue_whose_head_stands_for_five_minutes_is_consumed_by_nobody() {
        let stands = |count| after((0..count).map(|_| (now(3, Some(7)), 0)));
        assert_eq!((stands(30), stands(31)), (None, Some(Need::Nobody)), "after five minutes");
        let moves = after((0..100).map(|n| (now(3, Some(n / 29)), 0)));
        assert_eq!(moves, None, "it is consumed, however slowly");
        for other in [
            Now { pushed: Pushed::Yes, ..now(3, Some(7)) },
            Now { paused: true, ..now(3, Some(7)) },
            now(0, None),
        ] {
            assert_ne!(after((0..100).map(|_| (other, 0))), Some(Need::Nobody), "{other:?}");
        }
    }

    #[test]
    fn deaths_count_for_ten_minutes() {
        let dead = Now { dead: 2, ..Now::default() };
        let after_minutes = |minutes: u64| after((0..=minutes * 6).map(|n| (dead, u64::from(n == 0) * 2)));
        assert_eq!((after_minutes(0), after_minutes(9)), (Some(Need::Dying), Some(Need::Dying)));
        assert_eq!(after_minutes(12), Some(Need::Dead), "the dead jobs are still there");
        assert_eq!(after([(Now::default(), 0)]), None);
    }

    #[test]
    fn a_queue_grows_when_each_minute_ended_with_more() {
        let rises = |of: fn(u64) -> u64| after((0..60).map(|n| (now(of(n), Some(n)), 0)));
        assert_eq!(rises(|n| n), Some(Need::Growing));
        assert_eq!(rises(|n| n / 12), None, "only each second minute");
        assert_eq!(rises(|n| n.min(40)), None, "it has stopped");
        assert_eq!(after((0..20).map(|n| (now(n, Some(n)), 0))), None, "three minutes are not five");
    }

    /// Guards against a severe need hidden by a lesser one.
    #[test]
    fn the_worst_is_said() {
        let late = Now { oldest: Some(LATE + Duration::from_secs(1)), dead: 1, ..now(9, Some(1)) };
        for (now, died, expected) in [
            (Now { pushed: Pushed::InTrouble, ..late }, 3, Need::Push),
            (late, 3, Need::Dying),
            (late, 0, Need::Late),
            (Now { paused: true, ..late }, 0, Need::Late),
            (Now { paused: true, oldest: Some(LATE), ..late }, 0, Need::Paused),
            (Now { ready: 0, oldest: None, ..late }, 0, Need::Dead),
        ] {
            assert_eq!(after([(now, died)]), Some(expected), "{now:?}");
        }
        assert!(Need::ALL.is_sorted(), "the worst first");
    }

    #[test]
    fn a_queue_at_rest_needs_no_watch() {
        let mut watch = QueueWatch::default();
        watch.see(6_000_000, &Now { dead: 4, ..Now::default() }, 0);
        assert!(watch.is_idle());
        watch.see(6_000_010, &now(1, Some(1)), 1);
        assert!(!watch.is_idle());
        watch.see(6_002_000, &Now::default(), 0);
        assert!(watch.is_idle(), "after half an hour");
    }
}
