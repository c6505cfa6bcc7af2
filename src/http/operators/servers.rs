//! This server's state, and the other servers of its fleet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use super::roles::Role;
use super::sums::rounded;
use crate::fleet::FleetLine;
use crate::http::answer::error::HandlerResult;
use crate::http::answer::reply;
use crate::http::state::about::{AboutPool, Most};
use crate::http::state::changes::OperatorChange;
use crate::http::state::{App, AppState, PoolState};
pub use crate::metrics::Took;
use crate::metrics::{Process, Times};
use crate::process::tasks::beside_the_runtime;
use crate::process::version::Build;
use crate::sampler::Sample;
use crate::time::Instant;

/// Returns the line that this server publishes to the fleet.
pub fn own_line(state: &AppState) -> FleetLine {
    let Build { version, build_commit, .. } = Build::current();
    let samples: Vec<Arc<Sample>> = state.pools.values().map(|pool| pool.sampler.latest()).collect();
    let serves = !state.server.readiness.is_draining() && state.server.readiness.failure().is_none();
    let mut rates = [0.0; 4];
    for sample in &samples {
        rates.iter_mut().zip(sample.rates).for_each(|(sum, rate)| *sum += rate);
    }
    FleetLine {
        name: state.server.name.clone(),
        version: version.to_owned(),
        commit: build_commit.to_owned(),
        started: state.shown(state.server.began.wall()),
        admin_url: state.server.about.admin_url.clone(),
        ready: serves && samples.iter().all(|sample| sample.trouble.is_none()),
        rates: rates.map(rounded),
        waiting: state.bounds.parked.count() as u64,
    }
}

/// Jobs per second over the last minute.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    /// Published.
    #[serde(rename = "in")]
    pub entered: f64,
    /// Delivered.
    pub out: f64,
    pub acked: f64,
    pub died: f64,
}

impl From<[f64; 4]> for Rates {
    fn from(rates: [f64; 4]) -> Rates {
        let [entered, out, acked, died] = rates.map(rounded);
        Rates { entered, out, acked, died }
    }
}

/// Reply of `GET /servers`: all servers of the fleet, as last read from the store of tokens, and their sums.
/// Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct ServersReply {
    pub server: String,
    pub sampled_at: Option<Instant>,
    pub trouble: Option<String>,
    pub versions_differ: bool,
    #[serde(flatten)]
    pub rates: Rates,
    pub waiting: u64,
    pub servers: Vec<ServerLine>,
}

#[derive(Debug, Serialize)]
pub struct ServerLine {
    pub name: String,
    pub version: String,
    pub build_commit: String,
    pub started: Instant,
    pub admin_url: Option<String>,
    pub ready: bool,
    #[serde(flatten)]
    pub rates: Rates,
    pub waiting: u64,
}

/// `GET /servers`
pub async fn servers(State(state): App) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &servers_of(&state)))
}

/// Returns the reply of [`servers`].
pub fn servers_of(state: &AppState) -> ServersReply {
    let seen = state.operations.fleet.seen();
    let mut sums = [0.0; 4];
    for line in &seen.lines {
        sums.iter_mut().zip(line.rates).for_each(|(sum, rate)| *sum += rate);
    }
    let first = seen.lines.first().map(|line| (&line.version, &line.commit));
    let servers = seen.lines.iter().cloned().map(|line| ServerLine {
        name: line.name,
        version: line.version,
        build_commit: line.commit,
        started: Instant(line.started),
        admin_url: line.admin_url,
        ready: line.ready,
        rates: line.rates.into(),
        waiting: line.waiting,
    });
    ServersReply {
        server: state.server.name.clone(),
        sampled_at: seen.at.map(Instant),
        trouble: seen.trouble.clone(),
        versions_differ: seen.lines.iter().any(|line| Some((&line.version, &line.commit)) != first),
        rates: sums.into(),
        waiting: seen.lines.iter().map(|line| line.waiting).sum(),
        servers: servers.collect(),
    }
}

/// Reply of `GET /server`. Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct ServerReply {
    pub server: String,
    pub version: String,
    pub build_commit: String,
    pub started: Instant,
    pub config_file: Option<String>,
    pub admin_url: Option<String>,
    pub dashboard: bool,
    pub zone: String,
    pub zone_database: String,
    pub role: String,
    pub asks_for_accounts: bool,
    pub ready: bool,
    pub access_log: bool,
    pub most: Most,
    /// By port.
    pub connections: BTreeMap<String, ConnectionsReply>,
    pub requests: u64,
    pub waiting: u64,
    /// Slots in use by waiting polls, in the unit of `most.waiting`.
    pub waiting_places: u64,
    /// Memory of large bodies, of requests and replies.
    pub body_bytes: u64,
    pub process: Process,
    pub history: HistoryReply,
    pub pools: Vec<PoolReply>,
    pub changes: Vec<ChangeReply>,
}

