//! Commands in documents for operators, in blocks and between backticks: a shell must parse them, each program must be
//! known here, `dormouse` and `token-cli` must accept the arguments, URLs must match routes, and the metrics and log
//! lines that they search for must exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use reqwest::{Client, Method};
use tempfile::TempDir;

use super::documents::{blocks, dormouse_knows, shell_reads};
use super::monitoring::everything;
use crate::support::process::Process;

/// Documents for operators.
const DOCUMENTS: [&str; 3] = ["docs/operations.md", "docs/runbook.md", "docs/kubernetes.md"];

/// First words of blocks that are not for a shell: a log line, and a Redis command, which tests/process/access_list.rs
/// runs.
const NO_COMMANDS: [&str; 2] = ["open-file limit ", "ACL SETUSER "];

/// Standard tools, whose arguments are not checked.
const TOOLS: [&str; 13] =
    ["awk", "cat", "cut", "df", "du", "export", "head", "iostat", "openssl", "sort", "ss", "tail", "uniq"];

/// Options with an argument, by program.
const WITH_WORD: [(&str, &[&str]); 5] = [
    ("curl", &["-u", "-X", "-d", "-H", "-m", "-o"]),
    (
        "docker",
        &["-t", "--name", "--cap-drop", "--ulimit", "--stop-timeout", "-v", "-e", "-p", "--build-arg"],
    ),
    ("journalctl", &["-u", "-n", "-g"]),
    ("systemctl", &["-p"]),
    ("redis-cli", &["-h"]),
];

/// Options without an argument.
const ALONE: [(&str, &[&str]); 2] = [("curl", &["-sS", "-fsS"]), ("docker", &["-d", "--read-only"])];

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the commands of a script as lists of words. Commands inside `$(..)` come first. Redirections are left out.
fn split(script: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let (mut quote, mut chars) = (None, script.chars().peekable());
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '$') if chars.peek() == Some(&'(') => {
                let inside: String = chars.by_ref().skip(1).take_while(|c| *c != ')').collect();
                all.extend(split(&inside));
                word.get_or_insert_default().push('x');
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '&' | ';' | '\n') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, '>') => {
                words.extend(word.take());
                while chars.next_if(|c| *c == ' ').is_some() {}
                while chars.next_if(|c| !" \n".contains(*c)).is_some() {}
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word.take());
    all.push(words);
    all.retain(|command| !command.is_empty());
    all
}

#[test]
fn scripts_are_split_as_a_shell_does() {
    let split = split("A=\"$(openssl rand)\" echo 'a | b' \"c d\" | grep x && cat > f\ntail");
    let joined: Vec<String> = split.iter().map(|words| words.join("_")).collect();
    assert_eq!(joined, ["openssl_rand", "A=x_echo_a | b_c d", "grep_x", "cat", "tail"]);
}

/// Returns the command lines of a document: lines of its blocks, and text between backticks that begins with a
/// program.
fn lines(document: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for block in blocks(document) {
        if !NO_COMMANDS.iter().any(|begin| block.starts_with(begin)) {
            lines.extend(block.lines().map(|line| line.strip_prefix("$ ").unwrap_or(line).to_owned()));
        }
    }
    let text = read(document);
    let pieces = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let programs = ["dormouse ", "token-cli ", "curl ", "kubectl ", "docker ", "systemctl ", "promtool "];
    let commands = pieces.filter(|piece| programs.iter().any(|program| piece.starts_with(program)));
    // Optional parts are checked too. A partial command ends in dots.
    lines.extend(commands.map(|piece| piece.replace(['[', ']'], "").replace(" ..", "")));
    lines
}

/// Commands and names found in a document, and the errors in them.
#[derive(Default)]
struct Seen {
    wrong: Vec<String>,
    /// Method and URL.
    urls: BTreeSet<(String, String)>,
    /// Patterns searched for in `/metrics` and in logs.
    metrics: BTreeSet<String>,
    logs: BTreeSet<String>,
    commands: usize,
}

