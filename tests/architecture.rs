//! Holds the sentences of the crate's documentation about who may use whom ("Who may use whom" in src/lib.rs),
//! and the form that every module and script has.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A file of the source, by its path from the root of the repository.
struct Source {
    path: String,
    text: String,
}

/// Every file below `dir` with this extension.
fn sources(dir: &str, extension: &str) -> Vec<Source> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a directory of the repository") {
            let path = entry.expect("its entry").path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(&root.join(dir), &mut found);
    found.retain(|path| path.extension().is_some_and(|e| e == extension));
    found.sort();
    assert!(found.len() > 5, "only {} files in {dir}: the test looks in the wrong place", found.len());
    let read = |path: PathBuf| Source {
        text: std::fs::read_to_string(&path).expect("a readable file"),
        path: path.strip_prefix(root).expect("below the root").display().to_string(),
    };
    found.into_iter().map(read).collect()
}

/// A line without its comment. Good enough for this code: `//` inside a string only hides the string's rest.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Whether `word` stands in `line` by itself, not as a part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// Panics with every line of code outside of `allowed` (paths or beginnings of paths) that `breaks` the sentence.
fn hold(sentence: &str, allowed: &[&str], breaks: impl Fn(&str) -> bool) {
    let mut wrong = String::new();
    let mut kept = 0;
    for source in sources("src", "rs") {
        let own = allowed.iter().any(|path| source.path.starts_with(path));
        // Tests inside a module may build what they test.
        let lines = source.text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
        for (i, line) in lines.enumerate().filter(|(_, line)| breaks(code(line))) {
            if own {
                kept += 1;
            } else {
                let _ = writeln!(wrong, "  {}:{}: {}", source.path, i + 1, line.trim());
            }
        }
    }
    assert!(wrong.is_empty(), "{sentence}, but:\n{wrong}");
    assert!(kept > 0, "{sentence}: not even they do, so this test looks for the wrong words");
}

#[test]
fn only_the_server_names_a_concrete_engine() {
    hold(
        "only the server names a concrete engine",
        &["src/server/", "src/engine/disk/", "src/engine/redis/", "src/admin/disk.rs", "src/admin/redis.rs"],
        |line| has_word(line, "DiskEngine") || has_word(line, "RedisEngine") || has_word(line, "RedisAdmin"),
    );
}

#[test]
fn only_http_knows_axum_and_hyper() {
    hold("only src/http knows axum", &["src/http/"], |line| {
        has_word(line, "axum") || has_word(line, "hyper") || has_word(line, "hyper_util")
    });
}

#[test]
fn only_the_redis_stores_know_redis() {
    hold(
        "only src/engine/redis and src/admin/redis.rs know the Redis client",
        &["src/engine/redis/", "src/admin/redis.rs"],
        |line| {
            has_word(line, "deadpool")
                || (line.contains("redis::")
                    && !line.contains("engine::redis::")
                    && !line.contains("admin::redis::"))
        },
    );
}

#[test]
fn only_the_disk_engine_knows_fjall() {
    hold("only src/engine/disk knows fjall", &["src/engine/disk/"], |line| has_word(line, "fjall"));
}

#[test]
fn every_thread_is_watched() {
    hold(
        "only src/engine/disk/threads.rs starts a thread, and watches it",
        &["src/engine/disk/threads.rs"],
        |line| line.contains("thread::Builder") || line.contains("thread::spawn"),
    );
}

#[test]
fn only_metrics_names_a_metric() {
    hold("only src/metrics.rs names a metric", &["src/metrics.rs"], |line| {
        line.contains("infra") && line.contains('"')
            || line.contains("lmstfy_")
            || line.contains("\"dormouse_")
    });
}

#[test]
fn keys_of_redis_are_made_in_one_file_per_store() {
    let prefixes =
        ["\"j/", "\"q/", "\"d/", "\"m/", "\"tk/", "\"l/", "\"timer_set", "\"__throttler", "\"dormouse/"];
    hold(
        "keys of Redis are made in src/engine/redis/layout/keys.rs and in src/admin/redis.rs",
        &["src/engine/redis/layout/keys.rs", "src/admin/redis.rs"],
        |line| prefixes.iter().any(|prefix| line.contains(prefix)),
    );
    let mut wrong = String::new();
    // The pump alone meets queues that its caller cannot name: they stand in the timer's members.
    for script in sources("lua", "lua").into_iter().filter(|script| script.path != "lua/pump.lua") {
        for (i, line) in script.text.lines().enumerate() {
            let line = line.split("--").next().unwrap_or_default();
            if ["'j/", "'q/", "'d/", "'m/", "'tk/", "'l/", "'timer_set"].iter().any(|key| line.contains(key))
            {
                let _ = writeln!(wrong, "  {}:{}: {}", script.path, i + 1, line.trim());
            }
        }
    }
    assert!(wrong.is_empty(), "scripts take their keys, but:\n{wrong}");
}

