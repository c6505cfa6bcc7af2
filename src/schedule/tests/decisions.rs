//! Schedules in virtual time: a server that wakes up when told, and performs the decisions of [`step`].

use serde_json::json;

use super::*;

const SECOND: Millis = 1000;
const MINUTE: Millis = 60 * SECOND;
const HOUR: Millis = 60 * MINUTE;
const DAY: Millis = 24 * HOUR;

/// A schedule, and the results of its occurrences, in the order of decisions.
struct Run {
    setting: Setting,
    zones: Zones,
    progress: Progress,
    done: Vec<Done>,
}

#[derive(Clone, Debug, PartialEq)]
enum Done {
    Placed { due: Millis, at: Millis },
    CaughtUp { due: Millis },
    GivenUp { due: Millis, last_due: Millis, count: Option<u32> },
}

impl Run {
    fn new(setting: serde_json::Value, now: Millis) -> Run {
        let given = parse(&setting).unwrap_or_else(|refusal| panic!("{setting}: {refusal:?}"));
        Run {
            setting: given.setting,
            zones: Zones::bundled(),
            progress: Progress::new(now),
            done: Vec::new(),
        }
    }

    fn when(&self) -> When {
        self.setting.when(&self.zones, self.progress.every_set_at).expect("a known zone")
    }

    /// Performs everything due now, and returns when to continue.
    fn look(&mut self, now: Millis) -> Option<Millis> {
        if let Some(right) = self.progress.set_right(&self.setting.rule, now) {
            self.progress = right;
        }
        let when = self.when();
        for _ in 0..1000 {
            // The next server must read the stored form. Not checked every time: the test would take seconds.
            if now.is_multiple_of(HOUR) {
                let stored = serde_json::to_string(&self.progress).expect("JSON");
                self.progress = serde_json::from_str(&stored).expect(&stored);
            }
            match step(&name(), &self.setting, &when, &self.progress, now) {
                Step::Wait(until) => {
                    assert!(until > now, "nothing to do at {now}, but to be woken at {until}");
                    return Some(until);
                }
                Step::Idle => return None,
                Step::Do(decision) => self.decide(decision, now),
            }
        }
        panic!("a thousand decisions at {now}");
    }

    fn decide(&mut self, decision: Decision, now: Millis) {
        let Decision { missed, place, progress, unplaced, .. } = decision;
        let again = step(&name(), &self.setting, &self.when(), &unplaced, now);
        let again = if let Step::Do(again) = again { Some((again.missed, again.place)) } else { None };
        assert_eq!(again, place.map(|place| (None, Some(place))), "without its place at {now}");
        assert!(missed.is_some() || place.is_some(), "a decision of nothing at {now}");
        if let Some(GivenUp { due, last_due, count }) = missed {
            self.done.push(Done::GivenUp { due, last_due, count });
        }
        if let Some(Place { occurrence: Occurrence { due, .. }, caught_up }) = place {
            assert!(due <= now, "{due} is placed early, at {now}");
            self.done.push(if caught_up { Done::CaughtUp { due } } else { Done::Placed { due, at: now } });
        }
        self.progress = progress;
    }

    /// Wakes up whenever due, from one instant to the other.
    fn run(&mut self, from: Millis, until: Millis) {
        let mut now = from;
        while now <= until {
            now = self.look(now).unwrap_or(Millis::MAX);
        }
    }

    fn placed(&self) -> Vec<Millis> {
        let due = |done: &Done| match done {
            Done::Placed { due, .. } => Some(*due),
            _ => None,
        };
        self.done.iter().filter_map(due).collect()
    }

    fn take(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }
}

fn quarters(from: &str, count: u64) -> Vec<Millis> {
    (0..count).map(|n| at(from) + n * 15 * MINUTE).collect()
}

