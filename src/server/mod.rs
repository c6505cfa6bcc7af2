//! The composition root: builds stores, wrappers, dispatchers and state from the configuration, starts every
//! task, opens the ports, and takes all of it down again. The only module that names a concrete engine, beside the stores
//! of `admin` and `push` that lie in one.

mod beside;
mod check;
mod demo;
mod error;
mod ports;
mod prepare;
mod state;
mod stores;

pub use crate::engine::disk::repair;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

pub use self::check::{check, check_stores};
pub use self::error::ServerError;
use self::ports::Listeners;
use self::prepare::{Prepared, Tls, prepare};
use self::state::{PushParts, StateParts, app_state};
use self::stores::{Patience, Stores, admin_store, open_stores};
use crate::config::Config;
use crate::engine::Engine;
use crate::engine::migration::Migration;
use crate::http::{AppState, Readiness};
use crate::metrics::Metrics;
use crate::name::PoolName;
use crate::outage::Outage;
use crate::process::notify;
use crate::process::open_files::OpenFiles;
use crate::process::pid_file::PidFile;
use crate::process::tasks::{Failure, Tasks};
use crate::process::version::Build;
use crate::push::encrypted::Encrypted;
use crate::push::limits::PushShares;

/// How many connections the admin port takes.
const MAX_ADMIN_CONNECTIONS: usize = 1024;
/// How many connections push uses, those that it keeps included.
const MAX_PUSH_CONNECTIONS: usize = 4096;
/// How long a stop takes at most.
const STOP: Duration = Duration::from_millis(4800);
/// How long the requests that are under way may take to end, once the server is told to stop. Together with
/// two and a half times [`TIDY`] it is below [`STOP`]: what push was doing gets a half more.
const GRACE: Duration = Duration::from_millis(3500);
/// How long the other tasks may take to end after that. The stores get what is left of [`STOP`], and this at least.
const TIDY: Duration = Duration::from_millis(500);

/// What the command line says and the configuration does not.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Every token is accepted.
    pub skip_verification: bool,
    /// The server was started without a configuration, file or environment: it makes a token for the `demo` namespace,
    /// and prints what to try.
    pub demo: bool,
    /// Written once the server serves, removed at its end.
    pub pid_file: Option<PathBuf>,
    /// Where the configuration was read, for the log.
    pub config_file: Option<PathBuf>,
}

/// What somebody tells the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// To stop; by which signal.
    Stop(&'static str),
    /// To read files anew that may have been replaced.
    Reload,
}

/// Runs a server until it is told to stop, or a part of it fails for good.
pub async fn run(
    config: Config,
    options: Options,
    mut signals: mpsc::Receiver<Signal>,
) -> Result<(), ServerError> {
    // A store may take its time to open, and an operator need not wait for it.
    let mut starting = Box::pin(Server::start(config, options));
    let mut reload = false;
    let server = loop {
        tokio::select! {
            biased;
            Some(signal) = signals.recv() => match signal {
                Signal::Stop(by) => {
                    tracing::info!(by, "stopped before the stores were open");
                    notify::stopping(STOP);
                    return Ok(());
                }
                // Both ports answer by now, with what was read before.
                Signal::Reload => reload = true,
            },
            server = &mut starting => break server?,
        }
    };
    drop(starting);
    if reload {
        server.tls.reload();
    }
    server.run(signals).await
}

#[derive(Debug)]
pub struct Server {
    /// Where the public port is.
    pub api: SocketAddr,
    /// Where the admin port is.
    pub admin: SocketAddr,
    state: Arc<AppState>,
    /// The stores, each once.
    engines: Vec<Arc<dyn Engine>>,
    /// The public port and its connections. They end first.
    api_tasks: Tasks,
    /// The admin port and its connections. They end later: until then `/ready` says that the server stops.
    admin_tasks: Tasks,
    tasks: Tasks,
    /// How long it goes on after it was told to stop.
    drain_time: Duration,
    tls: Tls,
    /// Reported by a part that cannot go on.
    failure: Failure,
    pid_file: Option<PidFile>,
}

