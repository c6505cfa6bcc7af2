//! Parses a cron expression, element by element. Errors quote the invalid part, and list the valid values.

use std::fmt;

use super::fields::{Cron, Days, MAX_CRON, Weekdays};

/// A field of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Weekday,
}

/// Error of an expression, with its field, if there is a single one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronError {
    pub part: Option<Part>,
    pub error: String,
}

type Result<T> = std::result::Result<T, CronError>;

const PARTS: [Part; 6] = [Part::Second, Part::Minute, Part::Hour, Part::Day, Part::Month, Part::Weekday];
const MONTHS: &str = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC";
const WEEKDAYS: &str = "SUN MON TUE WED THU FRI SAT";
const SHORTHANDS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

impl Part {
    pub fn as_str(self) -> &'static str {
        match self {
            Part::Second => "second",
            Part::Minute => "minute",
            Part::Hour => "hour",
            Part::Day => "day",
            Part::Month => "month",
            Part::Weekday => "weekday",
        }
    }

    fn first(self) -> u32 {
        u32::from(matches!(self, Part::Day | Part::Month))
    }

    /// Returns the largest number. 7 is Sunday, like 0.
    fn last(self) -> u32 {
        match self {
            Part::Second | Part::Minute => 59,
            Part::Hour => 23,
            Part::Day => 31,
            Part::Month => 12,
            Part::Weekday => 7,
        }
    }

    /// Returns the names of its numbers, in order.
    fn names(self) -> &'static str {
        match self {
            Part::Month => MONTHS,
            Part::Weekday => WEEKDAYS,
            _ => "",
        }
    }

    /// Describes the valid values.
    fn takes(self) -> &'static str {
        match self {
            Part::Second | Part::Minute => "0 to 59",
            Part::Hour => "0 to 23",
            Part::Day => "1 to 31, L, LW or 15W",
            Part::Month => "1 to 12, or JAN to DEC",
            Part::Weekday => "0 to 7 (0 and 7 are Sunday), SUN to SAT, FRIL or MON#2",
        }
    }

    fn error(self, error: impl fmt::Display) -> CronError {
        CronError { part: Some(self), error: format!("{}: {error}", self.as_str()) }
    }
}

fn whole(error: impl fmt::Display) -> CronError {
    CronError { part: None, error: error.to_string() }
}

/// Quotes a text for an error.
fn quoted(text: &str) -> String {
    let short = &text[..text.floor_char_boundary(64)];
    if short.len() < text.len() { format!("{short:?}..") } else { format!("{short:?}") }
}

impl Cron {
    /// Parses an expression. An error names the field.
    pub fn parse(text: &str) -> Result<Cron> {
        cron(text)
    }
}

fn cron(text: &str) -> Result<Cron> {
    let given = text.trim_ascii();
    if given.len() > MAX_CRON {
        let error = format!("{} is {} bytes long: at most {MAX_CRON}", quoted(given), given.len());
        return Err(whole(error));
    }
    let fields: Vec<&str> = shorthand(given)?.split_ascii_whitespace().collect();
    let [second, minute, hour, day, month, weekday] = match fields[..] {
        [minute, hour, day, month, weekday] => ["0", minute, hour, day, month, weekday],
        [second, minute, hour, day, month, weekday] => [second, minute, hour, day, month, weekday],
        _ => return Err(wrong_count(given, &fields)),
    };
    let mut sets = [0; 3];
    for ((set, part), field) in sets.iter_mut().zip(PARTS).zip([second, minute, hour]) {
        *set = numbers(part, field)?;
    }
    let [seconds, minutes, hours] = sets;
    let cron = Cron {
        text: given.into(),
        second: seconds,
        minute: minutes,
        hour: hours,
        day: days(day)?,
        month: numbers(Part::Month, month)?,
        weekday: weekdays(weekday)?,
        by_clock: ![second, minute, hour].iter().any(|field| field.contains(['*', '/'])),
    };
    disputed(Part::Day, day, weekday, cron.weekday.any)?;
    disputed(Part::Weekday, weekday, day, cron.day.any)?;
    never(&cron, day, month)?;
    Ok(cron)
}

