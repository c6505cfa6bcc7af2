//! Runs sections and prints their results. A result beyond its bound is marked and is no failure, since machines
//! differ. Lost or early jobs, and sections that cannot run, are failures.

use std::fmt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Outcome;

/// Default maximum duration of a section, so that the benchmark ends if it hangs.
const LONGEST_SECTION: Duration = Duration::from_secs(240);

/// A run of one benchmark.
pub struct Bench {
    /// Whether only to check that everything works: small counts and short times, with meaningless results.
    pub quick: bool,
    /// The value of `--seconds`.
    said: Option<f64>,
    filters: Vec<String>,
    args: Vec<String>,
    failed: AtomicBool,
}

/// Runs `body` with the arguments of the command line: `--quick`, and words that select sections.
pub fn run(body: impl AsyncFnOnce(&Bench)) -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS; // a test runner asks for tests, and there are none
    }
    let said = args.iter().position(|arg| arg == "--seconds");
    // The value is not a filter.
    let said = said.and_then(|at| args.drain(at..args.len().min(at + 2)).nth(1));
    let bench = Bench {
        said: said.and_then(|seconds| seconds.parse().ok()),
        quick: args.iter().any(|arg| arg == "--quick"),
        // cargo adds flags of its own.
        filters: args
            .iter()
            .filter(|arg| !arg.starts_with('-') && arg.parse::<f64>().is_err())
            .cloned()
            .collect(),
        args,
        failed: AtomicBool::new(false),
    };
    raise_open_files();
    // One thread, to leave the machine to the measured servers.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(body(&bench));
    if bench.failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Raises the open-file limit, since each connection needs a file.
fn raise_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        eprintln!("the open-file limit could not be raised: {error}");
    }
}

impl Bench {
    /// Returns the full size, or the small size for a quick run.
    pub fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// Returns the number after a flag.
    pub fn number(&self, flag: &str) -> Option<f64> {
        let at = self.args.iter().position(|arg| arg == flag)?;
        self.args.get(at + 1)?.parse().ok()
    }

    /// Like `size`, for seconds.
    pub fn seconds(&self, full: f64, quick: f64) -> Duration {
        Duration::from_secs_f64(if self.quick { quick } else { full })
    }

    /// Like `seconds`, unless `--seconds` is given.
    pub fn seconds_or_said(&self, full: f64, quick: f64) -> Duration {
        self.said.map_or_else(|| self.seconds(full, quick), Duration::from_secs_f64)
    }

    /// Runs a section if the filters select its name.
    pub async fn section(&self, name: &str, work: impl Future<Output = Outcome>) {
        self.long_section(name, LONGEST_SECTION, work).await;
    }

    /// Like `section`, with another maximum duration.
    pub async fn long_section(&self, name: &str, longest: Duration, work: impl Future<Output = Outcome>) {
        if !self.filters.is_empty() && !self.filters.iter().any(|word| name.contains(word.as_str())) {
            return;
        }
        println!("\n{name}");
        match tokio::time::timeout(longest, work).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(format_args!("could not be measured: {error}")),
            Err(_) => self.fail(format_args!("not done after {longest:?}")),
        }
    }

    /// Prints a value.
    pub fn figure(&self, name: &str, value: f64, unit: &str) {
        println!("  {name:<52} {:>10} {unit}", shown(value));
    }

    /// Prints a value that should not exceed `bound`.
    pub fn at_most(&self, name: &str, value: f64, bound: f64, unit: &str) {
        let verdict = if value <= bound { "ok" } else { "OVER" };
        println!("  {name:<52} {:>10} {unit:<7} at most {:>8}  {verdict}", shown(value), shown(bound));
    }

    /// Prints a value that should not be below `bound`.
    pub fn at_least(&self, name: &str, value: f64, bound: f64, unit: &str) {
        let verdict = if value >= bound { "ok" } else { "UNDER" };
        println!("  {name:<52} {:>10} {unit:<7} at least {:>7}  {verdict}", shown(value), shown(bound));
    }

    /// Prints a count that must be zero, such as lost or early jobs.
    pub fn none(&self, name: &str, count: usize, of: usize) {
        println!("  {name:<52} {count:>10} of {of:<4} {}", if count == 0 { "ok" } else { "FAILED" });
        if count > 0 {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Reports a failure that is not a measurement.
    pub fn fail(&self, what: fmt::Arguments<'_>) {
        println!("  FAILED: {what}");
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Prints a remark.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        println!("  {what}");
    }
}

/// Formats a value with about three digits.
fn shown(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
