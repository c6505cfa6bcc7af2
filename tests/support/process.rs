//! The real binary as a child process, killed when dropped.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::wait::TIMEOUT;

/// A server process.
pub struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// The lines up to the last one that was waited for.
    pub seen: Vec<String>,
}

/// A process's exit status and output.
pub struct Ended {
    pub status: ExitStatus,
    pub said: String,
}

impl Process {
    /// Starts `dormouse` in `dir` with free ports.
    pub fn start(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Process {
        Process::start_under(&[], dir, args, env)
    }

    /// Like [`Process::start`], run by another program: `words` are the command and arguments before `dormouse`.
    pub fn start_under(words: &[String], dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Process {
        let mut words = words.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_dormouse")]);
        // There is at least one word.
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).args(args);
        Process::run(command, dir, env)
    }

    /// Starts a command that executes `dormouse`.
    pub fn run(mut command: Command, dir: &Path, env: &[(&str, &str)]) -> Process {
        command.current_dir(dir).env_clear();
        command.env("DORMOUSE_PORT", "0").env("DORMOUSE_ADMIN_PORT", "0").envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let (tell, lines) = mpsc::channel();
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("piped")), Box::new(child.stderr.take().expect("piped"))];
        for stream in streams {
            let tell = tell.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if tell.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Process { child, lines, seen: Vec::new() }
    }

    /// Waits for a line with `text`, and returns it.
    pub fn line_with(&mut self, text: &str) -> String {
        self.line_or_end(text)
            .unwrap_or_else(|| panic!("waited for a line with {text:?}; came:\n{}", self.seen.join("\n")))
    }

    /// Like `line_with`; `None` if the process has ended without such a line, or prints nothing for too long.
    pub fn line_or_end(&mut self, text: &str) -> Option<String> {
        if let Some(line) = self.seen.iter().find(|line| line.contains(text)) {
            return Some(line.clone());
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let line = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()?;
            self.seen.push(line.clone());
            if line.contains(text) {
                return Some(line);
            }
        }
    }

    /// Returns the address after `key=` in the line about serving.
    pub fn address(&mut self, key: &str) -> String {
        let line = self.line_with("serving");
        let rest = line.split(&format!("{key}=")).nth(1).unwrap_or_else(|| panic!("no {key}= in {line:?}"));
        rest.split_whitespace().next().unwrap_or_default().to_owned()
    }

    /// Returns the process id, for files in /proc.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|s| s.success()), "kill -{name} works");
    }

    /// Waits until the process has ended.
    pub fn ended(mut self) -> Ended {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            assert!(
                began.elapsed() < TIMEOUT,
                "the process should have ended; it said:\n{}",
                self.seen.join("\n")
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        // Both readers end with the process's streams.
        while let Ok(line) = self.lines.recv_timeout(TIMEOUT) {
            self.seen.push(line);
        }
        Ended { status, said: self.seen.join("\n") }
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