/// Returns the fields of a shorthand such as `@daily`; other texts are returned unchanged.
fn shorthand(given: &str) -> Result<&str> {
    let lower = given.to_ascii_lowercase();
    if lower.starts_with("tz=") || lower.starts_with("cron_tz=") {
        let zone = given.split_ascii_whitespace().next().unwrap_or_default();
        let zone = zone.split('=').nth(1).unwrap_or_default();
        let error = format!("{} sets a zone: give it as the field \"zone\": {}", quoted(given), quoted(zone));
        return Err(whole(error));
    }
    if !given.starts_with('@') {
        return Ok(given);
    }
    if let Some((_, fields)) = SHORTHANDS.iter().find(|(name, _)| *name == lower) {
        return Ok(fields);
    }
    let instead = match lower.split_ascii_whitespace().next() {
        Some("@every") => "give the seconds as the field \"every\", such as \"every\": 300".to_owned(),
        Some("@reboot") => "a schedule does not start: publish a job where your program starts".to_owned(),
        _ => format!("write {} or five fields", SHORTHANDS.map(|(name, _)| name).join(", ")),
    };
    Err(whole(format!("{} is not known: {instead}", quoted(given))))
}

fn wrong_count(given: &str, fields: &[&str]) -> CronError {
    let five = "write five (minute hour day month weekday), or six with the second first";
    whole(match fields.len() {
        0 => format!("the expression is empty: {five}"),
        7 => {
            format!("{} has 7 fields: {five}; for years give the fields \"start\" and \"end\"", quoted(given))
        }
        1 => format!("{} has 1 field: {five}", quoted(given)),
        count => format!("{} has {count} fields: {five}", quoted(given)),
    })
}

/// Splits a field into elements. None is empty.
fn elements(part: Part, field: &str) -> Result<impl Iterator<Item = &str>> {
    if field.split(',').any(str::is_empty) {
        return Err(part.error(format!("{} has an empty element: remove the comma", quoted(field))));
    }
    Ok(field.split(','))
}

/// Parses a field of numbers, ranges and steps.
fn numbers(part: Part, field: &str) -> Result<u64> {
    elements(part, field)?.try_fold(0, |set, element| Ok(set | range(part, element)?))
}

fn days(field: &str) -> Result<Days> {
    if matches!(field, "*" | "?") {
        return Ok(Days { any: true, ..Days::default() });
    }
    let mut days = Days::default();
    for element in elements(Part::Day, field)? {
        match element.to_ascii_uppercase().as_str() {
            "L" => days.last = true,
            "LW" | "WL" => days.last_weekday = true,
            upper => match upper.strip_suffix('W').filter(|day| is_digits(day)) {
                Some(day) => days.nearest |= 1 << number(Part::Day, day, element)?,
                None => days.numbers |= range(Part::Day, element)?,
            },
        }
    }
    Ok(days)
}

fn weekdays(field: &str) -> Result<Weekdays> {
    let part = Part::Weekday;
    if matches!(field, "*" | "?") {
        return Ok(Weekdays { any: true, ..Weekdays::default() });
    }
    let mut weekdays = Weekdays::default();
    for element in elements(part, field)? {
        let is_weekday = |text: &&str| is_digits(text) || named(part, text).is_some();
        let upper = element.to_ascii_uppercase();
        if let Some((weekday, nth)) = upper.split_once('#') {
            let weekday = number(part, weekday, element)? % 7;
            match nth.parse::<usize>() {
                Ok(which @ 1..=5) if is_digits(nth) => weekdays.nth[which - 1] |= 1 << weekday,
                _ => {
                    let error = "after # write which one of the month: 1 to 5";
                    return Err(part.error(format!("{}: {error}", quoted(element))));
                }
            }
        } else if upper == "L" {
            let error = "\"L\" names no weekday: write FRIL for the last Friday, or SAT for each Saturday";
            return Err(part.error(error));
        } else if let Some(last) = upper.strip_suffix('L').filter(is_weekday) {
            weekdays.last |= 1 << (number(part, last, element)? % 7);
        } else {
            let set = range(part, element)?;
            weekdays.numbers |= set & 0x7f | set >> 7; // 7 is 0
        }
    }
    Ok(weekdays)
}

