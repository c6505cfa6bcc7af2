//! Assembles the state shared by handlers: per pool a dispatcher and a scheduler, push, tokens, limits. Opens and
//! starts nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::stores::{AdminStores, Stores, settings_pool};
use crate::admin::cache::TokenCache;
use crate::admin::limits::Throttle;
use crate::admin::tokens::TokenManager;
use crate::bulk::Bulk;
use crate::clock::{Began, SystemClock};
use crate::config::{Config, PoolConfig};
use crate::dispatch::{Dispatcher, ParkedPolls};
use crate::engine::Engine;
use crate::engine::backup::Backup;
use crate::fleet::Fleet;
use crate::history;
use crate::http::{
    About, AboutPool, Access, Accounts, AppState, BodyRoom, Cursors, Defaults, FailedLogins, MOST_SEARCHES,
    Most, Operations, PoolState, Readiness, RequestBounds, ThisServer, Traffic, TrustedProxies,
};
use crate::job::JobIds;
use crate::metrics::{KeptTimes, Metrics};
use crate::name::PoolName;
use crate::outage::Outage;
use crate::pauses::Pauses;
use crate::process::tasks::Tasks;
use crate::push::Push;
use crate::push::address::AddressGuard;
use crate::push::client::Client;
use crate::push::encrypted::SecretKeys;
use crate::push::limits::PushShares;
use crate::push::records::PushRecords;
use crate::push::shared::{Leasing, MEMORY, PushServer, PushedPool};
use crate::quotas::QuotaManager;
use crate::random;
use crate::sampler::Sampler;
use crate::schedule::Zones;
use crate::scheduler::{ScheduleBounds, ScheduleStore, Scheduler};

/// Parts of a server that exist before its state.
pub struct StateParts<'a> {
    pub config: &'a Config,
    pub config_file: Option<String>,
    pub skip_verification: bool,
    pub stores: &'a Stores,
    /// The engine of each pool.
    pub served: BTreeMap<PoolName, Arc<dyn Engine>>,
    pub admin_stores: AdminStores,
    /// Of the admin stores.
    pub outage: Arc<Outage>,
    pub push: PushParts,
    pub zones: Arc<Zones>,
    pub metrics: Arc<Metrics>,
    pub readiness: Readiness,
    pub trusted: Arc<TrustedProxies>,
    pub tasks: Tasks,
    /// Number of the public port.
    pub port: u16,
}

/// Parts of push: address guard, client, keys of secrets, and connection shares.
pub struct PushParts {
    pub guard: Arc<AddressGuard>,
    pub client: Client,
    pub keys: SecretKeys,
    pub connections: Arc<PushShares>,
}

/// A pool and its dispatcher.
struct ServedPool {
    name: PoolName,
    engine: Arc<dyn Engine>,
    dispatcher: Arc<Dispatcher>,
    ids: Arc<JobIds>,
    outage: Arc<Outage>,
}