impl Seen {
    fn expect(&mut self, is: bool, words: &[String], what: &str) {
        if !is {
            self.wrong.push(format!("`{}`: {what}", words.join(" ")));
        }
    }

    /// Returns the positional arguments. Unknown options are errors.
    fn words<'a>(&mut self, words: &'a [String]) -> Vec<&'a str> {
        let program = words[0].as_str();
        let of = |table: &[(&str, &'static [&'static str])]| {
            table.iter().find(|(name, _)| *name == program).map_or(&[][..], |(_, options)| options)
        };
        let (with_word, alone) = (of(&WITH_WORD), of(&ALONE));
        let (mut plain, mut rest) = (Vec::new(), words[1..].iter());
        while let Some(word) = rest.next() {
            if with_word.contains(&word.as_str()) {
                let given = rest.next();
                self.expect(given.is_some(), words, &format!("{word} wants a word"));
            } else if word.starts_with('-') && word != "-" && (plain.is_empty() || program == "docker") {
                self.expect(
                    alone.contains(&word.as_str()),
                    words,
                    &format!("the option {word} is not known here"),
                );
            } else {
                plain.push(word.as_str());
            }
        }
        plain
    }

    fn command(&mut self, document: &str, words: &[String], before: Option<&[String]>) {
        self.commands += 1;
        let after =
            |option: &str| words.iter().position(|word| word == option).and_then(|at| words.get(at + 1));
        match words[0].as_str() {
            // An environment variable of the command after it.
            word if word
                .split_once('=')
                .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')) =>
            {
                if words.len() > 1 {
                    self.command(document, &words[1..], before);
                }
            }
            "dormouse" => self.dormouse(document, words),
            "token-cli" => {
                let mut cli = Command::new(env!("CARGO_BIN_EXE_token-cli"));
                let help = cli.args(&words[1..]).arg("--help").env_clear().output().expect("the binary runs");
                self.expect(help.status.success(), words, &String::from_utf8_lossy(&help.stderr));
            }
            "curl" => {
                let plain = self.words(words);
                let data = after("-d").is_some();
                let method = after("-X").map_or(if data { "POST" } else { "GET" }, String::as_str);
                self.expect(plain.len() == 1, words, "one URL");
                self.urls.extend(plain.first().map(|url| (method.to_owned(), (*url).to_owned())));
            }
            "grep" => {
                let pattern =
                    words[1..].iter().find(|word| !word.starts_with('-')).cloned().unwrap_or_default();
                let at = before.and_then(|before| before.last()).map_or("", String::as_str);
                if at.ends_with("/metrics") || before.is_some_and(|before| before[0] == "grep") {
                    self.metrics.insert(pattern);
                } else {
                    self.expect(
                        words.last().is_some_and(|file| file == "error.log"),
                        words,
                        "the file it reads",
                    );
                    self.logs.insert(pattern);
                }
            }
            "journalctl" => {
                self.words(words);
                self.expect(
                    after("-u").is_some_and(|unit| unit == "dormouse"),
                    words,
                    "the unit is dormouse",
                );
                self.logs.extend(after("-g").cloned());
            }
            "systemctl" => {
                let plain = self.words(words);
                let verbs = ["status", "show", "start", "stop", "restart", "reload", "enable", "edit"];
                self.expect(
                    plain.len() == 2 && verbs.contains(&plain[0]),
                    words,
                    "no verb of systemctl, and a unit",
                );
                self.expect(plain.last() == Some(&"dormouse"), words, "the unit is dormouse");
            }
            "redis-cli" => {
                let plain = self.words(words);
                self.expect(
                    [&["ping"][..], &["info", "memory"]].contains(&&plain[..]),
                    words,
                    "is not known here",
                );
            }
            "kubectl" => self.kubectl(document, words),
            "docker" if words.get(1).is_some_and(|verb| verb == "exec") => {
                // `dormouse` is the container's name, and the rest is the command in it.
                let known = words.len() == 2 || words.get(2).is_some_and(|name| name == "dormouse");
                self.expect(known, words, "no container of this page");
                if let Some(inner) = words.get(3..).filter(|inner| !inner.is_empty()) {
                    self.command(document, inner, None);
                }
            }
            "docker" => {
                let plain = self.words(words);
                let known = matches!(plain[..], ["build", "."] | ["run", "dormouse:0.1.0"] | ["logs"]);
                self.expect(known, words, "is not known here");
            }
            "promtool" => {
                let known = words
                    .get(1..3)
                    .is_some_and(|verb| verb == ["test", "rules"] || verb == ["check", "rules"]);
                self.expect(known, words, "no verb of promtool that is known here");
                for file in words.iter().skip(3) {
                    let there = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring").join(file);
                    self.expect(there.is_file(), words, "no file of deploy/monitoring");
                }
            }
            "sh" => {
                self.expect(words.get(1).is_some_and(|word| word == "-c"), words, "a script");
                self.script(document, words.get(2).map_or("", String::as_str));
            }
            "cd" => {
                let there =
                    words.get(1).is_some_and(|dir| Path::new(env!("CARGO_MANIFEST_DIR")).join(dir).is_dir());
                self.expect(there, words, "a directory of the repository");
            }
            tool => self.expect(TOOLS.contains(&tool), words, "the program is not known here"),
        }
    }

    fn script(&mut self, document: &str, script: &str) {
        shell_reads(document, script);
        let all = split(script);
        for (n, words) in all.iter().enumerate() {
            self.command(document, words, n.checked_sub(1).map(|before| all[before].as_slice()));
        }
    }

    /// Runs the command with `--help` appended, and as it is, without access to a server.
    fn dormouse(&mut self, document: &str, words: &[String]) {
        dormouse_knows(document, &words.join(" "));
        if words.len() < 3 {
            // Names a command whose arguments are elsewhere.
            return;
        }
        let dir = TempDir::new().expect("a temporary directory");
        std::fs::write(dir.path().join("FILE"), "[Pool.default]\nPath = 'jobs'\n").expect("a file");
        let mut dormouse = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        dormouse.args(&words[1..]).current_dir(dir.path()).env_clear().stdin(Stdio::null());
        for (name, value) in [
            ("URL", "http://127.0.0.1:1"),
            ("ADMIN", "http://127.0.0.1:1"),
            ("NAMESPACE", "n"),
            ("TOKEN", "t"),
        ] {
            dormouse.env(format!("DORMOUSE_{name}"), value);
        }
        let ended = dormouse.output().expect("the binary runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        // 2 is the exit code for wrong arguments.
        self.expect(matches!(ended.status.code(), Some(0 | 1)), words, &said);
    }

    fn kubectl(&mut self, document: &str, words: &[String]) {
        let manifest =
            |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes").join(name);
        let is_ours = |of: &str| {
            let (kind, name) = of.split_once('/').unwrap_or_default();
            let file = manifest(&format!("{kind}.yaml"));
            file.is_file()
                && std::fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("name: {name}\n")))
        };
        let text: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        match text[..] {
            ["create", "secret", "generic", "dormouse", ref keys @ ..] => {
                for key in keys {
                    let name = key.strip_prefix("--from-literal=").and_then(|key| key.split('=').next());
                    let known = name.is_some_and(|name| {
                        ["deployment", "statefulset"].iter().any(|of| {
                            let text =
                                std::fs::read_to_string(manifest(&format!("{of}.yaml"))).unwrap_or_default();
                            text.contains(&format!("/{name}\n")) || text.contains(&format!("/{name}\""))
                        }) || read("deploy/kubernetes/configmap.yaml").contains(&format!("/{name}\""))
                    });
                    self.expect(known, words, &format!("{key} is unused"));
                }
            }
            ["logs"] => {}
            ["apply", ref files @ ..] => {
                for file in files.iter().filter(|word| **word != "-f") {
                    self.expect(
                        manifest(file).is_file(),
                        words,
                        &format!("{file} is not in deploy/kubernetes"),
                    );
                }
            }
            ["rollout", "status" | "restart", of] => {
                self.expect(is_ours(of), words, "no such object in the manifests")
            }
            ["exec", of, "--", ..] => {
                let of = if of == "dormouse-0" { "statefulset/dormouse" } else { of };
                self.expect(is_ours(of), words, "no such object in the manifests");
                self.command(document, &words[4..], None);
            }
            _ => self.expect(false, words, "no verb of kubectl that is known here"),
        }
    }
}

