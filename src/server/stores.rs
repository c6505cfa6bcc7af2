//! Opens the stores named in the configuration: the pools' stores, and the store of tokens and limits. Starts no
//! tasks of its own.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::error::ServerError;
use super::prepare::Tls;
use crate::admin::AdminStore;
use crate::admin::redis::RedisAdmin;
use crate::admin::settings::{SettingsAdmin, TOKENS};
use crate::clock::SystemClock;
use crate::config::{Config, PoolConfig, Secret, SyncMode};
use crate::engine::Engine;
use crate::engine::disk::{DiskEngine, DiskOptions, FORMAT, Sync};
use crate::engine::metered::Metered;
use crate::engine::nodes::Nodes;
use crate::engine::observer::Observer;
use crate::engine::redis::{
    RedisAddress, RedisEngine, RedisOptions, SpreadRules, Unsafe, check_safety, look,
};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::name::{DEFAULT_POOL, PoolName};
use crate::outage::Outage;
use crate::process::tasks::Tasks;
use crate::settings::disk::DiskSettings;
use crate::settings::redis::RedisSettings;
use crate::settings::{SettingsStore, move_records};
use crate::tls::ClientTls;

/// Pause before a store that did not respond is called again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Memory of a ready job in bytes, without its body.
const READY_JOB: usize = 64;

/// Prefix of the keys of tokens and limits in their own cluster.
const ADMIN_PREFIX: &str = "dormouse";

/// Completes with the reason when a store has failed permanently.
pub type Failed = Pin<Box<dyn Future<Output = String> + Send>>;

/// A store, its outages, and its end.
type Opened = (Arc<dyn Engine>, Arc<Outage>, StoreEnd);

/// An opened Redis, with its nodes if it is a cluster.
type OpenedRedis = (Opened, Option<Arc<dyn Nodes>>);

/// Consequence of a store's permanent failure.
pub enum StoreEnd {
    /// The store stops serving, and other pools continue.
    Alone(Failed),
    /// The server must end too: one of its tasks has died.
    WithServer(Failed),
}

#[derive(Default)]
pub struct Stores {
    /// Each store under its pool's name, metered.
    pub engines: BTreeMap<PoolName, Arc<dyn Engine>>,
    pub disks: BTreeMap<PoolName, Arc<DiskEngine>>,
    /// Nodes of the pools in a cluster.
    pub nodes: BTreeMap<PoolName, Arc<dyn Nodes>>,
    /// Outages of each store.
    pub outages: BTreeMap<PoolName, Arc<Outage>>,
    /// Name and end of each store.
    pub failures: Vec<(String, StoreEnd)>,
}

/// Deadline for opening stores.
#[derive(Clone, Copy, Debug)]
pub struct Patience(Instant);

impl Patience {
    /// Begins now and lasts `time`.
    pub fn of(time: Duration) -> Patience {
        Patience(Instant::now() + time)
    }

    /// Opens a store. Retries if it is unreachable, hangs or is loading; not if it refuses.
    async fn wait_for<T>(
        self,
        store: &str,
        mut open: impl AsyncFnMut() -> Result<T, Unsafe>,
    ) -> Result<T, Unsafe> {
        let mut told = false;
        loop {
            let error = match open().await {
                Err(Unsafe::Unknown(error @ Error::Away(_))) if Instant::now() < self.0 => error,
                done => return done,
            };
            if !std::mem::replace(&mut told, true) {
                let seconds = (self.0 - Instant::now()).as_secs();
                tracing::warn!(store, %error, seconds, "waiting for a store that does not respond yet");
            }
            sleep_until(self.0.min(Instant::now() + ASK_AGAIN)).await;
        }
    }
}

