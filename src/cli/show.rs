//! Replies as tables. Control and direction characters of jobs are made visible: they could control the terminal, or
//! display misleading text.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::readable::{count, duration, shortened, visible};

/// Maximum characters of a body or a reason.
const MOST: usize = 60;

pub fn queues(queues: &[Value]) -> String {
    let heads = ["QUEUE", "READY", "DELAYED", "RUNNING", "DEAD", "OLDEST", "PAUSED"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for queue in queues {
        let paused = match (&queue["paused"], queue["paused_until"].as_str()) {
            (Value::Bool(true), Some(until)) => format!("until {until}"),
            (Value::Bool(true), None) => "yes".to_owned(),
            _ => "no".to_owned(),
        };
        let age = seconds(&queue["oldest_ready_age"]);
        let [name, ready, delayed, running, dead] =
            ["queue", "ready", "delayed", "running", "dead"].map(|field| cell(&queue[field]));
        rows.push(vec![name, ready, delayed, running, dead, age, paused]);
    }
    table(&rows, 1..6)
}

pub fn jobs(jobs: &[Value], bodies: bool) -> String {
    let mut heads = vec!["JOB", "STATE", "DUE", "TRIES", "TTL", "SIZE", "KEY", "REASON"];
    heads.extend(bodies.then_some("DATA"));
    let mut rows = vec![heads.into_iter().map(str::to_owned).collect()];
    for job in jobs {
        let fields = ["job_id", "state", "due_at", "remain_tries", "ttl", "size", "key", "reason"];
        let mut row: Vec<String> = fields.iter().map(|field| named_cell(field, &job[*field])).collect();
        if job["state"] == "dead" {
            row[fields.len() - 1] = reason(&job["reason"]);
        }
        row.extend(bodies.then(|| body(&job["data"])));
        rows.push(row);
    }
    table(&rows, 0..0)
}

/// Formats queues with their needs.
pub fn needs(queues: &[Value]) -> String {
    let heads =
        ["NEED", "QUEUE", "READY", "DELAYED", "RUNNING", "DEAD", "OLDEST", "IN/S", "OUT/S", "WAITING"];
    let fields = ["ready", "delayed", "running", "dead", "oldest_ready_age", "in", "out", "waiting"];
    let rows = queues.iter().map(|queue| {
        let mut row = vec![cell(&queue["need"]), named(queue)];
        row.extend(fields.iter().map(|field| named_cell(field, &queue[*field])));
        row
    });
    let rows: Vec<_> = [heads.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
    table(&rows, 2..10)
}

/// Returns namespace and queue, with the pool unless it is the default one.
fn named(queue: &Value) -> String {
    let name = format!("{}/{}", cell(&queue["namespace"]), cell(&queue["queue"]));
    match queue["pool"].as_str() {
        None | Some("default") => name,
        Some(pool) => format!("{pool}:{name}"),
    }
}

/// Formats queues with dead jobs.
pub fn dead(queues: &[Value]) -> String {
    let heads = ["QUEUE", "DEAD", "IN AN HOUR", "LAST"];
    let rows = queues.iter().map(|queue| {
        let [dead, hour, last] = ["dead", "died_in_hour", "last_died"].map(|field| cell(&queue[field]));
        vec![named(queue), dead, hour, last]
    });
    let rows: Vec<_> = [heads.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
    table(&rows, 1..3)
}

/// Formats the reasons of dead jobs.
pub fn reasons(reasons: &Value) -> String {
    let all = reasons["reasons"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let rows = all.iter().map(|one| vec![cell(&one["count"]), reason(&one["reason"])]);
    let heads = vec!["COUNT".to_owned(), "REASON".to_owned()];
    let rows: Vec<_> = [heads].into_iter().chain(rows).collect();
    let looked_at = count(reasons["looked_at"].as_u64().unwrap_or(0), "dead job", "dead jobs");
    format!("{}\nlooked at {looked_at}", table(&rows, 0..1))
}

/// Formats bulk actions.
pub fn actions(actions: &[Value]) -> String {
    let heads = ["ID", "QUEUE", "ACTION", "STATE", "STATUS", "DONE", "LOOKED AT", "OF", "BY", "WHY"];
    let rows = actions.iter().map(|action| {
        let cells = |fields: &[&str]| fields.iter().map(|field| cell(&action[*field])).collect::<Vec<_>>();
        let mut row = vec![cell(&action["id"]), named(action)];
        row.extend(cells(&["action", "state", "status", "done", "looked_at", "total", "by", "why"]));
        row
    });
    let rows: Vec<_> = [heads.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
    table(&rows, 5..8)
}

/// Formats the last steps of a history, newest last.
pub fn history(past: &Value, limit: usize) -> String {
    let fields = ["in", "out", "acked", "died", "ready", "delayed", "running", "dead", "oldest_ready_age"];
    let heads =
        ["AGO", "IN/S", "OUT/S", "ACKED/S", "DIED/S", "READY", "DELAYED", "RUNNING", "DEAD", "OLDEST"];
    let steps = past["ready"].as_array().map_or(0, Vec::len);
    let step = past["step"].as_u64().unwrap_or(0);
    let rows = (steps.saturating_sub(limit)..steps).map(|at| {
        let mut row = vec![duration(((steps - at) as u64 * step) as f64)];
        row.extend(fields.iter().map(|field| named_cell(field, &past[*field][at])));
        row
    });
    let rows: Vec<_> = [heads.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
    format!("since {}\n{}", cell(&past["since"]), table(&rows, 0..10))
}

/// Formats the tokens of a namespace, by description.
pub fn tokens(answer: &Value) -> String {
    let mut rows = vec![vec!["TOKEN".to_owned(), "DESCRIPTION".to_owned()]];
    let all = answer["tokens"].as_object().into_iter().flatten();
    rows.extend(all.map(|(token, description)| vec![token.clone(), cell(description)]));
    table(&rows, 0..0)
}

pub fn schedules(schedules: &[Value]) -> String {
    let heads = ["SCHEDULE", "QUEUE", "WHEN", "ZONE", "STATE", "NEXT", "LAST"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for schedule in schedules {
        let [name, queue, zone, state] =
            ["name", "queue", "zone", "state"].map(|field| cell(&schedule[field]));
        let when = match &schedule["every"] {
            Value::Null => cell(&schedule["cron"]),
            every => format!("every {}", seconds(every)),
        };
        let last = match &schedule["last"] {
            Value::Null => "-".to_owned(),
            last => format!("{} {}", cell(&last["outcome"]), cell(&last["due"])),
        };
        rows.push(vec![name, queue, when, zone, state, cell(&schedule["next"][0]["due"]), last]);
    }
    table(&rows, 0..0)
}

/// Formats a schedule: its fields, the next occurrences, and the last ones.
pub fn schedule(schedule: &Value) -> String {
    let mut single = schedule.clone();
    let mut take = |field: &str| single.as_object_mut().and_then(|fields| fields.remove(field));
    let (next, past) = (take("next").unwrap_or_default(), take("occurrences"));
    let mut parts = vec![fields(&single), instants(&next)];
    if let Some(past) = past.as_ref().and_then(Value::as_array) {
        let heads = ["LAST", "UNTIL", "COUNT", "OUTCOME", "PLACED", "JOB", "WHY"];
        let named = ["due", "last_due", "count", "outcome", "placed_at", "job_id", "why"];
        let rows = past.iter().map(|one| named.map(|field| cell(&one[field])).to_vec());
        let rows: Vec<_> = std::iter::once(heads.map(str::to_owned).to_vec()).chain(rows).collect();
        parts.push(table(&rows, 0..0));
    }
    parts.join("\n\n")
}

/// Formats occurrences: in UTC, and in local time of their zone.
pub fn instants(next: &Value) -> String {
    let mut rows = vec![vec!["NEXT".to_owned(), "LOCAL".to_owned()]];
    let all = next.as_array().into_iter().flatten();
    rows.extend(all.map(|next| vec![cell(&next["due"]), cell(&next["local"])]));
    table(&rows, 0..0)
}

/// Formats the result of a sync: a name per line.
pub fn differences(answer: &Value) -> String {
    let mut lines = Vec::new();
    for what in ["created", "changed", "removed"] {
        let names = answer[what].as_array().into_iter().flatten();
        lines.extend(names.map(|name| format!("{what} {}", cell(name))));
    }
    let unchanged = answer["unchanged"].as_array().map_or(0, Vec::len);
    lines.push(format!("unchanged {unchanged}"));
    lines.join("\n")
}

/// Formats an object: a field per line.
pub fn fields(object: &Value) -> String {
    let shown = |(name, value): (&String, _)| {
        let value = if name == "data" { body(value) } else { named_cell(name, value) };
        vec![name.clone(), value]
    };
    let rows: Vec<_> = object.as_object().into_iter().flatten().map(shown).collect();
    table(&rows, 0..0)
}

/// Returns a text on one line, with hidden characters made visible, and cut if it is long.
pub fn one_line(text: &str) -> String {
    cut_at(text, MOST * 4)
}

/// Formats rows in columns as wide as their widest cell. Columns in `right` are numbers, aligned right.
fn table(rows: &[Vec<String>], right: Range<usize>) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let wide = |column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(wide).collect();
    let line = |row: &Vec<String>| {
        let padded = row.iter().enumerate().map(|(column, cell)| {
            let blanks = " ".repeat(widths[column] - cell.width());
            if right.contains(&column) { blanks + cell } else { cell.clone() + &blanks }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats a value; `-` if it is null or missing.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => cut(text),
        Value::Array(all) if all.is_empty() => "-".to_owned(),
        Value::Array(all) => all.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => cut(&other.to_string()),
    }
}

/// Formats why a job died. Jobs without a reason have used up their tries when their ttr expired.
fn reason(value: &Value) -> String {
    if value.is_null() { "ttr expired".to_owned() } else { cell(value) }
}

/// Formats the value of a field, for some fields as a duration in seconds or milliseconds.
fn named_cell(field: &str, value: &Value) -> String {
    match (field, value.as_f64()) {
        ("ttl", Some(0.0)) => "forever".to_owned(),
        ("ttl" | "oldest_ready_age" | "every" | "deadline" | "jitter" | "timeout" | "per", Some(_)) => {
            seconds(value)
        }
        ("retry", None) if value.is_array() => {
            value.as_array().into_iter().flatten().map(seconds).collect::<Vec<_>>().join(", ")
        }
        ("elapsed_ms", Some(ms)) => duration(ms / 1000.0),
        _ => cell(value),
    }
}

/// Formats a duration in seconds.
fn seconds(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), duration)
}

/// Formats the body of a job, which is base64 in the reply.
fn body(data: &Value) -> String {
    let bytes = data.as_str().and_then(|data| STANDARD.decode(data).ok()).unwrap_or_default();
    cut(&String::from_utf8_lossy(&bytes))
}

fn cut(text: &str) -> String {
    cut_at(text, MOST)
}

fn cut_at(text: &str, most: usize) -> String {
    let (short, more) = shortened(text, most);
    let mut line = visible(short).into_owned();
    if more {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_and_dashes_for_what_is_not_known() {
        let queue = json!({"queue": "mail", "ready": 12, "delayed": null, "running": 0, "dead": 3,
            "oldest_ready_age": 5400.5, "paused": true, "paused_until": "2026-11-21T12:00:00.000Z"});
        let text = queues(&[queue]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["QUEUE", "READY", "DELAYED", "RUNNING", "DEAD", "OLDEST", "PAUSED"], "{text}");
        let row = ["mail", "12", "-", "0", "3", "1", "h", "30", "min", "until", "2026-11-21T12:00:00.000Z"];
        assert_eq!(lines[1], row, "{text}");
        assert!(text.starts_with("QUEUE"), "no blanks at the edge: {text:?}");
    }

    /// Guards against a job whose text moves the cursor or sets the title of the user's terminal.
    #[test]
    fn what_a_job_contains_does_not_drive_the_terminal() {
        let odd = "\u{1b}]0;title\u{7}\r\n\u{9b}2J\u{202e}txt.exe";
        let job = json!({"job_id": "1", "reason": odd, "key": odd, "data": STANDARD.encode(odd)});
        let text = jobs(&[job], true);
        let controls = text.chars().filter(|c| c.is_control() && *c != '\n').count();
        assert_eq!((controls, text.lines().count()), (0, 2), "one head and one job: {text:?}");
        assert!(!text.contains('\u{202e}') && text.contains("‹U+202E›txt.exe"), "{text:?}");
    }

    /// Guards against settings whose numbers have no unit.
    #[test]
    fn durations_have_units() {
        let setting = json!({"every": 90, "deadline": 600, "jitter": 0, "ttl": 7200, "timeout": 30, "retry": [5, 0.5, 300], "rate": 90});
        let expected = "deadline 10 min,every 1 min 30 s,jitter 0 s,rate 90,retry 5 s, 500 ms, 5 min,timeout 30 s,ttl 2 h";
        let text = fields(&setting);
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines.join(","), expected);
    }

    /// Guards against a list of reasons that does not say what killed most jobs.
    #[test]
    fn a_job_without_a_reason_died_when_its_ttr_expired() {
        let text = reasons(&json!({"looked_at": 3, "reasons": [{"count": 3, "reason": null}]}));
        assert!(text.contains("ttr expired"), "{text}");
        let job = |state: &str| json!({"job_id": "1", "state": state, "reason": null});
        let text = jobs(&[job("dead"), job("ready")], false);
        assert_eq!(text.matches("ttr expired").count(), 1, "of the dead job: {text}");
    }

    #[test]
    fn long_texts_are_cut() {
        let job = json!({"job_id": "1", "reason": "x".repeat(4096)});
        let text = jobs(&[job], false);
        assert!(text.contains(&format!("{}…", "x".repeat(MOST))) && text.len() < 400, "{text}");
    }
}
