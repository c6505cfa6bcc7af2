//! Instants on pages: in one zone, which is named with each, and relative to now.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{Markup, html};
use serde_json::Value;

use super::text::{duration, volatile};
use crate::clock::Millis;
use crate::time::{self, Instant};

/// Parses an instant in a field of a reply.
pub fn instant(field: &Value) -> Option<Instant> {
    time::instant(field.as_str()?).map(Instant)
}

/// The zone of a page, and the current time.
#[derive(Clone, Debug)]
pub struct Zone {
    pub name: String,
    zone: TimeZone,
    pub now: Millis,
}

impl Zone {
    /// Returns the zone with this IANA name. `None` if it does not exist.
    pub fn named(name: &str, now: Millis) -> Option<Zone> {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_+-".contains(&b));
        let zone = plain.then(|| TimeZone::get(name).ok()).flatten()?;
        let name = if name.eq_ignore_ascii_case("utc") { "UTC" } else { zone.iana_name().unwrap_or(name) };
        Some(Zone { name: name.into(), zone, now })
    }

    pub fn utc(now: Millis) -> Zone {
        Zone { name: "UTC".into(), zone: TimeZone::UTC, now }
    }

    fn timestamp(at: Millis) -> Timestamp {
        i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok()).unwrap_or(Timestamp::MAX)
    }

    /// Returns the date and time on the zone's clock, with the zone's name: abbreviations are ambiguous, `CST` is
    /// Shanghai and Chicago. Where clocks are set back an hour comes twice, so other zones than UTC have the offset too.
    pub fn clock(&self, at: Millis) -> String {
        let form = if self.name == "UTC" { "%Y-%m-%d %H:%M:%S" } else { "%Y-%m-%d %H:%M:%S%:z" };
        format!("{} {}", self.formatted(at, form), self.name)
    }

    /// Formats the time of day, for the axis of a chart.
    pub fn time_of_day(&self, at: Millis) -> String {
        self.formatted(at, "%H:%M")
    }

    /// Formats the date, likewise.
    pub fn date(&self, at: Millis) -> String {
        self.formatted(at, "%b %-d")
    }

    fn formatted(&self, at: Millis, form: &str) -> String {
        Zone::timestamp(at).to_zoned(self.zone.clone()).strftime(form).to_string()
    }

    /// Shows an instant, and its distance from now.
    pub fn at(&self, Instant(at): Instant) -> Markup {
        html! {
            time datetime=(Zone::timestamp(at).to_string()) { (self.clock(at)) }
            " " (self.ago(at))
        }
    }

    /// Shows how long ago it was, or how long until it is.
    pub fn ago(&self, at: Millis) -> Markup {
        html! { span.ago data-at=(at) { (volatile(&html! { (self.distance(at)) })) } }
    }

    /// Shows the distance of an instant from now, for tables, with the full timestamp as title.
    pub fn when(&self, Instant(at): Instant) -> Markup {
        html! {
            time datetime=(Zone::timestamp(at).to_string()) title=(self.clock(at)) data-at=(at) {
                (volatile(&html! { (self.distance(at)) }))
            }
        }
    }

    fn distance(&self, at: Millis) -> String {
        let by = self.now.abs_diff(at) as f64 / 1000.0;
        match at {
            at if at > self.now => format!("in {}", duration(by)),
            _ => format!("{} ago", duration(by.floor())),
        }
    }

    /// Shows how long something has lasted. Only the minutes count for the tag of the page.
    pub fn age(&self, since: Millis) -> Markup {
        let age = duration((self.now.saturating_sub(since) as f64 / 1000.0).floor());
        let exact = volatile(&html! { span.age data-since=(since) title=(self.clock(since)) { (age) } });
        html! { (exact) span hidden data-minute=(since / 60_000) {} }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_name_their_zone() {
        let at = 1_795_442_400_000; // 2026-11-23T14:00:00Z
        let zone = Zone::named("Europe/Berlin", at + 61_000).expect("a zone");
        assert_eq!(zone.clock(at), "2026-11-23 15:00:00+01:00 Europe/Berlin");
        let shown = zone.at(Instant(at)).0;
        assert!(shown.contains("datetime=\"2026-11-23T14:00:00Z\""), "{shown}");
        assert!(shown.contains("1 min 1 s ago"), "{shown}");
        assert!(zone.ago(at + 120_000).0.contains("in 59 s"));
        let short = zone.when(Instant(at)).0;
        assert!(short.contains("title=\"2026-11-23 15:00:00+01:00 Europe/Berlin\""), "{short}");
        assert_eq!(short.matches("15:00:00").count(), 1, "the instant stands there once: {short}");
        assert_eq!(Zone::utc(at).clock(at), "2026-11-23 14:00:00 UTC");
        for wrong in ["Europe/Nowhere", "../../etc/passwd", "", "<b>", "/etc/localtime"] {
            assert!(Zone::named(wrong, at).is_none(), "{wrong}");
        }
        assert_eq!(Zone::named("utc", at).expect("a zone").name, "UTC");
    }
}