/// Returns the alternatives of a regular expression, except those inside parentheses.
fn alternatives(pattern: &str) -> Vec<String> {
    let (mut all, mut depth) = (vec![String::new()], 0);
    for c in pattern.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if c == '|' && depth == 0 {
            all.push(String::new());
        } else if let Some(last) = all.last_mut() {
            last.push(c);
        }
    }
    all
}

/// Whether `grep -E` finds the pattern in this file.
fn finds(pattern: &str, file: &Path) -> bool {
    let grep = Command::new("grep").args(["-Erq", "-e", pattern]).arg(file).status();
    grep.expect("grep is there").success()
}

/// Guards against documented commands that no longer exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_documents_for_operators_type_is_there() {
    let mut seen = Seen::default();
    for document in DOCUMENTS {
        let (before, lines) = (seen.commands, lines(document));
        for line in &lines {
            seen.script(document, line);
        }
        let least = if document == "docs/kubernetes.md" { 8 } else { 15 };
        let found = seen.commands - before;
        assert!(found > least, "{document}: only {found} commands: this test looks for the wrong words");
    }

    let dir = TempDir::new().expect("a temporary directory");
    let mut process = Process::start(dir.path(), &[], &[("DORMOUSE_POOL_DEFAULT_PATH", "jobs")]);
    let (api, admin) = (process.address("api"), process.address("admin"));
    assert!(seen.urls.len() > 4, "only {:?}: this test looks for the wrong words", seen.urls);
    for (method, url) in &seen.urls {
        let path = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let (at, path) = path.split_once('/').unwrap_or_else(|| panic!("{url} has no path"));
        let address = match at.rsplit(':').next() {
            Some("7777") => &api,
            Some("7778") => &admin,
            _ => panic!("{url} is at none of our ports"),
        };
        let asked = Client::new()
            .request(method.parse::<Method>().expect("a method"), format!("http://{address}/{path}"));
        let status = asked.send().await.expect("an answer").status();
        if status == 404 || status == 405 {
            seen.wrong.push(format!("{method} {url}: {status}"));
        }
    }

    let metrics = dir.path().join("metrics");
    std::fs::write(&metrics, everything().await).expect("a file");
    assert!(seen.metrics.len() > 8, "only {:?}: this test looks for the wrong words", seen.metrics);
    for pattern in seen.metrics.iter().flat_map(|pattern| alternatives(pattern)) {
        // Which codes appear depends on the failure.
        let pattern = pattern.split("code=\"").next().map_or_else(String::new, |begin| {
            match begin.len() == pattern.len() {
                true => begin.to_owned(),
                false => format!("{begin}code=\""),
            }
        });
        if !finds(&pattern, &metrics) {
            seen.wrong.push(format!("/metrics has nothing like {pattern}"));
        }
    }
    assert!(seen.logs.len() > 3, "only {:?}: this test looks for the wrong words", seen.logs);
    for word in seen.logs.iter().flat_map(|pattern| alternatives(pattern)) {
        // Must occur in a string of the source, except the message of a panic.
        if word != "panicked"
            && !finds(&format!("\".*{word}"), &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
        {
            seen.wrong.push(format!("nothing in src says {word}"));
        }
    }
    assert!(seen.wrong.is_empty(), "{}", seen.wrong.join("\n"));
}
