//! Checks the documented rules on imports (docs/design.md, "Map"), and the form of every module and script.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A file of the source, by its path from the root of the repository.
struct Source {
    path: String,
    text: String,
}

/// Returns the path of every file below `dir`, from the root of the repository.
fn files(dir: &str) -> Vec<String> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a directory of the repository") {
            let path = entry.expect("its entry").path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(&root.join(dir), &mut found);
    found.sort();
    let path = |path: PathBuf| path.strip_prefix(root).expect("below the root").display().to_string();
    found.into_iter().map(path).collect()
}

/// Returns every file below `dir` with this extension.
fn sources(dir: &str, extension: &str) -> Vec<Source> {
    let extension = format!(".{extension}");
    let found: Vec<String> = files(dir).into_iter().filter(|path| path.ends_with(&extension)).collect();
    assert!(found.len() > 5, "only {} files in {dir}: the test looks in the wrong place", found.len());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: String| Source {
        text: std::fs::read_to_string(root.join(&path)).expect("a readable file"),
        path,
    };
    found.into_iter().map(read).collect()
}

/// Returns a line without its comment. Good enough for this code: `//` inside a string only hides the rest of the
/// string.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Returns a file's text without the test module at its end. Tests in their own files are declared at its head.
fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// Returns whether `line` contains `word` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// Panics if `breaks` accepts a line of code outside of `allowed` (paths or prefixes of paths). `sentence` is the rule.
fn hold(sentence: &str, allowed: &[&str], breaks: impl Fn(&str) -> bool) {
    let mut wrong = String::new();
    let mut kept = 0;
    for source in sources("src", "rs") {
        let own = allowed.iter().any(|path| source.path.starts_with(path));
        // Tests inside a module may build the types that they test.
        let lines = without_tests(&source.text).lines();
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
        &[
            "src/server/",
            "src/engine/disk/",
            "src/engine/redis/",
            "src/admin/redis.rs",
            "src/settings/disk.rs",
            "src/settings/redis.rs",
        ],
        |line| ["DiskEngine", "RedisEngine", "RedisAdmin"].iter().any(|name| has_word(line, name)),
    );
}

#[test]
fn only_http_knows_axum() {
    hold("only src/http knows axum", &["src/http/"], |line| has_word(line, "axum"));
}

/// A name may have addresses that do not respond: none of them may delay a connection.
#[test]
fn connections_are_opened_by_dial() {
    hold(
        "only src/dial.rs, and push's attempts for it, open a connection",
        &["src/dial.rs", "src/push/client/connect.rs"],
        |line| line.contains("TcpStream::connect("),
    );
}

#[test]
fn only_a_server_and_two_clients_know_hyper() {
    hold(
        "only src/http, a server, and src/push and src/cli, clients, know hyper",
        &["src/http/", "src/push/", "src/cli/"],
        |line| has_word(line, "hyper") || has_word(line, "hyper_util"),
    );
}

#[test]
fn only_the_redis_stores_know_redis() {
    hold(
        "only src/engine/redis and the stores of src/admin and src/settings know the Redis client",
        &["src/engine/redis/", "src/admin/redis.rs", "src/settings/redis.rs"],
        |line| {
            line.contains("redis::")
                && !["engine", "admin", "settings"].iter().any(|of| line.contains(&format!("{of}::redis::")))
        },
    );
}

#[test]
fn routers_are_built_from_tables() {
    hold(
        "only src/http/request/table.rs gives a route to a router",
        &["src/http/request/table.rs"],
        |line| line.contains(".route(") && !line.contains("metrics.route("),
    );
}

#[test]
fn only_the_disk_store_knows_lsm_tree() {
    hold("only src/engine/disk/store knows lsm-tree", &["src/engine/disk/store/"], |line| {
        has_word(line, "lsm_tree")
    });
}

#[test]
fn only_one_file_knows_the_lists_of_lsm_tree() {
    hold("only store/tables.rs reads what lsm-tree writes", &["src/engine/disk/store/tables.rs"], |line| {
        has_word(line, "sfa")
    });
}

#[test]
fn every_thread_is_watched() {
    hold(
        "only src/engine/disk/writer/threads.rs starts a thread, and watches it",
        &["src/engine/disk/writer/threads.rs"],
        |line| line.contains("thread::Builder") || line.contains("thread::spawn"),
    );
}

