//! Preview of a cron expression or an interval, from query parameters. Stores nothing.

use std::borrow::Cow;

use super::cron::Cron;
use super::fields::{every, instant, ordered, zone};
use super::given::one_rule;
use super::refusal::{Refusal, quoted};
use super::setting::Rule;
use super::when::{Occurrence, When};
use super::zones::Zones;
use crate::clock::Millis;
use crate::time;

/// Maximum and default number of instants.
const MOST: usize = 100;
const SHOWN: usize = 5;
/// How far to look ahead: a hundred years.
const FARTHEST: Millis = 36_525 * 86_400_000;

/// A request for the next instants.
#[derive(Clone, Debug)]
pub struct Preview {
    pub when: When,
    from: Millis,
    count: usize,
}

impl Preview {
    /// Parses `cron`, `every`, `zone`, `start`, `end`, `from` and `n` from `given`.
    pub fn parse<'a>(
        given: impl Fn(&str) -> Option<Cow<'a, str>>,
        zones: &Zones,
        now: Millis,
    ) -> Result<Preview, Refusal> {
        let at = |field| given(field).map(|text| instant(field, &text)).transpose();
        let (start, end, from) = (at("start")?, at("end")?, at("from")?.unwrap_or(now));
        ordered(start, end)?;
        // A plus in a query means a blank, and no zone contains one.
        let name = given("zone").map_or("UTC".to_owned(), |name| name.replace(' ', "+"));
        let zone = zone(&name, zones)?;
        let (expression, interval) = (given("cron"), given("every"));
        let read_every = |text: &Cow<'_, str>| every(text);
        let read_cron = |text: &Cow<'_, str>| Ok(Cron::parse(text)?);
        let rule = one_rule(expression.as_ref(), interval.as_ref(), read_cron, read_every)?;
        let when = match rule {
            Rule::Cron(cron) => When::cron(cron, zone),
            Rule::Every(every) => When::every(every, from, start, zone),
        };
        let count = given("n").map(|text| count(&text)).transpose()?.unwrap_or(SHOWN);
        Ok(Preview { when: when.between(start, end), from, count })
    }

    /// Returns the next instants.
    pub fn next(&self) -> impl Iterator<Item = Occurrence> + '_ {
        let last = self.from.saturating_add(FARTHEST);
        self.when.after(self.from).take(self.count).take_while(move |next| next.due <= last)
    }
}

fn count(text: &str) -> Result<usize, Refusal> {
    let count = time::digits(text).filter(|count| (1..=MOST).contains(count));
    count.ok_or_else(|| Refusal::of("n", format!("n cannot be {}: write 1 to {MOST}", quoted(text))))
}