/// Builds the state of the handlers, with a dispatcher for each pool.
pub fn app_state(parts: StateParts<'_>) -> AppState {
    let StateParts { config, config_file, skip_verification, stores, served, zones, metrics, tasks, .. } =
        parts;
    let ((store, settings), outage) = (parts.admin_stores, parts.outage);
    let [memory, of_each] = [config.max_body_memory, config.max_body_memory_per_namespace]
        .map(|mebibytes| mebibytes.saturating_mul(1 << 20));
    metrics.zone_database(zones.version());
    tracing::info!(version = zones.version(), "time zone database");
    let clock = Arc::new(SystemClock::default());
    let cache = TokenCache::new(store.clone(), clock.clone(), outage.clone(), tasks.clone());
    let polls = half_unless(config.max_parked_polls_per_namespace, config.max_parked_polls);
    let parked = Arc::new(ParkedPolls::new(config.max_parked_polls, polls));
    let served = served.into_iter().map(|(name, engine)| {
        let dispatcher = Dispatcher::start(engine.clone(), parked.clone(), tasks.failure().clone());
        let outage = stores.outages[&name].clone();
        ServedPool { name, engine, dispatcher, ids: Arc::default(), outage }
    });
    let served: Vec<ServedPool> = served.collect();
    // A directory has one server at a time. A fixed name makes its records its own after a restart too, so that their
    // occurrences are not delayed for another server.
    let has_own_settings = config.admin_redis.is_none() && config.pool[settings_pool(config)].path.is_some();
    // Servers on different machines may have equal names, so the id is random.
    let server_id = random::ulid().to_string();
    let schedule_server = if has_own_settings { "the only server" } else { &*server_id };
    let push_server = PushServer {
        records: PushRecords::new(settings.clone(), parts.push.keys),
        settings: settings.clone(),
        outage: outage.clone(),
        client: Arc::new(parts.push.client),
        clock,
        name: server_id.clone(),
        tasks: Tasks::new(tasks.failure().clone()),
        cut: CancellationToken::new(),
        connections: parts.push.connections,
        memory: PushShares::new(MEMORY),
        leasing: Leasing::default(),
    };
    let push = Push::new(push_server, parts.push.guard, served.iter().map(|pool| pushed(pool, &metrics)));
    let history = Arc::new(history::History::new(config.history_memory.saturating_mul(1 << 20)));
    let began = Began::now();
    let quotas = QuotaManager::new(settings.clone(), outage.clone(), bounded(config, stores));
    let bounds =
        ScheduleBounds { of_namespace: config.max_schedules_per_namespace, of_pool: config.max_schedules };
    let pool = |pool: ServedPool| {
        let counts = metrics.of_schedules(&pool.name);
        let (name, engine) = (pool.name.clone(), pool.engine.clone());
        let of_settings = (settings.clone(), outage.clone());
        let places = (engine.clone(), quotas.clone());
        let of_schedules = ScheduleStore::new(&name, of_settings.clone(), places, schedule_server);
        let scheduler =
            Scheduler::new(name.clone(), engine.clone(), of_schedules, zones.clone(), bounds, counts);
        let (store, of_engine) = ((engine, pool.dispatcher.clone()), metrics.engine.pool(&name));
        let sampler = Sampler::new(name.clone(), store, of_engine, push.clone(), history.clone(), began);
        let pauses = Pauses::new(&name, of_settings, (pool.engine.clone(), pool.dispatcher.clone()));
        pool.state(scheduler, pauses, sampler)
    };
    AppState {
        pools: served.into_iter().map(pool).collect(),
        push,
        cursors: Cursors::new(settings.clone()),
        defaults: defaults(config),
        access: Access {
            tokens: Arc::new(TokenManager::new(store.clone(), cache.clone())),
            throttle: Throttle::new(store.clone(), cache, outage.clone()),
            quotas,
            parked_tokens: Arc::default(),
            skip_verification,
        },
        accounts: Accounts {
            operators: config.accounts.clone(),
            viewers: config.read_only_accounts.clone(),
            show_bodies: config.show_bodies,
            failed_logins: FailedLogins::default(),
        },
        bounds: RequestBounds {
            parked,
            body_room: BodyRoom::new(memory, half_unless(of_each, memory)),
            under_way: Arc::default(),
            searches: Semaphore::new(MOST_SEARCHES),
        },
        traffic: Traffic {
            metrics: metrics.clone(),
            times: KeptTimes::default(),
            scrape: Arc::default(),
            access_log: AtomicBool::new(config.enable_access_log),
            requests: AtomicUsize::new(0),
            trusted_proxies: parts.trusted,
        },
        operations: Operations {
            fleet: Fleet::new(settings),
            bulk: Bulk::new(tasks.clone()),
            changes: Arc::default(),
            history,
            backups: stores
                .disks
                .iter()
                .map(|(name, disk)| (name.clone(), (disk.clone() as Arc<dyn Backup>, Arc::default())))
                .collect(),
            nodes: stores.nodes.clone(),
        },
        server: ThisServer {
            name: format!("{}:{}", machine(), parts.port),
            about: about(config, config_file),
            began,
            readiness: parts.readiness,
            tasks,
        },
    }
}

