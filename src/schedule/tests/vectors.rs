//! Instants computed by other programs: each row has the zone, the expression, the start, and the following
//! occurrences in local time.

use super::*;

const VECTORS: &[(&str, &str, &str, &[&str])] = &[
    (
        "Europe/Berlin",
        "30 2 * * *",
        "2026-03-28T12:00:00Z",
        &["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
    ),
    (
        "Europe/Berlin",
        "30 1,2,3 * * *",
        "2026-03-28T22:00:00Z",
        &[
            "2026-03-29T01:30+01:00",
            "2026-03-29T03:00+02:00",
            "2026-03-29T03:30+02:00",
            "2026-03-30T01:30+02:00",
        ],
    ),
    (
        "Europe/Berlin",
        "*/20 2 * * *",
        "2026-03-28T12:00:00Z",
        &["2026-03-30T02:00+02:00", "2026-03-30T02:20+02:00"],
    ),
    (
        "Europe/Berlin",
        "0 1-4 * * *",
        "2025-10-25T22:00:00Z",
        &[
            "2025-10-26T01:00+02:00",
            "2025-10-26T02:00+02:00",
            "2025-10-26T03:00+01:00",
            "2025-10-26T04:00+01:00",
        ],
    ),
    (
        "Europe/Berlin",
        "0 * * * *",
        "2025-10-25T22:30:00Z",
        &[
            "2025-10-26T01:00+02:00",
            "2025-10-26T02:00+02:00",
            "2025-10-26T02:00+01:00",
            "2025-10-26T03:00+01:00",
        ],
    ),
    (
        "America/New_York",
        "30 2 * * *",
        "2026-03-07T12:00:00Z",
        &["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"],
    ),
    (
        "America/New_York",
        "30 1 * * *",
        "2025-11-01T12:00:00Z",
        &["2025-11-02T01:30-04:00", "2025-11-03T01:30-05:00"],
    ),
    (
        "Australia/Lord_Howe",
        "15 2 * * *",
        "2025-10-04T12:00:00Z",
        &["2025-10-05T02:30+11:00", "2025-10-06T02:15+11:00"],
    ),
    (
        "Australia/Lord_Howe",
        "45 1 * * *",
        "2026-04-04T12:00:00Z",
        &["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"],
    ),
    (
        "Australia/Lord_Howe",
        "0 * * * *",
        "2026-04-04T14:00:00Z",
        &["2026-04-05T02:00+10:30", "2026-04-05T03:00+10:30", "2026-04-05T04:00+10:30"],
    ),
    (
        "Asia/Kathmandu",
        "0 0 * * *",
        "1985-12-31T00:00:00Z",
        &["1986-01-01T00:15+05:45", "1986-01-02T00:00+05:45"],
    ),
    (
        "Africa/Casablanca",
        "30 2 * * *",
        "2025-02-22T12:00:00Z",
        &["2025-02-23T02:30+01:00", "2025-02-24T02:30+00:00"],
    ),
    (
        "Africa/Casablanca",
        "30 2 * * *",
        "2025-04-05T12:00:00Z",
        &["2025-04-06T03:00+01:00", "2025-04-07T02:30+01:00"],
    ),
    (
        "Pacific/Apia",
        "0 12 * * *",
        "2011-12-28T23:00:00Z",
        &["2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00"],
    ),
    (
        "Pacific/Apia",
        "0 */6 * * *",
        "2011-12-29T23:00:00Z",
        &["2011-12-29T18:00-10:00", "2011-12-31T00:00+14:00"],
    ),
    (
        // The last change listed in the database is not one of the offset; a rule applies after it.
        "America/Godthab",
        "11 23 * * *",
        "2023-10-28T06:09:00Z",
        &["2023-10-28T23:11-02:00", "2023-10-29T23:11-02:00"],
    ),
    (
        "America/Sao_Paulo",
        "0 0 * * *",
        "2018-11-03T12:00:00Z",
        &["2018-11-04T01:00-02:00", "2018-11-05T00:00-02:00"],
    ),
    (
        "America/Sao_Paulo",
        "30 23 * * *",
        "2018-02-17T12:00:00Z",
        &["2018-02-17T23:30-02:00", "2018-02-18T23:30-03:00"],
    ),
    // From database 2026b on; one hour later before.
    ("America/Vancouver", "0 9 * * *", "2026-11-15T00:00:00Z", &["2026-11-15T09:00-07:00"]),
];

#[test]
fn what_others_found_is_found() {
    for (zone, cron, from, expected) in VECTORS {
        let when = when(zone, cron);
        let found: Vec<String> =
            when.after(at(from)).take(expected.len()).map(|next| when.local(next.due)).collect();
        let expected: Vec<String> = expected.iter().map(|local| local.replacen("+", ":00.000+", 1)).collect();
        let expected: Vec<String> = expected
            .iter()
            .map(|local| match local.contains('+') {
                true => local.clone(),
                false => format!("{}:00.000{}", &local[..16], &local[16..]),
            })
            .collect();
        assert_eq!(found, expected, "{cron} in {zone} after {from}");
    }
}
