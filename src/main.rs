//! The command line and the life of the process: configuration → logs → server, and the exit code. With `queue` it is
//! a client of a server instead ([`cli`]), with `repair` it looks at a directory that no server has open. Run as
//! `token-cli` it is lmstfy's tool for tokens.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use dormouse::cli;
use dormouse::config::{Config, DEFAULT_FILE, LogLevel, is_configured, is_service_link};
use dormouse::process::files;
use dormouse::process::log;
use dormouse::process::tasks::{Failure, Tasks};
use dormouse::process::version::Build;
use dormouse::server::{self, Options, RepairTo, ServerError, Signal};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Each connection has buffers that a waiting consumer hardly uses. This allocator places them so that unused pages
/// take no memory.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Text of `--help` after the options.
const AFTER: &str = "\
Ports:
  7777  the API for producers and workers: lmstfy's, and extensions (Host, Port)
  7778  the admin port: tokens, limits, quotas, push, metrics, backups (AdminHost, AdminPort); keep it private
  Both serve /ping (200: the process is running) and /ready (200: ready for requests; 503: not ready, with the reason).

Signals:
  SIGTERM, SIGINT, SIGHUP  drain for DrainSeconds (a second signal ends that), then stop within five seconds
  SIGUSR1                  reopen the log files and reload the certificates
  SIGKILL                  loses nothing that was answered with 2xx

Exit codes:
  0  the server was stopped, or the command succeeded
  1  a port or a store could not be opened, or a store failed permanently; or the command failed
  2  the command line or the configuration is invalid; nothing was changed

Environment:
  DORMOUSE_<KEY>               a key of the configuration: DORMOUSE_PORT, DORMOUSE_LOG_DIR
  DORMOUSE_POOL_<NAME>_<KEY>   a key of a pool: DORMOUSE_POOL_DEFAULT_ADDR
  DORMOUSE_.._PASSWORD_FILE    a file that contains the password
  DORMOUSE_ADMIN               URL of the admin port, for commands [default: http://127.0.0.1:7778]
  DORMOUSE_ADMIN_AUTH          user:password for the admin port, if it has accounts
  DORMOUSE_URL, DORMOUSE_NAMESPACE, DORMOUSE_TOKEN   server, namespace and token for `dormouse queue`
  NOTIFY_SOCKET                set by systemd: receives READY=1 and STOPPING=1

Examples:
  dormouse                                        try it: keeps jobs in ./dormouse-data, and prints commands to try
  dormouse --port 7070 --data /tmp/jobs           the same with another port and directory
  dormouse token new -n shop                      create a token for the namespace shop
  dormouse check -c /etc/dormouse/config.toml --stores
                                                  check the configuration and the stores
  dormouse -c /etc/dormouse/config.toml           start the server
  dormouse health                                 check that the server is ready
  dormouse backup /backups/monday                 copy its jobs and tokens while it runs
  dormouse queue -n shop list                     list the queues of a namespace

See docs/configuration.md for all keys, and docs/operations.md for running the server.";

/// A delayed task queue server. Jobs sleep until they are due, are delivered to exactly one worker at a time, and
/// come back if the worker dies. Speaks lmstfy's HTTP API.
///
/// Without a configuration it keeps its jobs in ./dormouse-data, listens on 127.0.0.1, and prints commands to try.
#[derive(Parser)]
#[command(
    name = "dormouse",
    disable_version_flag = true,
    args_conflicts_with_subcommands = true,
    after_help = "Use --help for ports, signals, exit codes, environment and examples.",
    after_long_help = AFTER
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file (TOML) [default: conf/config.toml, if it exists]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the version, with the commit and its date
    #[arg(short = 'v', long = "version")]
    version: bool,
    /// The public port, overriding the configuration
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// The admin port, with the dashboard, overriding the configuration
    #[arg(long, value_name = "PORT")]
    admin_port: Option<u16>,
    /// The directory of the default pool's jobs [default: ./dormouse-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Do not check tokens, for development only: every request may use every namespace (-sv)
    #[arg(long = "sv")]
    skip_verification: bool,
    /// Write the process id to this file, and remove it at exit
    #[arg(short = 'p', long = "pid-file", value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Log lines of at least this severity include their source location (-bt)
    #[arg(long = "bt", value_name = "LEVEL", value_enum, default_value_t = LogLevel::Warn)]
    backtrace: LogLevel,
}

