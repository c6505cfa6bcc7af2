//! A second implementation, slow and simple: it walks through time as a cron daemon does, and reads the expression
//! anew at each step. It is compared for random expressions, zones and years. `SCHEDULE_CASES` is their number,
//! `SCHEDULE_SEED` the first seed; a failure shows its seed.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp, ToSpan};

use super::*;

/// Pseudo-random numbers, reproducible by seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }

    fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True with probability 1/`n`.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn list(&mut self, mut element: impl FnMut(&mut Dice) -> String) -> String {
        let more = if self.one_in(3) { self.below(3) } else { 0 };
        (0..=more).map(|_| element(self)).collect::<Vec<_>>().join(",")
    }

    /// Generates an element with numbers from `first` to `last`.
    fn element(&mut self, first: u64, last: u64) -> String {
        let a = self.within(first, last);
        let b = self.within(a, last);
        let step = self.within(1, last.min(1 + last / 2));
        match self.below(7) {
            0..=3 => format!("{a}"),
            4 => format!("{a}-{b}"),
            5 => format!("{a}-{b}/{step}"),
            _ => format!("{a}/{step}"),
        }
    }

    fn field(&mut self, first: u64, last: u64) -> String {
        match self.below(8) {
            0 => "*".to_owned(),
            1 => format!("*/{}", self.within(1, last)),
            _ => self.list(|dice| dice.element(first, last)),
        }
    }

    fn days(&mut self) -> String {
        self.list(|dice| match dice.below(8) {
            0 => "L".to_owned(),
            1 => "LW".to_owned(),
            2 => format!("{}W", dice.within(1, 31)),
            _ => dice.element(1, 31),
        })
    }

    fn weekday(&mut self) -> String {
        let day = self.below(8);
        let names = ["SUN", "mon", "Tue", "WED", "THU", "FRI", "SAT", "SUN"];
        if self.one_in(2) { names[day as usize].to_owned() } else { day.to_string() }
    }

    fn weekdays(&mut self) -> String {
        self.list(|dice| match dice.below(6) {
            0 => format!("{}L", dice.weekday()),
            1 => format!("{}#{}", dice.weekday(), dice.within(1, 5)),
            2 => dice.weekday(),
            3 => format!("{}-SUN", dice.within(1, 6)),
            _ => dice.element(0, 7),
        })
    }

    fn months(&mut self) -> String {
        if self.one_in(4) { "FEB,oct".to_owned() } else { self.field(1, 12) }
    }

    /// Generates the three fields of dates. `*/n` occurs in one of days and weekdays only while the other is `*`.
    fn dates(&mut self) -> String {
        let (day, weekday) = match self.below(8) {
            0..=2 => ("*".to_owned(), "?".to_owned()),
            3 => (self.field(1, 31), "*".to_owned()),
            4 => (self.days(), "*".to_owned()),
            5 => ("?".to_owned(), self.weekdays()),
            6 => ("*".to_owned(), format!("*/{}", self.within(1, 7))),
            _ => (self.days(), self.weekdays()),
        };
        let month = if self.one_in(3) { self.months() } else { "*".to_owned() };
        format!("{day} {month} {weekday}")
    }

    fn expression(&mut self) -> String {
        let mut text = String::new();
        if self.one_in(3) {
            let _ = write!(text, "{} ", self.field(0, 59));
        }
        let _ = write!(text, "{} {} {}", self.field(0, 59), self.field(0, 23), self.dates());
        text
    }
}

/// Whether a field of numbers contains `number`.
fn names(field: &str, number: i64, first: i64, last: i64) -> bool {
    let read = |text: &str| text.parse::<i64>().expect("a number");
    field.split(',').any(|element| {
        let (base, step) = element.split_once('/').unwrap_or((element, "1"));
        let (from, to) = match base.split_once('-') {
            _ if base == "*" => (first, last),
            Some((from, to)) => (read(from), read(to)),
            None if element.contains('/') => (read(base), last),
            None => (read(base), read(base)),
        };
        (from..=to).contains(&number) && (number - from) % read(step) == 0
    })
}