impl Server {
    /// Builds all of it, binds both ports, and begins to serve.
    pub async fn start(config: Config, options: Options) -> Result<Server, ServerError> {
        let Prepared { keys, push: (guard, client), tls, trusted, zones } = prepare(&config)?;
        let files = divide_files(&config)?;
        let push = PushParts {
            guard,
            client: client(files.push_connections.max(2)),
            // As many again may be kept for a while after their requests.
            connections: PushShares::new((files.push_connections / 2).max(1)),
        };
        // Ports first: a second server on the same machine then fails before it touches a store.
        let (listeners, addresses) = Listeners::open(&config).await?;
        let (metrics, build) = (Arc::new(Metrics::default()), Build::current());
        metrics.began(build.version, build.build_commit, config.max_parked_polls);
        let failure = Failure::default();
        let [api_tasks, admin_tasks, tasks] = std::array::from_fn(|_| Tasks::new(failure.clone()));
        // Both answer while the stores open.
        let open_ports =
            listeners.serve(&config, &files, (&tls, &trusted), &metrics, [&api_tasks, &admin_tasks]);

        let mut stores = Stores::default();
        let outage = Outage::new("tokens and limits");
        let patience = Patience::of(Duration::from_secs(config.wait_for_store));
        let opened = async {
            open_stores(&config, files.tables, &metrics, &tls, patience, &mut stores).await?;
            let store = admin_store(&config, &tls, patience, &mut stores, &outage, &tasks).await?;
            Ok((store, served(&config, &stores).await?))
        };
        let ((tokens, push_store, settings), served) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                [&api_tasks, &admin_tasks, &tasks].into_iter().for_each(Tasks::stop);
                close(stores.engines.into_values(), STOP).await;
                return Err(error);
            }
        };
        beside::ask_for_tokens(tokens.clone(), outage.clone(), &tasks);
        let state = Arc::new(app_state(StateParts {
            config: &config,
            config_file: options.config_file.as_ref().map(|file| file.display().to_string()),
            skip_verification: options.skip_verification,
            stores: &stores,
            served,
            admin_stores: (tokens, Arc::new(Encrypted::new(push_store, keys.unwrap_or_default())), settings),
            outage,
            push,
            zones,
            metrics,
            readiness: Readiness::new(failure.clone()),
            trusted,
            tasks: tasks.clone(),
            port: addresses.api.port(),
        }));
        beside::begin(&state, stores, &tasks, &failure).await;
        open_ports(&config, addresses, &state);

        let mut server = Server {
            api: addresses.api,
            admin: addresses.admin,
            // A pool that moves closes its two stores.
            engines: state.pools.values().map(|pool| pool.engine.clone()).collect(),
            state,
            api_tasks,
            admin_tasks,
            tasks,
            drain_time: Duration::from_secs(config.drain_seconds),
            tls,
            failure,
            pid_file: None,
        };
        match server.announce(&config, &options).await {
            Ok(()) => Ok(server),
            Err(error) => {
                server.stop().await;
                Err(error)
            }
        }
    }

    /// Serves until it is told to stop or a part of the server fails for good, and stops then. The error says what
    /// failed.
    pub async fn run(self, mut signals: mpsc::Receiver<Signal>) -> Result<(), ServerError> {
        let failure = self.failure.clone();
        let told = async {
            let by = self.told_to_stop(&mut signals).await;
            self.drain(by, &mut signals).await;
            by
        };
        let (by, result) = tokio::select! {
            by = told => (by, Ok(())),
            reason = failure.reported() => ("a failure", Err(ServerError::Failed(reason.to_owned()))),
        };
        self.stop_by(by).await;
        result
    }

    /// Waits for the signal to stop, and answers which it was.
    async fn told_to_stop(&self, signals: &mut mpsc::Receiver<Signal>) -> &'static str {
        while let Some(signal) = signals.recv().await {
            match signal {
                Signal::Stop(by) => return by,
                Signal::Reload => self.tls.reload(),
            }
        }
        // Nobody can tell it any more.
        std::future::pending().await
    }

    /// Goes on for a while, in which `/ready` says no and connections end, so that balancers find out. A second signal
    /// ends it.
    async fn drain(&self, by: &str, signals: &mut mpsc::Receiver<Signal>) {
        self.state.readiness.drain();
        notify::stopping(self.drain_time + STOP);
        if self.drain_time.is_zero() {
            return;
        }
        tracing::info!(by, seconds = self.drain_time.as_secs(), "draining");
        tokio::select! {
            _ = self.told_to_stop(signals) => {}
            () = tokio::time::sleep(self.drain_time) => {}
        }
    }

    /// Has the figures of all stores read now, in place of when it is time.
    pub async fn read_stores(&self) {
        for pool in self.state.pools.values() {
            pool.sampler.read().await;
        }
    }

    /// Takes no more requests, answers waiting consumers, finishes what is under way, closes the stores.
    pub async fn stop(self) {
        self.stop_by("its owner").await;
    }

    /// The same, and says by what: a signal, or a failure.
    async fn stop_by(self, by: &str) {
        let began = Instant::now();
        let polls = self.state.parked.count();
        let requests = self.state.requests.load(Ordering::Relaxed).saturating_sub(polls);
        tracing::info!(by, polls, requests, "stopping");
        self.state.readiness.drain();
        self.state.push.stop();
        for pool in self.state.pools.values() {
            pool.dispatcher.close();
        }
        self.api_tasks.stop();
        let under_way = async { tokio::join!(self.api_tasks.ended(), self.state.push.ended()) };
        if tokio::time::timeout(GRACE, under_way).await.is_err() {
            tracing::warn!("some requests did not end in time and are cut off");
            self.state.push.cut();
            // Their last words go to the store of tokens, whose connection ends with the tasks.
            let _ = tokio::time::timeout(TIDY / 2, self.state.push.ended()).await;
        }
        self.admin_tasks.stop();
        self.tasks.stop();
        let settled = async {
            for pool in self.state.pools.values() {
                pool.dispatcher.settled().await;
            }
        };
        let pushed = self.state.push.ended();
        let tidy = async { tokio::join!(self.admin_tasks.ended(), self.tasks.ended(), settled, pushed) };
        if tokio::time::timeout(TIDY, tidy).await.is_err() {
            tracing::warn!("some tasks did not end in time");
        }
        close(self.engines, TIDY.max(STOP.saturating_sub(began.elapsed()))).await;
        tracing::info!("stopped");
    }

    /// Writes the pid file, logs the addresses, and prints what to try if there is no configuration.
    async fn announce(&mut self, config: &Config, options: &Options) -> Result<(), ServerError> {
        let file = options.pid_file.as_deref().map(PidFile::write).transpose();
        self.pid_file = file.map_err(|e| ServerError::Failed(e.to_string()))?;
        let Build { version, build_commit: commit, .. } = Build::current();
        let file = options.config_file.as_deref().map(|file| file.display().to_string());
        let file = file.unwrap_or_else(|| "none".into());
        tracing::info!(version, commit, config = file, api = %self.api, admin = %self.admin, "serving");
        if options.skip_verification {
            tracing::warn!(
                "-sv: tokens are not checked, everybody who reaches the public port may use every queue"
            );
        }
        if !self.admin.ip().to_canonical().is_loopback() && config.accounts.is_empty() {
            tracing::warn!(
                admin = %self.admin,
                "the admin port listens beyond this machine and asks for no password: whoever reaches it can make \
                 tokens; set [Accounts], or AdminHost to 127.0.0.1"
            );
        }
        if options.demo {
            let token = demo::token(&self.state.tokens).await?;
            demo::print(self.api, self.admin, &config.pool["default"], &token);
        }
        // Last: whoever hears it may send a signal at once, which a server that starts takes in another way.
        notify::ready();
        Ok(())
    }
}