#[test]
fn only_metrics_names_a_metric() {
    hold("only src/metrics names a metric", &["src/metrics/"], |line| {
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
        "keys of Redis are made in one file of each store",
        &["src/engine/redis/layout/keys.rs", "src/admin/redis.rs", "src/settings/redis.rs"],
        |line| prefixes.iter().any(|prefix| line.contains(prefix)),
    );
    let mut wrong = String::new();
    // Only the pump processes queues that its caller cannot name: their names are in the timer's members. The script
    // that counts recognizes a job's queue by its key.
    for script in sources("lua", "lua")
        .into_iter()
        .filter(|script| !["lua/pump.lua", "lua/quotas.lua"].contains(&&*script.path))
    {
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

/// The parts of the crate whose imports have rules, and which other parts each may import. A module belongs to
/// the longest name here that begins its path.
const PARTS: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("random", &["clock"]),
    ("readable", &[]),
    ("name", &[]),
    ("error", &["name"]),
    ("outage", &["error"]),
    ("job", &["clock", "name", "random"]),
    ("time", &["clock"]),
    ("schedule", &["clock", "job", "name", "time"]),
    ("config", &["name", "readable"]),
    ("dial", &[]),
    ("tls", &[]),
    ("process", &["config"]),
    ("process::tasks", &[]),
    ("metrics", &["job", "name"]),
    ("engine", &["clock", "error", "job", "name"]),
    ("engine::metered", &["engine", "clock", "error", "job", "name", "metrics"]),
    ("engine::migration", &["engine", "clock", "error", "job", "name", "process::tasks"]),
    ("engine::disk", &["engine", "clock", "error", "job", "name", "process::tasks"]),
    (
        "engine::redis",
        &["engine", "clock", "dial", "error", "job", "name", "outage", "process::tasks", "random", "tls"],
    ),
    ("admin", &["clock", "engine", "error", "name", "outage", "process::tasks", "random"]),
    ("admin::settings", &["admin", "clock", "error", "name", "process::tasks", "settings"]),
    (
        "admin::redis",
        &["admin", "clock", "engine", "error", "name", "outage", "process::tasks", "engine::redis"],
    ),
    ("dispatch", &["clock", "engine", "error", "job", "name", "process::tasks"]),
    (
        "push",
        &[
            "settings",
            "clock",
            "dial",
            "dispatch",
            "engine",
            "error",
            "job",
            "metrics",
            "name",
            "outage",
            "process::tasks",
            "random",
            "tls",
        ],
    ),
    ("settings", &["engine", "error"]),
    ("settings::disk", &["settings", "engine::disk", "error"]),
    ("settings::redis", &["settings", "admin::redis", "engine", "engine::redis", "error"]),
    ("pauses", &["clock", "dispatch", "engine", "error", "name", "outage", "settings"]),
    ("quotas", &["admin", "engine", "error", "name", "outage", "settings"]),
    ("fleet", &["clock", "error", "random", "settings"]),
    ("search", &["engine", "error", "job", "name"]),
    ("bulk", &["clock", "engine", "error", "job", "name", "process::tasks", "random", "search"]),
    ("history", &["name"]),
    (
        "sampler",
        &[
            "clock",
            "dispatch",
            "engine",
            "error",
            "history",
            "job",
            "metrics",
            "name",
            "process::tasks",
            "push",
        ],
    ),
    ("pump", &["clock", "engine", "outage"]),
    (
        "scheduler",
        &[
            "admin", "clock", "engine", "error", "job", "metrics", "name", "outage", "pump", "quotas",
            "schedule", "settings",
        ],
    ),
    (
        "http",
        &[
            "http::answer",
            "http::jobs",
            "http::operators",
            "http::port",
            "http::request",
            "http::schedules",
            "http::state",
            "http::ui",
        ],
    ),
    ("http::answer", &["dispatch", "error", "job", "name", "push"]),
    (
        "http::state",
        &[
            "http::answer",
            "admin",
            "bulk",
            "clock",
            "config",
            "dispatch",
            "engine",
            "error",
            "fleet",
            "history",
            "job",
            "metrics",
            "name",
            "outage",
            "pauses",
            "process::tasks",
            "push",
            "quotas",
            "sampler",
            "scheduler",
            "settings",
            "random",
        ],
    ),
    (
        "http::request",
        &[
            "http::answer",
            "http::state",
            "admin",
            "clock",
            "dispatch",
            "engine",
            "job",
            "name",
            "process::tasks",
            "schedule",
            "scheduler",
            "search",
            "time",
        ],
    ),
    (
        "http::jobs",
        &[
            "http::answer",
            "http::state",
            "http::request",
            "admin",
            "dispatch",
            "engine",
            "job",
            "name",
            "process::tasks",
            "search",
            "time",
        ],
    ),
    (
        "http::schedules",
        &[
            "http::answer",
            "http::state",
            "http::request",
            "http::jobs",
            "admin",
            "clock",
            "engine",
            "job",
            "name",
            "schedule",
            "scheduler",
            "time",
        ],
    ),
    (
        "http::operators",
        &[
            "http::answer",
            "http::state",
            "http::request",
            "admin",
            "bulk",
            "clock",
            "config",
            "dispatch",
            "engine",
            "error",
            "fleet",
            "history",
            "job",
            "metrics",
            "name",
            "process",
            "process::tasks",
            "push",
            "sampler",
            "search",
            "time",
        ],
    ),
    (
        "http::ui",
        &[
            "http::answer",
            "http::state",
            "http::request",
            "http::jobs",
            "http::operators",
            "clock",
            "engine",
            "history",
            "job",
            "name",
            "process",
            "random",
            "readable",
            "time",
        ],
    ),
    (
        "http::port",
        &[
            "http::answer",
            "http::state",
            "http::request",
            "http::jobs",
            "job",
            "metrics",
            "name",
            "process",
            "process::tasks",
            "random",
        ],
    ),
    (
        "server",
        &[
            "http",
            "push",
            "dispatch",
            "pump",
            "quotas",
            "admin",
            "admin::redis",
            "admin::settings",
            "engine",
            "engine::disk",
            "engine::redis",
            "engine::metered",
            "engine::migration",
            "metrics",
            "bulk",
            "config",
            "process",
            "process::tasks",
            "clock",
            "error",
            "job",
            "fleet",
            "history",
            "name",
            "outage",
            "pauses",
            "random",
            "tls",
            "sampler",
            "schedule",
            "scheduler",
            "settings",
            "settings::disk",
            "settings::redis",
        ],
    ),
    ("main", &["cli", "server", "config", "process", "process::tasks"]),
    ("cli", &["dial", "readable", "time", "tls"]),
    ("token-cli", &[]),
];

/// Imports that break the rules, with the reason. One that no longer exists must be removed.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// A path in a source that refers to another module of the crate.
struct Import {
    from: Vec<String>,
    to: Vec<String>,
    place: String,
}

/// Returns the module path of a file.
fn module(path: &str) -> Vec<String> {
    let path = path.trim_start_matches("src/").trim_start_matches("bin/").trim_end_matches(".rs");
    path.split('/').filter(|part| !["mod", "lib"].contains(part)).map(str::to_owned).collect()
}

/// Returns every path in a file that begins with `crate`, `self`, `super`, `dormouse` or the name of a child module,
/// made absolute. Also finds paths in braces and paths used without an import.
fn imports(source: &Source) -> Vec<Import> {
    /// Reads one path or brace group from the front of `text`, and returns the rest.
    fn read<'a>(text: &'a str, path: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
        let text = text.trim_start();
        if let Some(mut rest) = text.strip_prefix('{') {
            loop {
                rest = rest.trim_start();
                match rest.chars().next() {
                    Some('}') => return &rest[1..],
                    Some(',') => rest = &rest[1..],
                    None => return rest,
                    Some(_) => {
                        let after = read(rest, path, found);
                        // Skips anything but a name or a group, such as `*` or `as x`.
                        rest = if after.len() < rest.len() { after } else { &rest[1..] };
                    }
                }
            }
        }
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        let mut path = path.to_vec();
        match word {
            "" | "self" | "crate" | "dormouse" => {}
            "super" => drop(path.pop()),
            word => path.push(word.to_owned()),
        }
        match rest.trim_start().strip_prefix("::") {
            Some(rest) if !word.is_empty() => read(rest, &path, found),
            _ => {
                found.push(path);
                rest
            }
        }
    }
    let from = module(&source.path);
    let lines: Vec<&str> = without_tests(&source.text).lines().map(code).collect();
    let children: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.trim().trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let text = lines.join("\n");
    let mut all = Vec::new();
    for (at, _) in text.match_indices("::") {
        let before = text[..at].trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
        let word = &text[before.len()..at];
        if before.ends_with("::") || before.ends_with('$') {
            continue; // in the middle of a path, or in a macro of another crate
        }
        let start: &[String] = match word {
            "crate" | "dormouse" => &[],
            "self" | "super" => &from,
            child if children.contains(&child) => &from,
            _ => continue,
        };
        let mut found = Vec::new();
        read(&text[before.len()..], start, &mut found);
        let line = text[..at].matches('\n').count();
        let place = format!("{}:{}: {}", source.path, line + 1, lines[line].trim());
        all.extend(found.into_iter().map(|to| Import { from: from.clone(), to, place: place.clone() }));
    }
    all
}

/// Returns the part that a module or an item belongs to.
fn part(path: &[String]) -> &'static str {
    let path = path.join("::");
    let within = |part: &&str| path == **part || path.starts_with(&format!("{part}::"));
    let parts = PARTS.iter().map(|(part, _)| *part).filter(within);
    parts.max_by_key(|part| part.len()).unwrap_or("the crate's root")
}