#[derive(Debug, Serialize)]
pub struct ConnectionsReply {
    pub now: u64,
    pub most: u64,
}

#[derive(Debug, Serialize)]
pub struct HistoryReply {
    pub bytes: usize,
    pub histories: usize,
    /// Number of queues that lost their history to busier ones: the hour and the day together.
    pub lost_hours: u64,
    pub lost_days: u64,
}

/// A pool: its configuration on this server, and its last sample.
#[derive(Debug, Serialize)]
pub struct PoolReply {
    pub pool: String,
    #[serde(flatten)]
    pub about: AboutPool,
    pub up: bool,
    /// Outages of its store since the start, as its users noticed them.
    pub outages: u64,
    pub sampled_at: Option<Instant>,
    pub trouble: Option<String>,
    pub trouble_since: Option<Instant>,
    pub full_since: Option<Instant>,
    pub queues: u64,
    pub timers: u64,
    /// How many seconds the earliest timer is overdue; null while none is.
    pub overdue: Option<f64>,
    /// Lateness of deliveries and duration of syncs, since the start; null if there were none.
    pub lateness: Option<Took>,
    pub sync: Option<Took>,
    /// Statistics specific to its kind of store.
    pub figures: BTreeMap<String, f64>,
}

#[derive(Debug, Serialize)]
pub struct ChangeReply {
    pub at: Instant,
    pub by: String,
    pub action: String,
    pub pool: String,
    pub of: String,
}

impl From<OperatorChange> for ChangeReply {
    fn from(OperatorChange { at, by, action, pool, of }: OperatorChange) -> ChangeReply {
        ChangeReply { at: Instant(at), by, action, pool, of }
    }
}

fn pool_reply(state: &AppState, pool: &PoolState, times: Option<&Times>) -> PoolReply {
    let (sample, about) = (pool.sampler.latest(), &state.server.about);
    let trouble = sample.trouble.as_ref();
    PoolReply {
        pool: pool.name.to_string(),
        about: about.pools.get(&pool.name).cloned().unwrap_or_default(),
        up: !pool.outage.is_on() && trouble.is_none(),
        outages: pool.outage.count(),
        sampled_at: sample.at.map(|at| Instant(state.shown(at))),
        trouble: trouble.map(|trouble| trouble.why.to_string()),
        trouble_since: trouble.map(|trouble| Instant(state.shown(trouble.since))),
        full_since: sample.full_since.map(|since| Instant(state.shown(since))),
        queues: (sample.rows.len() + sample.left_out) as u64,
        timers: sample.timers,
        overdue: sample.overdue.map(|late| late.as_millis() as f64 / 1000.0),
        lateness: times.and_then(|times| times.lateness),
        sync: times.and_then(|times| times.sync),
        figures: sample.gauges.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
    }
}

/// `GET /server`
pub async fn server(State(state): App, role: Role) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &server_for(&state, role).await))
}

/// Returns the reply of [`server`] to an account with this role.
pub async fn server_for(state: &Arc<AppState>, role: Role) -> ServerReply {
    let Build { version, build_commit, .. } = Build::current();
    let (own, about, used) = (own_line(state), &state.server.about, state.operations.history.used());
    let connections = state.traffic.metrics.connections().into_iter();
    let kept = state.clone();
    let times = move || kept.traffic.times.of(&kept.traffic.metrics.engine, std::time::Instant::now());
    let (times, process) = beside_the_runtime(move || (times(), Process::now())).await;
    let zones = state.pools.values().next().map_or("", |pool| pool.scheduler.zones.version());
    let pools = state.pools.values().map(|pool| pool_reply(state, pool, times.get(&pool.name)));
    ServerReply {
        server: state.server.name.clone(),
        version: version.to_owned(),
        build_commit: build_commit.to_owned(),
        started: Instant(state.shown(state.server.began.wall())),
        config_file: about.config_file.clone(),
        admin_url: about.admin_url.clone(),
        dashboard: about.dashboard,
        zone: about.zone.clone(),
        zone_database: zones.to_owned(),
        role: if role == Role::Operator { "operator" } else { "viewer" }.to_owned(),
        asks_for_accounts: !state.accounts.operators.is_empty(),
        ready: own.ready,
        access_log: state.traffic.access_log.load(Ordering::Relaxed),
        most: about.most,
        connections: connections.map(|(port, (now, most))| (port, ConnectionsReply { now, most })).collect(),
        requests: state.traffic.requests.load(Ordering::Relaxed) as u64,
        waiting: own.waiting,
        waiting_places: state.bounds.parked.places() as u64,
        body_bytes: state.bounds.body_room.taken() as u64,
        process,
        history: HistoryReply {
            bytes: used.bytes,
            histories: used.tracks,
            lost_hours: used.lost,
            lost_days: used.lost,
        },
        pools: pools.collect(),
        changes: state.operations.changes.list().into_iter().map(ChangeReply::from).collect(),
    }
}
