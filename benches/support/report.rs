//! Runs sections and prints their figures. A figure beyond its bound is printed as such and fails nothing:
//! machines differ. A lost job, an early one, or a section that could not be run is a failure.

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
    /// Only to see that everything works: small counts, short times, figures that say little.
    pub quick: bool,
    /// What `--seconds` says.
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
    // Its value is no word that sections are picked by.
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
    // One thread: the client must leave the machine to the servers that it measures.
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

/// One file per connection.
fn raise_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        eprintln!("the open-file limit could not be raised: {error}");
    }
}

impl Bench {
    /// The full size, or the small one of a quick run.
    pub fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// The number that follows a flag.
    pub fn number(&self, flag: &str) -> Option<f64> {
        let at = self.args.iter().position(|arg| arg == flag)?;
        self.args.get(at + 1)?.parse().ok()
    }

    /// The same for seconds.
    pub fn seconds(&self, full: f64, quick: f64) -> Duration {
        Duration::from_secs_f64(if self.quick { quick } else { full })
    }

    /// The same, unless `--seconds` says something else.
    pub fn seconds_or_said(&self, full: f64, quick: f64) -> Duration {
        self.said.map_or_else(|| self.seconds(full, quick), Duration::from_secs_f64)
    }

    /// Runs a section whose name holds one of the words asked for.
    pub async fn section(&self, name: &str, work: impl Future<Output = Outcome>) {
        self.long_section(name, LONGEST_SECTION, work).await;
    }

    /// The same for one that may last longer.
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

    /// A figure without a bound.
    pub fn figure(&self, name: &str, value: f64, unit: &str) {
        println!("  {name:<52} {:>10} {unit}", shown(value));
    }

    /// A figure that should not be larger.
    pub fn at_most(&self, name: &str, value: f64, bound: f64, unit: &str) {
        let verdict = if value <= bound { "ok" } else { "OVER" };
        println!("  {name:<52} {:>10} {unit:<7} at most {:>8}  {verdict}", shown(value), shown(bound));
    }

    /// A figure that should not be smaller.
    pub fn at_least(&self, name: &str, value: f64, bound: f64, unit: &str) {
        let verdict = if value >= bound { "ok" } else { "UNDER" };
        println!("  {name:<52} {:>10} {unit:<7} at least {:>7}  {verdict}", shown(value), shown(bound));
    }

    /// A count that must be nothing: of lost jobs, of early ones.
    pub fn none(&self, name: &str, count: usize, of: usize) {
        println!("  {name:<52} {count:>10} of {of:<4} {}", if count == 0 { "ok" } else { "FAILED" });
        if count > 0 {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Something went wrong that is no figure.
    pub fn fail(&self, what: fmt::Arguments<'_>) {
        println!("  FAILED: {what}");
        self.failed.store(true, Ordering::Relaxed);
    }

    /// A remark between the figures.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        println!("  {what}");
    }
}

/// Three digits or so that matter.
fn shown(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
