//! The composition root: builds stores, wrappers, dispatchers and state from the configuration, starts every task,
//! opens the ports, and shuts all of it down. The only module that names a concrete engine, apart from the stores of
//! `admin` and `push` that are part of one.

mod background;
mod check;
mod demo;
mod error;
mod ports;
mod prepare;
mod state;
mod stores;

pub use crate::engine::disk::{RepairTo, repair};

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
use crate::engine::migration::{Migration, PATIENCE};
use crate::http::{AppState, Readiness};
use crate::metrics::Metrics;
use crate::name::PoolName;
use crate::outage::Outage;
use crate::process::notify;
use crate::process::open_files::OpenFiles;
use crate::process::pid_file::PidFile;
use crate::process::tasks::{Failure, Tasks};
use crate::process::version::Build;
use crate::push::limits::PushShares;

/// Maximum connections of the admin port.
const MAX_ADMIN_CONNECTIONS: usize = 1024;
/// Maximum connections of push, including idle ones.
const MAX_PUSH_CONNECTIONS: usize = 4096;
/// Maximum duration of a stop.
const STOP: Duration = Duration::from_millis(4800);
/// Time for requests in flight to end after the stop begins. Together with two and a half times [`TIDY`] it is below
/// [`STOP`]: push gets another half.
const GRACE: Duration = Duration::from_millis(3500);
/// Time for the other tasks to end after that. The stores get the rest of [`STOP`], and at least this.
const TIDY: Duration = Duration::from_millis(500);

/// Settings of the command line that are not in the configuration.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Every token is accepted.
    pub skip_verification: bool,
    /// The server was started without a configuration, file or environment: it creates a token for the `demo`
    /// namespace, and prints commands to try.
    pub demo: bool,
    /// Written once the server serves, removed when it ends.
    pub pid_file: Option<PathBuf>,
    /// Path of the configuration file, for the log.
    pub config_file: Option<PathBuf>,
    /// How long the source of a pool that moves may delay a reply, if not [`PATIENCE`]. For tests of other things.
    pub source_patience: Option<Duration>,
}

/// A signal to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Stop; with the signal's name.
    Stop(&'static str),
    /// Reload files that may have been replaced.
    Reload,
}