#[test]
fn in_a_year_each_occurrence_comes_once_in_ten_zones() {
    let zones = "UTC Europe/Berlin America/New_York Australia/Lord_Howe Asia/Kathmandu Africa/Casablanca \
                 Pacific/Apia America/Sao_Paulo America/Vancouver Pacific/Chatham";
    let (from, until) = (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"));
    for zone in zones.split(' ') {
        let mut nightly = Run::new(json!({"queue": "q", "cron": "30 2 * * *", "zone": zone}), from);
        nightly.run(from, until);
        let placed = nightly.placed();
        assert_eq!(placed.len(), nightly.done.len(), "{zone}: all are placed in time");
        let zone_of = Zones::bundled().get(zone).expect(zone);
        let mut nights: Vec<String> =
            placed.iter().map(|due| local(&zone_of, *due).expect("a time")[..10].to_owned()).collect();
        nights.dedup();
        assert_eq!((nights.len(), placed.len()), (365, 365), "{zone}: once on each of 365 days");

        let mut quarter = Run::new(json!({"queue": "q", "cron": "*/15 * * * *", "zone": zone}), from);
        quarter.run(from, until);
        let expected = quarters("2026-01-01T00:15:00Z", 365 * 96);
        assert!(quarter.placed() == expected, "{zone}: once each quarter of an hour, despite clock changes");
    }
}

#[test]
fn six_hours_away_with_each_catch_up() {
    let (from, away, back) = (at("2026-06-01T00:00:00Z"), 10 * MINUTE, 6 * HOUR + 7 * MINUTE);
    let (first, last) = (from + 15 * MINUTE, from + 6 * HOUR);
    let run = |catch_up: &str, back: Millis| {
        let mut run = Run::new(json!({"queue": "q", "cron": "*/15 * * * *", "catch_up": catch_up}), from);
        run.run(from, from + away);
        run.look(from + back);
        run.take()
    };
    let given_up = |last_due, count| Done::GivenUp { due: first, last_due, count: Some(count) };
    assert_eq!(run("none", back), [given_up(last, 24)], "none");
    let before = last - 15 * MINUTE;
    assert_eq!(run("last", back), [given_up(before, 23), Done::CaughtUp { due: last }], "last");
    let all: Vec<Done> = (0..24).map(|n| Done::CaughtUp { due: first + n * 15 * MINUTE }).collect();
    assert_eq!(run("all", back), all, "all, oldest first");
    // Back within the deadline of the newest: it is in time, and goes first.
    let back = 6 * HOUR + 59 * SECOND;
    let in_time = Done::Placed { due: last, at: from + back };
    assert_eq!(run("last", back), [given_up(before, 23), in_time.clone()], "last, with a later one in time");
    let mut expected = vec![in_time];
    expected.extend_from_slice(&all[..23]);
    assert_eq!(run("all", back), expected, "all, with a later one in time");
}

#[test]
fn of_a_long_absence_the_newest_hundred_are_caught_up() {
    let from = at("2026-06-01T00:00:00Z");
    for (every, back, count) in [
        (60, 5000 * MINUTE, Some(4898)),
        (1, DAY, None),
        // The maximum that is counted, and one more.
        (1, 10_060_999, Some(9900)),
        (1, 10_161_999, None),
    ] {
        let mut run = Run::new(json!({"queue": "q", "every": every, "catch_up": "all"}), from);
        run.look(from + back);
        let done = run.take();
        let Some(Done::GivenUp { due, last_due, count: told }) = done.first() else { panic!("{done:?}") };
        let caught_up: Vec<Millis> = done
            .iter()
            .filter_map(|done| if let Done::CaughtUp { due } = done { Some(*due) } else { None })
            .collect();
        assert_eq!(caught_up.len(), 100, "every {every} s, back after {back} ms");
        assert!(caught_up.is_sorted(), "oldest first");
        assert_eq!(*due, from + every * SECOND, "the first that was given up");
        assert_eq!(last_due + every * SECOND, caught_up[0], "none is left out between them");
        let late = from + back - MINUTE - caught_up[99];
        assert!((1..=every * SECOND).contains(&late), "the newest that was missed: {late}");
        let all = (caught_up[0] - due) / (every * SECOND);
        assert_eq!(*told, count, "every {every} s, back after {back} ms: {all} were given up");
    }
}

#[test]
fn what_cannot_be_stored_is_tried_until_the_deadline() {
    let from = at("2026-06-01T00:00:00Z");
    let mut run = Run::new(json!({"queue": "q", "every": 3600, "catch_up": "none", "deadline": 30}), from);
    let due = from + HOUR;
    for late in [0, SECOND, 30 * SECOND] {
        let step = step(&name(), &run.setting, &run.when(), &run.progress, due + late);
        let Step::Do(Decision { place: Some(place), missed: None, .. }) = step else {
            panic!("{late} ms late: {step:?}")
        };
        assert_eq!((place.occurrence.due, place.caught_up), (due, false), "{late} ms late");
    }
    run.look(due + 30 * SECOND + 1);
    assert_eq!(run.take(), [Done::GivenUp { due, last_due: due, count: Some(1) }], "after the deadline");
}

#[test]
fn a_clock_that_is_set_repeats_nothing() {
    let from = at("2026-06-01T00:00:00Z");
    let mut run = Run::new(json!({"queue": "q", "cron": "*/15 * * * *"}), from);
    run.run(from, from + HOUR);
    let first = run.take();
    assert_eq!(first.len(), 4, "an hour: {first:?}");
    // Back by a minute: decisions are not repeated, and the rest follows in time.
    let again = run.look(from + 59 * MINUTE);
    assert_eq!((run.take(), again), (vec![], Some(from + 75 * MINUTE)), "a minute back");
    run.run(from + 59 * MINUTE, from + 2 * HOUR);
    assert_eq!(run.take().len(), 4, "the second hour");
    // A step ahead by six hours is like a downtime of six hours.
    run.look(from + 8 * HOUR + 7 * MINUTE);
    let done = run.take();
    let newest = from + 8 * HOUR;
    assert_eq!(
        done,
        [
            Done::GivenUp { due: from + 135 * MINUTE, last_due: newest - 15 * MINUTE, count: Some(23) },
            Done::CaughtUp { due: newest },
        ],
        "six hours ahead"
    );
}

/// Guards against schedules that are silent until the wrong time that the clock had.
#[test]
fn a_clock_that_ran_ahead_and_was_set_right_silences_nothing() {
    let from = at("2026-06-01T00:00:00Z");
    for setting in [
        json!({"queue": "q", "cron": "*/15 * * * *"}),
        json!({"queue": "q", "cron": "0,15,30,45 0-23 * * *"}),
        json!({"queue": "q", "every": 900}),
    ] {
        // The clock was corrected, or ran ahead when the schedule was set.
        for is_new in [false, true] {
            let mut run = Run::new(setting.clone(), if is_new { from + DAY } else { from });
            run.look(from + DAY + HOUR);
            run.take();
            let now = from + 7 * MINUTE;
            assert_eq!(run.look(now), Some(from + 15 * MINUTE), "{setting}, new: {is_new}");
            run.run(now, from + HOUR);
            assert_eq!(
                run.placed(),
                (1..=4).map(|n| from + n * 15 * MINUTE).collect::<Vec<_>>(),
                "{setting}"
            );
        }
    }
    // Occurrences missed before the correct time are still caught up, others are not.
    let mut run = Run::new(json!({"queue": "q", "every": 900, "catch_up": "all"}), from);
    let Step::Do(decision) = step(&name(), &run.setting, &run.when(), &run.progress, from + 3 * HOUR) else {
        panic!("three hours ahead, and nothing is owed");
    };
    run.progress = decision.unplaced;
    run.look(from + HOUR);
    let expected: Vec<Done> = (1..=4).map(|n| Done::CaughtUp { due: from + n * 15 * MINUTE }).collect();
    assert_eq!(run.take(), expected, "of twelve that were missed by the wrong clock");
    // A change takes effect from its own time on.
    let changed = parse(&json!({"queue": "q", "cron": "*/20 * * * *"})).expect("a setting").setting;
    let ran_ahead = Progress::new(from + DAY);
    let right = ran_ahead.set_right(&run.setting.rule, from).expect("it ran ahead");
    run.progress = right.changed(&run.setting, &changed, from + 7 * MINUTE);
    run.setting = changed;
    assert_eq!(run.look(from + 7 * MINUTE), Some(from + 20 * MINUTE), "after a change");
}

#[test]
fn while_paused_nothing_is_due() {
    let from = at("2026-06-01T00:00:00Z");
    let every = json!({"queue": "q", "every": 60, "catch_up": "all"});
    let mut run = Run::new(every.clone(), from);
    run.run(from, from + MINUTE);
    assert_eq!(run.take().len(), 1);
    run.progress = run.progress.pause(None);
    assert_eq!(run.look(from + DAY), None, "paused for good");
    run.progress = run.progress.resume(from + DAY + SECOND);
    assert_eq!(run.look(from + DAY + SECOND), Some(from + DAY + MINUTE), "nothing is caught up");
    assert_eq!(run.take(), []);
    // A pause that ends by itself: occurrences after its end are due, even if the server wakes up later.
    run.progress = run.progress.pause(Some(from + 2 * DAY));
    assert_eq!(run.look(from + DAY + HOUR), Some(from + 2 * DAY), "it wakes when the pause ends");
    assert!(run.progress.is_paused(from + 2 * DAY - 1) && !run.progress.is_paused(from + 2 * DAY));
    run.look(from + 2 * DAY + 3 * MINUTE);
    let (due, now) = (|n| from + 2 * DAY + n * MINUTE, from + 2 * DAY + 3 * MINUTE);
    let placed = |n| Done::Placed { due: due(n), at: now };
    // One minute late is in time, two are not.
    let expected = [placed(2), placed(3), Done::CaughtUp { due: due(0) }, Done::CaughtUp { due: due(1) }];
    assert_eq!(run.take(), expected, "after a pause that has ended by itself");
    // A schedule that is not paused continues unchanged.
    let mut run = Run::new(every, from);
    run.progress = run.progress.resume(from + MINUTE + SECOND);
    run.look(from + MINUTE + SECOND);
    assert_eq!(run.placed(), [from + MINUTE], "resuming a schedule that is not paused skips nothing");
}

#[test]
fn a_change_counts_from_its_own_instant() {
    let from = at("2026-06-01T00:00:00Z");
    let set = |given| parse(&given).expect("a setting").setting;
    let mut run = Run::new(json!({"queue": "q", "every": 60}), from);
    let body = set(json!({"queue": "q", "every": 60, "text": "new", "deadline": 5}));
    let changed = run.progress.changed(&run.setting, &body, from + 90 * SECOND);
    assert_eq!(changed, run.progress, "a new body moves nothing: due occurrences stay due");
    let slower = set(json!({"queue": "q", "every": 90}));
    run.progress = run.progress.changed(&run.setting, &slower, from + 59 * SECOND);
    run.setting = slower;
    assert_eq!(run.look(from + 61 * SECOND), Some(from + 149 * SECOND), "90 s after the change");
    let ending = set(json!({"queue": "q", "every": 90, "end": "2026-06-01T00:10:00Z"}));
    run.progress = run.progress.changed(&run.setting, &ending, from + 100 * SECOND);
    run.setting = ending;
    assert_eq!(run.look(from + 100 * SECOND), Some(from + 149 * SECOND), "the anchor stays");
    run.run(from + 100 * SECOND, from + HOUR);
    assert_eq!(run.placed().last(), Some(&(from + 599 * SECOND)), "none after the end");
    assert!(is_ended(&run.when(), &run.progress), "nothing can come any more");
}

#[test]
fn start_and_end_may_be_occurrences() {
    let (from, start) = (at("2026-06-01T00:00:00Z"), at("2026-06-01T00:00:10Z"));
    let bounds = json!({"queue": "q", "every": 10, "start": "2026-06-01T00:00:10Z", "end": 1_780_272_040});
    let mut run = Run::new(bounds, from);
    run.run(from, from + HOUR);
    assert_eq!(run.placed(), [0, 1, 2, 3].map(|n| start + n * 10 * SECOND), "every");
    let bounds = json!({"queue": "q", "cron": "*/10 * * * * *", "start": "1780272010", "end": "2026-06-01T02:00:40+02:00"});
    let mut run = Run::new(bounds, from);
    run.run(from, from + HOUR);
    assert_eq!(run.placed(), [0, 1, 2, 3].map(|n| start + n * 10 * SECOND), "cron");
    // The anchor of an interval may be long past.
    let mut run = Run::new(json!({"queue": "q", "every": 0.007e3, "start": "2020-01-01T00:00:00.5Z"}), from);
    run.run(from, from + 20 * SECOND);
    let anchor = at("2020-01-01T00:00:00.5Z");
    let expected: Vec<Millis> = (0..3).map(|n| anchor + ((from - anchor) / 7000 + 1 + n) * 7000).collect();
    assert_eq!(run.placed()[..3], expected, "each 7 s since 2020");
}

#[test]
fn jitter_delays_each_by_its_own_time_and_keeps_the_order() {
    let from = at("2026-06-01T00:00:00Z");
    let mut run = Run::new(json!({"queue": "q", "every": 10, "jitter": 60, "deadline": 1}), from);
    run.run(from, from + HOUR);
    let late: Vec<Millis> = run
        .done
        .iter()
        .map(|done| match done {
            Done::Placed { due, at } => at - due,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(run.placed().is_sorted() && late.len() > 350, "{} in an hour", late.len());
    assert!(late.iter().all(|late| *late <= 60 * SECOND), "{:?}", late.iter().max());
    let distinct: std::collections::HashSet<_> = late.iter().collect();
    assert!(distinct.len() > 100, "{} delays", distinct.len());
    // Fixed forever, on every server and in every version.
    assert_eq!(jitter(&name(), 1_795_262_400_000, 60_000), 44_166);
}

#[test]
fn an_occurrence_has_its_id_for_ever() {
    let namespace = Namespace::parse("shop").expect("a name");
    let due = at("2026-03-29T01:00:00Z");
    let by_clock = when("Europe/Berlin", "30 2 * * *").after(at("2026-03-28T12:00:00Z")).next().expect("one");
    assert_eq!(by_clock.due, due, "the gap");
    let instant = Occurrence { due, local: None };
    let ids = [by_clock, instant].map(|occurrence| job_id(&namespace, &name(), &occurrence).to_string());
    assert_eq!(ids, ["101KMVHNPM0GEF2ZKHE5W000000", "101KMVHNPM0K07R167EH8000000"]);
    let other = ScheduleName::parse("hourly").expect("a name");
    assert_ne!(job_id(&namespace, &other, &instant).to_string(), ids[1], "another schedule");
    let id = job_id(&namespace, &name(), &instant);
    assert_eq!((id.published_at(), id.delay_seconds(), id.is_versioned()), (due, 0, true));
}

/// Vancouver stays on summer time from database 2026b on: a decision is a local time.
#[test]
fn another_zone_database_goes_on_after_the_last_local_time() {
    let decided =
        when("America/Vancouver", "0 9 * * *").after(at("2026-11-15T00:00:00Z")).next().expect("one");
    assert_eq!(decided.due, at("2026-11-15T16:00:00Z"), "with the new database");
    // Los Angeles behaves like Vancouver before 2026b.
    let before = when("America/Los_Angeles", "0 9 * * *");
    let after = when("America/Vancouver", "0 9 * * *");
    let last = before.after(at("2026-11-15T00:00:00Z")).next().expect("one");
    assert_eq!(last.due, at("2026-11-15T17:00:00Z"), "with the old database");
    let next = |when: &When, cursor| when.next(cursor).map(|next| when.local(next.due));
    assert_eq!(
        next(&after, before.decided(&last)).as_deref(),
        Some("2026-11-16T09:00:00.000-07:00"),
        "old, then new"
    );
    assert_eq!(
        next(&before, after.decided(&decided)).as_deref(),
        Some("2026-11-16T09:00:00.000-08:00"),
        "and back"
    );
    // Hourly from 8 to 10, decided at 09:00 by the old database when the new one has 10:00, which is therefore still
    // due.
    let hours = |zone| when(zone, "0 8,9,10 * * *");
    let nine = hours("America/Los_Angeles").after(at("2026-11-15T16:30:00Z")).next().expect("one");
    let cursor = hours("America/Los_Angeles").decided(&nine);
    let ten = hours("America/Vancouver").next(cursor).expect("one");
    assert_eq!(ten.due, nine.due, "10:00 is at the same instant, and no local time is left out");
    assert!(ten.local > nine.local, "it is another occurrence");
}