/// Divides the files that the process may have open.
fn divide_files(config: &Config) -> Result<OpenFiles, ServerError> {
    let disks = config.pool.values().filter(|pool| pool.path.is_some()).count();
    // Without an [AdminRedis], tokens in the default pool's cluster have connections of their own.
    let admin = config.admin_redis.as_ref().or(config.pool.get("default").filter(|pool| pool.path.is_none()));
    let redises = config.pool.values().filter(|pool| pool.path.is_none()).chain(admin);
    // A cluster counts as eight: as many connections as thirty masters have.
    let redises = redises.map(|redis| if redis.cluster.is_empty() { 1 } else { 8 }).sum();
    let most = (config.max_connections, MAX_ADMIN_CONNECTIONS, MAX_PUSH_CONNECTIONS);
    OpenFiles::divide(disks, redises, most.0, most.1, most.2).map_err(ServerError::Failed)
}

/// What each pool serves from: its store, or both when it moves.
async fn served(
    config: &Config,
    stores: &Stores,
) -> Result<BTreeMap<PoolName, Arc<dyn Engine>>, ServerError> {
    let mut served = stores.engines.clone();
    for (name, engine) in &mut served {
        if let Some(to) = &config.pool[name.as_str()].migrate_to
            && let Some((_, new)) = stores.engines.iter().find(|(other, _)| other.as_str() == to)
        {
            let moving = Migration::start(engine.clone(), new.clone()).await;
            *engine =
                Arc::new(moving.map_err(|e| ServerError::Pool(format!("[Pool.{name}]"), e.to_string()))?);
        }
    }
    Ok(served)
}

