//! A parsed cron expression of five or six fields: its dates and times of day. Knows no time zone: finds the first
//! matching local time from a given one on.

use jiff::civil::{Date, DateTime, Time, date};

/// Maximum length of an expression in bytes.
pub const MAX_CRON: usize = 256;

/// A cron expression. Each field is a bit set of matching numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    pub(super) text: Box<str>,
    pub(super) second: u64,
    pub(super) minute: u64,
    pub(super) hour: u64,
    pub(super) month: u64,
    pub(super) day: Days,
    pub(super) weekday: Weekdays,
    pub(super) by_clock: bool,
}

/// Field for days of the month. Contains all of them if it is `*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Days {
    pub(super) any: bool,
    pub(super) numbers: u64,
    /// `15W`, by the day.
    pub(super) nearest: u64,
    pub(super) last: bool,
    pub(super) last_weekday: bool,
}

/// Field for weekdays; Sunday is 0. Contains all of them if it is `*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weekdays {
    pub(super) any: bool,
    pub(super) numbers: u64,
    /// `FRIL`.
    pub(super) last: u64,
    /// `MON#2`: weekdays by ordinal, from first to fifth.
    pub(super) nth: [u64; 5],
}

impl Cron {
    /// Returns the expression as given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether an occurrence is a local time. Otherwise it is each second whose local time matches.
    pub fn is_by_clock(&self) -> bool {
        self.by_clock
    }

    /// Returns the first matching local time, `from` included.
    pub fn at_or_after(&self, from: DateTime) -> Option<DateTime> {
        if self.days_of(from.year(), from.month()) & 1 << from.day() != 0
            && let Some(time) = self.time_at_or_after(from.time())
        {
            return Some(from.date().to_datetime(time));
        }
        let day = self.day_at_or_after(from.date().tomorrow().ok()?)?;
        Some(day.to_datetime(self.first_time()))
    }

    fn day_at_or_after(&self, from: Date) -> Option<Date> {
        let (mut year, mut month) = (from.year(), from.month());
        let mut days = self.days_of(year, month) & (!0 << from.day());
        while days == 0 {
            (year, month) = if month == 12 { (year.checked_add(1)?, 1) } else { (year, month + 1) };
            if year > Date::MAX.year() {
                return None;
            }
            days = self.days_of(year, month);
        }
        Some(date(year, month, days.trailing_zeros() as i8))
    }

    /// Returns the matching days of a month as bits.
    fn days_of(&self, year: i16, month: i8) -> u64 {
        if self.month & 1 << month == 0 {
            return 0;
        }
        let first = date(year, month, 1);
        let length = first.days_in_month() as u32;
        let all = (1 << (length + 1)) - 2;
        let month = Month { length, first: first.weekday().to_sunday_zero_offset() as u32 };
        match (self.day.any, self.weekday.any) {
            (true, true) => all,
            (true, false) => self.weekday.of(month),
            (false, true) => self.day.of(month) & all,
            (false, false) => self.day.of(month) & all | self.weekday.of(month),
        }
    }

    fn first_time(&self) -> Time {
        time(first(self.hour), first(self.minute), first(self.second))
    }

    fn time_at_or_after(&self, from: Time) -> Option<Time> {
        let (hour, minute, second) = (from.hour() as u32, from.minute() as u32, from.second() as u32);
        if self.hour & 1 << hour != 0 {
            if self.minute & 1 << minute != 0
                && let Some(second) = at_or_after(self.second, second)
            {
                return Some(time(hour, minute, second));
            }
            if let Some(minute) = at_or_after(self.minute, minute + 1) {
                return Some(time(hour, minute, first(self.second)));
            }
        }
        let hour = at_or_after(self.hour, hour + 1)?;
        Some(time(hour, first(self.minute), first(self.second)))
    }
}

/// Properties of a month that decide which of its days match.
#[derive(Clone, Copy)]
struct Month {
    length: u32,
    /// Weekday of its first day.
    first: u32,
}

impl Month {
    fn weekday(self, day: u32) -> u32 {
        (self.first + day - 1) % 7
    }

    /// Returns the nearest day from Monday to Friday in the same month.
    fn nearest(self, day: u32) -> u32 {
        match self.weekday(day) {
            6 if day == 1 => day + 2,
            6 => day - 1,
            0 if day == self.length => day - 2,
            0 => day + 1,
            _ => day,
        }
    }
}

impl Days {
    fn of(&self, month: Month) -> u64 {
        let mut days = self.numbers;
        for day in (1..=month.length).filter(|day| self.nearest & 1 << day != 0) {
            days |= 1 << month.nearest(day);
        }
        if self.last {
            days |= 1 << month.length;
        }
        if self.last_weekday {
            days |= 1 << month.nearest(month.length);
        }
        days
    }
}

impl Weekdays {
    fn of(&self, month: Month) -> u64 {
        let matches = |day: u32| {
            let nth = self.nth[(day as usize - 1) / 7];
            let last = if day + 7 > month.length { self.last } else { 0 };
            (self.numbers | nth | last) & 1 << month.weekday(day) != 0
        };
        (1..=month.length).filter(|day| matches(*day)).fold(0, |days, day| days | 1 << day)
    }
}

/// Returns the smallest number of a field. A field is never empty, and its numbers are in range.
fn first(field: u64) -> u32 {
    field.trailing_zeros()
}

fn at_or_after(field: u64, number: u32) -> Option<u32> {
    let rest = field & (u64::MAX << number);
    (rest != 0).then(|| rest.trailing_zeros())
}

fn time(hour: u32, minute: u32, second: u32) -> Time {
    jiff::civil::time(hour as i8, minute as i8, second as i8, 0)
}