fn names_day(field: &str, date: Date) -> bool {
    let is_workday = |date: &Date| !matches!(date.weekday(), Weekday::Saturday | Weekday::Sunday);
    field.split(',').any(|element| match element {
        "L" => date == date.last_of_month(),
        "LW" => {
            let last = (0..7).map(|back| date.last_of_month() - back.days()).find(is_workday);
            Some(date) == last
        }
        _ => match element.strip_suffix('W') {
            None => names(element, i64::from(date.day()), 1, 31),
            Some(day) => {
                let Ok(day) = Date::new(date.year(), date.month(), day.parse().expect("a day")) else {
                    return false;
                };
                let beside =
                    [0i64, -1, 1, -2, 2].map(|away| day.checked_add(Span::new().days(away)).expect("a date"));
                let found = beside.iter().find(|near| near.month() == day.month() && is_workday(near));
                Some(&date) == found
            }
        },
    })
}

fn names_weekday(field: &str, date: Date) -> bool {
    let mut field = field.to_ascii_uppercase().replace("-SUN", "-7");
    for (number, name) in ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"].into_iter().enumerate() {
        field = field.replace(name, &number.to_string());
    }
    let numbers = [
        i64::from(date.weekday().to_sunday_zero_offset()),
        i64::from(date.weekday().to_sunday_one_offset()) - 1,
    ];
    let numbers = if numbers[0] == 0 { [0, 7] } else { numbers };
    let any = |text: &str| {
        numbers.into_iter().any(|number| names(text, number, 0, if text.starts_with('*') { 6 } else { 7 }))
    };
    field.split(',').any(|element| {
        if let Some((weekday, nth)) = element.split_once('#') {
            let before = date - (7 * (nth.parse::<i64>().expect("a number") - 1)).days();
            let one_more = before - 7.days();
            return any(weekday) && before.month() == date.month() && one_more.month() != date.month();
        }
        match element.strip_suffix('L') {
            Some(weekday) => any(weekday) && (date + 7.days()).month() != date.month(),
            None => any(element),
        }
    })
}

/// Returns the fields of an expression, seconds first.
fn fields(expression: &str) -> Vec<String> {
    let six =
        if expression.split(' ').count() == 5 { format!("0 {expression}") } else { expression.to_owned() };
    six.replace('?', "*").split(' ').map(str::to_owned).collect()
}

fn names_date(fields: &[String], date: Date) -> bool {
    let month = fields[4].to_ascii_uppercase().replace("FEB", "2").replace("OCT", "10");
    if !names(&month, i64::from(date.month()), 1, 12) {
        return false;
    }
    let (day, weekday) = (&fields[3], &fields[5]);
    match (day == "*", weekday == "*") {
        (true, true) => true,
        (false, true) => names_day(day, date),
        (true, false) => names_weekday(weekday, date),
        (false, false) => names_day(day, date) || names_weekday(weekday, date),
    }
}

/// Whether a field contains each number: parsing the field at each step would take minutes.
struct Times([Vec<bool>; 3]);

impl Times {
    fn of(fields: &[String]) -> Times {
        let of = |field: usize, end: i64| (0..end).map(|n| names(&fields[field], n, 0, end - 1)).collect();
        Times([of(0, 60), of(1, 60), of(2, 24)])
    }

    fn name(&self, local: DateTime) -> bool {
        let Times([seconds, minutes, hours]) = self;
        seconds[local.second() as usize] && minutes[local.minute() as usize] && hours[local.hour() as usize]
    }
}