/// Without a command the server starts.
#[derive(Subcommand)]
enum Command {
    Queue(Box<cli::QueueArgs>),
    Token(cli::token::TokenCommands),
    Backup(cli::BackupArgs),
    /// Check whether a server is ready: exit code 0 if it is, 1 if not
    ///
    /// Asks the admin port at DORMOUSE_ADMIN [default: http://127.0.0.1:7778].
    Health,
    /// Check the configuration, and print it without secrets
    ///
    /// Starts and creates nothing. Exit code 2 and one line if the configuration is invalid.
    Check {
        /// Configuration file (TOML) [default: conf/config.toml, if it exists]
        #[arg(short = 'c', long = "config", value_name = "FILE")]
        config: Option<PathBuf>,
        /// Also check each store; exit code 1 if one cannot be used
        #[arg(long)]
        stores: bool,
    },
    /// Write the man pages of dormouse and token-cli into a directory
    Man {
        /// Created if missing
        dir: PathBuf,
    },
    /// Print the completions of a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Report damage in the directory of a disk pool; no server may have it open
    Repair {
        /// Write everything undamaged to a fresh directory that replaces this one, which stays as DIR.damaged-N
        #[arg(long)]
        accept_loss: bool,
        /// Write it to this new directory instead, and replace nothing
        #[arg(long, value_name = "NEW", requires = "accept_loss")]
        into: Option<PathBuf>,
        /// The pool's `Path`
        dir: PathBuf,
    },
}

/// Rewrites lmstfy's flags, which have one dash and several letters: Go's parser accepts them, clap does not.
fn args() -> impl Iterator<Item = OsString> {
    std::env::args_os().map(|arg| match arg.to_str() {
        Some(flag) if matches!(flag.split('=').next(), Some("-sv" | "-bt")) => format!("-{flag}").into(),
        _ => arg,
    })
}

/// Returns the environment, or the name of a variable of ours that is not UTF-8. Other invalid variables are skipped.
fn variables() -> Result<Vec<(String, String)>, String> {
    let names = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let read = names.map(|(name, value)| match value.into_string() {
        Ok(value) => Ok(Some((name, value))),
        Err(_) if name.starts_with("DORMOUSE_") => Err(name),
        Err(_) => Ok(None),
    });
    read.filter_map(Result::transpose).collect()
}

/// Returns the configuration file: the one given, or the default if it exists.
fn configured(file: Option<PathBuf>) -> Option<PathBuf> {
    file.or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()))
}

/// Returns the flags in the form of variables.
fn flags(args: &Args) -> Result<Vec<(&'static str, String)>, String> {
    let data = args.data.as_deref().map(|dir| dir.to_str().ok_or("--data is not UTF-8")).transpose()?;
    if data.is_some_and(|dir| dir.starts_with('~')) {
        return Err("--data: ~ is not expanded after a =: write the whole path".to_owned());
    }
    let given = [
        ("DORMOUSE_PORT", args.port.map(|port| port.to_string())),
        ("DORMOUSE_ADMIN_PORT", args.admin_port.map(|port| port.to_string())),
        ("DORMOUSE_POOL_DEFAULT_PATH", data.map(str::to_owned)),
    ];
    Ok(given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// Returns the configuration, whether nothing configures this server, and the names of service links. `flags`
/// override variables.
fn load(file: Option<&Path>, flags: Vec<(&'static str, String)>) -> Result<(Config, bool, String), String> {
    let mut env = variables().map_err(|variable| format!("the variable {variable} is not UTF-8"))?;
    // Flags alone do not end the demo.
    let demo = file.is_none() && !is_configured(&env);
    env.retain(|(name, _)| flags.iter().all(|(flag, _)| flag != name));
    env.extend(flags.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let links: Vec<&str> =
        env.iter().filter(|(k, v)| is_service_link(k, v)).map(|(k, _)| k.as_str()).collect();
    let links = links.join(" ");
    let config = Config::load(file, env).map_err(|error| error.to_string())?;
    Ok((config, demo, links))
}

/// Whether the program was started as `token-cli`: by that program, or through a link with this name.
fn is_token_cli() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|path| Path::new(&path).file_name() == Some("token-cli".as_ref()))
}

fn main() -> ExitCode {
    if is_token_cli() {
        return cli::tokens::run(std::env::args_os());
    }
    let args: Args = match cli::parse("dormouse", args()) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let flags = match flags(&args) {
        Ok(flags) => flags,
        Err(error) => return fail(2, &error),
    };
    match args.command {
        Some(Command::Token(args)) => return cli::token::run(args),
        Some(Command::Queue(args)) => return cli::run(*args),
        Some(Command::Backup(args)) => {
            files::keep_private();
            return cli::backup(args);
        }
        Some(Command::Man { dir }) => return man(&dir),
        Some(Command::Completions { shell }) => {
            // Into memory: clap_complete panics if it cannot write.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "dormouse", &mut text);
            return cli::print(&String::from_utf8_lossy(&text));
        }
        Some(Command::Health) => return cli::health(),
        Some(Command::Repair { accept_loss, into, dir }) => {
            let place = into.as_deref().map_or(RepairTo::Beside, RepairTo::Into);
            return repair(&dir, accept_loss.then_some(place));
        }
        Some(Command::Check { config, stores }) => return check(config, stores),
        None => {}
    }
    if args.version {
        let Build { version, build_date, build_commit } = Build::current();
        return cli::print(&format!("version: {version}\nbuilt at: {build_date}\ncommit: {build_commit}\n"));
    }
    files::keep_private();
    let config_file = configured(args.config);
    let (config, demo, links) = match load(config_file.as_deref(), flags) {
        Ok(loaded) => loaded,
        Err(error) => return fail(2, &error),
    };
    let dir = config.log_dir.as_deref();
    let logs = match log::setup(dir, config.log_format, config.log_level, args.backtrace) {
        Ok(logs) => logs,
        Err(error) => return fail(2, &format!("{}: {error}", config.written("LogDir"))),
    };
    log::log_panics();
    if !links.is_empty() {
        tracing::info!(
            variables = links,
            "ignored variables of Kubernetes service links, which are not configuration"
        );
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let options = Options {
        skip_verification: args.skip_verification,
        demo,
        pid_file: args.pid_file,
        config_file,
        source_patience: None,
    };
    let mut runtime = Builder::new_multi_thread();
    if let Some(threads) = threads(&config) {
        runtime.worker_threads(threads);
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &format!("the runtime could not start: {error}")),
    };
    let result = runtime.block_on(async {
        let signals = signals(logs).map_err(|e| ServerError::Failed(format!("signals: {e}")))?;
        server::run(config, options, signals).await
    });
    // Tasks that still run have had their grace period.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ServerError::Configuration(_)) => fail(2, &error),
        Err(error) => fail(1, &error),
    }
}

/// Returns the number of threads that serve requests. The writer of a disk pool is a thread of its own, and they
/// leave a core to it: threads that compete for a core cost a tenth of a request. `None` leaves the runtime's
/// default: one per core, or `TOKIO_WORKER_THREADS`.
fn threads(config: &Config) -> Option<usize> {
    if std::env::var_os("TOKIO_WORKER_THREADS").is_some() {
        return None;
    }
    let on_disk = config.pool.values().any(|pool| pool.path.is_some());
    let cores = std::thread::available_parallelism().ok()?.get();
    on_disk.then(|| (cores - 1).max(1))
}

/// Writes the man pages of each name of the program and of each command.
fn man(dir: &Path) -> ExitCode {
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(dir)?;
        clap_mangen::generate_to(Args::command(), dir)?;
        clap_mangen::generate_to(cli::tokens::command(), dir)
    };
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &format!("{}: {error}", dir.display())),
    }
}

