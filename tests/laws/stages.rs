//! The laws on every engine, every wrapper and every admin store. The lists of laws are in main.rs.
//!
//! On the models, used by other tests, they show that the laws are consistent and that the models conform to them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::admin_stage::{AdminStage, MemoryAdmin, open_admin};
use crate::dead_age::AGE;
use crate::observer::Told;
use crate::settings_stage::{MemorySettings, SettingsStage};
use crate::stage::{Differences, RealStage, Stage, TIMEOUT, VirtualStage, manual_clock};
use crate::support::disk_store::open_disk;
use crate::support::model::ModelEngine;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;
use dormouse::clock::{ManualClock, SystemClock};
use dormouse::engine::Engine;
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use dormouse::engine::metered::Metered;
use dormouse::engine::migration::Migration;
use dormouse::engine::redis::{RedisEngine, RedisOptions, SpreadRules};
use dormouse::metrics::Metrics;
use dormouse::name::PoolName;
use dormouse::settings::disk::DiskSettings;
use dormouse::settings::redis::RedisSettings;
use parking_lot::Mutex;
use tempfile::TempDir;

/// Differences of Redis: its own clock, sizes that include acked or expired jobs, and other servers that write to it.
const REDIS: Differences = Differences {
    virtual_time: false,
    exact_sizes: false,
    horizon: Some(Duration::from_secs(1)),
    slack: Duration::from_millis(10),
    renames: false,
};
/// A delay that is shorter than those of the laws.
const PACK_AFTER: Duration = Duration::from_millis(1);
const SPREAD: Differences = Differences { renames: true, ..REDIS };

fn metered(engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
    Arc::new(Metered::new(engine, Metrics::default().engine.pool(&PoolName::default_pool())))
}

pub fn virtual_disk() -> (Arc<DiskEngine>, Arc<ManualClock>, TempDir) {
    let clock = manual_clock();
    let (engine, dir) = open_disk(clock.clone());
    (engine, clock, dir)
}

/// Differences of disk: sizes may include acked or expired jobs until they are swept.
fn disk_stage(
    engine: Arc<dyn Engine>,
    clock: Arc<ManualClock>,
    keep: impl std::any::Any + Send + Sync,
) -> VirtualStage {
    VirtualStage::new(engine, clock, keep).with_stale_sizes()
}

async fn model() -> impl Stage {
    let clock = manual_clock();
    VirtualStage::new(Arc::new(ModelEngine::new(clock.clone())), clock, ())
}

async fn disk() -> impl Stage {
    let (engine, clock, dir) = virtual_disk();
    disk_stage(engine, clock, dir)
}

async fn metered_disk() -> impl Stage {
    let (engine, clock, dir) = virtual_disk();
    disk_stage(metered(engine), clock, dir)
}

/// Returns a Redis engine, and its server.
async fn open_redis() -> (Arc<RedisEngine>, RedisServer) {
    let redis = RedisServer::start();
    let engine = RedisEngine::connect(redis.address(), &PoolName::default_pool()).await;
    (engine.expect("the Redis answers"), redis)
}

async fn model_with_dead_age() -> impl Stage {
    let clock = manual_clock();
    let mut model = ModelEngine::new(clock.clone());
    model.dead_ttl = Some(AGE);
    VirtualStage::new(Arc::new(model), clock, ())
}

async fn disk_with(options: impl FnOnce(DiskOptions) -> DiskOptions) -> impl Stage {
    let (clock, dir) = (manual_clock(), TempDir::new().expect("a temporary directory"));
    let options = options(DiskOptions::new(dir.path().join("jobs"), clock.clone()));
    disk_stage(DiskEngine::open(options).expect("an empty directory opens"), clock, dir)
}

async fn disk_with_dead_age() -> impl Stage {
    disk_with(|options| DiskOptions { dead_ttl: AGE, ..options }).await
}

async fn redis_with(options: RedisOptions) -> impl Stage {
    let redis = RedisServer::start();
    let engine = RedisEngine::connect_with(redis.address(), &PoolName::default_pool(), &options).await;
    RealStage::new(engine.expect("the Redis answers"), REDIS, redis)
}

async fn redis_with_dead_age() -> impl Stage {
    redis_with(RedisOptions { dead_ttl: AGE, ..RedisOptions::default() }).await
}

/// Returns a stage that packs delayed jobs.
async fn redis_packed() -> impl Stage {
    redis_with(RedisOptions { pack_after: PACK_AFTER, ..RedisOptions::default() }).await
}

async fn observed_model() -> (impl Stage, Arc<Told>) {
    let (clock, told) = (manual_clock(), Arc::new(Told::default()));
    let mut model = ModelEngine::new(clock.clone());
    model.observer = told.clone();
    (VirtualStage::new(Arc::new(model), clock, ()), told)
}

async fn observed_disk() -> (impl Stage, Arc<Told>) {
    let told = Arc::new(Told::default());
    let observer = told.clone();
    (disk_with(move |options| DiskOptions { observer, ..options }).await, told)
}