#[test]
fn imports_point_one_way() {
    let (mut wrong, mut seen) = (String::new(), 0);
    let mut unused: Vec<(&str, &str)> = EXCEPTIONS.iter().map(|(from, to, _)| (*from, *to)).collect();
    for import in sources("src", "rs").iter().filter(|s| s.path != "src/lib.rs").flat_map(imports) {
        let (from, to) = (part(&import.from), part(&import.to));
        let (_, allowed) = PARTS.iter().find(|(part, _)| *part == from).unwrap_or_else(|| {
            panic!("{}: its module is in no part; add it to PARTS with its rule", import.place)
        });
        seen += usize::from(from != to);
        if from == to || allowed.contains(&to) {
            continue;
        }
        unused.retain(|exception| *exception != (from, to));
        if !EXCEPTIONS.iter().any(|(a, b, _)| (*a, *b) == (from, to)) {
            let _ = writeln!(wrong, "  {} ({from} may not import {to})", import.place);
        }
    }
    assert!(wrong.is_empty(), "imports point one way, but:\n{wrong}");
    assert!(unused.is_empty(), "these exceptions are no longer needed, remove them: {unused:?}");
    assert!(seen > 100, "only {seen} imports between parts: this test looks for the wrong words");
}

/// Returns the module in which a path ends: its longest prefix that is a file.
fn file_of(path: &[String], files: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    (1..=path.len()).rev().map(|n| path[..n].to_vec()).find(|module| files.contains(module))
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let sources: Vec<Source> = sources("src", "rs").into_iter().filter(|s| s.path != "src/lib.rs").collect();
    let files: BTreeSet<Vec<String>> = sources.iter().map(|source| module(&source.path)).collect();
    let mut graph: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for import in sources.iter().flat_map(imports) {
        if let Some(to) = file_of(&import.to, &files)
            && to != import.from
        {
            graph.entry(import.from.join("::")).or_default().insert(to.join("::"), import.place);
        }
    }
    let seen: usize = graph.values().map(BTreeMap::len).sum();
    assert!(seen > 500, "only {seen} imports between files: this test looks for the wrong words");
    // Removes files that import no remaining file, and files that no remaining file imports. The rest forms cycles.
    loop {
        let before = graph.len();
        let imported: BTreeSet<String> = graph.values().flat_map(|to| to.keys().cloned()).collect();
        graph.retain(|file, _| imported.contains(file));
        let left: BTreeSet<String> = graph.keys().cloned().collect();
        graph.retain(|_, imports| {
            imports.retain(|to, _| left.contains(to));
            !imports.is_empty()
        });
        if graph.len() == before {
            break;
        }
    }
    assert!(graph.is_empty(), "files import each other in circles, by:\n{graph:#?}");
}

