//! The composition root: builds stores, wrappers, dispatchers and state from the configuration, spawns every
//! task, binds the ports, and takes all of it down again. The only room that names a concrete engine.

mod stores;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::stores::{Stores, admin_store, open_stores};
use crate::admin::Scope;
use crate::admin::limits::Throttle;
use crate::admin::tokens::Tokens;
use crate::clock::SystemClock;
use crate::config::Config;
use crate::dispatch::{Dispatcher, Parking};
use crate::engine::Engine;
use crate::engine::migration::Migration;
use crate::http::{self, Defaults, Pool, Readiness, State};
use crate::job::JobIds;
use crate::metrics::Metrics;
use crate::name::{Namespace, PoolName};
use crate::outage::Outage;
use crate::process::open_files;
use crate::process::pid_file::PidFile;
use crate::pump;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;
/// How long requests that are under way may still take once the server is told to stop. With what follows
/// it stays below the five seconds that a stop may take.
const GRACE: Duration = Duration::from_millis(3500);
/// How long the tasks that are left may take after that, and how long the stores after those.
const TIDY: Duration = Duration::from_millis(500);

/// What the command line says and the configuration does not.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Every token is good.
    pub skip_verification: bool,
    /// Started without a configuration: make a token for the `demo` namespace, and print what to try.
    pub demo: bool,
    /// Written once the server serves, removed at its end.
    pub pid_file: Option<PathBuf>,
}

/// Why a server did not start, or did not go on. One line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{0}: {1}")]
    Pool(String, String),
    #[error("cannot listen on {0}: {1}; set another port in the configuration or with {2}")]
    Bind(String, io::Error, &'static str),
    #[error("{0}")]
    Failed(String),
}

/// Runs a server until `stop` resolves or a part of it fails for good.
pub async fn run(
    config: Config,
    options: Options,
    stop: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let mut stop = std::pin::pin!(stop);
    // A store may take its time to open, and an operator need not wait for it.
    let server = tokio::select! {
        biased;
        () = &mut stop => return Ok(()),
        server = Box::pin(Server::start(config, options)) => server?,
    };
    let failed = server.failed.clone();
    let problem = tokio::select! {
        () = stop => None,
        () = failed.cancelled() => server.state.readiness.problem(),
    };
    server.stop().await;
    problem.map_or(Ok(()), |why| Err(ServerError::Failed(why)))
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    /// Where the public port is.
    pub api: SocketAddr,
    /// Where the admin port is.
    pub admin: SocketAddr,
    state: Arc<State>,
    /// The stores, each once.
    engines: Vec<Arc<dyn Engine>>,
    /// Ends the public port; what is under way goes on.
    stop_api: CancellationToken,
    api_tasks: TaskTracker,
    /// Ends the admin port, which tells until the end that the server is not ready.
    stop_admin: CancellationToken,
    admin_tasks: TaskTracker,
    /// Ends everything else.
    stop_tasks: CancellationToken,
    tasks: TaskTracker,
    /// A part has failed for good; the readiness says which.
    failed: CancellationToken,
    pid_file: Option<PidFile>,
}

