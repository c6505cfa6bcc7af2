//! What this server says of itself, and which others there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use super::roles::Role;
use crate::fleet::{Line, Seen};
use crate::http::answer::error::HandlerResult;
use crate::http::answer::reply;
use crate::http::state::about::{AboutPool, Most};
use crate::http::state::{App, AppState, PoolState};
use crate::metrics::{Process, Took};
use crate::name::PoolName;
use crate::process::tasks::beside_the_runtime;
use crate::process::version::Version;
use crate::sampler::Sample;
use crate::time::Instant;

/// What this server says to the others.
pub fn own_line(state: &AppState) -> Line {
    let Version { version, build_commit, .. } = Version::current();
    let samples: Vec<Arc<Sample>> = state.pools.values().map(|pool| pool.sampler.latest()).collect();
    let serves = !state.readiness.is_draining() && state.readiness.failure().is_none();
    let mut rates = [0.0; 4];
    for sample in &samples {
        rates.iter_mut().zip(sample.rates).for_each(|(sum, rate)| *sum += rate);
    }
    Line {
        name: state.server.clone(),
        version: version.to_owned(),
        commit: build_commit.to_owned(),
        started: state.began.wall(),
        admin_url: state.about.admin_url.clone(),
        ready: serves && samples.iter().all(|sample| sample.trouble.is_none()),
        rates: rates.map(|rate| (rate * 1000.0).round() / 1000.0),
        waiting: state.parked.count() as u64,
    }
}

/// All servers of the fleet, and their sums.
#[derive(Clone, Debug)]
pub struct Servers {
    pub seen: Arc<Seen>,
    /// Published, handed out, acked, and died: jobs a second over the last minute.
    pub rates: [f64; 4],
    pub waiting: u64,
    pub versions_differ: bool,
}

/// Who is there, as the store of tokens said it a moment ago.
pub fn fleet(state: &AppState) -> Servers {
    let seen = state.fleet.seen();
    let (mut rates, mut waiting) = ([0.0; 4], 0);
    for line in &seen.lines {
        rates.iter_mut().zip(line.rates).for_each(|(sum, rate)| *sum += rate);
        waiting += line.waiting;
    }
    let first = seen.lines.first().map(|line| (&line.version, &line.commit));
    let versions_differ = seen.lines.iter().any(|line| Some((&line.version, &line.commit)) != first);
    Servers { rates, waiting, versions_differ, seen }
}

#[derive(Serialize)]
struct Rates {
    #[serde(rename = "in")]
    entered: f64,
    out: f64,
    acked: f64,
    died: f64,
}

fn rates(of: [f64; 4]) -> Rates {
    let [entered, out, acked, died] = of.map(|rate| (rate * 1000.0).round() / 1000.0);
    Rates { entered, out, acked, died }
}

#[derive(Serialize)]
struct ServersReply<'a> {
    server: &'a str,
    sampled_at: Option<Instant>,
    trouble: Option<&'a str>,
    versions_differ: bool,
    #[serde(flatten)]
    rates: Rates,
    waiting: u64,
    servers: Vec<ServerLine<'a>>,
}

#[derive(Serialize)]
struct ServerLine<'a> {
    name: &'a str,
    version: &'a str,
    build_commit: &'a str,
    started: Instant,
    admin_url: Option<&'a str>,
    ready: bool,
    #[serde(flatten)]
    rates: Rates,
    waiting: u64,
}

/// `GET /servers`
pub async fn servers(State(state): App) -> HandlerResult {
    let Servers { seen, rates: sums, waiting, versions_differ } = fleet(&state);
    let servers = seen.lines.iter().map(|line| ServerLine {
        name: &line.name,
        version: &line.version,
        build_commit: &line.commit,
        started: Instant(line.started),
        admin_url: line.admin_url.as_deref(),
        ready: line.ready,
        rates: rates(line.rates),
        waiting: line.waiting,
    });
    let reply = ServersReply {
        server: &state.server,
        sampled_at: seen.at.map(Instant),
        trouble: seen.trouble.as_deref(),
        versions_differ,
        rates: rates(sums),
        waiting,
        servers: servers.collect(),
    };
    Ok(reply::json(StatusCode::OK, &reply))
}

/// A pool, as this server is set up for it and as it was read last.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    pub name: PoolName,
    pub about: AboutPool,
    pub sample: Arc<Sample>,
    /// How often its store was away since the start, as its users noticed it.
    pub outages: u64,
    pub is_away: bool,
}

/// The pools of this server.
pub fn pools(state: &AppState) -> Vec<PoolStatus> {
    let status = |pool: &Arc<PoolState>| PoolStatus {
        name: pool.name.clone(),
        about: state.about.pools.get(&pool.name).cloned().unwrap_or_default(),
        sample: pool.sampler.latest(),
        outages: pool.outage.count(),
        is_away: pool.outage.is_on(),
    };
    state.pools.values().map(status).collect()
}

