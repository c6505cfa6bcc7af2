//! The instants of a schedule: its expression in its zone, or its interval, between start and end. Finds the
//! occurrences after an instant, and those missed between two. Knows no setting and no clock.
//!
//! With a *clock* rule an occurrence is a local time: the first instant at which the zone's clock shows it, or the
//! first instant after the gap that contains it. With an *interval* rule it is each second whose local time matches.
//! So the last decision is a local time in the first case and an instant in the second ([`Cursor`]).

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::cron::Cron;
use super::zones::{civil, local, millis};
use crate::clock::Millis;

/// More missed occurrences are not counted.
pub const MOST_COUNTED: u32 = 10_000;
/// Maximum number of missed occurrences that are caught up: the newest.
pub const MOST_CAUGHT_UP: usize = 100;
/// The last occurrence that is not caught up is needed too: it ends the range of the others.
const KEPT: usize = MOST_CAUGHT_UP + 1;

/// How a schedule's instants are computed, as shown in replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Clock,
    Interval,
    Every,
}

#[derive(Clone, Debug)]
enum Rule {
    Cron(Arc<Cron>),
    /// The first instant, and the time between two; not 0.
    Every {
        first: Millis,
        every: Millis,
    },
}

/// The instants of a schedule.
#[derive(Clone, Debug)]
pub struct When {
    rule: Rule,
    zone: TimeZone,
    start: Millis,
    end: Millis,
}

/// An instant of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occurrence {
    pub due: Millis,
    /// With a clock rule: its local time, the first if several fall on this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<DateTime>,
}

/// Up to where a schedule is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub after: Millis,
    /// With a clock rule, after the first occurrence: the last decided local time. It takes precedence over the
    /// instant, which another zone database may compute differently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<DateTime>,
}

/// Occurrences whose deadline has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    pub first: Occurrence,
    /// The newest of them, oldest first: at most one more than [`MOST_CAUGHT_UP`]. Not empty.
    pub newest: VecDeque<Occurrence>,
    /// `None` above [`MOST_COUNTED`].
    pub count: Option<u32>,
}

impl Cursor {
    /// Returns a cursor for which everything up to this instant, included, is decided.
    pub fn at(after: Millis) -> Cursor {
        Cursor { after, local: None }
    }
}

impl When {
    pub fn cron(cron: Arc<Cron>, zone: TimeZone) -> When {
        When { rule: Rule::Cron(cron), zone, start: 0, end: Millis::MAX }
    }

    /// Returns the instants each `every` milliseconds after the anchor. A start is the anchor and the first instant.
    pub fn every(every: Millis, anchor: Millis, start: Option<Millis>, zone: TimeZone) -> When {
        let first = start.unwrap_or_else(|| anchor.saturating_add(every));
        When { rule: Rule::Every { first, every: every.max(1) }, zone, start: 0, end: Millis::MAX }
    }

    /// Restricts the instants to those from `start` to `end`, both included.
    pub fn between(mut self, start: Option<Millis>, end: Option<Millis>) -> When {
        (self.start, self.end) = (start.unwrap_or(0), end.unwrap_or(Millis::MAX));
        self
    }

    pub fn mode(&self) -> Mode {
        match &self.rule {
            Rule::Cron(cron) if cron.is_by_clock() => Mode::Clock,
            Rule::Cron(_) => Mode::Interval,
            Rule::Every { .. } => Mode::Every,
        }
    }

    /// Formats an instant as RFC 3339 with the zone's offset. Empty beyond the calendar.
    pub fn local(&self, at: Millis) -> String {
        local(&self.zone, at).unwrap_or_default()
    }

    /// Returns the first undecided occurrence; `None` if none follow.
    pub fn next(&self, cursor: Cursor) -> Option<Occurrence> {
        let from = Cursor::at(cursor.after.max(self.start.saturating_sub(1)));
        let next = match &self.rule {
            Rule::Every { first, every } => {
                Some(Occurrence { due: step(*first, *every, from.after)?, local: None })
            }
            Rule::Cron(cron) if !cron.is_by_clock() => self.by_interval(cron, from.after),
            Rule::Cron(cron) => match cursor.local {
                Some(local) => self.by_clock(cron, local, None).filter(|next| next.due >= self.start),
                None => None,
            }
            .or_else(|| self.by_clock(cron, civil(&self.zone, from.after)?, Some(from.after))),
        };
        next.filter(|next| next.due <= self.end)
    }

    /// Returns the cursor after deciding this occurrence.
    pub fn decided(&self, occurrence: &Occurrence) -> Cursor {
        // All local times of a gap are decided, up to the one that the clock shows after it.
        let shown = || civil(&self.zone, occurrence.due);
        let local = occurrence.local.map(|local| shown().map_or(local, |shown| shown.max(local)));
        Cursor { after: occurrence.due, local }
    }