/// Returns the occurrences after `from` until `until`, in steps of `step` seconds: no offset and no expression may
/// need finer ones. With a clock rule, only the first time that the clock shows a local time counts, and skipped
/// local times count after the gap.
fn walk(fields: &[String], zone: &TimeZone, from: i64, until: i64, step: i64) -> Vec<i64> {
    let by_clock = !fields[..3].iter().any(|field| field.contains(['*', '/']));
    let local = |second| zone.to_datetime(Timestamp::from_second(second).expect("a year of today"));
    // The clock may have shown later times just before it was set back: up to a day, in Kwajalein.
    let changes = zone.preceding(Timestamp::from_second(from + 1).expect("a year of today"));
    let changes = changes.map(|change| change.timestamp().as_second()).take_while(|at| *at > from - 90_000);
    let mut highest = changes.map(|at| local(at - 1)).chain([local(from)]).max().expect("one");
    let (mut found, mut date) = (Vec::new(), None);
    let times = Times::of(fields);
    let mut matches = |local: DateTime| {
        if !times.name(local) {
            return false;
        }
        let (named, matches) = date.unwrap_or((local.date(), names_date(fields, local.date())));
        let matches = if named == local.date() { matches } else { names_date(fields, local.date()) };
        date = Some((local.date(), matches));
        matches
    };
    let mut second = from;
    while second < until {
        second += step;
        let shown = local(second);
        if !by_clock {
            if matches(shown) {
                found.push(second);
            }
            continue;
        }
        let mut any = false;
        while highest < shown {
            highest += step.seconds();
            any |= matches(highest);
        }
        if any {
            found.push(second);
        }
    }
    found
}

/// Compares one random expression in a random zone, usually near a change of its offset. Returns the duration of the
/// slowest search; `None` if the expression is rejected.
fn compare(seed: u64, zones: &[TimeZone]) -> Option<(Duration, String)> {
    let mut dice = Dice(seed);
    let zone = &zones[dice.below(zones.len() as u64) as usize];
    let expression = dice.expression();
    let cron = Cron::parse(&expression).ok()?;
    let fields = fields(&expression);
    let mut middle = dice.below(130 * 365 * 86_400) as i64;
    if !dice.one_in(4)
        && let Some(change) = zone.following(Timestamp::from_second(middle).expect("a year of today")).next()
    {
        middle = change.timestamp().as_second();
    }
    let local = |second| Timestamp::from_second(second).map(|time| zone.to_offset(time).seconds());
    let odd = |second| local(second).is_ok_and(|offset| offset % 60 != 0);
    let by_minute = fields[0] == "0" && !odd(middle - 86_400) && !odd(middle + 86_400) && middle % 60 == 0;
    let (step, around) = if by_minute { (60, 30 * 3600) } else { (1, 2 * 3600) };
    let from = (middle - dice.below(around) as i64).max(100_000) / step * step;
    let until = middle / step * step + around as i64;
    let when = When::cron(Arc::new(cron), zone.clone());
    let expected = walk(&fields, zone, from, until, step);
    let mut slowest = Duration::ZERO;
    let mut found = Vec::new();
    let mut cursor = Cursor::at(from as Millis * 1000);
    loop {
        let next = when.next(cursor);
        // The best of three, since the machine does other work too.
        let took = (0..3).map(|_| {
            let began = Instant::now();
            std::hint::black_box(when.next(cursor));
            began.elapsed()
        });
        slowest = slowest.max(took.min().unwrap_or_default());
        let Some(next) = next.filter(|next| next.due <= until as Millis * 1000) else { break };
        found.push((next.due / 1000) as i64);
        cursor = when.decided(&next);
    }
    let shown = |seconds: &[i64]| {
        let shown: Vec<String> = seconds.iter().map(|second| when.local(*second as Millis * 1000)).collect();
        shown.join(" ")
    };
    let name = zone.iana_name().unwrap_or_default();
    assert!(
        found == expected,
        "SCHEDULE_SEED={seed}: {expression:?} in {name} after {}: found {}, but a walk finds {}",
        when.local(from as Millis * 1000),
        shown(&found),
        shown(&expected),
    );
    Some((slowest, format!("{expression:?} in {name}")))
}