async fn observed_redis() -> (impl Stage, Arc<Told>) {
    let told = Arc::new(Told::default());
    (redis_with(RedisOptions { observer: told.clone(), ..RedisOptions::default() }).await, told)
}

async fn observed_cluster() -> (impl Stage, Arc<Told>) {
    let told = Arc::new(Told::default());
    let (engine, cluster) = open_cluster_with(RedisOptions { observer: told.clone(), ..all_queues() }).await;
    (RealStage::new(engine, SPREAD, cluster), told)
}

async fn redis() -> impl Stage {
    redis_with(RedisOptions::default()).await
}

/// Returns the cluster shared by all stages that use one.
async fn shared_cluster() -> Arc<RedisCluster> {
    static SHARED: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock();
    shared.upgrade().unwrap_or_else(|| {
        let started = Arc::new(RedisCluster::start());
        *shared = Arc::downgrade(&started);
        started
    })
}

/// Returns a unique prefix for the keys of a store in the cluster.
fn next_prefix() -> String {
    static STORES: AtomicU64 = AtomicU64::new(0);
    format!("p{}", STORES.fetch_add(1, Ordering::Relaxed))
}

/// Returns a new pool in the shared cluster.
async fn open_cluster() -> (Arc<RedisEngine>, Arc<RedisCluster>) {
    open_cluster_with(RedisOptions::default()).await
}

async fn open_cluster_with(options: RedisOptions) -> (Arc<RedisEngine>, Arc<RedisCluster>) {
    let cluster = shared_cluster().await;
    let options = RedisOptions { prefix: next_prefix(), partitions: 8, ..options };
    let engine = RedisEngine::connect_with(cluster.address(), &PoolName::default_pool(), &options).await;
    (engine.expect("the cluster answers"), cluster)
}

async fn cluster() -> impl Stage {
    let (engine, cluster) = open_cluster().await;
    RealStage::new(engine, REDIS, cluster)
}

/// Returns a stage whose queues use all partitions.
async fn cluster_spread() -> impl Stage {
    let (engine, cluster) = open_cluster_with(all_queues()).await;
    RealStage::new(engine, SPREAD, cluster)
}

/// Returns a stage whose queues use all partitions, and that packs delayed jobs.
async fn cluster_packed() -> impl Stage {
    let (engine, cluster) = open_cluster_with(RedisOptions { pack_after: PACK_AFTER, ..all_queues() }).await;
    RealStage::new(engine, SPREAD, cluster)
}

async fn cluster_with_dead_age() -> impl Stage {
    let (engine, cluster) = open_cluster_with(RedisOptions { dead_ttl: AGE, ..all_queues() }).await;
    RealStage::new(engine, SPREAD, cluster)
}

fn all_queues() -> RedisOptions {
    RedisOptions { spread: SpreadRules(vec!["*/*".into()]), ..RedisOptions::default() }
}

async fn moving(old: Arc<dyn Engine>, new: Arc<dyn Engine>) -> Arc<dyn Engine> {
    // The laws are not about slow stores: a stall of the machine is none.
    Arc::new(Migration::start(old, new, TIMEOUT))
}

async fn disk_to_disk() -> impl Stage {
    let (old, clock, dir) = virtual_disk();
    let (new, new_dir) = open_disk(clock.clone());
    disk_stage(moving(old, new).await, clock, (dir, new_dir))
}

async fn redis_to_redis() -> impl Stage {
    let ((old, server), (new, new_server)) = (open_redis().await, open_redis().await);
    RealStage::new(moving(old, new).await, REDIS, (server, new_server))
}

async fn redis_to_disk() -> impl Stage {
    let ((old, server), (new, dir)) = (open_redis().await, open_disk(Arc::new(SystemClock::default())));
    RealStage::new(moving(old, new).await, REDIS, (server, dir))
}

async fn disk_to_redis() -> impl Stage {
    let ((old, dir), (new, server)) = (open_disk(Arc::new(SystemClock::default())), open_redis().await);
    RealStage::new(moving(old, new).await, REDIS, (server, dir))
}

async fn redis_to_cluster() -> impl Stage {
    let ((old, server), (new, cluster)) = (open_redis().await, open_cluster().await);
    RealStage::new(moving(old, new).await, REDIS, (server, cluster))
}

async fn cluster_to_redis() -> impl Stage {
    let ((old, cluster), (new, server)) = (open_cluster().await, open_redis().await);
    RealStage::new(moving(old, new).await, REDIS, (cluster, server))
}

async fn disk_to_cluster() -> impl Stage {
    let ((old, dir), (new, cluster)) = (open_disk(Arc::new(SystemClock::default())), open_cluster().await);
    RealStage::new(moving(old, new).await, REDIS, (dir, cluster))
}

