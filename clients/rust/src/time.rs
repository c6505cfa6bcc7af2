//! Instants and durations, as given and as the server parses them.

use std::time::{Duration, SystemTime};

use jiff::{Timestamp, Zoned};

/// When a job is due: from a [`SystemTime`], a [`Timestamp`], a [`Zoned`], or a text in RFC 3339.
#[derive(Clone, Debug)]
pub struct At(pub(crate) Given);

#[derive(Clone, Debug)]
pub(crate) enum Given {
    /// Unix milliseconds.
    Millis(i64),
    /// Parsed by the server.
    Text(String),
}

impl From<Timestamp> for At {
    fn from(at: Timestamp) -> At {
        // Rounds up to milliseconds, so that nothing is due early.
        let millis =
            at.as_nanosecond().div_euclid(1_000_000) + i128::from(at.as_nanosecond() % 1_000_000 != 0);
        At(Given::Millis(i64::try_from(millis).unwrap_or(i64::MAX)))
    }
}

impl From<&Zoned> for At {
    fn from(at: &Zoned) -> At {
        at.timestamp().into()
    }
}

impl From<Zoned> for At {
    fn from(at: Zoned) -> At {
        at.timestamp().into()
    }
}

impl From<SystemTime> for At {
    fn from(at: SystemTime) -> At {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        At(Given::Millis(millis(since)))
    }
}

impl From<&str> for At {
    fn from(text: &str) -> At {
        At(Given::Text(text.to_owned()))
    }
}

impl From<String> for At {
    fn from(text: String) -> At {
        At(Given::Text(text))
    }
}

/// Returns whole milliseconds, rounded up.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// Formats seconds with at most three decimals, for queries.
pub(crate) fn seconds(duration: Duration) -> String {
    let millis = millis(duration);
    match millis % 1000 {
        0 => format!("{}", millis / 1000),
        rest => format!("{}.{rest:03}", millis / 1000).trim_end_matches('0').to_owned(),
    }
}

/// Returns seconds as a JSON number.
pub(crate) fn seconds_json(duration: Duration) -> serde_json::Value {
    let millis = millis(duration);
    match millis % 1000 {
        0 => (millis / 1000).into(),
        #[expect(clippy::cast_precision_loss, reason = "136 years in milliseconds have 42 bits")]
        _ => (millis as f64 / 1000.0).into(),
    }
}

/// Rounds up to whole seconds, for parameters without decimals.
pub(crate) fn whole(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() != 0)))
}

/// Returns a random number from 0 to 1, evenly distributed.
pub(crate) fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes the pauses are average: nothing depends on them.
    if getrandom::fill(&mut bytes).is_err() {
        return 0.5;
    }
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

/// Returns the duration, up to a tenth shorter or longer.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.9 + 0.2 * random())
}

/// Pauses between retries.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    tries: i32,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    /// Returns a random pause between half and all of 0.1 s · 2ⁿ, at most 5 s, and at least what the server asks for.
    pub(crate) fn next(&mut self, retry_after: Option<Duration>) -> Duration {
        let most = Pauses::FIRST.mul_f64(f64::powi(2.0, self.tries.min(6))).min(Pauses::LONGEST);
        self.tries += 1;
        most.mul_f64(0.5 + 0.5 * random()).max(retry_after.unwrap_or(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_millisecond_are_rounded_up() {
        assert_eq!(seconds(Duration::from_micros(1_500_001)), "1.501");
        assert_eq!(seconds(Duration::from_millis(200)), "0.2");
        assert_eq!(seconds(Duration::from_secs(20)), "20");
        assert_eq!(whole(Duration::from_millis(1001)), Duration::from_secs(2));
        assert_eq!(whole(Duration::from_secs(20)), Duration::from_secs(20));
        let at = At::from(Timestamp::from_nanosecond(1_700_000_000_000_000_001).unwrap());
        assert!(matches!(at.0, Given::Millis(1_700_000_000_001)), "{at:?}");
    }

    #[test]
    fn pauses_double_up_to_five_seconds_and_heed_the_server() {
        let mut pauses = Pauses::default();
        let given: Vec<f64> = (0..9).map(|_| pauses.next(None).as_secs_f64()).collect();
        for (n, pause) in given.iter().enumerate() {
            let most = (0.1 * f64::from(1 << n)).min(5.0);
            assert!(*pause >= most / 2.0 && *pause <= most, "pause {n} is {pause}, should be up to {most}");
        }
        assert_eq!(pauses.next(Some(Duration::from_secs(30))), Duration::from_secs(30));
    }
}