fn setting(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

#[test]
fn who_walks_through_time_finds_the_same() {
    let database = TimeZoneDatabase::bundled();
    let zones: Vec<TimeZone> =
        database.available().map(|name| database.get(name.as_str()).expect("it is there")).collect();
    assert!(zones.len() > 400, "{} zones", zones.len());
    let (cases, seed) = (setting("SCHEDULE_CASES", 200), setting("SCHEDULE_SEED", 1));
    let compared = (seed..).filter_map(|seed| compare(seed, &zones)).take(cases as usize);
    let (slowest, which) = compared.max_by_key(|(took, _)| *took).expect("some");
    println!("{cases} cases from {seed} on; the slowest search took {slowest:?}: {which}");
}

/// Compares dates over many years: the walk above covers only a few days per expression.
#[test]
fn who_walks_through_the_calendar_finds_the_same() {
    let (cases, seed) = (setting("SCHEDULE_CASES", 300), setting("SCHEDULE_SEED", 1));
    for seed in seed..seed + cases {
        let mut dice = Dice(!seed);
        let expression = format!("0 0 {}", dice.dates());
        let Ok(cron) = Cron::parse(&expression) else { continue };
        let fields = fields(&expression);
        let mut day = Date::constant(1970, 1, 1) + (dice.below(150 * 365) as i64).days();
        for _ in 0..3 {
            let expected =
                (0..41 * 366).map(|later: i64| day + later.days()).find(|day| names_date(&fields, *day));
            let found = cron.at_or_after(day.into()).map(DateTime::date);
            assert_eq!(found, expected, "SCHEDULE_SEED={seed}: {expression:?} from {day} on");
            let Some(found) = found else { break };
            day = found + 1.days();
        }
    }
}

/// Searches over years with many changes of the clock: the walk above covers only a few days.
#[test]
fn a_search_over_years_leaves_nothing_out() {
    let database = TimeZoneDatabase::bundled();
    let zones =
        "Africa/Casablanca Australia/Lord_Howe America/New_York Pacific/Apia Europe/Dublin Antarctica/Troll";
    let zones: Vec<TimeZone> = zones.split(' ').map(|name| database.get(name).expect(name)).collect();
    let (cases, seed) = (setting("SCHEDULE_CASES", 300), setting("SCHEDULE_SEED", 1));
    for seed in seed..seed + cases {
        let mut dice = Dice(seed << 20);
        let zone = &zones[dice.below(zones.len() as u64) as usize];
        let time = ["*/20 2", "30 1-3/1", "* 2,3", "0 */3"][dice.below(4) as usize];
        let expression = format!("{time} {}", dice.dates());
        let Ok(cron) = Cron::parse(&expression) else { continue };
        let from =
            Timestamp::from_second(dice.below(120 * 365 * 86_400) as i64 + 90_000).expect("a year of today");
        // Every matching local time, at each instant at which the clock shows it.
        let (mut local, mut expected) = (zone.to_datetime(from) - 2.days(), None::<Timestamp>);
        while let Some(next) = cron.at_or_after(local) {
            let shown = zone.to_ambiguous_zoned(next);
            let shown = if shown.is_ambiguous() {
                let [earlier, later] =
                    [shown.clone().earlier(), shown.later()].map(|zoned| zoned.expect("a time"));
                [earlier, later].into_iter().filter(|zoned| zoned.datetime() == next).collect()
            } else {
                vec![shown.unambiguous().expect("a time")]
            };
            let later = shown.iter().map(|zoned| zoned.timestamp()).filter(|time| *time > from);
            expected = later.chain(expected).min();
            if expected.is_some_and(|found| zone.to_datetime(found) + 2.days() < next) {
                break;
            }
            local = next + 1.second();
        }
        let when = When::cron(Arc::new(cron), zone.clone());
        let found = when.next(Cursor::at(from.as_millisecond() as Millis)).map(|next| next.due);
        let expected = expected.map(|time| time.as_millisecond() as Millis);
        let shown = [found, expected].map(|at| at.map(|at| when.local(at)));
        let name = zone.iana_name().unwrap_or_default();
        assert!(
            found == expected,
            "SCHEDULE_SEED={seed}: {expression:?} in {name} after {from}: found, and expected: {shown:?}"
        );
    }
}