impl ServedPool {
    fn state(self, scheduler: Scheduler, pauses: Pauses, sampler: Arc<Sampler>) -> PoolState {
        let ServedPool { name, engine, dispatcher, ids, outage } = self;
        let (scheduler, pauses, delays) = (Arc::new(scheduler), Arc::new(pauses), Default::default());
        PoolState { name, engine, dispatcher, outage, scheduler, pauses, sampler, delays, ids }
    }
}

/// Returns push's view of a pool.
fn pushed(pool: &ServedPool, metrics: &Metrics) -> PushedPool {
    PushedPool {
        name: pool.name.clone(),
        engine: pool.engine.clone(),
        dispatcher: pool.dispatcher.clone(),
        ids: pool.ids.clone(),
        metrics: metrics.engine.pool(&pool.name),
        outage: pool.outage.clone(),
    }
}

/// Returns the pool that a pool migrates to.
fn moves_to<'a>(config: &'a Config, pool: &PoolName) -> Option<&'a str> {
    config.pool[pool.as_str()].migrate_to.as_deref()
}

/// Returns each store with quotas and the pools it serves: its own, and pools that migrate to it. Sources of
/// migrations are included, since servers that have not restarted yet still publish to them.
fn bounded(config: &Config, stores: &Stores) -> impl Iterator<Item = (Arc<dyn Engine>, Vec<PoolName>)> {
    stores.engines.iter().map(move |(name, engine)| {
        let moving = stores.engines.keys().filter(|pool| moves_to(config, pool) == Some(name.as_str()));
        (engine.clone(), [name].into_iter().chain(moving).cloned().collect())
    })
}

fn defaults(config: &Config) -> Defaults {
    Defaults {
        ttl: config.ttl_second,
        delay: config.delay_second,
        tries: config.tries_num,
        ttr: config.ttr_second,
        timeout: config.timeout_second,
    }
}

/// Returns the displayed configuration of the server and its pools: no secrets.
fn about(config: &Config, config_file: Option<String>) -> About {
    let pool = |(name, pool): (&String, &PoolConfig)| {
        let (kind, address) = if let Some(path) = &pool.path {
            ("disk", path.display().to_string())
        } else if !pool.cluster.is_empty() {
            ("cluster", pool.cluster.join(", "))
        } else {
            let kind = if pool.master_name.is_some() { "sentinels" } else { "redis" };
            (kind, pool.addr.clone().unwrap_or_default())
        };
        let min_free_disk = pool.path.is_some().then(|| pool.min_free_disk.saturating_mul(1 << 20));
        let kind = kind.to_owned();
        let about = AboutPool { kind, address, min_free_disk, migrates_to: pool.migrate_to.clone() };
        Some((PoolName::parse(name).ok()?, about))
    };
    let most = Most {
        connections: config.max_connections,
        waiting: config.max_parked_polls,
        body_bytes: config.max_body_memory.saturating_mul(1 << 20),
    };
    About {
        config_file,
        admin_url: config.admin_url.as_deref().map(|url| url.trim_end_matches('/').to_owned()),
        dashboard: config.dashboard,
        api_tls: config.tls_cert.is_some(),
        admin_tls: config.admin_tls_cert.is_some(),
        zone: config.dashboard_zone.clone(),
        pools: config.pool.iter().filter_map(pool).collect(),
        most,
    }
}

/// Returns the machine's name, or `localhost` if it is unknown.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".into() } else { name.into() }
}

/// Returns the configured share of `most`, by default half.
pub fn half_unless(configured: usize, most: usize) -> usize {
    if configured == 0 { most.div_ceil(2) } else { configured }
}