    /// Returns the occurrences after an instant, in order.
    pub fn after(&self, instant: Millis) -> impl Iterator<Item = Occurrence> + '_ {
        self.from(Cursor::at(instant))
    }

    /// Returns the undecided occurrences, in order.
    pub fn from(&self, cursor: Cursor) -> impl Iterator<Item = Occurrence> + '_ {
        std::iter::successors(self.next(cursor), |last| self.next(self.decided(last)))
    }

    /// Returns the occurrences from the cursor up to `until`, included. Bounded by [`MOST_COUNTED`] steps and a few
    /// thousand more.
    pub fn missed(&self, cursor: Cursor, until: Millis) -> Option<Missed> {
        let mut all = self.from(cursor).take_while(|occurrence| occurrence.due <= until);
        let first = all.next()?;
        let (mut newest, mut count) = (VecDeque::from([first]), 1);
        for occurrence in all.by_ref().take(MOST_COUNTED as usize - 1) {
            newest.push_back(occurrence);
            if newest.len() > KEPT {
                newest.pop_front();
            }
            count += 1;
        }
        if all.next().is_none() {
            return Some(Missed { first, newest, count: Some(count) });
        }
        Some(Missed { first, newest: self.newest(newest[0].due, until), count: None })
    }

    /// Returns the newest [`KEPT`] occurrences between two instants that have more, by bisection.
    fn newest(&self, after: Millis, until: Millis) -> VecDeque<Occurrence> {
        let between = |after| self.after(after).take_while(|occurrence| occurrence.due <= until);
        let (mut enough, mut few) = (after, until);
        while few - enough > 1 {
            let middle = enough + (few - enough) / 2;
            match between(middle).nth(KEPT - 1) {
                Some(_) => enough = middle,
                None => few = middle,
            }
        }
        between(enough).take(KEPT).collect()
    }

    /// Returns the first matching local time after `local`, at its instant, which is later than `after`.
    fn by_clock(&self, cron: &Cron, mut local: DateTime, after: Option<Millis>) -> Option<Occurrence> {
        loop {
            local = cron.at_or_after(next_second(local)?)?;
            let due = millis(self.instant(local)?);
            if after.is_none_or(|after| due > after) {
                return Some(Occurrence { due, local: Some(local) });
            }
        }
    }

    /// Returns the first instant at which the clock shows `local`, or the first after the gap.
    fn instant(&self, local: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).ok(),
            AmbiguousOffset::Fold { before, after } => {
                // Where the rule for all later years begins, a local time may be reported as ambiguous although it
                // occurs once.
                let first = before.to_timestamp(local).ok().filter(|at| self.zone.to_offset(*at) == before);
                first.or_else(|| after.to_timestamp(local).ok())
            }
            AmbiguousOffset::Gap { after, .. } => {
                // With the offset after the gap, it is an instant before the gap; the gap follows.
                let earlier = after.to_timestamp(local).ok()?;
                Some(self.zone.following(earlier).next()?.timestamp())
            }
        }
    }

    /// Returns the first second after `after` whose local time matches. Between two changes of the offset, local
    /// times advance like instants. A change moves a clock by at most a day: matches further away are searched near
    /// their position without any change.
    fn by_interval(&self, cron: &Cron, after: Millis) -> Option<Occurrence> {
        const DAYS: SignedDuration = SignedDuration::from_hours(72);
        let begin = Timestamp::from_second(i64::try_from(after / 1000 + 1).ok()?).ok()?;
        let mut from = begin;
        loop {
            let offset = self.zone.to_offset(from);
            let until = self.zone.following(from).next().map(|change| change.timestamp());
            let found = cron.at_or_after(offset.to_datetime(from))?;
            let found = offset.to_timestamp(found).ok();
            match (found, until) {
                (Some(found), Some(until)) if found >= until => {
                    let is_far = until.duration_since(begin) > DAYS;
                    from = if is_far { until.max(found.checked_sub(DAYS).ok()?) } else { until };
                }
                (None, Some(until)) => from = until,
                (None, None) => return None,
                (Some(found), _) => return Some(Occurrence { due: millis(found), local: None }),
            }
        }
    }
}

/// Returns the first of `first`, `first + every`, .. that is later than `after`.
fn step(first: Millis, every: Millis, after: Millis) -> Option<Millis> {
    match after.checked_sub(first) {
        None => Some(first),
        Some(since) => first.checked_add((since / every + 1).checked_mul(every)?),
    }
}

fn next_second(local: DateTime) -> Option<DateTime> {
    let whole = local.with().subsec_nanosecond(0).build().ok()?;
    whole.checked_add(SignedDuration::from_secs(1)).ok()
}