/// Returns exit code 0 if a start would succeed, judging by the configuration; 2 if it is invalid; 1 if a store
/// cannot be used.
fn check(file: Option<PathBuf>, stores: bool) -> ExitCode {
    let config = match load(configured(file).as_deref(), Vec::new()) {
        Ok((config, ..)) => config,
        Err(error) => return fail(2, &error),
    };
    if let Err(error) = server::check(&config) {
        return fail(2, &error);
    }
    let mut text = config.in_force().to_string();
    for warning in config.warnings() {
        cli::complain(&format!("dormouse: warning: {warning}"));
    }
    if !stores {
        return cli::print(&text);
    }
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &format!("the runtime could not start: {error}")),
    };
    let asked = runtime.block_on(server::check_stores(&config));
    runtime.shutdown_background();
    let mut failed = false;
    for (store, answer) in asked {
        match answer {
            Ok(says) => text.push_str(&format!("# {store}: {says}\n")),
            Err(error) => {
                cli::complain(&format!("dormouse: {store}: {error}"));
                failed = true;
            }
        }
    }
    let printed = cli::print(&text);
    if failed { ExitCode::FAILURE } else { printed }
}

/// Returns exit code 0 if the directory opens, or the one written; 1 if it does not.
fn repair(dir: &Path, place: Option<RepairTo<'_>>) -> ExitCode {
    files::keep_private();
    match server::repair(dir, place) {
        Ok(report) => {
            let printed = cli::print(&report.to_string());
            if report.opens() { printed } else { ExitCode::FAILURE }
        }
        Err(error) => fail(1, &error),
    }
}

/// Forwards signals to the server while the runtime exists. SIGUSR1 also reopens the logs.
fn signals(logs: log::Logs) -> std::io::Result<mpsc::Receiver<Signal>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hup = signal(SignalKind::hangup())?;
    let mut usr1 = signal(SignalKind::user_defined1())?;
    let (tell, heard) = mpsc::channel(8);
    Tasks::new(Failure::default()).spawn(async move {
        loop {
            let signal = tokio::select! {
                _ = term.recv() => Signal::Stop("SIGTERM"),
                _ = int.recv() => Signal::Stop("SIGINT"),
                _ = hup.recv() => Signal::Stop("SIGHUP"),
                _ = usr1.recv() => {
                    logs.reopen();
                    Signal::Reload
                }
            };
            if tell.send(signal).await.is_err() {
                return;
            }
        }
    });
    Ok(heard)
}

fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    cli::fail("dormouse", code, error)
}