impl Server {
    /// Builds all of it, binds both ports, and begins to serve.
    pub async fn start(config: Config, options: Options) -> Result<Server, ServerError> {
        open_files::raise_open_files();
        // Ports first: a second server on the same machine then fails before it touches a store.
        let listener = bind(&config.host, config.port, "DORMOUSE_PORT").await?;
        let admin_listener = bind(&config.admin_host, config.admin_port, "DORMOUSE_ADMIN_PORT").await?;
        let address = |l: &TcpListener| l.local_addr().map_err(|e| ServerError::Failed(e.to_string()));
        let (api, admin) = (address(&listener)?, address(&admin_listener)?);

        let metrics = Arc::new(Metrics::default());
        let mut stores = Stores::default();
        let opened = match open_stores(&config, &metrics, &mut stores).await {
            Ok(()) => admin_store(&config, &stores).await,
            Err(error) => Err(error),
        };
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                close(stores.engines.into_values()).await;
                return Err(error);
            }
        };
        let outage = Outage::new("tokens and limits");
        let tokens = Arc::new(Tokens::new(store.clone(), Arc::new(SystemClock::default()), outage.clone()));
        let throttle = Throttle::new(store, Arc::new(SystemClock::default()), outage);
        let parking = Arc::new(Parking::new(config.max_parked_polls));
        let readiness = Arc::new(Readiness::default());

        let mut pools = BTreeMap::new();
        for (name, engine) in &stores.engines {
            let mut engine = engine.clone();
            if let Some(to) = &config.pool[name.as_str()].migrate_to
                && let Some((_, new)) = stores.engines.iter().find(|(other, _)| other.as_str() == to)
            {
                engine = Arc::new(Migration::new(engine, new.clone()));
            }
            let dispatcher = Dispatcher::start(engine.clone(), parking.clone());
            let outage = stores.outages[name].clone();
            let pool = Pool { name: name.clone(), engine, dispatcher, outage, ids: JobIds::default() };
            pools.insert(name.clone(), Arc::new(pool));
        }
        let state = Arc::new(State {
            pools,
            tokens,
            throttle: throttle.clone(),
            defaults: Defaults {
                ttl: config.ttl_second,
                delay: config.delay_second,
                tries: config.tries_num,
                ttr: config.ttr_second,
                timeout: config.timeout_second,
            },
            metrics,
            parking,
            readiness: readiness.clone(),
            scrape: Mutex::default(),
            skip_verification: options.skip_verification,
            accounts: config.accounts.clone(),
            bulk_room: Semaphore::new(http::BULK_ROOM),
            access_log: AtomicBool::new(config.enable_access_log),
        });

        let [stop_api, stop_admin, stop_tasks, failed] = std::array::from_fn(|_| CancellationToken::new());
        let [api_tasks, admin_tasks, tasks] = std::array::from_fn(|_| TaskTracker::new());
        for (name, engine) in &stores.engines {
            let batch = stores.batches[name];
            let outage = stores.outages[name].clone();
            let pump = pump::run(engine.clone(), outage, batch, stop_tasks.clone());
            watched(&tasks, format!("the pump of pool {name}"), &readiness, &failed, &stop_tasks, pump);
        }
        for (name, failure) in stores.failures {
            let (readiness, failed) = (readiness.clone(), failed.clone());
            let stop = stop_tasks.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    why = failure => {
                        tracing::error!(pool = name.as_str(), why, "the store failed; the server ends");
                        readiness.fail(format!("pool {name}: {why}"));
                        failed.cancel();
                    }
                }
            });
        }
        let stop = stop_tasks.clone();
        let refresh = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = throttle.keep_fresh() => {}
            }
        };
        watched(&tasks, "the refresh of limits".into(), &readiness, &failed, &stop_tasks, refresh);
        let most = config.max_connections;
        let api_port = http::connection::serve(listener, http::api(state.clone()), most, stop_api.clone());
        watched(&api_tasks, "the public port".into(), &readiness, &failed, &stop_api, api_port);
        let admin_port =
            http::connection::serve(admin_listener, http::admin(state.clone()), 1024, stop_admin.clone());
        watched(&admin_tasks, "the admin port".into(), &readiness, &failed, &stop_admin, admin_port);

        let engines = stores.engines.into_values().collect();
        let mut server = Server {
            api,
            admin,
            state,
            engines,
            stop_api,
            api_tasks,
            stop_admin,
            admin_tasks,
            stop_tasks,
            tasks,
            failed,
            pid_file: None,
        };
        let announced = match options.pid_file.as_deref().map(PidFile::write).transpose() {
            Ok(file) => {
                server.pid_file = file;
                server.announce(&config, &options).await
            }
            Err(error) => Err(ServerError::Failed(error.to_string())),
        };
        match announced {
            Ok(()) => Ok(server),
            Err(error) => {
                server.stop().await;
                Err(error)
            }
        }
    }

    /// Takes no more requests, answers parked polls, finishes what is under way, closes the stores.
    pub async fn stop(self) {
        tracing::info!("stopping");
        self.state.readiness.drain();
        for pool in self.state.pools.values() {
            pool.dispatcher.close();
        }
        self.stop_api.cancel();
        self.api_tasks.close();
        if tokio::time::timeout(GRACE, self.api_tasks.wait()).await.is_err() {
            tracing::warn!("some requests did not end in time and are cut off");
        }
        self.stop_admin.cancel();
        self.admin_tasks.close();
        self.stop_tasks.cancel();
        self.tasks.close();
        let settled = async {
            for pool in self.state.pools.values() {
                pool.dispatcher.settled().await;
            }
        };
        let tidy = async { tokio::join!(self.admin_tasks.wait(), self.tasks.wait(), settled) };
        if tokio::time::timeout(TIDY, tidy).await.is_err() {
            tracing::warn!("some tasks did not end in time");
        }
        close(self.engines).await;
        tracing::info!("stopped");
    }

    /// Says where it is and, to who started it without a configuration, what to try.
    async fn announce(&self, config: &Config, options: &Options) -> Result<(), ServerError> {
        tracing::info!(api = %self.api, admin = %self.admin, version = env!("CARGO_PKG_VERSION"), "serving");
        if !options.demo {
            return Ok(());
        }
        let scope = Scope {
            pool: PoolName::default_pool(),
            namespace: Namespace::parse("demo").map_err(|e| ServerError::Failed(e.to_string()))?,
        };
        let failed = |e: crate::error::Error| ServerError::Failed(format!("the demo token: {e}"));
        let known = self.state.tokens.list(&scope).await.map_err(failed)?;
        let token = match known.into_keys().next() {
            Some(token) => token,
            None => match self.state.tokens.create(&scope, None, "demo").await {
                Ok(token) => token.reveal().to_owned(),
                Err(error) => return Err(ServerError::Failed(format!("the demo token: {error}"))),
            },
        };
        let data = match config.pool["default"].path.as_deref() {
            Some(path) => {
                format!("jobs live in    {}", std::path::absolute(path).unwrap_or(path.into()).display())
            }
            None => "jobs live in    the Redis of pool default".into(),
        };
        let (api, admin) = (self.api, self.admin);
        println!(
            "\
Dormouse {version} is up.
  API             http://{api}
  admin           http://{admin}
  {data}

Try it in another terminal:

  # publish a job that is due in 2 seconds
  curl -X PUT -H 'X-Token: {token}' 'http://{api}/api/demo/hello?delay=2&tries=3' -d 'good morning'

  # wait for it, up to 5 seconds
  curl -H 'X-Token: {token}' 'http://{api}/api/demo/hello?timeout=5&ttr=30'

  # done with it: put its job_id here, or it comes back after 30 seconds
  curl -i -X DELETE -H 'X-Token: {token}' 'http://{api}/api/demo/hello/job/JOB_ID'

  # nothing is left: no job available
  curl -H 'X-Token: {token}' 'http://{api}/api/demo/hello'

  # a token for a namespace of your own
  curl -X POST 'http://{admin}/token/my-team?description=me'
",
            version = env!("CARGO_PKG_VERSION"),
        );
        Ok(())
    }
}