/// Closes stores, all at the same time, so that a stop takes no longer for many of them.
async fn close(engines: impl IntoIterator<Item = Arc<dyn Engine>>, patience: Duration) {
    let closing = Tasks::new(Failure::default());
    for engine in engines {
        closing.spawn(async move { engine.close().await });
    }
    closing.stop();
    if tokio::time::timeout(patience, closing.ended()).await.is_err() {
        tracing::warn!(stores = closing.len(), "stores did not close in time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    async fn get(port: SocketAddr, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("http://{port}{path}")).await.expect("the port answers");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    }

    #[tokio::test]
    async fn a_task_that_panics_ends_the_server_and_no_consumer_waits_on() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("jobs").display().to_string();
        let env =
            [("DORMOUSE_PORT", "0"), ("DORMOUSE_ADMIN_PORT", "0"), ("DORMOUSE_POOL_DEFAULT_PATH", &path)];
        let env = env.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let config = Config::load(None, env).expect("a valid configuration");
        let options = Options { skip_verification: true, ..Options::default() };
        let server = Server::start(config, options).await.expect("the server starts");
        let (api, admin, state) = (server.api, server.admin, server.state.clone());
        assert_eq!(get(admin, "/ready").await.0, 200, "the server is ready");
        let poll = tokio::spawn(async move { get(api, "/api/ns/q?timeout=600&token=any").await });
        let parked = async {
            while state.parked.count() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, parked).await.expect("the consumer waits");

        server.tasks.spawn_essential("the test's task", async { panic!("the test says so") });
        let (_keep, nobody_signals) = mpsc::channel(1);
        let reason = tokio::time::timeout(PATIENCE, server.failure.reported()).await;
        assert_eq!(reason.expect("the panic is noticed"), "the test's task panicked");
        let (status, text) = get(admin, "/ready").await;
        assert_eq!((status, text.contains("the test's task panicked")), (503, true), "/ready said {text}");
        let ended = tokio::time::timeout(PATIENCE, server.run(nobody_signals)).await;
        let error = ended.expect("the server ends by itself").expect_err("it ends with an error");
        assert_eq!(error.to_string(), "the test's task panicked");
        let (status, text) = tokio::time::timeout(PATIENCE, poll).await.expect("it was answered").unwrap();
        assert_eq!(status, 404, "the consumer was answered with nothing, not {text}");
    }
}