/// Opens every pool's store. A disk pool keeps `open_tables` of its files open. After an error, `stores` has those
/// that are open.
pub async fn open_stores(
    config: &Config,
    open_tables: usize,
    metrics: &Arc<Metrics>,
    tls: &Tls,
    patience: Patience,
    stores: &mut Stores,
) -> Result<(), ServerError> {
    for (name, pool) in &config.pool {
        let section = format!("[Pool.{name}]");
        let failed = |e: &dyn std::fmt::Display| ServerError::Pool(section.clone(), e.to_string());
        let name = PoolName::parse(name).map_err(|e| failed(&e))?;
        let of_pool = metrics.engine.pool(&name);
        let (engine, outage, failed_for_good): Opened = match &pool.path {
            Some(path) => {
                let (sync, mode) = match pool.sync {
                    SyncMode::Always => (Sync::Always, "always"),
                    SyncMode::EverySec => (Sync::EverySecond, "everysec"),
                };
                let options = DiskOptions {
                    sync,
                    open_tables,
                    min_free: pool.min_free_disk.saturating_mul(1 << 20),
                    disk_timeout: Duration::from_secs(pool.disk_timeout),
                    cache: pool.block_cache.saturating_mul(1 << 20),
                    dead_ttl: Duration::from_secs(pool.dead_letter_ttl),
                    observer: of_pool.clone(),
                    ready_budget: pool.ready_memory.saturating_mul(1 << 20) / READY_JOB,
                    ..DiskOptions::new(path, Arc::new(SystemClock::default()))
                };
                // Opening reads the whole store, which may take a while.
                let disk = tokio::task::spawn_blocking(|| DiskEngine::open(options))
                    .await
                    .map_err(|e| failed(&e))?
                    .map_err(|e| failed(&e))?;
                let (pool_name, path) = (name.as_str(), path.display().to_string());
                tracing::info!(pool = pool_name, kind = "disk", path, sync = mode, format = FORMAT, "pool");
                stores.disks.insert(name.clone(), disk.clone());
                of_pool.on_disk(pool.min_free_disk.saturating_mul(1 << 20));
                let poisoned = disk.clone();
                let failed_for_good = StoreEnd::Alone(Box::pin(async move { poisoned.poisoned().await }));
                (disk, Outage::new(format!("pool {name}")), failed_for_good)
            }
            None => {
                let opened = patience.wait_for(&section, async || {
                    let address = redis_address(pool, tls.of_redis.get(&section));
                    if !config.allow_unsafe_redis {
                        check_safety(&address).await?;
                    }
                    Ok(open_redis(address, &name, pool, of_pool.clone()).await?)
                });
                let (opened, nodes) = opened.await.map_err(|e| failed(&e))?;
                stores.nodes.extend(nodes.map(|nodes| (name.clone(), nodes)));
                opened
            }
        };
        if pool.wait_replicas > 0 {
            of_pool.waits_for_replicas();
        }
        stores.engines.insert(name.clone(), Arc::new(Metered::new(engine, of_pool)));
        stores.failures.push((format!("pool {name}"), failed_for_good));
        stores.outages.insert(name, outage);
    }
    Ok(())
}

/// Opens a Redis, or a cluster.
async fn open_redis(
    address: RedisAddress,
    name: &PoolName,
    pool: &PoolConfig,
    observer: Arc<dyn Observer>,
) -> crate::error::Result<OpenedRedis> {
    let options = RedisOptions { observer, ..redis_options(name.as_str(), pool) };
    // The compiler limits how deeply futures nest without a box.
    let redis = Box::pin(RedisEngine::connect_with(address, name, &options)).await?;
    log_redis(name, pool, redis.version());
    let failed = StoreEnd::WithServer(Box::pin(redis.failed()));
    let nodes = redis.nodes();
    Ok(((redis.clone(), redis.outage(), failed), nodes))
}

/// Logs a pool on a Redis at the start. The version is unknown if the server's user may not read it.
fn log_redis(name: &PoolName, of: &PoolConfig, redis_version: Option<&str>) {
    let nodes = of.cluster.join(",");
    let (pool, addr) = (name.as_str(), of.addr.as_deref().unwrap_or(&nodes));
    let kind = if of.cluster.is_empty() { "redis" } else { "redis cluster" };
    tracing::info!(pool, kind, addr, redis_version, "pool");
}

/// Stores of tokens and limits, and of settings.
pub type AdminStores = (Arc<dyn AdminStore>, Arc<dyn SettingsStore>);

/// Returns the pool whose store has the settings if there is no `[AdminRedis]`: the default pool; or the pool that its
/// directory moves to, so that the settings are there when the move ends.
pub fn settings_pool(config: &Config) -> &str {
    let default = &config.pool[DEFAULT_POOL]; // a configuration without it is rejected
    let target = default.migrate_to.as_deref().filter(|_| default.path.is_some());
    let may_have = |to: &&str| config.pool[*to].path.is_some() || !config.pool[*to].cluster.is_empty();
    target.filter(may_have).unwrap_or(DEFAULT_POOL)
}