/// Closes stores, all at the same time, so that a stop takes no longer for many of them.
async fn close(engines: impl IntoIterator<Item = Arc<dyn Engine>>) {
    let closing = TaskTracker::new();
    for engine in engines {
        closing.spawn(async move { engine.close().await });
    }
    closing.close();
    if tokio::time::timeout(TIDY, closing.wait()).await.is_err() {
        tracing::warn!(stores = closing.len(), "stores did not close in time");
    }
}

/// Spawns a task that must not end before it is told to: if it does, the server fails.
fn watched(
    tasks: &TaskTracker,
    name: String,
    readiness: &Arc<Readiness>,
    failed: &CancellationToken,
    stop: &CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let (readiness, failed, stop) = (readiness.clone(), failed.clone(), stop.clone());
    let task = tasks.spawn(work);
    tasks.spawn(async move {
        let ended = task.await;
        if !stop.is_cancelled() {
            let how = if ended.is_err() { "panicked" } else { "ended" };
            tracing::error!(task = name, how, "a task that the server needs is gone; the server ends");
            readiness.fail(format!("{name} {how}"));
            failed.cancel();
        }
    });
}

async fn bind(host: &str, port: u16, variable: &'static str) -> Result<TcpListener, ServerError> {
    let named = format!("{host}:{port}");
    let bind = async {
        let addr = tokio::net::lookup_host(&named).await?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        socket.listen(BACKLOG)
    };
    bind.await.map_err(|e: io::Error| ServerError::Bind(named.clone(), e, variable))
}