/// Parses `*`, `a`, `a-b`, each possibly with `/n`.
fn range(part: Part, element: &str) -> Result<u64> {
    let (base, step) = match element.split_once('/') {
        Some((base, step)) => (base, Some(step)),
        None => (element, None),
    };
    let (from, to) = match base.split_once('-') {
        _ if base == "*" => (part.first(), part.last() - u32::from(part == Part::Weekday)),
        Some((from, to)) => ends(part, from, to, element)?,
        None => {
            let from = number(part, base, element)?;
            (from, if step.is_some() { part.last() } else { from })
        }
    };
    let step = step.map_or(Ok(1), |step| steps(part, step, element))?;
    Ok((from..=to).step_by(step).fold(0, |set, number| set | 1 << number))
}

/// Parses the ends of a range. `SUN` as the end means 7.
fn ends(part: Part, from: &str, to: &str, element: &str) -> Result<(u32, u32)> {
    let (first, mut last) = (number(part, from, element)?, number(part, to, element)?);
    if part == Part::Weekday && to.eq_ignore_ascii_case("SUN") && first > 0 {
        last = 7;
    }
    if first <= last {
        return Ok((first, last));
    }
    Err(part.error(format!(
        "the range {} is reversed: write {}",
        quoted(element),
        two_ranges(part, from, to, element)
    )))
}

/// Suggests ranges for a reversed one: to the largest number, and from the smallest.
fn two_ranges(part: Part, from: &str, to: &str, element: &str) -> String {
    let step = element.split_once('/').map_or(String::new(), |(_, step)| format!("/{step}"));
    let (start, end) = match part {
        Part::Weekday => ("MON", "SUN"),
        Part::Month => ("JAN", "DEC"),
        Part::Day => ("1", "31"),
        Part::Hour => ("0", "23"),
        Part::Second | Part::Minute => ("0", "59"),
    };
    // Sunday has two numbers.
    let value = |text: &str| number(part, text, text).map(|n| if part == Part::Weekday { n % 7 } else { n });
    let range = |a: &str, b: &str, alone: &str| match value(a) == value(b) {
        true => alone.to_owned(),
        false => format!("{a}-{b}{step}"),
    };
    let first = range(from, end, from);
    if part == Part::Weekday && value(to) == Ok(0) {
        first
    } else {
        format!("{first},{}", range(start, to, to))
    }
}

fn steps(part: Part, step: &str, element: &str) -> Result<usize> {
    let last = part.last();
    let wrong = |error: String| Err(part.error(format!("the step of {} {error}", quoted(element))));
    if !is_digits(step) {
        return wrong(format!("is not a number: write 1 to {last}"));
    }
    let step = step.parse().unwrap_or(u32::MAX);
    if step == 0 {
        return wrong(format!("is 0: write 1 to {last}"));
    }
    if step <= last {
        return Ok(step as usize);
    }
    let unit = match part {
        Part::Second => 1,
        Part::Minute => 60,
        Part::Hour => 3600,
        _ => 0,
    };
    let every = u64::from(step) * unit;
    let instead = match element.starts_with('*') && (1..=31_536_000).contains(&every) {
        true => format!(", or, for one each {every} seconds, give \"every\": {every} in place of \"cron\""),
        false => String::new(),
    };
    wrong(format!("is larger than {last}: write 1 to {last}{instead}"))
}