#[test]
fn imports_point_one_way() {
    // What each room may not reach for, as parts of `crate::` paths.
    let rules: &[(&str, &[&str])] = &[
        ("src/name.rs", &["engine", "http", "server", "dispatch", "admin", "config", "metrics"]),
        ("src/job.rs", &["engine", "http", "server", "dispatch", "admin", "config", "metrics"]),
        ("src/error.rs", &["engine", "http", "server", "dispatch", "admin", "config", "metrics"]),
        ("src/engine/", &["http", "server", "dispatch", "pump", "config"]),
        ("src/engine/disk/", &["admin"]),
        ("src/engine/disk/store/", &["engine::disk::state", "engine::disk::op", "engine::disk::handle"]),
        ("src/engine/disk/state/", &["engine::disk::op", "engine::disk::step", "engine::disk::handle"]),
        ("src/admin/", &["http", "server", "dispatch", "pump", "config"]),
        ("src/dispatch", &["http", "server", "pump", "config"]),
        ("src/pump.rs", &["http", "server", "dispatch", "config"]),
        ("src/admin/tokens.rs", &["http", "server", "engine", "dispatch", "pump", "config"]),
        ("src/admin/limits.rs", &["http", "server", "engine", "dispatch", "pump", "config"]),
        ("src/metrics.rs", &["http", "server", "dispatch", "pump", "config"]),
        ("src/config", &["http", "server", "engine", "dispatch", "pump", "token", "throttle"]),
        ("src/http/", &["server", "pump", "engine::disk", "engine::redis", "admin::disk", "admin::redis"]),
    ];
    let (mut wrong, mut seen) = (String::new(), 0);
    for source in sources("src", "rs") {
        let forbidden: Vec<&str> = rules
            .iter()
            .filter(|(room, _)| source.path.starts_with(room))
            .flat_map(|(_, words)| words.iter().copied())
            .collect();
        for (i, line) in source.text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]")
        {
            let line = code(line);
            seen += usize::from(line.contains("crate::"));
            for word in &forbidden {
                if has_word(line, &format!("crate::{word}")) {
                    let _ = writeln!(wrong, "  {}:{}: {}", source.path, i + 1, line.trim());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "imports point one way, but:\n{wrong}");
    assert!(seen > 100, "only {seen} lines name the crate: this test looks for the wrong words");
}

#[test]
fn every_module_opens_with_what_it_is_for() {
    let silent: Vec<String> = sources("src", "rs")
        .into_iter()
        .filter(|source| !source.text.starts_with("//! "))
        .map(|source| format!("  {}:1", source.path))
        .collect();
    assert!(silent.is_empty(), "every module opens with `//!`, but:\n{}", silent.join("\n"));
}

#[test]
fn every_script_opens_with_keys_argv_returns_and_bound() {
    let mut wrong = String::new();
    for script in sources("lua", "lua") {
        // The preamble stands before other scripts and is none itself.
        if script.path == "lua/clock.lua" {
            continue;
        }
        let head: Vec<&str> = script.text.lines().take_while(|line| line.starts_with("--")).collect();
        let mut from = 1; // the first line says what it does
        for word in ["KEYS", "ARGV", "returns", "bound"] {
            let at = head.iter().skip(from).position(|line| line.starts_with(&format!("-- {word} ")));
            match at {
                Some(at) => from += at + 1,
                None if word == "ARGV" && !script.text.replace("-- ARGV", "").contains("ARGV") => {}
                None => {
                    let _ =
                        writeln!(wrong, "  {}:{}: no {word}, or not in this order", script.path, head.len());
                }
            }
        }
        if script.text.contains("#!lua") || script.text.contains("SCAN'") && !script.text.contains("COUNT") {
            let _ = writeln!(wrong, "  {}: an unbounded scan", script.path);
        }
    }
    assert!(wrong.is_empty(), "every script opens with KEYS, ARGV, returns, bound, but:\n{wrong}");
}
