//! Destination and format of log lines. There are two logs, as in lmstfy: the access log (`access.log`) and the log of
//! everything else (`error.log`). Tokens, passwords, query strings and bodies must not be logged.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, filter::filter_fn, fmt};

use crate::config::{LogFormat, LogLevel};

/// Target of access log lines.
pub const ACCESS: &str = "access";

/// Target of audit lines: who changed what over the admin port. Logged at every level.
pub const AUDIT: &str = "audit";

/// The log files, to be reopened after rotation.
#[derive(Debug, Clone)]
pub struct Logs {
    files: Vec<Sink>,
}

impl Logs {
    /// Reopens the files by name. If a file cannot be opened, its lines still go to the old one.
    pub fn reopen(&self) {
        for sink in &self.files {
            if let Err(error) = sink.reopen() {
                tracing::error!(%error, "a log file could not be reopened");
            }
        }
    }
}

/// Sets up logging: to `access.log` and `error.log` in `dir`, or else to standard error. Lines at least as severe as
/// `backtrace` include their source location. Fails if a file cannot be opened.
pub fn setup(
    dir: Option<&Path>,
    format: LogFormat,
    level: LogLevel,
    backtrace: LogLevel,
) -> io::Result<Logs> {
    let (errors, access) = match dir {
        Some(dir) => (Sink::file(dir.join("error.log"))?, Sink::file(dir.join("access.log"))?),
        None => (Sink::Stderr, Sink::Stderr),
    };
    let (level, backtrace) = (as_level(level), as_level(backtrace));
    let is_access = |meta: &Metadata<'_>| meta.target() == ACCESS;
    // Libraries log warnings and errors, and everything at level `trace`.
    let wanted = move |meta: &Metadata<'_>| {
        if meta.target() == AUDIT {
            return true;
        }
        let ours = meta.target().starts_with("dormouse");
        *meta.level() <= level && (ours || level == Level::TRACE || *meta.level() <= Level::WARN)
    };
    let plain = filter_fn(move |meta| !is_access(meta) && wanted(meta) && *meta.level() > backtrace);
    let located = filter_fn(move |meta| !is_access(meta) && wanted(meta) && *meta.level() <= backtrace);
    let registry = Registry::default()
        .with(layer(format, errors.clone(), false).with_filter(plain))
        .with(layer(format, errors.clone(), true).with_filter(located))
        .with(layer(format, access.clone(), false).with_filter(filter_fn(is_access)));
    // Fails only if the process already has a subscriber, as in tests that start several servers.
    let _ = tracing::subscriber::set_global_default(registry);
    Ok(Logs { files: vec![errors, access] })
}

/// Also writes panics to the log.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.to_string();
        tracing::error!(panic = text.replace('\n', " "), "a task panicked; please report this bug");
    }));
}

fn layer<S>(format: LogFormat, sink: Sink, located: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let layer = fmt::layer().with_writer(sink).with_file(located).with_line_number(located).with_ansi(false);
    match format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    }
}

fn as_level(level: LogLevel) -> Level {
    match level {
        LogLevel::Trace => Level::TRACE,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warn => Level::WARN,
        LogLevel::Error => Level::ERROR,
    }
}

#[derive(Debug, Clone)]
enum Sink {
    Stderr,
    File { path: PathBuf, file: Arc<Mutex<File>> },
}

impl Sink {
    fn file(path: PathBuf) -> io::Result<Sink> {
        let file = Arc::new(Mutex::new(open(&path)?));
        Ok(Sink::File { path, file })
    }

    fn reopen(&self) -> io::Result<()> {
        if let Sink::File { path, file } = self {
            let fresh = open(path)?;
            *file.lock() = fresh;
        }
        Ok(())
    }
}

/// Opens a log file, and creates it and its directory if they are missing: an operator may have deleted both.
fn open(path: &Path) -> io::Result<File> {
    let dir = path.parent().unwrap_or(Path::new(""));
    let created = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    created.map_err(|e| io::Error::new(e.kind(), format!("the directory {}: {e}", dir.display())))?;
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| io::Error::new(e.kind(), format!("the log file {}: {e}", path.display())))
}

impl Write for Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stderr => io::stderr().write(line),
            Sink::File { file, .. } => file.lock().write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Sink;

    fn make_writer(&'a self) -> Sink {
        self.clone()
    }
}