/// Runs a server until it is stopped, or a part of it fails permanently.
pub async fn run(
    config: Config,
    options: Options,
    mut signals: mpsc::Receiver<Signal>,
) -> Result<(), ServerError> {
    // Opening a store may take long, and an operator can stop the server meanwhile.
    let mut starting = Box::pin(Server::start(config, options));
    let mut reload = false;
    let server = loop {
        tokio::select! {
            biased;
            Some(signal) = signals.recv() => match signal {
                Signal::Stop(by) => {
                    tracing::info!(by, "stopped before the stores were opened");
                    notify::stopping(STOP);
                    return Ok(());
                }
                // Both ports are already serving with the previous files.
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
    /// Address of the public port.
    pub api: SocketAddr,
    /// Address of the admin port.
    pub admin: SocketAddr,
    state: Arc<AppState>,
    /// The stores, each once.
    engines: Vec<Arc<dyn Engine>>,
    /// Tasks of the public port and its connections. They end first.
    api_tasks: Tasks,
    /// Tasks of the admin port and its connections. They end later: until then `/ready` reports that the server is
    /// stopping.
    admin_tasks: Tasks,
    tasks: Tasks,
    /// How long it serves after the signal to stop.
    drain_time: Duration,
    tls: Tls,
    /// Reported by a part that cannot continue.
    failure: Failure,
    pid_file: Option<PidFile>,
}

impl Server {
    /// Builds everything, binds both ports, and begins to serve.
    pub async fn start(config: Config, options: Options) -> Result<Server, ServerError> {
        let Prepared { keys, push: (guard, client), tls, trusted, zones } = prepare(&config)?;
        let files = divide_files(&config)?;
        let push = PushParts {
            guard,
            client: client(files.push_connections.max(2)),
            keys: keys.unwrap_or_default(),
            // As many may be kept idle after their requests.
            connections: PushShares::new((files.push_connections / 2).max(1)),
        };
        // Ports first: a second server on the same machine then fails before it touches a store.
        let (listeners, addresses) = Listeners::open(&config).await?;
        let (metrics, build) = (Arc::new(Metrics::default()), Build::current());
        metrics.began(build.version, build.build_commit, config.max_parked_polls);
        let failure = Failure::default();
        let [api_tasks, admin_tasks, tasks] = std::array::from_fn(|_| Tasks::new(failure.clone()));
        // Both ports reply while the stores open.
        let open_ports =
            listeners.serve(&config, &files, (&tls, &trusted), &metrics, [&api_tasks, &admin_tasks]);

        let mut stores = Stores::default();
        let outage = Outage::new("tokens and limits");
        let patience = Patience::of(Duration::from_secs(config.wait_for_store));
        let opened = async {
            open_stores(&config, files.tables, &metrics, &tls, patience, &mut stores).await?;
            let store = admin_store(&config, &tls, patience, &mut stores, &outage, &tasks).await?;
            Ok((store, served(&config, &stores, options.source_patience)))
        };
        let ((tokens, settings), served) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                [&api_tasks, &admin_tasks, &tasks].into_iter().for_each(Tasks::stop);
                close(stores.engines.into_values(), STOP).await;
                return Err(error);
            }
        };
        background::ask_for_tokens(tokens.clone(), outage.clone(), &tasks);
        let state = Arc::new(app_state(StateParts {
            config: &config,
            config_file: options.config_file.as_ref().map(|file| file.display().to_string()),
            skip_verification: options.skip_verification,
            stores: &stores,
            served,
            admin_stores: (tokens, settings),
            outage,
            push,
            zones,
            metrics,
            readiness: Readiness::new(failure.clone()),
            trusted,
            tasks: tasks.clone(),
            port: addresses.api.port(),
        }));
        background::begin(&state, stores, &tasks, &failure).await;
        open_ports(&config, addresses, &state);

        let mut server = Server {
            api: addresses.api,
            admin: addresses.admin,
            // A migrating pool closes both of its stores.
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

    /// Serves until a signal stops it or a part of the server fails permanently, then stops. The error names what
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

    /// Waits for the signal to stop, and returns its name.
    async fn told_to_stop(&self, signals: &mut mpsc::Receiver<Signal>) -> &'static str {
        while let Some(signal) = signals.recv().await {
            match signal {
                Signal::Stop(by) => return by,
                Signal::Reload => self.tls.reload(),
            }
        }
        // No further signal can arrive.
        std::future::pending().await
    }

    /// Continues to serve for the drain time, while `/ready` returns 503 and connections end, so that balancers
    /// notice. A second signal ends it.
    async fn drain(&self, by: &str, signals: &mut mpsc::Receiver<Signal>) {
        self.state.server.readiness.drain();
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

    /// Reads the statistics of all stores now, ahead of schedule.
    pub async fn read_stores(&self) {
        for pool in self.state.pools.values() {
            pool.sampler.read().await;
        }
    }

    /// Accepts no more requests, replies to waiting consumers, finishes requests in flight, closes the stores.
    pub async fn stop(self) {
        self.stop_by("its owner").await;
    }

    /// Like [`stop`](Server::stop), and logs the cause: a signal or a failure.
    async fn stop_by(self, by: &str) {
        let began = Instant::now();
        let polls = self.state.bounds.parked.count();
        let requests = self.state.traffic.requests.load(Ordering::Relaxed).saturating_sub(polls);
        tracing::info!(by, polls, requests, "stopping");
        self.state.server.readiness.drain();
        self.state.push.stop();
        for pool in self.state.pools.values() {
            pool.dispatcher.close();
        }
        self.api_tasks.stop();
        let under_way = async { tokio::join!(self.api_tasks.ended(), self.state.push.ended()) };
        if tokio::time::timeout(GRACE, under_way).await.is_err() {
            tracing::warn!("some requests did not finish in time and are aborted");
            self.state.push.cut();
            // Their last leases go to the store of tokens, whose connection ends with the tasks.
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
            tracing::warn!("some tasks did not finish in time");
        }
        close(self.engines, TIDY.max(STOP.saturating_sub(began.elapsed()))).await;
        tracing::info!("stopped");
    }

    /// Writes the pid file, logs the addresses, and prints commands to try if there is no configuration.
    async fn announce(&mut self, config: &Config, options: &Options) -> Result<(), ServerError> {
        let file = options.pid_file.as_deref().map(PidFile::write).transpose();
        self.pid_file = file.map_err(|e| ServerError::Failed(e.to_string()))?;
        let Build { version, build_commit: commit, .. } = Build::current();
        let file = options.config_file.as_deref().map(|file| file.display().to_string());
        let file = file.unwrap_or_else(|| "none".into());
        tracing::info!(version, commit, config = file, api = %self.api, admin = %self.admin, "serving");
        if options.skip_verification {
            tracing::warn!(
                "-sv: tokens are not checked, so anyone who can reach the public port can use every queue"
            );
        }
        if !self.admin.ip().to_canonical().is_loopback() && config.accounts.is_empty() {
            tracing::warn!(
                admin = %self.admin,
                "the admin port is reachable from other machines without a password, so anyone who can reach it can \
                 create tokens: configure [Accounts], or set AdminHost to 127.0.0.1"
            );
        }
        if options.demo {
            let token = demo::token(&self.state.access.tokens).await?;
            demo::print(self.api, self.admin, &config.pool["default"], &token);
        }
        // Last: its receiver may send a signal at once, and while starting signals are handled differently.
        notify::ready();
        Ok(())
    }
}

/// Divides the limit of open files.
fn divide_files(config: &Config) -> Result<OpenFiles, ServerError> {
    let disks = config.pool.values().filter(|pool| pool.path.is_some()).count();
    // Without an [AdminRedis], tokens in the default pool's cluster have connections of their own.
    let admin = config.admin_redis.as_ref().or(config.pool.get("default").filter(|pool| pool.path.is_none()));
    let redises = config.pool.values().filter(|pool| pool.path.is_none()).chain(admin);
    // A cluster counts as eight, which suffices for thirty masters.
    let redises = redises.map(|redis| if redis.cluster.is_empty() { 1 } else { 8 }).sum();
    let most = (config.max_connections, MAX_ADMIN_CONNECTIONS, MAX_PUSH_CONNECTIONS);
    OpenFiles::divide(disks, redises, most.0, most.1, most.2).map_err(ServerError::Failed)
}

/// Returns the engine of each pool: its store, or the migration between two.
fn served(
    config: &Config,
    stores: &Stores,
    patience: Option<Duration>,
) -> BTreeMap<PoolName, Arc<dyn Engine>> {
    let mut served = stores.engines.clone();
    for (name, engine) in &mut served {
        if let Some(to) = &config.pool[name.as_str()].migrate_to
            && let Some((_, new)) = stores.engines.iter().find(|(other, _)| other.as_str() == to)
        {
            let patience = patience.unwrap_or(PATIENCE);
            *engine = Arc::new(Migration::start(engine.clone(), new.clone(), patience));
        }
    }
    served
}

/// Closes stores concurrently, so that many do not prolong a stop.
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
        let ready = async { while get(admin, "/ready").await.0 != 200 {} };
        tokio::time::timeout(PATIENCE, ready).await.expect("the server is ready");
        let poll = tokio::spawn(async move { get(api, "/api/ns/q?timeout=600&token=any").await });
        let parked = async {
            while state.bounds.parked.count() == 0 {
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