/// Parses a number of the field, or the name of one. `element` is the text around it.
fn number(part: Part, text: &str, element: &str) -> Result<u32> {
    if let Some(number) = named(part, text) {
        return Ok(number);
    }
    let found = if is_digits(text) {
        text.parse().unwrap_or(u32::MAX)
    } else {
        return Err(no_number(part, text, element));
    };
    if !(part.first()..=part.last()).contains(&found) {
        let more = if (part, found) == (Part::Hour, 24) { "; midnight is 0" } else { "" };
        let error =
            format!("{} is out of range: write {} to {}{more}", quoted(text), part.first(), part.last());
        return Err(part.error(error));
    }
    Ok(found)
}

fn named(part: Part, text: &str) -> Option<u32> {
    let at = part
        .names()
        .split(' ')
        .filter(|name| !name.is_empty())
        .position(|name| name.eq_ignore_ascii_case(text))?;
    Some(at as u32 + part.first())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the error for a text that is neither a number nor a name of its field.
fn no_number(part: Part, text: &str, element: &str) -> CronError {
    let upper = element.to_ascii_uppercase();
    let shown = quoted(element);
    let other = [Part::Month, Part::Weekday]
        .into_iter()
        .find(|other| *other != part && named(*other, text).is_some());
    let long = text.get(..3).filter(|short| text.len() > 3 && named(part, short).is_some());
    part.error(match (part, other) {
        (_, Some(other)) => format!("{} is a {}: write {}", quoted(text), other.as_str(), part.takes()),
        _ if long.is_some_and(|_| text.bytes().all(|b| b.is_ascii_alphabetic())) => {
            format!("{} is too long: write {}", quoted(text), upper.get(..3).unwrap_or_default())
        }
        (Part::Day | Part::Weekday, _) if element == "?" || element.contains('?') => {
            format!("{shown}: ? stands alone in its field: write it alone, or *")
        }
        _ if element.contains('?') => format!("{shown}: ? is for day and weekday alone: write *"),
        _ if upper.starts_with('H') || element.contains('~') => {
            format!("{shown} is not known: write {}, and spread jobs with the field \"jitter\"", part.takes())
        }
        (Part::Day, _) if upper.starts_with("L-") => {
            format!("{shown} is not known: write L for the last day, or 28 to 31")
        }
        (Part::Day, _) if upper.contains(['L', 'W']) => {
            format!("{shown}: L, LW and 15W stand alone or in lists: write them without range and step")
        }
        (Part::Day, _) if element.contains('#') => {
            format!("{shown}: \"#\" is for weekdays: write it in the last field")
        }
        _ => format!("{shown} cannot be read: write {}", part.takes()),
    })
}

/// Rejects `*/2` next to a restricted field of days: implementations of cron disagree about its meaning.
fn disputed(part: Part, field: &str, other: &str, other_is_any: bool) -> Result<()> {
    let Some(element) = field.split(',').find(|element| element.starts_with('*')) else { return Ok(()) };
    if other_is_any || field == "*" {
        return Ok(());
    }
    let whole = if part == Part::Day { "1-31" } else { "0-6" };
    let instead = element.replace('*', whole);
    let beside = if part == Part::Day { "weekday" } else { "day" };
    Err(part.error(format!(
        "crons disagree about {} while {beside} is {}: \
         write {instead} for days that match either, or * for one of the two",
        quoted(element),
        quoted(other),
    )))
}

/// Rejects days that no year has.
fn never(cron: &Cron, day: &str, month: &str) -> Result<()> {
    let Cron { day: days, weekday, .. } = cron;
    if days.any || !weekday.any || days.last || days.last_weekday {
        return Ok(());
    }
    let longest = (1..=12u32).filter(|month| cron.month & 1 << month != 0).map(|month| match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    });
    let longest = longest.max().unwrap_or(31);
    if (days.numbers | days.nearest).trailing_zeros() <= longest {
        return Ok(());
    }
    Err(Part::Day.error(format!(
        "{} of month {} never comes: write 1 to {longest}, or L for the last day",
        quoted(day),
        quoted(month),
    )))
}