/// Opens the store of `[AdminRedis]`, or else the default pool's directory or cluster. Settings that the directory of
/// the default pool has, and that belong elsewhere now, move there; tokens and limits stay.
pub async fn admin_store(
    config: &Config,
    tls: &Tls,
    patience: Patience,
    stores: &mut Stores,
    outage: &Arc<Outage>,
    tasks: &Tasks,
) -> Result<AdminStores, ServerError> {
    let failed = |e: &dyn std::fmt::Display| ServerError::Pool("[AdminRedis]".into(), e.to_string());
    let default = &config.pool["default"]; // a configuration without it is rejected
    let in_cluster = (!default.cluster.is_empty()).then_some((default, "[Pool.default]"));
    let redis = config.admin_redis.as_ref().map(|admin| (admin, "[AdminRedis]")).or(in_cluster);
    let disk = stores.disks.get(&PoolName::default_pool()).cloned();
    let (tokens, settings): AdminStores = match (redis, &disk) {
        (Some((redis, section)), _) => {
            let opened = patience.wait_for(section, async || {
                let address = redis_address(redis, tls.of_redis.get(section));
                // The pool's own cluster has been checked.
                let is_own = section == "[AdminRedis]";
                if is_own && address.cluster {
                    look(&address, None, !config.allow_unsafe_redis).await?;
                } else if is_own && !config.allow_unsafe_redis {
                    check_safety(&address).await?;
                }
                let prefix = if is_own { ADMIN_PREFIX } else { redis.prefix("default") };
                Ok(RedisAdmin::connect(&address, prefix, outage.clone(), tasks).await?)
            });
            let store = opened.await.map_err(|e| failed(&e))?;
            let end = StoreEnd::WithServer(Box::pin(store.failed()));
            stores.failures.push(("tokens and limits".into(), end));
            let settings = RedisSettings::new(&store);
            settings.refuse_earlier().await.map_err(|e| failed(&e))?;
            (Arc::new(store), Arc::new(settings))
        }
        (None, Some(disk)) => {
            let (of_disk, clock) = (Arc::new(DiskSettings::new(disk)), Arc::new(SystemClock::default()));
            let store = SettingsAdmin::open(of_disk, clock, tasks.clone()).await.map_err(|e| failed(&e))?;
            let settings = directory_settings(config, tls, patience, stores, outage, tasks).await;
            (Arc::new(store), settings.map_err(|e| failed(&e))?)
        }
        (None, None) => return Err(failed(&"there is no store for tokens: add Addr = \"host:port\"")),
    };
    let stay = config.admin_redis.is_none() && settings_pool(config) == DEFAULT_POOL;
    if let Some(disk) = disk.filter(|_| !stay) {
        let moved = move_records(&DiskSettings::new(&disk), &*settings, TOKENS).await;
        let moved = moved.map_err(|e| failed(&e))?;
        if moved > 0 {
            tracing::info!(moved, "moved settings from the directory of the default pool");
        }
    }
    Ok((tokens, settings))
}

/// Opens the settings of a server whose default pool is on disk, without an `[AdminRedis]`.
async fn directory_settings(
    config: &Config,
    tls: &Tls,
    patience: Patience,
    stores: &mut Stores,
    outage: &Arc<Outage>,
    tasks: &Tasks,
) -> Result<Arc<dyn SettingsStore>, Unsafe> {
    let (name, section) = (settings_pool(config), format!("[Pool.{}]", settings_pool(config)));
    if let Some((_, disk)) = stores.disks.iter().find(|(pool, _)| pool.as_str() == name) {
        return Ok(Arc::new(DiskSettings::new(disk)));
    }
    let pool = &config.pool[name];
    let address = redis_address(pool, tls.of_redis.get(&*section));
    let opened = patience.wait_for(&section, async || {
        Ok(RedisAdmin::connect(&address, pool.prefix(name), outage.clone(), tasks).await?)
    });
    let store = opened.await?;
    stores.failures.push(("settings".into(), StoreEnd::WithServer(Box::pin(store.failed()))));
    let settings = RedisSettings::new(&store);
    settings.refuse_earlier().await?;
    Ok(Arc::new(settings))
}

/// Returns the engine options of a pool on Redis.
pub fn redis_options(name: &str, pool: &PoolConfig) -> RedisOptions {
    let (wait_replicas, dead_ttl) = (pool.wait_replicas, Duration::from_secs(pool.dead_letter_ttl));
    let pack_after = pool.pack_after();
    if pool.cluster.is_empty() {
        return RedisOptions { wait_replicas, dead_ttl, pack_after, ..RedisOptions::default() };
    }
    RedisOptions {
        prefix: pool.prefix(name).to_owned(),
        partitions: pool.partitions(),
        wait_replicas,
        spread: SpreadRules(pool.spread.clone()),
        dead_ttl,
        pack_after,
        ..RedisOptions::default()
    }
}

/// Returns the address of a pool's Redis. `tls` is its TLS setting.
pub fn redis_address(pool: &PoolConfig, tls: Option<&ClientTls>) -> RedisAddress {
    let secret = |s: &Option<Secret>| s.as_ref().map(|s| s.reveal().to_owned()).filter(|s| !s.is_empty());
    RedisAddress {
        addrs: match &pool.cluster[..] {
            [] => pool.addr.iter().flat_map(|a| a.split(',')).map(|a| a.trim().to_owned()).collect(),
            nodes => nodes.to_vec(),
        },
        cluster: !pool.cluster.is_empty(),
        username: pool.username.clone(),
        password: secret(&pool.password),
        db: pool.db,
        master_name: pool.master_name.clone().filter(|m| !m.is_empty()),
        sentinel_username: pool.sentinel_username.clone(),
        sentinel_password: secret(&pool.sentinel_password),
        tls: tls.cloned(),
    }
}
