//! Times as users read and write them, on the routes that lmstfy does not have: seconds with up to three decimals,
//! and instants. Precise to the millisecond, without floating point. Knows no clock and no HTTP.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

use crate::clock::Millis;

/// The longest duration, as on lmstfy's routes.
pub const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);
/// The last instant that can be written in every offset: a day before the end of the year 9999.
const LAST: Millis = 253_402_207_200_000;

/// Parses seconds: digits, and up to three decimals. `None` for any other text and beyond [`LONGEST`].
/// [`LONGEST`].
pub fn duration(text: &str) -> Option<Duration> {
    decimal(text).map(Duration::from_millis).filter(|duration| *duration <= LONGEST)
}

/// Parses an instant from RFC 3339 with any offset, or from Unix seconds with up to three decimals. An instant before
/// 1970 becomes the beginning of 1970. Parts of a millisecond are rounded up, so that nothing is due early.
pub fn instant(text: &str) -> Option<Millis> {
    if let Some(millis) = decimal(text) {
        return (millis <= LAST).then_some(millis);
    }
    // Many clients forget to escape the plus in a query, which then means a blank. No other character is valid here.
    let plus = text.len().checked_sub("+00:00".len()).filter(|at| text.as_bytes()[*at] == b' ');
    let mended = plus.map(|at| format!("{}+{}", &text[..at], &text[at + 1..]));
    let time: Timestamp = mended.as_deref().unwrap_or(text).parse().ok()?;
    let nanos = u128::try_from(time.as_nanosecond()).unwrap_or(0);
    Millis::try_from(nanos.div_ceil(1_000_000)).ok().filter(|millis| *millis <= LAST)
}

/// Parses Unix milliseconds: digits only.
pub fn instant_in_millis(text: &str) -> Option<Millis> {
    digits(text).filter(|millis| *millis <= LAST)
}

/// Returns thousandths of a decimal number with up to three decimals.
fn decimal(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if decimals.len() > 3 {
        return None;
    }
    let thousandths = digits::<u64>(decimals)? * 10u64.pow(3 - decimals.len() as u32);
    digits::<u64>(whole)?.checked_mul(1000)?.checked_add(thousandths)
}

/// Parses a number of digits only. `None` for any other text, and for a number that does not fit.
pub fn digits<T: FromStr>(text: &str) -> Option<T> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Serialized as RFC 3339, in UTC, with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Instant(pub Millis);

impl TryFrom<String> for Instant {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Instant, &'static str> {
        instant(&text).map(Instant).ok_or("no instant")
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.0.min(LAST)).unwrap_or(0); // it fits: `LAST` does
        write!(f, "{:.3}", Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

/// As its text.
impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(millis: Millis) -> String {
        serde_json::to_value(Instant(millis)).expect("it is a string").as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn seconds_have_up_to_three_decimals() {
        for (text, millis) in [
            ("0", 0),
            ("1", 1000),
            ("1.5", 1500),
            ("0.25", 250),
            ("007.001", 7001),
            ("4294967295", 4_294_967_295_000),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text:?}");
        }
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "1.2345",
            "-1",
            "+1",
            " 1",
            "1 ",
            "1e3",
            "0x1",
            "١",
            "1,5",
            "1.5.0",
            "4294967295.001",
            "4294967296",
            "18446744073709551616",
            "99999999999999999999999",
        ] {
            assert_eq!(duration(bad), None, "{bad:?} should be no duration");
        }
    }

    #[test]
    fn instants_are_rfc_3339_or_unix_seconds() {
        for (text, millis) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-21T12:00:00.000Z", 1_795_262_400_000),
            ("2026-11-21T14:00:00+02:00", 1_795_262_400_000),
            ("2026-11-21T14:00:00 02:00", 1_795_262_400_000),
            ("2026-11-21T06:30:00.5-05:30", 1_795_262_400_500),
            ("2026-11-21T12:00:00.000000001Z", 1_795_262_400_001),
            ("1795262400", 1_795_262_400_000),
            ("1795262400.25", 1_795_262_400_250),
            ("1969-12-31T23:59:59Z", 0),
            ("0", 0),
        ] {
            assert_eq!(instant(text), Some(millis), "{text:?}");
        }
        for bad in [
            "",
            "x",
            "-1",
            "2026-11-21",
            "2026-11-21T12:00:00",
            "2026-13-21T12:00:00Z",
            "2026-11-21T25:00:00Z",
            "253402300800",
            "12:00:00Z",
            "now",
            "1e9",
            "é+00:00",
            "é 00:00",
        ] {
            assert_eq!(instant(bad), None, "{bad:?} should be no instant");
        }
        assert_eq!(instant_in_millis("1795262400001"), Some(1_795_262_400_001));
        assert_eq!(instant_in_millis("1795262400001.5"), None);
    }

    #[test]
    fn instants_are_shown_in_utc_with_milliseconds() {
        assert_eq!(shown(1_795_262_400_000), "2026-11-21T12:00:00.000Z");
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(Millis::MAX), "9999-12-30T22:00:00.000Z", "nothing later can be written");
    }

    proptest! {
        #[test]
        fn an_instant_survives_its_text(millis in 0..=LAST) {
            prop_assert_eq!(instant(&shown(millis)), Some(millis));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}", digits in "[0-9.]{0,40}") {
            let _ = (duration(&text), instant(&text), instant_in_millis(&text));
            let _ = (duration(&digits), instant(&digits), instant_in_millis(&digits));
        }
    }
}
