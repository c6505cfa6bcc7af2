//! Opening a pool on a single Redis or in a cluster.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::DropGuard;

use super::cluster::{self, Opened};
use super::connection::connector::RedisAddress;
use super::connection::fault::{Fault, Outcome};
use super::link::{Common, Link};
use super::lists::PoolLists;
use super::partitions::Partitions;
use super::pool::Place;
use super::safety::{check_listpacks, check_nodes};
use super::spread::SpreadRules;
use super::verbs::check::{OLDEST, first_check};
use super::watch;
use crate::engine::observer::Observer;
use crate::error::{Error, Result};
use crate::name::PoolName;
use crate::process::tasks::Failure;

/// Oldest supported version of cluster nodes: servers notify each other by sharded channels.
pub const OLDEST_IN_CLUSTER: (u32, u32) = (7, 0);

/// How long the first start of a pool waits for nodes that do not answer, and the pause between two looks.
const FIRST_START: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Options of a pool's layout on its Redis.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Prefix of every key, in a cluster.
    pub prefix: String,
    /// Number of partitions in a cluster: a power of two up to 4096.
    pub partitions: u16,
    /// Number of replicas that must have a write before its reply is sent.
    pub wait_replicas: u16,
    /// Which queues use all partitions.
    pub spread: SpreadRules,
    /// How long newly dead jobs are kept; zero: forever.
    pub dead_ttl: Duration,
    /// Delays longer than this are packed; zero: none.
    pub pack_after: Duration,
    /// Receives internal events.
    pub observer: Arc<dyn Observer>,
}

/// The options of a single Redis.
impl Default for RedisOptions {
    fn default() -> RedisOptions {
        RedisOptions {
            prefix: String::new(),
            partitions: 1,
            wait_replicas: 0,
            spread: SpreadRules::default(),
            dead_ttl: Duration::ZERO,
            pack_after: Duration::ZERO,
            observer: Arc::new(()),
        }
    }
}

impl RedisOptions {
    /// Returns an error if the pool has another number of partitions.
    pub fn fits(&self, stored: u16) -> Outcome<()> {
        if stored == self.partitions {
            return Ok(());
        }
        Err(Fault::refused(format!(
            "Partitions is {}, and the pool with the prefix {} has {stored}: set it to {stored}; to change it, migrate \
             to another pool with MigrateTo",
            self.partitions, self.prefix
        )))
    }

    /// Returns the error for a pool in the layout of an earlier version.
    pub fn compact(&self) -> Fault {
        Fault::refused(format!(
            "the pool with the prefix {} is in the compact layout, which this version does not support: use another \
             Prefix, or delete its keys",
            self.prefix
        ))
    }
}

/// A pool's nodes, and the guards that end its tasks.
pub type OpenedPlace = (Common, Place, Vec<DropGuard>);

/// Opens a pool on a single Redis.
pub async fn open_one(
    address: RedisAddress,
    name: &PoolName,
    options: &RedisOptions,
    lists: PoolLists,
) -> Result<OpenedPlace> {
    let observer = options.observer.clone();
    let mut opened = Link::open(&address, name, lists, observer, options.wait_replicas).await?;
    let link = opened.link.clone();
    first_check(&link, &mut opened.first, OLDEST).await?;
    if !options.pack_after.is_zero() {
        check_listpacks(&mut opened.first, &link.common.pool).await?;
    }
    let guards = opened.keep();
    link.tasks.spawn_essential("the watch on ready lists", watch::run(link.clone()));
    if options.wait_replicas > 0 {
        let _ = link.look_at_replicas().await; // without an answer too few are in sync
        link.tasks.spawn_essential("the watch on replicas", link.clone().watch_replicas());
    }
    Ok((link.common.clone(), Place::One(link), guards.into()))
}

/// Opens a pool in a cluster. A pool that was used before starts with the reachable nodes; a new one needs all of them.
pub async fn open_cluster(
    address: RedisAddress,
    name: &PoolName,
    options: &RedisOptions,
    (partitions, lists): (&Arc<Partitions>, PoolLists),
) -> Result<OpenedPlace> {
    let common = Common::new(name, options.observer.clone(), options.wait_replicas, Failure::default());
    let checks = (OLDEST_IN_CLUSTER, !options.pack_after.is_zero());
    if let Some(version) = check_nodes(&address, &common.pool, checks).await? {
        let _ = common.version.set(version); // asked once
    }
    let mut opened = cluster::open(address, common.clone(), partitions.slots(), Arc::new(lists)).await?;
    let began = Instant::now();
    while let Err(error) = agree_on_count(&opened, options, partitions).await {
        if !matches!(error, Error::Away(_)) || began.elapsed() >= FIRST_START {
            return Err(error);
        }
        sleep(LOOK_AGAIN).await;
        opened.look().await;
    }
    let (cluster, guard) = opened.keep();
    Ok((common, Place::Cluster(cluster), vec![guard]))
}

/// Compares the number of partitions with the stored one, and stores it on the first start. `Away` if that needs a
/// node which does not answer.
async fn agree_on_count(opened: &Opened, options: &RedisOptions, partitions: &Partitions) -> Result<()> {
    let (mut known, mut missing) = (false, Vec::new());
    for at in partitions.count_keys() {
        let mut stored = redis::cmd("GET");
        stored.arg(&at.key);
        match opened.query::<Option<u16>>(at.slot, &stored).await {
            Ok(Some(stored)) => {
                options.fits(stored)?;
                known = true;
            }
            Ok(None) => {
                if let Ok(true) = opened.query::<bool>(at.slot, &redis::Cmd::exists(&at.compact)).await {
                    return Err(options.compact().into());
                }
                missing.push(at);
            }
            Err(fault) if fault.is_refusal() => return Err(fault.into()),
            Err(_) => {}
        }
    }
    if !known && (missing.len() < partitions.count_keys().len() || !opened.serves_all()) {
        return Err(Error::away(
            "the first start of a pool needs every slot of the cluster to be served, but some slots are not",
        ));
    }
    for at in missing {
        let stored = async {
            let _: u64 =
                opened.query(at.slot, redis::cmd("SETNX").arg(&at.key).arg(options.partitions)).await?;
            opened.query::<u16>(at.slot, redis::cmd("GET").arg(&at.key)).await
        };
        match stored.await {
            // Another server that started at the same time may have stored a different number.
            Ok(stored) => options.fits(stored)?,
            Err(fault) if !known => return Err(fault.into()),
            Err(_) => {}
        }
    }
    Ok(())
}