/// Names that several types may have. Each file's `Result` is the standard one with its module's error.
const SHARED_NAMES: &[&str] = &["Result"];

/// Returns the types that a file exports.
fn types_of(source: &Source) -> BTreeSet<String> {
    let declared = |line: &str| {
        let line = match line.strip_prefix("pub(") {
            Some(line) => line.split_once(") ")?.1,
            None => line.strip_prefix("pub ").unwrap_or(line),
        };
        let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| line.strip_prefix(kind))?;
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        Some(rest[..end].to_owned())
    };
    without_tests(&source.text).lines().filter_map(|line| declared(code(line))).collect()
}

/// Returns the module that declares the type at the end of a path, even if the path uses another module's `pub use`.
fn home_of(
    path: &[String],
    types: &BTreeMap<Vec<String>, BTreeSet<String>>,
    uses: &BTreeMap<Vec<String>, Vec<Vec<String>>>,
) -> Option<Vec<String>> {
    let (name, module) = path.split_last()?;
    if types.get(module)?.contains(name) {
        return Some(module.to_vec());
    }
    let passed_on = uses.get(module)?.iter().find(|to| to.last() == Some(name) && *to != path)?;
    home_of(passed_on, types, uses)
}

/// Guards against a type name with different meanings in the file that uses it and the file that declares it.
#[test]
fn a_type_that_another_room_imports_has_its_name_for_itself() {
    let sources: Vec<Source> = sources("src", "rs").into_iter().filter(|s| s.path != "src/lib.rs").collect();
    let types: BTreeMap<_, _> =
        sources.iter().map(|source| (module(&source.path), types_of(source))).collect();
    // Used with its module's name, a type may have any name.
    let bare = |import: &Import| {
        let line = import.place.split_once(": ").map_or("", |(_, line)| line);
        line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ")
    };
    let imported: Vec<Import> = sources.iter().flat_map(imports).filter(bare).collect();
    let mut uses: BTreeMap<Vec<String>, Vec<Vec<String>>> = BTreeMap::new();
    for import in &imported {
        uses.entry(import.from.clone()).or_default().push(import.to.clone());
    }
    // By the name of a type: its declaring modules, and the modules that use it by its bare name.
    let mut known: BTreeMap<&str, BTreeMap<Vec<String>, BTreeSet<&str>>> = BTreeMap::new();
    for import in &imported {
        if let Some(home) = home_of(&import.to, &types, &uses)
            && let Some(name) = import.to.last()
            && part(&home) != part(&import.from)
        {
            known.entry(name.as_str()).or_default().entry(home).or_default().insert(part(&import.from));
        }
    }
    assert!(
        known.len() > 200,
        "only {} types are imported: this test looks for the wrong words",
        known.len()
    );
    let mut wrong = String::new();
    for (name, homes) in known.iter().filter(|(name, _)| !SHARED_NAMES.contains(name)) {
        let others = types.iter().filter(|(home, names)| names.contains(*name) && !homes.contains_key(*home));
        let met = others.filter(|(other, _)| homes.values().any(|parts| parts.contains(part(other))));
        let all: Vec<String> =
            homes.keys().chain(met.map(|(other, _)| other)).map(|of| of.join("::")).collect();
        if all.len() > 1 {
            let _ = writeln!(wrong, "  {name} of {}", all.join(" and of "));
        }
    }
    assert!(wrong.is_empty(), "one word means one thing, but types meet that have the same name:\n{wrong}");
}