#[derive(Serialize)]
struct ServerReply<'a> {
    server: &'a str,
    version: &'a str,
    build_commit: &'a str,
    started: Instant,
    config_file: Option<&'a str>,
    admin_url: Option<&'a str>,
    dashboard: bool,
    zone: &'a str,
    zone_database: &'a str,
    role: &'static str,
    asks_for_accounts: bool,
    ready: bool,
    access_log: bool,
    most: Most,
    /// By port.
    connections: BTreeMap<String, ConnectionsReply>,
    requests: usize,
    waiting: u64,
    /// That large bodies take, of requests and of answers.
    body_bytes: usize,
    process: ProcessReply,
    history: HistoryReply,
    pools: Vec<PoolReply<'a>>,
    changes: Vec<ChangeReply<'a>>,
}

#[derive(Serialize)]
struct ConnectionsReply {
    now: u64,
    most: u64,
}

#[derive(Serialize)]
struct ProcessReply {
    memory_bytes: u64,
    cpu_seconds: u64,
    open_files: u64,
    most_files: u64,
}

/// In seconds, each the end of a bucket; null beyond the last.
#[derive(Serialize)]
struct TookReply {
    count: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    worst: Option<f64>,
}

impl From<Took> for TookReply {
    fn from(Took { count, p50, p99, worst }: Took) -> TookReply {
        TookReply { count, p50, p99, worst }
    }
}

#[derive(Serialize)]
struct HistoryReply {
    bytes: usize,
    histories: usize,
    lost_hours: u64,
    lost_days: u64,
}

#[derive(Serialize)]
struct PoolReply<'a> {
    pool: &'a str,
    #[serde(flatten)]
    about: &'a AboutPool,
    up: bool,
    outages: u64,
    sampled_at: Option<Instant>,
    trouble: Option<&'a str>,
    trouble_since: Option<Instant>,
    full_since: Option<Instant>,
    queues: usize,
    timers: u64,
    /// Seconds that the earliest timer is late; null while none is.
    overdue: Option<f64>,
    /// How late jobs were handed out, and how long syncs took, since the start; null where there were none.
    lateness: Option<TookReply>,
    sync: Option<TookReply>,
    /// Figures that its kind of store has.
    figures: BTreeMap<&'static str, f64>,
}

#[derive(Serialize)]
struct ChangeReply<'a> {
    at: Instant,
    by: &'a str,
    action: &'a str,
    pool: &'a str,
    of: &'a str,
}

/// `GET /server`
pub async fn server(State(state): App, role: Role) -> HandlerResult {
    let Version { version, build_commit, .. } = Version::current();
    let (own, about, used) = (own_line(&state), &state.about, state.history.used());
    let (all, changes) = (pools(&state), state.changes.list());
    let connections = state.metrics.connections().into_iter();
    let kept = state.clone();
    let times = move || kept.times.of(&kept.metrics.engine, std::time::Instant::now());
    let (times, process) = beside_the_runtime(move || (times(), Process::now())).await;
    let zones = state.pools.values().next().map_or("", |pool| pool.scheduler.zones.version());
    let pools = all.iter().map(|of| {
        let PoolStatus { name, about, sample, outages, is_away } = of;
        let trouble = sample.trouble.as_ref();
        PoolReply {
            pool: name.as_str(),
            about,
            up: !is_away && trouble.is_none(),
            outages: *outages,
            sampled_at: sample.at.map(Instant),
            trouble: trouble.map(|trouble| &*trouble.why),
            trouble_since: trouble.map(|trouble| Instant(trouble.since)),
            full_since: sample.full_since.map(Instant),
            queues: sample.rows.len() + sample.left_out,
            timers: sample.timers,
            overdue: sample.overdue.map(|late| late.as_millis() as f64 / 1000.0),
            lateness: times.get(name).and_then(|of| of.lateness).map(TookReply::from),
            sync: times.get(name).and_then(|of| of.sync).map(TookReply::from),
            figures: sample.gauges.iter().copied().collect(),
        }
    });
    let changes = changes.iter().map(|change| ChangeReply {
        at: Instant(change.at),
        by: &change.by,
        action: &change.action,
        pool: &change.pool,
        of: &change.of,
    });
    let reply = ServerReply {
        server: &state.server,
        version,
        build_commit,
        started: Instant(state.began.wall()),
        config_file: about.config_file.as_deref(),
        admin_url: about.admin_url.as_deref(),
        dashboard: about.dashboard,
        zone: &about.zone,
        zone_database: zones,
        role: if role == Role::Operator { "operator" } else { "viewer" },
        asks_for_accounts: !state.accounts.is_empty(),
        ready: own.ready,
        access_log: state.access_log.load(Ordering::Relaxed),
        most: about.most,
        connections: connections.map(|(port, (now, most))| (port, ConnectionsReply { now, most })).collect(),
        requests: state.requests.load(Ordering::Relaxed),
        waiting: own.waiting,
        body_bytes: state.body_room.taken(),
        process: ProcessReply {
            memory_bytes: process.memory_bytes,
            cpu_seconds: process.cpu_seconds,
            open_files: process.open_files,
            most_files: process.most_files,
        },
        history: HistoryReply {
            bytes: used.bytes,
            histories: used.tracks,
            lost_hours: used.lost_hours,
            lost_days: used.lost_days,
        },
        pools: pools.collect(),
        changes: changes.collect(),
    };
    Ok(reply::json(StatusCode::OK, &reply))
}