async fn cluster_to_disk() -> impl Stage {
    let ((old, cluster), (new, dir)) = (open_cluster().await, open_disk(Arc::new(SystemClock::default())));
    RealStage::new(moving(old, new).await, REDIS, (cluster, dir))
}

async fn cluster_to_cluster() -> impl Stage {
    let ((old, cluster), (new, _)) = (open_cluster().await, open_cluster().await);
    RealStage::new(moving(old, new).await, REDIS, cluster)
}

async fn admin_model() -> AdminStage {
    let clock = manual_clock();
    AdminStage::new(MemoryAdmin::new(clock.clone()).await, Some(clock), ())
}

async fn admin_disk() -> AdminStage {
    let (engine, clock, dir) = virtual_disk();
    let store = open_admin(Arc::new(DiskSettings::new(&engine)), clock.clone()).await;
    AdminStage::new(Arc::new(store), Some(clock), (engine, dir))
}

async fn admin_redis() -> AdminStage {
    let redis = RedisServer::start();
    let store = crate::support::redis_admin::open_admin_redis(&redis).await;
    AdminStage::new(store, None, redis)
}

async fn admin_cluster() -> AdminStage {
    let cluster = shared_cluster().await;
    let prefix = next_prefix();
    let store = crate::support::redis_admin::open_admin(&cluster.address(), &prefix).await;
    AdminStage::new(store, None, cluster)
}

async fn settings_model() -> SettingsStage {
    SettingsStage::new(Arc::new(MemorySettings::default()), ())
}

pub async fn settings_disk() -> SettingsStage {
    let (engine, dir) = open_disk(Arc::new(SystemClock::default()));
    SettingsStage::new(Arc::new(DiskSettings::new(&engine)), (engine, dir))
}

pub async fn settings_redis() -> SettingsStage {
    let redis = RedisServer::start();
    let admin = crate::support::redis_admin::open_admin_redis(&redis).await;
    SettingsStage::new(Arc::new(RedisSettings::new(&admin)), redis)
}

async fn settings_cluster() -> SettingsStage {
    let cluster = shared_cluster().await;
    let admin = crate::support::redis_admin::open_admin(&cluster.address(), &next_prefix()).await;
    SettingsStage::new(Arc::new(RedisSettings::new(&admin)), cluster)
}

crate::laws!(on_model, model, virtual_time, verbs);
crate::laws!(on_disk, disk, virtual_time, verbs);
crate::laws!(on_disk_metered, metered_disk, virtual_time, verbs);
crate::laws!(on_redis, redis, verbs);
crate::laws!(on_redis_packed, redis_packed, verbs);
crate::laws_of!(on_model_with_dead_age, model_with_dead_age, dead_age);
crate::laws_of!(on_disk_with_dead_age, disk_with_dead_age, dead_age);
crate::laws_of!(on_redis_with_dead_age, redis_with_dead_age, dead_age);
crate::laws_of_together!(on_cluster_with_dead_age, cluster_with_dead_age, shared_cluster().await, dead_age);
crate::laws_of!(on_model_observed, observed_model, observer);
crate::laws_of!(on_disk_observed, observed_disk, observer);
crate::laws_of!(on_redis_observed, observed_redis, observer);
crate::laws_of_together!(on_cluster_observed, observed_cluster, shared_cluster().await, observer);
crate::laws_together!(on_cluster, cluster, shared_cluster().await, verbs);
crate::spread_laws_together!(on_cluster_spread, cluster_spread, shared_cluster().await);
crate::spread_laws_together!(on_cluster_packed, cluster_packed, shared_cluster().await);
crate::laws!(migrating_disk_to_disk, disk_to_disk, virtual_time, verbs);
crate::laws!(migrating_redis_to_redis, redis_to_redis, verbs);
crate::laws!(migrating_redis_to_disk, redis_to_disk, verbs);
crate::laws!(migrating_disk_to_redis, disk_to_redis, verbs);
crate::laws_together!(migrating_redis_to_cluster, redis_to_cluster, shared_cluster().await, verbs);
crate::laws_together!(migrating_cluster_to_redis, cluster_to_redis, shared_cluster().await, verbs);
crate::laws_together!(migrating_disk_to_cluster, disk_to_cluster, shared_cluster().await, verbs);
crate::laws_together!(migrating_cluster_to_disk, cluster_to_disk, shared_cluster().await, verbs);
crate::laws_together!(migrating_cluster_to_cluster, cluster_to_cluster, shared_cluster().await, verbs);
crate::settings_laws!(settings_on_model, settings_model);
crate::settings_laws!(settings_on_disk, settings_disk);
crate::settings_laws!(settings_on_redis, settings_redis);
crate::settings_laws!(settings_on_cluster, settings_cluster);
crate::admin_laws!(admin_on_model, admin_model);
crate::admin_laws!(admin_on_disk, admin_disk);
crate::admin_laws!(admin_on_redis, admin_redis);
crate::admin_laws_together!(admin_on_cluster, admin_cluster, shared_cluster().await);