#[test]
fn no_spelling_of_an_import_escapes() {
    let text = "use super::super::server::{self, stores::{Stores}};\nuse crate::{http, name as n};\n\
                mod child;\nfn f() { dormouse::config::Config::load(); child::g(); self::child::h() }\n";
    let source = Source { path: "src/engine/disk/mod.rs".into(), text: text.into() };
    let found: Vec<String> = imports(&source).into_iter().map(|import| import.to.join("::")).collect();
    let expected = [
        "server",
        "server::stores::Stores",
        "http",
        "name",
        "config::Config::load",
        "engine::disk::child::g",
        "engine::disk::child::h",
    ];
    assert!(expected.iter().all(|path| found.contains(&(*path).to_owned())), "{expected:?} in {found:?}");
}

#[test]
fn tasks_and_threads_are_started_in_few_places() {
    hold(
        "tasks are started by src/process/tasks.rs, threads by the disk engine",
        &["src/process/tasks.rs", "src/engine/disk/writer/threads.rs"],
        |line| {
            ["tokio::spawn", "task::spawn(", "thread::spawn", "thread::Builder"]
                .iter()
                .any(|start| line.contains(start))
                || has_word(line, "TaskTracker")
                || has_word(line, "JoinSet")
        },
    );
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
fn no_file_has_more_than_450_lines() {
    let is_tests = |path: &str| path.contains("/tests/") || path.ends_with("/tests.rs");
    let long: Vec<String> = sources("src", "rs")
        .into_iter()
        .filter(|source| !is_tests(&source.path))
        .map(|source| (without_tests(&source.text).lines().count(), source.path))
        .filter(|(lines, _)| *lines > 450)
        .map(|(lines, path)| format!("  {path}: {lines}"))
        .collect();
    assert!(long.is_empty(), "no file has more than 450 lines, its tests apart, but:\n{}", long.join("\n"));
}

/// Whether a word of a text is the path of a file of this repository, or of a folder.
fn is_path(word: &str) -> bool {
    let roots = ["src/", "tests/", "benches/", "docs/", "lua/", "config/", "deploy/"];
    let names =
        roots.iter().any(|root| word.starts_with(root)) || word.ends_with(".rs") || word.ends_with(".lua");
    // A pattern names no file; the others are a file of lsm-tree and one that readers of docs/clients/rust.md create.
    names && !word.contains(['*', '{', ':']) && !["version/persist.rs", "src/bin/publish.rs"].contains(&word)
}

#[test]
fn paths_that_documents_and_comments_name_are_there() {
    let mut texts = sources("docs", "md");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["README.md", "CHANGELOG.md"] {
        let text = std::fs::read_to_string(root.join(name)).expect("a readable file");
        texts.push(Source { path: name.into(), text });
    }
    for mut source in ["src", "tests", "benches"].into_iter().flat_map(|dir| sources(dir, "rs")) {
        let comments =
            source.text.lines().map(|line| line.split_once("//").map_or("", |(_, comment)| comment));
        source.text = comments.collect::<Vec<_>>().join("\n");
        texts.push(source);
    }
    let known: Vec<String> = ["src", "tests", "benches", "lua"].into_iter().flat_map(files).collect();
    let (mut wrong, mut seen) = (String::new(), 0);
    for Source { path, text } in &texts {
        for (i, line) in text.lines().enumerate() {
            let words = line.split(|c: char| c.is_whitespace() || "`()[],;#\"".contains(c));
            for word in words
                .map(|word| word.trim_start_matches("../").trim_end_matches(['.', ':', '/']))
                .filter(|word| is_path(word))
            {
                seen += 1;
                let is_there = root.join(word).exists()
                    || known.iter().any(|known| known.ends_with(&format!("/{word}")));
                if !is_there {
                    let _ = writeln!(wrong, "  {path}:{}: {word}", i + 1);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "documents and comments name missing paths:\n{wrong}");
    assert!(seen > 100, "only {seen} paths: this test looks for the wrong words");
}

/// Whether a word of a document is the name of a test, and not a key or a metric.
fn is_test(word: &str) -> bool {
    word.matches('_').count() >= 3
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !word.starts_with("infra_")
}

#[test]
fn tests_that_documents_name_are_there() {
    let mut functions = BTreeSet::new();
    for Source { text, .. } in ["src", "tests"].into_iter().flat_map(|dir| sources(dir, "rs")) {
        let names = text.split("fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap_or_default());
        functions.extend(names.map(str::to_owned));
    }
    let (mut wrong, mut seen) = (String::new(), 0);
    for Source { path, text } in sources("docs", "md") {
        // A reference to a test must name its file.
        for (i, line) in text.lines().enumerate().filter(|(_, line)| line.contains(".rs")) {
            for word in line.split('`').skip(1).step_by(2).filter(|word| is_test(word)) {
                seen += 1;
                if !functions.contains(word) {
                    let _ = writeln!(wrong, "  {path}:{}: {word}", i + 1);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "documents name tests that are not there:\n{wrong}");
    assert!(seen > 40, "only {seen} tests: this test looks for the wrong words");
}

#[test]
fn every_script_opens_with_keys_argv_returns_and_bound() {
    let mut wrong = String::new();
    for script in sources("lua", "lua") {
        // Preambles precede other scripts and are not scripts themselves.
        let preambles =
            ["base", "clock", "dead", "details", "forget", "packed", "packed_jobs", "quotas", "settings"];
        if preambles.iter().any(|name| script.path == format!("lua/{name}.lua")) {
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
